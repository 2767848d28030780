/* transform_neon.c: NEON twins of transform_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__aarch64__)

#include <arm_neon.h>

enum { LIST = 256 }; /* coefficients that are sought for non-zero ones at once */

/* Lists the non-zero ones among n <= LIST coefficients, without a branch for each. */
static size_t list_nonzero(uint16_t *list, const float *a, size_t n) {
    size_t found = 0;
    for (size_t j = 0; j < n; j++) {
        list[found] = (uint16_t)j;
        found += a[j] != 0;
    }
    return found;
}

/* 4 * vectors columns: the listed terms, added to y where `more`. A constant number of vectors, so that the sums stay in
 * registers. */
static inline __attribute__((always_inline)) void add_terms(float *y, const float *a, const float *b, const uint16_t *list,
                                                            size_t terms, size_t stride, size_t vectors, int more) {
    float32x4_t sum[16];
#pragma GCC unroll 16
    for (size_t v = 0; v < 16; v++)
        if (v < vectors) sum[v] = more ? vld1q_f32(y + 4 * v) : vdupq_n_f32(0);
    for (size_t t = 0; t < terms; t++) {
        const float32x4_t factor = vld1q_dup_f32(a + list[t]);
        const float *row = b + list[t] * stride;
#pragma GCC unroll 16
        for (size_t v = 0; v < 16; v++)
            if (v < vectors) sum[v] = vfmaq_f32(sum[v], factor, vld1q_f32(row + 4 * v));
    }
#pragma GCC unroll 16
    for (size_t v = 0; v < 16; v++)
        if (v < vectors) vst1q_f32(y + 4 * v, sum[v]);
}

static void multiply_row(float *y, const float *a, const float *b, size_t k, size_t stride, size_t n) {
    uint16_t list[LIST];
    const size_t whole = n / 4 * 4;
    for (size_t first = 0; first < k || !first; first += LIST) {
        const size_t count = k - first < LIST ? k - first : LIST, terms = list_nonzero(list, a + first, count);
        const float *from = a + first, *row = b + first * stride;
        size_t i = 0;
        for (; i + 64 <= n; i += 64) add_terms(y + i, from, row + i, list, terms, stride, 16, first != 0);
        for (; i + 16 <= n; i += 16) add_terms(y + i, from, row + i, list, terms, stride, 4, first != 0);
        for (; i + 4 <= n; i += 4) add_terms(y + i, from, row + i, list, terms, stride, 1, first != 0);
        for (i = whole; i < n && !first; i++) y[i] = 0;
        for (size_t t = 0; t < terms && whole < n; t++)
            for (i = whole; i < n; i++) y[i] = __builtin_fmaf(from[list[t]], row[list[t] * stride + i], y[i]);
    }
}

void kvc_multiply_sparse_neon(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows, const float *b, size_t k,
                              size_t stride, size_t n) {
    for (size_t r = 0; r < rows; r++) multiply_row(y + r * y_stride, a + r * a_stride, b, k, stride, n);
}

void kvc_angles_neon(float *cosine, float *sine, const double *a, const double *b, size_t n) {
    size_t i = 0;
    for (; i + 2 <= n; i += 2) {
        const float64x2_t ac = vld1q_f64(a + i), as = vld1q_f64(a + n + i), bc = vld1q_f64(b + i), bs = vld1q_f64(b + n + i);
        vst1_f32(cosine + i, vcvt_f32_f64(vsubq_f64(vmulq_f64(ac, bc), vmulq_f64(as, bs))));
        vst1_f32(sine + i, vcvt_f32_f64(vaddq_f64(vmulq_f64(ac, bs), vmulq_f64(as, bc))));
    }
    for (; i < n; i++) {
        cosine[i] = (float)(a[i] * b[i] - a[n + i] * b[n + i]);
        sine[i] = (float)(a[i] * b[n + i] + a[n + i] * b[i]);
    }
}

