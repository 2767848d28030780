/* test_transform_choices.c: what encoders of the transform codec choose: codes, tables, means,
 * bases. Recipes and the order of stages. Not for what is decoded (test_transform.c). */
#include "recipe_support.h"
#include "transform_support.h"

/* --- what encoders choose --- */

/* code.md, "Encoders": the nearest multiple of the step, ties to the even one. */
static void codes_are_the_nearest(void **state) {
    (void)state;
    static const char *const coders[] = {"code:step=0.37", "code:step=0.5", "code:step=0.00001",
                                         "code:step=1000000"};
    for (size_t r = 0; r < 4; r++)
        for (unsigned kind = 0; kind < KINDS; kind++) {
            struct layer l = make_layer(KVC_F32, 40, 2, 16);
            struct coded t;
            fill_kind(&l, K, kind == LARGE ? NORMAL : kind);
            /* ties */
            for (size_t i = 0; i < 40; i++)
                put_value(l.rows[K], KVC_F32, 31 * i, (float)i * 0.25f - 5);
            const float step = (float)number_after(coders[r], "step=", 0);
            put_value(l.rows[K], KVC_F32, 1000, (0x1p+24f - 1) * step);
            put_value(l.rows[K], KVC_F32, 1001, (1 - 0x1p+24f) * step);
            must_code(&t, &(struct wanted){.recipe = coders[r], .layer = &l});
            float *x = layer_values(&l, K), *y = decoded_values(&t);
            for (size_t i = 0; i < 40 * 32; i++) {
                float code = nearbyintf(x[i] * (1 / step));
                code = fabsf(code) < 0x1p+24f ? code : copysignf(0x1p+24f - 1, code); /* by one */
                if (y[i] != code * step)
                    fail_msg("%s: %a becomes %a, not %a", coders[r], (double)x[i], (double)y[i],
                             (double)(code * step));
            }
            free(x);
            free(y);
            code_free(&t);
            free_layer(&l);
        }
}

/* A step that is too fine for a value is refused: there is no code, and the next one would be
 * another value. */
static void steps_that_are_too_fine(void **state) {
    (void)state;
    static const char *const coders[] = {"code:step=0.001", "center,code:step=0.001",
                                         "steps:tail=0,code:step=0.001"};
    for (size_t r = 0; r < 3; r++)
        for (int late = 0; late < 2; late++) {
            struct layer l = make_layer(KVC_F32, 600, 2, 16);
            const struct wanted w = {.recipe = coders[r], .layer = &l, .block_rows = 256};
            struct coded t;
            struct kvc_error e;
            put_value(l.rows[K], KVC_F32, late ? 599 * 32 + 7 : 3, -16000);
            must_code(&t, &w);
            code_free(&t);
            put_value(l.rows[K], KVC_F32, late ? 599 * 32 + 7 : 3, -17000);
            assert_int_equal(code(&t, &w, &e), -1);
            assert_int_equal(e.need, KVC_NEED_STEP);
            assert_non_null(strstr(e.message, "2^24 steps"));
            code_free(&t);
            free_layer(&l);
        }
}

/* Bits that a code takes at an index. */
static double bits_of(unsigned index, int64_t code) {
    unsigned lost;
    uint16_t f[KVC_CODE_SYMBOLS];
    kvc_code_frequencies(f, table_of(index, &lost));
    const int64_t r = (int64_t)floor(((double)code + (lost ? 1 << (lost - 1) : 0)) / (1 << lost));
    if (r > -63 && r < 64 && f[63 + r]) return 11 - log2(f[63 + r]) + lost;
    const double zigzag = r < 0 ? -2 * (double)r - 1 : 2 * (double)r;
    return 11 - log2(f[127]) + 5 + floor(log2(zigzag)) + lost;
}

/* The index of each component takes hardly more bits than the best; sizes from 64 on are counted in
 * bins. */
