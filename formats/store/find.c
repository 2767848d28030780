/* find.c: finds the longest prefix over the tiers of a store, and caches by their names. Spec:
 * STORE.md, "Tiers". Not for reading them (load.c, whole.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- over the tiers --- */

/* A search for objects, of which a tier is asked for those from `from` on. */
struct search {
    struct kvc_store *s;
    const struct kvc_object *object;
    size_t from, n;
    enum kvc_op op;
    int64_t timeout_us; /* 0: the store's */
    /* Takes what a call has found, and moves `from`; n: nothing is left. The call may still be
     * under way, and NULL. */
    void (*answer)(struct search *x, struct kvc_call *c, size_t from);
    void *state; /* of it: the hit; which names are there */
};

kvc_instant kvc_find_until(const struct kvc_store *s, unsigned tier, int64_t timeout_us) {
    const struct kvc_store_options *o = &s->options;
    if (timeout_us) return kvc_after(timeout_us);
    return kvc_after(s->tier[tier].ops->remote ? o->timeout_us : o->local_timeout_us);
}

/* Asks directories one after the other; then all other tiers at the same time, for what is left. */
static void search_tiers(struct search *x) {
    struct kvc_store *s = x->s;
    struct kvc_call *remote[KVC_MAX_TIERS] = {NULL};
    for (unsigned i = 0; i < s->n_tiers; i++) {
        const size_t from = x->from;
        if (s->tier[i].ops->remote || from == x->n) continue;
        struct kvc_call *c = kvc_call_ask(s, i, x->op, x->object + from, x->n - from,
                                          kvc_find_until(s, i, x->timeout_us));
        if (c) x->answer(x, c, from);
        kvc_call_release(c);
    }
    const size_t from = x->from;
    for (unsigned i = 0; i < s->n_tiers && from < x->n; i++)
        if (s->tier[i].ops->remote)
            remote[i] = kvc_call_ask(s, i, x->op, x->object + from, x->n - from,
                                     kvc_find_until(s, i, x->timeout_us));
    for (unsigned i = 0; i < s->n_tiers; i++) {
        if (remote[i]) x->answer(x, remote[i], from);
        kvc_call_release(remote[i]);
    }
}

/* --- prefixes --- */

/* Takes what a tier has found, for the chunks that no faster tier has. */
static void prefix_answer(struct search *x, struct kvc_call *c, size_t from) {
    struct kvc_store_hit *hit = x->state;
    struct kvc_error e;
    const int status = kvc_call_wait(c, &e);
    /* A tier that failed may have said what it knows; one that is late still writes. */
    pthread_mutex_lock(&c->lock);
    const size_t end = from + (c->done ? c->found : 0);
    hit->late |= status || !c->done || c->partial;
    pthread_mutex_unlock(&c->lock);
    if (status) kvc_store_connect(x->s, c->tier);
    if (end <= hit->chunks) return;
    atomic_fetch_add(&x->s->tier[c->tier].count[KVC_TIER_HITS], end - hit->chunks);
    for (; hit->chunks < end; hit->chunks++) {
        hit->bytes[hit->chunks] = c->size[hit->chunks - from];
        hit->tier[hit->chunks] = (uint8_t)c->tier;
    }
    x->from = hit->chunks;
}

void kvc_hit_list_tiers(struct kvc_store_hit *hit) {
    const struct kvc_store *s = hit->ns->store;
    size_t at = 0;
    hit->tiers[0] = '\0';
    for (size_t i = 0, end; i < hit->chunks; i = end) {
        for (end = i + 1; end < hit->chunks && hit->tier[end] == hit->tier[i];) end++;
        const int n = snprintf(hit->tiers + at, sizeof hit->tiers - at, "%s%s %" PRIu64,
                               at ? ", " : "", s->tier[hit->tier[i]].ops->scheme,
                               (uint64_t)(end - i) * hit->ns->chunk);
        at += n > 0 && (size_t)n < sizeof hit->tiers - at ? (size_t)n : 0;
    }
}

