/* index.h: the index of a directory store: records of its objects in recency lists, and sums. It lies in LMDB, which many processes read
 * and one at a time writes. It is a cache: files are the truth, and an index that is deleted is made again from them. Not for files
 * (dir.c), nor for what is evicted (policy.h). STORE.md, "Index". */
#ifndef KVC_STORE_INDEX_H
#define KVC_STORE_INDEX_H

#include "codecs/error.h"
#include "formats/store/object.h"

/* Lists. Records of the resident ones have a file; ghosts are remembered only. */
enum kvc_index_list { KVC_LIST_ONCE, KVC_LIST_AGAIN, KVC_LIST_GHOST_ONCE, KVC_LIST_GHOST_AGAIN, KVC_LIST_SEEN };
#define KVC_LISTS 5
static inline int kvc_list_resident(unsigned list) {
    return list <= KVC_LIST_AGAIN;
}

/* Times are seconds since 1970. */
struct kvc_index_record {
    uint8_t list, kind, has_parent;
    uint8_t space[KVC_OBJECT_SPACE], parent[KVC_OBJECT_KEY];
    uint64_t place; /* in its list; records ascend from the one to be evicted first */
    uint64_t size;
    int64_t created, used;
    int64_t expires, pinned; /* until when; 0: never, not */
    uint32_t children;       /* resident records whose parent this is */
    uint32_t uses;           /* hits */
    double cost;
};

/* Sums, which are kept in every transaction that changes them. Bytes are those of resident records. */
struct kvc_index_sums {
    uint64_t bytes[KVC_LISTS], records[KVC_LISTS];
    uint64_t trash; /* bytes of files that wait for the end of their grace */
    uint64_t place; /* the next of all lists */
    double target;  /* the policy's own: bytes */
    uint64_t puts, hits, evicted, evicted_bytes;
};

struct kvc_index;

/* Opens the index in a folder, once a process: later calls get the same handle. `made` is set to 1 if it has no records because it is
 * new. sync 0: commits are not forced to the disk, and an index of another boot is deleted. */
struct kvc_index *kvc_index_open(const char *folder, int sync, int *made, struct kvc_error *e);
void kvc_index_close(struct kvc_index *ix);

/* A transaction. One that writes waits for those of other threads and processes. */
struct kvc_index_txn;
struct kvc_index_txn *kvc_index_begin(struct kvc_index *ix, int writes, struct kvc_error *e);
int kvc_index_commit(struct kvc_index_txn *t, struct kvc_error *e); /* ends it in any case */
void kvc_index_abort(struct kvc_index_txn *t);                      /* NULL is legal */

struct kvc_index_sums *kvc_index_sums(struct kvc_index_txn *t);
/* Returns 1 and the record, 0 if there is none, -1. */
int kvc_index_get(struct kvc_index_txn *t, const uint8_t *key, struct kvc_index_record *r, struct kvc_error *e);
/* Moves a record, or adds it, to the young end of a list; r->list and r->place are set. `old` is the record as it was, NULL: it is new.
 * Sums, and the children of the parent, follow. */
int kvc_index_move(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *old, struct kvc_index_record *r,
                   enum kvc_index_list list, struct kvc_error *e);
/* Changes fields of a record that stays where it is. */
int kvc_index_set(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *r, struct kvc_error *e);
int kvc_index_remove(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *r, struct kvc_error *e);

/* Goes through a list from the old end on, or through all records (list KVC_LISTS). Returns 1 from `see` to stop, -1 to fail. The function
 * must not change the index. */
typedef int kvc_index_see(void *state, const uint8_t *key, const struct kvc_index_record *r, struct kvc_error *e);
int kvc_index_walk(struct kvc_index_txn *t, unsigned list, kvc_index_see *see, void *state, struct kvc_error *e);

/* Bytes of resident records of a namespace. */
uint64_t kvc_index_space_bytes(struct kvc_index_txn *t, const uint8_t *space);

/* A word for whoever opens the index later; NULL when absent. */
int kvc_index_note(struct kvc_index_txn *t, const char *key, const void *value, size_t n, struct kvc_error *e);
const void *kvc_index_noted(struct kvc_index_txn *t, const char *key, size_t *n);

#endif
