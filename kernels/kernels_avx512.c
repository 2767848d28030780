/* kernels_avx512.c: the table for AVX-512 (F, BW, VL, DQ): its own rANS, which dispatch.c takes where it is faster than AVX2's,
 * the rest AVX2's. Not compiled elsewhere. */
#include "kernels/twins.h"

#if defined(__x86_64__)

const struct kvc_kernels kvc_kernels_avx512 = {
    .name = "avx512",
    .split_planes = kvc_split_planes_avx2,
    .merge_planes = kvc_merge_planes_avx2,
    .f16_to_f32 = kvc_f16_to_f32_avx2,
    .bf16_to_f32 = kvc_bf16_to_f32_avx2,
    .rans_decode = kvc_rans_decode_avx512,
    .rans_encode = kvc_rans_encode_avx512,
    .cut_words = kvc_cut_words_avx2,
    .join_words = kvc_join_words_avx2,
    .cut_rotated = kvc_cut_rotated_avx2,
    .join_rotated = kvc_join_rotated_avx2,
    .pack_bits = kvc_pack_bits_avx2,
    .unpack_bits = kvc_unpack_bits_avx2,
    .model_words = kvc_model_words_avx2,
    .model_sums = kvc_model_sums_avx2,
    .model_turn = kvc_model_turn_avx2,
    .f32_to_f16 = kvc_f32_to_f16_avx2,
    .f32_to_bf16 = kvc_f32_to_bf16_avx2,
    .widen_ranges = kvc_widen_ranges_avx2,
    .range = kvc_range_avx2,
    .quantise = kvc_quantise_avx2,
    .dequantise = kvc_dequantise_avx2,
    .dequantise_add = kvc_dequantise_add_avx2,
    .multiply_rows = kvc_multiply_rows_avx2,
    .multiply_tile = kvc_multiply_tile_avx2,
    .add_scaled = kvc_add_scaled_avx2,
    .scale = kvc_scale_avx2,
    .multiply = kvc_multiply_avx2,
    .dot = kvc_dot_avx2,
    .exponentials = kvc_exponentials_avx2,
    .multiply_sparse = kvc_multiply_sparse_avx2,
    .angles = kvc_angles_avx2,
    .turn_halves = kvc_turn_halves_avx2,
    .turn_pairs = kvc_turn_pairs_avx2,
    .symbols_to_floats = kvc_symbols_to_floats_avx2,
    .round_codes = kvc_round_codes_avx2,
    .codes_to_symbols = kvc_codes_to_symbols_avx2,
};

#else
typedef int kvc_no_avx512; /* ISO C wants one declaration in a file */
#endif
