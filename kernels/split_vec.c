/* split_vec.c: vector twins of split_ref.c, same bytes for every input. */
#include "kernels/past.h"
#include "kernels/twins.h"

#if defined(KVC_VECTORS)

#include "kernels/vec.h"

void kvc_cut_words_vec(uint16_t *symbols, uint8_t *low, const uint16_t *words, const uint16_t *bias,
                       const uint16_t *context, size_t n, unsigned shift, uint16_t mask) {
    const bits256 all = set_16(mask), below = set_16((uint16_t)((1u << shift) - 1));
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const bits256 a = load_256(words + i), b = load_256(words + i + 16);
        const bits256 s = and_256(subtract_16(a, load_256(bias + i)), all);
        const bits256 t = and_256(subtract_16(b, load_256(bias + i + 16)), all);
        store_256(symbols + i, add_16(right_16(s, shift), load_256(context + i)));
        store_256(symbols + i + 16, add_16(right_16(t, shift), load_256(context + i + 16)));
        store_256(low + i, narrow_16_to_8(and_256(a, below), and_256(b, below)));
    }
    kvc_cut_words_ref(symbols + i, low + i, words + i, bias + i, context + i, n - i, shift, mask);
}

void kvc_join_words_vec(uint16_t *words, const uint16_t *symbols, const uint16_t *bias,
                        const uint8_t *low, size_t n, unsigned shift, uint16_t mask) {
    const bits256 all = set_16(mask);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const bits256 word = add_16(left_16(load_256(symbols + i), shift), load_256(bias + i));
        store_256(words + i, and_256(add_16(word, widen_8_to_16(load_128(low + i))), all));
    }
    kvc_join_words_ref(words + i, symbols + i, bias + i, low + i, n - i, shift, mask);
}

/* Sixteen words less their biases, rotated to the left by one bit. */
static inline bits256 rotated(const uint16_t *words, const uint16_t *bias) {
    const bits256 v = subtract_16(load_256(words), load_256(bias));
    return or_256(left_16(v, 1), right_16(v, 15));
}

void kvc_cut_rotated_vec(uint8_t *low, uint8_t *high, const uint16_t *words, const uint16_t *bias,
                         size_t n) {
    const bits256 byte = set_16(255);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const bits256 a = rotated(words + i, bias + i), b = rotated(words + i + 16, bias + i + 16);
        store_256(low + i, narrow_16_to_8(and_256(a, byte), and_256(b, byte)));
        store_256(high + i, narrow_16_to_8(right_16(a, 8), right_16(b, 8)));
    }
    kvc_cut_rotated_ref(low + i, high + i, words + i, bias + i, n - i);
}

/* Sixteen words of their rotated bytes, which alternate. */
static inline bits256 rotate_back(bits256 v, const uint16_t *bias) {
    return add_16(or_256(right_16(v, 1), left_16(v, 15)), load_256(bias));
}

/* The same of bytes that lie apart. */
static inline bits256 join_sixteen(const uint8_t *low, const uint8_t *high, const uint16_t *bias) {
    const bits256 l = widen_8_to_16(load_128(low)), h = widen_8_to_16(load_128(high));
    return rotate_back(or_256(l, left_16(h, 8)), bias);
}

/* Joins pieces of whole vectors past the caches, to addresses of vectors of 16 bytes. */
static void join_past(uint8_t *dst, size_t to_step, const uint8_t *low, const uint8_t *high,
                      size_t step, const uint16_t *bias, size_t n, size_t size) {
    for (size_t p = 0; p < n; p++, dst += to_step, low += step, high += step)
        for (size_t i = 0; i < size; i += 16) {
            const bits256 words = join_sixteen(low + i, high + i, bias + i);
            store_past_128(dst + 2 * i, low_128(words));
            store_past_128(dst + 2 * i + 16, high_128(words));
        }
}

void kvc_join_rotated_vec(uint8_t *dst, size_t to_step, const uint8_t *low, const uint8_t *high,
                          size_t step, const uint16_t *bias, size_t n, size_t size, int past) {
    size_t i = 0;
    if (past && !n) end_past();
    if (past && size % 16 == 0 && kvc_fills_lines(dst, to_step, n, 2 * size)) {
        join_past(dst, to_step, low, high, step, bias, n, size);
        return;
    }
    for (size_t p = 0; p < n; p++)
        for (i = 0; i + 32 <= size; i += 32) {
            bits256 b;
            const bits256 a = zip_8(load_256(low + p * step + i), load_256(high + p * step + i),
                                    &b);
            store_256(dst + p * to_step + 2 * i, rotate_back(a, bias + i));
            store_256(dst + p * to_step + 2 * i + 32, rotate_back(b, bias + i + 16));
        }
    const size_t whole = size / 16 * 16;
    for (size_t p = 0; p < n && i < whole; p++)
        store_256(dst + p * to_step + 2 * i,
                  join_sixteen(low + p * step + i, high + p * step + i, bias + i));
    if (whole < size)
        kvc_join_rotated_ref(dst + 2 * whole, to_step, low + whole, high + whole, step,
                             bias + whole, n, size - whole, 0);
}

