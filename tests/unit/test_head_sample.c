/* test_head_sample.c: the sample of pairs of one head, on caches made in memory. Not for its
 * picture (tests/cli/diff-html). */
#include "formats/compare/head_sample.h"
#include "tests/unit/one_tensor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 3, HEAD = 1 };

static struct kvc_cache *cache_of(uint64_t tokens, uint64_t dim, const float *values,
                                  const int64_t *positions) {
    return one_tensor(&(struct kvc_shape){KVC_F32, tokens, HEADS, dim}, values, positions);
}

/* Takes a sample of HEAD and frees both caches. */
static struct kvc_head_sample take(struct kvc_cache *a, struct kvc_cache *b, size_t most,
                                   size_t most_worst) {
    const struct kvc_cache *const cache[2] = {a, b};
    struct kvc_part_pair parts = {.part = {&a->part[0], &b->part[0]}};
    const struct kvc_tensor_pair pair = {.parts = &parts,
                                         .role = KVC_ROLE_K,
                                         .tensor = {0, 0},
                                         .heads = HEADS};
    struct kvc_head_sample s;
    struct kvc_error e;
    assert_int_equal(kvc_match_rows(&a->part[0].cells, &b->part[0].cells, INT64_MIN, INT64_MAX,
                                    &parts.rows, &e),
                     0);
    assert_int_equal(kvc_head_sample_take(cache, &pair, HEAD, most, most_worst, &s, &e), 0);
    kvc_matching_free(&parts.rows);
    kvc_cache_free(a);
    kvc_cache_free(b);
    return s;
}

/* Values that tell their place: of HEAD its number among the head's values, of other heads 1e6. */
static float *numbered(uint64_t tokens, uint64_t dim) {
    float *v = malloc((size_t)(tokens * HEADS * dim) * sizeof *v);
    assert_non_null(v);
    for (uint64_t i = 0; i < tokens * HEADS * dim; i++)
        v[i] = i / dim % HEADS == HEAD ? (float)(i / (HEADS * dim) * dim + i % dim) : 1e6f;
    return v;
}

/* A sample of more values than it has room for: spread over all positions, and over all channels
 * alike. */
static void spreads(void **state) {
    (void)state;
    static const struct {
        uint64_t tokens, dim;
        size_t most;
    } of[] = {{1000, 64, 2000}, {1024, 64, 2048}, {300, 6, 100},
              {257, 1, 10},     {512, 512, 1000}, {5, 8, 7}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        const uint64_t n = of[i].tokens * of[i].dim;
        float *v = numbered(of[i].tokens, of[i].dim);
        unsigned *times = calloc((size_t)of[i].dim, sizeof *times), least = ~0u, most = 0;
        assert_non_null(times);
        struct kvc_head_sample s = take(cache_of(of[i].tokens, of[i].dim, v, NULL),
                                        cache_of(of[i].tokens, of[i].dim, v, NULL), of[i].most, 4);
        assert_int_equal(s.values, n);
        assert_int_equal(s.n_worst, 0);
        assert_true(s.n <= of[i].most && s.n * 4 >= of[i].most);
        const float step = s.value[1][0] - s.value[0][0];
        for (size_t k = 0; k < s.n; k++) {
            assert_true(s.value[k][0] == (float)k * step && s.value[k][1] == s.value[k][0]);
            times[(uint64_t)s.value[k][0] % of[i].dim]++;
        }
        assert_true((float)n - s.value[s.n - 1][0] <= step);
        for (uint64_t d = 0; d < of[i].dim; d++) {
            least = times[d] < least ? times[d] : least;
            most = times[d] > most ? times[d] : most;
        }
        assert_true(most - least <= 1);
        kvc_head_sample_free(&s);
        free(times);
        free(v);
    }
}

/* The worst pairs, the largest first, wherever they are; and every value of a small head. */
static void worst(void **state) {
    (void)state;
    enum { TOKENS = 400, DIM = 8 };
    float *a = numbered(TOKENS, DIM), *b = numbered(TOKENS, DIM);
    static const struct {
        size_t row, channel;
        float error;
    } made[] = {{399, 7, -5}, {0, 0, 2}, {255, 3, 9}, {256, 3, 1}, {17, 1, -0.5f}, {18, 1, 2}};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        b[(made[i].row * HEADS + HEAD) * DIM + made[i].channel] += made[i].error;
    b[0] = -1e6f; /* another head */
    struct kvc_head_sample s = take(cache_of(TOKENS, DIM, a, NULL), cache_of(TOKENS, DIM, b, NULL),
                                    TOKENS * DIM, 4);
    static const float expected[4][2] = {{255 * DIM + 3, 255 * DIM + 12},
                                         {399 * DIM + 7, 399 * DIM + 2},
                                         {0, 2},
                                         {145, 147}};
    assert_int_equal(s.n, TOKENS * DIM);
    assert_int_equal(s.n_worst, 4);
    assert_memory_equal(s.worst, expected, sizeof expected);
    for (size_t i = 0; i < s.n; i++) assert_true(s.value[i][0] == (float)i);
    kvc_head_sample_free(&s);
    s = take(cache_of(TOKENS, DIM, a, NULL), cache_of(TOKENS, DIM, b, NULL), 10, 50);
    assert_int_equal(s.n_worst, 6);
    assert_true(fabsf(s.worst[5][1] - s.worst[5][0]) == 0.5f);
    kvc_head_sample_free(&s);
    free(a);
    free(b);
}

/* Pairs that are not finite are left out, rows are paired by position. */
static void finite_pairs(void **state) {
    (void)state;
    enum { DIM = 2 };
    static const int64_t of_a[3] = {0, 1, 5}, of_b[3] = {5, 0, 7};
    float a[3 * HEADS * DIM] = {0}, b[3 * HEADS * DIM] = {0};
    const float values[2][3][DIM] = {{{1, 2}, {3, 4}, {5, INFINITY}}, {{6, 7}, {NAN, 8}, {9, 10}}};
    for (int row = 0; row < 3; row++) {
        memcpy(a + (row * HEADS + HEAD) * DIM, values[0][row], sizeof values[0][row]);
        memcpy(b + (row * HEADS + HEAD) * DIM, values[1][row], sizeof values[1][row]);
    }
    struct kvc_head_sample s = take(cache_of(3, DIM, a, of_a), cache_of(3, DIM, b, of_b), 10, 10);
    static const float expected[2][2] = {{2, 8}, {5, 6}};
    assert_int_equal(s.values, 2);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.n_worst, 2);
    assert_memory_equal(s.value, expected, sizeof expected);
    assert_memory_equal(s.worst, expected, sizeof expected);
    kvc_head_sample_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spreads),
        cmocka_unit_test(worst),
        cmocka_unit_test(finite_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
