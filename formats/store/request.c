/* request.c: calls of a tier from worker threads, with deadlines, and the breaker that leaves a
 * failing tier alone. Spec: STORE.md, "Failures". */
#include "formats/store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FAILURES 3 /* in a row, before a tier is left alone */
#define FIRST_PAUSE 1000000
#define LONGEST_PAUSE 30000000

void kvc_condition_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

int kvc_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, kvc_instant until) {
    if (until == INT64_MAX) {
        pthread_cond_wait(cond, lock);
        return 1;
    }
    const struct timespec t = {.tv_sec = (time_t)(until / 1000000),
                               .tv_nsec = (long)(until % 1000000) * 1000};
    return pthread_cond_timedwait(cond, lock, &t) != ETIMEDOUT;
}

/* --- the breaker --- */

/* Returns 1 if the tier is to be left alone now, and fills *e. */
static int is_open(struct kvc_store_tier *l, struct kvc_error *e) {
    struct kvc_breaker *b = &l->breaker;
    pthread_mutex_lock(&b->lock);
    const int open = b->failures >= FAILURES && kvc_now() < b->until;
    if (open) {
        kvc_fail(e, KVC_ERR_IO,
                 "%s: it failed several times, and is left alone for some seconds: %s", l->url,
                 b->why);
        e->severity = KVC_SEVERITY_RETRY;
    }
    pthread_mutex_unlock(&b->lock);
    return open;
}

/* Counts a success (`why` NULL), or a failure. */
static void note_outcome(struct kvc_store_tier *l, const char *why) {
    struct kvc_breaker *b = &l->breaker;
    pthread_mutex_lock(&b->lock);
    if (why) snprintf(b->why, sizeof b->why, "%.255s", why);
    if (!why) {
        b->failures = 0;
        b->pause = 0;
    } else if (++b->failures >= FAILURES) {
        b->pause = b->pause ? 2 * b->pause : FIRST_PAUSE;
        if (b->pause > LONGEST_PAUSE) b->pause = LONGEST_PAUSE;
        /* up to a quarter more, so that many processes do not come back at the same instant */
        b->until = kvc_now() + b->pause +
                   (kvc_instant)(((uint64_t)kvc_now() * UINT64_C(0x9e3779b97f4a7c15)) >> 40) %
                       (b->pause / 4);
    }
    pthread_mutex_unlock(&b->lock);
    if (why) atomic_fetch_add(&l->count[KVC_TIER_FAILURES], 1);
}

/* --- requests --- */

static void request_run(struct kvc_task *task) {
    struct kvc_request *r = (struct kvc_request *)task;
    struct kvc_store_tier *l = &r->store->tier[r->tier];
    struct kvc_error e = {.code = KVC_OK};
    const int status = r->run(r, l->tier, &e);
    const int failed = status && e.severity == KVC_SEVERITY_RETRY && e.code != KVC_ERR_MEMORY;
    note_outcome(l, failed ? e.message : NULL);
    pthread_mutex_lock(&r->lock);
    r->status = status;
    r->error = e;
    r->done = 1;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    kvc_request_release(r);
}

void kvc_request_init(struct kvc_request *r, struct kvc_store *s, unsigned tier,
                      kvc_instant deadline) {
    r->task.run = request_run;
    r->store = s;
    r->workers = s->io;
    r->tier = tier;
    r->deadline = deadline;
    atomic_init(&r->refs, 1);
    pthread_mutex_init(&r->lock, NULL);
    kvc_condition_init(&r->changed);
}

int kvc_request_start(struct kvc_request *r) {
    struct kvc_store_tier *l = &r->store->tier[r->tier];
    if (is_open(l, &r->error)) {
        atomic_fetch_add(&l->count[KVC_TIER_REFUSED], 1);
        r->done = 1;
        r->status = -1;
        return -1;
    }
    atomic_fetch_add(&l->count[KVC_TIER_CALLS], 1);
    atomic_fetch_add(&r->refs, 1);
    kvc_workers_add(r->workers, &r->task);
    return 0;
}

int kvc_request_wait(struct kvc_request *r, struct kvc_error *e) {
    pthread_mutex_lock(&r->lock);
    while (!r->done && kvc_wait_until(&r->changed, &r->lock, r->deadline)) continue;
    const int status = r->done ? r->status : -1, late = !r->done;
    if (status && !late && e) *e = r->error;
    pthread_mutex_unlock(&r->lock);
    if (!late) return status;
    kvc_count(r->store, KVC_COUNT_LATE, 1);
    note_outcome(&r->store->tier[r->tier], "it did not answer in time");
    kvc_fail(e, KVC_ERR_IO, "%s: it did not answer in time", r->store->tier[r->tier].url);
    if (e) e->severity = KVC_SEVERITY_RETRY;
    return -1;
}

void kvc_request_release(struct kvc_request *r) {
    if (atomic_fetch_sub(&r->refs, 1) != 1) return;
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    if (r->clear) r->clear(r);
    free(r);
}
