/* test_kernels.c: every kernel but rANS (test_rans.c), in every table that this CPU runs, against
 * slow and obvious code or against a reference that is. */
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

static uint32_t random_state = 1;

static uint8_t random_byte(void) {
    random_state = random_state * 1664525 + 1013904223;
    return (uint8_t)(random_state >> 24);
}

static const size_t sizes[] = {0, 1, 7, 8, 31, 32, 33, 63, 64, 100, 1000, 4097};

static void planes_agree(void **state) {
    (void)state;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (size_t size = 1; size <= 9; size++) {
                size_t n = sizes[s], bytes = n * size;
                uint8_t *src = malloc(bytes + 1), *want = malloc(bytes + 1),
                        *got = malloc(bytes + 1), *back = malloc(bytes + 1);
                for (size_t i = 0; i < bytes; i++) src[i] = random_byte();
                for (size_t i = 0; i < n; i++)
                    for (size_t b = 0; b < size; b++) want[b * n + i] = src[i * size + b];
                k->split_planes(got, src, n, size);
                assert_memory_equal(got, want, bytes);
                k->merge_planes(back, got, n, size);
                assert_memory_equal(back, src, bytes);
                free(src);
                free(want);
                free(got);
                free(back);
            }
    }
}

/* Pieces of all sizes, at aligned and other addresses, in and past the caches; bytes between them
 * stay. */
static void pieces_agree(void **state) {
    enum {
        N = 5,
        GAP = 128,
        MOST = 2100,
        ROOM = N * (MOST + GAP) + 64,
        PAST = 1,
        ODD = 2,
        RAGGED = 4,
        LINES = 8,
        CLOSE = 16,
        ALONE = 32
    };
    static const size_t pieces[] = {0, 1, 15, 16, 31, 32, 33, 64, 128, 1000, 1024, 1040, MOST};
    static uint8_t src[ROOM], want[ROOM];
    uint8_t *got = aligned_alloc(64, (ROOM + 63) / 64 * 64);
    (void)state;
    for (size_t i = 0; i < ROOM; i++) src[i] = random_byte();
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        for (size_t s = 0; k && s < sizeof pieces / sizeof pieces[0]; s++)
            for (int how = 0; how < 32;
                 /* CLOSE: pieces follow each other; else their steps are of vectors or of whole
                    lines */
                 how++) {
                const size_t size = pieces[s], unit = how & LINES ? 64 : 16,
                             at = how & ODD ? 3 : unit;
                const size_t step = how & CLOSE    ? size
                                    : how & RAGGED ? size + 7
                                                   : (size + GAP - 1) / unit * unit;
                memset(want, 0xa5, ROOM);
                memset(got, 0xa5, ROOM);
                for (size_t i = 0; i < N * size; i++)
                    want[at + i / size * step + i % size] =
                        src[1 + i / size * (size + 1) + i % size];
                const size_t together = how & ALONE ? 1 : N;
                for (size_t i = 0; i < N; i += together)
                    k->copy_pieces(got + at + i * step, step, src + 1 + i * (size + 1), size + 1,
                                   together, size, how & PAST);
                assert_memory_equal(got, want, ROOM);
            }
    }
    free(got);
}

/* binary16 by its definition, in double arithmetic. */
static double half_value(unsigned h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent == 31 ? (mantissa ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                              : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

static void every_half(void **state) {
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float f = kvc_half_to_float((uint16_t)h);
        double want = half_value(h);
        if (isnan(want)) {
            uint32_t bits;
            memcpy(&bits, &f, 4);
            assert_true(isnan(f));
            assert_int_equal(bits >> 13 & 1023, h & 1023);
        } else {
            assert_true((double)f == want && !signbit(f) == !(h >> 15));
            assert_int_equal(kvc_float_to_half(f), h);
        }
    }
}

static void rounding_to_half(void **state) {
    (void)state;
    assert_int_equal(kvc_float_to_half(1.0f + 0x1p-11f), 0x3c00);   /* tie to even: down */
    assert_int_equal(kvc_float_to_half(1.0f + 0x1.8p-10f), 0x3c02); /* tie to even: up */
    assert_int_equal(kvc_float_to_half(65519.9f), 0x7bff);
    assert_int_equal(kvc_float_to_half(65520.0f), 0x7c00);
    assert_int_equal(kvc_float_to_half(0x1p-25f), 0); /* half the smallest: tie to zero */
    assert_int_equal(kvc_float_to_half(0x1.000002p-25f), 1);
    assert_int_equal(kvc_float_to_half(-0.0f), 0x8000);
    assert_int_equal(kvc_float_to_half(-INFINITY), 0xfc00);
    assert_true((kvc_float_to_half(NAN) & 0x7fff) > 0x7c00);
    assert_int_equal(kvc_float_to_bf16(1.0f), 0x3f80);
    assert_int_equal(kvc_float_to_bf16(1.0f + 0x1p-8f), 0x3f80); /* tie to even */
    assert_int_equal(kvc_float_to_bf16(1.0f + 0x1.8p-7f), 0x3f82);
    assert_true((kvc_float_to_bf16(NAN) & 0x7fff) > 0x7f80);
}

static void conversions_agree(void **state) {
    (void)state;
    enum { N = 65536 };
    uint8_t *src = malloc(2 * N);
    float *want = malloc(N * sizeof *want), *got = malloc(N * sizeof *got);
    for (unsigned i = 0; i < N; i++) { /* every 16-bit pattern */
        src[2 * i] = (uint8_t)i;
        src[2 * i + 1] = (uint8_t)(i >> 8);
    }
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        kvc_kernels_ref.f16_to_f32(want, src, N);
        k->f16_to_f32(got, src, N);
        assert_memory_equal(got, want, N * sizeof *got);
        kvc_kernels_ref.bf16_to_f32(want, src, N);
        k->bf16_to_f32(got, src, N - 3);
        assert_memory_equal(got, want, (N - 3) * sizeof *got);
    }
    free(src);
    free(want);
    free(got);
}

/* One block with scale 2 and a counting pattern, decoded by hand. */
static void block_types(void **state) {
    (void)state;
    uint8_t b[34] = {0x00, 0x40}; /* 2.0 */
    float v[32];
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)(i - 16);
    kvc_q8_0_to_f32(v, b, 1);
    for (int i = 0; i < 32; i++) assert_true(v[i] == (float)(2 * (i - 16)));
    for (int i = 0; i < 16; i++) b[2 + i] = (uint8_t)(i | (15 - i) << 4);
    kvc_q4_0_to_f32(v, b, 1);
    for (int i = 0; i < 16; i++)
        assert_true(v[i] == (float)(2 * (i - 8)) && v[i + 16] == (float)(2 * (7 - i)));
    uint8_t c[24] = {0x00, 0x40, 0x00, 0x3c}; /* 2.0, 1.0 */
    for (int i = 0; i < 16; i++) c[4 + i] = (uint8_t)(i | (15 - i) << 4);
    kvc_q4_1_to_f32(v, c, 1);
    for (int i = 0; i < 16; i++)
        assert_true(v[i] == (float)(2 * i + 1) && v[i + 16] == (float)(2 * (15 - i) + 1));
    uint8_t d[22] = {0x00, 0x40, 0x01, 0x00, 0x00, 0x80}; /* fifth bits: value 0 and value 31 */
    for (int i = 0; i < 16; i++) d[6 + i] = (uint8_t)i;
    kvc_q5_0_to_f32(v, d, 1);
    assert_true(v[0] == 0 && v[1] == -30 && v[31] == 0 && v[30] == -32);
    uint8_t f[24] = {0x00, 0x40, 0x00, 0x3c, 0x01, 0x00, 0x00, 0x80};
    for (int i = 0; i < 16; i++) f[8 + i] = (uint8_t)i;
    kvc_q5_1_to_f32(v, f, 1);
    assert_true(v[0] == 33 && v[1] == 3 && v[31] == 33 && v[30] == 1);
    for (int i = 0; i < 16; i++) b[2 + i] = (uint8_t)(i | i << 4);
    kvc_iq4_nl_to_f32(v, b, 1);
    assert_true(v[0] == -254 && v[15] == 226 && v[16] == -254 && v[8] == 2);
}

static void eight_bit_floats(void **state) {
    (void)state;
    uint8_t b[] = {0x38, 0xb8, 0x7e, 0x01, 0x7f, 0x80};
    float v[6];
    kvc_f8e4m3_to_f32(v, b, 6);
    assert_true(v[0] == 1 && v[1] == -1 && v[2] == 448 && v[3] == 0x1p-9f && isnan(v[4]) &&
                v[5] == 0 && signbit(v[5]) != 0);
    uint8_t c[] = {0x3c, 0x7b, 0x01, 0x7c};
    kvc_f8e5m2_to_f32(v, c, 4);
    assert_true(v[0] == 1 && v[1] == 57344 && v[2] == 0x1p-16f && isinf(v[3]));
}

static void hadamard(void **state) {
    (void)state;
    enum { TILE = 64 };
    float x[2 * TILE], y[2 * TILE];
    for (int i = 0; i < 2 * TILE; i++) x[i] = y[i] = (float)random_byte() - 128;
    kvc_hadamard(y, 2 * TILE, TILE);
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < TILE; i++) {
            double sum = 0; /* row i of Sylvester's matrix: sign by the parity of i & j */
            for (int j = 0; j < TILE; j++)
                sum += x[t * TILE + j] * (__builtin_popcount((unsigned)(i & j)) % 2 ? -1 : 1);
            assert_true(fabs(sum / 8 - y[t * TILE + i]) < 1e-3);
        }
    kvc_hadamard(y, 2 * TILE, TILE);
    for (int i = 0; i < 2 * TILE; i++) assert_true(fabsf(x[i] - y[i]) < 1e-3f);
}

