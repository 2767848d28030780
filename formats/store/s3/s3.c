/* s3.c: opens and closes an S3 tier, lists and deletes objects; its row of functions. Spec: S3.md.
 */
#include "formats/store/s3/s3_state.h"

#include "codecs/memory.h"
#include "formats/io/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode ready;

static void prepare(void) {
    ready = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static void s3_close(struct kvc_tier *tier) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    kvc_s3_aborts_free(l->aborts);
    kvc_s3_channels_free(l);
    kvc_s3_memory_free(l->memory);
    kvc_s3_setup_free(&l->setup);
    kvc_breaker_free(&l->breaker);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static struct kvc_tier *s3_open(struct kvc_url *url, struct kvc_error *e) {
    pthread_once(&once, prepare);
    if (ready != CURLE_OK) {
        kvc_fail(e, KVC_ERR_IO, "s3: libcurl cannot be used: %s", curl_easy_strerror(ready));
        return NULL;
    }
    struct kvc_s3 *l = calloc(1, sizeof *l);
    if (!l || pthread_mutex_init(&l->lock, NULL)) {
        free(l);
        kvc_fail_memory(e, "an S3 tier");
        return NULL;
    }
    l->tier.ops = kvc_store_tier();
    kvc_breaker_init(&l->breaker);
    if (kvc_s3_setup(&l->setup, url, e)) {
        s3_close(&l->tier);
        return NULL;
    }
    l->memory = kvc_s3_memory_new(l->setup.remember);
    l->aborts = kvc_s3_aborts_new(l);
    if (!l->memory || !l->aborts) {
        kvc_fail_memory(e, "an S3 tier");
        s3_close(&l->tier);
        return NULL;
    }
    return &l->tier;
}

/* --- listing and deleting --- */

/* Objects that are deleted in one round. */
#define ROUND 256
/* Microseconds that a page of a list may take with all of its tries, beside the time of one that
 * stands still. */
#define PAGE_TIME INT64_C(60000000)
/* Times that a transfer may stand still, without a name after all others, after which a list counts
 * as one without an end. */
#define PATIENCE 60

/* Gives the objects of one page. Returns 1 to stop. */
static int take_page(const struct kvc_s3 *l, const struct kvc_s3_listing *list, kvc_tier_seen *seen,
                     void *state) {
    const size_t prefix = strlen(l->setup.prefix);
    for (size_t i = 0; i < list->n; i++) {
        struct kvc_object o = {0};
        const struct kvc_s3_entry *x = &list->entry[i];
        /* is not ours */
        if (strncmp(x->key, l->setup.prefix, prefix) != 0 || kvc_object_parse(x->key + prefix, &o))
            continue;
        if (seen(state, &o, x->size, x->modified)) return 1;
    }
    return 0;
}

/* Asks for the page after a token, by a deadline of its own. */
static int read_page(struct kvc_s3_call *c, const char *prefix, const char *token,
                     struct kvc_s3_listing *list, struct kvc_error *e) {
    struct kvc_s3_request r = {.method = "GET",
                               .query = {{"continuation-token", token},
                                         {"encoding-type", "url"},
                                         {"list-type", "2"},
                                         {"prefix", prefix}}};
    c->deadline = kvc_now() + PAGE_TIME + c->l->setup.stall;
    int status = kvc_s3_ask(c, &r, e);
    if (!status && r.answer.status != 200) status = kvc_s3_fail(c->l, &r, e);
    if (!status) status = kvc_s3_read_listing(list, r.text ? r.text : "", r.length, e);
    kvc_s3_request_free(&r);
    return status;
}

static int s3_walk(struct kvc_tier *tier, const uint8_t *ns, kvc_tier_seen *seen, void *state,
                   struct kvc_error *e) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    struct kvc_s3_call c;
    char prefix[sizeof l->setup.prefix + 2 * KVC_OBJECT_NS + 2], *token = NULL, *last = NULL;
    size_t n = strlen(l->setup.prefix);
    memcpy(prefix, l->setup.prefix, n + 1);
    if (ns) {
        kvc_hex(ns, KVC_OBJECT_NS, prefix + n);
        n += 2 * KVC_OBJECT_NS;
        memcpy(prefix + n, "-", 2);
    }
    if (kvc_s3_call_begin(&c, l, INT64_MAX, e)) return -1;
    kvc_instant since = kvc_now();
    int status = 0, more = 1, stop = 0;
    while (!status && more && !stop) {
        struct kvc_s3_listing list;
        status = read_page(&c, prefix, token, &list, e);
        if (status) break;
        stop = take_page(l, &list, seen, state);
        more = list.more;
        if (more && token && strcmp(token, list.next) == 0)
            status = kvc_fail(e, KVC_ERR_DAMAGED,
                              "S3 bucket '%s': the server repeats a page of its list",
                              l->setup.bucket);
        if (list.n && (!last || strcmp(list.entry[list.n - 1].key, last) > 0)) {
            since = kvc_now();
            free(last);
            last = list.entry[list.n - 1].key;
            list.entry[list.n - 1].key = NULL;
        } else if (!status && more && kvc_now() - since > PATIENCE * l->setup.stall)
            status = kvc_fail(e, KVC_ERR_DAMAGED, "S3 bucket '%s': the server's list does not end",
                              l->setup.bucket);
        free(token);
        token = list.next;
        list.next = NULL;
        kvc_s3_listing_free(&list);
    }
    free(token);
    free(last);
    kvc_s3_call_end(&c);
    return status;
}

