/* rans_avx2.c: AVX2 twin of rans_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include "kernels/lanes.h"
#include "kernels/rans_x86.h"

static const uint64_t expand[256] = {KVC_LANES_256(KVC_EXPAND_)};
static const uint64_t compress[256] = {KVC_LANES_256(KVC_COMPRESS_)};

static inline __m256i lane_order(uint64_t bytes) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
}

/* Eight lanes by one symbol each; takes words from *next on. Returns the symbols in 32-bit lanes. */
static inline __attribute__((always_inline)) __m256i decode_eight(__m256i *lanes, const uint16_t *base, const uint8_t **next,
                                                                  const struct decoding *d) {
    __m256i slot, x = next_states(*lanes, base, d, &slot);
    __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
    unsigned take = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)*next));
    words = _mm256_permutevar8x32_epi32(words, lane_order(expand[take]));
    *next += 2 * __builtin_popcount(take);
    *lanes = _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), words), low);
    return _mm256_and_si256(slot, d->symbol);
}

void kvc_rans_decode_avx2(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base, size_t n, const uint32_t *table,
                          unsigned bits) {
    const size_t i = decode_steps(r, symbols, base, n, table, bits);
    if (i < n) kvc_rans_decode_ref(r, symbols + i, base + i, n - i, table, bits);
}

static inline __m128i load_symbol(const struct kvc_rans_symbol *s) {
    return _mm_loadl_epi64((const __m128i *)(const void *)s);
}

/* The rows of four symbols: 0 and 1 in the low half, 4 and 5 in the high half. */
static inline __m256i load_symbols(const struct kvc_rans_symbol *table, const uint16_t *s) {
    __m128i low = _mm_unpacklo_epi64(load_symbol(table + s[0]), load_symbol(table + s[1]));
    __m128i high = _mm_unpacklo_epi64(load_symbol(table + s[4]), load_symbol(table + s[5]));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

static inline __attribute__((always_inline)) void load_eight_symbols(const struct kvc_rans_symbol *table, const uint16_t *s,
                                                                     __m256i *reciprocal, __m256i *packed) {
    __m256 a = _mm256_castsi256_ps(load_symbols(table, s)), b = _mm256_castsi256_ps(load_symbols(table, s + 2));
    *reciprocal = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
    *packed = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
}

/* States divided by frequencies. A 64-bit product has room for 32 + shift bits below the quotient; even and odd lanes are apart. */
static inline __attribute__((always_inline)) __m256i quotients(__m256i x, __m256i reciprocal, __m256i packed, __m256i four_bits) {
    __m256i shift = _mm256_and_si256(_mm256_srli_epi32(packed, 22), four_bits);
    __m256i y = _mm256_add_epi32(x, _mm256_srli_epi32(packed, 26));
    __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(y, reciprocal), 32);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(y, 32), _mm256_srli_epi64(reciprocal, 32));
    return _mm256_srlv_epi32(_mm256_blend_epi32(even, odd, 0xaa), shift);
}

struct encoding {
    const struct kvc_rans_symbol *table;
    __m256i field, total, one, shift; /* 11 bits of a row; 2^bits; 1; 4 bits */
    __m128i top;                      /* 32 - bits */
};

/* Eight lanes by one symbol each; gives words below *next. */
static inline __attribute__((always_inline)) __m256i encode_eight(__m256i x, const uint16_t *s, uint8_t **next,
                                                                  const struct encoding *e) {
    const __m256i pick = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 4, 5, 8, 9, 12, 13, -1,
                                          -1, -1, -1, -1, -1, -1, -1);
    __m256i reciprocal, packed;
    load_eight_symbols(e->table, s, &reciprocal, &packed);
    __m256i frequency = _mm256_and_si256(packed, e->field);
    __m256i limit = _mm256_sub_epi32(_mm256_sll_epi32(frequency, e->top), e->one);
    __m256i fits = _mm256_cmpeq_epi32(_mm256_max_epu32(x, limit), limit);
    unsigned give = ~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(fits)) & 0xff;
    __m256i out = _mm256_permutevar8x32_epi32(x, lane_order(compress[give]));
    out = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(out, pick), 0x08);
    _mm_storeu_si128((__m128i *)(void *)(*next - 16), _mm256_castsi256_si128(out));
    *next -= 2 * __builtin_popcount(give);
    x = _mm256_blendv_epi8(_mm256_srli_epi32(x, 16), x, fits);
    __m256i quotient = quotients(x, reciprocal, packed, e->shift);
    __m256i first = _mm256_and_si256(_mm256_srli_epi32(packed, 11), e->field);
    return _mm256_add_epi32(_mm256_add_epi32(x, first), _mm256_mullo_epi32(quotient, _mm256_sub_epi32(e->total, frequency)));
}

void kvc_rans_encode_avx2(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n, const struct kvc_rans_symbol *table,
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
typedef int kvc_no_rans_avx2; /* ISO C wants one declaration in a file */
#endif
