/* queries.h: queries estimated from K, V and the model's weights, for caches that hold none. Spec:
 * QUERIES.md. Not for loading the weights (weights.h) or for what is done with queries. */
#ifndef KVC_QUERIES_H
#define KVC_QUERIES_H

#include "formats/cache/cache.h"
#include "formats/model/weights.h"

/* Estimates the queries of up to KVC_QUERIES_ROWS rows of each layer that has K and V, spread
 * evenly over the last KVC_QUERIES_REACH, by `threads` threads at most (0: one per core). Returns a
 * cache of companions, which the caller frees: queries after RoPE, binary32, with positions of
 * rows of c and channels paired as its K. It needs neither c nor the weights. The same on every
 * machine but for rounding.
 *
 * NULL and *e: KVC_ERR_OTHER_MODEL where the weights are of another model than the cache;
 * KVC_ERR_UNSUPPORTED where they lack a tensor, or nothing tells how RoPE rotated K; needs of
 * kvc_error.h where the cache does not say its heads, layers or pairing. */
enum { KVC_QUERIES_ROWS = 64, KVC_QUERIES_REACH = 256 };
struct kvc_cache *kvc_queries_estimate(const struct kvc_cache *c, const struct kvc_weights *w,
                                       unsigned threads, struct kvc_error *e);

#endif
