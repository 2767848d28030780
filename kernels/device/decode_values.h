/* decode_values.h: single values as the device decoder meets them: packed bits, halves and other
 * dtypes. One source for GPU and host (warp.h). Not for where they lie (decode_rows.h). */
#ifndef KVC_DECODE_VALUES_H
#define KVC_DECODE_VALUES_H

#include "kernels/device/launch.h"
#include "kernels/device/warp.h"

/* Addresses are numbers, of the memory of the machine that runs this. */
#define KVC_BYTES(address) ((const uint8_t *)(uintptr_t)(address))
#define KVC_WORDS(address) ((const uint32_t *)(uintptr_t)(address))
#define KVC_FLOATS(address) ((const float *)(uintptr_t)(address))

/* Little-endian numbers at any address. */
KVC_DEVICE uint32_t kvc_load16(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8;
}
KVC_DEVICE uint32_t kvc_load32(const uint8_t *p) {
    return kvc_load16(p) | kvc_load16(p + 2) << 16;
}

/* Four words that are loaded and stored together. */
struct kvc_four {
    uint32_t at[4];
};

/* Loads and stores at multiples of their size, in one access each. */
#ifdef __CUDACC__
KVC_DEVICE uint32_t kvc_aligned16(const uint8_t *p) {
    return *(const uint16_t *)p;
}
KVC_DEVICE uint32_t kvc_aligned32(const uint8_t *p) {
    return *(const uint32_t *)p;
}
KVC_DEVICE struct kvc_four kvc_load_four(const void *p) {
    const uint4 v = *(const uint4 *)p;
    const struct kvc_four four = {{v.x, v.y, v.z, v.w}};
    return four;
}
KVC_DEVICE void kvc_load_two(const void *p, uint32_t *a, uint32_t *b) {
    const uint2 v = *(const uint2 *)p;
    *a = v.x;
    *b = v.y;
}
KVC_DEVICE void kvc_store_four(void *p, struct kvc_four four) {
    *(uint4 *)p = make_uint4(four.at[0], four.at[1], four.at[2], four.at[3]);
}
KVC_DEVICE void kvc_store_two(void *p, uint32_t a, uint32_t b) {
    *(uint2 *)p = make_uint2(a, b);
}
KVC_DEVICE void kvc_store_one(void *p, uint32_t a) {
    *(uint32_t *)p = a;
}
#else
/* Traps misaligned access on the host too: a GPU faults on it. */
KVC_DEVICE void kvc_must_be_aligned(const void *p, uintptr_t to) {
    if ((uintptr_t)p % to) __builtin_trap();
}
KVC_DEVICE uint32_t kvc_aligned16(const uint8_t *p) {
    kvc_must_be_aligned(p, 2);
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
KVC_DEVICE uint32_t kvc_aligned32(const uint8_t *p) {
    kvc_must_be_aligned(p, 4);
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
KVC_DEVICE struct kvc_four kvc_load_four(const void *p) {
    kvc_must_be_aligned(p, 16);
    struct kvc_four four;
    memcpy(&four, p, sizeof four);
    return four;
}
KVC_DEVICE void kvc_load_two(const void *p, uint32_t *a, uint32_t *b) {
    kvc_must_be_aligned(p, 8);
    memcpy(a, p, sizeof *a);
    memcpy(b, (const uint8_t *)p + 4, sizeof *b);
}
KVC_DEVICE void kvc_store_four(void *p, struct kvc_four four) {
    kvc_must_be_aligned(p, 16);
    memcpy(p, &four, sizeof four);
}
KVC_DEVICE void kvc_store_two(void *p, uint32_t a, uint32_t b) {
    kvc_must_be_aligned(p, 8);
    const uint32_t two[2] = {a, b};
    memcpy(p, two, sizeof two);
}
KVC_DEVICE void kvc_store_one(void *p, uint32_t a) {
    kvc_must_be_aligned(p, 4);
    memcpy(p, &a, sizeof a);
}
#endif

/* Returns byte i of a word. */
KVC_DEVICE uint32_t kvc_byte_of(uint32_t word, uint32_t i) {
    return word >> 8 * i & 255u;
}

/* What value i, or values i to i + 3, of an array packed in `width` bits is made of. Loading it
 * apart from making it lets other loads be issued meanwhile: lanes wait where a loaded number is
 * first used. Parts of 4, 2 and 1 bits; with 8 bits, the first part alone is used. */
struct kvc_packed {
    uint32_t four, two, one;
};

/* Loads value i, or with `fours` values i to i + 3, of an array packed in `width` bits, 0 to 8
 * (split.md, quant.md: groups of 32; 8: a byte each). For fours, i and p are multiples of 4: in
 * each part of a group the four values are in four adjacent bytes, at one shift. */
KVC_DEVICE struct kvc_packed kvc_packed_load(const uint8_t *p, uint32_t i, uint32_t width,
                                             const uint32_t fours) {
    struct kvc_packed x = {0, 0, 0};
    const uint32_t j = i % 32;
    if (width == 8) {
        x.four = fours ? kvc_aligned32(p + i) : p[i];
        return x;
    }
    p += (uint64_t)(i / 32) * 4 * width;
    if (width & 4) {
        x.four = fours ? kvc_aligned32(p + j % 16) : p[j % 16];
        p += 16;
    }
    if (width & 2) {
        x.two = fours ? kvc_aligned32(p + j % 8) : p[j % 8];
        p += 8;
    }
    if (width & 1) x.one = fours ? kvc_aligned32(p) : p[j % 4];
    return x;
}

/* Returns the value, or the four values as the bytes of a word. */
KVC_DEVICE uint32_t kvc_packed_value(struct kvc_packed x, uint32_t i, uint32_t width,
                                     const uint32_t fours) {
    const uint32_t j = i % 32, each = fours ? 0x01010101u : 1u;
    if (width == 8) return x.four;
    uint32_t value = 0, shift = 0;
    if (width & 4) {
        value = x.four >> (j / 16 * 4) & 15u * each;
        shift = 4;
    }
    if (width & 2) {
        value |= (x.two >> (j / 8 * 2) & 3u * each) << shift;
        shift += 2;
    }
    if (width & 1) value |= (x.one >> (j / 4) & each) << shift;
    return value;
}

KVC_DEVICE uint32_t kvc_unpack(const uint8_t *p, uint32_t i, uint32_t width) {
    const struct kvc_packed x = kvc_packed_load(p, i, width, 0);
    return kvc_packed_value(x, i, width, 0);
}

KVC_DEVICE float kvc_from_half(uint32_t h) {
#ifdef __CUDACC__
    if ((h & 0x7fffu) <= 0x7c00u) return kvc_convert_from_half(h); /* NaN keeps its bits below */
#endif
    const uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return kvc_as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u) return kvc_as_float(sign | ((rest << 13) + 0x38000000u));
    return kvc_as_float(
        sign | kvc_as_bits(kvc_times((float)rest,
                                     kvc_as_float(0x33800000u)))); /* subnormal: rest * 2^-24 */
}

/* Rounds to nearest even; a NaN becomes the quiet one, as by kvc_float_to_half() of convert.c. */
KVC_DEVICE uint32_t kvc_to_half(uint32_t bits) {
#ifdef __CUDACC__
    if ((bits & 0x7fffffffu) <= 0x7f800000u) return kvc_convert_to_half(kvc_as_float(bits));
#endif
    const uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return 0x7e00u;
    if (rest >= 0x477ff000u) return sign | 0x7c00u;
    if (rest < 0x33000001u) return sign;
    const int subnormal = rest < 0x38800000u;
    const uint32_t shift = subnormal ? 126 - (rest >> 23) : 13;
    const uint32_t mantissa = subnormal ? (rest & 0x7fffffu) | 0x800000u : rest - 0x38000000u;
    const uint32_t left = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1),
                   half = mantissa >> shift;
    return sign | (half + (left > tie || (left == tie && (half & 1u))));
}

