/* test_attention.c: the measures of attention.h beside slow ones in double precision, written here
 * from its definitions. Not for kvc-diff's choice of tensors and printing
 * (tests/cli/diff-attention). */
#include "formats/cache/mapped.h"
#include "formats/compare/attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The library's arithmetic is f32 with 24 bits: a sum of n products is off by about sqrt(n) * 2^-24
 * of the sum of their magnitudes. For the 600 rows and 80 channels here that stays below 3e-6 of
 * them, which FLOOR allows; RELATIVE is for measures in which it is small beside the difference of
 * the caches, a tenth of their values. A wrong row, head or scale changes every measure by far
 * more. */
#define RELATIVE 1e-4
#define FLOOR 3e-6

/* --- caches in memory --- */

/* One layer's K and V, or queries, one row per cell in the order of `position`. */
struct rows {
    size_t n, heads, dim_k, dim_v; /* dim_v 0: queries */
    int64_t *position;
    float *k, *v; /* [n][heads][dim]; k: the queries */
    struct kvc_cache *cache;
};

static uint64_t random_state;

/* From -1 to 1. */
static float random_value(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(random_state >> 11) * 0x1p-52 - 1);
}

static float *random_values(size_t n, float scale) {
    float *v = malloc((n + 1) * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++) v[i] = scale * random_value();
    return v;
}

/* Cells at positions 0, 1, ...; K of a size with which logits spread over several units. */
static struct rows make_rows(size_t n, size_t heads, size_t dim_k, size_t dim_v) {
    struct rows r = {.n = n, .heads = heads, .dim_k = dim_k, .dim_v = dim_v};
    r.position = malloc((n + 1) * sizeof *r.position);
    assert_non_null(r.position);
    for (size_t i = 0; i < n; i++) r.position[i] = (int64_t)i;
    r.k = random_values(n * heads * dim_k, 3);
    r.v = random_values(n * heads * dim_v, 1);
    return r;
}

/* The same cells with other values, by up to `change`. */
static struct rows changed_rows(const struct rows *from, float change) {
    struct rows r = make_rows(from->n, from->heads, from->dim_k, from->dim_v);
    memcpy(r.position, from->position, from->n * sizeof *r.position);
    for (size_t i = 0; i < from->n * from->heads * from->dim_k; i++)
        r.k[i] = from->k[i] + change * random_value();
    for (size_t i = 0; i < from->n * from->heads * from->dim_v; i++)
        r.v[i] = from->v[i] + change * random_value();
    return r;
}

static uint32_t add_tensor(struct kvc_cache *c, uint32_t layer, enum kvc_role role,
                           const struct rows *r, size_t dim) {
    const struct kvc_shape shape = {KVC_F32, r->n, r->heads, dim};
    struct kvc_error e;
    uint32_t tensor = kvc_cache_add_tensor(c, layer, role, &shape, &e);
    assert_int_not_equal(tensor, KVC_NONE);
    return tensor;
}

/* Tensor 0 is K or the queries, tensor 1 V. */
static void open_rows(struct rows *r) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    assert_non_null(c);
    uint32_t part = kvc_cache_add_part(c, r->dim_v ? KVC_PART_LIVE : KVC_PART_COMPANION, r->n, &e);
    assert_int_not_equal(part, KVC_NONE);
    uint32_t layer = kvc_cache_add_layer(c, part, 0,
                                         r->dim_v ? KVC_LAYER_FULL : KVC_LAYER_COMPANION, &e);
    assert_int_not_equal(layer, KVC_NONE);
    add_tensor(c, layer, r->dim_v ? KVC_ROLE_K : KVC_ROLE_QUERIES, r, r->dim_k);
    if (r->dim_v) add_tensor(c, layer, KVC_ROLE_V, r, r->dim_v);
    memcpy(c->part[part].cells.pos, r->position, r->n * sizeof *r->position);
    assert_int_equal(kvc_cache_map(c, NULL, NULL, &e), 0);
    assert_int_equal(kvc_cache_map_memory(c, 0, (const uint8_t *)r->k, &e), 0);
    if (r->dim_v) assert_int_equal(kvc_cache_map_memory(c, 1, (const uint8_t *)r->v, &e), 0);
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    r->cache = c;
}

