/* rans_vec.c: vector twins of rans_ref.c, same bytes for every input. */
#include "kernels/twins.h"

#if defined(KVC_VECTORS)

#include "kernels/vec.h"

/* For each mask of eight lanes two orders of 16-bit words, as permute_128_8 takes them, from macros
 * of the mask m and a lane l. */
/* clang-format off */
#define ONES_(m) \
    (((m)&1) + ((m)>>1&1) + ((m)>>2&1) + ((m)>>3&1) + ((m)>>4&1) + ((m)>>5&1) + ((m)>>6&1) + ((m)>>7&1))
#define RANK_(m, l) ONES_((m) & ((1 << (l)) - 1)) /* set lanes below l */
#define WORD_(n, to) ((uint64_t)(2 * (n) | (2 * (n) + 1) << 8) << (to) % 4 * 16)
/* The next words, each to a lane of the mask: four lanes, l and up. */
#define EXPAND_(m, l) \
    (WORD_(RANK_(m, l), 0) | WORD_(RANK_(m, l + 1), 1) | WORD_(RANK_(m, l + 2), 2) | WORD_(RANK_(m, l + 3), 3))
/* The set lanes in ascending order in the highest words: stored words end where the previous words begin. half: 0, 1. */
#define PLACE_(m, l) (8 - ONES_(m) + RANK_(m, l))
#define GIVE_(m, l, half) ((m) >> (l) & 1 && PLACE_(m, l) / 4 == (half) ? WORD_(l, PLACE_(m, l)) : 0)
#define COMPRESS_(m, half) \
    (GIVE_(m, 0, half) | GIVE_(m, 1, half) | GIVE_(m, 2, half) | GIVE_(m, 3, half) | \
     GIVE_(m, 4, half) | GIVE_(m, 5, half) | GIVE_(m, 6, half) | GIVE_(m, 7, half))
#define EXPAND_BOTH_(m) {EXPAND_(m, 0), EXPAND_(m, 4)}
#define COMPRESS_BOTH_(m) {COMPRESS_(m, 0), COMPRESS_(m, 1)}
#define MASKS_4_(f, m) f(m), f((m) + 1), f((m) + 2), f((m) + 3)
#define MASKS_16_(f, m) MASKS_4_(f, m), MASKS_4_(f, (m) + 4), MASKS_4_(f, (m) + 8), MASKS_4_(f, (m) + 12)
#define MASKS_64_(f, m) MASKS_16_(f, m), MASKS_16_(f, (m) + 16), MASKS_16_(f, (m) + 32), MASKS_16_(f, (m) + 48)
#define MASKS_(f) {MASKS_64_(f, 0), MASKS_64_(f, 64), MASKS_64_(f, 128), MASKS_64_(f, 192)}
/* clang-format on */
static const uint64_t expand[256][2] = MASKS_(EXPAND_BOTH_),
                      compress[256][2] = MASKS_(COMPRESS_BOTH_);

enum { STEP_BYTES = 2 * KVC_RANS_LANES }; /* of words, at most, that a step of all lanes takes */

struct decoding {
    const uint32_t *table;
    bits256 mask, symbol, offset; /* of a state, and of a slot's fields */
    unsigned bits;
};

/* Returns eight states after one symbol each, before they take words. */
static inline __attribute__((always_inline)) bits256
next_states(bits256 x, const uint16_t *base, const struct decoding *d, bits256 *slot) {
    *slot = look_up_32(d->table, add_32(widen_16_to_32(load_128(base)), and_256(x, d->mask)));
    return add_32(multiply_32(right_32(*slot, 21), right_32(x, d->bits)),
                  and_256(right_32(*slot, 10), d->offset));
}

/* Eight lanes by one symbol each; takes words from *next on. Returns the symbols in 32-bit lanes.
 */
static inline __attribute__((always_inline)) bits256
decode_eight(bits256 *lanes, const uint16_t *base, const uint8_t **next, const struct decoding *d) {
    bits256 slot;
    const bits256 x = next_states(*lanes, base, d, &slot),
                  low = less_or_equal_u32(x, set_32(KVC_RANS_START - 1));
    const unsigned take = mask_32(low);
    const bits256 words = widen_16_to_32(permute_128_8(load_128(*next), load_128(expand[take])));
    *lanes = select_256(low, or_256(left_32(x, 16), words), x);
    *next += 2 * __builtin_popcount(take);
    return and_256(slot, d->symbol);
}

/* Decodes symbols, as many as are whole steps of all lanes, unless words are missing; returns their
 * number. The last words are copied to where zeros follow them, which a step may read. The four
 * vectors are written out, not looped over, so that they stay in registers. */
