/* rans_neon.c: NEON twin of rans_ref.c, same bytes for every input. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__aarch64__)

#include <arm_neon.h>

enum { STEP_BYTES = 2 * KVC_RANS_LANES, VECTORS = KVC_RANS_LANES / 4 };

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

/* Bit l of the mask: all bits of lane l are set. Lanes 0 to 3 are those of a. */
static inline unsigned mask_of(uint32x4_t a, uint32x4_t b) {
    static const uint16_t bit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint16x8_t both = vcombine_u16(vmovn_u32(a), vmovn_u32(b));
    return vaddvq_u16(vandq_u16(both, vld1q_u16(bit)));
}

/* table[at[lane]] */
static inline uint32x4_t look_up(const uint32_t *table, uint32x4_t at) {
    const uint64x2_t pairs = vreinterpretq_u64_u32(at);
    const uint64_t low = vgetq_lane_u64(pairs, 0), high = vgetq_lane_u64(pairs, 1);
    uint32x4_t v = vdupq_n_u32(table[(uint32_t)low]);
    v = vld1q_lane_u32(table + (low >> 32), v, 1);
    v = vld1q_lane_u32(table + (uint32_t)high, v, 2);
    return vld1q_lane_u32(table + (high >> 32), v, 3);
}

struct decoding {
    const uint32_t *table;
    uint32x4_t mask, offset, start; /* of a state, and of a slot's field; 2^16 */
    uint16x8_t symbol;
    int32x4_t bits; /* to the right */
};

/* Returns the slots of four lanes and computes their states before words are taken. */
static inline uint32x4_t decode_four(uint32x4_t *x, uint16x4_t base, const struct decoding *d) {
    const uint32x4_t slot = look_up(d->table, vaddw_u16(vandq_u32(*x, d->mask), base));
    *x = vmlaq_u32(vandq_u32(vshrq_n_u32(slot, 10), d->offset), vshrq_n_u32(slot, 21), vshlq_u32(*x, d->bits));
    return slot;
}

/* Four lanes take words from `next` on, those of the mask. */
static inline uint32x4_t take_words(uint32x4_t x, uint32x4_t low, const uint8_t *next, unsigned mask) {
    const uint8x16_t words = vqtbl1q_u8(vcombine_u8(vld1_u8(next), vdup_n_u8(0)), vld1q_u8(expand[mask]));
    return vbslq_u32(low, vorrq_u32(vshlq_n_u32(x, 16), vreinterpretq_u32_u8(words)), x);
}

/* Eight lanes by one symbol each; takes words from *next on. */
static inline __attribute__((always_inline)) void decode_eight(uint32x4_t *a, uint32x4_t *b, uint16_t *symbols,
                                                               const uint16_t *base, const uint8_t **next,
                                                               const struct decoding *d) {
    const uint16x8_t at = vld1q_u16(base);
    const uint32x4_t first = decode_four(a, vget_low_u16(at), d), second = decode_four(b, vget_high_u16(at), d);
    vst1q_u16(symbols, vandq_u16(vcombine_u16(vmovn_u32(first), vmovn_u32(second)), d->symbol));
    const uint32x4_t low_a = vcltq_u32(*a, d->start), low_b = vcltq_u32(*b, d->start);
    const unsigned take = mask_of(low_a, low_b);
    *a = take_words(*a, low_a, *next, take & 15);
    *next += taken[take & 15];
    *b = take_words(*b, low_b, *next, take >> 4);
    *next += taken[take >> 4];
}

/* The loop over vectors is unrolled, so that they stay in registers. */
void kvc_rans_decode_neon(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base, size_t n, const uint32_t *table,
                          unsigned bits) {
    if (r->lanes != KVC_RANS_LANES) {
        kvc_rans_decode_ref(r, symbols, base, n, table, bits);
        return;
    }
    const struct decoding d = {table,
                               vdupq_n_u32((1u << bits) - 1),
                               vdupq_n_u32(2047),
                               vdupq_n_u32(KVC_RANS_START),
                               vdupq_n_u16(1023),
                               vdupq_n_s32(-(int32_t)bits)};
    const uint8_t *next = r->next;
    uint32x4_t x[VECTORS];
    size_t i = 0;
#pragma GCC unroll 8
    for (size_t v = 0; v < VECTORS; v++) x[v] = vld1q_u32(r->x + 4 * v);
    for (; i + KVC_RANS_LANES <= n && r->end - next >= STEP_BYTES; i += KVC_RANS_LANES) {
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v += 2) decode_eight(&x[v], &x[v + 1], symbols + i + 4 * v, base + i + 4 * v, &next, &d);
    }
    r->next = next;
#pragma GCC unroll 8
    for (size_t v = 0; v < VECTORS; v++) vst1q_u32(r->x + 4 * v, x[v]);
    if (i < n) kvc_rans_decode_ref(r, symbols + i, base + i, n - i, table, bits);
}

