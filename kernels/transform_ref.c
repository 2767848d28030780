/* transform_ref.c: portable reference of the kernels of the transform codec: products with rows of
 * few non-zero coefficients, rotary positions, and symbols as numbers. Not for dense products
 * (products_ref.c). */
#include "kernels/twins.h"

#include <math.h>
#include <stdlib.h>

void kvc_multiply_sparse_ref(float *y, size_t y_stride, const float *a, size_t a_stride,
                             size_t rows, const float *b, size_t k, size_t stride, size_t n) {
    for (size_t r = 0; r < rows; r++, y += y_stride, a += a_stride) {
        for (size_t i = 0; i < n; i++) y[i] = 0;
        for (size_t j = 0; j < k; j++) {
            if (a[j] == 0) continue;
            for (size_t i = 0; i < n; i++) y[i] = fmaf(a[j], b[j * stride + i], y[i]);
        }
    }
}

void kvc_angles_ref(float *cosine, float *sine, const double *a, const double *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        cosine[i] = (float)(a[i] * b[i] - a[n + i] * b[n + i]);
        sine[i] = (float)(a[i] * b[n + i] + a[n + i] * b[i]);
    }
}

void kvc_turn_halves_ref(float *u, float *v, const float *cosine, const float *sine, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const float a = u[i], b = v[i];
        u[i] = a * cosine[i] - b * sine[i];
        v[i] = b * cosine[i] + a * sine[i];
    }
}

void kvc_turn_pairs_ref(float *x, const float *cosine, const float *sine, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

uint16_t kvc_symbols_to_floats_ref(float *y, const uint16_t *symbols, size_t n, uint16_t middle,
                                   float step) {
    uint16_t most = 0;
    for (size_t i = 0; i < n; i++) {
        y[i] = (float)((int)symbols[i] - (int)middle) * step;
        if (symbols[i] > most) most = symbols[i];
    }
    return most;
}

void kvc_round_codes_ref(int32_t *codes, const float *x, size_t n, float inverse, float most) {
    for (size_t i = 0; i < n; i++) {
        const float y = x[i] * inverse;
        codes[i] = y != y ? 0 : (int32_t)rintf(y > most ? most : y < -most ? -most : y);
    }
}

size_t kvc_codes_to_symbols_ref(uint16_t *symbols, uint16_t *others, const int32_t *codes,
                                const uint16_t *base, const uint8_t *limit, size_t n,
                                uint16_t middle) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        symbols[i] = (uint16_t)(base[i] + middle + (uint32_t)codes[i]);
        others[found] = (uint16_t)i;
        found += abs(codes[i]) >= limit[i];
    }
    return found;
}
