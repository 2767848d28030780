/* index.c: the index of a directory store in LMDB. Spec: STORE.md, "Index". Not for files, nor for what is evicted.
 *
 * Four tables: records by key; the order of lists; bytes by namespace; notes. Values are the machine's own structs: an
 * index never leaves its machine, and one of another version or byte order is deleted. */
#include "formats/store/dir/index.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define VERSION UINT64_C(0x6b76632073746f03)
#define MAP_BYTES (UINT64_C(16) << 30) /* of address space; some 30 million records */
#define SMALL_MAP (UINT64_C(1) << 30)  /* where address space is limited */

struct kvc_index {
    char *folder;
    int sync;
    mode_t mode;          /* of the files: who can write the folder can write the index */
    pthread_rwlock_t use; /* of transactions; written while the environment is opened anew */
    MDB_env *env;         /* NULL: it could not be opened anew */
    MDB_dbi records, order, spaces, notes;
    dev_t device; /* of the folder */
    ino_t inode;
    pid_t process; /* an environment of LMDB must not be used after fork() */
    unsigned users;
    struct kvc_index *next;
};

struct kvc_index_txn {
    struct kvc_index *ix;
    MDB_txn *txn;
    int writes;
    int locks;   /* it holds ix->use */
    int spoiled; /* a change was made in part: it must not be committed */
    struct kvc_index_sums sums;
};

static struct kvc_index_txn *begin(struct kvc_index *ix, int writes, struct kvc_error *e);

/* LMDB forbids to open an environment twice in a process, so open ones are shared. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvc_index *open_ones;

/* What functions that open return for an index that must be deleted, beside -1: its file is damaged, or of another version. */
#define BROKEN (-2)

static int failed(int code, const char *what, struct kvc_error *e) {
    const enum kvc_code kind = code == ENOMEM ? KVC_ERR_MEMORY : KVC_ERR_IO;
    kvc_fail(e, kind, "the index of the store: %s: %s", what, mdb_strerror(code));
    return code == MDB_INVALID || code == MDB_CORRUPTED || code == MDB_VERSION_MISMATCH || code == MDB_PAGE_NOTFOUND ||
                   code == MDB_INCOMPATIBLE || code == ENOENT /* it is deleted at this instant */
               ? BROKEN
               : -1;
}

static int open_tables(struct kvc_index *ix, struct kvc_error *e) {
    MDB_txn *txn;
    int code = mdb_txn_begin(ix->env, NULL, 0, &txn);
    if (code) return failed(code, "cannot begin", e);
    if (!(code = mdb_dbi_open(txn, "records", MDB_CREATE, &ix->records)) &&
        !(code = mdb_dbi_open(txn, "order", MDB_CREATE, &ix->order)) &&
        !(code = mdb_dbi_open(txn, "spaces", MDB_CREATE, &ix->spaces)) &&
        !(code = mdb_dbi_open(txn, "notes", MDB_CREATE, &ix->notes)))
        code = mdb_txn_commit(txn);
    else mdb_txn_abort(txn);
    return code ? failed(code, "cannot open its tables", e) : 0;
}

static int open_environment(struct kvc_index *ix, struct kvc_error *e) {
    const unsigned flags = MDB_NOSUBDIR | MDB_NOTLS | MDB_NORDAHEAD | (ix->sync ? MDB_NOMETASYNC : MDB_NOSYNC);
    char path[4096];
    int code = 0;
    if (snprintf(path, sizeof path, "%s/index.mdb", ix->folder) >= (int)sizeof path)
        return kvc_fail(e, KVC_ERR_USAGE, "the path of the store is too long");
    struct stat was, is;
    int fd;
    const int existed = !stat(path, &was);
    const uint64_t sizes[] = {MAP_BYTES, SMALL_MAP};
    for (size_t i = 0; i < 2; i++) {
        if ((code = mdb_env_create(&ix->env)) != 0) return failed(code, "cannot be made", e);
        mdb_env_set_maxdbs(ix->env, 8);
        mdb_env_set_maxreaders(ix->env, 1024);
        mdb_env_set_mapsize(ix->env, sizes[i]);
        if ((code = mdb_env_open(ix->env, path, flags, ix->mode)) == 0) break;
        mdb_env_close(ix->env);
        ix->env = NULL;
        if (code != ENOMEM) break;
    }
    if (code) return failed(code, "cannot be opened", e);
    /* If the data have been deleted meanwhile, these are new ones with the locks of the old ones. */
    if (existed && (mdb_env_get_fd(ix->env, &fd) || fstat(fd, &is) || is.st_ino != was.st_ino))
        return failed(ENOENT, "cannot be opened", e);
    int dead;
    mdb_reader_check(ix->env, &dead); /* slots of processes that were killed */
    return open_tables(ix, e);
}

