/* rans_avx2.c: AVX2 twin of rans_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include "kernels/lanes.h"

#include <immintrin.h>

enum { VECTORS = KVC_RANS_LANES / 8, STEP_BYTES = 2 * KVC_RANS_LANES };

static const uint64_t expand[256] = {KVC_LANES_256(KVC_EXPAND_)};
static const uint64_t compress[256] = {KVC_LANES_256(KVC_COMPRESS_)};

static __m256i lane_order(uint64_t bytes) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
}

/* table[at[lane]]. Eight loads are no slower than vpgatherdd where that is microcoded: on AMD, and on Intel since the
 * mitigation of gather data sampling. */
static __m256i look_up(const uint32_t *table, __m256i at) {
    __m128i low = _mm256_castsi256_si128(at), high = _mm256_extracti128_si256(at, 1);
    uint64_t a = (uint64_t)_mm_cvtsi128_si64(low), b = (uint64_t)_mm_extract_epi64(low, 1);
    uint64_t c = (uint64_t)_mm_cvtsi128_si64(high), d = (uint64_t)_mm_extract_epi64(high, 1);
    low = _mm_insert_epi32(_mm_cvtsi32_si128((int)table[(uint32_t)a]), (int)table[a >> 32], 1);
    low = _mm_insert_epi32(_mm_insert_epi32(low, (int)table[(uint32_t)b], 2), (int)table[b >> 32], 3);
    high = _mm_insert_epi32(_mm_cvtsi32_si128((int)table[(uint32_t)c]), (int)table[c >> 32], 1);
    high = _mm_insert_epi32(_mm_insert_epi32(high, (int)table[(uint32_t)d], 2), (int)table[d >> 32], 3);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

static __m128i load_symbol(const struct kvc_rans_symbol *s) {
    return _mm_loadl_epi64((const __m128i *)(const void *)s);
}

/* The rows of four symbols: 0 and 1 in the low half, 4 and 5 in the high half. */
static __m256i load_symbols(const struct kvc_rans_symbol *table, const uint16_t *s) {
    __m128i low = _mm_unpacklo_epi64(load_symbol(table + s[0]), load_symbol(table + s[1]));
    __m128i high = _mm_unpacklo_epi64(load_symbol(table + s[4]), load_symbol(table + s[5]));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

void kvc_rans_decode_avx2(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base, size_t n,
                          const uint32_t *table, unsigned bits) {
    if (r->lanes != KVC_RANS_LANES) {
        kvc_rans_decode_ref(r, symbols, base, n, table, bits);
        return;
    }
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1), ten = _mm256_set1_epi32(1023),
                  eleven = _mm256_set1_epi32(2047);
    const __m128i count = _mm_cvtsi32_si128((int)bits);
    const uint8_t *next = r->next;
    __m256i x[VECTORS];
    for (int v = 0; v < VECTORS; v++) x[v] = _mm256_loadu_si256((const __m256i *)(const void *)(r->x + 8 * v));
    size_t i = 0;
    for (; i + KVC_RANS_LANES <= n && r->end - next >= STEP_BYTES; i += KVC_RANS_LANES) {
        __m256i symbol[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            __m256i at = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(base + i + 8 * v)));
            __m256i slot = look_up(table, _mm256_add_epi32(at, _mm256_and_si256(x[v], mask)));
            symbol[v] = _mm256_and_si256(slot, ten);
            x[v] = _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(slot, 21), _mm256_srl_epi32(x[v], count)),
                                    _mm256_and_si256(_mm256_srli_epi32(slot, 10), eleven));
            __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(x[v], 16), _mm256_setzero_si256());
            unsigned take = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
            __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)next));
            words = _mm256_permutevar8x32_epi32(words, lane_order(expand[take]));
            __m256i more = _mm256_or_si256(_mm256_slli_epi32(x[v], 16), words);
            x[v] = _mm256_blendv_epi8(x[v], more, low);
            next += 2 * __builtin_popcount(take);
        }
        for (int v = 0; v < VECTORS; v += 2) {
            __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(symbol[v], symbol[v + 1]), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(symbols + i + 8 * v), both);
        }
    }
    r->next = next;
    for (int v = 0; v < VECTORS; v++) _mm256_storeu_si256((__m256i *)(void *)(r->x + 8 * v), x[v]);
    if (i < n) kvc_rans_decode_ref(r, symbols + i, base + i, n - i, table, bits);
}

