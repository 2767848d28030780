/* rows_avx512.c: AVX-512 twins of what every value passes on its way: bfloat16 (quant_ref.c),
 * codes, symbols and RoPE of the transform codec (transform_ref.c); same bytes for every input. Not
 * for products (transform_avx512.c). Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { LANES = 16 };

/* Sixteen words in 32-bit lanes. */
static inline __m512i bf16_words(const float *src) {
    const __m512 x = _mm512_loadu_ps(src);
    const __m512i bits = _mm512_castps_si512(x),
                  half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000)),
                    nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i up = _mm512_mask_add_epi32(half, odd, half, _mm512_set1_epi32(1));
    return _mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7fc00000)), 16);
}

void kvc_f32_to_bf16_avx512(uint8_t *dst, const float *src, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * i),
                            _mm512_cvtepi32_epi16(bf16_words(src + i)));
    kvc_f32_to_bf16_ref(dst + 2 * i, src + i, n - i);
}

uint16_t kvc_symbols_to_floats_avx512(float *y, const uint16_t *symbols, size_t n, uint16_t middle,
                                      float step) {
    const __m512 factor = _mm512_set1_ps(step);
    const __m512i centre = _mm512_set1_epi32(middle);
    __m512i most = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m512i s = _mm512_cvtepu16_epi32(
            _mm256_loadu_si256((const __m256i *)(const void *)(symbols + i)));
        _mm512_storeu_ps(y + i,
                         _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(s, centre)), factor));
        most = _mm512_max_epi32(most, s);
    }
    const uint16_t found = (uint16_t)_mm512_reduce_max_epi32(most);
    const uint16_t rest = i < n ? kvc_symbols_to_floats_ref(y + i, symbols + i, n - i, middle, step)
                                : 0;
    return found > rest ? found : rest;
}

void kvc_round_codes_avx512(int32_t *codes, const float *x, size_t n, float inverse, float most) {
    const __m512 factor = _mm512_set1_ps(inverse), high = _mm512_set1_ps(most),
                 low = _mm512_set1_ps(-most);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m512 y = _mm512_mul_ps(_mm512_loadu_ps(x + i), factor),
                     within = _mm512_max_ps(_mm512_min_ps(y, high), low);
        const __mmask16 number = _mm512_cmp_ps_mask(y, y, _CMP_ORD_Q);
        _mm512_storeu_si512(codes + i, _mm512_maskz_cvtps_epi32(number, within));
    }
    kvc_round_codes_ref(codes + i, x + i, n - i, inverse, most);
}

size_t kvc_codes_to_symbols_avx512(uint16_t *symbols, uint16_t *others, const int32_t *codes,
                                   const uint16_t *base, const uint8_t *limit, size_t n,
                                   uint16_t middle) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m256i centre = _mm256_set1_epi16((int16_t)middle);
    size_t found = 0, i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m512i code = _mm512_loadu_si512(codes + i);
        const __m512i most = _mm512_cvtepu8_epi32(
            _mm_loadu_si128((const __m128i *)(const void *)(limit + i)));
        const __m256i from =
            _mm256_add_epi16(centre, _mm256_loadu_si256((const __m256i *)(const void *)(base + i)));
        const __m256i word = _mm256_add_epi16(from, _mm512_cvtepi32_epi16(code));
        const __mmask16 beyond = _mm512_cmp_epi32_mask(_mm512_abs_epi32(code), most,
                                                       _MM_CMPINT_NLT);
        const __m512i index = _mm512_add_epi32(first, _mm512_set1_epi32((int)i));
        _mm256_storeu_si256((__m256i *)(void *)(symbols + i), word);
        /* whole vectors are written to the list, which has room for all: found is at most i */
        _mm256_storeu_si256((__m256i *)(void *)(others + found),
                            _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(beyond, index)));
        found += (size_t)__builtin_popcount(beyond);
    }
    uint16_t rest[LANES];
    const size_t left = kvc_codes_to_symbols_ref(symbols + i, rest, codes + i, base + i, limit + i,
                                                 n - i, middle);
    for (size_t j = 0; j < left; j++) others[found++] = (uint16_t)(i + rest[j]);
    return found;
}

void kvc_turn_halves_avx512(float *u, float *v, const float *cosine, const float *sine, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m512 a = _mm512_loadu_ps(u + i), b = _mm512_loadu_ps(v + i);
        const __m512 c = _mm512_loadu_ps(cosine + i), s = _mm512_loadu_ps(sine + i);
        _mm512_storeu_ps(u + i, _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)));
        _mm512_storeu_ps(v + i, _mm512_add_ps(_mm512_mul_ps(b, c), _mm512_mul_ps(a, s)));
    }
    kvc_turn_halves_ref(u + i, v + i, cosine + i, sine + i, n - i);
}

#else
typedef int kvc_no_rows_avx512; /* ISO C wants one declaration in a file */
#endif
