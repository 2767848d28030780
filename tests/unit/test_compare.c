/* test_compare.c: row matching and the comparison of tensors, on caches made in memory. */
#include "formats/compare/groups.h"
#include "tests/unit/one_tensor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A cache of one layer's K over `bytes`, at the given positions (NULL: 0, 1, ...). */
static struct kvc_cache *cache_of(enum kvc_dtype dtype, uint64_t tokens, uint64_t heads,
                                  uint64_t dim, const void *bytes, const int64_t *positions) {
    return one_tensor(&(struct kvc_shape){dtype, tokens, heads, dim}, bytes, positions);
}

/* Compares and frees both caches; out has room for `heads`. Returns the number of values that
 * differ. */
static uint64_t compare(struct kvc_cache *a, struct kvc_cache *b, uint64_t heads,
                        const struct kvc_compare_options *o, struct kvc_difference *out) {
    struct kvc_matching m;
    struct kvc_error e;
    uint64_t differ = 0;
    assert_int_equal(kvc_match_rows(&a->part[0].cells, &b->part[0].cells, INT64_MIN, INT64_MAX, &m,
                                    &e),
                     0);
    assert_int_equal(kvc_compare_tensor(a, 0, b, 0, &m, heads, o, out, &e), 0);
    for (uint64_t h = 0; h < heads; h++) differ += out[h].differ;
    kvc_matching_free(&m);
    kvc_cache_free(a);
    kvc_cache_free(b);
    return differ;
}

static const struct kvc_compare_options exact = {.exact = 1};

/* Two rows of n floats, one head. */
static uint64_t compare_floats(const float *a, const float *b, size_t n,
                               const struct kvc_compare_options *o, struct kvc_difference *out) {
    return compare(cache_of(KVC_F32, 1, 1, n, a, NULL), cache_of(KVC_F32, 1, 1, n, b, NULL), 1, o,
                   out);
}

static float from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void equal_caches(void **state) {
    (void)state;
    uint16_t v[300 * 2 * 8];
    struct kvc_difference d[2];
    /* NaN and Inf among them */
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) v[i] = (uint16_t)(i * 40503u);
    assert_int_equal(compare(cache_of(KVC_F16, 300, 2, 8, v, NULL),
                             cache_of(KVC_F16, 300, 2, 8, v, NULL), 2, &exact, d),
                     0);
    for (int h = 0; h < 2; h++) {
        assert_int_equal(d[h].values, 300 * 8);
        assert_true(d[h].max_abs == 0 && d[h].rms == 0 && d[h].frobenius == 0 && d[h].cosine == 1);
    }
}

static void one_bit(void **state) {
    (void)state;
    uint16_t a[300 * 2 * 8], b[300 * 2 * 8];
    struct kvc_difference d[2];
    for (size_t i = 0; i < sizeof a / sizeof a[0]; i++) a[i] = (uint16_t)(0x3c00 + i % 64);
    /* every value in turn, in steps that visit all columns */
    for (size_t i = 0; i < sizeof a / sizeof a[0]; i++) {
        if (i % 7) continue;
        memcpy(b, a, sizeof a);
        b[i] ^= 1;
        assert_int_equal(compare(cache_of(KVC_F16, 300, 2, 8, a, NULL),
                                 cache_of(KVC_F16, 300, 2, 8, b, NULL), 2, &exact, d),
                         1);
        struct kvc_difference *hit = &d[i / 8 % 2], *other = &d[1 - i / 8 % 2];
        assert_int_equal(hit->differ, 1);
        assert_int_equal(other->differ, 0);
        assert_int_equal(hit->at_position, i / 16);
        assert_int_equal(hit->at_channel, i % 8);
        assert_true(hit->max_abs == 0x1p-10);
        assert_true(fabs(hit->rms - 0x1p-10 / sqrt(300 * 8)) < 1e-12);
        assert_true(hit->cosine > 0.9999 && hit->cosine < 1 && hit->frobenius > 0);
        assert_true(other->values == 300 * 8 && other->max_abs == 0 && other->cosine > 1 - 1e-12);
    }
}

