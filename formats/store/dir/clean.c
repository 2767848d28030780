/* clean.c: brings files and index of a directory store together, and evicts what is too old or
 * too much. Without an index, files go by age. Spec: STORE.md, "Index". Not for what each put
 * evicts (room.c). */
#include "formats/store/dir/dir.h"
#include "codecs/memory.h"
#include "formats/store/dir/policy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct cleaning {
    struct kvc_dir *d;
    const struct kvc_dir_clean *how;
    struct kvc_dir_counts *counts;
    struct kvc_index_txn *txn;
    unsigned in_txn, seen;
    struct victim {
        uint8_t key[KVC_OBJECT_KEY];
        struct kvc_index_record record;
    } * victim;
    size_t n_victims;
};

#define BATCH 256 /* records or files in a transaction, so that others wait only shortly */
#define YIELD 200 /* microseconds for them between two transactions */

static int renew(struct cleaning *c, struct kvc_error *e) {
    if (++c->in_txn < BATCH) return 0;
    c->in_txn = 0;
    if (c->how->dry_run) kvc_index_abort(c->txn);
    const int status = c->how->dry_run ? 0 : kvc_index_commit(c->txn, e);
    usleep(YIELD);
    c->txn = status ? NULL : kvc_index_begin(c->d->index, 1, e);
    return c->txn ? 0 : -1;
}

/* Puts aside what has the name of an object and is no file. */
static int see_stranger(struct kvc_dir *d, const struct kvc_dir_clean *how,
                        const struct kvc_object *o, struct kvc_dir_counts *counts,
                        struct kvc_error *e) {
    counts->strangers++;
    if (how->dry_run || !kvc_root_quarantine(&d->root, o) || errno == ENOENT) return 0;
    return kvc_root_fail(&d->root, errno, "cannot put aside what is no object", e);
}

static int see_file(void *state, const struct kvc_object *o, const struct stat *st,
                    struct kvc_error *e) {
    struct cleaning *c = state;
    struct kvc_index_record r, next;
    if (!S_ISREG(st->st_mode)) return see_stranger(c->d, c->how, o, c->counts, e);
    c->counts->objects++;
    c->counts->bytes += (uint64_t)st->st_size;
    if (o->kind == KVC_OBJECT_NAMESPACE) return 0;
    if (renew(c, e)) return -1;
    const int found = kvc_index_get(c->txn, o->key, &r, e);
    if (found < 0) return -1;
    if (found && !r.ghost && r.size == (uint64_t)st->st_size) return 0;
    c->counts->adopted++;
    if (c->how->dry_run) return 0;
    if (!found || r.ghost) return kvc_dir_adopt(c->txn, o, NULL, st, e);
    next = r; /* it was replaced, and its writer was killed before it could say so */
    next.size = (uint64_t)st->st_size;
    return kvc_index_change(c->txn, o->key, &r, &next, e);
}

static int keep_victim(struct cleaning *c, const uint8_t *key, const struct kvc_index_record *r,
                       struct kvc_error *e) {
    struct victim *v = kvc_room_for_one(c->victim, c->n_victims, sizeof *v);
    if (!v) return kvc_fail_memory(e, "a list of objects");
    c->victim = v;
    v += c->n_victims++;
    memcpy(v->key, key, sizeof v->key);
    v->record = *r;
    return 0;
}

static int see_lost(void *state, const uint8_t *key, const struct kvc_index_record *r,
                    struct kvc_error *e) {
    struct cleaning *c = state;
    const struct kvc_object o = kvc_dir_object(key, r);
    struct stat st;
    const int lost = !r->ghost && kvc_root_stat(&c->d->root, &o, &st) && errno == ENOENT;
    if (lost && keep_victim(c, key, r, e)) return -1;
    return ++c->seen == BATCH;
}

static int see_old(void *state, const uint8_t *key, const struct kvc_index_record *r,
                   struct kvc_error *e) {
    struct cleaning *c = state;
    const int64_t now = (int64_t)time(NULL),
                  age = c->how->older ? c->how->older : c->d->root.conf->max_age;
    const int expired = (r->expires && r->expires <= now) || (age && r->used < now - age);
    if (!r->ghost && r->pinned <= now && expired && keep_victim(c, key, r, e)) return -1;
    return ++c->seen == BATCH;
}

