/* find.c: finds the longest prefix over the tiers of a store. Spec: STORE.md, "Finding". Not for
 * reading it (fetch.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Asks a tier for objects of a chain. It has its own copy of them, as it may go on after the
 * caller has left. */
struct find_request {
    struct kvc_request base;
    size_t n, found;
    struct kvc_object *object;
    uint64_t *bytes;
    int failed;
};

static void find_clear(struct kvc_request *base) {
    struct find_request *r = (struct find_request *)base;
    free(r->object);
    free(r->bytes);
}

static int find_run(struct kvc_request *base, struct kvc_tier *l, struct kvc_error *e) {
    struct find_request *r = (struct find_request *)base;
    r->failed = l->ops->find(l, r->object, r->n, base->deadline, &r->found, r->bytes, e) != 0;
    /* a tier of which a part answers is of use, and is not to be left alone */
    return r->failed && !r->found ? -1 : 0;
}

static int run_count(struct kvc_request *base, struct kvc_tier *l, struct kvc_error *e) {
    struct find_request *r = (struct find_request *)base;
    if (!l->ops->count) return find_run(base, l, e);
    return l->ops->count(l, r->object, r->n, base->deadline, &r->found, r->bytes, e);
}

static struct find_request *find_ask(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                                     size_t n, kvc_instant deadline,
                                     int (*run_one)(struct kvc_request *r, struct kvc_tier *l,
                                                    struct kvc_error *e)) {
    struct find_request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    kvc_request_init(&r->base, s, tier, deadline);
    r->base.clear = find_clear;
    r->base.run = run_one;
    r->n = n;
    r->object = malloc(n * sizeof *r->object);
    r->bytes = calloc(n, sizeof *r->bytes);
    if (!r->object || !r->bytes) {
        kvc_request_release(&r->base);
        return NULL;
    }
    memcpy(r->object, o, n * sizeof *o);
    kvc_request_start(&r->base);
    return r;
}

/* Takes what a tier has found, from chunk `from` on, for the chunks that no faster tier has. */
static void answer(struct kvc_store_hit *hit, struct find_request *r, size_t from) {
    struct kvc_error e;
    if (!r) return;
    const int status = kvc_request_wait(&r->base, &e);
    const unsigned tier = r->base.tier;
    /* A tier that failed may have said what it knows; one that is late still writes. */
    pthread_mutex_lock(&r->base.lock);
    const size_t found = r->base.done ? r->found : 0;
    hit->late |= !r->base.done || r->failed;
    pthread_mutex_unlock(&r->base.lock);
    hit->late |= status != 0;
    if (status) kvc_store_connect(hit->ns->store, tier);
    for (size_t i = hit->chunks; i < from + found; i++) {
        hit->bytes[i] = r->bytes[i - from];
        hit->tier[i] = (uint8_t)tier;
    }
    if (from + found > hit->chunks) {
        atomic_fetch_add(&hit->ns->store->tier[tier].count[KVC_TIER_HITS],
                         from + found - hit->chunks);
        hit->chunks = from + found;
    }
    kvc_request_release(&r->base);
}

int kvc_store_count(struct kvc_store *s, unsigned tier, const struct kvc_object *o, size_t n,
                    kvc_instant deadline, size_t *found, struct kvc_error *e) {
    struct find_request *r = find_ask(s, tier, o, n, deadline, run_count);
    if (!r) return kvc_fail_memory(e, "a request");
    const int status = kvc_request_wait(&r->base, e);
    *found = status ? 0 : r->found;
    kvc_request_release(&r->base);
    return status;
}

/* Directories are asked first, one after the other; then all others at the same time, for what is
 * left. */
