/* decode_rows.h: rows of one head, tile by tile: a warp has rows x channels as words in fast memory and runs a run's operations
 * over them, the last stage of the recipe first; then it writes them where the engine wants them. Arithmetic is that of the
 * stages' specs (codecs/NAME.md), operation by operation. One source for GPU and host. Indices that are themselves decoded are
 * checked here, all else by what made the operations. */
#ifndef KVC_DECODE_ROWS_H
#define KVC_DECODE_ROWS_H

#include "kernels/device/decode_values.h"

/* A tile: row r, channel c of the head at word[r * width + c]. Words are binary32, or a dtype's in their low bits. */
struct kvc_tile {
    uint32_t *word, *other; /* KVC_DEVICE_TILE words each; operations that cannot work in place swap them */
    uint32_t rows, width;
    uint32_t row;    /* of the run: number of the tile's first */
    uint32_t head;
    uint32_t column; /* of the head: number of the tile's first channel */
    uint32_t fault;
};

/* Value i of a tile, row after row. A tile without channels has none. */
KVC_DEVICE uint32_t kvc_row_of(const struct kvc_tile *t, uint32_t i) {
    return t->width ? i / t->width : t->rows;
}
KVC_DEVICE uint32_t kvc_column_of(const struct kvc_tile *t, uint32_t i) {
    return t->width ? i % t->width : 0;
}
/* `step` values on. */
KVC_DEVICE void kvc_walk(const struct kvc_tile *t, uint32_t step, uint32_t *r, uint32_t *c) {
    *r += step / t->width;
    *c += step % t->width;
    if (*c >= t->width) {
        *c -= t->width;
        ++*r;
    }
}

/* All values, row r and channel c, shared out among the lanes: they are busy however narrow the tile is. */
#define KVC_EACH_VALUE(t)                                                                         \
    KVC_EACH_LANE for (uint32_t r = kvc_row_of(t, lane), c = kvc_column_of(t, lane); r < (t)->rows; \
                       kvc_walk(t, KVC_LANES, &r, &c))
#define KVC_VALUE(t) ((t)->word[r * (t)->width + c])

/* The same four channels at a time, for operations that find their four side by side: a tile's rows then begin at multiples of 16
 * bytes. Memory is far away: a lane asks for KVC_AHEAD fours before it writes any of them to the tile. KVC_EACH_AHEAD, inside
 * KVC_EACH_LANE, notes the lane's next ones; inside it, KVC_EACH_ASKED goes through those, number k, row r, channels from c on: once
 * to load, once to write. */
#define KVC_FOUR(t) ((t)->word + r * (t)->width + c)
enum { KVC_AHEAD = 4 };
struct kvc_ahead {
    uint32_t at[KVC_AHEAD]; /* row << 16 | channel; rows not below the tile's where there are no more */
};
KVC_DEVICE uint32_t kvc_look_ahead(struct kvc_ahead *a, const struct kvc_tile *t, uint32_t *r, uint32_t *c) {
    KVC_UNROLL for (uint32_t k = 0; k < KVC_AHEAD; k++) {
        a->at[k] = *r << 16 | *c;
        kvc_walk(t, 4 * KVC_LANES, r, c);
    }
    return 1;
}
#define KVC_EACH_AHEAD(t, ahead)                                                                \
    for (uint32_t next_r = kvc_row_of(t, 4 * lane), next_c = kvc_column_of(t, 4 * lane);        \
         next_r < (t)->rows && kvc_look_ahead(ahead, t, &next_r, &next_c);)
#define KVC_EACH_ASKED(t, ahead)                                                                                  \
    KVC_UNROLL for (uint32_t k = 0; k < KVC_AHEAD; k++)                                                           \
        for (uint32_t r = (ahead)->at[k] >> 16, c = (ahead)->at[k] & 0xffffu; r < (t)->rows; r = (t)->rows)

KVC_DEVICE float kvc_tile_float(const struct kvc_tile *t, uint32_t r, uint32_t c) {
    return kvc_as_float(t->word[r * t->width + c]);
}

KVC_DEVICE void kvc_tile_swap(struct kvc_tile *t) {
    uint32_t *word = t->word;
    t->word = t->other;
    t->other = word;
}

/* Number, in a matrix of op's shape, of the value in row r and channel c of the tile. */
KVC_DEVICE uint64_t kvc_op_index(const struct kvc_device_op *op, const struct kvc_tile *t, uint32_t r, uint32_t c) {
    return ((uint64_t)(op->row + t->row + r) * op->heads + t->head) * op->dim + t->column + c;
}

/* A channel of all heads. */
KVC_DEVICE uint32_t kvc_op_channel(const struct kvc_device_op *op, const struct kvc_tile *t, uint32_t c) {
    return t->head * op->dim + t->column + c;
}

/* --- what is stored --- */

/* Whether the tile's values lie in fours in matrices of op's shape: they do in all rows or in none. */
KVC_DEVICE uint32_t kvc_op_in_fours(const struct kvc_device_op *op, const struct kvc_tile *t) {
    return ((op->dim | t->column | t->width) & 3) == 0;
}

