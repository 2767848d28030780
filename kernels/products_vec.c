/* products_vec.c: vector twins of products_ref.c, same bytes for every input. */
#include "kernels/twins.h"

#if defined(KVC_VECTORS)

#include "kernels/vec.h"

enum { DOUBLES = 4 };
#include "kernels/subtract_rows.h"

/* Columns of multiply_rows in 1 to 12 vectors, the last under a mask. Inlined with a constant
 * number of vectors and loops that compilers unroll whole, so that the sums stay in registers:
 * eight keep the adders busy, and there are sixteen. */
static inline __attribute__((always_inline)) void columns(float *y, const float *a, const float *b,
                                                          size_t k, size_t stride, size_t vectors,
                                                          first_lanes mask) {
    f32x8 sum[12];
    const size_t last = vectors - 1;
#pragma GCC unroll 12
    for (size_t v = 0; v < 12; v++) sum[v] = set_f32(0);
    for (size_t j = 0; j < k; j++, b += stride) {
        const f32x8 factor = set_f32(a[j]);
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

void kvc_multiply_rows_vec(float *y, const float *a, const float *b, size_t k, size_t stride,
                           size_t n) {
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

/* A tile of sums: 1 to 6 rows by KVC_TILE columns, under `masks` where they are there. Term j of
 * row r is a[r * a_row + j * a_step] times the columns from b + j * b_step on: each vector of b
 * serves all rows. Inlined with a constant number of rows, as above. */
enum { TILE_ROWS = 6 };
static inline __attribute__((always_inline)) void
sum_tile(float *y, size_t y_stride, const float *a, size_t a_row, size_t a_step, const float *b,
         size_t b_step, size_t k, size_t rows, const first_lanes *masks) {
    f32x8 sum[TILE_ROWS][2];
#pragma GCC unroll 6
    for (size_t r = 0; r < TILE_ROWS; r++) sum[r][0] = sum[r][1] = set_f32(0);
    for (size_t j = 0; j < k; j++, a += a_step, b += b_step) {
        const f32x8 low = masks ? load_first_f32(b, masks[0]) : load_f32(b);
        const f32x8 high = masks ? load_first_f32(b + 8, masks[1]) : load_f32(b + 8);
#pragma GCC unroll 6
        for (size_t r = 0; r < TILE_ROWS; r++) {
            if (r >= rows) continue;
            const f32x8 factor = set_f32(a[r * a_row]);
            sum[r][0] = multiply_add_f32(factor, low, sum[r][0]);
            sum[r][1] = multiply_add_f32(factor, high, sum[r][1]);
        }
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < TILE_ROWS; r++) {
        if (r >= rows) continue;
        store_f32(y + r * y_stride, sum[r][0]);
        store_f32(y + r * y_stride + 8, sum[r][1]);
    }
}

void kvc_multiply_tiles_vec(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows,
                            const float *b, size_t k, size_t tiles) {
    for (size_t t = 0; t < tiles; t++, y += KVC_TILE, b += k * KVC_TILE) {
        size_t r = 0;
        for (; r + 6 <= rows; r += 6)
            sum_tile(y + r * y_stride, y_stride, a + r * a_stride, a_stride, 1, b, KVC_TILE, k, 6,
                     NULL);
        for (; r + 2 <= rows; r += 2)
            sum_tile(y + r * y_stride, y_stride, a + r * a_stride, a_stride, 1, b, KVC_TILE, k, 2,
                     NULL);
        if (r < rows)
            sum_tile(y + r * y_stride, y_stride, a + r * a_stride, a_stride, 1, b, KVC_TILE, k, 1,
                     NULL);
    }
}

void kvc_add_gram_vec(double *gram, const float *x, size_t n, size_t stride, size_t dim) {
    float y[TILE_ROWS * KVC_TILE];
    for (size_t i = 0; i < dim; i += TILE_ROWS)
        for (size_t j = i; j < dim; j += KVC_TILE) {
            const size_t rows = dim - i < TILE_ROWS ? dim - i : TILE_ROWS, left = dim - j;
            const size_t columns = left < KVC_TILE ? left : KVC_TILE;
            const first_lanes masks[2] = {first_of_8(left < 8 ? left : 8),
                                          first_of_8(left < 8 ? 0 : columns - 8)};
            if (rows == TILE_ROWS && left >= KVC_TILE)
                sum_tile(y, KVC_TILE, x + i, 1, stride, x + j, stride, n, TILE_ROWS, NULL);
            else if (rows == TILE_ROWS)
                sum_tile(y, KVC_TILE, x + i, 1, stride, x + j, stride, n, TILE_ROWS, masks);
            else sum_tile(y, KVC_TILE, x + i, 1, stride, x + j, stride, n, rows, masks);
            for (size_t r = 0; r < rows; r++)
                for (size_t c = j > i ? 0 : r; c < columns; c++)
                    gram[(i + r) * dim + j + c] += (double)y[r * KVC_TILE + c];
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

/* The last lanes add +0 where the reference adds nothing: the same, as a sum that began as +0 never
 * is -0. */
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

void kvc_subtract_rows_vec(double *y, const double *x, size_t stride, const double *s, size_t step,
                           size_t rows, size_t n) {
    subtract_rows(y, x, stride, s, step, rows, n);
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