static void free_rows(struct rows *r) {
    kvc_cache_free(r->cache);
    free(r->position);
    free(r->k);
    free(r->v);
}

/* --- the measures --- */

/* Two caches, their queries, and what both implementations make of them; freed by free_trial(). */
struct trial {
    struct rows side[2], queries;
    uint32_t window;
    struct kvc_attention *out; /* of each KV head */
    /* of each KV head: of all queries, and of those at the last position */
    struct kvc_attention_weights *found[2];
};

static int compare(struct trial *t, struct kvc_error *e) {
    struct kvc_matching m;
    open_rows(&t->side[0]);
    open_rows(&t->side[1]);
    open_rows(&t->queries);
    t->out = calloc(t->side[0].heads, sizeof *t->out);
    assert_non_null(t->out);
    for (int last = 0; last < 2; last++) {
        t->found[last] = calloc(t->side[0].heads, sizeof *t->found[last]);
        assert_non_null(t->found[last]);
    }
    assert_int_equal(kvc_match_rows(&t->side[0].cache->part[0].cells,
                                    &t->side[1].cache->part[0].cells, INT64_MIN, INT64_MAX, &m, e),
                     0);
    const struct kvc_attention_layer layer = {.cache = {t->side[0].cache, t->side[1].cache},
                                              .queries = t->queries.cache,
                                              .k = {0, 0},
                                              .v = {1, 1},
                                              .q = 0,
                                              .rows = &m,
                                              .window = t->window};
    int status = kvc_attention_compare(&layer, t->out, e);
    for (int last = 0; last < 2 && !status; last++)
        for (size_t h = 0; h < t->side[0].heads && !status; h++)
            status = kvc_attention_find(&layer, h, last, &t->found[last][h], e);
    kvc_matching_free(&m);
    return status;
}

static void free_trial(struct trial *t) {
    for (size_t h = 0; h < t->side[0].heads; h++) {
        kvc_attention_free(&t->out[h]);
        kvc_attention_weights_free(&t->found[0][h]);
        kvc_attention_weights_free(&t->found[1][h]);
    }
    free(t->out);
    free(t->found[0]);
    free(t->found[1]);
    free_rows(&t->side[0]);
    free_rows(&t->side[1]);
    free_rows(&t->queries);
}

/* A query's attention, written down as it is defined; `at` are the cells that it sees. */
static void attend(const struct rows *r, size_t head, const float *q, const size_t *at, size_t n,
                   double *logit, double *log_p, double *output) {
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) {
        logit[i] = 0;
        for (size_t d = 0; d < r->dim_k; d++)
            logit[i] += (double)q[d] * (double)r->k[(at[i] * r->heads + head) * r->dim_k + d];
        logit[i] /= sqrt((double)r->dim_k);
        most = fmax(most, logit[i]);
    }
    for (size_t i = 0; i < n; i++) sum += exp(logit[i] - most);
    for (size_t i = 0; i < n; i++) log_p[i] = logit[i] - most - log(sum);
    for (size_t d = 0; d < r->dim_v; d++) {
        output[d] = 0;
        for (size_t i = 0; i < n; i++)
            output[d] += exp(log_p[i]) * (double)r->v[(at[i] * r->heads + head) * r->dim_v + d];
    }
}

/* The cells that the two sides have in common (positions are unique here) and that a query at
 * `position` sees. */
static size_t cells_seen(const struct trial *t, int64_t position, size_t *at[2]) {
    size_t n = 0;
    for (size_t i = 0; i < t->side[0].n; i++)
        for (size_t j = 0; j < t->side[1].n; j++) {
            const int64_t p = t->side[0].position[i];
            if (p != t->side[1].position[j] || p > position) continue;
            if (t->window && p <= position - (int64_t)t->window) continue;
            at[0][n] = i;
            at[1][n++] = j;
        }
    return n;
}

