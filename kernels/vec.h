/* vec.h: vectors of 32 bytes for kernels that are written once: a register of AVX2, a pair of
 * NEON's. Only for files named
 * *_vec.c, which are compiled with AVX2's flags on x86-64 and for NEON on ARM64, and for what is
 * theirs alone.
 *
 *   f32x8, f64x4       floats, doubles
 *   bits256, bits128   integers, or the masks that comparisons give: all bits of a lane, or none
 *   first_lanes        how many of eight lanes load_first_f32 and its like touch
 *
 * A function's name says the operation and the width of a lane in bits (add_16), or its type where
 * that matters (min_u32, add_f32). Arguments stand in the order of the infix operator. Both
 * instruction sets have all functions, and give the same bytes. The rules that names do not tell:
 *
 *   load_, store_               any alignment; load_64 and store_64 are of the low half, store_32
 * of the lowest 4 bytes store_past_128              past the caches where there is such a store: to
 * a multiple of 16; end_past() after the last load_twice_f32              four numbers, each twice
 *   or_halves_128, or_quarters  the bits of both halves, of all four quarters, in the lowest one
 *   all_ones_16(v, bits)        1 where all these bits are set in any lane
 *   min_f32(x, kept), max_f32   x where it is less, or greater; else `kept`: also for a NaN and for
 * zeros of either sign keep_f32(x, mask)           x in the lanes of the mask, +0 in others
 *   multiply_add_f32(a, b, c)   a * b + c, rounded once
 *   round_f32, i32_of_f32       to the nearest integer, ties to even; the latter's fits into 31
 * bits total_f32                   ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)) subtract_add_f32
 * subtracts in even lanes, adds in odd ones f16_of_f32                  makes NaNs quiet;
 * f32_of_f16 too narrow_, widen_             unsigned; narrow_ wants values that fit. i8_of_i32
 * likewise, with signs; low_halves_32 cuts left_each_, right_each_     shifts each lane by its own
 * number of bits mask_32                     bit l of the result is set where lane l of a mask is
 *   look_up_32(table, at)       table[at[lane]]
 *   split_8x2(src, plane)       bytes 2 i of 64 to plane[0], bytes 2 i + 1 to plane[1]; join_8x2
 * inverts it. 8x4: four planes, of 128 permute_128_8(v, order)     byte order[i] of v for each i
 *   unzip_32(a, b, c, d, odd)   of the 16 lanes of 32 bits, those of even numbers; those of odd
 * ones go to *odd zip_8(a, b, upper)          byte i of a, then of b, i ascending; the last 32 of
 * these bytes go to *upper zip_low_16, zip_high_16     the same of the lower, or upper, halves of
 * 128 bits */
#ifndef KVC_VEC_H
#define KVC_VEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include "kernels/vec_avx2.h"
#elif defined(__aarch64__)
#include "kernels/vec_neon.h"
#endif

#endif
