/* gradients_layer.h: one layer of a transformer, forward and back, for runs of tokens after the
 * rows of a cache. Only for gradients*.c; others use gradients.h. */
#ifndef KVC_GRADIENTS_LAYER_H
#define KVC_GRADIENTS_LAYER_H

#include "codecs/rope.h"
#include "formats/cache/cache.h"
#include "formats/model/weights.h"
#include "formats/model/weights_product.h"

enum { KVC_LAYER_RUNS = 3 }; /* as KVC_GRADIENTS_RUNS */

/* Tokens at positions `position`, `position` + 1, ... They see each other, and the cached rows
 * before them. */
struct kvc_gradients_run {
    size_t first, n; /* of all rows */
    int64_t position;
    const int32_t *token;
    int again;
};

struct kvc_gradients_model {
    const struct kvc_cache *c; /* binary32 */
    const struct kvc_weights *weights;
    unsigned threads;
    size_t width; /* d */
    float epsilon;
    int gelu; /* 0: the gate is SiLU */
    struct kvc_gradients_run run[KVC_LAYER_RUNS];
    size_t rows; /* of all runs */
};

/* What a layer is made of, and what went through it. [row][...] */
struct kvc_gradients_layer {
    struct kvc_projection to_kv;
    struct kvc_query_projection to_q;
    struct kvc_weights_matrix out, gate, up, down;
    float *ffn_norm, *attention_after, *ffn_after;
    struct kvc_rope rope;
    float length;
    uint32_t number; /* in the cache */
    uint64_t window;
    size_t heads, group, dim, dim_v;
    float *cached[2];     /* K, V of the cache */
    float *values;        /* all that follows, and the gradients */
    float *in;            /* normed */
    float *q, *k, *v;     /* as attention takes them */
    float *q_raw, *k_raw; /* before the norm of heads */
    float *attended, *added, *middle, *ffn_in, *gated, *upped, *ffn_out;
    float *of_q, *of_k, *of_v, *of_attended;
    float *gradient[2][KVC_LAYER_RUNS]; /* of the cached rows; NULL: not asked for */
};

/* Loads layer `number` of the cache. On failure, too, *x is to be freed. */
int kvc_gradients_layer_load(struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                             uint32_t number, struct kvc_error *e);
void kvc_gradients_layer_free(struct kvc_gradients_layer *x);
/* Sets to[m->rows][width] to what the layer makes of h. */
int kvc_gradients_layer_forward(struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                                const float *h, float *to, struct kvc_error *e);
/* After that: replaces the gradient of the layer's output by that of h, and sets x->gradient. */
int kvc_gradients_layer_back(struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                             const float *h, float *of, struct kvc_error *e);
/* Returns how many weights its matrices have. */
uint64_t kvc_gradients_layer_weights(const struct kvc_gradients_layer *x,
                                     const struct kvc_gradients_model *m);
/* Returns how many cached rows of the layer a run sees. */
size_t kvc_gradients_seen(const struct kvc_gradients_model *m, uint32_t number, unsigned run);

/* RMSNorm of n rows of `width`, times factors; and the gradient of x, which is added to `to`. */
void kvc_gradients_norm(float *to, const float *x, const float *factor, size_t n, size_t width,
                        float epsilon);
void kvc_gradients_norm_back(float *to, const float *of, const float *x, const float *factor,
                             size_t n, size_t width, float epsilon);

#endif
