/* policy.h: what a directory store evicts: the leaf whose bytes have the lowest chance to be asked
 * for again while they are kept. Not for moving files (room.c). STORE.md, "Eviction". */
#ifndef KVC_STORE_POLICY_H
#define KVC_STORE_POLICY_H

#include "formats/store/dir/index.h"

/* Starts a transaction that may evict: takes the capacity in bytes, and learns from what was
 * counted if it is time to. */
void kvc_policy_begin(struct kvc_index_txn *t, uint64_t capacity);
/* Notes that something is asked for: what is touched or inserted now counts as used at the same
 * time. */
void kvc_policy_tick(struct kvc_index_txn *t, uint64_t bytes);
/* Adds an object that is to be stored; `old` is what was known of it, or NULL. */
int kvc_policy_insert(struct kvc_index_txn *t, const uint8_t *key,
                      const struct kvc_index_record *old, struct kvc_index_record *r,
                      struct kvc_error *e);
/* Notes that an object was asked for that is not stored, and is not to be stored now: it becomes a
 * ghost. */
int kvc_policy_missed(struct kvc_index_txn *t, const uint8_t *key,
                      const struct kvc_index_record *old, struct kvc_index_record *r,
                      struct kvc_error *e);
/* Notes that a resident object was read. */
int kvc_policy_touch(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *r,
                     int64_t now, struct kvc_error *e);
/* Chooses a leaf to be evicted, which is not pinned, not `keep` and, if `space` is not NULL, of
 * that namespace. `own`: a new leaf that is in question too, though it is young. NULL: none. 1, 0:
 * there is none, -1. */
struct kvc_policy_choice {
    const uint8_t *keep, *own, *ns;
    int64_t now;
};
int kvc_policy_victim(struct kvc_index_txn *t, const struct kvc_policy_choice *choice, uint8_t *key,
                      struct kvc_index_record *r, struct kvc_error *e);
/* Makes a ghost of an object whose file is gone, and forgets ghosts that are too many. */
int kvc_policy_evicted(struct kvc_index_txn *t, const uint8_t *key,
                       const struct kvc_index_record *r, struct kvc_error *e);

#endif
