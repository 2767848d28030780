/* quant_avx2.c: AVX2 twins of quant_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

void kvc_f32_to_f16_avx2(uint8_t *dst, const float *src, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) { /* vcvtps2ph makes NaNs quiet and cuts them as kvc_float_to_half() does */
        __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(dst + 2 * i), h);
    }
    kvc_f32_to_f16_ref(dst + 2 * i, src + i, n - i);
}

/* Eight words in 32-bit lanes. */
static __m256i bf16_words(const float *src) {
    const __m256 x = _mm256_loadu_ps(src);
    const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), quiet, nan);
}

void kvc_f32_to_bf16_avx2(uint8_t *dst, const float *src, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i words = _mm256_packus_epi32(bf16_words(src + i), bf16_words(src + i + 8));
        _mm256_storeu_si256((__m256i *)(void *)(dst + 2 * i), _mm256_permute4x64_epi64(words, 0xd8));
    }
    kvc_f32_to_bf16_ref(dst + 2 * i, src + i, n - i);
}

/* Lanes of eight values that are beyond their limits. */
static inline unsigned beyond(const float *x, const float *low, const float *high, int each) {
    const __m256 v = _mm256_loadu_ps(x);
    const __m256 below = _mm256_cmp_ps(v, each ? _mm256_loadu_ps(low) : _mm256_broadcast_ss(low), _CMP_LE_OQ);
    const __m256 above = _mm256_cmp_ps(v, each ? _mm256_loadu_ps(high) : _mm256_broadcast_ss(high), _CMP_GE_OQ);
    return (unsigned)_mm256_movemask_ps(_mm256_or_ps(below, above));
}

size_t kvc_find_beyond_avx2(uint16_t *index, const float *x, const float *low, const float *high, size_t n, size_t step) {
    size_t found = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        unsigned lanes = 0;
#pragma GCC unroll 4
        for (size_t v = 0; v < 4; v++) {
            const size_t at = i + 8 * v;
            lanes |= (step ? beyond(x + at, low + at, high + at, 1) : beyond(x + at, low, high, 0)) << 8 * v;
        }
        for (; lanes; lanes &= lanes - 1) index[found++] = (uint16_t)(i + (size_t)__builtin_ctz(lanes));
    }
    for (; i < n; i++)
        if (x[i] <= low[i * step] || x[i] >= high[i * step]) index[found++] = (uint16_t)i;
    return found;
}

/* minps and maxps give their second operand where neither is less, as the reference does. */
void kvc_widen_ranges_avx2(float *low, float *high, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        _mm256_storeu_ps(low + i, _mm256_min_ps(v, _mm256_loadu_ps(low + i)));
        _mm256_storeu_ps(high + i, _mm256_max_ps(v, _mm256_loadu_ps(high + i)));
    }
    kvc_widen_ranges_ref(low + i, high + i, x + i, n - i);
}

void kvc_range_avx2(const float *x, size_t n, float *low, float *high) {
    if (n < 8) {
        kvc_range_ref(x, n, low, high);
        return;
    }
    __m256 least = _mm256_loadu_ps(x + n - 8), greatest = least; /* the last eight: some may be seen twice */
    for (size_t i = 0; i + 8 < n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        least = _mm256_min_ps(v, least);
        greatest = _mm256_max_ps(v, greatest);
    }
    __m128 l = _mm_min_ps(_mm256_castps256_ps128(least), _mm256_extractf128_ps(least, 1));
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(greatest), _mm256_extractf128_ps(greatest, 1));
    l = _mm_min_ps(l, _mm_movehl_ps(l, l));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    *low = _mm_cvtss_f32(_mm_min_ss(l, _mm_movehdup_ps(l))) + 0.0f;
    *high = _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h))) + 0.0f;
}

/* The parameters of values i to i + 7: eight of them, or one for all. */
static inline __m256 parameters(const float *p, size_t i, int each) {
    return each ? _mm256_loadu_ps(p + i) : _mm256_broadcast_ss(p);
}

