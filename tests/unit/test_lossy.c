/* test_lossy.c: recipes of lossy stages: the order of stages, their arguments, presets, and every
 * kernel table. Not for what a stage does (test_lossy_rows.c and its neighbours, test_quant.c) or
 * for files.
 *
 * `test_lossy digest` prints a digest of all that is decoded: the test of kernel tables runs itself
 * so, once each. */
#include "every_table.h"
#include "lossy_support.h"
#include "recipe_support.h"

#include "codecs/presets.h"
#include "codecs/registry.h"

#include <xxhash.h>

static const char *program; /* argv[0] */

/* --- pipelines, arguments, presets --- */

static void pipelines(void **state) {
    (void)state;
    static const struct {
        const char *recipe, *want;
    } cases[] = {
        {"quant:kivi:bits=2", "finite,quant:kivi:bits=2"},
        {"outlier:0.02,quant:kivi:bits=2,lowrank:r=4",
         "finite,outlier:0.02,quant:kivi:bits=2,lowrank:r=4"},
        {"sink:4,tail:64,quant:kivi:bits=2", "sink:4,tail:64,finite,quant:kivi:bits=2"},
        {"finite,sink:4,quant:kivi:bits=2", "finite,sink:4,quant:kivi:bits=2"},
        {"tail:64", "tail:64,split"},
        {"outlier:0.02", "finite,outlier:0.02,split"},
        {"prune:k=0.4", "finite,prune:k=0.4,split"},
        {"saliency:0.6", "saliency:0.6,split"},
        {"saliency:0.6,quant:zip:bits=4", "saliency:0.6,finite,quant:zip:bits=4"},
        {"merge:slerp", "finite,merge:slerp,split"},
        {"lowrank:r=4", "finite,lowrank:r=4"},
        {"lowrank:r=4,zstd", "finite,lowrank:r=4,zstd"},
        {"lowrank:r=4,tail:3", "finite,lowrank:r=4,tail:3,split"},
        {"quant:kivi:bits=2@v,split@k", "split"},
    };
    char text[256];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kvc_pipeline p = pipeline_for(cases[i].recipe, K);
        assert_int_equal(kvc_pipeline_print(&p, text, sizeof text), 0);
        assert_string_equal(text, cases[i].want);
        const int lossy = strstr(text, "quant") || strstr(text, "lowrank") ||
                          strstr(text, "outlier") || strstr(text, "prune") || strstr(text, "merge");
        assert_int_equal(kvc_pipeline_lossless(&p), !lossy);
    }
}

static void put_steps(struct kvc_pipeline *p, const char *const *step) {
    struct kvc_error e;
    memset(p, 0, sizeof *p);
    for (; *step; step++) {
        char name[64];
        snprintf(name, sizeof name, "%s", *step);
        char *args = strchr(name, ':');
        if (args) *args++ = '\0';
        p->step[p->n].stage = kvc_stage_find(name);
        assert_non_null(p->step[p->n].stage);
        if (kvc_stage_parse(p->step[p->n].stage, args ? args : "", &p->step[p->n].args, &e))
            fail_msg("%s", e.message);
        p->n++;
    }
}

static void orders(void **state) {
    (void)state;
    static const char *const good[][5] = {{"finite", "merge:slerp", "lowrank:r=2"},
                                          {"finite", "merge:slerp", "prune:k=0.1", "split"},
                                          {"quant:kivi:bits=2", "lowrank:r=2"},
                                          {"sink:1", "finite", "merge:mean", "quant:kivi:bits=2"}};
    static const char *const bad[][5] = {{"split", "quant:kivi:bits=2"},
                                         {"zstd", "split"},
                                         {"tail:3"},
                                         {"quant:kivi:bits=2", "tail:3"},
                                         {"outlier:0.1"},
                                         {"merge:slerp"},
                                         {"saliency:1"},
                                         {"prune:k=0.5"},
                                         {"finite"},
                                         {"sink:2"},
                                         {"lowrank:r=1", "merge:slerp", "split"},
                                         {"saliency:0.5", "merge:slerp", "split"},
                                         {"prune:k=0.5", "merge:slerp", "split"},
                                         {"merge:slerp", "merge:mean", "split"}};
    struct kvc_pipeline p;
    struct kvc_error e;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        put_steps(&p, good[i]);
        if (kvc_pipeline_check(&p, &e)) fail_msg("%s first: %s", good[i][0], e.message);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put_steps(&p, bad[i]);
        if (!kvc_pipeline_check(&p, &e))
            fail_msg("%s first, %s next: taken", bad[i][0], bad[i][1] ? bad[i][1] : "none");
    }
}

