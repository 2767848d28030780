/* convert.c: single conversions of floats, the Hadamard rotation. Not for hot paths, and not for
 * ggml's block types (ggml_blocks.c). */
#include "kernels/float_bits.h"
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

float kvc_half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31) return kvc_bits_to_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return kvc_bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
    if (!mantissa) return kvc_bits_to_float(sign);
    exponent = 113; /* subnormal: shift until the hidden bit appears */
    while (!(mantissa & 1024)) {
        mantissa <<= 1;
        exponent--;
    }
    return kvc_bits_to_float(sign | exponent << 23 | (mantissa & 1023) << 13);
}

uint16_t kvc_float_to_half(float f) {
    uint32_t bits = kvc_float_to_bits(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return 0x7e00;
    /* rounds to infinity */
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    /* rounds to zero */
    if (rest < 0x33000001) return (uint16_t)sign;
    uint32_t mantissa, shift, half;
    if (rest < 0x38800000) { /* subnormal half */
        shift = 126 - (rest >> 23);
        mantissa = (rest & 0x7fffff) | 0x800000;
        half = mantissa >> shift;
    } else {
        shift = 13;
        mantissa = rest - 0x38000000;
        half = mantissa >> shift;
    }
    uint32_t left = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1);
    if (left > tie || (left == tie && (half & 1))) half++;
    return (uint16_t)(sign | half);
}

uint16_t kvc_float_to_bf16(float f) {
    uint32_t bits = kvc_float_to_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    bits += 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

/* 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities, S.1111.111 is NaN (OCP FP8). */
void kvc_f8e4m3_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t sign = (uint32_t)(src[i] & 0x80) << 24, e = src[i] >> 3 & 15, m = src[i] & 7;
        if (e == 15 && m == 7) dst[i] = kvc_bits_to_float(sign | 0x7fc00000u);
        else if (e) dst[i] = kvc_bits_to_float(sign | (e + 120) << 23 | m << 20);
        else dst[i] = kvc_bits_to_float(sign | kvc_float_to_bits((float)m * 0x1p-9f));
    }
}

/* The upper byte of an IEEE half. */
void kvc_f8e5m2_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = kvc_half_to_float((uint16_t)(src[i] << 8));
}

void kvc_hadamard(float *x, size_t n, size_t tile) {
    float scale = 1.0f / sqrtf((float)tile);
    for (float *end = x + n; x < end; x += tile) {
        for (size_t half = 1; half < tile; half *= 2)
            for (size_t i = 0; i < tile; i += 2 * half)
                for (size_t j = i; j < i + half; j++) {
                    float a = x[j], b = x[j + half];
                    x[j] = a + b;
                    x[j + half] = a - b;
                }
        for (size_t i = 0; i < tile; i++) x[i] *= scale;
    }
}
