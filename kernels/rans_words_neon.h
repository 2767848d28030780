/* rans_words_neon.h: how eight lanes of rANS take and give words, and find their symbols, by NEON. For rans_vec.c alone. */
#ifndef KVC_RANS_WORDS_NEON_H
#define KVC_RANS_WORDS_NEON_H

#include "kernels/rans_state.h"
#include "kernels/vec.h"

/* For each mask of four lanes: bytes of as many words as it has bits. */
static const uint8_t taken[16] = {0, 2, 2, 4, 2, 4, 4, 6, 2, 4, 4, 6, 4, 6, 6, 8};

/* For each mask of four lanes: indices of bytes, as TBL takes them; an index beyond the source gives 0.
 * expand: the next words, each to a lane of the mask, in 32 bits. */
#define NONE_ 255, 255, 255, 255
#define WORD_(n) 2 * (n), 2 * (n) + 1, 255, 255
static const uint8_t expand[16][16] = {
    {NONE_, NONE_, NONE_, NONE_},          {WORD_(0), NONE_, NONE_, NONE_},
    {NONE_, WORD_(0), NONE_, NONE_},       {WORD_(0), WORD_(1), NONE_, NONE_},
    {NONE_, NONE_, WORD_(0), NONE_},       {WORD_(0), NONE_, WORD_(1), NONE_},
    {NONE_, WORD_(0), WORD_(1), NONE_},    {WORD_(0), WORD_(1), WORD_(2), NONE_},
    {NONE_, NONE_, NONE_, WORD_(0)},       {WORD_(0), NONE_, NONE_, WORD_(1)},
    {NONE_, WORD_(0), NONE_, WORD_(1)},    {WORD_(0), WORD_(1), NONE_, WORD_(2)},
    {NONE_, NONE_, WORD_(0), WORD_(1)},    {WORD_(0), NONE_, WORD_(1), WORD_(2)},
    {NONE_, WORD_(0), WORD_(1), WORD_(2)}, {WORD_(0), WORD_(1), WORD_(2), WORD_(3)},
};
/* compress: the low halves of the mask's lanes in ascending order, in the highest bytes: stored words end where the previous words
 * begin. */
#define FREE_ 255, 255
#define LANE_(l) 4 * (l), 4 * (l) + 1
static const uint8_t compress[16][8] = {
    {FREE_, FREE_, FREE_, FREE_},          {FREE_, FREE_, FREE_, LANE_(0)},
    {FREE_, FREE_, FREE_, LANE_(1)},       {FREE_, FREE_, LANE_(0), LANE_(1)},
    {FREE_, FREE_, FREE_, LANE_(2)},       {FREE_, FREE_, LANE_(0), LANE_(2)},
    {FREE_, FREE_, LANE_(1), LANE_(2)},    {FREE_, LANE_(0), LANE_(1), LANE_(2)},
    {FREE_, FREE_, FREE_, LANE_(3)},       {FREE_, FREE_, LANE_(0), LANE_(3)},
    {FREE_, FREE_, LANE_(1), LANE_(3)},    {FREE_, LANE_(0), LANE_(1), LANE_(3)},
    {FREE_, FREE_, LANE_(2), LANE_(3)},    {FREE_, LANE_(0), LANE_(2), LANE_(3)},
    {FREE_, LANE_(1), LANE_(2), LANE_(3)}, {LANE_(0), LANE_(1), LANE_(2), LANE_(3)},
};

static inline size_t bytes_of_words(unsigned mask) {
    return (size_t)taken[mask & 15] + taken[mask >> 4];
}

static inline uint32x4_t expand_four(const uint8_t *next, unsigned mask) {
    return (uint32x4_t)vqtbl1q_u8((uint8x16_t)load_64(next), vld1q_u8(expand[mask]));
}

/* Returns the words at `next` in the lanes of the mask. */
static inline bits256 expand_words(const uint8_t *next, unsigned mask) {
    return (bits256){expand_four(next, mask & 15), expand_four(next + taken[mask & 15], mask >> 4)};
}

static inline void compress_four(uint8_t *next, uint32x4_t x, unsigned mask) {
    vst1_u8(next - 8, vqtbl1_u8((uint8x16_t)x, vld1_u8(compress[mask])));
}

/* Puts the low halves of the mask's lanes, ascending, before `next`. */
static inline void compress_words(uint8_t *next, bits256 x, unsigned mask) {
    compress_four(next, x.b, mask >> 4);
    compress_four(next - taken[mask >> 4], x.a, mask & 15);
}

/* The rows of two symbols. */
static inline uint32x4_t load_two_symbols(const struct kvc_rans_symbol *table, const uint16_t *s) {
    return (uint32x4_t)zip_low_64(load_64(table + s[0]), load_64(table + s[1]));
}

static inline bits256 load_symbols(const struct kvc_rans_symbol *table, const uint16_t *s, bits256 *packed) {
    const uint32x4_t a = load_two_symbols(table, s), b = load_two_symbols(table, s + 2);
    const uint32x4_t c = load_two_symbols(table, s + 4), d = load_two_symbols(table, s + 6);
    *packed = (bits256){vuzp2q_u32(a, b), vuzp2q_u32(c, d)};
    return (bits256){vuzp1q_u32(a, b), vuzp1q_u32(c, d)};
}

#endif
