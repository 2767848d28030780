/* kvc_compare.c: implements kvc_file_compare() and kvc_file_stats(). The work is done in
 * formats/compare. */
#include "formats/api/kvc.h"
#include "codecs/memory.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"
#include "formats/cache/view.h"
#include "formats/compare/attend.h"
#include "formats/compare/meta_differ.h"
#include "formats/compare/stats.h"

#include <stdlib.h>
#include <string.h>

static int compare_find_pairs(struct kvc_pairs *p, const struct kvc_compare_how *how,
                              struct kvc_error *e) {
    const int some = how->first || how->end;
    const uint64_t end = how->end ? how->end : (uint64_t)INT64_MAX + 1;
    if (how->first >= end || end > (uint64_t)INT64_MAX + 1)
        return kvc_fail(e, KVC_ERR_USAGE, "the range of positions is empty");
    p->first = some ? (int64_t)how->first : INT64_MIN;
    p->last = (int64_t)(end - 1);
    p->keep = how->layers;
    p->n_keep = how->n_layers;
    if (kvc_pairs_find(p, e)) return -1;
    if (kvc_pairs_reach(p) == KVC_PAIRS_SOME) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "neither cache has any of these %s",
                    kvc_pairs_reach(p) == KVC_PAIRS_NO_LAYERS ? "layers" : "positions");
}

/* Adds the rows that only one cache has. */
static void count_rows(const struct kvc_pairs *p, struct kvc_comparison *r) {
    for (size_t i = 0; i < p->n_parts; i++)
        for (int s = 0; s < 2; s++) {
            const struct kvc_part_pair *pair = &p->part[i];
            for (uint64_t k = 0; k < pair->rows.n_only[s]; k++)
                r->rows_only[s] += (uint64_t)(pair->rows.only[s][k].last -
                                              pair->rows.only[s][k].first) +
                                   1;
            if (pair->part[s] && !pair->part[!s]) r->rows_only[s] += pair->part[s]->cells.n;
        }
}

static int compare_pair(const struct kvc_align *a, const struct kvc_tensor_pair *pair,
                        const struct kvc_compare_options *o, struct kvc_difference *total,
                        struct kvc_comparison *r, struct kvc_error *e) {
    struct kvc_difference all, *head;
    if (!pair->heads) r->lone++;
    if (!pair->heads || !pair->parts->rows.rows) return 0;
    if (!(head = kvc_pairs_compare(a->cache, pair, o, &all, e))) return -1;
    free(head);
    r->tensors++;
    r->values += all.values;
    r->differ += all.differ;
    r->unequal += all.differ != 0;
    if (all.differ) kvc_difference_add(total, &all);
    return 0;
}

/* --- attention --- */

static const struct kvc_cache *queries_of(const struct kvc_align *a,
                                          const struct kvc_compare_how *how, struct kvc_error *e) {
    if (how->queries) {
        if (kvc_cache_has_queries(how->queries->cache)) return how->queries->cache;
        kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_QUERIES, "%s has no queries",
                      how->queries->name);
        return NULL;
    }
    for (int s = 0; s < 2; s++)
        if (kvc_cache_has_queries(a->cache[s])) return a->cache[s];
    kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_QUERIES, "neither cache has queries");
    return NULL;
}

static int attend(const struct kvc_pairs *p, const struct kvc_align *a,
                  const struct kvc_compare_how *how, struct kvc_comparison *r,
                  struct kvc_error *e) {
    struct kvc_attended x = {.pairs = p,
                             .cache = {a->cache[0], a->cache[1]},
                             .name = {a->name[0], a->name[1]},
                             .queries = queries_of(a, how, e)};
    if (!x.queries) return -1;
    const int status = kvc_attend(&x, e);
    if (!status) {
        r->queries = x.all.queries;
        r->logit_rms = kvc_attention_logit_rms(&x.all);
        r->kl = kvc_attention_kl(&x.all);
        r->output_median = kvc_attention_output(&x.all, 0.5);
        r->output_p99 = kvc_attention_output(&x.all, 0.99);
    }
    kvc_attended_free(&x);
    return status;
}

/* --- metadata --- */

struct meta {
    const struct kvc_compare_how *how;
    uint64_t n;
    int out_of_memory;
};

/* Returns the text of an entry, which the caller frees, or NULL. */
static char *compare_text_of(const struct kvc_meta_entry *entry, struct meta *m) {
    if (!entry) return NULL;
    const size_t size = kvc_meta_print(entry, NULL, 0) + 1;
    char *text = malloc(size);
    if (text) kvc_meta_print(entry, text, size);
    else m->out_of_memory = 1;
    return text;
}

static void meta_differs(void *state, const struct kvc_meta_entry *a,
                         const struct kvc_meta_entry *b) {
    struct meta *m = state;
    m->n++;
    if (!m->how->meta_differs) return;
    char *text[2] = {compare_text_of(a, m), compare_text_of(b, m)};
    if (!m->out_of_memory)
        m->how->meta_differs(m->how->meta_state, a ? a->key : b->key, text[0], text[1]);
    free(text[0]);
    free(text[1]);
}