KVC_DEVICE void kvc_op_word_fours(const struct kvc_device_op *op, struct kvc_tile *t, const uint32_t size) {
    const uint8_t *from = KVC_BYTES(op->at[0]);
    KVC_EACH_LANE {
        struct kvc_ahead a;
        KVC_EACH_AHEAD(t, &a) {
            struct kvc_four four[KVC_AHEAD];
            KVC_EACH_ASKED(t, &a) {
                const uint8_t *p = from + size * kvc_op_index(op, t, r, c);
                if (size == 4) four[k] = kvc_load_four(p);
                else kvc_load_two(p, &four[k].at[0], &four[k].at[2]);
            }
            KVC_EACH_ASKED(t, &a) {
                if (size == 2) {
                    four[k].at[1] = four[k].at[0] >> 16, four[k].at[0] &= 0xffffu;
                    four[k].at[3] = four[k].at[2] >> 16, four[k].at[2] &= 0xffffu;
                }
                kvc_store_four(KVC_FOUR(t), four[k]);
            }
        }
    }
}

/* at: values, from a multiple of 16 on. n: bytes of each. */
KVC_DEVICE void kvc_op_words(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint8_t *from = KVC_BYTES(op->at[0]);
    const uint32_t size = op->n[0];
    if (size == 2 && kvc_op_in_fours(op, t)) kvc_op_word_fours(op, t, 2);
    else if (size == 4 && kvc_op_in_fours(op, t)) kvc_op_word_fours(op, t, 4);
    else KVC_EACH_VALUE(t) KVC_VALUE(t) = kvc_value_at(from, kvc_op_index(op, t, r, c), size);
}

/* at: upper halves (u16), lowest bytes, the bytes above those. */
KVC_DEVICE void kvc_op_upper(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint8_t *upper = KVC_BYTES(op->at[0]), *lowest = KVC_BYTES(op->at[1]), *low = KVC_BYTES(op->at[2]);
    KVC_EACH_VALUE(t) {
        const uint64_t i = kvc_op_index(op, t, r, c);
        KVC_VALUE(t) = kvc_load16(upper + 2 * i) << 16 | (uint32_t)low[i] << 8 | lowest[i];
    }
}

KVC_DEVICE uint32_t kvc_fast_word(uint32_t high, uint32_t low, uint32_t bias) {
    return ((high << 7 | low >> 1 | (low & 1u) << 15) + bias) & 0xffffu;
}

/* fast.md. at: low bytes, codes, biases (u16 a channel), pairs of escapes, where each row's begin (u32 number of the pair, u32 the
 * value that a distance of 0 means there; one more at the end), two byte planes of f32 (or 0). n: bits of a code. */
KVC_DEVICE void kvc_op_fast(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint8_t *low = KVC_BYTES(op->at[0]), *codes = KVC_BYTES(op->at[1]), *pair = KVC_BYTES(op->at[3]);
    const uint8_t *plane[2] = {KVC_BYTES(op->at[5]), KVC_BYTES(op->at[6])}, *bias = KVC_BYTES(op->at[2]);
    const uint32_t *start = KVC_WORDS(op->at[4]), bits = op->n[0];
    if (!op->at[5] && kvc_op_in_fours(op, t)) {
        KVC_EACH_LANE {
            struct kvc_ahead a;
            KVC_EACH_AHEAD(t, &a) {
                uint32_t high[KVC_AHEAD], below[KVC_AHEAD];
                KVC_EACH_ASKED(t, &a) {
                    const uint64_t i = kvc_op_index(op, t, r, c);
                    high[k] = kvc_unpack_four(codes, (uint32_t)i, bits);
                    below[k] = kvc_aligned32(low + i);
                }
                KVC_EACH_ASKED(t, &a) {
                    struct kvc_four four = kvc_load_halves(bias + 2 * (uint64_t)kvc_op_channel(op, t, c));
                    KVC_UNROLL for (uint32_t j = 0; j < 4; j++)
                        four.at[j] = kvc_fast_word(kvc_byte_of(high[k], j), kvc_byte_of(below[k], j), four.at[j]);
                    kvc_store_four(KVC_FOUR(t), four);
                }
            }
        }
    } else KVC_EACH_VALUE(t) {
        const uint64_t i = kvc_op_index(op, t, r, c);
        const uint32_t high = kvc_unpack(codes, (uint32_t)i, bits), of = kvc_load16(bias + 2 * (uint64_t)kvc_op_channel(op, t, c));
        uint32_t word = kvc_fast_word(high, low[i], of);
        if (op->at[5]) word = word << 16 | (uint32_t)plane[1][i] << 8 | plane[0][i];
        KVC_VALUE(t) = word;
    }
    if (!op->at[3]) return;
    KVC_LANES_MEET();
    const uint32_t first = op->row + t->row, end = start[2 * (first + t->rows)], width = op->heads * op->dim;
    uint32_t base = start[2 * first + 1];
    for (uint32_t p = start[2 * first]; p < end; p += KVC_LANES) { /* distances add up from pair to pair */
        KVC_LANE_VAR(uint32_t, sum);
        KVC_EACH_LANE { KVC_AT(sum) = p + lane < end ? pair[2 * (uint64_t)(p + lane)] + 1u : 0; }
        const uint32_t total = KVC_PREFIX_SUM(sum);
        KVC_EACH_LANE {
            const uint32_t i = base + KVC_AT(sum) - 1, r = i / width - first, channel = i % width;
            const uint32_t c = channel - (t->head * op->dim + t->column);
            if (p + lane < end && i / width >= first && r < t->rows && c < t->width) {
                const uint32_t of = kvc_load16(bias + 2 * (uint64_t)channel);
                const uint32_t word = kvc_fast_word(pair[2 * (uint64_t)(p + lane) + 1], low[i], of);
                KVC_VALUE(t) = op->at[5] ? word << 16 | (KVC_VALUE(t) & 0xffffu) : word;
            }
        }
        base += total;
    }
}

