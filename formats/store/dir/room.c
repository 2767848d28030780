/* room.c: keeps a directory store within its limits: transactions of the index, which make a broken
 * one anew; room for each put; cleaning, which brings files and index together and evicts what is
 * too old or too much; and the trash. Without an index, files go by age. Spec: STORE.md, "Index",
 * "Eviction". Not for the choice of what goes (policy.c). */
#include "formats/store/dir/dir.h"

#include "codecs/memory.h"
#include "formats/store/dir/below.h"
#include "formats/store/dir/policy.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static struct kvc_object object_of(const uint8_t *key, const struct kvc_index_record *r) {
    return kvc_object_of((enum kvc_object_kind)r->kind, r->ns, key);
}

/* Returns the bytes of the file system that may still be taken; less than 0: too many are. */
static double spare_bytes(const struct kvc_dir *d) {
    const double min_free = d->root.conf->min_free;
    struct statvfs fs;
    if (min_free <= 0 || fstatvfs(d->root.fd, &fs) || !fs.f_blocks) return HUGE_VAL;
    const double block = (double)fs.f_frsize;
    return (double)fs.f_bavail * block - min_free / 100 * (double)fs.f_blocks * block;
}

uint64_t kvc_dir_limit(const struct kvc_dir *d, uint64_t bytes, uint64_t trash) {
    const struct kvc_conf *c = d->root.conf;
    const uint64_t limit = c->max_size ? c->max_size : UINT64_MAX;
    const double most = (double)bytes + (double)trash + spare_bytes(d);
    if (most >= (double)limit) return limit;
    return most > 0 ? (uint64_t)most : 0;
}

uint64_t kvc_dir_limit_of(const struct kvc_dir *d, struct kvc_index_txn *t) {
    const struct kvc_index_sums *s = kvc_index_sums(t);
    return kvc_dir_limit(d, s->bytes, s->trash);
}

/* Moves an object to the trash, and makes its record a ghost. */
static int evict(struct kvc_dir *d, struct kvc_index_txn *t, const uint8_t *key,
                 const struct kvc_index_record *r, struct kvc_error *e) {
    const struct kvc_object o = object_of(key, r);
    if (!kvc_root_trash(&d->root, &o)) kvc_index_sums(t)->trash += r->size;
    else if (errno != ENOENT) return kvc_root_fail(&d->root, errno, "cannot evict an object", e);
    return kvc_policy_evicted(t, key, r, e);
}

int kvc_dir_make_room(struct kvc_dir *d, struct kvc_index_txn *t, uint64_t limit,
                      const struct kvc_policy_choice *choice, struct kvc_error *e) {
    uint8_t key[KVC_OBJECT_KEY];
    struct kvc_index_record r;
    while ((choice->ns ? kvc_index_namespace_bytes(t, choice->ns) : kvc_index_sums(t)->bytes) >
           limit) {
        const int found = kvc_policy_victim(t, choice, key, &r, e);
        if (found < 0) return -1;
        if (!found) {
            kvc_fail(e, KVC_ERR_IO,
                     "%s: there is no room: the limit is %" PRIu64
                     " bytes, and what is there is pinned",
                     d->root.path, limit);
            if (e) e->severity = KVC_SEVERITY_ITEM; /* of this object: the tier itself is well */
            return -1;
        }
        if (choice->own && memcmp(key, choice->own, sizeof key) == 0)
            return kvc_policy_evicted(t, key, &r, e) ? -1 : 1;
        if (evict(d, t, key, &r, e)) return -1;
    }
    return 0;
}

#define AHEAD 60 /* seconds: a use that is so far ahead was before the clock was set back */

/* Returns when a file was used: not later than now, or it would be young for as long as its time is
 * ahead. */
static int64_t used_at(int64_t time_of_file, int64_t now) {
    return time_of_file > now + AHEAD ? now : time_of_file;
}

int kvc_dir_adopt(struct kvc_index_txn *t, const struct kvc_object *o,
                  const struct kvc_object *parent, const struct stat *st, struct kvc_error *e) {
    const int64_t used = used_at(st->st_mtim.tv_sec, (int64_t)time(NULL));
    struct kvc_index_record old, r = {.kind = (uint8_t)o->kind,
                                      .size = (uint64_t)st->st_size,
                                      .created = used,
                                      .used = used,
                                      .pinned = kvc_dir_pinned(o),
                                      .cost = 1};
    const int found = kvc_index_get(t, o->key, &old, e);
    if (found < 0) return -1;
    if (found && !old.ghost) return 0;
    memcpy(r.ns, o->ns, sizeof r.ns);
    if (parent) {
        r.has_parent = 1;
        memcpy(r.parent, parent->key, sizeof r.parent);
    }
    kvc_policy_tick(t, r.size);
    return kvc_policy_insert(t, o->key, found ? &old : NULL, &r, e);
}

