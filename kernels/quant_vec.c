/* quant_vec.c: vector twins of quant_ref.c, same bytes for every input. */
#include "kernels/twins.h"

#if defined(KVC_VECTORS)

#include "kernels/vec.h"

void kvc_f32_to_f16_vec(uint8_t *dst, const float *src, size_t n) {
    const bits256 quiet = set_32(0x7fc00000); /* which becomes 7e00 */
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const f32x8 x = load_f32(src + i);
        const bits256 bits = select_256(equal_f32(x, x), bits_of_f32(x), quiet);
        store_128(dst + 2 * i, f16_of_f32(f32_of_bits(bits)));
    }
    kvc_f32_to_f16_ref(dst + 2 * i, src + i, n - i);
}

/* Eight words in 32-bit lanes. */
static inline bits256 bf16_words(const float *src) {
    const f32x8 x = load_f32(src);
    const bits256 bits = bits_of_f32(x), high = right_32(bits, 16), odd = and_256(high, set_32(1));
    const bits256 up = add_32(bits, add_32(odd, set_32(0x7fff)));
    return select_256(equal_f32(x, x), right_32(up, 16), set_32(0x7fc0));
}

void kvc_f32_to_bf16_vec(uint8_t *dst, const float *src, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        store_256(dst + 2 * i, narrow_32_to_16(bf16_words(src + i), bf16_words(src + i + 8)));
    kvc_f32_to_bf16_ref(dst + 2 * i, src + i, n - i);
}

/* The parameters of values i to i + 7: eight of them, or `all`, which is one for every value. */
static inline f32x8 parameters(const float *p, size_t i, f32x8 all, int each) {
    return each ? load_f32(p + i) : all;
}
static inline f32x8 parameter_of_all(const float *p, int each) {
    return set_f32(each ? 0 : *p);
}

/* Lanes of values i to i + 7 that are beyond their limits. */
static inline unsigned beyond(const float *x, const float *low, const float *high, size_t i,
                              int each) {
    const f32x8 v = load_f32(x + i), least = parameters(low, i, parameter_of_all(low, each), each);
    const f32x8 most = parameters(high, i, parameter_of_all(high, each), each);
    return mask_32(or_256(less_or_equal_f32(v, least), less_or_equal_f32(most, v)));
}

size_t kvc_find_beyond_vec(uint16_t *index, const float *x, const float *low, const float *high,
                           size_t n, size_t step) {
    size_t found = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        unsigned lanes = 0;
#pragma GCC unroll 4
        for (size_t v = 0; v < 32; v += 8)
            lanes |= (step ? beyond(x, low, high, i + v, 1) : beyond(x, low, high, i + v, 0)) << v;
        for (; lanes; lanes &= lanes - 1)
            index[found++] = (uint16_t)(i + (size_t)__builtin_ctz(lanes));
    }
    for (; i < n; i++)
        if (x[i] <= low[i * step] || x[i] >= high[i * step]) index[found++] = (uint16_t)i;
    return found;
}

void kvc_widen_ranges_vec(float *low, float *high, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const f32x8 v = load_f32(x + i);
        store_f32(low + i, min_f32(v, load_f32(low + i)));
        store_f32(high + i, max_f32(v, load_f32(high + i)));
    }
    kvc_widen_ranges_ref(low + i, high + i, x + i, n - i);
}

/* The order of zeros does not matter: the sum of -0 and +0 is +0. */
void kvc_range_vec(const float *x, size_t n, float *low, float *high) {
    if (n < 8) {
        kvc_range_ref(x, n, low, high);
        return;
    }
    /* the last eight: some may be seen twice */
    f32x8 least = load_f32(x + n - 8), greatest = least;
    for (size_t i = 0; i + 8 < n; i += 8) {
        const f32x8 v = load_f32(x + i);
        least = min_f32(v, least);
        greatest = max_f32(v, greatest);
    }
    *low = least_f32(least) + 0.0f;
    *high = greatest_f32(greatest) + 0.0f;
}

