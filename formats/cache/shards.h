/* shards.h: the facts of a tensor-parallel shard: its rank, and the set of shards that it belongs
 * to. Not for dividing heads among ranks or joining them (join.h). FORMAT.md, "Shards". */
#ifndef KVC_SHARDS_H
#define KVC_SHARDS_H

#include "formats/cache/cache.h"

/* Notes that a cache is of a rank. One of 1 rank is no shard. */
int kvc_shard_set_rank(struct kvc_meta *meta, uint64_t rank, uint64_t ranks, struct kvc_error *e);
/* Names the set of a shard, where the metadata, which are the cache's or a copy, name none: by its
 * model and all its token ids. Does nothing for other caches, and where ids are missing. */
int kvc_shard_name_set(struct kvc_meta *meta, const struct kvc_cache *c, struct kvc_error *e);

#endif