/* --- opening --- */

/* Returns the number of this boot of the machine, "" where the system does not tell. */
static void boot(char text[64]) {
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f || !fgets(text, 64, f)) text[0] = '\0';
    if (f) fclose(f);
}

/* Says whether the records can be used: 1, 0 if the index is not filled yet, BROKEN if it must be deleted, -1. */
static int settle(struct kvc_index *ix, struct kvc_error *e) {
    const uint64_t version = VERSION;
    char now[64];
    size_t n = 0, n_boot = 0;
    boot(now);
    struct kvc_index_txn *t = begin(ix, 1, e);
    if (!t) return -1;
    const void *is = kvc_index_noted(t, "version", &n);
    const char *then = kvc_index_noted(t, "boot", &n_boot);
    const int filled = kvc_index_noted(t, "filled", &(size_t){0}) != NULL;
    int status = is && (n != sizeof version || memcmp(is, &version, n) != 0) ? BROKEN : 0;
    if (then && (n_boot != strlen(now) || memcmp(then, now, n_boot) != 0)) status = BROKEN;
    if (!status) status = kvc_index_note(t, "version", &version, sizeof version, e);
    if (!status && !ix->sync) status = kvc_index_note(t, "boot", now, strlen(now), e);
    if (status) {
        kvc_index_abort(t);
        return status;
    }
    return kvc_index_commit(t, e) ? -1 : filled;
}

static void close_environment(struct kvc_index *ix) {
    if (ix->env) mdb_env_close(ix->env);
    ix->env = NULL;
}

/* Deletes the files of the index; with `half`, if one of them lacks the other, which is of no use and could be another
 * index's. Processes that have the old ones open notice it (is_deleted). */
static void delete_files(const char *folder, int half) {
    char data[4096], locks[4096];
    if (snprintf(data, sizeof data, "%s/index.mdb", folder) >= (int)sizeof data ||
        snprintf(locks, sizeof locks, "%s/index.mdb-lock", folder) >= (int)sizeof locks)
        return;
    if (half && !access(data, F_OK) == !access(locks, F_OK)) return;
    unlink(data);
    unlink(locks);
}

#define TRIES 4

