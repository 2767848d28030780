/* shards.c: the facts of a tensor-parallel shard. Spec: FORMAT.md, "Shards". Not for its rows. */
#include "formats/cache/shards.h"

#include "formats/cache/keys.h"
#include "formats/cache/prefix.h"
#include "formats/io/hash.h"

#define TAG "kvc shards 1\n"

int kvc_shard_set_rank(struct kvc_meta *meta, uint64_t rank, uint64_t ranks, struct kvc_error *e) {
    if (ranks < 2) return 0;
    if (kvc_meta_set_u64(meta, KVC_KEY_SHARD_RANK, rank, e)) return -1;
    return kvc_meta_set_u64(meta, KVC_KEY_SHARD_RANKS, ranks, e);
}

/* Begins the chain of prefix keys as a writer does. */
static int begin(struct kvc_prefix *p, const struct kvc_meta *meta, struct kvc_error *e) {
    char identity[KVC_IDENTITY_BYTES];
    if (meta->facts.parent) return kvc_prefix_of(p, meta, e);
    if (kvc_prefix_identity_of_model(meta, identity, sizeof identity, e)) return -1;
    return kvc_prefix_begin(p, identity, e);
}

int kvc_shard_name_set(struct kvc_meta *meta, const struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_meta_entry *extras = kvc_meta_find(&c->meta, KVC_KEY_PREFIX_EXTRAS);
    struct kvc_prefix p;
    struct kvc_sha256 h;
    uint8_t hash[KVC_SHA256_BYTES];
    if (!meta->facts.shard_ranks || meta->facts.shard_set || !c->n_tokens) return 0;
    if (begin(&p, meta, e)) return -1;
    if (!c->tokens || kvc_cache_tokens_from(c, p.first) != c->n_tokens) return 0;
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, TAG, sizeof TAG - 1);
    kvc_sha256_update(&h, p.start, sizeof p.start);
    kvc_sha256_u64(&h, meta->facts.shard_ranks);
    for (uint64_t i = 0; i < c->n_tokens; i++) kvc_sha256_u32(&h, (uint32_t)c->tokens[i]);
    if (extras) kvc_sha256_update(&h, extras->value, (size_t)extras->size);
    if (kvc_sha256_final(&h, hash, e)) return -1;
    return kvc_meta_set_bytes(meta, KVC_KEY_SHARD_SET, hash, KVC_SHARD_SET_BYTES, e);
}
