/* test_value_sums.c: sums of values by channel and by size, on caches made in memory. Not for their
 * pictures (tests/cli/dump-html). */
#include "formats/compare/value_sums.h"
#include "tests/unit/one_tensor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 2, DIM = 3, WIDTH = HEADS * DIM };

static struct kvc_cache *cache_of(uint64_t tokens, const float *values) {
    return one_tensor(&(struct kvc_shape){KVC_F32, tokens, HEADS, DIM}, values, NULL);
}

static struct kvc_value_sums take(uint64_t tokens, const float *values, uint64_t most_rows) {
    struct kvc_cache *c = cache_of(tokens, values);
    struct kvc_value_sums s;
    struct kvc_error e;
    assert_int_equal(kvc_value_sums_take(c, 0, most_rows, &s, &e), 0);
    kvc_cache_free(c);
    return s;
}

/* Every kind of value, of which the sums are known. */
static void kinds(void **state) {
    (void)state;
    static const float values[3 * WIDTH] = {
        1,  0,     -0.0f, NAN,       0x1p-149f,
        3, /* 0x1p-149: the smallest of all */
        -2, 0.5f,  0,     INFINITY,  0x1.fffffep127f,
        4, /* the largest */
        2,  0.75f, 0,     -INFINITY, 1.5f,
        0,
    };
    static const double rms[WIDTH] = {1.7320508075688772, 0.52041649986653318, 0, 0, 0,
                                      2.8867513459481287};
    struct kvc_value_sums s = take(3, values, 1000);
    assert_int_equal(s.rows, 3);
    assert_int_equal(s.channels, WIDTH);
    assert_int_equal(s.zero, 5);
    assert_int_equal(s.other, 3);
    for (int d = 0; d < WIDTH; d++) assert_int_equal(s.finite[d], d == 3 ? 0 : 3);
    for (int d = 0; d < WIDTH; d++)
        if (d != 3 && d != 4)
            assert_true(fabs(kvc_value_sums_rms(&s, (uint64_t)d) - rms[d]) < 1e-12);
    assert_true(isnan(kvc_value_sums_rms(&s, 3)));
    uint64_t n = 0;
    for (unsigned i = 0; i < KVC_OCTAVES; i++) n += s.octave[i];
    assert_int_equal(n, 3 * WIDTH - 5 - 3);
    assert_int_equal(s.octave[0], 1);
    assert_int_equal(s.octave[KVC_OCTAVE_0 - 1], 2); /* 0.5, 0.75 */
    assert_int_equal(s.octave[KVC_OCTAVE_0], 2);     /* 1, 1.5 */
    assert_int_equal(s.octave[KVC_OCTAVE_0 + 1], 3); /* -2, 2, 3 */
    assert_int_equal(s.octave[KVC_OCTAVE_0 + 2], 1);
    assert_int_equal(s.octave[KVC_OCTAVE_0 + 127], 1);
    kvc_value_sums_free(&s);
}

/* Fewer rows than there are: whole blocks, at even distances. Channel 0 of a row is 1 in the block
 * that is looked for. */
static void blocks(void **state) {
    (void)state;
    enum { TOKENS = 10 * KVC_BLOCK + 7 };
    static const struct {
        uint64_t most, rows;
        unsigned block[4], n; /* blocks that are read; n 0: all */
    } of[] = {{TOKENS, TOKENS, {0}, 0},
              {TOKENS - 1, 10 * KVC_BLOCK, {0}, 0},
              {0, KVC_BLOCK, {0}, 1},
              {KVC_BLOCK, KVC_BLOCK, {0}, 1},
              {2 * KVC_BLOCK + 60, 2 * KVC_BLOCK, {0, 5}, 2},
              {3 * KVC_BLOCK, 3 * KVC_BLOCK, {0, 3, 7}, 3}};
    float *values = calloc((size_t)TOKENS * WIDTH, sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        for (unsigned block = 0; block < 10 && of[i].n; block++) {
            for (size_t row = 0; row < TOKENS; row++)
                values[row * WIDTH] = row / KVC_BLOCK == block;
            struct kvc_value_sums s = take(TOKENS, values, of[i].most);
            int wanted = 0;
            for (unsigned k = 0; k < of[i].n; k++) wanted |= of[i].block[k] == block;
            assert_int_equal(s.rows, of[i].rows);
            assert_true(s.square[0] == (wanted ? KVC_BLOCK : 0));
            kvc_value_sums_free(&s);
        }
    for (size_t i = 0; i < 2; i++) {
        struct kvc_value_sums s = take(TOKENS, values, of[i].most);
        assert_int_equal(s.rows, of[i].rows);
        kvc_value_sums_free(&s);
    }
    free(values);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kinds), cmocka_unit_test(blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
