/* index_sql.h: what the files of the index share. Not for others. */
#ifndef KVC_STORE_INDEX_SQL_H
#define KVC_STORE_INDEX_SQL_H

#include "formats/store/dir/index.h"
#include "formats/store/dir/index_file.h"

#include <pthread.h>

/* Statements of SQL (index_sql.c). */
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
extern const char *const kvc_index_sql[KVC_SQL_STATEMENTS];
extern const char kvc_index_schema[];

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

/* Fails with what SQLite returned. What does not pass by itself is damage. */
int kvc_index_fail(struct kvc_index *ix, int code, const char *what, struct kvc_error *e);
/* Begins and commits in the database alone. */
int kvc_index_begin_database(struct kvc_index *ix, int writes, struct kvc_error *e);
int kvc_index_commit_database(struct kvc_index *ix, struct kvc_error *e);
void kvc_index_roll_back(struct kvc_index *ix);
/* Computes the sums anew from the records. */
int kvc_index_recount(struct kvc_index *ix, struct kvc_error *e);

#endif
