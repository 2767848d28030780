/* decode_tile.h: the tile that a warp works on, and how its lanes share it out. One source for GPU
 * and host (warp.h). Not for what operations compute (decode_rows.h). */
#ifndef KVC_DECODE_TILE_H
#define KVC_DECODE_TILE_H

#include "kernels/device/decode_values.h"

/* A tile: word[r * width + c] is row r, channel c of the head, as binary32 or as a value of a dtype
 * in its low bits. */
struct kvc_tile {
    /* KVC_DEVICE_TILE words each; operations that do not work in place swap them */
    uint32_t *word, *other;
    uint32_t rows, width;
    uint32_t row; /* number of the tile's first row in the run */
    uint32_t head;
    uint32_t column; /* number of the tile's first channel in the head */
    uint32_t fault;
};

/* Return the row and the channel of value i of a tile, row after row. A tile without channels has
 * no values. */
KVC_DEVICE uint32_t kvc_row_of(const struct kvc_tile *t, uint32_t i) {
    return t->width ? i / t->width : t->rows;
}
KVC_DEVICE uint32_t kvc_column_of(const struct kvc_tile *t, uint32_t i) {
    return t->width ? i % t->width : 0;
}
/* Moves `step` values on. */
KVC_DEVICE void kvc_walk(const struct kvc_tile *t, uint32_t step, uint32_t *r, uint32_t *c) {
    *r += step / t->width;
    *c += step % t->width;
    if (*c >= t->width) {
        *c -= t->width;
        ++*r;
    }
}

/* Iterates over all values, shared out among the lanes, so that lanes are busy however narrow the
 * tile is. Declares r, the row, and c, the channel; KVC_VALUE is the value there. */
#define KVC_EACH_VALUE(t)                                                            \
    KVC_EACH_LANE for (uint32_t r = kvc_row_of(t, lane), c = kvc_column_of(t, lane); \
                       r < (t)->rows; kvc_walk(t, KVC_LANES, &r, &c))
#define KVC_VALUE(t) ((t)->word[r * (t)->width + c])

/* `each` channels at a time, 4 or 8, for operations whose values are adjacent; rows of the tile
 * then begin at multiples of 16 bytes. Global memory has a long latency, so each lane issues a
 * batch of KVC_BATCH loads of up to 16 bytes before it uses the first. KVC_EACH_BATCH, inside
 * KVC_EACH_LANE, computes the lane's next positions. KVC_EACH_OF_BATCH, inside that, iterates over
 * them, in a load phase and again in a store phase. Declares k, the number in the batch, r, the
 * row, and c, the first channel. */
#define KVC_FOUR(t) ((t)->word + r * (t)->width + c)
enum { KVC_BATCH = 4 };
struct kvc_load_batch {
    /* row << 16 | channel; rows beyond the tile's where there are no more */
    uint32_t at[KVC_BATCH];
};
KVC_DEVICE uint32_t kvc_next_batch(struct kvc_load_batch *batch, const struct kvc_tile *t,
                                   uint32_t *r, uint32_t *c, const uint32_t each) {
    KVC_UNROLL for (uint32_t k = 0; k < KVC_BATCH; k++) {
        batch->at[k] = *r << 16 | *c;
        kvc_walk(t, each * KVC_LANES, r, c);
    }
    return 1;
}
#define KVC_EACH_BATCH(t, batch, each)                                                         \
    for (uint32_t next_r = kvc_row_of(t, each * lane), next_c = kvc_column_of(t, each * lane); \
         next_r < (t)->rows && kvc_next_batch(batch, t, &next_r, &next_c, each);)
#define KVC_EACH_OF_BATCH(t, batch)                                                            \
    KVC_UNROLL for (uint32_t k = 0; k < KVC_BATCH;                                             \
                    k++) for (uint32_t r = (batch)->at[k] >> 16, c = (batch)->at[k] & 0xffffu; \
                              r < (t)->rows; r = (t)->rows)

KVC_DEVICE float kvc_tile_float(const struct kvc_tile *t, uint32_t r, uint32_t c) {
    return kvc_as_float(t->word[r * t->width + c]);
}

KVC_DEVICE void kvc_tile_swap(struct kvc_tile *t) {
    uint32_t *word = t->word;
    t->word = t->other;
    t->other = word;
}

/* Returns the number, in a matrix of op's shape, of the value in row r and channel c of the tile.
 */
KVC_DEVICE uint64_t kvc_op_index(const struct kvc_device_op *op, const struct kvc_tile *t,
                                 uint32_t r, uint32_t c) {
    return ((uint64_t)(op->row + t->row + r) * op->heads + t->head) * op->dim + t->column + c;
}

/* Returns the number of the tile's channel c among the channels of all heads. */
KVC_DEVICE uint32_t kvc_op_channel(const struct kvc_device_op *op, const struct kvc_tile *t,
                                   uint32_t c) {
    return t->head * op->dim + t->column + c;
}

/* Returns 1 when `each` adjacent channels of the tile, 4 or 8, are aligned in matrices of op's
 * shape: in all rows or in none. */
KVC_DEVICE uint32_t kvc_op_in(const struct kvc_device_op *op, const struct kvc_tile *t,
                              uint32_t each) {
    return ((op->dim | t->column | t->width) & (each - 1)) == 0;
}

#endif
