/* rans_avx512.c: AVX-512 twin of rans_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include "kernels/rans_x86.h"

/* Eight lanes by one symbol each; takes words from *next on. Returns the symbols in 32-bit lanes. */
static inline __attribute__((always_inline)) __m256i decode_eight(__m256i *lanes, const uint16_t *base, const uint8_t **next,
                                                                  const struct decoding *d) {
    __m256i slot, x = next_states(*lanes, base, d, &slot);
    __mmask8 take = _mm256_cmplt_epu32_mask(x, _mm256_set1_epi32(1 << 16));
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)*next));
    *next += 2 * __builtin_popcount(take);
    *lanes = _mm256_mask_or_epi32(x, take, _mm256_slli_epi32(x, 16), _mm256_maskz_expand_epi32(take, words));
    return _mm256_and_si256(slot, d->symbol);
}

void kvc_rans_decode_avx512(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base, size_t n, const uint32_t *table,
                            unsigned bits) {
    const size_t i = decode_steps(r, symbols, base, n, table, bits);
    if (i < n) kvc_rans_decode_ref(r, symbols + i, base + i, n - i, table, bits);
}

struct encoding {
    const struct kvc_rans_symbol *table;
    __m256i field, total, one, shift; /* 11 bits of a row; 2^bits; 1; 4 bits */
    __m128i top;                      /* 32 - bits */
};

/* Eight lanes by one symbol each; gives words below *next. Words are gathered in a register: a compressing store is microcoded on some
 * CPUs. */
static inline __attribute__((always_inline)) __m256i encode_eight(__m256i x, const uint16_t *s, uint8_t **next,
                                                                  const struct encoding *e) {
    __m256i reciprocal, packed;
    load_eight_symbols(e->table, s, &reciprocal, &packed);
    __m256i frequency = _mm256_and_si256(packed, e->field);
    __m256i limit = _mm256_sub_epi32(_mm256_sll_epi32(frequency, e->top), e->one);
    __mmask8 give = _mm256_cmpgt_epu32_mask(x, limit);
    unsigned words = (unsigned)__builtin_popcount(give);
    __m128i out = _mm256_cvtepi32_epi16(_mm256_maskz_compress_epi32(give, x));
    *next -= 2 * words;
    _mm_mask_storeu_epi16(*next, (__mmask8)((1u << words) - 1), out);
    x = _mm256_mask_srli_epi32(x, give, x, 16);
    __m256i quotient = quotients(x, reciprocal, packed, e->shift);
    __m256i first = _mm256_and_si256(_mm256_srli_epi32(packed, 11), e->field);
    return _mm256_add_epi32(_mm256_add_epi32(x, first), _mm256_mullo_epi32(quotient, _mm256_sub_epi32(e->total, frequency)));
}

void kvc_rans_encode_avx512(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n, const struct kvc_rans_symbol *table,
                            unsigned bits) {
    const struct encoding k = {table,
                               _mm256_set1_epi32(2047),
                               _mm256_set1_epi32(1 << bits),
                               _mm256_set1_epi32(1),
                               _mm256_set1_epi32(15),
                               _mm_cvtsi32_si128((int)(32 - bits))};
    size_t tail = r->lanes == KVC_RANS_LANES ? n % KVC_RANS_LANES : n;
    if (tail) kvc_rans_encode_ref(r, symbols + n - tail, tail, table, bits);
    uint8_t *next = r->next;
    __m256i a = load_lanes(r->x), b = load_lanes(r->x + 8), c = load_lanes(r->x + 16), e = load_lanes(r->x + 24);
    for (size_t i = n - tail; i; i -= KVC_RANS_LANES) {
        e = encode_eight(e, symbols + i - 8, &next, &k);
        c = encode_eight(c, symbols + i - 16, &next, &k);
        b = encode_eight(b, symbols + i - 24, &next, &k);
        a = encode_eight(a, symbols + i - 32, &next, &k);
    }
    r->next = next;
    store_lanes(r->x, a), store_lanes(r->x + 8, b), store_lanes(r->x + 16, c), store_lanes(r->x + 24, e);
}

#else
typedef int kvc_no_rans_avx512; /* ISO C wants one declaration in a file */
#endif