/* Bits to the left of a value in the bytes that pack it: by sixteen values, by eight, by four. */
static const uint64_t place_of_four[4] = {0, 0, 4, 4}, place_of_two[4] = {0, 2, 4, 6};
static const uint32_t place_of_one[8] = {0, 1, 2, 3, 4, 5, 6, 7};

void kvc_pack_bits_vec(uint8_t *dst, const uint8_t *values, size_t n, unsigned width) {
    const bits256 nibble = set_8(15), pair = set_8(3), one = set_8(1);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        bits256 v = load_256(values + i);
        if (width & 4) {
            const bits256 x = left_each_64(and_256(v, nibble), load_256(place_of_four));
            store_128(dst, or_128(low_128(x), high_128(x)));
            dst += 16;
            v = and_256(right_16(v, 4), nibble);
        }
        if (width & 2) {
            const bits256 x = left_each_64(and_256(v, pair), load_256(place_of_two));
            store_64(dst, or_halves_128(or_128(low_128(x), high_128(x))));
            dst += 8;
            v = and_256(right_16(v, 2), pair);
        }
        if (width & 1) {
            const bits256 x = left_each_32(and_256(v, one), load_256(place_of_one));
            store_32(dst, or_quarters_128(or_128(low_128(x), high_128(x))));
            dst += 4;
        }
    }
    kvc_pack_bits_ref(dst, values + i, n - i, width);
}

void kvc_unpack_bits_vec(uint8_t *values, const uint8_t *src, size_t n, unsigned width) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        bits256 v = set_8(0);
        unsigned from = 0;
        if (width & 4) {
            v = and_256(right_each_64(repeat_128(src), load_256(place_of_four)), set_8(15));
            src += 16;
            from = 4;
        }
        if (width & 2) {
            const bits256 x = and_256(right_each_64(repeat_64(src), load_256(place_of_two)),
                                      set_8(3));
            v = or_256(v, left_16(x, from));
            src += 8;
            from += 2;
        }
        if (width & 1) {
            const bits256 x = and_256(right_each_32(repeat_32(src), load_256(place_of_one)),
                                      set_8(1));
            v = or_256(v, left_16(x, from));
            src += 4;
        }
        store_256(values + i, v);
    }
    kvc_unpack_bits_ref(values + i, src, n - i, width);
}

struct model_constants {
    bits256 half, rebias, magnitude;
    unsigned cut, shift, sign;
};

/* Eight words and contexts, in 32-bit lanes. */
static inline bits256 model_eight(bits256 *context, const struct kvc_model_channels *channels,
                                  size_t at, const float *cosine, const float *sine,
                                  const struct model_constants *k) {
    const f32x8 variance = load_f32(channels->variance + at);
    const f32x8 turned = multiply_f32(load_f32(channels->partner + at), load_f32(sine));
    const f32x8 m = add_f32(multiply_f32(load_f32(channels->mean + at), load_f32(cosine)), turned);
    const bits256 square = bits_of_f32(add_f32(multiply_f32(m, m), variance));
    *context = min_u32(right_32(subtract_32(square, bits_of_f32(variance)), 22), set_32(7));
    const bits256 root = max_i32(add_32(right_32(square, 1), k->rebias), set_32(0));
    const bits256 word = left_32(right_32(add_32(root, k->half), k->cut), k->shift);
    return or_256(and_256(word, k->magnitude), left_32(right_32(bits_of_f32(m), 31), k->sign));
}