/* What is the same for all rows of a tile that kvc_op_quant() makes. */
struct kvc_quant {
    uint32_t axis, group, span, skip; /* channels of a span, and those of it before the tile's */
    uint32_t symmetric;
};
/* Of a row: its class, and its first parameter and code of the span. */
struct kvc_quant_row {
    uint32_t of, param, code;
};

KVC_DEVICE struct kvc_quant_row kvc_quant_row(const struct kvc_device_op *op, const struct kvc_tile *t, const struct kvc_quant *q,
                                              uint32_t r) {
    uint32_t row = op->row + t->row + r, of = 0;
    if (op->at[7]) {
        const uint32_t rank = kvc_load16(KVC_BYTES(op->at[7]) + 2 * ((uint64_t)row * op->heads + t->head));
        of = rank >> 15;
        row = rank & 0x7fffu;
    }
    const uint32_t *begin = op->at[6] ? KVC_WORDS(op->at[6]) + 2 * ((uint64_t)of * op->heads + t->head) : 0;
    const uint32_t at = q->axis == 0 ? row / q->group * q->span : row * ((q->span + q->group - 1) / q->group);
    const struct kvc_quant_row found = {of, q->axis == 2 ? row : (begin ? begin[0] : 0) + at,
                                        (begin ? begin[1] : 0) + row * q->span};
    return found;
}

/* Number of the parameter of the tile's channel c, from the row's first on. */
KVC_DEVICE uint32_t kvc_quant_param(const struct kvc_quant *q, uint32_t c) {
    return q->axis == 0 ? q->skip + c : q->axis == 1 ? (q->skip + c) / q->group : 0;
}

/* What most recipes ask: four values side by side have four parameters side by side, or share one; codes have 1, 2, 4 or 8 bits, and
 * four of them lie in the bytes of one word. */
KVC_DEVICE uint32_t kvc_quant_in_fours(const struct kvc_device_op *op, const struct kvc_tile *t, const struct kvc_quant *q) {
    uint32_t apart = t->width | q->span | q->skip | (q->axis == 1 ? q->group : 0);
    for (uint32_t of = 0; of < (op->at[7] ? 2u : 1u); of++) {
        const uint32_t *begin = op->at[6] ? KVC_WORDS(op->at[6]) + 2 * ((uint64_t)of * op->heads + t->head) : 0;
        if (begin) apart |= begin[1] | (q->axis == 0 ? begin[0] : 0);
        if (op->n[of] & (op->n[of] - 1)) apart = 1;
    }
    return (apart & 3) == 0 && !op->at[8] && !(op->n[4] & KVC_QUANT_ADD);
}

KVC_DEVICE void kvc_quant_fours(const struct kvc_device_op *op, struct kvc_tile *t, const struct kvc_quant *q) {
    struct kvc_quant_row *const row = (struct kvc_quant_row *)(void *)t->other; /* tiles of fours have 256 rows at most */
    KVC_EACH_LANE for (uint32_t r = lane; r < t->rows; r += KVC_LANES) row[r] = kvc_quant_row(op, t, q, r);
    KVC_LANES_MEET();
    KVC_EACH_LANE {
        struct kvc_ahead a;
        KVC_EACH_AHEAD(t, &a) {
            uint32_t word[KVC_AHEAD];
            KVC_EACH_ASKED(t, &a) {
                const uint32_t of = row[r].of, part = 4 * op->n[of], i = row[r].code + q->skip + c; /* part: bytes of 32 codes */
                const uint8_t *group = KVC_BYTES(op->at[of]) + (uint64_t)(i / 32) * part;
                word[k] = kvc_aligned32(group + i % 32 % part) >> i % 32 / part * (part / 4);
            }
            KVC_EACH_ASKED(t, &a) {
                const uint32_t of = row[r].of, p = row[r].param + kvc_quant_param(q, c), mask = (1u << op->n[of]) - 1;
                const float *step = KVC_FLOATS(op->at[2 + of]) + p, *low = KVC_FLOATS(op->at[4 + of]) + p;
                struct kvc_four by, least, out;
                if (q->axis == 0) by = kvc_load_four(step);
                else by.at[0] = by.at[1] = by.at[2] = by.at[3] = kvc_as_bits(*step);
                if (q->symmetric)
                    KVC_UNROLL for (uint32_t j = 0; j < 4; j++)
                        least.at[j] = kvc_as_bits(kvc_times(kvc_as_float(by.at[j]), op->f[of]));
                else if (q->axis == 0) least = kvc_load_four(low);
                else least.at[0] = least.at[1] = least.at[2] = least.at[3] = kvc_as_bits(*low);
                KVC_UNROLL for (uint32_t j = 0; j < 4; j++) {
                    const float code = (float)(kvc_byte_of(word[k], j) & mask);
                    out.at[j] = kvc_as_bits(kvc_add(kvc_times(code, kvc_as_float(by.at[j])), kvc_as_float(least.at[j])));
                }
                kvc_store_four(KVC_FOUR(t), out);
            }
        }
    }
}

/* quant.md. at: codes, steps, least values, of class 0 and 1 each (the last two binary32), where each head's and class's parameters
 * and codes begin (u32 pairs, [class][head]; 0: at the beginning), rank of each row and head in its class (u16, bit 15: class 1; 0:
 * there is one class), norms of channels (or 0). n: bits of class 0 and 1, axis (0 rows, 1 channels, 2 whole rows), group, flags. f:
 * half the levels of class 0 and 1, negated, for `sym`. */
