/* index.h: the index of a directory store: records of its objects, ordered lists of those that
 * can go, and sums. It lies in SQLite, which many processes read and one at a time writes. It is
 * a cache: files are the truth, and an index that is damaged or deleted is made again from them.
 * Not for files (dir.c), nor for what is evicted (policy.h). STORE.md, "Index". */
#ifndef KVC_STORE_INDEX_H
#define KVC_STORE_INDEX_H

#include "codecs/error.h"
#include "formats/store/tier.h"

/* Times are seconds since 1970. */
struct kvc_index_record {
    uint8_t kind, has_parent;
    uint8_t ghost; /* 1: its file is gone, and it is remembered only; 0: it is resident */
    uint8_t uses;  /* how often it was put or read, from 1 to KVC_INDEX_USES */
    uint8_t ns[KVC_OBJECT_NS], parent[KVC_OBJECT_KEY];
    uint32_t depth;    /* in its chain */
    uint32_t children; /* resident records whose parent this is */
    uint64_t touched;  /* the policy's clock when it was used last */
    uint64_t size;
    int64_t created, used;
    int64_t expires, pinned; /* until when; 0: never, not */
    double cost;
};
#define KVC_INDEX_USES 3

/* Lists, in the order of `touched`, the deepest of equals first: resident leaves by their uses,
 * and ghosts. A record with children is on none. */
enum { KVC_LIST_GHOSTS = KVC_INDEX_USES, KVC_LISTS };

/* What the policy keeps (policy.c). */
#define KVC_AGES 48
#define KVC_EPOCHS 32
struct kvc_policy_state {
    uint64_t clock, capacity, next_learn, next_halve;
    uint64_t hits[KVC_INDEX_USES][KVC_AGES], gone[KVC_INDEX_USES][KVC_AGES];
    uint64_t alive[KVC_INDEX_USES][KVC_EPOCHS];
    float score[KVC_INDEX_USES][KVC_AGES];
};

/* Sums, which are kept in every transaction that changes them. */
struct kvc_index_sums {
    uint64_t bytes, records;             /* resident */
    uint64_t ghost_bytes, ghost_records; /* bytes that they had */
    uint64_t trash;                      /* bytes of files that wait for the end of their grace */
    uint64_t puts, hits, evicted, evicted_bytes, refused;
    struct kvc_policy_state policy;
    uint64_t filled; /* 1: all files have their records */
    char boot[40];   /* of the machine, when the index was opened last */
};

struct kvc_index;

/* Opens the index in a folder. `made` is set to 1 if the index is new, and until somebody has
 * filled it from the files. An index that cannot be opened now counts as broken; NULL: there is
 * no memory. */
struct kvc_index *kvc_index_open(int folder, int *made, struct kvc_error *e);
/* Makes an index anew that was found to be damaged, is deleted, or could not be opened. Returns
 * 0, 1 if it is none of these, -1. No transaction may be open in the calling thread. */
int kvc_index_renew(struct kvc_index *ix, int *made, struct kvc_error *e);
void kvc_index_close(struct kvc_index *ix);

/* A transaction, one at a time of an open index. One that writes waits for those of other
 * processes. At the deadline it fails; without one, after some time. */
struct kvc_index_txn;
struct kvc_index_txn *kvc_index_begin(struct kvc_index *ix, int writes, struct kvc_error *e);
struct kvc_index_txn *kvc_index_begin_until(struct kvc_index *ix, int writes, kvc_instant deadline,
                                            struct kvc_error *e);
int kvc_index_commit(struct kvc_index_txn *t, struct kvc_error *e); /* ends it in any case */
void kvc_index_abort(struct kvc_index_txn *t);                      /* NULL is legal */

struct kvc_index_sums *kvc_index_sums(struct kvc_index_txn *t);
/* Returns 1 and the record, 0 if there is none, -1. */
int kvc_index_get(struct kvc_index_txn *t, const uint8_t *key, struct kvc_index_record *r,
                  struct kvc_error *e);
/* The same for the keys of a chain, one after the other, of which the index is not changed
 * meanwhile: faster where they were added so. */
int kvc_index_get_next(struct kvc_index_txn *t, const uint8_t *key, struct kvc_index_record *r,
                       struct kvc_error *e);
/* Changes a record from `old` (NULL: there is none) to `r` (NULL: it goes). Lists, sums and the
 * children of the parent follow. */
int kvc_index_change(struct kvc_index_txn *t, const uint8_t *key,
                     const struct kvc_index_record *old, const struct kvc_index_record *r,
                     struct kvc_error *e);

/* Goes through a list from the oldest on, or through all records (list KVC_LISTS). Returns 1
 * from `see` to stop, -1 to fail. The function must not change the index. `from`, which may be
 * NULL, is for all records only: 0 begins, and it becomes where the walk stopped. */
typedef int kvc_index_see(void *state, const uint8_t *key, const struct kvc_index_record *r,
                          struct kvc_error *e);
int kvc_index_walk(struct kvc_index_txn *t, unsigned list, int64_t *from, kvc_index_see *see,
                   void *state, struct kvc_error *e);

/* Bytes of resident records of a namespace. */
uint64_t kvc_index_namespace_bytes(struct kvc_index_txn *t, const uint8_t *ns);

#endif
