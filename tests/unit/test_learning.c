/* test_learning.c: which caches are learnt from with the weights of a model, and which gradients
 * are measured in. Not for what gradients are (test_gradients.c), nor for stores
 * (test_store_weights.c). */
#include "tests/dense_array.h"
#include "formats/api/kvc_inspect.h"

enum { TOKENS = 700, AGAIN = 0 };
#include "small_model.h"

static float rows[LAYERS][2][TOKENS * K_ROWS];

/* Makes the cache of a text, whose tensor 0 is of the last layer, of which only `window` rows are
 * there. */
static struct kvc_file *open_text(uint64_t window) {
    static struct kvc_memory_array array[2 * LAYERS];
    const char *const facts[] = {"model.name=m",
                                 "rope.pairing=halves",
                                 "rope.type=default",
                                 "rope.theta=10000",
                                 m.kind == GEMMA3 ? "sliding.window=90" : NULL,
                                 NULL};
    struct kvc_error e;
    double logits[WORDS];
    const struct kvc_memory memory = {.size = sizeof memory,
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
        const unsigned layer = LAYERS - 1 - i / 2;
        const uint64_t n = layer == LAYERS - 1 ? window : TOKENS;
        float *to = rows[layer][i % 2];
        for (size_t k = 0; k < TOKENS * K_ROWS; k++) to[k] = (float)seen[layer][i % 2][k];
        array[i] = dense_array(i % 2 ? "V" : "K", layer, "f32", 4, KV, C,
                               to + (TOKENS - n) * K_ROWS);
        array[i].tokens = n;
    }
    struct kvc_file *f = kvc_file_open_arrays(&memory, &e);
    if (!f) fail_msg("%s", e.message);
    return f;
}

static void *packed;

/* Opens the cache of a text with the weights. */
static struct kvc_file *open_with(const char *model, uint64_t window) {
    struct kvc_error e;
    const struct kvc_open_options options = {.size = sizeof options, .model = model};
    struct kvc_file *f = open_text(window);
    size_t n;
    free(packed);
    if (kvc_file_pack_memory(f, NULL, &packed, &n, &e)) fail_msg("%s", e.message);
    kvc_file_close(f);
    if (!(f = kvc_file_open_memory(packed, n, &options, &e))) fail_msg("%s", e.message);
    return f;
}

/* Gradients take ids of 640 tokens of the layer that has most: tensor 0 may be of a window. */
static void windows_first(void **state) {
    struct kvc_error e;
    struct kvc_learning_info info = {.size = sizeof info};
    (void)state;
    make_weights(GEMMA3, 1);
    struct kvc_file *f = open_with(put_model(0, "-"), WINDOW);
    struct kvc_learning *l = kvc_learning_new(&e);
    assert_non_null(l);
    if (kvc_learning_add(l, f, &e)) fail_msg("%s", e.message);
    assert_int_equal(kvc_learning_describe(l, &info), 0);
    assert_string_equal(info.not_measured, "");
    assert_int_equal(info.has_gradients, 1);
    kvc_learning_free(l);
    kvc_file_close(f);
}

/* A cache that the weights do not make is refused, also where enough others were measured, and
 * changes nothing of what is learnt. */