struct encoding {
    const struct kvc_rans_symbol *table;
    uint32x4_t field, total, one; /* 11 bits of a row; 2^bits; 1 */
    int32x4_t top;                /* 32 - bits */
};

/* A row: its reciprocal and then the rest. */
static inline uint32x2_t load_symbol(const struct kvc_rans_symbol *s) {
    return vld1_u32((const uint32_t *)(const void *)s);
}

/* Returns the bits of four lanes' rows that are not the reciprocal, and by *above which states are too large for their symbols. */
static inline uint32x4_t prepare_four(uint32x4_t *reciprocal, uint32x4_t *above, uint32x4_t x, const uint16_t *s,
                                      const struct encoding *e) {
    const uint32x4_t a = vcombine_u32(load_symbol(e->table + s[0]), load_symbol(e->table + s[1]));
    const uint32x4_t b = vcombine_u32(load_symbol(e->table + s[2]), load_symbol(e->table + s[3])), packed = vuzp2q_u32(a, b);
    const uint32x4_t limit = vsubq_u32(vshlq_u32(vandq_u32(packed, e->field), e->top), e->one);
    *reciprocal = vuzp1q_u32(a, b);
    *above = vcgtq_u32(x, limit);
    return packed;
}

/* Four lanes give words below *next, those of the mask. */
static inline uint32x4_t give_words(uint32x4_t x, uint32x4_t above, uint8_t **next, unsigned mask) {
    vst1_u8(*next - 8, vqtbl1_u8(vreinterpretq_u8_u32(x), vld1_u8(compress[mask])));
    *next -= taken[mask];
    return vbslq_u32(above, vshrq_n_u32(x, 16), x);
}

static inline uint32x4_t encode_four(uint32x4_t x, uint32x4_t reciprocal, uint32x4_t packed, const struct encoding *e) {
    /* a 64-bit product has room for 32 + shift bits below the quotient */
    const uint32x4_t shift = vandq_u32(vshrq_n_u32(packed, 22), vdupq_n_u32(15)), y = vaddq_u32(x, vshrq_n_u32(packed, 26));
    const uint64x2_t low = vmull_u32(vget_low_u32(y), vget_low_u32(reciprocal)), high = vmull_high_u32(y, reciprocal);
    uint32x4_t quotient = vcombine_u32(vshrn_n_u64(low, 32), vshrn_n_u64(high, 32));
    quotient = vshlq_u32(quotient, vnegq_s32(vreinterpretq_s32_u32(shift)));
    const uint32x4_t first = vandq_u32(vshrq_n_u32(packed, 11), e->field), frequency = vandq_u32(packed, e->field);
    return vmlaq_u32(vaddq_u32(x, first), quotient, vsubq_u32(e->total, frequency));
}

/* Eight lanes by one symbol each; gives words below *next. */
static inline __attribute__((always_inline)) void encode_eight(uint32x4_t *a, uint32x4_t *b, const uint16_t *s, uint8_t **next,
                                                               const struct encoding *e) {
    uint32x4_t reciprocal_a, reciprocal_b, above_a, above_b;
    const uint32x4_t packed_a = prepare_four(&reciprocal_a, &above_a, *a, s, e);
    const uint32x4_t packed_b = prepare_four(&reciprocal_b, &above_b, *b, s + 4, e);
    const unsigned give = mask_of(above_a, above_b);
    *b = encode_four(give_words(*b, above_b, next, give >> 4), reciprocal_b, packed_b, e);
    *a = encode_four(give_words(*a, above_a, next, give & 15), reciprocal_a, packed_a, e);
}

void kvc_rans_encode_neon(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n, const struct kvc_rans_symbol *table,
                          unsigned bits) {
    const struct encoding k = {table, vdupq_n_u32(2047), vdupq_n_u32(1u << bits), vdupq_n_u32(1),
                               vdupq_n_s32(32 - (int32_t)bits)};
    const size_t tail = r->lanes == KVC_RANS_LANES ? n % KVC_RANS_LANES : n;
    if (tail) kvc_rans_encode_ref(r, symbols + n - tail, tail, table, bits);
    uint8_t *next = r->next;
    uint32x4_t x[VECTORS];
#pragma GCC unroll 8
    for (size_t v = 0; v < VECTORS; v++) x[v] = vld1q_u32(r->x + 4 * v);
    for (size_t i = n - tail; i; i -= KVC_RANS_LANES) {
#pragma GCC unroll 4
        for (size_t v = VECTORS; v; v -= 2)
            encode_eight(&x[v - 2], &x[v - 1], symbols + i - KVC_RANS_LANES + 4 * (v - 2), &next, &k);
    }
    r->next = next;
#pragma GCC unroll 8
    for (size_t v = 0; v < VECTORS; v++) vst1q_u32(r->x + 4 * v, x[v]);
}

#else
typedef int kvc_no_rans_neon; /* ISO C wants one declaration in a file */
#endif
