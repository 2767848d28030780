/* same.h: rows that repeat rows of an earlier tensor, and the section SAME that refers to them.
 * Spec: FORMAT.md, "SAME". */
#ifndef KVC_SAME_H
#define KVC_SAME_H

#include "codecs/sections.h"
#include "formats/cache/cache.h"
#include "formats/container/offsets.h"

/* --- for encoders --- */

/* Which tensors may hold the same rows: those of the same role, layer and row shape. */
struct kvc_repeats {
    uint32_t *first; /* by tensor, the lowest number of these: its own where no lower one may */
    uint32_t *next;  /* by tensor, the next higher number, or KVC_NONE */
};
/* kvc_repeats_free() in any case. */
int kvc_repeats_find(struct kvc_repeats *r, const struct kvc_cache *c, struct kvc_error *e);
void kvc_repeats_free(struct kvc_repeats *r);

/* Compares sorted rows [first, first + n) of `tensor`, whose canonical bytes are `rows`, with the
 * rows of lower-numbered tensors that may hold the same, at the same positions.
 * from[i] (n <= KVC_BLOCK entries, .tensor preset to KVC_NONE) gets the first equal row, which
 * itself repeats no other row. */
int kvc_same_find(const struct kvc_cache *c, const struct kvc_repeats *r, uint32_t tensor,
                  uint64_t first, uint64_t n, const uint8_t *rows, struct kvc_same *from,
                  struct kvc_error *e);
/* Returns 1 if rows of a tensor may equal rows of earlier tensors. */
static inline int kvc_same_is_possible(const struct kvc_repeats *r, uint32_t tensor) {
    return r->first[tensor] != tensor;
}
/* Adds the section for the rows among these n that were found, if any. */
int kvc_same_add(struct kvc_sections *list, const struct kvc_same *from, uint64_t n,
                 struct kvc_error *e);

/* --- for readers --- */

/* A block divided into rows that its stages code, and entries that refer to other rows. */
struct kvc_split {
    struct kvc_same *same; /* ascending, without overlap; to be freed */
    size_t n_same;
    uint64_t own;
};

/* Reads the section of a block of `rows` rows of a tensor, and takes its rows off split->own.
 * Refuses entries that are out of range. After a failure split->same is to be freed, too. */
int kvc_same_read(const struct kvc_cache *c, uint32_t tensor, uint64_t rows,
                  const struct kvc_section *s, struct kvc_split *split, struct kvc_error *e);

#endif
