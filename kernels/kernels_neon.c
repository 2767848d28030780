/* kernels_neon.c: NEON twins of kernels_ref.c, same bytes for every input, and the tables for NEON and for the same with dot products
 * of bytes. Not compiled on other machines. */
#include "kernels/twins.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <string.h>

void kvc_split_planes_neon(uint8_t *dst, const uint8_t *src, size_t n, size_t size) {
    size_t i = 0;
    for (; size == 2 && i + 16 <= n; i += 16) {
        const uint8x16x2_t v = vld2q_u8(src + 2 * i);
        vst1q_u8(dst + i, v.val[0]);
        vst1q_u8(dst + n + i, v.val[1]);
    }
    for (; size == 4 && i + 16 <= n; i += 16) {
        const uint8x16x4_t v = vld4q_u8(src + 4 * i);
        vst1q_u8(dst + i, v.val[0]);
        vst1q_u8(dst + n + i, v.val[1]);
        vst1q_u8(dst + 2 * n + i, v.val[2]);
        vst1q_u8(dst + 3 * n + i, v.val[3]);
    }
    for (; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[b * n + i] = src[i * size + b];
}

void kvc_merge_planes_neon(uint8_t *dst, const uint8_t *src, size_t n, size_t size) {
    size_t i = 0;
    for (; size == 2 && i + 16 <= n; i += 16) {
        const uint8x16x2_t v = {{vld1q_u8(src + i), vld1q_u8(src + n + i)}};
        vst2q_u8(dst + 2 * i, v);
    }
    for (; size == 4 && i + 16 <= n; i += 16) {
        const uint8x16x4_t v = {{vld1q_u8(src + i), vld1q_u8(src + n + i), vld1q_u8(src + 2 * n + i), vld1q_u8(src + 3 * n + i)}};
        vst4q_u8(dst + 4 * i, v);
    }
    for (; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[i * size + b] = src[b * n + i];
}

void kvc_copy_pieces_neon(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step, size_t n, size_t size, int past) {
    (void)past;
    for (size_t i = 0; i < n;
         i++, dst += to_step, src += from_step) { /* heads are whole vectors, mostly a few: no call for each */
        size_t b = 0;
        for (; size < 1024 && b + 16 <= size; b += 16) vst1q_u8(dst + b, vld1q_u8(src + b));
        if (b < size) memcpy(dst + b, src + b, size - b);
    }
}

static inline uint32x4_t load_row(const uint8_t *src) {
    return vreinterpretq_u32_u8(vld1q_u8(src));
}

/* Stores the low halves, or the high halves, of a and b as one row. */
static inline void store_low(uint8_t *dst, uint32x4_t a, uint32x4_t b) {
    vst1q_u8(dst, vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b))));
}
static inline void store_high(uint8_t *dst, uint32x4_t a, uint32x4_t b) {
    vst1q_u8(dst, vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b))));
}

/* Interleaves the low halves, or the high halves, of two rows value by value. */
static inline uint32x4_t zip_low(uint32x4_t a, uint32x4_t b) {
    return vreinterpretq_u32_u16(vzip1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}
static inline uint32x4_t zip_high(uint32x4_t a, uint32x4_t b) {
    return vreinterpretq_u32_u16(vzip2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}

/* Four columns of eight rows, given as pairs of rows interleaved: pairs of pairs, then whole columns. */
static inline void store_columns(uint8_t *dst, size_t to, uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
    const uint32x4_t top_low = vzip1q_u32(a, b), top_high = vzip2q_u32(a, b);
    const uint32x4_t bottom_low = vzip1q_u32(c, d), bottom_high = vzip2q_u32(c, d);
    store_low(dst, top_low, bottom_low);
    store_high(dst + to, top_low, bottom_low);
    store_low(dst + 2 * to, top_high, bottom_high);
    store_high(dst + 3 * to, top_high, bottom_high);
}

static inline void transpose_eight(uint8_t *dst, size_t to, const uint8_t *src, size_t from) {
    const uint32x4_t a = load_row(src), b = load_row(src + from), c = load_row(src + 2 * from), d = load_row(src + 3 * from);
    src += 4 * from;
    const uint32x4_t e = load_row(src), f = load_row(src + from), g = load_row(src + 2 * from), h = load_row(src + 3 * from);
    store_columns(dst, to, zip_low(a, b), zip_low(c, d), zip_low(e, f), zip_low(g, h));
    store_columns(dst + 4 * to, to, zip_high(a, b), zip_high(c, d), zip_high(e, f), zip_high(g, h));
}

void kvc_transpose_2_neon(uint8_t *dst, size_t to, const uint8_t *src, size_t from, size_t rows, size_t columns) {
    const size_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
    for (size_t c = 0; c < whole_columns; c += 8)
        for (size_t r = 0; r < whole_rows; r += 8) transpose_eight(dst + c * to + r * 2, to, src + r * from + c * 2, from);
    kvc_transpose_2_ref(dst + whole_columns * to, to, src + whole_columns * 2, from, whole_rows, columns - whole_columns);
    kvc_transpose_2_ref(dst + whole_rows * 2, to, src + whole_rows * from, from, rows - whole_rows, columns);
}

void kvc_bf16_to_f32_neon(float *dst, const uint8_t *src, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(src + 2 * i));
        vst1q_f32(dst + i, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)));
        vst1q_f32(dst + i + 4, vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16)));
    }
    kvc_bf16_to_f32_ref(dst + i, src + 2 * i, n - i);
}

void kvc_f16_to_f32_neon(float *dst, const uint8_t *src, size_t n) {
    /* FCVTL makes signalling NaNs quiet, the reference keeps their bits: eight values with an all-ones exponent among them are
     * converted by the reference. */
    const uint16x8_t exponent = vdupq_n_u16(0x7c00);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(src + 2 * i));
        if (vmaxvq_u16(vandq_u16(h, exponent)) == 0x7c00) {
            kvc_f16_to_f32_ref(dst + i, src + 2 * i, 8);
            continue;
        }
        const float16x8_t halves = vreinterpretq_f16_u16(h);
        vst1q_f32(dst + i, vcvt_f32_f16(vget_low_f16(halves)));
        vst1q_f32(dst + i + 4, vcvt_f32_f16(vget_high_f16(halves)));
    }
    kvc_f16_to_f32_ref(dst + i, src + 2 * i, n - i);
}

/* Both sets' kernels but dot_rows: xxHash takes NEON in the reference's checksums already. */
#define SHARED                           \
    KVC_KERNELS_RANS(KVC_ROW, neon)      \
    KVC_KERNELS_MODEL(KVC_ROW, neon)     \
    KVC_KERNELS_TRANSFORM(KVC_ROW, neon) \
    KVC_KERNELS_HASH(KVC_ROW, ref) KVC_KERNELS_WIDE(KVC_ROW, neon) KVC_KERNELS_REST(KVC_ROW, neon)
const struct kvc_kernels kvc_kernels_neon = {.name = "neon", SHARED KVC_KERNELS_DOT(KVC_ROW, neon)};
const struct kvc_kernels kvc_kernels_neondot = {.name = "neondot", SHARED KVC_KERNELS_DOT(KVC_ROW, neondot)};

#else
typedef int kvc_no_neon; /* ISO C wants one declaration in a file */
#endif