static void *array(size_t n, size_t size) {
    void *p = calloc(n + 1, size);
    assert_non_null(p);
    return p;
}

static void assert_near(double got, double expected, double allowed, const char *what) {
    if (!(fabs(got - expected) <= allowed)) fail_msg("%s is %.9g, not %.9g", what, got, expected);
}

/* Compares the probabilities of the query that was found for KV head h, and its KL, which must be
 * `largest`. */
static void check_found(const struct trial *t, size_t h, const struct kvc_attention_weights *w,
                        double largest) {
    const struct rows *q = &t->queries;
    const size_t room = t->side[0].n, group = q->heads / t->side[0].heads, dim = t->side[0].dim_v;
    size_t *at[2] = {array(room, sizeof(size_t)), array(room, sizeof(size_t))}, i = 0;
    double *logit = array(room, sizeof(double)), *log_p[2], *output = array(dim, sizeof(double)),
           kl = 0;
    const size_t n = cells_seen(t, w->position, at);
    assert_int_equal(w->n, n);
    assert_near(w->kl, largest, RELATIVE * largest + FLOOR, "the largest KL of a query");
    assert_true(w->head / group == h);
    while (q->position[i] != w->position) i++;
    for (int s = 0; s < 2; s++) {
        log_p[s] = array(room, sizeof(double));
        attend(&t->side[s], h, q->k + (i * q->heads + w->head) * q->dim_k, at[s], n, logit,
               log_p[s], output);
        for (size_t r = 0; r < n; r++) { /* cells_seen() takes side 0 in the order of its cells */
            size_t k = 0;
            while (w->at[k] != t->side[s].position[at[s][r]]) k++;
            assert_near((double)w->p[s][k], exp(log_p[s][r]), RELATIVE * exp(log_p[s][r]) + FLOOR,
                        "a probability");
        }
    }
    for (size_t r = 0; r < n; r++) kl += exp(log_p[0][r]) * (log_p[0][r] - log_p[1][r]);
    assert_near(w->kl, kl, RELATIVE * kl + FLOOR, "the KL of the query");
    for (size_t k = 1; k < n; k++) assert_true(w->at[k - 1] < w->at[k]);
    free(at[0]);
    free(at[1]);
    free(logit);
    free(log_p[0]);
    free(log_p[1]);
    free(output);
}

/* Compares the measures of every head. Query head h * group + g is the g-th of KV head h; its
 * outputs stand in the order of positions, then of g. Queries' cells are in ascending order here.
 */
