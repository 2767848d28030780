/* predict_neondot.c: the twin of dot_rows for ARM's dot products of bytes (SDOT), same bytes for
 * every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__aarch64__)

#include "kernels/dot_rows_neon.h"

static inline int32x4_t dot_four(int32x4_t sum, int8x16_t weights, int8x16_t inputs) {
    return vdotq_s32(sum, weights, inputs);
}

void kvc_dot_rows_neondot(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m) {
    kvc_dot_rows(y, x, rows, m, dot_four);
}

#else
typedef int kvc_no_predict_neondot; /* ISO C wants one declaration in a file */
#endif
