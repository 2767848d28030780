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
#include <sys/stat.h>
#include <unistd.h>

#define VERSION UINT64_C(0x6b76632073746f02)
#define MAP_BYTES (UINT64_C(16) << 30) /* of address space; some 30 million records */
#define SMALL_MAP (UINT64_C(1) << 30)  /* where address space is limited */

struct kvc_index {
    MDB_env *env;
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
    struct kvc_index_sums sums;
};

/* LMDB forbids to open an environment twice in a process, so open ones are shared. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvc_index *open_ones;

static int failed(int code, const char *what, struct kvc_error *e) {
    const enum kvc_code kind = code == ENOMEM ? KVC_ERR_MEMORY : KVC_ERR_IO;
    return kvc_fail(e, kind, "the index of the store: %s: %s", what, mdb_strerror(code));
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

static int open_environment(struct kvc_index *ix, const char *folder, int sync, struct kvc_error *e) {
    const unsigned flags = MDB_NOSUBDIR | MDB_NOTLS | MDB_NORDAHEAD | (sync ? MDB_NOMETASYNC : MDB_NOSYNC);
    char path[4096];
    int code = 0;
    if (snprintf(path, sizeof path, "%s/index.mdb", folder) >= (int)sizeof path)
        return kvc_fail(e, KVC_ERR_USAGE, "the path of the store is too long");
    const uint64_t sizes[] = {MAP_BYTES, SMALL_MAP};
    for (size_t i = 0; i < 2; i++) {
        if ((code = mdb_env_create(&ix->env)) != 0) return failed(code, "cannot be made", e);
        mdb_env_set_maxdbs(ix->env, 8);
        mdb_env_set_maxreaders(ix->env, 1024);
        mdb_env_set_mapsize(ix->env, sizes[i]);
        if ((code = mdb_env_open(ix->env, path, flags, 0600)) != ENOMEM) break;
        mdb_env_close(ix->env);
        ix->env = NULL;
    }
    if (code) return failed(code, "cannot be opened", e);
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

/* Says whether the records can be used: 1, 0 if the index is new, -1 if it must be deleted. */
static int settle(struct kvc_index *ix, int sync, struct kvc_error *e) {
    const uint64_t version = VERSION;
    char now[64];
    size_t n = 0, n_boot = 0;
    boot(now);
    struct kvc_index_txn *t = kvc_index_begin(ix, 1, e);
    if (!t) return -1;
    const void *is = kvc_index_noted(t, "version", &n);
    const char *then = kvc_index_noted(t, "boot", &n_boot);
    const int known = is != NULL;
    int status = known && (n != sizeof version || memcmp(is, &version, n) != 0);
    if (then && (n_boot != strlen(now) || memcmp(then, now, n_boot) != 0)) status = 1;
    if (!status) status = kvc_index_note(t, "version", &version, sizeof version, e);
    if (!status && !sync) status = kvc_index_note(t, "boot", now, strlen(now), e);
    if (status) {
        kvc_index_abort(t);
        return -1;
    }
    return kvc_index_commit(t, e) ? -1 : known;
}

static void close_environment(struct kvc_index *ix) {
    if (ix->env) mdb_env_close(ix->env);
    ix->env = NULL;
}

/* Deletes the files of the index. Processes that have them open go on with theirs until they open the store again. */
static void delete_files(const char *folder) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/index.mdb", folder) < (int)sizeof path) unlink(path);
    if (snprintf(path, sizeof path, "%s/index.mdb-lock", folder) < (int)sizeof path) unlink(path);
}

static int open_new(struct kvc_index *ix, const char *folder, int sync, int *made, struct kvc_error *e) {
    for (int tries = 0; tries < 2; tries++) {
        int known = -1;
        if (!open_environment(ix, folder, sync, e)) known = settle(ix, sync, e);
        if (known >= 0) {
            *made = !known;
            return 0;
        }
        close_environment(ix);
        if (!tries) delete_files(folder);
    }
    return -1;
}

static struct kvc_index *find_open(const struct stat *st) {
    struct kvc_index *ix = open_ones;
    while (ix && (ix->device != st->st_dev || ix->inode != st->st_ino || ix->process != getpid())) ix = ix->next;
    return ix;
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
    } else if ((ix = calloc(1, sizeof *ix)) != NULL) {
        *ix = (struct kvc_index){.device = st.st_dev, .inode = st.st_ino, .process = getpid(), .users = 1};
        if (open_new(ix, folder, sync, made, e)) {
            free(ix);
            ix = NULL;
        } else {
            ix->next = open_ones;
            open_ones = ix;
        }
    } else {
        kvc_fail_memory(e, "an index");
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
        free(ix);
    }
    pthread_mutex_unlock(&lock);
}

/* --- transactions --- */

struct kvc_index_txn *kvc_index_begin(struct kvc_index *ix, int writes, struct kvc_error *e) {
    struct kvc_index_txn *t = calloc(1, sizeof *t);
    if (!t) {
        kvc_fail_memory(e, "a transaction");
        return NULL;
    }
    *t = (struct kvc_index_txn){.ix = ix, .writes = writes};
    int code = ix->process == getpid() ? 0 : EINVAL;
    if (!code) code = mdb_txn_begin(ix->env, NULL, writes ? 0 : MDB_RDONLY, &t->txn);
    if (code) {
        failed(code, "cannot begin", e);
        free(t);
        return NULL;
    }
    size_t n;
    const void *sums = kvc_index_noted(t, "sums", &n);
    if (sums && n == sizeof t->sums) memcpy(&t->sums, sums, n);
    return t;
}

int kvc_index_commit(struct kvc_index_txn *t, struct kvc_error *e) {
    int status = t->writes ? kvc_index_note(t, "sums", &t->sums, sizeof t->sums, e) : 0;
    if (status) {
        mdb_txn_abort(t->txn);
    } else {
        const int code = mdb_txn_commit(t->txn);
        if (code) status = failed(code, "cannot commit", e);
    }
    free(t);
    return status;
}

void kvc_index_abort(struct kvc_index_txn *t) {
    if (t) mdb_txn_abort(t->txn);
    free(t);
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

static int change_space(struct kvc_index_txn *t, const uint8_t *space, uint64_t add, uint64_t remove, struct kvc_error *e) {
    uint64_t bytes = kvc_index_space_bytes(t, space) + add - remove;
    MDB_val k = {KVC_OBJECT_SPACE, (void *)(uintptr_t)space}, v = {sizeof bytes, &bytes};
    const int code = bytes ? mdb_put(t->txn, t->ix->spaces, &k, &v, 0) : mdb_del(t->txn, t->ix->spaces, &k, NULL);
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

int kvc_index_change(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *old,
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

/* --- walking --- */

static int see_key(struct kvc_index_txn *t, const uint8_t *at, kvc_index_see *see, void *state, struct kvc_error *e) {
    struct kvc_index_record r;
    uint8_t key[KVC_OBJECT_KEY];
    memcpy(key, at, sizeof key);
    const int found = kvc_index_get(t, key, &r, e);
    return found <= 0 ? found : see(state, key, &r, e);
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
        else status = see_key(t, (const uint8_t *)k.mv_data + size - KVC_OBJECT_KEY, see, state, e);
        if (!status) code = mdb_cursor_get(cursor, &k, &v, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    if (status) return status < 0 ? -1 : 0;
    return code && code != MDB_NOTFOUND ? failed(code, "cannot read", e) : 0;
}
