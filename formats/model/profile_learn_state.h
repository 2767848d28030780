/* profile_learn_state.h: what a learner of profiles has counted so far. Only for the files profile_learn*.c; others use
 * profile_learn.h. */
#ifndef KVC_PROFILE_LEARN_STATE_H
#define KVC_PROFILE_LEARN_STATE_H

#include "codecs/rope.h"
#include "formats/cache/cache.h"
#include "formats/model/profile.h"

#include <stddef.h>
#include <stdint.h>

/* K or V of a layer: rows of its caches, and sums over them. */
struct kvc_learnt_part {
    size_t heads, dim;
    double rows;
    double *sum, *gram; /* [head][channel], [head][channel][channel], its upper triangles */
};

struct kvc_learnt_layer {
    struct kvc_learnt_part part[2]; /* K, V */
    size_t query_heads, n_queries, query_dim;
    float *query; /* [query][query head][channel], paired as halves, before RoPE where RoPE is known */
    size_t half;
    double *angle;
    int sliding;
    uint32_t window; /* tokens; 0: none or unknown */
};

/* Rows of a layer together with those of the layers before it: K and V of each, in ascending order of layers. */
struct kvc_learnt_relation {
    uint32_t layers[8]; /* numbers, `n` of them; the last is the layer itself */
    unsigned n;
    size_t width[8][2], size; /* channels of K and of V, and of all together */
    double rows, *sum, *gram; /* [size], [size][size]: the upper triangle */
};

struct kvc_learner {
    struct kvc_learnt_layer *layer;
    uint32_t layers;
    unsigned caches;
    int rope_known, rope_unknown;
    enum kvc_pairing pairing;             /* of the first cache */
    struct kvc_meta meta;                 /* of the first cache */
    unsigned back;                        /* layers before a layer from which it is predicted; 0: none */
    struct kvc_profile *base;             /* the profile that gets the predictors; NULL: all is learnt. The caller's */
    struct kvc_learnt_relation *relation; /* by layer, n_relations of them */
    uint32_t n_relations;
};

/* Makes RoPE's tables for the layer with number `layer` in a cache; none where RoPE is unknown. */
int kvc_learn_rope(struct kvc_learner *l, const struct kvc_cache *c, uint32_t layer, struct kvc_learnt_layer *to,
                   struct kvc_rope *rope, struct kvc_error *e);
/* Takes a row back to before RoPE, and pairs its channels as halves. `room` has `dim` floats. */
void kvc_learn_normalise(struct kvc_rope *rope, float *row, size_t heads, size_t dim, int64_t position, float *room);

/* Adds the relations of a cache's layers (profile_learn_relation.c). */
int kvc_learn_relations(struct kvc_learner *l, const struct kvc_cache *c, struct kvc_error *e);
void kvc_learnt_relation_free(struct kvc_learnt_relation *r);

#endif
