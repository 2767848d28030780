/* rans_x86.h: what the rANS decoders of AVX2 and of AVX-512 share: all but how lanes take their words; the lanes of a coder. Included by
 * their files, which define decode_eight(). Not for encoders. */
#ifndef KVC_RANS_X86_H
#define KVC_RANS_X86_H

#include "kernels/rans_state.h"

#include <immintrin.h>
#include <string.h>

enum { STEP_BYTES = 2 * KVC_RANS_LANES }; /* of words, at most, that a step of all lanes takes */

static inline __m256i load_lanes(const uint32_t *x) {
    return _mm256_loadu_si256((const __m256i *)(const void *)x);
}

static inline void store_lanes(uint32_t *x, __m256i v) {
    _mm256_storeu_si256((__m256i *)(void *)x, v);
}

static inline void store_symbols(uint16_t *symbols, __m256i a, __m256i b) {
    __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)symbols, both);
}

/* table[at[lane]]. Eight loads are no slower than vpgatherdd where that is microcoded: on AMD, and on Intel since the
 * mitigation of gather data sampling. */
static inline __m256i look_up(const uint32_t *table, __m256i at) {
    __m128i low = _mm256_castsi256_si128(at), high = _mm256_extracti128_si256(at, 1);
    uint64_t a = (uint64_t)_mm_cvtsi128_si64(low), b = (uint64_t)_mm_extract_epi64(low, 1);
    uint64_t c = (uint64_t)_mm_cvtsi128_si64(high), d = (uint64_t)_mm_extract_epi64(high, 1);
    low = _mm_insert_epi32(_mm_cvtsi32_si128((int)table[(uint32_t)a]), (int)table[a >> 32], 1);
    low = _mm_insert_epi32(_mm_insert_epi32(low, (int)table[(uint32_t)b], 2), (int)table[b >> 32], 3);
    high = _mm_insert_epi32(_mm_cvtsi32_si128((int)table[(uint32_t)c]), (int)table[c >> 32], 1);
    high = _mm_insert_epi32(_mm_insert_epi32(high, (int)table[(uint32_t)d], 2), (int)table[d >> 32], 3);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

struct decoding {
    const uint32_t *table;
    __m256i mask, symbol, offset; /* of a state, and of a slot's fields */
    __m128i bits;
};

/* Returns eight states after one symbol each, before they take words. */
static inline __attribute__((always_inline)) __m256i next_states(__m256i x, const uint16_t *base, const struct decoding *d,
                                                                 __m256i *slot) {
    __m256i at = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)base));
    *slot = look_up(d->table, _mm256_add_epi32(at, _mm256_and_si256(x, d->mask)));
    return _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(*slot, 21), _mm256_srl_epi32(x, d->bits)),
                            _mm256_and_si256(_mm256_srli_epi32(*slot, 10), d->offset));
}

static inline __attribute__((always_inline)) __m256i decode_eight(__m256i *lanes, const uint16_t *base, const uint8_t **next,
                                                                  const struct decoding *d);

/* Decodes symbols, as many as are whole steps of all lanes, unless words are missing; returns their number. The last words are copied to
 * where zeros follow them, which a step may read. The four vectors are written out, not looped over, so that they stay in registers. */
static inline __attribute__((always_inline)) size_t decode_steps(struct kvc_rans_decoder *r, uint16_t *symbols,
                                                                 const uint16_t *base, size_t n, const uint32_t *table,
                                                                 unsigned bits) {
    const struct decoding d = {table, _mm256_set1_epi32((1 << bits) - 1), _mm256_set1_epi32(1023), _mm256_set1_epi32(2047),
                               _mm_cvtsi32_si128((int)bits)};
    const uint8_t *next = r->next, *end = r->end, *from = next; /* from: of what is copied */
    uint8_t copy[2 * STEP_BYTES];
    size_t i = 0, copied = 0;
    if (r->lanes != KVC_RANS_LANES || n < KVC_RANS_LANES) return 0;
    __m256i a = load_lanes(r->x), b = load_lanes(r->x + 8), c = load_lanes(r->x + 16), e = load_lanes(r->x + 24);
    for (;;) {
        for (; i + KVC_RANS_LANES <= n && end - next >= STEP_BYTES; i += KVC_RANS_LANES) {
            __m256i first = decode_eight(&a, base + i, &next, &d), second = decode_eight(&b, base + i + 8, &next, &d);
            store_symbols(symbols + i, first, second);
            first = decode_eight(&c, base + i + 16, &next, &d), second = decode_eight(&e, base + i + 24, &next, &d);
            store_symbols(symbols + i + 16, first, second);
        }
        if (end != r->end || i + KVC_RANS_LANES > n) break;
        from = next;
        copied = (size_t)(end - next) / 2 * 2;
        memset(copy, 0, sizeof copy);
        memcpy(copy, from, copied);
        next = copy;
        end = copy + copied + STEP_BYTES;
    }
    if (end != r->end) {
        const size_t taken = (size_t)(next - copy), there = taken < copied ? taken : copied;
        r->missing += (taken - there) / 2;
        next = from + there;
    }
    r->next = next;
    store_lanes(r->x, a), store_lanes(r->x + 8, b), store_lanes(r->x + 16, c), store_lanes(r->x + 24, e);
    return i;
}

#endif