static void indices_are_the_cheapest(void **state) {
    (void)state;
    enum { ROWS = 300, DIM = 40 };
    struct layer l = make_layer(KVC_F32, ROWS, 1, DIM);
    unsigned least = 63, most = 0;
    for (size_t i = 0; i < ROWS * DIM; i++)
        put_value(l.rows[K], KVC_F32, i,
                  random_normal() * ldexpf(1, (int)(i % DIM) / 2 - 4) * (i % 3 ? 1 : 0.1f));
    struct coded t;
    must_code(&t, &(struct wanted){.recipe = "code:step=1", .layer = &l});
    unsigned index[DIM];
    float *y = decoded_values(&t);
    read_indices(find(&t.encoder.side, stage_number(&t.line, "code", 0), KVC_SECTION_TABLES), 1,
                 DIM, index);
    for (size_t c = 0; c < DIM; c++) {
        double cost[64], best = INFINITY;
        for (unsigned i = 0; i < 64; i++) {
            cost[i] = 0;
            for (size_t row = 0; row < ROWS; row++)
                cost[i] += bits_of(i, (int64_t)y[row * DIM + c]);
            best = fmin(best, cost[i]);
        }
        if (cost[index[c]] > best + 0.02 * ROWS)
            fail_msg("component %zu: index %u takes %.1f bits, another %.1f", c, index[c],
                     cost[index[c]], best);
        least = index[c] < least ? index[c] : least;
        most = index[c] > most ? index[c] : most;
    }
    assert_true(least < 8 && most > 55);
    free(y);
    code_free(&t);
    free_layer(&l);
}

/* code.md: what the fixed tables are said to be: probabilities of rounded values at each scale,
 * within what rounding and the place for rare ones take. */
static void tables(void **state) {
    (void)state;
    for (int i = 0; i < KVC_CODE_TABLES; i++) {
        uint16_t f[KVC_CODE_SYMBOLS];
        kvc_code_frequencies(f, (unsigned)i);
        const double scale = exp2(-3.4 + 0.2 * i);
        unsigned sum = 0;
        for (int s = 0; s < KVC_CODE_SYMBOLS; s++) sum += f[s];
        assert_int_equal(sum, 2048);
        assert_true(f[127] > 0 && f[63] > 0);
        for (int r = 1; r < 64; r++) {
            const double low = (r - 0.5) / scale, high = (r + 0.5) / scale;
            const double p = 0.35 * (erfc(low / 0.75 / sqrt(2)) - erfc(high / 0.75 / sqrt(2))) +
                             0.15 * (exp(-sqrt(2) * low / 1.4) - exp(-sqrt(2) * high / 1.4));
            if (r < 63) assert_int_equal(f[63 - r], f[63 + r]);
            if (r < 63 && f[63 + r]) assert_true(fabs(f[63 + r] - 2048 * p) < 1 + 0.02 * 2048 * p);
            else assert_true(2048 * p < 1);
        }
        assert_int_equal(f[0], 0); /* -63 has no partner: 64 is the escape */
    }
}

static void means(void **state) {
    (void)state;
    for (unsigned d = 0; d < 3; d++) {
        struct layer l = make_layer(float_dtypes[d], 300, 3, 20);
        struct coded t;
        must_code(&t, &(struct wanted){.recipe = "center,code:step=1", .layer = &l, .role = V});
        const struct kvc_section *s = find(&t.encoder.side, stage_number(&t.line, "center", 0),
                                           KVC_SECTION_MEAN);
        const uint8_t *p = s->data;
        float mean[60], *x = layer_values(&l, V);
        double greatest = 0, want[60] = {0};
        read_halves(mean, 60, &p);
        for (size_t i = 0; i < 300 * 60; i++) want[i % 60] += (double)x[i] / 300;
        for (size_t c = 0; c < 60; c++) greatest = fmax(greatest, fabs(want[c]));
        for (size_t c = 0; c < 60; c++)
            assert_true(fabs((double)mean[c] - want[c]) <=
                        fabs(want[c]) * 0x1.01p-11 + greatest * 0x1p-38);
        code_free(&t);
        free(x);
        fill_kind(&l, V, CONSTANT); /* of which halves lose nothing, nor do the dtypes */
        must_code(&t, &(struct wanted){.recipe = "center,code:step=1", .layer = &l, .role = V});
        float *y = decoded_values(&t);
        x = layer_values(&l, V);
        for (size_t i = 0; i < 300 * 60; i++) assert_true(x[i] == y[i]);
        free(x);
        free(y);
        code_free(&t);
        free_layer(&l);
    }
}

/* What turns with its positions does not turn afterwards: nothing is left to code but what binary32
 * misses. */
