/* quant_neon.c: NEON twins of quant_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__aarch64__)

#include <arm_neon.h>

void kvc_f32_to_f16_neon(uint8_t *dst, const float *src, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) { /* FCVTN makes NaNs quiet and cuts them as kvc_float_to_half() does */
        const float16x8_t h = vcombine_f16(vcvt_f16_f32(vld1q_f32(src + i)), vcvt_f16_f32(vld1q_f32(src + i + 4)));
        vst1q_u8(dst + 2 * i, vreinterpretq_u8_f16(h));
    }
    kvc_f32_to_f16_ref(dst + 2 * i, src + i, n - i);
}

static inline uint16x4_t bf16_words(const float *src) {
    const float32x4_t x = vld1q_f32(src);
    const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), up, quiet), 16);
}

void kvc_f32_to_bf16_neon(uint8_t *dst, const float *src, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        vst1q_u8(dst + 2 * i, vreinterpretq_u8_u16(vcombine_u16(bf16_words(src + i), bf16_words(src + i + 4))));
    kvc_f32_to_bf16_ref(dst + 2 * i, src + i, n - i);
}

/* FMIN and FMAX order -0 before +0, the reference does not: it keeps the second value where the first is not less, or not greater. */
static inline float32x4_t lesser(float32x4_t x, float32x4_t kept) {
    return vbslq_f32(vcltq_f32(x, kept), x, kept);
}
static inline float32x4_t larger(float32x4_t x, float32x4_t kept) {
    return vbslq_f32(vcgtq_f32(x, kept), x, kept);
}

void kvc_widen_ranges_neon(float *low, float *high, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t v = vld1q_f32(x + i);
        vst1q_f32(low + i, lesser(v, vld1q_f32(low + i)));
        vst1q_f32(high + i, larger(v, vld1q_f32(high + i)));
    }
    kvc_widen_ranges_ref(low + i, high + i, x + i, n - i);
}

/* Here the order of zeros does not matter: the sum of -0 and +0 is +0. */
void kvc_range_neon(const float *x, size_t n, float *low, float *high) {
    if (n < 4) {
        kvc_range_ref(x, n, low, high);
        return;
    }
    float32x4_t l = vld1q_f32(x + n - 4), h = l; /* the last four: some may be seen twice */
    for (size_t i = 0; i + 4 < n; i += 4) {
        const float32x4_t v = vld1q_f32(x + i);
        l = vminq_f32(l, v);
        h = vmaxq_f32(h, v);
    }
    *low = vminvq_f32(l) + 0.0f;
    *high = vmaxvq_f32(h) + 0.0f;
}

size_t kvc_find_beyond_neon(uint16_t *index, const float *x, const float *low, const float *high, size_t n, size_t step) {
    size_t found = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        uint32x4_t lanes[2];
        for (size_t v = 0; v < 2; v++) {
            const size_t at = i + 4 * v;
            const float32x4_t value = vld1q_f32(x + at), l = step ? vld1q_f32(low + at) : vld1q_dup_f32(low);
            lanes[v] = vorrq_u32(vcleq_f32(value, l), vcgeq_f32(value, step ? vld1q_f32(high + at) : vld1q_dup_f32(high)));
        }
        if (!vmaxvq_u32(vorrq_u32(lanes[0], lanes[1]))) continue; /* most often */
        for (size_t j = i; j < i + 8; j++)
            if (x[j] <= low[j * step] || x[j] >= high[j * step]) index[found++] = (uint16_t)j;
    }
    for (; i < n; i++)
        if (x[i] <= low[i * step] || x[i] >= high[i * step]) index[found++] = (uint16_t)i;
    return found;
}

/* The parameters of values i to i + 3: four of them, or one for all. */
static inline float32x4_t parameters(const float *p, size_t i, int each) {
    return each ? vld1q_f32(p + i) : vld1q_dup_f32(p);
}