void kvc_rans_encode_avx2(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n,
                          const struct kvc_rans_symbol *table, unsigned bits) {
    const __m256i eleven = _mm256_set1_epi32(2047), total = _mm256_set1_epi32(1 << bits), one = _mm256_set1_epi32(1);
    const __m128i top = _mm_cvtsi32_si128((int)(32 - bits));
    const __m256i pick = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 4, 5, 8, 9,
                                          12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    size_t tail = r->lanes == KVC_RANS_LANES ? n % KVC_RANS_LANES : n;
    if (tail) kvc_rans_encode_ref(r, symbols + n - tail, tail, table, bits);
    uint8_t *next = r->next;
    __m256i x[VECTORS];
    for (int v = 0; v < VECTORS; v++) x[v] = _mm256_loadu_si256((const __m256i *)(const void *)(r->x + 8 * v));
    for (size_t i = n - tail; i; i -= KVC_RANS_LANES)
        for (int v = VECTORS; v-- > 0;) {
            const uint16_t *s = symbols + i - KVC_RANS_LANES + 8 * v;
            __m256 a = _mm256_castsi256_ps(load_symbols(table, s)), b = _mm256_castsi256_ps(load_symbols(table, s + 2));
            __m256i reciprocal = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
            __m256i packed = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
            __m256i frequency = _mm256_and_si256(packed, eleven);
            __m256i limit = _mm256_sub_epi32(_mm256_sll_epi32(frequency, top), one);
            __m256i fits = _mm256_cmpeq_epi32(_mm256_max_epu32(x[v], limit), limit);
            unsigned give = ~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(fits)) & 0xff;
            __m256i out = _mm256_permutevar8x32_epi32(x[v], lane_order(compress[give]));
            out = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(out, pick), 0x08);
            _mm_storeu_si128((__m128i *)(void *)(next - 16), _mm256_castsi256_si128(out));
            next -= 2 * __builtin_popcount(give);
            x[v] = _mm256_blendv_epi8(_mm256_srli_epi32(x[v], 16), x[v], fits);
            __m256i shift = _mm256_add_epi32(_mm256_and_si256(_mm256_srli_epi32(packed, 22), _mm256_set1_epi32(15)),
                                             _mm256_set1_epi32(31));
            __m256i y = _mm256_add_epi32(x[v], _mm256_srli_epi32(packed, 26));
            __m256i even = _mm256_srlv_epi64(_mm256_mul_epu32(y, reciprocal),
                                             _mm256_and_si256(shift, _mm256_set1_epi64x(63)));
            __m256i odd = _mm256_srlv_epi64(
                _mm256_mul_epu32(_mm256_srli_epi64(y, 32), _mm256_srli_epi64(reciprocal, 32)),
                _mm256_srli_epi64(shift, 32));
            __m256i quotient = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
            __m256i first = _mm256_and_si256(_mm256_srli_epi32(packed, 11), eleven);
            x[v] = _mm256_add_epi32(_mm256_add_epi32(x[v], first),
                                    _mm256_mullo_epi32(quotient, _mm256_sub_epi32(total, frequency)));
        }
    r->next = next;
    for (int v = 0; v < VECTORS; v++) _mm256_storeu_si256((__m256i *)(void *)(r->x + 8 * v), x[v]);
}

#else
typedef int kvc_no_rans_avx2; /* ISO C wants one declaration in a file */
#endif
