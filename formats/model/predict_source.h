/* predict_source.h: predictions of a cache's tensor for the stage that asks for them
 * (codecs/ahead.h). Not for the arithmetic (predictor.h). */
#ifndef KVC_PREDICT_SOURCE_H
#define KVC_PREDICT_SOURCE_H

#include "codecs/ahead.h"
#include "formats/cache/cache.h"
#include "formats/model/profile.h"

/* Gives inputs of n rows of a tensor: to[i * stride + channel], made as kvc_small_rows() does. */
typedef int kvc_small_fn(const void *owner, uint32_t tensor, const uint64_t *row, size_t n,
                         int8_t *to, size_t stride, struct kvc_error *e);

enum { KVC_PREDICT_KEPT = 16 }; /* blocks of predictions that are kept */
/* Predictions of blocks, for encoders: what a look at a block predicts, its encoding or its
 * verification asks for again, once. A thousand channels take 1 MB a block. */
struct kvc_predict_memo {
    struct kvc_predicted {
        size_t n;      /* rows; 0: none */
        uint64_t *row; /* of the cells; owned */
        float *values; /* owned */
    } block[KVC_PREDICT_KEPT];
    unsigned oldest; /* block[] that gives way where none is free */
};
void kvc_predict_memo_free(struct kvc_predict_memo *memo);

/* The predictions of one tensor of a cache. */
struct kvc_predict_source {
    struct kvc_ahead ahead;
    const struct kvc_cache *cache;
    uint32_t tensor;
    struct kvc_profile *profile; /* NULL: nothing can be predicted */
    enum kvc_pairing pairing;    /* order of K's channels in the cache */
    /* by tensor, where they are not those of the cache; NULL: they are */
    const struct kvc_shape *shape;
    /* by tensor: how the engine rotated the rows; half 0: it did not. NULL: none are rotated */
    const struct kvc_rope_facts *turn;
    kvc_small_fn *small;
    const void *owner;             /* of small() */
    struct kvc_predict_memo *memo; /* NULL: none; else for one thread. It must be freed. */
};
/* The struct must not be moved. */
void kvc_predict_source_init(struct kvc_predict_source *s, const struct kvc_cache *c,
                             uint32_t tensor, struct kvc_profile *profile, enum kvc_pairing pairing,
                             kvc_small_fn *small, const void *owner);

/* Returns 1 where rows of a tensor may be predicted from: those of a float dtype, and of q8_0 if it
 * is known whether they are Hadamard-rotated. */
int kvc_predict_takes(const struct kvc_cache *c, uint32_t tensor);
/* Lists the tensors that a profile predicts a tensor from: of the same part and stream of the
 * cache, with rows that kvc_predict_takes(); those of q8_0 predict q8_0 alone. KVC_AHEAD_NONE
 * stands for those that the cache lacks. Returns their number; 0: nothing is predicted. -1: *e. */
int kvc_predict_inputs(const struct kvc_predict_source *s, uint32_t from[KVC_AHEAD_MOST],
                       struct kvc_error *e);

/* Makes inputs of n canonical rows of a tensor, from row `first` on: to[n][channels]. */
int kvc_small_rows(const struct kvc_predict_source *s, uint32_t tensor, uint64_t first, uint64_t n,
                   const uint8_t *rows, int8_t *to, struct kvc_error *e);
/* Copies inputs of n rows, of which small[0] are those of row `first`, to to[i * stride + channel].
 */
void kvc_small_spread(const int8_t *small, size_t width, uint64_t first, const uint64_t *row,
                      size_t n, int8_t *to, size_t stride);

#endif