static inline int16x4_t quantise_four(const float *x, float32x4_t low, float32x4_t inverse, float32x4_t most) {
    float32x4_t v = vmulq_f32(vsubq_f32(vld1q_f32(x), low), inverse);
    v = vmaxnmq_f32(v, vdupq_n_f32(0)); /* 0 for NaN, as in the reference */
    return vmovn_s32(vcvtnq_s32_f32(vminq_f32(v, most)));
}

/* n values whose parameters are their own (`each`) or shared by all. */
static inline __attribute__((always_inline)) void quantise_run(uint8_t *codes, const float *x, const float *low,
                                                               const float *inverse, size_t n, float most, int each) {
    const float32x4_t top = vdupq_n_f32(most);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const int16x4_t a = quantise_four(x + i, parameters(low, i, each), parameters(inverse, i, each), top);
        const int16x4_t b = quantise_four(x + i + 4, parameters(low, i + 4, each), parameters(inverse, i + 4, each), top);
        vst1_u8(codes + i, vqmovun_s16(vcombine_s16(a, b)));
    }
    if (i < n) {
        const size_t at = each ? i : 0, group = each ? 1 : n - i;
        kvc_quantise_ref(codes + i, x + i, low + at, inverse + at, n - i, group, most);
    }
}

void kvc_quantise_neon(uint8_t *codes, const float *x, const float *low, const float *inverse, size_t n, size_t group,
                       float most) {
    if (group == 1) quantise_run(codes, x, low, inverse, n, most, 1);
    else if (group < 8) kvc_quantise_ref(codes, x, low, inverse, n, group, most);
    else
        for (size_t i = 0; i < n; i += group)
            quantise_run(codes + i, x + i, low++, inverse++, n - i < group ? n - i : group, most, 0);
}

static inline void dequantise_four(float *x, uint16x4_t code, float32x4_t step, float32x4_t low, int add) {
    const float32x4_t v = vaddq_f32(vmulq_f32(vcvtq_f32_u32(vmovl_u16(code)), step), low);
    vst1q_f32(x, add ? vaddq_f32(v, vld1q_f32(x)) : v);
}

static inline __attribute__((always_inline)) void dequantise_run(float *x, const uint8_t *codes, const float *step,
                                                                 const float *low, size_t n, int each, int add) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint16x8_t code = vmovl_u8(vld1_u8(codes + i));
        dequantise_four(x + i, vget_low_u16(code), parameters(step, i, each), parameters(low, i, each), add);
        dequantise_four(x + i + 4, vget_high_u16(code), parameters(step, i + 4, each), parameters(low, i + 4, each), add);
    }
    if (i < n) {
        const size_t at = each ? i : 0, group = each ? 1 : n - i;
        (add ? kvc_dequantise_add_ref : kvc_dequantise_ref)(x + i, codes + i, step + at, low + at, n - i, group);
    }
}

void kvc_dequantise_neon(float *x, const uint8_t *codes, const float *step, const float *low, size_t n, size_t group) {
    if (group == 1) dequantise_run(x, codes, step, low, n, 1, 0);
    else if (group < 8) kvc_dequantise_ref(x, codes, step, low, n, group);
    else
        for (size_t i = 0; i < n; i += group)
            dequantise_run(x + i, codes + i, step++, low++, n - i < group ? n - i : group, 0, 0);
}

void kvc_dequantise_add_neon(float *x, const uint8_t *codes, const float *step, const float *low, size_t n, size_t group) {
    if (group == 1) dequantise_run(x, codes, step, low, n, 1, 1);
    else if (group < 8) kvc_dequantise_add_ref(x, codes, step, low, n, group);
    else
        for (size_t i = 0; i < n; i += group)
            dequantise_run(x + i, codes + i, step++, low++, n - i < group ? n - i : group, 0, 1);
}

#else
typedef int kvc_no_quant_neon; /* ISO C wants one declaration in a file */
#endif
