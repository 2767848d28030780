/* bits.h: strings of bits, bit 0 of each byte first, and the codes in which tables and parameters are stored. Not for many
 * symbols (rans.h). */
#ifndef KVC_BITS_H
#define KVC_BITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A string, for writing or reading. A byte is written whole with its first bit, so memory need not be zeroed. */
struct kvc_bits {
    uint8_t *bytes;
    const uint8_t *read; /* for reading */
    size_t at, limit;    /* in bits */
    int bad;             /* 1: a read found no code, or passed the limit */
};

/* Write and read the lowest `n` bits of v, n <= 32. */
void kvc_bits_put(struct kvc_bits *b, uint32_t v, unsigned n);
static inline uint32_t kvc_bits_get(struct kvc_bits *b, unsigned n);

/* Write and read Rice's code of a number below 2^16: number >> k ones, a zero, the lowest k bits. After 24 ones the number
 * follows in 16 bits instead. */
void kvc_bits_put_rice(struct kvc_bits *b, uint32_t v, unsigned k);
static inline uint32_t kvc_bits_get_rice(struct kvc_bits *b, unsigned k);
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

/* --- inline, as tables of hundreds of codes precede every block --- */

enum { KVC_RICE_ONES = 24, KVC_RICE_ESCAPED = 16 }; /* ones after which a number follows; its bits */

/* Returns at least the next 57 bits; zeros past the limit. */
static inline uint64_t kvc_bits_peek(const struct kvc_bits *b) {
    uint64_t window = 0;
    const size_t first = b->at / 8, last = (b->limit + 7) / 8, n = last - first < 8 ? last - first : 8;
    if (n == 8) memcpy(&window, b->read + first, 8); /* the machine is little-endian: kernels/target.h insists */
    else
        for (size_t i = 0; i < n; i++) window |= (uint64_t)b->read[first + i] << 8 * i;
    return window >> b->at % 8;
}

static inline void kvc_bits_skip(struct kvc_bits *b, unsigned n) {
    if (b->limit - b->at < n) b->bad = 1, b->at = b->limit;
    else b->at += n;
}

static inline uint32_t kvc_bits_get(struct kvc_bits *b, unsigned n) {
    const uint64_t window = kvc_bits_peek(b);
    kvc_bits_skip(b, n);
    return (uint32_t)(window & ((UINT64_C(1) << n) - 1));
}

static inline uint32_t kvc_bits_get_rice(struct kvc_bits *b, unsigned k) {
    uint64_t window = kvc_bits_peek(b);
    unsigned ones = (unsigned)__builtin_ctzll(~(window & ((1u << KVC_RICE_ONES) - 1)));
    if (ones >= KVC_RICE_ONES) {
        kvc_bits_skip(b, KVC_RICE_ONES);
        uint32_t v = kvc_bits_get(b, KVC_RICE_ESCAPED);
        if (v >> k < KVC_RICE_ONES) b->bad = 1; /* has a shorter code */
        return v;
    }
    kvc_bits_skip(b, ones + 1 + k);
    return (uint32_t)ones << k | (uint32_t)(window >> (ones + 1) & ((1u << k) - 1));
}

#endif
