/* probes.h: attention that each key and value gets from the available queries, which predicts what
 * later tokens will attend to. For encoders. Not for the measures of a decoded cache
 * (formats/compare/attention.h). */
#ifndef KVC_PROBES_H
#define KVC_PROBES_H

#include "codecs/block.h"

#include <stddef.h>
#include <stdint.h>

/* Sums the attention of each row into to[head][row]: the sum over the queries of all query heads
 * that read this KV head of softmax(q.k / sqrt(dim)) over the rows at positions up to the query's.
 * to has key.heads * rows numbers. */
int kvc_probes_attention(const struct kvc_encoding *x, float *to, struct kvc_error *e);
/* Measures how much each row matters: to[head][row] = n * sqrt(mean over the queries of the share
 * of attention squared), n being the number of rows that the last query sees; an even spread
 * gives 1. Takes the profile's queries where there are some, else the cache's. A sliding window
 * hides rows. Fills heads `first` to end - 1 of to. */
int kvc_probes_saliency(const struct kvc_encoding *x, size_t first, size_t end, float *to,
                        struct kvc_error *e);
/* Counts the queries at each row's position or later: the terms of the sum of
 * kvc_probes_attention(), per query head. */
void kvc_probes_seen(const struct kvc_encoding *x, uint32_t *to);
/* Puts the mean square of the queries in each channel into to[head][channel], over the last
 * `window` queries and all query heads that read the KV head. */
void kvc_probes_query_energy(const struct kvc_encoding *x, uint64_t window, double *to);
/* Puts the sum over the last `window` queries of the squares of softmax(q.k / sqrt(dim)) V into
 * to[head][channel of V]. */
int kvc_probes_output_energy(const struct kvc_encoding *x, uint64_t window, double *to,
                             struct kvc_error *e);

#endif
