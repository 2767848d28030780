/* transform_avx512.c: AVX-512 twins of products (transform_ref.c: few coefficients; products_ref.c:
 * tiles, Gram matrices), same bytes for every input. Not for codes, symbols and RoPE
 * (rows_avx512.c), and not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { DOUBLES = 8 };
#include "kernels/subtract_rows.h"

/* floats of a vector; coefficients that are sought for non-zero ones at once */
enum { LANES = 16, GROUP = 64 };

static inline __mmask16 first_lanes(size_t n) {
    return (__mmask16)(n < LANES ? (1u << n) - 1 : 0xffffu);
}

/* Finds the non-zero ones among n <= GROUP coefficients. */
static inline uint64_t find_nonzero(const float *a, size_t n) {
    uint64_t found = 0;
    for (size_t j = 0; j < n; j += LANES) {
        const __m512 x = _mm512_maskz_loadu_ps(first_lanes(n - j), a + j);
        found |= (uint64_t)_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ) << j;
    }
    return found;
}

/* LANES * vectors columns of a row, the last vector under a mask. A constant number of vectors, so
 * that the sums stay in registers. */
static inline __attribute__((always_inline)) void add_terms(float *y, const float *a,
                                                            const float *b, size_t k, size_t stride,
                                                            size_t vectors, __mmask16 mask) {
    __m512 sum[8];
    const size_t last = vectors - 1;
#pragma GCC unroll 8
    for (size_t v = 0; v < 8; v++) sum[v] = _mm512_setzero_ps();
    for (size_t first = 0; first < k; first += GROUP, a += GROUP, b += GROUP * stride)
        for (uint64_t left = find_nonzero(a, k - first < GROUP ? k - first : GROUP); left;
             left &= left - 1) {
            const size_t j = (size_t)__builtin_ctzll(left);
            const __m512 factor = _mm512_set1_ps(a[j]);
            const float *row = b + j * stride;
#pragma GCC unroll 8
            for (size_t v = 0; v < 8; v++)
                if (v < last)
                    sum[v] = _mm512_fmadd_ps(factor, _mm512_loadu_ps(row + LANES * v), sum[v]);
            sum[last] = _mm512_fmadd_ps(factor, _mm512_maskz_loadu_ps(mask, row + LANES * last),
                                        sum[last]);
        }
#pragma GCC unroll 8
    for (size_t v = 0; v < 8; v++)
        if (v < last) _mm512_storeu_ps(y + LANES * v, sum[v]);
    _mm512_mask_storeu_ps(y + LANES * last, mask, sum[last]);
}

/* LANES * vectors columns of two rows, which share each row of b that one of them has a coefficient
 * for. */
static inline __attribute__((always_inline)) void add_pair(float *y, size_t y_stride,
                                                           const float *a, size_t a_stride,
                                                           const float *b, size_t k, size_t stride,
                                                           size_t vectors) {
    const __m512 zero = _mm512_setzero_ps();
    __m512 sum[8], other[8];
#pragma GCC unroll 8
    for (size_t v = 0; v < vectors; v++) sum[v] = other[v] = zero;
    for (size_t first = 0; first < k; first += GROUP, a += GROUP, b += GROUP * stride) {
        const size_t n = k - first < GROUP ? k - first : GROUP;
        for (uint64_t left = find_nonzero(a, n) | find_nonzero(a + a_stride, n); left;
             left &= left - 1) {
            const size_t j = (size_t)__builtin_ctzll(left);
            const __m512 x = _mm512_set1_ps(a[j]), z = _mm512_set1_ps(a[a_stride + j]);
            const __mmask16 has = _mm512_cmp_ps_mask(x, zero, _CMP_NEQ_UQ),
                            other_has = _mm512_cmp_ps_mask(z, zero, _CMP_NEQ_UQ);
#pragma GCC unroll 8
            for (size_t v = 0; v < vectors; v++) {
                __m512 row = _mm512_loadu_ps(b + j * stride + LANES * v);
                __asm__("" : "+v"(row)); /* stays in a register: compilers would load it twice */
                sum[v] = _mm512_mask3_fmadd_ps(x, row, sum[v], has);
                other[v] = _mm512_mask3_fmadd_ps(z, row, other[v], other_has);
            }
        }
    }
#pragma GCC unroll 8
    for (size_t v = 0; v < vectors; v++) {
        _mm512_storeu_ps(y + LANES * v, sum[v]);
        _mm512_storeu_ps(y + y_stride + LANES * v, other[v]);
    }
}

