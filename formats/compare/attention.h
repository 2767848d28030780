/* attention.h: how far the results of attention over two caches are apart, for given queries. Not
 * for the difference of their values (compare.h) and not for printing
 * (kvc-diff). */
#ifndef KVC_ATTENTION_H
#define KVC_ATTENTION_H

#include "formats/compare/compare.h"

/* One layer of two caches a and b and its queries, every tensor f32, channels meaning the same in
 * all of them. K and V of both have the same heads and dims, the queries K's dim and a multiple of
 * its heads: query head h reads KV head h / (query heads / KV heads). */
struct kvc_attention_layer {
    const struct kvc_cache *cache[2], *queries;
    uint32_t k[2], v[2], q;          /* tensors of the two caches, and of `queries` */
    const struct kvc_matching *rows; /* what is attended to: rows that both have */
    uint64_t window;                 /* sliding window in tokens; 0: none */
};

/* Measures over the queries of all query heads that read one KV head. p is the softmax of q.k /
 * sqrt(dim) over the rows at positions up to the query's, and inside the window; o the sum of p v.
 * Queries that see no row do not count. */
struct kvc_attention {
    uint64_t queries; /* measured: query vectors times query heads */
    uint64_t logits;  /* pairs of such a query and a row it sees */
    double logit_sum; /* of (logit of a - logit of b)^2 over these */
    double kl_sum;    /* of KL(p of a || p of b) over the queries, nats */
    float *output; /* per query ||o of a - o of b|| / ||o of a||; 0 when both are 0, infinite when
                    * only o of a is; owned */
};

/* Measures a layer: out[KV heads] is zeroed by the caller, who frees each, after a failure too.
 * Memory: the layer's K and V of both caches. Refuses shapes that do not fit together. */
int kvc_attention_compare(const struct kvc_attention_layer *layer, struct kvc_attention *out,
                          struct kvc_error *e);

/* Finds the query with the largest KL divergence of those that read a KV head, or with `last` of
 * those at the last position from which a row is seen; of equal ones the later query, the smaller
 * head. *out must be freed, after a failure too. Memory as kvc_attention_compare(). */
int kvc_attention_find(const struct kvc_attention_layer *layer, uint64_t head, int last,
                       struct kvc_attention_weights *out, struct kvc_error *e);

/* Adds `part` to `total`, which is zeroed at first. */
int kvc_attention_add(struct kvc_attention *total, const struct kvc_attention *part,
                      struct kvc_error *e);
void kvc_attention_free(struct kvc_attention *a);

/* Measures from the sums; all 0 when nothing was measured. */
double kvc_attention_logit_rms(const struct kvc_attention *a);
double kvc_attention_kl(const struct kvc_attention *a); /* mean over the queries */
/* Returns the output error at rank ceil(share * queries) in ascending order: 0.5 the median, 0.99
 * p99. Sorts a->output. */
double kvc_attention_output(struct kvc_attention *a, double share);

#endif
