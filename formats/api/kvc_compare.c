/* kvc_compare.c: begins comparisons, and implements kvc_file_compare() and kvc_file_stats(). The
 * work is done in formats/compare. */
#include "formats/api/kvc_inspect.h"

#include "codecs/memory.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"
#include "formats/cache/layers.h"
#include "formats/cache/view.h"
#include "formats/compare/comparing.h"
#include "formats/compare/meta_differ.h"
#include "formats/compare/stats.h"
#include "formats/file/given.h"

#include <stdlib.h>
#include <string.h>

int kvc_file_borrow_layers(struct kvc_file *f, const struct kvc_file *from, struct kvc_error *e) {
    if (KVC_NULL(e, f, from)) return -1;
    return kvc_layers_borrow(f->opened.cache, from->cache, e);
}

/* Reads a selection and what else a caller wants. */
static int take_how(struct kvc_comparing *c, const struct kvc_compare_how *how,
                    struct kvc_error *e) {
    const uint64_t most = (uint64_t)INT64_MAX + 1,
                   end = how->end && how->end < most ? how->end : most;
    if (how->first >= end) return kvc_fail(e, KVC_ERR_USAGE, "the range of positions is empty");
    if (how->meta < 0 || how->meta > 2)
        return kvc_fail(e, KVC_ERR_USAGE, "meta = %d is none of 0, 1, 2", how->meta);
    if (!(how->abs >= 0 && how->rel >= 0))
        return kvc_fail(e, KVC_ERR_USAGE, "abs = %g and rel = %g are not numbers of 0 or more",
                        how->abs, how->rel);
    c->pairs.first = how->first || how->end ? (int64_t)how->first : INT64_MIN;
    c->pairs.last = (int64_t)(end - 1);
    c->pairs.keep = how->layers;
    c->pairs.n_keep = how->n_layers;
    c->every = how->meta == 2;
    c->options.exact = !(how->abs > 0 || how->rel > 0);
    c->options.abs = how->abs;
    c->options.rel = how->rel;
    if (!how->attention || !how->queries) return 0;
    c->queries = how->queries->cache;
    if (kvc_cache_has_queries(c->queries)) return 0;
    return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_QUERIES, "%s has no queries",
                         how->queries->name);
}

/* Estimates queries of a, where there are no others and a was opened with its model. */
static int estimate(struct kvc_comparing *c, const struct kvc_file *a, const struct kvc_file *b,
                    struct kvc_error *e) {
    const struct kvc_file *whole = kvc_file_whole(a);
    if (c->queries || (!whole->rebuild && !whole->model) || kvc_cache_has_queries(a->cache) ||
        kvc_cache_has_queries(b->cache))
        return 0;
    c->estimated = kvc_given_queries(a->cache, whole->rebuild, whole->model, 0, e);
    c->queries = c->estimated;
    if (c->estimated) return 0;
    kvc_error_prefix(e, "queries cannot be estimated");
    return kvc_error_prefix(e, a->name);
}

struct kvc_comparing *kvc_comparing_new(const struct kvc_file *a, const struct kvc_file *b,
                                        const struct kvc_compare_how *how,
                                        const struct kvc_compare_detail *detail,
                                        struct kvc_error *e) {
    if (KVC_NULL(e, a, b)) return NULL;
    struct kvc_compare_how h;
    struct kvc_compare_detail d;
    if (kvc_sized_take(&h, sizeof h, how, "kvc_compare_how", e) ||
        kvc_sized_take(&d, sizeof d, detail, "kvc_compare_detail", e))
        return NULL;
    struct kvc_comparing *c = calloc(1, sizeof *c);
    if (!c) {
        kvc_fail_memory(e, "a comparison");
        return NULL;
    }
    c->pairs.cache[0] = a->cache;
    c->pairs.cache[1] = b->cache;
    c->options.name[0] = a->name;
    c->options.name[1] = b->name;
    c->options.report = d.value;
    c->options.state = d.state;
    c->groups = (struct kvc_groups){.by = d.group ? d.by : KVC_GROUP_NONE,
                                    .worst = d.worst,
                                    .all = d.all,
                                    .give = d.group,
                                    .state = d.state};
    if (!take_how(c, &h, e) && !kvc_comparing_begin(c, e) &&
        (!h.attention || (!estimate(c, a, b, e) && kvc_comparing_queries(c, e))))
        return c;
    kvc_comparing_free(c);
    return NULL;
}

