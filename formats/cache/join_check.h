/* join_check.h: what caches must have in common to be joined: metadata, parts, layers. Of its
 * functions, only join.c and join_heads.c have use. */
#ifndef KVC_JOIN_CHECK_H
#define KVC_JOIN_CHECK_H

#include "formats/cache/cache.h"

/* A cache that is joined to others. */
struct kvc_join_operand {
    const struct kvc_cache *cache;
    const char *name; /* for messages */
    /* 1: its blocks will be copied as they are coded, so its recipe is no past of its values */
    int is_kept;
};

/* Merges the metadata of the operands into `to`, which is empty. A fact that some operands have is
 * kept; facts that contradict each other are refused. What describes a file and not the cache is
 * kept only where it is the same in all operands; the sizes of the sources are added. Keys
 * that begin with `own`, which each operand has for itself, are left out. */
int kvc_join_meta(struct kvc_meta *to, const struct kvc_join_operand *from, size_t n,
                  const char *own, struct kvc_error *e);

/* Refuses recurrent states, snapshots and several streams. */
int kvc_join_check_operand(const struct kvc_join_operand *x, struct kvc_error *e);
/* Refuses a cache with several parts of one kind, or a tensor of one layer and role twice in a
 * part: joins take the first of them. */
int kvc_join_check_alone(const struct kvc_join_operand *x, struct kvc_error *e);
/* Returns the part of this kind, and of companions with this role; or KVC_NONE. */
uint32_t kvc_join_find_part(const struct kvc_cache *c, enum kvc_part_kind kind, enum kvc_role role);
/* Checks that b has attention layers of the kind of a's part. */
int kvc_join_check_part(const struct kvc_join_operand *a, uint32_t part,
                        const struct kvc_join_operand *b, struct kvc_error *e);
/* Checks that two parts have the same layers, roles, types and channels, and unless `other_heads`
 * the same heads. */
int kvc_join_check_layers(const struct kvc_join_operand *a, uint32_t part_a,
                          const struct kvc_join_operand *b, uint32_t part_b, int other_heads,
                          struct kvc_error *e);

#endif