void kvc_multiply_sparse_avx512(float *y, size_t y_stride, const float *a, size_t a_stride,
                                size_t rows, const float *b, size_t k, size_t stride, size_t n) {
    for (; n == 4 * LANES && rows >= 2; rows -= 2, y += 2 * y_stride, a += 2 * a_stride)
        add_pair(y, y_stride, a, a_stride, b, k, stride, 4);
    for (; n == 8 * LANES && rows >= 2; rows -= 2, y += 2 * y_stride, a += 2 * a_stride)
        add_pair(y, y_stride, a, a_stride, b, k, stride, 8);
    for (size_t r = 0; r < rows; r++, y += y_stride, a += a_stride) {
        size_t i = 0;
        for (; i + 8 * LANES <= n; i += 8 * LANES) add_terms(y + i, a, b + i, k, stride, 8, 0xffff);
        for (; i + 4 * LANES <= n; i += 4 * LANES) add_terms(y + i, a, b + i, k, stride, 4, 0xffff);
        for (; i < n; i += LANES) add_terms(y + i, a, b + i, k, stride, 1, first_lanes(n - i));
    }
}

/* The factors of sums: term j of row r is a[r * row + j * step]. */
struct factors {
    const float *a;
    size_t row, step;
};
/* Their vectors: that of tile t and term j begins at b[t * tile + j * step]; the last tile's are
 * under a mask. */
struct columns {
    const float *b;
    size_t tile, step;
    __mmask16 last;
};

/* Sums of k terms in `tiles` vectors of `rows` rows, at most sixteen: each vector of b serves all
 * rows, each factor all tiles. Constant numbers, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void sum_tiles(float *y, size_t y_stride,
                                                            struct factors f, size_t rows,
                                                            struct columns c, size_t k,
                                                            size_t tiles) {
    __m512 sum[16];
#pragma GCC unroll 16
    for (size_t i = 0; i < rows * tiles; i++) sum[i] = _mm512_setzero_ps();
    for (size_t j = 0; j < k; j++) {
        __m512 row[4];
#pragma GCC unroll 4
        for (size_t t = 0; t < tiles; t++) {
            row[t] = _mm512_maskz_loadu_ps(t + 1 < tiles ? 0xffff : c.last,
                                           c.b + t * c.tile + j * c.step);
            /* stays in a register: compilers would load it for each row */
            if (rows > 1) __asm__("" : "+v"(row[t]));
        }
#pragma GCC unroll 16
        for (size_t r = 0; r < rows; r++) {
            __m512 factor = _mm512_set1_ps(f.a[r * f.row + j * f.step]);
            if (tiles > 1) __asm__("" : "+v"(factor));
#pragma GCC unroll 4
            for (size_t t = 0; t < tiles; t++)
                sum[r * tiles + t] = _mm512_fmadd_ps(factor, row[t], sum[r * tiles + t]);
        }
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (size_t t = 0; t < tiles; t++)
            _mm512_storeu_ps(y + r * y_stride + t * LANES, sum[r * tiles + t]);
}

static inline __attribute__((always_inline)) void tile(float *y, size_t y_stride, const float *a,
                                                       size_t a_stride, size_t rows, const float *b,
                                                       size_t k, size_t tiles) {
    sum_tiles(y, y_stride, (struct factors){a, a_stride, 1}, rows,
              (struct columns){b, k * KVC_TILE, KVC_TILE, 0xffff}, k, tiles);
}