static void check(const struct trial *t) {
    const struct rows *q = &t->queries;
    const size_t room = t->side[0].n, group = q->heads / t->side[0].heads, dim = t->side[0].dim_v;
    size_t *at[2] = {array(room, sizeof(size_t)), array(room, sizeof(size_t))};
    double *logit[2], *log_p[2], *output[2];
    for (int s = 0; s < 2; s++) {
        logit[s] = array(room, sizeof(double));
        log_p[s] = array(room, sizeof(double));
        output[s] = array(dim, sizeof(double));
    }
    for (size_t h = 0; h < t->side[0].heads; h++) {
        const struct kvc_attention *out = &t->out[h];
        double logit_sum = 0, kl_sum = 0, largest = 0, largest_of_last = 0;
        int64_t last = 0;
        uint64_t queries = 0, logits = 0;
        for (size_t i = 0; i < q->n; i++) {
            const size_t n = cells_seen(t, q->position[i], at);
            for (size_t g = 0; n && g < group; g++) {
                double norm = 0, apart = 0, kl = 0;
                for (int s = 0; s < 2; s++)
                    attend(&t->side[s], h, q->k + (i * q->heads + h * group + g) * q->dim_k, at[s],
                           n, logit[s], log_p[s], output[s]);
                for (size_t r = 0; r < n; r++) {
                    logit_sum += (logit[0][r] - logit[1][r]) * (logit[0][r] - logit[1][r]);
                    kl += exp(log_p[0][r]) * (log_p[0][r] - log_p[1][r]);
                }
                kl_sum += kl;
                largest = fmax(largest, kl);
                largest_of_last = g ? fmax(largest_of_last, kl) : kl;
                last = q->position[i];
                for (size_t d = 0; d < dim; d++) {
                    norm += output[0][d] * output[0][d];
                    apart += (output[0][d] - output[1][d]) * (output[0][d] - output[1][d]);
                }
                assert_true(queries < out->queries);
                /* Values are about 1 at most: so are the magnitudes that sum up to each channel of
                 * an output. */
                const double expected = sqrt(apart / norm),
                             rounding = FLOOR * sqrt((double)dim / norm);
                assert_near((double)out->output[queries], expected,
                            RELATIVE * expected + (1 + expected) * rounding, "an output's error");
                queries++;
                logits += n;
            }
        }
        assert_int_equal(out->queries, queries);
        assert_int_equal(out->logits, logits);
        assert_near(out->logit_sum, logit_sum, RELATIVE * logit_sum,
                    "the sum of squared logit errors");
        assert_near(out->kl_sum, kl_sum, RELATIVE * kl_sum + FLOOR * (double)queries,
                    "the sum of KL");
        if (!queries) continue;
        check_found(t, h, &t->found[0][h], largest);
        check_found(t, h, &t->found[1][h], largest_of_last);
        assert_int_equal(t->found[1][h].position, last);
    }
    for (int s = 0; s < 2; s++) {
        free(at[s]);
        free(logit[s]);
        free(log_p[s]);
        free(output[s]);
    }
}

/* --- against the definitions --- */

/* n rows and their counterparts, queries at the last positions. */
static struct trial make_trial(size_t n, size_t heads, size_t group, size_t dim_k, size_t dim_v,
                               size_t queries) {
    struct trial t = {.window = 0};
    t.side[0] = make_rows(n, heads, dim_k, dim_v);
    t.side[1] = changed_rows(&t.side[0], 0.3f);
    t.queries = make_rows(queries, heads * group, dim_k, 0);
    for (size_t i = 0; i < queries; i++)
        t.queries.position[i] = (int64_t)(n + i) - (int64_t)queries;
    return t;
}

static void run(struct trial *t) {
    struct kvc_error e;
    if (compare(t, &e)) fail_msg("%s", e.message);
    check(t);
    free_trial(t);
}

static void shapes(void **state) {
    (void)state;
    static const struct {
        size_t n, heads, group, dim_k, dim_v, queries;
    } shape[] = {
        {1, 1, 1, 1, 1, 1},     {2, 1, 1, 1, 5, 2},     {7, 3, 1, 5, 1, 3},
        {8, 1, 3, 5, 64, 8},    {9, 3, 3, 64, 80, 9},   {31, 1, 8, 80, 64, 31},
        {64, 3, 8, 64, 5, 64},  {255, 1, 1, 64, 64, 5}, {256, 3, 3, 80, 80, 1},
        {257, 1, 8, 5, 80, 2},  {511, 3, 8, 1, 64, 4},  {513, 3, 1, 64, 1, 16},
        {600, 1, 3, 80, 5, 64}, {600, 3, 3, 64, 64, 8}, {600, 3, 8, 80, 5, 1},
    };
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        struct trial t = make_trial(shape[i].n, shape[i].heads, shape[i].group, shape[i].dim_k,
                                    shape[i].dim_v, shape[i].queries);
        run(&t);
    }
}

/* Queries between rows: each sees the rows that are not after it. Positions have holes, and some
 * queries are in holes. */
