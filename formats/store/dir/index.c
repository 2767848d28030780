/* index.c: the index of a directory store, in SQLite: its records and sums in SQL; how it is
 * opened, made anew if it is broken, and locked for transactions. Spec: STORE.md, "Index". Not for
 * what is evicted, nor for the file (index_file.c).
 *
 * A record is the machine's own struct: an index never leaves its machine, and one with another
 * schema is deleted. */
#include "formats/store/dir/index.h"

#include "formats/store/dir/index_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The statements of SQL. */
enum {
    KVC_SQL_BEGIN,
    KVC_SQL_BEGIN_WRITING,
    KVC_SQL_COMMIT,
    KVC_SQL_ROLLBACK,
    KVC_SQL_READ_SUMS,
    KVC_SQL_WRITE_SUMS,
    KVC_SQL_GET,
    KVC_SQL_PUT,
    KVC_SQL_DROP,
    KVC_SQL_ALL,
    KVC_SQL_LIST,
    KVC_SQL_SPACE,
    KVC_SQL_ADD_SPACE,
    KVC_SQL_STATEMENTS
};

struct kvc_index_txn {
    struct kvc_index *ix;
    kvc_instant deadline;
    int writes;
    int spoiled; /* a change was made in part: it must not be committed */
    int follows; /* KVC_SQL_ALL stands at the row after the last that was got */
    int misses;  /* how often, one after the other, this was not the next of the chain */
    int64_t id;  /* of the row that was got last */
    struct kvc_index_sums sums;
};

struct kvc_index {
    pthread_mutex_t use; /* of a transaction, or while the index is opened anew */
    struct kvc_index_file file;
    int folder;  /* a descriptor of its own, for the lock on it */
    sqlite3 *db; /* NULL: it could not be opened */
    sqlite3_stmt *statement[KVC_SQL_STATEMENTS];
    struct kvc_index_txn txn;
    int broken;    /* damage was found */
    pid_t process; /* a database of SQLite must not be used after fork() */
};

/* Code of a row that is not what it must be. */
#define KVC_SQL_DAMAGED SQLITE_ROW

/* The name of the sums' column is the version of the structs. Rows have numbers in the order in
 * which they were added, so those of a chain lie side by side. */
static const char schema[] =
    "CREATE TABLE records(id INTEGER PRIMARY KEY,key BLOB UNIQUE,list INT,touched INT,depth "
    "INT,value BLOB);"
    "CREATE INDEX lists ON records(list,touched,depth DESC) WHERE list IS NOT NULL;"
    "CREATE TABLE spaces(space BLOB PRIMARY KEY,bytes INT);"
    "CREATE TABLE sums(version_1 BLOB);";

static const char *const sql[KVC_SQL_STATEMENTS] = {
    [KVC_SQL_BEGIN] = "BEGIN",
    [KVC_SQL_BEGIN_WRITING] = "BEGIN IMMEDIATE",
    [KVC_SQL_COMMIT] = "COMMIT",
    [KVC_SQL_ROLLBACK] = "ROLLBACK",
    [KVC_SQL_READ_SUMS] = "SELECT version_1 FROM sums",
    [KVC_SQL_WRITE_SUMS] = "REPLACE INTO sums(rowid,version_1) VALUES(1,?1)",
    [KVC_SQL_GET] = "SELECT value,key,id FROM records WHERE key=?1",
    [KVC_SQL_PUT] = ("INSERT INTO records(key,list,touched,depth,value) VALUES(?1,?2,?3,?4,?5)"
                     " ON CONFLICT(key) DO UPDATE SET list=?2,touched=?3,depth=?4,value=?5"),
    [KVC_SQL_DROP] = "DELETE FROM records WHERE key=?1",
    [KVC_SQL_ALL] = "SELECT value,key,id FROM records WHERE id>?1 ORDER BY id",
    [KVC_SQL_LIST] = "SELECT value,key,id FROM records WHERE list=?1 ORDER BY touched,depth DESC",
    [KVC_SQL_SPACE] = "SELECT bytes FROM spaces WHERE space=?1",
    [KVC_SQL_ADD_SPACE] =
        "INSERT INTO spaces VALUES(?1,?2) ON CONFLICT(space) DO UPDATE SET bytes=bytes+?2",
};

