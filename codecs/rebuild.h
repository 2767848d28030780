/* rebuild.h: the sources that rows can be rebuilt from: hidden states at the same positions, and
 * weights. Not for the arithmetic (project.c) or for finding the sources (formats/). */
#ifndef KVC_REBUILD_H
#define KVC_REBUILD_H

#include "codecs/error.h"
#include "codecs/rope.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_FINGERPRINT_BYTES 32 /* of a projection: a SHA-256 */

/* A layer's projection to K or V, valid until it is released. */
struct kvc_matrix {
    const float *weight; /* [in][out] */
    const float *bias;   /* [out], or NULL */
    const float *norm;   /* [in]: weights of the RMSNorm before it, or NULL */
    float epsilon;       /* of that norm; 0: unknown */
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
    void *hold; /* of the source */
};

/* The sources of one tensor. Functions may be called from several threads. */
struct kvc_rebuild {
    const void *owner;
    const int64_t *position; /* of each of the tensor's rows */
    /* Reads the hidden states at the positions of n rows of the tensor from tensor `from`, which
     * has `in` channels. */
    int (*hidden)(const struct kvc_rebuild *x, uint32_t from, const uint64_t *row, size_t n,
                  size_t in, float *dst, struct kvc_error *e);
    /* Finds the projection of `in` channels to the tensor, for its layer and in the order of its
     * channels. */
    int (*matrix)(const struct kvc_rebuild *x, size_t in, struct kvc_matrix *m,
                  struct kvc_error *e);
    void (*release)(const struct kvc_rebuild *x, struct kvc_matrix *m);
};

/* Further facts for encoders. */
struct kvc_rebuild_source {
    const struct kvc_rebuild *rebuild;
    uint32_t from;              /* the tensor of hidden states; UINT32_MAX: the layer has none */
    size_t in;                  /* its channels */
    int is_hidden;              /* 1: hidden states are rebuilt from another layer's */
    int normed;                 /* states are stored after the norm: 1, before it: 0, unknown: -1 */
    struct kvc_rope_facts rope; /* of K; pairing UNKNOWN or NONE: no RoPE */
};

#endif
