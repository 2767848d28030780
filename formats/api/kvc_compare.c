/* kvc_compare.c: implements kvc_file_compare(). The work is done in formats/compare. */
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"
#include "formats/compare/pairs.h"

#include <stdlib.h>
#include <string.h>

static int find_pairs(struct kvc_pairs *p, const struct kvc_compare_how *how, struct kvc_error *e) {
    const int some = how->first || how->end;
    const uint64_t end = how->end ? how->end : (uint64_t)INT64_MAX + 1;
    if (how->first >= end || end > (uint64_t)INT64_MAX + 1) return kvc_fail(e, KVC_ERR_USAGE, "the range of positions is empty");
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
                r->rows_only[s] += (uint64_t)(pair->rows.only[s][k].last - pair->rows.only[s][k].first) + 1;
            if (pair->part[s] && !pair->part[!s]) r->rows_only[s] += pair->part[s]->cells.n;
        }
}

static int compare_pair(const struct kvc_align *a, const struct kvc_tensor_pair *pair, const struct kvc_compare_options *o,
                        struct kvc_difference *total, struct kvc_comparison *r, struct kvc_error *e) {
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

static int compare(struct kvc_pairs *p, struct kvc_align *a, const struct kvc_compare_how *how, struct kvc_comparison *r,
                   struct kvc_error *e) {
    const struct kvc_compare_options o = {.exact = !(how->abs > 0 || how->rel > 0),
                                          .abs = how->abs,
                                          .rel = how->rel,
                                          .name = {a->name[0], a->name[1]}};
    struct kvc_difference total = {0};
    if (find_pairs(p, how, e)) return -1;
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
    return r->tokens_differ || r->lone || r->rows_only[0] || r->rows_only[1] || r->differ;
}

static int tokens_differ(const struct kvc_cache *a, const struct kvc_cache *b) {
    if (!a->tokens || !b->tokens) return 0;
    return a->n_tokens != b->n_tokens || memcmp(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof *a->tokens) != 0;
}

int kvc_file_compare(const struct kvc_file *a, const struct kvc_file *b, const struct kvc_compare_how *how,
                     struct kvc_comparison *result, struct kvc_error *e) {
    struct kvc_compare_how o;
    struct kvc_comparison r = {.size = sizeof r};
    if (kvc_sized_take(&o, sizeof o, how, "kvc_compare_how", e)) return -1;
    if (kvc_sized_give(result, &r, sizeof r, "kvc_comparison", e)) return -1;
    if (!o.first && !o.end) r.tokens_differ = tokens_differ(a->cache, b->cache);
    struct kvc_pairs pairs = {.cache = {a->cache, b->cache}};
    struct kvc_align align = {.cache = {a->cache, b->cache}, .name = {a->name, b->name}};
    const int status = compare(&pairs, &align, &o, &r, e);
    kvc_align_free(&align);
    kvc_pairs_free(&pairs);
    if (status >= 0) kvc_sized_give(result, &r, sizeof r, "kvc_comparison", e);
    return status;
}
