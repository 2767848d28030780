/* kernels_ref.c: portable reference of every kernel in struct kvc_kernels. Not for speed. */
#include "kernels/kernels.h"

#include <string.h>

static void split_planes_ref(uint8_t *dst, const uint8_t *src, size_t n, size_t size) {
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[b * n + i] = src[i * size + b];
}

static void merge_planes_ref(uint8_t *dst, const uint8_t *src, size_t n, size_t size) {
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[i * size + b] = src[b * n + i];
}

static void f16_to_f32_ref(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] = kvc_half_to_float((uint16_t)(src[2 * i] | src[2 * i + 1] << 8));
}

static void bf16_to_f32_ref(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)src[2 * i] << 16 | (uint32_t)src[2 * i + 1] << 24;
        memcpy(dst + i, &bits, sizeof bits);
    }
}

const struct kvc_kernels kvc_kernels_ref = {
    .name = "ref",
    .split_planes = split_planes_ref,
    .merge_planes = merge_planes_ref,
    .f16_to_f32 = f16_to_f32_ref,
    .bf16_to_f32 = bf16_to_f32_ref,
};
