/* dir.c: the functions of the directory level. Spec: STORE.md, "Directory". Not for eviction (room.c). */
#include "formats/store/dir/dir.h"

#include "formats/io/sink.h"
#include "formats/store/dir/policy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_OBJECT (UINT64_C(1) << 36) /* bytes; a larger file is no object */

static struct kvc_dir *dir_of(struct kvc_level *l) {
    return (struct kvc_dir *)l;
}

static void close_dir(struct kvc_level *l) {
    struct kvc_dir *d = dir_of(l);
    kvc_index_close(d->index);
    kvc_root_close(&d->root);
    free(d);
}

/* Fills a new index from the files that are there already. */
static int fill(struct kvc_dir *d, struct kvc_error *e) {
    struct kvc_dir_counts counts;
    return kvc_dir_clean(d, &(struct kvc_dir_clean){.max_size = UINT64_MAX}, &counts, e);
}

static struct kvc_level *open_dir(struct kvc_url *url, struct kvc_error *e) {
    struct kvc_dir *d = calloc(1, sizeof *d);
    int made = 0;
    if (!d) {
        kvc_fail_memory(e, "a store");
        return NULL;
    }
    d->level.ops = &kvc_level_dir;
    d->root.fd = -1;
    int status = kvc_root_open(&d->root, url, e);
    if (!status) status = kvc_url_rest(url, e);
    if (!status && d->root.local && d->root.conf->indexed) {
        d->index = kvc_index_open(d->root.path, d->root.conf->durability != KVC_DURABLE_NONE, &made, e);
        status = d->index ? 0 : -1;
    }
    if (!status && made) status = fill(d, e);
    if (!status) return &d->level;
    close_dir(&d->level);
    return NULL;
}

/* Takes what has changed since the last call: the configuration, and an index that was deleted. */
static int refresh(struct kvc_dir *d, struct kvc_error *e) {
    int made = 0;
    if (kvc_root_refresh(&d->root, e) || (d->index && kvc_index_renew(d->index, &made, e))) return -1;
    return made ? fill(d, e) : 0;
}

/* --- finding --- */

static int is_alive(const struct kvc_index_record *r, int64_t now, int64_t max_age) {
    return !r->ghost && !(r->expires && r->expires <= now) && !(max_age && r->used < now - max_age);
}

/* Counts those that the index has. */
static int find_indexed(struct kvc_dir *d, const struct kvc_object *o, size_t n, size_t *found, uint64_t *size, int *dead,
                        struct kvc_error *e) {
    const int64_t now = (int64_t)time(NULL);
    struct kvc_index_txn *t = kvc_index_begin(d->index, 0, e);
    struct kvc_index_record r;
    int status = t ? 1 : -1;
    while (*found < n && status > 0) {
        status = kvc_index_get(t, o[*found].key, &r, e);
        *dead = status > 0 && !r.ghost && !is_alive(&r, now, d->root.conf->max_age);
        if (status > 0 && !is_alive(&r, now, d->root.conf->max_age)) status = 0;
        if (status > 0) size[(*found)++] = r.size;
    }
    kvc_index_abort(t);
    return status < 0 ? -1 : 0;
}

/* Files come and go while the index is locked for writing: only then is known whether there is one. */
static int adopt_one(struct kvc_dir *d, const struct kvc_object *o, const struct kvc_object *parent, struct kvc_error *e) {
    struct kvc_index_txn *t = kvc_index_begin(d->index, 1, e);
    struct stat st;
    if (!t) return -1;
    const int gone = kvc_root_stat(&d->root, o, &st);
    if (!gone && !kvc_dir_adopt(t, o, parent, &st, e)) return kvc_index_commit(t, e);
    kvc_index_abort(t);
    return gone ? 0 : -1;
}

/* Counts the files. */
static void find_files(struct kvc_dir *d, const struct kvc_object *o, size_t n, size_t *found, uint64_t *size) {
    struct stat st;
    while (*found < n && !kvc_root_stat(&d->root, &o[*found], &st)) size[(*found)++] = (uint64_t)st.st_size;
}