KVC_DEVICE void kvc_op_quant(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t by_head = op->n[4] & KVC_QUANT_BY_HEAD;
    const struct kvc_quant q = {op->n[2], op->n[3], by_head ? op->dim : op->heads * op->dim,
                                by_head ? t->column : t->head * op->dim + t->column, op->n[4] & KVC_QUANT_SYM};
    if (kvc_quant_in_fours(op, t, &q)) {
        kvc_quant_fours(op, t, &q);
        return;
    }
    for (uint32_t r = 0; r < t->rows; r++) {
        const struct kvc_quant_row row = kvc_quant_row(op, t, &q, r);
        const uint8_t *codes = KVC_BYTES(op->at[row.of]);
        const float *step = KVC_FLOATS(op->at[2 + row.of]) + row.param, *low = KVC_FLOATS(op->at[4 + row.of]) + row.param;
        KVC_EACH_LANE for (uint32_t c = lane; c < t->width; c += KVC_LANES) {
            const uint32_t p = kvc_quant_param(&q, c);
            const float least = q.symmetric ? kvc_times(step[p], op->f[row.of]) : low[p];
            float x = kvc_add(kvc_times((float)kvc_unpack(codes, row.code + q.skip + c, op->n[row.of]), step[p]), least);
            if (op->at[8]) x = kvc_times(x, KVC_FLOATS(op->at[8])[kvc_op_channel(op, t, c)]);
            if (op->n[4] & KVC_QUANT_ADD) x = kvc_add(x, kvc_tile_float(t, r, c));
            KVC_VALUE(t) = kvc_as_bits(x);
        }
    }
}

/* What kvc_op_factors() multiplies. */
struct kvc_factors {
    const float *a, *b; /* coefficients of the tile's first row, directions from its first channel on */
    uint32_t apart, skip; /* from one direction to the next, from one row's coefficients to the next */
};

/* Rank 4, as recipes have it, where a lane's four channels are the same ones in all its rows: directions stay in registers. */
KVC_DEVICE void kvc_factors_of_four(const struct kvc_factors *f, struct kvc_tile *t, uint32_t add) {
    const uint32_t down = 4 * KVC_LANES / t->width;
    KVC_EACH_LANE {
        const uint32_t c = kvc_column_of(t, 4 * lane), begin = kvc_row_of(t, 4 * lane);
        struct kvc_four b[4], next = {{0, 0, 0, 0}};
        KVC_UNROLL for (uint32_t k = 0; k < 4; k++) b[k] = kvc_load_four(f->b + (uint64_t)k * f->apart + c);
        if (begin < t->rows) next = kvc_load_four(f->a + (uint64_t)begin * f->skip);
        for (uint32_t r = begin; r < t->rows; r += down) {
            const struct kvc_four a = next;
            if (r + down < t->rows) next = kvc_load_four(f->a + (uint64_t)(r + down) * f->skip); /* on its way meanwhile */
            struct kvc_four y = {{0, 0, 0, 0}};
            if (add) y = kvc_load_four(KVC_FOUR(t));
            KVC_UNROLL for (uint32_t i = 0; i < 4; i++) {
                float sum = 0;
                KVC_UNROLL for (uint32_t j = 0; j < 4; j++) sum = kvc_fma(kvc_as_float(a.at[j]), kvc_as_float(b[j].at[i]), sum);
                y.at[i] = kvc_as_bits(add ? kvc_add(sum, kvc_as_float(y.at[i])) : sum);
            }
            kvc_store_four(KVC_FOUR(t), y);
        }
    }
}

/* lowrank.md. at: coefficients, directions (binary32). n: rank, 1: of whole rows, 1: added to what is there. */
KVC_DEVICE void kvc_op_factors(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t rank = op->n[0], whole = op->n[1], first = op->row + t->row, apart = whole ? op->heads * op->dim : op->dim;
    const struct kvc_factors f = {
        KVC_FLOATS(op->at[0]) + (whole ? (uint64_t)first : (uint64_t)first * op->heads + t->head) * rank,
        KVC_FLOATS(op->at[1]) + (whole ? kvc_op_channel(op, t, 0) : (uint64_t)t->head * rank * op->dim + t->column),
        apart, whole ? rank : op->heads * rank};
    if (rank == 4 && t->width && 4 * KVC_LANES % t->width == 0 && kvc_op_in_fours(op, t)) {
        kvc_factors_of_four(&f, t, op->n[2]);
        return;
    }
    KVC_EACH_VALUE(t) {
        const float *x = f.a + (uint64_t)r * f.skip;
        float y = 0;
        for (uint32_t k = 0; k < rank; k++) y = kvc_fma(x[k], f.b[(uint64_t)k * apart + c], y);
        if (op->n[2]) y = kvc_add(y, kvc_tile_float(t, r, c));
        KVC_VALUE(t) = kvc_as_bits(y);
    }
}

/* --- values put in their places --- */

/* Whether outlier i of a vector ascends, lies inside and is finite; faults are noted. Its index. */
KVC_DEVICE uint32_t kvc_outlier(const struct kvc_device_op *op, uint32_t i, uint32_t begin, uint32_t limit, float *value,
                                uint32_t *fault) {
    const uint32_t index = kvc_value_at(KVC_BYTES(op->at[1]), i, op->n[0]), dtype = op->n[2];
    if (index >= limit || (i > begin && index <= kvc_value_at(KVC_BYTES(op->at[1]), i - 1, op->n[0]))) *fault |= KVC_FAULT_INDEX;
    *value = kvc_widen(kvc_value_at(KVC_BYTES(op->at[2]), i, kvc_value_bytes(dtype)), dtype);
    if ((kvc_as_bits(*value) & 0x7f800000u) == 0x7f800000u) *fault |= KVC_FAULT_NUMBER;
    return index;
}

