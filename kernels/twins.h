/* twins.h: every kernel by name, for the tables of the instruction sets and for the tails of fast twins. What each does
 * stands in kernels.h; a set need not define all. */
#ifndef KVC_TWINS_H
#define KVC_TWINS_H

#include "kernels/kernels.h"

#define KVC_TWINS(isa)                                                                                                 \
    void kvc_split_planes_##isa(uint8_t *dst, const uint8_t *src, size_t n, size_t size);                              \
    void kvc_merge_planes_##isa(uint8_t *dst, const uint8_t *src, size_t n, size_t size);                              \
    void kvc_f16_to_f32_##isa(float *dst, const uint8_t *src, size_t n);                                               \
    void kvc_bf16_to_f32_##isa(float *dst, const uint8_t *src, size_t n);                                              \
    void kvc_rans_decode_##isa(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base, size_t n,          \
                               const uint32_t *table, unsigned bits);                                                  \
    void kvc_rans_encode_##isa(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n,                          \
                               const struct kvc_rans_symbol *table, unsigned bits);                                    \
    void kvc_cut_words_##isa(uint16_t *symbols, uint8_t *low, const uint16_t *words, const uint16_t *bias,             \
                             const uint16_t *context, size_t n, unsigned shift, uint16_t mask);                        \
    void kvc_join_words_##isa(uint16_t *words, const uint16_t *symbols, const uint16_t *bias, const uint8_t *low,      \
                              size_t n, unsigned shift, uint16_t mask);                                                \
    void kvc_cut_rotated_##isa(uint8_t *low, uint8_t *high, const uint16_t *words, const uint16_t *bias, size_t n);    \
    void kvc_join_rotated_##isa(uint16_t *words, const uint8_t *low, const uint8_t *high, const uint16_t *bias,        \
                                size_t n);                                                                             \
    void kvc_pack_bits_##isa(uint8_t *dst, const uint8_t *values, size_t n, unsigned width);                           \
    void kvc_unpack_bits_##isa(uint8_t *values, const uint8_t *src, size_t n, unsigned width);                         \
    void kvc_model_words_##isa(uint16_t *bias, uint16_t *context, const struct kvc_model_channels *channels,           \
                               const float *cosine, const float *sine, size_t n, size_t period,                        \
                               const struct kvc_word_format *format, unsigned context_shift);                          \
    void kvc_model_sums_##isa(const struct kvc_model_sums *sums, const float *x, const float *cosine,                  \
                              const float *sine, size_t n, size_t period);                                             \
    void kvc_model_turn_##isa(float *cosine, float *sine, const float *step_cosine, const float *step_sine, size_t n); \
    void kvc_f32_to_f16_##isa(uint8_t *dst, const float *src, size_t n);                                               \
    void kvc_f32_to_bf16_##isa(uint8_t *dst, const float *src, size_t n);                                              \
    void kvc_widen_ranges_##isa(float *low, float *high, const float *x, size_t n);                                    \
    void kvc_range_##isa(const float *x, size_t n, float *low, float *high);                                           \
    void kvc_quantise_##isa(uint8_t *codes, const float *x, const float *low, const float *inverse, size_t n,          \
                            size_t group, float most);                                                                 \
    void kvc_dequantise_##isa(float *x, const uint8_t *codes, const float *step, const float *low, size_t n,           \
                              size_t group);                                                                           \
    void kvc_dequantise_add_##isa(float *x, const uint8_t *codes, const float *step, const float *low, size_t n,       \
                                  size_t group);                                                                       \
    void kvc_multiply_rows_##isa(float *y, const float *a, const float *b, size_t k, size_t stride, size_t n);         \
    void kvc_multiply_tile_##isa(float *y, size_t y_stride, const float *a, size_t a_stride, size_t rows,              \
                                 const float *b, size_t k);                                                            \
    void kvc_add_scaled_##isa(float *y, const float *x, float s, size_t n);                                            \
    void kvc_scale_##isa(float *y, const float *x, float s, size_t n);                                                 \
    void kvc_multiply_##isa(float *y, const float *x, size_t n);                                                       \
    float kvc_dot_##isa(const float *a, const float *b, size_t n);                                                     \
    float kvc_exponentials_##isa(float *x, size_t n, float most);                                                      \
    void kvc_multiply_sparse_##isa(float *y, const float *a, const float *b, size_t k, size_t stride, size_t n);       \
    void kvc_angles_##isa(float *cosine, float *sine, const double *a, const double *b, size_t n);                     \
    void kvc_turn_halves_##isa(float *u, float *v, const float *cosine, const float *sine, size_t n);                  \
    void kvc_turn_pairs_##isa(float *x, const float *cosine, const float *sine, size_t n);                             \
    uint16_t kvc_symbols_to_floats_##isa(float *y, const uint16_t *symbols, size_t n, uint16_t middle, float step); \
    void kvc_round_codes_##isa(int32_t *codes, const float *x, size_t n, float inverse, float most);                    \
    size_t kvc_codes_to_symbols_##isa(uint16_t *symbols, uint16_t *others, const int32_t *codes, const uint16_t *base, \
                                      const uint8_t *limit, size_t n, uint16_t middle)

KVC_TWINS(ref);
#if defined(__x86_64__)
KVC_TWINS(avx2);
KVC_TWINS(avx512);
#endif

#endif
