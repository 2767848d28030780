/* index_open.c: opens the index of a directory store, makes it anew if it is broken, and locks
 * it for transactions. Spec: STORE.md, "Index". Not for what is in it (index_sql.c). */
#include "formats/store/dir/index_sql.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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
            return kvc_index_fail(ix, SQLITE_BUSY, "cannot be locked", e);
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
        if (!code) code = sqlite3_exec(ix->db, kvc_index_schema, NULL, NULL, NULL);
        if (!code) code = sqlite3_exec(ix->db, "COMMIT", NULL, NULL, NULL);
    } else if (!code && strcmp(is, kvc_index_schema) != 0) {
        code = SQLITE_SCHEMA;
    }
    for (int i = 0; i < KVC_SQL_STATEMENTS && !code; i++)
        code = sqlite3_prepare_v3(ix->db, kvc_index_sql[i], -1, SQLITE_PREPARE_PERSISTENT,
                                  &ix->statement[i], NULL);
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
    if (kvc_index_begin_database(ix, 0, e)) return -1;
    const int same = memcmp(then, now, sizeof now) == 0;
    kvc_index_roll_back(ix);
    if (same) return 0;
    if (kvc_index_begin_database(ix, 1, e)) return -1;
    if (*then && memcmp(then, now, sizeof now) != 0) { /* no other process has done it meanwhile */
        ix->txn.deadline = kvc_now() + 20 * PATIENCE;
        if (run_text(ix, "PRAGMA integrity_check(1)", text, sizeof text) ||
            strcmp(text, "ok") != 0 || kvc_index_recount(ix, e))
            return kvc_index_fail(ix, SQLITE_CORRUPT, "cannot be used after a crash", e);
    }
    memcpy(then, now, sizeof now);
    return kvc_index_commit_database(ix, e);
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
    const int status = code ? kvc_index_fail(ix, code, "cannot be opened", e) : check_boot(ix, e);
    if (status) {
        kvc_index_roll_back(ix);
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

/* Removes an index that is known to be damaged. */
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
    kvc_index_roll_back(ix);
    flock(ix->folder, LOCK_UN);
    pthread_mutex_unlock(&ix->use);
}

static int begin_locked(struct kvc_index *ix, int writes, kvc_instant deadline,
                        struct kvc_error *e) {
    const kvc_instant last = kvc_now() + PATIENCE;
    ix->txn.deadline = deadline < last ? deadline : last;
    ix->file.code = 0;
    if (!ix->db || ix->broken) return kvc_index_fail(ix, KVC_SQL_DAMAGED, "cannot begin", e);
    if (lock_folder(ix, LOCK_SH, e)) return -1;
    if (kvc_index_file_is_gone(&ix->file))
        return kvc_index_fail(ix, KVC_SQL_DAMAGED, "it has been deleted", e);
    return kvc_index_begin_database(ix, writes, e);
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
                                  : kvc_index_commit_database(t->ix, e);
    end(t->ix);
    return status;
}

void kvc_index_abort(struct kvc_index_txn *t) {
    if (t) end(t->ix);
}
