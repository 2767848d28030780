/* transform_vec.c: vector twins of transform_ref.c, and of small_codes (predict_ref.c), same bytes
 * for every input. */
#include "kernels/twins.h"

#if defined(KVC_VECTORS)

#include "kernels/vec.h"

enum { LIST = 256 }; /* coefficients that are sought for non-zero ones at once */

/* Numbers of the non-zero ones among n <= LIST coefficients. 64 at a time are found before any is
 * listed, so that branches are as many as bits. */
static size_t list_nonzero(uint16_t *list, const float *a, size_t n) {
    size_t found = 0;
    for (size_t from = 0; from < n; from += 64) {
        const size_t end = n - from < 64 ? n : from + 64;
        uint64_t mask = 0;
        size_t j = from;
        for (; j + 8 <= end; j += 8)
            mask |= (uint64_t)(255 & ~mask_32(equal_f32(load_f32(a + j), set_f32(0))))
                    << (j - from);
        for (; j < end; j++) mask |= (uint64_t)(a[j] != 0) << (j - from);
        for (; mask; mask &= mask - 1)
            list[found++] = (uint16_t)(from + (size_t)__builtin_ctzll(mask));
    }
    return found;
}

/* 8 * vectors columns: the listed terms, added to y where `more`. A constant number of vectors, so
 * that the sums stay in registers. */
static inline __attribute__((always_inline)) void add_terms(float *y, const float *a,
                                                            const float *b, const uint16_t *list,
                                                            size_t terms, size_t stride,
                                                            size_t vectors, int more) {
    f32x8 sum[8];
#pragma GCC unroll 8
    for (size_t v = 0; v < 8; v++)
        if (v < vectors) sum[v] = more ? load_f32(y + 8 * v) : set_f32(0);
    for (size_t t = 0; t < terms; t++) {
        const f32x8 factor = set_f32(a[list[t]]);
        const float *row = b + list[t] * stride;
#pragma GCC unroll 8
        for (size_t v = 0; v < 8; v++)
            if (v < vectors) sum[v] = multiply_add_f32(factor, load_f32(row + 8 * v), sum[v]);
    }
#pragma GCC unroll 8
    for (size_t v = 0; v < 8; v++)
        if (v < vectors) store_f32(y + 8 * v, sum[v]);
}

static void multiply_row(float *y, const float *a, const float *b, size_t k, size_t stride,
                         size_t n) {
    uint16_t list[LIST];
    const size_t whole = n / 8 * 8;
    for (size_t first = 0; first < k || !first; first += LIST) {
        const size_t count = k - first < LIST ? k - first : LIST,
                     terms = list_nonzero(list, a + first, count);
        const float *from = a + first, *row = b + first * stride;
        size_t i = 0;
        for (; i + 64 <= n; i += 64)
            add_terms(y + i, from, row + i, list, terms, stride, 8, first != 0);
        for (; i + 32 <= n; i += 32)
            add_terms(y + i, from, row + i, list, terms, stride, 4, first != 0);
        for (; i + 8 <= n; i += 8)
            add_terms(y + i, from, row + i, list, terms, stride, 1, first != 0);
        for (i = whole; i < n && !first; i++) y[i] = 0;
        for (size_t t = 0; t < terms && whole < n; t++)
            for (i = whole; i < n; i++)
                y[i] = __builtin_fmaf(from[list[t]], row[list[t] * stride + i], y[i]);
    }
}

void kvc_multiply_sparse_vec(float *y, size_t y_stride, const float *a, size_t a_stride,
                             size_t rows, const float *b, size_t k, size_t stride, size_t n) {
    for (size_t r = 0; r < rows; r++)
        multiply_row(y + r * y_stride, a + r * a_stride, b, k, stride, n);
}

/* Eight codes from -most to most; a NaN compares false with itself and becomes 0. */
static inline bits256 codes_within(f32x8 y, f32x8 most) {
    y = keep_f32(y, equal_f32(y, y));
    return i32_of_f32(max_f32(min_f32(y, most), subtract_f32(set_f32(0), most)));
}

void kvc_round_codes_vec(int32_t *codes, const float *x, size_t n, float inverse, float most) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        store_256(codes + i,
                  codes_within(multiply_f32(load_f32(x + i), set_f32(inverse)), set_f32(most)));
    kvc_round_codes_ref(codes + i, x + i, n - i, inverse, most);
}

