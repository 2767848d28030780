/* select.h: the k-th smallest of many numbers, without sorting them all. Not for medians of few
 * (median.h). */
#ifndef KVC_SELECT_H
#define KVC_SELECT_H

#include "kernels/float_bits.h"

#include <stddef.h>
#include <stdint.h>

/* Returns a key that orders by value and, among equal values, by number. -0 and +0 are equal. The
 * value is no NaN. */
static inline uint64_t kvc_select_key(float value, uint32_t number) {
    const uint32_t bits = kvc_float_to_bits(value + 0.0f);
    return (uint64_t)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | number;
}

/* Returns the value of a key. */
static inline float kvc_select_value(uint64_t key) {
    const uint32_t high = (uint32_t)(key >> 32), bits = high >> 31 ? high & 0x7fffffff : ~high;
    return kvc_bits_to_float(bits);
}

/* Returns the key that would be v[k] if v[n] were sorted, k < n. Afterwards v[0] to v[k] are at
 * most this key, and none of v[k] to v[n - 1] is below it. */
uint64_t kvc_select(uint64_t *v, size_t n, size_t k);

#endif