static void other_models(void **state) {
    enum { CACHES = 8 };
    struct kvc_error e;
    struct kvc_profile_info info[2] = {{.size = sizeof *info}, {.size = sizeof *info}};
    struct kvc_profile *p[2];
    struct kvc_file *own[CACHES];
    char model[600];
    void *kept[CACHES];
    (void)state;
    make_weights(LLAMA, 1);
    snprintf(model, sizeof model, "%s", put_model(0, "-"));
    for (int i = 0; i < CACHES; i++) {
        own[i] = open_with(model, TOKENS);
        kept[i] = packed;
        packed = NULL;
    }
    make_weights(LLAMA, 1);
    struct kvc_file *other = open_with(model, TOKENS);
    for (int among = 0; among < 2; among++) {
        struct kvc_learning *l = kvc_learning_new(&e);
        for (int i = 0; i < CACHES; i++) {
            if (among && (i == 0 || i == CACHES - 1)) {
                assert_int_equal(kvc_learning_add(l, other, &e), -1);
                assert_int_equal(e.code, KVC_ERR_OTHER_MODEL);
                assert_non_null(strstr(e.message, "differs from the cache's"));
            }
            if (kvc_learning_add(l, own[i], &e)) fail_msg("%s", e.message);
        }
        if (!(p[among] = kvc_learning_profile(l, &e))) fail_msg("%s", e.message);
        kvc_shared_profile_describe(p[among], &info[among]);
        assert_string_equal(info[among].metric, "fisher");
        kvc_learning_free(l);
    }
    assert_memory_equal(info[0].sha256, info[1].sha256, sizeof info[0].sha256);
    for (int i = 0; i < 2; i++) kvc_shared_profile_close(p[i]);
    for (int i = 0; i < CACHES; i++) kvc_file_close(own[i]);
    for (int i = 0; i < CACHES; i++) free(kept[i]);
    kvc_file_close(other);
}

/* Adds a cache of one layer to what is learnt from: K of another type and width than V, and queries
 * of the last tokens where they have a width. */
static void add_layer_of(struct kvc_learning *l, const char *dtype, size_t bytes, uint64_t dim,
                         const char *theta, uint64_t query_dim) {
    enum { ROWS = 40, LAST = 4, WIDEST = 1024, NARROW = 32 };
    static float k[ROWS * WIDEST], v[ROWS * NARROW], q[LAST * WIDEST];
    const char *const facts[] = {"model.name=m",      "rope.k=post", "rope.pairing=interleaved",
                                 "rope.type=default", theta,         NULL};
    for (size_t i = 0; i < ROWS * NARROW; i++) v[i] = (float)(i % 7) - 3;
    for (size_t i = 0; i < ROWS * WIDEST; i++) k[i] = (float)(i % 11) - 5;
    for (size_t i = 0; i < LAST * WIDEST; i++) q[i] = (float)(i % 5) - 2;
    struct kvc_memory_array array[] = {dense_array("K", 0, dtype, bytes, 1, dim, k),
                                       dense_array("V", 0, "f32", 4, 1, NARROW, v),
                                       dense_array("queries", 0, "f32", 4, 1, query_dim, q)};
    array[2].tokens = LAST;
    const struct kvc_memory memory = {.size = sizeof memory,
                                      .array_size = sizeof array[0],
                                      .arrays = array,
                                      .n_arrays = query_dim ? 3 : 2,
                                      .tokens = ROWS,
                                      .facts = facts};
    struct kvc_error e;
    struct kvc_file *f = kvc_file_open_arrays(&memory, &e);
    if (!f) fail_msg("%s", e.message);
    if (kvc_learning_add(l, f, &e)) fail_msg("%s", e.message);
    kvc_file_close(f);
}

/* K that is no float is not learnt from: neither its width nor its pairs say anything of K of other
 * caches, and attention of the other caches is not that of this one. */
static void layers_of_other_types(void **state) {
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct kvc_error e;
        struct kvc_learning *l = kvc_learning_new(&e);
        assert_non_null(l);
        if (first) {
            add_layer_of(l, "i8", 1, 1024, "rope.theta=10000", 0);
            add_layer_of(l, "f32", 4, 32, NULL, 32);
        } else {
            add_layer_of(l, "f32", 4, 1024, NULL, 0);
            add_layer_of(l, "i8", 1, 32, NULL, 1024);
        }
        struct kvc_profile *p = kvc_learning_profile(l, &e);
        if (!p) fail_msg("%s", e.message);
        kvc_shared_profile_close(p);
        kvc_learning_free(l);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(windows_first),
                                       cmocka_unit_test(layers_of_other_types),
                                       cmocka_unit_test(other_models)};
    const int failed = cmocka_run_group_tests(tests, make_folder, remove_folder);
    free(packed);
    return failed;
}
