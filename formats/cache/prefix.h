/* prefix.h: prefix keys: a hash chain over model identity and tokens, one key per 256 tokens. Not
 * for matching files (the tools do that), nor for the namespace of a cache (prefix_space.h).
 * KEYS.md, "Prefix keys". */
#ifndef KVC_PREFIX_H
#define KVC_PREFIX_H

#include "formats/cache/cache.h"
#include "formats/cache/prefix_extras.h"

#define KVC_KEY_BYTES 32

#define KVC_IDENTITY_BYTES 128

/* Write the model identity at the start of the chain into `text`, which has room for
 * KVC_IDENTITY_BYTES: the one by which all writers agree, of those that the facts of the model
 * allow; or the one that the metadata name (prefix.identity), if any. -1: there is no memory. */
int kvc_prefix_identity_of_model(const struct kvc_meta *meta, char *text, size_t size,
                                 struct kvc_error *e);
int kvc_prefix_identity(const struct kvc_meta *meta, char *text, size_t size, struct kvc_error *e);

/* Where keys begin, and what they take beside token ids. */
struct kvc_prefix {
    uint64_t first;               /* position: 0, or a multiple of KVC_PREFIX_TOKENS */
    uint8_t start[KVC_KEY_BYTES]; /* the key at `first`, or H_0 */
    struct kvc_extras extras;     /* of the blocks from `first` on */
};
/* The chain of a list of tokens from position 0 on. */
int kvc_prefix_begin(struct kvc_prefix *p, const char *identity, struct kvc_error *e);
/* The chain of a cache with these metadata, which must outlive *p. Refuses a parent or extras that
 * break the format. */
int kvc_prefix_of(struct kvc_prefix *p, const struct kvc_meta *meta, struct kvc_error *e);

/* Writes the keys of the n / KVC_PREFIX_TOKENS whole runs of tokens from p->first on into
 * keys[n / KVC_PREFIX_TOKENS][KVC_KEY_BYTES]. */
int kvc_prefix_keys(const struct kvc_prefix *p, const int32_t *tokens, uint64_t n, uint8_t *keys,
                    struct kvc_error *e);
/* Returns in *common how many tokens from p->first on, in whole runs of KVC_PREFIX_TOKENS, match
 * the n_keys keys. */
int kvc_prefix_common(const struct kvc_prefix *p, const uint8_t *keys, uint64_t n_keys,
                      const int32_t *tokens, uint64_t n, uint64_t *common, struct kvc_error *e);

/* Refuses a cache whose metadata, token ids and number of keys contradict each other.
 * kvc_prefix_verify() also computes the keys again. */
int kvc_prefix_check(const struct kvc_cache *c, struct kvc_error *e);
int kvc_prefix_verify(const struct kvc_cache *c, struct kvc_error *e);

/* Gives a view of positions [first, end) of c, which has its token ids already, the parent, keys
 * and extras that follow from those of c, or none. */
int kvc_prefix_select(struct kvc_cache *view, const struct kvc_cache *c, uint64_t first,
                      uint64_t end, struct kvc_error *e);

/* The result of a match. */
struct kvc_prefix_matched {
    /* leading tokens of the list that the sequence of the cache begins with; 0 if the cache has
     * none of them */
    uint64_t common;
    /* position at which the cache begins; the tokens before it are known by the cache's parent key
     */
    uint64_t first;
    /* 1: tokens were compared by prefix keys, in whole runs of KVC_PREFIX_TOKENS; 0: by their ids
     */
    int by_keys;
};
/* Compares a list of tokens from position 0 on, without extras, with a cache: by token ids if the
 * cache has them; else by prefix keys. Ids are not compared from the first token on that has
 * extras. */
int kvc_prefix_match(const struct kvc_cache *c, const int32_t *tokens, uint64_t n,
                     struct kvc_prefix_matched *m, struct kvc_error *e);

/* Gives a cache whose source holds no token ids n ids that the caller knows: one for each token of
 * the cache, or one for each position from 0 on. If the cache begins later, the latter also give
 * its first prefix key (prefix.parent), where one ends there; it must have its model's facts by
 * then. Refuses another number of ids, and a cache that has other ids, or prefix keys of others. */
int kvc_cache_give_tokens(struct kvc_cache *c, const int32_t *tokens, uint64_t n,
                          struct kvc_error *e);

#endif
