/* rebuild.h: what rows can be rebuilt from: hidden states at the same positions, and weights. Not for the arithmetic
 * (project.c) or for where either comes from (formats/). */
#ifndef KVC_REBUILD_H
#define KVC_REBUILD_H

#include "codecs/error.h"
#include "codecs/rope.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_FINGERPRINT_BYTES 32 /* of a projection: a SHA-256 */

/* A layer's projection to K or V. Lives until it is released. */
struct kvc_matrix {
    const float *weight; /* [in][out] */
    const float *bias;   /* [out], or NULL */
    const float *norm;   /* [in]: weights of the RMSNorm before it, or NULL */
    float epsilon;       /* of that norm; 0: unknown */
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
    void *hold;          /* of who gave it */
};

/* For one tensor. Functions may be called from several threads. */
struct kvc_rebuild {
    const void *owner;
    const int64_t *position; /* of each of the tensor's rows */
    /* Hidden states at the positions of n rows of the tensor, out of tensor `from`, which has `in` channels. */
    int (*hidden)(const struct kvc_rebuild *x, uint32_t from, const uint64_t *row, size_t n, size_t in, float *dst,
                  struct kvc_error *e);
    /* The projection of `in` channels to what the tensor is, in its layer and its channels' order. */
    int (*matrix)(const struct kvc_rebuild *x, size_t in, struct kvc_matrix *m, struct kvc_error *e);
    void (*release)(const struct kvc_rebuild *x, struct kvc_matrix *m);
};

/* What an encoder is told besides. */
struct kvc_rebuild_source {
    const struct kvc_rebuild *rebuild;
    uint32_t from;           /* the tensor of hidden states; UINT32_MAX: the layer has none */
    size_t in;               /* its channels */
    int is_hidden;           /* what is to be rebuilt are hidden states, out of another layer's */
    int normed;              /* states are stored 1 behind the norm, 0 before it, -1 nobody knows */
    const char *rope_type;   /* "default", "linear"; "": unknown */
    double theta, factor;    /* 0: unknown, none */
    size_t rotated;
    enum kvc_pairing pairing; /* of K; UNKNOWN or NONE: no RoPE */
};

#endif
