/* s3_find.c: finds the longest part of a chain that is there, or each object by itself, by HEAD
 * requests: the search by 32 ways, and the memory of what is there. Spec: S3.md, "Requests". */
#include "formats/store/s3/s3_state.h"

#include "codecs/memory.h"

#include <stdlib.h>
#include <string.h>

#define WAYS 32u
#define ROUND 256 /* questions of a round that asks about each object */

size_t kvc_s3_probes(const struct kvc_s3_search *s, size_t probe[KVC_S3_PROBES]) {
    const size_t unknown = s->high - s->low;
    size_t n = 0;
    if (unknown < WAYS) {
        while (n < unknown) {
            probe[n] = s->low + n;
            n++;
        }
        return n;
    }
    /* The first one is always asked about: a rule of the bucket may have removed it, as the oldest,
     * before what follows it. */
    probe[n++] = s->low;
    for (size_t i = 1; i < WAYS; i++)
        probe[n++] = s->low + unknown / WAYS * i + unknown % WAYS * i / WAYS;
    return n;
}

void kvc_s3_narrow(struct kvc_s3_search *s, const size_t *probe, const uint8_t *there, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!there[i]) {
            s->high = probe[i];
            return;
        }
        s->low = probe[i] + 1;
    }
}

/* --- memory --- */

#define SETS 8192u
#define PLACES 8u /* of a set; a key belongs to one set */

struct place {
    struct kvc_object object;
    uint64_t size;
    kvc_instant until; /* 0: empty */
    enum kvc_s3_known known;
};

struct kvc_s3_memory {
    pthread_mutex_t lock;
    int64_t lifetime;
    struct place place[SETS][PLACES];
};

struct kvc_s3_memory *kvc_s3_memory_new(int64_t lifetime) {
    struct kvc_s3_memory *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->lifetime = lifetime;
    if (pthread_mutex_init(&m->lock, NULL)) {
        free(m);
        return NULL;
    }
    return m;
}

void kvc_s3_memory_free(struct kvc_s3_memory *m) {
    if (!m) return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* Keys are hashes already. */
static struct place *set_of(struct kvc_s3_memory *m, const struct kvc_object *o) {
    uint32_t first;
    memcpy(&first, o->key, sizeof first);
    return m->place[first % SETS];
}

void kvc_s3_remember(struct kvc_s3_memory *m, const struct kvc_object *o, enum kvc_s3_known known,
                     uint64_t size, kvc_instant now) {
    pthread_mutex_lock(&m->lock);
    struct place *p = set_of(m, o), *to = &p[0];
    for (size_t i = 0; i < PLACES; i++) {
        if (p[i].until && kvc_object_equal(&p[i].object, o)) {
            to = &p[i];
            break;
        }
        if (p[i].until < to->until) to = &p[i];
    }
    if (known == KVC_S3_UNKNOWN) {
        if (to->until && kvc_object_equal(&to->object, o)) to->until = 0;
    } else if (known == KVC_S3_BAD || m->lifetime) {
        *to = (struct place){*o, size, known == KVC_S3_BAD ? INT64_MAX : now + m->lifetime, known};
    }
    pthread_mutex_unlock(&m->lock);
}

enum kvc_s3_known kvc_s3_recall(struct kvc_s3_memory *m, const struct kvc_object *o, uint64_t *size,
                                kvc_instant now) {
    enum kvc_s3_known known = KVC_S3_UNKNOWN;
    pthread_mutex_lock(&m->lock);
    const struct place *p = set_of(m, o);
    for (size_t i = 0; i < PLACES; i++)
        if (p[i].until > now && kvc_object_equal(&p[i].object, o)) {
            known = p[i].known;
            *size = p[i].size;
            break;
        }
    pthread_mutex_unlock(&m->lock);
    return known;
}

/* --- finding --- */

/* Takes what is remembered: of the objects from the first one on, without a gap. */
static void recall(struct kvc_s3 *l, const struct kvc_object *o, size_t n, uint64_t *size,
                   struct kvc_s3_search *s) {
    const kvc_instant now = kvc_now();
    *s = (struct kvc_s3_search){0, n};
    for (size_t i = 0; i < n; i++) {
        const enum kvc_s3_known known = kvc_s3_recall(l->memory, &o[i], &size[i], now);
        if (known == KVC_S3_THERE && s->low == i) s->low++;
        if (known == KVC_S3_BAD) {
            s->high = i;
            return;
        }
    }
}

/* A round of questions. */
struct round {
    struct kvc_s3 *l;
    const struct kvc_object *o;
    size_t probe[KVC_S3_PROBES];
    uint64_t *size;
    uint8_t there[KVC_S3_PROBES];
};

static void ask_head(struct kvc_s3_request *r, const struct kvc_object *o) {
    *r = (struct kvc_s3_request){.method = "HEAD"};
    kvc_s3_name(r, o);
}

/* Returns 1 and its size if the object is there, 0 if it is not, -1: there is no answer. */
static int take_head(struct kvc_s3 *l, const struct kvc_object *o, const struct kvc_s3_request *r,
                     uint64_t *size, struct kvc_error *e) {
    if (*r->why || (r->answer.status != 200 && r->answer.status != 404))
        return kvc_s3_fail(l, r, e);
    if (r->answer.status != 200) return 0;
    *size = r->answer.length > 0 ? (uint64_t)r->answer.length : 0;
    kvc_s3_remember(l->memory, o, KVC_S3_THERE, *size, kvc_now());
    return 1;
}

static int take_probe(void *state, struct kvc_s3_request *r, struct kvc_error *e) {
    struct round *x = state;
    const size_t at = x->probe[r->index];
    const int there = take_head(x->l, &x->o[at], r, &x->size[at], e);
    x->there[r->index] = there == 1;
    return there < 0 ? -1 : 0;
}

int kvc_s3_find(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                size_t *found, uint64_t *size, struct kvc_error *e) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    struct kvc_s3_search s;
    struct kvc_s3_call c;
    struct round x = {.l = l, .o = o, .size = size};
    size_t asked;
    uint64_t known;
    memset(size, 0, n * sizeof *size);
    recall(l, o, n, size, &s);
    const size_t begun = *found = s.low;
    if (s.low == s.high) return 0;
    struct kvc_s3_request *r = calloc(KVC_S3_PROBES, sizeof *r);
    if (!r) return kvc_fail_memory(e, "requests to S3");
    int status = kvc_s3_call_begin(&c, l, deadline, e);
    if (!status) {
        while (!status && (asked = kvc_s3_probes(&s, x.probe)) != 0) {
            memset(x.there, 0, sizeof x.there);
            for (size_t i = 0; i < asked; i++) ask_head(&r[i], &o[x.probe[i]]);
            atomic_fetch_add(&l->counters.rounds, 1);
            status = kvc_s3_ask_all(&c, r, asked, take_probe, &x, e);
            if (!status) kvc_s3_narrow(&s, x.probe, x.there, asked);
            else /* what was answered from the first one on without a gap */
                for (size_t i = 0; i < asked && x.there[i]; i++) s.low = x.probe[i] + 1;
            *found = s.low;
        }
        kvc_s3_call_end(&c);
        /* Chains are put from their beginning on, so that those between are there too. */
        for (size_t i = begun; i < *found; i++)
            if (kvc_s3_recall(l->memory, &o[i], &known, kvc_now()) == KVC_S3_UNKNOWN)
                kvc_s3_remember(l->memory, &o[i], KVC_S3_THERE, 0, kvc_now());
    }
    free(r);
    return status;
}

