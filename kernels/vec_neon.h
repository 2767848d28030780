/* vec_neon.h: the functions of vec.h by NEON, a pair of registers for a vector. Not for other
 * files. */
#ifndef KVC_VEC_NEON_H
#define KVC_VEC_NEON_H

#include <arm_neon.h>

typedef struct {
    float32x4_t a, b; /* lanes 0 to 3, 4 to 7 */
} f32x8;
typedef struct {
    float64x2_t a, b;
} f64x4;
typedef uint32x4_t bits128;
typedef struct {
    bits128 a, b;
} bits256;
typedef size_t first_lanes;

/* Functions that are an instruction for each register of a pair: their types and name, the type of
 * the lanes where the vector has none of its own, and the intrinsic. */
/* clang-format off */
#define KVC_SET(to, name, from, lane, op) \
    static inline to name(from x) { return (to){(lane)op(x), (lane)op(x)}; }
#define KVC_ONE(to, name, from, lane, op) \
    static inline to name(from x) { return (to){op((lane)x.a), op((lane)x.b)}; }
#define KVC_TWO(to, name, from, op) \
    static inline to name(from x, from y) { return (to){op(x.a, y.a), op(x.b, y.b)}; }
#define KVC_BITS(name, lane, op) KVC_MIXED(name, lane, lane, op)
#define KVC_MIXED(name, lane, other, op) \
    static inline bits256 name(bits256 x, bits256 y) { \
        return (bits256){(bits128)op((lane)x.a, (other)y.a), (bits128)op((lane)x.b, (other)y.b)}; \
    }
#define KVC_SHIFT(name, lane, op, counts, n) \
    static inline bits256 name(bits256 v, unsigned bits) { \
        return (bits256){(bits128)op((lane)v.a, counts(n)), (bits128)op((lane)v.b, counts(n))}; \
    }
#define KVC_HALF(name, lane, op) \
    static inline bits128 name(bits128 x, bits128 y) { return (bits128)op((lane)x, (lane)y); }

KVC_SET(f32x8, set_f32, float, float32x4_t, vdupq_n_f32)
KVC_SET(f64x4, set_f64, double, float64x2_t, vdupq_n_f64)
KVC_SET(bits256, set_8, uint8_t, uint32x4_t, vdupq_n_u8)
KVC_SET(bits256, set_16, uint16_t, uint32x4_t, vdupq_n_u16)
KVC_SET(bits256, set_32, uint32_t, uint32x4_t, vdupq_n_u32)
KVC_ONE(f32x8, round_f32, f32x8, float32x4_t, vrndnq_f32)
KVC_ONE(f32x8, magnitude_f32, f32x8, float32x4_t, vabsq_f32)
KVC_ONE(f32x8, swap_pairs_f32, f32x8, float32x4_t, vrev64q_f32)
KVC_ONE(f32x8, f32_of_bits, bits256, float32x4_t, )
KVC_ONE(f32x8, f32_of_i32, bits256, int32x4_t, vcvtq_f32_s32)
KVC_ONE(bits256, bits_of_f32, f32x8, uint32x4_t, )
KVC_ONE(bits256, i32_of_f32, f32x8, float32x4_t, (bits128)vcvtnq_s32_f32)
KVC_ONE(bits256, magnitude_i32, bits256, int32x4_t, (bits128)vabsq_s32)

KVC_TWO(f32x8, add_f32, f32x8, vaddq_f32)
KVC_TWO(f32x8, subtract_f32, f32x8, vsubq_f32)
KVC_TWO(f32x8, multiply_f32, f32x8, vmulq_f32)
KVC_TWO(bits256, equal_f32, f32x8, vceqq_f32)
KVC_TWO(bits256, less_f32, f32x8, vcltq_f32)
KVC_TWO(bits256, less_or_equal_f32, f32x8, vcleq_f32)
KVC_TWO(f64x4, add_f64, f64x4, vaddq_f64)
KVC_TWO(f64x4, subtract_f64, f64x4, vsubq_f64)
KVC_TWO(f64x4, multiply_f64, f64x4, vmulq_f64)
KVC_TWO(f64x4, divide_f64, f64x4, vdivq_f64)

