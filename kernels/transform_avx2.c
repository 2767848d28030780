/* transform_avx2.c: AVX2 and FMA twins of transform_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { LIST = 256 }; /* coefficients that are sought for non-zero ones at once */

/* Numbers of the non-zero ones among n <= LIST coefficients. 64 at a time are found before any is listed, so that branches
 * are as many as bits. */
static size_t list_nonzero(uint16_t *list, const float *a, size_t n) {
    size_t found = 0;
    for (size_t first = 0; first < n; first += 64) {
        const size_t end = n - first < 64 ? n : first + 64;
        uint64_t mask = 0;
        size_t j = first;
        for (; j + 8 <= end; j += 8) {
            const __m256 zero = _mm256_cmp_ps(_mm256_loadu_ps(a + j), _mm256_setzero_ps(), _CMP_NEQ_UQ);
            mask |= (uint64_t)(unsigned)_mm256_movemask_ps(zero) << (j - first);
        }
        for (; j < end; j++) mask |= (uint64_t)(a[j] != 0) << (j - first);
        for (; mask; mask &= mask - 1) list[found++] = (uint16_t)(first + (size_t)__builtin_ctzll(mask));
    }
    return found;
}

/* 8 * vectors columns: the listed terms, added to y where `more`. A constant number of vectors, so that the sums stay in
 * registers. */
static inline __attribute__((always_inline)) void add_terms(float *y, const float *a, const float *b, const uint16_t *list,
                                                            size_t terms, size_t stride, size_t vectors, int more) {
    __m256 sum[8];
#pragma GCC unroll 8
    for (size_t v = 0; v < 8; v++)
        if (v < vectors) sum[v] = more ? _mm256_loadu_ps(y + 8 * v) : _mm256_setzero_ps();
    for (size_t t = 0; t < terms; t++) {
        const __m256 factor = _mm256_broadcast_ss(a + list[t]);
        const float *row = b + list[t] * stride;
#pragma GCC unroll 8
        for (size_t v = 0; v < 8; v++)
            if (v < vectors) sum[v] = _mm256_fmadd_ps(factor, _mm256_loadu_ps(row + 8 * v), sum[v]);
    }
#pragma GCC unroll 8
    for (size_t v = 0; v < 8; v++)
        if (v < vectors) _mm256_storeu_ps(y + 8 * v, sum[v]);
}

static void multiply_row(float *y, const float *a, const float *b, size_t k, size_t stride, size_t n) {
    uint16_t list[LIST];
    const size_t whole = n / 8 * 8;
    for (size_t first = 0; first < k || !first; first += LIST) {
        const size_t count = k - first < LIST ? k - first : LIST, terms = list_nonzero(list, a + first, count);
        const float *from = a + first, *row = b + first * stride;
        size_t i = 0;
        for (; i + 64 <= n; i += 64) add_terms(y + i, from, row + i, list, terms, stride, 8, first != 0);
        for (; i + 32 <= n; i += 32) add_terms(y + i, from, row + i, list, terms, stride, 4, first != 0);
        for (; i + 8 <= n; i += 8) add_terms(y + i, from, row + i, list, terms, stride, 1, first != 0);
        for (i = whole; i < n && !first; i++) y[i] = 0;
        for (size_t t = 0; t < terms && whole < n; t++)
            for (i = whole; i < n; i++) y[i] = __builtin_fmaf(from[list[t]], row[list[t] * stride + i], y[i]);
    }
}

void kvc_multiply_sparse_avx2(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows, const float *b, size_t k,
                              size_t stride, size_t n) {
    for (size_t r = 0; r < rows; r++) multiply_row(y + r * y_stride, a + r * a_stride, b, k, stride, n);
}

/* 8 codes: a NaN compares false with itself and becomes 0. */
static __m256i round_eight(const float *x, __m256 inverse, __m256 most) {
    __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x), inverse);
    y = _mm256_and_ps(y, _mm256_cmp_ps(y, y, _CMP_ORD_Q));
    y = _mm256_max_ps(_mm256_min_ps(y, most), _mm256_sub_ps(_mm256_setzero_ps(), most));
    return _mm256_cvtps_epi32(y);
}

void kvc_round_codes_avx2(int32_t *codes, const float *x, size_t n, float inverse, float most) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), round_eight(x + i, _mm256_set1_ps(inverse), _mm256_set1_ps(most)));
    kvc_round_codes_ref(codes + i, x + i, n - i, inverse, most);
}

