/* split_neon.c: NEON twins of split_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <string.h>

void kvc_cut_words_neon(uint16_t *symbols, uint8_t *low, const uint16_t *words, const uint16_t *bias, const uint16_t *context,
                        size_t n, unsigned shift, uint16_t mask) {
    const uint16x8_t all = vdupq_n_u16(mask);
    const uint8x8_t below = vdup_n_u8((uint8_t)((1u << shift) - 1)); /* shift is at most 8 */
    const int16x8_t count = vdupq_n_s16((int16_t) - (int)shift);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint16x8_t word = vld1q_u16(words + i), rest = vandq_u16(vsubq_u16(word, vld1q_u16(bias + i)), all);
        vst1q_u16(symbols + i, vaddq_u16(vshlq_u16(rest, count), vld1q_u16(context + i)));
        vst1_u8(low + i, vand_u8(vmovn_u16(word), below));
    }
    kvc_cut_words_ref(symbols + i, low + i, words + i, bias + i, context + i, n - i, shift, mask);
}

void kvc_join_words_neon(uint16_t *words, const uint16_t *symbols, const uint16_t *bias, const uint8_t *low, size_t n,
                         unsigned shift, uint16_t mask) {
    const uint16x8_t all = vdupq_n_u16(mask);
    const int16x8_t count = vdupq_n_s16((int16_t)shift);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const uint8x16_t below = vld1q_u8(low + i);
        const uint16x8_t a = vaddq_u16(vshlq_u16(vld1q_u16(symbols + i), count), vld1q_u16(bias + i));
        const uint16x8_t b = vaddq_u16(vshlq_u16(vld1q_u16(symbols + i + 8), count), vld1q_u16(bias + i + 8));
        vst1q_u16(words + i, vandq_u16(vaddw_u8(a, vget_low_u8(below)), all));
        vst1q_u16(words + i + 8, vandq_u16(vaddw_high_u8(b, below), all));
    }
    kvc_join_words_ref(words + i, symbols + i, bias + i, low + i, n - i, shift, mask);
}

void kvc_cut_rotated_neon(uint8_t *low, uint8_t *high, const uint16_t *words, const uint16_t *bias, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint16x8_t word = vsubq_u16(vld1q_u16(words + i), vld1q_u16(bias + i));
        const uint16x8_t rotated = vorrq_u16(vshlq_n_u16(word, 1), vshrq_n_u16(word, 15));
        vst1_u8(low + i, vmovn_u16(rotated));
        vst1_u8(high + i, vshrn_n_u16(rotated, 8));
    }
    kvc_cut_rotated_ref(low + i, high + i, words + i, bias + i, n - i);
}

static inline uint16x8_t rotate_back(uint8x16_t bytes) {
    const uint16x8_t rotated = vreinterpretq_u16_u8(bytes);
    return vorrq_u16(vshrq_n_u16(rotated, 1), vshlq_n_u16(rotated, 15));
}

void kvc_join_rotated_neon(uint8_t *dst, size_t to_step, const uint8_t *low, const uint8_t *high, size_t step,
                           const uint16_t *bias, size_t n, size_t size, int past) {
    const size_t whole = size / 16 * 16;
    for (size_t p = 0; p < n; p++)
        for (size_t i = 0; i < whole; i += 16) {
            const uint8x16_t l = vld1q_u8(low + p * step + i), h = vld1q_u8(high + p * step + i);
            const uint16x8_t a = vaddq_u16(rotate_back(vzip1q_u8(l, h)), vld1q_u16(bias + i));
            const uint16x8_t b = vaddq_u16(rotate_back(vzip2q_u8(l, h)), vld1q_u16(bias + i + 8));
            vst1q_u8(dst + p * to_step + 2 * i, vreinterpretq_u8_u16(a));
            vst1q_u8(dst + p * to_step + 2 * i + 16, vreinterpretq_u8_u16(b));
        }
    if (whole < size)
        kvc_join_rotated_ref(dst + 2 * whole, to_step, low + whole, high + whole, step, bias + whole, n, size - whole, past);
}

