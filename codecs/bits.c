/* bits.c: strings of bits. Not for symbols in bulk (rans.c). */
#include "codecs/bits.h"

#include <string.h>

enum { MOST_ONES = 24, ESCAPED = 16 };

void kvc_bits_put(struct kvc_bits *b, uint32_t v, unsigned n) {
    const unsigned from = (unsigned)(b->at % 8);
    uint8_t *p = b->bytes + b->at / 8;
    uint64_t window = (v & ((UINT64_C(1) << n) - 1)) << from | (from ? *p : 0);
    for (unsigned done = 0; done < from + n; done += 8, window >>= 8) *p++ = (uint8_t)window;
    b->at += n;
}

/* Returns at least the next 57 bits; zeros past the limit. */
static uint64_t peek(const struct kvc_bits *b) {
    uint64_t window = 0;
    const size_t first = b->at / 8, last = (b->limit + 7) / 8, n = last - first < 8 ? last - first : 8;
    if (n == 8) memcpy(&window, b->read + first, 8); /* the machine is little-endian: dtype.c insists */
    else
        for (size_t i = 0; i < n; i++) window |= (uint64_t)b->read[first + i] << 8 * i;
    return window >> b->at % 8;
}

static void skip(struct kvc_bits *b, unsigned n) {
    if (b->limit - b->at < n) b->bad = 1, b->at = b->limit;
    else b->at += n;
}

uint32_t kvc_bits_get(struct kvc_bits *b, unsigned n) {
    uint64_t window = peek(b);
    skip(b, n);
    return (uint32_t)(window & ((UINT64_C(1) << n) - 1));
}

void kvc_bits_put_rice(struct kvc_bits *b, uint32_t v, unsigned k) {
    uint32_t ones = v >> k;
    if (ones >= MOST_ONES) {
        kvc_bits_put(b, (1u << MOST_ONES) - 1, MOST_ONES);
        kvc_bits_put(b, v, ESCAPED);
    } else {
        kvc_bits_put(b, (1u << ones) - 1, ones + 1);
        kvc_bits_put(b, v, k);
    }
}

uint32_t kvc_bits_get_rice(struct kvc_bits *b, unsigned k) {
    uint64_t window = peek(b);
    unsigned ones = (unsigned)__builtin_ctzll(~(window & ((1u << MOST_ONES) - 1)));
    if (ones >= MOST_ONES) {
        skip(b, MOST_ONES);
        uint32_t v = kvc_bits_get(b, ESCAPED);
        if (v >> k < MOST_ONES) b->bad = 1; /* has a shorter code */
        return v;
    }
    skip(b, ones + 1 + k);
    return (uint32_t)ones << k | (uint32_t)(window >> (ones + 1) & ((1u << k) - 1));
}

unsigned kvc_bits_rice_for(uint64_t sum, size_t n) {
    unsigned k = 0;
    while (k < KVC_RICE_MOST && (uint64_t)n << k < sum) k++;
    return k;
}

int kvc_bits_ended(struct kvc_bits *b) {
    return !b->bad && b->limit - b->at < 8 && !kvc_bits_get(b, (unsigned)(b->limit - b->at));
}