static void causal(void **state) {
    (void)state;
    struct trial t = make_trial(300, 3, 3, 64, 5, 6);
    static const int64_t at[6] = {0, 10, 11, 12, 500, 5000};
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < t.side[s].n; i++)
            t.side[s].position[i] = 3 * (int64_t)i + (i > 150 ? 100 : 0);
    memcpy(t.queries.position, at, sizeof at);
    run(&t);
}

/* Cells in any order: rows are taken by position, on each side by its own. */
static void cells_out_of_order(void **state) {
    (void)state;
    struct trial t = make_trial(101, 1, 3, 5, 5, 20);
    for (size_t i = 0; i < 101; i++) {
        t.side[0].position[i] = (int64_t)(i * 37 % 101);
        t.side[1].position[i] = (int64_t)(i * 64 % 101);
    }
    run(&t);
}

/* Rows that one side lacks are not attended to: matched rows come in several runs, short ones and
 * ones longer than the blocks that are read at once. */
static void rows_of_one_side(void **state) {
    (void)state;
    static const struct {
        size_t n[2], run[2]; /* rows of each side; a position is left out after so many */
    } case_of[] = {{{600, 600}, {7, 290}},
                   {{600, 600}, {300, 280}},
                   {{600, 300}, {7, 1}},
                   {{20, 600}, {3, 5}}};
    for (size_t c = 0; c < sizeof case_of / sizeof case_of[0]; c++) {
        struct trial t = make_trial(case_of[c].n[0], 3, 1, 5, 64, 9);
        free_rows(&t.side[1]);
        t.side[1] = make_rows(case_of[c].n[1], 3, 5, 64);
        for (size_t s = 0; s < 2; s++)
            for (size_t i = 0; i < t.side[s].n; i++)
                t.side[s].position[i] = (int64_t)(i + i / case_of[c].run[s] + 3 * s);
        run(&t);
    }
}

static void no_common_rows(void **state) {
    (void)state;
    struct trial t = make_trial(10, 3, 3, 5, 5, 4);
    for (size_t i = 0; i < 10; i++) t.side[1].position[i] += 10;
    struct kvc_error e;
    assert_int_equal(compare(&t, &e), 0);
    for (size_t h = 0; h < 3; h++) {
        assert_int_equal(t.out[h].queries, 0);
        assert_int_equal(t.out[h].logits, 0);
        assert_int_equal(t.found[0][h].n, 0);
        assert_int_equal(t.found[1][h].n, 0);
    }
    free_trial(&t);
}

/* The second of two queries at positions -1 and 2 sees rows 0 to 2; the first does not count. */
static void queries_that_see_nothing(void **state) {
    (void)state;
    struct trial t = make_trial(4, 1, 3, 5, 5, 2);
    t.queries.position[0] = -1;
    t.queries.position[1] = 2;
    struct kvc_error e;
    assert_int_equal(compare(&t, &e), 0);
    assert_int_equal(t.out[0].queries, 3);
    assert_int_equal(t.out[0].logits, 9);
    check(&t);
    free_trial(&t);

    t = make_trial(4, 1, 3, 5, 5, 2); /* only what lies outside the window */
    t.queries.position[0] = 5;
    t.queries.position[1] = 6;
    t.window = 3;
    assert_int_equal(compare(&t, &e), 0);
    assert_int_equal(t.out[0].queries, 3);
    assert_int_equal(t.out[0].logits, 3);
    check(&t);
    free_trial(&t);
}

/* A window of w: the query's own position and the w - 1 before it. */
static void windows(void **state) {
    (void)state;
    static const uint32_t window[] = {1, 2, 7, 64, 290, 299, 300, 301, UINT32_MAX};
    for (size_t i = 0; i < sizeof window / sizeof window[0]; i++) {
        struct trial t = make_trial(300, 1, 3, 5, 5, 20);
        t.queries.position[0] = 0;
        t.queries.position[1] = 5;
        t.window = window[i];
        run(&t);
    }
    struct trial t = make_trial(3, 1, 1, 5, 5, 1);
    struct kvc_error e;
    t.window = 2;
    assert_int_equal(compare(&t, &e), 0);
    assert_int_equal(t.out[0].logits, 2);
    free_trial(&t);
}

