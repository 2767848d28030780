/* rans_gather_avx512.c: AVX-512 twin of the decoder of rans_ref.c with gathers, for the table of CPUs with VNNI, most of which gather
 * fast; same bytes for every input. Sixteen lanes at once. Not compiled on other machines. For the encoder, and for CPUs that gather slowly: rans_avx512.c. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include "kernels/rans_state.h"

#include <immintrin.h>

enum { STEP_BYTES = 2 * KVC_RANS_LANES }; /* of words, at most, that a step of all lanes takes */

struct decoding {
    const uint32_t *table;
    __m512i mask, symbol, offset, bits; /* of a state, and of a slot's fields; log2 of the slots */
};

/* Returns sixteen states after one symbol each, before they take words; *take gets a bit for each that is to take one. */
static inline __attribute__((always_inline)) __m512i decode_sixteen(__m512i x, const uint16_t *base, uint16_t *symbols,
                                                                    __mmask16 *take, const struct decoding *d) {
    __m512i at = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)base));
    __m512i slot = _mm512_i32gather_epi32(_mm512_add_epi32(at, _mm512_and_si512(x, d->mask)), d->table, 4);
    _mm256_storeu_si256((__m256i *)(void *)symbols, _mm512_cvtepi32_epi16(_mm512_and_si512(slot, d->symbol)));
    x = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(slot, 21), _mm512_srlv_epi32(x, d->bits)),
                         _mm512_and_si512(_mm512_srli_epi32(slot, 10), d->offset));
    *take = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(1 << 16));
    return x;
}

/* The words of all lanes are loaded from `next` on, whichever lanes take them. */
static inline __attribute__((always_inline)) __m512i take_words(__m512i x, __mmask16 take, const uint8_t *next) {
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)next));
    return _mm512_mask_or_epi32(x, take, _mm512_slli_epi32(x, 16), _mm512_maskz_expand_epi32(take, words));
}

void kvc_rans_decode_avx512vnni(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base, size_t n,
                                const uint32_t *table, unsigned bits) {
    const struct decoding d = {table, _mm512_set1_epi32((1 << bits) - 1), _mm512_set1_epi32(1023), _mm512_set1_epi32(2047),
                               _mm512_set1_epi32((int)bits)};
    size_t i = 0;
    if (r->lanes == KVC_RANS_LANES) { /* the last words are left to the reference, as a step may read all that it could take */
        const uint8_t *next = r->next;
        __m512i a = _mm512_loadu_si512(r->x), b = _mm512_loadu_si512(r->x + 16);
        for (; i + KVC_RANS_LANES <= n && r->end - next >= STEP_BYTES; i += KVC_RANS_LANES) {
            __mmask16 low, high;
            a = decode_sixteen(a, base + i, symbols + i, &low, &d);
            b = decode_sixteen(b, base + i + 16, symbols + i + 16, &high, &d);
            const uint8_t *middle = next + 2 * __builtin_popcount(low);
            a = take_words(a, low, next);
            b = take_words(b, high, middle);
            next = middle + 2 * __builtin_popcount(high);
        }
        r->next = next;
        _mm512_storeu_si512(r->x, a);
        _mm512_storeu_si512(r->x + 16, b);
    }
    if (i < n) kvc_rans_decode_ref(r, symbols + i, base + i, n - i, table, bits);
}

#else
typedef int kvc_no_rans_gather_avx512; /* ISO C wants one declaration in a file */
#endif
