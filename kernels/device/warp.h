/* warp.h: a warp of 32 lanes in lockstep, on a GPU and on the host from one source. Not for what
 * lanes compute (decode.h).
 *
 * Code is written for one warp. Plain variables are the same in all lanes. Variables that differ
 * from lane to lane are declared with KVC_LANE_VAR and used, as KVC_AT(x), inside KVC_EACH_LANE { }
 * only, where `lane` is the lane's number. On a GPU every lane runs the braces once; the host runs
 * them 32 times in turn. So a lane may read what other lanes wrote only after the next
 * KVC_LANES_MEET, and lanes exchange values only through the functions below, outside the braces.
 * The host runs lanes from the first to the last, or in reverse when kvc_lanes_backwards is set
 * ($KVC_LANES): results that depend on the order are a race.
 *
 * C11 and CUDA C++ both compile this. */
#ifndef KVC_WARP_H
#define KVC_WARP_H

#include <stdint.h>

enum { KVC_LANES = 32 };

#ifdef __CUDACC__

#define KVC_DEVICE static __device__ __forceinline__
#define KVC_LANE_VAR(type, x) type x
#define KVC_AT(x) x
/* The condition uses `lane` for bodies that do not: nvcc warns of an unused variable. */
#define KVC_EACH_LANE                                                                        \
    for (unsigned lane = threadIdx.x % KVC_LANES, kvc_once = 1; kvc_once > lane / KVC_LANES; \
         kvc_once = 0)
#define KVC_LANES_MEET() __syncwarp()
#define KVC_UNROLL _Pragma("unroll")
#define KVC_ROLLED _Pragma("unroll 1") /* copies would need more registers */

#include "kernels/device/ptx.h"

/* Returns a bit for each lane whose x is not 0. */
KVC_DEVICE uint32_t kvc_ballot(uint32_t x) {
    return __ballot_sync(0xffffffffu, x != 0);
}
/* Returns lane `from`'s x to all lanes. */
KVC_DEVICE uint32_t kvc_from_lane(uint32_t x, unsigned from) {
    return __shfl_sync(0xffffffffu, x, (int)from);
}
/* Replaces x by the sum of the x of this lane and of the lanes before it; returns the sum of all.
 */
KVC_DEVICE uint32_t kvc_prefix_sum_(uint32_t *x) {
    for (unsigned step = 1; step < KVC_LANES; step *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, *x, step);
        if (threadIdx.x % KVC_LANES >= step) *x += other;
    }
    return __shfl_sync(0xffffffffu, *x, KVC_LANES - 1);
}
#define KVC_PREFIX_SUM(x) kvc_prefix_sum_(&(x))
/* Gives each lane the x of the lane whose number is its own `from`. */
#define KVC_GATHER(to, x, from) ((to) = __shfl_sync(0xffffffffu, x, (int)(from)))

#define KVC_EITHER(cuda, host) cuda

/* Adds the products of four signed bytes each to a sum. */
KVC_DEVICE int32_t kvc_dot_four(uint32_t a, uint32_t b, int32_t sum) {
    return __dp4a((int)a, (int)b, sum);
}

#else

#include "kernels/float_bits.h"

#include <math.h>
#include <string.h>

/* 1: lanes run from the last to the first. For tests, which set it before anything runs. */
extern int kvc_lanes_backwards;

#define KVC_DEVICE static inline
#define KVC_LANE_VAR(type, x) type x[KVC_LANES]
#define KVC_AT(x) x[lane]
#define KVC_EACH_LANE                                                           \
    for (unsigned kvc_turn = 0, lane = kvc_lanes_backwards ? KVC_LANES - 1 : 0; \
         kvc_turn < KVC_LANES;                                                  \
         kvc_turn++, lane = kvc_lanes_backwards ? KVC_LANES - 1 - kvc_turn : kvc_turn)
#define KVC_LANES_MEET() ((void)0)
#define KVC_UNROLL
#define KVC_ROLLED

