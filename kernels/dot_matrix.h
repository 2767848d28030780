/* dot_matrix.h: the layout of a matrix of small integers, as kernels and devices multiply by it.
 * Not for multiplying (kernels.h, dot_rows). */
#ifndef KVC_DOT_MATRIX_H
#define KVC_DOT_MATRIX_H

#include <stddef.h>
#include <stdint.h>

/* The inputs come in groups of so many, the outputs in blocks; so many inputs, times 127^2, fit
 * into int32. */
#define KVC_DOT_STEP 4
#define KVC_DOT_BLOCK 16
#define KVC_DOT_INPUTS 131072

/* A matrix, for dot_rows. */
struct kvc_dot_matrix {
    size_t outputs, inputs; /* inputs: a multiple of KVC_DOT_STEP, at most KVC_DOT_INPUTS */
    /* kvc_dot_bytes() of them, where kvc_dot_place() says, -127 to 127 */
    const int8_t *weights;
    const float *scale, *mean; /* by output */
};

/* Returns the index of a weight: [block of outputs][group of inputs][output][input], so that one
 * load has the weights of all outputs of a block for the same inputs. `inputs`: inputs of the
 * matrix. */
static inline size_t kvc_dot_place(size_t inputs, size_t output, size_t input) {
    return (output / KVC_DOT_BLOCK * inputs + input / KVC_DOT_STEP * KVC_DOT_STEP) * KVC_DOT_BLOCK +
           output % KVC_DOT_BLOCK * KVC_DOT_STEP + input % KVC_DOT_STEP;
}

/* Returns how many inputs a tensor with n channels takes: inputs of the next tensor begin a group.
 */
static inline size_t kvc_dot_stride(size_t n) {
    return (n + KVC_DOT_STEP - 1) / KVC_DOT_STEP * KVC_DOT_STEP;
}

/* Returns the bytes of a matrix's weights; those of the last block without an output are 0. */
static inline size_t kvc_dot_bytes(size_t outputs, size_t inputs) {
    return (outputs + KVC_DOT_BLOCK - 1) / KVC_DOT_BLOCK * KVC_DOT_BLOCK * inputs;
}

#endif