static int take_deleted(void *state, struct kvc_s3_request *r, struct kvc_error *e) {
    const int status = r->answer.status;
    if (!*r->why && (status / 100 == 2 || (status == 404 && strcmp(r->code, "NoSuchBucket") != 0)))
        return 0;
    return kvc_s3_fail(state, r, e);
}

static int s3_drop(struct kvc_tier *tier, const struct kvc_object *o, size_t n,
                   kvc_instant deadline, struct kvc_error *e) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    struct kvc_s3_call c;
    if (!n) return 0;
    struct kvc_s3_request *r = kvc_alloc(n < ROUND ? n : ROUND, sizeof *r);
    if (!r) return kvc_fail_memory(e, "requests to S3");
    int status = kvc_s3_call_begin(&c, l, deadline, e);
    for (size_t i = 0, some; i < n && !status; i += some) {
        some = n - i < ROUND ? n - i : ROUND;
        for (size_t k = 0; k < some; k++) {
            r[k] = (struct kvc_s3_request){.method = "DELETE"};
            kvc_s3_name(&r[k], &o[i + k]);
            kvc_s3_remember(l->memory, &o[i + k], KVC_S3_UNKNOWN, 0, kvc_now());
        }
        status = kvc_s3_ask_all(&c, r, some, take_deleted, l, e);
    }
    kvc_s3_call_end(&c);
    free(r);
    return status;
}

static int s3_quarantine(struct kvc_tier *tier, const struct kvc_object *o, struct kvc_error *e) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    /* also if it is deleted: until the server has done so, it is not read again */
    const int status = l->setup.delete_bad ? s3_drop(tier, o, 1, kvc_now() + 5000000, e) : 0;
    if (!l->setup.delete_bad || status) kvc_s3_remember(l->memory, o, KVC_S3_BAD, 0, kvc_now());
    return status;
}

/* --- the row --- */

static int s3_facts(struct kvc_tier *tier, struct kvc_store_tier_info *facts, kvc_instant deadline,
                    struct kvc_error *e) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    const struct kvc_s3_setup *s = &l->setup;
    struct kvc_s3_request r = {.method = "HEAD"};
    struct kvc_s3_call c;
    *facts = (struct kvc_store_tier_info){.objects = -1, .bytes = -1, .limit = -1};
    if (kvc_s3_call_begin(&c, l, deadline, e)) return -1;
    int status = kvc_s3_ask(&c, &r, e);
    kvc_s3_call_end(&c);
    kvc_s3_request_free(&r);
    if (!status && r.answer.status != 200) status = kvc_s3_fail(l, &r, e);
    if (status) return -1;
    snprintf(facts->text, sizeof facts->text, "S3 bucket %.63s at %.60s, region %.30s%s%.50s",
             s->bucket, s->base, *r.answer.region ? r.answer.region : s->region,
             *r.answer.server ? ", server " : "", r.answer.server);
    return 0;
}

void kvc_s3_stats(const struct kvc_tier *tier, struct kvc_s3_stats *stats) {
    const struct kvc_s3_counters *n = &((const struct kvc_s3 *)tier)->counters;
    *stats = (struct kvc_s3_stats){atomic_load(&n->rounds), atomic_load(&n->requests),
                                   atomic_load(&n->retries), atomic_load(&n->hedges),
                                   atomic_load(&n->hedges_won)};
}

__attribute__((visibility("default"))) const struct kvc_tier_ops *kvc_store_tier(void) {
    static const struct kvc_tier_ops ops = {.abi = KVC_TIER_ABI,
                                            .scheme = "s3",
                                            .what = "S3 bucket",
                                            .remote = 1,
                                            .open = s3_open,
                                            .close = s3_close,
                                            .find = kvc_s3_find,
                                            .get = kvc_s3_get,
                                            .put = kvc_s3_put,
                                            .drop = s3_drop,
                                            .walk = s3_walk,
                                            .facts = s3_facts,
                                            .each = kvc_s3_each,
                                            .quarantine = s3_quarantine,
                                            .touch = NULL,
                                            .pin = NULL};
    return &ops;
}
