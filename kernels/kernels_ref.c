/* kernels_ref.c: portable reference of every kernel in struct kvc_kernels. Not for speed. */
#include "kernels/twins.h"

#include <string.h>

void kvc_split_planes_ref(uint8_t *dst, const uint8_t *src, size_t n, size_t size) {
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[b * n + i] = src[i * size + b];
}

void kvc_merge_planes_ref(uint8_t *dst, const uint8_t *src, size_t n, size_t size) {
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[i * size + b] = src[b * n + i];
}

void kvc_transpose_2_ref(uint8_t *dst, size_t to, const uint8_t *src, size_t from, size_t rows,
                         size_t columns) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            memcpy(dst + c * to + r * 2, src + r * from + c * 2, 2);
}

void kvc_f16_to_f32_ref(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++)
        dst[i] = kvc_half_to_float((uint16_t)(src[2 * i] | src[2 * i + 1] << 8));
}

void kvc_bf16_to_f32_ref(float *dst, const uint8_t *src, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)src[2 * i] << 16 | (uint32_t)src[2 * i + 1] << 24;
        memcpy(dst + i, &bits, sizeof bits);
    }
}

void kvc_copy_pieces_ref(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step,
                         size_t n, size_t size, int past) {
    (void)past;
    for (size_t i = 0; i < n; i++) memcpy(dst + i * to_step, src + i * from_step, size);
}

const struct kvc_kernels kvc_kernels_ref = {.name = "ref", KVC_KERNELS(KVC_ROW, ref)};