KVC_DEVICE uint32_t kvc_ballot(const uint32_t *x) {
    uint32_t bits = 0;
    for (unsigned i = 0; i < KVC_LANES; i++) bits |= (uint32_t)(x[i] != 0) << i;
    return bits;
}
KVC_DEVICE uint32_t kvc_from_lane(const uint32_t *x, unsigned from) {
    return x[from];
}
KVC_DEVICE uint32_t kvc_prefix_sum_(uint32_t *x) {
    for (unsigned i = 1; i < KVC_LANES; i++) x[i] += x[i - 1];
    return x[KVC_LANES - 1];
}
#define KVC_PREFIX_SUM(x) kvc_prefix_sum_(x)
KVC_DEVICE void kvc_gather_(uint32_t *to, const uint32_t *x, const uint32_t *from) {
    for (unsigned i = 0; i < KVC_LANES; i++) to[i] = x[from[i]];
}
#define KVC_GATHER(to, x, from) kvc_gather_(to, x, from)

#define KVC_EITHER(cuda, host) host

KVC_DEVICE int32_t kvc_dot_four(uint32_t a, uint32_t b, int32_t sum) {
    for (unsigned i = 0; i < 32; i += 8) sum += (int8_t)(a >> i & 255u) * (int8_t)(b >> i & 255u);
    return sum;
}

#endif

/* What a GPU's compiler and the host's call differently. */
KVC_DEVICE unsigned kvc_count_bits(uint32_t x) {
    return (unsigned)KVC_EITHER(__popc((int)x), __builtin_popcount(x));
}
KVC_DEVICE unsigned kvc_lowest_bit(uint32_t x) {
    return (unsigned)KVC_EITHER(__ffs((int)x) - 1, __builtin_ctz(x));
}
/* Arithmetic that is rounded once, to nearest even. */
KVC_DEVICE float kvc_add(float a, float b) {
    return KVC_EITHER(__fadd_rn(a, b), a + b);
}
KVC_DEVICE float kvc_times(float a, float b) {
    return KVC_EITHER(__fmul_rn(a, b), a * b);
}
KVC_DEVICE float kvc_fma(float a, float b, float c) {
    return KVC_EITHER(__fmaf_rn(a, b, c), fmaf(a, b, c));
}
KVC_DEVICE float kvc_root(float a) {
    return KVC_EITHER(__fsqrt_rn(a), sqrtf(a));
}
/* Rounds to the nearest integer, ties to even. */
KVC_DEVICE int32_t kvc_nearest(float a) {
    return KVC_EITHER(__float2int_rn(a), (int32_t)rintf(a));
}
KVC_DEVICE double kvc_add_double(double a, double b) {
    return KVC_EITHER(__dadd_rn(a, b), a + b);
}
KVC_DEVICE double kvc_times_double(double a, double b) {
    return KVC_EITHER(__dmul_rn(a, b), a * b);
}
KVC_DEVICE float kvc_narrow(double a) {
    return KVC_EITHER(__double2float_rn(a), (float)a);
}
KVC_DEVICE float kvc_as_float(uint32_t x) {
    return KVC_EITHER(__uint_as_float(x), kvc_bits_to_float(x));
}
KVC_DEVICE uint32_t kvc_as_bits(float x) {
    return KVC_EITHER(__float_as_uint(x), kvc_float_to_bits(x));
}
/* Change a number that other warps change as well. */
KVC_DEVICE void kvc_add_shared32(uint32_t *to, uint32_t x) {
    KVC_EITHER(atomicAdd(to, x), *to += x);
}
KVC_DEVICE void kvc_or_shared32(uint32_t *to, uint32_t x) {
    KVC_EITHER(atomicOr(to, x), *to |= x);
}
/* Adds, and returns the number before. */
KVC_DEVICE uint32_t kvc_take_shared32(uint32_t *from, uint32_t x) {
    return KVC_EITHER(atomicAdd(from, x), (*from += x) - x);
}
KVC_DEVICE void kvc_add_shared64(uint64_t *to, uint64_t x) {
    KVC_EITHER(atomicAdd((unsigned long long *)to, (unsigned long long)x), *to += x);
}

#endif
