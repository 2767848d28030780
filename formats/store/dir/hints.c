/* hints.c: what a directory store is told of objects: that they were read, missed, pinned, are
 * expected or done with. Not for choosing what is evicted (policy.c). */
#include "formats/store/dir/dir.h"
#include "formats/store/dir/policy.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Gives an object its parent, which the record of a file that was found, or copied from another
 * store, lacks. */
static int set_parent(struct kvc_index_txn *t, const struct kvc_object *chain, size_t i,
                      struct kvc_index_record *r, struct kvc_error *e) {
    const struct kvc_index_record old = *r;
    r->has_parent = 1;
    r->depth = (uint32_t)i;
    memcpy(r->parent, chain[i - 1].key, sizeof r->parent);
    if (kvc_index_change(t, chain[i].key, &old, NULL, e)) return -1;
    if (kvc_index_change(t, chain[i].key, NULL, r, e)) return -1;
    return 0;
}

/* What a hint is about. */
struct hint {
    const struct kvc_object *o;
    size_t n;
    uint64_t size;
    int64_t until;
    int hint; /* a pin that is there may be stronger */
};

/* Notes that the chain was read: all of it at the same time. */
static int touch_records(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                         struct kvc_error *e) {
    const struct hint *h = state;
    struct kvc_index_record r;
    const int64_t now = (int64_t)time(NULL);
    uint64_t bytes = 0;
    kvc_policy_begin(t, kvc_dir_limit_of(d, t));
    for (size_t i = 0; i < h->n; i++) {
        const int found = kvc_index_get(t, h->o[i].key, &r, e);
        if (found < 0) return -1;
        if (found && !r.ghost) bytes += r.size;
    }
    kvc_policy_tick(t, bytes);
    for (size_t i = 0; i < h->n; i++) {
        const int found = kvc_index_get(t, h->o[i].key, &r, e);
        if (found < 0) return -1;
        if (!found || r.ghost) continue;
        if (i && !r.has_parent && set_parent(t, h->o, i, &r, e)) return -1;
        if (kvc_policy_touch(t, h->o[i].key, &r, now, e)) return -1;
    }
    return 0;
}

int kvc_dir_touch(struct kvc_tier *l, const struct kvc_object *o, size_t n, struct kvc_error *e) {
    struct kvc_dir *d = (struct kvc_dir *)l;
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    struct hint h = {.o = o, .n = n};
    if (d->index) return kvc_dir_run(d, 1, INT64_MAX, touch_records, &h, e);
    /* the last one first: parents are younger than children */
    for (size_t i = n; i--;) kvc_root_touch(&d->root, &o[i], times);
    return 0;
}

static int remember_missed(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                           struct kvc_error *e) {
    const struct hint *h = state;
    struct kvc_index_record old;
    (void)d;
    for (size_t i = 0; i < h->n; i++) {
        const struct kvc_object *o = &h->o[i];
        struct kvc_index_record r = {.kind = (uint8_t)o->kind,
                                     .size = h->size,
                                     .used = (int64_t)time(NULL),
                                     .cost = 1};
        memcpy(r.ns, o->ns, sizeof r.ns);
        const int found = kvc_index_get(t, o->key, &old, e);
        if (found < 0) return -1;
        if (found && !old.ghost) continue;
        kvc_policy_tick(t, h->size);
        if (kvc_policy_missed(t, o->key, found ? &old : NULL, &r, e)) return -1;
    }
    return 0;
}

int kvc_dir_missed(struct kvc_tier *l, const struct kvc_object *o, size_t n, uint64_t size,
                   struct kvc_error *e) {
    struct kvc_dir *d = (struct kvc_dir *)l;
    struct hint h = {.o = o, .n = n, .size = size};
    return d->index ? kvc_dir_run(d, 1, INT64_MAX, remember_missed, &h, e) : 0;
}

static int pin_records(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                       struct kvc_error *e) {
    const struct hint *h = state;
    struct kvc_index_record r;
    (void)d;
    for (size_t i = 0; i < h->n; i++) {
        const int found = kvc_index_get(t, h->o[i].key, &r, e);
        struct kvc_index_record next = r;
        if (!h->hint || next.pinned < h->until) next.pinned = h->until;
        if (found < 0 || (found && !r.ghost && kvc_index_change(t, h->o[i].key, &r, &next, e)))
            return -1;
    }
    return 0;
}

int kvc_dir_pin(struct kvc_tier *l, const struct kvc_object *o, size_t n, int64_t until,
                struct kvc_error *e) {
    struct kvc_dir *d = (struct kvc_dir *)l;
    if (!d->index)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: without an index nothing can be pinned",
                        d->root.path);
    struct hint h = {.o = o, .n = n, .until = until};
    return kvc_dir_run(d, 1, INT64_MAX, pin_records, &h, e);
}

#define LONGEST_EXPECTED 3600 /* seconds: a promise that nobody keeps must not fill the store */

/* Makes chunks of one conversation alone the first to go, from the last one on: up to where others
 * branch off. */
static int forget_soon(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                       struct kvc_error *e) {
    const struct hint *h = state;
    struct kvc_index_record r;
    (void)d;
    for (size_t i = h->n; i--;) {
        const int found = kvc_index_get(t, h->o[i].key, &r, e);
        if (found < 0) return -1;
        if (!found || r.ghost || r.children > (i + 1 < h->n)) return 0;
        struct kvc_index_record next = r;
        next.uses = 1;
        next.touched = 0;
        if (next.pinned != INT64_MAX) next.pinned = 0; /* for good: that was no hint */
        if (kvc_index_change(t, h->o[i].key, &r, &next, e)) return -1;
    }
    return 0;
}

int kvc_dir_expect(struct kvc_tier *l, const struct kvc_object *o, size_t n, int64_t seconds,
                   struct kvc_error *e) {
    struct kvc_dir *d = (struct kvc_dir *)l;
    if (seconds > LONGEST_EXPECTED) seconds = LONGEST_EXPECTED;
    struct hint h = {.o = o, .n = n, .until = (int64_t)time(NULL) + seconds, .hint = 1};
    return d->index ? kvc_dir_run(d, 1, INT64_MAX, seconds ? pin_records : forget_soon, &h, e) : 0;
}
