/* chain.c: opens a chain of tiers and the backends of their schemes, requests in the background,
 * and counters. Spec: STORE.md, "Tiers". Not for calls of tiers (call.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"
#include "formats/store/dir/dir.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SIGN_TAG "kvc sign 1"
#ifndef KVC_BACKENDS
#define KVC_BACKENDS "/usr/local/lib/kvc"
#endif

const char *kvc_store_version(void) {
    return KVC_VERSION;
}

/* --- backends --- */

/* Writes the path of a file beside this program: of a kvc that is not installed. */
static void own_path(const char *file, char *path, size_t size) {
    const ssize_t n = readlink("/proc/self/exe", path, size - 1);
    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    const size_t folder = slash ? (size_t)(slash - path) : 0;
    snprintf(path + folder, size - folder, "/%s", file);
}

/* Loads the backend of a scheme: kvc_store_SCHEME.so. The second s at the end of a scheme means
 * TLS: rediss has redis' backend. */
static int load_backend(const char *scheme, const char *folder, const struct kvc_tier_ops **ops,
                        void **handle, struct kvc_error *e) {
    char path[4096], file[64];
    kvc_tier_entry *entry = NULL;
    const size_t n = strlen(scheme), tls = n > 2 && strcmp(scheme + n - 2, "ss") == 0;
    snprintf(file, sizeof file, "kvc_store_%.*s.so", (int)(n - tls), scheme);
    own_path(file, path, sizeof path);
    const int is_own = !folder && access(KVC_BACKENDS, F_OK) && access(path, F_OK) == 0;
    if (!is_own && snprintf(path, sizeof path, "%s/%s", folder ? folder : KVC_BACKENDS, file) >=
                       (int)sizeof path)
        return kvc_fail(e, KVC_ERR_USAGE, "the folder of backends has too long a name");
    if (access(path, F_OK))
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "there is no %s: this backend is not installed, or kvc was built without it", path);
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*handle)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the backend cannot be loaded: %s", dlerror());
    void *symbol = dlsym(*handle, KVC_TIER_ENTRY);
    /* C has no conversion from an object's address to a function's */
    memcpy(&entry, &symbol, sizeof entry);
    *ops = entry ? entry() : NULL;
    if (*ops && (*ops)->abi == KVC_TIER_ABI) return 0;
    dlclose(*handle);
    *handle = NULL;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: it is of another version of kvc", path);
}

/* --- opening and closing --- */

/* A request in the background, and later its event. */
struct kvc_event {
    struct kvc_task task;
    struct kvc_store_namespace *ns;
    int32_t *tokens;
    uint64_t n, end;
    struct kvc_memory memory;
    struct kvc_store_load_options options;
    int64_t number;
    enum kvc_code code;
    struct kvc_event *next;
};

static void free_event(struct kvc_event *x) {
    free(x->tokens);
    free(x);
}