/* --- words, packed bits --- */

static uint16_t random_u16(void) {
    uint16_t high = random_byte();
    return (uint16_t)(high << 8 | random_byte());
}

/* Memory of exactly this size, filled with noise: the address sanitizer sees one byte too many. */
static void *noise(size_t bytes) {
    uint8_t *p = malloc(bytes);
    assert_true(p || !bytes);
    for (size_t i = 0; i < bytes; i++) p[i] = random_byte();
    return p;
}

static void words_are_cut_and_joined(void **state) {
    (void)state;
    static const unsigned widths[] = {4, 5, 8, 16};
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (unsigned w = 0; w < 4; w++)
                for (unsigned shift = 0; shift <= 8 && shift <= widths[w]; shift++) {
                    const size_t n = sizes[s];
                    const unsigned whole = 1u << widths[w], step = 1u << shift;
                    uint16_t *words = noise(2 * n), *bias = noise(2 * n), *context = noise(2 * n);
                    uint16_t *symbols = noise(2 * n), *want = noise(2 * n), *back = noise(2 * n);
                    uint8_t *low = noise(n), *want_low = noise(n);
                    for (size_t i = 0; i < n; i++) {
                        words[i] = (uint16_t)(words[i] % whole);
                        bias[i] = (uint16_t)(bias[i] % whole / step * step); /* no low bits */
                        want[i] = (uint16_t)(context[i] +
                                             (words[i] + whole - bias[i]) % whole / step);
                        want_low[i] = (uint8_t)(words[i] % step);
                    }
                    k->cut_words(symbols, low, words, bias, context, n, shift,
                                 (uint16_t)(whole - 1));
                    assert_memory_equal(symbols, want, 2 * n);
                    assert_memory_equal(low, want_low, n);
                    for (size_t i = 0; i < n; i++) symbols[i] = (uint16_t)(symbols[i] - context[i]);
                    k->join_words(back, symbols, bias, low, n, shift, (uint16_t)(whole - 1));
                    assert_memory_equal(back, words, 2 * n);
                    for (size_t i = 0; i < n; i++) { /* whatever a damaged stream decodes to */
                        symbols[i] = (uint16_t)(random_u16() % 1024);
                        low[i] = random_byte();
                        want[i] = (uint16_t)((symbols[i] * step + bias[i] + low[i]) % whole);
                    }
                    k->join_words(back, symbols, bias, low, n, shift, (uint16_t)(whole - 1));
                    assert_memory_equal(back, want, 2 * n);
                    free(words), free(bias), free(context), free(symbols), free(want), free(back);
                    free(low), free(want_low);
                }
    }
}

static void words_are_rotated(void **state) {
    (void)state;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            const size_t n = sizes[s];
            uint16_t *words = noise(2 * n), *bias = noise(2 * n), *back = noise(2 * n);
            uint8_t *low = noise(n), *high = noise(n);
            k->cut_rotated(low, high, words, bias, n);
            for (size_t i = 0; i < n; i++) {
                const unsigned word = (words[i] + 65536u - bias[i]) % 65536,
                               rotated = word * 2 % 65536 + word / 32768;
                assert_int_equal(low[i], rotated % 256);
                assert_int_equal(high[i], rotated / 256);
            }
            k->join_rotated((uint8_t *)back, 0, low, high, 0, bias, 1, n, 0);
            assert_memory_equal(back, words, 2 * n);
            free(words), free(bias), free(back), free(low), free(high);
        }
    }
}

/* Joins pieces to an address and a distance of two bytes more than whole vectors, and of whole
 * vectors, into the caches and past them; what lies around the pieces must stay as it is. */
static void rotated_pieces_have_places(void **state) {
    (void)state;
    static const size_t of[] = {1, 16, 33, 48, 64, 80, 100, 192, 640},
                        starts[] = {1, 2, 16, 20, 64}, gaps[] = {0, 3, 16, 64};
    enum {
        PIECES = 5,
        STEP = 700,
        SIZES = sizeof of / sizeof *of,
        STARTS = sizeof starts / sizeof *starts,
        GAPS = sizeof gaps / sizeof *gaps
    };
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t how = 0; how < SIZES * STARTS * GAPS * 2; how++) {
            const size_t n = of[how % SIZES], at = starts[how / SIZES % STARTS],
                         to = 2 * n + gaps[how / SIZES / STARTS % GAPS];
            const size_t room = (at + PIECES * to + 127) / 64 * 64;
            uint16_t *bias = noise(2 * n);
            uint8_t *low = noise(PIECES * STEP), *high = noise(PIECES * STEP),
                    *got = aligned_alloc(64, room), *want = malloc(room);
            for (size_t i = 0; i < room; i++) got[i] = want[i] = random_byte();
            for (size_t p = 0; p < PIECES; p++)
                for (size_t i = 0; i < n; i++) {
                    const unsigned rotated = low[p * STEP + i] + 256u * high[p * STEP + i];
                    const unsigned word = (rotated / 2 + rotated % 2 * 32768 + bias[i]) % 65536;
                    want[at + p * to + 2 * i] = (uint8_t)word;
                    want[at + p * to + 2 * i + 1] = (uint8_t)(word / 256);
                }
            const int past = how / SIZES / STARTS >= GAPS;
            k->join_rotated(got + at, to, low, high, STEP, bias, PIECES, n, past);
            k->join_rotated(got, to, low, high, STEP, bias, 0, n, past);
            assert_memory_equal(got, want, room);
            free(bias), free(low), free(high), free(got), free(want);
        }
    }
}

/* Bit `bit` of byte `at` of n values packed in `width` bits (fast.md, "Packing"): which value, and
 * which bit of it. */
static size_t packed_value(size_t at, unsigned bit, unsigned width, unsigned *value_bit) {
    const size_t group = at / (4 * width);
    unsigned byte = (unsigned)(at % (4 * width)), done = 0;
    if (width & 4) {
        *value_bit = bit % 4;
        if (byte < 16) return 32 * group + byte + 16 * (bit / 4);
        byte -= 16;
        done = 4;
    }
    if (width & 2) {
        *value_bit = done + bit % 2;
        if (byte < 8) return 32 * group + byte + 8 * (bit / 2);
        byte -= 8;
        done += 2;
    }
    *value_bit = done;
    return 32 * group + byte + 4 * bit;
}

static void bits_are_packed(void **state) {
    (void)state;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (unsigned width = 1; width <= 7; width++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                const size_t n = sizes[s], size = KVC_PACKED(n, width);
                assert_int_equal(size, (n + 31) / 32 * 4 * width);
                uint8_t *values = noise(n), *packed = noise(size), *want = calloc(size + 1, 1),
                        *back = noise(n);
                for (size_t i = 0; i < n; i++) values[i] = (uint8_t)(values[i] % (1u << width));
                for (size_t at = 0; at < size; at++)
                    for (unsigned bit = 0, from; bit < 8; bit++) {
                        size_t i = packed_value(at, bit, width, &from);
                        if (i < n) want[at] = (uint8_t)(want[at] | (values[i] >> from & 1) << bit);
                    }
                k->pack_bits(packed, values, n, width);
                assert_memory_equal(packed, want, size);
                k->unpack_bits(back, packed, n, width);
                assert_memory_equal(back, values, n);
                /* the unused bits too */
                for (size_t at = 0; at < size; at++) packed[at] = random_byte();
                memset(values, 0, n);
                for (size_t at = 0; at < size; at++)
                    for (unsigned bit = 0, from; bit < 8; bit++) {
                        size_t i = packed_value(at, bit, width, &from);
                        if (i < n)
                            values[i] = (uint8_t)(values[i] | (packed[at] >> bit & 1) << from);
                    }
                k->unpack_bits(back, packed, n, width);
                assert_memory_equal(back, values, n);
                free(values), free(packed), free(want), free(back);
            }
    }
}

/* --- the channel model, in double: products of floats are exact in it, and of sums, as of roots,
 * rounding twice is rounding once (53 bits are more than twice 24 and two) --- */

static float times(float a, float b) {
    return (float)((double)a * (double)b);
}

static float plus(float a, float b) {
    return (float)((double)a + (double)b);
}

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float variance_of(unsigned spread) {
    return float_of(spread << 23);
}

static float value_of(int mean, unsigned spread) {
    return times((float)mean, times((float)sqrt((double)variance_of(spread)), 0.25f));
}

/* channels.md, "Float channels", the table of words. */
struct word_case {
    unsigned sign, cut, shift;
    uint32_t rebias;
};
static const struct word_case word_cases[] = {{15, 22, 6, 0},
                                              {15, 21, 8, 112},
                                              {7, 20, 0, 120},
                                              {7, 21, 0, 112}};

static struct kvc_word_format format_of(const struct word_case *w) {
    return (struct kvc_word_format){.sign = w->sign,
                                    .drop = w->cut - w->shift,
                                    .shift = w->shift,
                                    .rebias = w->rebias};
}

/* Which product is fused with a sum, for telling that a kernel does so. */
enum fused { NOTHING, FIRST_TERM, SECOND_TERM, SQUARE };

