/* give_tokens.h: token ids that the caller knows, for a cache whose source holds none. Not for
 * reading lists of ids. */
#ifndef KVC_GIVE_TOKENS_H
#define KVC_GIVE_TOKENS_H

#include "formats/cache/cache.h"

/* Gives the cache n token ids: one for each token of the cache, or one for each position from 0 on.
 * If the cache begins later, the latter also give its first prefix key (prefix.parent), where one
 * ends there; it must have its model's facts by then. Refuses another number of ids, and a cache
 * that has other ids, or prefix keys of others. */
int kvc_cache_give_tokens(struct kvc_cache *c, const int32_t *tokens, uint64_t n,
                          struct kvc_error *e);

#endif