static void measures(void **state) {
    (void)state;
    const float a[] = {3, 4, 0, 0}, b[] = {3, 0, 0, 0}, zero[4] = {0};
    struct kvc_difference d;
    assert_int_equal(compare_floats(a, b, 4, &exact, &d), 1);
    assert_true(d.max_abs == 4 && d.rms == 2 && d.frobenius == 4.0 / 5 && d.cosine == 9.0 / 15);
    assert_int_equal(compare_floats(zero, a, 4, &exact, &d), 2);
    assert_true(isinf(d.frobenius) && d.cosine == 0);
    assert_int_equal(compare_floats(a, zero, 4, &exact, &d), 2);
    assert_true(d.frobenius == 1 && d.cosine == 0);

    struct kvc_difference total = {0}, other;
    assert_int_equal(compare_floats(a, b, 4, &exact, &d), 1);
    assert_int_equal(compare_floats(b, a, 4, &exact, &other), 1);
    kvc_difference_add(&total, &d);
    kvc_difference_add(&total, &other);
    assert_int_equal(total.differ, 2);
    assert_int_equal(total.values, 8);
    assert_true(total.rms == 2 && total.max_abs == 4 && total.at_a == 4 && total.at_b == 0);
    assert_true(total.cosine == 18.0 / 34);
}

static void nan_payloads(void **state) {
    (void)state;
    const struct kvc_compare_options loose = {.abs = 1e30, .rel = 1e30};
    const float a[] = {1, from_bits(0x7fc00001), 2}, b[] = {1, from_bits(0x7fc00002), 2};
    const float sign[] = {1, from_bits(0xffc00001), 2}, number[] = {1, 5, 2};
    struct kvc_difference d;
    assert_int_equal(compare_floats(a, a, 3, &exact, &d), 0);
    assert_int_equal(compare_floats(a, b, 3, &exact, &d), 1);
    assert_int_equal(d.nonfinite, 1);
    assert_int_equal(d.finite, 2);
    assert_true(d.max_abs == 0 && d.cosine > 1 - 1e-12);
    assert_int_equal(compare_floats(a, sign, 3, &exact, &d), 1);
    assert_int_equal(compare_floats(a, b, 3, &loose, &d), 1);
    assert_int_equal(compare_floats(a, number, 3, &loose, &d), 1);
    assert_int_equal(compare_floats(number, a, 3, &loose, &d), 1);
}

static void infinities(void **state) {
    (void)state;
    const struct kvc_compare_options loose = {.abs = 1e30, .rel = 1e30};
    const float a[] = {INFINITY, 1}, b[] = {-INFINITY, 1}, c[] = {3e38f, 1};
    struct kvc_difference d;
    assert_int_equal(compare_floats(a, a, 2, &loose, &d), 0);
    assert_int_equal(compare_floats(a, b, 2, &loose, &d), 1);
    assert_int_equal(d.nonfinite, 1);
    assert_int_equal(compare_floats(a, c, 2, &loose, &d), 1);
    assert_int_equal(compare_floats(c, a, 2, &loose, &d), 1); /* though rel * |b| is infinite */
    assert_true(d.max_abs == 0 && d.finite == 1);
}

static void signed_zero(void **state) {
    (void)state;
    const struct kvc_compare_options none = {.abs = 0, .rel = 0};
    const float a[] = {0.0f, 1}, b[] = {-0.0f, 1};
    struct kvc_difference d;
    assert_int_equal(compare_floats(a, b, 2, &exact, &d), 1);
    assert_true(d.max_abs == 0 && d.rms == 0);
    assert_int_equal(compare_floats(a, b, 2, &none, &d), 0);
}

