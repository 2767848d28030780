/* meta_differ.h: metadata of two caches that differs. Not for token ids, values or geometry. */
#ifndef KVC_META_DIFFER_H
#define KVC_META_DIFFER_H

#include "formats/cache/cache.h"

/* Which entries count. */
enum kvc_meta_reach {
    /* facts that change the meaning of values in memory, where both caches record them */
    KVC_META_MEANING,
    KVC_META_EXACT,       /* these, and facts of storage: Hadamard rotation, scales */
    KVC_META_EVERY_ENTRY, /* every entry, also one that a cache lacks */
};

/* Gets an entry that differs: the entry of each cache, or NULL. Both have one key. */
typedef void kvc_meta_differ_fn(void *state, const struct kvc_meta_entry *a,
                                const struct kvc_meta_entry *b);

/* Calls `differs` for each entry that differs, by key. Different RoPE pairings count only where K
 * of one cache has no RoPE: others are aligned before values are compared. */
void kvc_meta_differ(const struct kvc_cache *const cache[2], enum kvc_meta_reach reach,
                     kvc_meta_differ_fn *differs, void *state);

#endif
