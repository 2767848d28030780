/* reuse.h: copies blocks of a container into a longer one that begins with the same rows. Not for
 * encoding (encode.h). */
#ifndef KVC_REUSE_H
#define KVC_REUSE_H

#include "formats/container/plan.h"
#include "formats/io/sink.h"

/* Refuses lossy tensors of which more than the last block of `from` would have to be coded again.
 * `from` may be NULL. */
int kvc_reuse_check(const struct kvc_cache *c, const struct kvc_plan *plan,
                    const struct kvc_cache *from, struct kvc_error *e);
/* Returns how many first blocks of a tensor can be copied from the container `from`, which may be
 * NULL. */
uint64_t kvc_reuse_blocks(const struct kvc_cache *c, const struct kvc_plan *plan,
                          const struct kvc_cache *from, uint32_t tensor);
/* Appends the record of a block to `out`, as it is, after a check of its hash. */
int kvc_reuse_copy(const struct kvc_cache *from, uint32_t tensor, uint64_t block,
                   struct kvc_buffer *out, struct kvc_error *e);

#endif