static int find(struct kvc_level *l, const struct kvc_object *o, size_t n, kvc_instant deadline, size_t *found, uint64_t *size,
                struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    struct stat st;
    int dead = 0;
    (void)deadline;
    *found = 0;
    if (refresh(d, e)) return -1;
    if (!d->index || (n && o->kind == KVC_OBJECT_SPACE_FACTS)) {
        find_files(d, o, n, found, size);
        return 0;
    }
    for (;;) {
        if (find_indexed(d, o, n, found, size, &dead, e)) return -1;
        /* A file that the index lacks was written by a process that was killed before it could say so. */
        if (*found == n || dead || kvc_root_stat(&d->root, &o[*found], &st)) return 0;
        if (adopt_one(d, &o[*found], *found ? &o[*found - 1] : NULL, e)) return -1;
    }
}

/* --- reading --- */

/* Reads all of a file. NULL with *e; an object that is not there leaves *missing 1. */
static void *read_object(struct kvc_dir *d, const struct kvc_object *o, size_t *size, int *missing, struct kvc_error *e) {
    struct stat st;
    const int fd = kvc_root_read(&d->root, o, &st);
    *missing = fd < 0 && errno == ENOENT;
    if (fd < 0) {
        if (!*missing) kvc_root_fail(&d->root, errno, "cannot read an object", e);
        return NULL;
    }
    uint8_t *data = NULL;
    size_t at = 0;
    if (st.st_size < 0 || (uint64_t)st.st_size > MAX_OBJECT)
        kvc_fail(e, KVC_ERR_DAMAGED, "%s: an object has %" PRId64 " bytes", d->root.path, (int64_t)st.st_size);
    else if (!(data = malloc((size_t)st.st_size + 1))) kvc_fail_memory(e, "an object");
    while (data && at < (size_t)st.st_size) {
        const ssize_t got = pread(fd, data + at, (size_t)st.st_size - at, (off_t)at);
        if (got > 0) at += (size_t)got;
        if (got > 0 || (got < 0 && errno == EINTR)) continue;
        if (got) kvc_root_fail(&d->root, errno, "cannot read an object", e);
        else kvc_fail(e, KVC_ERR_DAMAGED, "%s: an object became shorter", d->root.path);
        free(data);
        data = NULL;
    }
    close(fd);
    *size = at;
    return data;
}

/* Removes the record of a file that is gone, unless it has been put again. */
static void forget(struct kvc_dir *d, const struct kvc_object *o) {
    struct kvc_index_record r;
    struct stat st;
    struct kvc_index_txn *t = d->index ? kvc_index_begin(d->index, 1, NULL) : NULL;
    if (!t) return;
    if (kvc_root_stat(&d->root, o, &st) && kvc_index_get(t, o->key, &r, NULL) > 0 && !r.ghost &&
        !kvc_index_change(t, o->key, &r, NULL, NULL))
        kvc_index_commit(t, NULL);
    else kvc_index_abort(t);
}

static int get(struct kvc_level *l, const struct kvc_object *o, size_t n, kvc_instant deadline, kvc_level_take *take, void *state,
               struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    for (size_t i = 0; i < n; i++) {
        struct kvc_error why;
        size_t size = 0;
        int missing = 0;
        if (kvc_now() > deadline) {
            kvc_fail(e, KVC_ERR_IO, "%s: the deadline is over", d->root.path);
            return -1;
        }
        void *data = read_object(d, &o[i], &size, &missing, &why);
        if (missing) forget(d, &o[i]);
        if (take(state, i, data, size, data || missing ? NULL : &why)) return 0;
        if (!data && !missing && why.severity == KVC_SEVERITY_RETRY) {
            if (e) *e = why;
            return -1;
        }
    }
    return 0;
}

/* --- writing --- */

/* Without an index, files go by their times: a chunk must go before the one before it. */
static void make_older(const struct kvc_dir *d, const struct kvc_root_file *f, const struct kvc_object *parent) {
    struct stat st;
    if (kvc_root_stat(&d->root, parent, &st)) return;
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st.st_mtim};
    times[1].tv_nsec -= 1000;
    if (times[1].tv_nsec < 0) {
        times[1].tv_nsec += 1000000000;
        times[1].tv_sec--;
    }
    futimens(f->fd, times);
}

