/* products_neon.c: NEON twins of products_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <math.h>

/* Columns of multiply_rows in 1 to 16 vectors. Inlined with a constant number of vectors and loops that compilers unroll whole, so
 * that the sums stay in registers: there are 32. */
static inline __attribute__((always_inline)) void columns(float *y, const float *a, const float *b, size_t k, size_t stride,
                                                          size_t vectors) {
    float32x4_t sum[16];
#pragma GCC unroll 16
    for (size_t v = 0; v < 16; v++) sum[v] = vdupq_n_f32(0);
    for (size_t j = 0; j < k; j++, b += stride) {
        const float32x4_t factor = vld1q_dup_f32(a + j);
#pragma GCC unroll 16
        for (size_t v = 0; v < 16; v++)
            if (v < vectors) sum[v] = vfmaq_f32(sum[v], factor, vld1q_f32(b + 4 * v));
    }
#pragma GCC unroll 16
    for (size_t v = 0; v < 16; v++)
        if (v < vectors) vst1q_f32(y + 4 * v, sum[v]);
}

void kvc_multiply_rows_neon(float *y, const float *a, const float *b, size_t k, size_t stride, size_t n) {
    size_t i = 0;
    for (; i + 64 <= n; i += 64) columns(y + i, a, b + i, k, stride, 16);
    for (; i + 32 <= n; i += 32) columns(y + i, a, b + i, k, stride, 8);
    for (; i + 16 <= n; i += 16) columns(y + i, a, b + i, k, stride, 4);
    for (; i + 4 <= n; i += 4) columns(y + i, a, b + i, k, stride, 1);
    kvc_multiply_rows_ref(y + i, a, b + i, k, stride, n - i);
}

/* A tile of 1 or 4 rows: each vector of b serves them all. Inlined with a constant number of rows, as above. */
static inline __attribute__((always_inline)) void tile(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows,
                                                       const float *b, size_t k) {
    float32x4_t sum[4][4];
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; r++) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = vdupq_n_f32(0);
    for (size_t j = 0; j < k; j++, b += KVC_TILE) {
        const float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + 4), b2 = vld1q_f32(b + 8), b3 = vld1q_f32(b + 12);
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++) {
            if (r >= rows) continue;
            const float32x4_t factor = vld1q_dup_f32(a + r * a_stride + j);
            sum[r][0] = vfmaq_f32(sum[r][0], factor, b0);
            sum[r][1] = vfmaq_f32(sum[r][1], factor, b1);
            sum[r][2] = vfmaq_f32(sum[r][2], factor, b2);
            sum[r][3] = vfmaq_f32(sum[r][3], factor, b3);
        }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; r++) {
        if (r >= rows) continue;
#pragma GCC unroll 4
        for (size_t v = 0; v < 4; v++) vst1q_f32(y + r * y_stride + 4 * v, sum[r][v]);
    }
}

static void multiply_tile(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows, const float *b, size_t k) {
    for (; rows >= 4; rows -= 4, y += 4 * y_stride, a += 4 * a_stride) tile(y, y_stride, a, a_stride, 4, b, k);
    for (; rows; rows--, y += y_stride, a += a_stride) tile(y, y_stride, a, a_stride, 1, b, k);
}

void kvc_multiply_tiles_neon(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows, const float *b, size_t k,
                             size_t tiles) {
    for (size_t t = 0; t < tiles; t++) multiply_tile(y + t * KVC_TILE, y_stride, a, a_stride, rows, b + t * k * KVC_TILE, k);
}

enum { GRAM_ROWS = 4, GRAM_COLUMNS = 16 }; /* of a tile of add_gram: sixteen vectors of sums */

/* Sums of a whole tile of add_gram: four channels from x + i on, times sixteen from x + j on. */
static void gram_tile(float *y, const float *x, size_t n, size_t stride, size_t i, size_t j) {
    float32x4_t sum[GRAM_ROWS][4];
#pragma GCC unroll 4
    for (size_t r = 0; r < GRAM_ROWS; r++) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = vdupq_n_f32(0);
    for (size_t t = 0; t < n; t++, x += stride) {
        const float32x4_t b0 = vld1q_f32(x + j), b1 = vld1q_f32(x + j + 4), b2 = vld1q_f32(x + j + 8), b3 = vld1q_f32(x + j + 12);
#pragma GCC unroll 4
        for (size_t r = 0; r < GRAM_ROWS; r++) {
            const float32x4_t factor = vld1q_dup_f32(x + i + r);
            sum[r][0] = vfmaq_f32(sum[r][0], factor, b0);
            sum[r][1] = vfmaq_f32(sum[r][1], factor, b1);
            sum[r][2] = vfmaq_f32(sum[r][2], factor, b2);
            sum[r][3] = vfmaq_f32(sum[r][3], factor, b3);
        }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < GRAM_ROWS; r++)
#pragma GCC unroll 4
        for (size_t v = 0; v < 4; v++) vst1q_f32(y + r * GRAM_COLUMNS + 4 * v, sum[r][v]);
}

