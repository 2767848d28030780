/* probes.h: what attention gives each key and value for the queries that are at hand: probes of what later tokens will look
 * at. For encoders. Not for the measures of a decoded cache (formats/compare/attention.h). */
#ifndef KVC_PROBES_H
#define KVC_PROBES_H

#include "codecs/block.h"

#include <stddef.h>
#include <stdint.h>

/* Attention that each row gets: to[head][row], the sum over the queries of all query heads that read this KV head of
 * softmax(q.k / sqrt(dim)) over the rows at positions up to the query's. to has key.heads * rows numbers. */
int kvc_probes_attention(const struct kvc_encoding *x, float *to, struct kvc_error *e);
/* The same as a measure of how much a row matters: to[head][row] = n * sqrt(mean over the probes of the share squared), n
 * the number of rows that the last one sees. So 1 is what an even spread gives. By the profile's queries where there are
 * some, else by those at hand; a sliding window hides rows. */
int kvc_probes_saliency(const struct kvc_encoding *x, float *to, struct kvc_error *e);
/* How many of the queries stand at each row's position or later: what the sum above has terms of, per query head. */
void kvc_probes_seen(const struct kvc_encoding *x, uint32_t *to);
/* Mean square of what the queries' heads put into each channel: to[head][channel], over the last `window` queries and all
 * query heads that read the KV head. */
void kvc_probes_query_energy(const struct kvc_encoding *x, uint64_t window, double *to);
/* Sum over the last `window` queries of the squares of softmax(q.k / sqrt(dim)) V: to[head][channel of V]. */
int kvc_probes_output_energy(const struct kvc_encoding *x, uint64_t window, double *to, struct kvc_error *e);

#endif
