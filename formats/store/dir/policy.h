/* policy.h: what a directory store evicts: ARC over chunks, leaves first. Not for moving files. STORE.md, "Eviction". Source: Megiddo and
 * Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003; here in bytes. */
#ifndef KVC_STORE_POLICY_H
#define KVC_STORE_POLICY_H

#include "formats/store/dir/index.h"

/* Adds an object that is stored now. r->size and its facts are set; `old` is the ghost that was remembered, or NULL. */
int kvc_policy_insert(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *old, struct kvc_index_record *r,
                      uint64_t limit, struct kvc_error *e);
/* Notes that a resident object was used; hit 0: it only follows in the order of its chain. */
int kvc_policy_touch(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *r, int hit, int64_t now,
                     struct kvc_error *e);
/* Chooses a leaf to be evicted, which is not pinned, not `keep` and, if `space` is not NULL, of that namespace. 1, 0: there is none, -1. */
int kvc_policy_victim(struct kvc_index_txn *t, const uint8_t *keep, const uint8_t *space, int64_t now, uint8_t *key,
                      struct kvc_index_record *r, struct kvc_error *e);
/* Makes a ghost of an object whose file is gone. */
int kvc_policy_evicted(struct kvc_index_txn *t, const uint8_t *key, const struct kvc_index_record *r, uint64_t limit,
                       struct kvc_error *e);

#endif
