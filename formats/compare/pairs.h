/* pairs.h: which parts and tensors of two caches belong together. Not for their rows' values (compare.h). */
#ifndef KVC_PAIRS_H
#define KVC_PAIRS_H

#include "formats/compare/align.h"
#include "formats/compare/compare.h"

/* Parts of two caches that correspond: of one kind, stream and checkpoint. */
struct kvc_part_pair {
    const struct kvc_part *part[2]; /* NULL where a cache has none */
    struct kvc_matching rows;       /* of the selected positions; empty when a cache has none */
};

/* Tensors of two caches that correspond: of parts that do, of one layer and role. */
struct kvc_tensor_pair {
    const struct kvc_part_pair *parts;
    uint32_t layer; /* model layer */
    enum kvc_role role;
    uint32_t tensor[2]; /* KVC_NONE where a cache has none */
    uint64_t heads;     /* to report values by; 0: the shapes do not let values be compared */
};

struct kvc_pairs {
    /* What is asked: */
    const struct kvc_cache *cache[2];
    int64_t first, last; /* positions, both inclusive; INT64_MIN and INT64_MAX: all */
    const uint8_t *keep; /* keep[i] != 0 selects layer i < n_keep; NULL: all */
    uint32_t n_keep;

    /* Found, and sorted: parts by kind, stream and checkpoint; tensors by part, layer and role. */
    struct kvc_part_pair *part;
    size_t n_parts;
    struct kvc_tensor_pair *tensor;
    size_t n_tensors;
};

/* What a selection reaches. */
enum kvc_pairs_reach { KVC_PAIRS_SOME, KVC_PAIRS_NO_LAYERS, KVC_PAIRS_NO_POSITIONS };

/* Finds the pairs of p->cache in the selection. kvc_pairs_free() also after a failure. */
int kvc_pairs_find(struct kvc_pairs *p, struct kvc_error *e);
void kvc_pairs_free(struct kvc_pairs *p);
/* Returns whether the selection reaches anything: one that does not would make any two caches the same. */
enum kvc_pairs_reach kvc_pairs_reach(const struct kvc_pairs *p);
/* Returns the first tensors of a role whose values both caches have, to measure guesses on (align.h). */
struct kvc_align_sample kvc_pairs_sample(const struct kvc_pairs *p, enum kvc_role role);

#endif
