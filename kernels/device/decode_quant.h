/* decode_quant.h: the operation that makes values of the codes of `quant`
 * (codecs/stages/quant/quant.md). */
#ifndef KVC_DECODE_QUANT_H
#define KVC_DECODE_QUANT_H

#include "kernels/device/decode_tile.h"

/* Facts that all rows of a tile share. */
struct kvc_quant {
    /* span: channels that are quantised together; skip: those before the tile's */
    uint32_t axis, group, span, skip;
    uint32_t symmetric;
};
/* Facts of a row: its class, and the span's first parameter and first code. */
struct kvc_quant_row {
    uint32_t of, param, code;
};

KVC_DEVICE struct kvc_quant_row kvc_quant_row(const struct kvc_device_op *op,
                                              const struct kvc_tile *t, const struct kvc_quant *q,
                                              uint32_t r) {
    uint32_t row = op->row + t->row + r, of = 0;
    if (op->quant.rank) {
        const uint32_t rank = kvc_load16(KVC_BYTES(op->quant.rank) +
                                         2 * ((uint64_t)row * op->heads + t->head));
        of = rank >> 15;
        row = rank & 0x7fffu;
    }
    const uint32_t *begin = op->quant.begin ? KVC_WORDS(op->quant.begin) +
                                                  2 * ((uint64_t)of * op->heads + t->head)
                                            : 0;
    const uint32_t at = q->axis == KVC_QUANT_ROWS ? row / q->group * q->span
                                                  : row * ((q->span + q->group - 1) / q->group);
    const struct kvc_quant_row found = {of,
                                        q->axis == KVC_QUANT_ROW ? row
                                                                 : (begin ? begin[0] : 0) + at,
                                        (begin ? begin[1] : 0) + row * q->span};
    return found;
}

/* Returns the number of the parameter of the tile's channel c, counted from the row's first. */
KVC_DEVICE uint32_t kvc_quant_param(const struct kvc_quant *q, uint32_t c) {
    return q->axis == KVC_QUANT_ROWS       ? q->skip + c
           : q->axis == KVC_QUANT_CHANNELS ? (q->skip + c) / q->group
                                           : 0;
}

/* Returns 1 in the case of most recipes: four adjacent values have adjacent parameters or share
 * one, codes have 1, 2, 4 or 8 bits, and four codes are in the bytes of one word. */
KVC_DEVICE uint32_t kvc_quant_in_fours(const struct kvc_device_op *op, const struct kvc_tile *t,
                                       const struct kvc_quant *q) {
    uint32_t apart = t->width | q->span | q->skip | (q->axis == KVC_QUANT_CHANNELS ? q->group : 0);
    for (uint32_t of = 0; of < (op->quant.rank ? 2u : 1u); of++) {
        const uint32_t *begin = op->quant.begin ? KVC_WORDS(op->quant.begin) +
                                                      2 * ((uint64_t)of * op->heads + t->head)
                                                : 0;
        if (begin) apart |= begin[1] | (q->axis == KVC_QUANT_ROWS ? begin[0] : 0);
        if (op->quant.bits[of] & (op->quant.bits[of] - 1)) apart = 1;
    }
    return (apart & 3) == 0 && !op->quant.norms && !(op->quant.flags & KVC_QUANT_ADD);
}

KVC_DEVICE void kvc_quant_fours(const struct kvc_device_op *op, struct kvc_tile *t,
                                const struct kvc_quant *q) {
    /* tiles of fours have 256 rows at most */
    struct kvc_quant_row *const row = (struct kvc_quant_row *)(void *)t->other;
    KVC_EACH_LANE for (uint32_t r = lane; r < t->rows; r += KVC_LANES)
        row[r] = kvc_quant_row(op, t, q, r);
    KVC_LANES_MEET();
    KVC_EACH_LANE {
        struct kvc_load_batch batch;
        KVC_EACH_BATCH(t, &batch, 4) {
            uint32_t word[KVC_BATCH];
            KVC_EACH_OF_BATCH(t, &batch) {
                const uint32_t of = row[r].of, i = row[r].code + q->skip + c;
                const uint32_t part = 4 * op->quant.bits[of]; /* bytes of 32 codes */
                word[k] = kvc_aligned32(KVC_BYTES(op->quant.codes[of]) + (uint64_t)(i / 32) * part +
                                        i % 32 % part);
            }
            KVC_EACH_OF_BATCH(t, &batch) {
                const uint32_t of = row[r].of, p = row[r].param + kvc_quant_param(q, c),
                               bits = op->quant.bits[of], mask = (1u << bits) - 1;
                const uint32_t i = row[r].code + q->skip + c,
                               codes = word[k] >> i % 32 / (4 * bits) * bits;
                const float *step = KVC_FLOATS(op->quant.step[of]) + p,
                            *low = KVC_FLOATS(op->quant.low[of]) + p;
                struct kvc_four by, least, out;
                if (q->axis == KVC_QUANT_ROWS) by = kvc_load_four(step);
                else by.at[0] = by.at[1] = by.at[2] = by.at[3] = kvc_as_bits(*step);
                if (q->symmetric)
                    KVC_UNROLL for (uint32_t j = 0; j < 4; j++) least.at[j] = kvc_as_bits(
                        kvc_times(kvc_as_float(by.at[j]), op->quant.centre[of]));
                else if (q->axis == KVC_QUANT_ROWS) least = kvc_load_four(low);
                else least.at[0] = least.at[1] = least.at[2] = least.at[3] = kvc_as_bits(*low);
                KVC_UNROLL for (uint32_t j = 0; j < 4; j++) {
                    const float code = (float)(kvc_byte_of(codes, j) & mask);
                    out.at[j] = kvc_as_bits(kvc_add(kvc_times(code, kvc_as_float(by.at[j])),
                                                    kvc_as_float(least.at[j])));
                }
                kvc_store_four(KVC_FOUR(t), out);
            }
        }
    }
}

/* Decodes quant.md. */
KVC_DEVICE void kvc_op_quant(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t by_head = op->quant.flags & KVC_QUANT_BY_HEAD;
    const struct kvc_quant q = {op->quant.axis, op->quant.group,
                                by_head ? op->dim : op->heads * op->dim,
                                by_head ? t->column : t->head * op->dim + t->column,
                                op->quant.flags & KVC_QUANT_SYM};
    if (kvc_quant_in_fours(op, t, &q)) {
        kvc_quant_fours(op, t, &q);
        return;
    }
    for (uint32_t r = 0; r < t->rows; r++) {
        const struct kvc_quant_row row = kvc_quant_row(op, t, &q, r);
        const uint8_t *codes = KVC_BYTES(op->quant.codes[row.of]);
        const float *step = KVC_FLOATS(op->quant.step[row.of]) + row.param,
                    *low = KVC_FLOATS(op->quant.low[row.of]) + row.param;
        KVC_EACH_LANE for (uint32_t c = lane; c < t->width; c += KVC_LANES) {
            const uint32_t p = kvc_quant_param(&q, c);
            const float least = q.symmetric ? kvc_times(step[p], op->quant.centre[row.of]) : low[p];
            float x = kvc_add(kvc_times((float)kvc_unpack(codes, row.code + q.skip + c,
                                                          op->quant.bits[row.of]),
                                        step[p]),
                              least);
            if (op->quant.norms)
                x = kvc_times(x, KVC_FLOATS(op->quant.norms)[kvc_op_channel(op, t, c)]);
            if (op->quant.flags & KVC_QUANT_ADD) x = kvc_add(x, kvc_tile_float(t, r, c));
            KVC_VALUE(t) = kvc_as_bits(x);
        }
    }
}

#endif
