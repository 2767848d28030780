/* diff_attention.c: matches queries with K and V of both files, to measure the effect of differences on attention. Not for the
 * measures (formats/compare/attention.c) or for printing (diff_print_attention.c). */
#include "cli/diff/diff.h"
#include "formats/io/parallel.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- matching --- */

static uint32_t find_queries(const struct kvc_cache *c, uint32_t layer) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (c->tensor[t].role == KVC_ROLE_QUERIES && c->layer[c->tensor[t].layer].index == layer) return t;
    return KVC_NONE;
}

static const struct kvc_tensor_pair *find_values(const struct diff_comparison *d, const struct kvc_tensor_pair *k) {
    for (size_t i = 0; i < d->pairs.n_tensors; i++) {
        const struct kvc_tensor_pair *v = &d->pairs.tensor[i];
        if (v->parts == k->parts && v->layer == k->layer && v->role == KVC_ROLE_V) return v;
    }
    return NULL;
}

/* Views of the caches for the measures: all values as f32, queries in the pairing of K. */
struct attention {
    struct diff_comparison *diff;
    struct kvc_cache *view[2], *queries; /* belongs to this struct */
};

/* Returns the cache with the queries: that of --queries, else A or B. */
static const struct kvc_cache *queries_of(const struct diff_comparison *d, struct kvc_error *e) {
    if (d->queries.cache) {
        if (kvc_cache_has_queries(d->queries.cache)) return d->queries.cache;
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s has no queries", d->queries.input.name);
        return NULL;
    }
    for (int s = 0; s < 2; s++)
        if (kvc_cache_has_queries(d->cache[s])) return d->cache[s];
    kvc_fail(e, KVC_ERR_UNSUPPORTED, "--attention: neither file has queries; give one that has: --queries=FILE");
    return NULL;
}

int diff_attention_possible(const struct diff_comparison *d, struct kvc_error *e) {
    return !d->attention || queries_of(d, e) ? 0 : -1;
}

static int open_views(struct attention *a, struct kvc_error *e) {
    struct diff_comparison *d = a->diff;
    const struct kvc_cache *from = queries_of(d, e);
    if (!from) return -1;
    enum kvc_pairing of_k = kvc_cache_pairing(d->cache[0]);
    if (of_k == KVC_PAIRING_UNKNOWN) of_k = kvc_cache_pairing(d->cache[1]); /* K of both files has one pairing after alignment */
    if (!(a->queries = kvc_view_queries(from, of_k, e))) return kvc_error_prefix(e, "--attention");
    for (int s = 0; s < 2; s++)
        if (!(a->view[s] = kvc_view_float(d->cache[s], e))) return kvc_error_prefix(e, d->compare.name[s]);
    return 0;
}

/* Lists the layers that can be measured: both files have K and V, and there are queries. */
static int list_layers(struct attention *a, struct kvc_error *e) {
    struct diff_comparison *d = a->diff;
    if (!(d->attended = calloc(d->pairs.n_tensors + 1, sizeof *d->attended))) return kvc_fail_memory(e, "layers");
    for (size_t i = 0; i < d->pairs.n_tensors; i++) {
        const struct kvc_tensor_pair *k = &d->pairs.tensor[i], *v = k->role == KVC_ROLE_K ? find_values(d, k) : NULL;
        if (!v || !k->heads || !v->heads || !k->parts->rows.rows) continue;
        const enum kvc_part_kind kind = k->parts->part[0]->kind;
        if ((kind != KVC_PART_LIVE && kind != KVC_PART_SLIDING) || find_queries(a->queries, k->layer) == KVC_NONE) continue;
        struct diff_attention *to = &d->attended[d->n_attended];
        to->k = k;
        to->v = v;
        to->heads = a->view[0]->tensor[k->tensor[0]].shape.heads;
        if (!(to->head = calloc((size_t)to->heads, sizeof *to->head))) return kvc_fail_memory(e, "heads");
        d->n_attended++;
    }
    if (d->n_attended) return 0;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "--attention: no layer has queries and, in both files, K and V");
}

/* --- measuring --- */

static int measure_layer(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct attention *a = state;
    const struct diff_attention *to = &a->diff->attended[item];
    uint32_t window = 0; /* as one of the files records it */
    for (int s = 0; s < 2 && !window; s++) window = a->view[s]->layer[a->view[s]->tensor[to->k->tensor[s]].layer].window;
    const struct kvc_attention_layer l = {
        .cache = {a->view[0], a->view[1]},
        .queries = a->queries,
        .k = {to->k->tensor[0], to->k->tensor[1]},
        .v = {to->v->tensor[0], to->v->tensor[1]},
        .q = find_queries(a->queries, to->k->layer),
        .rows = &to->k->parts->rows,
        .window = window,
    };
    *result = NULL;
    if (kvc_attention_compare(&l, to->head, e) == 0) return 0;
    char label[32];
    snprintf(label, sizeof label, "layer %" PRIu32, to->k->layer);
    return kvc_error_prefix(e, label);
}

static int measured(void *state, uint64_t item, void *result, struct kvc_error *e) {
    struct attention *a = state;
    (void)result;
    for (uint64_t h = 0; h < a->diff->attended[item].heads; h++)
        if (kvc_attention_add(&a->diff->attended_all, &a->diff->attended[item].head[h], e)) return -1;
    return 0;
}

int diff_attention(struct diff_comparison *d, struct kvc_error *e) {
    struct attention a = {.diff = d};
    if (!d->attention) return 0;
    int status = open_views(&a, e) || list_layers(&a, e) ? -1 : 0;
    if (!status) {
        const struct kvc_job job = {.n = d->n_attended, .work = measure_layer, .commit = measured, .discard = free, .state = &a};
        status = kvc_parallel(&job, 0, e);
    }
    kvc_cache_free(a.view[0]);
    kvc_cache_free(a.view[1]);
    kvc_cache_free(a.queries);
    return status;
}

void diff_attention_free(struct diff_comparison *d) {
    for (size_t i = 0; i < d->n_attended; i++) {
        for (uint64_t h = 0; h < d->attended[i].heads; h++) kvc_attention_free(&d->attended[i].head[h]);
        free(d->attended[i].head);
    }
    free(d->attended);
    kvc_attention_free(&d->attended_all);
}