/* --- values known beforehand --- */

/* One query and two rows, of which only the second differs: probabilities 1/2, 1/2 beside 1/4, 3/4.
 */
static void by_hand(void **state) {
    (void)state;
    struct trial t = make_trial(2, 1, 1, 4, 1, 1);
    for (int s = 0; s < 2; s++) {
        memset(t.side[s].k, 0, 8 * sizeof(float));
        t.side[s].v[0] = 1;
        t.side[s].v[1] = 3;
    }
    t.side[1].k[4] = logf(3);
    memset(t.queries.k, 0, 4 * sizeof(float));
    t.queries.k[0] = 2; /* = sqrt(dim): logits are the first channel of K */
    struct kvc_error e;
    assert_int_equal(compare(&t, &e), 0);
    struct kvc_attention *out = &t.out[0];
    assert_int_equal(out->queries, 1);
    assert_int_equal(out->logits, 2);
    assert_near(kvc_attention_logit_rms(out), log(3) / sqrt(2), 1e-6, "logit_rms");
    assert_near(kvc_attention_kl(out), log(4.0 / 3) / 2, 1e-6, "kl");
    assert_near(kvc_attention_output(out, 0.5), 0.25, 1e-6, "output"); /* 2 beside 2.5 */
    check(&t);
    free_trial(&t);
}

static void identical(void **state) {
    (void)state;
    struct trial t = make_trial(600, 3, 3, 80, 64, 16);
    free_rows(&t.side[1]);
    t.side[1] = changed_rows(&t.side[0], 0);
    struct kvc_error e;
    assert_int_equal(compare(&t, &e), 0);
    for (size_t h = 0; h < 3; h++) {
        assert_int_equal(t.out[h].queries, 16 * 3);
        assert_true(t.out[h].logit_sum == 0 && t.out[h].kl_sum == 0);
        assert_true(kvc_attention_output(&t.out[h], 1) == 0);
    }
    free_trial(&t);
}

/* V alone differs: only outputs do. K alone, by the same in every row: logits do, probabilities do
 * not. */
static void one_of_two(void **state) {
    (void)state;
    struct kvc_error e;
    struct trial t = make_trial(50, 1, 3, 5, 5, 4);
    memcpy(t.side[1].k, t.side[0].k, 50 * 5 * sizeof(float));
    assert_int_equal(compare(&t, &e), 0);
    assert_true(t.out[0].logit_sum == 0 && t.out[0].kl_sum == 0);
    assert_true(kvc_attention_output(&t.out[0], 0.5) > 0.01);
    free_trial(&t);

    t = make_trial(50, 1, 3, 5, 5, 4);
    for (size_t i = 0; i < 50 * 5; i++) t.side[1].k[i] = t.side[0].k[i] + 1;
    memcpy(t.side[1].v, t.side[0].v, 50 * 5 * sizeof(float));
    assert_int_equal(compare(&t, &e), 0);
    assert_true(kvc_attention_logit_rms(&t.out[0]) > 0.01);
    assert_true(kvc_attention_kl(&t.out[0]) < FLOOR);
    free_trial(&t);
}

/* Outputs that are 0: no error when both are, an infinite one when only that of a is. */
static void zero_outputs(void **state) {
    (void)state;
    struct kvc_error e;
    for (int both = 0; both < 2; both++) {
        struct trial t = make_trial(5, 1, 1, 5, 5, 3);
        memset(t.side[0].v, 0, 25 * sizeof(float));
        if (both) memset(t.side[1].v, 0, 25 * sizeof(float));
        assert_int_equal(compare(&t, &e), 0);
        const double error = kvc_attention_output(&t.out[0], 0.5);
        assert_true(both ? error == 0 : isinf(error) && error > 0);
        free_trial(&t);
    }
}

