/* test_stats.c: statistics of tensors (formats/compare/stats.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "formats/compare/stats.h"
#include "tests/unit/one_tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void by_head(void **state) {
    (void)state;
    static const float rows[2][2][2] = {{{1, 2}, {-8, 0}}, {{3, 4}, {0, 0}}};
    const struct kvc_shape shape = {KVC_F32, 2, 2, 2};
    struct kvc_cache *c = one_tensor(&shape, rows, NULL);
    struct kvc_stats s[2];
    assert_int_equal(kvc_tensor_stats(c, 0, s, NULL), 0);
    assert_true(s[0].values == 4 && s[0].nan == 0 && s[0].inf == 0);
    assert_true(s[0].mean == 2.5);
    assert_true(fabs(s[0].rms - sqrt(30.0 / 4)) < 1e-15);
    assert_true(s[0].max_abs == 4);
    assert_true(s[0].worst_channel == 1);
    assert_true(fabs(s[0].worst_rms - sqrt(10)) < 1e-15);
    assert_true(s[0].outlier_channels == 0);
    assert_true(s[1].mean == -2 && s[1].max_abs == 8 && s[1].worst_channel == 0);
    kvc_cache_free(c);
}

static void not_finite(void **state) {
    (void)state;
    const float rows[3][2] = {{NAN, 1}, {INFINITY, -INFINITY}, {2, 3}};
    const struct kvc_shape shape = {KVC_F32, 3, 1, 2};
    struct kvc_cache *c = one_tensor(&shape, rows, NULL);
    struct kvc_stats s;
    assert_int_equal(kvc_tensor_stats(c, 0, &s, NULL), 0);
    assert_true(s.values == 6 && s.nan == 1 && s.inf == 2);
    assert_true(s.mean == 2 && s.max_abs == 3);
    assert_true(fabs(s.rms - sqrt(14.0 / 3)) < 1e-15);
    assert_true(s.worst_channel == 1 && fabs(s.worst_rms - sqrt(5)) < 1e-15);
    kvc_cache_free(c);
}

static void nothing_finite(void **state) {
    (void)state;
    const float rows[1][2] = {{NAN, INFINITY}};
    const struct kvc_shape shape = {KVC_F32, 1, 1, 2};
    struct kvc_cache *c = one_tensor(&shape, rows, NULL);
    struct kvc_stats s;
    assert_int_equal(kvc_tensor_stats(c, 0, &s, NULL), 0);
    assert_true(s.mean == 0 && s.rms == 0 && s.max_abs == 0 && s.worst_rms == 0 &&
                s.outlier_channels == 0);
    kvc_cache_free(c);
}

static void no_tokens(void **state) {
    (void)state;
    const struct kvc_shape shape = {KVC_F16, 0, 2, 4};
    struct kvc_cache *c = one_tensor(&shape, "", NULL);
    struct kvc_stats s[2];
    assert_int_equal(kvc_tensor_stats(c, 0, s, NULL), 0);
    assert_true(s[1].values == 0 && s[1].mean == 0);
    kvc_cache_free(c);
}

static void outliers(void **state) {
    (void)state;
    enum { TOKENS = 600, DIM = 9 }; /* several blocks */
    float *rows = malloc(sizeof *rows * TOKENS * DIM);
    assert_non_null(rows);
    for (int t = 0; t < TOKENS; t++) {
        for (int d = 0; d < DIM; d++) {
            float sign = t % 2 ? 1 : -1;
            rows[t * DIM + d] = sign * (d == 3 ? 5.0f : d == 7 ? 4.0f : d == 8 ? 4.5f : 1.0f);
        }
    }
    const struct kvc_shape shape = {KVC_F32, TOKENS, 1, DIM};
    struct kvc_cache *c = one_tensor(&shape, rows, NULL);
    struct kvc_stats s;
    assert_int_equal(kvc_tensor_stats(c, 0, &s, NULL), 0);
    assert_true(s.values == TOKENS * DIM && s.mean == 0);
    assert_true(s.outlier_channels == 2); /* 4 times the median is not over 4 times */
    assert_true(s.worst_channel == 3 && s.worst_rms == 5);
    kvc_cache_free(c);
    free(rows);
}

static void block_type(void **state) {
    (void)state;
    uint8_t rows[2][34] = {{0}}; /* q8_0: an f16 scale and 32 codes */
    rows[0][1] = 0x3c;           /* 1.0 */
    rows[0][2] = 10;
    rows[1][1] = 0x40; /* 2.0 */
    rows[1][33] = (uint8_t)-5;
    const struct kvc_shape shape = {KVC_Q8_0, 2, 1, 32};
    struct kvc_cache *c = one_tensor(&shape, rows, NULL);
    struct kvc_stats s;
    assert_int_equal(kvc_tensor_stats(c, 0, &s, NULL), 0);
    assert_true(s.values == 64 && s.mean == 0 && s.max_abs == 10);
    assert_true(fabs(s.rms - sqrt(200.0 / 64)) < 1e-15);
    assert_true(s.outlier_channels == 2);
    kvc_cache_free(c);
}

static int cannot_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                       uint8_t *dst, struct kvc_error *e) {
    (void)c, (void)tensor, (void)first, (void)n, (void)dst;
    return kvc_fail(e, KVC_ERR_DAMAGED, "no such bytes");
}

static void read_error(void **state) {
    (void)state;
    static const float rows[1][2] = {{1, 2}};
    const struct kvc_shape shape = {KVC_F32, 1, 1, 2};
    struct kvc_cache *c = one_tensor(&shape, rows, NULL);
    struct kvc_stats s;
    struct kvc_error e;
    c->read = cannot_read;
    assert_int_equal(kvc_tensor_stats(c, 0, &s, &e), -1);
    assert_int_equal(e.code, KVC_ERR_DAMAGED);
    kvc_cache_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_head),        cmocka_unit_test(not_finite),
        cmocka_unit_test(nothing_finite), cmocka_unit_test(no_tokens),
        cmocka_unit_test(outliers),       cmocka_unit_test(block_type),
        cmocka_unit_test(read_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
