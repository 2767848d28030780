/* products_avx2.c: AVX2 and FMA twins of products_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* Mask of the first n lanes, n <= 8. */
static __m256i first(size_t n) {
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(const void *)(ones + 8 - n));
}

/* Columns of multiply_rows in 1 to 12 vectors, the last under a mask. Inlined with a constant number of vectors and loops
 * that compilers unroll whole, so that the sums stay in registers: eight keep the adders busy, and there are sixteen. */
static inline __attribute__((always_inline)) void columns(float *y, const float *a, const float *b, size_t k, size_t stride,
                                                          size_t vectors, __m256i mask) {
    __m256 sum[12];
    const size_t last = vectors - 1;
#pragma GCC unroll 12
    for (size_t v = 0; v < 12; v++) sum[v] = _mm256_setzero_ps();
    for (size_t j = 0; j < k; j++, b += stride) {
        const __m256 factor = _mm256_broadcast_ss(a + j);
#pragma GCC unroll 12
        for (size_t v = 0; v < 12; v++)
            if (v < last) sum[v] = _mm256_fmadd_ps(factor, _mm256_loadu_ps(b + 8 * v), sum[v]);
        sum[last] = _mm256_fmadd_ps(factor, _mm256_maskload_ps(b + 8 * last, mask), sum[last]);
    }
#pragma GCC unroll 12
    for (size_t v = 0; v < 12; v++)
        if (v < last) _mm256_storeu_ps(y + 8 * v, sum[v]);
    _mm256_maskstore_ps(y + 8 * last, mask, sum[last]);
}

void kvc_multiply_rows_avx2(float *y, const float *a, const float *b, size_t k, size_t stride, size_t n) {
    for (size_t i = 0, count; i < n; i += count) {
        count = n - i <= 96 ? n - i : 64;
        const size_t vectors = (count + 7) / 8;
        const __m256i mask = first(count - 8 * (vectors - 1));
        switch (vectors) {
        case 1: columns(y + i, a, b + i, k, stride, 1, mask); break;
        case 2: columns(y + i, a, b + i, k, stride, 2, mask); break;
        case 3: columns(y + i, a, b + i, k, stride, 3, mask); break;
        case 4: columns(y + i, a, b + i, k, stride, 4, mask); break;
        case 5: columns(y + i, a, b + i, k, stride, 5, mask); break;
        case 6: columns(y + i, a, b + i, k, stride, 6, mask); break;
        case 7: columns(y + i, a, b + i, k, stride, 7, mask); break;
        case 8: columns(y + i, a, b + i, k, stride, 8, mask); break;
        case 9: columns(y + i, a, b + i, k, stride, 9, mask); break;
        case 10: columns(y + i, a, b + i, k, stride, 10, mask); break;
        case 11: columns(y + i, a, b + i, k, stride, 11, mask); break;
        default: columns(y + i, a, b + i, k, stride, 12, mask); break;
        }
    }
}