/* A NaN in K of row 3 of one side: queries that see it have NaN, those before it have numbers. */
static void nans(void **state) {
    (void)state;
    struct kvc_error e;
    struct trial t = make_trial(5, 1, 1, 5, 5, 5);
    t.side[1].k[3 * 5 + 2] = NAN;
    assert_int_equal(compare(&t, &e), 0);
    for (size_t i = 0; i < 5; i++) assert_int_equal(isnan(t.out[0].output[i]) != 0, i >= 3);
    assert_true(isnan(kvc_attention_logit_rms(&t.out[0])) && isnan(kvc_attention_kl(&t.out[0])));
    assert_true(kvc_attention_output(&t.out[0], 0.5) < 10);
    assert_true(isnan(kvc_attention_output(&t.out[0], 0.99)));
    free_trial(&t);
}

/* --- what is made of the sums --- */

/* Measures with the outputs given. */
static struct kvc_attention attention_of(const float *output, size_t n) {
    struct kvc_attention a = {.queries = n, .output = array(n, sizeof *output)};
    if (n) memcpy(a.output, output, n * sizeof *output);
    return a;
}

static void quantiles(void **state) {
    (void)state;
    const float three[] = {7, 1, 4}, four[] = {8, 2, 6, 4}, with_nan[] = {NAN, 3, INFINITY, 1};
    struct kvc_attention a = attention_of(three, 3);
    assert_true(kvc_attention_output(&a, 0.5) == 4 && kvc_attention_output(&a, 0.99) == 7);
    assert_true(kvc_attention_output(&a, 0) == 1 && kvc_attention_output(&a, 1) == 7);
    assert_true(kvc_attention_output(&a, 1.0 / 3) == 1 && kvc_attention_output(&a, 0.34) == 4);
    kvc_attention_free(&a);
    a = attention_of(four, 4); /* the lower of the two in the middle */
    assert_true(kvc_attention_output(&a, 0.5) == 4 && kvc_attention_output(&a, 0.51) == 6);
    kvc_attention_free(&a);
    a = attention_of(four, 1);
    assert_true(kvc_attention_output(&a, 0.5) == 8 && kvc_attention_output(&a, 0.99) == 8);
    kvc_attention_free(&a);
    a = attention_of(with_nan, 4);
    assert_true(kvc_attention_output(&a, 0.5) == 3 && isinf(kvc_attention_output(&a, 0.75)));
    assert_true(isnan(kvc_attention_output(&a, 0.99)));
    kvc_attention_free(&a);

    for (size_t n = 1; n <= 1000; n++) { /* values 1 to n: the value is its rank */
        float *v = array(n, sizeof *v);
        for (size_t i = 0; i < n; i++) v[i] = (float)(n - i);
        a = attention_of(v, n);
        assert_int_equal(kvc_attention_output(&a, 0.5), (n + 1) / 2);
        assert_int_equal(kvc_attention_output(&a, 0.99), (99 * n + 99) / 100);
        kvc_attention_free(&a);
        free(v);
    }
}

static void nothing_measured(void **state) {
    (void)state;
    struct kvc_attention a = {.queries = 0};
    assert_true(kvc_attention_logit_rms(&a) == 0 && kvc_attention_kl(&a) == 0 &&
                kvc_attention_output(&a, 0.5) == 0);
    kvc_attention_free(&a);
}