static void tolerance_edges(void **state) {
    (void)state;
    const float a[] = {1.0f, 8.0f, -8.0f, 0.0f}, b[] = {1.25f, 10.0f, -10.0f, 0.5f};
    struct kvc_difference d;
    struct kvc_compare_options o = {.abs = 0.25};
    assert_int_equal(compare_floats(a, b, 4, &o, &d), 3); /* 0.25 itself is within */
    assert_int_equal(d.at_channel, 1);
    o = (struct kvc_compare_options){.abs = nextafter(0.25, 0)};
    assert_int_equal(compare_floats(a, b, 4, &o, &d), 4);
    o = (struct kvc_compare_options){.rel = 0.2};
    assert_int_equal(compare_floats(a, b, 4, &o, &d),
                     1); /* relative to b: 2 <= 0.2 * 10, but 0.5 > 0.2 * 0.5 */
    assert_int_equal(compare_floats(b, a, 4, &o, &d), 4);
    o = (struct kvc_compare_options){.abs = 0.4, .rel = 0.2};
    assert_int_equal(compare_floats(a, b, 4, &o, &d), 0);
    assert_true(d.max_abs == 2); /* measured whether within or not */
}

static void two_dtypes(void **state) {
    (void)state;
    const uint16_t half[] = {0x3c00, 0xc000, 0x3555, 0x7e00}; /* 1, -2, 0.333251953125, NaN */
    const uint16_t bf16[] = {0x3f80, 0xc000, 0x3eab, 0x7fc0}; /* 1, -2, 0.333984375, NaN */
    const float wide[] = {1, -2, 0.333251953125f, from_bits(0x7fc00000)};
    const struct kvc_compare_options loose = {.abs = 0.001};
    struct kvc_difference d;
    assert_int_equal(compare(cache_of(KVC_F16, 1, 1, 4, half, NULL),
                             cache_of(KVC_F32, 1, 1, 4, wide, NULL), 1, &exact, &d),
                     0);
    assert_int_equal(d.finite, 3);
    assert_int_equal(compare(cache_of(KVC_F16, 1, 1, 4, half, NULL),
                             cache_of(KVC_BF16, 1, 1, 4, bf16, NULL), 1, &exact, &d),
                     1);
    assert_int_equal(d.at_channel, 2);
    assert_true(d.at_a == 0.333251953125 && d.at_b == 0.333984375);
    assert_int_equal(compare(cache_of(KVC_F16, 1, 1, 4, half, NULL),
                             cache_of(KVC_BF16, 1, 1, 4, bf16, NULL), 1, &loose, &d),
                     0);
}

static void block_types(void **state) {
    (void)state;
    const struct kvc_compare_options none = {.abs = 0};
    uint8_t a[2][34] = {{0}}, b[2][34];
    float f[64];
    struct kvc_difference d[4];
    a[0][1] = a[1][1] = 0x3c; /* scale 1 */
    for (size_t i = 0; i < 64; i++) {
        a[i / 32][2 + i % 32] = (uint8_t)i;
        f[i] = (float)i;
    }
    memcpy(b, a, sizeof a);
    b[1][2 + 5] = 100; /* value 37: one that differs, in the third of four heads of 16 */
    assert_int_equal(compare(cache_of(KVC_Q8_0, 1, 4, 16, a, NULL),
                             cache_of(KVC_Q8_0, 1, 4, 16, b, NULL), 4, &exact, d),
                     1);
    assert_int_equal(d[2].differ, 1);
    assert_int_equal(d[2].at_channel, 5);
    assert_true(d[2].at_a == 37 && d[2].at_b == 100);
    assert_int_equal(d[3].values, 16);

    assert_int_equal(compare(cache_of(KVC_Q8_0, 1, 4, 16, a, NULL),
                             cache_of(KVC_F32, 1, 4, 16, f, NULL), 4, &none, d),
                     0);

    /* Different bytes of equal values: code 0 with scale 1 and with scale 2. */
    memset(a, 0, sizeof a);
    memcpy(b, a, sizeof a);
    b[1][1] = 0x40;
    assert_int_equal(compare(cache_of(KVC_Q8_0, 1, 4, 16, a, NULL),
                             cache_of(KVC_Q8_0, 1, 4, 16, b, NULL), 4, &exact, d),
                     1);
    assert_int_equal(d[2].differ, 1);
    assert_int_equal(d[2].at_channel, 0);
    assert_int_equal(compare(cache_of(KVC_Q8_0, 1, 4, 16, a, NULL),
                             cache_of(KVC_Q8_0, 1, 4, 16, b, NULL), 4, &none, d),
                     0);
}