static int write_object(struct kvc_dir *d, const struct kvc_root_file *f, const struct kvc_object *parent, const void *data,
                        size_t size, struct kvc_error *e) {
    if (kvc_write_all(f->fd, data, size)) return kvc_root_fail(&d->root, errno, "cannot write an object", e);
    if (!d->index && parent) make_older(d, f, parent);
    if (d->root.conf->durability != KVC_DURABLE_NONE && fdatasync(f->fd))
        return kvc_root_fail(&d->root, errno, "cannot write an object", e);
    return 0;
}

/* Makes the folder durable that the object's name is in. */
static int sync_name(struct kvc_dir *d, const struct kvc_object *o, struct kvc_error *e) {
    char path[KVC_ROOT_PATH];
    if (d->root.conf->durability != KVC_DURABLE_FULL) return 0;
    kvc_root_path(o, path);
    return kvc_root_sync(&d->root, path, e);
}

/* Fails for this object: the level itself is well. */
static int refuse(struct kvc_error *e) {
    if (e) e->severity = KVC_SEVERITY_ITEM;
    return -1;
}

/* Refuses a chunk whose parent is gone: nobody could find it. */
static int check_parent(struct kvc_dir *d, struct kvc_index_txn *t, const struct kvc_object *parent, struct kvc_error *e) {
    struct kvc_index_record r;
    struct stat st;
    const int found = kvc_index_get(t, parent->key, &r, e);
    if (found < 0) return -1;
    if (found && !r.ghost) return 0;
    if (!kvc_root_stat(&d->root, parent, &st)) return kvc_dir_adopt(t, parent, NULL, &st, e);
    kvc_fail(e, KVC_ERR_IO, "%s: the chunk before it has been evicted", d->root.path);
    return refuse(e);
}

/* What a put knows of its object. */
struct putting {
    const struct kvc_object *o;
    const struct kvc_level_put *how;
    uint64_t size;
    struct kvc_root_file file;
    const struct kvc_index_record *old; /* what is known of the key; NULL: nothing */
    int resident;                       /* it has a file */
    int *there, taken_back;
};

static struct kvc_index_record record_of(const struct putting *p) {
    const int64_t now = (int64_t)time(NULL);
    struct kvc_index_record r = {.kind = (uint8_t)p->o->kind,
                                 .size = p->size,
                                 .created = now,
                                 .used = now,
                                 .expires = p->how->seconds ? now + p->how->seconds : 0,
                                 .pinned = p->how->pin ? INT64_MAX : 0,
                                 .cost = p->how->cost > 0 ? p->how->cost : 1};
    memcpy(r.space, p->o->space, sizeof r.space);
    if (p->how->parent) {
        r.has_parent = 1;
        memcpy(r.parent, p->how->parent->key, sizeof r.parent);
    }
    return r;
}

/* Takes back the record of an object that got no file. What was evicted for it stays evicted, so the transaction is to be committed. */
static int take_back(struct kvc_index_txn *t, struct putting *p) {
    struct kvc_index_record r, before;
    struct kvc_error second;
    if (kvc_index_get(t, p->o->key, &r, &second) <= 0) return -1;
    if (p->resident) { /* the old file is still there */
        before = *p->old;
        before.children = r.children;
    }
    if (kvc_index_change(t, p->o->key, &r, p->resident ? &before : NULL, &second)) return -1;
    p->taken_back = 1;
    return 0;
}

/* Takes the size of a file that was there, which the index did not know. */
static int take_size(struct kvc_dir *d, struct kvc_index_txn *t, const struct putting *p, struct kvc_error *e) {
    struct kvc_index_record r, next;
    struct stat st;
    if (kvc_root_stat(&d->root, p->o, &st) || (uint64_t)st.st_size == p->size) return 0;
    if (kvc_index_get(t, p->o->key, &r, e) <= 0) return -1;
    next = r;
    next.size = (uint64_t)st.st_size;
    return kvc_index_change(t, p->o->key, &r, &next, e);
}

