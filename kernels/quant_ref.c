/* quant_ref.c: portable reference of the kernels of lossy stages for 16-bit floats, ranges,
 * quantising and back. Not for sums and products (products_ref.c). */
#include "kernels/twins.h"

#include <math.h>

static void put_word(uint8_t *dst, uint16_t word) {
    dst[0] = (uint8_t)word;
    dst[1] = (uint8_t)(word >> 8);
}

void kvc_f32_to_f16_ref(uint8_t *dst, const float *src, size_t n) {
    for (size_t i = 0; i < n; i++) put_word(dst + 2 * i, kvc_float_to_half(src[i]));
}

void kvc_f32_to_bf16_ref(uint8_t *dst, const float *src, size_t n) {
    for (size_t i = 0; i < n; i++) put_word(dst + 2 * i, kvc_float_to_bf16(src[i]));
}

void kvc_widen_ranges_ref(float *low, float *high, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        low[i] = x[i] < low[i] ? x[i] : low[i];
        high[i] = x[i] > high[i] ? x[i] : high[i];
    }
}

void kvc_range_ref(const float *x, size_t n, float *low, float *high) {
    float least = x[0], greatest = x[0];
    for (size_t i = 1; i < n; i++) {
        least = x[i] < least ? x[i] : least;
        greatest = x[i] > greatest ? x[i] : greatest;
    }
    *low = least + 0.0f;
    *high = greatest + 0.0f;
}

size_t kvc_find_beyond_ref(uint16_t *index, const float *x, const float *low, const float *high,
                           size_t n, size_t step) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        if (x[i] <= low[i * step] || x[i] >= high[i * step]) index[found++] = (uint16_t)i;
    return found;
}

void kvc_quantise_ref(uint8_t *codes, const float *x, const float *low, const float *inverse,
                      size_t n, size_t group, float most) {
    for (size_t i = 0; i < n; i++) {
        float v = (x[i] - low[i / group]) * inverse[i / group];
        v = v > 0 ? v : 0;
        codes[i] = (uint8_t)rintf(v < most ? v : most);
    }
}

void kvc_dequantise_ref(float *x, const uint8_t *codes, const float *step, const float *low,
                        size_t n, size_t group) {
    for (size_t i = 0; i < n; i++) x[i] = (float)codes[i] * step[i / group] + low[i / group];
}

void kvc_dequantise_add_ref(float *x, const uint8_t *codes, const float *step, const float *low,
                            size_t n, size_t group) {
    for (size_t i = 0; i < n; i++) x[i] = (float)codes[i] * step[i / group] + low[i / group] + x[i];
}
