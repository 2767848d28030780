/* groups.h: the errors of a comparison summed by layer, head, position or channel, in order or the
 * worst first. One pass over the values. Not for comparing values (compare.h) or for printing. */
#ifndef KVC_GROUPS_H
#define KVC_GROUPS_H

#include "formats/compare/pairs.h"

/* The state of a summation. The caller sets the fields up to `state`; the rest is zeroed at first.
 * Memory: one tensor's channels; a part's rows for each role; 2 * worst groups. */
struct kvc_groups {
    const struct kvc_cache *cache; /* A, as kvc_align_caches() left it */
    enum kvc_group_by by;
    uint64_t worst; /* give the `worst` groups of the largest relative error (frobenius) alone; 0:
                       give all, in order of the pairs */
    int all;        /* also give groups without a difference */
    kvc_group_fn *give;
    void *state;

    struct kvc_difference *channel;                  /* of the current tensor */
    struct kvc_difference *row[KVC_ROLE_HIDDEN + 1]; /* of the current part, by role */
    /* the first pair of each role in the current part */
    const struct kvc_tensor_pair *of[KVC_ROLE_HIDDEN + 1];
    const struct kvc_part_pair *parts;
    struct kvc_group *kept; /* the worst so far, and others */
    uint64_t n_kept;
};

/* Sets o->detail for comparing `pair`. Must be called for each pair before kvc_pairs_compare(), in
 * the order of the pairs. */
int kvc_groups_before(struct kvc_groups *g, const struct kvc_tensor_pair *pair,
                      struct kvc_compare_options *o, struct kvc_error *e);
/* Takes the errors of the pair that was compared: of its heads, and their sum. */
int kvc_groups_after(struct kvc_groups *g, const struct kvc_tensor_pair *pair,
                     const struct kvc_difference *head, const struct kvc_difference *sum,
                     struct kvc_error *e);
/* Gives what is left, after the last pair. */
int kvc_groups_end(struct kvc_groups *g, struct kvc_error *e);
void kvc_groups_free(struct kvc_groups *g);

#endif
