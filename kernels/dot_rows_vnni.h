/* dot_rows_vnni.h: dot_rows by the instruction of VNNI, for vectors of 32 or 64 bytes. A file that
 * includes it defines LANES, the integers in a vector; VNNI, the attributes of functions; BLOCKS,
 * blocks of outputs in a tile; and DOT(sum, a, b), which adds to each integer four products of
 * unsigned bytes of a and signed bytes of b. Not for other products (products_vec.c).
 *
 * 128 is added to the inputs, and sums begin as -128 times the sum of the output's weights. */
#include "kernels/twins.h"

#include <string.h>

/* Rows of a tile, whose sums stay in registers; inputs at once, whose weights stay in the nearest
 * cache for all rows; vectors of a block of outputs. */
enum { ROWS = 4, PART = 256, VECTORS = KVC_DOT_BLOCK / LANES };

typedef int32_t vector __attribute__((vector_size(4 * LANES)));
typedef float float_vector __attribute__((vector_size(4 * LANES)));

static inline VNNI vector load(const void *from) {
    vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

/* Returns the bytes of those of n outputs that are in vector c. */
static inline size_t bytes_of(size_t n, size_t c) {
    return n - c * LANES < LANES ? 4 * (n - c * LANES) : 4 * LANES;
}

/* Sets what sums of a vector of outputs begin as. */
static inline VNNI vector first_sum(const int8_t *weights, size_t inputs) {
    const vector offset = (vector){0} + (int32_t)0x80808080u;
    vector sum = {0};
    for (size_t j = 0; j < inputs; j += KVC_DOT_STEP, weights += KVC_DOT_STEP * KVC_DOT_BLOCK)
        sum = DOT(sum, offset, load(weights));
    return -sum;
}

/* Adds 128 to n inputs, a multiple of KVC_DOT_STEP. */
static inline VNNI void raise(uint8_t *to, const int8_t *x, size_t n) {
    size_t j = 0;
    for (; j + sizeof(vector) <= n; j += sizeof(vector)) {
        const vector raised = load(x + j) ^ (int32_t)0x80808080u;
        memcpy(to + j, &raised, sizeof raised);
    }
    for (; j < n; j++) to[j] = (uint8_t)(x[j] + 128);
}

/* Multiplies n inputs, from input `from` on, of `rows` rows, 1 or ROWS, by `blocks` blocks of
 * outputs, 1 or BLOCKS, of which `outputs` outputs are stored. Until the last inputs y has the bits
 * of the sums. Inlined with constant numbers. */
static inline __attribute__((always_inline)) VNNI void
tile(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m, size_t first,
     const vector *begin, size_t from, size_t n, size_t blocks, size_t outputs) {
    const int8_t *weights = m->weights + first * m->inputs + from * KVC_DOT_BLOCK;
    uint8_t raised[ROWS][PART];
    vector sum[ROWS][BLOCKS * VECTORS];
#pragma GCC unroll 8
    for (size_t c = 0; c < BLOCKS * VECTORS; c++)
#pragma GCC unroll 4
        for (size_t r = 0; r < ROWS; r++) {
            if (r >= rows || c >= blocks * VECTORS) continue;
            sum[r][c] = begin[c];
            if (from && c * LANES < outputs)
                memcpy(&sum[r][c], y + r * m->outputs + first + c * LANES, bytes_of(outputs, c));
        }
    for (size_t r = 0; r < rows; r++) raise(raised[r], x + r * m->inputs + from, n);
    for (size_t j = 0; j < n; j += KVC_DOT_STEP, weights += KVC_DOT_STEP * KVC_DOT_BLOCK) {
        vector w[BLOCKS * VECTORS];
#pragma GCC unroll 8
        for (size_t c = 0; c < BLOCKS * VECTORS; c++)
            if (c < blocks * VECTORS)
                w[c] = load(weights + c / VECTORS * KVC_DOT_BLOCK * m->inputs +
                            c % VECTORS * sizeof(vector));
#pragma GCC unroll 4
        for (size_t r = 0; r < ROWS; r++) {
            int32_t four;
            if (r >= rows) continue;
            memcpy(&four, raised[r] + j, sizeof four);
            const vector row = (vector){0} + four;
#pragma GCC unroll 8
            for (size_t c = 0; c < BLOCKS * VECTORS; c++)
                if (c < blocks * VECTORS) sum[r][c] = DOT(sum[r][c], row, w[c]);
        }
    }
#pragma GCC unroll 8
    for (size_t c = 0; c < BLOCKS * VECTORS; c++) {
        if (c >= blocks * VECTORS || c * LANES >= outputs) continue;
        const size_t at = first + c * LANES, bytes = bytes_of(outputs, c);
        float_vector scale = {0}, mean = {0};
        memcpy(&scale, m->scale + at, bytes);
        memcpy(&mean, m->mean + at, bytes);
#pragma GCC unroll 4
        for (size_t r = 0; r < ROWS; r++) {
            if (r >= rows) continue;
            const float_vector value = __builtin_convertvector(sum[r][c], float_vector) * scale +
                                       mean;
            if (from + n < m->inputs) memcpy(y + r * m->outputs + at, &sum[r][c], bytes);
            else memcpy(y + r * m->outputs + at, &value, bytes);
        }
    }
}

static inline __attribute__((always_inline)) VNNI void
columns(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m, size_t first,
        size_t blocks, size_t outputs) {
    vector begin[BLOCKS * VECTORS];
    for (size_t c = 0; c < blocks * VECTORS; c++)
        begin[c] = first_sum(m->weights + (first + c / VECTORS * KVC_DOT_BLOCK) * m->inputs +
                                 c % VECTORS * sizeof(vector),
                             m->inputs);
    size_t from = 0;
    do {
        const size_t left = m->inputs - from, n = left < PART ? left : PART;
        size_t r = 0;
        for (; r + ROWS <= rows; r += ROWS)
            tile(y + r * m->outputs, x + r * m->inputs, ROWS, m, first, begin, from, n, blocks,
                 outputs);
        for (; r < rows; r++)
            tile(y + r * m->outputs, x + r * m->inputs, 1, m, first, begin, from, n, blocks,
                 outputs);
        from += n;
    } while (from < m->inputs);
}

static inline __attribute__((always_inline)) VNNI void
dot_rows(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m) {
    size_t i = 0; /* weights of some outputs stay in the cache for all rows */
    for (; i + BLOCKS * KVC_DOT_BLOCK <= m->outputs; i += BLOCKS * KVC_DOT_BLOCK)
        columns(y, x, rows, m, i, BLOCKS, BLOCKS * KVC_DOT_BLOCK);
    for (; i + KVC_DOT_BLOCK <= m->outputs; i += KVC_DOT_BLOCK)
        columns(y, x, rows, m, i, 1, KVC_DOT_BLOCK);
    if (i < m->outputs) columns(y, x, rows, m, i, 1, m->outputs - i);
}
