/* head_sample.h: a bounded sample of the pairs of values of one head of two caches, for pictures.
 * Not for measures (compare.h). */
#ifndef KVC_HEAD_SAMPLE_H
#define KVC_HEAD_SAMPLE_H

#include "formats/compare/pairs.h"

/* Takes at most `most` and `most_worst` pairs of a head of `pair`, of the caches as
 * kvc_align_caches() left them. The choice depends on the number of values alone, and of equal
 * errors on their order. The result must be freed, after a failure too. Memory: a block of rows of
 * both. */
int kvc_head_sample_take(const struct kvc_cache *const cache[2], const struct kvc_tensor_pair *pair,
                         uint64_t head, size_t most, size_t most_worst, struct kvc_head_sample *out,
                         struct kvc_error *e);

#endif
