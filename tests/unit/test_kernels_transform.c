/* test_kernels_transform.c: the kernels of the transform codec, in every table that this CPU runs.
 * Not for stages (test_transform.c). */
#include "kernels_support.h"

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
                    zeros += kvc_float_to_bits(with_zeros) != kvc_float_to_bits(want[i]);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sparse_rows_are_multiplied),
        cmocka_unit_test(rows_are_multiplied_alone),
        cmocka_unit_test(angles_agree),
        cmocka_unit_test(pairs_are_turned),
        cmocka_unit_test(symbols_become_floats),
        cmocka_unit_test(codes_become_symbols),
        cmocka_unit_test(codes_are_rounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
