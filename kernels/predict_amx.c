/* predict_amx.c: the AMX twin of dot_rows, same bytes for every input. Not for asking whether this
 * process may use AMX (dispatch.c).
 *
 * A block of weights for 64 inputs lies in memory as a tile is read: a row of the tile has four
 * inputs of 16 outputs. */
#include "kernels/tiles.h"
#include "kernels/twins.h"

#if defined(KVC_TILES)

#include <string.h>

/* Rows, and outputs, of a tile of sums; inputs of a tile. */
enum { SIDE = 16, DEEP = 64 };

typedef int32_t sixteen_ints __attribute__((vector_size(4 * SIDE)));
typedef float sixteen_floats __attribute__((vector_size(4 * SIDE)));

/* Sums of two tiles of rows by two blocks of outputs. */
typedef int32_t tile_sums[2 * SIDE][2 * SIDE];

/* Sets the shapes of what multiply() uses, for n rows, 1 to 2 * SIDE, and `depth` inputs. */
static void shape_tiles(size_t n, size_t depth) {
    struct kvc_tile_shapes s = {.palette = 1};
    for (size_t t = 0; t < 8; t++) {
        const size_t rows = t == 2 || t == 3 || t == 5 ? (n > SIDE ? n - SIDE : SIDE)
                                                       : (n < SIDE ? n : SIDE);
        s.row_bytes[t] = (uint16_t)(t == 4 || t == 5 ? depth : DEEP);
        s.rows[t] = (uint8_t)(t >= 6 ? depth / KVC_DOT_STEP : rows);
    }
    kvc_tiles_begin(&s);
}

/* Adds the products of n inputs to sums, or begins these. x: the rows, `stride` apart. weights,
 * right: those of a block of outputs, and of the next. tall, wide: 1 where there are more than SIDE
 * rows, a next block. */
static void multiply(tile_sums sum, int begin, const int8_t *x, size_t stride,
                     const int8_t *weights, const int8_t *right, size_t n, int tall, int wide) {
    const int8_t *below = x + SIDE * stride;
    if (begin) {
        KVC_TILE_ZERO(0);
        if (wide) KVC_TILE_ZERO(1);
        if (tall) KVC_TILE_ZERO(2);
        if (tall && wide) KVC_TILE_ZERO(3);
    } else {
        KVC_TILE_LOAD(0, sum[0], sizeof *sum);
        if (wide) KVC_TILE_LOAD(1, sum[0] + SIDE, sizeof *sum);
        if (tall) KVC_TILE_LOAD(2, sum[SIDE], sizeof *sum);
        if (tall && wide) KVC_TILE_LOAD(3, sum[SIDE] + SIDE, sizeof *sum);
    }
    for (size_t j = 0; j < n; j += DEEP) {
        KVC_TILE_LOAD(6, weights + j * SIDE, DEEP);
        KVC_TILE_LOAD(4, x + j, stride);
        if (wide) KVC_TILE_LOAD(7, right + j * SIDE, DEEP);
        if (tall) KVC_TILE_LOAD(5, below + j, stride);
        KVC_TILE_MULTIPLY(0, 4, 6);
        if (wide) KVC_TILE_MULTIPLY(1, 4, 7);
        if (tall) KVC_TILE_MULTIPLY(2, 5, 6);
        if (tall && wide) KVC_TILE_MULTIPLY(3, 5, 7);
    }
    KVC_TILE_STORE(0, sum[0], sizeof *sum);
    if (wide) KVC_TILE_STORE(1, sum[0] + SIDE, sizeof *sum);
    if (tall) KVC_TILE_STORE(2, sum[SIDE], sizeof *sum);
    if (tall && wide) KVC_TILE_STORE(3, sum[SIDE] + SIDE, sizeof *sum);
}

/* Stores n outputs, 1 to 2 * SIDE, of rows of sums. Inlined with a constant n. */
static inline __attribute__((always_inline)) void store(float *y, tile_sums sum, size_t rows,
                                                        const struct kvc_dot_matrix *m,
                                                        size_t first, size_t n) {
    const size_t of[2] = {n < SIDE ? n : SIDE, n < SIDE ? 0 : n - SIDE};
    sixteen_floats scale[2] = {{0}}, mean[2] = {{0}};
    memcpy(scale, m->scale + first, n * sizeof(float));
    memcpy(mean, m->mean + first, n * sizeof(float));
    for (size_t r = 0; r < rows; r++, y += m->outputs)
#pragma GCC unroll 2
        for (size_t b = 0; b < 2; b++) {
            sixteen_ints s;
            memcpy(&s, sum[r] + b * SIDE, sizeof s);
            const sixteen_floats value = __builtin_convertvector(s, sixteen_floats) * scale[b] +
                                         mean[b];
            memcpy(y + b * SIDE, &value, of[b] * sizeof(float));
        }
}

/* Multiplies up to 2 * SIDE rows by one or two blocks of outputs. shaped: 1 where the tiles have
 * the shape of so many rows and DEEP inputs. */
static void multiply_rows(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m,
                          size_t first, int shaped) {
    _Alignas(64) tile_sums sum;
    const size_t stride = m->inputs, rest = stride % DEEP, deep = stride - rest,
                 outputs = m->outputs - first;
    const int tall = rows > SIDE, wide = outputs > SIDE;
    const int8_t *weights = m->weights + first * stride, *right = weights + SIDE * stride;
    if (!stride) memset(sum, 0, sizeof sum);
    if (deep) {
        if (!shaped) shape_tiles(rows, DEEP);
        multiply(sum, 1, x, stride, weights, right, deep, tall, wide);
    }
    if (rest) {
        shape_tiles(rows, rest);
        multiply(sum, !deep, x + deep, stride, weights + deep * SIDE, right + deep * SIDE, rest,
                 tall, wide);
    }
    if (outputs >= 2 * SIDE) store(y + first, sum, rows, m, first, 2 * SIDE);
    else store(y + first, sum, rows, m, first, outputs);
}

void kvc_dot_rows_amx(float *y, const int8_t *x, size_t rows, const struct kvc_dot_matrix *m) {
    enum { ROWS = 2 * SIDE };
    size_t shaped = 0;                            /* rows that the tiles have the shape for */
    for (size_t i = 0; i < m->outputs; i += ROWS) /* weights stay in the cache for all rows */
        for (size_t r = 0; r < rows; r += ROWS) {
            const size_t n = rows - r < ROWS ? rows - r : ROWS;
            multiply_rows(y + r * m->outputs, x + r * m->inputs, n, m, i, n == shaped);
            shaped = m->inputs % DEEP ? 0 : n;
        }
    kvc_tiles_end();
}

#else
typedef int kvc_no_predict_amx; /* ISO C wants one declaration in a file */
#endif