/* outlier.md. at: where each vector's begin (u32, one more at the end; 0: n[1] each), indices, values. n: bytes of an index, outliers
 * of a vector, dtype, 1: vectors are channels, else rows, values of a vector. */
KVC_DEVICE void kvc_op_outliers(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t *start = op->at[0] ? KVC_WORDS(op->at[0]) : 0, first = op->row + t->row, columns = op->n[3];
    KVC_LANE_VAR(uint32_t, index_fault);
    KVC_LANE_VAR(uint32_t, number_fault);
    KVC_EACH_LANE { KVC_AT(index_fault) = KVC_AT(number_fault) = 0; }
    for (uint32_t v = 0; v < (columns ? t->width : t->rows); v += columns ? KVC_LANES : 1) { /* a lane a channel, or all for a row */
        KVC_EACH_LANE {
            const uint32_t own = columns ? v + lane : v, inside = !columns || own < t->width;
            const uint32_t vector = columns ? kvc_op_channel(op, t, own) : first + own;
            const uint32_t begin = !inside ? 0 : start ? start[vector] : vector * op->n[1];
            const uint32_t end = !inside ? 0 : start ? start[vector + 1] : begin + op->n[1];
            uint32_t fault = 0;
            for (uint32_t i = begin + (columns ? 0 : lane); i < end; i += columns ? 1 : KVC_LANES) {
                float x;
                const uint32_t index = kvc_outlier(op, i, begin, op->n[4], &x, &fault);
                const uint32_t r = columns ? index - first : own, c = columns ? own : index - (t->head * op->dim + t->column);
                if (r < t->rows && c < t->width) KVC_VALUE(t) = kvc_as_bits(x);
            }
            KVC_AT(index_fault) |= fault & KVC_FAULT_INDEX;
            KVC_AT(number_fault) |= fault & KVC_FAULT_NUMBER;
        }
    }
    if (kvc_ballot(index_fault)) t->fault |= KVC_FAULT_INDEX;
    if (kvc_ballot(number_fault)) t->fault |= KVC_FAULT_NUMBER;
}

/* finite.md. at: numbers of values (u32), values. n: how many, bytes of each. */
KVC_DEVICE void kvc_op_patch(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t width = op->heads * op->dim, first = op->row + t->row;
    KVC_EACH_LANE {
        for (uint32_t i = lane; i < op->n[0]; i += KVC_LANES) {
            const uint32_t at = kvc_load32(KVC_BYTES(op->at[0]) + 4 * (uint64_t)i), r = at / width - first;
            const uint32_t c = at % width - (t->head * op->dim + t->column);
            if (at / width >= first && r < t->rows && c < t->width)
                KVC_VALUE(t) = kvc_value_at(KVC_BYTES(op->at[1]), i, op->n[1]);
        }
    }
}

/* prune.md. at: of each channel, u16: which of the head's stored ones it is, or 0xffff; what left-out channels are (u32 words of all
 * channels; 0: all 0). n: stored channels of a head. Tiles are of whole heads. */
KVC_DEVICE void kvc_op_spread(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t stored = op->n[0];
    for (uint32_t r = 0; r < t->rows; r++) KVC_EACH_LANE for (uint32_t c = lane; c < op->dim; c += KVC_LANES) {
        const uint64_t channel = (uint64_t)t->head * op->dim + c;
        const uint32_t from = kvc_load16(KVC_BYTES(op->at[0]) + 2 * channel);
        t->other[r * op->dim + c] = from < stored ? t->word[r * stored + from] : op->at[1] ? KVC_WORDS(op->at[1])[channel] : 0;
    }
    t->width = op->dim;
    kvc_tile_swap(t);
}

/* --- factors and sums --- */

/* merge.md. at: norms. n: of a row, 1 or a number a head. */
KVC_DEVICE void kvc_op_norms(const struct kvc_device_op *op, struct kvc_tile *t) {
    KVC_EACH_VALUE(t) {
        const uint64_t i = (uint64_t)(op->row + t->row + r) * op->n[0] + (op->n[0] > 1 ? t->head : 0);
        KVC_VALUE(t) = kvc_as_bits(kvc_times(KVC_FLOATS(op->at[0])[i], kvc_tile_float(t, r, c)));
    }
}

/* steps.md. at: classes (i8 of each row and head). */
KVC_DEVICE void kvc_op_steps(const struct kvc_device_op *op, struct kvc_tile *t) {
    for (uint32_t r = 0; r < t->rows; r++) {
        const int32_t step = ((const int8_t *)(uintptr_t)op->at[0])[(uint64_t)(op->row + t->row + r) * op->heads + t->head];
        if (!step) continue;
        /* 2^(step / 2): a power of two, or the root of two times one */
        const uint32_t odd = (uint32_t)step & 1u;
        const float by = kvc_as_float((odd ? 0x3fb504f3u : 0x3f800000u) + (uint32_t)((step - (int32_t)odd) / 2 * (1 << 23)));
        KVC_EACH_LANE for (uint32_t c = lane; c < t->width; c += KVC_LANES)
            KVC_VALUE(t) = kvc_as_bits(kvc_times(by, kvc_tile_float(t, r, c)));
    }
}

/* How many rows a lane serves at once with each word of a matrix, and channels, which that word has. */
enum { KVC_BASIS_ROWS = 8, KVC_BASIS_CHANNELS = 4 };

