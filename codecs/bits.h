/* bits.h: strings of bits, bit 0 of each byte first, and the codes in which tables and parameters
 * are stored. Not for many symbols (rans.h). */
#ifndef KVC_BITS_H
#define KVC_BITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A string, for writing or reading. A byte is written whole with its first bit, so memory need not
 * be zeroed. */
struct kvc_bits {
    uint8_t *bytes;
    const uint8_t *read; /* for reading */
    size_t at, limit;    /* in bits */
    int bad;             /* 1: a read found no code, or passed the limit */
};

/* Write and read the lowest `n` bits of v, n <= 32. */
void kvc_bits_put(struct kvc_bits *b, uint32_t v, unsigned n);
static inline uint32_t kvc_bits_get(struct kvc_bits *b, unsigned n);

/* Write and read Rice's code of a number below 2^16: number >> k ones, a zero, the lowest k bits.
 * After 24 ones the number follows in 16 bits instead. */
void kvc_bits_put_rice(struct kvc_bits *b, uint32_t v, unsigned k);
static inline uint32_t kvc_bits_get_rice(struct kvc_bits *b, unsigned k);
/* Reads up to n Rice codes and returns how many; stops after a read that failed. What a call a code
 * reads, in half the time. */
size_t kvc_bits_get_rices(struct kvc_bits *b, uint16_t *to, size_t n, unsigned k);
/* Returns the parameter, at most KVC_RICE_MOST, that suits n numbers of this sum. */
#define KVC_RICE_MOST 8
unsigned kvc_bits_rice_for(uint64_t sum, size_t n);
/* Returns 1 when no read failed, the last read ended in the last byte, and the bits after it are
 * zero. */
int kvc_bits_ended(struct kvc_bits *b);

/* Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ..., and back. */
static inline uint32_t kvc_zigzag(int32_t v) {
    return 2 * (uint32_t)v ^ -(uint32_t)(v < 0); /* without a branch: signs cannot be foreseen */
}
static inline int32_t kvc_unzigzag(uint32_t v) {
    return (int32_t)(v / 2 ^ -(v & 1));
}

/* --- inline, as tables of hundreds of codes precede every block --- */

/* ones after which a number follows; its bits */
enum { KVC_RICE_ONES = 24, KVC_RICE_ESCAPED = 16 };

/* Returns at least the next 57 bits; zeros past the limit. */
static inline uint64_t kvc_bits_peek(const struct kvc_bits *b) {
    uint64_t window = 0;
    const size_t first = b->at / 8, last = (b->limit + 7) / 8,
                 n = last - first < 8 ? last - first : 8;
    /* the machine is little-endian: kernels/target.h insists */
    if (n == 8) memcpy(&window, b->read + first, 8);
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

/* Codes on their way into a string: bits are held back until 32 of them are there, as most codes
 * are much shorter than a byte. */
struct kvc_bits_held {
    uint8_t *next;
    uint64_t bits;
    unsigned n; /* held, below 32 */
};

/* Continue a string, and hand it back with all that was held. */
static inline struct kvc_bits_held kvc_bits_hold(const struct kvc_bits *b) {
    const unsigned n = (unsigned)(b->at % 8);
    uint8_t *next = b->bytes + b->at / 8;
    return (struct kvc_bits_held){.next = next, .bits = n ? *next & ((1u << n) - 1) : 0, .n = n};
}

static inline void kvc_bits_release(struct kvc_bits *b, const struct kvc_bits_held *h) {
    for (unsigned i = 0; 8 * i < h->n; i++) h->next[i] = (uint8_t)(h->bits >> 8 * i);
    b->at = 8 * (size_t)(h->next - b->bytes) + h->n;
}

/* Do what kvc_bits_put() and kvc_bits_put_rice() do; v has no bits above the lowest n. */
static inline void kvc_bits_held_put(struct kvc_bits_held *h, uint32_t v, unsigned n) {
    h->bits |= (uint64_t)v << h->n;
    h->n += n;
    if (h->n < 32) return;
    memcpy(h->next, &h->bits, 4);
    h->next += 4;
    h->bits >>= 32;
    h->n -= 32;
}

static inline void kvc_bits_held_rice(struct kvc_bits_held *h, uint32_t v, unsigned k) {
    const uint32_t ones = v >> k;
    if (ones >= KVC_RICE_ONES) {
        kvc_bits_held_put(h, (1u << KVC_RICE_ONES) - 1, KVC_RICE_ONES);
        kvc_bits_held_put(h, v & ((1u << KVC_RICE_ESCAPED) - 1), KVC_RICE_ESCAPED);
    } else {
        const uint32_t low = v & ((1u << k) - 1);
        kvc_bits_held_put(h, ((1u << ones) - 1) | low << (ones + 1), ones + 1 + k);
    }
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
