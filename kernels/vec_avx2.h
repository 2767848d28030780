/* vec_avx2.h: the functions of vec.h by AVX2, FMA and F16C. Only for vec.h, and for files of
 * AVX-512 that need one of them. */
#ifndef KVC_VEC_AVX2_H
#define KVC_VEC_AVX2_H

#include <immintrin.h>
#include <string.h>

typedef __m256 f32x8;
typedef __m256d f64x4;
typedef __m256i bits256, first_lanes;
typedef __m128i bits128;

/* Functions that are an instruction: their type, name, and the intrinsic. */
/* clang-format off */
#define KVC_ONE(type, name, op) static inline type name(type x) { return op(x); }
#define KVC_TWO(type, name, op) static inline type name(type x, type y) { return op(x, y); }
#define KVC_SHIFT(name, op) \
    static inline bits256 name(bits256 v, unsigned n) { return op(v, (int)n); }
#define KVC_CONVERT(to, name, from, op) static inline to name(from x) { return op(x); }
#define KVC_LOAD(to, name, from, op) static inline to name(const from *p) { return op(p); }
#define KVC_STORE(to, name, from, op) static inline void name(to *p, from x) { op(p, x); }
#define KVC_COMPARE(name, how) \
    static inline bits256 name(f32x8 x, f32x8 y) { \
        return _mm256_castps_si256(_mm256_cmp_ps(x, y, how)); \
    }

KVC_LOAD(f32x8, load_f32, float, _mm256_loadu_ps)
KVC_LOAD(f64x4, load_f64, double, _mm256_loadu_pd)
KVC_LOAD(bits256, load_256, void, _mm256_loadu_si256)
KVC_LOAD(bits128, load_128, void, _mm_loadu_si128)
KVC_LOAD(bits128, load_64, void, _mm_loadl_epi64)
KVC_STORE(float, store_f32, f32x8, _mm256_storeu_ps)
KVC_STORE(void, store_256, bits256, _mm256_storeu_si256)
KVC_STORE(void, store_128, bits128, _mm_storeu_si128)
KVC_STORE(void, store_past_256, bits256, _mm256_stream_si256)
KVC_STORE(void, store_past_128, bits128, _mm_stream_si128)
KVC_STORE(void, store_64, bits128, _mm_storel_epi64)

KVC_CONVERT(f32x8, set_f32, float, _mm256_set1_ps)
KVC_CONVERT(f64x4, set_f64, double, _mm256_set1_pd)
KVC_CONVERT(f32x8, f32_of_bits, bits256, _mm256_castsi256_ps)
KVC_CONVERT(f32x8, f32_of_i32, bits256, _mm256_cvtepi32_ps)
KVC_CONVERT(f32x8, f32_of_f16, bits128, _mm256_cvtph_ps)
KVC_CONVERT(bits256, bits_of_f32, f32x8, _mm256_castps_si256)
KVC_CONVERT(bits256, i32_of_f32, f32x8, _mm256_cvtps_epi32)
KVC_CONVERT(bits256, widen_8_to_16, bits128, _mm256_cvtepu8_epi16)
KVC_CONVERT(bits256, widen_8_to_32, bits128, _mm256_cvtepu8_epi32)
KVC_CONVERT(bits256, widen_16_to_32, bits128, _mm256_cvtepu16_epi32)
KVC_CONVERT(bits128, low_128, bits256, _mm256_castsi256_si128)

KVC_TWO(f32x8, add_f32, _mm256_add_ps)
KVC_TWO(f32x8, subtract_f32, _mm256_sub_ps)
KVC_TWO(f32x8, multiply_f32, _mm256_mul_ps)
KVC_TWO(f32x8, subtract_add_f32, _mm256_addsub_ps)
KVC_TWO(f32x8, min_f32, _mm256_min_ps)
KVC_TWO(f32x8, max_f32, _mm256_max_ps)
KVC_COMPARE(equal_f32, _CMP_EQ_OQ)
KVC_COMPARE(less_f32, _CMP_LT_OQ)
KVC_COMPARE(less_or_equal_f32, _CMP_LE_OQ)
KVC_TWO(f64x4, add_f64, _mm256_add_pd)
KVC_TWO(f64x4, subtract_f64, _mm256_sub_pd)
KVC_TWO(f64x4, multiply_f64, _mm256_mul_pd)
KVC_TWO(f64x4, divide_f64, _mm256_div_pd)