static void turned_back(void **state) {
    (void)state;
    for (unsigned pairing = 1; pairing <= 2; pairing++)
        for (unsigned places = 0; places < 3; places++) /* NEAR, GAPS, FAR */
            for (size_t half = 12; half <= 16; half += 4) {
                enum { ROWS = 200, DIM = 32 };
                struct layer l = make_layer(KVC_F32, ROWS, 2, DIM);
                double angle[16];
                const struct kvc_rope_facts facts = {.pairing = pairing,
                                                     .half = half,
                                                     .angle = angle};
                const struct known known = {.rope = &facts};
                float constant[2 * DIM];
                set_positions(&l, places);
                for (size_t i = 0; i < half; i++) angle[i] = pow(10000, -(double)i / (double)half);
                for (size_t i = 0; i < 2 * DIM; i++) constant[i] = random_normal();
                for (size_t t = 0; t < ROWS; t++)
                    for (size_t h = 0; h < 2; h++) {
                        double x[DIM];
                        for (size_t d = 0; d < DIM; d++) x[d] = (double)constant[h * DIM + d];
                        for (size_t i = 0; i < half; i++) { /* as libm has it */
                            const size_t u = pairing == 1 ? i : 2 * i,
                                         v = pairing == 1 ? i + half : 2 * i + 1;
                            const long double turn = (long double)angle[i] *
                                                     (long double)l.position[t];
                            const double c = (double)cosl(turn), s = (double)sinl(turn), a = x[u],
                                         b = x[v];
                            float own_c, own_s;
                            slow_angle(angle[i], l.position[t], &own_c, &own_s);
                            const double off = 1e-7 + (double)l.position[t] * 0x1p-53;
                            assert_true(fabs((double)own_c - c) < off &&
                                        fabs((double)own_s - s) < off);
                            x[u] = a * c - b * s;
                            x[v] = b * c + a * s;
                        }
                        for (size_t d = 0; d < DIM; d++)
                            put_value(l.rows[K], KVC_F32, (t * 2 + h) * DIM + d, (float)x[d]);
                    }
                struct coded turned, plain;
                must_code(&turned, &(struct wanted){.recipe = "derope,center,code:step=0.01",
                                                    .layer = &l,
                                                    .known = known});
                must_code(&plain, &(struct wanted){.recipe = "center,code:step=0.01",
                                                   .layer = &l,
                                                   .known = known});
                const size_t with = (size_t)find(&turned.block[0], 3, KVC_SECTION_CODES)->size;
                const size_t without = (size_t)find(&plain.block[0], 2, KVC_SECTION_CODES)->size;
                if (with > 250 || without < 4000)
                    fail_msg("%zu bytes turned back, %zu as they are", with, without);
                float *x = layer_values(&l, K), *y = decoded_values(&turned);
                for (size_t i = 0; i < ROWS * 2 * DIM; i++)
                    assert_true(fabsf(x[i] - y[i]) < 0.004f);
                free(x);
                free(y);
                code_free(&turned);
                code_free(&plain);
                free_layer(&l);
            }
}

/* The rows of a block are coded in a profile's components: errors are below half a step in each. */
static void coefficients_of_a_profile(void **state) {
    (void)state;
    for (size_t dim = 8; dim <= 72; dim += 64) {
        struct part part = make_part(2, dim, dim / 2);
        struct layer l = make_layer(KVC_F32, 100, 2, dim);
        const struct kvc_rope_facts facts = {.pairing = 2,
                                             .half = dim / 2,
                                             .angle = part.angle,
                                             .of_profile = 1};
        const struct known known = {.rope = &facts, .profile = &part.part};
        struct coded t;
        must_code(&t, &(struct wanted){.recipe = "center,basis,code:step=0.125",
                                       .layer = &l,
                                       .role = V,
                                       .known = known});
        assert_int_equal(t.encoder.side.count, 1); /* TABLES alone */
        float *x = layer_values(&l, V), *y = decoded_values(&t);
        for (size_t i = 0; i < 100 * 2 * dim; i++) {
            double most = 0;
            for (size_t j = 0; j < dim; j++)
                most += 0.0625 * fabs((double)part.basis[(i / dim % 2 * dim + j) * dim + i % dim]);
            assert_true(fabs((double)x[i] - (double)y[i]) <= most * 1.0001 + 1e-4);
        }
        free(x);
        free(y);
        code_free(&t);
        free_layer(&l);
        free_part(&part);
    }
}

/* basis.md, "Own": a step of s in coefficients is an error of about s / sqrt(12) a component in the
 * metric: of V in units of the layer's root mean square; of K in logits where there are queries,
 * else with K's own energy as theirs. */