/* The rows of basis.md's matrices, of one head. */
struct kvc_basis {
    const uint8_t *code; /* i8, `stride` bytes a row, a multiple of 4 */
    const float *scale, *channel; /* of rows; of channels, `stride` of them, or NULL */
    uint32_t n, dim, stride;
};

/* Coefficients of 32 / wide * each rows, from row `first` of the tile on, become channels in their place: `wide` lanes side by side
 * have the channels of `each` rows (a constant: the sums are in registers). Rows that the tile does not have are 0. */
KVC_DEVICE void kvc_basis_rows(struct kvc_tile *t, const struct kvc_basis *b, uint32_t first, uint32_t wide, const uint32_t each) {
    const uint32_t span = KVC_LANES / wide * each, shift = kvc_lowest_bit(span), n = b->n, dim = b->dim;
    uint32_t *const turned = t->other; /* coefficient j of row r at j * span + r: a lane reads those of its rows side by side */
    KVC_EACH_LANE {
        /* along diagonals, which spreads both accesses over the banks of memory */
        for (uint32_t i = lane; i < n << shift; i += KVC_LANES) {
            const uint32_t r = i & (span - 1), j = ((i >> shift) + r) % n;
            turned[(j << shift) + r] = first + r < t->rows ? t->word[(first + r) * dim + j] : 0;
        }
    }
    KVC_LANES_MEET();
    KVC_EACH_LANE {
        const uint32_t own = lane / wide * each; /* the first of the lane's rows */
        for (uint32_t c = lane % wide * KVC_BASIS_CHANNELS; c < dim; c += wide * KVC_BASIS_CHANNELS) {
            float sum[KVC_BASIS_ROWS][KVC_BASIS_CHANNELS] = {{0}};
            const uint8_t *code = b->code + c;
            uint32_t next = n ? kvc_aligned32(code) : 0;
            float next_scale = n ? b->scale[0] : 0;
            for (uint32_t j = 0; j < n; j++) {
                const uint32_t *from = turned + (j << shift) + own, word = next;
                const float scale = next_scale;
                code += b->stride;
                if (j + 1 < n) { /* on their way meanwhile */
                    next = kvc_aligned32(code);
                    next_scale = b->scale[j + 1];
                }
                float row[KVC_BASIS_CHANNELS];
                KVC_UNROLL for (uint32_t k = 0; k < KVC_BASIS_CHANNELS; k++)
                    row[k] = kvc_times((float)(int8_t)kvc_byte_of(word, k), scale);
                if (b->channel) {
                    const struct kvc_four by = kvc_load_four(b->channel + c);
                    KVC_UNROLL for (uint32_t k = 0; k < KVC_BASIS_CHANNELS; k++) row[k] = kvc_times(row[k], kvc_as_float(by.at[k]));
                }
                KVC_UNROLL for (uint32_t four = 0; four < each; four += 4) {
                    struct kvc_four x = {{from[four], 0, 0, 0}};
                    if (each % 4 == 0) x = kvc_load_four(from + four);
                    if (!(x.at[0] | x.at[1] | x.at[2] | x.at[3])) continue;
                    KVC_UNROLL for (uint32_t r = 0; r < 4 && r < each; r++) {
                        const float factor = kvc_as_float(x.at[r]);
                        if (factor != 0)
                            KVC_UNROLL for (uint32_t k = 0; k < KVC_BASIS_CHANNELS; k++)
                                sum[four + r][k] = kvc_fma(factor, row[k], sum[four + r][k]);
                    }
                }
            }
            KVC_UNROLL for (uint32_t r = 0; r < each; r++)
                for (uint32_t k = 0; k < KVC_BASIS_CHANNELS; k++)
                    if (first + own + r < t->rows && c + k < dim) t->word[(first + own + r) * dim + c + k] = kvc_as_bits(sum[r][k]);
        }
    }
    KVC_LANES_MEET();
}

/* basis.md. at: rows of matrices (i8, each filled up to a multiple of 4 elements), of each head the number of its first row and how
 * many it has (u32 pairs), scales of rows, scales of channels (filled up likewise) or 0. Tiles are of whole heads. Elements are made
 * as the spec says where they are used: codes are a quarter of them to move, and a word of codes serves all rows that the warp has.
 * Coefficients of 0 are skipped, as the rule says. */
KVC_DEVICE void kvc_op_basis(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t *part = KVC_WORDS(op->at[1]) + 2 * (uint64_t)t->head, stride = (op->dim + 3) & ~3u;
    const struct kvc_basis b = {KVC_BYTES(op->at[0]) + (uint64_t)part[0] * stride, KVC_FLOATS(op->at[2]) + part[0],
                                op->at[3] ? KVC_FLOATS(op->at[3]) + (uint64_t)t->head * stride : 0, part[1], op->dim, stride};
    uint32_t wide = 1, first = 0;
    while (wide < KVC_LANES && wide * KVC_BASIS_CHANNELS < op->dim) wide *= 2;
    /* so many rows that their coefficients fill a tile at most */
    if (op->dim <= KVC_DEVICE_TILE / KVC_BASIS_ROWS)
        for (; first < t->rows; first += KVC_LANES / wide * KVC_BASIS_ROWS) kvc_basis_rows(t, &b, first, wide, KVC_BASIS_ROWS);
    else if (op->dim <= KVC_DEVICE_TILE / 4)
        for (; first < t->rows; first += 4) kvc_basis_rows(t, &b, first, wide, 4);
    else
        for (; first < t->rows; first++) kvc_basis_rows(t, &b, first, wide, 1);
}

