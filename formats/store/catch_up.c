/* catch_up.c: how a handle finds what the store learnt: by learnt objects of its namespace, of
 * which one links the namespace packed with the profile, so that a handle that was open before
 * finds what another process had moved there. Spec: STORE.md, "Learning". Not for learning
 * (learning.c). */
#include "formats/store/store.h"

#include <stdlib.h>
#include <string.h>

int kvc_learnt_find(struct kvc_store *s, const uint8_t from[KVC_KEY_BYTES],
                    uint8_t sha256[KVC_KEY_BYTES]) {
    const struct kvc_object o = kvc_object_of(KVC_OBJECT_LEARNT, from, from);
    size_t size = 0;
    struct kvc_bytes *bytes = kvc_store_read_object(s, &o, &size, NULL);
    const int status = bytes ? kvc_learnt_read(bytes->data, size, sha256, NULL) : -1;
    kvc_bytes_release(bytes);
    return status;
}

int kvc_learnt_open(struct kvc_store *s, const uint8_t sha256[KVC_KEY_BYTES],
                    struct kvc_profile **p) {
    *p = NULL;
    if (kvc_learnt_is_none(sha256)) return 0;
    *p = kvc_store_profile(s, sha256, NULL);
    if (!*p) *p = kvc_shared_profile_find(sha256, "", NULL);
    return *p ? 0 : -1;
}

int kvc_learnt_is_apart(const struct kvc_store_namespace *ns,
                        const struct kvc_store_namespace *packed) {
    return packed->packs_with && memcmp(packed->hash, ns->hash, sizeof ns->hash) != 0;
}

void kvc_learnt_publish(struct kvc_store_namespace *ns, struct kvc_store_namespace *packed) {
    struct kvc_learn *x = ns->learn;
    struct kvc_store_namespace *none = NULL;
    if (!atomic_compare_exchange_strong(&x->packed, &none, packed)) {
        kvc_store_namespace_close(packed); /* another thread was faster */
        return;
    }
    if (!kvc_learnt_is_apart(ns, packed)) atomic_store(&x->has_unpacked, 0);
    pthread_mutex_lock(&x->lock);
    x->has_run = 0; /* what this process put before is to be moved */
    pthread_mutex_unlock(&x->lock);
}

/* --- what another process learnt meanwhile --- */

/* The link that a walk looks for. */
struct linking {
    const struct kvc_store_namespace *ns;
    struct kvc_object link;
    int found;
};

static int see_link(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    struct linking *l = state;
    (void)size, (void)used;
    if (o->kind != KVC_OBJECT_LEARNT || memcmp(o->key, l->ns->hash, sizeof l->ns->hash) == 0)
        return 0;
    l->link = *o;
    l->found = 1;
    return 1;
}

/* Opens the namespace that the link names; the profile, which it takes over, is the learnt one. */
static struct kvc_store_namespace *open_linked(const struct kvc_store_namespace *ns,
                                               struct kvc_profile *p) {
    const struct kvc_store *s = ns->store;
    struct linking l = {.ns = ns};
    for (unsigned i = 0; i < s->n_tiers && !l.found; i++) {
        struct kvc_tier *t = s->tier[i].tier;
        t->ops->walk(t, ns->hash, see_link, &l, NULL);
    }
    if (l.found) return kvc_namespace_linked(ns, l.link.key, p, NULL);
    kvc_shared_profile_close(p);
    return NULL;
}

void kvc_learnt_catch_up(struct kvc_store_namespace *ns) {
    uint8_t sha256[KVC_KEY_BYTES];
    struct kvc_profile *p;
    if (!ns->learn || atomic_load(&ns->learn->packed) || !ns->store->io ||
        kvc_learnt_find(ns->store, ns->hash, sha256) || kvc_learnt_open(ns->store, sha256, &p) ||
        !p)
        return;
    struct kvc_store_namespace *packed = open_linked(ns, p);
    if (packed) kvc_learnt_publish(ns, packed);
}

struct catching_up {
    struct kvc_task task;
    struct kvc_store_namespace *ns;
};

static void run_catching_up(struct kvc_task *task) {
    struct catching_up *c = (struct catching_up *)task;
    struct kvc_store_namespace *ns = c->ns;
    free(c);
    if (!ns->store->closing) kvc_learnt_catch_up(ns);
    kvc_queue_remove(ns->store, 0);
    kvc_store_namespace_close(ns);
}

int kvc_learner_start(struct kvc_store_namespace *ns, struct kvc_task *task) {
    struct kvc_store *s = ns->store;
    pthread_mutex_lock(&s->lock);
    if (!s->learner) s->learner = kvc_workers_new(1, NULL);
    struct kvc_workers *w = s->learner;
    pthread_mutex_unlock(&s->lock);
    if (!w || kvc_queue_add(s, 0)) return -1;
    kvc_namespace_hold(ns);
    kvc_workers_add(w, task);
    return 0;
}

enum { NEAR = 1000000, FAR = 10000000 }; /* microseconds from one look to the next, by the tier */

void kvc_learnt_catch_up_later(struct kvc_store_namespace *ns) {
    struct kvc_store *s = ns->store;
    kvc_instant before = atomic_load(&ns->learn->seen);
    const kvc_instant now = kvc_now();
    if (s->closing || !s->n_tiers ||
        (before && now - before < (s->tier[0].ops->remote ? FAR : NEAR)) ||
        !atomic_compare_exchange_strong(&ns->learn->seen, &before, now))
        return;
    struct catching_up *c = calloc(1, sizeof *c);
    if (c) *c = (struct catching_up){.task.run = run_catching_up, .ns = ns};
    if (c && kvc_learner_start(ns, &c->task)) free(c);
}
