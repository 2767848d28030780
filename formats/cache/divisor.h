/* divisor.h: the largest common divisor of two numbers. */
#ifndef KVC_DIVISOR_H
#define KVC_DIVISOR_H

#include <stdint.h>

/* Returns the largest number that divides both; where one is 0, the other. */
static inline uint64_t kvc_common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
