/* rows_avx512.c: AVX-512 twins of what every decoded value passes: conversion to bfloat16 (quant_ref.c), sums of rows (products_ref.c),
 * symbols as numbers (transform_ref.c); same bytes for every input. Not for products (transform_avx512.c). Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { LANES = 16 };

/* Sixteen words in 32-bit lanes. */
static inline __m512i bf16_words(const float *src) {
    const __m512 x = _mm512_loadu_ps(src);
    const __m512i bits = _mm512_castps_si512(x), half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000)), nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i up = _mm512_mask_add_epi32(half, odd, half, _mm512_set1_epi32(1));
    const __m512i quiet = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_srli_epi32(quiet, 16);
}

void kvc_f32_to_bf16_avx512(uint8_t *dst, const float *src, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * i), _mm512_cvtepi32_epi16(bf16_words(src + i)));
    kvc_f32_to_bf16_ref(dst + 2 * i, src + i, n - i);
}

void kvc_add_scaled_avx512(float *y, const float *x, float s, size_t n) {
    const __m512 factor = _mm512_set1_ps(s);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m512 product = _mm512_mul_ps(factor, _mm512_loadu_ps(x + i));
        _mm512_storeu_ps(y + i, _mm512_add_ps(_mm512_loadu_ps(y + i), product));
    }
    kvc_add_scaled_ref(y + i, x + i, s, n - i);
}

uint16_t kvc_symbols_to_floats_avx512(float *y, const uint16_t *symbols, size_t n, uint16_t middle, float step) {
    const __m512 factor = _mm512_set1_ps(step);
    const __m512i centre = _mm512_set1_epi32(middle);
    __m512i most = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m512i s = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(symbols + i)));
        _mm512_storeu_ps(y + i, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(s, centre)), factor));
        most = _mm512_max_epi32(most, s);
    }
    const uint16_t found = (uint16_t)_mm512_reduce_max_epi32(most);
    const uint16_t rest = i < n ? kvc_symbols_to_floats_ref(y + i, symbols + i, n - i, middle, step) : 0;
    return found > rest ? found : rest;
}

#else
typedef int kvc_no_rows_avx512; /* ISO C wants one declaration in a file */
#endif
