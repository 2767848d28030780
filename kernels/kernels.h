/* kernels.h: the table of arithmetic kernels. Not for anything that allocates, fails or does I/O.
 *
 * Every kernel is pure: no malloc, no errno, no globals. A kernel cannot fail when its
 * preconditions hold. Each has a portable reference (`*_ref`); faster twins must give the same
 * bytes for every input. Source and destination never overlap unless a comment allows it. */
#ifndef KVC_KERNELS_H
#define KVC_KERNELS_H

#include "kernels/dot_matrix.h"
#include "kernels/rans_state.h"
#include "kernels/target.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of n values packed by pack_bits. */
#define KVC_PACKED(n, width) (((size_t)(n) + 31) / 32 * 4 * (width))

/* Columns of a tile of multiply_tiles. */
#define KVC_TILE 16

/* How binary32 becomes a word: sign in bit sign, below it (bits - (rebias << 23)) >> drop, rounded
 * to bit `shift`. */
struct kvc_word_format {
    unsigned sign;   /* number of the sign bit: 15, 7 */
    unsigned drop;   /* bits of binary32's mantissa that the word does not have */
    unsigned shift;  /* low bits of a word that no symbol covers */
    uint32_t rebias; /* difference of the exponents' biases */
};

/* Arrays over the channels of a row. */
struct kvc_model_channels {
    const float *mean, *partner, *variance;
};
struct kvc_model_sums {
    float *plain, *square, *cosines, *sines;
};

/* Constants of `exponentials`: log2 e; ln 2 as a sum of two; the coefficients, from that of r^6
 * down, of e^r for |r| <= ln 2 / 2. Of the polynomials that begin 1 + r, they make the one of
 * minimum relative error (Remez's algorithm); rounded to binary32, its error is 4e-9. */
#define KVC_LOG2_E 0x1.715476p+0f
#define KVC_LN2_HIGH 0x1.62e43p-1f
#define KVC_LN2_LOW (-0x1.05c61p-29f)
/* clang-format off */
#define KVC_EXPONENTIAL \
    {0x1.6a2434p-10f, 0x1.1239e2p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1, 1}
/* clang-format on */

/* --- the kernels: kvc_NAME_fn is the type of kernel NAME, and the contract of all its twins --- */

/* Splits blocks into byte planes: dst[b * n + i] = src[i * size + b] for 0 <= i < n, 0 <= b < size.
 * src and dst hold n * size bytes; any alignment; size >= 1. */
typedef void kvc_split_planes_fn(uint8_t *dst, const uint8_t *src, size_t n, size_t size);
/* Inverts split_planes: dst[i * size + b] = src[b * n + i]. */
typedef void kvc_merge_planes_fn(uint8_t *dst, const uint8_t *src, size_t n, size_t size);
/* Transposes a matrix of values of 2 bytes: value (c, r) of dst is value (r, c) of src, for r <
 * rows, c < columns. `to` and `from` are the bytes from one row of dst, or of src, to the next. */
typedef void kvc_transpose_2_fn(uint8_t *dst, size_t to, const uint8_t *src, size_t from,
                                size_t rows, size_t columns);

/* Copies n pieces of `size` bytes, which lie to_step and from_step bytes apart, without overlap.
 * past: 1, dst is large and not read soon: it may be written past the caches, which then need not
 * read it first. */
typedef void kvc_copy_pieces_fn(uint8_t *dst, size_t to_step, const uint8_t *src, size_t from_step,
                                size_t n, size_t size, int past);

/* Converts IEEE binary16 to binary32, exactly; NaN payloads are kept (shifted left by 13 bits). */
typedef void kvc_f16_to_f32_fn(float *dst, const uint8_t *src, size_t n);
/* Converts bfloat16 to binary32, exactly. */
typedef void kvc_bf16_to_f32_fn(float *dst, const uint8_t *src, size_t n);

/* Decodes a row of n symbols, symbol i in lane i % r->lanes, with the table of 2^bits slots at
 * table + base[i]. Words beyond the end read as 0 and are counted. Every slot a state can reach is
 * a KVC_RANS_SLOT() with a frequency of 1 to 2^bits - 1; bits is 8 to 11. */
