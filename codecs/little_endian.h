/* little_endian.h: little-endian numbers in byte arrays. Not for bounds, which the caller checks.
 */
#ifndef KVC_LITTLE_ENDIAN_H
#define KVC_LITTLE_ENDIAN_H

#include "kernels/float_bits.h"

#include <stdint.h>
#include <string.h>

static inline uint16_t get_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t get_u32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t get_u64(const uint8_t *p) {
    return get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}
static inline void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}
static inline void put_u32(uint8_t *p, uint32_t v) {
    put_u16(p, (uint16_t)v);
    put_u16(p + 2, (uint16_t)(v >> 16));
}
static inline void put_u64(uint8_t *p, uint64_t v) {
    put_u32(p, (uint32_t)v);
    put_u32(p + 4, (uint32_t)(v >> 32));
}
static inline float get_f32(const uint8_t *p) {
    return kvc_bits_to_float(get_u32(p));
}
static inline void put_f32(uint8_t *p, float x) {
    put_u32(p, kvc_float_to_bits(x));
}
static inline double get_f64(const uint8_t *p) {
    const uint64_t bits = get_u64(p);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline void put_f64(uint8_t *p, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_u64(p, bits);
}

#endif