/* --- cleaning --- */

struct cleaning {
    struct kvc_dir *d;
    const struct kvc_store_clean_options *how;
    struct kvc_store_cleaned *counts;
    struct kvc_index_txn *txn;
    unsigned in_txn, seen;
    struct victim {
        uint8_t key[KVC_OBJECT_KEY];
        struct kvc_index_record record;
    } * victim;
    size_t n_victims;
    /* without an index: by the time of their last use */
    struct file {
        struct kvc_object object;
        struct timespec used;
        uint64_t size;
    } * file;
    size_t n_files;
};

enum { CLEAN_TRIES = 8 };
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
static int see_stranger(struct cleaning *c, const struct kvc_object *o, struct kvc_error *e) {
    c->counts->strangers++;
    if (c->how->dry_run || !kvc_root_quarantine(&c->d->root, o) || errno == ENOENT) return 0;
    return kvc_root_fail(&c->d->root, errno, "cannot put aside what is no object", e);
}

static int see_file(void *state, const struct kvc_object *o, const struct stat *st,
                    struct kvc_error *e) {
    struct cleaning *c = state;
    struct kvc_index_record r, next;
    if (!S_ISREG(st->st_mode)) return see_stranger(c, o, e);
    c->counts->objects++;
    c->counts->bytes += (uint64_t)st->st_size;
    if (kvc_object_is_facts(o->kind)) return 0;
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
    const struct kvc_object o = object_of(key, r);
    struct stat st;
    const int lost = !r->ghost && kvc_root_stat(&c->d->root, &o, &st) && errno == ENOENT;
    if (lost && keep_victim(c, key, r, e)) return -1;
    return ++c->seen == BATCH;
}

static int is_expired(const struct cleaning *c, const struct kvc_index_record *r, int64_t now) {
    const int64_t age = c->how->older ? c->how->older : c->d->root.conf->max_age;
    const int expired = (r->expires && r->expires <= now) || (age && r->used < now - age);
    return r->pinned <= now && expired;
}

