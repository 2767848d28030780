/* test_lossy_merge.c: the stage `merge`: two layers as one, in double. Not for what is coded of
 * them afterwards. */
#include "lossy_support.h"

/* --- merge --- */

enum { SLERP, MEAN, MAXNORM };
static const char *const ways[] = {"slerp", "mean", "maxnorm"};

struct merge {
    int how, heads;
    double t, keep, gamma; /* gamma 0: keep */
};

static double norm_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static double angle_of(const float *u, const float *v, size_t n) {
    const double a = norm_of(u, n), b = norm_of(v, n);
    double sum = 0;
    if (a == 0 || b == 0) return 0;
    for (size_t i = 0; i < n; i++) sum += (double)u[i] * (double)v[i];
    return acos(fmax(-1, fmin(1, sum / a / b)));
}

/* The merged vector of the lower layer's u and the deeper one's v; merge.md, "Encoders". */
static void merged(const struct merge *m, const float *u, const float *v, size_t n, double *to) {
    const double a = norm_of(u, n), b = norm_of(v, n), w = angle_of(u, v, n);
    double p = 0.5, q = 0.5, size = 0;
    if (m->how == SLERP) {
        p = w < 1e-3 ? 1 - m->t : sin((1 - m->t) * w) / sin(w);
        q = w < 1e-3 ? m->t : sin(m->t * w) / sin(w);
        p = a > 0 ? p / a : 0;
        q = b > 0 ? q / b : 0;
        if (a > 0 && b == 0) p = 1 / a; /* a zero row gets the direction of the other row */
        if (b > 0 && a == 0) q = 1 / b;
    }
    for (size_t i = 0; i < n; i++) {
        to[i] = p * (double)u[i] + q * (double)v[i];
        size += to[i] * to[i];
    }
    if (m->how == MEAN || size == 0) return;
    for (size_t i = 0; i < n; i++) to[i] *= (m->how == MAXNORM ? fmax(a, b) : 1) / sqrt(size);
}

