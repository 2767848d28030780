/* weights.h: one layer's projections to K, V and queries out of a model's weights file, as
 * binary32. Not for other weights, for facts and fingerprints of the model (model.h), or for the
 * arithmetic that uses the projections.
 *
 * K = RoPE(norm(x) Wk + bk), V = norm(x) Wv + bv, x being the hidden state that enters the layer.
 * The files stay open; what is loaded is one layer at a time, and the caller's to free. */
#ifndef KVC_WEIGHTS_H
#define KVC_WEIGHTS_H

#include "codecs/error.h"
#include "formats/cache/format.h"
#include "formats/io/hash.h"

#include <stdint.h>

/* an open weights file, or all files of a model; may be read by several threads at once */
struct kvc_weights;

/* `path` is what kvc_model_read() takes: a GGUF file, a safetensors file, the name of a shard of
 * either, or a directory of safetensors, with the config.json beside it when it is there. Also a
 * safetensors cache that has its own weights (tensors wk.N and wv.N). Messages do not name `path`
 * itself. */
struct kvc_weights *kvc_weights_open(const char *path, struct kvc_error *e);
void kvc_weights_close(struct kvc_weights *w);
/* Returns 1 if a file has a matrix of attention, or is a cache with weights of its own. */
int kvc_weights_have_attention(const struct kvc_weights *w);

/* The shape that projections must have to fit a cache. */
struct kvc_projection_shape {
    uint64_t in;              /* channels of a hidden state; 0: as many as the file's K has */
    uint64_t heads;           /* KV heads */
    uint64_t dim, dim_v;      /* channels of a head of K and of V */
    uint64_t rotated;         /* channels at the start of a head of K that RoPE rotates; 0: all */
    enum kvc_pairing pairing; /* of the cache's K; NONE: no RoPE */
};

struct kvc_projection {
    struct kvc_projection_shape shape; /* as asked for, `rotated` and `in` filled in */
    float *k, *v; /* [in][heads * dim] and [in][heads * dim_v]: output channels in the cache's own
                     order */
    float *k_bias, *v_bias; /* in the same order; NULL: none */
    /* [in]: factors of the normalised state; NULL: the file has none */
    float *norm;
    /* of RMSNorm, nearest binary32; 0: unknown, or the norm is no RMSNorm */
    float norm_epsilon;
    int norm_bias; /* 1: the norm has a bias too, which is not loaded */
    /* 1: K is normalised again before RoPE (Qwen3, Gemma 3), by weights that are not loaded */
    int k_norm;
};

/* Loads layer `layer`, checked against *shape. Element types: F32, F16 and BF16 of safetensors; of
 * GGUF f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_K to q6_K, iq4_nl and iq4_xs. K's channels
 * are brought from the pairing of the file's own engine to the one asked for: llama.cpp's converter
 * permutes the rows of architectures that it pairs interleaved. KVC_ERR_OTHER_MODEL when sizes or
 * pairing do not fit. On failure *p is empty. */
int kvc_weights_load(const struct kvc_weights *w, uint32_t layer,
                     const struct kvc_projection_shape *shape, struct kvc_projection *p,
                     struct kvc_error *e);
void kvc_projection_free(struct kvc_projection *p);

/* Queries are RoPE(norm(x) Wq + bq), with norms per head of K and of queries before RoPE in some
 * models (Qwen3, Gemma 3). */
struct kvc_query_projection {
    uint64_t heads; /* query heads, a multiple of the KV heads */
    float *q;       /* [in][heads * dim], channels of a head in the order of the cache's K */
    float *bias;    /* [heads * dim] in the same order; NULL: none */
    /* [dim] in the same order: factors of the normalised heads; NULL: there is no such norm */
    float *q_norm, *k_norm;
};

/* Loads what makes the queries of a layer whose K and V are loaded as *p, as kvc_weights_load()
 * does. On failure *q is empty. */
int kvc_weights_load_queries(const struct kvc_weights *w, uint32_t layer,
                             const struct kvc_projection *p, struct kvc_query_projection *q,
                             struct kvc_error *e);
void kvc_query_projection_free(struct kvc_query_projection *q);

/* Hashes a layer's projection, to the same hash whatever file it came from: SHA-256 of "kvc
 * projection 0\n"; Wk as binary32, little-endian, [in][out], a head's rotated channels paired as
 * halves (as they are where there is no RoPE); a byte 1 and bk in the same order, or a byte 0; the
 * same of Wv and bv, as they are; a byte 1 and the norm's weights, or a byte 0. So files of equal
 * values agree: bf16, f16 or f32, safetensors or GGUF. Not covered: the shape, RoPE's frequencies,
 * the epsilon, and what is not loaded. */
int kvc_projection_fingerprint(const struct kvc_projection *p, uint8_t sha256[KVC_SHA256_BYTES],
                               struct kvc_error *e);

#endif
