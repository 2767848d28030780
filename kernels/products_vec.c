/* products_vec.c: vector twins of products_ref.c, same bytes for every input. */
#include "kernels/twins.h"

#if defined(KVC_VECTORS)

#include "kernels/vec.h"

/* Columns of multiply_rows in 1 to 12 vectors, the last under a mask. Inlined with a constant number of vectors and loops
 * that compilers unroll whole, so that the sums stay in registers: eight keep the adders busy, and there are sixteen. */
static inline __attribute__((always_inline)) void columns(float *y, const float *a, const float *b, size_t k, size_t stride,
                                                          size_t vectors, first_lanes mask) {
    f32x8 sum[12];
    const size_t last = vectors - 1;
#pragma GCC unroll 12
    for (size_t v = 0; v < 12; v++) sum[v] = set_f32(0);
    for (size_t j = 0; j < k; j++, b += stride) {
        const f32x8 factor = set_f32(*(a + j));
#pragma GCC unroll 12
        for (size_t v = 0; v < 12; v++)
            if (v < last) sum[v] = multiply_add_f32(factor, load_f32(b + 8 * v), sum[v]);
        sum[last] = multiply_add_f32(factor, load_first_f32(b + 8 * last, mask), sum[last]);
    }
#pragma GCC unroll 12
    for (size_t v = 0; v < 12; v++)
        if (v < last) store_f32(y + 8 * v, sum[v]);
    store_first_f32(y + 8 * last, sum[last], mask);
}

void kvc_multiply_rows_vec(float *y, const float *a, const float *b, size_t k, size_t stride, size_t n) {
    for (size_t i = 0, count; i < n; i += count) {
        count = n - i <= 96 ? n - i : 64;
        const size_t vectors = (count + 7) / 8;
        const first_lanes mask = first_of_8(count - 8 * (vectors - 1));
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
    f32x8 sum[6][2];
#pragma GCC unroll 6
    for (size_t r = 0; r < 6; r++) sum[r][0] = sum[r][1] = set_f32(0);
    for (size_t j = 0; j < k; j++, b += KVC_TILE) {
        const f32x8 low = load_f32(b), high = load_f32(b + 8);
#pragma GCC unroll 6
        for (size_t r = 0; r < 6; r++) {
            if (r >= rows) continue;
            const f32x8 factor = set_f32(*(a + r * a_stride + j));
            sum[r][0] = multiply_add_f32(factor, low, sum[r][0]);
            sum[r][1] = multiply_add_f32(factor, high, sum[r][1]);
        }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < 6; r++) {
        if (r >= rows) continue;
        store_f32(y + r * y_stride, sum[r][0]);
        store_f32(y + r * y_stride + 8, sum[r][1]);
    }
}

static void multiply_tile(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows, const float *b, size_t k) {
    for (; rows >= 6; rows -= 6, y += 6 * y_stride, a += 6 * a_stride) tile(y, y_stride, a, a_stride, 6, b, k);
    for (; rows >= 2; rows -= 2, y += 2 * y_stride, a += 2 * a_stride) tile(y, y_stride, a, a_stride, 2, b, k);
    if (rows) tile(y, y_stride, a, a_stride, 1, b, k);
}

void kvc_multiply_tiles_vec(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows, const float *b, size_t k,
                            size_t tiles) {
    for (size_t t = 0; t < tiles; t++) multiply_tile(y + t * KVC_TILE, y_stride, a, a_stride, rows, b + t * k * KVC_TILE, k);
}

enum { GRAM_ROWS = 6, GRAM_COLUMNS = 16 }; /* of a tile of add_gram: twelve vectors of sums */

/* Sums of a tile of add_gram: `rows` channels from x + i on, times `columns` channels from x + j on. Inlined with constants, as
 * above; `masks` are those of both vectors of columns. */
static inline __attribute__((always_inline)) void gram_tile(float *y, const float *x, size_t n, size_t stride, size_t i, size_t j,
                                                            size_t rows, const first_lanes *masks) {
    f32x8 sum[GRAM_ROWS][2];
#pragma GCC unroll 6
    for (size_t r = 0; r < GRAM_ROWS; r++) sum[r][0] = sum[r][1] = set_f32(0);
    for (size_t t = 0; t < n; t++, x += stride) {
        const f32x8 low = masks ? load_first_f32(x + j, masks[0]) : load_f32(x + j);
        const f32x8 high = masks ? load_first_f32(x + j + 8, masks[1]) : load_f32(x + j + 8);
#pragma GCC unroll 6
        for (size_t r = 0; r < GRAM_ROWS; r++) {
            if (r >= rows) continue;
            const f32x8 factor = set_f32(*(x + i + r));
            sum[r][0] = multiply_add_f32(factor, low, sum[r][0]);
            sum[r][1] = multiply_add_f32(factor, high, sum[r][1]);
        }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < GRAM_ROWS; r++) {
        store_f32(y + r * GRAM_COLUMNS, sum[r][0]);
        store_f32(y + r * GRAM_COLUMNS + 8, sum[r][1]);
    }
}

void kvc_add_gram_vec(double *gram, const float *x, size_t n, size_t stride, size_t dim) {
    float y[GRAM_ROWS * GRAM_COLUMNS];
    for (size_t i = 0; i < dim; i += GRAM_ROWS)
        for (size_t j = i; j < dim; j += GRAM_COLUMNS) {
            const size_t rows = dim - i < GRAM_ROWS ? dim - i : GRAM_ROWS, left = dim - j;
            const size_t columns = left < GRAM_COLUMNS ? left : GRAM_COLUMNS;
            const first_lanes masks[2] = {first_of_8(left < 8 ? left : 8), first_of_8(left < 8 ? 0 : columns - 8)};
            if (rows == GRAM_ROWS && left >= GRAM_COLUMNS) gram_tile(y, x, n, stride, i, j, GRAM_ROWS, NULL);
            else if (rows == GRAM_ROWS) gram_tile(y, x, n, stride, i, j, GRAM_ROWS, masks);
            else gram_tile(y, x, n, stride, i, j, rows, masks);
            for (size_t r = 0; r < rows; r++)
                for (size_t c = j > i ? 0 : r; c < columns; c++) gram[(i + r) * dim + j + c] += (double)y[r * GRAM_COLUMNS + c];
        }
}

void kvc_add_scaled_vec(float *y, const float *x, float s, size_t n) {
    const f32x8 factor = set_f32(s);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        f32x8 product = multiply_f32(factor, load_f32(x + i));
        store_f32(y + i, add_f32(load_f32(y + i), product));
    }
    kvc_add_scaled_ref(y + i, x + i, s, n - i);
}