static inline bits256 quantise_eight(const float *x, f32x8 low, f32x8 inverse, f32x8 most) {
    f32x8 v = multiply_f32(subtract_f32(load_f32(x), low), inverse);
    v = max_f32(v, set_f32(0)); /* 0 for NaN, as in the reference */
    return i32_of_f32(min_f32(v, most));
}

/* n values whose parameters are their own (`each`) or shared by all. */
static inline __attribute__((always_inline)) void quantise_run(uint8_t *codes, const float *x,
                                                               const float *low,
                                                               const float *inverse, size_t n,
                                                               float most, int each) {
    const f32x8 top = set_f32(most), all_low = parameter_of_all(low, each),
                all_inverse = parameter_of_all(inverse, each);
    bits256 v[4];
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++) {
            const size_t at = i + 8 * j;
            const f32x8 from = parameters(low, at, all_low, each),
                        by = parameters(inverse, at, all_inverse, each);
            v[j] = quantise_eight(x + at, from, by, top);
        }
        store_256(codes + i, narrow_32_to_8(v[0], v[1], v[2], v[3]));
    }
    for (; i + 8 <= n; i += 8) {
        const f32x8 from = parameters(low, i, all_low, each),
                    by = parameters(inverse, i, all_inverse, each);
        store_64(codes + i, low_bytes_32(quantise_eight(x + i, from, by, top)));
    }
    if (i < n) {
        const size_t at = each ? i : 0, group = each ? 1 : n - i;
        kvc_quantise_ref(codes + i, x + i, low + at, inverse + at, n - i, group, most);
    }
}

void kvc_quantise_vec(uint8_t *codes, const float *x, const float *low, const float *inverse,
                      size_t n, size_t group, float most) {
    if (group == 1) {
        quantise_run(codes, x, low, inverse, n, most, 1);
        return;
    }
    if (group < 8) {
        kvc_quantise_ref(codes, x, low, inverse, n, group, most);
        return;
    }
    for (size_t run; n; n -= run, x += run, codes += run) {
        run = n < group ? n : group;
        quantise_run(codes, x, low++, inverse++, run, most, 0);
    }
}

static inline __attribute__((always_inline)) void dequantise_run(float *x, const uint8_t *codes,
                                                                 const float *step,
                                                                 const float *low, size_t n,
                                                                 int each, int add) {
    const f32x8 all_step = parameter_of_all(step, each), all_low = parameter_of_all(low, each);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const f32x8 code = f32_of_i32(widen_8_to_32(load_64(codes + i)));
        const f32x8 scaled = multiply_f32(code, parameters(step, i, all_step, each));
        const f32x8 v = add_f32(scaled, parameters(low, i, all_low, each));
        store_f32(x + i, add ? add_f32(v, load_f32(x + i)) : v);
    }
    if (i < n) {
        const size_t at = each ? i : 0, group = each ? 1 : n - i;
        (add ? kvc_dequantise_add_ref : kvc_dequantise_ref)(x + i, codes + i, step + at, low + at,
                                                            n - i, group);
    }
}

static inline __attribute__((always_inline)) void dequantise_groups(float *x, const uint8_t *codes,
                                                                    const float *step,
                                                                    const float *low, size_t n,
                                                                    size_t group, int add) {
    if (group == 1) {
        dequantise_run(x, codes, step, low, n, 1, add);
        return;
    }
    if (group < 8) {
        (add ? kvc_dequantise_add_ref : kvc_dequantise_ref)(x, codes, step, low, n, group);
        return;
    }
    for (size_t run; n; n -= run, x += run, codes += run) {
        run = n < group ? n : group;
        dequantise_run(x, codes, step++, low++, run, 0, add);
    }
}

void kvc_dequantise_vec(float *x, const uint8_t *codes, const float *step, const float *low,
                        size_t n, size_t group) {
    dequantise_groups(x, codes, step, low, n, group, 0);
}

void kvc_dequantise_add_vec(float *x, const uint8_t *codes, const float *step, const float *low,
                            size_t n, size_t group) {
    dequantise_groups(x, codes, step, low, n, group, 1);
}

#else
typedef int kvc_no_quant_vec; /* ISO C wants one declaration in a file */
#endif
