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

unsigned kvc_bits_rice_for(uint64_t sum, size_t n) {
    unsigned k = 0;
    while (k < KVC_RICE_MOST && (uint64_t)n << k < sum) k++;
    return k;
}

int kvc_bits_ended(struct kvc_bits *b) {
    return !b->bad && b->limit - b->at < 8 && !kvc_bits_get(b, (unsigned)(b->limit - b->at));
}