/* Bits to the left of a value in the byte that packs it: of values 0 to 15, then of 16 to 31. */
static const int8_t place_of_two[2][16] = {{0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2},
                                           {4, 4, 4, 4, 4, 4, 4, 4, 6, 6, 6, 6, 6, 6, 6, 6}};
static const int8_t place_of_one[2][16] = {{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3},
                                           {4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7}};

/* Returns the bits of `mask` of 32 values at their places: four vectors of eight, or eight of four, joined to two. */
static inline uint8x8_t join_places(uint8x16_t a, uint8x16_t b, uint8_t mask, const int8_t place[2][16]) {
    const uint8x16_t bits = vdupq_n_u8(mask), low = vshlq_u8(vandq_u8(a, bits), vld1q_s8(place[0]));
    const uint8x16_t joined = vorrq_u8(low, vshlq_u8(vandq_u8(b, bits), vld1q_s8(place[1])));
    return vorr_u8(vget_low_u8(joined), vget_high_u8(joined));
}

void kvc_pack_bits_neon(uint8_t *dst, const uint8_t *values, size_t n, unsigned width) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint8x16_t a = vld1q_u8(values + i), b = vld1q_u8(values + i + 16);
        if (width & 4) {
            vst1q_u8(dst, vorrq_u8(vandq_u8(a, vdupq_n_u8(15)), vshlq_n_u8(b, 4)));
            dst += 16;
            a = vshrq_n_u8(a, 4), b = vshrq_n_u8(b, 4);
        }
        if (width & 2) {
            vst1_u8(dst, join_places(a, b, 3, place_of_two));
            dst += 8;
            a = vshrq_n_u8(a, 2), b = vshrq_n_u8(b, 2);
        }
        if (width & 1) {
            const uint8x8_t eight = join_places(a, b, 1, place_of_one);
            const uint32x2_t both = vreinterpret_u32_u8(eight);
            const uint32_t four = vget_lane_u32(both, 0) | vget_lane_u32(both, 1);
            memcpy(dst, &four, sizeof four);
            dst += 4;
        }
    }
    kvc_pack_bits_ref(dst, values + i, n - i, width);
}

/* Adds to v, from bit `from` on, the bits of `mask` that x has at a value's place. */
static inline uint8x16_t take_places(uint8x16_t v, uint8x16_t x, uint8_t mask, const int8_t place[16], int8_t from) {
    const uint8x16_t bits = vandq_u8(vshlq_u8(x, vnegq_s8(vld1q_s8(place))), vdupq_n_u8(mask));
    return vorrq_u8(v, vshlq_u8(bits, vdupq_n_s8(from)));
}

void kvc_unpack_bits_neon(uint8_t *values, const uint8_t *src, size_t n, unsigned width) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint8x16_t a = vdupq_n_u8(0), b = a;
        int8_t from = 0;
        if (width & 4) {
            const uint8x16_t x = vld1q_u8(src);
            a = vandq_u8(x, vdupq_n_u8(15)), b = vshrq_n_u8(x, 4);
            src += 16;
            from = 4;
        }
        if (width & 2) {
            const uint8x8_t eight = vld1_u8(src);
            const uint8x16_t x = vcombine_u8(eight, eight);
            a = take_places(a, x, 3, place_of_two[0], from), b = take_places(b, x, 3, place_of_two[1], from);
            src += 8;
            from = (int8_t)(from + 2);
        }
        if (width & 1) {
            uint32_t four;
            memcpy(&four, src, sizeof four);
            const uint8x16_t x = vreinterpretq_u8_u32(vdupq_n_u32(four));
            a = take_places(a, x, 1, place_of_one[0], from), b = take_places(b, x, 1, place_of_one[1], from);
            src += 4;
        }
        vst1q_u8(values + i, a);
        vst1q_u8(values + i + 16, b);
    }
    kvc_unpack_bits_ref(values + i, src, n - i, width);
}

struct model_constants {
    int32x4_t half, rebias, cut, shift, sign; /* cut: to the right */
    uint32x4_t magnitude, seven;
};

