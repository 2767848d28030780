/* predict_avx2.c: AVX2's twin of dot_rows, same bytes for every input. Not compiled on other
 * machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

enum { ROWS = 4, PART = 1024 }; /* rows of a tile; inputs that are widened at once */

/* Adds `rows` rows, 1 or ROWS, by eight outputs to sums: eight vectors of sums stay in registers,
 * two sums of each output in each. Inlined with constant numbers. */
static inline __attribute__((always_inline)) void tile(int32_t *sums, const int16_t *x, size_t rows,
                                                       size_t inputs, const int8_t *weights) {
    __m256i sum[ROWS][2];
#pragma GCC unroll 4
    for (size_t r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (size_t j = 0; j < inputs; j += KVC_DOT_STEP, weights += KVC_DOT_STEP * KVC_DOT_BLOCK) {
        const __m256i a = _mm256_cvtepi8_epi16(
            _mm_loadu_si128((const __m128i *)(const void *)weights));
        const __m256i b = _mm256_cvtepi8_epi16(
            _mm_loadu_si128((const __m128i *)(const void *)(weights + 16)));
#pragma GCC unroll 4
        for (size_t r = 0; r < ROWS; r++) {
            int64_t four;
            if (r >= rows) continue;
            memcpy(&four, x + r * PART + j, sizeof four);
            const __m256i row = _mm256_set1_epi64x(four);
            sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(row, a));
            sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(row, b));
        }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < ROWS; r++) {
        __m256i *to = (__m256i *)(void *)(sums + r * KVC_DOT_BLOCK);
        if (r >= rows) continue;
        const __m256i eight = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sum[r][0], sum[r][1]),
                                                       _MM_SHUFFLE(3, 1, 2, 0));
        _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), eight));
    }
}

static inline void widen(int16_t *to, const int8_t *from, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(void *)(to + i),
                            _mm256_cvtepi8_epi16(
                                _mm_loadu_si128((const __m128i *)(const void *)(from + i))));
    for (; i < n; i++) to[i] = from[i];
}

/* Multiplies 1 or ROWS rows. Inlined with constant numbers. */
static inline __attribute__((always_inline)) void dot_rows(float *y, const int8_t *x, size_t rows,
                                                           const struct kvc_dot_matrix *m) {
    int16_t wide[ROWS * PART];
    for (size_t i = 0; i < m->outputs; i += KVC_DOT_BLOCK) {
        const size_t outputs = m->outputs - i < KVC_DOT_BLOCK ? m->outputs - i : KVC_DOT_BLOCK;
        int32_t sums[ROWS * KVC_DOT_BLOCK] = {0};
        for (size_t from = 0, n; from < m->inputs; from += n) {
            n = m->inputs - from < PART ? m->inputs - from : PART;
            for (size_t r = 0; r < rows && (i == 0 || m->inputs > PART); r++)
                widen(wide + r * PART, x + r * m->inputs + from, n);
            for (size_t c = 0; c < KVC_DOT_BLOCK; c += 8)
                tile(sums + c, wide, rows, n, m->weights + kvc_dot_place(m->inputs, i + c, from));
        }
        for (size_t r = 0; r < rows; r++) {
            float *to = y + r * m->outputs + i;
            size_t c = 0;
            for (; c + 8 <= outputs; c += 8) {
                const __m256i sum = _mm256_loadu_si256(
                    (const __m256i *)(const void *)(sums + r * KVC_DOT_BLOCK + c));
                const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum),
                                                    _mm256_loadu_ps(m->scale + i + c));
                _mm256_storeu_ps(to + c, _mm256_add_ps(scaled, _mm256_loadu_ps(m->mean + i + c)));
            }
            for (; c < outputs; c++)
                to[c] = (float)sums[r * KVC_DOT_BLOCK + c] * m->scale[i + c] + m->mean[i + c];
        }
    }
}

void kvc_dot_rows_vec(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m) {
    for (; rows >= ROWS; rows -= ROWS, y += ROWS * m->outputs, x += ROWS * m->inputs)
        dot_rows(y, x, ROWS, m);
    for (; rows; rows--, y += m->outputs, x += m->inputs) dot_rows(y, x, 1, m);
}

#else
typedef int kvc_no_predict_avx2; /* ISO C wants one declaration in a file */
#endif