/* --- errors --- */

/* Whether a system call failed for reasons that have nothing to do with the index. */
static int is_passing(int code) {
    return code == ENOSPC || code == EDQUOT || code == EROFS || code == EMFILE || code == ENFILE ||
           code == ENOMEM || code == EFBIG || code == ENOLCK;
}

/* Fails with what SQLite returned. What does not pass by itself is damage. */
static int index_failed(struct kvc_index *ix, int code, const char *what, struct kvc_error *e) {
    const int late = code == SQLITE_BUSY || code == SQLITE_INTERRUPT;
    const int passing = late || code == SQLITE_NOMEM || is_passing(ix->file.code);
    if (!passing) ix->broken = 1;
    kvc_fail(e, code == SQLITE_NOMEM ? KVC_ERR_MEMORY : KVC_ERR_IO,
             "the index of the store: %s: %s", what,
             late                 ? "others have used it for too long"
             : ix->file.code      ? strerror(ix->file.code)
             : code == SQLITE_ROW ? "it is damaged"
                                  : sqlite3_errstr(code));
    if (e) e->severity = KVC_SEVERITY_RETRY;
    return -1;
}

/* --- statements --- */

/* Takes a step of a statement, whose row stays until it is reset. */
static int step(struct kvc_index *ix, int which) {
    const int code = sqlite3_step(ix->statement[which]);
    if (code != SQLITE_ROW) sqlite3_reset(ix->statement[which]);
    return code & 0xff;
}

static void bind_bytes(struct kvc_index *ix, int which, int i, const void *bytes, size_t n) {
    sqlite3_bind_blob(ix->statement[which], i, bytes, (int)n, SQLITE_STATIC);
}

/* Copies a column that has n bytes. */
static int take_bytes(struct kvc_index *ix, int which, int column, void *to, size_t n) {
    const void *bytes = sqlite3_column_blob(ix->statement[which], column);
    if (!bytes || (size_t)sqlite3_column_bytes(ix->statement[which], column) != n) return -1;
    memcpy(to, bytes, n);
    return 0;
}

/* Copies the record of a row. Its numbers are used to index arrays. */
static int take_record(struct kvc_index *ix, int which, struct kvc_index_record *r) {
    if (take_bytes(ix, which, 0, r, sizeof *r)) return -1;
    return r->uses && r->uses <= KVC_INDEX_USES && r->kind < KVC_OBJECT_KINDS && r->ghost <= 1 ? 0
                                                                                               : -1;
}

/* Begin and commit in the database alone. */
static int begin_database(struct kvc_index *ix, int writes, struct kvc_error *e) {
    struct kvc_index_txn *t = &ix->txn;
    int code = step(ix, writes ? KVC_SQL_BEGIN_WRITING : KVC_SQL_BEGIN);
    t->writes = writes;
    t->spoiled = t->follows = t->misses = 0;
    memset(&t->sums, 0, sizeof t->sums);
    if (code == SQLITE_DONE && (code = step(ix, KVC_SQL_READ_SUMS)) == SQLITE_ROW) {
        code = take_bytes(ix, KVC_SQL_READ_SUMS, 0, &t->sums, sizeof t->sums) ? SQLITE_ROW
                                                                              : SQLITE_DONE;
        sqlite3_reset(ix->statement[KVC_SQL_READ_SUMS]);
    }
    return code == SQLITE_DONE ? 0 : index_failed(ix, code, "cannot begin", e);
}

static void roll_back(struct kvc_index *ix) {
    if (ix->db && !sqlite3_get_autocommit(ix->db)) step(ix, KVC_SQL_ROLLBACK);
}