static inline bits256 small_eight(const float *x, const float *mean, const float *gain) {
    return codes_within(multiply_f32(subtract_f32(load_f32(x), load_f32(mean)), load_f32(gain)),
                        set_f32(127));
}

void kvc_small_codes_vec(int8_t *to, const float *x, const float *mean, const float *gain,
                         size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const bits256 low = small_eight(x + i, mean + i, gain + i);
        store_128(to + i, i8_of_i32(low, small_eight(x + i + 8, mean + i + 8, gain + i + 8)));
    }
    kvc_small_codes_ref(to + i, x + i, mean + i, gain + i, n - i);
}

void kvc_angles_vec(float *cosine, float *sine, const double *a, const double *b, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const f64x4 ac = load_f64(a + i), as = load_f64(a + n + i);
        const f64x4 bc = load_f64(b + i), bs = load_f64(b + n + i);
        store_f64_as_f32(cosine + i, subtract_f64(multiply_f64(ac, bc), multiply_f64(as, bs)));
        store_f64_as_f32(sine + i, add_f64(multiply_f64(ac, bs), multiply_f64(as, bc)));
    }
    for (; i < n; i++) {
        cosine[i] = (float)(a[i] * b[i] - a[n + i] * b[n + i]);
        sine[i] = (float)(a[i] * b[n + i] + a[n + i] * b[i]);
    }
}

void kvc_turn_halves_vec(float *u, float *v, const float *cosine, const float *sine, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const f32x8 a = load_f32(u + i), b = load_f32(v + i), c = load_f32(cosine + i),
                    s = load_f32(sine + i);
        store_f32(u + i, subtract_f32(multiply_f32(a, c), multiply_f32(b, s)));
        store_f32(v + i, add_f32(multiply_f32(b, c), multiply_f32(a, s)));
    }
    kvc_turn_halves_ref(u + i, v + i, cosine + i, sine + i, n - i);
}

void kvc_turn_pairs_vec(float *x, const float *cosine, const float *sine, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const f32x8 pair = load_f32(x + 2 * i),
                    straight = multiply_f32(pair, load_twice_f32(cosine + i));
        const f32x8 crossed = multiply_f32(swap_pairs_f32(pair), load_twice_f32(sine + i));
        store_f32(x + 2 * i, subtract_add_f32(straight, crossed));
    }
    kvc_turn_pairs_ref(x + 2 * i, cosine + i, sine + i, n - i);
}

uint16_t kvc_symbols_to_floats_vec(float *y, const uint16_t *symbols, size_t n, uint16_t middle,
                                   float step) {
    const f32x8 factor = set_f32(step);
    const bits256 centre = set_32(middle);
    bits256 most = set_32(0);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const bits256 s = widen_16_to_32(load_128(symbols + i));
        store_f32(y + i, multiply_f32(f32_of_i32(subtract_32(s, centre)), factor));
        most = max_i32(most, s);
    }
    const uint16_t found = (uint16_t)greatest_i32(most);
    const uint16_t rest = kvc_symbols_to_floats_ref(y + i, symbols + i, n - i, middle, step);
    return found > rest ? found : rest;
}

size_t kvc_codes_to_symbols_vec(uint16_t *symbols, uint16_t *others, const int32_t *codes,
                                const uint16_t *base, const uint8_t *limit, size_t n,
                                uint16_t middle) {
    const bits128 centre = set_128_16(middle);
    size_t found = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        const bits256 code = load_256(codes + i);
        const bits256 within = greater_i32(widen_8_to_32(load_64(limit + i)), magnitude_i32(code));
        store_128(symbols + i,
                  add_128_16(add_128_16(centre, load_128(base + i)), low_halves_32(code)));
        unsigned mask = 255u & ~mask_32(within);
        for (; mask; mask &= mask - 1)
            others[found++] = (uint16_t)(i + (size_t)__builtin_ctz(mask));
    }
    uint16_t rest[8];
    const size_t left = kvc_codes_to_symbols_ref(symbols + i, rest, codes + i, base + i, limit + i,
                                                 n - i, middle);
    for (size_t j = 0; j < left; j++) others[found++] = (uint16_t)(i + rest[j]);
    return found;
}

#else
typedef int kvc_no_transform_vec; /* ISO C wants one declaration in a file */
#endif