static void basis_of_its_own(void **state) {
    (void)state;
    enum { ROWS = 600, HEADS = 2, DIM = 64 };
    static const char *const stages[] = {"center,basis:drop=0,code:step=0.001",
                                         "center,basis:drop=0:bits=4,code:step=0.001",
                                         "center,basis:drop=0:bits=8:k=4,code:step=0.001"};
    unsigned met[2] = {0};
    for (unsigned role = 0; role < 2; role++)
        for (unsigned queries = 0; queries < 2; queries++)
            for (size_t r = 0; r < 3; r++)
                for (unsigned kind = 0; kind < 2; kind++) {
                    struct layer l = make_layer(KVC_F32, ROWS, HEADS, DIM);
                    struct coded t;
                    if (kind) fill_alike(&l, role, 0.25f); /* which is worth a basis */
                    if (queries) add_queries(&l, 64, 3);
                    must_code(&t, &(struct wanted){.recipe = stages[r], .layer = &l, .role = role});
                    const struct kvc_section *s = find(&t.encoder.side, 2, KVC_SECTION_BASIS);
                    met[s->data[0]]++;
                    assert_int_equal(s->data[1], number_after(stages[r], "bits=", 6));
                    float *x = layer_values(&l, role), *y = decoded_values(&t);
                    double error = 0, energy = 0, each[HEADS * DIM] = {0}, mean[HEADS * DIM] = {0},
                           squares = 0;
                    for (size_t i = 0; i < ROWS * HEADS * DIM; i++)
                        mean[i % (HEADS * DIM)] += (double)x[i] / ROWS;
                    for (size_t i = 0; i < ROWS * HEADS * DIM; i++) {
                        const double own = (double)x[i] - mean[i % (HEADS * DIM)];
                        each[i % (HEADS * DIM)] += own * own / ROWS;
                        energy += own * own / (ROWS * HEADS * DIM);
                    }
                    for (size_t i = 0; i < ROWS * HEADS * DIM; i++) {
                        const double d = (double)x[i] - (double)y[i];
                        squares += d * d / (ROWS * HEADS * DIM);
                        if (role == V) error += d * d / energy / (ROWS * HEADS * DIM);
                        else if (!queries) { /* the head's channels weigh as their energies, against
                                                the layer's mean */
                            double head = 0;
                            for (size_t c = 0; c < DIM; c++)
                                head += each[i / DIM % HEADS * DIM + c] / DIM;
                            const double weight = (each[i % (HEADS * DIM)] + 0.02 * head) / head /
                                                  energy;
                            error += d * d * weight / (ROWS * HEADS * DIM);
                        }
                    }
                    for (size_t q = 0; q < 64 && role == K && queries; q++)
                        for (size_t h = 0; h < HEADS * 3; h++)
                            for (size_t row = 0; row < ROWS; row++) {
                                double logit = 0;
                                for (size_t d = 0; d < DIM; d++) {
                                    const size_t at = (row * HEADS + h / 3) * DIM + d;
                                    logit += (double)l.query[(q * HEADS * 3 + h) * DIM + d] *
                                             (double)(x[at] - y[at]);
                                }
                                error += logit * logit / DIM / DIM / (64 * HEADS * 3 * ROWS);
                            }
                    const double k = role == K ? number_after(stages[r], "k=", 0.18) : 1,
                                 want = 1e-6 / 12 * k * k;
                    if (!(error > 0.6 * want && error < 1.5 * want))
                        fail_msg("%s of %c, kind %u, queries %u: error %g, not %g", stages[r],
                                 role == V ? 'V' : 'K', kind, queries, error, want);
                    assert_true(squares < 1e-4 * k * k * energy);
                    free(x);
                    free(y);
                    code_free(&t);
                    free_layer(&l);
                }
    assert_true(met[0] > 3 && met[1] > 3);
}

