/* chain.c: opens a chain of levels; what waits in the background. Spec: STORE.md. Not for finding, reading or writing. */
#include "formats/store/store.h"

#include "formats/api/sized.h"
#include "formats/store/levels.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SIGN_TAG "kvc sign 1"
#define BAD_TIME 60000000 /* a bad key counts as missing */

const char *kvc_store_version(void) {
    return KVC_VERSION;
}

/* --- opening --- */

static int open_level(struct kvc_store *s, const char *text, struct kvc_error *e) {
    struct kvc_store_level *l = &s->level[s->n_levels];
    struct kvc_url url;
    if (s->n_levels == KVC_MAX_LEVELS) return kvc_fail(e, KVC_ERR_USAGE, "a store has at most %d levels", KVC_MAX_LEVELS);
    if (kvc_url_parse(&url, text, e)) return -1;
    int status = kvc_level_find(url.scheme, s->options.backends, &l->ops, &l->library, e);
    if (!status && !(l->url = strdup(text))) status = kvc_fail_memory(e, "a level");
    if (!status && !(l->level = l->ops->open(&url, e))) status = -1;
    kvc_url_free(&url);
    if (status) {
        kvc_level_unload(l->library);
        free(l->url);
        *l = (struct kvc_store_level){.level = NULL};
        return -1;
    }
    pthread_mutex_init(&l->breaker.lock, NULL);
    s->n_levels++;
    return 0;
}

static void set_defaults(struct kvc_store_options *o) {
    if (!o->threads) o->threads = 4;
    if (!o->queue_bytes) o->queue_bytes = UINT64_C(1) << 30;
    if (!o->local_deadline) o->local_deadline = 20000;
    if (!o->deadline) o->deadline = 50000;
    if (!o->load_deadline) o->load_deadline = 10000000;
}

