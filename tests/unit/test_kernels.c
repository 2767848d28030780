/* test_kernels.c: every fast kernel against the reference, the reference against slow and obvious code. */
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
                uint8_t *src = malloc(bytes + 1), *want = malloc(bytes + 1), *got = malloc(bytes + 1), *back = malloc(bytes + 1);
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
    assert_int_equal(kvc_float_to_half(1.0f + 0x1p-11f), 0x3c00);           /* tie to even: down */
    assert_int_equal(kvc_float_to_half(1.0f + 0x1.8p-10f), 0x3c02);         /* tie to even: up */
    assert_int_equal(kvc_float_to_half(65519.9f), 0x7bff);
    assert_int_equal(kvc_float_to_half(65520.0f), 0x7c00);
    assert_int_equal(kvc_float_to_half(0x1p-25f), 0);                       /* half the smallest: tie to zero */
    assert_int_equal(kvc_float_to_half(0x1.000002p-25f), 1);
    assert_int_equal(kvc_float_to_half(-0.0f), 0x8000);
    assert_int_equal(kvc_float_to_half(-INFINITY), 0xfc00);
    assert_true((kvc_float_to_half(NAN) & 0x7fff) > 0x7c00);
    assert_int_equal(kvc_float_to_bf16(1.0f), 0x3f80);
    assert_int_equal(kvc_float_to_bf16(1.0f + 0x1p-8f), 0x3f80);            /* tie to even */
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
    for (int i = 0; i < 16; i++) assert_true(v[i] == (float)(2 * (i - 8)) && v[i + 16] == (float)(2 * (7 - i)));
    uint8_t c[24] = {0x00, 0x40, 0x00, 0x3c}; /* 2.0, 1.0 */
    for (int i = 0; i < 16; i++) c[4 + i] = (uint8_t)(i | (15 - i) << 4);
    kvc_q4_1_to_f32(v, c, 1);
    for (int i = 0; i < 16; i++) assert_true(v[i] == (float)(2 * i + 1) && v[i + 16] == (float)(2 * (15 - i) + 1));
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
    assert_true(v[0] == 1 && v[1] == -1 && v[2] == 448 && v[3] == 0x1p-9f && isnan(v[4]) && v[5] == 0 && signbit(v[5]) != 0);
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
            for (int j = 0; j < TILE; j++) sum += x[t * TILE + j] * (__builtin_popcount((unsigned)(i & j)) % 2 ? -1 : 1);
            assert_true(fabs(sum / 8 - y[t * TILE + i]) < 1e-3);
        }
    kvc_hadamard(y, 2 * TILE, TILE);
    for (int i = 0; i < 2 * TILE; i++) assert_true(fabsf(x[i] - y[i]) < 1e-3f);
}

static void tables_by_name(void **state) {
    (void)state;
    assert_ptr_equal(kvc_kernels_find("ref"), &kvc_kernels_ref);
    assert_null(kvc_kernels_find("bogus"));
    assert_non_null(kvc_kernels_get());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planes_agree), cmocka_unit_test(every_half),    cmocka_unit_test(rounding_to_half),
        cmocka_unit_test(conversions_agree), cmocka_unit_test(block_types), cmocka_unit_test(eight_bit_floats),
        cmocka_unit_test(hadamard),     cmocka_unit_test(tables_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
