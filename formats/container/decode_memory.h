/* decode_memory.h: the memory that decoding a container may take: how many threads decode at a
 * time, and which blocks are refused. Not for allocating it (codecs/memory.h). FORMAT.md bounds a
 * block by 2^30 bytes; this bound is the reader's own. */
#ifndef KVC_DECODE_MEMORY_H
#define KVC_DECODE_MEMORY_H

#include "formats/cache/cache.h"

/* Returns the bytes that are allowed where the caller says nothing: a quarter of the machine's
 * memory. */
uint64_t kvc_decode_memory_default(void);

/* A thread that decodes is taken to hold eight blocks: of its own, of its stages, of its caller,
 * and those that wait to be written. Three quarters of the memory are for threads, the rest is for
 * blocks and inputs that are kept. */

/* Refuses to decode blocks of a tensor for which the memory of the container does not suffice. The
 * message says how much would. */
int kvc_decode_memory_check(const struct kvc_cache *c, uint32_t tensor, struct kvc_error *e);
/* kvc_cache.threads of a container: as many of the threads as find memory, at least 1. */
unsigned kvc_decode_memory_threads(const struct kvc_cache *c, unsigned threads);
/* Returns the bytes for blocks and inputs that are kept, of each. */
uint64_t kvc_decode_memory_kept(const struct kvc_cache *c);

#endif