/* A tile of 1 to 6 rows: each vector of b serves them all. Inlined with a constant number of rows, as above. */
static inline __attribute__((always_inline)) void tile(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows,
                                                       const float *b, size_t k) {
    __m256 sum[6][2];
#pragma GCC unroll 6
    for (size_t r = 0; r < 6; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (size_t j = 0; j < k; j++, b += KVC_TILE) {
        const __m256 low = _mm256_loadu_ps(b), high = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
        for (size_t r = 0; r < 6; r++) {
            if (r >= rows) continue;
            const __m256 factor = _mm256_broadcast_ss(a + r * a_stride + j);
            sum[r][0] = _mm256_fmadd_ps(factor, low, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(factor, high, sum[r][1]);
        }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < 6; r++) {
        if (r >= rows) continue;
        _mm256_storeu_ps(y + r * y_stride, sum[r][0]);
        _mm256_storeu_ps(y + r * y_stride + 8, sum[r][1]);
    }
}

static void multiply_tile(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows, const float *b, size_t k) {
    for (; rows >= 6; rows -= 6, y += 6 * y_stride, a += 6 * a_stride) tile(y, y_stride, a, a_stride, 6, b, k);
    for (; rows >= 2; rows -= 2, y += 2 * y_stride, a += 2 * a_stride) tile(y, y_stride, a, a_stride, 2, b, k);
    if (rows) tile(y, y_stride, a, a_stride, 1, b, k);
}

void kvc_multiply_tiles_avx2(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows, const float *b, size_t k,
                             size_t tiles) {
    for (size_t t = 0; t < tiles; t++) multiply_tile(y + t * KVC_TILE, y_stride, a, a_stride, rows, b + t * k * KVC_TILE, k);
}

enum { GRAM_ROWS = 6, GRAM_COLUMNS = 16 }; /* of a tile of add_gram: twelve vectors of sums */

/* Sums of a tile of add_gram: `rows` channels from x + i on, times `columns` channels from x + j on. Inlined with constants, as
 * above; `masks` are those of both vectors of columns. */
static inline __attribute__((always_inline)) void gram_tile(float *y, const float *x, size_t n, size_t stride, size_t i, size_t j,
                                                            size_t rows, const __m256i *masks) {
    __m256 sum[GRAM_ROWS][2];
#pragma GCC unroll 6
    for (size_t r = 0; r < GRAM_ROWS; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (size_t t = 0; t < n; t++, x += stride) {
        const __m256 low = masks ? _mm256_maskload_ps(x + j, masks[0]) : _mm256_loadu_ps(x + j);
        const __m256 high = masks ? _mm256_maskload_ps(x + j + 8, masks[1]) : _mm256_loadu_ps(x + j + 8);
#pragma GCC unroll 6
        for (size_t r = 0; r < GRAM_ROWS; r++) {
            if (r >= rows) continue;
            const __m256 factor = _mm256_broadcast_ss(x + i + r);
            sum[r][0] = _mm256_fmadd_ps(factor, low, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(factor, high, sum[r][1]);
        }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < GRAM_ROWS; r++) {
        _mm256_storeu_ps(y + r * GRAM_COLUMNS, sum[r][0]);
        _mm256_storeu_ps(y + r * GRAM_COLUMNS + 8, sum[r][1]);
    }
}

void kvc_add_gram_avx2(double *gram, const float *x, size_t n, size_t stride, size_t dim) {
    float y[GRAM_ROWS * GRAM_COLUMNS];
    for (size_t i = 0; i < dim; i += GRAM_ROWS)
        for (size_t j = i; j < dim; j += GRAM_COLUMNS) {
            const size_t rows = dim - i < GRAM_ROWS ? dim - i : GRAM_ROWS, left = dim - j;
            const size_t columns = left < GRAM_COLUMNS ? left : GRAM_COLUMNS;
            const __m256i masks[2] = {first(left < 8 ? left : 8), first(left < 8 ? 0 : columns - 8)};
            if (rows == GRAM_ROWS && left >= GRAM_COLUMNS) gram_tile(y, x, n, stride, i, j, GRAM_ROWS, NULL);
            else if (rows == GRAM_ROWS) gram_tile(y, x, n, stride, i, j, GRAM_ROWS, masks);
            else gram_tile(y, x, n, stride, i, j, rows, masks);
            for (size_t r = 0; r < rows; r++)
                for (size_t c = j > i ? 0 : r; c < columns; c++) gram[(i + r) * dim + j + c] += (double)y[r * GRAM_COLUMNS + c];
        }
}

void kvc_add_scaled_avx2(float *y, const float *x, float s, size_t n) {
    const __m256 factor = _mm256_set1_ps(s);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 product = _mm256_mul_ps(factor, _mm256_loadu_ps(x + i));
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), product));
    }
    kvc_add_scaled_ref(y + i, x + i, s, n - i);
}

void kvc_add_squares_avx2(float *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_mul_ps(v, v)));
    }
    kvc_add_squares_ref(y + i, x + i, n - i);
}

void kvc_scale_avx2(float *y, const float *x, float s, size_t n) {
    const __m256 factor = _mm256_set1_ps(s);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_mul_ps(factor, _mm256_loadu_ps(x + i)));
    kvc_scale_ref(y + i, x + i, s, n - i);
}

void kvc_multiply_avx2(float *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    kvc_multiply_ref(y + i, x + i, n - i);
}

static float total(__m256 sum) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1)); /* 0 + 4, 1 + 5, ... */
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The last lanes add +0 where the reference adds nothing: the same, as a sum that began as +0 never is -0. */
float kvc_dot_avx2(const float *a, const float *b, size_t n) {
    __m256 sum = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
    if (i < n) {
        const __m256i mask = first(n - i);
        sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_maskload_ps(a + i, mask), _mm256_maskload_ps(b + i, mask)));
    }
    return total(sum);
}

static inline __m256 exponential(__m256 d) {
    static const float c[] = KVC_EXPONENTIAL;
    const __m256 scaled = _mm256_mul_ps(d, _mm256_set1_ps(KVC_LOG2_E));
    const __m256 power = _mm256_round_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(power, _mm256_set1_ps(-KVC_LN2_HIGH), d), p = _mm256_set1_ps(c[0]);
    r = _mm256_fmadd_ps(power, _mm256_set1_ps(-KVC_LN2_LOW), r);
#pragma GCC unroll 6
    for (int i = 1; i < 7; i++) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c[i]));
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127));
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
    return _mm256_and_ps(p, _mm256_cmp_ps(d, _mm256_set1_ps(-87), _CMP_GE_OQ));
}

float kvc_exponentials_avx2(float *x, size_t n, float most) {
    const __m256 greatest = _mm256_set1_ps(most);
    __m256 sum = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 e = exponential(_mm256_sub_ps(_mm256_loadu_ps(x + i), greatest));
        _mm256_storeu_ps(x + i, e);
        sum = _mm256_add_ps(sum, e);
    }
    if (i < n) {
        const __m256i mask = first(n - i);
        __m256 e = exponential(_mm256_sub_ps(_mm256_maskload_ps(x + i, mask), greatest));
        _mm256_maskstore_ps(x + i, mask, e);
        sum = _mm256_add_ps(sum, _mm256_and_ps(e, _mm256_castsi256_ps(mask)));
    }
    return total(sum);
}

#else
typedef int kvc_no_products_avx2; /* ISO C wants one declaration in a file */
#endif
