/* decode_stored.h: operations that begin a run with values as lossless stages store them: words,
 * upper halves, `fast`. Not for quantised values (decode_quant.h). */
#ifndef KVC_DECODE_STORED_H
#define KVC_DECODE_STORED_H

#include "kernels/device/decode_tile.h"

/* Loads 16 bytes at a time: `each` values, 4 of 4 bytes or 8 of 2. */
KVC_DEVICE void kvc_op_words_together(const struct kvc_device_op *op, struct kvc_tile *t,
                                      const uint32_t each) {
    const uint8_t *from = KVC_BYTES(op->words.from);
    KVC_EACH_LANE {
        struct kvc_load_batch batch;
        KVC_EACH_BATCH(t, &batch, each) {
            struct kvc_four four[KVC_BATCH];
            KVC_EACH_OF_BATCH(t, &batch)
            four[k] = kvc_load_four(from + 16 / each * kvc_op_index(op, t, r, c));
            KVC_EACH_OF_BATCH(t, &batch) {
                if (each == 4) {
                    kvc_store_four(KVC_FOUR(t), four[k]);
                    continue;
                }
                KVC_UNROLL for (uint32_t i = 0; i < 4; i += 2) {
                    const uint32_t a = four[k].at[i], b = four[k].at[i + 1];
                    const struct kvc_four half = {{a & 0xffffu, a >> 16, b & 0xffffu, b >> 16}};
                    kvc_store_four(KVC_FOUR(t) + 2 * i, half);
                }
            }
        }
    }
}

KVC_DEVICE void kvc_op_words(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint8_t *from = KVC_BYTES(op->words.from);
    const uint32_t size = op->words.size;
    if (size == 2 && kvc_op_in(op, t, 8)) kvc_op_words_together(op, t, 8);
    else if (size == 4 && kvc_op_in(op, t, 4)) kvc_op_words_together(op, t, 4);
    else KVC_EACH_VALUE(t) KVC_VALUE(t) = kvc_value_at(from, kvc_op_index(op, t, r, c), size);
}

KVC_DEVICE void kvc_op_upper(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint8_t *upper = KVC_BYTES(op->upper.upper), *lowest = KVC_BYTES(op->upper.lowest),
                  *low = KVC_BYTES(op->upper.low);
    KVC_EACH_VALUE(t) {
        const uint64_t i = kvc_op_index(op, t, r, c);
        KVC_VALUE(t) = kvc_load16(upper + 2 * i) << 16 | (uint32_t)low[i] << 8 | lowest[i];
    }
}

KVC_DEVICE uint32_t kvc_fast_word(uint32_t high, uint32_t low, uint32_t bias) {
    return ((high << 7 | low >> 1 | (low & 1u) << 15) + bias) & 0xffffu;
}

/* Decodes fast.md: codes first, then the escapes among the tile's rows. */
KVC_DEVICE void kvc_op_fast(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint8_t *low = KVC_BYTES(op->fast.low), *codes = KVC_BYTES(op->fast.codes),
                  *pair = KVC_BYTES(op->fast.pair);
    const uint8_t *plane[2] = {KVC_BYTES(op->fast.plane[0]), KVC_BYTES(op->fast.plane[1])},
                  *bias = KVC_BYTES(op->fast.bias);
    const uint32_t *start = KVC_WORDS(op->fast.start), bits = op->fast.bits;
    if (!op->fast.plane[0] && kvc_op_in(op, t, 4)) {
        KVC_EACH_LANE {
            struct kvc_load_batch batch;
            KVC_EACH_BATCH(t, &batch, 4) {
                struct kvc_packed packed[KVC_BATCH];
                uint32_t below[KVC_BATCH], of[KVC_BATCH][2];
                KVC_EACH_OF_BATCH(t, &batch) {
                    const uint64_t i = kvc_op_index(op, t, r, c);
                    packed[k] = kvc_packed_load(codes, (uint32_t)i, bits, 1);
                    below[k] = kvc_aligned32(low + i);
                    const uint8_t *own = bias + 2 * (uint64_t)kvc_op_channel(op, t, c);
                    of[k][0] = kvc_aligned32(own);
                    of[k][1] = kvc_aligned32(own + 4);
                }
                KVC_EACH_OF_BATCH(t, &batch) {
                    const uint32_t i = (uint32_t)kvc_op_index(op, t, r, c);
                    const uint32_t high = kvc_packed_value(packed[k], i, bits, 1);
                    struct kvc_four four;
                    KVC_UNROLL for (uint32_t j = 0; j < 4; j++)
                        four.at[j] = kvc_fast_word(kvc_byte_of(high, j), kvc_byte_of(below[k], j),
                                                   of[k][j / 2] >> j % 2 * 16 & 0xffffu);
                    kvc_store_four(KVC_FOUR(t), four);
                }
            }
        }
    } else KVC_EACH_VALUE(t) {
            const uint64_t i = kvc_op_index(op, t, r, c);
            const uint32_t high = kvc_unpack(codes, (uint32_t)i, bits);
            const uint32_t of = kvc_load16(bias + 2 * (uint64_t)kvc_op_channel(op, t, c));
            uint32_t word = kvc_fast_word(high, low[i], of);
            if (op->fast.plane[0]) word = word << 16 | (uint32_t)plane[1][i] << 8 | plane[0][i];
            KVC_VALUE(t) = word;
        }
    if (!op->fast.pair) return;
    KVC_LANES_MEET();
    const uint32_t first = op->row + t->row, end = start[2 * (first + t->rows)],
                   width = op->heads * op->dim;
    uint32_t base = start[2 * first + 1];
    /* distances add up from pair to pair */
    for (uint32_t p = start[2 * first]; p < end; p += KVC_LANES) {
        KVC_LANE_VAR(uint32_t, sum);
        KVC_EACH_LANE {
            KVC_AT(sum) = p + lane < end ? pair[2 * (uint64_t)(p + lane)] + 1u : 0;
        }
        const uint32_t total = KVC_PREFIX_SUM(sum);
        KVC_EACH_LANE {
            const uint32_t i = base + KVC_AT(sum) - 1, r = i / width - first, channel = i % width;
            const uint32_t c = channel - (t->head * op->dim + t->column);
            if (p + lane < end && i / width >= first && r < t->rows && c < t->width) {
                const uint32_t of = kvc_load16(bias + 2 * (uint64_t)channel);
                const uint32_t word = kvc_fast_word(pair[2 * (uint64_t)(p + lane) + 1], low[i], of);
                KVC_VALUE(t) = op->fast.plane[0] ? word << 16 | (KVC_VALUE(t) & 0xffffu) : word;
            }
        }
        base += total;
    }
}

#endif
