/* bits.h: strings of bits, bit 0 of each byte first, and the codes in which tables and parameters are stored. Not for many
 * symbols (rans.h). */
#ifndef KVC_BITS_H
#define KVC_BITS_H

#include <stddef.h>
#include <stdint.h>

/* A string, for writing or reading. A byte is written whole with its first bit, so memory need not be zeroed. */
struct kvc_bits {
    uint8_t *bytes;
    const uint8_t *read; /* for reading */
    size_t at, limit;    /* in bits */
    int bad;             /* 1: a read found no code, or passed the limit */
};

/* Write and read the lowest `n` bits of v, n <= 32. */
void kvc_bits_put(struct kvc_bits *b, uint32_t v, unsigned n);
uint32_t kvc_bits_get(struct kvc_bits *b, unsigned n);

/* Write and read Rice's code of a number below 2^16: number >> k ones, a zero, the lowest k bits. After 24 ones the number
 * follows in 16 bits instead. */
void kvc_bits_put_rice(struct kvc_bits *b, uint32_t v, unsigned k);
uint32_t kvc_bits_get_rice(struct kvc_bits *b, unsigned k);
/* Returns the parameter, at most KVC_RICE_MOST, that suits n numbers of this sum. */
#define KVC_RICE_MOST 8
unsigned kvc_bits_rice_for(uint64_t sum, size_t n);
/* Returns 1 when no read failed, the last read ended in the last byte, and the bits after it are zero. */
int kvc_bits_ended(struct kvc_bits *b);

/* Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ..., and back. */
static inline uint32_t kvc_zigzag(int32_t v) {
    return v < 0 ? 2 * (uint32_t)-v - 1 : 2 * (uint32_t)v;
}
static inline int32_t kvc_unzigzag(uint32_t v) {
    return v & 1 ? -(int32_t)(v / 2) - 1 : (int32_t)(v / 2);
}

#endif
