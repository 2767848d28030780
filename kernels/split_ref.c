/* split_ref.c: portable reference of the kernels of the stages `split` and `fast`: words, packed
 * bits, channel model. Not for rANS (rans_ref.c). */
#include "kernels/float_bits.h"
#include "kernels/twins.h"

#include <string.h>

void kvc_cut_words_ref(uint16_t *symbols, uint8_t *low, const uint16_t *words, const uint16_t *bias,
                       const uint16_t *context, size_t n, unsigned shift, uint16_t mask) {
    const uint16_t below = (uint16_t)((1u << shift) - 1);
    for (size_t i = 0; i < n; i++) {
        symbols[i] = (uint16_t)(context[i] + (((words[i] - bias[i]) & mask) >> shift));
        low[i] = (uint8_t)(words[i] & below);
    }
}

void kvc_join_words_ref(uint16_t *words, const uint16_t *symbols, const uint16_t *bias,
                        const uint8_t *low, size_t n, unsigned shift, uint16_t mask) {
    for (size_t i = 0; i < n; i++)
        words[i] = (uint16_t)(((symbols[i] << shift) + bias[i] + low[i]) & mask);
}

void kvc_cut_rotated_ref(uint8_t *low, uint8_t *high, const uint16_t *words, const uint16_t *bias,
                         size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t word = (uint16_t)(words[i] - bias[i]);
        low[i] = (uint8_t)(word << 1 | word >> 15);
        high[i] = (uint8_t)(word >> 7);
    }
}

void kvc_join_rotated_ref(uint8_t *dst, size_t to_step, const uint8_t *low, const uint8_t *high,
                          size_t step, const uint16_t *bias, size_t n, size_t size, int past) {
    (void)past;
    for (size_t p = 0; p < n; p++, dst += to_step, low += step, high += step)
        for (size_t i = 0; i < size; i++) {
            const uint16_t word = (uint16_t)((high[i] << 7 | low[i] >> 1 | (low[i] & 1) << 15) +
                                             bias[i]);
            memcpy(dst + 2 * i, &word, sizeof word);
        }
}

/* One plane of `width` bits of a group of 32: dst or values change by direction. */
static void pack_plane(uint8_t *dst, const uint8_t *values, size_t n, unsigned width,
                       unsigned from) {
    const unsigned step = 4 * width, mask = (1u << width) - 1; /* bytes in the plane */
    memset(dst, 0, step);
    for (unsigned i = 0; i < n; i++)
        dst[i % step] = (uint8_t)(dst[i % step] | (values[i] >> from & mask) << i / step * width);
}

static void unpack_plane(uint8_t *values, const uint8_t *src, size_t n, unsigned width,
                         unsigned from) {
    const unsigned step = 4 * width, mask = (1u << width) - 1;
    for (unsigned i = 0; i < n; i++)
        values[i] = (uint8_t)(values[i] | ((unsigned)src[i % step] >> i / step * width & mask)
                                              << from);
}

void kvc_pack_bits_ref(uint8_t *dst, const uint8_t *values, size_t n, unsigned width) {
    for (size_t i = 0; i < n; i += 32) {
        size_t count = n - i < 32 ? n - i : 32;
        for (unsigned plane = 4, from = 0; plane; plane /= 2) {
            if (!(width & plane)) continue;
            pack_plane(dst, values + i, count, plane, from);
            dst += 4 * plane;
            from += plane;
        }
    }
}

void kvc_unpack_bits_ref(uint8_t *values, const uint8_t *src, size_t n, unsigned width) {
    for (size_t i = 0; i < n; i += 32) {
        size_t count = n - i < 32 ? n - i : 32;
        memset(values + i, 0, count);
        for (unsigned plane = 4, from = 0; plane; plane /= 2) {
            if (!(width & plane)) continue;
            unpack_plane(values + i, src, count, plane, from);
            src += 4 * plane;
            from += plane;
        }
    }
}

void kvc_model_words_ref(uint16_t *bias, uint16_t *context,
                         const struct kvc_model_channels *channels, const float *cosine,
                         const float *sine, size_t n, size_t period,
                         const struct kvc_word_format *format, unsigned context_shift) {
    const unsigned cut = format->drop + format->shift;
    const int32_t rebias = (127 << 22) - (int32_t)(format->rebias << 23),
                  half = (int32_t)(1u << cut >> 1);
    const uint32_t magnitude = (1u << format->sign) - 1;
    for (size_t i = 0; i < n; i++) {
        float turned = channels->partner[i] * sine[i % period],
              m = channels->mean[i] * cosine[i % period] + turned;
        float s = m * m + channels->variance[i];
        uint32_t square = kvc_float_to_bits(s),
                 steps = (square - kvc_float_to_bits(channels->variance[i])) >> 22;
        /* halving the bits halves the logarithm, except for the error of linear mantissas */
        int32_t root = (int32_t)(square >> 1) + rebias;
        if (root < 0) root = 0;
        uint32_t word = (uint32_t)(root + half) >> cut << format->shift & magnitude;
        bias[i] = (uint16_t)(word | (kvc_float_to_bits(m) >> 31) << format->sign);
        context[i] = (uint16_t)((steps < 7 ? steps : 7) << context_shift);
    }
}

void kvc_model_sums_ref(const struct kvc_model_sums *sums, const float *x, size_t rows,
                        float *cosine, float *sine, const float *step_cosine,
                        const float *step_sine, size_t n, size_t period) {
    for (size_t t = 0; t < rows; t++, x += n) {
        for (size_t i = 0; i < n; i++) {
            float v = x[i] < 0x1p50f && x[i] > -0x1p50f ? x[i] : 0;
            sums->plain[i] += v;
            sums->square[i] += v * v;
            if (!cosine) continue;
            sums->cosines[i] += v * cosine[i % period];
            sums->sines[i] += v * sine[i % period];
        }
        if (cosine) kvc_turn_halves_ref(cosine, sine, step_cosine, step_sine, period);
    }
}

void kvc_model_sums_rest(const struct kvc_model_sums *sums, const float *x, size_t rows,
                         float *cosine, float *sine, const float *step_cosine,
                         const float *step_sine, size_t n, size_t period, size_t first) {
    float c[KVC_WIDEST_F32], s[KVC_WIDEST_F32];
    const size_t width = period - first;
    if (!width) return;
    for (size_t at = first; at < n && !cosine; at += period) {
        const struct kvc_model_sums rest = {sums->plain + at, sums->square + at, NULL, NULL};
        for (size_t t = 0; t < rows; t++)
            kvc_model_sums_ref(&rest, x + at + t * n, 1, NULL, NULL, NULL, NULL, width, width);
    }
    if (!cosine) return;
    for (size_t at = first; at < n; at += period) {
        const struct kvc_model_sums rest = {sums->plain + at, sums->square + at, sums->cosines + at,
                                            sums->sines + at};
        memcpy(c, cosine + first, width * sizeof *c);
        memcpy(s, sine + first, width * sizeof *s);
        for (size_t t = 0; t < rows; t++)
            kvc_model_sums_ref(&rest, x + at + t * n, 1, c, s, step_cosine + first,
                               step_sine + first, width, width);
    }
    memcpy(cosine + first, c, width * sizeof *c);
    memcpy(sine + first, s, width * sizeof *s);
}

void kvc_model_angles_ref(float *cosine, float *sine, const double *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double term = 1, sum[2] = {0, 0};
        for (int k = 0; k <= 24; k++) {
            sum[k & 1] += k & 2 ? -term : term;
            term = term * x[i] / (k + 1);
        }
        cosine[i] = (float)sum[0];
        sine[i] = (float)sum[1];
    }
}