/* Four words and contexts, in 32-bit lanes. */
static inline uint32x4_t model_four(uint32x4_t *context, const struct kvc_model_channels *channels, size_t at,
                                    const float *cosine, const float *sine, const struct model_constants *k) {
    const float32x4_t variance = vld1q_f32(channels->variance + at);
    const float32x4_t turned = vmulq_f32(vld1q_f32(channels->partner + at), vld1q_f32(sine));
    const float32x4_t m = vaddq_f32(vmulq_f32(vld1q_f32(channels->mean + at), vld1q_f32(cosine)), turned);
    const uint32x4_t square = vreinterpretq_u32_f32(vaddq_f32(vmulq_f32(m, m), variance));
    *context = vminq_u32(vshrq_n_u32(vsubq_u32(square, vreinterpretq_u32_f32(variance)), 22), k->seven);
    int32x4_t root = vaddq_s32(vreinterpretq_s32_u32(vshrq_n_u32(square, 1)), k->rebias);
    root = vaddq_s32(vmaxq_s32(root, vdupq_n_s32(0)), k->half);
    const uint32x4_t word = vshlq_u32(vshlq_u32(vreinterpretq_u32_s32(root), k->cut), k->shift);
    const uint32x4_t sign = vshlq_u32(vshrq_n_u32(vreinterpretq_u32_f32(m), 31), k->sign);
    return vorrq_u32(vandq_u32(word, k->magnitude), sign);
}

void kvc_model_words_neon(uint16_t *bias, uint16_t *context, const struct kvc_model_channels *channels, const float *cosine,
                          const float *sine, size_t n, size_t period, const struct kvc_word_format *format,
                          unsigned context_shift) {
    const int16x8_t up = vdupq_n_s16((int16_t)context_shift);
    const struct model_constants k = {
        .half = vdupq_n_s32((int32_t)(1u << (format->drop + format->shift) >> 1)),
        .rebias = vdupq_n_s32((127 << 22) - (int32_t)(format->rebias << 23)),
        .cut = vdupq_n_s32(-(int32_t)(format->drop + format->shift)),
        .shift = vdupq_n_s32((int32_t)format->shift),
        .sign = vdupq_n_s32((int32_t)format->sign),
        .magnitude = vdupq_n_u32((1u << format->sign) - 1),
        .seven = vdupq_n_u32(7),
    };
    for (size_t head = 0; head < n; head += period) {
        size_t d = 0;
        for (; d + 8 <= period; d += 8) {
            const size_t i = head + d;
            uint32x4_t context_a, context_b;
            const uint32x4_t a = model_four(&context_a, channels, i, cosine + d, sine + d, &k);
            const uint32x4_t b = model_four(&context_b, channels, i + 4, cosine + d + 4, sine + d + 4, &k);
            vst1q_u16(bias + i, vcombine_u16(vmovn_u32(a), vmovn_u32(b)));
            vst1q_u16(context + i, vshlq_u16(vcombine_u16(vmovn_u32(context_a), vmovn_u32(context_b)), up));
        }
        if (d < period) {
            const size_t i = head + d;
            const struct kvc_model_channels rest = {channels->mean + i, channels->partner + i, channels->variance + i};
            kvc_model_words_ref(bias + i, context + i, &rest, cosine + d, sine + d, period - d, period - d, format,
                                context_shift);
        }
    }
}

/* Sums of 4 channels over all rows, `stride` floats apart, in registers; the rotated cosines and sines go to c and s. */
static inline void sum_channels(const struct kvc_model_sums *sums, size_t at, const float *x, size_t rows, size_t stride,
                                float32x4_t *c, float32x4_t *s, float32x4_t step_c, float32x4_t step_s) {
    const float32x4_t most = vdupq_n_f32(0x1p50f);
    float32x4_t plain = vld1q_f32(sums->plain + at), square = vld1q_f32(sums->square + at);
    float32x4_t cosines = vld1q_f32(sums->cosines + at), sines = vld1q_f32(sums->sines + at);
    for (size_t t = 0; t < rows; t++, x += stride) {
        float32x4_t v = vld1q_f32(x);
        v = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), vcaltq_f32(v, most)));
        plain = vaddq_f32(plain, v);
        square = vaddq_f32(square, vmulq_f32(v, v));
        cosines = vaddq_f32(cosines, vmulq_f32(v, *c));
        sines = vaddq_f32(sines, vmulq_f32(v, *s));
        const float32x4_t turned = vsubq_f32(vmulq_f32(*c, step_c), vmulq_f32(*s, step_s));
        *s = vaddq_f32(vmulq_f32(*s, step_c), vmulq_f32(*c, step_s));
        *c = turned;
    }
    vst1q_f32(sums->plain + at, plain);
    vst1q_f32(sums->square + at, square);
    vst1q_f32(sums->cosines + at, cosines);
    vst1q_f32(sums->sines + at, sines);
}

