/* hints.c: what a directory store is told of objects: that they were read, missed, pinned, are expected or done with. Not for
 * choosing what is evicted (policy.c). */
#include "formats/store/dir/dir.h"
#include "formats/store/dir/policy.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Gives an object its parent, which the record of a file that was found, or copied from another store, lacks. */
static int set_parent(struct kvc_index_txn *t, const struct kvc_object *chain, size_t i, struct kvc_index_record *r,
                      struct kvc_error *e) {
    const struct kvc_index_record old = *r;
    r->has_parent = 1;
    r->depth = (uint32_t)i;
    memcpy(r->parent, chain[i - 1].key, sizeof r->parent);
    return kvc_index_change(t, chain[i].key, &old, NULL, e) || kvc_index_change(t, chain[i].key, NULL, r, e) ? -1 : 0;
}

/* Notes that the chain was read: all of it at the same time. */
static int touch_records(struct kvc_dir *d, const struct kvc_object *o, size_t n, struct kvc_error *e) {
    struct kvc_index_txn *t = kvc_index_begin(d->index, 1, e);
    struct kvc_index_record r;
    const int64_t now = (int64_t)time(NULL);
    uint64_t bytes = 0;
    int status = t ? 0 : -1;
    if (!status) kvc_policy_begin(t, kvc_dir_limit(d, kvc_index_sums(t)->bytes));
    for (size_t i = 0; i < n && !status; i++) {
        const int found = kvc_index_get(t, o[i].key, &r, e);
        if (found > 0 && !r.ghost) bytes += r.size;
        status = found < 0 ? -1 : 0;
    }
    if (!status) kvc_policy_tick(t, bytes);
    for (size_t i = 0; i < n && !status; i++) {
        const int found = kvc_index_get(t, o[i].key, &r, e);
        if (found < 0) status = -1;
        if (found <= 0 || r.ghost) continue;
        if (i && !r.has_parent) status = set_parent(t, o, i, &r, e);
        if (!status) status = kvc_policy_touch(t, o[i].key, &r, now, e);
    }
    if (!status) return kvc_index_commit(t, e);
    kvc_index_abort(t);
    return -1;
}

int kvc_dir_touch(struct kvc_level *l, const struct kvc_object *o, size_t n, struct kvc_error *e) {
    struct kvc_dir *d = (struct kvc_dir *)l;
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    if (d->index) return touch_records(d, o, n, e);
    for (size_t i = n; i--;) kvc_root_touch(&d->root, &o[i], times); /* the last one first: parents are younger than children */
    return 0;
}

int kvc_dir_missed(struct kvc_level *l, const struct kvc_object *o, size_t n, uint64_t size, struct kvc_error *e) {
    struct kvc_dir *d = (struct kvc_dir *)l;
    struct kvc_index_txn *t = d->index ? kvc_index_begin(d->index, 1, e) : NULL;
    struct kvc_index_record old;
    int status = t || !d->index ? 0 : -1;
    for (size_t i = 0; t && i < n && !status; i++) {
        struct kvc_index_record r = {.kind = (uint8_t)o[i].kind, .size = size, .used = (int64_t)time(NULL), .cost = 1};
        memcpy(r.space, o[i].space, sizeof r.space);
        const int found = kvc_index_get(t, o[i].key, &old, e);
        if (found > 0 && !old.ghost) continue;
        kvc_policy_tick(t, size);
        status = found < 0 ? -1 : kvc_policy_missed(t, o[i].key, found ? &old : NULL, &r, e);
    }
    if (t && !status) return kvc_index_commit(t, e);
    kvc_index_abort(t);
    return status;
}

static int pin_records(struct kvc_dir *d, const struct kvc_object *o, size_t n, int64_t until, struct kvc_error *e) {
    struct kvc_index_txn *t = kvc_index_begin(d->index, 1, e);
    struct kvc_index_record r;
    int status = t ? 0 : -1;
    for (size_t i = 0; i < n && !status; i++) {
        const int found = kvc_index_get(t, o[i].key, &r, e);
        struct kvc_index_record next = r;
        next.pinned = until;
        status = found > 0 && !r.ghost ? kvc_index_change(t, o[i].key, &r, &next, e) : found < 0 ? -1 : 0;
    }
    if (!status) return kvc_index_commit(t, e);
    kvc_index_abort(t);
    return -1;
}

int kvc_dir_pin(struct kvc_level *l, const struct kvc_object *o, size_t n, int64_t until, struct kvc_error *e) {
    struct kvc_dir *d = (struct kvc_dir *)l;
    if (!d->index) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: without an index nothing can be pinned", d->root.path);
    return pin_records(d, o, n, until, e);
}

#define LONGEST_EXPECTED 3600 /* seconds: a promise that nobody keeps must not fill the store */

/* Makes chunks of one conversation alone the first to go, from the last one on: up to where others branch off. */
static int forget_soon(struct kvc_index_txn *t, const struct kvc_object *o, size_t n, struct kvc_error *e) {
    struct kvc_index_record r;
    for (size_t i = n; i--;) {
        const int found = kvc_index_get(t, o[i].key, &r, e);
        if (found < 0) return -1;
        if (!found || r.ghost || r.children > (i + 1 < n)) return 0;
        struct kvc_index_record next = r;
        next.uses = 1;
        next.touched = 0;
        next.pinned = 0;
        if (kvc_index_change(t, o[i].key, &r, &next, e)) return -1;
    }
    return 0;
}

int kvc_dir_expect(struct kvc_level *l, const struct kvc_object *o, size_t n, int64_t seconds, struct kvc_error *e) {
    struct kvc_dir *d = (struct kvc_dir *)l;
    if (!d->index) return 0;
    if (seconds > LONGEST_EXPECTED) seconds = LONGEST_EXPECTED;
    if (seconds) return pin_records(d, o, n, (int64_t)time(NULL) + seconds, e);
    struct kvc_index_txn *t = kvc_index_begin(d->index, 1, e);
    if (!t) return -1;
    if (!forget_soon(t, o, n, e)) return kvc_index_commit(t, e);
    kvc_index_abort(t);
    return -1;
}
