/* float_bits.h: a float as its bits, and back. Not for doubles, and not for CUDA (device/ptx.h). */
#ifndef KVC_FLOAT_BITS_H
#define KVC_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t kvc_float_to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float kvc_bits_to_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