KVC_BITS(and_256, uint32x4_t, vandq_u32)
KVC_BITS(or_256, uint32x4_t, vorrq_u32)
KVC_BITS(add_16, uint16x8_t, vaddq_u16)
KVC_BITS(subtract_16, uint16x8_t, vsubq_u16)
KVC_BITS(add_32, uint32x4_t, vaddq_u32)
KVC_BITS(subtract_32, uint32x4_t, vsubq_u32)
KVC_BITS(multiply_32, uint32x4_t, vmulq_u32)
KVC_BITS(max_i32, int32x4_t, vmaxq_s32)
KVC_BITS(min_u32, uint32x4_t, vminq_u32)
KVC_BITS(greater_i32, int32x4_t, vcgtq_s32)
KVC_BITS(less_or_equal_u32, uint32x4_t, vcleq_u32)
KVC_MIXED(left_each_32, uint32x4_t, int32x4_t, vshlq_u32)
KVC_MIXED(left_each_64, uint64x2_t, int64x2_t, vshlq_u64)
KVC_SHIFT(left_16, uint16x8_t, vshlq_u16, vdupq_n_s16, (int16_t)bits)
KVC_SHIFT(right_16, uint16x8_t, vshlq_u16, vdupq_n_s16, (int16_t)-(int)bits)
KVC_SHIFT(left_32, uint32x4_t, vshlq_u32, vdupq_n_s32, (int)bits)
KVC_SHIFT(right_32, uint32x4_t, vshlq_u32, vdupq_n_s32, -(int)bits)

KVC_HALF(or_128, uint32x4_t, vorrq_u32)
KVC_HALF(add_128_16, uint16x8_t, vaddq_u16)
KVC_HALF(permute_128_8, uint8x16_t, vqtbl1q_u8)
KVC_HALF(zip_low_16, uint16x8_t, vzip1q_u16)
KVC_HALF(zip_high_16, uint16x8_t, vzip2q_u16)
KVC_HALF(zip_low_32, uint32x4_t, vzip1q_u32)
KVC_HALF(zip_high_32, uint32x4_t, vzip2q_u32)
KVC_HALF(zip_low_64, uint64x2_t, vzip1q_u64)
KVC_HALF(zip_high_64, uint64x2_t, vzip2q_u64)

/* Functions that are more. */

static inline f32x8 load_f32(const float *p) { return (f32x8){vld1q_f32(p), vld1q_f32(p + 4)}; }
static inline void store_f32(float *p, f32x8 x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
}
static inline f64x4 load_f64(const double *p) { return (f64x4){vld1q_f64(p), vld1q_f64(p + 2)}; }
static inline void store_f64_as_f32(float *p, f64x4 x) {
    vst1q_f32(p, vcvt_high_f32_f64(vcvt_f32_f64(x.a), x.b));
}
static inline bits128 load_128(const void *p) { return (bits128)vld1q_u8((const uint8_t *)p); }
static inline bits128 load_64(const void *p) {
    return (bits128)vcombine_u8(vld1_u8((const uint8_t *)p), vdup_n_u8(0));
}
static inline bits256 load_256(const void *p) {
    return (bits256){load_128(p), load_128((const uint8_t *)p + 16)};
}
static inline void store_128(void *p, bits128 v) { vst1q_u8((uint8_t *)p, (uint8x16_t)v); }
static inline void store_64(void *p, bits128 v) {
    vst1_u8((uint8_t *)p, vget_low_u8((uint8x16_t)v));
}
static inline void store_32(void *p, bits128 v) {
    const uint32_t x = vgetq_lane_u32(v, 0);
    memcpy(p, &x, sizeof x);
}
static inline void store_256(void *p, bits256 v) {
    store_128(p, v.a);
    store_128((uint8_t *)p + 16, v.b);
}
/* No instruction of NEON stores past the caches. */
static inline void store_past_128(void *p, bits128 v) { store_128(p, v); }
static inline void store_past_256(void *p, bits256 v) { store_256(p, v); }
static inline void end_past(void) {}
static inline bits128 set_128_16(uint16_t x) { return (bits128)vdupq_n_u16(x); }
static inline bits256 repeat_128(const void *p) { return (bits256){load_128(p), load_128(p)}; }
static inline bits256 repeat_64(const void *p) {
    const uint8x8_t eight = vld1_u8((const uint8_t *)p);
    const uint32x4_t v = (bits128)vcombine_u8(eight, eight);
    return (bits256){v, v};
}
static inline bits256 repeat_32(const void *p) {
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return set_32(x);
}
static inline f32x8 load_twice_f32(const float *p) {
    const float32x4_t x = vld1q_f32(p);
    return (f32x8){vzip1q_f32(x, x), vzip2q_f32(x, x)};
}
static inline first_lanes first_of_8(size_t n) { return n; }
static inline f32x8 load_first_f32(const float *p, first_lanes n) {
    float eight[8] = {0};
    if (n == 8) return load_f32(p);
    memcpy(eight, p, n * sizeof *p);
    return load_f32(eight);
}
static inline void store_first_f32(float *p, f32x8 x, first_lanes n) {
    float eight[8];
    store_f32(eight, x);
    memcpy(p, eight, n * sizeof *p);
}
static inline f32x8 keep_f32(f32x8 x, bits256 mask) {
    return f32_of_bits(and_256(bits_of_f32(x), mask));
}
static inline f32x8 keep_first_f32(f32x8 x, first_lanes n) {
    float eight[8] = {0};
    store_first_f32(eight, x, n);
    return load_f32(eight);
}

