/* chain.c: opens a chain of tiers. Spec: STORE.md. Not for what is done in the background
 * (background.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"
#include "formats/store/tiers.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SIGN_TAG "kvc sign 1"

const char *kvc_store_version(void) {
    return KVC_VERSION;
}

/* --- opening --- */

/* Finds the backend of a tier and checks the tier's text. Opens it, which makes nothing, unless
 * it is a directory. */
static int prepare_tier(struct kvc_store *s, const char *text, struct kvc_error *e) {
    struct kvc_store_tier *l = &s->tier[s->n_tiers];
    struct kvc_url url;
    if (s->n_tiers == KVC_MAX_TIERS)
        return kvc_fail(e, KVC_ERR_USAGE, "a store has at most %d tiers", KVC_MAX_TIERS);
    if (kvc_url_parse(&url, text, e)) return -1;
    int status = kvc_tier_find(url.scheme, s->options.backends, &l->ops, &l->handle, e);
    if (!status && !(l->url = strdup(text))) status = kvc_fail_memory(e, "a tier");
    if (!status && !l->handle) status = kvc_tier_check(&url, e);
    else if (!status && !(l->tier = l->ops->open(&url, e))) status = -1;
    kvc_url_free(&url);
    if (status) {
        kvc_tier_unload(l->handle);
        free(l->url);
        *l = (struct kvc_store_tier){.tier = NULL};
        return -1;
    }
    pthread_mutex_init(&l->breaker.lock, NULL);
    s->n_tiers++;
    return 0;
}

/* Opens the tiers that are not open yet: directories, which are made if they do not exist. */
static int open_tiers(struct kvc_store *s, struct kvc_error *e) {
    for (unsigned i = 0; i < s->n_tiers; i++) {
        struct kvc_store_tier *l = &s->tier[i];
        struct kvc_url url;
        if (l->tier) continue;
        if (kvc_url_parse(&url, l->url, e)) return -1;
        l->tier = l->ops->open(&url, e);
        kvc_url_free(&url);
        if (!l->tier) return -1;
    }
    return 0;
}

static void set_defaults(struct kvc_store_options *o) {
    if (!o->threads) o->threads = 4;
    if (!o->queue_bytes) o->queue_bytes = UINT64_C(1) << 30;
    if (!o->local_timeout_us) o->local_timeout_us = 20000;
    if (!o->timeout_us) o->timeout_us = 50000;
    if (!o->load_timeout_us) o->load_timeout_us = 10000000;
}

/* Does what can fail without making anything: a store that is refused leaves nothing. */
static int prepare(struct kvc_store *s, const char *tiers, struct kvc_error *e) {
    char **list = NULL;
    const int n = kvc_url_split(tiers, &list, e);
    int status = n < 0 ? -1 : 0;
    for (int i = 0; i < n && !status; i++) status = prepare_tier(s, list[i], e);
    free(list);
    if (!status && s->options.key_file) {
        status = kvc_store_secret(s->options.key_file, SIGN_TAG, s->secret, e);
        s->is_signed = 1;
    }
    return status;
}

static int start(struct kvc_store *s, struct kvc_error *e) {
    if ((s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        return kvc_fail(e, KVC_ERR_IO, "no eventfd can be had");
    s->io = kvc_workers_new(s->options.threads, e);
    s->copier = s->io ? kvc_workers_new(1, e) : NULL;
    s->jobs = s->copier ? kvc_workers_new(s->options.threads, e) : NULL;
    if (!s->jobs || open_tiers(s, e)) return -1;
    for (unsigned i = 0; i < s->n_tiers; i++) kvc_store_connect(s, i);
    return 0;
}

/* Returns a store that is prepared; NULL with *e. */
static struct kvc_store *new_store(const char *tiers, const struct kvc_store_options *options,
                                   struct kvc_error *e) {
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
    if (!status) status = prepare(s, tiers, e);
    if (!status) return s;
    kvc_store_close(s);
    return NULL;
}

int kvc_store_check(const char *tiers, const struct kvc_store_options *options,
                    struct kvc_error *e) {
    struct kvc_store *s = new_store(tiers, options, e);
    kvc_store_close(s);
    return s ? 0 : -1;
}

struct kvc_store *kvc_store_open(const char *tiers, const struct kvc_store_options *options,
                                 struct kvc_error *e) {
    struct kvc_store *s = new_store(tiers, options, e);
    if (!s || !start(s, e)) return s;
    kvc_store_close(s);
    return NULL;
}

void kvc_event_free(struct kvc_event *x) {
    free(x->tokens);
    free(x);
}

void kvc_store_close(struct kvc_store *s) {
    if (!s) return;
    s->closing = 1;
    kvc_workers_free(s->jobs); /* they wait for io, so they go first */
    kvc_workers_free(s->copier);
    kvc_workers_free(s->io);
    for (unsigned i = 0; i < s->n_tiers; i++) {
        if (s->tier[i].tier) s->tier[i].ops->close(s->tier[i].tier);
        pthread_mutex_destroy(&s->tier[i].breaker.lock);
        kvc_tier_unload(s->tier[i].handle);
        free(s->tier[i].url);
    }
    if (s->event_fd >= 0) close(s->event_fd);
    for (struct kvc_event *x = s->events, *next; x; x = next) {
        next = x->next;
        kvc_event_free(x);
    }
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    OPENSSL_cleanse(s->secret, sizeof s->secret);
    free(s);
}
