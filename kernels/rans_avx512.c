/* rans_avx512.c: AVX-512 twin of rans_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { STEP_BYTES = 2 * KVC_RANS_LANES };

struct decoding {
    const uint32_t *table;
    __m512i mask, symbol, offset, start; /* of a state, of a slot's fields; 2^16 */
    __m128i bits;
};

/* Without optimisation GCC makes the gathers macros, in which a mask of 16 ones becomes a signed short. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

/* The 32-bit words at base + 4 at, base + 8 at. */
static inline __attribute__((always_inline)) __m512i gather4(__m512i at, const void *base) {
    return _mm512_i32gather_epi32(at, base, 4);
}
static inline __attribute__((always_inline)) __m512i gather8(__m512i at, const void *base) {
    return _mm512_i32gather_epi32(at, base, 8);
}
#pragma GCC diagnostic pop

/* Sixteen lanes by one symbol each; takes words from *next on. */
static inline __attribute__((always_inline)) __m512i decode_sixteen(__m512i x, uint16_t *symbols, const uint16_t *base,
                                                                    const uint8_t **next, const struct decoding *d) {
    __m512i at = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)base));
    __m512i slot = gather4(_mm512_add_epi32(at, _mm512_and_si512(x, d->mask)), d->table);
    __m256i symbol = _mm512_cvtepi32_epi16(_mm512_and_si512(slot, d->symbol));
    _mm256_storeu_si256((__m256i *)(void *)symbols, symbol);
    x = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(slot, 21), _mm512_srl_epi32(x, d->bits)),
                         _mm512_and_si512(_mm512_srli_epi32(slot, 10), d->offset));
    __mmask16 take = _mm512_cmplt_epu32_mask(x, d->start);
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)*next));
    *next += 2 * __builtin_popcount(take);
    return _mm512_mask_or_epi32(x, take, _mm512_slli_epi32(x, 16), _mm512_maskz_expand_epi32(take, words));
}

void kvc_rans_decode_avx512(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base, size_t n, const uint32_t *table,
                            unsigned bits) {
    if (r->lanes != KVC_RANS_LANES) {
        kvc_rans_decode_ref(r, symbols, base, n, table, bits);
        return;
    }
    const struct decoding d = {table,
                               _mm512_set1_epi32((1 << bits) - 1),
                               _mm512_set1_epi32(1023),
                               _mm512_set1_epi32(2047),
                               _mm512_set1_epi32(1 << 16),
                               _mm_cvtsi32_si128((int)bits)};
    const uint8_t *next = r->next;
    __m512i a = _mm512_loadu_si512(r->x), b = _mm512_loadu_si512(r->x + 16);
    size_t i = 0;
    for (; i + KVC_RANS_LANES <= n && r->end - next >= STEP_BYTES; i += KVC_RANS_LANES) {
        a = decode_sixteen(a, symbols + i, base + i, &next, &d);
        b = decode_sixteen(b, symbols + i + 16, base + i + 16, &next, &d);
    }
    r->next = next;
    _mm512_storeu_si512(r->x, a), _mm512_storeu_si512(r->x + 16, b);
    if (i < n) kvc_rans_decode_ref(r, symbols + i, base + i, n - i, table, bits);
}

struct encoding {
    const struct kvc_rans_symbol *table;
    __m512i field, total, one, shift; /* 11 bits of a row; 2^bits; 1; 4 bits */
    __m128i top;                      /* 32 - bits */
};

/* Sixteen lanes by one symbol each; gives words below *next. */
static inline __attribute__((always_inline)) __m512i encode_sixteen(__m512i x, const uint16_t *s, uint8_t **next,
                                                                    const struct encoding *e) {
    __m512i at = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)s));
    __m512i reciprocal = gather8(at, &e->table->reciprocal);
    __m512i packed = gather8(at, &e->table->packed);
    __m512i frequency = _mm512_and_si512(packed, e->field);
    __m512i limit = _mm512_sub_epi32(_mm512_sll_epi32(frequency, e->top), e->one);
    __mmask16 give = _mm512_cmpgt_epu32_mask(x, limit);
    unsigned words = (unsigned)__builtin_popcount(give);
    *next -= 2 * words;
    _mm256_mask_storeu_epi16(*next, (__mmask16)((1u << words) - 1), _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(give, x)));
    x = _mm512_mask_srli_epi32(x, give, x, 16);
    /* a 64-bit product has room for 31 + shift bits below the quotient; even and odd lanes apart */
    __m512i shift = _mm512_and_si512(_mm512_srli_epi32(packed, 22), e->shift);
    __m512i y = _mm512_add_epi32(x, _mm512_srli_epi32(packed, 26));
    __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(y, reciprocal), 31);
    __m512i odd = _mm512_srli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(y, 32), _mm512_srli_epi64(reciprocal, 32)), 31);
    __m512i quotient = _mm512_srlv_epi32(_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)), shift);
    __m512i first = _mm512_and_si512(_mm512_srli_epi32(packed, 11), e->field);
    return _mm512_add_epi32(_mm512_add_epi32(x, first), _mm512_mullo_epi32(quotient, _mm512_sub_epi32(e->total, frequency)));
}

void kvc_rans_encode_avx512(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n, const struct kvc_rans_symbol *table,
                            unsigned bits) {
    const struct encoding k = {table,
                               _mm512_set1_epi32(2047),
                               _mm512_set1_epi32(1 << bits),
                               _mm512_set1_epi32(1),
                               _mm512_set1_epi32(15),
                               _mm_cvtsi32_si128((int)(32 - bits))};
    size_t tail = r->lanes == KVC_RANS_LANES ? n % KVC_RANS_LANES : n;
    if (tail) kvc_rans_encode_ref(r, symbols + n - tail, tail, table, bits);
    uint8_t *next = r->next;
    __m512i a = _mm512_loadu_si512(r->x), b = _mm512_loadu_si512(r->x + 16);
    for (size_t i = n - tail; i; i -= KVC_RANS_LANES) {
        b = encode_sixteen(b, symbols + i - 16, &next, &k);
        a = encode_sixteen(a, symbols + i - 32, &next, &k);
    }
    r->next = next;
    _mm512_storeu_si512(r->x, a), _mm512_storeu_si512(r->x + 16, b);
}

#else
typedef int kvc_no_rans_avx512; /* ISO C wants one declaration in a file */
#endif
