/* rans_words_avx2.h: how eight lanes of rANS take and give words, and find their symbols, by AVX2. For rans_vec.c alone. */
#ifndef KVC_RANS_WORDS_AVX2_H
#define KVC_RANS_WORDS_AVX2_H

#include "kernels/rans_state.h"
#include "kernels/vec.h"

/* Byte tables that move lanes by a mask of 8 bits. */
#define KVC_ONES_(m)                                                                                                 \
    (((m)&1) + ((m) >> 1 & 1) + ((m) >> 2 & 1) + ((m) >> 3 & 1) + ((m) >> 4 & 1) + ((m) >> 5 & 1) + ((m) >> 6 & 1) + \
     ((m) >> 7 & 1))
#define KVC_RANK_(m, l) ((uint64_t)KVC_ONES_((m) & ((1 << (l)) - 1)))
/* Byte l: the number of set lanes below l, which is the index of the word that lane l takes. */
#define KVC_EXPAND_(m)                                                                                                      \
    (KVC_RANK_(m, 1) << 8 | KVC_RANK_(m, 2) << 16 | KVC_RANK_(m, 3) << 24 | KVC_RANK_(m, 4) << 32 | KVC_RANK_(m, 5) << 40 | \
     KVC_RANK_(m, 6) << 48 | KVC_RANK_(m, 7) << 56)
/* The set lanes in ascending order in the highest bytes: stored words end where the previous words begin. */
#define KVC_PLACE_(m, l) ((uint64_t)((m) >> (l)&1) * (l) << (8 * (8 - KVC_ONES_(m) + (int)KVC_RANK_(m, l)) & 63))
#define KVC_COMPRESS_(m)                                                                                               \
    (KVC_PLACE_(m, 1) | KVC_PLACE_(m, 2) | KVC_PLACE_(m, 3) | KVC_PLACE_(m, 4) | KVC_PLACE_(m, 5) | KVC_PLACE_(m, 6) | \
     KVC_PLACE_(m, 7))

#define KVC_LANES_4_(f, m) f(m), f((m) + 1), f((m) + 2), f((m) + 3)
#define KVC_LANES_16_(f, m) KVC_LANES_4_(f, m), KVC_LANES_4_(f, (m) + 4), KVC_LANES_4_(f, (m) + 8), KVC_LANES_4_(f, (m) + 12)
#define KVC_LANES_64_(f, m) \
    KVC_LANES_16_(f, m), KVC_LANES_16_(f, (m) + 16), KVC_LANES_16_(f, (m) + 32), KVC_LANES_16_(f, (m) + 48)
#define KVC_LANES_256(f) KVC_LANES_64_(f, 0), KVC_LANES_64_(f, 64), KVC_LANES_64_(f, 128), KVC_LANES_64_(f, 192)

static const uint64_t expand[256] = {KVC_LANES_256(KVC_EXPAND_)};
static const uint64_t compress[256] = {KVC_LANES_256(KVC_COMPRESS_)};

static inline bits256 lane_order(uint64_t bytes) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
}

static inline size_t bytes_of_words(unsigned mask) {
    return 2 * (size_t)__builtin_popcount(mask);
}

/* Returns the words at `next` in the lanes of the mask. */
static inline bits256 expand_words(const uint8_t *next, unsigned mask) {
    return _mm256_permutevar8x32_epi32(widen_16_to_32(load_128(next)), lane_order(expand[mask]));
}

/* Puts the low halves of the mask's lanes, ascending, before `next`. */
static inline void compress_words(uint8_t *next, bits256 x, unsigned mask) {
    const __m256i pick = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 4, 5, 8, 9, 12, 13, -1,
                                          -1, -1, -1, -1, -1, -1, -1);
    const __m256i low = _mm256_shuffle_epi8(_mm256_permutevar8x32_epi32(x, lane_order(compress[mask])), pick);
    store_128(next - 16, _mm256_castsi256_si128(_mm256_permute4x64_epi64(low, 0x08)));
}

/* The rows of four symbols: 0 and 1 in the low half, 4 and 5 in the high half. */
static inline __m256 load_four_symbols(const struct kvc_rans_symbol *table, const uint16_t *s) {
    const __m128i low = _mm_unpacklo_epi64(load_64(table + s[0]), load_64(table + s[1]));
    const __m128i high = _mm_unpacklo_epi64(load_64(table + s[4]), load_64(table + s[5]));
    return _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
}

static inline bits256 load_symbols(const struct kvc_rans_symbol *table, const uint16_t *s, bits256 *packed) {
    const __m256 a = load_four_symbols(table, s), b = load_four_symbols(table, s + 2);
    *packed = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
    return _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
}

#endif
