/* dot_avx512.c: the AVX-512 VNNI twin of dot_rows, same sums for every input. Not compiled on other machines.
 *
 * Its instruction multiplies unsigned by signed bytes. So 128 is added to the inputs, and 128 times the sum of an output's weights is
 * taken away from the result. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define VNNI __attribute__((target("avx512vnni")))

enum { ROWS = 32, COLUMNS = 4, INPUTS = 1024, STEP = 64 }; /* of bytes in the cache; more inputs are taken in parts */

/* Packs n numbers, -128 to 127, as bytes, plus `offset`; fills up with zeros to a multiple of STEP. */
static VNNI void pack(uint8_t *to, const int16_t *from, size_t n, int8_t offset) {
    const __m256i add = _mm256_set1_epi8(offset);
    for (size_t j = 0; j < (n + STEP - 1) / STEP * STEP; j += 32) {
        const size_t left = j < n ? n - j : 0;
        const __mmask32 mask = left >= 32 ? 0xffffffff : (1u << left) - 1;
        const __m256i bytes = _mm512_cvtepi16_epi8(_mm512_maskz_loadu_epi16(mask, from + j));
        _mm256_store_si256((__m256i *)(void *)(to + j), _mm256_maskz_add_epi8(mask, bytes, add));
    }
}

/* Adds `rows` rows by `columns` outputs, 1 or 4 each, to sums: sixteen of them stay in registers. Inlined with constant numbers. */
static inline __attribute__((always_inline)) VNNI void tile(int32_t *sums, size_t outputs, const uint8_t *x, size_t rows,
                                                            const uint8_t *weights, size_t columns, size_t stride,
                                                            const int32_t *shift) {
    __m512i sum[4][4];
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; r++)
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++) sum[r][c] = _mm512_setzero_si512();
    for (size_t j = 0; j < stride; j += STEP) {
        __m512i w[4];
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            if (c < columns) w[c] = _mm512_load_si512(weights + c * stride + j);
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++) {
            if (r >= rows) continue;
            const __m512i row = _mm512_load_si512(x + r * stride + j);
#pragma GCC unroll 4
            for (size_t c = 0; c < 4; c++)
                if (c < columns) sum[r][c] = _mm512_dpbusd_epi32(sum[r][c], row, w[c]);
        }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; r++)
#pragma GCC unroll 4
        for (size_t c = 0; c < 4; c++)
            if (r < rows && c < columns) sums[r * outputs + c] += _mm512_reduce_add_epi32(sum[r][c]) - shift[c];
}

/* Packs weights of `columns` outputs, and sums them up. */
static VNNI void pack_weights(uint8_t *to, size_t stride, const int16_t *from, size_t inputs, size_t n, size_t columns,
                              int32_t *shift) {
    const __m512i offset = _mm512_set1_epi8((char)128);
    for (size_t c = 0; c < columns; c++) {
        __m512i sum = _mm512_setzero_si512();
        pack(to + c * stride, from + c * inputs, n, 0);
        for (size_t j = 0; j < stride; j += STEP) sum = _mm512_dpbusd_epi32(sum, offset, _mm512_load_si512(to + c * stride + j));
        shift[c] = _mm512_reduce_add_epi32(sum);
    }
}

VNNI void kvc_dot_rows_avx512vnni(int32_t *sums, const int16_t *x, size_t rows, const int16_t *weights, size_t outputs,
                                  size_t inputs) {
    _Alignas(64) uint8_t row[ROWS * INPUTS], w[COLUMNS * INPUTS];
    int32_t shift[COLUMNS];
    for (size_t i = 0; i < rows * outputs; i++) sums[i] = 0;
    for (size_t from = 0; from < inputs; from += INPUTS) {
        const size_t n = inputs - from < INPUTS ? inputs - from : INPUTS, stride = (n + STEP - 1) / STEP * STEP;
        for (size_t first = 0, some; first < rows; first += some) { /* some rows stay in the cache for all outputs */
            some = rows - first < ROWS ? rows - first : ROWS;
            for (size_t r = 0; r < some; r++) pack(row + r * stride, x + (first + r) * inputs + from, n, -128);
            for (size_t i = 0, columns; i < outputs; i += columns) {
                columns = outputs - i < COLUMNS ? 1 : COLUMNS;
                pack_weights(w, stride, weights + i * inputs + from, inputs, n, columns, shift);
                int32_t *to = sums + first * outputs + i;
                size_t r = 0;
                for (; r + 4 <= some && columns == COLUMNS; r += 4)
                    tile(to + r * outputs, outputs, row + r * stride, 4, w, COLUMNS, stride, shift);
                for (; r < some; r++) {
                    if (columns == COLUMNS) tile(to + r * outputs, outputs, row + r * stride, 1, w, COLUMNS, stride, shift);
                    else tile(to + r * outputs, outputs, row + r * stride, 1, w, 1, stride, shift);
                }
            }
        }
    }
}

#else
typedef int kvc_no_dot_avx512; /* ISO C wants one declaration in a file */
#endif
