/* rans_vec.c: vector twins of rans_ref.c, same bytes for every input. */
#include "kernels/twins.h"

#if defined(KVC_VECTORS)

#include "kernels/rans_steps.h"

#if defined(__x86_64__)
#include "kernels/rans_words_avx2.h"
#else
#include "kernels/rans_words_neon.h"
#endif

/* Eight lanes by one symbol each; takes words from *next on. Returns the symbols in 32-bit lanes. */
static inline __attribute__((always_inline)) bits256 decode_eight(bits256 *lanes, const uint16_t *base, const uint8_t **next,
                                                                  const struct decoding *d) {
    bits256 slot;
    const bits256 x = next_states(*lanes, base, d, &slot), low = less_or_equal_u32(x, set_32(KVC_RANS_START - 1));
    const unsigned take = mask_32(low);
    *lanes = select_256(low, or_256(left_32(x, 16), expand_words(*next, take)), x);
    *next += bytes_of_words(take);
    return and_256(slot, d->symbol);
}

void kvc_rans_decode_vec(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base, size_t n, const uint32_t *table,
                         unsigned bits) {
    const size_t i = decode_steps(r, symbols, base, n, table, bits);
    if (i < n) kvc_rans_decode_ref(r, symbols + i, base + i, n - i, table, bits);
}

struct encoding {
    const struct kvc_rans_symbol *table;
    bits256 field, total, shift; /* 11 bits of a row; 2^bits; 4 bits */
    unsigned top;                /* 32 - bits */
};

/* Eight lanes by one symbol each; gives words below *next. A 64-bit product has room for 32 + shift bits below the quotient. */
static inline __attribute__((always_inline)) bits256 encode_eight(bits256 x, const uint16_t *s, uint8_t **next,
                                                                  const struct encoding *e) {
    bits256 packed;
    const bits256 reciprocal = load_symbols(e->table, s, &packed), frequency = and_256(packed, e->field);
    const bits256 fits = less_or_equal_u32(x, subtract_32(left_32(frequency, e->top), set_32(1)));
    const unsigned give = 255 & ~mask_32(fits);
    compress_words(*next, x, give);
    *next -= bytes_of_words(give);
    x = select_256(fits, x, right_32(x, 16));
    const bits256 product = multiply_high_32(add_32(x, right_32(packed, 26)), reciprocal);
    const bits256 quotient = right_each_32(product, and_256(right_32(packed, 22), e->shift));
    const bits256 before = and_256(right_32(packed, 11), e->field);
    return add_32(add_32(x, before), multiply_32(quotient, subtract_32(e->total, frequency)));
}

void kvc_rans_encode_vec(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n, const struct kvc_rans_symbol *table,
                         unsigned bits) {
    const struct encoding k = {table, set_32(2047), set_32(1u << bits), set_32(15), 32 - bits};
    const size_t tail = r->lanes == KVC_RANS_LANES ? n % KVC_RANS_LANES : n;
    if (tail) kvc_rans_encode_ref(r, symbols + n - tail, tail, table, bits);
    uint8_t *next = r->next;
    bits256 a = load_256(r->x), b = load_256(r->x + 8), c = load_256(r->x + 16), d = load_256(r->x + 24);
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
