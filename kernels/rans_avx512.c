/* rans_avx512.c: AVX-512 twin of rans_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { VECTORS = KVC_RANS_LANES / 16, STEP_BYTES = 2 * KVC_RANS_LANES };

void kvc_rans_decode_avx512(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base, size_t n,
                            const uint32_t *table, unsigned bits) {
    if (r->lanes != KVC_RANS_LANES) {
        kvc_rans_decode_ref(r, symbols, base, n, table, bits);
        return;
    }
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1), ten = _mm512_set1_epi32(1023),
                  eleven = _mm512_set1_epi32(2047), start = _mm512_set1_epi32(1 << 16);
    const __m128i count = _mm_cvtsi32_si128((int)bits);
    const uint8_t *next = r->next;
    __m512i x[VECTORS];
    for (int v = 0; v < VECTORS; v++) x[v] = _mm512_loadu_si512(r->x + 16 * v);
    size_t i = 0;
    for (; i + KVC_RANS_LANES <= n && r->end - next >= STEP_BYTES; i += KVC_RANS_LANES)
        for (int v = 0; v < VECTORS; v++) {
            __m512i at = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(base + i + 16 * v)));
            __m512i slot = _mm512_i32gather_epi32(_mm512_add_epi32(at, _mm512_and_si512(x[v], mask)), table, 4);
            _mm256_storeu_si256((__m256i *)(void *)(symbols + i + 16 * v),
                                _mm512_cvtepi32_epi16(_mm512_and_si512(slot, ten)));
            x[v] = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(slot, 21), _mm512_srl_epi32(x[v], count)),
                                    _mm512_and_si512(_mm512_srli_epi32(slot, 10), eleven));
            __mmask16 take = _mm512_cmplt_epu32_mask(x[v], start);
            __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)next));
            words = _mm512_maskz_expand_epi32(take, words);
            x[v] = _mm512_mask_or_epi32(x[v], take, _mm512_slli_epi32(x[v], 16), words);
            next += 2 * __builtin_popcount(take);
        }
    r->next = next;
    for (int v = 0; v < VECTORS; v++) _mm512_storeu_si512(r->x + 16 * v, x[v]);
    if (i < n) kvc_rans_decode_ref(r, symbols + i, base + i, n - i, table, bits);
}

void kvc_rans_encode_avx512(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n,
                            const struct kvc_rans_symbol *table, unsigned bits) {
    const __m512i eleven = _mm512_set1_epi32(2047), total = _mm512_set1_epi32(1 << bits), one = _mm512_set1_epi32(1);
    const __m128i top = _mm_cvtsi32_si128((int)(32 - bits));
    size_t tail = r->lanes == KVC_RANS_LANES ? n % KVC_RANS_LANES : n;
    if (tail) kvc_rans_encode_ref(r, symbols + n - tail, tail, table, bits);
    uint8_t *next = r->next;
    __m512i x[VECTORS];
    for (int v = 0; v < VECTORS; v++) x[v] = _mm512_loadu_si512(r->x + 16 * v);
    for (size_t i = n - tail; i; i -= KVC_RANS_LANES)
        for (int v = VECTORS; v-- > 0;) {
            const uint16_t *s = symbols + i - KVC_RANS_LANES + 16 * v;
            __m512i at = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)s));
            __m512i reciprocal = _mm512_i32gather_epi32(at, &table->reciprocal, 8);
            __m512i packed = _mm512_i32gather_epi32(at, &table->packed, 8);
            __m512i frequency = _mm512_and_si512(packed, eleven);
            __m512i limit = _mm512_sub_epi32(_mm512_sll_epi32(frequency, top), one);
            __mmask16 give = _mm512_cmpgt_epu32_mask(x[v], limit);
            unsigned words = (unsigned)__builtin_popcount(give);
            next -= 2 * words;
            _mm256_mask_storeu_epi16(next, (__mmask16)((1u << words) - 1),
                                     _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(give, x[v])));
            x[v] = _mm512_mask_srli_epi32(x[v], give, x[v], 16);
            __m512i shift = _mm512_add_epi32(_mm512_and_si512(_mm512_srli_epi32(packed, 22), _mm512_set1_epi32(15)),
                                             _mm512_set1_epi32(31));
            __m512i y = _mm512_add_epi32(x[v], _mm512_srli_epi32(packed, 26));
            __m512i even = _mm512_srlv_epi64(_mm512_mul_epu32(y, reciprocal),
                                             _mm512_and_si512(shift, _mm512_set1_epi64(63)));
            __m512i odd = _mm512_srlv_epi64(
                _mm512_mul_epu32(_mm512_srli_epi64(y, 32), _mm512_srli_epi64(reciprocal, 32)),
                _mm512_srli_epi64(shift, 32));
            __m512i quotient = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
            __m512i first = _mm512_and_si512(_mm512_srli_epi32(packed, 11), eleven);
            x[v] = _mm512_add_epi32(_mm512_add_epi32(x[v], first),
                                    _mm512_mullo_epi32(quotient, _mm512_sub_epi32(total, frequency)));
        }
    r->next = next;
    for (int v = 0; v < VECTORS; v++) _mm512_storeu_si512(r->x + 16 * v, x[v]);
}

#else
typedef int kvc_no_rans_avx512; /* ISO C wants one declaration in a file */
#endif
