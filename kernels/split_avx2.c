/* split_avx2.c: AVX2 twins of split_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/past.h"
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

static __m256i load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

static void store(void *p, __m256i v) {
    _mm256_storeu_si256((__m256i *)p, v);
}

void kvc_cut_words_avx2(uint16_t *symbols, uint8_t *low, const uint16_t *words, const uint16_t *bias, const uint16_t *context,
                        size_t n, unsigned shift, uint16_t mask) {
    const __m256i all = _mm256_set1_epi16((short)mask), below = _mm256_set1_epi16((short)((1 << shift) - 1));
    const __m128i count = _mm_cvtsi32_si128((int)shift);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i a = load(words + i), b = load(words + i + 16);
        __m256i s = _mm256_and_si256(_mm256_sub_epi16(a, load(bias + i)), all);
        __m256i t = _mm256_and_si256(_mm256_sub_epi16(b, load(bias + i + 16)), all);
        store(symbols + i, _mm256_add_epi16(_mm256_srl_epi16(s, count), load(context + i)));
        store(symbols + i + 16, _mm256_add_epi16(_mm256_srl_epi16(t, count), load(context + i + 16)));
        __m256i both = _mm256_packus_epi16(_mm256_and_si256(a, below), _mm256_and_si256(b, below));
        store(low + i, _mm256_permute4x64_epi64(both, 0xd8));
    }
    kvc_cut_words_ref(symbols + i, low + i, words + i, bias + i, context + i, n - i, shift, mask);
}

void kvc_join_words_avx2(uint16_t *words, const uint16_t *symbols, const uint16_t *bias, const uint8_t *low, size_t n,
                         unsigned shift, uint16_t mask) {
    const __m256i all = _mm256_set1_epi16((short)mask);
    const __m128i count = _mm_cvtsi32_si128((int)shift);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i below = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(low + i)));
        __m256i word = _mm256_add_epi16(_mm256_sll_epi16(load(symbols + i), count), load(bias + i));
        store(words + i, _mm256_and_si256(_mm256_add_epi16(word, below), all));
    }
    kvc_join_words_ref(words + i, symbols + i, bias + i, low + i, n - i, shift, mask);
}

void kvc_cut_rotated_avx2(uint8_t *low, uint8_t *high, const uint16_t *words, const uint16_t *bias, size_t n) {
    const __m256i byte = _mm256_set1_epi16(255);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i a = _mm256_sub_epi16(load(words + i), load(bias + i));
        __m256i b = _mm256_sub_epi16(load(words + i + 16), load(bias + i + 16));
        a = _mm256_or_si256(_mm256_slli_epi16(a, 1), _mm256_srli_epi16(a, 15));
        b = _mm256_or_si256(_mm256_slli_epi16(b, 1), _mm256_srli_epi16(b, 15));
        __m256i l = _mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
        __m256i h = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
        store(low + i, _mm256_permute4x64_epi64(l, 0xd8));
        store(high + i, _mm256_permute4x64_epi64(h, 0xd8));
    }
    kvc_cut_rotated_ref(low + i, high + i, words + i, bias + i, n - i);
}

/* Sixteen words of their rotated bytes, which alternate. */
static inline __m256i rotate_back(__m256i v, const uint16_t *bias) {
    return _mm256_add_epi16(_mm256_or_si256(_mm256_srli_epi16(v, 1), _mm256_slli_epi16(v, 15)), load(bias));
}

/* Joins pieces of whole vectors past the caches, to addresses of vectors of 16 bytes. */
static void join_past(uint8_t *dst, size_t to_step, const uint8_t *low, const uint8_t *high, size_t step, const uint16_t *bias,
                      size_t n, size_t size) {
    for (size_t p = 0; p < n; p++, dst += to_step, low += step, high += step)
        for (size_t i = 0; i < size; i += 16) {
            const __m256i l = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(low + i)));
            const __m256i h = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(high + i)));
            const __m256i words = rotate_back(_mm256_or_si256(l, _mm256_slli_epi16(h, 8)), bias + i);
            _mm_stream_si128((__m128i *)(void *)(dst + 2 * i), _mm256_castsi256_si128(words));
            _mm_stream_si128((__m128i *)(void *)(dst + 2 * i + 16), _mm256_extracti128_si256(words, 1));
        }
}

