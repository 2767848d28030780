/* values_support.h: memory, and numbers for it that look random and are the same in each run. Not
 * for numbers of one test's own kind. */
#ifndef VALUES_SUPPORT_H
#define VALUES_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static inline void *get_memory(size_t n) {
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}

static uint32_t random_state; /* each test sets it to a number of its own */

/* Returns 24 bits. */
static inline uint32_t random_bits(void) {
    random_state = random_state * 1664525 + 1013904223;
    return random_state >> 8;
}

static inline uint8_t random_byte(void) {
    return (uint8_t)(random_bits() >> 16);
}

/* About normal: mean 0, spread 1. */
static inline float random_normal(void) {
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += (float)random_bits() * 0x1p-24f;
    return sum - 6;
}

#endif