static void sums(void **state) {
    (void)state;
    struct kvc_attention total = {.queries = 0}, empty = {.queries = 0}, part;
    struct kvc_error e;
    const float one[] = {5, 1}, two[] = {3};
    assert_int_equal(kvc_attention_add(&total, &empty, &e), 0);
    assert_int_equal(total.queries, 0);
    part = attention_of(one, 2);
    part.logits = 8;
    part.logit_sum = 10;
    part.kl_sum = 3;
    assert_int_equal(kvc_attention_add(&total, &part, &e), 0);
    kvc_attention_free(&part);
    assert_true(part.output == NULL && part.queries == 0);
    part = attention_of(two, 1);
    part.logits = 2;
    part.logit_sum = 30;
    part.kl_sum = 9;
    assert_int_equal(kvc_attention_add(&total, &part, &e), 0);
    assert_int_equal(kvc_attention_add(&total, &empty, &e), 0);
    kvc_attention_free(&part);
    assert_int_equal(total.queries, 3);
    assert_int_equal(total.logits, 10);
    assert_true(kvc_attention_logit_rms(&total) == 2 && kvc_attention_kl(&total) == 4);
    assert_true(kvc_attention_output(&total, 0.5) == 3 && kvc_attention_output(&total, 0.99) == 5);
    kvc_attention_free(&total);
}

/* --- failures --- */

static void assert_refused(struct trial *t) {
    struct kvc_error e = {.code = KVC_OK};
    assert_int_equal(compare(t, &e), -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    free_trial(t);
}

static void refused_shapes(void **state) {
    (void)state;
    static const struct {
        size_t heads, dim_k, dim_v;
    } other[] = {{1, 5, 6}, {3, 4, 6}, {3, 5, 7}, {1, 15, 18}}; /* than 3 heads of 5 and 6 */
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        for (int s = 0; s < 2; s++) {
            struct trial t = make_trial(8, 3, 2, 5, 6, 2);
            free_rows(&t.side[s]);
            t.side[s] = make_rows(8, other[i].heads, other[i].dim_k, other[i].dim_v);
            assert_refused(&t);
        }
    static const struct {
        size_t heads, dim;
    } queries[] = {{3, 4}, {3, 6}, {2, 5}, {4, 5}, {1, 15}};
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++) {
        struct trial t = make_trial(8, 3, 1, 5, 6, 2);
        free_rows(&t.queries);
        t.queries = make_rows(2, queries[i].heads, queries[i].dim, 0);
        assert_refused(&t);
    }
}

static int fails_to_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                         uint8_t *dst, struct kvc_error *e) {
    (void)c, (void)tensor, (void)first, (void)n, (void)dst;
    return kvc_fail(e, KVC_ERR_DAMAGED, "rows of the test");
}

/* A cache that cannot be read: the error is its own, and what was measured can be freed. */
static void read_failures(void **state) {
    (void)state;
    for (int which = 0; which < 3; which++) {
        struct trial t = make_trial(8, 3, 2, 5, 6, 2);
        struct kvc_matching m;
        struct kvc_error e;
        assert_int_equal(compare(&t, &e), 0);
        for (size_t h = 0; h < 3; h++) kvc_attention_free(&t.out[h]);
        struct kvc_cache *c[3] = {t.side[0].cache, t.side[1].cache, t.queries.cache};
        c[which]->read = fails_to_read;
        assert_int_equal(kvc_match_rows(&c[0]->part[0].cells, &c[1]->part[0].cells, INT64_MIN,
                                        INT64_MAX, &m, &e),
                         0);
        const struct kvc_attention_layer layer = {.cache = {c[0], c[1]},
                                                  .queries = c[2],
                                                  .v = {1, 1},
                                                  .rows = &m};
        assert_int_equal(kvc_attention_compare(&layer, t.out, &e), -1);
        assert_int_equal(e.code, KVC_ERR_DAMAGED);
        kvc_matching_free(&m);
        free_trial(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),
        cmocka_unit_test(causal),
        cmocka_unit_test(cells_out_of_order),
        cmocka_unit_test(rows_of_one_side),
        cmocka_unit_test(no_common_rows),
        cmocka_unit_test(queries_that_see_nothing),
        cmocka_unit_test(windows),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(identical),
        cmocka_unit_test(one_of_two),
        cmocka_unit_test(zero_outputs),
        cmocka_unit_test(nans),
        cmocka_unit_test(quantiles),
        cmocka_unit_test(nothing_measured),
        cmocka_unit_test(sums),
        cmocka_unit_test(refused_shapes),
        cmocka_unit_test(read_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