static void obvious_model_word(uint16_t *bias, uint16_t *context, float mean, float partner,
                               float variance, float c, float s, const struct word_case *w,
                               enum fused fused) {
    const float m = fused == FIRST_TERM    ? fmaf(mean, c, times(partner, s))
                    : fused == SECOND_TERM ? fmaf(partner, s, times(mean, c))
                                           : plus(times(mean, c), times(partner, s));
    const float q = fused == SQUARE ? fmaf(m, m, variance) : plus(times(m, m), variance);
    const uint32_t steps = (bits_of(q) - bits_of(variance)) >> 22;
    int64_t r = (int64_t)(bits_of(q) >> 1) + (INT64_C(127) << 22) - ((int64_t)w->rebias << 23);
    if (r < 0) r = 0;
    const int64_t magnitude = (r + (INT64_C(1) << (w->cut - 1))) / (INT64_C(1) << w->cut) *
                              (INT64_C(1) << w->shift);
    *context = (uint16_t)(steps < 7 ? steps : 7);
    *bias = (uint16_t)(magnitude % (INT64_C(1) << w->sign) +
                       (signbit(m) ? INT64_C(1) << w->sign : 0));
}

static const size_t periods[] = {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128};

static void model_words_agree(void **state) {
    (void)state;
    static const unsigned spreads[] = {1, 2, 64, 127, 190, 191, 192, 252, 253};
    static const float turns[][2] = {{1, 0},      {-1, 0},        {0, 1},        {0, -1},
                                     {-1, -0.0f}, {0x1p-126f, 1}, {1, 0x1p-149f}};
    static const unsigned shifts[] = {0, 4, 8, 10, 13};
    unsigned infinite = 0, contexts = 0;
    for (size_t p = 0; p < sizeof periods / sizeof periods[0]; p++)
        for (size_t heads = 0; heads <= 3; heads++)
            for (size_t w = 0; w < sizeof word_cases / sizeof word_cases[0]; w++)
                for (unsigned round = 0; round < 10; round++) {
                    const size_t period = periods[p], n = heads * period;
                    const unsigned up = shifts[round % 5];
                    const struct kvc_word_format format = format_of(&word_cases[w]);
                    float *mean = noise(4 * n), *partner = noise(4 * n), *variance = noise(4 * n);
                    float *cosine = noise(4 * period), *sine = noise(4 * period);
                    uint16_t *bias = noise(2 * n), *context = noise(2 * n);
                    uint16_t *want_bias = noise(2 * n), *want_context = noise(2 * n);
                    for (size_t d = 0; d < period; d++) {
                        const double angle = random_u16() / 10000.0;
                        const float *turn = turns[random_byte() % 7];
                        cosine[d] = round % 2 ? (float)cos(angle) : turn[0];
                        sine[d] = round % 2 ? (float)sin(angle) : turn[1];
                    }
                    for (size_t i = 0; i < n; i++) {
                        const unsigned any = 1 + random_u16() % 253u;
                        const unsigned spread = random_byte() % 2 ? spreads[random_byte() % 9]
                                                                  : any;
                        const int far = random_byte() % 4, other = random_byte() - 128;
                        const int own = far == 0   ? -128
                                        : far == 1 ? 127
                                        : far == 2 ? 0
                                                   : random_byte() - 128;
                        variance[i] = variance_of(spread);
                        mean[i] = value_of(own, spread);
                        partner[i] = value_of(other, 1 + random_u16() % 253u);
                        if (random_byte() % 4 == 0) partner[i] = random_byte() % 2 ? 0 : -0.0f;
                        obvious_model_word(&want_bias[i], &want_context[i], mean[i], partner[i],
                                           variance[i], cosine[i % period], sine[i % period],
                                           &word_cases[w], NOTHING);
                        const float m = plus(times(mean[i], cosine[i % period]),
                                             times(partner[i], sine[i % period]));
                        infinite += isinf(times(m, m)) != 0;
                        contexts |= 1u << want_context[i];
                        want_context[i] = (uint16_t)(want_context[i] << up);
                    }
                    const struct kvc_model_channels channels = {mean, partner, variance};
                    for (const char *const *name = kvc_kernels_names(); *name; name++) {
                        const struct kvc_kernels *k = kvc_kernels_find(*name);
                        if (!k) continue;
                        memset(bias, 0xa5, 2 * n);
                        memset(context, 0xa5, 2 * n);
                        k->model_words(bias, context, &channels, cosine, sine, n, period, &format,
                                       up);
                        assert_memory_equal(bias, want_bias, 2 * n);
                        assert_memory_equal(context, want_context, 2 * n);
                    }
                    free(mean), free(partner), free(variance), free(cosine), free(sine);
                    free(bias), free(context), free(want_bias), free(want_context);
                }
    assert_true(infinite > 100);
    assert_int_equal(contexts, 255);
}

/* Channels whose bias would be another if an operation were fused: their q lies where the bias
 * steps, so that its last bit decides. */
static void model_words_are_not_fused(void **state) {
    (void)state;
    enum { N = 96 };
    const struct word_case *word = &word_cases[2];
    const struct kvc_word_format format = format_of(word);
    float mean[N], partner[N], variance[N], cosine[N], sine[N];
    uint16_t bias[N], context[N], want_bias[N], want_context[N];
    for (enum fused fused = FIRST_TERM; fused <= SQUARE; fused++) {
        unsigned tries = 0;
        for (size_t i = 0; i < N; tries++) {
            assert_in_range(tries, 0, 1000000);
            const double angle = random_u16() / 20000.0 - 1.5;
            cosine[i] = (float)cos(angle);
            sine[i] = (float)sin(angle);
            const unsigned spread = 120 + random_byte() % 16u;
            variance[i] = variance_of(spread);
            partner[i] = value_of(random_byte() - 128, spread);
            const float step = float_of(bits_of(variance[i]) +
                                        ((2u * (random_byte() % 40u) + 1) << word->cut));
            const double m = sqrt((double)step - (double)variance[i]);
            mean[i] = (float)((m - (double)partner[i] * (double)sine[i]) / (double)cosine[i]);
            mean[i] = float_of(bits_of(mean[i]) + random_byte() % 8u);
            uint16_t fused_bias, fused_context;
            obvious_model_word(&want_bias[i], &want_context[i], mean[i], partner[i], variance[i],
                               cosine[i], sine[i], word, NOTHING);
            obvious_model_word(&fused_bias, &fused_context, mean[i], partner[i], variance[i],
                               cosine[i], sine[i], word, fused);
            i += fused_bias != want_bias[i];
        }
        const struct kvc_model_channels channels = {mean, partner, variance};
        for (const char *const *name = kvc_kernels_names(); *name; name++) {
            const struct kvc_kernels *k = kvc_kernels_find(*name);
            if (!k) continue;
            k->model_words(bias, context, &channels, cosine, sine, N, N, &format, 0);
            assert_memory_equal(bias, want_bias, sizeof bias);
            assert_memory_equal(context, want_context, sizeof context);
        }
    }
}

/* A float of any pattern, or one of those around which the sums decide. */
static float any_float(void) {
    static const float special[] = {0,
                                    -0.0f,
                                    INFINITY,
                                    -INFINITY,
                                    NAN,
                                    -NAN,
                                    0x1p50f,
                                    -0x1p50f,
                                    0x1.fffffep49f,
                                    -0x1.fffffep49f,
                                    0x1.000002p50f,
                                    0x1p-149f,
                                    -0x1p-126f,
                                    3.4028235e38f,
                                    1,
                                    -1};
    const uint32_t high = random_u16();
    if (random_byte() % 2) return special[random_byte() % 16];
    return float_of(high << 16 | random_u16());
}

static void model_sums_agree(void **state) {
    (void)state;
    enum { ROWS = 4 };
    for (size_t p = 0; p < sizeof periods / sizeof periods[0]; p++)
        for (size_t heads = 1; heads <= 3; heads++)
            for (size_t rows = 0; rows <= ROWS; rows++) {
                const size_t period = periods[p], n = heads * period;
                float *x = noise(4 * n * ROWS), *turn[4], *turned[4], *sums[4], *before[4],
                      *want[4];
                for (int a = 0; a < 4; a++)
                    sums[a] = noise(4 * n), before[a] = noise(4 * n), want[a] = noise(4 * n);
                for (int a = 0; a < 4; a++)
                    turn[a] = noise(4 * period), turned[a] = noise(4 * period);
                for (size_t d = 0; d < period; d++)
                    for (int a = 0; a < 4; a++)
                        turn[a][d] = turned[a][d] = (float)cos(random_u16() / 1000.0);
                for (int a = 0; a < 4; a++)
                    for (size_t i = 0; i < n; i++)
                        before[a][i] = want[a][i] = random_byte() % 4
                                                        ? (float)random_u16() / 77 - 400
                                                        : -0.0f;
                for (size_t t = 0; t < rows; t++) {
                    for (size_t i = 0; i < n; i++) {
                        x[t * n + i] = any_float();
                        /* false for NaN */
                        const float v = fabs((double)x[t * n + i]) < 0x1p50 ? x[t * n + i] : 0;
                        want[0][i] = plus(want[0][i], v);
                        want[1][i] = plus(want[1][i], times(v, v));
                        want[2][i] = plus(want[2][i], times(v, turned[0][i % period]));
                        want[3][i] = plus(want[3][i], times(v, turned[1][i % period]));
                    }
                    for (size_t d = 0; d < period; d++) {
                        const float c = turned[0][d], s = turned[1][d];
                        turned[0][d] = plus(times(c, turn[2][d]), -times(s, turn[3][d]));
                        turned[1][d] = plus(times(s, turn[2][d]), times(c, turn[3][d]));
                    }
                }
                for (const char *const *name = kvc_kernels_names(); *name; name++) {
                    const struct kvc_kernels *k = kvc_kernels_find(*name);
                    if (!k) continue;
                    const struct kvc_model_sums to = {sums[0], sums[1], sums[2], sums[3]};
                    float *c = noise(4 * period), *s = noise(4 * period);
                    memcpy(c, turn[0], 4 * period);
                    memcpy(s, turn[1], 4 * period);
                    for (int a = 0; a < 4; a++) memcpy(sums[a], before[a], 4 * n);
                    k->model_sums(&to, x, rows, c, s, turn[2], turn[3], n, period);
                    for (int a = 0; a < 4; a++) assert_memory_equal(sums[a], want[a], 4 * n);
                    assert_memory_equal(c, turned[0], 4 * period);
                    assert_memory_equal(s, turned[1], 4 * period);
                    free(c), free(s);
                    const struct kvc_model_sums resting = {.plain = sums[0], .square = sums[1]};
                    for (int a = 0; a < 4; a++) memcpy(sums[a], before[a], 4 * n);
                    k->model_sums(&resting, x, rows, NULL, NULL, NULL, NULL, n, period);
                    for (int a = 0; a < 4; a++)
                        assert_memory_equal(sums[a], a < 2 ? want[a] : before[a], 4 * n);
                }
                for (int a = 0; a < 4; a++)
                    free(sums[a]), free(before[a]), free(want[a]), free(turn[a]), free(turned[a]);
                free(x);
            }
}