static int commit_database(struct kvc_index *ix, struct kvc_error *e) {
    struct kvc_index_txn *t = &ix->txn;
    int code = SQLITE_DONE;
    if (t->writes) {
        bind_bytes(ix, KVC_SQL_WRITE_SUMS, 1, &t->sums, sizeof t->sums);
        code = step(ix, KVC_SQL_WRITE_SUMS);
    }
    if (code == SQLITE_DONE) code = step(ix, KVC_SQL_COMMIT);
    return code == SQLITE_DONE ? 0 : index_failed(ix, code, "cannot commit", e);
}

struct kvc_index_sums *kvc_index_sums(struct kvc_index_txn *t) {
    return &t->sums;
}

/* --- records --- */

int kvc_index_get(struct kvc_index_txn *t, const uint8_t *key, struct kvc_index_record *r,
                  struct kvc_error *e) {
    bind_bytes(t->ix, KVC_SQL_GET, 1, key, KVC_OBJECT_KEY);
    int code = step(t->ix, KVC_SQL_GET);
    if (code == SQLITE_DONE) return 0;
    if (code == SQLITE_ROW && !take_record(t->ix, KVC_SQL_GET, r)) code = SQLITE_OK;
    t->id = sqlite3_column_int64(t->ix->statement[KVC_SQL_GET], 2);
    sqlite3_reset(t->ix->statement[KVC_SQL_GET]);
    return code ? index_failed(t->ix, code, "cannot read", e) : 1;
}

#define MISSES 2 /* then the chain is not worth following */

int kvc_index_get_next(struct kvc_index_txn *t, const uint8_t *key, struct kvc_index_record *r,
                       struct kvc_error *e) {
    sqlite3_stmt *all = t->ix->statement[KVC_SQL_ALL];
    uint8_t is[KVC_OBJECT_KEY];
    if (t->follows) {
        const int same = step(t->ix, KVC_SQL_ALL) == SQLITE_ROW &&
                         !take_bytes(t->ix, KVC_SQL_ALL, 1, is, sizeof is) &&
                         memcmp(is, key, sizeof is) == 0;
        t->misses = same ? 0 : t->misses + 1;
        if (same && !take_record(t->ix, KVC_SQL_ALL, r)) return 1;
        sqlite3_reset(all);
        t->follows = 0;
    }
    const int found = kvc_index_get(t, key, r, e);
    if (found <= 0 || t->misses == MISSES) return found;
    sqlite3_bind_int64(all, 1, t->id);
    t->follows = 1;
    return 1;
}

/* Returns the list that a record is on, or -1. */
static int list_of(const struct kvc_index_record *r) {
    if (r->ghost) return KVC_LIST_GHOSTS;
    return r->children ? -1 : (int)r->uses - 1;
}

static int put(struct kvc_index *ix, const uint8_t *key, const struct kvc_index_record *r) {
    sqlite3_stmt *s = ix->statement[KVC_SQL_PUT];
    bind_bytes(ix, KVC_SQL_PUT, 1, key, KVC_OBJECT_KEY);
    if (list_of(r) < 0) sqlite3_bind_null(s, 2);
    else sqlite3_bind_int(s, 2, list_of(r));
    sqlite3_bind_int64(s, 3, (int64_t)r->touched);
    sqlite3_bind_int64(s, 4, r->depth);
    bind_bytes(ix, KVC_SQL_PUT, 5, r, sizeof *r);
    return step(ix, KVC_SQL_PUT);
}

uint64_t kvc_index_namespace_bytes(struct kvc_index_txn *t, const uint8_t *ns) {
    bind_bytes(t->ix, KVC_SQL_SPACE, 1, ns, KVC_OBJECT_NS);
    const int64_t bytes = step(t->ix, KVC_SQL_SPACE) == SQLITE_ROW
                              ? sqlite3_column_int64(t->ix->statement[KVC_SQL_SPACE], 0)
                              : 0;
    sqlite3_reset(t->ix->statement[KVC_SQL_SPACE]);
    return bytes > 0 ? (uint64_t)bytes : 0;
}