void kvc_join_rotated_avx2(uint8_t *dst, size_t to_step, const uint8_t *low, const uint8_t *high, size_t step,
                           const uint16_t *bias, size_t n, size_t size, int past) {
    size_t i = 0;
    if (past && !n) _mm_sfence();
    if (past && size % 16 == 0 && kvc_fills_lines(dst, to_step, n, 2 * size)) {
        join_past(dst, to_step, low, high, step, bias, n, size);
        return;
    }
    for (size_t p = 0; p < n; p++)
        for (i = 0; i + 32 <= size; i += 32) {
            const __m256i l = _mm256_permute4x64_epi64(load(low + p * step + i), 0xd8);
            const __m256i h = _mm256_permute4x64_epi64(load(high + p * step + i), 0xd8);
            store(dst + p * to_step + 2 * i, rotate_back(_mm256_unpacklo_epi8(l, h), bias + i));
            store(dst + p * to_step + 2 * i + 32, rotate_back(_mm256_unpackhi_epi8(l, h), bias + i + 16));
        }
    const size_t whole = size / 16 * 16;
    for (size_t p = 0; p < n && i < whole; p++) {
        const __m256i l = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(low + p * step + i)));
        const __m256i h = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(high + p * step + i)));
        store(dst + p * to_step + 2 * i, rotate_back(_mm256_or_si256(l, _mm256_slli_epi16(h, 8)), bias + i));
    }
    if (whole < size)
        kvc_join_rotated_ref(dst + 2 * whole, to_step, low + whole, high + whole, step, bias + whole, n, size - whole, 0);
}

void kvc_pack_bits_avx2(uint8_t *dst, const uint8_t *values, size_t n, unsigned width) {
    const __m256i nibble = _mm256_set1_epi8(15), pair = _mm256_set1_epi8(3);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i v = load(values + i);
        if (width & 4) {
            __m256i x = _mm256_and_si256(v, nibble);
            __m128i high = _mm_slli_epi16(_mm256_extracti128_si256(x, 1), 4);
            _mm_storeu_si128((__m128i *)(void *)dst, _mm_or_si128(_mm256_castsi256_si128(x), high));
            dst += 16;
            v = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
        }
        if (width & 2) { /* each 64-bit lane holds eight values; their byte's two bits go 0, 2, 4, 6 up */
            __m256i x = _mm256_sllv_epi64(_mm256_and_si256(v, pair), _mm256_setr_epi64x(0, 2, 4, 6));
            __m128i y = _mm_or_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
            _mm_storel_epi64((__m128i *)(void *)dst, _mm_or_si128(y, _mm_unpackhi_epi64(y, y)));
            dst += 8;
            v = _mm256_and_si256(_mm256_srli_epi16(v, 2), pair);
        }
        if (width & 1) {
            __m256i x = _mm256_sllv_epi32(_mm256_and_si256(v, _mm256_set1_epi8(1)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            __m128i y = _mm_or_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
            y = _mm_or_si128(y, _mm_unpackhi_epi64(y, y));
            y = _mm_or_si128(y, _mm_srli_epi64(y, 32));
            _mm_storeu_si32(dst, y);
            dst += 4;
        }
    }
    kvc_pack_bits_ref(dst, values + i, n - i, width);
}

void kvc_unpack_bits_avx2(uint8_t *values, const uint8_t *src, size_t n, unsigned width) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i v = _mm256_setzero_si256();
        int from = 0;
        if (width & 4) {
            __m128i x = _mm_loadu_si128((const __m128i *)(const void *)src);
            v = _mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1);
            v = _mm256_and_si256(v, _mm256_set1_epi8(15));
            src += 16;
            from = 4;
        }
        if (width & 2) {
            __m256i x = _mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)(const void *)src));
            x = _mm256_and_si256(_mm256_srlv_epi64(x, _mm256_setr_epi64x(0, 2, 4, 6)), _mm256_set1_epi8(3));
            v = _mm256_or_si256(v, _mm256_sll_epi16(x, _mm_cvtsi32_si128(from)));
            src += 8;
            from += 2;
        }
        if (width & 1) {
            __m256i x = _mm256_broadcastd_epi32(_mm_loadu_si32(src));
            x = _mm256_and_si256(_mm256_srlv_epi32(x, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)), _mm256_set1_epi8(1));
            v = _mm256_or_si256(v, _mm256_sll_epi16(x, _mm_cvtsi32_si128(from)));
            src += 4;
        }
        store(values + i, v);
    }
    kvc_unpack_bits_ref(values + i, src, n - i, width);
}

struct model_constants {
    __m256i half, rebias, magnitude, seven;
    __m128i cut, shift, sign;
};

