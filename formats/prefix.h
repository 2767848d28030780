/* prefix.h: prefix keys: a hash chain over model identity and tokens, one key per 256 tokens. Not for matching
 * files (the tools do that). FORMAT.md, "Prefix keys". */
#ifndef KVC_PREFIX_H
#define KVC_PREFIX_H

#include "formats/cache.h"

#define KVC_PREFIX_TOKENS 256
#define KVC_KEY_BYTES 32

/* What the keys are chained over: the strongest model identity in the metadata, as text. `text` holds 128 bytes. */
void kvc_prefix_identity(const struct kvc_meta *meta, char *text, size_t size);
/* keys of the first n / 256 whole runs of tokens into keys[n / 256][32]. */
int kvc_prefix_keys(const char *identity, const int32_t *tokens, uint64_t n, uint8_t *keys, struct kvc_error *e);

/* How many leading tokens a cache shares with `tokens`: exact by token ids when the cache has them; by its prefix
 * keys (whole runs of 256) when it has only those. *by_keys says which. */
int kvc_prefix_match(const struct kvc_cache *c, const int32_t *tokens, uint64_t n, uint64_t *common, int *by_keys,
                     struct kvc_error *e);

#endif