static void one_tile(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows,
                     const float *b, size_t k) {
    for (; rows >= 16; rows -= 16, y += 16 * y_stride, a += 16 * a_stride)
        tile(y, y_stride, a, a_stride, 16, b, k, 1);
    for (; rows >= 4; rows -= 4, y += 4 * y_stride, a += 4 * a_stride)
        tile(y, y_stride, a, a_stride, 4, b, k, 1);
    for (; rows; rows--, y += y_stride, a += a_stride) tile(y, y_stride, a, a_stride, 1, b, k, 1);
}

static void four_tiles(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows,
                       const float *b, size_t k) {
    for (; rows >= 4; rows -= 4, y += 4 * y_stride, a += 4 * a_stride)
        tile(y, y_stride, a, a_stride, 4, b, k, 4);
    for (; rows; rows--, y += y_stride, a += a_stride) tile(y, y_stride, a, a_stride, 1, b, k, 4);
}

void kvc_multiply_tiles_avx512(float *y, size_t y_stride, const float *a, size_t a_stride,
                               size_t rows, const float *b, size_t k, size_t tiles) {
    for (; tiles >= 4; tiles -= 4, y += 4 * KVC_TILE, b += 4 * k * KVC_TILE)
        four_tiles(y, y_stride, a, a_stride, rows, b, k);
    for (; tiles; tiles--, y += KVC_TILE, b += k * KVC_TILE)
        one_tile(y, y_stride, a, a_stride, rows, b, k);
}

enum { ROWS = 8 }; /* of a Gram matrix that are summed up at once, two vectors of each */

/* gram[c] += sum[c] where the mask has bit c. */
static inline void add_sums(double *gram, const float *sum, __mmask16 mask) {
    for (unsigned at = 0; at < LANES; at += 8) {
        const __mmask8 part = (__mmask8)(mask >> at & 255);
        const __m512d more = _mm512_cvtps_pd(_mm256_loadu_ps(sum + at));
        _mm512_mask_storeu_pd(gram + at, part,
                              _mm512_add_pd(_mm512_maskz_loadu_pd(part, gram + at), more));
    }
}

void kvc_add_gram_avx512(double *gram, const float *x, size_t n, size_t stride, size_t dim) {
    float y[ROWS * 2 * LANES];
    for (size_t i = 0, rows; i < dim; i += rows) {
        const struct factors f = {x + i, 1, stride};
        rows = dim - i >= ROWS ? ROWS : 1;
        for (size_t j = i; j < dim; j += 2 * LANES) {
            const size_t wide = dim - j > LANES ? 2 : 1;
            const struct columns c = {x + j, LANES, stride,
                                      first_lanes(dim - j - LANES * (wide - 1))};
            if (rows == ROWS && wide == 2) sum_tiles(y, 2 * LANES, f, ROWS, c, n, 2);
            else if (rows == ROWS) sum_tiles(y, 2 * LANES, f, ROWS, c, n, 1);
            else if (wide == 2) sum_tiles(y, 2 * LANES, f, 1, c, n, 2);
            else sum_tiles(y, 2 * LANES, f, 1, c, n, 1);
            for (size_t r = 0; r < rows; r++)
                for (size_t v = 0; v < wide; v++) {
                    const size_t first = j + LANES * v; /* channels before i + r are below the
                                                           diagonal */
                    const __mmask16 below = i + r > first ? first_lanes(i + r - first) : 0;
                    add_sums(gram + (i + r) * dim + first, y + (2 * r + v) * LANES,
                             (__mmask16)((v + 1 < wide ? 0xffff : c.last) & ~below));
                }
        }
    }
}

void kvc_subtract_rows_avx512(double *y, const double *x, size_t stride, const double *s,
                              size_t step, size_t rows, size_t n) {
    subtract_rows(y, x, stride, s, step, rows, n);
}

#else
typedef int kvc_no_transform_avx512; /* ISO C wants one declaration in a file */
#endif