/* Angles of every size that models have, and 0 and 4. */
static void model_angles_agree(void **state) {
    (void)state;
    enum { N = 77 };
    double x[N];
    float cosine[N], sine[N];
    for (int i = 0; i < N; i++) x[i] = i < 2 ? 4.0 * i : 4 * pow(0.83, i);
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        for (size_t n = 0; k && n <= N; n += n < 9 ? 1 : 17) {
            memset(cosine, 0, sizeof cosine);
            memset(sine, 0, sizeof sine);
            k->model_angles(cosine, sine, x, n);
            for (size_t i = 0; i < N; i++) {
                float want[2] = {0, 0};
                if (i < n) kvc_kernels_ref.model_angles(&want[0], &want[1], x + i, 1);
                assert_memory_equal(&cosine[i], &want[0], 4);
                assert_memory_equal(&sine[i], &want[1], 4);
                if (i < n)
                    assert_true(fabs((double)cosine[i] - cos(x[i])) < 1e-7 &&
                                fabs((double)sine[i] - sin(x[i])) < 1e-7);
            }
        }
    }
}

/* Lengths of every path of XXH3, from addresses that are not aligned. */
static void hashes_agree(void **state) {
    (void)state;
    static const size_t size[] = {0,   1,   3,   4,   8,   9,    16,   17,  128,
                                  129, 240, 241, 256, 384, 1024, 1025, 4099};
    enum { MOST = 4099, ROWS = 3 };
    uint8_t *bytes = (uint8_t *)noise(ROWS * MOST + 1);
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        for (size_t i = 0; k && i < sizeof size / sizeof size[0]; i++) {
            uint64_t sum = 0;
            for (uint64_t row = 0; row < ROWS; row++) {
                const uint64_t want = XXH3_64bits_withSeed(bytes + 1 + row * size[i], size[i],
                                                           7 + row);
                assert_true(k->hash(bytes + 1 + row * size[i], size[i], 7 + row) == want);
                sum += want;
            }
            assert_true(k->digest_rows(bytes + 1, size[i], 7, ROWS) == sum);
        }
    }
    free(bytes);
}

/* A thousand rows, so that a fused or differently rounded operation has time to show. */
static void turns_of_a_model_agree(void **state) {
    (void)state;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t p = 0; p < sizeof periods / sizeof periods[0]; p++) {
            const size_t n = periods[p];
            float *c = noise(4 * n), *s = noise(4 * n), *a = noise(4 * n), *b = noise(4 * n);
            float *want_c = noise(4 * n), *want_s = noise(4 * n);
            for (size_t i = 0; i < n; i++) {
                const double angle = i % 5 ? 4.0 * random_u16() / 65536 : ldexp(1, -(int)i);
                c[i] = want_c[i] = 1;
                s[i] = want_s[i] = 0;
                a[i] = (float)cos(angle);
                b[i] = (float)sin(angle);
            }
            for (int row = 0; row < 1000; row++) {
                k->turn_halves(c, s, a, b, n);
                for (size_t i = 0; i < n; i++) {
                    const float next = plus(times(want_c[i], a[i]), -times(want_s[i], b[i]));
                    want_s[i] = plus(times(want_s[i], a[i]), times(want_c[i], b[i]));
                    want_c[i] = next;
                }
                assert_memory_equal(c, want_c, 4 * n);
                assert_memory_equal(s, want_s, 4 * n);
            }
            free(c), free(s), free(a), free(b), free(want_c), free(want_s);
        }
    }
}

/* --- lossy stages --- */

static const size_t lengths[] = {0, 1, 7, 8, 9, 31, 32, 63, 64, 65, 1000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

/* Noise that begins one element after an aligned address and ends where its memory does. */
static float *floats(size_t n) {
    return (float *)noise(4 * n + 4) + 1;
}

static uint8_t *bytes(size_t n) {
    return (uint8_t *)noise(n + 1) + 1;
}

/* All 24 bits of the mantissa, between -2 and 2 times 2^-8 to 2^7. */
static float common_float(void) {
    const int high = random_u16(), mantissa = high * 256 + random_byte() - 0x800000;
    return ldexpf((float)mantissa, random_byte() % 16 - 30);
}

static float finite_float(void) {
    float f;
    do f = any_float();
    while (!isfinite(f));
    return f;
}

static float number(void) {
    float f;
    do f = any_float();
    while (isnan(f));
    return f;
}

static void fill_with(float (*value)(void), float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = value();
}

typedef void narrow(uint8_t *dst, const float *src, size_t n);

/* n floats whose words are known; in place, and of every length and alignment. */
static void floats_are_narrowed(narrow *convert, const float *src, const uint16_t *want, size_t n) {
    float *x = floats(n);
    memcpy(x, src, 4 * n);
    convert((uint8_t *)x, x, n);
    for (size_t i = 0; i < n; i++) {
        uint16_t word;
        memcpy(&word, (uint8_t *)x + 2 * i, 2);
        if (word != want[i]) fail_msg("%a: 0x%04x, not 0x%04x", (double)src[i], word, want[i]);
    }
    free(x - 1);
    for (size_t s = 0; s < LENGTHS; s++) {
        const size_t count = lengths[s], from = random_u16() % (n - count);
        uint8_t *dst = bytes(2 * count);
        x = floats(count);
        memcpy(x, src + from, 4 * count);
        convert(dst, x, count);
        assert_memory_equal(dst, want + from, 2 * count);
        free(dst - 1), free(x - 1);
    }
}

/* Every word; the middle between any two neighbours, which goes to the even one, and the floats
 * beside it, which go to the nearer one; NaNs of which no bit would be left. */
static void floats_become_words(void **state) {
    (void)state;
    enum { MOST = 65536 + 6 * 32768 + 4 };
    float *half = malloc(MOST * sizeof *half), *brain = malloc(MOST * sizeof *brain);
    uint16_t *want_half = malloc(MOST * sizeof *want_half),
             *want_brain = malloc(MOST * sizeof *want_brain);
    size_t halves = 0, brains = 0;
    for (unsigned w = 0; w < 65536; w++) {
        const unsigned sign = w & 0x8000, size = w & 0x7fff;
        half[halves] = kvc_half_to_float((uint16_t)w);
        want_half[halves++] = (uint16_t)(size > 0x7c00 ? w | 0x200 : w);
        brain[brains] = float_of(w << 16);
        want_brain[brains++] = (uint16_t)(size > 0x7f80 ? w | 0x40 : w);
        if (size < 0x7c00) {
            const double next = size == 0x7bff ? 65536 : half_value(size + 1);
            const float middle = (float)((half_value(size) + next) / 2);
            const float side[] = {nextafterf(middle, 0), middle, nextafterf(middle, INFINITY)};
            const unsigned to[] = {size, size + size % 2, size + 1};
            for (int i = 0; i < 3; i++) {
                half[halves] = sign ? -side[i] : side[i];
                want_half[halves++] = (uint16_t)(sign | to[i]);
            }
        }
        if (size < 0x7f80) {
            const unsigned to[] = {size, size + size % 2, size + 1};
            for (unsigned i = 0; i < 3; i++) {
                brain[brains] = float_of(w << 16 | (0x7fff + i));
                want_brain[brains++] = (uint16_t)(sign | to[i]);
            }
        }
    }
    const uint32_t hidden[] = {0x7f800001, 0xff800001};
    for (unsigned i = 0; i < 2; i++) {
        half[halves] = brain[brains] = float_of(hidden[i]);
        want_half[halves++] = (uint16_t)(0x7e00 | i << 15);
        want_brain[brains++] = (uint16_t)(0x7fc0 | i << 15);
    }
    half[halves] = 3e38f, want_half[halves++] = 0x7c00;
    half[halves] = -0x1p-149f, want_half[halves++] = 0x8000;
    assert_true(halves <= MOST && brains <= MOST);
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        floats_are_narrowed(k->f32_to_f16, half, want_half, halves);
        floats_are_narrowed(k->f32_to_bf16, brain, want_brain, brains);
    }
    free(half), free(brain), free(want_half), free(want_brain);
}