static int fill(struct kvc_store *s, const char *levels, struct kvc_error *e) {
    char **list = NULL;
    const int n = kvc_url_split(levels, &list, e);
    int status = n < 0 ? -1 : 0;
    for (int i = 0; i < n && !status; i++) status = open_level(s, list[i], e);
    free(list);
    if (!status && s->options.key_file) {
        status = kvc_store_secret(s->options.key_file, SIGN_TAG, s->secret, e);
        s->is_signed = 1;
    }
    if (status) return -1;
    if ((s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) return kvc_fail(e, KVC_ERR_IO, "no eventfd can be had");
    s->io = kvc_workers_new(s->options.threads, e);
    s->jobs = s->io ? kvc_workers_new(s->options.threads, e) : NULL;
    return s->jobs ? 0 : -1;
}

struct kvc_store *kvc_store_open(const char *levels, const struct kvc_store_options *options, struct kvc_error *e) {
    struct kvc_store *s = calloc(1, sizeof *s);
    if (!s) {
        kvc_fail_memory(e, "a store");
        return NULL;
    }
    s->event_fd = -1;
    s->last_event = &s->events;
    pthread_mutex_init(&s->lock, NULL);
    kvc_condition_init(&s->idle);
    int status = kvc_sized_take(&s->options, sizeof s->options, options, "kvc_store_options", e);
    set_defaults(&s->options);
    if (!status) status = fill(s, levels, e);
    if (!status) return s;
    kvc_store_close(s);
    return NULL;
}

void kvc_store_close(struct kvc_store *s) {
    if (!s) return;
    s->closing = 1;
    kvc_workers_free(s->jobs); /* they wait for io, so they go first */
    kvc_workers_free(s->io);
    for (unsigned i = 0; i < s->n_levels; i++) {
        s->level[i].ops->close(s->level[i].level);
        pthread_mutex_destroy(&s->level[i].breaker.lock);
        kvc_level_unload(s->level[i].library);
        free(s->level[i].url);
    }
    if (s->event_fd >= 0) close(s->event_fd);
    kvc_store_free_events(s);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    OPENSSL_cleanse(s->secret, sizeof s->secret);
    free(s);
}

/* --- what waits --- */

int kvc_store_enter(struct kvc_store *s, uint64_t bytes) {
    pthread_mutex_lock(&s->lock);
    /* One that is larger than the queue has its turn when nothing else waits. */
    const int full = s->waiting &&
                     (s->waiting_bytes > s->options.queue_bytes || bytes > s->options.queue_bytes - s->waiting_bytes);
    if (!full) {
        s->waiting++;
        s->waiting_bytes += bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return full;
}

void kvc_store_leave(struct kvc_store *s, uint64_t bytes) {
    pthread_mutex_lock(&s->lock);
    s->waiting--;
    s->waiting_bytes -= bytes;
    if (!s->waiting) pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
}

int kvc_store_flush(struct kvc_store *s, int64_t deadline) {
    const kvc_instant until = deadline ? kvc_now() + deadline : INT64_MAX;
    pthread_mutex_lock(&s->lock);
    while (s->waiting && kvc_wait_until(&s->idle, &s->lock, until)) continue;
    const int status = s->waiting ? -1 : 0;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* --- in the background --- */

/* A copy to faster levels, notes of what was read or missed, or a bad object to be put aside. */
struct errand {
    struct kvc_request base;
    enum { COPY, TOUCH, MISSED, ASIDE } what;
    struct kvc_object *object;
    size_t n;
    struct kvc_object parent;
    int has_parent;
    void *data;
    size_t size;
    uint64_t each; /* bytes of what was missed */
};

static void clear_errand(struct kvc_request *base) {
    struct errand *x = (struct errand *)base;
    kvc_store_leave(base->store, x->size);
    free(x->object);
    free(x->data);
}

static int run_errand(struct kvc_request *base, struct kvc_level *l, struct kvc_error *e) {
    struct errand *x = (struct errand *)base;
    const struct kvc_level_put how = {.parent = x->has_parent ? &x->parent : NULL};
    int there = 0;
    if (x->what == TOUCH) return l->ops->touch(l, x->object, x->n, e);
    if (x->what == MISSED) return l->ops->missed(l, x->object, x->n, x->each, e);
    if (x->what == ASIDE) return l->ops->quarantine(l, x->object, e);
    const int status = l->ops->put(l, x->object, x->data, x->size, &how, base->deadline, &there, e);
    if (!status && !there) kvc_count(base->store, KVC_COUNT_BACKFILL, 1);
    return status;
}

static struct errand *new_errand(struct kvc_store *s, unsigned level, const struct kvc_object *o, size_t n, uint64_t size) {
    struct errand *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->object = malloc(n * sizeof *o);
    if (!x->object || kvc_store_enter(s, size)) {
        free(x->object);
        free(x);
        return NULL;
    }
    memcpy(x->object, o, n * sizeof *o);
    x->n = n;
    x->size = (size_t)size;
    kvc_request_init(&x->base, s, level, kvc_now() + 30000000);
    x->base.run = run_errand;
    x->base.clear = clear_errand;
    return x;
}

static void send(struct errand *x) {
    kvc_request_start(&x->base);
    kvc_request_release(&x->base);
}

void kvc_store_touch(struct kvc_store *s, unsigned level, const struct kvc_object *o, size_t n) {
    struct errand *x = s->level[level].ops->touch && n ? new_errand(s, level, o, n, 0) : NULL;
    if (!x) return;
    x->what = TOUCH;
    send(x);
}

void kvc_store_missed(struct kvc_store *s, unsigned level, const struct kvc_object *o, size_t n, uint64_t size) {
    struct errand *x = s->level[level].ops->missed && n ? new_errand(s, level, o, n, 0) : NULL;
    if (!x) return;
    x->what = MISSED;
    x->each = size;
    send(x);
}

void kvc_store_backfill(struct kvc_store *s, unsigned level, const struct kvc_object *o, const struct kvc_object *parent,
                        void *data, size_t size) {
    for (unsigned i = level; i--;) {
        struct errand *x = new_errand(s, i, o, 1, size);
        if (!x) continue;
        if (i) {
            if (!(x->data = malloc(size + 1))) {
                kvc_request_release(&x->base);
                continue;
            }
            memcpy(x->data, data, size);
        } else {
            x->data = data;
            data = NULL;
        }
        x->has_parent = parent != NULL;
        if (parent) x->parent = *parent;
        x->what = COPY;
        send(x);
    }
    free(data);
}

/* --- bad objects --- */

void kvc_store_bad(struct kvc_store *s, unsigned level, const struct kvc_object *o) {
    kvc_count(s, KVC_COUNT_BAD, 1);
    pthread_mutex_lock(&s->lock);
    struct kvc_bad_key *b = &s->bad[s->next_bad];
    memcpy(b->key, o->key, sizeof b->key);
    b->until = kvc_now() + BAD_TIME;
    s->next_bad = (s->next_bad + 1) % KVC_BAD_KEYS;
    if (s->n_bad < KVC_BAD_KEYS) s->n_bad++;
    pthread_mutex_unlock(&s->lock);
    struct errand *x = s->level[level].ops->quarantine ? new_errand(s, level, o, 1, 0) : NULL;
    if (!x) return;
    x->what = ASIDE;
    send(x);
}

int kvc_store_is_bad(struct kvc_store *s, const uint8_t *key) {
    int bad = 0;
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < s->n_bad && !bad; i++)
        bad = memcmp(s->bad[i].key, key, sizeof s->bad[i].key) == 0 && kvc_now() < s->bad[i].until;
    pthread_mutex_unlock(&s->lock);
    return bad;
}