/* Eight words and contexts, in 32-bit lanes. */
static inline __m256i model_eight(__m256i *context, const struct kvc_model_channels *channels, size_t at, const float *cosine,
                                  const float *sine, const struct model_constants *k) {
    __m256 variance = _mm256_loadu_ps(channels->variance + at);
    __m256 turned = _mm256_mul_ps(_mm256_loadu_ps(channels->partner + at), _mm256_loadu_ps(sine));
    __m256 m = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(channels->mean + at), _mm256_loadu_ps(cosine)), turned);
    __m256i square = _mm256_castps_si256(_mm256_add_ps(_mm256_mul_ps(m, m), variance));
    __m256i steps = _mm256_srli_epi32(_mm256_sub_epi32(square, _mm256_castps_si256(variance)), 22);
    *context = _mm256_min_epu32(steps, k->seven);
    __m256i root = _mm256_add_epi32(_mm256_srli_epi32(square, 1), k->rebias);
    root = _mm256_add_epi32(_mm256_max_epi32(root, _mm256_setzero_si256()), k->half);
    __m256i word = _mm256_and_si256(_mm256_sll_epi32(_mm256_srl_epi32(root, k->cut), k->shift), k->magnitude);
    return _mm256_or_si256(word, _mm256_sll_epi32(_mm256_srli_epi32(_mm256_castps_si256(m), 31), k->sign));
}

void kvc_model_words_avx2(uint16_t *bias, uint16_t *context, const struct kvc_model_channels *channels, const float *cosine,
                          const float *sine, size_t n, size_t period, const struct kvc_word_format *format,
                          unsigned context_shift) {
    const __m128i up = _mm_cvtsi32_si128((int)context_shift);
    const struct model_constants k = {
        .half = _mm256_set1_epi32((int)(1u << (format->drop + format->shift) >> 1)),
        .rebias = _mm256_set1_epi32((127 << 22) - (int)(format->rebias << 23)),
        .magnitude = _mm256_set1_epi32((1 << format->sign) - 1),
        .seven = _mm256_set1_epi32(7),
        .cut = _mm_cvtsi32_si128((int)(format->drop + format->shift)),
        .shift = _mm_cvtsi32_si128((int)format->shift),
        .sign = _mm_cvtsi32_si128((int)format->sign),
    };
    for (size_t head = 0; head < n; head += period) {
        size_t d = 0;
        for (; d + 16 <= period; d += 16) {
            const size_t i = head + d;
            __m256i context_a, context_b;
            __m256i a = model_eight(&context_a, channels, i, cosine + d, sine + d, &k);
            __m256i b = model_eight(&context_b, channels, i + 8, cosine + d + 8, sine + d + 8, &k);
            store(bias + i, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
            __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(context_a, context_b), 0xd8);
            store(context + i, _mm256_sll_epi16(both, up));
        }
        if (d < period) {
            const size_t i = head + d;
            const struct kvc_model_channels rest = {channels->mean + i, channels->partner + i, channels->variance + i};
            kvc_model_words_ref(bias + i, context + i, &rest, cosine + d, sine + d, period - d, period - d, format,
                                context_shift);
        }
    }
}

/* Sums of 8 channels over all rows, `stride` floats apart, in registers; the rotated cosines and sines go to c and s. */
static void sum_channels(const struct kvc_model_sums *sums, size_t at, const float *x, size_t rows, size_t stride, __m256 *c,
                         __m256 *s, __m256 step_c, __m256 step_s) {
    const __m256 most = _mm256_set1_ps(0x1p50f), positive = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 plain = _mm256_loadu_ps(sums->plain + at), square = _mm256_loadu_ps(sums->square + at);
    __m256 cosines = _mm256_loadu_ps(sums->cosines + at), sines = _mm256_loadu_ps(sums->sines + at);
    for (size_t t = 0; t < rows; t++, x += stride) {
        __m256 v = _mm256_loadu_ps(x);
        v = _mm256_and_ps(v, _mm256_cmp_ps(_mm256_and_ps(v, positive), most, _CMP_LT_OQ));
        plain = _mm256_add_ps(plain, v);
        square = _mm256_add_ps(square, _mm256_mul_ps(v, v));
        cosines = _mm256_add_ps(cosines, _mm256_mul_ps(v, *c));
        sines = _mm256_add_ps(sines, _mm256_mul_ps(v, *s));
        __m256 rotated = _mm256_sub_ps(_mm256_mul_ps(*c, step_c), _mm256_mul_ps(*s, step_s));
        *s = _mm256_add_ps(_mm256_mul_ps(*s, step_c), _mm256_mul_ps(*c, step_s));
        *c = rotated;
    }
    _mm256_storeu_ps(sums->plain + at, plain);
    _mm256_storeu_ps(sums->square + at, square);
    _mm256_storeu_ps(sums->cosines + at, cosines);
    _mm256_storeu_ps(sums->sines + at, sines);
}