typedef void kvc_rans_decode_fn(struct kvc_rans_decoder *r, uint16_t *symbols, const uint16_t *base,
                                size_t n, const uint32_t *table, unsigned bits);
/* Decodes a row of n symbols of each of two streams, as rans_decode does. The rows share no memory
 * but, maybe, their tables. */
struct kvc_rans_row {
    struct kvc_rans_decoder *r;
    uint16_t *symbols;
    const uint16_t *base;
    const uint32_t *table;
    unsigned bits;
};
typedef void kvc_rans_decode_two_fn(const struct kvc_rans_row *a, const struct kvc_rans_row *b,
                                    size_t n);
/* Encodes a row, from its last symbol to its first; symbols index the table (a context's first row
 * added). 2 n + 16 bytes below r->next are writable; those below the new r->next hold nothing. */
typedef void kvc_rans_encode_fn(struct kvc_rans_encoder *r, const uint16_t *symbols, size_t n,
                                const struct kvc_rans_symbol *table, unsigned bits);

/* --- words: a word of `w` bits is coded as its difference from a bias, cut into a symbol and
 * `shift` low bits; the bias has no low bits, so those are the word's own. n words; mask = 2^w - 1;
 * shift <= 8. --- */

/* symbols[i] = context[i] + ((words[i] - bias[i]) & mask) >> shift; low[i] = the low bits of
 * words[i]. */
typedef void kvc_cut_words_fn(uint16_t *symbols, uint8_t *low, const uint16_t *words,
                              const uint16_t *bias, const uint16_t *context, size_t n,
                              unsigned shift, uint16_t mask);
/* words[i] = ((symbols[i] << shift) + bias[i] + low[i]) & mask; the inverse, for symbols without
 * context. */
typedef void kvc_join_words_fn(uint16_t *words, const uint16_t *symbols, const uint16_t *bias,
                               const uint8_t *low, size_t n, unsigned shift, uint16_t mask);

/* Cuts 16-bit words less their biases, rotated left by one bit (the sign becomes the lowest), into
 * low and high bytes. */
typedef void kvc_cut_rotated_fn(uint8_t *low, uint8_t *high, const uint16_t *words,
                                const uint16_t *bias, size_t n);
/* Inverts cut_rotated for n pieces of `size` words, which share the biases: the bytes of piece i
 * begin at low + i * step and high + i * step, its words at dst + i * to_step, any alignment. past:
 * as in copy_pieces, but other threads may see what was written only after a call with past = 1 and
 * n = 0, which writes nothing. */
typedef void kvc_join_rotated_fn(uint8_t *dst, size_t to_step, const uint8_t *low,
                                 const uint8_t *high, size_t step, const uint16_t *bias, size_t n,
                                 size_t size, int past);

/* Packs `width` bits (1 to 7) of each of n values, whose other bits are 0: per 32 values, the last
 * group filled up with zeros, 16 bytes if width has 4 (lowest four bits; value i and i + 16 in the
 * low and high half of byte i), 8 if it has 2 (value i, i + 8, i + 16, i + 24 from the lowest bits
 * of byte i up), 4 if it has 1 (likewise, eight values a byte). KVC_PACKED(n, width) bytes. */
typedef void kvc_pack_bits_fn(uint8_t *dst, const uint8_t *values, size_t n, unsigned width);
typedef void kvc_unpack_bits_fn(uint8_t *values, const uint8_t *src, size_t n, unsigned width);

/* --- the channel model of codecs/stages/split/channels.md: fp32, each operation rounded once, none
 * fused --- */

/* For n channels, a multiple of period, after which cosine and sine repeat: m = mean * cosine +
 * partner * sine, s = m * m + variance; bias[i] is the word of sqrt(s) with m's sign, rounded to
 * its symbol bits, context[i] = min((bits(s) - bits(variance)) >> 22, 7) << context_shift. */