static int compare_meta(const struct kvc_file *a, const struct kvc_file *b,
                        const struct kvc_compare_how *how, struct kvc_comparison *r,
                        struct kvc_error *e) {
    struct meta m = {.how = how};
    const struct kvc_cache *const cache[2] = {a->cache, b->cache};
    if (how->meta < 0 || how->meta > 2)
        return kvc_fail(e, KVC_ERR_USAGE, "meta = %d is none of 0, 1, 2", how->meta);
    const int exact = !(how->abs > 0 || how->rel > 0);
    if (how->meta)
        kvc_meta_differ(cache,
                        how->meta == 2 ? KVC_META_EVERY_ENTRY
                        : exact        ? KVC_META_EXACT
                                       : KVC_META_MEANING,
                        meta_differs, &m);
    r->meta_differ = m.n;
    return m.out_of_memory ? kvc_fail_memory(e, "metadata") : 0;
}

/* --- the whole --- */

static int compare(struct kvc_pairs *p, struct kvc_align *a, const struct kvc_compare_how *how,
                   struct kvc_comparison *r, struct kvc_error *e) {
    const struct kvc_compare_options o = {.exact = !(how->abs > 0 || how->rel > 0),
                                          .abs = how->abs,
                                          .rel = how->rel,
                                          .name = {a->name[0], a->name[1]}};
    struct kvc_difference total = {0};
    if (compare_find_pairs(p, how, e)) return -1;
    count_rows(p, r);
    a->sample[0] = kvc_pairs_sample(p, KVC_ROLE_K);
    a->sample[1] = kvc_pairs_sample(p, KVC_ROLE_V);
    if (kvc_align_caches(a, e)) return -1;
    for (size_t i = 0; i < p->n_tensors; i++)
        if (compare_pair(a, &p->tensor[i], &o, &total, r, e)) return -1;
    r->max_abs = total.max_abs;
    r->rms = total.rms;
    r->frobenius = total.frobenius;
    r->cosine = r->unequal ? total.cosine : 1;
    if (how->attention && attend(p, a, how, r, e)) return -1;
    return r->meta_differ || r->tokens_differ || r->lone || r->rows_only[0] || r->rows_only[1] ||
           r->differ;
}

static int tokens_differ(const struct kvc_cache *a, const struct kvc_cache *b) {
    if (!a->tokens || !b->tokens) return 0;
    return a->n_tokens != b->n_tokens ||
           memcmp(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof *a->tokens) != 0;
}

int kvc_file_compare(const struct kvc_file *a, const struct kvc_file *b,
                     const struct kvc_compare_how *how, struct kvc_comparison *result,
                     struct kvc_error *e) {
    struct kvc_compare_how o;
    struct kvc_comparison r = {.size = sizeof r};
    if (kvc_sized_take(&o, sizeof o, how, "kvc_compare_how", e)) return -1;
    if (kvc_sized_give(result, &r, sizeof r, "kvc_comparison", e)) return -1;
    if (!o.first && !o.end) r.tokens_differ = tokens_differ(a->cache, b->cache);
    struct kvc_pairs pairs = {.cache = {a->cache, b->cache}};
    struct kvc_align align = {.cache = {a->cache, b->cache}, .name = {a->name, b->name}};
    const int status = compare_meta(a, b, &o, &r, e) ? -1 : compare(&pairs, &align, &o, &r, e);
    kvc_align_free(&align);
    kvc_pairs_free(&pairs);
    if (status >= 0) kvc_sized_give(result, &r, sizeof r, "kvc_comparison", e);
    return status;
}

int kvc_file_stats(const struct kvc_file *f, uint32_t tensor, struct kvc_head_stats *head,
                   uint64_t n, struct kvc_error *e) {
    const struct kvc_cache *c = f->cache;
    if (tensor >= c->n_tensors || n != c->tensor[tensor].shape.heads)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: there is no such tensor, or it has another number of heads", f->name);
    struct kvc_stats *stats = kvc_alloc(n, sizeof *stats);
    int status = stats ? kvc_tensor_stats(c, tensor, stats, e) : kvc_fail_memory(e, "statistics");
    if (status) kvc_error_prefix(e, f->name);
    for (uint64_t h = 0; h < n && !status; h++) {
        const struct kvc_head_stats own = {
            .values = stats[h].values,
            .nan = stats[h].nan,
            .inf = stats[h].inf,
            .mean = stats[h].mean,
            .rms = stats[h].rms,
            .max_abs = stats[h].max_abs,
            .outlier_channels = stats[h].outlier_channels,
            .worst_channel = stats[h].worst_channel,
            .worst_rms = stats[h].worst_rms,
        };
        status = kvc_sized_give((char *)head + h * head->size, &own, sizeof own, "kvc_head_stats",
                                e);
    }
    free(stats);
    return status;
}
