/* background.c: notes to tiers that nobody waits for: what was read or missed,
 * copies to faster tiers, bad objects. Not for what a program waits for (fetch.c, put.c). */
#include "formats/store/store.h"

#include <stdlib.h>
#include <string.h>

#define BAD_TIME 60000000 /* a bad key counts as missing */
#define DEADLINE 30000000
#define GREETING 2000000 /* to connect */

/* A request in the background: nobody needs to wait for it. */
struct background {
    struct kvc_request base;
    enum kvc_background what;
    struct kvc_object *object;
    size_t n;
    int64_t value;
    struct kvc_object parent;
    int has_parent;
    void *data;
    size_t size;
};

static void background_clear(struct kvc_request *base) {
    struct background *x = (struct background *)base;
    kvc_queue_remove(base->store, x->size);
    free(x->object);
    free(x->data);
}

static int copy(struct background *x, struct kvc_tier *l, struct kvc_error *e) {
    const struct kvc_tier_put how = {.parent = x->has_parent ? &x->parent : NULL};
    int there = 0;
    if (l->ops->put(l, x->object, x->data, x->size, &how, x->base.deadline, &there, e)) return -1;
    if (!there) kvc_count(x->base.store, KVC_COUNT_BACKFILL, 1);
    return 0;
}

static int background_run(struct kvc_request *base, struct kvc_tier *l, struct kvc_error *e) {
    struct background *x = (struct background *)base;
    switch (x->what) {
    case KVC_TOUCH: return l->ops->touch(l, x->object, x->n, e);
    case KVC_MISSED: return l->ops->missed(l, x->object, x->n, (uint64_t)x->value, e);
    case KVC_QUARANTINE: return l->ops->quarantine(l, x->object, e);
    case KVC_PIN: return l->ops->pin(l, x->object, x->n, x->value, e);
    case KVC_EXPECT: return l->ops->expect(l, x->object, x->n, x->value, e);
    case KVC_CONNECT: {
        struct kvc_tier_facts facts;
        return l->ops->facts(l, &facts, base->deadline, e);
    }
    case KVC_DROP: return l->ops->drop(l, x->object, x->n, base->deadline, e);
    case KVC_COPY: break;
    }
    return copy(x, l, e);
}

static int can(const struct kvc_tier_ops *ops, enum kvc_background what) {
    return what == KVC_COPY || what == KVC_DROP || (what == KVC_CONNECT && ops->remote) ||
           (what == KVC_TOUCH && ops->touch) || (what == KVC_MISSED && ops->missed) ||
           (what == KVC_QUARANTINE && ops->quarantine) || (what == KVC_PIN && ops->pin) ||
           (what == KVC_EXPECT && ops->expect);
}

static struct background *new_background(struct kvc_store *s, unsigned tier,
                                         enum kvc_background what, const struct kvc_object *o,
                                         size_t n, uint64_t size) {
    struct background *x = n && can(s->tier[tier].ops, what) ? calloc(1, sizeof *x) : NULL;
    if (!x) return NULL;
    x->object = malloc(n * sizeof *o);
    if (!x->object || kvc_queue_add(s, size)) {
        free(x->object);
        free(x);
        return NULL;
    }
    memcpy(x->object, o, n * sizeof *o);
    x->what = what;
    x->n = n;
    x->size = (size_t)size;
    kvc_request_init(&x->base, s, tier, kvc_now() + DEADLINE);
    x->base.run = background_run;
    x->base.clear = background_clear;
    return x;
}

void kvc_store_notify(struct kvc_store *s, unsigned tier, enum kvc_background what,
                      const struct kvc_object *o, size_t n, int64_t value) {
    struct background *x = new_background(s, tier, what, o, n, 0);
    if (!x) return;
    x->value = value;
    if (what == KVC_TOUCH) x->base.workers = s->copier;
    kvc_request_start(&x->base);
    kvc_request_release(&x->base);
}

void kvc_store_connect(struct kvc_store *s, unsigned tier) {
    static const struct kvc_object nothing = {.kind = KVC_OBJECT_CHUNK};
    struct background *x = new_background(s, tier, KVC_CONNECT, &nothing, 1, 0);
    if (!x) return;
    x->base.deadline = kvc_now() + GREETING;
    kvc_request_start(&x->base);
    kvc_request_release(&x->base);
}

int kvc_store_notify_all(struct kvc_store *s, enum kvc_background what, const struct kvc_object *o,
                         size_t n, int64_t value, struct kvc_error *e) {
    int status = 0;
    for (unsigned i = 0; i < s->n_tiers; i++) {
        struct background *x = new_background(s, i, what, o, n, 0);
        if (!x) continue;
        x->value = value;
        kvc_request_start(&x->base);
        if (kvc_request_wait(&x->base, e)) status = -1;
        kvc_request_release(&x->base);
    }
    return status;
}

void kvc_store_backfill(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                        const struct kvc_object *parent, void *data, size_t size) {
    for (unsigned i = tier; i--;) {
        struct background *x = new_background(s, i, KVC_COPY, o, 1, size);
        if (!x) continue;
        if (!i) {
            x->data = data;
            data = NULL;
        } else if ((x->data = malloc(size + 1)) != NULL) {
            memcpy(x->data, data, size);
        }
        x->base.workers = s->copier;
        x->has_parent = parent != NULL;
        if (parent) x->parent = *parent;
        if (x->data) kvc_request_start(&x->base);
        kvc_request_release(&x->base);
    }
    free(data);
}

/* --- bad objects --- */

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
        kvc_store_notify(s, tier, KVC_QUARANTINE, o, 1, 0);
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
