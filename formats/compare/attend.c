/* attend.c: matches queries with K and V of two caches, to measure the effect of differences on
 * attention. Not for the measures (attention.c). */
#include "formats/compare/attend.h"

#include "formats/cache/layers.h"
#include "formats/cache/view.h"
#include "formats/io/parallel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* --- matching --- */

static const struct kvc_tensor_pair *find_values(const struct kvc_pairs *p,
                                                 const struct kvc_tensor_pair *k) {
    for (size_t i = 0; i < p->n_tensors; i++) {
        const struct kvc_tensor_pair *v = &p->tensor[i];
        if (v->parts == k->parts && v->layer == k->layer && v->role == KVC_ROLE_V) return v;
    }
    return NULL;
}

/* Views of the caches for the measures: all values as f32, queries in the pairing of K. */
struct views {
    struct kvc_attended *attended;
    struct kvc_cache *view[2], *queries;
};

static int open_views(struct views *x, struct kvc_error *e) {
    struct kvc_attended *a = x->attended;
    enum kvc_pairing of_k = a->cache[0]->meta.facts.rope.pairing;
    if (of_k == KVC_PAIRING_UNKNOWN) of_k = a->cache[1]->meta.facts.rope.pairing;
    if (!(x->queries = kvc_view_queries(a->queries, of_k, e))) return -1;
    for (int s = 0; s < 2; s++)
        if (!(x->view[s] = kvc_view_float(a->cache[s], e))) return kvc_error_prefix(e, a->name[s]);
    return 0;
}

static void close_views(struct views *x) {
    kvc_cache_free(x->view[0]);
    kvc_cache_free(x->view[1]);
    kvc_cache_free(x->queries);
}

static int list_layers(struct views *x, struct kvc_error *e) {
    struct kvc_attended *a = x->attended;
    const struct kvc_pairs *p = a->pairs;
    if (!(a->layer = calloc(p->n_tensors + 1, sizeof *a->layer)))
        return kvc_fail_memory(e, "layers");
    for (size_t i = 0; i < p->n_tensors; i++) {
        const struct kvc_tensor_pair *k = &p->tensor[i],
                                     *v = k->role == KVC_ROLE_K ? find_values(p, k) : NULL;
        if (!v || !k->heads || !v->heads || !k->parts->rows.rows) continue;
        if (!kvc_part_is_attended(k->parts->part[0]) ||
            kvc_cache_find_queries(x->queries, k->layer) == KVC_NONE)
            continue;
        struct kvc_attended_layer *to = &a->layer[a->n];
        to->k = k;
        to->v = v;
        to->heads = x->view[0]->tensor[k->tensor[0]].shape.heads;
        if (!(to->head = calloc((size_t)to->heads, sizeof *to->head)))
            return kvc_fail_memory(e, "heads");
        a->n++;
    }
    if (a->n) return 0;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "no layer has queries and, in both caches, K and V");
}

/* --- measuring --- */

static struct kvc_attention_layer attend_layer_of(const struct views *x,
                                                  const struct kvc_attended_layer *to) {
    uint64_t window = 0; /* as one of the caches records it */
    for (int s = 0; s < 2 && !window; s++) {
        const struct kvc_cache *c = x->view[s];
        window = kvc_layer_window(&c->meta.facts, &c->layer[c->tensor[to->k->tensor[s]].layer]);
    }
    return (struct kvc_attention_layer){
        .cache = {x->view[0], x->view[1]},
        .queries = x->queries,
        .k = {to->k->tensor[0], to->k->tensor[1]},
        .v = {to->v->tensor[0], to->v->tensor[1]},
        .q = kvc_cache_find_queries(x->queries, to->k->layer),
        .rows = &to->k->parts->rows,
        .window = window,
    };
}

/* Puts "layer 3: " before a message. Returns -1. */
static int about_layer(const struct kvc_attended_layer *l, struct kvc_error *e) {
    char label[32];
    snprintf(label, sizeof label, "layer %" PRIu32, l->k->layer);
    return kvc_error_prefix(e, label);
}

static int measure_layer(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct views *x = state;
    const struct kvc_attended_layer *to = &x->attended->layer[item];
    const struct kvc_attention_layer l = attend_layer_of(x, to);
    *result = NULL;
    return kvc_attention_compare(&l, to->head, e) ? about_layer(to, e) : 0;
}

static int measured(void *state, uint64_t item, void *result, struct kvc_error *e) {
    struct kvc_attended *a = ((struct views *)state)->attended;
    (void)result;
    for (uint64_t h = 0; h < a->layer[item].heads; h++)
        if (kvc_attention_add(&a->all, &a->layer[item].head[h], e)) return -1;
    return 0;
}

int kvc_attend(struct kvc_attended *a, struct kvc_error *e) {
    struct views x = {.attended = a};
    int status = open_views(&x, e);
    if (!status) status = list_layers(&x, e);
    if (!status) {
        const struct kvc_job job = {
            .n = a->n, .work = measure_layer, .commit = measured, .discard = free, .state = &x};
        status = kvc_parallel(&job,
                              kvc_cache_threads(a->cache[0], kvc_cache_threads(a->cache[1], 0)), e);
    }
    close_views(&x);
    return status;
}

const struct kvc_attended_layer *kvc_attended_worst(const struct kvc_attended *a, uint64_t *head) {
    const struct kvc_attended_layer *worst = NULL;
    double most = 0;
    for (size_t i = 0; i < a->n; i++)
        for (uint64_t h = 0; h < a->layer[i].heads; h++) {
            const double kl = kvc_attention_kl(&a->layer[i].head[h]);
            if (worst && !(kl > most)) continue;
            worst = &a->layer[i];
            *head = h;
            most = kl;
        }
    return worst;
}

int kvc_attended_find(struct kvc_attended *a, const struct kvc_attended_layer *layer, uint64_t head,
                      int last, struct kvc_attention_weights *out, struct kvc_error *e) {
    struct views x = {.attended = a};
    *out = (struct kvc_attention_weights){.size = sizeof *out};
    int status = open_views(&x, e);
    if (!status) {
        const struct kvc_attention_layer l = attend_layer_of(&x, layer);
        status = kvc_attention_find(&l, head, last, out, e) ? about_layer(layer, e) : 0;
    }
    close_views(&x);
    return status;
}

void kvc_attended_free(struct kvc_attended *a) {
    for (size_t i = 0; i < a->n; i++) {
        for (uint64_t h = 0; h < a->layer[i].heads; h++) kvc_attention_free(&a->layer[i].head[h]);
        free(a->layer[i].head);
    }
    free(a->layer);
    kvc_attention_free(&a->all);
}