static int change_namespace(struct kvc_index *ix, const uint8_t *ns, int64_t more,
                            struct kvc_error *e) {
    bind_bytes(ix, KVC_SQL_ADD_SPACE, 1, ns, KVC_OBJECT_NS);
    sqlite3_bind_int64(ix->statement[KVC_SQL_ADD_SPACE], 2, more);
    const int code = step(ix, KVC_SQL_ADD_SPACE);
    return code == SQLITE_DONE ? 0 : index_failed(ix, code, "cannot write", e);
}

/* Counts a resident child more or less. A parent without a record has nothing to count. */
static int change_parent(struct kvc_index_txn *t, const struct kvc_index_record *child, int more,
                         struct kvc_error *e) {
    struct kvc_index_record old, r;
    if (!child->has_parent) return 0;
    const int found = kvc_index_get(t, child->parent, &old, e);
    if (found <= 0) return found;
    r = old;
    if (more) r.children++;
    else if (r.children) r.children--;
    return kvc_index_change(t, child->parent, &old, &r, e);
}

/* Sums that are wrong must not become huge: everything would be evicted. */
static uint64_t less(uint64_t sum, uint64_t n) {
    return sum > n ? sum - n : 0;
}

static void change_sums(struct kvc_index_sums *s, const struct kvc_index_record *r, int more) {
    uint64_t *bytes = r->ghost ? &s->ghost_bytes : &s->bytes,
             *records = r->ghost ? &s->ghost_records : &s->records;
    *bytes = more ? *bytes + r->size : less(*bytes, r->size);
    *records = more ? *records + 1 : less(*records, 1);
}

static int change(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *old,
                  const struct kvc_index_record *r, struct kvc_error *e) {
    const uint64_t was = old && !old->ghost ? old->size : 0, is = r && !r->ghost ? r->size : 0;
    const int was_here = old && !old->ghost, is_here = r && !r->ghost;
    if (!r) bind_bytes(t->ix, KVC_SQL_DROP, 1, key, KVC_OBJECT_KEY);
    const int code = r ? put(t->ix, key, r) : step(t->ix, KVC_SQL_DROP);
    if (code != SQLITE_DONE) return index_failed(t->ix, code, "cannot write", e);
    if (old) change_sums(&t->sums, old, 0);
    if (r) change_sums(&t->sums, r, 1);
    if (was != is && change_namespace(t->ix, (r ? r : old)->ns, (int64_t)(is - was), e)) return -1;
    return was_here != is_here ? change_parent(t, r ? r : old, is_here, e) : 0;
}

int kvc_index_change(struct kvc_index_txn *t, const uint8_t *key,
                     const struct kvc_index_record *old, const struct kvc_index_record *r,
                     struct kvc_error *e) {
    if (!change(t, key, old, r, e)) return 0;
    t->spoiled = 1;
    return -1;
}

/* --- walking --- */

int kvc_index_walk(struct kvc_index_txn *t, unsigned list, int64_t *from, kvc_index_see *see,
                   void *state, struct kvc_error *e) {
    const int which = list == KVC_LISTS ? KVC_SQL_ALL : KVC_SQL_LIST;
    sqlite3_stmt *s = t->ix->statement[which];
    struct kvc_index_record r;
    uint8_t key[KVC_OBJECT_KEY];
    int code, status = 0;
    sqlite3_bind_int64(s, 1, which == KVC_SQL_LIST ? (int64_t)list : from ? *from : 0);
    while (!status && (code = step(t->ix, which)) == SQLITE_ROW) {
        if (take_record(t->ix, which, &r) || take_bytes(t->ix, which, 1, key, sizeof key)) break;
        if (from) *from = sqlite3_column_int64(s, 2);
        status = see(state, key, &r, e);
    }
    sqlite3_reset(s);
    if (status) return status < 0 ? -1 : 0;
    return code == SQLITE_DONE ? 0 : index_failed(t->ix, code, "cannot read", e);
}