static void ranges_agree(void **state) {
    (void)state;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t s = 0; s < LENGTHS; s++)
            for (unsigned round = 0; round < 20; round++) {
                const size_t n = lengths[s];
                float *x = floats(n), *low = floats(n), *high = floats(n);
                float *want_low = floats(n), *want_high = floats(n);
                float least, greatest, want_least = INFINITY, want_greatest = -INFINITY;
                fill_with(round % 2 ? finite_float : common_float, x, n);
                for (size_t i = 0; i < n; i++) {
                    if (round == 19) x[i] = random_byte() % 2 ? 0 : -0.0f;
                    /* the last is the minimum */
                    if (round == 17) x[i] = fabsf(x[i]) + (float)(i != n - 1);
                    low[i] = random_byte() % 2 ? INFINITY : finite_float();
                    high[i] = random_byte() % 2 ? -INFINITY : finite_float();
                    want_low[i] = x[i] < low[i] ? x[i] : low[i];
                    want_high[i] = x[i] > high[i] ? x[i] : high[i];
                    if (x[i] < want_least) want_least = x[i];
                    if (x[i] > want_greatest) want_greatest = x[i];
                }
                k->widen_ranges(low, high, x, n);
                assert_memory_equal(low, want_low, 4 * n);
                assert_memory_equal(high, want_high, 4 * n);
                if (n) {
                    k->range(x, n, &least, &greatest);
                    assert_int_equal(bits_of(least), want_least == 0 ? 0 : bits_of(want_least));
                    assert_int_equal(bits_of(greatest),
                                     want_greatest == 0 ? 0 : bits_of(want_greatest));
                }
                free(x - 1), free(low - 1), free(high - 1), free(want_low - 1), free(want_high - 1);
            }
    }
}

/* Values beyond limits of their own and of all; many are equal to a limit, some limits are
 * infinite. */
static void limits_agree(void **state) {
    (void)state;
    for (size_t s = 0; s < LENGTHS; s++)
        for (unsigned round = 0; round < 20; round++) {
            const size_t n = lengths[s], step = round % 2;
            float *x = floats(n), *low = floats(n + 1), *high = floats(n + 1);
            uint16_t *got = malloc(2 * n + 2), *want = malloc(2 * n + 2);
            size_t count = 0;
            assert_true(got && want);
            for (size_t i = 0; i < n; i++)
                x[i] = round % 3 ? common_float() : (float)(random_byte() % 16 - 8);
            for (size_t i = 0; i <= n; i++) {
                low[i] = round % 3 ? -0.5f : (float)(random_byte() % 4 - 8);
                high[i] = round % 3 ? 0.5f : (float)(random_byte() % 4 + 4);
                if (round % 5 == 4) low[i] = random_byte() % 2 ? INFINITY : -INFINITY;
            }
            for (size_t i = 0; i < n; i++)
                if (x[i] <= low[i * step] || x[i] >= high[i * step]) want[count++] = (uint16_t)i;
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                assert_int_equal(k->find_beyond(got, x, low, high, n, step), count);
                assert_memory_equal(got, want, 2 * count);
            }
            free(x - 1), free(low - 1), free(high - 1), free(got), free(want);
        }
}

static const size_t group_sizes[] = {1, 3, 7, 8, 13, 32, 64, 80, 2000};
enum { GROUP_SIZES = sizeof group_sizes / sizeof group_sizes[0] };

/* Halves between two codes are common, so are values outside of the range; some are infinite or no
 * numbers. */
static void codes_agree(void **state) {
    (void)state;
    static const float tops[] = {0, 1, 3, 6.5f, 15, 127, 255};
    static const float special[] = {INFINITY, -INFINITY, NAN,    -NAN,
                                    -0.0f,    3e38f,     -3e38f, 0x1p-149f};
    unsigned seen[256] = {0};
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t s = 0; s < LENGTHS; s++)
            for (size_t g = 0; g < GROUP_SIZES; g++)
                for (unsigned round = 0; round < 7; round++) {
                    const size_t n = lengths[s], group = group_sizes[g],
                                 groups = (n + group - 1) / group;
                    float *x = floats(n), *low = floats(groups), *inverse = floats(groups);
                    uint8_t *codes = bytes(n), *want = bytes(n);
                    for (size_t i = 0; i < groups; i++) {
                        low[i] = round % 2 ? common_float() : (float)(random_byte() % 32) / 4 - 4;
                        inverse[i] = round % 2 ? fabsf(common_float())
                                               : ldexpf(1, random_byte() % 4 - 1);
                    }
                    for (size_t i = 0; i < n; i++) {
                        const float own = (float)(random_u16() % 640) / 4 - 12;
                        x[i] = round % 2 ? common_float() : own;
                        if (round == 5 && random_byte() % 8 == 0) x[i] = special[random_byte() % 8];
                        const float v = times(plus(x[i], -low[i / group]), inverse[i / group]);
                        double clamped = v > 0 ? (double)v : 0;
                        if (clamped > (double)tops[round]) clamped = (double)tops[round];
                        /* ties to even by hand */
                        const double below = floor(clamped), over = clamped - below;
                        const double code = over > 0.5 || (over == 0.5 && fmod(below, 2) != 0)
                                                ? below + 1
                                                : below;
                        want[i] = (uint8_t)code;
                        seen[want[i]]++;
                    }
                    k->quantise(codes, x, low, inverse, n, group, tops[round]);
                    assert_memory_equal(codes, want, n);
                    free(x - 1), free(low - 1), free(inverse - 1), free(codes - 1), free(want - 1);
                }
    }
    for (unsigned code = 0; code < 256; code++) assert_true(seen[code] > 0);
}

static void values_agree(void **state) {
    (void)state;
    unsigned fused = 0;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t s = 0; s < LENGTHS; s++)
            for (size_t g = 0; g < GROUP_SIZES; g++)
                for (unsigned round = 0; round < 4; round++) {
                    const size_t n = lengths[s], group = group_sizes[g],
                                 groups = (n + group - 1) / group;
                    float *x = floats(n), *step = floats(groups), *low = floats(groups);
                    float *want = floats(n), *want_added = floats(n);
                    uint8_t *codes = bytes(n);
                    fill_with(round % 2 ? common_float : finite_float, step, groups);
                    fill_with(round % 2 ? common_float : finite_float, low, groups);
                    for (size_t i = 0; i < n; i++) {
                        want[i] = plus(times((float)codes[i], step[i / group]), low[i / group]);
                        fused += want[i] != fmaf((float)codes[i], step[i / group], low[i / group]);
                    }
                    k->dequantise(x, codes, step, low, n, group);
                    assert_memory_equal(x, want, 4 * n);
                    fill_with(round % 2 ? common_float : finite_float, x, n);
                    for (size_t i = 0; i < n; i++) want_added[i] = plus(want[i], x[i]);
                    k->dequantise_add(x, codes, step, low, n, group);
                    assert_memory_equal(x, want_added, 4 * n);
                    free(x - 1), free(step - 1), free(low - 1), free(want - 1),
                        free(want_added - 1), free(codes - 1);
                }
    }
    assert_true(fused > 1000); /* a fused product would show */
}

static void rows_are_multiplied(void **state) {
    (void)state;
    static const size_t rows[] = {0, 1, 2, 17, 100};
    unsigned apart = 0;
    for (size_t n = 0; n <= 200; n++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            for (unsigned round = 0; round < 3; round++) {
                const size_t k = rows[r], stride = n + 3 * round,
                             all = k ? (k - 1) * stride + n : 0;
                float *a = floats(k), *b = floats(all), *y = floats(n), *want = floats(n);
                fill_with(round == 2 ? number : common_float, a, k);
                fill_with(round == 2 ? number : common_float, b, all);
                for (size_t i = 0; i < n; i++) {
                    float other = want[i] = 0;
                    for (size_t j = 0; j < k; j++) {
                        want[i] = fmaf(a[j], b[j * stride + i], want[i]);
                        other = plus(other, times(a[j], b[j * stride + i]));
                    }
                    apart += isfinite(want[i]) && other != want[i];
                }
                for (const char *const *name = kvc_kernels_names(); *name; name++) {
                    const struct kvc_kernels *kernels = kvc_kernels_find(*name);
                    if (!kernels) continue;
                    fill_with(any_float, y, n);
                    kernels->multiply_rows(y, a, b, k, stride, n);
                    assert_memory_equal(y, want, 4 * n);
                }
                free(a - 1), free(b - 1), free(y - 1), free(want - 1);
            }
    assert_true(apart > 1000); /* a product rounded by itself would show */
}

/* Sums of products of small integers are exact, whatever their order. */
static void integers_are_multiplied(void **state) {
    static const size_t some[] = {0, 4, 8, 12, 60, 64, 68, 80, 1020, 1028, 2052};
    (void)state;
    for (size_t rows = 1; rows <= 9; rows += rows < 5 ? 1 : 4)
        for (size_t outputs = 1; outputs <= 90; outputs += outputs < 18 ? 1 : 23)
            for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
                const size_t inputs = some[k], bytes = kvc_dot_bytes(outputs, inputs);
                int8_t *x = malloc(rows * inputs + 1), *w = calloc(bytes + 1, 1);
                float *numbers = malloc(4 * 2 * outputs), *want = malloc(4 * rows * outputs),
                      *y = malloc(4 * rows * outputs);
                const struct kvc_dot_matrix m = {outputs, inputs, w, numbers, numbers + outputs};
                const int most = (rows + outputs) % 3 == 0; /* the largest sums that there are */
                fill_with(common_float, numbers, 2 * outputs);
                for (size_t i = 0; i < rows * inputs; i++)
                    x[i] = (int8_t)(most ? -127 : (int)(random_u16() % 255) - 127);
                for (size_t i = 0; i < outputs; i++)
                    for (size_t j = 0; j < inputs; j++)
                        w[kvc_dot_place(inputs, i, j)] = (int8_t)(most ? 127
                                                                       : (int)(random_u16() % 255) -
                                                                             127);
                for (size_t r = 0; r < rows; r++)
                    for (size_t i = 0; i < outputs; i++) {
                        int64_t sum = 0;
                        for (size_t j = 0; j < inputs; j++)
                            sum += (int64_t)x[r * inputs + j] * w[kvc_dot_place(inputs, i, j)];
                        volatile float product = (float)sum * m.scale[i];
                        want[r * outputs + i] = product + m.mean[i];
                    }
                for (const char *const *name = kvc_kernels_names(); *name; name++) {
                    const struct kvc_kernels *kernels = kvc_kernels_find(*name);
                    if (!kernels) continue;
                    memset(y, 0xa5, 4 * rows * outputs);
                    kernels->dot_rows(y, x, rows, &m);
                    assert_memory_equal(y, want, 4 * rows * outputs);
                }
                free(x), free(w), free(numbers), free(want), free(y);
            }
}

