/* products_ref.c: portable reference of the kernels of lossy stages that make sums of products, and
 * exponentials. Not for quantising (quant_ref.c) or products of integers (predict_ref.c). */
#include "kernels/twins.h"

#include <math.h>
#include <string.h>

void kvc_multiply_rows_ref(float *y, const float *a, const float *b, size_t k, size_t stride,
                           size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = 0;
    for (size_t j = 0; j < k; j++)
        for (size_t i = 0; i < n; i++) y[i] = fmaf(a[j], b[j * stride + i], y[i]);
}

void kvc_multiply_tiles_ref(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows,
                            const float *b, size_t k, size_t tiles) {
    for (size_t t = 0; t < tiles; t++, y += KVC_TILE, b += k * KVC_TILE)
        for (size_t r = 0; r < rows; r++)
            kvc_multiply_rows_ref(y + r * y_stride, a + r * a_stride, b, k, KVC_TILE, KVC_TILE);
}

void kvc_add_gram_ref(double *gram, const float *x, size_t n, size_t stride, size_t dim) {
    for (size_t i = 0; i < dim; i++)
        for (size_t j = i; j < dim; j++) {
            float s = 0;
            for (size_t t = 0; t < n; t++) s = fmaf(x[t * stride + i], x[t * stride + j], s);
            gram[i * dim + j] += (double)s;
        }
}

void kvc_subtract_rows_ref(double *y, const double *x, size_t stride, const double *s, size_t step,
                           size_t rows, size_t n) {
    for (; rows; rows--, x += stride, s += step)
        for (size_t i = 0; i < n; i++) y[i] -= *s * x[i];
}

void kvc_add_scaled_ref(float *y, const float *x, float s, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += s * x[i];
}

void kvc_add_squares_ref(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += x[i] * x[i];
}

void kvc_scale_ref(float *y, const float *x, float s, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = s * x[i];
}

void kvc_multiply_ref(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] *= x[i];
}

static float total(const float sum[8]) {
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

float kvc_dot_ref(const float *a, const float *b, size_t n) {
    float sum[8] = {0};
    for (size_t i = 0; i < n; i++) sum[i % 8] += a[i] * b[i];
    return total(sum);
}

static float exponential(float d) {
    if (d < -87) return 0;
    const float c[] = KVC_EXPONENTIAL, power = rintf(d * KVC_LOG2_E);
    const float r = fmaf(power, -KVC_LN2_LOW, fmaf(power, -KVC_LN2_HIGH, d));
    float p = c[0], two;
    for (int i = 1; i < 7; i++) p = fmaf(p, r, c[i]);
    /* the minimum power is -126: never subnormal */
    const uint32_t bits = (uint32_t)((int32_t)power + 127) << 23;
    memcpy(&two, &bits, sizeof two);
    return p * two;
}

float kvc_exponentials_ref(float *x, size_t n, float most) {
    float sum[8] = {0};
    for (size_t i = 0; i < n; i++) sum[i % 8] += x[i] = exponential(x[i] - most);
    return total(sum);
}
