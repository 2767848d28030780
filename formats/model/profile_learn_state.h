/* profile_learn_state.h: what a learner of profiles has counted so far. Only for the files profile_learn*.c; others use
 * profile_learn.h. */
#ifndef KVC_PROFILE_LEARN_STATE_H
#define KVC_PROFILE_LEARN_STATE_H

#include "codecs/rope.h"
#include "formats/cache/meta.h"

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

struct kvc_learner {
    struct kvc_learnt_layer *layer;
    uint32_t layers;
    unsigned caches;
    int rope_known, rope_unknown;
    enum kvc_pairing pairing; /* of the first cache */
    struct kvc_meta meta;     /* of the first cache */
};

#endif