/* Adds the record, makes room, and names the file. */
static int link_and_record(struct kvc_dir *d, struct kvc_index_txn *t, struct putting *p, uint64_t limit, struct kvc_error *e) {
    struct kvc_index_record r = record_of(p);
    /* Chunks may turn out to be worth less than what is there; those that have a file already stay. */
    const uint8_t *own = p->o->kind == KVC_OBJECT_CHUNK && !p->how->pin && !p->resident ? p->o->key : NULL;
    struct kvc_policy_choice choice = {.keep = p->o->key, .own = own, .now = r.used};
    if (p->how->parent && check_parent(d, t, p->how->parent, e)) return -1;
    kvc_policy_tick(t, r.size);
    if (kvc_policy_insert(t, p->o->key, p->old, &r, e)) return -1;
    int gone = kvc_dir_make_room(d, t, limit, &choice, e);
    if (!gone && d->root.conf->max_space) {
        choice.space = p->o->space;
        gone = kvc_dir_make_room(d, t, d->root.conf->max_space, &choice, e);
    }
    if (gone > 0) { /* it is worth less than everything that is there */
        *p->there = KVC_PUT_REFUSED;
        kvc_index_sums(t)->refused++;
        return 0;
    }
    const int replace = p->how->replace || p->resident;
    if (gone || kvc_root_link(&d->root, p->o, &p->file, replace, p->there, e)) return take_back(t, p);
    return *p->there ? take_size(d, t, p, e) : 0;
}

/* Refuses what would take the place of everything. */
static int check_size(const struct kvc_dir *d, const struct putting *p, uint64_t limit, struct kvc_error *e) {
    const uint64_t most = d->root.conf->max_space && d->root.conf->max_space < limit ? d->root.conf->max_space : limit;
    if (p->size <= most) return 0;
    kvc_fail(e, KVC_ERR_IO, "%s: an object of %" PRIu64 " bytes is larger than the limit, %" PRIu64 " bytes", d->root.path,
             p->size, most);
    return refuse(e);
}

static int put_indexed(struct kvc_dir *d, struct putting *p, struct kvc_error *e) {
    struct kvc_index_record old;
    struct kvc_index_txn *t = kvc_index_begin(d->index, 1, e);
    if (!t) return -1;
    const uint64_t limit = kvc_dir_limit(d, kvc_index_sums(t)->bytes);
    const int known = kvc_index_get(t, p->o->key, &old, e);
    int status = known < 0 || check_size(d, p, limit, e) ? -1 : 0;
    kvc_policy_begin(t, limit);
    p->old = known > 0 ? &old : NULL;
    p->resident = known > 0 && !old.ghost;
    if (!status && p->resident && !p->how->replace && is_alive(&old, (int64_t)time(NULL), d->root.conf->max_age)) *p->there = 1;
    else if (!status) status = link_and_record(d, t, p, limit, e);
    if (!status) status = kvc_index_commit(t, p->taken_back ? NULL : e);
    else kvc_index_abort(t);
    if (!status) kvc_dir_tidy(d, limit / 20, NULL);
    return status || p->taken_back ? -1 : 0;
}

/* Finds out without writing whether an object is there. */
static int is_there(struct kvc_dir *d, const struct putting *p, struct kvc_error *e) {
    struct kvc_index_record r;
    struct stat st;
    if (p->how->replace) return 0;
    if (!d->index || p->o->kind == KVC_OBJECT_SPACE_FACTS) return !kvc_root_stat(&d->root, p->o, &st);
    struct kvc_index_txn *t = kvc_index_begin(d->index, 0, e);
    if (!t) return -1;
    const int found = kvc_index_get(t, p->o->key, &r, e);
    kvc_index_abort(t);
    return found > 0 ? is_alive(&r, (int64_t)time(NULL), d->root.conf->max_age) : found;
}

