/* s3.c: opens and closes an S3 tier, and its row of functions. Spec: S3.md. */
#include "formats/store/s3/s3.h"

#include "formats/store/s3/s3_abort.h"
#include "formats/store/s3/s3_call.h"
#include "formats/store/s3/s3_ops.h"

#include <curl/curl.h>
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
    l->random = (uint64_t)kvc_now() ^ (uint64_t)(uintptr_t)l;
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

static int s3_facts(struct kvc_tier *tier, struct kvc_tier_facts *facts, kvc_instant deadline,
                    struct kvc_error *e) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    const struct kvc_s3_setup *s = &l->setup;
    struct kvc_s3_request r = {.method = "HEAD"};
    struct kvc_s3_call c;
    *facts = (struct kvc_tier_facts){.objects = -1, .bytes = -1, .limit = -1};
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
                                            .drop = kvc_s3_drop,
                                            .walk = kvc_s3_walk,
                                            .facts = s3_facts,
                                            .quarantine = kvc_s3_quarantine,
                                            .touch = NULL,
                                            .pin = NULL};
    return &ops;
}