/* Finds the backend of a tier, and checks the tier's text. */
static int prepare_tier(struct kvc_store *s, const char *text, struct kvc_error *e) {
    struct kvc_store_tier *l = &s->tier[s->n_tiers];
    struct kvc_url url;
    if (s->n_tiers == KVC_MAX_TIERS)
        return kvc_fail(e, KVC_ERR_USAGE, "a store has at most %d tiers", KVC_MAX_TIERS);
    if (kvc_url_parse(&url, text, e)) return -1;
    int status = 0;
    l->ops = &kvc_tier_dir;
    if (strcmp(url.scheme, kvc_tier_dir.scheme) != 0)
        status = load_backend(url.scheme, s->options.backends, &l->ops, &l->handle, e);
    if (!status && !(l->url = strdup(text))) status = kvc_fail_memory(e, "a tier");
    if (!status && !(l->tier = l->ops->open(&url, e))) status = -1;
    kvc_url_free(&url);
    if (status) {
        if (l->handle) dlclose(l->handle);
        free(l->url);
        *l = (struct kvc_store_tier){.tier = NULL};
        return -1;
    }
    kvc_breaker_init(&l->breaker);
    s->n_tiers++;
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

int kvc_store_make(struct kvc_store *s, struct kvc_error *e) {
    if (KVC_NULL(e, s)) return -1;
    if (s->jobs) return 0;
    for (unsigned i = 0; i < s->n_tiers; i++)
        if (s->tier[i].ops->make && s->tier[i].ops->make(s->tier[i].tier, e)) return -1;
    if ((s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        return kvc_fail(e, KVC_ERR_IO, "no eventfd can be had");
    s->io = kvc_workers_new(s->options.threads, e);
    s->copier = s->io ? kvc_workers_new(1, e) : NULL;
    s->jobs = s->copier ? kvc_workers_new(s->options.threads, e) : NULL;
    if (!s->jobs) return -1;
    for (unsigned i = 0; i < s->n_tiers; i++) kvc_store_connect(s, i);
    return 0;
}

struct kvc_store *kvc_store_open(const char *tiers, const struct kvc_store_options *options,
                                 struct kvc_error *e) {
    if (KVC_NULL(e, tiers)) return NULL;
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
    if (!status && !s->options.unmade) status = kvc_store_make(s, e);
    if (!status) return s;
    kvc_store_close(s);
    return NULL;
}

void kvc_store_close(struct kvc_store *s) {
    if (!s) return;
    s->closing = 1;
    kvc_workers_free(s->jobs); /* they wait for io, so they go first */
    kvc_workers_free(s->learner);
    kvc_workers_free(s->copier);
    kvc_workers_free(s->io);
    for (unsigned i = 0; i < s->n_tiers; i++) {
        if (s->tier[i].tier) s->tier[i].ops->close(s->tier[i].tier);
        kvc_breaker_free(&s->tier[i].breaker);
        if (s->tier[i].handle) dlclose(s->tier[i].handle);
        free(s->tier[i].url);
    }
    if (s->event_fd >= 0) close(s->event_fd);
    for (struct kvc_event *x = s->events, *next; x; x = next) {
        next = x->next;
        free_event(x);
    }
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    OPENSSL_cleanse(s->secret, sizeof s->secret);
    kvc_tier_free_kept();
    free(s);
}

/* --- finding and loading in the background, for an engine's loop --- */

static void events_run(struct kvc_task *task) {
    struct kvc_event *x = (struct kvc_event *)task;
    struct kvc_store *s = x->ns->store;
    const uint64_t one = 1;
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_store_hit *hit = s->closing ? NULL
                                           : kvc_store_find(x->ns, x->tokens, x->n, NULL, &e);
    const int64_t end = hit ? kvc_store_load(hit, &x->memory, &x->options, &e) : -1;
    x->end = (uint64_t)(end < 0 ? x->memory.first_position : end);
    x->code = e.code == KVC_ERR_USAGE || e.code == KVC_ERR_NOT_SLICEABLE ? e.code : KVC_OK;
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(x->ns);
    pthread_mutex_lock(&s->lock);
    x->next = NULL;
    *s->last_event = x;
    s->last_event = &x->next;
    pthread_mutex_unlock(&s->lock);
    (void)!write(s->event_fd, &one, sizeof one);
}

int64_t kvc_store_submit(struct kvc_store_namespace *ns, const int32_t *tokens, uint64_t n,
                         const struct kvc_memory *m, const struct kvc_store_load_options *options,
                         struct kvc_error *e) {
    if (KVC_NULL(e, ns, m)) return -1;
    if (n && KVC_NULL(e, tokens)) return -1;
    struct kvc_store *s = ns->store;
    struct kvc_store_load_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_load_options", e)) return -1;
    struct kvc_memory memory;
    if (kvc_sized_take(&memory, sizeof memory, m, "kvc_memory", e)) return -1;
    struct kvc_event *x = calloc(1, sizeof *x);
    if (x && n < SIZE_MAX / 8) x->tokens = malloc((size_t)n * sizeof *tokens + 1);
    if (!x || !x->tokens) {
        free(x);
        return kvc_fail_memory(e, "a request");
    }
    memcpy(x->tokens, tokens, (size_t)n * sizeof *tokens);
    x->task.run = events_run;
    x->ns = ns;
    x->n = n;
    x->memory = memory;
    x->options = o;
    x->options.progress = NULL; /* it would be called from another thread */
    kvc_namespace_hold(ns);
    pthread_mutex_lock(&s->lock);
    const int64_t number = x->number = ++s->number;
    pthread_mutex_unlock(&s->lock);
    kvc_workers_add(s->jobs, &x->task);
    return number;
}

int kvc_store_fd(const struct kvc_store *s) {
    return s->event_fd;
}

int kvc_store_poll(struct kvc_store *s, struct kvc_store_event *event) {
    if (!event || kvc_sized_check(event, "kvc_store_event", NULL)) return -1;
    uint64_t count;
    pthread_mutex_lock(&s->lock);
    struct kvc_event *x = s->events;
    if (x && !(s->events = x->next)) s->last_event = &s->events;
    if (!s->events) (void)!read(s->event_fd, &count, sizeof count); /* nothing is left */
    pthread_mutex_unlock(&s->lock);
    if (!x) return 0;
    const struct kvc_store_event own = {.size = sizeof own,
                                        .number = x->number,
                                        .end = x->end,
                                        .code = x->code};
    kvc_sized_give(event, &own, sizeof own, "kvc_store_event", NULL);
    free_event(x);
    return 1;
}

/* --- counters --- */

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
    [KVC_COUNT_LEARNT] = {"learnt_profiles", "profiles that were learnt from caches of the store"},
    [KVC_COUNT_NOT_LEARNT] = {"refused_profiles",
                              "profiles that could not be learnt, or that a cache did not fit"},
    [KVC_COUNT_REPACKED] = {"repacked_objects", "objects that a learnt profile made smaller"},
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
                        "# HELP kvc_store_%s_total %s\n# TYPE kvc_store_%s_total counter\n"
                        "kvc_store_%s_total %" PRIu64 "\n",
                        counters[i].name, counters[i].help, counters[i].name, counters[i].name,
                        (uint64_t)s->count[i]);
    for (unsigned k = 0; k < KVC_TIER_COUNTERS; k++) {
        store_stats_add(t, "# TYPE kvc_store_tier_%s_total counter\n", tier_counters[k]);
        for (unsigned i = 0; i < s->n_tiers; i++)
            store_stats_add(t, "kvc_store_tier_%s_total{tier=\"%u\",scheme=\"%s\"} %" PRIu64 "\n",
                            tier_counters[k], i, s->tier[i].ops->scheme,
                            (uint64_t)s->tier[i].count[k]);
    }
}

static void add_json(struct text *t, const struct kvc_store *s) {
    store_stats_add(t, "{\"schema\": 1, ");
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

uint64_t kvc_store_counter(const struct kvc_store *s, const char *name) {
    for (unsigned i = 0; i < KVC_COUNTERS; i++)
        if (strcmp(counters[i].name, name) == 0) return s->count[i];
    return 0;
}

int kvc_store_counter_describe(const struct kvc_store *s, size_t i,
                               struct kvc_store_counter_info *info) {
    if (i >= KVC_COUNTERS) return -1;
    const struct kvc_store_counter_info own = {.name = counters[i].name,
                                               .what = counters[i].help,
                                               .value = s->count[i]};
    return kvc_sized_give(info, &own, sizeof own, "kvc_store_counter_info", NULL);
}

size_t kvc_store_stats(const struct kvc_store *s, const char *form, char *text, size_t size) {
    struct text t = {.to = text, .room = size};
    if (size) *text = '\0';
    if (strcmp(form, "json") == 0) add_json(&t, s);
    else if (strcmp(form, "prometheus") == 0) add_prometheus(&t, s);
    else return 0;
    return t.n + 1;
}