static int count_one(void *state, const uint8_t *key, const struct kvc_index_record *r,
                     struct kvc_error *e) {
    struct kvc_index *ix = state;
    (void)key;
    change_sums(&ix->txn.sums, r, 1);
    return r->ghost ? 0 : change_namespace(ix, r->ns, (int64_t)r->size, e);
}

/* Computes the sums anew from the records. */
static int recount(struct kvc_index *ix, struct kvc_error *e) {
    struct kvc_index_sums *s = &ix->txn.sums;
    const int code = sqlite3_exec(ix->db, "DELETE FROM spaces", NULL, NULL, NULL);
    s->bytes = s->records = s->ghost_bytes = s->ghost_records = 0;
    return code ? index_failed(ix, code, "cannot write", e)
                : kvc_index_walk(&ix->txn, KVC_LISTS, NULL, count_one, ix, e);
}

/* --- opening --- */

#define PATIENCE 30000000 /* microseconds for a transaction without a deadline */
#define PAUSE 100         /* between two tries to get a lock, at first; */
#define PAUSES 10         /* so many times as long, in the end */

/* Waits a little for a lock. Returns 0 at the deadline. */
static int wait_more(void *state, int times) {
    const struct kvc_index_txn *t = state;
    const kvc_instant now = kvc_now();
    if (now >= t->deadline) return 0;
    usleep((unsigned)(now % PAUSE) + PAUSE * (unsigned)(times < PAUSES ? times + 1 : PAUSES));
    return 1;
}

static int is_late(void *state) {
    const struct kvc_index_txn *t = state;
    return kvc_now() >= t->deadline;
}

/* Locks the folder: LOCK_SH while the index is used, LOCK_EX while it is made or removed. */
static int lock_folder(struct kvc_index *ix, int how, struct kvc_error *e) {
    for (int times = 0; flock(ix->folder, how | LOCK_NB); times++) {
        ix->file.code = errno == EWOULDBLOCK ? 0 : errno;
        if (ix->file.code || !wait_more(&ix->txn, times))
            return index_failed(ix, SQLITE_BUSY, "cannot be locked", e);
    }
    return 0;
}

