/* room.c: makes room in a directory store: eviction, the trash, files and index brought together. Spec: STORE.md, "Eviction". Not for the
 * choice of what goes (policy.c). */
#include "formats/store/dir/dir.h"
#include "codecs/memory.h"
#include "formats/store/dir/policy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static struct kvc_object object_of(const uint8_t *key, const struct kvc_index_record *r) {
    struct kvc_object o = {.kind = (enum kvc_object_kind)r->kind};
    memcpy(o.space, r->space, sizeof o.space);
    memcpy(o.key, key, sizeof o.key);
    return o;
}

uint64_t kvc_dir_limit(const struct kvc_dir *d, uint64_t bytes) {
    const struct kvc_conf *c = d->root.conf;
    uint64_t limit = c->max_size ? c->max_size : UINT64_MAX;
    struct statvfs fs;
    if (c->min_free > 0 && !fstatvfs(d->root.fd, &fs) && fs.f_blocks) {
        const double block = (double)fs.f_frsize,
                     spare = (double)fs.f_bavail * block - c->min_free / 100 * (double)fs.f_blocks * block;
        const double most = (double)bytes + spare;
        if (most < (double)limit) limit = most > 0 ? (uint64_t)most : 0;
    }
    return limit;
}

int kvc_dir_evict(struct kvc_dir *d, struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *r,
                  struct kvc_error *e) {
    const struct kvc_object o = object_of(key, r);
    if (!kvc_root_trash(&d->root, &o)) kvc_index_sums(t)->trash += r->size;
    else if (errno != ENOENT) return kvc_root_fail(&d->root, errno, "cannot evict an object", e);
    return kvc_policy_evicted(t, key, r, e);
}

int kvc_dir_make_room(struct kvc_dir *d, struct kvc_index_txn *t, uint64_t limit, const struct kvc_policy_choice *choice,
                      struct kvc_error *e) {
    uint8_t key[KVC_OBJECT_KEY];
    struct kvc_index_record r;
    while ((choice->space ? kvc_index_space_bytes(t, choice->space) : kvc_index_sums(t)->bytes) > limit) {
        const int found = kvc_policy_victim(t, choice, key, &r, e);
        if (found < 0) return -1;
        if (!found) {
            kvc_fail(e, KVC_ERR_IO, "%s: there is no room: the limit is %" PRIu64 " bytes, and what is there is pinned",
                     d->root.path, limit);
            if (e) e->severity = KVC_SEVERITY_ITEM; /* of this object: the level itself is well */
            return -1;
        }
        if (choice->own && memcmp(key, choice->own, sizeof key) == 0) return kvc_policy_evicted(t, key, &r, e) ? -1 : 1;
        if (kvc_dir_evict(d, t, key, &r, e)) return -1;
    }
    return 0;
}

