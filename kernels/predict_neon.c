/* predict_neon.c: NEON's twin of dot_rows, same bytes for every input. Not compiled on other
 * machines. */
#include "kernels/twins.h"

#if defined(__aarch64__)

#include "kernels/dot_rows_neon.h"

/* Two products of neither -128 fit into 16 bits. */
static inline int32x4_t dot_four(int32x4_t sum, int8x16_t weights, int8x16_t inputs) {
    const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(inputs)),
                    high = vmull_high_s8(weights, inputs);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
}

void kvc_dot_rows_vec(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m) {
    kvc_dot_rows(y, x, rows, m, dot_four);
}

#else
typedef int kvc_no_predict_neon; /* ISO C wants one declaration in a file */
#endif