typedef void kvc_model_words_fn(uint16_t *bias, uint16_t *context,
                                const struct kvc_model_channels *channels, const float *cosine,
                                const float *sine, size_t n, size_t period,
                                const struct kvc_word_format *format, unsigned context_shift);
/* Adds `rows` rows of n values, n being one or more times period. For each row: plain += x, square
 * += x * x, cosines += x * cosine, sines += x * sine; then cosine and sine are rotated as by
 * turn_halves. An x that is not finite or not below 2^50 in size counts as 0. Channels at rest have
 * no cosines: cosine, sine, their steps, sums->cosines and sums->sines are NULL, and are left out.
 */
typedef void kvc_model_sums_fn(const struct kvc_model_sums *sums, const float *x, size_t rows,
                               float *cosine, float *sine, const float *step_cosine,
                               const float *step_sine, size_t n, size_t period);
/* Returns cosine and sine of n angles from 0 to 4, in binary64 by their series up to the 24th power
 * and rounded to binary32: term(0) = 1, term(k + 1) = term(k) * x / (k + 1), of which even ones are
 * added to the cosine and odd ones to the sine, with signs + + - -. */
typedef void kvc_model_angles_fn(float *cosine, float *sine, const double *x, size_t n);

/* --- checksums --- */

/* Returns XXH3-64 (xxHash 0.8) of n bytes with a seed. */
typedef uint64_t kvc_hash_fn(const uint8_t *bytes, size_t n, uint64_t seed);
/* Returns the sum mod 2^64 of the hashes of n rows, each with its number as the seed, `first` and
 * up. */
typedef uint64_t kvc_digest_rows_fn(const uint8_t *rows, size_t row_bytes, uint64_t first,
                                    size_t n);

/* --- lossy stages: fp32, each operation rounded once, none fused unless fma is written; no input
 * is a NaN unless NaN is named. --- */

/* Convert binary32 to binary16 as kvc_float_to_half() and to bfloat16 as kvc_float_to_bf16() do,
 * NaN too. dst may be src: values are read in ascending order, and no value is overwritten before
 * it is read. */
typedef void kvc_f32_to_f16_fn(uint8_t *dst, const float *src, size_t n);
typedef void kvc_f32_to_bf16_fn(uint8_t *dst, const float *src, size_t n);

/* low[i] = x[i] < low[i] ? x[i] : low[i]; high[i] = x[i] > high[i] ? x[i] : high[i]. */
typedef void kvc_widen_ranges_fn(float *low, float *high, const float *x, size_t n);
/* Finds the minimum and the maximum of n >= 1 finite values; zeros become +0. */
typedef void kvc_range_fn(const float *x, size_t n, float *low, float *high);

/* Puts the indices i with x[i] <= low[i * step] or x[i] >= high[i * step] into index[], which has
 * room for n, ascending, and returns their number. step is 0, one pair of limits for all, or 1; n
 * <= 2^16. */
typedef size_t kvc_find_beyond_fn(uint16_t *index, const float *x, const float *low,
                                  const float *high, size_t n, size_t step);

/* Quantisation: groups of `group` >= 1 values, the last of which may be shorter, share an element
 * of the arrays of parameters. Groups of 1 and of 8 and more are fast. Parameters are finite. */

/* codes[i] = rint(min(max((x[i] - low[i / group]) * inverse[i / group], 0), most)), ties to even;
 * 0 <= most <= 255; a NaN counts as 0. */
typedef void kvc_quantise_fn(uint8_t *codes, const float *x, const float *low, const float *inverse,
                             size_t n, size_t group, float most);
/* x[i] = codes[i] * step[i / group] + low[i / group]. */
typedef void kvc_dequantise_fn(float *x, const uint8_t *codes, const float *step, const float *low,
                               size_t n, size_t group);
/* x[i] = (codes[i] * step[i / group] + low[i / group]) + x[i]. */
typedef void kvc_dequantise_add_fn(float *x, const uint8_t *codes, const float *step,
                                   const float *low, size_t n, size_t group);

