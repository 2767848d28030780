/* same_rows.h: finds rows that repeat rows of an earlier tensor. Not for storing references. */
#ifndef KVC_SAME_H
#define KVC_SAME_H

#include "formats/cache/cache.h"
#include "formats/container/offsets.h"

/* Compares sorted rows [first, first + n) of `tensor`, whose canonical bytes are `rows`, with the
 * rows of lower-numbered tensors of the same role, layer and row shape at the same positions.
 * from[i] (n <= KVC_BLOCK entries, .tensor preset to KVC_NONE) gets the first equal row, which
 * itself repeats no other row. */
int kvc_same_find(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                  const uint8_t *rows, struct kvc_same *from, struct kvc_error *e);
/* Returns 1 if rows of a tensor may equal rows of earlier tensors. */
int kvc_same_is_possible(const struct kvc_cache *c, uint32_t tensor);

#endif
