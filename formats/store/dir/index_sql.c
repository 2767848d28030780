/* index_sql.c: the records and sums of a directory store's index, in SQL. Spec: STORE.md, "Index".
 * Not for opening the index (index_open.c), nor for what is evicted.
 *
 * A record is the machine's own struct: an index never leaves its machine, and one with another
 * schema is deleted. */
#include "formats/store/dir/index_sql.h"

#include <errno.h>
#include <string.h>

/* The name of the sums' column is the version of the structs. Rows have numbers in the order in
 * which they were added, so those of a chain lie side by side. */
const char kvc_index_schema[] =
    "CREATE TABLE records(id INTEGER PRIMARY KEY,key BLOB UNIQUE,list INT,touched INT,depth "
    "INT,value BLOB);"
    "CREATE INDEX lists ON records(list,touched,depth DESC) WHERE list IS NOT NULL;"
    "CREATE TABLE spaces(space BLOB PRIMARY KEY,bytes INT);"
    "CREATE TABLE sums(version_1 BLOB);";

const char *const kvc_index_sql[KVC_SQL_STATEMENTS] = {
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

int kvc_index_fail(struct kvc_index *ix, int code, const char *what, struct kvc_error *e) {
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
static int index_sql_take_bytes(struct kvc_index *ix, int which, int column, void *to, size_t n) {
    const void *bytes = sqlite3_column_blob(ix->statement[which], column);
    if (!bytes || (size_t)sqlite3_column_bytes(ix->statement[which], column) != n) return -1;
    memcpy(to, bytes, n);
    return 0;
}

/* Copies the record of a row. Its numbers are used to index arrays. */
static int take_record(struct kvc_index *ix, int which, struct kvc_index_record *r) {
    if (index_sql_take_bytes(ix, which, 0, r, sizeof *r)) return -1;
    return r->uses && r->uses <= KVC_INDEX_USES && r->kind < KVC_OBJECT_KINDS && r->ghost <= 1 ? 0
                                                                                               : -1;
}

int kvc_index_begin_database(struct kvc_index *ix, int writes, struct kvc_error *e) {
    struct kvc_index_txn *t = &ix->txn;
    int code = step(ix, writes ? KVC_SQL_BEGIN_WRITING : KVC_SQL_BEGIN);
    t->writes = writes;
    t->spoiled = t->follows = t->misses = 0;
    memset(&t->sums, 0, sizeof t->sums);
    if (code == SQLITE_DONE && (code = step(ix, KVC_SQL_READ_SUMS)) == SQLITE_ROW) {
        code = index_sql_take_bytes(ix, KVC_SQL_READ_SUMS, 0, &t->sums, sizeof t->sums)
                   ? SQLITE_ROW
                   : SQLITE_DONE;
        sqlite3_reset(ix->statement[KVC_SQL_READ_SUMS]);
    }
    return code == SQLITE_DONE ? 0 : kvc_index_fail(ix, code, "cannot begin", e);
}

void kvc_index_roll_back(struct kvc_index *ix) {
    if (ix->db && !sqlite3_get_autocommit(ix->db)) step(ix, KVC_SQL_ROLLBACK);
}

int kvc_index_commit_database(struct kvc_index *ix, struct kvc_error *e) {
    struct kvc_index_txn *t = &ix->txn;
    int code = SQLITE_DONE;
    if (t->writes) {
        bind_bytes(ix, KVC_SQL_WRITE_SUMS, 1, &t->sums, sizeof t->sums);
        code = step(ix, KVC_SQL_WRITE_SUMS);
    }
    if (code == SQLITE_DONE) code = step(ix, KVC_SQL_COMMIT);
    return code == SQLITE_DONE ? 0 : kvc_index_fail(ix, code, "cannot commit", e);
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
    return code ? kvc_index_fail(t->ix, code, "cannot read", e) : 1;
}

#define MISSES 2 /* then the chain is not worth following */

int kvc_index_get_next(struct kvc_index_txn *t, const uint8_t *key, struct kvc_index_record *r,
                       struct kvc_error *e) {
    sqlite3_stmt *all = t->ix->statement[KVC_SQL_ALL];
    uint8_t is[KVC_OBJECT_KEY];
    if (t->follows) {
        const int same = step(t->ix, KVC_SQL_ALL) == SQLITE_ROW &&
                         !index_sql_take_bytes(t->ix, KVC_SQL_ALL, 1, is, sizeof is) &&
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
    return code == SQLITE_DONE ? 0 : kvc_index_fail(ix, code, "cannot write", e);
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
    if (code != SQLITE_DONE) return kvc_index_fail(t->ix, code, "cannot write", e);
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
        if (take_record(t->ix, which, &r) || index_sql_take_bytes(t->ix, which, 1, key, sizeof key))
            break;
        if (from) *from = sqlite3_column_int64(s, 2);
        status = see(state, key, &r, e);
    }
    sqlite3_reset(s);
    if (status) return status < 0 ? -1 : 0;
    return code == SQLITE_DONE ? 0 : kvc_index_fail(t->ix, code, "cannot read", e);
}

static int count_one(void *state, const uint8_t *key, const struct kvc_index_record *r,
                     struct kvc_error *e) {
    struct kvc_index *ix = state;
    (void)key;
    change_sums(&ix->txn.sums, r, 1);
    return r->ghost ? 0 : change_namespace(ix, r->ns, (int64_t)r->size, e);
}

int kvc_index_recount(struct kvc_index *ix, struct kvc_error *e) {
    struct kvc_index_sums *s = &ix->txn.sums;
    const int code = sqlite3_exec(ix->db, "DELETE FROM spaces", NULL, NULL, NULL);
    s->bytes = s->records = s->ghost_bytes = s->ghost_records = 0;
    return code ? kvc_index_fail(ix, code, "cannot write", e)
                : kvc_index_walk(&ix->txn, KVC_LISTS, NULL, count_one, ix, e);
}