void kvc_angles_avx2(float *cosine, float *sine, const double *a, const double *b, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m256d ac = _mm256_loadu_pd(a + i), as = _mm256_loadu_pd(a + n + i);
        const __m256d bc = _mm256_loadu_pd(b + i), bs = _mm256_loadu_pd(b + n + i);
        _mm_storeu_ps(cosine + i, _mm256_cvtpd_ps(_mm256_sub_pd(_mm256_mul_pd(ac, bc), _mm256_mul_pd(as, bs))));
        _mm_storeu_ps(sine + i, _mm256_cvtpd_ps(_mm256_add_pd(_mm256_mul_pd(ac, bs), _mm256_mul_pd(as, bc))));
    }
    for (; i < n; i++) {
        cosine[i] = (float)(a[i] * b[i] - a[n + i] * b[n + i]);
        sine[i] = (float)(a[i] * b[n + i] + a[n + i] * b[i]);
    }
}

void kvc_turn_halves_avx2(float *u, float *v, const float *cosine, const float *sine, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 a = _mm256_loadu_ps(u + i), b = _mm256_loadu_ps(v + i);
        const __m256 c = _mm256_loadu_ps(cosine + i), s = _mm256_loadu_ps(sine + i);
        _mm256_storeu_ps(u + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(v + i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
    }
    kvc_turn_halves_ref(u + i, v + i, cosine + i, sine + i, n - i);
}

/* Four numbers, each twice. */
static __m256 twice(const float *x) {
    const __m256i order = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(x)), order);
}

void kvc_turn_pairs_avx2(float *x, const float *cosine, const float *sine, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) { /* addsub: the even lanes subtract, the odd ones add */
        const __m256 pair = _mm256_loadu_ps(x + 2 * i), turned = _mm256_permute_ps(pair, 0xb1);
        const __m256 straight = _mm256_mul_ps(pair, twice(cosine + i)), crossed = _mm256_mul_ps(turned, twice(sine + i));
        _mm256_storeu_ps(x + 2 * i, _mm256_addsub_ps(straight, crossed));
    }
    kvc_turn_pairs_ref(x + 2 * i, cosine + i, sine + i, n - i);
}

uint16_t kvc_symbols_to_floats_avx2(float *y, const uint16_t *symbols, size_t n, uint16_t middle, float step) {
    const __m256 factor = _mm256_set1_ps(step);
    const __m256i centre = _mm256_set1_epi32(middle);
    __m256i most = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i s = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(symbols + i)));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(s, centre)), factor));
        most = _mm256_max_epi32(most, s);
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    const uint16_t found = (uint16_t)_mm_cvtsi128_si32(four);
    const uint16_t rest = kvc_symbols_to_floats_ref(y + i, symbols + i, n - i, middle, step);
    return found > rest ? found : rest;
}

size_t kvc_codes_to_symbols_avx2(uint16_t *symbols, uint16_t *others, const int32_t *codes, const uint16_t *base,
                                 const uint8_t *limit, size_t n, uint16_t middle) {
    const __m128i centre = _mm_set1_epi16((int16_t)middle);
    const __m256i low_halves = _mm256_set1_epi32(0xffff);
    size_t found = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i code = _mm256_loadu_si256((const __m256i *)(const void *)(codes + i));
        const __m256i most = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(limit + i)));
        const __m256i within = _mm256_cmpgt_epi32(most, _mm256_abs_epi32(code)), low = _mm256_and_si256(code, low_halves);
        const __m128i word = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
        const __m128i from = _mm_add_epi16(centre, _mm_loadu_si128((const __m128i *)(const void *)(base + i)));
        _mm_storeu_si128((__m128i *)(void *)(symbols + i), _mm_add_epi16(from, word));
        unsigned mask = 255u & ~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(within));
        for (; mask; mask &= mask - 1) others[found++] = (uint16_t)(i + (size_t)__builtin_ctz(mask));
    }
    uint16_t rest[8];
    const size_t left = kvc_codes_to_symbols_ref(symbols + i, rest, codes + i, base + i, limit + i, n - i, middle);
    for (size_t j = 0; j < left; j++) others[found++] = (uint16_t)(i + rest[j]);
    return found;
}

#else
typedef int kvc_no_transform_avx2; /* ISO C wants one declaration in a file */
#endif