KVC_DEVICE uint32_t kvc_to_bfloat(uint32_t bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

/* Rounds binary32 to nearest even in 8 bits, `mantissa` of them mantissa, with this bias. Codes
 * above `most` become `most`, NaN becomes `nan`: OCP FP8 with saturation, as engines store caches.
 */
KVC_DEVICE uint32_t kvc_to_f8(uint32_t bits, uint32_t mantissa, uint32_t bias, uint32_t most,
                              uint32_t nan) {
    const uint32_t sign = bits >> 24 & 0x80u, rest = bits & 0x7fffffffu, drop = 23 - mantissa,
                   least = 128 - bias;
    if (rest > 0x7f800000u) return sign | nan;
    uint32_t exponent = rest >> 23, whole, shift = drop;
    if (exponent < least) { /* subnormal there */
        if (exponent + 25 < least) return sign;
        whole = ((rest & 0x7fffffu) | (exponent ? 0x800000u : 0u));
        shift = drop + least - (exponent ? exponent : 1);
        if (shift > 31) return sign;
    } else {
        whole = rest - ((least - 1) << 23);
    }
    const uint32_t left = whole & ((1u << shift) - 1), tie = 1u << (shift - 1);
    uint32_t code = whole >> shift;
    code += left > tie || (left == tie && (code & 1u));
    return sign | (code < most ? code : most);
}

/* Converts a value of a dtype, in the low bits of a word, to binary32. */
KVC_DEVICE float kvc_widen(uint32_t word, uint32_t dtype) {
    if (dtype == KVC_DEVICE_F32) return kvc_as_float(word);
    if (dtype == KVC_DEVICE_BF16) return kvc_as_float(word << 16);
    if (dtype == KVC_DEVICE_F16) return kvc_from_half(word);
    if (dtype == KVC_DEVICE_F8E5M2) return kvc_from_half(word << 8);
    if (dtype == KVC_DEVICE_I8) return (float)(int8_t)(uint8_t)word;
    if (dtype == KVC_DEVICE_U8) return (float)word;
    const uint32_t sign = (word & 0x80u) << 24, exponent = word >> 3 & 15u, low = word & 7u;
    if (exponent == 15 && low == 7) return kvc_as_float(sign | 0x7fc00000u);
    if (exponent) return kvc_as_float(sign | (exponent + 120) << 23 | low << 20);
    return kvc_as_float(
        sign | kvc_as_bits(kvc_times((float)low, kvc_as_float(0x3b000000u)))); /* low * 2^-9 */
}

/* Rounds binary32 to nearest even in a dtype. Values beyond the range of binary16 become its
 * maximum, any NaN the quiet one (FORMAT.md, "Pipelines"). */
KVC_DEVICE uint32_t kvc_round(float x, uint32_t dtype) {
    const uint32_t bits = kvc_as_bits(x);
    if (dtype == KVC_DEVICE_BF16) return kvc_to_bfloat(bits);
    if (dtype == KVC_DEVICE_F16) {
        const uint32_t half = kvc_to_half(bits);
        return (half & 0x7fffu) == 0x7c00u ? half - 1 : half;
    }
    if (dtype == KVC_DEVICE_F8E4M3) return kvc_to_f8(bits, 3, 7, 0x7e, 0x7f);
    if (dtype == KVC_DEVICE_F8E5M2) return kvc_to_f8(bits, 2, 15, 0x7b, 0x7f);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
}

/* Returns the bytes of a value of a dtype. */
KVC_DEVICE uint32_t kvc_value_bytes(uint32_t dtype) {
    return dtype == KVC_DEVICE_F32                               ? 4
           : dtype == KVC_DEVICE_F16 || dtype == KVC_DEVICE_BF16 ? 2
                                                                 : 1;
}

/* Returns value i of an array of values of `size` bytes. */
KVC_DEVICE uint32_t kvc_value_at(const uint8_t *p, uint64_t i, uint32_t size) {
    return size == 2 ? kvc_load16(p + 2 * i) : size == 1 ? p[i] : kvc_load32(p + 4 * i);
}

#endif