static void arguments(void **state) {
    (void)state;
    static const struct {
        const char *text, *canonical;
    } good[] = {
        {"finite", "finite"},
        {"sink:4", "sink:4"},
        {"sink:1", "sink:1"},
        {"sink:1048576", "sink:1048576"},
        {"tail:64", "tail:64"},
        {"tail:64:whole=1", "tail:64"},
        {"tail:whole=64:64", "tail:64:whole=64"},
        {"tail:7:whole=65536", "tail:7:whole=65536"},
        {"quant:kivi:bits=2", "quant:kivi:bits=2"},
        {"quant:bits=8:zip", "quant:zip:bits=8"},
        {"quant:token:bits=3:sym:clip:low=1:g=1", "quant:token:bits=3:g=1:low=1:clip:sym"},
        {"quant:kcvt:bits=1:g=64:low=2", "quant:kcvt:bits=1"},
        {"outlier:0.02", "outlier:0.02"},
        {"outlier:0.0001", "outlier:0.0001"},
        {"outlier:0.5", "outlier:0.5"},
        {"outlier:0.500", "outlier:0.5"},
        {"outlier:0.333", "outlier:0.333"},
        {"outlier:0.05", "outlier:0.05"},
        {"outlier:0.07", "outlier:0.07"},
        {"lowrank:r=4", "lowrank:r=4"},
        {"lowrank:power=3:layer:r=256", "lowrank:r=256:layer:power=3"},
        {"lowrank:r=1:power=0", "lowrank:r=1"},
        {"lowrank:exact:r=1", "lowrank:r=1:exact"},
        {"prune:k=0.4", "prune:k=0.4"},
        {"prune:v=0.29", "prune:v=0.29"},
        {"prune:mean:by=l2:window=5:v=0.95:k=0.123456789012",
         "prune:k=0.123456789012:v=0.95:by=l2:mean:window=5"},
        {"prune:k=0.1:by=query:window=32:v=0", "prune:k=0.1"},
        {"prune:k=0.1:by=l1", "prune:k=0.1:by=l1"},
        {"saliency:0.6", "saliency:0.6"},
        {"saliency:0", "saliency:0"},
        {"saliency:1", "saliency:1"},
        {"saliency:1.0", "saliency:1"},
        {"saliency:0.333", "saliency:0.333"},
        {"saliency:by=knorm:0.05:norm=paper", "saliency:0.05:norm=paper:by=knorm"},
        {"saliency:0.6:norm=code:by=attention", "saliency:0.6"},
        {"merge:slerp", "merge:slerp"},
        {"merge:mean:t=0.6:keep=0.05:from=0.5", "merge:mean"},
        {"merge:maxnorm:heads", "merge:maxnorm:heads"},
        {"merge:slerp:t=0:keep=0:from=0", "merge:slerp:t=0:keep=0:from=0"},
        {"merge:slerp:from=1:keep=1:t=1", "merge:slerp:t=1:keep=1:from=1"},
        {"merge:slerp:gamma=0.333", "merge:slerp:gamma=0.333"},
    };
    static const char *const bad[] = {
        "finite:1",
        "sink",
        "sink:0",
        "sink:1048577",
        "sink:-1",
        "sink:4:4",
        "sink:4x",
        "sink:n=4",
        "tail",
        "tail:0",
        "tail:1048577",
        "tail:64:whole=0",
        "tail:64:whole=65537",
        "tail:64:whole",
        "tail:whole=64",
        "quant",
        "quant:kivi",
        "quant:bits=2",
        "quant:kivi:bits=0",
        "quant:kivi:bits=9",
        "quant:kivi:bits=2:g=0",
        "quant:kivi:bits=2:g=65537",
        "quant:kivi:bits=2:low=0",
        "quant:kivi:bits=2:low=9",
        "quant:kivi:bits=2:clip=1",
        "quant:kivi:bits=2:bits=3",
        "quant:kivi:bits=2:clip:clip",
        "quant:kiv:bits=2",
        "quant:kivi:kcvt:bits=2",
        "quant:KIVI:bits=2",
        "quant:kivi:bits=2.0",
        "outlier",
        "outlier:0",
        "outlier:0.00009",
        "outlier:0.51",
        "outlier:1",
        "outlier:0.1:0.1",
        "outlier:.1",
        "outlier:-0.1",
        "outlier:1e-2",
        "outlier:nan",
        "outlier:0.1.1",
        "outlier:0,1",
        "lowrank",
        "lowrank:4",
        "lowrank:r=0",
        "lowrank:r=257",
        "lowrank:layer",
        "lowrank:r=4:power=65",
        "lowrank:r=4:exact=1",
        "lowrank:r=4:exact:power=3",
        "lowrank:r=4:layer=1",
        "prune",
        "prune:k=0",
        "prune:k=0:v=0",
        "prune:k=0.96",
        "prune:k=1",
        "prune:0.4",
        "prune:k=0.4:by=l3",
        "prune:k=0.4:window=0",
        "prune:k=0.4:window=65537",
        "prune:mean",
        "saliency",
        "saliency:1.01",
        "saliency:-0",
        "saliency:0.6:norm=x",
        "saliency:0.6:by=norm",
        "saliency:by=knorm",
        "saliency:0.6:norm",
        "merge",
        "merge:slurp",
        "merge:slerp:t=1.1",
        "merge:slerp:keep=1.1",
        "merge:slerp:gamma=1.5",
        "merge:slerp:from=2",
        "merge:t=0.5",
        "merge:slerp:keep=0.1:gamma=0.1",
        "merge:slerp:heads=2",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_recipe(good[i].text, good[i].canonical);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_no_recipe(bad[i]);
    /* every share of up to four decimals reads back as it was printed */
    for (unsigned i = 0; i <= 10000; i++) {
        char share[32], text[32];
        size_t n = (size_t)snprintf(share, sizeof share, "saliency:%u.%04u", i / 10000, i % 10000);
        while (share[n - 1] == '0') n--;
        if (share[n - 1] == '.') n--;
        snprintf(text, sizeof text, "%.*s", (int)n, share);
        assert_recipe(share, text);
    }
}

static void presets(void **state) {
    (void)state;
    struct kvc_recipe r;
    struct kvc_error e;
    char text[512], with[100];
    for (size_t i = 0; kvc_preset_at(i); i++) {
        const struct kvc_preset *p = kvc_preset_at(i);
        assert_ptr_equal(kvc_preset_find(p->name, strlen(p->name)), p);
        assert_null(kvc_stage_find(p->name));
        assert_recipe(p->name, p->recipe);
        /* an order that can be run */
        for (unsigned role = 0; role < 2; role++) pipeline_for(p->name, role);
        static const char *const behind[] = {":bits=2", "@k", ":"};
        for (size_t k = 0; k < 3; k++) {
            snprintf(with, sizeof with, "%s%s", p->name, behind[k]);
            if (!kvc_recipe_parse(with, &r, &e)) fail_msg("'%s' is taken", with);
            assert_int_equal(e.code, KVC_ERR_USAGE);
            assert_non_null(strstr(e.message, p->recipe));
        }
    }
    assert_int_equal(kvc_recipe_parse("sink:4,kivi2", &r, &e), 0);
    assert_int_equal(kvc_recipe_print(&r, text, sizeof text), 0);
    assert_int_equal(strncmp(text, "sink:4,tail:", 12), 0);
    assert_null(kvc_preset_find("kivi", 4));
    assert_int_equal(kvc_recipe_parse("kivi", &r, &e), -1);
}

/* --- kernels --- */

static const char *const whole_recipes[] = {
    "kivi2",
    "kivi4",
    "gear",
    "gear4",
    "gear-l",
    "gear-l4",
    "kcvt4",
    "zipcache",
    "think",
    "think-kivi",
    "quant:token:bits=5:g=5:clip:sym",
    "quant:zip:bits=8,split",
    "quant:kivi:bits=1:g=1000,lowrank:r=3:layer:power=3",
    "sink:4,outlier:0.1,prune:v=0.3:k=0.2:mean:by=l1,quant:zip:bits=6",
    "lowrank:r=256,zstd",
    "saliency:0.3:norm=paper,tail:9,quant:kcvt:bits=4:low=1,lowrank:r=2",
    "prune:v=0.5,quant:kivi:bits=3",
};

static void add_digest(XXH3_state_t *digest, const struct coded *c, const struct coded *first) {
    uint8_t *back = decode(c, first);
    XXH3_64bits_update(digest, back,
                       (size_t)(c->w.n * kvc_row_bytes(&c->w.layer->shape[c->w.role])));
    free(back);
    for (size_t b = 0; b < c->blocks; b++)
        for (size_t s = 0; s < c->block[b].count; s++)
            XXH3_64bits_update(digest, c->block[b].section[s].data, c->block[b].section[s].size);
}

static unsigned long long digest_of_all(void) {
    XXH3_state_t *digest = XXH3_createState();
    assert_non_null(digest);
    XXH3_64bits_reset(digest);
    random_state = 7;
    for (unsigned d = 0; d < 3; d++)
        for (uint64_t dim = 20; dim <= 84; dim += 32) {
            struct layer l[2] = {make_layer(float_dtypes[d], 330, 2, dim),
                                 make_layer(float_dtypes[d], 330, 2, dim)};
            struct coded c[2];
            add_queries(&l[0], 30, 3);
            for (unsigned role = 0; role < 2; role++) {
                for (size_t k = 0; k < 7; k++)
                    put_pattern(l[0].rows[role], float_dtypes[d], 600 * k + 77,
                                wild_patterns[d][k]);
                for (size_t r = 0; r < sizeof whole_recipes / sizeof whole_recipes[0]; r++) {
                    must_code(&c[0], &(struct wanted){.recipe = whole_recipes[r],
                                                      .layer = &l[0],
                                                      .role = role});
                    add_digest(digest, &c[0], NULL);
                    code_free(&c[0]);
                }
                static const char *const pairs[] = {"minicache", "minicache-kivi4",
                                                    "merge:maxnorm:heads,lowrank:r=5"};
                for (size_t r = 0; r < 3; r++) {
                    for (int i = 0; i < 2; i++)
                        must_code(&c[i], &(struct wanted){.recipe = pairs[r],
                                                          .layer = &l[i],
                                                          .partner = &l[!i],
                                                          .role = role,
                                                          .second = i,
                                                          .deeper = i});
                    add_digest(digest, &c[0], NULL);
                    add_digest(digest, &c[1], &c[0]);
                    for (int i = 0; i < 2; i++) code_free(&c[i]);
                }
            }
            for (int i = 0; i < 2; i++) free_layer(&l[i]);
        }
    const XXH64_hash_t value = XXH3_64bits_digest(digest);
    XXH3_freeState(digest);
    return value;
}

/* Every kernel table codes to the same bytes and decodes the same values. */
static void every_kernel_table(void **state) {
    (void)state;
    assert_every_table(program, NULL);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipelines),          cmocka_unit_test(orders),
        cmocka_unit_test(arguments),          cmocka_unit_test(presets),
        cmocka_unit_test(every_kernel_table),
    };
    if (print_digest(argc, argv, digest_of_all)) return 0;
    program = argv[0];
    return cmocka_run_group_tests_name("lossy", tests, NULL, NULL);
}
