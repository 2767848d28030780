/* rans_avx512.c: AVX-512's twin of rans_encode, same bytes for every input. Not for decoding
 * (rans_decode_avx512.c). Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

struct encoding {
    const struct kvc_rans_symbol *table;
    __m512i field, total, shift, top; /* 11 bits of a row; 2^bits; 4 bits; 32 - bits */
};

static inline __m256i load_row(const struct encoding *e, uint16_t symbol) {
    return _mm256_broadcastq_epi64(
        _mm_loadl_epi64((const __m128i *)(const void *)(e->table + symbol)));
}

/* The rows of every other of eight symbols. A load that broadcasts needs no port of a shuffle;
 * blends have two. */
static inline __attribute__((always_inline)) __m256i load_four_rows(const struct encoding *e,
                                                                    const uint16_t *s) {
    __m256i low = _mm256_blend_epi32(load_row(e, s[0]), load_row(e, s[2]), 0x0c);
    return _mm256_blend_epi32(low, _mm256_blend_epi32(load_row(e, s[4]), load_row(e, s[6]), 0xc0),
                              0xf0);
}

static inline __attribute__((always_inline)) __m512i load_eight_rows(const struct encoding *e,
                                                                     const uint16_t *s) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_four_rows(e, s)),
                              load_four_rows(e, s + 8), 1);
}

/* The upper halves of 64-bit lanes: of `even` in even 32-bit lanes, of `odd` in odd ones. */
static inline __attribute__((always_inline)) __m512i upper_halves(__m512i even, __m512i odd) {
    return _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
}

/* Sixteen lanes by one symbol each; gives words below *next. Words are gathered in a register: a
 * compressing store is microcoded on some CPUs. The rows of even and of odd lanes are apart, a row
 * in 64 bits: a multiplication takes the lower halves of 64-bit lanes, which are the reciprocals. A
 * 64-bit product has room for 32 + shift bits below the quotient. */
static inline __attribute__((always_inline)) __m512i
encode_sixteen(__m512i x, const uint16_t *s, uint8_t **next, const struct encoding *e) {
    __m512i even = load_eight_rows(e, s), odd = load_eight_rows(e, s + 1),
            packed = upper_halves(even, odd);
    /* leaves nothing but the frequency */
    __mmask16 give = _mm512_cmpge_epu32_mask(x, _mm512_sllv_epi32(packed, e->top));
    const unsigned words = (unsigned)__builtin_popcount(give);
    __m256i out = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(give, x));
    *next -= 2 * words;
    _mm256_mask_storeu_epi16(*next, (__mmask16)((1u << words) - 1), out);
    x = _mm512_mask_srli_epi32(x, give, x, 16);
    __m512i y = _mm512_add_epi32(x, _mm512_srli_epi32(packed, 26));
    __m512i product = upper_halves(_mm512_mul_epu32(y, even),
                                   _mm512_mul_epu32(_mm512_srli_epi64(y, 32), odd));
    __m512i quotient = _mm512_srlv_epi32(product,
                                         _mm512_and_si512(_mm512_srli_epi32(packed, 22), e->shift));
    __m512i first = _mm512_and_si512(_mm512_srli_epi32(packed, 11), e->field);
    __m512i rest = _mm512_sub_epi32(e->total, _mm512_and_si512(packed, e->field));
    return _mm512_add_epi32(_mm512_add_epi32(x, first), _mm512_mullo_epi32(quotient, rest));
}

void kvc_rans_encode_avx512(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n,
                            const struct kvc_rans_symbol *table, unsigned bits) {
    const struct encoding k = {table, _mm512_set1_epi32(2047), _mm512_set1_epi32(1 << bits),
                               _mm512_set1_epi32(15), _mm512_set1_epi32((int)(32 - bits))};
    size_t tail = r->lanes == KVC_RANS_LANES ? n % KVC_RANS_LANES : n;
    if (tail) kvc_rans_encode_ref(r, symbols + n - tail, tail, table, bits);
    uint8_t *next = r->next;
    __m512i a = _mm512_loadu_si512(r->x), b = _mm512_loadu_si512(r->x + 16);
    for (size_t i = n - tail; i; i -= KVC_RANS_LANES) {
        b = encode_sixteen(b, symbols + i - 16, &next, &k);
        a = encode_sixteen(a, symbols + i - 32, &next, &k);
    }
    r->next = next;
    _mm512_storeu_si512(r->x, a);
    _mm512_storeu_si512(r->x + 16, b);
}

#else
typedef int kvc_no_rans_avx512; /* ISO C wants one declaration in a file */
#endif
