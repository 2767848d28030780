/* base.h: a container out of which the first rows of a cache came, the base of packing it: which
 * rows. Not for its blocks (base_blocks.h), or for blocks that are copied without a look at rows
 * (writer.c, `reuse`). */
#ifndef KVC_BASE_H
#define KVC_BASE_H

#include "formats/cache/cache.h"

/* A base and how much of a cache it holds. */
struct kvc_base {
    const struct kvc_cache *from; /* of kvc_container_open() */
    uint64_t *rows;               /* by part: so many first rows are those that `from` decodes to */
    uint64_t
        *skip; /* by part: so many rows of `from` come before them, of a window that moved on */
};

/* Finds the rows that are those of the base, bit by bit: *base gets them, which kvc_base_free()
 * frees. A tensor is compared with that of the same number; fails where the base has another one
 * there. Reads the rows of both from several threads (0: one per core). */
int kvc_base_compare(struct kvc_base **base, const struct kvc_cache *from,
                     const struct kvc_cache *c, unsigned threads, struct kvc_error *e);
void kvc_base_free(struct kvc_base *base);
/* Returns how many rows of the tensors of `c`, companions apart, are those of the base, and sets
 * *all to the number of all of them. */
uint64_t kvc_base_count(const struct kvc_base *base, const struct kvc_cache *c, uint64_t *all);
/* Returns the number of tensors before those of companions, which come last. */
uint32_t kvc_base_tensors(const struct kvc_cache *c);

#endif
