/* dir.c: the functions of the directory tier. Spec: STORE.md, "Directory". Not for eviction
 * (room.c). */
#include "formats/store/dir/dir.h"

#include "formats/io/sink.h"
#include "formats/store/dir/below.h"
#include "formats/store/dir/policy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_OBJECT (UINT64_C(1) << 36) /* bytes; a larger file is no object */

static struct kvc_dir *dir_of(struct kvc_tier *l) {
    return (struct kvc_dir *)l;
}

static void close_dir(struct kvc_tier *l) {
    struct kvc_dir *d = dir_of(l);
    kvc_index_close(d->reader);
    kvc_index_close(d->index);
    kvc_root_close(&d->root);
    kvc_url_free(&d->url);
    free(d);
}

/* Checks the text alone. */
static struct kvc_tier *open_dir(struct kvc_url *url, struct kvc_error *e) {
    struct kvc_conf c = kvc_conf_default;
    if (kvc_conf_take(&c, url, e) < 0 || kvc_url_rest(url, e)) return NULL;
    struct kvc_dir *d = calloc(1, sizeof *d);
    if (!d) {
        kvc_fail_memory(e, "a store");
        return NULL;
    }
    d->tier.ops = &kvc_tier_dir;
    d->root.fd = -1;
    d->url = *url;
    *url = (struct kvc_url){.text = NULL};
    return &d->tier;
}

static const char *folder(const struct kvc_tier *l, int *exists) {
    const char *place = ((const struct kvc_dir *)l)->url.place;
    char path[4096];
    struct stat st;
    const int n = snprintf(path, sizeof path, "%s/" KVC_CONF_NAME, place);
    *exists = n < (int)sizeof path && !stat(path, &st) && S_ISREG(st.st_mode);
    return place;
}

static int make_dir(struct kvc_tier *l, struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    int made = 0;
    if (kvc_root_open(&d->root, &d->url, e)) return -1;
    if (!d->root.local || !d->root.conf->indexed) return 0;
    d->index = kvc_index_open(d->root.fd, &made, e);
    d->reader = d->index ? kvc_index_open(d->root.fd, &made, e) : NULL;
    /* one that is not full is filled by whoever opens it next */
    if (d->reader && made) kvc_dir_fill(d, NULL);
    return d->reader ? 0 : -1;
}

/* --- finding --- */

/* A pin is stronger than an end of life. */
static int is_alive(const struct kvc_index_record *r, int64_t now, int64_t max_age) {
    const int is_old = (r->expires && r->expires <= now) || (max_age && r->used < now - max_age);
    return !r->ghost && (!is_old || r->pinned > now);
}

/* What a find knows. */
struct finding {
    const struct kvc_object *o;
    size_t n, found;
    uint64_t *size;
    int dead; /* the next one is too old */
};

/* Counts those that the index has. */
static int find_indexed(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                        struct kvc_error *e) {
    struct finding *f = state;
    const int64_t now = (int64_t)time(NULL);
    struct kvc_index_record r;
    for (; f->found < f->n; f->found++) {
        const int known = kvc_index_get_next(t, f->o[f->found].key, &r, e);
        if (known < 0) return -1;
        f->dead = known && !r.ghost;
        if (!known || !is_alive(&r, now, d->root.conf->max_age)) return 0;
        f->size[f->found] = r.size;
    }
    return 0;
}

/* Files come and go while the index is locked for writing: only then is known whether there are
 * any. */
static int adopt_rest(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                      struct kvc_error *e) {
    struct finding *f = state;
    struct stat st;
    for (size_t i = f->found; i < f->n && !kvc_root_stat(&d->root, &f->o[i], &st); i++)
        if (kvc_dir_adopt(t, &f->o[i], i ? &f->o[i - 1] : NULL, &st, e)) return -1;
    return 0;
}