void kvc_add_squares_vec(float *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const f32x8 v = load_f32(x + i);
        store_f32(y + i, add_f32(load_f32(y + i), multiply_f32(v, v)));
    }
    kvc_add_squares_ref(y + i, x + i, n - i);
}

void kvc_scale_vec(float *y, const float *x, float s, size_t n) {
    const f32x8 factor = set_f32(s);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) store_f32(y + i, multiply_f32(factor, load_f32(x + i)));
    kvc_scale_ref(y + i, x + i, s, n - i);
}

void kvc_multiply_vec(float *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) store_f32(y + i, multiply_f32(load_f32(y + i), load_f32(x + i)));
    kvc_multiply_ref(y + i, x + i, n - i);
}

/* The last lanes add +0 where the reference adds nothing: the same, as a sum that began as +0 never is -0. */
float kvc_dot_vec(const float *a, const float *b, size_t n) {
    f32x8 sum = set_f32(0);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) sum = add_f32(sum, multiply_f32(load_f32(a + i), load_f32(b + i)));
    if (i < n) {
        const first_lanes mask = first_of_8(n - i);
        sum = add_f32(sum, multiply_f32(load_first_f32(a + i, mask), load_first_f32(b + i, mask)));
    }
    return total_f32(sum);
}

static inline f32x8 exponential(f32x8 d) {
    static const float c[] = KVC_EXPONENTIAL;
    const f32x8 power = round_f32(multiply_f32(d, set_f32(KVC_LOG2_E)));
    f32x8 r = multiply_add_f32(power, set_f32(-KVC_LN2_HIGH), d), p = set_f32(c[0]);
    r = multiply_add_f32(power, set_f32(-KVC_LN2_LOW), r);
#pragma GCC unroll 6
    for (int i = 1; i < 7; i++) p = multiply_add_f32(p, r, set_f32(c[i]));
    const bits256 biased = add_32(i32_of_f32(power), set_32(127));
    p = multiply_f32(p, f32_of_bits(left_32(biased, 23)));
    return keep_f32(p, less_or_equal_f32(set_f32(-87), d));
}

float kvc_exponentials_vec(float *x, size_t n, float most) {
    const f32x8 greatest = set_f32(most);
    f32x8 sum = set_f32(0);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        f32x8 e = exponential(subtract_f32(load_f32(x + i), greatest));
        store_f32(x + i, e);
        sum = add_f32(sum, e);
    }
    if (i < n) {
        const first_lanes mask = first_of_8(n - i);
        f32x8 e = exponential(subtract_f32(load_first_f32(x + i, mask), greatest));
        store_first_f32(x + i, e, mask);
        sum = add_f32(sum, keep_first_f32(e, mask));
    }
    return total_f32(sum);
}

#else
typedef int kvc_no_products_vec; /* ISO C wants one declaration in a file */
#endif
