/* ggml_blocks.c: ggml's block types to binary32. Layouts: ggml/src/ggml-common.h, structs block_*;
 * arithmetic: ggml/src/ggml-quants.c, dequantize_row_*. Not for hot paths. */
#include "kernels/kernels.h"

static float half_at(const uint8_t *p) {
    return kvc_half_to_float((uint16_t)(p[0] | p[1] << 8));
}

/* kvalues_iq4nl of ggml/src/ggml-common.h */
static const int8_t iq4_value[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

/* --- blocks of 32 values --- */

void kvc_q8_0_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 34, dst += 32) {
        float d = half_at(src);
        for (int j = 0; j < 32; j++) dst[j] = (float)(int8_t)src[2 + j] * d;
    }
}

void kvc_q4_0_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 18, dst += 32) {
        float d = half_at(src);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)((src[2 + j] & 15) - 8) * d;
            dst[j + 16] = (float)((src[2 + j] >> 4) - 8) * d;
        }
    }
}

void kvc_q4_1_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 20, dst += 32) {
        float d = half_at(src), m = half_at(src + 2);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)(src[4 + j] & 15) * d + m;
            dst[j + 16] = (float)(src[4 + j] >> 4) * d + m;
        }
    }
}

static uint32_t word_at(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void kvc_q5_0_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 22, dst += 32) {
        float d = half_at(src);
        uint32_t high = word_at(src + 2);
        for (int j = 0; j < 16; j++) {
            int lo = (src[6 + j] & 15) | (int)(high >> j & 1) << 4;
            int hi = (src[6 + j] >> 4) | (int)(high >> (j + 16) & 1) << 4;
            dst[j] = (float)(lo - 16) * d;
            dst[j + 16] = (float)(hi - 16) * d;
        }
    }
}

void kvc_q5_1_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 24, dst += 32) {
        float d = half_at(src), m = half_at(src + 2);
        uint32_t high = word_at(src + 4);
        for (int j = 0; j < 16; j++) {
            int lo = (src[8 + j] & 15) | (int)(high >> j & 1) << 4;
            int hi = (src[8 + j] >> 4) | (int)(high >> (j + 16) & 1) << 4;
            dst[j] = (float)lo * d + m;
            dst[j + 16] = (float)hi * d + m;
        }
    }
}

void kvc_iq4_nl_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 18, dst += 32) {
        float d = half_at(src);
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)iq4_value[src[2 + j] & 15];
            dst[j + 16] = d * (float)iq4_value[src[2 + j] >> 4];
        }
    }
}

/* --- blocks of 256 values: parts of 16 or 32, whose scales are integers times the block's --- */

enum { LARGE = KVC_GGML_LARGE };

static unsigned bits(unsigned byte, unsigned from, unsigned mask) {
    return byte >> from & mask;
}

/* Four values in two bits each: bits 2 p and 2 p + 1 of 32 bytes are part p of each half block. */
static unsigned two_bits(const uint8_t *src, unsigned i) {
    return bits(src[i / 128 * 32 + i % 32], i % 128 / 32 * 2, 3);
}

void kvc_q2_k_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 84, dst += LARGE) {
        const float d = half_at(src + 80), m = half_at(src + 82);
        for (unsigned i = 0; i < LARGE; i++) {
            const unsigned scale = src[i / 16];
            dst[i] = d * (float)(scale & 15) * (float)two_bits(src + 16, i) -
                     m * (float)(scale >> 4);
        }
    }
}

/* Returns scale `part` of 16, 6 bits: the low four in bytes 0 to 7, the high two in 8 to 11. */
static int q3_scale(const uint8_t *scales, unsigned part) {
    const unsigned low = bits(scales[part % 8], part / 8 * 4, 15),
                   high = bits(scales[8 + part % 4], part / 4 * 2, 3);
    return (int)(low | high << 4) - 32;
}

void kvc_q3_k_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 110, dst += LARGE) {
        const float d = half_at(src + 108);
        for (unsigned i = 0; i < LARGE; i++) {
            const int low = (int)two_bits(src + 32, i),
                      least = bits(src[i % 32], i / 32, 1) ? 0 : 4;
            dst[i] = d * (float)q3_scale(src + 96, i / 16) * (float)(low - least);
        }
    }
}

/* Gives scale and minimum of part `part` of 8, 6 bits each: of the first four parts in bytes 0 to 3
 * and 4 to 7; of the last four in the halves of bytes 8 to 11, and the high bits of the former. */
static void q4_scales(const uint8_t *scales, unsigned part, unsigned *scale, unsigned *minimum) {
    const uint8_t *first = scales + part % 4, *last = first + 8;
    *scale = part < 4 ? first[0] & 63u : bits(*last, 0, 15) | bits(first[0], 6, 3) << 4;
    *minimum = part < 4 ? first[4] & 63u : bits(*last, 4, 15) | bits(first[4], 6, 3) << 4;
}

/* q4_K and q5_K: the low four bits of parts 2 p and 2 p + 1 are the halves of 32 bytes; the fifth
 * bit of part p is bit p of `high`, NULL: none. */
static void large_with_minimum(float *dst, const uint8_t *src, const uint8_t *high,
                               const uint8_t *low) {
    const float d = half_at(src), m = half_at(src + 2);
    for (unsigned part = 0; part < 8; part++) {
        unsigned scale, minimum;
        q4_scales(src + 4, part, &scale, &minimum);
        const float step = d * (float)scale, least = m * (float)minimum;
        for (unsigned j = 0; j < 32; j++) {
            unsigned q = bits(low[part / 2 * 32 + j], part % 2 * 4, 15);
            if (high) q |= bits(high[j], part, 1) << 4;
            dst[part * 32 + j] = step * (float)q - least;
        }
    }
}

void kvc_q4_k_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 144, dst += LARGE)
        large_with_minimum(dst, src, NULL, src + 16);
}

void kvc_q5_k_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 176, dst += LARGE)
        large_with_minimum(dst, src, src + 16, src + 48);
}

void kvc_q6_k_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 210, dst += LARGE) {
        const float d = half_at(src + 208);
        for (unsigned i = 0; i < LARGE; i++) {
            const unsigned low = bits(src[i / 128 * 64 + i % 64], i % 128 / 64 * 4, 15);
            const int q = (int)(low | two_bits(src + 128, i) << 4) - 32;
            dst[i] = d * (float)(int8_t)src[192 + i / 16] * (float)q;
        }
    }
}

void kvc_iq4_xs_to_f32(float *dst, const uint8_t *src, size_t n) {
    for (size_t b = 0; b < n; b++, src += 136, dst += LARGE) {
        const float d = half_at(src);
        for (unsigned part = 0; part < 8; part++) {
            const unsigned low = bits(src[4 + part / 2], part % 2 * 4, 15),
                           high = bits(src[2 + part / 4], part % 4 * 2, 3);
            const float step = d * (float)((int)(low | high << 4) - 32);
            const uint8_t *q = src + 8 + part * 16;
            for (unsigned j = 0; j < 16; j++) {
                dst[part * 32 + j] = step * (float)iq4_value[q[j] & 15];
                dst[part * 32 + 16 + j] = step * (float)iq4_value[q[j] >> 4];
            }
        }
    }
}