/* basis.md, kind 0, and center.md. at: a number a channel. */
KVC_DEVICE void kvc_op_scale(const struct kvc_device_op *op, struct kvc_tile *t) {
    KVC_EACH_VALUE(t)
    KVC_VALUE(t) = kvc_as_bits(kvc_times(kvc_tile_float(t, r, c), KVC_FLOATS(op->at[0])[kvc_op_channel(op, t, c)]));
}
KVC_DEVICE void kvc_op_mean(const struct kvc_device_op *op, struct kvc_tile *t) {
    KVC_EACH_VALUE(t)
    KVC_VALUE(t) = kvc_as_bits(kvc_add(kvc_tile_float(t, r, c), KVC_FLOATS(op->at[0])[kvc_op_channel(op, t, c)]));
}

/* derope.md. at: (high * middle(m)) for m = 0 to 15 of the block's 256 positions, low(l) for l = 0 to 15 (binary64, `pairs` cosines
 * and as many sines each), the low byte of each row's position. n: pairs, 1: halves, 2: interleaved. Tiles are of whole heads. */
KVC_DEVICE void kvc_op_turn(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t pairs = op->n[0], halves = op->n[1] == 1;
    for (uint32_t r = 0; r < t->rows; r++) {
        const uint32_t p = KVC_BYTES(op->at[2])[op->row + t->row + r];
        const double *a = (const double *)(uintptr_t)op->at[0] + (uint64_t)(p / 16) * 2 * pairs;
        const double *b = (const double *)(uintptr_t)op->at[1] + (uint64_t)(p % 16) * 2 * pairs;
        KVC_EACH_LANE for (uint32_t i = lane; i < pairs; i += KVC_LANES) {
            const float cosine = kvc_narrow(kvc_add_double(kvc_times_double(a[i], b[i]), -kvc_times_double(a[pairs + i], b[pairs + i])));
            const float sine = kvc_narrow(kvc_add_double(kvc_times_double(a[i], b[pairs + i]), kvc_times_double(a[pairs + i], b[i])));
            uint32_t *u = t->word + r * t->width + (halves ? i : 2 * i), *v = u + (halves ? pairs : 1);
            const float x = kvc_as_float(*u), y = kvc_as_float(*v);
            *u = kvc_as_bits(kvc_add(kvc_times(x, cosine), -kvc_times(y, sine)));
            *v = kvc_as_bits(kvc_add(kvc_times(y, cosine), kvc_times(x, sine)));
        }
    }
}

/* n: dtype. */
KVC_DEVICE void kvc_op_widen(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t dtype = op->n[0];
    KVC_EACH_VALUE(t) KVC_VALUE(t) = kvc_as_bits(kvc_widen(KVC_VALUE(t), dtype));
}
KVC_DEVICE void kvc_op_round(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t dtype = op->n[0];
    KVC_EACH_VALUE(t) KVC_VALUE(t) = kvc_round(kvc_tile_float(t, r, c), dtype);
}

KVC_DEVICE void kvc_op_run(const struct kvc_device_op *op, struct kvc_tile *t) {
    switch (op->kind) {
    case KVC_OP_WORDS: kvc_op_words(op, t); break;
    case KVC_OP_UPPER: kvc_op_upper(op, t); break;
    case KVC_OP_FAST: kvc_op_fast(op, t); break;
    case KVC_OP_QUANT: kvc_op_quant(op, t); break;
    case KVC_OP_FACTORS: kvc_op_factors(op, t); break;
    case KVC_OP_OUTLIERS: kvc_op_outliers(op, t); break;
    case KVC_OP_PATCH: kvc_op_patch(op, t); break;
    case KVC_OP_SPREAD: kvc_op_spread(op, t); break;
    case KVC_OP_NORMS: kvc_op_norms(op, t); break;
    case KVC_OP_STEPS: kvc_op_steps(op, t); break;
    case KVC_OP_BASIS: kvc_op_basis(op, t); break;
    case KVC_OP_SCALE: kvc_op_scale(op, t); break;
    case KVC_OP_MEAN: kvc_op_mean(op, t); break;
    case KVC_OP_TURN: kvc_op_turn(op, t); break;
    case KVC_OP_WIDEN: kvc_op_widen(op, t); break;
    case KVC_OP_ROUND: kvc_op_round(op, t); break;
    default: t->fault |= KVC_FAULT_NUMBER;
    }
}

/* --- where rows go --- */

/* Address of row `row` of a target, of its channel 0 of head 0; 0 where it has no page. */
KVC_DEVICE uint64_t kvc_target_row(const struct kvc_device_target *g, uint32_t row) {
    const uint32_t number = (g->first + row) / g->page_size, token = (g->first + row) % g->page_size;
    if (number >= g->pages) return 0;
    const uint32_t page = g->table ? KVC_WORDS(g->table)[number] : number;
    return g->base + (uint64_t)((int64_t)page * g->page) + (uint64_t)((int64_t)token * g->token);
}

KVC_DEVICE void kvc_store(uint64_t address, uint32_t word, uint32_t size) {
    if (size == 2) *(uint16_t *)(uintptr_t)address = (uint16_t)word;
    else if (size == 1) *(uint8_t *)(uintptr_t)address = (uint8_t)word;
    else *(uint32_t *)(uintptr_t)address = word;
}