static void search(struct kvc_store_hit *hit, size_t n, kvc_instant local_deadline,
                   kvc_instant deadline) {
    struct kvc_store *s = hit->ns->store;
    struct find_request *remote[KVC_MAX_TIERS] = {NULL};
    for (unsigned i = 0; i < s->n_tiers && hit->chunks < n; i++)
        if (!s->tier[i].ops->remote) {
            const size_t from = hit->chunks;
            answer(hit, find_ask(s, i, hit->object + from, n - from, local_deadline, find_run),
                   from);
        }
    const size_t from = hit->chunks;
    for (unsigned i = 0; i < s->n_tiers && from < n; i++)
        if (s->tier[i].ops->remote)
            remote[i] = find_ask(s, i, hit->object + from, n - from, deadline, find_run);
    for (unsigned i = 0; i < s->n_tiers; i++) answer(hit, remote[i], from);
}

/* Says how many tokens come from which tier. */
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
    memcpy(hit->tokens, tokens, (size_t)hit->asked * sizeof *tokens);
    if (kvc_namespace_keys(hit->ns, tokens, hit->asked, o->extras, o->n_extras, &hit->keys, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (kvc_chunk_object(hit->ns, hit->keys, i, &hit->object[i], e)) return -1;
    return 0;
}

struct kvc_store_hit *kvc_store_find(struct kvc_store_namespace *ns, const int32_t *tokens,
                                     uint64_t n, const struct kvc_store_find_options *options,
                                     struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    struct kvc_store_find_options o;
    const kvc_instant now = kvc_now();
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_find_options", e)) return NULL;
    if (n > SIZE_MAX / 8) {
        kvc_fail(e, KVC_ERR_USAGE, "there are too many tokens");
        return NULL;
    }
    struct kvc_store_hit *hit = calloc(1, sizeof *hit);
    size_t chunks = (size_t)(n / ns->chunk);
    if (!hit) {
        kvc_fail_memory(e, "a hit");
        return NULL;
    }
    hit->ns = ns;
    kvc_namespace_hold(ns);
    hit->asked = chunks * ns->chunk;
    if (prepare(hit, tokens, &o, chunks, e)) {
        kvc_store_hit_free(hit);
        return NULL;
    }
    for (size_t i = 0; i < chunks; i++)
        if (kvc_store_is_bad(s, hit->object[i].key)) chunks = i;
    search(hit, chunks, now + (o.timeout_us ? o.timeout_us : s->options.local_timeout_us),
           now + (o.timeout_us ? o.timeout_us : s->options.timeout_us));
    kvc_hit_list_tiers(hit);
    hit->took = kvc_now() - now;
    kvc_count(s, KVC_COUNT_LOOKUPS, 1);
    kvc_count(s, KVC_COUNT_ASKED, hit->asked);
    kvc_count(s, KVC_COUNT_FOUND, hit->chunks * ns->chunk);
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

int kvc_store_hit_info(const struct kvc_store_hit *hit, struct kvc_store_hit_info *info) {
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

/* --- hints --- */

int kvc_store_pin(struct kvc_store_hit *hit, int64_t seconds, struct kvc_error *e) {
    const int64_t until = seconds > 0 ? (int64_t)time(NULL) + seconds : INT64_MAX;
    return kvc_store_notify_all(hit->ns->store, KVC_PIN, hit->object, hit->chunks, until, e);
}

int kvc_store_unpin(struct kvc_store_hit *hit, struct kvc_error *e) {
    return kvc_store_notify_all(hit->ns->store, KVC_PIN, hit->object, hit->chunks, 0, e);
}

static void expect(struct kvc_store_hit *hit, int64_t seconds) {
    struct kvc_store *s = hit->ns->store;
    for (unsigned i = 0; i < s->n_tiers; i++)
        kvc_store_notify(s, i, KVC_EXPECT, hit->object, hit->chunks, seconds);
}

void kvc_store_expect(struct kvc_store_hit *hit, int64_t seconds) {
    expect(hit, seconds > 1 ? seconds : 1);
}

void kvc_store_evict_soon(struct kvc_store_hit *hit) {
    expect(hit, 0);
}