static void find_files(struct kvc_dir *d, struct finding *f, kvc_instant deadline) {
    struct stat st;
    while (f->found < f->n && kvc_now() < deadline &&
           !kvc_root_stat(&d->root, &f->o[f->found], &st))
        f->size[f->found++] = (uint64_t)st.st_size;
}

/* Asks the index. A file that it lacks was written by a process that was killed before it could
 * say so. */
static int ask_index(struct kvc_dir *d, struct finding *f, kvc_instant deadline,
                     struct kvc_error *e) {
    struct stat st;
    for (size_t before = SIZE_MAX;; before = f->found) {
        if (kvc_dir_run(d, 0, deadline, find_indexed, f, e)) return -1;
        if (f->found == before) return 0; /* the file has gone meanwhile */
        if (f->found == f->n || f->dead || kvc_root_stat(&d->root, &f->o[f->found], &st)) return 0;
        if (kvc_dir_run(d, 1, deadline, adopt_rest, f, e)) return -1;
    }
}

static int dir_find(struct kvc_tier *l, const struct kvc_object *o, size_t n, kvc_instant deadline,
                    size_t *found, uint64_t *size, struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    struct finding f = {.o = o, .n = n, .size = size};
    const int indexed = d->index && n && !kvc_object_is_facts(o->kind);
    *found = 0;
    if (kvc_root_refresh(&d->root, e)) return -1;
    const int status = indexed ? ask_index(d, &f, deadline, e) : 0;
    if (status || !indexed) find_files(d, &f, deadline);
    *found = f.found;
    return status;
}

/* --- reading --- */

/* Reads all of a file. NULL with *e; an object that is not there leaves *missing 1. */
static void *read_object(struct kvc_dir *d, const struct kvc_object *o, size_t *size, int *missing,
                         struct kvc_error *e) {
    struct stat st;
    const int fd = kvc_root_read(&d->root, o, &st);
    *missing = fd < 0 && (errno == ENOENT || errno == ENOTDIR);
    if (fd < 0) {
        if (!*missing) kvc_root_fail(&d->root, errno, "cannot read an object", e);
        if (errno == KVC_NO_FILE && e) e->code = KVC_ERR_DAMAGED;
        return NULL;
    }
    uint8_t *data = NULL;
    size_t at = 0;
    if (st.st_size < 0 || (uint64_t)st.st_size > MAX_OBJECT)
        kvc_fail(e, KVC_ERR_DAMAGED, "%s: an object has %" PRId64 " bytes", d->root.path,
                 (int64_t)st.st_size);
    else if (!(data = kvc_tier_memory((size_t)st.st_size))) kvc_fail_memory(e, "an object");
    while (data && at < (size_t)st.st_size) {
        const ssize_t got = pread(fd, data + at, (size_t)st.st_size - at, (off_t)at);
        if (got > 0) at += (size_t)got;
        if (got > 0 || (got < 0 && errno == EINTR)) continue;
        const int code = errno;
        if (!got) kvc_fail(e, KVC_ERR_DAMAGED, "%s: an object became shorter", d->root.path);
        else kvc_root_fail(&d->root, code, "cannot read an object", e);
        if (got && code == EIO && e) e->severity = KVC_SEVERITY_ITEM; /* only this file */
        kvc_tier_free(data);
        data = NULL;
    }
    close(fd);
    *size = at;
    return data;
}

/* Removes the record of a file that is gone, unless it has been put again. */
static int forget(struct kvc_dir *d, struct kvc_index_txn *t, void *state, struct kvc_error *e) {
    const struct kvc_object *o = state;
    struct kvc_index_record r;
    struct stat st;
    if (!kvc_root_stat(&d->root, o, &st)) return 0;
    const int known = kvc_index_get(t, o->key, &r, e);
    return known > 0 && !r.ghost ? kvc_index_change(t, o->key, &r, NULL, e) : known < 0 ? -1 : 0;
}

