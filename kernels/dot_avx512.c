/* dot_avx512.c: the AVX-512 VNNI twin of dot_rows, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define VNNI __attribute__((target("avx512vnni")))

static inline __attribute__((always_inline)) VNNI __m512i load(const int16_t *p, __mmask32 mask) {
    return _mm512_maskz_loadu_epi16(mask, p);
}

/* `rows` rows by `columns` outputs, 1 or 4 each: sixteen sums stay in registers. Inlined with constant numbers. */
static inline __attribute__((always_inline)) VNNI void tile(int32_t *sums, size_t outputs, const int16_t *x, size_t rows,
                                                            const int16_t *weights, size_t columns, size_t inputs) {
    __m512i sum[4][4];
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; r++)
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++) sum[r][c] = _mm512_setzero_si512();
    for (size_t j = 0; j < inputs; j += 32) { /* KVC_DOT_STEP is half of it: the last group may be half full */
        const __mmask32 mask = inputs - j < 32 ? 0xffff : 0xffffffff;
        __m512i w[4];
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            if (c < columns) w[c] = load(weights + c * inputs + j, mask);
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++) {
            if (r >= rows) continue;
            const __m512i row = load(x + r * inputs + j, mask);
#pragma GCC unroll 4
            for (size_t c = 0; c < 4; c++)
                if (c < columns) sum[r][c] = _mm512_dpwssd_epi32(sum[r][c], row, w[c]);
        }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; r++)
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            if (r < rows && c < columns) sums[r * outputs + c] = _mm512_reduce_add_epi32(sum[r][c]);
}

VNNI void kvc_dot_rows_avx512vnni(int32_t *sums, const int16_t *x, size_t rows, const int16_t *weights, size_t outputs,
                                  size_t inputs) {
    size_t i = 0;
    for (; i + 4 <= outputs; i += 4) {
        const int16_t *w = weights + i * inputs;
        size_t r = 0;
        for (; r + 4 <= rows; r += 4) tile(sums + r * outputs + i, outputs, x + r * inputs, 4, w, 4, inputs);
        for (; r < rows; r++) tile(sums + r * outputs + i, outputs, x + r * inputs, 1, w, 4, inputs);
    }
    for (; i < outputs; i++)
        for (size_t r = 0; r < rows; r++)
            tile(sums + r * outputs + i, outputs, x + r * inputs, 1, weights + i * inputs, 1, inputs);
}

#else
typedef int kvc_no_dot_avx512; /* ISO C wants one declaration in a file */
#endif