/* Each weight has a place of its own, and those of a tensor's inputs follow from the first. */
static void weights_have_places(void **state) {
    (void)state;
    for (size_t outputs = 1; outputs <= 40; outputs += 13)
        for (size_t inputs = 4; inputs <= 20; inputs += 8) {
            const size_t bytes = kvc_dot_bytes(outputs, inputs);
            uint8_t *used = calloc(bytes, 1);
            for (size_t i = 0; i < outputs; i++)
                for (size_t j = 0; j < inputs; j++) {
                    const size_t at = kvc_dot_place(inputs, i, j);
                    assert_true(at < bytes && !used[at]);
                    assert_int_equal(at, kvc_dot_place(inputs, i, 0) + kvc_dot_place(inputs, 0, j));
                    used[at] = 1;
                }
            free(used);
        }
    assert_int_equal(kvc_dot_stride(0), 0);
    assert_int_equal(kvc_dot_stride(5), 8);
}

/* Each value goes to its place, and nothing between rows is touched. */
static void matrices_are_transposed(void **state) {
    (void)state;
    for (size_t rows = 0; rows <= 19; rows += rows < 9 ? 1 : 5)
        for (size_t columns = 0; columns <= 27; columns += columns < 9 ? 1 : 6) {
            const size_t from = 2 * columns + 4, to = 2 * rows + 6;
            uint8_t *src = bytes(rows * from + 1), *dst = bytes(columns * to + 1),
                    *want = bytes(columns * to + 1);
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *kernels = kvc_kernels_find(*name);
                if (!kernels) continue;
                memset(dst, 0x5a, columns * to);
                memset(want, 0x5a, columns * to);
                for (size_t r = 0; r < rows; r++)
                    for (size_t c = 0; c < columns; c++)
                        memcpy(want + c * to + 2 * r, src + r * from + 2 * c, 2);
                kernels->transpose_2(dst, to, src, from, rows, columns);
                assert_memory_equal(dst, want, columns * to);
            }
            free(src - 1), free(dst - 1), free(want - 1);
        }
}

/* Small integers of values: rounded, clamped, NaN as 0. */
static void values_become_small(void **state) {
    (void)state;
    for (size_t n = 0; n <= 50; n++) {
        float *x = floats(n), *mean = floats(n), *gain = floats(n);
        int8_t *want = malloc(n + 1), *to = malloc(n + 1);
        fill_with(n % 2 ? any_float : common_float, x, n);
        fill_with(number, mean, n);
        fill_with(common_float, gain, n);
        for (size_t i = 0; i < n; i++) {
            volatile float d = x[i] - mean[i], y = d * gain[i];
            want[i] = (int8_t)(isnan(y) ? 0 : y > 127 ? 127 : y < -127 ? -127 : rintf(y));
        }
        for (const char *const *name = kvc_kernels_names(); *name; name++) {
            const struct kvc_kernels *kernels = kvc_kernels_find(*name);
            if (!kernels) continue;
            memset(to, 0x55, n + 1);
            kernels->small_codes(to, x, mean, gain, n);
            assert_memory_equal(to, want, n);
            assert_int_equal(to[n], 0x55);
        }
        free(x - 1), free(mean - 1), free(gain - 1), free(want), free(to);
    }
}

/* Tiles of many rows are multiply_rows, row by row, and touch nothing between them. */
static void tiles_are_multiplied(void **state) {
    (void)state;
    for (size_t i = 0; i <= 20 * 8; i++)
        for (size_t k = 0; k <= 33; k += 11)
            for (size_t gap = 0; gap <= 3; gap++) {
                const size_t rows = i % 21, tiles = i / 21, a_stride = k + gap,
                             y_stride = tiles * KVC_TILE + gap;
                float *a = floats(rows * a_stride), *b = floats(tiles * k * KVC_TILE),
                      *y = floats(rows * y_stride);
                float *want = floats(rows * y_stride);
                fill_with(gap ? common_float : number, a, rows * a_stride);
                fill_with(gap ? common_float : number, b, tiles * k * KVC_TILE);
                for (const char *const *name = kvc_kernels_names(); *name; name++) {
                    const struct kvc_kernels *kernels = kvc_kernels_find(*name);
                    if (!kernels) continue;
                    fill_with(any_float, y, rows * y_stride);
                    memcpy(want, y, 4 * rows * y_stride);
                    for (size_t r = 0; r < rows; r++)
                        for (size_t t = 0; t < tiles; t++)
                            kvc_kernels_ref.multiply_rows(want + r * y_stride + t * KVC_TILE,
                                                          a + r * a_stride, b + t * k * KVC_TILE, k,
                                                          KVC_TILE, KVC_TILE);
                    kernels->multiply_tiles(y, y_stride, a, a_stride, rows, b, k, tiles);
                    assert_memory_equal(y, want, 4 * rows * y_stride);
                }
                free(a - 1), free(b - 1), free(y - 1), free(want - 1);
            }
}

/* add_gram's upper triangle sum by sum, and nothing beside it. */
static void grams_agree(void **state) {
    (void)state;
    static const size_t dims[] = {1, 2, 5, 6, 7, 15, 16, 17, 22, 31, 64, 67},
                        counts[] = {0, 1, 2, 17, 64};
    for (size_t s = 0; s < sizeof dims / sizeof dims[0] * 5 * 3; s++) {
        const size_t dim = dims[s / 15], n = counts[s / 3 % 5], stride = dim + (s % 3 ? 3 : 0);
        float *x = floats(n * stride);
        double *gram = malloc(dim * dim * sizeof *gram), *want = malloc(dim * dim * sizeof *want);
        assert_true(gram && want);
        fill_with(s % 3 == 2 ? finite_float : common_float, x, n * stride);
        for (size_t i = 0; i < dim * dim; i++) want[i] = (double)common_float();
        for (const char *const *name = kvc_kernels_names(); *name; name++) {
            const struct kvc_kernels *kernels = kvc_kernels_find(*name);
            if (!kernels) continue;
            memcpy(gram, want, dim * dim * sizeof *gram);
            kernels->add_gram(gram, x, n, stride, dim);
            for (size_t i = 0; i < dim; i++)
                for (size_t j = 0; j < dim; j++) {
                    float sum = 0;
                    for (size_t t = 0; t < n && i <= j; t++)
                        sum = fmaf(x[t * stride + i], x[t * stride + j], sum);
                    const double due = i <= j ? want[i * dim + j] + (double)sum : want[i * dim + j];
                    assert_memory_equal(&due, &gram[i * dim + j], sizeof due);
                }
        }
        free(x - 1), free(gram), free(want);
    }
}

static float total_of(const float sum[8]) {
    return plus(plus(plus(sum[0], sum[4]), plus(sum[2], sum[6])),
                plus(plus(sum[1], sum[5]), plus(sum[3], sum[7])));
}

static void products_agree(void **state) {
    (void)state;
    unsigned fused = 0, fused_dot = 0, fused_squares = 0;
    for (size_t s = 0; s < LENGTHS; s++)
        for (unsigned round = 0; round < 60; round++) {
            const size_t n = lengths[s];
            const float factor = round % 2 ? common_float() : number();
            float *x = floats(n), *y = floats(n), *got = floats(n), *sum = floats(n),
                  *scaled = floats(n), *squares = floats(n);
            float lane[8] = {0}, other[8] = {0};
            fill_with(round % 2 ? common_float : number, x, n);
            fill_with(round % 2 ? common_float : number, y, n);
            for (size_t i = 0; i < n; i++) {
                scaled[i] = times(factor, x[i]);
                sum[i] = plus(y[i], scaled[i]);
                squares[i] = plus(y[i], times(x[i], x[i]));
                fused_squares += isfinite(squares[i]) && squares[i] != fmaf(x[i], x[i], y[i]);
                fused += isfinite(sum[i]) && sum[i] != fmaf(factor, x[i], y[i]);
                lane[i % 8] = plus(lane[i % 8], times(x[i], y[i]));
                other[i % 8] = fmaf(x[i], y[i], other[i % 8]);
            }
            const float want = total_of(lane);
            fused_dot += isfinite(want) && want != total_of(other);
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                memcpy(got, y, 4 * n);
                k->add_scaled(got, x, factor, n);
                assert_memory_equal(got, sum, 4 * n);
                memcpy(got, y, 4 * n);
                k->add_squares(got, x, n);
                assert_memory_equal(got, squares, 4 * n);
                k->scale(got, x, factor, n);
                assert_memory_equal(got, scaled, 4 * n);
                memcpy(got, x, 4 * n);
                k->scale(got, got, factor, n);
                assert_memory_equal(got, scaled, 4 * n);
                assert_int_equal(bits_of(k->dot(x, y, n)), bits_of(want));
            }
            free(x - 1), free(y - 1), free(got - 1), free(sum - 1), free(scaled - 1),
                free(squares - 1);
        }
    assert_true(fused > 1000 && fused_dot > 10 && fused_squares > 1000);
}

