/* predict_avx512.c: the AVX-512 VNNI twin of dot_rows, same bytes for every input. Not compiled on
 * other machines.
 *
 * Its instruction multiplies unsigned by signed bytes. So 128 is added to the inputs, and sums
 * begin as -128 times the sum of the output's weights. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define VNNI __attribute__((target("avx512vnni")))

enum { ROWS = 4, BLOCKS = 4, PART = 1024 }; /* of a tile; inputs that are raised at once */

/* Sets what sums of 16 outputs begin as. */
static inline VNNI __m512i first_sum(const int8_t *weights, size_t inputs) {
    const __m512i offset = _mm512_set1_epi8((char)128);
    __m512i sum = _mm512_setzero_si512();
    for (size_t j = 0; j < inputs; j += KVC_DOT_STEP, weights += KVC_DOT_STEP * KVC_DOT_BLOCK)
        sum = _mm512_dpbusd_epi32(sum, offset, _mm512_loadu_si512(weights));
    return _mm512_sub_epi32(_mm512_setzero_si512(), sum);
}

/* Adds 128 to n inputs. */
static inline VNNI void raise(uint8_t *to, const int8_t *x, size_t n) {
    for (size_t j = 0; j < n; j += 64) {
        const __mmask64 mask = n - j >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (n - j)) - 1;
        _mm512_mask_storeu_epi8(to + j, mask,
                                _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, x + j),
                                                 _mm512_set1_epi8((char)128)));
    }
}

/* Multiplies `rows` rows, 1 or ROWS, by `blocks` blocks of outputs, 1 or BLOCKS, of which the last
 * stores the outputs of `last`: sixteen vectors of sums stay in registers. Inlined with constant
 * numbers. */
static inline __attribute__((always_inline)) VNNI void tile(float *y, const int8_t *x, size_t rows,
                                                            const struct kvc_dot_matrix *m,
                                                            size_t first, const __m512i *begin,
                                                            size_t blocks, __mmask16 last) {
    const int8_t *weights = m->weights + first * m->inputs;
    uint8_t raised[ROWS][PART];
    __m512i sum[ROWS][BLOCKS];
#pragma GCC unroll 4
    for (size_t r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (size_t c = 0; c < BLOCKS; c++) sum[r][c] = begin[c];
    for (size_t from = 0, n; from < m->inputs; from += n) {
        n = m->inputs - from < PART ? m->inputs - from : PART;
        for (size_t r = 0; r < rows; r++) raise(raised[r], x + r * m->inputs + from, n);
        for (size_t j = 0; j < n; j += KVC_DOT_STEP, weights += KVC_DOT_STEP * KVC_DOT_BLOCK) {
            __m512i w[BLOCKS];
#pragma GCC unroll 4
            for (size_t c = 0; c < BLOCKS; c++)
                if (c < blocks) w[c] = _mm512_loadu_si512(weights + c * KVC_DOT_BLOCK * m->inputs);
#pragma GCC unroll 4
            for (size_t r = 0; r < ROWS; r++) {
                int32_t four;
                if (r >= rows) continue;
                memcpy(&four, raised[r] + j, sizeof four);
                const __m512i row = _mm512_set1_epi32(four);
#pragma GCC unroll 4
                for (size_t c = 0; c < BLOCKS; c++)
                    if (c < blocks) sum[r][c] = _mm512_dpbusd_epi32(sum[r][c], row, w[c]);
            }
        }
    }
#pragma GCC unroll 4
    for (size_t c = 0; c < BLOCKS; c++) {
        if (c >= blocks) continue;
        const __mmask16 mask = c == blocks - 1 ? last : 0xffff;
        const size_t at = first + c * KVC_DOT_BLOCK;
        const __m512 scale = _mm512_maskz_loadu_ps(mask, m->scale + at),
                     mean = _mm512_maskz_loadu_ps(mask, m->mean + at);
#pragma GCC unroll 4
        for (size_t r = 0; r < ROWS; r++)
            if (r < rows)
                _mm512_mask_storeu_ps(
                    y + r * m->outputs + at, mask,
                    _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][c]), scale), mean));
    }
}

static inline __attribute__((always_inline)) VNNI void
columns(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m, size_t first,
        size_t blocks, __mmask16 last) {
    __m512i begin[BLOCKS];
    for (size_t c = 0; c < BLOCKS; c++)
        begin[c] = c < blocks
                       ? first_sum(m->weights + (first + c * KVC_DOT_BLOCK) * m->inputs, m->inputs)
                       : _mm512_setzero_si512();
    for (; rows >= ROWS; rows -= ROWS, y += ROWS * m->outputs, x += ROWS * m->inputs)
        tile(y, x, ROWS, m, first, begin, blocks, last);
    for (; rows; rows--, y += m->outputs, x += m->inputs)
        tile(y, x, 1, m, first, begin, blocks, last);
}

VNNI void kvc_dot_rows_avx512vnni(float *y, const int8_t *x, size_t rows,
                                  const struct kvc_dot_matrix *m) {
    size_t i = 0; /* weights of some outputs stay in the cache for all rows */
    for (; i + BLOCKS * KVC_DOT_BLOCK <= m->outputs; i += BLOCKS * KVC_DOT_BLOCK)
        columns(y, x, rows, m, i, BLOCKS, 0xffff);
    for (; i < m->outputs; i += KVC_DOT_BLOCK) {
        const size_t left = m->outputs - i;
        columns(y, x, rows, m, i, 1, (__mmask16)(left < KVC_DOT_BLOCK ? (1u << left) - 1 : 0xffff));
    }
}

#else
typedef int kvc_no_predict_avx512; /* ISO C wants one declaration in a file */
#endif
