/* scales.h: the scales of K, V and latents that are stored in 8 bits (f8e4m3, f8e5m2, u8, i8). A
 * value is what is stored, times a factor that engines keep beside the cache: the metadata scale.k
 * and scale.v (FORMAT.md 7). Not for block types, which hold their scales themselves. */
#ifndef KVC_SCALES_H
#define KVC_SCALES_H

#include "formats/cache/cache.h"

/* Returns 1 for K, V and latents of 8 bits: without scales, their numbers mean nothing. */
int kvc_tensor_is_scaled(const struct kvc_tensor *t);
/* Returns 1 if a cache has such a tensor. */
int kvc_cache_is_scaled(const struct kvc_cache *c);

/* Writes the scale of each head of a scaled tensor to scale[shape.heads], as metadata (mostly the
 * cache's own) tell them. Returns 1, or 0 if they do not. Fails where they are no such list, or are
 * those of another number of heads. */
int kvc_scales_of(const struct kvc_cache *c, const struct kvc_meta *meta, uint32_t tensor,
                  float *scale, struct kvc_error *e);
/* Fails where the values of a tensor cannot be had, as it is of 8 bits and its scales are unknown.
 */
int kvc_scales_need(const struct kvc_cache *c, uint32_t tensor, struct kvc_error *e);
/* Returns 1 if what a tensor stores are its values: it is not of 8 bits, or its scales are known
 * and 1. */
int kvc_scales_plain(const struct kvc_cache *c, uint32_t tensor);

/* Converts n canonical rows of a tensor to its values. `stored`: where scales are unknown, to the
 * numbers that are stored, for people to look at; else that fails. */
int kvc_rows_to_floats(const struct kvc_cache *c, uint32_t tensor, float *dst, const uint8_t *rows,
                       uint64_t n, int stored, struct kvc_error *e);
/* Reads the sorted rows [first, first + n) of a tensor as values. `stored` as above. */
int kvc_read_floats(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                    float *dst, int stored, struct kvc_error *e);
/* Returns how many rows to read at once as values: those of a block, so that coded blocks are
 * decoded once, or as many as fit into 32 MiB. */
uint64_t kvc_floats_at_once(const struct kvc_shape *shape);

#endif