static void forget_one(struct kvc_dir *d, const struct kvc_object *o) {
    struct kvc_object own = *o;
    if (d->index) kvc_dir_run(d, 1, INT64_MAX, forget, &own, NULL);
}

/* Returns 1 if an object may be read. Nobody asks for a named cache before it is read, so it may
 * have lived its life, or been evicted; others were found. */
static int may_read(struct kvc_dir *d, const struct kvc_object *o, kvc_instant deadline) {
    uint64_t size;
    struct finding f = {.o = o, .n = 1, .size = &size};
    return o->kind != KVC_OBJECT_NAMED || !d->index || ask_index(d, &f, deadline, NULL) || f.found;
}

static int get(struct kvc_tier *l, const struct kvc_object *o, size_t n, kvc_instant deadline,
               kvc_tier_take *take, void *state, struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    for (size_t i = 0; i < n; i++) {
        struct kvc_error why;
        size_t size = 0;
        int missing = 0;
        if (kvc_now() > deadline) {
            kvc_fail(e, KVC_ERR_IO, "%s: the deadline is over", d->root.path);
            return -1;
        }
        const int gone = !may_read(d, &o[i], deadline);
        void *data = gone ? NULL : read_object(d, &o[i], &size, &missing, &why);
        if (missing) forget_one(d, &o[i]);
        missing |= gone;
        if (take(state, i, data, size, data || missing ? NULL : &why)) return 0;
        if (!data && !missing && why.severity == KVC_SEVERITY_RETRY) {
            if (e) *e = why;
            return -1;
        }
    }
    return 0;
}

/* Finds chunks whose files are there. */
static int count_files(struct kvc_tier *l, const struct kvc_object *o, size_t n,
                       kvc_instant deadline, size_t *found, uint64_t *size, struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    struct stat st;
    size_t i = 0;
    if (dir_find(l, o, n, deadline, found, size, e)) return -1;
    while (i < *found && !kvc_root_stat(&d->root, &o[i], &st)) i++;
    if (i < *found) forget_one(d, &o[i]);
    *found = i;
    return 0;
}

/* --- writing --- */