static inline f32x8 multiply_add_f32(f32x8 x, f32x8 y, f32x8 z) {
    return (f32x8){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
}
/* A difference is the sum with the other sign. */
static inline f32x8 subtract_add_f32(f32x8 x, f32x8 y) {
    const bits128 sign = (bits128)vdupq_n_u64(0x80000000);
    const bits256 z = {veorq_u32((bits128)y.a, sign), veorq_u32((bits128)y.b, sign)};
    return add_f32(x, f32_of_bits(z));
}
/* FMIN and FMAX order zeros by their signs, and return a NaN. */
static inline f32x8 min_f32(f32x8 x, f32x8 kept) {
    return (f32x8){vbslq_f32(vcltq_f32(x.a, kept.a), x.a, kept.a),
                   vbslq_f32(vcltq_f32(x.b, kept.b), x.b, kept.b)};
}
static inline f32x8 max_f32(f32x8 x, f32x8 kept) {
    return (f32x8){vbslq_f32(vcgtq_f32(x.a, kept.a), x.a, kept.a),
                   vbslq_f32(vcgtq_f32(x.b, kept.b), x.b, kept.b)};
}
static inline float total_f32(f32x8 x) {
    const float32x4_t four = vaddq_f32(x.a, x.b); /* 0 + 4, 1 + 5, ... */
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
static inline float least_f32(f32x8 x) { return vminvq_f32(vminq_f32(x.a, x.b)); }
static inline float greatest_f32(f32x8 x) { return vmaxvq_f32(vmaxq_f32(x.a, x.b)); }

static inline f32x8 f32_of_f16(bits128 h) {
    return (f32x8){vcvt_f32_f16(vget_low_f16((float16x8_t)h)), vcvt_high_f32_f16((float16x8_t)h)};
}
static inline bits128 f16_of_f32(f32x8 x) {
    return (bits128)vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b);
}
static inline bits256 widen_8_to_16(bits128 v) {
    return (bits256){(bits128)vmovl_u8(vget_low_u8((uint8x16_t)v)),
                     (bits128)vmovl_high_u8((uint8x16_t)v)};
}
static inline bits256 widen_16_to_32(bits128 v) {
    return (bits256){vmovl_u16(vget_low_u16((uint16x8_t)v)), vmovl_high_u16((uint16x8_t)v)};
}
static inline bits256 widen_8_to_32(bits128 v) {
    return widen_16_to_32((bits128)vmovl_u8(vget_low_u8((uint8x16_t)v)));
}
static inline bits128 low_halves_32(bits256 v) {
    return (bits128)vuzp1q_u16((uint16x8_t)v.a, (uint16x8_t)v.b);
}
static inline bits128 low_halves_16(bits256 v) { /* of vec_neon.h alone */
    return (bits128)vuzp1q_u8((uint8x16_t)v.a, (uint8x16_t)v.b);
}
static inline bits128 low_bytes_32(bits256 v) {
    const uint8x16_t words = (uint8x16_t)low_halves_32(v);
    return (bits128)vuzp1q_u8(words, words);
}
static inline bits256 narrow_16_to_8(bits256 x, bits256 y) {
    return (bits256){low_halves_16(x), low_halves_16(y)};
}
static inline bits256 narrow_32_to_16(bits256 x, bits256 y) {
    return (bits256){low_halves_32(x), low_halves_32(y)};
}
static inline bits256 narrow_32_to_8(bits256 w, bits256 x, bits256 y, bits256 z) {
    return narrow_16_to_8(narrow_32_to_16(w, x), narrow_32_to_16(y, z));
}
static inline bits128 i8_of_i32(bits256 x, bits256 y) {
    return low_halves_16(narrow_32_to_16(x, y));
}
static inline unsigned mask_32(bits256 mask) {
    static const uint16_t bit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddvq_u16(vandq_u16((uint16x8_t)low_halves_32(mask), vld1q_u16(bit)));
}

static inline bits256 select_256(bits256 mask, bits256 where, bits256 elsewhere) {
    return (bits256){vbslq_u32(mask.a, where.a, elsewhere.a),
                     vbslq_u32(mask.b, where.b, elsewhere.b)};
}
static inline bits128 upper_halves_64(uint64x2_t x, uint64x2_t y) { /* of vec_neon.h alone */
    return vuzp2q_u32((bits128)x, (bits128)y);
}
static inline bits256 multiply_high_32(bits256 x, bits256 y) {
    return (bits256){upper_halves_64(vmull_u32(vget_low_u32(x.a), vget_low_u32(y.a)),
                                     vmull_high_u32(x.a, y.a)),
                     upper_halves_64(vmull_u32(vget_low_u32(x.b), vget_low_u32(y.b)),
                                     vmull_high_u32(x.b, y.b))};
}
static inline bits256 right_each_32(bits256 v, bits256 n) {
    return left_each_32(v, subtract_32(set_32(0), n));
}
static inline bits256 right_each_64(bits256 v, bits256 n) {
    const int64x2_t a = vnegq_s64((int64x2_t)n.a), b = vnegq_s64((int64x2_t)n.b);
    return left_each_64(v, (bits256){(bits128)a, (bits128)b});
}
static inline uint32_t greatest_i32(bits256 v) {
    return (uint32_t)vmaxvq_s32(vmaxq_s32((int32x4_t)v.a, (int32x4_t)v.b));
}

static inline bits128 low_128(bits256 v) { return v.a; }
static inline bits128 high_128(bits256 v) { return v.b; }
static inline bits128 or_halves_128(bits128 v) { return vorrq_u32(v, vextq_u32(v, v, 2)); }
static inline bits128 or_quarters_128(bits128 v) {
    const uint32x4_t two = or_halves_128(v);
    return vorrq_u32(two, vextq_u32(two, two, 1));
}
static inline int all_ones_16(bits128 v, uint16_t bits) {
    const uint16x8_t all = vdupq_n_u16(bits);
    return vmaxvq_u16(vceqq_u16(vandq_u16((uint16x8_t)v, all), all)) != 0;
}

static inline bits128 look_up_four(const uint32_t *table, uint32x4_t at) {
    const uint64x2_t pairs = vreinterpretq_u64_u32(at);
    const uint64_t low = vgetq_lane_u64(pairs, 0), high = vgetq_lane_u64(pairs, 1);
    uint32x4_t v = vdupq_n_u32(table[(uint32_t)low]);
    v = vld1q_lane_u32(table + (low >> 32), v, 1);
    v = vld1q_lane_u32(table + (uint32_t)high, v, 2);
    return vld1q_lane_u32(table + (high >> 32), v, 3);
}
static inline bits256 look_up_32(const uint32_t *table, bits256 at) {
    return (bits256){look_up_four(table, at.a), look_up_four(table, at.b)};
}

static inline void split_8x2(const uint8_t *src, bits256 plane[2]) {
    const uint8x16x2_t x = vld2q_u8(src), y = vld2q_u8(src + 32);
    for (size_t p = 0; p < 2; p++) plane[p] = (bits256){(bits128)x.val[p], (bits128)y.val[p]};
}
static inline void join_8x2(uint8_t *dst, const bits256 plane[2]) {
    vst2q_u8(dst, (uint8x16x2_t){{(uint8x16_t)plane[0].a, (uint8x16_t)plane[1].a}});
    vst2q_u8(dst + 32, (uint8x16x2_t){{(uint8x16_t)plane[0].b, (uint8x16_t)plane[1].b}});
}
static inline void split_8x4(const uint8_t *src, bits256 plane[4]) {
    const uint8x16x4_t x = vld4q_u8(src), y = vld4q_u8(src + 64);
    for (size_t p = 0; p < 4; p++) plane[p] = (bits256){(bits128)x.val[p], (bits128)y.val[p]};
}
static inline void join_8x4(uint8_t *dst, const bits256 plane[4]) {
    uint8x16x4_t x, y;
    for (size_t p = 0; p < 4; p++)
        x.val[p] = (uint8x16_t)plane[p].a, y.val[p] = (uint8x16_t)plane[p].b;
    vst4q_u8(dst, x);
    vst4q_u8(dst + 64, y);
}
static inline bits256 unzip_32(bits128 a, bits128 b, bits128 c, bits128 d, bits256 *odd) {
    *odd = (bits256){vuzp2q_u32(a, b), vuzp2q_u32(c, d)};
    return (bits256){vuzp1q_u32(a, b), vuzp1q_u32(c, d)};
}
static inline bits256 zip_8(bits256 x, bits256 y, bits256 *upper) {
    const uint8x16_t a = (uint8x16_t)x.a, b = (uint8x16_t)x.b, c = (uint8x16_t)y.a,
                     d = (uint8x16_t)y.b;
    *upper = (bits256){(bits128)vzip1q_u8(b, d), (bits128)vzip2q_u8(b, d)};
    return (bits256){(bits128)vzip1q_u8(a, c), (bits128)vzip2q_u8(a, c)};
}
/* clang-format on */

#endif
