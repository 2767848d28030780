/* prefix_space.h: the namespace of a cache: a hash of all facts, beside its tokens, by which it can
 * stand for another one. Not for comparing the facts one by one (facts_differ.c, kvc-diff).
 * KEYS.md, "Namespace". */
#ifndef KVC_PREFIX_SPACE_H
#define KVC_PREFIX_SPACE_H

#include "formats/cache/prefix.h"
#include "formats/io/hash.h"

/* What the cache itself does not say. */
struct kvc_space {
    int lossless;          /* 0: the metadata's recipe and profile are its fidelity */
    uint64_t chunk;        /* tokens of the files of a store; 0: of no store */
    const uint8_t *tenant; /* KVC_KEY_BYTES bytes; NULL: none */
};
/* Gets an item of the namespace: its tag, a word for people, its bytes; `text`: they are printable
 * text. */
typedef void kvc_space_item(void *state, uint8_t tag, const char *word, int text, const void *bytes,
                            size_t n);

/* Writes the namespace of a cache with these metadata (mostly its own) into out[KVC_KEY_BYTES]. The
 * metadata key prefix.space has the one without chunk and tenant. Fails with KVC_NEED_SCALES for a
 * cache of values of 8 bits of which neither the scales are known nor whose they are: no other
 * cache can stand for it. */
int kvc_prefix_space(const struct kvc_cache *c, const struct kvc_meta *meta,
                     const struct kvc_space *space, uint8_t *out, struct kvc_error *e);
/* The same, and lists the items. */
int kvc_prefix_space_items(const struct kvc_cache *c, const struct kvc_meta *meta,
                           const struct kvc_space *space, uint8_t *out, kvc_space_item *item,
                           void *state, struct kvc_error *e);
/* Refuses a cache whose RoPE depends on a length, without a rope.source that says which: caches of
 * two lengths would have one namespace of a store. KEYS.md, "Namespace". */
int kvc_prefix_space_check_rope(const struct kvc_meta *meta, struct kvc_error *e);
/* Begins the hash that items are put into, puts one, for who has them from elsewhere. */
void kvc_prefix_space_begin(struct kvc_sha256 *h);
void kvc_prefix_space_put(struct kvc_sha256 *h, uint8_t tag, const void *bytes, size_t n);

#endif