/* The same of 8 channels at rest. */
static void sum_resting(const struct kvc_model_sums *sums, size_t at, const float *x, size_t rows, size_t stride) {
    const __m256 most = _mm256_set1_ps(0x1p50f), positive = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 plain = _mm256_loadu_ps(sums->plain + at), square = _mm256_loadu_ps(sums->square + at);
    for (size_t t = 0; t < rows; t++, x += stride) {
        __m256 v = _mm256_loadu_ps(x);
        v = _mm256_and_ps(v, _mm256_cmp_ps(_mm256_and_ps(v, positive), most, _CMP_LT_OQ));
        plain = _mm256_add_ps(plain, v);
        square = _mm256_add_ps(square, _mm256_mul_ps(v, v));
    }
    _mm256_storeu_ps(sums->plain + at, plain);
    _mm256_storeu_ps(sums->square + at, square);
}

/* Every head begins with the same cosines and sines; the last one leaves the rotated ones. */
void kvc_model_sums_avx2(const struct kvc_model_sums *sums, const float *x, size_t rows, float *cosine, float *sine,
                         const float *step_cosine, const float *step_sine, size_t n, size_t period) {
    size_t d = 0;
    for (size_t at = 0; !cosine && at + 8 <= n; d = at += 8) sum_resting(sums, at, x + at, rows, n);
    if (!cosine) {
        kvc_model_sums_rest(sums, x, rows, NULL, NULL, NULL, NULL, n, n, d);
        return;
    }
    for (; d + 8 <= period; d += 8) {
        const __m256 step_c = _mm256_loadu_ps(step_cosine + d), step_s = _mm256_loadu_ps(step_sine + d);
        const __m256 first_c = _mm256_loadu_ps(cosine + d), first_s = _mm256_loadu_ps(sine + d);
        __m256 c = first_c, s = first_s;
        for (size_t at = d; at < n; at += period) {
            c = first_c, s = first_s;
            sum_channels(sums, at, x + at, rows, n, &c, &s, step_c, step_s);
        }
        _mm256_storeu_ps(cosine + d, c);
        _mm256_storeu_ps(sine + d, s);
    }
    kvc_model_sums_rest(sums, x, rows, cosine, sine, step_cosine, step_sine, n, period, d);
}

void kvc_model_turn_avx2(float *cosine, float *sine, const float *step_cosine, const float *step_sine, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 c = _mm256_loadu_ps(cosine + i), s = _mm256_loadu_ps(sine + i);
        __m256 a = _mm256_loadu_ps(step_cosine + i), b = _mm256_loadu_ps(step_sine + i);
        _mm256_storeu_ps(cosine + i, _mm256_sub_ps(_mm256_mul_ps(c, a), _mm256_mul_ps(s, b)));
        _mm256_storeu_ps(sine + i, _mm256_add_ps(_mm256_mul_ps(s, a), _mm256_mul_ps(c, b)));
    }
    kvc_model_turn_ref(cosine + i, sine + i, step_cosine + i, step_sine + i, n - i);
}

void kvc_model_angles_avx2(float *cosine, float *sine, const double *x, size_t n) {
    const __m256d negative = _mm256_set1_pd(-0.0);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m256d angle = _mm256_loadu_pd(x + i);
        __m256d term = _mm256_set1_pd(1), sum[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
        for (int k = 0; k <= 24; k++) {
            sum[k & 1] = _mm256_add_pd(sum[k & 1], k & 2 ? _mm256_xor_pd(term, negative) : term);
            term = _mm256_div_pd(_mm256_mul_pd(term, angle), _mm256_set1_pd(k + 1));
        }
        _mm_storeu_ps(cosine + i, _mm256_cvtpd_ps(sum[0]));
        _mm_storeu_ps(sine + i, _mm256_cvtpd_ps(sum[1]));
    }
    kvc_model_angles_ref(cosine + i, sine + i, x + i, n - i);
}

#else
typedef int kvc_no_split_avx2; /* ISO C wants one declaration in a file */
#endif