static float obvious_exponential(float d) {
    static const float c[] = KVC_EXPONENTIAL;
    if (d < -87) return 0;
    const float power = (float)nearbyint((double)times(d, KVC_LOG2_E));
    const float r = fmaf(power, -KVC_LN2_LOW, fmaf(power, -KVC_LN2_HIGH, d));
    const float p = fmaf(fmaf(fmaf(fmaf(fmaf(fmaf(c[0], r, c[1]), r, c[2]), r, c[3]), r, c[4]), r,
                              c[5]),
                         r, c[6]);
    return ldexpf(p, (int)power);
}

static void exponentials_agree(void **state) {
    (void)state;
    static const float special[] = {-INFINITY,      0,      -0.0f,     -87, -100, -0x1.5c0002p6f,
                                    -0x1.5bfffep6f, -3e38f, -0x1p-149f};
    static const float mosts[] = {0, 1, -17.25f, 1000, 3e38f, 0x1p-140f};
    unsigned zeros = 0;
    for (size_t s = 0; s < LENGTHS; s++)
        for (unsigned round = 0; round < 24; round++) {
            const size_t n = lengths[s];
            const float most = mosts[round % 6];
            float *x = floats(n), *got = floats(n), *want = floats(n), lane[8] = {0};
            for (size_t i = 0; i < n; i++) {
                const float below = random_byte() % 4 ? (float)random_u16() / -700
                                                      : special[random_byte() % 9];
                x[i] = plus(most, below);
                const float d = plus(x[i], -most);
                want[i] = obvious_exponential(d);
                const double real = exp((double)d);
                if (d >= -87) assert_true(fabs((double)want[i] - real) < real * 0x1p-23);
                else zeros += bits_of(want[i]) == 0;
                lane[i % 8] = plus(lane[i % 8], want[i]);
            }
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                memcpy(got, x, 4 * n);
                assert_int_equal(bits_of(k->exponentials(got, n, most)), bits_of(total_of(lane)));
                assert_memory_equal(got, want, 4 * n);
            }
            free(x - 1), free(got - 1), free(want - 1);
        }
    assert_true(zeros > 100);
}

/* --- the transform codec --- */

/* Many zeros of both signs, some numbers whose product is too small for binary32, and common ones.
 */
static float sparse_float(void) {
    switch (random_byte() % 8) {
    case 0: return common_float();
    case 1: return ldexpf(random_byte() % 2 ? 1 : -1, -80 - random_byte() % 8);
    case 2:
    case 3: return -0.0f;
    default: return 0;
    }
}

static float zero_or_common(void) {
    return random_byte() % 4 ? common_float() : random_byte() % 2 ? 0 : -0.0f;
}

/* No term of a zero: it would turn a sum of -0 into +0. More coefficients than a twin sorts at
 * once. */
static void sparse_rows_are_multiplied(void **state) {
    (void)state;
    static const size_t rows[] = {0, 1, 2, 17, 255, 256, 257, 600};
    unsigned zeros = 0, apart = 0;
    for (size_t n = 0; n <= 200; n += 1 + n / 16)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            for (unsigned round = 0; round < 4; round++) {
                const size_t k = rows[r], stride = n + 3 * round,
                             all = k ? (k - 1) * stride + n : 0;
                float *a = floats(k), *b = floats(all), *y = floats(n), *want = floats(n);
                fill_with(round == 2 ? finite_float : sparse_float, a, k);
                fill_with(round == 3 ? sparse_float : common_float, b, all);
                for (size_t j = 0; j < k && round == 1; j++)
                    a[j] = j == k / 3 ? 0x1p-140f : j % 2 ? 0 : -0.0f;
                for (size_t i = 0; i < n; i++) {
                    float with_zeros = want[i] = 0, other = 0;
                    for (size_t j = 0; j < k; j++) {
                        const float term = b[j * stride + i];
                        with_zeros = fmaf(a[j], term, with_zeros);
                        if (a[j] == 0) continue;
                        want[i] = fmaf(a[j], term, want[i]);
                        other = plus(other, times(a[j], term));
                    }
                    zeros += bits_of(with_zeros) != bits_of(want[i]);
                    apart += isfinite(want[i]) && other != want[i];
                }
                for (const char *const *name = kvc_kernels_names(); *name; name++) {
                    const struct kvc_kernels *kernels = kvc_kernels_find(*name);
                    if (!kernels) continue;
                    fill_with(any_float, y, n);
                    kernels->multiply_sparse(y, n, a, k, 1, b, k, stride, n);
                    assert_memory_equal(y, want, 4 * n);
                }
                free(a - 1), free(b - 1), free(y - 1), free(want - 1);
            }
    assert_true(zeros > 100 && apart > 1000);
}

/* Many rows are each as one row, and nothing between them is touched. */
static void rows_are_multiplied_alone(void **state) {
    (void)state;
    for (size_t rows = 0; rows <= 5; rows++)
        for (size_t k = 0; k <= 1100; k += k < 100 ? 33 : 250)
            for (size_t n = 1; n <= 150; n += n < 64 ? 21 : 32) {
                const size_t a_stride = k + rows % 3, y_stride = n + rows % 4;
                float *a = floats(rows * a_stride), *b = floats(k * n),
                      *y = floats(rows * y_stride);
                float *want = floats(rows * y_stride);
                fill_with(sparse_float, a, rows * a_stride);
                fill_with(common_float, b, k * n);
                for (const char *const *name = kvc_kernels_names(); *name; name++) {
                    const struct kvc_kernels *kernels = kvc_kernels_find(*name);
                    if (!kernels) continue;
                    fill_with(any_float, y, rows * y_stride);
                    memcpy(want, y, 4 * rows * y_stride);
                    for (size_t r = 0; r < rows; r++)
                        kvc_kernels_ref.multiply_sparse(want + r * y_stride, 0, a + r * a_stride, 0,
                                                        1, b, k, n, n);
                    kernels->multiply_sparse(y, y_stride, a, a_stride, rows, b, k, n, n);
                    assert_memory_equal(y, want, 4 * rows * y_stride);
                }
                free(a - 1), free(b - 1), free(y - 1), free(want - 1);
            }
}

static double common_double(void) {
    return ldexp((double)random_u16() * 0x1p48 + (double)random_u16() * 0x1p32 +
                     (double)random_u16() * 0x1p16 + (double)random_u16() - 0x1p63,
                 -64 - random_byte() % 4);
}

/* Every second one nearly cancels in its cosine, so that a fused product is visible after rounding
 * to binary32. */
static void angles_agree(void **state) {
    (void)state;
    unsigned fused = 0;
    for (size_t n = 0; n <= 130; n++)
        for (unsigned round = 0; round < 8; round++) {
            double *a = (double *)noise(16 * n + 8) + 1, *b = (double *)noise(16 * n + 8) + 1;
            float *cosine = floats(n), *sine = floats(n), *want_cosine = floats(n),
                  *want_sine = floats(n);
            for (size_t i = 0; i < 2 * n; i++) {
                a[i] = random_byte() % 16 ? common_double() : random_byte() % 2 ? 0 : -0.0;
                b[i] = random_byte() % 16 ? common_double() : random_byte() % 2 ? 0 : -0.0;
            }
            for (size_t i = 0; i < n; i++) {
                if (round % 2) {
                    a[n + i] = b[i];
                    b[n + i] = a[i] * (1 + ldexp(random_byte() % 4, -52));
                }
                const double ac_bc = a[i] * b[i], as_bs = a[n + i] * b[n + i];
                const double ac_bs = a[i] * b[n + i], as_bc = a[n + i] * b[i];
                want_cosine[i] = (float)(ac_bc - as_bs);
                want_sine[i] = (float)(ac_bs + as_bc);
                fused += want_cosine[i] != (float)fma(a[i], b[i], -as_bs);
            }
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                fill_with(any_float, cosine, n);
                fill_with(any_float, sine, n);
                k->angles(cosine, sine, a, b, n);
                assert_memory_equal(cosine, want_cosine, 4 * n);
                assert_memory_equal(sine, want_sine, 4 * n);
            }
            free(a - 1), free(b - 1);
            free(cosine - 1), free(sine - 1), free(want_cosine - 1), free(want_sine - 1);
        }
    assert_true(fused > 1000);
}

static void pairs_are_turned(void **state) {
    (void)state;
    unsigned fused = 0;
    for (size_t n = 0; n <= 130; n++)
        for (unsigned round = 0; round < 8; round++) {
            float *u = floats(n), *v = floats(n), *c = floats(n), *s = floats(n),
                  *halves = floats(2 * n + 3);
            float *want = floats(2 * n + 3), *pairs = floats(2 * n), *want_pairs = floats(2 * n);
            fill_with(round == 7 ? finite_float : zero_or_common, u, n);
            fill_with(round == 7 ? finite_float : zero_or_common, v, n);
            fill_with(zero_or_common, c, n);
            fill_with(zero_or_common, s, n);
            for (size_t i = 0; i < n; i++) {
                want[i] = want_pairs[2 * i] = plus(times(u[i], c[i]), -times(v[i], s[i]));
                want[n + 3 + i] = want_pairs[2 * i + 1] = plus(times(v[i], c[i]),
                                                               times(u[i], s[i]));
                fused += isfinite(want[i]) && want[i] != fmaf(u[i], c[i], -times(v[i], s[i]));
            }
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                memcpy(halves, want, 4 * (2 * n + 3)); /* what lies between the halves stays */
                memcpy(halves, u, 4 * n);
                memcpy(halves + n + 3, v, 4 * n);
                for (size_t i = 0; i < n; i++) {
                    pairs[2 * i] = u[i];
                    pairs[2 * i + 1] = v[i];
                }
                k->turn_halves(halves, halves + n + 3, c, s, n);
                k->turn_pairs(pairs, c, s, n);
                assert_memory_equal(halves, want, 4 * (2 * n + 3));
                assert_memory_equal(pairs, want_pairs, 8 * n);
            }
            free(u - 1), free(v - 1), free(c - 1), free(s - 1);
            free(halves - 1), free(want - 1), free(pairs - 1), free(want_pairs - 1);
        }
    assert_true(fused > 1000);
}