/* Multiplies a row by a matrix of k rows, `stride` floats apart: y[i] = 0, then for j = 0 to k - 1:
 * y[i] = fma(a[j], b[j * stride + i], y[i]). */
typedef void kvc_multiply_rows_fn(float *y, const float *a, const float *b, size_t k, size_t stride,
                                  size_t n);
/* Multiplies many rows by tiles of KVC_TILE adjacent columns: for 0 <= t < tiles and 0 <= r < rows,
 * as multiply_rows( y + t * KVC_TILE + r * y_stride, a + r * a_stride, b + t * k * KVC_TILE, k,
 * KVC_TILE, KVC_TILE) does. */
typedef void kvc_multiply_tiles_fn(float *y, size_t y_stride, const float *a, size_t a_stride,
                                   size_t rows, const float *b, size_t k, size_t tiles);
/* Adds the products of n rows of dim values, `stride` floats apart, with themselves to the upper
 * triangle of gram[dim][dim]: for i <= j: s = 0, then for t = 0 to n - 1: s = fma(x[t * stride +
 * i], x[t * stride + j], s); gram[i * dim + j] += s in binary64. */
typedef void kvc_add_gram_fn(double *gram, const float *x, size_t n, size_t stride, size_t dim);
/* Makes inputs of dot_rows: to[i] = rint((x[i] - mean[i]) * gain[i]), ties to even, clamped to -127
 * to 127; a NaN counts as 0. */
typedef void kvc_small_codes_fn(int8_t *to, const float *x, const float *mean, const float *gain,
                                size_t n);
/* Multiplies rows of small integers by a matrix of them: y[r * outputs + i] = (float)s * scale[i] +
 * mean[i], where s is the sum over j of x[r * inputs + j] times the weight of output i and input j,
 * exact. Neither x nor weights are -128. */
typedef void kvc_dot_rows_fn(float *y, const int8_t *x, size_t rows,
                             const struct kvc_dot_matrix *m);
/* Takes rows of binary64, `stride` apart and scaled, from one: for r = 0 to rows - 1: y[i] = y[i] -
 * s[r * step] * x[r * stride + i]. */
typedef void kvc_subtract_rows_fn(double *y, const double *x, size_t stride, const double *s,
                                  size_t step, size_t rows, size_t n);
/* y[i] = y[i] + s * x[i]. */
typedef void kvc_add_scaled_fn(float *y, const float *x, float s, size_t n);
/* y[i] = y[i] + x[i] * x[i]. */
typedef void kvc_add_squares_fn(float *y, const float *x, size_t n);
/* y[i] = s * x[i]; y may be x. */
typedef void kvc_scale_fn(float *y, const float *x, float s, size_t n);
/* y[i] = y[i] * x[i]. */
typedef void kvc_multiply_fn(float *y, const float *x, size_t n);

/* Returns the sum of a[i] * b[i]: of eight sums that begin as 0, product i added to sum i % 8,
 * ascending; their total is
 * ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)). */
typedef float kvc_dot_fn(const float *a, const float *b, size_t n);
/* x[i] = e^d, d = x[i] - most, relative error below 2^-23, and 0 for d < -87; returns their sum,
 * made as in dot. x[i] <= most and may be -infinity; most is finite. power = rint(d * KVC_LOG2_E),
 * ties to even; r = fma(power, -KVC_LN2_LOW, fma(power, -KVC_LN2_HIGH, d)); p = the first of
 * KVC_EXPONENTIAL, then p = fma(p, r, c) for each c of the rest; x[i] = p * 2^power. */
typedef float kvc_exponentials_fn(float *x, size_t n, float most);

/* --- the transform codec: no input is a NaN unless NaN is named --- */

/* For 0 <= r < rows, does what multiply_rows(y + r * y_stride, a + r * a_stride, b, k, stride, n)
 * does, without the terms whose coefficient in a is 0. Leaving them out is a rule, not a shortcut:
 * such a term can change -0 into +0. */
typedef void kvc_multiply_sparse_fn(float *y, size_t y_stride, const float *a, size_t a_stride,
                                    size_t rows, const float *b, size_t k, size_t stride, size_t n);