static void long_rows(void **state) {
    (void)state;
    enum { DIM = 5000 }; /* more than a piece, and no multiple of one */
    float *a = calloc(3 * 3 * DIM, sizeof *a), *b = calloc(3 * 3 * DIM, sizeof *b);
    struct kvc_difference d[3];
    assert_non_null(a);
    assert_non_null(b);
    b[1 * 3 * DIM + 2 * DIM + 4999] = 7;
    assert_int_equal(compare(cache_of(KVC_F32, 3, 3, DIM, a, NULL),
                             cache_of(KVC_F32, 3, 3, DIM, b, NULL), 3, &exact, d),
                     1);
    assert_int_equal(d[2].differ, 1);
    assert_int_equal(d[2].at_position, 1);
    assert_int_equal(d[2].at_channel, 4999);
    for (int h = 0; h < 3; h++) assert_int_equal(d[h].values, 3 * DIM);
    free(a);
    free(b);
}

/* One side does not know its heads: a row of 1 x 8 beside one of 2 x 4. */
static void heads_of_the_other(void **state) {
    (void)state;
    const float a[8] = {0}, b[8] = {0, 0, 0, 0, 0, 1, 0, 0};
    struct kvc_difference d[2];
    assert_int_equal(compare(cache_of(KVC_F32, 1, 1, 8, a, NULL),
                             cache_of(KVC_F32, 1, 2, 4, b, NULL), 2, &exact, d),
                     1);
    assert_int_equal(d[1].differ, 1);
    assert_int_equal(d[1].at_channel, 1);
}

static void refused_shapes(void **state) {
    (void)state;
    const float v[8] = {0};
    struct kvc_cache *a = cache_of(KVC_F32, 1, 1, 8, v, NULL),
                     *b = cache_of(KVC_F32, 1, 1, 6, v, NULL);
    struct kvc_matching m = {0};
    struct kvc_difference d[8];
    struct kvc_error e;
    assert_int_equal(kvc_compare_tensor(a, 0, b, 0, &m, 1, &exact, d, &e), -1);
    assert_int_equal(kvc_compare_tensor(a, 0, a, 0, &m, 3, &exact, d, &e), -1);
    assert_int_equal(kvc_compare_tensor(a, 0, a, 0, &m, 0, &exact, d, &e), -1);
    assert_int_equal(kvc_compare_tensor(a, 0, a, 0, &m, 8, &exact, d, &e), 0); /* no rows at all */
    assert_true(d[7].values == 0 && d[7].differ == 0);
    kvc_cache_free(a);
    kvc_cache_free(b);
}

struct reported {
    int calls, most;
    int64_t position;
    uint64_t head, channel;
    double a, b;
};

static int report(void *state, int64_t position, uint64_t head, uint64_t channel, double a,
                  double b) {
    struct reported *r = state;
    *r = (struct reported){r->calls + 1, r->most, position, head, channel, a, b};
    return r->calls == r->most;
}

