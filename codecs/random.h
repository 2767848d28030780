/* random.h: numbers that look random and are the same on every machine: splitmix64 (Steele, Lea,
 * Flood, OOPSLA 2014). Not for secrets. */
#ifndef KVC_RANDOM_H
#define KVC_RANDOM_H

#include <stdint.h>

#define KVC_RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15) /* between the states of one sequence */

/* Returns 64 bits for a state. */
static inline uint64_t kvc_random_mix(uint64_t x) {
    x += KVC_RANDOM_STEP;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Returns a number in [0, 1). */
static inline double kvc_random_unit(uint64_t x) {
    return (double)(kvc_random_mix(x) >> 11) * 0x1p-53;
}

#endif