/* deeper_first: the tensor with the lower number belongs to the deeper layer. */
static void check_merge(const struct merge *m, const struct layer *lower, const struct layer *upper,
                        unsigned role, int deeper_first, uint64_t block_rows) {
    const enum kvc_dtype dtype = lower->shape[role].dtype;
    const size_t rows = (size_t)lower->shape[role].tokens, width = width_of(lower, role);
    const size_t each = m->heads ? (size_t)lower->shape[role].dim : width;
    const struct layer *layer[2] = {deeper_first ? upper : lower, deeper_first ? lower : upper};
    struct coded c[2];
    char recipe[120], rule[40];
    if (m->gamma > 0) snprintf(rule, sizeof rule, "gamma=%.3f", m->gamma);
    else snprintf(rule, sizeof rule, "keep=%.3f", m->keep);
    snprintf(recipe, sizeof recipe, "merge:%s:t=%.3f:%s%s,split", ways[m->how], m->t, rule,
             m->heads ? ":heads" : "");
    for (int i = 0; i < 2; i++)
        must_code(&c[i], &(struct wanted){.recipe = recipe,
                                          .layer = layer[i],
                                          .partner = layer[!i],
                                          .role = role,
                                          .second = i,
                                          .deeper = layer[i] == upper,
                                          .block_rows = block_rows});
    uint8_t *back[2] = {decode(&c[0], NULL), decode(&c[1], &c[0])};
    static const uint8_t number[4] = {5, 0, 0, 0};
    assert_int_equal(c[0].encoder.side.count, 0);
    assert_int_equal(c[1].encoder.side.count, 1);
    assert_int_equal(c[1].encoder.side.section[0].type, KVC_SECTION_MERGED);
    assert_memory_equal(c[1].encoder.side.section[0].data, number, 4);

    /* which rows are kept: by distance of whole rows */
    float *u = layer_values(lower, role), *v = layer_values(upper, role);
    double *distance = get_memory(rows * sizeof *distance), most = 0, least = 1;
    uint8_t *kept = get_memory(rows);
    for (size_t t = 0; t < rows; t++) {
        distance[t] = angle_of(u + t * width, v + t * width, width) / 3.14159265358979323846;
        most = fmax(most, distance[t]);
        least = fmin(least, distance[t]);
    }
    const size_t share = (size_t)floor(m->keep * (double)rows + 1e-9);
    size_t count = 0, opposite = 0;
    for (size_t b = 0; b < c[0].blocks; b++) {
        const struct kvc_section *s = section_of(&c[0].block[b], KVC_SECTION_KEPT, 0);
        assert_null(section_of(&c[1].block[b], KVC_SECTION_KEPT, 0));
        for (size_t i = 0; i < rows_in_block(&c[0], b); i++)
            count += kept[b * (size_t)c[0].w.block_rows + i] = s ? (uint8_t)bit(s->data, i) : 0;
    }
    for (size_t t = 0; t < rows; t++) {
        const int apart = distance[t] > 1 - 1e-3 / 3.14159265358979323846;
        size_t farther = 0, equal = 0;
        opposite += apart != 0;
        for (size_t i = 0; i < rows; i++) {
            farther += distance[i] > distance[t] + 1e-5;
            equal += fabs(distance[i] - distance[t]) <= 1e-5;
        }
        const int sure = m->gamma > 0 ? distance[t] > most - m->gamma * (most - least) + 1e-5
                                      : farther + equal <= share;
        const int never = m->gamma > 0 ? distance[t] < most - m->gamma * (most - least) - 1e-5
                                       : farther >= share;
        if ((apart || sure) && !kept[t])
            fail_msg("%s: row %zu at distance %g is not kept", recipe, t, distance[t]);
        if (!apart && never && kept[t])
            fail_msg("%s: row %zu at distance %g is kept", recipe, t, distance[t]);
    }
    if (!(m->gamma > 0)) assert_int_equal(count, share > opposite ? share : opposite);

    /* what comes back */
    const double ulp = dtype == KVC_F32 ? 1e-6 : dtype == KVC_F16 ? 0x1p-10 : 0x1p-7;
    double *want = get_memory(each * sizeof *want);
    float *norm = get_memory(rows * width * sizeof *norm);
    for (int i = 0; i < 2; i++)
        for (size_t b = 0; b < c[i].blocks; b++) {
            const size_t first = b * (size_t)block_rows,
                         end = first + (size_t)rows_in_block(&c[i], b);
            size_t n = 0;
            for (size_t t = first; t < end; t++)
                for (size_t at = 0; at < width && !kept[t]; at += each)
                    norm[n++] = (float)norm_of((layer[i] == upper ? v : u) + t * width + at, each);
            round_halves(norm, n);
            n = 0;
            for (size_t t = first; t < end; t++) {
                if (kept[t]) {
                    assert_true(same_row(layer[i], role, back[i], t));
                    continue;
                }
                for (size_t at = 0; at < width; at += each) {
                    const double own = m->how == SLERP ? (double)norm[n++] : 1;
                    const double size = fmax(norm_of(u + t * width + at, each),
                                             norm_of(v + t * width + at, each));
                    merged(m, u + t * width + at, v + t * width + at, each, want);
                    for (size_t d = 0; d < each; d++) {
                        const double x = (double)get_value(back[i], dtype, t * width + at + d),
                                     y = want[d] * own;
                        /* halves of norms may round to the other side where binary32 differs in the
                         * last place */
                        const double allowed = (ulp + (m->how == SLERP ? 0x1p-10 : 0)) * fabs(y) +
                                               3e-5 * size + 1e-7;
                        if (!(fabs(x - y) <= allowed))
                            fail_msg("%s: %s tensor, row %zu, channel %zu is %.9g, not %.9g",
                                     recipe, i ? "second" : "first", t, at + d, x, y);
                    }
                }
            }
        }
    free(want);
    free(norm);
    free(u);
    free(v);
    free(distance);
    free(kept);
    for (int i = 0; i < 2; i++) {
        free(back[i]);
        code_free(&c[i]);
    }
}

/* Rows of two layers at all angles: alike, opposite, zero in one or both. */
static void make_pair(struct layer *lower, struct layer *upper, unsigned role, int specials) {
    const enum kvc_dtype dtype = lower->shape[role].dtype;
    const size_t rows = (size_t)lower->shape[role].tokens, width = width_of(lower, role);
    for (size_t t = 0; t < rows; t++) {
        const float mix = (float)(random_bits() % 1000) / 1000,
                    scale = 0.25f + (float)(random_bits() % 100) / 20;
        for (size_t i = t * width; i < (t + 1) * width; i++) {
            const float x = get_value(lower->rows[role], dtype, i),
                        y = get_value(upper->rows[role], dtype, i);
            put_value(upper->rows[role], dtype, i, scale * (mix * x + (1 - mix) * y));
            if (specials && t % 13 == 3) put_value(upper->rows[role], dtype, i, -2 * x);
            if (specials && t % 13 == 5) put_value(upper->rows[role], dtype, i, x);
            if (specials && t % 13 == 7) put_value(upper->rows[role], dtype, i, 0);
            if (specials && t % 13 == 9) put_value(lower->rows[role], dtype, i, 0);
            if (specials && t % 39 == 11)
                put_value(lower->rows[role], dtype, i, 0),
                    put_value(upper->rows[role], dtype, i, 0);
        }
    }
}

