/* ahead.h: the source of values that are predicted from tensors of earlier layers. Not for the
 * arithmetic of predictions (formats/model/predictor.h) or for finding the tensors (formats/). */
#ifndef KVC_AHEAD_H
#define KVC_AHEAD_H

#include "codecs/error.h"
#include "codecs/rope.h"
#include "kernels/dot_matrix.h"

#include <stddef.h>
#include <stdint.h>

enum { KVC_AHEAD_MOST = 16 };     /* tensors that one is predicted from */
#define KVC_AHEAD_NONE UINT32_MAX /* in place of a tensor: its inputs count as 0 */

/* What rows are predicted from, as a segment's side data say. */
struct kvc_ahead_inputs {
    uint32_t from[KVC_AHEAD_MOST];
    size_t n;
};

/* A matrix that predicts. Each tensor's inputs begin a group of the matrix's. */
struct kvc_ahead_matrix {
    const struct kvc_dot_matrix *matrix;
    /* of each tensor: its first input, its channels */
    size_t at[KVC_AHEAD_MOST], width[KVC_AHEAD_MOST];
};

/* May be called from several threads. */
struct kvc_ahead {
    const void *owner;
    size_t tile; /* Hadamard tile by which the tensor's rows are rotated; 0: none */
    /* Returns predictions of rows of the tensor, K before RoPE and without Hadamard rotation, as
     * [n_rows][channels of a row], which the caller frees; NULL: *e. `from`: the n tensors to
     * predict from. */
    float *(*rows)(const struct kvc_ahead *x, const uint32_t *from, size_t n, const uint64_t *row,
                   size_t n_rows, struct kvc_error *e);
    /* Finds the matrix of such a prediction. It lives as long as the profile. */
    int (*matrix)(const struct kvc_ahead *x, const uint32_t *from, size_t n,
                  struct kvc_ahead_matrix *to, struct kvc_error *e);
};

/* For encoders: the tensors from which one may be predicted. */
struct kvc_ahead_source {
    const struct kvc_ahead *ahead;
    uint32_t from[KVC_AHEAD_MOST];
    /* numbers in the model: of the tensor's layer, of the inputs' */
    uint32_t layer, layer_of[KVC_AHEAD_MOST];
    size_t n;
};

#endif
