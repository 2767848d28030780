/* decode_products.h: operations that multiply matrices: low rank
 * (codecs/papers/lowrank/lowrank.md), bases (codecs/stages/basis/basis.md). */
#ifndef KVC_DECODE_PRODUCTS_H
#define KVC_DECODE_PRODUCTS_H

#include "kernels/device/decode_tile.h"

/* Matrices that kvc_op_factors() multiplies. */
struct kvc_factors {
    /* coefficients of the tile's first row, directions from its first channel on */
    const float *a, *b;
    uint32_t apart, skip; /* strides: of directions, of rows of coefficients */
};

/* The case of rank 4, which recipes have, where a lane has the same four channels in all its rows:
 * directions stay in registers. */
KVC_DEVICE void kvc_factors_of_four(const struct kvc_factors *f, struct kvc_tile *t, uint32_t add) {
    const uint32_t down = 4 * KVC_LANES / t->width;
    KVC_EACH_LANE {
        const uint32_t c = kvc_column_of(t, 4 * lane), begin = kvc_row_of(t, 4 * lane);
        struct kvc_four b[4], next = {{0, 0, 0, 0}};
        KVC_UNROLL for (uint32_t k = 0; k < 4; k++)
            b[k] = kvc_load_four(f->b + (uint64_t)k * f->apart + c);
        if (begin < t->rows) next = kvc_load_four(f->a + (uint64_t)begin * f->skip);
        for (uint32_t r = begin; r < t->rows; r += down) {
            const struct kvc_four a = next;
            /* issued early: its latency overlaps the sums */
            if (r + down < t->rows) next = kvc_load_four(f->a + (uint64_t)(r + down) * f->skip);
            struct kvc_four y = {{0, 0, 0, 0}};
            if (add) y = kvc_load_four(KVC_FOUR(t));
            KVC_UNROLL for (uint32_t i = 0; i < 4; i++) {
                float sum = 0;
                KVC_UNROLL for (uint32_t j = 0; j < 4; j++)
                    sum = kvc_fma(kvc_as_float(a.at[j]), kvc_as_float(b[j].at[i]), sum);
                y.at[i] = kvc_as_bits(add ? kvc_add(sum, kvc_as_float(y.at[i])) : sum);
            }
            kvc_store_four(KVC_FOUR(t), y);
        }
    }
}

/* Multiplies coefficients by directions, lowrank.md. */
KVC_DEVICE void kvc_op_factors(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t rank = op->factors.rank, whole = op->factors.whole, first = op->row + t->row;
    const uint32_t apart = whole ? op->heads * op->dim : op->dim;
    const struct kvc_factors f = {
        KVC_FLOATS(op->factors.coefficients) +
            (whole ? (uint64_t)first : (uint64_t)first * op->heads + t->head) * rank,
        KVC_FLOATS(op->factors.directions) +
            (whole ? kvc_op_channel(op, t, 0) : (uint64_t)t->head * rank * op->dim + t->column),
        apart, whole ? rank : op->heads * rank};
    if (rank == 4 && t->width && 4 * KVC_LANES % t->width == 0 && kvc_op_in(op, t, 4)) {
        kvc_factors_of_four(&f, t, op->factors.add);
        return;
    }
    KVC_EACH_VALUE(t) {
        const float *x = f.a + (uint64_t)r * f.skip;
        float y = 0;
        for (uint32_t k = 0; k < rank; k++) y = kvc_fma(x[k], f.b[(uint64_t)k * apart + c], y);
        if (op->factors.add) y = kvc_add(y, kvc_tile_float(t, r, c));
        KVC_VALUE(t) = kvc_as_bits(y);
    }
}

/* Rows that a lane serves with one word of a matrix, and channels of that word. */
enum { KVC_BASIS_ROWS = 8, KVC_BASIS_CHANNELS = 4 };

/* The matrix of one head. */
struct kvc_basis {
    const uint8_t *code;          /* i8, `stride` bytes a row, a multiple of 4 */
    const float *scale, *channel; /* of rows; of channels, `stride` of them, or NULL */
    uint32_t n, dim, stride;
};

/* Rows of a matrix that are loaded ahead. */
enum { KVC_BASIS_AHEAD = 4 };
KVC_DEVICE void kvc_basis_load(const struct kvc_basis *b, uint32_t c, uint32_t j, uint32_t *word,
                               float *scale) {
    *word = j < b->n ? kvc_aligned32(b->code + (uint64_t)j * b->stride + c) : 0;
    *scale = j < b->n ? b->scale[j] : 0;
}

/* Replaces the coefficients of 32 / wide * each rows, from row `first` of the tile on, by channels.
 * `wide` adjacent lanes have the channels of `each` rows; `each` is a constant, so that the sums
 * are in registers. Rows beyond the tile's are 0. */