static size_t decode_steps(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base,
                           size_t n, const uint32_t *table, unsigned bits) {
    const struct decoding d = {table, set_32((1u << bits) - 1), set_32(1023), set_32(2047), bits};
    const uint8_t *next = r->next, *end = r->end, *from = next; /* from: of what is copied */
    uint8_t copy[2 * STEP_BYTES];
    size_t i = 0, copied = 0;
    if (r->lanes != KVC_RANS_LANES || n < KVC_RANS_LANES) return 0;
    bits256 a = load_256(r->x), b = load_256(r->x + 8), c = load_256(r->x + 16),
            e = load_256(r->x + 24);
    for (;;) {
        for (; i + KVC_RANS_LANES <= n && end - next >= STEP_BYTES; i += KVC_RANS_LANES) {
            bits256 low = decode_eight(&a, base + i, &next, &d),
                    high = decode_eight(&b, base + i + 8, &next, &d);
            store_256(symbols + i, narrow_32_to_16(low, high));
            low = decode_eight(&c, base + i + 16, &next, &d),
            high = decode_eight(&e, base + i + 24, &next, &d);
            store_256(symbols + i + 16, narrow_32_to_16(low, high));
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
    store_256(r->x, a), store_256(r->x + 8, b), store_256(r->x + 16, c), store_256(r->x + 24, e);
    return i;
}

void kvc_rans_decode_vec(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base,
                         size_t n, const uint32_t *table, unsigned bits) {
    const size_t i = decode_steps(r, symbols, base, n, table, bits);
    if (i < n) kvc_rans_decode_ref(r, symbols + i, base + i, n - i, table, bits);
}

struct encoding {
    const struct kvc_rans_symbol *table;
    bits256 field, total, shift; /* 11 bits of a row; 2^bits; 4 bits */
    unsigned top;                /* 32 - bits */
};

/* The rows of symbols 0 and 1. */
static inline bits128 two_symbols(const struct kvc_rans_symbol *table, const uint16_t *s) {
    return zip_low_64(load_64(table + s[0]), load_64(table + s[1]));
}

/* Eight lanes by one symbol each; gives words below *next. A 64-bit product has room for 32 + shift
 * bits below the quotient. */
static inline __attribute__((always_inline)) bits256
encode_eight(bits256 x, const uint16_t *s, uint8_t **next, const struct encoding *e) {
    bits256 packed;
    const bits128 a = two_symbols(e->table, s), b = two_symbols(e->table, s + 2);
    const bits128 c = two_symbols(e->table, s + 4), d = two_symbols(e->table, s + 6);
    const bits256 reciprocal = unzip_32(a, b, c, d, &packed), frequency = and_256(packed, e->field);
    const bits256 fits = less_or_equal_u32(x, subtract_32(left_32(frequency, e->top), set_32(1)));
    const unsigned give = 255 & ~mask_32(fits);
    store_128(*next - 16, permute_128_8(low_halves_32(x), load_128(compress[give])));
    *next -= 2 * __builtin_popcount(give);
    x = select_256(fits, x, right_32(x, 16));
    const bits256 product = multiply_high_32(add_32(x, right_32(packed, 26)), reciprocal);
    const bits256 quotient = right_each_32(product, and_256(right_32(packed, 22), e->shift));
    const bits256 before = and_256(right_32(packed, 11), e->field);
    return add_32(add_32(x, before), multiply_32(quotient, subtract_32(e->total, frequency)));
}

void kvc_rans_encode_vec(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n,
                         const struct kvc_rans_symbol *table, unsigned bits) {
    const struct encoding k = {table, set_32(2047), set_32(1u << bits), set_32(15), 32 - bits};
    const size_t tail = r->lanes == KVC_RANS_LANES ? n % KVC_RANS_LANES : n;
    if (tail) kvc_rans_encode_ref(r, symbols + n - tail, tail, table, bits);
    uint8_t *next = r->next;
    bits256 a = load_256(r->x), b = load_256(r->x + 8), c = load_256(r->x + 16),
            d = load_256(r->x + 24);
    for (size_t i = n - tail; i; i -= KVC_RANS_LANES) {
        d = encode_eight(d, symbols + i - 8, &next, &k);
        c = encode_eight(c, symbols + i - 16, &next, &k);
        b = encode_eight(b, symbols + i - 24, &next, &k);
        a = encode_eight(a, symbols + i - 32, &next, &k);
    }
    r->next = next;
    store_256(r->x, a), store_256(r->x + 8, b), store_256(r->x + 16, c), store_256(r->x + 24, d);
}

#else
typedef int kvc_no_rans_vec; /* ISO C wants one declaration in a file */
#endif