/* Weak components are left out, and too many channels for too few rows get none. */
static void rows_of_a_basis(void **state) {
    (void)state;
    static const char *const stages[] = {"center,basis:drop=0,code:step=0.1",
                                         "center,basis,code:step=0.1",
                                         "center,basis:drop=0.5,code:step=0.1",
                                         "center,basis:drop=1000000,code:step=0.1"};
    size_t kept[4];
    struct layer l = make_layer(KVC_F32, 900, 1, 48);
    struct coded t;
    fill_alike(&l, V, 0.25f);
    for (size_t r = 0; r < 4; r++) {
        must_code(&t, &(struct wanted){.recipe = stages[r], .layer = &l, .role = V});
        const uint8_t *p = find(&t.encoder.side, 2, KVC_SECTION_BASIS)->data, *after = p + 2;
        float scale[48];
        read_halves(scale, 48, &after);
        kept[r] = p[0] ? after[0] | (size_t)after[1] << 8 : 0;
        code_free(&t);
    }
    assert_int_equal(kept[0], 48);
    assert_true(kept[1] >= 3 && kept[1] < 48 && kept[2] == 3 && kept[3] == 0);
    free_layer(&l);
    l = make_layer(KVC_F32, 511, 1, 256);
    must_code(&t, &(struct wanted){.recipe = "center,basis,code:step=0.1", .layer = &l, .role = V});
    assert_int_equal(find(&t.encoder.side, 2, KVC_SECTION_BASIS)->data[0], 0);
    code_free(&t);
    free_layer(&l);
}

/* A head of nothing but zeros, or that no query reads, leaves the others as they are. */
static void dead_heads(void **state) {
    (void)state;
    for (unsigned queries = 0; queries < 2; queries++)
        for (unsigned role = 0; role < 2; role++) {
            struct layer l = make_layer(KVC_F32, 200, 3, 16);
            struct coded t;
            if (queries) add_queries(&l, 8, 1);
            for (size_t i = 0; i < 200 * 48; i++)
                if (i / 16 % 3 == 1) put_value(l.rows[role], KVC_F32, i, 0);
            for (size_t i = 0; i < 8 * 48 && queries; i++)
                if (i / 16 % 3 == 1) l.query[i] = 0;
            const struct wanted w = {.recipe = "center,basis:k=1,code:step=0.01",
                                     .layer = &l,
                                     .role = role};
            must_code(&t, &w);
            float *x = layer_values(&l, role), *y = decoded_values(&t);
            for (size_t i = 0; i < 200 * 48; i++)
                if (!(fabsf(x[i] - y[i]) < 0.5f))
                    fail_msg("%c, queries %u: value %zu is %g, not %g", role == V ? 'V' : 'K',
                             queries, i, (double)y[i], (double)x[i]);
            free(x);
            free(y);
            code_free(&t);
            free_layer(&l);
        }
}

/* --- recipes --- */

static void recipes_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text, *canonical;
    } good[] = {
        {"derope", "derope"},
        {"center", "center"},
        {"basis", "basis"},
        {"basis:drop=0.05:bits=6:k=0.18", "basis"},
        {"basis:drop=0", "basis:drop=0"},
        {"basis:k=0.01:bits=4:drop=1000000", "basis:drop=1000000:bits=4:k=0.01"},
        {"basis:bits=8:k=100", "basis:bits=8:k=100"},
        {"steps", "steps"},
        {"steps:p=0.5:c=0.3:tail=16:fine=4", "steps"},
        {"steps:fine=0:tail=65536:c=1000:p=2", "steps:p=2:c=1000:tail=65536:fine=0"},
        {"steps:p=0:c=0.001:tail=0:fine=6", "steps:p=0:c=0.001:tail=0:fine=6"},
        {"code", "code"},
        {"code:step=0.05", "code:step=0.05"},
        {"code:lanes=32:step=1000000", "code:step=1000000"},
        {"code:step=0.000123:lanes=1", "code:step=0.000123:lanes=1"},
        {"code:kld=0.003:lanes=16", "code:kld=0.003:lanes=16"},
    };
    static const char *const bad[] = {
        "derope:1",           "derope:halves",      "center:0",       "basis:6",
        "basis:bits=3",       "basis:bits=9",       "basis:k=0.009",  "basis:k=101",
        "basis:drop=-1",      "basis:drop=1000001", "basis:bits=6.5", "steps:p=2.1",
        "steps:p=-1",         "steps:c=0",          "steps:c=1001",   "steps:tail=65537",
        "steps:fine=7",       "steps:fine=-1",      "steps:0.5",      "code:0.5",
        "code:step=-1",       "code:step=1000001",  "code:step=x",    "code:lanes=0",
        "code:lanes=3",       "code:lanes=33",      "code:lanes=64",  "code:kld=101",
        "code:step=1:step=1", "code:lanes",
    };
    struct kvc_recipe r;
    struct kvc_error e;
    char text[256];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_recipe(good[i].text, good[i].canonical);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_no_recipe(bad[i]);
    /* a step that was looked for, in five digits, takes the place of a KLD */
    double kld;
    assert_int_equal(kvc_recipe_parse("code:kld=0.003:lanes=4", &r, &e), 0);
    assert_true(kvc_stage_code.step(&r.item[0].args, &kld) == 0 && kld == 0.003);
    kvc_stage_code.set_step(&r.item[0].args, 0.000123456789);
    assert_true(kvc_stage_code.step(&r.item[0].args, &kld) == 0.00012346 && kld == 0);
    assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
    assert_string_equal(text, "code:step=0.00012346:lanes=4");
    /* a step that no file may have becomes the largest one, and what a file may have is printed */
    static const struct {
        double step, got;
        const char *text;
    } far[] = {{1e300, 1e6, "code:step=1000000:lanes=4"},
               {INFINITY, 1e6, "code:step=1000000:lanes=4"},
               {-1, 0, "code:lanes=4"}};
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) {
        kvc_stage_code.set_step(&r.item[0].args, far[i].step);
        assert_true(kvc_stage_code.step(&r.item[0].args, &kld) == far[i].got);
        assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
        assert_string_equal(text, far[i].text);
    }
    r.item[0].args.f[0] = 1e6 / 3;
    assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
    assert_string_equal(text, "code:step=333333.3333333333:lanes=4");
}