/* The same of 4 channels at rest. */
static inline void sum_resting(const struct kvc_model_sums *sums, size_t at, const float *x, size_t rows, size_t stride) {
    const float32x4_t most = vdupq_n_f32(0x1p50f);
    float32x4_t plain = vld1q_f32(sums->plain + at), square = vld1q_f32(sums->square + at);
    for (size_t t = 0; t < rows; t++, x += stride) {
        float32x4_t v = vld1q_f32(x);
        v = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), vcaltq_f32(v, most)));
        plain = vaddq_f32(plain, v);
        square = vaddq_f32(square, vmulq_f32(v, v));
    }
    vst1q_f32(sums->plain + at, plain);
    vst1q_f32(sums->square + at, square);
}

/* Every head begins with the same cosines and sines; the last one leaves the rotated ones. */
void kvc_model_sums_neon(const struct kvc_model_sums *sums, const float *x, size_t rows, float *cosine, float *sine,
                         const float *step_cosine, const float *step_sine, size_t n, size_t period) {
    size_t d = 0;
    for (size_t at = 0; !cosine && at + 4 <= n; d = at += 4) sum_resting(sums, at, x + at, rows, n);
    if (!cosine) {
        kvc_model_sums_rest(sums, x, rows, NULL, NULL, NULL, NULL, n, n, d);
        return;
    }
    for (; d + 4 <= period; d += 4) {
        const float32x4_t step_c = vld1q_f32(step_cosine + d), step_s = vld1q_f32(step_sine + d);
        const float32x4_t first_c = vld1q_f32(cosine + d), first_s = vld1q_f32(sine + d);
        float32x4_t c = first_c, s = first_s;
        for (size_t at = d; at < n; at += period) {
            c = first_c, s = first_s;
            sum_channels(sums, at, x + at, rows, n, &c, &s, step_c, step_s);
        }
        vst1q_f32(cosine + d, c);
        vst1q_f32(sine + d, s);
    }
    kvc_model_sums_rest(sums, x, rows, cosine, sine, step_cosine, step_sine, n, period, d);
}

void kvc_model_turn_neon(float *cosine, float *sine, const float *step_cosine, const float *step_sine, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t c = vld1q_f32(cosine + i), s = vld1q_f32(sine + i);
        const float32x4_t a = vld1q_f32(step_cosine + i), b = vld1q_f32(step_sine + i);
        vst1q_f32(cosine + i, vsubq_f32(vmulq_f32(c, a), vmulq_f32(s, b)));
        vst1q_f32(sine + i, vaddq_f32(vmulq_f32(s, a), vmulq_f32(c, b)));
    }
    kvc_model_turn_ref(cosine + i, sine + i, step_cosine + i, step_sine + i, n - i);
}

void kvc_model_angles_neon(float *cosine, float *sine, const double *x, size_t n) {
    size_t i = 0;
    for (; i + 2 <= n; i += 2) {
        const float64x2_t angle = vld1q_f64(x + i);
        float64x2_t term = vdupq_n_f64(1), sum[2] = {vdupq_n_f64(0), vdupq_n_f64(0)};
        for (int k = 0; k <= 24; k++) {
            sum[k & 1] = vaddq_f64(sum[k & 1], k & 2 ? vnegq_f64(term) : term);
            term = vdivq_f64(vmulq_f64(term, angle), vdupq_n_f64(k + 1));
        }
        vst1_f32(cosine + i, vcvt_f32_f64(sum[0]));
        vst1_f32(sine + i, vcvt_f32_f64(sum[1]));
    }
    kvc_model_angles_ref(cosine + i, sine + i, x + i, n - i);
}

#else
typedef int kvc_no_split_neon; /* ISO C wants one declaration in a file */
#endif