void kvc_add_gram_neon(double *gram, const float *x, size_t n, size_t stride, size_t dim) {
    float y[GRAM_ROWS * GRAM_COLUMNS];
    for (size_t i = 0; i < dim; i += GRAM_ROWS)
        for (size_t j = i; j < dim; j += GRAM_COLUMNS) {
            const size_t rows = dim - i < GRAM_ROWS ? dim - i : GRAM_ROWS;
            const size_t columns = dim - j < GRAM_COLUMNS ? dim - j : GRAM_COLUMNS;
            const int whole = rows == GRAM_ROWS && columns == GRAM_COLUMNS;
            if (whole) gram_tile(y, x, n, stride, i, j);
            for (size_t r = 0; r < rows; r++)
                for (size_t c = j > i ? 0 : r; c < columns; c++) {
                    float s = whole ? y[r * GRAM_COLUMNS + c] : 0;
                    for (size_t t = 0; t < n && !whole; t++) s = fmaf(x[t * stride + i + r], x[t * stride + j + c], s);
                    gram[(i + r) * dim + j + c] += (double)s;
                }
        }
}

void kvc_add_scaled_neon(float *y, const float *x, float s, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vaddq_f32(vld1q_f32(y + i), vmulq_n_f32(vld1q_f32(x + i), s)));
    kvc_add_scaled_ref(y + i, x + i, s, n - i);
}

void kvc_add_squares_neon(float *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t v = vld1q_f32(x + i);
        vst1q_f32(y + i, vaddq_f32(vld1q_f32(y + i), vmulq_f32(v, v)));
    }
    kvc_add_squares_ref(y + i, x + i, n - i);
}

void kvc_scale_neon(float *y, const float *x, float s, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vmulq_n_f32(vld1q_f32(x + i), s));
    kvc_scale_ref(y + i, x + i, s, n - i);
}

void kvc_multiply_neon(float *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vmulq_f32(vld1q_f32(y + i), vld1q_f32(x + i)));
    kvc_multiply_ref(y + i, x + i, n - i);
}

/* Returns the total of eight sums, 0 to 3 in a. */
static inline float total(float32x4_t a, float32x4_t b) {
    const float32x4_t four = vaddq_f32(a, b); /* 0 + 4, 1 + 5, ... */
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* Loads n <= 8 values and, in the other lanes, `rest`. */
static inline float32x4x2_t load_some(const float *x, size_t n, float rest) {
    float eight[8];
    for (size_t i = 0; i < 8; i++) eight[i] = i < n ? x[i] : rest;
    const float32x4x2_t v = {{vld1q_f32(eight), vld1q_f32(eight + 4)}};
    return v;
}

/* The last lanes add +0 where the reference adds nothing: the same, as a sum that began as +0 never is -0. */
float kvc_dot_neon(const float *a, const float *b, size_t n) {
    float32x4_t low = vdupq_n_f32(0), high = low;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        low = vaddq_f32(low, vmulq_f32(vld1q_f32(a + i), vld1q_f32(b + i)));
        high = vaddq_f32(high, vmulq_f32(vld1q_f32(a + i + 4), vld1q_f32(b + i + 4)));
    }
    if (i < n) {
        const float32x4x2_t x = load_some(a + i, n - i, 0), y = load_some(b + i, n - i, 0);
        low = vaddq_f32(low, vmulq_f32(x.val[0], y.val[0]));
        high = vaddq_f32(high, vmulq_f32(x.val[1], y.val[1]));
    }
    return total(low, high);
}

static inline float32x4_t exponential(float32x4_t d) {
    static const float c[] = KVC_EXPONENTIAL;
    const float32x4_t power = vrndnq_f32(vmulq_f32(d, vdupq_n_f32(KVC_LOG2_E)));
    float32x4_t r = vfmaq_f32(d, power, vdupq_n_f32(-KVC_LN2_HIGH)), p = vdupq_n_f32(c[0]);
    r = vfmaq_f32(r, power, vdupq_n_f32(-KVC_LN2_LOW));
#pragma GCC unroll 6
    for (int i = 1; i < 7; i++) p = vfmaq_f32(vdupq_n_f32(c[i]), p, r);
    const int32x4_t biased = vaddq_s32(vcvtq_s32_f32(power), vdupq_n_s32(127));
    p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(p), vcgeq_f32(d, vdupq_n_f32(-87))));
}

float kvc_exponentials_neon(float *x, size_t n, float most) {
    const float32x4_t top = vdupq_n_f32(most);
    float32x4_t low = vdupq_n_f32(0), high = low;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const float32x4_t a = exponential(vsubq_f32(vld1q_f32(x + i), top)),
                          b = exponential(vsubq_f32(vld1q_f32(x + i + 4), top));
        vst1q_f32(x + i, a);
        vst1q_f32(x + i + 4, b);
        low = vaddq_f32(low, a);
        high = vaddq_f32(high, b);
    }
    if (i < n) { /* the power of -infinity is 0 */
        const float32x4x2_t v = load_some(x + i, n - i, -__builtin_inff());
        const float32x4_t a = exponential(vsubq_f32(v.val[0], top)), b = exponential(vsubq_f32(v.val[1], top));
        float eight[8];
        vst1q_f32(eight, a);
        vst1q_f32(eight + 4, b);
        for (size_t l = 0; i + l < n; l++) x[i + l] = eight[l];
        low = vaddq_f32(low, a);
        high = vaddq_f32(high, b);
    }
    return total(low, high);
}

#else
typedef int kvc_no_products_neon; /* ISO C wants one declaration in a file */
#endif
