/* layer_rope.h: how K of a layer was turned, from a profile or from what the cache says. Not for the arithmetic (codecs/rope.h). */
#ifndef KVC_FORMATS_ROPE_H
#define KVC_FORMATS_ROPE_H

#include "codecs/profile_part.h"
#include "codecs/rope.h"
#include "formats/cache/cache.h"

/* Fills *facts for a layer of the cache: angles of `part` where it has some (part may be NULL), none where it has
 * none; else those that the metadata tell: RoPE of type default or linear of known base and dimension, and K kept behind it. facts->angle is NULL where
 * that is not enough; *room is what the caller frees. */
int kvc_rope_of_layer(const struct kvc_cache *c, uint32_t layer, const struct kvc_profile_part *part,
                      struct kvc_rope_facts *facts, double **room, struct kvc_error *e);

/* Takes a row of K back to before RoPE, at a position that is not negative. */
void kvc_row_before_rope(struct kvc_rope *rope, float *row, size_t heads, size_t dim, int64_t position);

#endif