KVC_TWO(bits256, and_256, _mm256_and_si256)
KVC_TWO(bits256, or_256, _mm256_or_si256)
KVC_TWO(bits256, add_16, _mm256_add_epi16)
KVC_TWO(bits256, subtract_16, _mm256_sub_epi16)
KVC_TWO(bits256, add_32, _mm256_add_epi32)
KVC_TWO(bits256, subtract_32, _mm256_sub_epi32)
KVC_TWO(bits256, multiply_32, _mm256_mullo_epi32)
KVC_TWO(bits256, max_i32, _mm256_max_epi32)
KVC_TWO(bits256, min_u32, _mm256_min_epu32)
KVC_TWO(bits256, greater_i32, _mm256_cmpgt_epi32)
KVC_ONE(bits256, magnitude_i32, _mm256_abs_epi32)
KVC_SHIFT(left_16, _mm256_slli_epi16)
KVC_SHIFT(right_16, _mm256_srli_epi16)
KVC_SHIFT(left_32, _mm256_slli_epi32)
KVC_SHIFT(right_32, _mm256_srli_epi32)
KVC_TWO(bits256, left_each_32, _mm256_sllv_epi32)
KVC_TWO(bits256, right_each_32, _mm256_srlv_epi32)
KVC_TWO(bits256, left_each_64, _mm256_sllv_epi64)
KVC_TWO(bits256, right_each_64, _mm256_srlv_epi64)

KVC_TWO(bits128, or_128, _mm_or_si128)
KVC_TWO(bits128, add_128_16, _mm_add_epi16)
KVC_TWO(bits128, permute_128_8, _mm_shuffle_epi8)
KVC_TWO(bits128, zip_low_16, _mm_unpacklo_epi16)
KVC_TWO(bits128, zip_high_16, _mm_unpackhi_epi16)
KVC_TWO(bits128, zip_low_32, _mm_unpacklo_epi32)
KVC_TWO(bits128, zip_high_32, _mm_unpackhi_epi32)
KVC_TWO(bits128, zip_low_64, _mm_unpacklo_epi64)
KVC_TWO(bits128, zip_high_64, _mm_unpackhi_epi64)

/* Functions that are more. */

static inline void end_past(void) { _mm_sfence(); }
static inline first_lanes first_of_8(size_t n) {
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(const void *)(ones + 8 - n));
}
static inline f32x8 load_first_f32(const float *p, first_lanes lanes) {
    return _mm256_maskload_ps(p, lanes);
}
static inline void store_first_f32(float *p, f32x8 x, first_lanes lanes) {
    _mm256_maskstore_ps(p, lanes, x);
}
static inline f32x8 keep_first_f32(f32x8 x, first_lanes lanes) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(lanes));
}
static inline f32x8 load_twice_f32(const float *p) { /* four numbers, each twice */
    const __m256i order = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), order);
}
static inline void store_f64_as_f32(float *p, f64x4 x) { _mm_storeu_ps(p, _mm256_cvtpd_ps(x)); }
/* Not by _mm_storeu_si32() and _mm_loadu_si32(), which gcc has from 11 on, and 11.1 and 11.2 with
 * the wrong lane. */
static inline void store_32(void *p, bits128 x) {
    const int low = _mm_cvtsi128_si32(x);
    memcpy(p, &low, sizeof low);
}
static inline bits256 set_8(uint8_t x) { return _mm256_set1_epi8((char)x); }
static inline bits256 set_16(uint16_t x) { return _mm256_set1_epi16((short)x); }
static inline bits256 set_32(uint32_t x) { return _mm256_set1_epi32((int)x); }
static inline bits128 set_128_16(uint16_t x) { return _mm_set1_epi16((short)x); }
static inline bits256 repeat_128(const void *p) { return _mm256_broadcastsi128_si256(load_128(p)); }
static inline bits256 repeat_64(const void *p) { return _mm256_broadcastq_epi64(load_64(p)); }
static inline bits256 repeat_32(const void *p) {
    int x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}
