/* split_avx512.c: AVX-512 twins of what split_ref.c does for every value of a row: the channel
 * model, packed words of `fast`. Same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

struct model_constants {
    __m512i half, rebias, magnitude, sign, seven;
    __m128i cut, sign_shift, up;
};

/* Sixteen words and contexts, in 32-bit lanes. */
static inline __attribute__((always_inline)) __m512i
model_sixteen(__m512i *context, const struct kvc_model_channels *channels, size_t at,
              const float *cosine, const float *sine, const struct model_constants *k) {
    enum { EITHER = 0xf8 }; /* a | (b & c) */
    __m512 variance = _mm512_loadu_ps(channels->variance + at);
    __m512 turned = _mm512_mul_ps(_mm512_loadu_ps(channels->partner + at), _mm512_loadu_ps(sine));
    __m512 m = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(channels->mean + at),
                                           _mm512_loadu_ps(cosine)),
                             turned);
    __m512i square = _mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(m, m), variance));
    __m512i steps = _mm512_srli_epi32(_mm512_sub_epi32(square, _mm512_castps_si512(variance)), 22);
    *context = _mm512_min_epu32(steps, k->seven);
    __m512i root = _mm512_max_epi32(_mm512_add_epi32(_mm512_srli_epi32(square, 1), k->rebias),
                                    k->half);
    __m512i word = _mm512_and_si512(_mm512_srl_epi32(root, k->cut), k->magnitude);
    return _mm512_ternarylogic_epi32(word, _mm512_srl_epi32(_mm512_castps_si512(m), k->sign_shift),
                                     k->sign, EITHER);
}

/* The lower halves of 32-bit lanes, which are below 2^16. */
static inline __m512i pack(__m512i a, __m512i b) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                    _mm512_packus_epi32(a, b));
}