/* Opens the environment while no other process does: one that finds the index broken would delete the other's new one. */
static int open_new(struct kvc_index *ix, int *made, struct kvc_error *e) {
    const int fd = open(ix->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int known = fd < 0 ? kvc_fail(e, KVC_ERR_IO, "%s: %s", ix->folder, strerror(errno)) : 0;
    if (fd >= 0) {
        flock(fd, LOCK_EX);
        delete_files(ix->folder, 1);
        for (int tries = 0; tries < TRIES; tries++) {
            known = open_environment(ix, e);
            if (!known) known = settle(ix, e);
            if (known >= 0) break;
            close_environment(ix);
            if (known != BROKEN) break;
            delete_files(ix->folder, 0);
        }
        close(fd);
    }
    *made = !known;
    return known < 0 ? -1 : 0;
}

/* Whether somebody has deleted the file that is open. */
static int is_deleted(const struct kvc_index *ix) {
    struct stat st;
    int fd;
    return !ix->env || mdb_env_get_fd(ix->env, &fd) || fstat(fd, &st) || !st.st_nlink;
}

int kvc_index_renew(struct kvc_index *ix, int *made, struct kvc_error *e) {
    int status = 0;
    *made = 0;
    pthread_rwlock_rdlock(&ix->use);
    const int deleted = is_deleted(ix);
    pthread_rwlock_unlock(&ix->use);
    if (!deleted || ix->process != getpid()) return 0;
    pthread_rwlock_wrlock(&ix->use);
    if (is_deleted(ix)) { /* no other thread has been here before */
        close_environment(ix);
        status = open_new(ix, made, e);
    }
    pthread_rwlock_unlock(&ix->use);
    return status;
}

static struct kvc_index *find_open(const struct stat *st) {
    struct kvc_index *ix = open_ones;
    while (ix && (ix->device != st->st_dev || ix->inode != st->st_ino || ix->process != getpid())) ix = ix->next;
    return ix;
}

static void free_index(struct kvc_index *ix) {
    pthread_rwlock_destroy(&ix->use);
    free(ix->folder);
    free(ix);
}

static struct kvc_index *new_index(const char *folder, const struct stat *st, int sync, int *made, struct kvc_error *e) {
    struct kvc_index *ix = calloc(1, sizeof *ix);
    if (!ix) {
        kvc_fail_memory(e, "an index");
        return NULL;
    }
    *ix = (struct kvc_index){.sync = sync,
                             .mode = 0600 | (st->st_mode & 0060),
                             .device = st->st_dev,
                             .inode = st->st_ino,
                             .process = getpid(),
                             .users = 1};
    pthread_rwlock_init(&ix->use, NULL);
    /* the program may change its folder before the index has to be opened anew */
    if (!(ix->folder = realpath(folder, NULL))) kvc_fail(e, KVC_ERR_IO, "%s: %s", folder, strerror(errno));
    else if (!open_new(ix, made, e)) return ix;
    free_index(ix);
    return NULL;
}

struct kvc_index *kvc_index_open(const char *folder, int sync, int *made, struct kvc_error *e) {
    struct stat st;
    if (stat(folder, &st)) {
        kvc_fail(e, KVC_ERR_IO, "%s: %s", folder, strerror(errno));
        return NULL;
    }
    pthread_mutex_lock(&lock);
    struct kvc_index *ix = find_open(&st);
    *made = 0;
    if (ix) {
        ix->users++;
    } else if ((ix = new_index(folder, &st, sync, made, e)) != NULL) {
        ix->next = open_ones;
        open_ones = ix;
    }
    pthread_mutex_unlock(&lock);
    return ix;
}

void kvc_index_close(struct kvc_index *ix) {
    if (!ix) return;
    pthread_mutex_lock(&lock);
    if (!--ix->users) {
        struct kvc_index **p = &open_ones;
        while (*p != ix) p = &(*p)->next;
        *p = ix->next;
        if (ix->process == getpid()) close_environment(ix);
        free_index(ix);
    }
    pthread_mutex_unlock(&lock);
}

/* --- transactions --- */

static struct kvc_index_txn *begin(struct kvc_index *ix, int writes, struct kvc_error *e) {
    struct kvc_index_txn *t = calloc(1, sizeof *t);
    if (!t) {
        kvc_fail_memory(e, "a transaction");
        return NULL;
    }
    *t = (struct kvc_index_txn){.ix = ix, .writes = writes};
    MDB_val k = {sizeof "sums" - 1, (void *)(uintptr_t) "sums"}, v = {0, NULL};
    int code = ix->env && ix->process == getpid() ? 0 : EINVAL;
    if (!code) code = mdb_txn_begin(ix->env, NULL, writes ? 0 : MDB_RDONLY, &t->txn);
    if (!code && (code = mdb_get(t->txn, ix->notes, &k, &v)) == MDB_NOTFOUND) code = 0; /* a new index */
    if (!code) {
        if (v.mv_size == sizeof t->sums) memcpy(&t->sums, v.mv_data, sizeof t->sums);
        return t;
    }
    failed(code, "cannot begin", e);
    if (t->txn) mdb_txn_abort(t->txn);
    free(t);
    return NULL;
}

struct kvc_index_txn *kvc_index_begin(struct kvc_index *ix, int writes, struct kvc_error *e) {
    pthread_rwlock_rdlock(&ix->use);
    struct kvc_index_txn *t = begin(ix, writes, e);
    if (t) t->locks = 1;
    else pthread_rwlock_unlock(&ix->use);
    return t;
}

static void end(struct kvc_index_txn *t) {
    if (t->locks) pthread_rwlock_unlock(&t->ix->use);
    free(t);
}

int kvc_index_commit(struct kvc_index_txn *t, struct kvc_error *e) {
    int status = t->spoiled ? kvc_fail(e, KVC_ERR_IO, "the index of the store: a change failed before") : 0;
    if (!status && t->writes) status = kvc_index_note(t, "sums", &t->sums, sizeof t->sums, e);
    if (status) {
        mdb_txn_abort(t->txn);
    } else {
        const int code = mdb_txn_commit(t->txn);
        if (code) status = failed(code, "cannot commit", e);
    }
    end(t);
    return status;
}

void kvc_index_abort(struct kvc_index_txn *t) {
    if (!t) return;
    mdb_txn_abort(t->txn);
    end(t);
}

int kvc_index_set_filled(struct kvc_index_txn *t, struct kvc_error *e) {
    return kvc_index_note(t, "filled", "1", 1, e);
}

struct kvc_index_sums *kvc_index_sums(struct kvc_index_txn *t) {
    return &t->sums;
}

int kvc_index_note(struct kvc_index_txn *t, const char *key, const void *value, size_t n, struct kvc_error *e) {
    MDB_val k = {strlen(key), (void *)(uintptr_t)key}, v = {n, (void *)(uintptr_t)value};
    const int code = mdb_put(t->txn, t->ix->notes, &k, &v, 0);
    return code ? failed(code, "cannot write", e) : 0;
}

const void *kvc_index_noted(struct kvc_index_txn *t, const char *key, size_t *n) {
    MDB_val k = {strlen(key), (void *)(uintptr_t)key}, v;
    if (mdb_get(t->txn, t->ix->notes, &k, &v)) return NULL;
    *n = v.mv_size;
    return v.mv_data;
}

/* --- records --- */

int kvc_index_get(struct kvc_index_txn *t, const uint8_t *key, struct kvc_index_record *r, struct kvc_error *e) {
    MDB_val k = {KVC_OBJECT_KEY, (void *)(uintptr_t)key}, v;
    const int code = mdb_get(t->txn, t->ix->records, &k, &v);
    if (code == MDB_NOTFOUND) return 0;
    if (code || v.mv_size != sizeof *r) return failed(code ? code : MDB_CORRUPTED, "cannot read", e);
    memcpy(r, v.mv_data, sizeof *r);
    return 1;
}

/* A key of the order: list, time, depth and the key itself, in the order of their bytes. */
#define PLACE 13 /* before the key */
struct order_key {
    uint8_t bytes[PLACE + KVC_OBJECT_KEY];
};

/* Returns the list that a record is on, or -1. */
static int list_of(const struct kvc_index_record *r) {
    if (!r) return -1;
    if (r->ghost) return KVC_LIST_GHOSTS;
    return r->children ? -1 : (int)r->uses - 1;
}

static struct order_key order_of(const uint8_t *key, const struct kvc_index_record *r) {
    struct order_key k = {{(uint8_t)list_of(r)}};
    for (unsigned i = 0; i < 8; i++) k.bytes[1 + i] = (uint8_t)(r->touched >> (56 - 8 * i));
    for (unsigned i = 0; i < 4; i++) k.bytes[9 + i] = (uint8_t)(~r->depth >> (24 - 8 * i));
    memcpy(k.bytes + PLACE, key, KVC_OBJECT_KEY);
    return k;
}

uint64_t kvc_index_space_bytes(struct kvc_index_txn *t, const uint8_t *space) {
    MDB_val k = {KVC_OBJECT_SPACE, (void *)(uintptr_t)space}, v;
    uint64_t bytes = 0;
    if (!mdb_get(t->txn, t->ix->spaces, &k, &v) && v.mv_size == sizeof bytes) memcpy(&bytes, v.mv_data, sizeof bytes);
    return bytes;
}

static int change_space(struct kvc_index_txn *t, const uint8_t *space, uint64_t more, uint64_t less, struct kvc_error *e) {
    MDB_val k = {KVC_OBJECT_SPACE, (void *)(uintptr_t)space}, v;
    uint64_t bytes = 0;
    int code = mdb_get(t->txn, t->ix->spaces, &k, &v);
    if (!code && v.mv_size == sizeof bytes) memcpy(&bytes, v.mv_data, sizeof bytes);
    if (!code || code == MDB_NOTFOUND) {
        bytes += more - less;
        v = (MDB_val){sizeof bytes, &bytes};
        code = bytes ? mdb_put(t->txn, t->ix->spaces, &k, &v, 0) : mdb_del(t->txn, t->ix->spaces, &k, NULL);
    }
    return code && code != MDB_NOTFOUND ? failed(code, "cannot write", e) : 0;
}

/* Moves a record from its place in the lists to another one. */
static int change_order(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *old,
                        const struct kvc_index_record *r, struct kvc_error *e) {
    struct order_key from = {{0}}, to = {{0}};
    MDB_val k = {sizeof from, &from}, empty = {0, (void *)(uintptr_t) ""};
    const int was = list_of(old) >= 0, is = list_of(r) >= 0;
    if (was) from = order_of(key, old);
    if (is) to = order_of(key, r);
    if (was && is && memcmp(&from, &to, sizeof from) == 0) return 0;
    int code = was ? mdb_del(t->txn, t->ix->order, &k, NULL) : 0;
    if (code == MDB_NOTFOUND) code = 0;
    k.mv_data = &to;
    if (!code && is) code = mdb_put(t->txn, t->ix->order, &k, &empty, 0);
    return code ? failed(code, "cannot write", e) : 0;
}

/* Counts a resident child more or less. A parent without a record has nothing to count. */
static int change_parent(struct kvc_index_txn *t, const struct kvc_index_record *child, int more, struct kvc_error *e) {
    struct kvc_index_record old, r;
    if (!child->has_parent) return 0;
    const int found = kvc_index_get(t, child->parent, &old, e);
    if (found <= 0) return found;
    r = old;
    if (more) r.children++;
    else if (r.children) r.children--;
    return kvc_index_change(t, child->parent, &old, &r, e);
}

static void change_sums(struct kvc_index_sums *s, const struct kvc_index_record *r, int more) {
    uint64_t *bytes = r->ghost ? &s->ghost_bytes : &s->bytes, *records = r->ghost ? &s->ghost_records : &s->records;
    *bytes = more ? *bytes + r->size : *bytes - r->size;
    *records = more ? *records + 1 : *records - 1;
}

static int change(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *old,
                  const struct kvc_index_record *r, struct kvc_error *e) {
    const uint64_t was = old && !old->ghost ? old->size : 0, is = r && !r->ghost ? r->size : 0;
    const int was_here = old && !old->ghost, is_here = r && !r->ghost;
    MDB_val k = {KVC_OBJECT_KEY, (void *)(uintptr_t)key}, v = {sizeof *r, (void *)(uintptr_t)r};
    if (change_order(t, key, old, r, e)) return -1;
    const int code = r ? mdb_put(t->txn, t->ix->records, &k, &v, 0) : mdb_del(t->txn, t->ix->records, &k, NULL);
    if (code && code != MDB_NOTFOUND) return failed(code, "cannot write", e);
    if (old) change_sums(&t->sums, old, 0);
    if (r) change_sums(&t->sums, r, 1);
    if (was != is && change_space(t, (r ? r : old)->space, is, was, e)) return -1;
    return was_here != is_here ? change_parent(t, r ? r : old, is_here, e) : 0;
}

int kvc_index_change(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *old,
                     const struct kvc_index_record *r, struct kvc_error *e) {
    if (!change(t, key, old, r, e)) return 0;
    t->spoiled = 1;
    return -1;
}

/* --- walking --- */

/* Shows a record that is on the list. An entry that does not fit its record, of an index that is damaged, is not shown: whoever evicts would
 * meet it again and again. */
static int see_key(struct kvc_index_txn *t, unsigned list, const uint8_t *at, kvc_index_see *see, void *state,
                   struct kvc_error *e) {
    struct kvc_index_record r;
    uint8_t key[KVC_OBJECT_KEY];
    memcpy(key, at, sizeof key);
    const int found = kvc_index_get(t, key, &r, e);
    if (found <= 0) return found;
    return list == KVC_LISTS || list_of(&r) == (int)list ? see(state, key, &r, e) : 0;
}

int kvc_index_walk(struct kvc_index_txn *t, unsigned list, kvc_index_see *see, void *state, struct kvc_error *e) {
    const int all = list == KVC_LISTS;
    const size_t size = all ? KVC_OBJECT_KEY : sizeof(struct order_key);
    uint8_t first[1] = {(uint8_t)list};
    MDB_cursor *cursor;
    MDB_val k = {sizeof first, first}, v;
    int code = mdb_cursor_open(t->txn, all ? t->ix->records : t->ix->order, &cursor), status = 0;
    if (code) return failed(code, "cannot read", e);
    code = mdb_cursor_get(cursor, &k, &v, all ? MDB_FIRST : MDB_SET_RANGE);
    while (!code && !status && (all || *(const uint8_t *)k.mv_data == list)) {
        if (k.mv_size != size) status = failed(MDB_CORRUPTED, "cannot read", e);
        else status = see_key(t, list, (const uint8_t *)k.mv_data + size - KVC_OBJECT_KEY, see, state, e);
        if (!status) code = mdb_cursor_get(cursor, &k, &v, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    if (status) return status < 0 ? -1 : 0;
    return code && code != MDB_NOTFOUND ? failed(code, "cannot read", e) : 0;
}