void kvc_model_words_vec(uint16_t *bias, uint16_t *context,
                         const struct kvc_model_channels *channels, const float *cosine,
                         const float *sine, size_t n, size_t period,
                         const struct kvc_word_format *format, unsigned context_shift) {
    const struct model_constants k = {
        .half = set_32(1u << (format->drop + format->shift) >> 1),
        .rebias = set_32((127u << 22) - (format->rebias << 23)),
        .magnitude = set_32((1u << format->sign) - 1),
        .cut = format->drop + format->shift,
        .shift = format->shift,
        .sign = format->sign,
    };
    for (size_t head = 0; head < n; head += period) {
        size_t d = 0;
        for (; d + 16 <= period; d += 16) {
            const size_t i = head + d;
            bits256 context_a, context_b;
            const bits256 a = model_eight(&context_a, channels, i, cosine + d, sine + d, &k);
            const bits256 b = model_eight(&context_b, channels, i + 8, cosine + d + 8, sine + d + 8,
                                          &k);
            store_256(bias + i, narrow_32_to_16(a, b));
            store_256(context + i, left_16(narrow_32_to_16(context_a, context_b), context_shift));
        }
        if (d < period) {
            const size_t i = head + d;
            const struct kvc_model_channels rest = {channels->mean + i, channels->partner + i,
                                                    channels->variance + i};
            kvc_model_words_ref(bias + i, context + i, &rest, cosine + d, sine + d, period - d,
                                period - d, format, context_shift);
        }
    }
}

/* Sums of 8 channels over all rows, `stride` floats apart, in registers; the rotated cosines and
 * sines go to c and s. Channels at rest have none: c and s are NULL. */
static inline __attribute__((always_inline)) void
sum_channels(const struct kvc_model_sums *sums, size_t at, const float *x, size_t rows,
             size_t stride, f32x8 *c, f32x8 *s, f32x8 step_c, f32x8 step_s) {
    f32x8 plain = load_f32(sums->plain + at), square = load_f32(sums->square + at);
    f32x8 cosines = c ? load_f32(sums->cosines + at) : set_f32(0),
          sines = s ? load_f32(sums->sines + at) : set_f32(0);
    for (size_t t = 0; t < rows; t++, x += stride) {
        f32x8 v = load_f32(x);
        v = keep_f32(v, less_f32(magnitude_f32(v), set_f32(0x1p50f)));
        plain = add_f32(plain, v);
        square = add_f32(square, multiply_f32(v, v));
        if (!c) continue;
        cosines = add_f32(cosines, multiply_f32(v, *c));
        sines = add_f32(sines, multiply_f32(v, *s));
        const f32x8 turned = subtract_f32(multiply_f32(*c, step_c), multiply_f32(*s, step_s));
        *s = add_f32(multiply_f32(*s, step_c), multiply_f32(*c, step_s));
        *c = turned;
    }
    store_f32(sums->plain + at, plain);
    store_f32(sums->square + at, square);
    if (!c) return;
    store_f32(sums->cosines + at, cosines);
    store_f32(sums->sines + at, sines);
}

/* Every head begins with the same cosines and sines; the last one leaves the rotated ones. */
void kvc_model_sums_vec(const struct kvc_model_sums *sums, const float *x, size_t rows,
                        float *cosine, float *sine, const float *step_cosine,
                        const float *step_sine, size_t n, size_t period) {
    const f32x8 none = set_f32(0);
    size_t d = 0;
    for (size_t at = 0; !cosine && at + 8 <= n; d = at += 8)
        sum_channels(sums, at, x + at, rows, n, NULL, NULL, none, none);
    if (!cosine) {
        kvc_model_sums_rest(sums, x, rows, NULL, NULL, NULL, NULL, n, n, d);
        return;
    }
    for (; d + 8 <= period; d += 8) {
        const f32x8 step_c = load_f32(step_cosine + d), step_s = load_f32(step_sine + d);
        const f32x8 first_c = load_f32(cosine + d), first_s = load_f32(sine + d);
        f32x8 c = first_c, s = first_s;
        for (size_t at = d; at < n; at += period) {
            c = first_c, s = first_s;
            sum_channels(sums, at, x + at, rows, n, &c, &s, step_c, step_s);
        }
        store_f32(cosine + d, c);
        store_f32(sine + d, s);
    }
    kvc_model_sums_rest(sums, x, rows, cosine, sine, step_cosine, step_sine, n, period, d);
}

void kvc_model_angles_vec(float *cosine, float *sine, const double *x, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const f64x4 angle = load_f64(x + i);
        f64x4 term = set_f64(1), sum[2] = {set_f64(0), set_f64(0)};
        for (int k = 0; k <= 24; k++) {
            sum[k & 1] = k & 2 ? subtract_f64(sum[k & 1], term) : add_f64(sum[k & 1], term);
            term = divide_f64(multiply_f64(term, angle), set_f64(k + 1));
        }
        store_f64_as_f32(cosine + i, sum[0]);
        store_f64_as_f32(sine + i, sum[1]);
    }
    kvc_model_angles_ref(cosine + i, sine + i, x + i, n - i);
}

#else
typedef int kvc_no_split_vec; /* ISO C wants one declaration in a file */
#endif
