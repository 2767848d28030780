/* kernels.h: the table of arithmetic kernels. Not for anything that allocates, fails or does I/O.
 *
 * Every kernel is pure: no malloc, no errno, no globals; it cannot fail when its preconditions hold.
 * Each has a portable reference (`*_ref`); faster twins must give the same bytes for every input.
 * Source and destination never overlap unless a comment allows it. */
#ifndef KVC_KERNELS_H
#define KVC_KERNELS_H

#include <stddef.h>
#include <stdint.h>

struct kvc_kernels {
    const char *name; /* "ref", "avx2", ...: what $KVC_KERNEL takes */

    /* Byte planes: dst[b * n + i] = src[i * size + b] for 0 <= i < n, 0 <= b < size.
     * src and dst hold n * size bytes; any alignment; size >= 1. */
    void (*split_planes)(uint8_t *dst, const uint8_t *src, size_t n, size_t size);
    /* The inverse: dst[i * size + b] = src[b * n + i]. */
    void (*merge_planes)(uint8_t *dst, const uint8_t *src, size_t n, size_t size);

    /* IEEE binary16 to binary32, exact; NaN payloads are kept (shifted left by 13 bits). */
    void (*f16_to_f32)(float *dst, const uint8_t *src, size_t n);
    /* bfloat16 to binary32, exact. */
    void (*bf16_to_f32)(float *dst, const uint8_t *src, size_t n);
};

extern const struct kvc_kernels kvc_kernels_ref;
#if defined(__x86_64__)
extern const struct kvc_kernels kvc_kernels_avx2;
#endif

/* The best table this CPU runs, or the one $KVC_KERNEL names. Chosen once, thread-safe.
 * NULL when $KVC_KERNEL names a table that does not exist or that this CPU cannot run. */
const struct kvc_kernels *kvc_kernels_get(void);

/* A table by name ("ref", "avx2"); NULL when unknown or when this CPU cannot run it. */
const struct kvc_kernels *kvc_kernels_find(const char *name);

/* Names of all tables in this build, best first, NULL-terminated. */
const char *const *kvc_kernels_names(void);

/* --- conversions without a fast twin: for looking at values, not for hot paths --- */

/* ggml's block types to binary32: `n` blocks of 32 values each. The arithmetic is that of ggml's
 * dequantize_row_* (ggml/src/ggml-quants.c): one fp32 product or fused multiply-add-free sum a value. */
void kvc_q8_0_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q4_0_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q4_1_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q5_0_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q5_1_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_iq4_nl_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_f8e4m3_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_f8e5m2_to_f32(float *dst, const uint8_t *src, size_t n);

/* One binary16 value, exact. */
float kvc_half_to_float(uint16_t h);
/* Round to nearest even; NaN stays NaN (quiet), overflow gives infinity. */
uint16_t kvc_float_to_half(float f);
uint16_t kvc_float_to_bf16(float f);

/* In place over n floats, n a multiple of tile and tile a power of two: each run of `tile` values x
 * becomes x H / sqrt(tile), H Sylvester's (natural order) Hadamard matrix; its own inverse. This is
 * the rotation llama.cpp applies to quantised caches (src/llama-kv-cache.cpp). */
void kvc_hadamard(float *x, size_t n, size_t tile);

#endif