static void reports(void **state) {
    (void)state;
    const float a[8] = {0}, b[8] = {0, 1, 0, 2, 0, 3, 0, 4};
    const int64_t positions[] = {20, 10}; /* the second cell comes first */
    struct reported r = {.most = 100};
    struct kvc_compare_options o = {.exact = 1, .report = report, .state = &r};
    struct kvc_difference d[2];
    assert_int_equal(compare(cache_of(KVC_F32, 2, 2, 2, a, positions),
                             cache_of(KVC_F32, 2, 2, 2, b, positions), 2, &o, d),
                     4);
    assert_int_equal(r.calls, 4);
    assert_true(r.position == 20 && r.head == 1 && r.channel == 1 && r.a == 0 && r.b == 2);
    assert_true(d[0].at_position == 10 && d[0].at_b == 3);
    r = (struct reported){.most = 2};
    assert_int_equal(compare(cache_of(KVC_F32, 2, 2, 2, a, positions),
                             cache_of(KVC_F32, 2, 2, 2, b, positions), 2, &o, d),
                     4);
    assert_int_equal(r.calls, 2);
    assert_true(r.position == 10 && r.head == 1 && r.b == 4);
}

static void positions_match(void **state) {
    (void)state;
    const float v[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int64_t most = KVC_POSITION_LIMIT - 1, left[] = {5, 5, 0, 1, 9, 11, 30, most},
                  right[] = {1, 2, 3, 5, 5, 5, 30, most};
    struct kvc_cache *a = cache_of(KVC_F32, 8, 1, 1, v, left),
                     *b = cache_of(KVC_F32, 8, 1, 1, v, right);
    struct kvc_matching m;
    struct kvc_error e;
    assert_int_equal(kvc_match_rows(&a->part[0].cells, &b->part[0].cells, INT64_MIN, INT64_MAX, &m,
                                    &e),
                     0);
    /* sorted: 0 1 5 5 9 11 30 max beside 1 2 3 5 5 5 30 max */
    assert_int_equal(m.rows, 5);
    assert_int_equal(m.n_runs, 3);
    assert_true(m.run[0].a == 1 && m.run[0].b == 0 && m.run[0].n == 1);
    assert_true(m.run[1].a == 2 && m.run[1].b == 3 && m.run[1].n == 2);
    assert_true(m.run[2].a == 6 && m.run[2].b == 6 && m.run[2].n == 2);
    assert_int_equal(m.n_only[0], 3);
    assert_true(m.only[0][0].first == 0 && m.only[0][0].last == 0 && m.only[0][2].last == 11);
    assert_int_equal(m.n_only[1], 2);
    assert_true(m.only[1][0].first == 2 && m.only[1][0].last == 3 && m.only[1][1].first == 5);
    kvc_matching_free(&m);
    assert_int_equal(kvc_match_rows(&a->part[0].cells, &b->part[0].cells, 5, 10, &m, &e), 0);
    assert_true(m.rows == 2 && m.n_only[0] == 1 && m.n_only[1] == 1);
    kvc_matching_free(&m);
    kvc_cache_free(a);
    kvc_cache_free(b);
}

/* Rows are compared where positions agree, whatever cells they stand in. */
static void shifted_cells(void **state) {
    (void)state;
    const float v[] = {0, 1, 2, 3}, w[] = {2, 1, 3, 8};
    const int64_t order[] = {2, 1, 3, 8};
    struct kvc_difference d;
    assert_int_equal(compare(cache_of(KVC_F32, 4, 1, 1, v, NULL),
                             cache_of(KVC_F32, 4, 1, 1, w, order), 1, &exact, &d),
                     0);
    assert_int_equal(d.values, 3);
}

/* Sums by row, by channel and by octave; a row of more values than are converted at a time; pairs
 * that are not finite. */
static void error_sums(void **state) {
    enum { WIDTH = 5000 };
    static float a[2 * WIDTH], b[2 * WIDTH];
    struct kvc_error_sums sums;
    struct kvc_error e;
    struct kvc_difference out[1];
    (void)state;
    for (size_t i = 0; i < 2 * WIDTH; i++) a[i] = b[i] = 1;
    b[3] = 1.5f;             /* row 0, channel 3: 2^-1 */
    b[4500] = 3;             /* row 0, beyond the first piece: 2^1 */
    b[WIDTH + 3] = 0;        /* row 1, channel 3: 2^0 */
    b[WIDTH + 4] = INFINITY; /* counts in no sum */
    assert_int_equal(kvc_error_sums_start(&sums, 2, WIDTH, &e), 0);
    const struct kvc_compare_options o = {.exact = 1, .sums = &sums};
    assert_int_equal(compare(cache_of(KVC_F32, 2, 1, WIDTH, a, NULL),
                             cache_of(KVC_F32, 2, 1, WIDTH, b, NULL), 1, &o, out),
                     4);
    assert_true(sums.row[0].dd == 4.25 && sums.row[0].aa == WIDTH);
    assert_true(sums.row[1].dd == 1 && sums.row[1].aa == WIDTH - 1);
    assert_true(sums.channel[3].dd == 1.25 && sums.channel[3].aa == 2);
    assert_true(sums.channel[4500].dd == 4 && sums.channel[4].dd == 0 && sums.channel[4].aa == 1);
    for (unsigned i = 0; i < KVC_OCTAVES; i++)
        assert_int_equal(sums.octave[i], i + 1 >= KVC_OCTAVE_0 && i <= KVC_OCTAVE_0 + 1);
    assert_int_equal(sums.zero, 2 * WIDTH - 4);
    assert_int_equal(sums.nonfinite, 1);
    kvc_error_sums_free(&sums);

    /* the ends of the octaves: the difference of the smallest numbers, and of the largest */
    const float small[2] = {0, 0x1p-149f}, large[2] = {-0x1.fffffep127f, 0x1.fffffep127f};
    assert_int_equal(kvc_error_sums_start(&sums, 1, 1, &e), 0);
    kvc_error_sums_values(&sums, 0, 0, &small[0], &small[1], 1);
    kvc_error_sums_values(&sums, 0, 0, &large[0], &large[1], 1);
    assert_int_equal(sums.octave[0], 1);
    assert_int_equal(sums.octave[KVC_OCTAVE_0 + 128], 1);
    kvc_error_sums_free(&sums);
}

/* --- sums by layer, head, position, channel --- */

enum {
    GROUP_ROWS = 3,
    GROUP_HEADS = 2,
    GROUP_DIM = 4,
    GROUP_VALUES = GROUP_ROWS * GROUP_HEADS * GROUP_DIM
};

struct got {
    struct kvc_group group[GROUP_VALUES];
    size_t n;
};

static int give_group(void *state, const struct kvc_group *g) {
    struct got *got = state;
    assert_true(got->n < GROUP_VALUES);
    got->group[got->n++] = *g;
    return 0;
}

/* Groups the differences of one tensor. Row 1 and row 2 have the same position. */
static void group(const float *a, const float *b, enum kvc_group_by by, uint64_t worst, int all,
                  struct got *got) {
    const int64_t position[GROUP_ROWS] = {4, 7, 7};
    struct kvc_cache *c[2] = {cache_of(KVC_F32, GROUP_ROWS, GROUP_HEADS, GROUP_DIM, a, position),
                              cache_of(KVC_F32, GROUP_ROWS, GROUP_HEADS, GROUP_DIM, b, position)};
    const struct kvc_cache *const caches[2] = {c[0], c[1]};
    struct kvc_pairs pairs = {.cache = {c[0], c[1]}, .first = INT64_MIN, .last = INT64_MAX};
    struct kvc_groups g = {
        .cache = c[0], .by = by, .worst = worst, .all = all, .give = give_group, .state = got};
    struct kvc_compare_options o = exact;
    struct kvc_difference sum, *head;
    struct kvc_error e;
    got->n = 0;
    assert_int_equal(kvc_pairs_find(&pairs, &e), 0);
    assert_int_equal(pairs.n_tensors, 1);
    assert_int_equal(kvc_groups_before(&g, &pairs.tensor[0], &o, &e), 0);
    assert_non_null(head = kvc_pairs_compare(caches, &pairs.tensor[0], &o, &sum, &e));
    assert_int_equal(kvc_groups_after(&g, &pairs.tensor[0], head, &sum, &e), 0);
    assert_int_equal(kvc_groups_end(&g, &e), 0);
    kvc_groups_free(&g);
    free(head);
    kvc_pairs_free(&pairs);
    for (int s = 0; s < 2; s++) kvc_cache_free(c[s]);
}

/* One value differs in row 0, head 1, channel 2; two in row 2, head 0, channel 3 and head 1,
 * channel 0. */
static void groups(void **state) {
    static struct got got;
    float a[GROUP_VALUES], b[GROUP_VALUES];
    (void)state;
    for (int i = 0; i < GROUP_VALUES; i++) a[i] = b[i] = (float)(i + 1);
    b[6] += 0.5f;
    b[2 * 8 + 3] += 4;
    b[2 * 8 + 4] += 1;
    group(a, b, KVC_GROUP_LAYER, 0, 0, &got);
    assert_true(got.n == 1 && got.group[0].error.differ == 3 &&
                got.group[0].error.values == GROUP_VALUES);
    group(a, b, KVC_GROUP_HEAD, 0, 0, &got);
    assert_true(got.n == 2 && got.group[0].error.differ == 1 && got.group[1].head == 1 &&
                got.group[1].error.differ == 2);
    group(a, b, KVC_GROUP_HEAD, 1, 0, &got);
    assert_true(got.n == 1 && got.group[0].head == 0 && got.group[0].error.max_abs == 4);

    group(a, b, KVC_GROUP_POSITION, 0, 0, &got);
    assert_int_equal(got.n, 2);
    assert_true(got.group[0].position == 4 && got.group[0].error.values == 8 &&
                got.group[0].error.differ == 1);
    assert_true(got.group[1].position == 7 && got.group[1].error.values == 16 &&
                got.group[1].error.differ == 2);
    double aa = 0;
    for (int i = 8; i < GROUP_VALUES; i++) aa += (double)a[i] * (double)a[i];
    assert_true(fabs(got.group[1].error.frobenius - sqrt(17 / aa)) < 1e-15);

    group(a, b, KVC_GROUP_CHANNEL, 0, 0, &got);
    assert_int_equal(got.n, 3);
    assert_true(got.group[0].head == 0 && got.group[0].channel == 3 &&
                got.group[0].error.values == GROUP_ROWS);
    assert_true(got.group[1].head == 1 && got.group[1].channel == 0 && got.group[2].channel == 2);
    group(a, b, KVC_GROUP_CHANNEL, 2, 1, &got);
    assert_true(got.n == 2 && got.group[0].channel == 3 && got.group[1].channel == 0);
    group(a, b, KVC_GROUP_CHANNEL, 0, 1, &got);
    assert_true(got.n == GROUP_HEADS * GROUP_DIM && got.group[0].error.differ == 0);

    group(a, a, KVC_GROUP_POSITION, 0, 0, &got); /* bytes are equal */
    assert_int_equal(got.n, 0);
    group(a, a, KVC_GROUP_POSITION, 0, 1, &got);
    assert_true(got.n == 2 && got.group[1].error.values == 16 && got.group[1].error.differ == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_caches),
        cmocka_unit_test(one_bit),
        cmocka_unit_test(measures),
        cmocka_unit_test(nan_payloads),
        cmocka_unit_test(infinities),
        cmocka_unit_test(signed_zero),
        cmocka_unit_test(tolerance_edges),
        cmocka_unit_test(two_dtypes),
        cmocka_unit_test(block_types),
        cmocka_unit_test(long_rows),
        cmocka_unit_test(heads_of_the_other),
        cmocka_unit_test(refused_shapes),
        cmocka_unit_test(reports),
        cmocka_unit_test(positions_match),
        cmocka_unit_test(shifted_cells),
        cmocka_unit_test(error_sums),
        cmocka_unit_test(groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
