/* test_kernels.c: kernels that move, convert and pack values, in every table that this CPU runs,
 * against an obvious computation. Not for rANS (test_rans.c), the channel model
 * (test_kernels_model.c) or the kernels of lossy stages (test_kernels_lossy.c,
 * test_kernels_transform.c). */
#include "kernels_support.h"

#include <xxhash.h>

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

static void tables_by_name(void **state) {
    (void)state;
    assert_ptr_equal(kvc_kernels_find("ref"), &kvc_kernels_ref);
    assert_null(kvc_kernels_find("bogus"));
    assert_non_null(kvc_kernels_get());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planes_agree),      cmocka_unit_test(pieces_agree),
        cmocka_unit_test(every_half),        cmocka_unit_test(rounding_to_half),
        cmocka_unit_test(conversions_agree), cmocka_unit_test(block_types),
        cmocka_unit_test(eight_bit_floats),  cmocka_unit_test(hadamard),
        cmocka_unit_test(tables_by_name),    cmocka_unit_test(words_are_cut_and_joined),
        cmocka_unit_test(words_are_rotated), cmocka_unit_test(rotated_pieces_have_places),
        cmocka_unit_test(bits_are_packed),   cmocka_unit_test(hashes_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
