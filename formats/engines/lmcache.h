/* lmcache.h: the header of LMCache's FSConnector. Not for the array after it (lmcache_chunk.h). */
#ifndef KVC_LMCACHE_H
#define KVC_LMCACHE_H

#include "formats/engines/lmcache_chunk.h"

#define KVC_LMCACHE_HEADER 28

/* Returns 1 if a file of `size` bytes, or all of it that is known, may begin with this header: its
 * numbers are in range, and the length fits the shape or the file. Otherwise `why` gets the reason,
 * which is -1 if only the length does not fit. `have` bytes are at `head`. */
int kvc_lmcache_begins(const uint8_t *head, uint64_t have, uint64_t size, char *why,
                       size_t why_size);
/* Reads a header of KVC_LMCACHE_HEADER bytes of a file of `size` bytes. */
int kvc_lmcache_read_header(struct kvc_lmcache_chunk *k, const uint8_t *head, uint64_t size,
                            const struct kvc_import_options *o, struct kvc_error *e);

#endif