/* Runs a statement once. Its text, if it has any, is shortened to the room that there is. */
static int run_text(struct kvc_index *ix, const char *text, char *to, size_t size) {
    sqlite3_stmt *s = NULL;
    int code = sqlite3_prepare_v2(ix->db, text, -1, &s, NULL);
    *to = '\0';
    if (!code) code = sqlite3_step(s);
    if (code == SQLITE_ROW && sqlite3_column_text(s, 0))
        snprintf(to, size, "%s", (const char *)sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    return code == SQLITE_ROW || code == SQLITE_DONE ? SQLITE_OK : code;
}

/* Nothing else than its tables may be in an index. Only who uses it alone makes them. */
static int open_tables(struct kvc_index *ix, int alone) {
    static const char find[] = "SELECT group_concat(sql||';','') FROM"
                               " (SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY rowid)";
    char is[1024];
    int code = run_text(ix, find, is, sizeof is);
    if (!code && !*is && alone) {
        code = sqlite3_exec(ix->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
        if (!code) code = sqlite3_exec(ix->db, schema, NULL, NULL, NULL);
        if (!code) code = sqlite3_exec(ix->db, "COMMIT", NULL, NULL, NULL);
    } else if (!code && strcmp(is, schema) != 0) {
        code = SQLITE_SCHEMA;
    }
    for (int i = 0; i < KVC_SQL_STATEMENTS && !code; i++)
        code = sqlite3_prepare_v3(ix->db, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &ix->statement[i],
                                  NULL);
    return code;
}

static int open_database(struct kvc_index *ix, int alone) {
    int code = kvc_index_file_open(&ix->file, &ix->db), sum = KVC_INDEX_SUM;
    if (code) return code;
    sqlite3_busy_handler(ix->db, wait_more, &ix->txn);
    sqlite3_progress_handler(ix->db, 10000, is_late, &ix->txn);
    sqlite3_limit(ix->db, SQLITE_LIMIT_LENGTH, 1 << 16);
    sqlite3_limit(ix->db, SQLITE_LIMIT_ATTACHED, 0);
    sqlite3_db_config(ix->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(ix->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    code = sqlite3_exec(ix->db,
                        "PRAGMA page_size=4096;PRAGMA cell_size_check=1;PRAGMA "
                        "synchronous=OFF;PRAGMA secure_delete=OFF;"
                        "PRAGMA journal_mode=PERSIST;PRAGMA temp_store=MEMORY",
                        NULL, NULL, NULL);
    if (!code) code = sqlite3_file_control(ix->db, NULL, SQLITE_FCNTL_RESERVE_BYTES, &sum);
    return code ? code : open_tables(ix, alone);
}

/* Looks through an index of an earlier boot of the machine: a crash leaves some pages of one
 * time, and some of another. */
static int check_boot(struct kvc_index *ix, struct kvc_error *e) {
    char now[sizeof ix->txn.sums.boot] = "", text[16], *then = ix->txn.sums.boot;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f && !fgets(now, sizeof now, f)) now[0] = '\0';
    if (f) fclose(f);
    if (begin_database(ix, 0, e)) return -1;
    const int same = memcmp(then, now, sizeof now) == 0;
    roll_back(ix);
    if (same) return 0;
    if (begin_database(ix, 1, e)) return -1;
    if (*then && memcmp(then, now, sizeof now) != 0) { /* no other process has done it meanwhile */
        ix->txn.deadline = kvc_now() + 20 * PATIENCE;
        if (run_text(ix, "PRAGMA integrity_check(1)", text, sizeof text) ||
            strcmp(text, "ok") != 0 || recount(ix, e))
            return index_failed(ix, SQLITE_CORRUPT, "cannot be used after a crash", e);
    }
    memcpy(then, now, sizeof now);
    return commit_database(ix, e);
}

static void disconnect(struct kvc_index *ix) {
    for (int i = 0; i < KVC_SQL_STATEMENTS; i++) {
        sqlite3_finalize(ix->statement[i]);
        ix->statement[i] = NULL;
    }
    sqlite3_close(ix->db);
    ix->db = NULL;
}

/* Opens the database. `alone`: no other process uses it. */
static int open_once(struct kvc_index *ix, int alone, struct kvc_error *e) {
    ix->broken = 0;
    ix->file.code = 0;
    const int code = open_database(ix, alone);
    const int status = code ? index_failed(ix, code, "cannot be opened", e) : check_boot(ix, e);
    if (status) {
        roll_back(ix);
        disconnect(ix);
    }
    return status;
}

/* Removes an index that was found to be damaged, unless another process has done so. */
static void remove_damaged(struct kvc_index *ix) {
    if (ix->db && ix->broken && !kvc_index_file_is_gone(&ix->file))
        kvc_index_file_remove(ix->folder);
    disconnect(ix);
}

/* Opens the index, which another process may be making; else makes it. */
static int open_anew(struct kvc_index *ix, int *made, struct kvc_error *e) {
    int status = -1;
    ix->txn = (struct kvc_index_txn){.ix = ix, .deadline = kvc_now() + PATIENCE};
    if (!ix->db) {
        if (lock_folder(ix, LOCK_SH, e)) return -1;
        status = open_once(ix, 0, e);
        flock(ix->folder, LOCK_UN);
    }
    if (status && ix->broken) {
        if (lock_folder(ix, LOCK_EX, e)) return -1;
        remove_damaged(ix);
        status = open_once(ix, 1, e);
        if (status && ix->broken) {
            kvc_index_file_remove(ix->folder);
            status = open_once(ix, 1, e);
        }
        flock(ix->folder, LOCK_UN);
    }
    *made = !status && !ix->txn.sums.filled;
    return status;
}

int kvc_index_renew(struct kvc_index *ix, int *made, struct kvc_error *e) {
    *made = 0;
    if (ix->process != getpid()) return 1;
    pthread_mutex_lock(&ix->use);
    const int status = ix->db && !ix->broken ? 1 : open_anew(ix, made, e);
    pthread_mutex_unlock(&ix->use);
    return status;
}

struct kvc_index *kvc_index_open(int folder, int *made, struct kvc_error *e) {
    struct kvc_index *ix = calloc(1, sizeof *ix);
    struct stat st;
    *made = 0;
    if (!ix) {
        kvc_fail_memory(e, "an index");
        return NULL;
    }
    ix->process = getpid();
    pthread_mutex_init(&ix->use, NULL);
    ix->folder = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (ix->folder < 0 || fstat(ix->folder, &st)) {
        kvc_fail(e, KVC_ERR_IO, "the index of the store: %s", strerror(errno));
        kvc_index_close(ix);
        return NULL;
    }
    kvc_index_file_init(&ix->file, ix->folder, 0600 | (st.st_mode & 0060));
    unlinkat(folder, "index.mdb", 0); /* of earlier versions of kvc */
    unlinkat(folder, "index.mdb-lock", 0);
    open_anew(ix, made, NULL);
    return ix;
}

void kvc_index_close(struct kvc_index *ix) {
    /* SQLite must not be called after fork(), not even to close */
    if (!ix || ix->process != getpid()) return;
    ix->txn.deadline = kvc_now() + PATIENCE;
    if (ix->broken && !lock_folder(ix, LOCK_EX, NULL)) remove_damaged(ix);
    disconnect(ix);
    if (ix->folder >= 0) close(ix->folder);
    pthread_mutex_destroy(&ix->use);
    free(ix);
}

/* --- transactions --- */

static void end(struct kvc_index *ix) {
    sqlite3_reset(ix->statement[KVC_SQL_ALL]);
    roll_back(ix);
    flock(ix->folder, LOCK_UN);
    pthread_mutex_unlock(&ix->use);
}

static int begin_locked(struct kvc_index *ix, int writes, kvc_instant deadline,
                        struct kvc_error *e) {
    const kvc_instant last = kvc_now() + PATIENCE;
    ix->txn.deadline = deadline < last ? deadline : last;
    ix->file.code = 0;
    if (!ix->db || ix->broken) return index_failed(ix, KVC_SQL_DAMAGED, "cannot begin", e);
    if (lock_folder(ix, LOCK_SH, e)) return -1;
    if (kvc_index_file_is_gone(&ix->file))
        return index_failed(ix, KVC_SQL_DAMAGED, "it has been deleted", e);
    return begin_database(ix, writes, e);
}

struct kvc_index_txn *kvc_index_begin_until(struct kvc_index *ix, int writes, kvc_instant deadline,
                                            struct kvc_error *e) {
    if (ix->process != getpid()) {
        kvc_fail(e, KVC_ERR_USAGE,
                 "the store was opened before fork(): open it in the new process");
        return NULL;
    }
    pthread_mutex_lock(&ix->use);
    if (!begin_locked(ix, writes, deadline, e)) return &ix->txn;
    end(ix);
    return NULL;
}

struct kvc_index_txn *kvc_index_begin(struct kvc_index *ix, int writes, struct kvc_error *e) {
    return kvc_index_begin_until(ix, writes, INT64_MAX, e);
}

int kvc_index_commit(struct kvc_index_txn *t, struct kvc_error *e) {
    const int status = t->spoiled ? kvc_fail(e, KVC_ERR_IO,
                                             "the index of the store: a change failed before")
                                  : commit_database(t->ix, e);
    end(t->ix);
    return status;
}

void kvc_index_abort(struct kvc_index_txn *t) {
    if (t) end(t->ix);
}
