/* head_sample.h: a bounded sample of the pairs of values of one head of two caches, for pictures.
 * Not for measures (compare.h). */
#ifndef KVC_HEAD_SAMPLE_H
#define KVC_HEAD_SAMPLE_H

#include "formats/compare/pairs.h"

struct kvc_head_sample {
    uint64_t values;   /* finite pairs of the head */
    size_t n, n_worst; /* pairs in `value` and in `worst` */
    /* finite pairs of A and B, spread evenly over matched rows and channels; owned */
    float (*value)[2];
    float (*worst)[2]; /* the pairs with the largest |a - b| above 0, the largest first; owned */
};

/* Takes at most `most` and `most_worst` pairs of a head of `pair`, of the caches as
 * kvc_align_caches() left them. The choice depends on the number of values alone, and of equal
 * errors on their order. The result must be freed, after a failure too. Memory: a block of rows of
 * both. */
int kvc_head_sample_take(const struct kvc_cache *const cache[2], const struct kvc_tensor_pair *pair,
                         uint64_t head, size_t most, size_t most_worst, struct kvc_head_sample *out,
                         struct kvc_error *e);
void kvc_head_sample_free(struct kvc_head_sample *s);

#endif
