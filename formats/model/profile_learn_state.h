/* profile_learn_state.h: what a learner of profiles has counted so far. Only for the files
 * profile_learn*.c; others use profile_learn.h. */
#ifndef KVC_PROFILE_LEARN_STATE_H
#define KVC_PROFILE_LEARN_STATE_H

#include "codecs/rope.h"
#include "formats/cache/cache.h"
#include "formats/io/temporary.h"
#include "formats/model/profile.h"

#include <stddef.h>
#include <stdint.h>

/* K or V of a layer: rows of its caches, and sums over them. */
struct kvc_learnt_part {
    size_t heads, dim;
    double rows;
    double *sum, *gram; /* [head][channel], [head][channel][channel], its upper triangles */
    /* Of `measured` caches (profile_learn_gradients.c): sums of their metrics, each divided by its
     * weight, the mean of its diagonal; and of the logarithms of these. Like gram, and [head]. */
    double *form, *weight, measured;
    double minimum; /* added to the diagonal at least; 0: gradients are not known of all layers */
    double margin;  /* times which the metric is taken */
};

struct kvc_learnt_layer {
    struct kvc_learnt_part part[2]; /* K, V */
    size_t query_heads, n_queries, query_dim;
    /* [query][query head][channel], paired as halves, before RoPE where RoPE is known */
    float *query;
    int exact; /* 1: they are the model's own (profile_learn_gradients.c), and no others count */
    size_t half;
    double *angle;
    int sliding;
    uint32_t window; /* tokens; 0: none or unknown */
    /* Sums over `attending` queries of what errors do to the output of attention: of K
     * [head][channel], of V [head]; NULL: no queries. Multiplied by attention_scale they are the
     * metric; 0: that is not known of all layers. */
    double *attended[2], attending, attention_scale;
};

/* A layer of a sample: its number in the model and in the cache, its channels and their place in a
 * row of the sample. */
struct kvc_learnt_column {
    uint32_t layer, number;
    size_t at, width[2];
};

/* Rows of one part of a cache, in the temporary file: K, before RoPE, and V of all layers, as bf16.
 */
struct kvc_learnt_sample {
    struct kvc_learnt_column *column; /* ascending, n of them */
    unsigned n;
    size_t width;
    uint64_t rows, n_blocks;
    struct kvc_learnt_block {
        uint64_t offset;
        uint32_t rows;
    } * block;
};

struct kvc_learner {
    struct kvc_learnt_layer *layer;
    uint32_t layers;
    /* caches; those of them whose queries were estimated, and whose gradients were measured */
    unsigned caches, estimated, measured;
    int rope_known, rope_unknown;
    enum kvc_pairing pairing; /* of the first cache */
    struct kvc_meta meta;     /* of the first cache, and fingerprints of all */
    double weights;           /* that gradients went through, of all caches */
    unsigned back;            /* layers before a layer from which it is predicted; 0: none */
    /* the profile that gets the predictors; NULL: all is learnt. The caller's */
    struct kvc_profile *base;
    struct kvc_temporary rows; /* of the samples, where predictors are learnt */
    struct kvc_learnt_sample *sample;
    uint32_t n_samples;
};

/* Returns 1 where K (role 0) or V (1) of a layer can be learnt from. */
int kvc_learn_takes(const struct kvc_cache *c, const struct kvc_layer *layer, int role);
/* Makes RoPE's tables for the layer with number `layer` in a cache; none where RoPE is unknown. */
int kvc_learn_rope(struct kvc_learner *l, const struct kvc_cache *c, uint32_t layer,
                   struct kvc_learnt_layer *to, struct kvc_rope *rope, struct kvc_error *e);
/* Takes a row back to before RoPE, and pairs its channels as halves. `room` has `dim` floats. */
void kvc_learn_normalise(struct kvc_rope *rope, float *row, size_t heads, size_t dim,
                         int64_t position, float *room);

/* Moves the channels of a head from interleaved pairs to halves. `room` has 2 half floats. */
void kvc_learn_to_halves(float *head, size_t half, float *room);

/* Adds what a cache's queries, a tensor of `queries`, say of one of its layers
 * (profile_learn_attention.c). `pairing`: of the queries. */
int kvc_learn_attention(const struct kvc_cache *c, uint32_t layer, const struct kvc_cache *queries,
                        uint32_t tensor, enum kvc_pairing pairing, struct kvc_learnt_layer *to,
                        struct kvc_error *e);
/* Sets attention_scale of all layers. */
void kvc_learn_attention_settle(struct kvc_learner *l);

/* Tokens of a continuation, and of what is said again at one place, in the metric
 * (kvc-profile(5)). */
enum { KVC_LEARN_TOKENS = 512, KVC_LEARN_AGAIN = 256 };
/* Sets `minimum` and `margin` of all parts (profile_learn_gradients.c). */
void kvc_learn_gradients_settle(struct kvc_learner *l);
/* Returns the weight of a head of a part whose `minimum` is not 0, the mean of the metric's
 * diagonal; and sets metric[channel][channel]. */
double kvc_learn_weight(const struct kvc_learnt_part *p, size_t head);
void kvc_learn_metric(const struct kvc_learnt_part *p, size_t head, double *metric);

/* Keeps the rows of a cache for learning predictors (profile_learn_samples.c). */
int kvc_learn_keep(struct kvc_learner *l, const struct kvc_cache *c, struct kvc_error *e);
void kvc_learnt_sample_free(struct kvc_learnt_sample *s);
/* Reads all rows of K (is_v 0) or V of a column: to[s->rows][width]. */
int kvc_learnt_rows(const struct kvc_learner *l, const struct kvc_learnt_sample *s, unsigned column,
                    int is_v, float *to, struct kvc_error *e);

#endif