static int prepare(struct kvc_store_hit *hit, const int32_t *tokens,
                   const struct kvc_store_find_options *o, size_t n, struct kvc_error *e) {
    hit->tokens = malloc((size_t)hit->asked * sizeof *tokens + 1);
    hit->object = calloc(n + 1, sizeof *hit->object);
    hit->bytes = calloc(n + 1, sizeof *hit->bytes);
    hit->tier = calloc(n + 1, 1);
    if (!hit->tokens || !hit->object || !hit->bytes || !hit->tier)
        return kvc_fail_memory(e, "a hit");
    if (hit->asked) memcpy(hit->tokens, tokens, (size_t)hit->asked * sizeof *tokens);
    if (kvc_namespace_keys(hit->ns, tokens, hit->asked, o->extras, o->n_extras, &hit->keys, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (kvc_chunk_object(hit->ns, hit->keys, i, &hit->object[i], e)) return -1;
    return 0;
}

static struct kvc_store_hit *find_in(struct kvc_store_namespace *ns, const int32_t *tokens,
                                     uint64_t n, const struct kvc_store_find_options *o,
                                     struct kvc_error *e) {
    struct kvc_store_hit *hit = calloc(1, sizeof *hit);
    size_t chunks = (size_t)(n / ns->chunk);
    if (!hit) {
        kvc_fail_memory(e, "a hit");
        return NULL;
    }
    hit->ns = ns;
    kvc_namespace_hold(ns);
    hit->asked = chunks * ns->chunk;
    if (prepare(hit, tokens, o, chunks, e)) {
        kvc_store_hit_free(hit);
        return NULL;
    }
    for (size_t i = 0; i < chunks; i++)
        if (kvc_store_is_bad(ns->store, hit->object[i].key)) chunks = i;
    struct search search = {.s = ns->store,
                            .object = hit->object,
                            .n = chunks,
                            .op = KVC_OP_FIND,
                            .timeout_us = o->timeout_us,
                            .answer = prefix_answer,
                            .state = hit};
    search_tiers(&search);
    kvc_hit_list_tiers(hit);
    return hit;
}

/* Finds the longest prefix in the namespace of a profile that was learnt; if that has not all, in
 * the other one too, where it may wait to be packed. */
static struct kvc_store_hit *find_in_both(struct kvc_store_namespace *ns,
                                          struct kvc_store_namespace *packed, const int32_t *tokens,
                                          uint64_t n, const struct kvc_store_find_options *o,
                                          struct kvc_error *e) {
    struct kvc_store_hit *hit = find_in(packed, tokens, n, o, e);
    if (!hit || hit->chunks * packed->chunk == hit->asked || !kvc_learn_has_unpacked(ns))
        return hit;
    struct kvc_store_hit *other = find_in(ns, tokens, n, o, e);
    const int longer = other && other->chunks > hit->chunks;
    kvc_store_hit_free(longer ? hit : other);
    return longer ? other : hit;
}

struct kvc_store_hit *kvc_store_find(struct kvc_store_namespace *ns, const int32_t *tokens,
                                     uint64_t n, const struct kvc_store_find_options *options,
                                     struct kvc_error *e) {
    if (KVC_NULL(e, ns)) return NULL;
    if (n && KVC_NULL(e, tokens)) return NULL;
    struct kvc_store *s = ns->store;
    struct kvc_store_find_options o;
    const kvc_instant now = kvc_now();
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_find_options", e)) return NULL;
    if (n > SIZE_MAX / 8) {
        kvc_fail(e, KVC_ERR_USAGE, "there are too many tokens");
        return NULL;
    }
    struct kvc_store_namespace *packed = kvc_learnt_namespace(ns);
    struct kvc_store_hit *hit = packed ? find_in_both(ns, packed, tokens, n, &o, e)
                                       : find_in(ns, tokens, n, &o, e);
    kvc_store_namespace_close(packed);
    if (!hit) return NULL;
    hit->took = kvc_now() - now;
    kvc_count(s, KVC_COUNT_LOOKUPS, 1);
    kvc_count(s, KVC_COUNT_ASKED, hit->asked);
    kvc_count(s, KVC_COUNT_FOUND, hit->chunks * hit->ns->chunk);
    kvc_count(s, KVC_COUNT_FIND_US, (uint64_t)hit->took);
    return hit;
}

void kvc_store_hit_free(struct kvc_store_hit *hit) {
    if (!hit) return;
    kvc_store_namespace_close(hit->ns);
    free(hit->tokens);
    free(hit->keys);
    free(hit->object);
    free(hit->bytes);
    free(hit->tier);
    free(hit);
}

int kvc_store_hit_describe(const struct kvc_store_hit *hit, struct kvc_store_hit_info *info) {
    struct kvc_store_hit_info own = {.size = sizeof own,
                                     .tokens = hit->chunks * hit->ns->chunk,
                                     .chunks = hit->chunks,
                                     .asked = hit->asked,
                                     .took_us = hit->took,
                                     .late = hit->late,
                                     .tiers = hit->tiers};
    for (size_t i = 0; i < hit->chunks; i++) own.bytes += hit->bytes[i];
    return kvc_sized_give(info, &own, sizeof own, "kvc_store_hit_info", NULL);
}

/* --- names --- */

/* Takes what a tier has, as far as it is known: the call may still be under way. */
static void name_answer(struct search *x, struct kvc_call *c, size_t from) {
    uint8_t *there = x->state;
    kvc_call_wait(c, NULL);
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->n; i++) there[from + i] |= c->is_there[i];
    pthread_mutex_unlock(&c->lock);
    while (x->from < x->n && there[x->from]) x->from++;
}

/* Notes of each name whether a namespace has its cache. */
static int find_names_in(struct kvc_store_namespace *ns, const struct kvc_store_name *names,
                         size_t n, uint8_t *there, const struct kvc_store_find_options *o,
                         struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    struct kvc_object *object = kvc_named_objects(ns, names, n, e);
    uint8_t *own = object ? calloc(n, 1) : NULL;
    struct search search = {.s = s,
                            .object = object,
                            .n = n,
                            .op = KVC_OP_EACH,
                            .timeout_us = o->timeout_us,
                            .answer = name_answer,
                            .state = own};
    if (own) search_tiers(&search);
    else if (object) kvc_fail_memory(e, "what is found");
    for (size_t i = 0; i < n && own; i++)
        if (own[i] && !kvc_store_is_bad(s, object[i].key)) there[i] = 1;
    const int status = own ? 0 : -1;
    free(own);
    free(object);
    return status;
}

static int64_t count_there(const uint8_t *there, size_t n) {
    int64_t found = 0;
    for (size_t i = 0; i < n; i++) found += there[i];
    return found;
}

int64_t kvc_store_find_names(struct kvc_store_namespace *ns, const struct kvc_store_name *names,
                             size_t n, uint8_t *there, const struct kvc_store_find_options *options,
                             struct kvc_error *e) {
    if (KVC_NULL(e, ns)) return -1;
    if (n && KVC_NULL(e, names, there)) return -1;
    struct kvc_store_find_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_find_options", e)) return -1;
    if (!n) return 0;
    struct kvc_store_namespace *packed = kvc_learnt_namespace(ns);
    memset(there, 0, n);
    kvc_count(ns->store, KVC_COUNT_LOOKUPS, 1);
    int status = packed ? find_names_in(packed, names, n, there, &o, e) : 0;
    const int more = !packed || (kvc_learn_has_unpacked(ns) && count_there(there, n) < (int64_t)n);
    if (!status && more) status = find_names_in(ns, names, n, there, &o, e);
    kvc_store_namespace_close(packed);
    return status ? -1 : count_there(there, n);
}

/* --- hints --- */

int kvc_store_pin(struct kvc_store_hit *hit, int64_t seconds, struct kvc_error *e) {
    if (KVC_NULL(e, hit)) return -1;
    const int64_t now = (int64_t)time(NULL);
    const int64_t until = seconds > 0 && seconds < INT64_MAX - now ? now + seconds : INT64_MAX;
    return kvc_store_notify_all(hit->ns->store, KVC_OP_PIN, hit->object, hit->chunks, until, e);
}

int kvc_store_unpin(struct kvc_store_hit *hit, struct kvc_error *e) {
    if (KVC_NULL(e, hit)) return -1;
    return kvc_store_notify_all(hit->ns->store, KVC_OP_PIN, hit->object, hit->chunks, 0, e);
}

static void expect(struct kvc_store_hit *hit, int64_t seconds) {
    struct kvc_store *s = hit->ns->store;
    for (unsigned i = 0; i < s->n_tiers; i++)
        kvc_store_notify(s, i, KVC_OP_EXPECT, hit->object, hit->chunks, seconds);
}

void kvc_store_expect(struct kvc_store_hit *hit, int64_t seconds) {
    expect(hit, seconds > 1 ? seconds : 1);
}

void kvc_store_evict_soon(struct kvc_store_hit *hit) {
    expect(hit, 0);
}
