/* prefix_space.h: the namespace of a cache: a hash of all facts, beside its tokens, by which it can stand for another one. Not for
 * comparing the facts one by one (model_match.h, kvc-diff). FORMAT.md, "Namespace". */
#ifndef KVC_PREFIX_SPACE_H
#define KVC_PREFIX_SPACE_H

#include "formats/cache/prefix.h"

/* What the cache itself does not say. */
struct kvc_space {
    int lossless;          /* 0: the metadata's recipe and profile are its fidelity */
    uint64_t chunk;        /* tokens of the files of a store; 0: of no store */
    const uint8_t *tenant; /* KVC_KEY_BYTES bytes; NULL: none */
};
/* Writes the namespace of a cache with these metadata (mostly its own) into out[KVC_KEY_BYTES]. The metadata key prefix.space has
 * the one without chunk and tenant. */
int kvc_prefix_space(const struct kvc_cache *c, const struct kvc_meta *meta, const struct kvc_space *space, uint8_t *out,
                     struct kvc_error *e);

#endif
