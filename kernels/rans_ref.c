/* rans_ref.c: portable interleaved rANS, the reference of the vector twins. Not for tables
 * (codecs/rans.c). */
#include "kernels/twins.h"

static uint32_t next_word(struct kvc_rans_decoder *r) {
    if (r->end - r->next < 2) {
        r->missing++;
        return 0;
    }
    uint32_t word = (uint32_t)(r->next[0] | r->next[1] << 8);
    r->next += 2;
    return word;
}

static inline uint32_t decode_one(uint32_t x, uint16_t *symbol, const uint32_t *slots,
                                  unsigned bits, struct kvc_rans_decoder *r) {
    const uint32_t slot = slots[x & ((UINT32_C(1) << bits) - 1)];
    *symbol = (uint16_t)(slot & 1023);
    x = (slot >> 21) * (x >> bits) + (slot >> 10 & 2047);
    return x < KVC_RANS_START ? x << 16 | next_word(r) : x;
}

void kvc_rans_decode_ref(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base,
                         size_t n, const uint32_t *table, unsigned bits) {
    if (r->lanes == 1) { /* whose state stays in a register */
        uint32_t x = r->x[0];
        for (size_t i = 0; i < n; i++) x = decode_one(x, &symbols[i], table + base[i], bits, r);
        r->x[0] = x;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t *x = &r->x[i & (r->lanes - 1)];
        *x = decode_one(*x, &symbols[i], table + base[i], bits, r);
    }
}

void kvc_rans_encode_ref(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n,
                         const struct kvc_rans_symbol *table, unsigned bits) {
    for (size_t i = n; i-- > 0;) {
        uint32_t x = r->x[i & (r->lanes - 1)];
        const struct kvc_rans_symbol *s = &table[symbols[i]];
        uint32_t frequency = s->packed & 2047, first = s->packed >> 11 & 2047,
                 shift = s->packed >> 22 & 15;
        if (x >= (uint64_t)frequency << (32 - bits)) {
            r->next -= 2;
            r->next[0] = (uint8_t)x;
            r->next[1] = (uint8_t)(x >> 8);
            x >>= 16;
        }
        uint32_t quotient = (uint32_t)((uint64_t)(x + (s->packed >> 26)) * s->reciprocal >>
                                       (32 + shift));
        r->x[i & (r->lanes - 1)] = x + first + quotient * ((UINT32_C(1) << bits) - frequency);
    }
}
