/* bits.h: strings of bits, bit 0 of each byte first, with the codes that tables and parameters are stored in. Not for
 * symbols in bulk (rans.h). */
#ifndef KVC_BITS_H
#define KVC_BITS_H

#include <stddef.h>
#include <stdint.h>

/* For writing: bytes are written whole as they begin, so they need not be zeroed. */
struct kvc_bits {
    uint8_t *bytes;
    const uint8_t *read; /* for reading */
    size_t at, limit;    /* in bits */
    int bad;             /* 1: something was read that is no code, or lies past the limit */
};

/* The lowest `n` bits of v, n <= 32. */
void kvc_bits_put(struct kvc_bits *b, uint32_t v, unsigned n);
uint32_t kvc_bits_get(struct kvc_bits *b, unsigned n);

/* Rice's code of a number below 2^16: number >> k ones, a zero, the lowest k bits; from 24 ones on no zero but the
 * number in 16 bits. */
void kvc_bits_put_rice(struct kvc_bits *b, uint32_t v, unsigned k);
uint32_t kvc_bits_get_rice(struct kvc_bits *b, unsigned k);
/* The parameter, at most KVC_RICE_MOST, that suits n numbers of this sum. */
#define KVC_RICE_MOST 8
unsigned kvc_bits_rice_for(uint64_t sum, size_t n);
/* 1 when reading went well and ended in the last byte, the bits after it being zero. */
int kvc_bits_ended(struct kvc_bits *b);

/* 0, -1, 1, -2, ... as 0, 1, 2, 3, ... */
static inline uint32_t kvc_zigzag(int32_t v) {
    return v < 0 ? 2 * (uint32_t)-v - 1 : 2 * (uint32_t)v;
}
static inline int32_t kvc_unzigzag(uint32_t v) {
    return v & 1 ? -(int32_t)(v / 2) - 1 : (int32_t)(v / 2);
}

#endif
