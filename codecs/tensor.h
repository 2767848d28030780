/* tensor.h: the shape of K or V, and a strided view of its bytes. Not for files, layers or caches.
 */
#ifndef KVC_TENSOR_H
#define KVC_TENSOR_H

#include "codecs/dtype.h"

#include <stddef.h>
#include <stdint.h>

/* A shape: tokens x heads x dim values. For block types a row (heads * dim values) is a whole
 * number of blocks. */
struct kvc_shape {
    enum kvc_dtype dtype;
    uint64_t tokens;
    uint64_t heads;
    uint64_t dim;
};

/* Strides of a layout, in bytes; `block` is the stride of blocks (single values for plain types) of
 * one head. Where dim is no multiple of the dtype's block, rows must be contiguous. */
struct kvc_strides {
    uint64_t token;
    uint64_t head;
    uint64_t block;
};

/* Bounds of every shape that kvc accepts; kvc_shape_check() enforces them. */
#define KVC_MAX_ROW_BYTES (UINT64_C(1) << 26)
#define KVC_MAX_BLOCK_ROWS 256
/* of the rows that are coded together, up to 256 */
#define KVC_MAX_BLOCK_BYTES (UINT64_C(1) << 26)
#define KVC_MAX_TENSOR_BYTES (UINT64_C(1) << 48)

/* Returns 1 when the dtype is known, heads and dim are at least 1, a row is whole blocks, and the
 * sizes are within the bounds above without overflow; else 0. */
int kvc_shape_check(const struct kvc_shape *shape);

/* Returns the bytes of one token's canonical row: heads * dim values, head-major. The shape must be
 * checked. */
uint64_t kvc_row_bytes(const struct kvc_shape *shape);
/* Returns the blocks (single values for plain types) of a row. */
uint64_t kvc_row_blocks(const struct kvc_shape *shape);

/* Returns the strides of the canonical layout [token][head][dim]. */
struct kvc_strides kvc_strides_canonical(const struct kvc_shape *shape);
/* Returns the strides of [head][token][dim], as transformers keeps caches (batch 1). */
struct kvc_strides kvc_strides_heads_first(const struct kvc_shape *shape);
/* Returns 1 when no two values share a byte and every byte that the strides reach is in [0, size).
 */
int kvc_strides_check(const struct kvc_shape *shape, const struct kvc_strides *s, uint64_t size);

/* Copy n tokens' rows, from token `first` on, from a strided layout to canonical bytes, and back.
 * Token 0 lies at `base`. past: 1 where the layout, with what else is written to it, is of
 * KVC_LARGE bytes and more: the caches will not have it when it is read, and what they have now
 * should stay there. */
#define KVC_LARGE (UINT64_C(16) << 20)
void kvc_rows_gather(uint8_t *rows, const uint8_t *base, const struct kvc_shape *shape,
                     const struct kvc_strides *s, uint64_t first, uint64_t n);
void kvc_rows_scatter(uint8_t *base, const uint8_t *rows, const struct kvc_shape *shape,
                      const struct kvc_strides *s, uint64_t first, uint64_t n, int past);

/* Where rows belong in a layout: token 0 lies at `base`, the first of the rows is token `first`;
 * `past` as above. */
struct kvc_row_places {
    uint8_t *base;
    struct kvc_strides strides;
    uint64_t first;
    int past;
};
/* Returns the pieces of consecutive bytes, all of one size, of which a row consists in a layout: 1,
 * the heads, or 0 where pieces are shorter. */
uint64_t kvc_row_pieces(const struct kvc_shape *shape, const struct kvc_strides *s);

/* Returns the digest of decoded values: the sum mod 2^64 of XXH3-64 of each canonical row, seeded
 * with the row's index (first, first + 1, ...). The order in which rows are summed does not matter.
 */
uint64_t kvc_digest_rows(const uint8_t *rows, uint64_t row_bytes, uint64_t first, uint64_t n);

#endif