/* Tests the largest symbol, an escape, in every place; symbols below the middle; and zero, which
 * has the sign of the step. */
static void symbols_become_floats(void **state) {
    (void)state;
    static const uint16_t middles[] = {63, 0, 127, 32767};
    static const float steps[] = {1, 0.0371f, -0.3f, 1e6f, 0x1p-149f, 0};
    for (size_t n = 0; n <= 130; n++)
        for (unsigned round = 0; round < 24; round++) {
            const uint16_t middle = middles[round % 4], escape = round % 5 ? 127 : 32767;
            const float step = steps[round % 6];
            const size_t place = n ? random_u16() % n : 0;
            uint16_t *symbols = noise(2 * n), most = 0;
            float *y = floats(n), *want = floats(n);
            for (size_t i = 0; i < n; i++) {
                symbols[i] = i == place && round % 3
                                 ? escape
                                 : (uint16_t)(round == 7 ? middle : random_u16() % 100);
                want[i] = times((float)symbols[i] - (float)middle, step);
                if (symbols[i] > most) most = symbols[i];
            }
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                fill_with(any_float, y, n);
                assert_int_equal(k->symbols_to_floats(y, symbols, n, middle, step), most);
                assert_memory_equal(y, want, 4 * n);
            }
            free(symbols), free(y - 1), free(want - 1);
        }
}

/* Codes at, below and above each one's limit, limits of 0, and codes that no symbol has room for.
 */
static void codes_become_symbols(void **state) {
    (void)state;
    unsigned listed = 0;
    for (size_t n = 0; n <= 70; n++)
        for (unsigned round = 0; round < 20; round++) {
            int32_t *codes = noise(4 * n);
            uint16_t *base = noise(2 * n), *symbols = noise(2 * n), *others = noise(2 * n),
                     *want = noise(2 * n);
            uint8_t *limit = noise(n);
            const uint16_t middle = (uint16_t)(round * 31);
            for (size_t i = 0; i < n; i++) {
                limit[i] = (uint8_t)(round % 4 ? limit[i] % 9 : limit[i]);
                if (codes[i] == INT32_MIN) codes[i] = 0;
                if (round % 5) codes[i] = codes[i] % 9;
            }
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                size_t found = 0;
                for (size_t i = 0; i < n; i++) {
                    symbols[i] = 0;
                    if (codes[i] >= limit[i] || -codes[i] >= limit[i]) want[found++] = (uint16_t)i;
                }
                assert_int_equal(k->codes_to_symbols(symbols, others, codes, base, limit, n,
                                                     middle),
                                 found);
                if (found) assert_memory_equal(others, want, 2 * found);
                for (size_t i = 0; i < n; i++)
                    assert_int_equal(symbols[i], ((int64_t)base[i] + middle + codes[i]) & 0xffff);
                listed += (unsigned)found;
            }
            free(codes), free(base), free(symbols), free(others), free(want), free(limit);
        }
    assert_true(listed > 1000);
}

/* Tests ties, values beyond the largest code, infinities and NaN. */
static void codes_are_rounded(void **state) {
    (void)state;
    static const float tops[] = {0x1p+24f - 1, 127, 0, 6, 0x1p+30f, 0x1.fffffep+30f};
    static const float special[] = {INFINITY, -INFINITY, NAN,       -NAN,     -0.0f,
                                    3e38f,    -3e38f,    0x1p-149f, 0x1p+24f, -0x1p+31f};
    unsigned ties = 0, held = 0;
    for (size_t n = 0; n <= 130; n++)
        for (unsigned round = 0; round < 24; round++) {
            const float most = tops[round % 6],
                        inverse = round % 4 ? fabsf(common_float()) : ldexpf(1, (int)round / 4);
            int32_t *codes = noise(4 * n), *want = noise(4 * n);
            float *x = floats(n);
            for (size_t i = 0; i < n; i++) {
                x[i] = round % 4 ? number() : (float)(random_u16() % 640) / 4 - 80;
                if (random_byte() % 16 == 0) x[i] = special[random_byte() % 10];
                const double v = (double)times(x[i], inverse), below = floor(v), over = v - below;
                double code = over > 0.5 || (over == 0.5 && fmod(below, 2) != 0) ? below + 1
                                                                                 : below;
                const double top = (double)most;
                held += fabs(code) > top;
                ties += over == 0.5;
                if (isnan(v)) code = 0;
                want[i] = (int32_t)(code > top ? top : code < -top ? -top : code);
            }
            for (const char *const *name = kvc_kernels_names(); *name; name++) {
                const struct kvc_kernels *k = kvc_kernels_find(*name);
                if (!k) continue;
                memset(codes, 0xee, 4 * n);
                k->round_codes(codes, x, n, inverse, most);
                assert_memory_equal(codes, want, 4 * n);
            }
            free(codes), free(want), free(x - 1);
        }
    assert_true(ties > 100 && held > 1000);
}

/* The worked examples of channels.md, split.md and fast.md, in as many copies as make every loop of
 * a twin turn. */
static void examples(void **state) {
    (void)state;
    enum { N = 70 };
    const struct kvc_word_format bf16 = format_of(&word_cases[0]);
    uint16_t words[N], bias[N], context[N], none[N] = {0}, symbols[N];
    float mean[N], partner[N], variance[N], one[N], zero[N];
    uint8_t low[N], high[N], packed[KVC_PACKED(N, 3)];
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        const struct kvc_kernels *k = kvc_kernels_find(*name);
        if (!k) continue;
        for (size_t i = 0; i < N; i++) {
            mean[i] = value_of(4, 127);
            variance[i] = variance_of(127);
            one[i] = 1, zero[i] = partner[i] = 0;
            words[i] = 0x3f80;
            bias[i] = context[i] = 0xffff;
        }
        const struct kvc_model_channels channels = {mean, partner, variance};
        k->model_words(bias, context, &channels, one, zero, N, N, &bf16, 10);
        for (size_t i = 0; i < N; i++)
            assert_true(mean[i] == 1 && bias[i] == 0x3fc0 && context[i] == 2 << 10);
        k->cut_words(symbols, low, words, none, none, N, 6, 0xffff);
        for (size_t i = 0; i < N; i++) assert_true(symbols[i] == 254 && low[i] == 0);
        k->cut_words(symbols, low, words, bias, none, N, 6, 0xffff);
        for (size_t i = 0; i < N; i++) assert_true(symbols[i] == 1023 && low[i] == 0);

        for (size_t i = 0; i < N; i++) bias[i] = 120 << 7, words[i] = i % 2 ? 0xc000 : 0x3f80;
        k->cut_rotated(low, high, words, bias, N);
        for (size_t i = 0; i < N; i++) assert_true(low[i] == i % 2 && high[i] == 7 + i % 2);
        for (size_t i = 0; i < N; i++) high[i] &= 7; /* -2.0 is an escape and packed as 0 */
        k->pack_bits(packed, high, N, 3);
        /* two bits of 32 values */
        for (size_t i = 0; i < 8; i++) assert_int_equal(packed[i], i % 2 ? 0 : 0xff);
        /* and the third */
        for (size_t i = 8; i < 12; i++) assert_int_equal(packed[i], i % 2 ? 0 : 0xff);
    }
}

static void tables_by_name(void **state) {
    (void)state;
    assert_ptr_equal(kvc_kernels_find("ref"), &kvc_kernels_ref);
    assert_null(kvc_kernels_find("bogus"));
    assert_non_null(kvc_kernels_get());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planes_agree),
        cmocka_unit_test(pieces_agree),
        cmocka_unit_test(every_half),
        cmocka_unit_test(rounding_to_half),
        cmocka_unit_test(conversions_agree),
        cmocka_unit_test(block_types),
        cmocka_unit_test(eight_bit_floats),
        cmocka_unit_test(hadamard),
        cmocka_unit_test(tables_by_name),
        cmocka_unit_test(words_are_cut_and_joined),
        cmocka_unit_test(words_are_rotated),
        cmocka_unit_test(rotated_pieces_have_places),
        cmocka_unit_test(bits_are_packed),
        cmocka_unit_test(model_words_agree),
        cmocka_unit_test(model_words_are_not_fused),
        cmocka_unit_test(model_sums_agree),
        cmocka_unit_test(turns_of_a_model_agree),
        cmocka_unit_test(model_angles_agree),
        cmocka_unit_test(hashes_agree),
        cmocka_unit_test(examples),
        cmocka_unit_test(floats_become_words),
        cmocka_unit_test(ranges_agree),
        cmocka_unit_test(limits_agree),
        cmocka_unit_test(codes_agree),
        cmocka_unit_test(values_agree),
        cmocka_unit_test(rows_are_multiplied),
        cmocka_unit_test(tiles_are_multiplied),
        cmocka_unit_test(grams_agree),
        cmocka_unit_test(products_agree),
        cmocka_unit_test(exponentials_agree),
        cmocka_unit_test(sparse_rows_are_multiplied),
        cmocka_unit_test(rows_are_multiplied_alone),
        cmocka_unit_test(integers_are_multiplied),
        cmocka_unit_test(weights_have_places),
        cmocka_unit_test(matrices_are_transposed),
        cmocka_unit_test(values_become_small),
        cmocka_unit_test(angles_agree),
        cmocka_unit_test(pairs_are_turned),
        cmocka_unit_test(symbols_become_floats),
        cmocka_unit_test(codes_become_symbols),
        cmocka_unit_test(codes_are_rounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