/* Multiplies n complex numbers in binary64 and rounds the products to binary32: a and b hold n real
 * and then n imaginary parts; cosine = ar * br - ai * bi, sine = ar * bi + ai * br. */
typedef void kvc_angles_fn(float *cosine, float *sine, const double *a, const double *b, size_t n);
/* Rotates n pairs (u[i], v[i]), or (x[2 i], x[2 i + 1]): u' = u * cosine - v * sine, v' = v *
 * cosine + u * sine. */
typedef void kvc_turn_halves_fn(float *u, float *v, const float *cosine, const float *sine,
                                size_t n);
typedef void kvc_turn_pairs_fn(float *x, const float *cosine, const float *sine, size_t n);
/* y[i] = (symbols[i] - middle) * step; returns the largest symbol, 0 when n is 0. Symbols are below
 * 2^15. */
typedef uint16_t kvc_symbols_to_floats_fn(float *y, const uint16_t *symbols, size_t n,
                                          uint16_t middle, float step);
/* codes[i] = rint(x[i] * inverse), ties to even, clamped to -most to most, 0 <= most < 2^31; a NaN
 * counts as 0. */
typedef void kvc_round_codes_fn(int32_t *codes, const float *x, size_t n, float inverse,
                                float most);
/* symbols[i] = base[i] + middle + codes[i], mod 2^16; puts the indices i with |codes[i]| >=
 * limit[i] into others[], which has room for n, ascending, and returns their number. n <= 2^16;
 * |codes[i]| < 2^31. */
typedef size_t kvc_codes_to_symbols_fn(uint16_t *symbols, uint16_t *others, const int32_t *codes,
                                       const uint16_t *base, const uint8_t *limit, size_t n,
                                       uint16_t middle);

/* All kernels, each as X(name, isa). */
/* clang-format off */
#define KVC_KERNELS_REST(X, isa) \
    X(split_planes, isa) X(merge_planes, isa) X(transpose_2, isa) X(copy_pieces, isa) X(f16_to_f32, isa) \
    X(bf16_to_f32, isa) X(cut_words, isa) X(join_words, isa) X(cut_rotated, isa) X(pack_bits, isa) \
    X(model_angles, isa) X(f32_to_f16, isa) X(add_scaled, isa) X(angles, isa) \
    X(widen_ranges, isa) X(range, isa) X(find_beyond, isa) X(quantise, isa) X(dequantise, isa) X(dequantise_add, isa) \
    X(multiply_rows, isa) X(add_squares, isa) X(scale, isa) X(multiply, isa) X(dot, isa) \
    X(exponentials, isa) X(turn_pairs, isa) X(small_codes, isa)
/* clang-format on */
#define KVC_KERNELS_RANS(X, isa) X(rans_decode, isa) X(rans_encode, isa)
#define KVC_KERNELS_DOT(X, isa) X(dot_rows, isa)
#define KVC_KERNELS_MODEL(X, isa) X(model_words, isa) X(model_sums, isa)
/* clang-format off */
#define KVC_KERNELS_WIDE(X, isa) \
    X(join_rotated, isa) X(unpack_bits, isa) X(f32_to_bf16, isa) X(symbols_to_floats, isa) \
    X(round_codes, isa) X(codes_to_symbols, isa) X(turn_halves, isa)
/* clang-format on */
#define KVC_KERNELS_TRANSFORM(X, isa) \
    X(multiply_tiles, isa) X(multiply_sparse, isa) X(add_gram, isa) X(subtract_rows, isa)
#define KVC_KERNELS_HASH(X, isa) X(hash, isa) X(digest_rows, isa)
/* clang-format off */
#define KVC_KERNELS(X, isa) \
    KVC_KERNELS_RANS(X, isa) KVC_KERNELS_DOT(X, isa) KVC_KERNELS_MODEL(X, isa) KVC_KERNELS_TRANSFORM(X, isa) \
    KVC_KERNELS_HASH(X, isa) KVC_KERNELS_WIDE(X, isa) KVC_KERNELS_REST(X, isa)
