/* block_cache.h: reads a few rows of a cache at a time, and keeps the last block of each tensor for
 * it. For caches that decode a whole block to give one row, as a .kvc does. Not for whole reads. */
#ifndef KVC_BLOCK_CACHE_H
#define KVC_BLOCK_CACHE_H

#include "formats/cache/cache.h"

struct kvc_block_cache;

/* The cache must outlive the block cache. Returns NULL and *e when out of memory;
 * kvc_block_cache_free(NULL) is legal. */
struct kvc_block_cache *kvc_block_cache_new(const struct kvc_cache *c, struct kvc_error *e);
void kvc_block_cache_free(struct kvc_block_cache *b);

/* Reads rows [first, first + n) of a tensor, as kvc_cache.read() does. From any thread: a thread
 * takes the kept block out while it uses the block, and another thread then finds none and decodes
 * for itself. */
int kvc_block_cache_read(struct kvc_block_cache *b, uint32_t tensor, uint64_t first, uint64_t n,
                         uint8_t *dst, struct kvc_error *e);

#endif
