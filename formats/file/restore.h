/* restore.h: writes the source of a cache again, a file or several members. Not for other layouts
 * (the formats' exports). */
#ifndef KVC_RESTORE_H
#define KVC_RESTORE_H

#include "formats/cache/cache.h"
#include "formats/io/member_sink.h"

/* Writes the source again, byte for byte when the cache is lossless. KVC_ERR_UNSUPPORTED where the
 * cache does not know how (n_extents is 0), or has several members and `out` takes one file.
 * `threads` 0: one per core. */
int kvc_source_write_members(const struct kvc_cache *c, unsigned threads,
                             const struct kvc_member_sink *out, struct kvc_error *e);
/* Writes a source that is one file. A source of several members is written as a tar archive. */
int kvc_source_write(const struct kvc_cache *c, unsigned threads, struct kvc_sink *out,
                     struct kvc_error *e);

/* Returns the number of bytes of member i of a source. A source that is one file has member 0 only.
 */
uint64_t kvc_source_size(const struct kvc_cache *c, uint32_t i);

#endif
