/* fetch.c: reads the chunks of a hit from their tiers, several at a time, proves them, and hands
 * them over in order. Spec: STORE.md, "Reading". Not for what is done with them (load.c). */
#include "formats/store/store.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD (UINT64_C(128) << 20) /* bytes that are read before they are used */
#define PART 32                     /* chunks of a remote request, at most */

/* Chunks [first, end) of a tier, one request. Its slots belong to the request, which may outlive
 * the fetch. */
struct part {
    struct kvc_request base;
    size_t first, n, arrived; /* slots [0, arrived) are settled */
    struct kvc_object object[PART];
    struct slot {
        void *data;
        size_t size;
        int missing, failed;
        struct kvc_error why;
    } slot[PART];
    int stop; /* nobody waits any more */
    uint64_t bytes;
    struct part *next;
};

static void fetch_clear(struct kvc_request *base) {
    struct part *p = (struct part *)base;
    for (size_t i = 0; i < p->n; i++) free(p->slot[i].data);
}

static int fetch_take(void *state, size_t i, void *data, size_t size, const struct kvc_error *why) {
    struct part *p = state;
    pthread_mutex_lock(&p->base.lock);
    struct slot *s = &p->slot[i];
    s->data = data;
    s->size = size;
    s->missing = !data && !why;
    s->failed = !data && why;
    if (why) s->why = *why;
    p->arrived = i + 1;
    /* What follows a chunk that is not there is of no use. */
    const int stop = p->stop || !data;
    pthread_cond_broadcast(&p->base.changed);
    pthread_mutex_unlock(&p->base.lock);
    return stop;
}

static int fetch_run(struct kvc_request *base, struct kvc_tier *l, struct kvc_error *e) {
    struct part *p = (struct part *)base;
    return l->ops->get(l, p->object, p->n, base->deadline, fetch_take, p, e);
}

struct fetch {
    struct kvc_store_hit *hit;
    size_t asked, end; /* chunks that are asked for, to be asked for */
    kvc_instant deadline;
    uint64_t ahead; /* bytes that are asked for and not used */
    struct part *first, **last;
};

/* Asks for more, until enough is under way. */
static void fetch_ask(struct fetch *f) {
    const struct kvc_store_hit *hit = f->hit;
    struct kvc_store *s = hit->ns->store;
    while (f->asked < f->end && (f->ahead < AHEAD || !f->first)) {
        const unsigned tier = hit->tier[f->asked];
        const size_t most = s->tier[tier].ops->remote ? PART : 1;
        struct part *p = calloc(1, sizeof *p);
        if (!p) {
            f->end = f->asked;
            return;
        }
        kvc_request_init(&p->base, s, tier, f->deadline);
        p->base.run = fetch_run;
        p->base.clear = fetch_clear;
        p->first = f->asked;
        while (p->n < most && f->asked < f->end && hit->tier[f->asked] == tier &&
               (!p->n || p->bytes < AHEAD / 4)) {
            p->object[p->n++] = hit->object[f->asked];
            p->bytes += hit->bytes[f->asked++];
        }
        f->ahead += p->bytes;
        *f->last = p;
        f->last = &p->next;
        kvc_request_start(&p->base);
    }
}

/* Waits for slot i of a part. Returns 1, or 0 if it does not come. */
static int arrives(struct part *p, size_t i) {
    pthread_mutex_lock(&p->base.lock);
    while (p->arrived <= i && !p->base.done &&
           kvc_wait_until(&p->base.changed, &p->base.lock, p->base.deadline))
        continue;
    const int there = p->arrived > i;
    pthread_mutex_unlock(&p->base.lock);
    return there;
}

/* Takes the error of a part that failed, and counts one that is late. */
static void fail(struct part *p, struct kvc_error *e) {
    kvc_request_wait(&p->base, e);
}

/* Proves a chunk and hands it over. */
static int use_one(struct fetch *f, struct part *p, size_t slot, int hashes, kvc_use_chunk *use,
                   void *state, struct kvc_error *e) {
    struct kvc_store_hit *hit = f->hit;
    struct kvc_store *s = hit->ns->store;
    struct slot *x = &p->slot[slot];
    const size_t i = p->first + slot;
    const struct kvc_chunk chunk = {.ns = hit->ns,
                                    .i = i,
                                    .tokens = hit->tokens,
                                    .keys = hit->keys};
    if (x->missing) {
        kvc_count(s, KVC_COUNT_GONE, 1);
        return -1;
    }
    if (x->failed) {
        kvc_store_mark_bad(s, hit->tier[i], &hit->object[i], &x->why);
        if (e) *e = x->why;
        return -1;
    }
    void *data = x->data;
    size_t size = x->size;
    hit->bytes[i] = size;
    x->data = NULL;
    struct kvc_error why;
    struct kvc_file *file = kvc_chunk_open(&chunk, data, &size, hashes, &why);
    if (file) return use(state, i, file, data, size, e);
    free(data);
    kvc_store_mark_bad(s, hit->tier[i], &hit->object[i], &why);
    if (e) *e = why;
    return -1;
}

static void drop_parts(struct fetch *f) {
    for (struct part *p = f->first, *next; p; p = next) {
        next = p->next;
        pthread_mutex_lock(&p->base.lock);
        p->stop = 1;
        pthread_mutex_unlock(&p->base.lock);
        kvc_request_release(&p->base);
    }
}

size_t kvc_fetch(struct kvc_store_hit *hit, size_t first, size_t end, kvc_instant deadline,
                 int hashes, kvc_use_chunk *use, void *state, struct kvc_error *e) {
    struct fetch f = {.hit = hit, .asked = first, .end = end, .deadline = deadline};
    size_t used = 0;
    int status = 0;
    f.last = &f.first;
    fetch_ask(&f);
    while (f.first && !status) {
        struct part *p = f.first;
        for (size_t i = 0; i < p->n && !status; i++) {
            if (!arrives(p, i)) {
                fail(p, e);
                status = -1;
            } else {
                status = use_one(&f, p, i, hashes, use, state, e);
                used += !status;
            }
        }
        f.first = p->next;
        if (!f.first) f.last = &f.first;
        f.ahead -= p->bytes;
        p->next = NULL;
        pthread_mutex_lock(&p->base.lock);
        p->stop = 1;
        pthread_mutex_unlock(&p->base.lock);
        kvc_request_release(&p->base);
        if (!status) fetch_ask(&f);
    }
    drop_parts(&f);
    return used;
}