/* Takes the records that `see` keeps, and gives each to `one`: of a batch, then of the next. */
static int each(struct cleaning *c, kvc_index_see *see,
                int (*one)(struct cleaning *c, const struct victim *v, struct kvc_error *e),
                struct kvc_error *e) {
    int64_t from = 0;
    do {
        c->seen = c->in_txn = 0;
        c->n_victims = 0;
        if (kvc_index_walk(c->txn, KVC_LISTS, &from, see, c, e)) return -1;
        for (size_t i = 0; i < c->n_victims; i++)
            if (one(c, &c->victim[i], e)) return -1;
        c->in_txn = BATCH;
        if (renew(c, e)) return -1;
    } while (c->seen == BATCH);
    return 0;
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
    const uint64_t limit = c->how->max_size == UINT64_MAX ? kvc_dir_limit(c->d, bytes)
                                                          : c->how->max_size;
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
    struct kvc_root_strangers strangers = {.n = 0};
    c->txn = kvc_index_begin(c->d->index, 1, e);
    int status = c->txn ? 0 : -1;
    if (!status) kvc_policy_begin(c->txn, kvc_dir_limit(c->d, kvc_index_sums(c->txn)->bytes));
    if (!status) status = kvc_root_walk(&c->d->root, see_file, c, &strangers, e);
    c->counts->strangers += strangers.n;
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
    struct kvc_dir *d;
    const struct kvc_dir_clean *how;
    struct kvc_dir_counts *counts;
};

static int list_file(void *state, const struct kvc_object *o, const struct stat *st,
                     struct kvc_error *e) {
    struct files *f = state;
    if (!S_ISREG(st->st_mode)) return see_stranger(f->d, f->how, o, f->counts, e);
    f->counts->objects++;
    f->counts->bytes += (uint64_t)st->st_size;
    if (o->kind == KVC_OBJECT_NAMESPACE || o->kind == KVC_OBJECT_PROFILE) return 0;
    struct file *item = kvc_room_for_one(f->item, f->n, sizeof *item);
    if (!item) return kvc_fail_memory(e, "a list of objects");
    f->item = item;
    f->item[f->n++] = (struct file){.object = *o,
                                    .used = st->st_mtim,
                                    .size = (uint64_t)st->st_size};
    return 0;
}

static int by_use(const void *a, const void *b) {
    const struct timespec *x = &((const struct file *)a)->used,
                          *y = &((const struct file *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec;
}

/* Evicts by age alone. Reading makes parents younger than their children, so chains go from
 * their ends. */
static int clean_files(struct kvc_dir *d, const struct kvc_dir_clean *how,
                       struct kvc_dir_counts *counts, struct kvc_error *e) {
    struct files f = {.d = d, .how = how, .counts = counts};
    struct kvc_root_strangers strangers;
    const int64_t now = (int64_t)time(NULL), age = how->older ? how->older : d->root.conf->max_age;
    int status = kvc_root_walk(&d->root, list_file, &f, &strangers, e);
    counts->strangers += strangers.n;
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
    const uint64_t sum = __atomic_add_fetch(&d->written, written, __ATOMIC_RELAXED),
                   most = d->root.conf->max_size / SHARE;
    if (!d->root.conf->max_size || sum < most) return 0;
    __atomic_store_n(&d->written, 0, __ATOMIC_RELAXED);
    return kvc_dir_clean(d, &how, &counts, e);
}

static int clean_once(struct kvc_dir *d, const struct kvc_dir_clean *how,
                      struct kvc_dir_counts *counts, struct kvc_error *e) {
    struct cleaning c = {.d = d, .how = how, .counts = counts};
    uint64_t gone;
    *counts = (struct kvc_dir_counts){0};
    int status = d->index ? clean_index(&c, e) : clean_files(d, how, counts, e);
    free(c.victim);
    if (status || how->dry_run) return status;
    if (kvc_root_empty_trash(&d->root, d->root.conf->grace, &gone, &counts->trash_bytes, e))
        return -1;
    if (!d->index) return 0;
    struct kvc_index_txn *t = kvc_index_begin(d->index, 1, e);
    if (!t) return -1;
    kvc_index_sums(t)->trash = counts->trash_bytes;
    kvc_index_sums(t)->filled = 1;
    return kvc_index_commit(t, e);
}

int kvc_dir_clean(struct kvc_dir *d, const struct kvc_dir_clean *how, struct kvc_dir_counts *counts,
                  struct kvc_error *e) {
    const struct kvc_dir_clean usual = {.max_size = UINT64_MAX};
    int made;
    if (kvc_root_refresh(&d->root, e)) return -1;
    if (!clean_once(d, how, counts, e)) return 0;
    if (!d->index || kvc_index_renew(d->index, &made, e)) return -1;
    if (made && how->dry_run && clean_once(d, &usual, counts, e)) return -1;
    return clean_once(d, how, counts, e);
}