void kvc_model_words_avx512(uint16_t *bias, uint16_t *context,
                            const struct kvc_model_channels *channels, const float *cosine,
                            const float *sine, size_t n, size_t period,
                            const struct kvc_word_format *format, unsigned context_shift) {
    const uint32_t half = 1u << (format->drop + format->shift) >> 1,
                   low = (1u << format->shift) - 1;
    const struct model_constants k = {
        .half = _mm512_set1_epi32((int)half),
        .rebias = _mm512_set1_epi32((127 << 22) - (int)(format->rebias << 23) + (int)half),
        .magnitude = _mm512_set1_epi32((int)(((1u << format->sign) - 1) & ~low)),
        .sign = _mm512_set1_epi32(1 << format->sign),
        .seven = _mm512_set1_epi32(7),
        .cut = _mm_cvtsi32_si128((int)format->drop),
        .sign_shift = _mm_cvtsi32_si128((int)(31 - format->sign)),
        .up = _mm_cvtsi32_si128((int)context_shift),
    };
    for (size_t head = 0; head < n; head += period) {
        size_t d = 0;
        for (; d + 32 <= period; d += 32) {
            __m512i of_a, of_b,
                a = model_sixteen(&of_a, channels, head + d, cosine + d, sine + d, &k);
            __m512i b = model_sixteen(&of_b, channels, head + d + 16, cosine + d + 16,
                                      sine + d + 16, &k);
            _mm512_storeu_si512(bias + head + d, pack(a, b));
            _mm512_storeu_si512(context + head + d, _mm512_sll_epi16(pack(of_a, of_b), k.up));
        }
        for (; d + 16 <= period; d += 16) {
            __m512i contexts,
                words = model_sixteen(&contexts, channels, head + d, cosine + d, sine + d, &k);
            _mm256_storeu_si256((__m256i *)(void *)(bias + head + d), _mm512_cvtepi32_epi16(words));
            _mm256_storeu_si256((__m256i *)(void *)(context + head + d),
                                _mm512_cvtepi32_epi16(_mm512_sll_epi32(contexts, k.up)));
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

enum { HEADS = 3 }; /* that share the rotation of a row: their sums are in registers */

/* Sums of 16 channels of `heads` heads, `period` floats apart, over all rows, `stride` floats
 * apart; the cosines and sines that are rotated go to c and s. */
static inline __attribute__((always_inline)) void
sum_channels(const struct kvc_model_sums *sums, size_t at, const float *x, size_t rows,
             size_t stride, unsigned heads, size_t period, __m512 *c, __m512 *s, __m512 step_c,
             __m512 step_s) {
    const __m512 most = _mm512_set1_ps(0x1p50f);
    __m512 plain[HEADS], square[HEADS], cosines[HEADS], sines[HEADS];
#pragma GCC unroll 3
    for (unsigned h = 0; h < heads; h++) {
        plain[h] = _mm512_loadu_ps(sums->plain + at + h * period);
        square[h] = _mm512_loadu_ps(sums->square + at + h * period);
        if (!c) continue;
        cosines[h] = _mm512_loadu_ps(sums->cosines + at + h * period);
        sines[h] = _mm512_loadu_ps(sums->sines + at + h * period);
    }
    for (size_t t = 0; t < rows; t++, x += stride) {
#pragma GCC unroll 3
        for (unsigned h = 0; h < heads; h++) {
            __m512 v = _mm512_loadu_ps(x + h * period);
            v = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(v), most, _CMP_LT_OQ), v);
            plain[h] = _mm512_add_ps(plain[h], v);
            square[h] = _mm512_add_ps(square[h], _mm512_mul_ps(v, v));
            if (!c) continue;
            cosines[h] = _mm512_add_ps(cosines[h], _mm512_mul_ps(v, *c));
            sines[h] = _mm512_add_ps(sines[h], _mm512_mul_ps(v, *s));
        }
        if (!c) continue;
        __m512 rotated = _mm512_sub_ps(_mm512_mul_ps(*c, step_c), _mm512_mul_ps(*s, step_s));
        *s = _mm512_add_ps(_mm512_mul_ps(*s, step_c), _mm512_mul_ps(*c, step_s));
        *c = rotated;
    }
#pragma GCC unroll 3
    for (unsigned h = 0; h < heads; h++) {
        _mm512_storeu_ps(sums->plain + at + h * period, plain[h]);
        _mm512_storeu_ps(sums->square + at + h * period, square[h]);
        if (!c) continue;
        _mm512_storeu_ps(sums->cosines + at + h * period, cosines[h]);
        _mm512_storeu_ps(sums->sines + at + h * period, sines[h]);
    }
}

/* Channels at rest, 48 and then 16 at once. */
static void sum_resting(const struct kvc_model_sums *sums, const float *x, size_t rows, size_t n) {
    const __m512 none = _mm512_setzero_ps();
    size_t at = 0;
    for (; at + 48 <= n; at += 48)
        sum_channels(sums, at, x + at, rows, n, HEADS, 16, NULL, NULL, none, none);
    for (; at + 16 <= n; at += 16)
        sum_channels(sums, at, x + at, rows, n, 1, 16, NULL, NULL, none, none);
    kvc_model_sums_rest(sums, x, rows, NULL, NULL, NULL, NULL, n, n, at);
}

/* Every head begins with the same cosines and sines; the last one leaves the rotated ones. */
void kvc_model_sums_avx512(const struct kvc_model_sums *sums, const float *x, size_t rows,
                           float *cosine, float *sine, const float *step_cosine,
                           const float *step_sine, size_t n, size_t period) {
    size_t d = 0;
    if (!cosine) {
        sum_resting(sums, x, rows, n);
        return;
    }
    for (; d + 16 <= period; d += 16) {
        const __m512 step_c = _mm512_loadu_ps(step_cosine + d),
                     step_s = _mm512_loadu_ps(step_sine + d);
        const __m512 first_c = _mm512_loadu_ps(cosine + d), first_s = _mm512_loadu_ps(sine + d);
        __m512 c = first_c, s = first_s;
        size_t at = d;
        for (; at + 2 * period < n; at += HEADS * period) {
            c = first_c, s = first_s;
            sum_channels(sums, at, x + at, rows, n, HEADS, period, &c, &s, step_c, step_s);
        }
        for (; at < n; at += period) {
            c = first_c, s = first_s;
            sum_channels(sums, at, x + at, rows, n, 1, period, &c, &s, step_c, step_s);
        }
        _mm512_storeu_ps(cosine + d, c);
        _mm512_storeu_ps(sine + d, s);
    }
    kvc_model_sums_rest(sums, x, rows, cosine, sine, step_cosine, step_sine, n, period, d);
}

/* Thirty-two words of their rotated bytes, which alternate. */
static inline __m512i rotate_back(__m512i v, const uint16_t *bias) {
    return _mm512_add_epi16(_mm512_or_si512(_mm512_srli_epi16(v, 1), _mm512_slli_epi16(v, 15)),
                            _mm512_loadu_si512(bias));
}

/* Joins 64 words. */
static inline void join_64(__m512i words[2], const uint8_t *low, const uint8_t *high,
                           const uint16_t *bias) {
    /* bytes 0 to 31 to the lower halves of lanes of 16 */
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i l = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(low));
    const __m512i h = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(high));
    words[0] = rotate_back(_mm512_unpacklo_epi8(l, h), bias);
    words[1] = rotate_back(_mm512_unpackhi_epi8(l, h), bias + 32);
}

/* Joins pieces that follow each other, of a multiple of 64 words, past the caches, to an address of
 * 4-byte words: whole lines of the caches, each of the vectors before and after its beginning. The
 * first and the last line are not whole and written into the caches. */
