/* same_section.h: reads a block's section SAME, which refers to rows of other blocks. Spec:
 * FORMAT.md, "SAME". Not for finding such rows (same_rows.h) or for writing the section (encode.c).
 */
#ifndef KVC_SAME_SECTION_H
#define KVC_SAME_SECTION_H

#include "codecs/sections.h"
#include "formats/cache/cache.h"
#include "formats/container/offsets.h"

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