static int see_old(void *state, const uint8_t *key, const struct kvc_index_record *r,
                   struct kvc_error *e) {
    struct cleaning *c = state;
    const int64_t now = (int64_t)time(NULL);
    const int due = is_expired(c, r, now) || used_at(r->used, now) != r->used;
    if (!r->ghost && due && keep_victim(c, key, r, e)) return -1;
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

/* Evicts what is too old; what was used after now counts as used now. */
static int evict_old(struct cleaning *c, const struct victim *v, struct kvc_error *e) {
    const int64_t now = (int64_t)time(NULL);
    struct kvc_index_record next = v->record;
    if (!is_expired(c, &v->record, now)) {
        next.used = used_at(next.used, now);
        return c->how->dry_run ? 0 : kvc_index_change(c->txn, v->key, &v->record, &next, e);
    }
    c->counts->expired++;
    c->counts->evicted++;
    c->counts->evicted_bytes += v->record.size;
    return c->how->dry_run ? 0 : evict(c->d, c->txn, v->key, &v->record, e);
}

/* Evicts down to the limit, a batch in a transaction. */
static int evict_rest(struct cleaning *c, struct kvc_error *e) {
    const struct kvc_policy_choice choice = {.now = (int64_t)time(NULL)};
    uint8_t key[KVC_OBJECT_KEY];
    struct kvc_index_record r;
    uint64_t bytes = kvc_index_sums(c->txn)->bytes;
    const uint64_t limit = c->how->evict ? c->how->max_size : kvc_dir_limit_of(c->d, c->txn);
    if (c->how->dry_run) { /* how much, not what: evicting one changes which are leaves */
        const uint64_t old = c->counts->evicted_bytes; /* of what is too old, and still there */
        if (bytes > limit && bytes - limit > old) c->counts->evicted_bytes = bytes - limit;
        return 0;
    }
    for (; bytes > limit; bytes = kvc_index_sums(c->txn)->bytes) {
        const int found = kvc_policy_victim(c->txn, &choice, key, &r, e);
        if (found <= 0) return found;
        if (evict(c->d, c->txn, key, &r, e)) return -1;
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
    if (!status) kvc_policy_begin(c->txn, kvc_dir_limit_of(c->d, c->txn));
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

/* Has a file that was used after now count as used now, from now on. */
static void take_back_time(const struct cleaning *c, struct file *f) {
    struct timespec now, times[2] = {{.tv_nsec = UTIME_OMIT}};
    clock_gettime(CLOCK_REALTIME, &now);
    if (used_at(f->used.tv_sec, now.tv_sec) == f->used.tv_sec) return;
    f->used = times[1] = now;
    if (!c->how->dry_run) kvc_root_touch(&c->d->root, &f->object, times);
}

static int list_file(void *state, const struct kvc_object *o, const struct stat *st,
                     struct kvc_error *e) {
    struct cleaning *c = state;
    if (!S_ISREG(st->st_mode)) return see_stranger(c, o, e);
    c->counts->objects++;
    c->counts->bytes += (uint64_t)st->st_size;
    if (!kvc_object_is_cache(o->kind)) return 0;
    struct file *file = kvc_room_for_one(c->file, c->n_files, sizeof *file);
    if (!file) return kvc_fail_memory(e, "a list of objects");
    c->file = file;
    file[c->n_files] = (struct file){*o, st->st_mtim, (uint64_t)st->st_size};
    take_back_time(c, &file[c->n_files++]);
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
static int clean_files(struct cleaning *c, struct kvc_error *e) {
    const struct kvc_root *root = &c->d->root;
    struct kvc_store_cleaned *counts = c->counts;
    struct kvc_root_strangers strangers;
    const int64_t now = (int64_t)time(NULL),
                  age = c->how->older ? c->how->older : root->conf->max_age;
    uint64_t gone, trash = 0;
    int status = kvc_root_walk(root, list_file, c, &strangers, e);
    counts->strangers += strangers.n;
    if (!status && !c->how->dry_run)
        status = kvc_root_empty_trash(root, root->conf->grace, &gone, &trash, e);
    uint64_t bytes = counts->bytes;
    const uint64_t limit = c->how->evict ? c->how->max_size : kvc_dir_limit(c->d, bytes, trash);
    if (c->n_files) qsort(c->file, c->n_files, sizeof *c->file, by_use);
    for (size_t i = 0; i < c->n_files && !status; i++) {
        const struct file *f = &c->file[i];
        const int expired = age && f->used.tv_sec < now - age;
        if (!expired && bytes <= limit) break;
        if (!c->how->dry_run && kvc_root_trash(root, &f->object) && errno != ENOENT)
            status = kvc_root_fail(root, errno, "cannot evict an object", e);
        counts->expired += (uint64_t)expired;
        counts->evicted++;
        counts->evicted_bytes += f->size;
        bytes -= f->size;
    }
    return status;
}

#define SHARE 64 /* of the limit that a process writes before it looks again */

int kvc_dir_keep_limit(struct kvc_dir *d, uint64_t written, struct kvc_error *e) {
    const uint64_t sum = __atomic_add_fetch(&d->written, written, __ATOMIC_RELAXED),
                   most = d->root.conf->max_size / SHARE;
    if (!d->root.conf->max_size || sum < most) return 0;
    __atomic_store_n(&d->written, 0, __ATOMIC_RELAXED);
    return kvc_dir_fill(d, e);
}

static int clean_once(struct kvc_dir *d, const struct kvc_store_clean_options *how,
                      struct kvc_store_cleaned *counts, struct kvc_error *e) {
    struct cleaning c = {.d = d, .how = how, .counts = counts};
    uint64_t gone;
    *counts = (struct kvc_store_cleaned){0};
    int status = d->index ? clean_index(&c, e) : clean_files(&c, e);
    free(c.victim);
    free(c.file);
    if (status || how->dry_run) return status;
    if (kvc_root_empty_trash(&d->root, d->root.conf->grace, &gone, &counts->trash_bytes, e))
        return -1;
    kvc_root_remove_temporary(&d->root);
    if (!d->index) return 0;
    struct kvc_index_txn *t = kvc_index_begin(d->index, 1, e);
    if (!t) return -1;
    kvc_index_sums(t)->trash = counts->trash_bytes;
    kvc_index_sums(t)->filled = 1;
    return kvc_index_commit(t, e);
}

int kvc_dir_clean(struct kvc_tier *l, const struct kvc_store_clean_options *how,
                  struct kvc_store_cleaned *counts, struct kvc_error *e) {
    static const struct kvc_store_clean_options usual = {.evict = 0};
    struct kvc_dir *d = (struct kvc_dir *)l;
    if (kvc_root_refresh(&d->root, e)) return -1;
    /* the index may be deleted again and again meanwhile */
    for (int tries = 0, made = 1;; tries++) {
        if (!clean_once(d, how, counts, e)) return 0;
        if (!d->index || !made || tries == CLEAN_TRIES) return -1;
        if (kvc_index_renew(d->index, &made, e)) return -1;
        if (made && how->dry_run && clean_once(d, &usual, counts, e)) return -1;
    }
}

/* --- transactions --- */

int kvc_dir_fill(struct kvc_dir *d, struct kvc_error *e) {
    struct kvc_store_cleaned counts;
    return kvc_dir_clean(&d->tier, &(struct kvc_store_clean_options){.evict = 0}, &counts, e);
}

int kvc_dir_run(struct kvc_dir *d, int writes, kvc_instant deadline, kvc_dir_work *work,
                void *state, struct kvc_error *e) {
    struct kvc_index *ix = writes ? d->index : d->reader;
    for (int tries = 0, made;; tries++) {
        struct kvc_index_txn *t = kvc_index_begin_until(ix, writes, deadline, e);
        int status = t ? work(d, t, state, e) : -1;
        if (t && status) kvc_index_abort(t);
        else if (t) status = kvc_index_commit(t, e);
        if (!status || tries) return status;
        if (kvc_index_renew(ix, &made, e) || (made && kvc_dir_fill(d, e))) return -1;
        if (e) e->code = KVC_OK;
    }
}

/* --- the trash --- */

/* What is known of the trash. */
struct tidying {
    uint64_t before, limit, left;
};

static int ask_trash(struct kvc_dir *d, struct kvc_index_txn *t, void *state, struct kvc_error *e) {
    struct tidying *x = state;
    (void)e;
    x->before = kvc_index_sums(t)->trash;
    x->limit = kvc_dir_limit_of(d, t);
    return 0;
}

/* Takes what is left, and what others have evicted meanwhile; an object that was evicted twice
 * has one file. */
static int note_trash(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                      struct kvc_error *e) {
    const struct tidying *x = state;
    struct kvc_index_sums *sums = kvc_index_sums(t);
    (void)d, (void)e;
    sums->trash = x->left + (sums->trash > x->before ? sums->trash - x->before : 0);
    return 0;
}

static int empty_trash(struct kvc_dir *d, int64_t grace, struct tidying *x, struct kvc_error *e) {
    uint64_t gone;
    const int fd = kvc_below_folder(d->root.fd, "trash");
    if (fd < 0) return kvc_root_fail(&d->root, errno, "trash", e);
    int status = 0;
    if (!flock(fd, LOCK_EX | LOCK_NB)) { /* else somebody else does it */
        status = kvc_root_empty_trash(&d->root, grace, &gone, &x->left, e);
        if (!status) status = kvc_dir_run(d, 1, INT64_MAX, note_trash, x, e);
    }
    close(fd);
    return status;
}

int kvc_dir_tidy(struct kvc_dir *d, struct kvc_error *e) {
    const int64_t now = (int64_t)time(NULL);
    struct tidying x = {.before = 0};
    if (kvc_dir_run(d, 0, INT64_MAX, ask_trash, &x, e)) return -1;
    const int all = x.before > x.limit / 20;
    if (!x.before || (!all && __atomic_load_n(&d->trash_seen, __ATOMIC_RELAXED) == now)) return 0;
    __atomic_store_n(&d->trash_seen, now, __ATOMIC_RELAXED);
    return empty_trash(d, all ? -1 : d->root.conf->grace, &x, e);
}

/* Evicts until an object of *state bytes would leave as much free as is to stay free; what is
 * pinned stays. */
static int evict_for(struct kvc_dir *d, struct kvc_index_txn *t, void *state, struct kvc_error *e) {
    const struct kvc_policy_choice choice = {.now = (int64_t)time(NULL)};
    const uint64_t *size = state, limit = kvc_dir_limit_of(d, t);
    kvc_policy_begin(t, limit);
    const int status = kvc_dir_make_room(d, t, limit > *size ? limit - *size : 0, &choice, e);
    return status && e->severity != KVC_SEVERITY_ITEM ? -1 : 0;
}

int kvc_dir_free_disk(struct kvc_dir *d, uint64_t size) {
    struct tidying x = {.before = 0};
    struct kvc_error e;
    uint64_t gone;
    if (spare_bytes(d) >= 0) return -1;
    if (!d->index)
        return kvc_dir_fill(d, &e) || kvc_root_empty_trash(&d->root, -1, &gone, &x.left, &e) ? -1
                                                                                             : 0;
    if (kvc_dir_run(d, 1, INT64_MAX, evict_for, &size, &e)) return -1;
    return kvc_dir_run(d, 0, INT64_MAX, ask_trash, &x, &e) || empty_trash(d, -1, &x, &e) ? -1 : 0;
}
