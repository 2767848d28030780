/* gram_avx512.c: the AVX-512 twin of add_gram (products_ref.c), same bytes for every input. Not for
 * other products, and not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* floats of a vector; of a tile: sixteen vectors of sums */
enum { LANES = 16, ROWS = 8, VECTORS = 2 };

static inline __mmask16 first_lanes(size_t n) {
    return (__mmask16)(n < LANES ? (1u << n) - 1 : 0xffffu);
}

/* gram[c] += sum[c] where the mask has bit c. */
static inline void add_sums(double *gram, __m512 sum, __mmask16 mask) {
    const __mmask8 low = (__mmask8)(mask & 255), high = (__mmask8)(mask >> 8);
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(sum)),
                  last = _mm512_cvtps_pd(_mm512_extractf32x8_ps(sum, 1));
    _mm512_mask_storeu_pd(gram, low, _mm512_add_pd(_mm512_maskz_loadu_pd(low, gram), first));
    _mm512_mask_storeu_pd(gram + 8, high,
                          _mm512_add_pd(_mm512_maskz_loadu_pd(high, gram + 8), last));
}

/* A tile: `rows` channels from i on, times up to LANES * vectors channels from j on. Inlined with
 * constants, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void tile(double *gram, const float *x, size_t n,
                                                       size_t stride, size_t dim, size_t i,
                                                       size_t j, size_t rows, size_t vectors) {
    __m512 sum[ROWS][VECTORS];
    const __mmask16 mask[VECTORS] = {first_lanes(dim - j),
                                     vectors > 1 ? first_lanes(dim - j - LANES) : 0};
#pragma GCC unroll 8
    for (size_t r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < VECTORS; v++) sum[r][v] = _mm512_setzero_ps();
    for (size_t t = 0; t < n; t++, x += stride) {
        __m512 column[VECTORS];
#pragma GCC unroll 2
        for (size_t v = 0; v < VECTORS; v++)
            if (v < vectors) column[v] = _mm512_maskz_loadu_ps(mask[v], x + j + LANES * v);
#pragma GCC unroll 8
        for (size_t r = 0; r < ROWS; r++)
#pragma GCC unroll 2
            for (size_t v = 0; v < VECTORS; v++)
                if (r < rows && v < vectors)
                    sum[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(x[i + r]), column[v], sum[r][v]);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < VECTORS; v++) {
            const size_t first = j + LANES * v; /* channels before i + r are below the diagonal */
            const __mmask16 below = i + r > first ? first_lanes(i + r - first) : 0;
            if (r < rows && v < vectors)
                add_sums(gram + (i + r) * dim + first, sum[r][v], (__mmask16)(mask[v] & ~below));
        }
}

void kvc_add_gram_avx512(double *gram, const float *x, size_t n, size_t stride, size_t dim) {
    for (size_t i = 0; i < dim; i += dim - i >= ROWS ? ROWS : 1)
        for (size_t j = i, wide; j < dim; j += LANES * wide) {
            wide = dim - j > LANES ? 2 : 1;
            if (dim - i >= ROWS && wide == 2) tile(gram, x, n, stride, dim, i, j, ROWS, 2);
            else if (dim - i >= ROWS) tile(gram, x, n, stride, dim, i, j, ROWS, 1);
            else if (wide == 2) tile(gram, x, n, stride, dim, i, j, 1, 2);
            else tile(gram, x, n, stride, dim, i, j, 1, 1);
        }
}

#else
typedef int kvc_no_gram_avx512; /* ISO C wants one declaration in a file */
#endif