void kvc_turn_halves_neon(float *u, float *v, const float *cosine, const float *sine, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t a = vld1q_f32(u + i), b = vld1q_f32(v + i), c = vld1q_f32(cosine + i), s = vld1q_f32(sine + i);
        vst1q_f32(u + i, vsubq_f32(vmulq_f32(a, c), vmulq_f32(b, s)));
        vst1q_f32(v + i, vaddq_f32(vmulq_f32(b, c), vmulq_f32(a, s)));
    }
    kvc_turn_halves_ref(u + i, v + i, cosine + i, sine + i, n - i);
}

void kvc_turn_pairs_neon(float *x, const float *cosine, const float *sine, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4x2_t pair = vld2q_f32(x + 2 * i);
        const float32x4_t c = vld1q_f32(cosine + i), s = vld1q_f32(sine + i);
        const float32x4x2_t turned = {{vsubq_f32(vmulq_f32(pair.val[0], c), vmulq_f32(pair.val[1], s)),
                                       vaddq_f32(vmulq_f32(pair.val[1], c), vmulq_f32(pair.val[0], s))}};
        vst2q_f32(x + 2 * i, turned);
    }
    kvc_turn_pairs_ref(x + 2 * i, cosine + i, sine + i, n - i);
}

uint16_t kvc_symbols_to_floats_neon(float *y, const uint16_t *symbols, size_t n, uint16_t middle, float step) {
    const int32x4_t centre = vdupq_n_s32(middle);
    uint16x8_t most = vdupq_n_u16(0);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint16x8_t s = vld1q_u16(symbols + i);
        const int32x4_t a = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(s))), b = vreinterpretq_s32_u32(vmovl_high_u16(s));
        vst1q_f32(y + i, vmulq_n_f32(vcvtq_f32_s32(vsubq_s32(a, centre)), step));
        vst1q_f32(y + i + 4, vmulq_n_f32(vcvtq_f32_s32(vsubq_s32(b, centre)), step));
        most = vmaxq_u16(most, s);
    }
    const uint16_t found = vmaxvq_u16(most), rest = kvc_symbols_to_floats_ref(y + i, symbols + i, n - i, middle, step);
    return found > rest ? found : rest;
}

void kvc_round_codes_neon(int32_t *codes, const float *x, size_t n, float inverse, float most) {
    const float32x4_t high = vdupq_n_f32(most), low = vdupq_n_f32(-most);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) { /* a NaN is converted to 0 */
        const float32x4_t y = vmulq_n_f32(vld1q_f32(x + i), inverse);
        vst1q_s32(codes + i, vcvtnq_s32_f32(vmaxq_f32(vminq_f32(y, high), low)));
    }
    kvc_round_codes_ref(codes + i, x + i, n - i, inverse, most);
}

size_t kvc_codes_to_symbols_neon(uint16_t *symbols, uint16_t *others, const int32_t *codes, const uint16_t *base,
                                 const uint8_t *limit, size_t n, uint16_t middle) {
    static const uint16_t bit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint16x8_t centre = vdupq_n_u16(middle), bits = vld1q_u16(bit);
    size_t found = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        const int32x4_t a = vld1q_s32(codes + i), b = vld1q_s32(codes + i + 4);
        const uint16x8_t word = vreinterpretq_u16_s16(vcombine_s16(vmovn_s32(a), vmovn_s32(b)));
        vst1q_u16(symbols + i, vaddq_u16(vaddq_u16(centre, vld1q_u16(base + i)), word));
        /* limits are below 2^8: a code's size may be cut to 16 bits if those are saturated */
        const uint16x8_t size = vreinterpretq_u16_s16(vcombine_s16(vqmovn_s32(vabsq_s32(a)), vqmovn_s32(vabsq_s32(b))));
        unsigned mask = vaddvq_u16(vandq_u16(vcgeq_u16(size, vmovl_u8(vld1_u8(limit + i))), bits));
        for (; mask; mask &= mask - 1) others[found++] = (uint16_t)(i + (size_t)__builtin_ctz(mask));
    }
    uint16_t rest[8];
    const size_t left = kvc_codes_to_symbols_ref(symbols + i, rest, codes + i, base + i, limit + i, n - i, middle);
    for (size_t j = 0; j < left; j++) others[found++] = (uint16_t)(i + rest[j]);
    return found;
}

#else
typedef int kvc_no_transform_neon; /* ISO C wants one declaration in a file */
#endif
