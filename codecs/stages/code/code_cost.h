/* code_cost.h: what codes cost in bits, by their size, at each index of the stage `code`. Not for
 * choosing indices (code.c). */
#ifndef KVC_CODE_COST_H
#define KVC_CODE_COST_H

#include <stdint.h>

enum { KVC_CODE_MOST_BITS = 24 }; /* codes are below 2^24 in size: exact as binary32 */
enum { KVC_CODE_LENGTH_BITS = 5 };

/* Sizes of codes are counted in bins: one by one up to KVC_CODE_FINE_BINS, then eight an octave. */
enum { KVC_CODE_FINE_BINS = 64, KVC_CODE_BINS = KVC_CODE_FINE_BINS + 8 * (KVC_CODE_MOST_BITS - 6) };

static inline unsigned kvc_code_bin(uint32_t size) {
    if (size < KVC_CODE_FINE_BINS) return size;
    const unsigned octave = 31 - (unsigned)__builtin_clz(size);
    return KVC_CODE_FINE_BINS + (octave - 6) * 8 + (size >> (octave - 3) & 7);
}

/* Returns the estimated bits of a code of each bin, of either sign, at an index. Made on first use.
 * Thread-safe. */
const double *kvc_code_costs(unsigned index);

#endif
