/* prefix.h: prefix keys: a hash chain over model identity and tokens, one key per 256 tokens. Not for
 * matching files (the tools do that). FORMAT.md, "Prefix keys". */
#ifndef KVC_PREFIX_H
#define KVC_PREFIX_H

#include "formats/cache/cache.h"

#define KVC_PREFIX_TOKENS 256
#define KVC_KEY_BYTES 32

#define KVC_IDENTITY_BYTES 128

/* Writes the model identity at the start of the chain: the one that the metadata name (prefix.identity), else the strongest one
 * that they contain. `text` has room for KVC_IDENTITY_BYTES. */
void kvc_prefix_identity(const struct kvc_meta *meta, char *text, size_t size);
/* Writes the keys of the first n / KVC_PREFIX_TOKENS whole runs of tokens into keys[n / KVC_PREFIX_TOKENS][KVC_KEY_BYTES]. */
int kvc_prefix_keys(const char *identity, const int32_t *tokens, uint64_t n, uint8_t *keys, struct kvc_error *e);

/* Returns in *common how many leading tokens, in whole runs of KVC_PREFIX_TOKENS, match the n_keys keys. */
int kvc_prefix_common(const char *identity, const uint8_t *keys, uint64_t n_keys, const int32_t *tokens, uint64_t n,
                      uint64_t *common, struct kvc_error *e);

/* Counts the leading tokens that a cache shares with `tokens`: exactly, by token ids, if the cache has them; else in whole
 * runs of KVC_PREFIX_TOKENS, by prefix keys. *by_keys is 1 if keys were compared. */
int kvc_prefix_match(const struct kvc_cache *c, const int32_t *tokens, uint64_t n, uint64_t *common, int *by_keys,
                     struct kvc_error *e);

#endif