static void join_past(uint8_t *dst, const uint8_t *low, const uint8_t *high, size_t step,
                      const uint16_t *bias, size_t n, size_t size) {
    const unsigned before = (unsigned)((uintptr_t)dst % 64 / 4);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i across = _mm512_add_epi32(lanes, _mm512_set1_epi32(16 - (int)before));
    __m512i last = _mm512_setzero_si512();
    __mmask16 due = (__mmask16)(0xffffu << before); /* lanes of the line that are ours */
    uint8_t *line = dst - 4 * before;
    for (size_t p = 0; p < n; p++, low += step, high += step)
        for (size_t i = 0; i < size; i += 64, line += 128) {
            __m512i words[2];
            join_64(words, low + i, high + i, bias + i);
            const __m512i first = _mm512_permutex2var_epi32(last, across, words[0]);
            if (due == 0xffff) _mm512_stream_si512((void *)line, first);
            else _mm512_mask_storeu_epi32(line, due, first);
            _mm512_stream_si512((void *)(line + 64),
                                _mm512_permutex2var_epi32(words[0], across, words[1]));
            last = words[1];
            due = 0xffff;
        }
    _mm512_mask_storeu_epi32(line, (__mmask16)((1u << before) - 1),
                             _mm512_permutex2var_epi32(last, across, last));
}

void kvc_join_rotated_avx512(uint8_t *dst, size_t to_step, const uint8_t *low, const uint8_t *high,
                             size_t step, const uint16_t *bias, size_t n, size_t size, int past) {
    const size_t whole = size / 64 * 64;
    if (past) {
        if (n && to_step == 2 * size && whole == size && (uintptr_t)dst % 4 == 0)
            join_past(dst, low, high, step, bias, n, size);
        else kvc_join_rotated_vec(dst, to_step, low, high, step, bias, n, size, 1);
        return;
    }
    for (size_t p = 0; p < n; p++)
        for (size_t i = 0; i < whole; i += 64) {
            __m512i words[2];
            join_64(words, low + p * step + i, high + p * step + i, bias + i);
            _mm512_storeu_si512(dst + p * to_step + 2 * i, words[0]);
            _mm512_storeu_si512(dst + p * to_step + 2 * i + 64, words[1]);
        }
    if (whole < size)
        kvc_join_rotated_vec(dst + 2 * whole, to_step, low + whole, high + whole, step,
                             bias + whole, n, size - whole, 0);
}

/* Words of 32 bits that the lanes of two groups of 32 values take, in each group the same `count`
 * again and again from word `first` on; a group has `words` of them. */
static inline __m512i group_words(int first, int count, int words) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i at = _mm512_and_si512(lane, _mm512_set1_epi32(count - 1));
    return _mm512_mask_add_epi32(_mm512_add_epi32(at, _mm512_set1_epi32(first)), 0xff00, at,
                                 _mm512_set1_epi32(first + words));
}

/* Unpacks 64 values at once, of a width that is a constant where this is inlined. Returns how many
 * are done. */
static inline __attribute__((always_inline)) size_t
unpack_pairs(uint8_t *values, const uint8_t *src, size_t n, int width) {
    const __m512i fours = group_words(0, 4, width), twos = group_words(width & 4, 2, width),
                  ones = group_words(width & 6, 1, width);
    const __m512i by_four = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4),
                  by_two = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
    const __m512i by_one = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
    size_t i = 0;
    for (; i + 64 <= n; i += 64, src += 8 * width) {
        const __m512i all = _mm512_maskz_loadu_epi32((__mmask16)((1 << 2 * width) - 1), src);
        __m512i v = _mm512_setzero_si512();
        if (width & 4)
            v = _mm512_and_si512(_mm512_srlv_epi64(_mm512_permutexvar_epi32(fours, all), by_four),
                                 _mm512_set1_epi8(15));
        if (width & 2) {
            const __m512i x = _mm512_srlv_epi64(_mm512_permutexvar_epi32(twos, all), by_two);
            v = _mm512_or_si512(v, _mm512_slli_epi16(_mm512_and_si512(x, _mm512_set1_epi8(3)),
                                                     (unsigned)width & 4));
        }
        if (width & 1) {
            const __m512i x = _mm512_srlv_epi32(_mm512_permutexvar_epi32(ones, all), by_one);
            v = _mm512_or_si512(v, _mm512_slli_epi16(_mm512_and_si512(x, _mm512_set1_epi8(1)),
                                                     (unsigned)width & 6));
        }
        _mm512_storeu_si512(values + i, v);
    }
    return i;
}

void kvc_unpack_bits_avx512(uint8_t *values, const uint8_t *src, size_t n, unsigned width) {
    size_t i = 0;
    switch (width) {
    case 1: i = unpack_pairs(values, src, n, 1); break;
    case 2: i = unpack_pairs(values, src, n, 2); break;
    case 3: i = unpack_pairs(values, src, n, 3); break;
    case 4: i = unpack_pairs(values, src, n, 4); break;
    case 5: i = unpack_pairs(values, src, n, 5); break;
    case 6: i = unpack_pairs(values, src, n, 6); break;
    case 7: i = unpack_pairs(values, src, n, 7); break;
    default: break;
    }
    kvc_unpack_bits_vec(values + i, src + KVC_PACKED(i, width), n - i, width);
}

#else
typedef int kvc_no_split_avx512; /* ISO C wants one declaration in a file */
#endif
