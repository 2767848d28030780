/* same_rows.c: finds rows of a cache that equal rows of its earlier tensors: llama.cpp's
 * checkpoints repeat most of the live cache, streams share prefixes. Not for storing references
 * (encode.c; FORMAT.md, "SAME"). */
#include "formats/container/same_rows.h"

#include "codecs/memory.h"

#include <stdlib.h>
#include <string.h>

/* Returns 1 if two tensors may hold the same rows: they have the same role, layer index and row
 * shape. This is an equivalence relation, and a row refers to the first equal row of lower-numbered
 * tensors. So the row referred to is never a reference itself. */
static int may_repeat(const struct kvc_cache *c, uint32_t tensor, uint32_t earlier) {
    const struct kvc_tensor *t = &c->tensor[tensor], *o = &c->tensor[earlier];
    const struct kvc_layer *a = &c->layer[t->layer], *b = &c->layer[o->layer];
    if (t->role != o->role || a->index != b->index || t->shape.dtype != o->shape.dtype ||
        t->shape.heads != o->shape.heads || t->shape.dim != o->shape.dim)
        return 0;
    /* llama.cpp numbers the layers of each of its two caches from 0; a checkpoint copies the second
     * cache. */
    enum kvc_part_kind ka = c->part[a->part].kind, kb = c->part[b->part].kind;
    int wa = ka == KVC_PART_SLIDING || ka == KVC_PART_CHECKPOINT,
        wb = kb == KVC_PART_SLIDING || kb == KVC_PART_CHECKPOINT;
    return ka != KVC_PART_COMPANION && kb != KVC_PART_COMPANION && wa == wb;
}

int kvc_same_is_possible(const struct kvc_cache *c, uint32_t tensor) {
    for (uint32_t other = 0; other < tensor; other++)
        if (may_repeat(c, tensor, other)) return 1;
    return 0;
}

int kvc_same_find(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                  const uint8_t *rows, struct kvc_same *from, struct kvc_error *e) {
    const struct kvc_cells *cells = &kvc_tensor_part(c, tensor)->cells;
    uint64_t row_bytes = kvc_row_bytes(&c->tensor[tensor].shape);
    for (uint32_t other = 0; other < tensor; other++) {
        if (!may_repeat(c, tensor, other)) continue;
        const struct kvc_cells *theirs = &kvc_tensor_part(c, other)->cells;
        uint64_t begin = kvc_cells_row_from(theirs, kvc_cells_position(cells, first)),
                 end = kvc_cells_row_from(theirs, kvc_cells_position(cells, first + n - 1) + 1);
        /* in pieces, so that memory is bounded for any number of rows with these positions */
        while (begin < end) {
            uint64_t part = end - begin < KVC_BLOCK ? end - begin : KVC_BLOCK, i = 0;
            uint8_t *there = kvc_alloc(part, row_bytes);
            if (!there) return kvc_fail_memory(e, "rows");
            if (c->read(c, other, begin, part, there, e)) {
                free(there);
                return -1;
            }
            for (uint64_t j = 0; j < part; j++) {
                int64_t pos = kvc_cells_position(theirs, begin + j);
                while (i < n && kvc_cells_position(cells, first + i) < pos) i++;
                for (uint64_t k = i; k < n && kvc_cells_position(cells, first + k) == pos; k++) {
                    if (from[k].tensor != KVC_NONE ||
                        memcmp(rows + k * row_bytes, there + j * row_bytes, (size_t)row_bytes) != 0)
                        continue;
                    uint64_t block = kvc_cells_block_of(theirs, begin + j);
                    from[k] = (struct kvc_same){.row = (uint32_t)k,
                                                .count = 1,
                                                .tensor = other,
                                                .block = (uint32_t)block,
                                                .there = (uint32_t)(begin + j -
                                                                    theirs->block[block])};
                }
            }
            free(there);
            begin += part;
        }
    }
    return 0;
}
