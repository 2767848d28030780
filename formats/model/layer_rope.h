/* layer_rope.h: RoPE of a layer's K, from a profile or from the metadata of the cache. Not for the
 * arithmetic (codecs/rope.h). */
#ifndef KVC_LAYER_ROPE_H
#define KVC_LAYER_ROPE_H

#include "codecs/profile_part.h"
#include "codecs/rope.h"
#include "formats/cache/cache.h"

/* Makes *rope that of the cache (facts.h) with the angles of a layer. Angles are those of `part`,
 * which may have none. Where part is NULL, they come from the metadata, or the table of a GGUF file
 * (facts.h): RoPE of type default, linear, mrope, imrope, llama3 or yarn, of known base and
 * dimension, and K stored after RoPE. rope->angle is NULL where the angles are unknown. The caller
 * frees *room. */
int kvc_rope_of_layer(const struct kvc_cache *c, uint32_t layer,
                      const struct kvc_profile_part *part, struct kvc_rope_facts *rope,
                      double **room, struct kvc_error *e);

/* Takes a row of K back to before RoPE, at a position that is not negative. */
void kvc_row_before_rope(struct kvc_rope *rope, float *row, size_t heads, size_t dim,
                         int64_t position);

#endif
