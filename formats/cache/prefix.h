/* prefix.h: prefix keys: a hash chain over model identity and tokens, one key per 256 tokens. Not for
 * matching files (the tools do that). FORMAT.md, "Prefix keys". */
#ifndef KVC_PREFIX_H
#define KVC_PREFIX_H

#include "formats/cache/cache.h"

#define KVC_PREFIX_TOKENS 256
#define KVC_KEY_BYTES 32

#define KVC_IDENTITY_BYTES 128

/* What the keys are chained over: the identity that the metadata names already (prefix.identity), else the
 * strongest one it holds. `text` holds KVC_IDENTITY_BYTES. */
void kvc_prefix_identity(const struct kvc_meta *meta, char *text, size_t size);
/* keys of the first n / 256 whole runs of tokens into keys[n / 256][32]. */
int kvc_prefix_keys(const char *identity, const int32_t *tokens, uint64_t n, uint8_t *keys,
                    struct kvc_error *e);

/* How many of the n tokens' whole runs of 256 the keys (n_keys of 32 bytes) have in common with them. */
int kvc_prefix_common(const char *identity, const uint8_t *keys, uint64_t n_keys, const int32_t *tokens,
                      uint64_t n, uint64_t *common, struct kvc_error *e);

/* How many leading tokens a cache shares with `tokens`: exact by token ids when the cache has them; by its
 * prefix keys (whole runs of 256) when it has only those. *by_keys says which. */
int kvc_prefix_match(const struct kvc_cache *c, const int32_t *tokens, uint64_t n, uint64_t *common,
                     int *by_keys, struct kvc_error *e);

#endif
