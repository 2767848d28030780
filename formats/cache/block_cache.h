/* block_cache.h: rows of a cache read a few at a time, by way of the last block of each tensor that was read in part. For caches
 * whose rows cost their whole block, as a .kvc's do. Not for whole reads. */
#ifndef KVC_BLOCK_CACHE_H
#define KVC_BLOCK_CACHE_H

#include "formats/cache/cache.h"

struct kvc_block_cache;

/* The cache must outlive it. NULL and *e when out of memory; kvc_block_cache_free(NULL) is legal. */
struct kvc_block_cache *kvc_block_cache_new(const struct kvc_cache *c, struct kvc_error *e);
void kvc_block_cache_free(struct kvc_block_cache *b);

/* Rows [first, first + n) of a tensor, as kvc_cache.read() gives them. From any thread: whoever uses a kept block takes it out
 * meanwhile, and another thread then finds none and decodes for itself. */
int kvc_block_cache_read(struct kvc_block_cache *b, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst, struct kvc_error *e);

#endif
