/* store_stats.c: the counters of a store as text, and lists of what it keeps. */
#include "formats/store/store.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *help;
} counters[KVC_COUNTERS] = {
    [KVC_COUNT_LOOKUPS] = {"lookups", "prefixes that were looked for"},
    [KVC_COUNT_ASKED] = {"lookup_tokens", "tokens of them, in whole chunks"},
    [KVC_COUNT_FOUND] = {"hit_tokens", "tokens that were found"},
    [KVC_COUNT_FIND_US] = {"lookup_microseconds", "time that looking took"},
    [KVC_COUNT_LATE] = {"late_calls", "calls that a deadline ended"},
    [KVC_COUNT_LOADED] = {"loaded_tokens", "tokens that were delivered"},
    [KVC_COUNT_LOADED_BYTES] = {"loaded_bytes", "bytes of the objects they were in"},
    [KVC_COUNT_LOAD_US] = {"load_microseconds", "time that reading and decoding took"},
    [KVC_COUNT_SHORT] = {"short_tokens", "tokens that were found and not delivered"},
    [KVC_COUNT_GONE] = {"gone_objects", "objects that were found, and then were not there"},
    [KVC_COUNT_BAD] = {"bad_objects", "objects that were damaged, forged, or of other facts"},
    [KVC_COUNT_PUT] = {"put_objects", "objects that were written"},
    [KVC_COUNT_PUT_BYTES] = {"put_bytes", "bytes of them"},
    [KVC_COUNT_SHARED] = {"shared_objects", "objects that somebody else had written already"},
    [KVC_COUNT_REFUSED] = {"refused_objects",
                           "objects that a tier declined, as it would evict them first"},
    [KVC_COUNT_DROPPED] = {"dropped_puts", "caches for which the queue had no room"},
    [KVC_COUNT_FAILED] = {"failed_puts",
                          "objects that could not be packed, or that a tier did not take"},
    [KVC_COUNT_BACKFILL] = {"backfilled_objects", "objects that were copied to a faster tier"},
};
static const char *const tier_counters[KVC_TIER_COUNTERS] = {[KVC_TIER_CALLS] = "calls",
                                                             [KVC_TIER_FAILURES] = "failures",
                                                             [KVC_TIER_REFUSED] = "refused",
                                                             [KVC_TIER_HITS] = "hits"};

struct text {
    char *to;
    size_t room, n;
};

static void store_stats_add(struct text *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void store_stats_add(struct text *t, const char *format, ...) {
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(t->n < t->room ? t->to + t->n : NULL,
                            t->n < t->room ? t->room - t->n : 0, format, list);
    va_end(list);
    if (n > 0) t->n += (size_t)n;
}

static void add_prometheus(struct text *t, const struct kvc_store *s) {
    for (unsigned i = 0; i < KVC_COUNTERS; i++)
        store_stats_add(t,
                        "# HELP kvc_store_%s %s\n# TYPE kvc_store_%s counter\nkvc_store_%s %" PRIu64
                        "\n",
                        counters[i].name, counters[i].help, counters[i].name, counters[i].name,
                        (uint64_t)s->count[i]);
    for (unsigned k = 0; k < KVC_TIER_COUNTERS; k++) {
        store_stats_add(t, "# TYPE kvc_store_tier_%s counter\n", tier_counters[k]);
        for (unsigned i = 0; i < s->n_tiers; i++)
            store_stats_add(t, "kvc_store_tier_%s{tier=\"%u\",scheme=\"%s\"} %" PRIu64 "\n",
                            tier_counters[k], i, s->tier[i].ops->scheme,
                            (uint64_t)s->tier[i].count[k]);
    }
}

static void add_json(struct text *t, const struct kvc_store *s) {
    store_stats_add(t, "{");
    for (unsigned i = 0; i < KVC_COUNTERS; i++)
        store_stats_add(t, "\"%s\": %" PRIu64 ", ", counters[i].name, (uint64_t)s->count[i]);
    store_stats_add(t, "\"tiers\": [");
    for (unsigned i = 0; i < s->n_tiers; i++) {
        store_stats_add(t, "%s{\"scheme\": \"%s\"", i ? ", " : "", s->tier[i].ops->scheme);
        for (unsigned k = 0; k < KVC_TIER_COUNTERS; k++)
            store_stats_add(t, ", \"%s\": %" PRIu64, tier_counters[k],
                            (uint64_t)s->tier[i].count[k]);
        store_stats_add(t, "}");
    }
    store_stats_add(t, "]}\n");
}

size_t kvc_store_stats(const struct kvc_store *s, const char *form, char *text, size_t size) {
    struct text t = {.to = text, .room = size};
    if (size) *text = '\0';
    if (form && strcmp(form, "prometheus") == 0) add_prometheus(&t, s);
    else add_json(&t, s);
    return t.n + 1;
}

/* --- lists --- */

struct walk {
    unsigned tier;
    kvc_store_walk_fn *fn;
    void *state;
    int stopped;
};

static int seen(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    struct walk *w = state;
    char name[KVC_OBJECT_NAME];
    kvc_object_name(o, name);
    w->stopped = w->fn(w->state, w->tier, name, size, used);
    return w->stopped;
}

int kvc_store_walk(struct kvc_store *s, const struct kvc_store_namespace *ns, kvc_store_walk_fn *fn,
                   void *state, struct kvc_error *e) {
    struct walk w = {.fn = fn, .state = state};
    for (; w.tier < s->n_tiers && !w.stopped; w.tier++) {
        struct kvc_tier *l = s->tier[w.tier].tier;
        if (l->ops->walk(l, ns ? ns->hash : NULL, seen, &w, e)) return -1;
    }
    return 0;
}