static int put(struct kvc_level *l, const struct kvc_object *o, const void *data, size_t size, const struct kvc_level_put *how,
               kvc_instant deadline, int *there, struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    struct putting p = {.o = o, .how = how, .size = size, .file = {.fd = -1}, .there = there};
    (void)deadline;
    *there = 0;
    if (refresh(d, e)) return -1;
    int status = *there = is_there(d, &p, e);
    if (status) return status < 0 ? -1 : 0;
    if (kvc_root_create(&d->root, o, &p.file, e)) return -1;
    status = write_object(d, &p.file, how->parent, data, size, e);
    if (!status && d->index && o->kind != KVC_OBJECT_SPACE_FACTS) status = put_indexed(d, &p, e);
    else if (!status) status = kvc_root_link(&d->root, o, &p.file, how->replace, there, e);
    kvc_root_drop(&d->root, &p.file);
    if (!status && !*there) status = sync_name(d, o, e);
    if (!status && !d->index && !*there) kvc_dir_keep_limit(d, size, NULL);
    return status;
}

/* --- the rest --- */

static int drop(struct kvc_level *l, const struct kvc_object *o, size_t n, kvc_instant deadline, struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    struct kvc_index_txn *t = NULL;
    struct kvc_index_record r;
    int status = 0;
    (void)deadline;
    if (d->index && !(t = kvc_index_begin(d->index, 1, e))) return -1;
    for (size_t i = 0; i < n && !status; i++) {
        if (kvc_root_remove(&d->root, &o[i]) && errno != ENOENT) status = kvc_root_fail(&d->root, errno, "cannot remove", e);
        const int found = t && !status ? kvc_index_get(t, o[i].key, &r, e) : 0;
        if (found > 0) status = kvc_index_change(t, o[i].key, &r, NULL, e);
        else if (found < 0) status = -1;
    }
    if (t && status) kvc_index_abort(t);
    else if (t) status = kvc_index_commit(t, e);
    return status;
}

struct walk {
    const uint8_t *space;
    kvc_level_seen *seen;
    void *state;
};

static int seen(void *state, const struct kvc_object *o, const struct stat *st, struct kvc_error *e) {
    struct walk *w = state;
    (void)e;
    if (w->space && memcmp(w->space, o->space, sizeof o->space) != 0) return 0;
    return w->seen(w->state, o, (uint64_t)st->st_size, st->st_mtim.tv_sec) ? 1 : 0;
}

static int walk(struct kvc_level *l, const uint8_t *space, kvc_level_seen *see, void *state, struct kvc_error *e) {
    struct walk w = {.space = space, .seen = see, .state = state};
    return kvc_root_walk(&dir_of(l)->root, seen, &w, NULL, e);
}

static int facts(struct kvc_level *l, struct kvc_level_facts *f, kvc_instant deadline, struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    (void)deadline;
    if (refresh(d, e)) return -1;
    *f = (struct kvc_level_facts){.objects = -1,
                                  .bytes = -1,
                                  .limit = d->root.conf->max_size ? (int64_t)d->root.conf->max_size : -1};
    snprintf(f->text, sizeof f->text, "%.200s%s", d->root.path, d->index ? "" : ", without an index");
    struct kvc_index_txn *t = d->index ? kvc_index_begin(d->index, 0, e) : NULL;
    if (!t) return d->index ? -1 : 0;
    const struct kvc_index_sums *s = kvc_index_sums(t);
    f->objects = (int64_t)s->records;
    f->bytes = (int64_t)s->bytes;
    kvc_index_abort(t);
    return 0;
}

static int quarantine(struct kvc_level *l, const struct kvc_object *o, struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    if (kvc_root_quarantine(&d->root, o) && errno != ENOENT)
        return kvc_root_fail(&d->root, errno, "cannot put a bad object aside", e);
    forget(d, o);
    return 0;
}

const struct kvc_level_ops kvc_level_dir = {
    .abi = KVC_LEVEL_ABI,
    .scheme = "dir",
    .what = "directory",
    .open = open_dir,
    .close = close_dir,
    .find = find,
    .get = get,
    .put = put,
    .drop = drop,
    .walk = walk,
    .facts = facts,
    .quarantine = quarantine,
    .touch = kvc_dir_touch,
    .missed = kvc_dir_missed,
    .pin = kvc_dir_pin,
    .expect = kvc_dir_expect,
};