/* clang-format on */

struct kvc_kernels {
    const char *name; /* "ref", "avx2", ...: what $KVC_KERNEL takes */
#define KVC_FIELD(kernel, isa) kvc_##kernel##_fn *kernel;
    KVC_KERNELS(KVC_FIELD, )
#undef KVC_FIELD
    kvc_rans_decode_two_fn
        *rans_decode_two; /* NULL where one row after the other is as fast, and until the trial */
};

extern const struct kvc_kernels kvc_kernels_ref;
#if defined(__x86_64__)
extern const struct kvc_kernels kvc_kernels_avx2, kvc_kernels_avxvnni;
extern const struct kvc_kernels kvc_kernels_avx512, kvc_kernels_avx512vnni, kvc_kernels_amx;
#endif
#if defined(__aarch64__)
extern const struct kvc_kernels kvc_kernels_neon, kvc_kernels_neondot;
#endif

/* Returns the table that $KVC_KERNEL names, or else the table of the widest instruction set of this
 * CPU with the rANS kernels that are fastest on it, and AMX's dot_rows. A trial of less than a
 * millisecond, made when rANS is first called, finds them, and AMX is asked for when dot_rows is;
 * all tables give the same bytes, so that both matter for speed only. Returns NULL when $KVC_KERNEL
 * names a table that does not exist or that this CPU cannot run. Thread-safe. */
const struct kvc_kernels *kvc_kernels_get(void);

/* The names of the chosen tables, for rANS, for dot_rows and for all other kernels. Makes the
 * trial. Names are NULL when kvc_kernels_get() is. by_trial: 0 when $KVC_KERNEL named the table. */
struct kvc_kernels_choice {
    const char *name, *rans_encode, *rans_decode, *dot_rows;
    int by_trial;
};
struct kvc_kernels_choice kvc_kernels_choice(void);

/* Returns a table by its name ("ref", "avx2", "avxvnni", "avx512", "avx512vnni", "amx", "neon",
 * "neondot"); NULL when it is unknown or this CPU cannot run it. */
const struct kvc_kernels *kvc_kernels_find(const char *name);

/* Returns the names of all tables in this build, the widest instruction set first, NULL-terminated.
 */
const char *const *kvc_kernels_names(void);

/* --- conversions without a fast twin: for printing values, not for hot paths --- */

/* Convert ggml's block types to binary32: `n` blocks of 32 values each, or of KVC_GGML_LARGE for
 * those below, which only weights have. The arithmetic is that of ggml's dequantize_row_*
 * (ggml/src/ggml-quants.c): fp32 products and differences, nothing fused. */
void kvc_q8_0_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q4_0_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q4_1_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q5_0_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q5_1_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_iq4_nl_to_f32(float *dst, const uint8_t *src, size_t n);
enum { KVC_GGML_LARGE = 256 };
void kvc_q2_k_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q3_k_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q4_k_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q5_k_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_q6_k_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_iq4_xs_to_f32(float *dst, const uint8_t *src, size_t n);
/* Convert n floats of 8 bits. */
void kvc_f8e4m3_to_f32(float *dst, const uint8_t *src, size_t n);
void kvc_f8e5m2_to_f32(float *dst, const uint8_t *src, size_t n);

/* Converts one binary16 value, exactly. */
float kvc_half_to_float(uint16_t h);
/* Round to nearest even; overflow gives infinity. Any NaN becomes the quiet one, 7e00 and 7fc0:
 * machines differ in the sign and the other bits of a NaN that they compute. */
uint16_t kvc_float_to_half(float f);
uint16_t kvc_float_to_bf16(float f);

/* Rotates n floats in place, n a multiple of tile and tile a power of two: each `tile` values x
 * become x H / sqrt(tile), H being Sylvester's (natural order) Hadamard matrix. The rotation is its
 * own inverse; llama.cpp applies it to quantised caches (src/llama-kv-cache.cpp). */
void kvc_hadamard(float *x, size_t n, size_t tile);

#endif
