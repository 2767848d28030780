/* rans_steps.h: what the rANS decoders in vectors of 32 bytes share: all but how lanes take their words; the lanes of a coder. Included
 * by their files, which define decode_eight(). Not for encoders. */
#ifndef KVC_RANS_STEPS_H
#define KVC_RANS_STEPS_H

#include "kernels/rans_state.h"
#include "kernels/vec.h"

enum { STEP_BYTES = 2 * KVC_RANS_LANES }; /* of words, at most, that a step of all lanes takes */

struct decoding {
    const uint32_t *table;
    bits256 mask, symbol, offset; /* of a state, and of a slot's fields */
    unsigned bits;
};

/* Returns eight states after one symbol each, before they take words. */
static inline __attribute__((always_inline)) bits256 next_states(bits256 x, const uint16_t *base, const struct decoding *d,
                                                                 bits256 *slot) {
    *slot = look_up_32(d->table, add_32(widen_16_to_32(load_128(base)), and_256(x, d->mask)));
    return add_32(multiply_32(right_32(*slot, 21), right_32(x, d->bits)), and_256(right_32(*slot, 10), d->offset));
}

static inline __attribute__((always_inline)) bits256 decode_eight(bits256 *lanes, const uint16_t *base, const uint8_t **next,
                                                                  const struct decoding *d);

/* Decodes symbols, as many as are whole steps of all lanes, unless words are missing; returns their number. The last words are copied to
 * where zeros follow them, which a step may read. The four vectors are written out, not looped over, so that they stay in registers. */
static inline __attribute__((always_inline)) size_t decode_steps(struct kvc_rans_decoder *r, uint16_t *symbols,
                                                                 const uint16_t *base, size_t n, const uint32_t *table,
                                                                 unsigned bits) {
    const struct decoding d = {table, set_32((1u << bits) - 1), set_32(1023), set_32(2047), bits};
    const uint8_t *next = r->next, *end = r->end, *from = next; /* from: of what is copied */
    uint8_t copy[2 * STEP_BYTES];
    size_t i = 0, copied = 0;
    if (r->lanes != KVC_RANS_LANES || n < KVC_RANS_LANES) return 0;
    bits256 a = load_256(r->x), b = load_256(r->x + 8), c = load_256(r->x + 16), e = load_256(r->x + 24);
    for (;;) {
        for (; i + KVC_RANS_LANES <= n && end - next >= STEP_BYTES; i += KVC_RANS_LANES) {
            bits256 low = decode_eight(&a, base + i, &next, &d), high = decode_eight(&b, base + i + 8, &next, &d);
            store_256(symbols + i, narrow_32_to_16(low, high));
            low = decode_eight(&c, base + i + 16, &next, &d), high = decode_eight(&e, base + i + 24, &next, &d);
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

#endif
