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

const struct kvc_kernels kvc_kernels_ref = {
    .name = "ref",
    .split_planes = kvc_split_planes_ref,
    .merge_planes = kvc_merge_planes_ref,
    .f16_to_f32 = kvc_f16_to_f32_ref,
    .bf16_to_f32 = kvc_bf16_to_f32_ref,
    .rans_decode = kvc_rans_decode_ref,
    .rans_encode = kvc_rans_encode_ref,
    .cut_words = kvc_cut_words_ref,
    .join_words = kvc_join_words_ref,
    .cut_rotated = kvc_cut_rotated_ref,
    .join_rotated = kvc_join_rotated_ref,
    .pack_bits = kvc_pack_bits_ref,
    .unpack_bits = kvc_unpack_bits_ref,
    .model_words = kvc_model_words_ref,
    .model_sums = kvc_model_sums_ref,
    .model_turn = kvc_model_turn_ref,
    .f32_to_f16 = kvc_f32_to_f16_ref,
    .f32_to_bf16 = kvc_f32_to_bf16_ref,
    .widen_ranges = kvc_widen_ranges_ref,
    .range = kvc_range_ref,
    .quantise = kvc_quantise_ref,
    .dequantise = kvc_dequantise_ref,
    .dequantise_add = kvc_dequantise_add_ref,
    .multiply_rows = kvc_multiply_rows_ref,
    .multiply_tile = kvc_multiply_tile_ref,
    .add_scaled = kvc_add_scaled_ref,
    .scale = kvc_scale_ref,
    .multiply = kvc_multiply_ref,
    .dot = kvc_dot_ref,
    .exponentials = kvc_exponentials_ref,
    .multiply_sparse = kvc_multiply_sparse_ref,
    .angles = kvc_angles_ref,
    .turn_halves = kvc_turn_halves_ref,
    .turn_pairs = kvc_turn_pairs_ref,
    .symbols_to_floats = kvc_symbols_to_floats_ref,
    .round_codes = kvc_round_codes_ref,
    .codes_to_symbols = kvc_codes_to_symbols_ref,
};