/* Stages that need positions of rows allow no later stage that takes rows, and occur once; `code`
 * ends a pipeline, its companions do not; other dtypes and heads that are too wide are refused. */
static void orders(void **state) {
    (void)state;
    static const struct {
        const char *recipe, *words;
    } bad[] = {
        {"derope,sink:2,code:step=1", "sink cannot come after derope"},
        {"steps,tail:2,code:step=1", "tail cannot come after steps"},
        {"steps,steps,code:step=1", "steps occurs twice"},
        {"derope,center,derope,code:step=1", "derope occurs twice"},
        {"derope,merge:slerp,code:step=1", "derope cannot come before merge"},
    };
    struct kvc_recipe r;
    struct kvc_pipeline line;
    struct kvc_error e;
    char text[256];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(kvc_recipe_parse(bad[i].recipe, &r, &e), 0);
        kvc_recipe_pipeline(&r, KVC_SELECT_K, 0, &line);
        assert_int_equal(kvc_pipeline_check(&line, &e), -1);
        if (!strstr(e.message, bad[i].words)) fail_msg("%s: %s", bad[i].recipe, e.message);
    }
    line = pipeline_for("sink:2,derope,center,basis,steps,code:step=0.5", K);
    assert_int_equal(kvc_pipeline_print(&line, text, sizeof text), 0);
    assert_string_equal(text, "sink:2,finite,derope,center,basis,steps,code:step=0.5");
    assert_int_equal(kvc_pipeline_lossless(&line), 0);
    line = pipeline_for("derope,center,basis,steps", K); /* the default ends it */
    assert_int_equal(kvc_pipeline_print(&line, text, sizeof text), 0);
    assert_string_equal(text, "finite,derope,center,basis,steps,split");
    const struct kvc_shape wide = {KVC_F16, 1, 1, 1025}, coded = {KVC_Q8_0, 1, 1, 64};
    line = pipeline_for("basis,code:step=1", K);
    assert_int_equal(kvc_pipeline_accepts(&line, &wide, &e), 0);
    assert_non_null(strstr(e.message, "1025 channels"));
    line = pipeline_for("code:step=1", K);
    assert_int_equal(kvc_pipeline_accepts(&line, &wide, &e), 1);
    assert_int_equal(kvc_pipeline_accepts(&line, &coded, &e), 0);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(steps_that_are_too_fine),
        cmocka_unit_test(indices_are_the_cheapest),
        cmocka_unit_test(tables),
        cmocka_unit_test(means),
        cmocka_unit_test(turned_back),
        cmocka_unit_test(coefficients_of_a_profile),
        cmocka_unit_test(basis_of_its_own),
        cmocka_unit_test(rows_of_a_basis),
        cmocka_unit_test(dead_heads),
        cmocka_unit_test(recipes_are_read),
        cmocka_unit_test(orders),
    };
    return cmocka_run_group_tests_name("transform_choices", tests, NULL, NULL);
}