/* Without an index, files go by their times: a chunk must go before the one before it. */
static void make_older(const struct kvc_dir *d, const struct kvc_root_file *f,
                       const struct kvc_object *parent) {
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

static int write_object(struct kvc_dir *d, const struct kvc_root_file *f,
                        const struct kvc_object *parent, const void *data, size_t size,
                        struct kvc_error *e) {
    if (kvc_write_all(f->fd, data, size))
        return kvc_root_fail(&d->root, errno, "cannot write an object", e);
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

/* Fails for this object: the tier itself is well. */
static int refuse(struct kvc_error *e) {
    if (e) e->severity = KVC_SEVERITY_ITEM;
    return -1;
}

/* Refuses a chunk whose parent is gone: nobody could find it. */
static int check_parent(struct kvc_dir *d, struct kvc_index_txn *t, const struct kvc_object *parent,
                        struct kvc_error *e) {
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
    const struct kvc_tier_put *how;
    uint64_t size;
    struct kvc_root_file file;
    const struct kvc_index_record *old; /* what is known of the key; NULL: nothing */
    int resident;                       /* it has a file */
    int *there, taken_back, named;
    int extends; /* the object that is there is to live longer, or to stay */
};

static struct kvc_index_record record_of(const struct putting *p) {
    const int64_t now = (int64_t)time(NULL);
    struct kvc_index_record r = {.kind = (uint8_t)p->o->kind,
                                 .size = p->size,
                                 .created = now,
                                 .used = now,
                                 .expires = p->how->seconds ? now + p->how->seconds : 0,
                                 .pinned = p->how->pin ? INT64_MAX : kvc_dir_pinned(p->o),
                                 .cost = p->how->cost > 0 ? p->how->cost : 1};
    memcpy(r.ns, p->o->ns, sizeof r.ns);
    if (p->how->parent) {
        r.has_parent = 1;
        memcpy(r.parent, p->how->parent->key, sizeof r.parent);
    }
    return r;
}

/* Takes back the record of an object that got no file. What was evicted for it stays evicted, so
 * the transaction is to be committed. */
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
static int take_size(struct kvc_dir *d, struct kvc_index_txn *t, const struct putting *p,
                     struct kvc_error *e) {
    struct kvc_index_record r, next;
    struct stat st;
    if (kvc_root_stat(&d->root, p->o, &st) || (uint64_t)st.st_size == p->size) return 0;
    if (kvc_index_get(t, p->o->key, &r, e) <= 0) return -1;
    next = r;
    next.size = (uint64_t)st.st_size;
    return kvc_index_change(t, p->o->key, &r, &next, e);
}

/* Adds the record, makes room, and names the file. */
static int link_and_record(struct kvc_dir *d, struct kvc_index_txn *t, struct putting *p,
                           uint64_t limit, struct kvc_error *e) {
    struct kvc_index_record r = record_of(p);
    /* Chunks may turn out to be worth less than what is there; those that have a file already stay.
     */
    const uint8_t *own = p->o->kind == KVC_OBJECT_CHUNK && !p->how->pin && !p->resident ? p->o->key
                                                                                        : NULL;
    struct kvc_policy_choice choice = {.keep = p->o->key, .own = own, .now = r.used};
    if (p->how->parent && check_parent(d, t, p->how->parent, e)) return -1;
    kvc_policy_tick(t, r.size);
    if (kvc_policy_insert(t, p->o->key, p->old, &r, e)) return -1;
    int gone = kvc_dir_make_room(d, t, limit, &choice, e);
    if (!gone && d->root.conf->max_namespace_size) {
        choice.ns = p->o->ns;
        gone = kvc_dir_make_room(d, t, d->root.conf->max_namespace_size, &choice, e);
    }
    if (gone > 0) { /* it is worth less than everything that is there */
        *p->there = KVC_PUT_REFUSED;
        kvc_index_sums(t)->refused++;
        return 0;
    }
    const int replace = p->how->replace || p->resident;
    if (gone || (!p->named && kvc_root_link(&d->root, p->o, &p->file, replace, p->there, e)))
        return take_back(t, p);
    p->named = !*p->there;
    return *p->there ? take_size(d, t, p, e) : 0;
}

/* Refuses what would take the place of everything. */
static int check_size(const struct kvc_dir *d, const struct putting *p, uint64_t limit,
                      struct kvc_error *e) {
    const uint64_t most = d->root.conf->max_namespace_size &&
                                  d->root.conf->max_namespace_size < limit
                              ? d->root.conf->max_namespace_size
                              : limit;
    if (p->size <= most) return 0;
    kvc_fail(e, KVC_ERR_IO,
             "%s: an object of %" PRIu64 " bytes is larger than the limit, %" PRIu64 " bytes",
             d->root.path, p->size, most);
    return refuse(e);
}

/* Says whether an object that the index knows is there. The index is not trusted more than the
 * file. */
static int is_resident(struct kvc_dir *d, const struct kvc_object *o,
                       const struct kvc_index_record *r) {
    struct stat st;
    return is_alive(r, (int64_t)time(NULL), d->root.conf->max_age) &&
           !kvc_root_stat(&d->root, o, &st);
}

/* Returns the record of an object that is there as it is once it was put again: it lives as long,
 * and stays, as whoever put it wants most. */
static struct kvc_index_record extended(const struct kvc_index_record *old,
                                        const struct putting *p) {
    const struct kvc_index_record new = record_of(p);
    struct kvc_index_record r = *old;
    if (new.pinned > r.pinned) r.pinned = new.pinned;
    if (r.expires && (!new.expires || new.expires > r.expires)) r.expires = new.expires;
    return r;
}

static int extend(struct kvc_dir *d, struct kvc_index_txn *t, void *state, struct kvc_error *e) {
    const struct putting *p = state;
    struct kvc_index_record old;
    (void)d;
    const int known = kvc_index_get(t, p->o->key, &old, e);
    if (known <= 0 || old.ghost) return known < 0 ? -1 : 0;
    const struct kvc_index_record r = extended(&old, p);
    return kvc_index_change(t, p->o->key, &old, &r, e);
}

static int put_indexed(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                       struct kvc_error *e) {
    struct putting *p = state;
    struct kvc_index_record old;
    const uint64_t limit = kvc_dir_limit_of(d, t);
    const int known = kvc_index_get(t, p->o->key, &old, e);
    *p->there = p->taken_back = 0;
    if (known < 0 || check_size(d, p, limit, e)) return -1;
    kvc_policy_begin(t, limit);
    p->old = known > 0 ? &old : NULL;
    p->resident = known > 0 && !old.ghost;
    *p->there = p->resident && !p->how->replace && !p->named && is_resident(d, p->o, &old);
    return *p->there ? extend(d, t, p, e) : link_and_record(d, t, p, limit, e);
}

/* Finds out without writing whether an object is there. */
static int look_up(struct kvc_dir *d, struct kvc_index_txn *t, void *state, struct kvc_error *e) {
    struct putting *p = state;
    struct kvc_index_record r;
    const int known = kvc_index_get(t, p->o->key, &r, e);
    if (known < 0) return -1;
    *p->there = known && is_resident(d, p->o, &r);
    if (!*p->there) return 0;
    const struct kvc_index_record longer = extended(&r, p);
    p->extends = longer.pinned != r.pinned || longer.expires != r.expires;
    return 0;
}

/* Writes a file without its name. */
static int write_new(struct kvc_dir *d, struct putting *p, const void *data, struct kvc_error *e) {
    if (kvc_root_create(&d->root, p->o, &p->file, e)) return -1;
    if (!write_object(d, &p->file, p->how->parent, data, p->size, e)) return 0;
    kvc_root_drop(&d->root, &p->file);
    return -1;
}

static int put(struct kvc_tier *l, const struct kvc_object *o, const void *data, size_t size,
               const struct kvc_tier_put *how, kvc_instant deadline, int *there,
               struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    struct putting p = {.o = o, .how = how, .size = size, .file = {.fd = -1}, .there = there};
    struct stat st;
    const int indexed = d->index && !kvc_object_is_facts(o->kind);
    *there = 0;
    if (kvc_root_refresh(&d->root, e)) return -1;
    if (!how->replace && !indexed) *there = !kvc_root_stat(&d->root, o, &st);
    else if (!how->replace && kvc_dir_run(d, 0, deadline, look_up, &p, e)) return -1;
    if (*there) return p.extends ? kvc_dir_run(d, 1, deadline, extend, &p, e) : 0;
    int status = write_new(d, &p, data, e);
    if (status && !kvc_dir_free_disk(d, size)) status = write_new(d, &p, data, e);
    if (!status && indexed) {
        status = kvc_dir_run(d, 1, deadline, put_indexed, &p, e);
        if (p.taken_back) status = -1;
    } else if (!status) status = kvc_root_link(&d->root, o, &p.file, how->replace, there, e);
    kvc_root_drop(&d->root, &p.file);
    if (!status && indexed) kvc_dir_tidy(d, NULL);
    if (!status && !*there) status = sync_name(d, o, e);
    if (!status && !d->index && !*there) kvc_dir_keep_limit(d, size, NULL);
    return status;
}

/* --- the rest --- */

struct dropping {
    const struct kvc_object *o;
    size_t n;
};

static int drop_indexed(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                        struct kvc_error *e) {
    const struct dropping *x = state;
    struct kvc_index_record r;
    for (size_t i = 0; i < x->n; i++) {
        if (kvc_root_remove(&d->root, &x->o[i]) && errno != ENOENT)
            return kvc_root_fail(&d->root, errno, "cannot remove", e);
        const int found = t ? kvc_index_get(t, x->o[i].key, &r, e) : 0;
        if (found < 0 || (found && kvc_index_change(t, x->o[i].key, &r, NULL, e))) return -1;
    }
    return 0;
}

static int drop(struct kvc_tier *l, const struct kvc_object *o, size_t n, kvc_instant deadline,
                struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    struct dropping x = {.o = o, .n = n};
    return d->index ? kvc_dir_run(d, 1, deadline, drop_indexed, &x, e)
                    : drop_indexed(d, NULL, &x, e);
}

struct walk {
    const uint8_t *ns;
    kvc_tier_seen *seen;
    void *state;
};

static int seen(void *state, const struct kvc_object *o, const struct stat *st,
                struct kvc_error *e) {
    struct walk *w = state;
    (void)e;
    if (w->ns && memcmp(w->ns, o->ns, sizeof o->ns) != 0) return 0;
    return w->seen(w->state, o, S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0,
                   st->st_mtim.tv_sec)
               ? 1
               : 0;
}

static int walk(struct kvc_tier *l, const uint8_t *ns, kvc_tier_seen *see, void *state,
                struct kvc_error *e) {
    struct walk w = {.ns = ns, .seen = see, .state = state};
    return kvc_root_walk(&dir_of(l)->root, seen, &w, NULL, e);
}

static int take_facts(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                      struct kvc_error *e) {
    struct kvc_store_tier_info *f = state;
    const struct kvc_index_sums *s = kvc_index_sums(t);
    (void)d, (void)e;
    f->objects = (int64_t)s->records;
    f->bytes = (int64_t)s->bytes;
    f->has_history = 1;
    f->puts = s->puts;
    f->reads = s->hits;
    f->evicted = s->evicted;
    f->evicted_bytes = s->evicted_bytes;
    f->refused = s->refused;
    f->trash_bytes = s->trash;
    f->remembered = s->ghost_records;
    return 0;
}

static int facts(struct kvc_tier *l, struct kvc_store_tier_info *f, kvc_instant deadline,
                 struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    if (kvc_root_refresh(&d->root, e)) return -1;
    const uint64_t limit = d->root.conf->max_size;
    *f = (struct kvc_store_tier_info){.objects = -1,
                                      .bytes = -1,
                                      .limit = limit ? (int64_t)limit : -1};
    snprintf(f->text, sizeof f->text, "%.200s%s", d->root.path,
             d->index ? "" : ", without an index");
    return d->index ? kvc_dir_run(d, 0, deadline, take_facts, f, e) : 0;
}

static int quarantine(struct kvc_tier *l, const struct kvc_object *o, struct kvc_error *e) {
    struct kvc_dir *d = dir_of(l);
    if (kvc_root_quarantine(&d->root, o) && errno != ENOENT)
        return kvc_root_fail(&d->root, errno, "cannot put a bad object aside", e);
    forget_one(d, o);
    return 0;
}

const struct kvc_tier_ops kvc_tier_dir = {
    .abi = KVC_TIER_ABI,
    .scheme = "dir",
    .what = "directory",
    .open = open_dir,
    .close = close_dir,
    .find = dir_find,
    .get = get,
    .put = put,
    .drop = drop,
    .walk = walk,
    .facts = facts,
    .make = make_dir,
    .folder = folder,
    .count = count_files,
    .quarantine = quarantine,
    .touch = kvc_dir_touch,
    .missed = kvc_dir_missed,
    .pin = kvc_dir_pin,
    .expect = kvc_dir_expect,
    .record = kvc_dir_record,
    .clean = kvc_dir_clean,
    .configure = kvc_dir_configure,
    .examine = kvc_dir_examine,
};