int kvc_dir_tidy(struct kvc_dir *d, uint64_t most, struct kvc_error *e) {
    const int64_t now = (int64_t)time(NULL);
    uint64_t gone = 0, left = 0, before = 0;
    if (d->index) {
        struct kvc_index_txn *t = kvc_index_begin(d->index, 0, e);
        if (!t) return -1;
        before = kvc_index_sums(t)->trash;
        kvc_index_abort(t);
        if (!before) return 0;
    }
    const int all = before > most;
    if (!all && __atomic_load_n(&d->trash_seen, __ATOMIC_RELAXED) == now) return 0;
    __atomic_store_n(&d->trash_seen, now, __ATOMIC_RELAXED);
    const int fd = openat(d->root.fd, "trash", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return kvc_root_fail(&d->root, errno, "trash", e);
    int status = 0;
    if (!flock(fd, LOCK_EX | LOCK_NB)) { /* else somebody else does it */
        status = kvc_root_empty_trash(&d->root, all ? -1 : d->root.conf->grace, &gone, &left, e);
        struct kvc_index_txn *t = !status && d->index ? kvc_index_begin(d->index, 1, e) : NULL;
        if (t) { /* what is left, and what others have evicted meanwhile; an object that was evicted twice has one file */
            struct kvc_index_sums *sums = kvc_index_sums(t);
            sums->trash = left + (sums->trash > before ? sums->trash - before : 0);
            status = kvc_index_commit(t, e);
        }
    }
    close(fd);
    return status;
}

int kvc_dir_adopt(struct kvc_index_txn *t, const struct kvc_object *o, const struct kvc_object *parent, const struct stat *st,
                  struct kvc_error *e) {
    struct kvc_index_record old, r = {.kind = (uint8_t)o->kind,
                                      .size = (uint64_t)st->st_size,
                                      .created = st->st_mtim.tv_sec,
                                      .used = st->st_mtim.tv_sec,
                                      .cost = 1};
    const int found = kvc_index_get(t, o->key, &old, e);
    if (found < 0) return -1;
    if (found && !old.ghost) return 0;
    memcpy(r.space, o->space, sizeof r.space);
    if (parent) {
        r.has_parent = 1;
        memcpy(r.parent, parent->key, sizeof r.parent);
    }
    kvc_policy_tick(t, r.size);
    return kvc_policy_insert(t, o->key, found ? &old : NULL, &r, e);
}

/* --- bringing files and index together --- */

struct cleaning {
    struct kvc_dir *d;
    const struct kvc_dir_clean *how;
    struct kvc_dir_counts *counts;
    struct kvc_index_txn *txn;
    uint64_t in_txn;
    struct victims {
        struct victim {
            uint8_t key[KVC_OBJECT_KEY];
            struct kvc_index_record record;
        } * item;
        size_t n;
    } victims;
};

#define BATCH 1024 /* changes in a transaction, so that others wait only shortly */

static int renew(struct cleaning *c, struct kvc_error *e) {
    if (++c->in_txn < BATCH) return 0;
    c->in_txn = 0;
    const int status = kvc_index_commit(c->txn, e);
    c->txn = status ? NULL : kvc_index_begin(c->d->index, 1, e);
    return c->txn ? 0 : -1;
}

static int see_file(void *state, const struct kvc_object *o, const struct stat *st, struct kvc_error *e) {
    struct cleaning *c = state;
    struct kvc_index_record r;
    c->counts->objects++;
    c->counts->bytes += (uint64_t)st->st_size;
    if (o->kind == KVC_OBJECT_SPACE_FACTS) return 0;
    const int found = kvc_index_get(c->txn, o->key, &r, e);
    if (found < 0) return -1;
    if (found && !r.ghost && r.size == (uint64_t)st->st_size) return 0;
    c->counts->adopted++;
    if (c->how->dry_run) return 0;
    if (found && !r.ghost) { /* it was replaced, and its writer was killed before it could say so */
        struct kvc_index_record next = r;
        next.size = (uint64_t)st->st_size;
        return kvc_index_change(c->txn, o->key, &r, &next, e) || renew(c, e) ? -1 : 0;
    }
    return kvc_dir_adopt(c->txn, o, NULL, st, e) || renew(c, e) ? -1 : 0;
}

static int keep_victim(struct cleaning *c, const uint8_t *key, const struct kvc_index_record *r, struct kvc_error *e) {
    struct victims *v = &c->victims;
    struct victim *item = kvc_room_for_one(v->item, v->n, sizeof *item);
    if (!item) return kvc_fail_memory(e, "a list of objects");
    v->item = item;
    memcpy(v->item[v->n].key, key, KVC_OBJECT_KEY);
    v->item[v->n++].record = *r;
    return 0;
}

static int see_lost(void *state, const uint8_t *key, const struct kvc_index_record *r, struct kvc_error *e) {
    struct cleaning *c = state;
    const struct kvc_object o = object_of(key, r);
    struct stat st;
    if (r->ghost || !kvc_root_stat(&c->d->root, &o, &st) || errno != ENOENT) return 0;
    return keep_victim(c, key, r, e);
}

static int see_old(void *state, const uint8_t *key, const struct kvc_index_record *r, struct kvc_error *e) {
    struct cleaning *c = state;
    const int64_t now = (int64_t)time(NULL), age = c->how->older ? c->how->older : c->d->root.conf->max_age;
    if (r->ghost || r->pinned > now) return 0;
    const int expired = r->expires && r->expires <= now;
    return expired || (age && r->used < now - age) ? keep_victim(c, key, r, e) : 0;
}

/* Takes the records that `see` keeps, and gives each to `one`. */
static int each(struct cleaning *c, kvc_index_see *see,
                int (*one)(struct cleaning *c, const struct victim *v, struct kvc_error *e), struct kvc_error *e) {
    c->victims.n = 0;
    int status = kvc_index_walk(c->txn, KVC_LISTS, see, c, e);
    for (size_t i = 0; i < c->victims.n && !status; i++) {
        struct victim v = c->victims.item[i];
        const int found = kvc_index_get(c->txn, v.key, &v.record, e); /* it may have changed between transactions */
        status = found < 0 ? -1 : found && !v.record.ghost ? one(c, &v, e) : 0;
        if (!status && !c->how->dry_run) status = renew(c, e);
    }
    return status;
}

static int forget_lost(struct cleaning *c, const struct victim *v, struct kvc_error *e) {
    c->counts->missing++;
    return c->how->dry_run ? 0 : kvc_index_change(c->txn, v->key, &v->record, NULL, e);
}

static int evict_old(struct cleaning *c, const struct victim *v, struct kvc_error *e) {
    c->counts->expired++;
    c->counts->evicted++;
    c->counts->evicted_bytes += v->record.size;
    return c->how->dry_run ? 0 : kvc_dir_evict(c->d, c->txn, v->key, &v->record, e);
}

/* Evicts down to the limit, a batch in a transaction. */
static int evict_rest(struct cleaning *c, struct kvc_error *e) {
    const struct kvc_policy_choice choice = {.now = (int64_t)time(NULL)};
    uint8_t key[KVC_OBJECT_KEY];
    struct kvc_index_record r;
    uint64_t bytes = kvc_index_sums(c->txn)->bytes;
    const uint64_t limit = c->how->max_size == UINT64_MAX ? kvc_dir_limit(c->d, bytes) : c->how->max_size;
    for (; bytes > limit; bytes = kvc_index_sums(c->txn)->bytes) {
        if (c->how->dry_run) { /* how much, not what: evicting one changes which are leaves */
            c->counts->evicted_bytes += bytes - limit;
            return 0;
        }
        const int found = kvc_policy_victim(c->txn, &choice, key, &r, e);
        if (found <= 0) return found;
        if (kvc_dir_evict(c->d, c->txn, key, &r, e)) return -1;
        c->counts->evicted++;
        c->counts->evicted_bytes += r.size;
        if (renew(c, e)) return -1;
    }
    return 0;
}

static int clean_index(struct cleaning *c, struct kvc_error *e) {
    c->txn = kvc_index_begin(c->d->index, 1, e);
    int status = c->txn ? 0 : -1;
    if (!status) kvc_policy_begin(c->txn, kvc_dir_limit(c->d, kvc_index_sums(c->txn)->bytes));
    if (!status) status = kvc_root_walk(&c->d->root, see_file, c, &c->counts->strangers, e);
    if (!status) status = each(c, see_lost, forget_lost, e);
    if (!status) status = each(c, see_old, evict_old, e);
    if (!status) status = evict_rest(c, e);
    if (status || c->how->dry_run) kvc_index_abort(c->txn);
    else status = kvc_index_commit(c->txn, e);
    return status;
}

/* --- without an index --- */

/* The files of a store, by the time of their last use. */
struct files {
    struct file {
        struct kvc_object object;
        struct timespec used;
        uint64_t size;
    } * item;
    size_t n;
    struct kvc_dir_counts *counts;
};

static int list_file(void *state, const struct kvc_object *o, const struct stat *st, struct kvc_error *e) {
    struct files *f = state;
    f->counts->objects++;
    f->counts->bytes += (uint64_t)st->st_size;
    if (o->kind == KVC_OBJECT_SPACE_FACTS || o->kind == KVC_OBJECT_PROFILE) return 0;
    struct file *item = kvc_room_for_one(f->item, f->n, sizeof *item);
    if (!item) return kvc_fail_memory(e, "a list of objects");
    f->item = item;
    f->item[f->n++] = (struct file){.object = *o, .used = st->st_mtim, .size = (uint64_t)st->st_size};
    return 0;
}

static int by_use(const void *a, const void *b) {
    const struct timespec *x = &((const struct file *)a)->used, *y = &((const struct file *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec;
}

/* Evicts by age alone. Reading makes parents younger than their children, so chains go from their ends. */
static int clean_files(struct kvc_dir *d, const struct kvc_dir_clean *how, struct kvc_dir_counts *counts, struct kvc_error *e) {
    struct files f = {.counts = counts};
    const int64_t now = (int64_t)time(NULL), age = how->older ? how->older : d->root.conf->max_age;
    int status = kvc_root_walk(&d->root, list_file, &f, &counts->strangers, e);
    uint64_t bytes = counts->bytes;
    const uint64_t limit = how->max_size == UINT64_MAX ? kvc_dir_limit(d, bytes) : how->max_size;
    if (f.n) qsort(f.item, f.n, sizeof *f.item, by_use);
    for (size_t i = 0; i < f.n && !status; i++) {
        const int expired = age && f.item[i].used.tv_sec < now - age;
        if (!expired && bytes <= limit) break;
        if (!how->dry_run && kvc_root_trash(&d->root, &f.item[i].object) && errno != ENOENT)
            status = kvc_root_fail(&d->root, errno, "cannot evict an object", e);
        counts->expired += (uint64_t)expired;
        counts->evicted++;
        counts->evicted_bytes += f.item[i].size;
        bytes -= f.item[i].size;
    }
    free(f.item);
    return status;
}

#define SHARE 64 /* of the limit that a process writes before it looks again */

int kvc_dir_keep_limit(struct kvc_dir *d, uint64_t written, struct kvc_error *e) {
    const struct kvc_dir_clean how = {.max_size = UINT64_MAX};
    struct kvc_dir_counts counts;
    const uint64_t sum = __atomic_add_fetch(&d->written, written, __ATOMIC_RELAXED), most = d->root.conf->max_size / SHARE;
    if (!d->root.conf->max_size || sum < most) return 0;
    __atomic_store_n(&d->written, 0, __ATOMIC_RELAXED);
    return kvc_dir_clean(d, &how, &counts, e);
}

int kvc_dir_clean(struct kvc_dir *d, const struct kvc_dir_clean *how, struct kvc_dir_counts *counts, struct kvc_error *e) {
    struct cleaning c = {.d = d, .how = how, .counts = counts};
    uint64_t gone = 0;
    *counts = (struct kvc_dir_counts){0};
    if (kvc_root_refresh(&d->root, e)) return -1;
    int status = d->index ? clean_index(&c, e) : clean_files(d, how, counts, e);
    free(c.victims.item);
    if (!status && !how->dry_run) status = kvc_root_empty_trash(&d->root, d->root.conf->grace, &gone, &counts->trash_bytes, e);
    struct kvc_index_txn *t = !status && d->index && !how->dry_run ? kvc_index_begin(d->index, 1, e) : NULL;
    if (!t) return status;
    kvc_index_sums(t)->trash = counts->trash_bytes;
    if (!kvc_index_set_filled(t, e)) return kvc_index_commit(t, e);
    kvc_index_abort(t);
    return -1;
}
