/* kernels_support.h: numbers of all kinds for the tests of kernels, and sums and products as
 * binary32 rounds them. Not for other tests. */
#ifndef KERNELS_SUPPORT_H
#define KERNELS_SUPPORT_H

#include "values_support.h"

#include "kernels/float_bits.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t random_state = 1;

static inline uint16_t random_u16(void) {
    uint16_t high = random_byte();
    return (uint16_t)(high << 8 | random_byte());
}

/* Memory of exactly this size, filled with noise: the address sanitizer sees one byte too many. */
static inline void *noise(size_t bytes) {
    uint8_t *p = malloc(bytes);
    assert_true(p || !bytes);
    for (size_t i = 0; i < bytes; i++) p[i] = random_byte();
    return p;
}

/* binary16 by its definition, in double arithmetic. */
static inline double half_value(unsigned h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent == 31 ? (mantissa ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                              : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

/* Sums and products in double: products of floats are exact in it, and of sums, as of roots,
 * rounding twice is rounding once (53 bits are more than twice 24 and two). */
static inline float times(float a, float b) {
    return (float)((double)a * (double)b);
}

static inline float plus(float a, float b) {
    return (float)((double)a + (double)b);
}

/* A float of any pattern, or one of those around which the sums decide. */
static inline float any_float(void) {
    static const float special[] = {0,
                                    -0.0f,
                                    INFINITY,
                                    -INFINITY,
                                    NAN,
                                    -NAN,
                                    0x1p50f,
                                    -0x1p50f,
                                    0x1.fffffep49f,
                                    -0x1.fffffep49f,
                                    0x1.000002p50f,
                                    0x1p-149f,
                                    -0x1p-126f,
                                    3.4028235e38f,
                                    1,
                                    -1};
    const uint32_t high = random_u16();
    if (random_byte() % 2) return special[random_byte() % 16];
    return kvc_bits_to_float(high << 16 | random_u16());
}

/* Noise that begins one element after an aligned address and ends where its memory does. */
static inline float *floats(size_t n) {
    return (float *)noise(4 * n + 4) + 1;
}

static inline uint8_t *bytes(size_t n) {
    return (uint8_t *)noise(n + 1) + 1;
}

/* All 24 bits of the mantissa, between -2 and 2 times 2^-8 to 2^7. */
static inline float common_float(void) {
    const int high = random_u16(), mantissa = high * 256 + random_byte() - 0x800000;
    return ldexpf((float)mantissa, random_byte() % 16 - 30);
}

static inline float finite_float(void) {
    float f;
    do f = any_float();
    while (!isfinite(f));
    return f;
}

static inline float number(void) {
    float f;
    do f = any_float();
    while (isnan(f));
    return f;
}

static inline void fill_with(float (*value)(void), float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = value();
}

#endif
