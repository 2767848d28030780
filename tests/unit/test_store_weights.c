/* test_store_weights.c: profiles that a store learns with the weights of the model, from caches of
 * a program that knows less of the model than these. Without weights: test_store_learn.c. */
#include "weights_support.h"

#include "codecs/random.h"
#include "tests/dense_array.h"
#include "formats/api/kvc_store.h"

enum { LAYERS = 2, CHANNELS = 8, QUERIES = 2, INPUTS = 12, TOKENS = 1024, CACHES = 9, CHUNK = 512 };
#define THETA 10000.0

static float weight[LAYERS][3][QUERIES * CHANNELS * INPUTS]; /* of K, V and queries: [out][in] */
static float norm[INPUTS];

static double number(void) { /* in [-1, 1) */
    static uint64_t x = 7;
    return 2 * kvc_random_unit(x += KVC_RANDOM_STEP) - 1;
}

static const char *put_model(void) {
    static const char config[] = "{\"model_type\":\"llama\",\"rms_norm_eps\":1e-5,"
                                 "\"rope_theta\":10000.0,\"num_attention_heads\":2}";
    static char name[4 * LAYERS][60];
    static const char *const of[] = {"self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj",
                                     "input_layernorm"};
    struct tensor t[4 * LAYERS];
    for (size_t i = 0; i < INPUTS; i++) norm[i] = 1;
    for (size_t i = 0; i < 4 * LAYERS; i++) {
        const size_t layer = i / 4, which = i % 4, heads = which == 2 ? QUERIES : 1;
        snprintf(name[i], sizeof name[i], "model.layers.%zu.%s.weight", layer, of[which]);
        t[i] = (struct tensor){name[i], 0, 1, {INPUTS}, norm};
        if (which == 3) continue;
        for (size_t k = 0; k < heads * CHANNELS * INPUTS; k++)
            weight[layer][which][k] = (float)number();
        t[i] = (struct tensor){name[i], 0, 2, {heads * CHANNELS, INPUTS}, weight[layer][which]};
    }
    put_file("config.json", config, sizeof config - 1);
    put_safetensors("model.safetensors", "", t, 4 * LAYERS);
    return in_folder("model.safetensors");
}

struct text {
    float rows[LAYERS][2][TOKENS * CHANNELS];
    int32_t ids[TOKENS];
    struct kvc_memory_array array[2 * LAYERS];
};

/* Makes K, rotated in halves, and V of inputs of length 1 a channel. */
static void fill(struct text *x, int number_of_text) {
    for (size_t t = 0; t < TOKENS; t++) {
        x->ids[t] = number_of_text * TOKENS + (int32_t)t;
        for (size_t l = 0; l < LAYERS; l++) {
            double u[INPUTS], square = 0, row[2][CHANNELS] = {{0}};
            for (size_t i = 0; i < INPUTS; i++) {
                u[i] = number() / (double)(1 + i);
                square += u[i] * u[i] / INPUTS;
            }
            for (size_t k = 0; k < 2 * CHANNELS * INPUTS; k++) {
                const size_t r = k / (CHANNELS * INPUTS), at = k % (CHANNELS * INPUTS);
                row[r][at / INPUTS] += (double)weight[l][r][at] * u[at % INPUTS] / sqrt(square);
            }
            float *k = x->rows[l][0] + t * CHANNELS, *v = x->rows[l][1] + t * CHANNELS;
            for (size_t i = 0; i < CHANNELS; i++) v[i] = (float)row[1][i];
            for (size_t i = 0; i < CHANNELS / 2; i++) {
                const double angle = (double)t * pow(THETA, -2.0 * (double)i / CHANNELS),
                             a = row[0][i], b = row[0][i + CHANNELS / 2];
                k[i] = (float)(a * cos(angle) - b * sin(angle));
                k[i + CHANNELS / 2] = (float)(b * cos(angle) + a * sin(angle));
            }
        }
    }
}

static struct kvc_file *open_text(struct text *x) {
    static const char *const facts[] = {"model.name=m", "model.architecture=llama",
                                        "rope.pairing=halves", NULL};
    struct kvc_error e;
    struct kvc_memory m = {.size = sizeof m,
                           .array_size = sizeof x->array[0],
                           .arrays = x->array,
                           .n_arrays = 2 * LAYERS,
                           .tokens = TOKENS,
                           .token_ids = x->ids,
                           .n_token_ids = TOKENS,
                           .facts = facts};
    for (unsigned i = 0; i < 2 * LAYERS; i++)
        x->array[i] = dense_array(i % 2 ? "V" : "K", i / 2, "f32", 4, 1, CHANNELS,
                                  x->rows[i / 2][i % 2]);
    struct kvc_file *f = kvc_file_open_arrays(&m, &e);
    if (!f) fail_msg("%s", e.message);
    return f;
}

/* Puts caches, and checks the metric of the profile that the store learnt. */
static void learns(const char *name, const char *model, const char *metric) {
    struct kvc_error e;
    char url[600];
    snprintf(url, sizeof url, "dir:%s?min-free=0&durability=none", in_folder(name));
    struct kvc_store *s = kvc_store_open(url, NULL, &e);
    if (!s) fail_msg("%s", e.message);
    struct text *x = malloc(sizeof *x);
    assert_non_null(x);
    struct kvc_store_namespace *ns = NULL;
    for (int i = 0; i < CACHES; i++) {
        fill(x, i);
        struct kvc_file *f = open_text(x);
        const struct kvc_store_namespace_options o = {.size = sizeof o,
                                                      .recipe = "small",
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
    assert_non_null(info.profile);
    struct kvc_profile *p = kvc_shared_profile_open_memory(info.profile, info.profile_bytes, &e);
    struct kvc_profile_info of = {.size = sizeof of};
    if (!p) fail_msg("%s", e.message);
    assert_int_equal(kvc_shared_profile_describe(p, &of), 0);
    assert_string_equal(of.metric, metric);
    kvc_shared_profile_close(p);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    free(x);
}

static void weights_serve(void **state) {
    (void)state;
    char model[600];
    snprintf(model, sizeof model, "%s", put_model());
    learns("without", NULL, "covariance");
    learns("with", model, "query");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_serve)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
