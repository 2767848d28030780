/* pairs.h: matches the parts and tensors of two caches. Not for values (compare.h). */
#ifndef KVC_PAIRS_H
#define KVC_PAIRS_H

#include "formats/compare/align.h"
#include "formats/compare/compare.h"

/* Parts of two caches with matching tensors, or without any. */
struct kvc_part_pair {
    const struct kvc_part *part[2]; /* NULL if a cache has no such part */
    /* of the selected positions; empty if a cache has no such part */
    struct kvc_matching rows;
};

/* Matching tensors of two caches: equal layer and role, in parts of equal stream and snapshot that
 * are attended or of one kind. */
struct kvc_tensor_pair {
    const struct kvc_part_pair *parts;
    uint32_t layer; /* model layer */
    enum kvc_role role;
    uint32_t tensor[2]; /* KVC_NONE if a cache has no such tensor */
    uint64_t heads;     /* of the report of values; 0: values of these shapes cannot be compared */
    struct kvc_compared shown; /* the same for users */
};

struct kvc_pairs {
    /* The selection. */
    const struct kvc_cache *cache[2];
    int64_t first, last; /* positions, both inclusive; INT64_MIN and INT64_MAX: all */
    const uint8_t *keep; /* keep[i] != 0 selects layer i < n_keep; NULL: all */
    uint32_t n_keep;

    /* The result, sorted: parts by kind, stream and snapshot; tensors by part, layer and role. A
     * part may match several of the other cache. */
    struct kvc_part_pair *part;
    size_t n_parts;
    struct kvc_tensor_pair *tensor;
    size_t n_tensors;
};

/* Whether a selection matches anything. */
enum kvc_pairs_reach { KVC_PAIRS_SOME, KVC_PAIRS_NO_LAYERS, KVC_PAIRS_NO_POSITIONS };

/* Says whether an earlier pair of the same part has told the positions that only this side has: of
 * a part that matches several. */
int kvc_pairs_repeats(const struct kvc_pairs *p, size_t i, int side);
/* Fills the result. It must be freed by kvc_pairs_free(), after a failure as well. */
int kvc_pairs_find(struct kvc_pairs *p, struct kvc_error *e);
void kvc_pairs_free(struct kvc_pairs *p);
/* Returns whether the selection matches anything. Any two caches would be equal in an empty
 * selection. */
enum kvc_pairs_reach kvc_pairs_reach(const struct kvc_pairs *p);
/* Returns the first tensors of a role whose values both caches have. Guesses are measured on them
 * (align.h). */
struct kvc_align_sample kvc_pairs_sample(const struct kvc_pairs *p, enum kvc_role role);
/* Compares the matching rows of a pair, as kvc_compare_tensor() does, of the caches as
 * kvc_align_caches() left them. Returns the measures of pair->heads heads, which must be freed, and
 * their sum in *all; or NULL. The pair must have heads and rows. */
struct kvc_difference *kvc_pairs_compare(const struct kvc_cache *const cache[2],
                                         const struct kvc_tensor_pair *pair,
                                         const struct kvc_compare_options *o,
                                         struct kvc_difference *all, struct kvc_error *e);

#endif
