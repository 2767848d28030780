/* simt.h: the part of CUDA C++ that the device decoder uses, for the host's compilers, so that the
 * code for GPUs (kernels/device/decode.cu, and #ifdef __CUDACC__) runs on the host: warps of lanes
 * that advance apart from each other, in several blocks, with CUDA's memory order (simt.c). Not for
 * code that runs on GPUs. What decode.cu does not use is missing here, except for the masks of
 * warps and for __syncthreads(). C11 and C++ both compile this file. */
#ifndef KVC_SIMT_H
#define KVC_SIMT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* --- how the layer runs --- */

/* Threads of a block, blocks of a launch, at most. ThreadSanitizer knows 255 threads at a time
 * without loss. */
enum { SIMT_THREADS = 128, SIMT_BLOCKS = 2 };

/* Orders in which the lanes of a block run, each until it waits: by ascending number, by descending
 * number, random. */
enum simt_order { SIMT_ASCENDING, SIMT_DESCENDING, SIMT_RANDOM, SIMT_ORDERS };

typedef void simt_kernel(void *arguments);

#ifdef __cplusplus
extern "C" {
#endif

/* Lets the next launches run in this order; a seed makes a random order. */
void simt_set_order(enum simt_order order, uint32_t seed);

/* Runs a kernel in `blocks` blocks of `threads` threads, a multiple of 32, and waits for its end.
 * What the caller did before is visible to the kernel, and conversely. A fault of the kernel is
 * printed and ends the program: lanes that wait for each other at different functions or with
 * different masks, lanes that wait for ever, values of lanes that take no part. */
void simt_run(simt_kernel *kernel, void *arguments, unsigned blocks, unsigned threads);

/* What lanes meet for. Only __syncwarp() and __syncthreads() make memory of other lanes visible, as
 * CUDA promises no more. */
enum simt_meeting { SIMT_SYNC_WARP, SIMT_SYNC_BLOCK, SIMT_BALLOT, SIMT_SHUFFLE };

/* Waits for the lanes of the mask. SIMT_BALLOT returns a bit for each lane whose x is not 0,
 * SIMT_SHUFFLE lane `from`'s x. */
uint64_t simt_meet(enum simt_meeting meeting, uint32_t mask, uint64_t x, unsigned from);

/* Lets other lanes run: always when `wait` is 1, else as the order has it. */
void simt_pause(int wait);

/* Returns the number of this lane's thread in its block. */
unsigned simt_thread(void);

#ifdef __cplusplus
}
#endif

/* --- CUDA's names --- */

#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#ifdef __cplusplus
#define __shared__ static thread_local /* a block is a thread of the host */
#else
#define __shared__ static _Thread_local
#endif

struct simt_index {
    unsigned x;
};
static inline struct simt_index simt_index(void) {
    const struct simt_index index = {simt_thread()};
    return index;
}
#define threadIdx simt_index()

/* --- lanes --- */

static inline void __syncwarp(uint32_t mask) {
    simt_meet(SIMT_SYNC_WARP, mask, 0, 0);
}
static inline void __syncthreads(void) {
    simt_meet(SIMT_SYNC_BLOCK, 0, 0, 0);
}
static inline uint32_t __ballot_sync(uint32_t mask, int x) {
    return (uint32_t)simt_meet(SIMT_BALLOT, mask, x != 0, 0);
}
static inline int __any_sync(uint32_t mask, int x) {
    return __ballot_sync(mask, x) != 0;
}
static inline int __all_sync(uint32_t mask, int x) {
    return __ballot_sync(mask, !x) == 0;
}
static inline uint64_t __shfl_sync(uint32_t mask, uint64_t x, int from) {
    return simt_meet(SIMT_SHUFFLE, mask, x, (unsigned)from % 32);
}
static inline uint64_t __shfl_up_sync(uint32_t mask, uint64_t x, unsigned step) {
    const unsigned lane = simt_thread() % 32;
    return simt_meet(SIMT_SHUFFLE, mask, x, lane < step ? lane : lane - step);
}
static inline uint64_t __shfl_xor_sync(uint32_t mask, uint64_t x, int with) {
    return simt_meet(SIMT_SHUFFLE, mask, x, (simt_thread() ^ (unsigned)with) % 32);
}
#ifdef __cplusplus
static inline void __syncwarp(void) {
    __syncwarp(0xffffffffu);
}
#endif

/* --- memory --- */

/* Atomic, but without order, as in CUDA. */
#define atomicAdd(to, x) (simt_pause(0), __atomic_fetch_add(to, x, __ATOMIC_RELAXED))
#define atomicOr(to, x) (simt_pause(0), __atomic_fetch_or(to, x, __ATOMIC_RELAXED))
static inline void __nanosleep(unsigned ns) {
    (void)ns;
    simt_pause(1);
}

typedef struct __align__(8) uint2 {
    uint32_t x, y;
}
uint2;
typedef struct __align__(16) uint4 {
    uint32_t x, y, z, w;
}
uint4;
static inline uint2 make_uint2(uint32_t x, uint32_t y) {
    const uint2 v = {x, y};
    return v;
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    const uint4 v = {x, y, z, w};
    return v;
}

/* --- arithmetic --- */

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
static inline float __fsqrt_rn(float a) {
    return sqrtf(a);
}
static inline int __float2int_rn(float a) {
    return (int)rintf(a);
}
static inline double __dadd_rn(double a, double b) {
    return a + b;
}
static inline double __dmul_rn(double a, double b) {
    return a * b;
}
static inline float __double2float_rn(double a) {
    return (float)a;
}
static inline float __uint_as_float(uint32_t x) {
    float f;
    memcpy(&f, &x, sizeof f);
    return f;
}
static inline uint32_t __float_as_uint(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)a * b >> 64);
}
static inline int __dp4a(int a, int b, int sum) {
    for (int i = 0; i < 32; i += 8)
        sum += (int8_t)((unsigned)a >> i & 255u) * (int8_t)((unsigned)b >> i & 255u);
    return sum;
}

#endif