static inline __m256i quantise_eight(const float *x, __m256 low, __m256 inverse, __m256 most) {
    __m256 v = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x), low), inverse);
    v = _mm256_max_ps(v, _mm256_setzero_ps()); /* 0 for NaN, as in the reference */
    return _mm256_cvtps_epi32(_mm256_min_ps(v, most));
}

/* n values whose parameters are their own (`each`) or shared by all. */
static inline __attribute__((always_inline)) void quantise_run(uint8_t *codes, const float *x, const float *low,
                                                               const float *inverse, size_t n, float most, int each) {
    const __m256 top = _mm256_set1_ps(most);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i a = quantise_eight(x + i, parameters(low, i, each), parameters(inverse, i, each), top);
        __m256i b = quantise_eight(x + i + 8, parameters(low, i + 8, each), parameters(inverse, i + 8, each), top);
        __m256i c = quantise_eight(x + i + 16, parameters(low, i + 16, each), parameters(inverse, i + 16, each), top);
        __m256i d = quantise_eight(x + i + 24, parameters(low, i + 24, each), parameters(inverse, i + 24, each), top);
        __m256i v = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), _mm256_permutevar8x32_epi32(v, order));
    }
    for (; i + 8 <= n; i += 8) {
        __m256i a = quantise_eight(x + i, parameters(low, i, each), parameters(inverse, i, each), top);
        __m128i v = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        _mm_storel_epi64((__m128i *)(void *)(codes + i), _mm_packus_epi16(v, v));
    }
    if (i < n) {
        const size_t at = each ? i : 0, group = each ? 1 : n - i;
        kvc_quantise_ref(codes + i, x + i, low + at, inverse + at, n - i, group, most);
    }
}

void kvc_quantise_avx2(uint8_t *codes, const float *x, const float *low, const float *inverse, size_t n, size_t group,
                       float most) {
    if (group == 1) quantise_run(codes, x, low, inverse, n, most, 1);
    else if (group < 8) kvc_quantise_ref(codes, x, low, inverse, n, group, most);
    else
        for (size_t i = 0; i < n; i += group)
            quantise_run(codes + i, x + i, low++, inverse++, n - i < group ? n - i : group, most, 0);
}

static inline __attribute__((always_inline)) void dequantise_run(float *x, const uint8_t *codes, const float *step,
                                                                 const float *low, size_t n, int each, int add) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(codes + i)));
        __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(code), parameters(step, i, each));
        v = _mm256_add_ps(v, parameters(low, i, each));
        _mm256_storeu_ps(x + i, add ? _mm256_add_ps(v, _mm256_loadu_ps(x + i)) : v);
    }
    if (i < n) {
        const size_t at = each ? i : 0, group = each ? 1 : n - i;
        (add ? kvc_dequantise_add_ref : kvc_dequantise_ref)(x + i, codes + i, step + at, low + at, n - i, group);
    }
}

void kvc_dequantise_avx2(float *x, const uint8_t *codes, const float *step, const float *low, size_t n, size_t group) {
    if (group == 1) dequantise_run(x, codes, step, low, n, 1, 0);
    else if (group < 8) kvc_dequantise_ref(x, codes, step, low, n, group);
    else
        for (size_t i = 0; i < n; i += group)
            dequantise_run(x + i, codes + i, step++, low++, n - i < group ? n - i : group, 0, 0);
}

void kvc_dequantise_add_avx2(float *x, const uint8_t *codes, const float *step, const float *low, size_t n, size_t group) {
    if (group == 1) dequantise_run(x, codes, step, low, n, 1, 1);
    else if (group < 8) kvc_dequantise_add_ref(x, codes, step, low, n, group);
    else
        for (size_t i = 0; i < n; i += group)
            dequantise_run(x + i, codes + i, step++, low++, n - i < group ? n - i : group, 0, 1);
}

#else
typedef int kvc_no_quant_avx2; /* ISO C wants one declaration in a file */
#endif
