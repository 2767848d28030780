/* call.c: calls of tiers from worker threads, with deadlines, the breaker that leaves a failing
 * tier alone, and what goes on in the background: notes, copies to faster tiers, bad objects. Spec:
 * STORE.md, "Failures". */
#include "formats/store/call.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* --- threads --- */

#define MAX_THREADS 64

struct kvc_workers {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct kvc_task *first, **last;
    int ends;
    unsigned n;
    pthread_t thread[MAX_THREADS];
};

static void *work(void *state) {
    struct kvc_workers *w = state;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->ends) pthread_cond_wait(&w->more, &w->lock);
        struct kvc_task *task = w->first;
        if (!task) break;
        if (!(w->first = task->next)) w->last = &w->first;
        pthread_mutex_unlock(&w->lock);
        task->run(task);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct kvc_workers *kvc_workers_new(unsigned threads, struct kvc_error *e) {
    struct kvc_workers *w = calloc(1, sizeof *w);
    sigset_t all, before;
    if (!w) {
        kvc_fail_memory(e, "threads");
        return NULL;
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    w->last = &w->first;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    sigfillset(&all); /* signals are the program's, and go to its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (w->n < threads && !pthread_create(&w->thread[w->n], NULL, work, w)) w->n++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (w->n) return w;
    kvc_workers_free(w);
    kvc_fail(e, KVC_ERR_MEMORY, "no thread can be started");
    return NULL;
}

void kvc_workers_add(struct kvc_workers *w, struct kvc_task *task) {
    task->next = NULL;
    pthread_mutex_lock(&w->lock);
    *w->last = task;
    w->last = &task->next;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}

void kvc_workers_free(struct kvc_workers *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->ends = 1;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n; i++) pthread_join(w->thread[i], NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* --- the queue: what waits to be put or copied --- */

int kvc_queue_add(struct kvc_store *s, uint64_t bytes) {
    pthread_mutex_lock(&s->lock);
    /* One that is larger than the queue has its turn when nothing else waits. */
    const int full = s->waiting && (s->waiting_bytes > s->options.queue_bytes ||
                                    bytes > s->options.queue_bytes - s->waiting_bytes);
    if (!full) {
        s->waiting++;
        s->waiting_bytes += bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return full;
}

void kvc_queue_remove(struct kvc_store *s, uint64_t bytes) {
    pthread_mutex_lock(&s->lock);
    s->waiting--;
    s->waiting_bytes -= bytes;
    if (!s->waiting) pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
}

int kvc_store_flush(struct kvc_store *s, int64_t timeout_us) {
    const kvc_instant until = timeout_us ? kvc_after(timeout_us) : INT64_MAX;
    pthread_mutex_lock(&s->lock);
    while (s->waiting && kvc_wait_until(&s->idle, &s->lock, until)) continue;
    const int status = s->waiting ? -1 : 0;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* --- bytes --- */

struct kvc_bytes *kvc_bytes_of(void *data, size_t size) {
    struct kvc_bytes *b = data ? malloc(sizeof *b) : NULL;
    if (!b) {
        free(data);
        return NULL;
    }
    *b = (struct kvc_bytes){.data = data, .size = size};
    atomic_init(&b->refs, 1);
    return b;
}

static struct kvc_bytes *hold_bytes(struct kvc_bytes *b) {
    atomic_fetch_add(&b->refs, 1);
    return b;
}

void kvc_bytes_release(void *bytes) {
    struct kvc_bytes *b = bytes;
    if (!b || atomic_fetch_sub(&b->refs, 1) != 1) return;
    kvc_tier_free(b->data);
    free(b);
}

/* --- what a call does --- */

#define AT_ONCE 32 /* objects of which the last one is looked for */

/* Notes an object at once: a caller whose deadline is over takes what is known. */
static void note_there(void *state, size_t i) {
    struct kvc_call *c = state;
    pthread_mutex_lock(&c->lock);
    c->is_there[i] = 1;
    c->found++;
    pthread_mutex_unlock(&c->lock);
}

/* Asks about each object by itself. `find` counts objects up to the first that is missing, so the
 * search goes on after each of these. */
static int find_each(struct kvc_call *c, struct kvc_tier *t, struct kvc_error *e) {
    if (t->ops->each)
        return t->ops->each(t, c->object, c->n, c->deadline, note_there, c, e) && !c->found ? -1
                                                                                            : 0;
    for (size_t i = 0, found; i < c->n; i += found + 1) {
        found = 0;
        if (t->ops->find(t, c->object + i, c->n - i, c->deadline, &found, c->size + i, e))
            return -1;
        for (size_t k = 0; k < found; k++) note_there(c, i + k);
    }
    return 0;
}

static void note_last(void *state, size_t i) {
    size_t *end = state;
    if (i >= *end) *end = i + 1;
}

/* Asks from the last object on, about many at once where this takes one round trip. What a part of
 * the tier has counts where another part fails. */
static int find_last(struct kvc_call *c, struct kvc_tier *t, struct kvc_error *e) {
    const size_t most = t->ops->each ? AT_ONCE : 1;
    int status = 0;
    for (size_t end = c->n, n; end && kvc_now() < c->deadline; end -= n) {
        size_t found = 0;
        n = end < most ? end : most;
        const struct kvc_object *o = c->object + end - n;
        if (t->ops->each ? t->ops->each(t, o, n, c->deadline, note_last, &found, e)
                         : t->ops->find(t, o, n, c->deadline, &found, c->size, e))
            status = -1;
        if (!found) continue;
        c->found = end - n + found;
        return 0;
    }
    return status;
}

static int find(struct kvc_call *c, struct kvc_tier *t, struct kvc_error *e) {
    if (c->op == KVC_OP_COUNT && t->ops->count)
        return t->ops->count(t, c->object, c->n, c->deadline, &c->found, c->size, e);
    c->partial = t->ops->find(t, c->object, c->n, c->deadline, &c->found, c->size, e) != 0;
    /* a tier of which a part answers is of use, and is not to be left alone */
    return c->partial && !c->found ? -1 : 0;
}

static int take(void *state, size_t i, void *data, size_t size, const struct kvc_error *why) {
    struct kvc_call *c = state;
    struct kvc_got *got = &c->got[i];
    struct kvc_bytes *bytes = kvc_bytes_of(data, size);
    pthread_mutex_lock(&c->lock);
    got->bytes = bytes;
    if (why) got->why = *why;
    if (data && !bytes) kvc_fail_memory(&got->why, "an object");
    c->arrived = i + 1;
    /* What follows a chunk that is not there is of no use. */
    const int stop = c->stop || !bytes;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return stop;
}

static int put(struct kvc_call *c, struct kvc_tier *t, struct kvc_error *e) {
    const int status = t->ops->put(t, c->object, c->bytes->data, c->bytes->size, &c->how,
                                   c->deadline, &c->there, e);
    if (!status && !c->there && c->in_queue) kvc_count(c->store, KVC_COUNT_BACKFILL, 1);
    return status;
}

static int run(struct kvc_call *c, struct kvc_tier *t, struct kvc_error *e) {
    const struct kvc_tier_ops *ops = t->ops;
    struct kvc_store_tier_info facts;
    switch (c->op) {
    case KVC_OP_FIND:
    case KVC_OP_COUNT: return find(c, t, e);
    case KVC_OP_EACH: return find_each(c, t, e);
    case KVC_OP_LAST: return find_last(c, t, e);
    case KVC_OP_GET: return ops->get(t, c->object, c->n, c->deadline, take, c, e);
    case KVC_OP_PUT: return put(c, t, e);
    case KVC_OP_DROP: return ops->drop(t, c->object, c->n, c->deadline, e);
    case KVC_OP_TOUCH: return ops->touch(t, c->object, c->n, e);
    case KVC_OP_MISSED: return ops->missed(t, c->object, c->n, (uint64_t)c->value, e);
    case KVC_OP_PIN: return ops->pin(t, c->object, c->n, c->value, e);
    case KVC_OP_EXPECT: return ops->expect(t, c->object, c->n, c->value, e);
    case KVC_OP_QUARANTINE: return ops->quarantine(t, c->object, e);
    case KVC_OP_CONNECT: break;
    }
    return ops->facts(t, &facts, c->deadline, e);
}

/* Returns 1 if a tier has the function of a call. */
static int can(const struct kvc_tier_ops *ops, enum kvc_op op) {
    switch (op) {
    case KVC_OP_TOUCH: return ops->touch != NULL;
    case KVC_OP_MISSED: return ops->missed != NULL;
    case KVC_OP_PIN: return ops->pin != NULL;
    case KVC_OP_EXPECT: return ops->expect != NULL;
    case KVC_OP_QUARANTINE: return ops->quarantine != NULL;
    case KVC_OP_CONNECT: return ops->remote;
    default: return 1;
    }
}

/* --- calls --- */

static void note_outcome(struct kvc_store_tier *t, const char *why) {
    kvc_breaker_note(&t->breaker, why != NULL, why);
    if (why) atomic_fetch_add(&t->count[KVC_TIER_FAILURES], 1);
}

static void run_call(struct kvc_task *task) {
    struct kvc_call *c = (struct kvc_call *)task;
    struct kvc_store_tier *t = &c->store->tier[c->tier];
    struct kvc_error e = {.code = KVC_OK};
    const int status = run(c, t->tier, &e);
    const int failed = status && e.severity == KVC_SEVERITY_RETRY && e.code != KVC_ERR_MEMORY;
    note_outcome(t, failed ? e.message : NULL);
    pthread_mutex_lock(&c->lock);
    c->status = status;
    c->error = e;
    c->done = 1;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    kvc_call_release(c);
}

/* Returns a call of one reference. NULL: there is no memory, or the tier has no such function. */
static struct kvc_call *new_call(struct kvc_store *s, unsigned tier, enum kvc_op op,
                                 const struct kvc_object *o, size_t n, kvc_instant deadline) {
    struct kvc_call *c = n && can(s->tier[tier].ops, op) ? calloc(1, sizeof *c) : NULL;
    if (!c) return NULL;
    *c = (struct kvc_call){.task.run = run_call,
                           .store = s,
                           .workers = s->io,
                           .tier = tier,
                           .op = op,
                           .n = n,
                           .deadline = deadline};
    atomic_init(&c->refs, 1);
    pthread_mutex_init(&c->lock, NULL);
    kvc_condition_init(&c->changed);
    const int finds = op <= KVC_OP_LAST;
    c->object = malloc(n * sizeof *o);
    if (finds) c->size = calloc(n, sizeof *c->size);
    if (op == KVC_OP_EACH) c->is_there = calloc(n, 1);
    if (op == KVC_OP_GET) c->got = calloc(n, sizeof *c->got);
    if (c->object && (!finds || c->size) && (op != KVC_OP_EACH || c->is_there) &&
        (op != KVC_OP_GET || c->got)) {
        memcpy(c->object, o, n * sizeof *o);
        return c;
    }
    kvc_call_release(c);
    return NULL;
}

/* Queues a call. If the tier is left alone at present, the call has failed at once. */
static void start_call(struct kvc_call *c) {
    struct kvc_store_tier *t = &c->store->tier[c->tier];
    char why[KVC_BREAKER_TEXT];
    if (kvc_breaker_is_open(&t->breaker, why)) {
        kvc_fail(&c->error, KVC_ERR_IO,
                 "%s: it failed several times, and is left alone for some seconds: %s", t->url,
                 why);
        c->error.severity = KVC_SEVERITY_RETRY;
        atomic_fetch_add(&t->count[KVC_TIER_REFUSED], 1);
        c->done = 1;
        c->status = -1;
        return;
    }
    atomic_fetch_add(&t->count[KVC_TIER_CALLS], 1);
    atomic_fetch_add(&c->refs, 1);
    kvc_workers_add(c->workers, &c->task);
}

struct kvc_call *kvc_call_ask(struct kvc_store *s, unsigned tier, enum kvc_op op,
                              const struct kvc_object *o, size_t n, kvc_instant deadline) {
    struct kvc_call *c = new_call(s, tier, op, o, n, deadline);
    if (c) start_call(c);
    return c;
}

int kvc_call_wait(struct kvc_call *c, struct kvc_error *e) {
    if (!c) return kvc_fail_memory(e, "a request");
    pthread_mutex_lock(&c->lock);
    while (!c->done && kvc_wait_until(&c->changed, &c->lock, c->deadline)) continue;
    const int status = c->done ? c->status : -1, late = !c->done;
    if (status && !late && e) *e = c->error;
    pthread_mutex_unlock(&c->lock);
    if (!late) return status;
    kvc_count(c->store, KVC_COUNT_LATE, 1);
    note_outcome(&c->store->tier[c->tier], "it did not answer in time");
    kvc_fail(e, KVC_ERR_IO, "%s: it did not answer in time", c->store->tier[c->tier].url);
    if (e) e->severity = KVC_SEVERITY_RETRY;
    return -1;
}

int kvc_call_arrives(struct kvc_call *c, size_t i) {
    pthread_mutex_lock(&c->lock);
    while (c->arrived <= i && !c->done && kvc_wait_until(&c->changed, &c->lock, c->deadline))
        continue;
    const int there = c->arrived > i;
    pthread_mutex_unlock(&c->lock);
    return there;
}

void kvc_call_release(struct kvc_call *c) {
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1) return;
    if (c->in_queue) kvc_queue_remove(c->store, c->queued);
    for (size_t i = 0; c->got && i < c->n; i++) kvc_bytes_release(c->got[i].bytes);
    kvc_bytes_release(c->bytes);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->object);
    free(c->size);
    free(c->is_there);
    free(c->got);
    free(c);
}

/* --- in the background --- */

#define BACKGROUND_TIME 30000000
#define CONNECT_TIME 2000000

/* Returns a call that the queue counts. NULL: it has no room for it, or as new_call(). */
static struct kvc_call *queued_call(struct kvc_store *s, unsigned tier, enum kvc_op op,
                                    const struct kvc_object *o, size_t n, uint64_t bytes) {
    struct kvc_call *c = new_call(s, tier, op, o, n, kvc_now() + BACKGROUND_TIME);
    if (c && !kvc_queue_add(s, bytes)) {
        c->in_queue = 1;
        c->queued = bytes;
        return c;
    }
    kvc_call_release(c);
    return NULL;
}

void kvc_store_notify(struct kvc_store *s, unsigned tier, enum kvc_op op,
                      const struct kvc_object *o, size_t n, int64_t value) {
    struct kvc_call *c = queued_call(s, tier, op, o, n, 0);
    if (!c) return;
    c->value = value;
    if (op == KVC_OP_TOUCH) c->workers = s->copier;
    start_call(c);
    kvc_call_release(c);
}

void kvc_store_connect(struct kvc_store *s, unsigned tier) {
    static const struct kvc_object nothing = {.kind = KVC_OBJECT_CHUNK};
    struct kvc_call *c = queued_call(s, tier, KVC_OP_CONNECT, &nothing, 1, 0);
    if (!c) return;
    c->deadline = kvc_now() + CONNECT_TIME;
    start_call(c);
    kvc_call_release(c);
}

int kvc_store_notify_all(struct kvc_store *s, enum kvc_op op, const struct kvc_object *o, size_t n,
                         int64_t value, struct kvc_error *e) {
    int status = 0;
    for (unsigned i = 0; i < s->n_tiers; i++) {
        struct kvc_call *c = queued_call(s, i, op, o, n, 0);
        if (!c) continue;
        c->value = value;
        start_call(c);
        if (kvc_call_wait(c, e)) status = -1;
        kvc_call_release(c);
    }
    return status;
}

static void set_put(struct kvc_call *c, struct kvc_bytes *bytes, const struct kvc_tier_put *how) {
    c->bytes = hold_bytes(bytes);
    c->how = *how;
    if (!how->parent) return;
    c->parent = *how->parent;
    c->how.parent = &c->parent;
}

void kvc_store_backfill(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                        const struct kvc_object *parent, struct kvc_bytes *bytes) {
    for (unsigned i = tier; i--;) {
        struct kvc_call *c = queued_call(s, i, KVC_OP_PUT, o, 1, bytes->size);
        if (!c) continue;
        set_put(c, bytes, &(struct kvc_tier_put){.parent = parent});
        c->workers = s->copier;
        start_call(c);
        kvc_call_release(c);
    }
}

/* --- single objects --- */

struct kvc_bytes *kvc_store_read_tier(struct kvc_store *s, unsigned tier,
                                      const struct kvc_object *o, kvc_instant deadline,
                                      struct kvc_error *e) {
    struct kvc_call *c = kvc_call_ask(s, tier, KVC_OP_GET, o, 1, deadline);
    struct kvc_bytes *bytes = NULL;
    if (!kvc_call_wait(c, e)) {
        const struct kvc_got *got = &c->got[0];
        if (got->bytes) bytes = hold_bytes(got->bytes);
        else if (e) *e = got->why;
    }
    kvc_call_release(c);
    return bytes;
}

int kvc_store_put_tier(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                       struct kvc_bytes *bytes, const struct kvc_tier_put *how,
                       kvc_instant deadline, struct kvc_error *e) {
    struct kvc_call *c = new_call(s, tier, KVC_OP_PUT, o, 1, deadline);
    if (c) {
        set_put(c, bytes, how);
        start_call(c);
    }
    const int status = kvc_call_wait(c, e) ? -1 : c->there;
    kvc_call_release(c);
    return status;
}

int kvc_store_put_counted(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                          struct kvc_bytes *bytes, const struct kvc_tier_put *how,
                          kvc_instant deadline, struct kvc_error *e) {
    const int put = kvc_store_put_tier(s, tier, o, bytes, how, deadline, e);
    kvc_count(s,
              put < 0                  ? KVC_COUNT_FAILED
              : put == KVC_PUT_REFUSED ? KVC_COUNT_REFUSED
              : put == KVC_PUT_SHARED  ? KVC_COUNT_SHARED
                                       : KVC_COUNT_PUT,
              1);
    if (put == KVC_PUT_STORED) kvc_count(s, KVC_COUNT_PUT_BYTES, bytes->size);
    return put;
}

int kvc_store_count(struct kvc_store *s, unsigned tier, const struct kvc_object *o, size_t n,
                    kvc_instant deadline, size_t *found, struct kvc_error *e) {
    struct kvc_call *c = kvc_call_ask(s, tier, KVC_OP_COUNT, o, n, deadline);
    const int status = kvc_call_wait(c, e);
    *found = status ? 0 : c->found;
    kvc_call_release(c);
    return status;
}

int kvc_store_has(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                  kvc_instant deadline) {
    size_t found = 0;
    return !kvc_store_count(s, tier, o, 1, deadline, &found, NULL) && found;
}

/* --- bad objects --- */

#define BAD_TIME 60000000 /* a bad key counts as missing */

void kvc_store_mark_bad(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                        const struct kvc_error *why) {
    /* that is not the object's fault */
    if (why->code == KVC_ERR_MEMORY || why->code == KVC_ERR_IO) return;
    kvc_count(s, KVC_COUNT_BAD, 1);
    pthread_mutex_lock(&s->lock);
    struct kvc_bad_key *b = &s->bad[s->next_bad];
    memcpy(b->key, o->key, sizeof b->key);
    b->until = kvc_now() + BAD_TIME;
    s->next_bad = (s->next_bad + 1) % KVC_BAD_KEYS;
    if (s->n_bad < KVC_BAD_KEYS) s->n_bad++;
    pthread_mutex_unlock(&s->lock);
    /* It may be of a later kvc, or this process may have the wrong key: then it is others' good
     * object. */
    if (why->code != KVC_ERR_UNSUPPORTED && why->code != KVC_ERR_VERIFY)
        kvc_store_notify(s, tier, KVC_OP_QUARANTINE, o, 1, 0);
}

int kvc_store_is_bad(struct kvc_store *s, const uint8_t *key) {
    int bad = 0;
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < s->n_bad && !bad; i++)
        bad = memcmp(s->bad[i].key, key, sizeof s->bad[i].key) == 0 && kvc_now() < s->bad[i].until;
    pthread_mutex_unlock(&s->lock);
    return bad;
}

void kvc_store_clear_bad(struct kvc_store *s, const uint8_t *key) {
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < s->n_bad; i++)
        if (memcmp(s->bad[i].key, key, sizeof s->bad[i].key) == 0) s->bad[i].until = 0;
    pthread_mutex_unlock(&s->lock);
}
