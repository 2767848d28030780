/* test_store_weights.c: profiles that a store learns with the weights of the model, from caches of
 * a program that knows less of the model than these, in chunks of fewer tokens than gradients need.
 * Without weights: test_store_learn.c. */
#include "tests/dense_array.h"
#include "formats/api/kvc_store.h"

enum { TOKENS = 768, AGAIN = 0, CACHES = 12, CHUNK = 256 };
#include "small_model.h"

static float rows[LAYERS][2][TOKENS * K_ROWS];
static struct kvc_memory_array array[2 * LAYERS];

/* Makes the cache of a text. */
static struct kvc_file *open_text(void) {
    static const char *const facts[] = {"model.name=m", "model.architecture=llama",
                                        "rope.pairing=halves", NULL};
    struct kvc_error e;
    double logits[WORDS];
    struct kvc_memory memory = {.size = sizeof memory,
                                .array_size = sizeof array[0],
                                .arrays = array,
                                .n_arrays = 2 * LAYERS,
                                .tokens = TOKENS,
                                .token_ids = token,
                                .n_token_ids = TOKENS,
                                .facts = facts};
    for (size_t t = 0; t < TOKENS; t++) {
        token[t] = (int32_t)(WORDS * (number() + 1) / 2);
        run_token(token[t], t, logits);
    }
    for (unsigned i = 0; i < 2 * LAYERS; i++) {
        float *to = rows[i / 2][i % 2];
        for (size_t k = 0; k < TOKENS * K_ROWS; k++) to[k] = (float)seen[i / 2][i % 2][k];
        array[i] = dense_array(i % 2 ? "V" : "K", i / 2, "f32", 4, KV, C, to);
    }
    struct kvc_file *f = kvc_file_open_arrays(&memory, &e);
    if (!f) fail_msg("%s", e.message);
    return f;
}

static void check_metric(const struct kvc_store_namespace_info *info, const char *metric) {
    struct kvc_error e;
    struct kvc_profile *p = kvc_shared_profile_open_memory(info->profile, info->profile_bytes, &e);
    struct kvc_profile_info of = {.size = sizeof of};
    if (!p) fail_msg("%s", e.message);
    assert_int_equal(kvc_shared_profile_describe(p, &of), 0);
    assert_string_equal(of.metric, metric);
    kvc_shared_profile_close(p);
}

/* Puts n caches by a recipe, and checks the metric of the profile that these get; NULL: none. */
static void gets(const char *name, const char *model, const char *recipe, int n,
                 const char *metric) {
    struct kvc_error e;
    char url[600];
    snprintf(url, sizeof url, "dir:%s?min-free=0&durability=none", in_folder(name));
    struct kvc_store *s = kvc_store_open(url, NULL, &e);
    if (!s) fail_msg("%s", e.message);
    struct kvc_store_namespace *ns = NULL;
    for (int i = 0; i < n; i++) {
        struct kvc_file *f = open_text();
        const struct kvc_store_namespace_options o = {.size = sizeof o,
                                                      .recipe = recipe,
                                                      .chunk = CHUNK,
                                                      .model = model};
        const struct kvc_store_put_options wait = {.size = sizeof wait, .wait = 1};
        if (!ns && !(ns = kvc_store_namespace_like(s, f, &o, &e))) fail_msg("%s", e.message);
        if (kvc_store_put(ns, f, &wait, &e) < 0) fail_msg("%s", e.message);
        kvc_file_close(f);
    }
    assert_int_equal(kvc_store_flush(s, 0), 0);
    struct kvc_store_namespace_info info = {.size = sizeof info};
    assert_int_equal(kvc_store_namespace_describe(ns, &info), 0);
    assert_int_equal(info.profile != NULL, metric != NULL);
    if (metric) check_metric(&info, metric);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
}

static void weights_serve(void **state) {
    (void)state;
    char model[600];
    make_weights(LLAMA, 1);
    snprintf(model, sizeof model, "%s", put_model(0, "-"));
    gets("without", NULL, "small", CACHES, "covariance");
    gets("with", model, "small", CACHES, "fisher");
    /* other recipes have what was learnt, unless they could learn with the weights what it lacks */
    gets("without", NULL, "near-lossless", 1, "covariance");
    gets("without", model, "tiny", 1, NULL);
    gets("with", NULL, "near-lossless", 1, "fisher");
    gets("with", model, "tiny", 1, "fisher");
    make_weights(LLAMA, 1); /* of another model, whose K and V are others */
    gets("other", model, "small", CACHES, NULL);
    gets("with", NULL, "derope@k,center,basis,steps,code", 1, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_serve)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