/* --- the sums --- */

/* Adds the rows that only one cache has. */
static void count_rows(const struct kvc_pairs *p, struct kvc_comparison *r) {
    for (size_t i = 0; i < p->n_parts; i++)
        for (int s = 0; s < 2; s++) {
            const struct kvc_part_pair *pair = &p->part[i];
            if (kvc_pairs_repeats(p, i, s)) continue;
            for (uint64_t k = 0; k < pair->rows.n_only[s]; k++)
                r->rows_only[s] += (uint64_t)(pair->rows.only[s][k].last -
                                              pair->rows.only[s][k].first) +
                                   1;
            if (pair->part[s] && !pair->part[!s]) r->rows_only[s] += pair->part[s]->cells.n;
        }
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

static int compare_meta(const struct kvc_cache *const cache[2], const struct kvc_compare_how *how,
                        struct kvc_comparison *r, struct kvc_error *e) {
    struct meta m = {.how = how};
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

static int add_tensor(struct kvc_comparing *c, const struct kvc_compared *t,
                      struct kvc_difference *total, struct kvc_comparison *r, struct kvc_error *e) {
    struct kvc_difference all, *head;
    if (!t->heads) r->lone++;
    if (!t->heads || !t->rows) return 0;
    if (!(head = kvc_comparing_tensor(c, t, &all, NULL, e))) return -1;
    free(head);
    r->tensors++;
    r->values += all.values;
    r->differ += all.differ;
    r->unequal += all.differ != 0;
    if (all.differ) kvc_difference_add(total, &all);
    return 0;
}

static int add_attention(struct kvc_comparing *c, struct kvc_comparison *r, struct kvc_error *e) {
    struct kvc_attention_measures m = {.size = sizeof m};
    if (kvc_comparing_attention(c, e)) return -1;
    kvc_comparing_attended_all(c, &m);
    r->queries = m.queries;
    r->logit_rms = m.logit_rms;
    r->kl = m.kl;
    r->output_median = m.output_median;
    r->output_p99 = m.output_p99;
    return 0;
}

static int compare(struct kvc_comparing *c, const struct kvc_compare_how *how,
                   struct kvc_comparison *r, struct kvc_error *e) {
    struct kvc_difference total = {0};
    if ((r->tokens_differ = kvc_comparing_ids_differ(c, e)) < 0) return -1;
    if (compare_meta(c->pairs.cache, how, r, e)) return -1;
    count_rows(&c->pairs, r);
    if (kvc_comparing_align(c, NULL, NULL, e)) return -1;
    for (size_t i = 0; i < c->pairs.n_tensors; i++)
        if (add_tensor(c, kvc_comparing_pair(c, i), &total, r, e)) return -1;
    r->max_abs = total.max_abs;
    r->rms = total.rms;
    r->frobenius = total.frobenius;
    r->cosine = r->unequal ? total.cosine : 1;
    if (how->attention && add_attention(c, r, e)) return -1;
    return r->meta_differ || r->tokens_differ || r->lone || r->rows_only[0] || r->rows_only[1] ||
           r->differ;
}

int kvc_file_compare(const struct kvc_file *a, const struct kvc_file *b,
                     const struct kvc_compare_how *how, struct kvc_comparison *result,
                     struct kvc_error *e) {
    if (KVC_NULL(e, a, b, result)) return -1;
    struct kvc_compare_how o;
    struct kvc_comparison r = {.size = sizeof r};
    if (kvc_sized_take(&o, sizeof o, how, "kvc_compare_how", e)) return -1;
    if (kvc_sized_give(result, &r, sizeof r, "kvc_comparison", e)) return -1;
    struct kvc_comparing *c = kvc_comparing_new(a, b, &o, NULL, e);
    const int status = c ? compare(c, &o, &r, e) : -1;
    kvc_comparing_free(c);
    if (status >= 0) kvc_sized_give(result, &r, sizeof r, "kvc_comparison", e);
    return status;
}

int kvc_file_stats(const struct kvc_file *f, uint32_t tensor, struct kvc_head_stats *head,
                   uint64_t n, struct kvc_error *e) {
    if (KVC_NULL(e, f, head)) return -1;
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
        status = kvc_sized_give_at(head, h, &own, sizeof own, "kvc_head_stats", e);
    }
    free(stats);
    return status;
}
