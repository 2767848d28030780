/* predict_neon.c: NEON twins of predict_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__aarch64__)

#include "kernels/dot_rows_neon.h"

/* A NaN is converted to 0. */
static inline int16x4_t four_codes(const float *x, const float *mean, const float *gain) {
    const float32x4_t y = vmulq_f32(vsubq_f32(vld1q_f32(x), vld1q_f32(mean)), vld1q_f32(gain));
    return vmovn_s32(vcvtnq_s32_f32(vmaxq_f32(vminq_f32(y, vdupq_n_f32(127)), vdupq_n_f32(-127))));
}

void kvc_small_codes_neon(int8_t *to, const float *x, const float *mean, const float *gain, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const int16x4_t a = four_codes(x + i, mean + i, gain + i), b = four_codes(x + i + 4, mean + i + 4, gain + i + 4);
        vst1_s8(to + i, vmovn_s16(vcombine_s16(a, b)));
    }
    kvc_small_codes_ref(to + i, x + i, mean + i, gain + i, n - i);
}

/* Two products of neither -128 fit into 16 bits. */
static inline int32x4_t dot_four(int32x4_t sum, int8x16_t weights, int8x16_t inputs) {
    const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(inputs)), high = vmull_high_s8(weights, inputs);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
}

void kvc_dot_rows_neon(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m) {
    kvc_dot_rows(y, x, rows, m, dot_four);
}

#else
typedef int kvc_no_predict_neon; /* ISO C wants one declaration in a file */
#endif