KVC_DEVICE void kvc_basis_rows(struct kvc_tile *t, const struct kvc_basis *b, uint32_t first,
                               uint32_t wide, const uint32_t each) {
    const uint32_t span = KVC_LANES / wide * each, shift = kvc_lowest_bit(span), n = b->n,
                   dim = b->dim;
    uint32_t *const across = t->other; /* transposed: coefficient j of row r is at j * span + r,
                                          adjacent for a lane's rows */
    KVC_EACH_LANE {
        /* along diagonals, which spreads loads and stores over the banks of shared memory */
        for (uint32_t i = lane; i < n << shift; i += KVC_LANES) {
            const uint32_t r = i & (span - 1), j = ((i >> shift) + r) % n;
            across[(j << shift) + r] = first + r < t->rows ? t->word[(first + r) * dim + j] : 0;
        }
    }
    KVC_LANES_MEET();
    KVC_EACH_LANE {
        const uint32_t own = lane / wide * each; /* the first of the lane's rows */
        for (uint32_t c = lane % wide * KVC_BASIS_CHANNELS; c < dim;
             c += wide * KVC_BASIS_CHANNELS) {
            float sum[KVC_BASIS_ROWS][KVC_BASIS_CHANNELS] = {{0}};
            uint32_t ahead[KVC_BASIS_AHEAD];
            float scales[KVC_BASIS_AHEAD];
            KVC_UNROLL for (uint32_t k = 0; k < KVC_BASIS_AHEAD; k++)
                kvc_basis_load(b, c, k, &ahead[k], &scales[k]);
            /* loads are issued early: their latency overlaps the sums */
            for (uint32_t begin = 0; begin < n; begin += KVC_BASIS_AHEAD)
                KVC_UNROLL for (uint32_t a = 0; a < KVC_BASIS_AHEAD; a++) {
                    const uint32_t j = begin + a;
                    if (j >= n) break;
                    const uint32_t *from = across + (j << shift) + own, word = ahead[a];
                    const float scale = scales[a];
                    kvc_basis_load(b, c, j + KVC_BASIS_AHEAD, &ahead[a], &scales[a]);
                    float row[KVC_BASIS_CHANNELS];
                    KVC_UNROLL for (uint32_t k = 0; k < KVC_BASIS_CHANNELS; k++)
                        row[k] = kvc_times((float)(int8_t)kvc_byte_of(word, k), scale);
                    if (b->channel) {
                        const struct kvc_four by = kvc_load_four(b->channel + c);
                        KVC_UNROLL for (uint32_t k = 0; k < KVC_BASIS_CHANNELS; k++)
                            row[k] = kvc_times(row[k], kvc_as_float(by.at[k]));
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
            KVC_UNROLL for (uint32_t r = 0; r < each;
                            r++) for (uint32_t k = 0; k < KVC_BASIS_CHANNELS;
                                      k++) if (first + own + r < t->rows && c + k < dim)
                t->word[(first + own + r) * dim + c + k] = kvc_as_bits(sum[r][k]);
        }
    }
    KVC_LANES_MEET();
}

/* Multiplies coefficients by the rows of a basis, basis.md. Tiles are of whole heads. Elements are
 * made of codes and scales where they are used: codes are a quarter of the bytes to load, and one
 * word of codes serves all rows of the warp. Coefficients of 0 are skipped, as the spec says. */
KVC_DEVICE void kvc_op_basis(const struct kvc_device_op *op, struct kvc_tile *t) {
    const uint32_t *part = KVC_WORDS(op->basis.parts) + 2 * (uint64_t)t->head,
                   stride = (op->dim + 3) & ~3u;
    const float *channel = op->basis.channel
                               ? KVC_FLOATS(op->basis.channel) + (uint64_t)t->head * stride
                               : 0;
    const struct kvc_basis b = {KVC_BYTES(op->basis.codes) + (uint64_t)part[0] * stride,
                                KVC_FLOATS(op->basis.scale) + part[0],
                                channel,
                                part[1],
                                op->dim,
                                stride};
    uint32_t wide = 1, first = 0;
    while (wide < KVC_LANES && wide * KVC_BASIS_CHANNELS < op->dim) wide *= 2;
    /* as many rows as a tile has room for their coefficients */
    if (op->dim <= KVC_DEVICE_TILE / KVC_BASIS_ROWS)
        for (; first < t->rows; first += KVC_LANES / wide * KVC_BASIS_ROWS)
            kvc_basis_rows(t, &b, first, wide, KVC_BASIS_ROWS);
    else if (op->dim <= KVC_DEVICE_TILE / 4)
        for (; first < t->rows; first += 4) kvc_basis_rows(t, &b, first, wide, 4);
    else
        for (; first < t->rows; first++) kvc_basis_rows(t, &b, first, wide, 1);
}

#endif