static void merges(void **state) {
    (void)state;
    static const struct merge settings[] = {
        {SLERP, 0, 0.6, 0.05, 0},   {SLERP, 0, 0, 0, 0},      {SLERP, 0, 1, 0.1, 0},
        {SLERP, 0, 0.5, 1, 0},      {SLERP, 1, 0.6, 0.05, 0}, {SLERP, 1, 0.25, 0.3, 0},
        {SLERP, 0, 0.6, 0.05, 0.4}, {MEAN, 0, 0.6, 0, 0},     {MEAN, 1, 0.6, 0.2, 0},
        {MEAN, 0, 0.6, 0.05, 1},    {MAXNORM, 0, 0.6, 0, 0},  {MAXNORM, 1, 0.6, 0.05, 0.2},
    };
    for (unsigned d = 0; d < 3; d++)
        for (int specials = 0; specials < 2; specials++) {
            struct layer lower = make_layer(float_dtypes[d], 150, 2, 24),
                         upper = make_layer(float_dtypes[d], 150, 2, 24);
            for (unsigned role = 0; role < 2; role++) {
                make_pair(&lower, &upper, role, specials);
                for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
                    for (int deeper_first = 0; deeper_first < 2; deeper_first++)
                        check_merge(&settings[i], &lower, &upper, role, deeper_first,
                                    i % 2 ? 64 : 256);
            }
            free_layer(&lower);
            free_layer(&upper);
        }
}

/* merge.md's example: norms of their own, one direction. */
static void example_of_merge(void **state) {
    (void)state;
    struct layer a = make_layer(KVC_F32, 1, 1, 2), b = make_layer(KVC_F32, 1, 1, 2);
    struct coded c[2];
    for (size_t i = 0; i < 2; i++) {
        put_value(a.rows[K], KVC_F32, i, i ? 0 : 2);
        put_value(b.rows[K], KVC_F32, i, i ? 1 : 0);
    }
    must_code(&c[0],
              &(struct wanted){.recipe = "merge:slerp:t=0.5,split", .layer = &a, .partner = &b});
    must_code(&c[1], &(struct wanted){.recipe = "merge:slerp:t=0.5,split",
                                      .layer = &b,
                                      .partner = &a,
                                      .second = 1,
                                      .deeper = 1});
    uint8_t *x = decode(&c[0], NULL), *y = decode(&c[1], &c[0]);
    for (size_t i = 0; i < 2; i++) {
        assert_true(fabsf(get_value(x, KVC_F32, i) - 1.41421356f) < 1e-6f);
        assert_true(fabsf(get_value(y, KVC_F32, i) - 0.70710678f) < 1e-6f);
    }
    free(x);
    free(y);
    for (int i = 0; i < 2; i++) code_free(&c[i]);
    free_layer(&a);
    free_layer(&b);
}

/* After sinks and tails, and before lossy stages, both tensors of a pair decode, also with wild
 * values. */
static void merges_among_others(void **state) {
    (void)state;
    static const char *const recipes[] = {"sink:4,tail:10,merge:slerp,quant:kivi:bits=8:g=16",
                                          "merge:mean:keep=0.1,lowrank:r=24",
                                          "merge:slerp:heads,outlier:0.1,quant:token:bits=8:g=8",
                                          "tail:300,merge:slerp",
                                          "merge:slerp:keep=1,quant:kivi:bits=2",
                                          "merge:maxnorm,prune:k=0.5:v=0.5:by=l2,split"};
    for (unsigned d = 0; d < 3; d++)
        for (size_t r = 0; r < 6; r++)
            for (unsigned role = 0; role < 2; role++) {
                struct layer l[2] = {make_layer(float_dtypes[d], 150, 2, 24),
                                     make_layer(float_dtypes[d], 150, 2, 24)};
                struct coded c[2];
                make_pair(&l[0], &l[1], role, 0);
                for (size_t i = 0; i < 2; i++)
                    for (size_t k = 0; k < 7; k++)
                        put_pattern(l[i].rows[role], float_dtypes[d], 500 * k + 77 + i,
                                    wild_patterns[d][k]);
                for (int i = 0; i < 2; i++)
                    must_code(&c[i], &(struct wanted){.recipe = recipes[r],
                                                      .layer = &l[i],
                                                      .partner = &l[!i],
                                                      .role = role,
                                                      .second = i,
                                                      .deeper = i,
                                                      .block_rows = 64});
                uint8_t *back[2] = {decode(&c[0], NULL), decode(&c[1], &c[0])};
                for (size_t i = 0; i < 2; i++) {
                    for (size_t k = 0; k < 7; k++)
                        assert_true(
                            same_bits(back[i], l[i].rows[role], float_dtypes[d], 500 * k + 77 + i));
                    for (size_t t = 0; t < 150; t++)
                        if (r == 3 || r == 4 || (r == 0 && (t < 4 || t >= 140)))
                            assert_true(same_row(&l[i], role, back[i], t));
                    for (size_t k = 0; k < 150 * 48; k++)
                        if (r == 0 && fabsf(get_value(l[i].rows[role], float_dtypes[d], k)) < 100)
                            assert_true(fabsf(get_value(back[i], float_dtypes[d], k)) < 100);
                    free(back[i]);
                }
                for (int i = 0; i < 2; i++) {
                    code_free(&c[i]);
                    free_layer(&l[i]);
                }
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges),
        cmocka_unit_test(example_of_merge),
        cmocka_unit_test(merges_among_others),
    };
    return cmocka_run_group_tests_name("lossy_merge", tests, NULL, NULL);
}
