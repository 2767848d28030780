/* diff_attention.c: kvc-diff --attention: finds the queries and measures. Not for the measures
 * (formats/compare/attend.c) or for printing (diff_print_attention.c). */
#include "cli/diff/diff.h"

#include "formats/cache/view.h"

/* Returns the cache with the queries: that of --queries, else A or B. */
static const struct kvc_cache *queries_of(const struct diff_comparison *d, struct kvc_error *e) {
    if (d->queries) {
        if (kvc_cache_has_queries(d->queries->cache)) return d->queries->cache;
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s has no queries", d->queries->name);
        return NULL;
    }
    for (int s = 0; s < 2; s++)
        if (kvc_cache_has_queries(d->cache[s])) return d->cache[s];
    kvc_fail(e, KVC_ERR_UNSUPPORTED,
             "--attention: neither file has queries; give one that has: --queries=FILE");
    return NULL;
}

int diff_attention_possible(const struct diff_comparison *d, struct kvc_error *e) {
    return !d->attention || queries_of(d, e) ? 0 : -1;
}

int diff_attention(struct diff_comparison *d, struct kvc_error *e) {
    if (!d->attention) return 0;
    d->attended = (struct kvc_attended){.pairs = &d->pairs,
                                        .cache = {d->cache[0], d->cache[1]},
                                        .name = {d->compare.name[0], d->compare.name[1]},
                                        .queries = queries_of(d, e)};
    if (!d->attended.queries) return -1;
    return kvc_attend(&d->attended, e) ? kvc_error_prefix(e, "--attention") : 0;
}
