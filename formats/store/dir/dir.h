/* dir.h: the directory tier: objects are files, with an index beside them. Not for the index
 * (index.h) or the folder (root.h). */
#ifndef KVC_STORE_DIR_H
#define KVC_STORE_DIR_H

#include "formats/store/dir/index.h"
#include "formats/store/dir/root.h"
#include "formats/store/tier.h"

extern const struct kvc_tier_ops kvc_tier_dir;

struct kvc_dir {
    struct kvc_tier tier;
    struct kvc_url url;
    struct kvc_root root;
    struct kvc_index *index; /* NULL: none */
    /* the same, opened once more: who reads does not wait for this process's own writers */
    struct kvc_index *reader;
    uint64_t written;   /* without an index: bytes since limits were looked at */
    int64_t trash_seen; /* when the trash was last looked at, seconds since 1970 */
};

/* --- among the files of this folder --- */

/* Functions of the tier, as tier.h describes them. */
int kvc_dir_touch(struct kvc_tier *l, const struct kvc_object *o, size_t n, struct kvc_error *e);
int kvc_dir_missed(struct kvc_tier *l, const struct kvc_object *o, size_t n, uint64_t size,
                   struct kvc_error *e);
int kvc_dir_pin(struct kvc_tier *l, const struct kvc_object *o, size_t n, int64_t until,
                struct kvc_error *e);
int kvc_dir_expect(struct kvc_tier *l, const struct kvc_object *o, size_t n, int64_t seconds,
                   struct kvc_error *e);
int kvc_dir_record(struct kvc_tier *l, const struct kvc_object *o,
                   struct kvc_store_object_info *info, struct kvc_error *e);
int kvc_dir_clean(struct kvc_tier *l, const struct kvc_store_clean_options *how,
                  struct kvc_store_cleaned *counts, struct kvc_error *e);
int kvc_dir_configure(struct kvc_tier *l, const char *const *set, char *text, size_t size,
                      struct kvc_error *e);
void kvc_dir_examine(struct kvc_tier *l, kvc_store_finding_fn *fn, void *state);

/* Runs `work` in a transaction of the index, which is committed if `work` returns 0. If the index
 * turns out to be broken it is made anew and filled from the files, and `work` runs again, once. */
typedef int kvc_dir_work(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                         struct kvc_error *e);
int kvc_dir_run(struct kvc_dir *d, int writes, kvc_instant deadline, kvc_dir_work *work,
                void *state, struct kvc_error *e);
/* Fills a new index from the files that are there already. */
int kvc_dir_fill(struct kvc_dir *d, struct kvc_error *e);

/* Until when an object is pinned, whoever put it: a profile for good, as chunks cannot be read
 * without it. */
static inline int64_t kvc_dir_pinned(const struct kvc_object *o) {
    return o->kind == KVC_OBJECT_PROFILE ? INT64_MAX : 0;
}

/* Adds a file that the index lacks. */
int kvc_dir_adopt(struct kvc_index_txn *t, const struct kvc_object *o,
                  const struct kvc_object *parent, const struct stat *st, struct kvc_error *e);
/* Bytes that objects, which take `bytes` now, may take: of the configuration, and of what the file
 * system has left once the trash is empty. Else each look would evict once more for what was
 * evicted already. */
uint64_t kvc_dir_limit(const struct kvc_dir *d, uint64_t bytes, uint64_t trash);
/* The same, by the index. */
uint64_t kvc_dir_limit_of(const struct kvc_dir *d, struct kvc_index_txn *t);
struct kvc_policy_choice;
/* Evicts until objects (of choice->space, if it is not NULL) take at most `limit`. Returns 1 if
 * choice->own was the one to go: it has a record, but no file yet. */
int kvc_dir_make_room(struct kvc_dir *d, struct kvc_index_txn *t, uint64_t limit,
                      const struct kvc_policy_choice *choice, struct kvc_error *e);
/* Without an index: evicts if this process has written much since it looked last. */
int kvc_dir_keep_limit(struct kvc_dir *d, uint64_t written, struct kvc_error *e);
/* Empties the trash of what is past its grace, at most once a second; of everything if it takes
 * more than 1/20 of the limit. */
int kvc_dir_tidy(struct kvc_dir *d, struct kvc_error *e);
/* Evicts for an object that could not be written, if the disk has less free than is to stay free.
 * -1: writing again would not help. */
int kvc_dir_free_disk(struct kvc_dir *d, uint64_t size);

#endif
