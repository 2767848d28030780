/* bytes.h: varints in byte arrays, beside the numbers of fixed size of codecs/little_endian.h. Not
 * for bounds beyond what each comment says. */
#ifndef KVC_BYTES_H
#define KVC_BYTES_H

#include "codecs/little_endian.h"

#include <stddef.h>
#include <stdint.h>

/* Writes unsigned LEB128, at most 10 bytes. Returns the bytes written. */
static inline size_t put_varint(uint8_t *p, uint64_t v) {
    size_t n = 0;
    for (; v >= 0x80; v >>= 7) p[n++] = (uint8_t)(v | 0x80);
    p[n++] = (uint8_t)v;
    return n;
}
/* Reads a number from *p, not beyond `end`. Returns -1 when it is cut short, has more than 64 bits,
 * or is not in its shortest form. */
static inline int get_varint(const uint8_t **p, const uint8_t *end, uint64_t *v) {
    *v = 0;
    for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
        uint8_t byte = *(*p)++;
        if (shift == 63 && byte > 1) return -1;
        *v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return byte || !shift ? 0 : -1;
    }
    return -1;
}
/* Map signed numbers to unsigned ones and back, for varints: 0, -1, 1, -2, ... become 0, 1, 2, 3,
 * ... */
static inline uint64_t zigzag(int64_t v) {
    return (uint64_t)v << 1 ^ (v < 0 ? UINT64_MAX : 0);
}
static inline int64_t unzigzag(uint64_t v) {
    return (int64_t)(v >> 1 ^ (v & 1 ? UINT64_MAX : 0));
}

#endif
