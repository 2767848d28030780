/* bits.c: strings of bits. Not for symbols in bulk (rans.c). */
#include "codecs/bits.h"

#include <string.h>


void kvc_bits_put(struct kvc_bits *b, uint32_t v, unsigned n) {
    const unsigned from = (unsigned)(b->at % 8);
    uint8_t *p = b->bytes + b->at / 8;
    uint64_t window = (v & ((UINT64_C(1) << n) - 1)) << from | (from ? *p : 0);
    for (unsigned done = 0; done < from + n; done += 8, window >>= 8) *p++ = (uint8_t)window;
    b->at += n;
}

void kvc_bits_put_rice(struct kvc_bits *b, uint32_t v, unsigned k) {
    uint32_t ones = v >> k;
    if (ones >= KVC_RICE_ONES) {
        kvc_bits_put(b, (1u << KVC_RICE_ONES) - 1, KVC_RICE_ONES);
        kvc_bits_put(b, v, KVC_RICE_ESCAPED);
    } else {
        kvc_bits_put(b, (1u << ones) - 1, ones + 1);
        kvc_bits_put(b, v, k);
    }
}

/* Codes that 57 bits hold whole are read of them, without a look at the string between two. */
size_t kvc_bits_get_rices(struct kvc_bits *b, uint16_t *to, size_t n, unsigned k) {
    size_t i = 0;
    while (i < n && !b->bad) {
        uint64_t window = kvc_bits_peek(b);
        const size_t rest = b->limit - b->at;
        const unsigned there = rest < 57 ? (unsigned)rest : 57;
        unsigned used = 0;
        for (; i < n; i++) {
            const unsigned ones = (unsigned)__builtin_ctzll(~window | UINT64_C(1) << KVC_RICE_ONES),
                           size = ones + 1 + k;
            if (ones >= KVC_RICE_ONES || used + size > there) break;
            to[i] = (uint16_t)(ones << k | (unsigned)(window >> (ones + 1) & ((1u << k) - 1)));
            window >>= size;
            used += size;
        }
        b->at += used;
        /* a long code, or the end */
        if (i < n && !used) to[i++] = (uint16_t)kvc_bits_get_rice(b, k);
    }
    return i;
}

unsigned kvc_bits_rice_for(uint64_t sum, size_t n) {
    unsigned k = 0;
    while (k < KVC_RICE_MOST && (uint64_t)n << k < sum) k++;
    return k;
}

int kvc_bits_ended(struct kvc_bits *b) {
    return !b->bad && b->limit - b->at < 8 && !kvc_bits_get(b, (unsigned)(b->limit - b->at));
}
