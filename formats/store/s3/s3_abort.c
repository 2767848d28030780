/* s3_abort.c: the thread that removes uploads. It is begun when there is the first one. Spec:
 * S3.md, "Writing". */
#include "formats/store/s3/s3_abort.h"

#include "formats/store/s3/s3_call.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND INT64_C(1000000)
#define TRIES 12

struct upload {
    struct upload *next;
    char name[KVC_OBJECT_NAME], id[1024];
    unsigned tries;
    kvc_instant due;
};

struct kvc_s3_aborts {
    struct kvc_s3 *l;
    pthread_mutex_t lock;
    pthread_cond_t more;
    pthread_t thread;
    struct upload *list;
    int running, stop;
    kvc_instant last; /* of the last tries, once it is to stop */
};

/* Removes an upload. Returns 0 once it is gone. */
static int remove_upload(struct kvc_s3_aborts *a, const struct upload *u, kvc_instant deadline) {
    struct kvc_s3_request r = {.method = "DELETE", .name = u->name, .query = {{"uploadId", u->id}}};
    struct kvc_s3_call c;
    if (kvc_s3_call_begin(&c, a->l, deadline, NULL)) return -1;
    int status = kvc_s3_ask(&c, &r, NULL);
    if (!status && r.answer.status / 100 != 2 && r.answer.status != 404) status = -1;
    kvc_s3_call_end(&c);
    kvc_s3_request_free(&r);
    return status;
}

/* Takes the upload that is due, with the lock held. Sets *wait to the time of the next one. */
static struct upload *take_due(struct kvc_s3_aborts *a, kvc_instant now, kvc_instant *wait) {
    *wait = INT64_MAX;
    for (struct upload **at = &a->list; *at; at = &(*at)->next) {
        struct upload *u = *at;
        if (a->stop || u->due <= now) {
            *at = u->next;
            return u;
        }
        if (u->due < *wait) *wait = u->due;
    }
    return NULL;
}

static void *work(void *state) {
    struct kvc_s3_aborts *a = state;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        kvc_instant now = kvc_now(), wait;
        struct upload *u = take_due(a, now, &wait);
        if (!u && a->stop) break;
        if (!u) {
            const struct timespec t = {.tv_sec = (time_t)(wait / SECOND),
                                       .tv_nsec = (long)(wait % SECOND * 1000)};
            if (wait == INT64_MAX) pthread_cond_wait(&a->more, &a->lock);
            else pthread_cond_timedwait(&a->more, &a->lock, &t);
            continue;
        }
        const int stop = a->stop;
        const kvc_instant deadline = stop ? a->last : now + 5 * SECOND;
        pthread_mutex_unlock(&a->lock);
        const int failed = remove_upload(a, u, deadline);
        pthread_mutex_lock(&a->lock);
        if (!failed || stop || ++u->tries == TRIES) {
            free(u);
            continue;
        }
        u->due = kvc_now() + (SECOND / 8 << (u->tries < 9 ? u->tries : 9));
        u->next = a->list;
        a->list = u;
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

struct kvc_s3_aborts *kvc_s3_aborts_new(struct kvc_s3 *l) {
    struct kvc_s3_aborts *a = calloc(1, sizeof *a);
    pthread_condattr_t clock;
    if (!a) return NULL;
    a->l = l;
    if (!pthread_condattr_init(&clock)) {
        const int set = !pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) &&
                        !pthread_cond_init(&a->more, &clock);
        pthread_condattr_destroy(&clock);
        if (set && !pthread_mutex_init(&a->lock, NULL)) return a;
        if (set) pthread_cond_destroy(&a->more);
    }
    free(a);
    return NULL;
}

void kvc_s3_abort(struct kvc_s3_aborts *a, const char *name, const char *upload) {
    struct upload *u = calloc(1, sizeof *u);
    if (!u) return; /* a rule of the bucket removes it later */
    memcpy(u->name, name, strlen(name) + 1);
    memcpy(u->id, upload, strlen(upload) + 1);
    pthread_mutex_lock(&a->lock);
    u->next = a->list;
    a->list = u;
    if (!a->running) a->running = !pthread_create(&a->thread, NULL, work, a);
    pthread_cond_signal(&a->more);
    pthread_mutex_unlock(&a->lock);
}

void kvc_s3_aborts_free(struct kvc_s3_aborts *a) {
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    a->stop = 1;
    a->last = kvc_now() + 2 * SECOND;
    pthread_cond_signal(&a->more);
    const int running = a->running;
    pthread_mutex_unlock(&a->lock);
    if (running) pthread_join(a->thread, NULL);
    while (a->list) {
        struct upload *u = a->list;
        a->list = u->next;
        free(u);
    }
    pthread_cond_destroy(&a->more);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