static inline f32x8 multiply_add_f32(f32x8 a, f32x8 b, f32x8 c) { return _mm256_fmadd_ps(a, b, c); }
static inline f32x8 round_f32(f32x8 x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline f32x8 swap_pairs_f32(f32x8 x) { return _mm256_permute_ps(x, 0xb1); }
static inline f32x8 keep_f32(f32x8 x, bits256 mask) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(mask));
}
static inline f32x8 magnitude_f32(f32x8 x) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}
static inline float total_f32(f32x8 x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x),
                                   _mm256_extractf128_ps(x, 1)); /* 0 + 4, 1 + 5, ... */
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float least_f32(f32x8 x) {
    __m128 l = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    l = _mm_min_ps(l, _mm_movehl_ps(l, l));
    return _mm_cvtss_f32(_mm_min_ss(l, _mm_movehdup_ps(l)));
}
static inline float greatest_f32(f32x8 x) {
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
static inline bits128 f16_of_f32(f32x8 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
static inline bits256 narrow_16_to_8(bits256 a, bits256 b) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8);
}
static inline bits256 narrow_32_to_16(bits256 a, bits256 b) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}
static inline bits256 narrow_32_to_8(bits256 a, bits256 b, bits256 c, bits256 d) {
    const __m256i v = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
static inline bits128 i8_of_i32(bits256 a, bits256 b) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
static inline bits128 low_halves_32(bits256 v) {
    const __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}
static inline bits128 low_bytes_32(bits256 v) { /* of values below 2^8 */
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v),
                                          _mm256_extracti128_si256(v, 1));
    return _mm_packus_epi16(words, words);
}
static inline unsigned mask_32(bits256 mask) {
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(mask));
}
static inline bits256 select_256(bits256 mask, bits256 where, bits256 elsewhere) {
    return _mm256_blendv_epi8(elsewhere, where, mask);
}
static inline bits256 multiply_high_32(bits256 a, bits256 b) { /* even and odd lanes apart */
    const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    return _mm256_blend_epi32(even, odd, 0xaa);
}
static inline bits256 less_or_equal_u32(bits256 a, bits256 b) {
    return _mm256_cmpeq_epi32(_mm256_max_epu32(a, b), b);
}
static inline uint32_t greatest_i32(bits256 v) {
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
static inline bits128 high_128(bits256 v) { return _mm256_extracti128_si256(v, 1); }
static inline bits128
or_halves_128(bits128 v) { /* the low 8 bytes or the high ones, in the low half */
    return _mm_or_si128(v, _mm_unpackhi_epi64(v, v));
}
static inline bits128 or_quarters_128(bits128 v) { /* the same of four times 4 bytes */
    const __m128i two = or_halves_128(v);
    return _mm_or_si128(two, _mm_srli_epi64(two, 32));
}
static inline int all_ones_16(bits128 v,
                              uint16_t bits) { /* 1 where all these bits of any lane are set */
    const __m128i all = _mm_set1_epi16((short)bits);
    return _mm_movemask_epi8(_mm_cmpeq_epi16(_mm_and_si128(v, all), all)) != 0;
}
/* Eight loads are no slower than vpgatherdd where it is microcoded: on AMD, and on Intel since the
 * mitigation of gather data sampling. */
static inline bits256 look_up_32(const uint32_t *table, bits256 at) {
    __m128i low = _mm256_castsi256_si128(at), high = _mm256_extracti128_si256(at, 1);
    uint64_t a = (uint64_t)_mm_cvtsi128_si64(low), b = (uint64_t)_mm_extract_epi64(low, 1);
    uint64_t c = (uint64_t)_mm_cvtsi128_si64(high), d = (uint64_t)_mm_extract_epi64(high, 1);
    low = _mm_insert_epi32(_mm_cvtsi32_si128((int)table[(uint32_t)a]), (int)table[a >> 32], 1);
    low = _mm_insert_epi32(_mm_insert_epi32(low, (int)table[(uint32_t)b], 2), (int)table[b >> 32],
                           3);
    high = _mm_insert_epi32(_mm_cvtsi32_si128((int)table[(uint32_t)c]), (int)table[c >> 32], 1);
    high = _mm_insert_epi32(_mm_insert_epi32(high, (int)table[(uint32_t)d], 2), (int)table[d >> 32],
                            3);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

static inline void split_8x2(const uint8_t *src, bits256 plane[2]) {
    const __m256i pick = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0,
                                          2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i a = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(load_256(src), pick), 0xd8);
    const __m256i b = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(load_256(src + 32), pick), 0xd8);
    plane[0] = _mm256_permute2x128_si256(a, b, 0x20);
    plane[1] = _mm256_permute2x128_si256(a, b, 0x31);
}
static inline void join_8x2(uint8_t *dst, const bits256 plane[2]) {
    const __m256i a = _mm256_unpacklo_epi8(plane[0], plane[1]),
                  b = _mm256_unpackhi_epi8(plane[0], plane[1]);
    store_256(dst, _mm256_permute2x128_si256(a, b, 0x20));
    store_256(dst + 32, _mm256_permute2x128_si256(a, b, 0x31));
}
/* Transposes the 4x4 bytes of each half, then collects equal planes. */
static inline void split_8x4(const uint8_t *src, bits256 plane[4]) {
    const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0,
                                          4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i v[4]; /* 64-bit lane p of v[k] has plane p of elements 8 k to 8 k + 7 */
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; k++)
        v[k] = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(load_256(src + 32 * k), pick),
                                           order);
    const __m256i a = _mm256_unpacklo_epi64(v[0], v[1]), b = _mm256_unpackhi_epi64(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi64(v[2], v[3]), d = _mm256_unpackhi_epi64(v[2], v[3]);
    plane[0] = _mm256_permute2x128_si256(a, c, 0x20);
    plane[1] = _mm256_permute2x128_si256(b, d, 0x20);
    plane[2] = _mm256_permute2x128_si256(a, c, 0x31);
    plane[3] = _mm256_permute2x128_si256(b, d, 0x31);
}
static inline void join_8x4(uint8_t *dst, const bits256 plane[4]) {
    const __m256i a = _mm256_unpacklo_epi8(plane[0], plane[1]),
                  b = _mm256_unpackhi_epi8(plane[0], plane[1]);
    const __m256i c = _mm256_unpacklo_epi8(plane[2], plane[3]),
                  d = _mm256_unpackhi_epi8(plane[2], plane[3]);
    const __m256i e = _mm256_unpacklo_epi16(a, c), f = _mm256_unpackhi_epi16(a, c);
    const __m256i g = _mm256_unpacklo_epi16(b, d), h = _mm256_unpackhi_epi16(b, d);
    store_256(dst, _mm256_permute2x128_si256(e, f, 0x20));
    store_256(dst + 32, _mm256_permute2x128_si256(g, h, 0x20));
    store_256(dst + 64, _mm256_permute2x128_si256(e, f, 0x31));
    store_256(dst + 96, _mm256_permute2x128_si256(g, h, 0x31));
}
static inline bits256 unzip_32(bits128 a, bits128 b, bits128 c, bits128 d, bits256 *odd) {
    const __m256 x = _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(a), c, 1));
    const __m256 y = _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(b), d, 1));
    *odd = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd));
    return _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88));
}
static inline bits256 zip_8(bits256 a, bits256 b, bits256 *upper) {
    const __m256i c = _mm256_permute4x64_epi64(a, 0xd8), d = _mm256_permute4x64_epi64(b, 0xd8);
    *upper = _mm256_unpackhi_epi8(c, d);
    return _mm256_unpacklo_epi8(c, d);
}
/* clang-format on */

#endif