/* --- finding each by itself --- */

struct each {
    struct kvc_s3 *l;
    const struct kvc_object *o;
    const size_t *asked; /* numbers of the objects of a round */
    kvc_tier_there *there;
    void *state;
};

static int take_each(void *state, struct kvc_s3_request *r, struct kvc_error *e) {
    const struct each *x = state;
    const size_t at = x->asked[r->index];
    uint64_t size;
    const int there = take_head(x->l, &x->o[at], r, &size, e);
    if (there == 1) x->there(x->state, at);
    return there < 0 ? -1 : 0;
}

/* Asks about n objects, whose numbers are `asked`. */
static int ask_each(struct each *x, const size_t *asked, size_t n, kvc_instant deadline,
                    struct kvc_error *e) {
    struct kvc_s3_request *r = calloc(ROUND, sizeof *r);
    struct kvc_s3_call c;
    if (!r) return kvc_fail_memory(e, "requests to S3");
    int status = kvc_s3_call_begin(&c, x->l, deadline, e);
    for (size_t i = 0, some; i < n && !status; i += some) {
        some = n - i < ROUND ? n - i : ROUND;
        x->asked = asked + i;
        for (size_t k = 0; k < some; k++) ask_head(&r[k], &x->o[asked[i + k]]);
        atomic_fetch_add(&x->l->counters.rounds, 1);
        status = kvc_s3_ask_all(&c, r, some, take_each, x, e);
    }
    kvc_s3_call_end(&c);
    free(r);
    return status;
}

int kvc_s3_each(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                kvc_tier_there *there, void *state, struct kvc_error *e) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    struct each x = {.l = l, .o = o, .there = there, .state = state};
    size_t *asked = kvc_alloc(n, sizeof *asked), unknown = 0;
    const kvc_instant now = kvc_now();
    if (!asked) return kvc_fail_memory(e, "requests to S3");
    for (size_t i = 0; i < n; i++) {
        uint64_t size;
        const enum kvc_s3_known known = kvc_s3_recall(l->memory, &o[i], &size, now);
        if (known == KVC_S3_THERE) there(state, i);
        if (known == KVC_S3_UNKNOWN) asked[unknown++] = i;
    }
    const int status = unknown ? ask_each(&x, asked, unknown, deadline, e) : 0;
    free(asked);
    return status;
}
