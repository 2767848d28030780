/* attend.h: measures how differences of two caches change attention, layer by layer, with the
 * queries of a cache. Not for the measures of one layer (attention.h). */
#ifndef KVC_ATTEND_H
#define KVC_ATTEND_H

#include "formats/compare/attention.h"
#include "formats/compare/pairs.h"

/* A layer whose attention is measured: both caches have K and V, and there are queries. */
struct kvc_attended_layer {
    const struct kvc_tensor_pair *k, *v;
    uint64_t heads;             /* KV heads */
    struct kvc_attention *head; /* for each KV head */
};

struct kvc_attended {
    /* Set by the caller. */
    const struct kvc_pairs *pairs;
    /* as kvc_align_caches() left them: K of both has one pairing */
    const struct kvc_cache *cache[2];
    const char *name[2];             /* for messages */
    const struct kvc_cache *queries; /* a cache with queries (kvc_cache_has_queries) */

    /* The result. */
    struct kvc_attended_layer *layer;
    size_t n;
    struct kvc_attention all; /* over all layers and heads */
};

/* Fills the result. It must be freed by kvc_attended_free(), after a failure as well. Memory: K and
 * V of both caches for the layers that are measured at a time, one a core. */
int kvc_attend(struct kvc_attended *a, struct kvc_error *e);
/* Returns the layer and *head whose attention changes most, by KL divergence; NULL if no layer was
 * measured. */
const struct kvc_attended_layer *kvc_attended_worst(const struct kvc_attended *a, uint64_t *head);
/* Finds a query of a KV head of a measured layer, as kvc_attention_find() does. */
int kvc_attended_find(struct kvc_attended *a, const struct kvc_attended_layer *layer, uint64_t head,
                      int last, struct kvc_attention_weights *out, struct kvc_error *e);
void kvc_attended_free(struct kvc_attended *a);

#endif