/* Four values side by side, from a multiple of their size on. */
KVC_DEVICE void kvc_store_values(uint64_t address, struct kvc_four v, uint32_t size) {
    void *to = (void *)(uintptr_t)address;
    if (size == 2) kvc_store_two(to, (v.at[0] & 0xffffu) | v.at[1] << 16, (v.at[2] & 0xffffu) | v.at[3] << 16);
    else if (size == 4) kvc_store_four(to, v);
    else kvc_store_one(to, (v.at[0] & 255u) | (v.at[1] & 255u) << 8 | (v.at[2] & 255u) << 16 | v.at[3] << 24);
}

/* A tile's word as the target has it. `change`: what there is to be done (a constant). */
enum kvc_word_change {
    KVC_WORD_AS_IT_IS,
    KVC_WORD_TO_F16, KVC_WORD_TO_BF16, /* binary32, of values of that dtype */
    KVC_WORD_FLOAT, KVC_WORD_OTHER     /* binary32, of values of the tensor's dtype, or of that dtype; to any */
};
KVC_DEVICE uint32_t kvc_target_word(const struct kvc_device_target *g, uint32_t word, const enum kvc_word_change change) {
    if (change == KVC_WORD_AS_IT_IS) return word;
    if (change == KVC_WORD_TO_F16) return kvc_round(kvc_as_float(word), KVC_DEVICE_F16);
    if (change == KVC_WORD_TO_BF16) return kvc_round(kvc_as_float(word), KVC_DEVICE_BF16);
    if (change == KVC_WORD_FLOAT) word = kvc_round(kvc_as_float(word), g->from);
    return g->dtype == g->from ? word : kvc_round(kvc_widen(word, g->from), g->dtype);
}

/* Addresses at which rows begin: two words each in the tile that is not in use, of so many rows at a time; 0: nowhere. */
enum { KVC_ROWS_TOGETHER = KVC_DEVICE_TILE / 2 };
KVC_DEVICE uint64_t kvc_row_start(const struct kvc_tile *t, uint32_t r) {
    uint32_t low, high;
    kvc_load_two(t->other + 2 * r, &low, &high);
    return (uint64_t)high << 32 | low;
}

KVC_DEVICE void kvc_tile_write(struct kvc_tile *t, const struct kvc_device_target *g, uint32_t first, uint32_t rows, uint32_t fours,
                               const enum kvc_word_change change) {
    const uint32_t size = kvc_value_bytes(g->dtype), end = first + rows;
    if (fours) {
        KVC_EACH_LANE for (uint32_t r = first + kvc_row_of(t, 4 * lane), c = kvc_column_of(t, 4 * lane); r < end;
                           kvc_walk(t, 4 * KVC_LANES, &r, &c)) {
            const uint64_t to = kvc_row_start(t, r - first);
            struct kvc_four four = kvc_load_four(KVC_FOUR(t));
            KVC_UNROLL for (uint32_t k = 0; k < 4; k++) four.at[k] = kvc_target_word(g, four.at[k], change);
            if (to) kvc_store_values(to + (uint64_t)c * size, four, size);
        }
    } else {
        KVC_EACH_LANE for (uint32_t r = first + kvc_row_of(t, lane), c = kvc_column_of(t, lane); r < end;
                           kvc_walk(t, KVC_LANES, &r, &c)) {
            const uint64_t to = kvc_row_start(t, r - first);
            if (to) kvc_store(to + (uint64_t)((int64_t)c * g->dim), kvc_target_word(g, KVC_VALUE(t), change), size);
        }
    }
}

/* Writes the tile; `row`: where its first row goes. `floats`: words are binary32, of values of the tensor's dtype. */
KVC_DEVICE void kvc_tile_store(struct kvc_tile *t, const struct kvc_device_target *g, uint32_t row, uint32_t floats) {
    const uint32_t size = kvc_value_bytes(g->dtype), same = g->dtype == g->from;
    for (uint32_t first = 0; first < t->rows; first += KVC_ROWS_TOGETHER) {
        const uint32_t rows = t->rows - first < KVC_ROWS_TOGETHER ? t->rows - first : KVC_ROWS_TOGETHER;
        KVC_LANE_VAR(uint32_t, missing);
        KVC_LANE_VAR(uint32_t, odd);
        KVC_EACH_LANE {
            KVC_AT(missing) = KVC_AT(odd) = 0;
            for (uint32_t r = lane; r < rows; r += KVC_LANES) {
                uint64_t to = kvc_target_row(g, row + first + r);
                if (to) to += (uint64_t)((int64_t)t->head * g->head) + (uint64_t)((int64_t)t->column * g->dim);
                else KVC_AT(missing) = 1;
                KVC_AT(odd) |= to % (4 * size) != 0;
                kvc_store_two(t->other + 2 * r, (uint32_t)to, (uint32_t)(to >> 32));
            }
        }
        if (kvc_ballot(missing)) t->fault |= KVC_FAULT_INDEX;
        const uint32_t fours = !kvc_ballot(odd) && g->dim == (int64_t)size && t->width % 4 == 0;
        KVC_LANES_MEET();
        if (!floats && same) kvc_tile_write(t, g, first, rows, fours, KVC_WORD_AS_IT_IS);
        else if (floats && same && g->from == KVC_DEVICE_F16) kvc_tile_write(t, g, first, rows, fours, KVC_WORD_TO_F16);
        else if (floats && same && g->from == KVC_DEVICE_BF16) kvc_tile_write(t, g, first, rows, fours, KVC_WORD_TO_BF16);
        else if (floats) kvc_tile_write(t, g, first, rows, fours, KVC_WORD_FLOAT);
        else kvc_tile_write(t, g, first, rows, fours, KVC_WORD_OTHER);
        KVC_LANES_MEET();
    }
}

#endif
