/* test_facts.c: metadata decoded into typed facts: values, absent keys, and keys of another type.
 */
#include "formats/cache/cache.h"
#include "formats/cache/facts.h"
#include "formats/cache/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void nothing_is_known(void **state) {
    (void)state;
    const struct kvc_meta meta = {0};
    const struct kvc_facts f = kvc_facts_of(&meta);
    assert_int_equal(f.source, KVC_SOURCE_OTHER);
    assert_int_equal(f.pairing, KVC_PAIRING_UNKNOWN);
    assert_false(f.pairing_assumed);
    assert_true(f.after_rope);
    assert_int_equal(f.rope_type, KVC_ROPE_TYPE_UNKNOWN);
    assert_true(f.theta >= 0 && f.theta <= 0);
    assert_true(f.factor >= 1 && f.factor <= 1);
    assert_false(f.rotated_known);
    assert_int_equal(kvc_facts_rotated(&f, 128), 128);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(f.tile[i], 0);
        assert_false(f.tile_known[i]);
    }
    assert_true(f.heads_known);
    assert_true(f.layers_known);
    assert_int_equal(f.window, 0);
    assert_int_equal(f.hidden_place, KVC_HIDDEN_UNKNOWN);
    assert_int_equal(f.tokens_first, 0);
    assert_int_equal(f.layers + f.query_heads + f.kv_heads + f.head_dim + f.head_dim_v, 0);
    assert_string_equal(f.architecture, "");
    assert_false(f.plain_tokens);
    assert_false(f.had_tokens);
    assert_false(f.has_profile);
    assert_int_equal(f.cell_words, 0);
}

static void rope_and_rotation(void **state) {
    (void)state;
    struct kvc_meta m = {0};
    struct kvc_error e;
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_ROPE_PAIRING, "interleaved", &e), 0);
    assert_int_equal(kvc_meta_set_bool(&m, KVC_KEY_ROPE_ASSUMED, 1, &e), 0);
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_ROPE_K, "pre", &e), 0);
    assert_int_equal(kvc_meta_set_f64(&m, KVC_KEY_ROPE_THETA, 5e5, &e), 0);
    assert_int_equal(kvc_meta_set_f64(&m, KVC_KEY_ROPE_FACTOR, 8, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_ROPE_DIM, 64, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_HADAMARD_K, 0, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_HADAMARD_V, 256, &e), 0);
    struct kvc_facts f = kvc_facts_of(&m);
    assert_int_equal(f.pairing, KVC_PAIRING_INTERLEAVED);
    assert_true(f.pairing_assumed);
    assert_false(f.after_rope);
    assert_true(f.theta >= 5e5 && f.theta <= 5e5);
    assert_true(f.factor >= 8 && f.factor <= 8);
    assert_int_equal(kvc_facts_rotated(&f, 128), 64);
    assert_true(f.tile_known[0] && f.tile_known[1]);
    assert_int_equal(f.tile[0], 0);
    assert_int_equal(f.tile[1], 256);
    /* 0 rotated channels differ from an unknown number, and facts follow only when they are decoded
     * again */
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_ROPE_DIM, 0, &e), 0);
    assert_int_equal(kvc_facts_rotated(&f, 128), 64);
    f = kvc_facts_of(&m);
    assert_true(f.rotated_known);
    assert_int_equal(kvc_facts_rotated(&f, 128), 0);
    /* a value of another type counts as absent */
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_ROPE_DIM, "64", &e), 0);
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_ROPE_PAIRING, "both", &e), 0);
    f = kvc_facts_of(&m);
    assert_int_equal(kvc_facts_rotated(&f, 128), 128);
    assert_int_equal(f.pairing, KVC_PAIRING_UNKNOWN);
    kvc_meta_free(&m);
}

static void names(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum kvc_source source;
    } formats[] = {{"llama.cpp GGSQ", KVC_SOURCE_LLAMA},
                   {"llama.cpp GGSN", KVC_SOURCE_LLAMA},
                   {"safetensors", KVC_SOURCE_SAFETENSORS},
                   {"npz", KVC_SOURCE_NPZ},
                   {"raw", KVC_SOURCE_RAW},
                   {"vllm", KVC_SOURCE_VLLM},
                   {"vllm-blocks", KVC_SOURCE_VLLM_BLOCKS},
                   {"another engine", KVC_SOURCE_OTHER}};
    static const struct {
        const char *text;
        enum kvc_rope_type type;
    } types[] = {{"default", KVC_ROPE_TYPE_DEFAULT},   {"linear", KVC_ROPE_TYPE_LINEAR},
                 {"yarn", KVC_ROPE_TYPE_YARN},         {"llama3", KVC_ROPE_TYPE_LLAMA3},
                 {"longrope", KVC_ROPE_TYPE_LONGROPE}, {"unknown", KVC_ROPE_TYPE_OTHER},
                 {"dynamic", KVC_ROPE_TYPE_OTHER},     {"", KVC_ROPE_TYPE_UNKNOWN}};
    struct kvc_meta m = {0};
    struct kvc_error e;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_SOURCE_FORMAT, formats[i].text, &e), 0);
        assert_int_equal(kvc_facts_of(&m).source, formats[i].source);
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_ROPE_TYPE, types[i].text, &e), 0);
        assert_int_equal(kvc_facts_of(&m).rope_type, types[i].type);
    }
    assert_string_equal(kvc_rope_type_name(KVC_ROPE_TYPE_LONGROPE), "longrope");
    kvc_meta_free(&m);
}

static void model_and_tokens(void **state) {
    (void)state;
    struct kvc_meta m = {0};
    struct kvc_error e;
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_MODEL_LAYERS, 32, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_MODEL_HEADS, 24, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_MODEL_KV_HEADS, 8, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_MODEL_HEAD_DIM, 192, &e), 0);
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_MODEL_ARCH, "gemma3", &e), 0);
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_HIDDEN_STATES, "before the norm", &e), 0);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_TOKENS_FIRST, 256, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_WINDOW, 1024, &e), 0);
    assert_int_equal(kvc_meta_set_bool(&m, KVC_KEY_HEADS_KNOWN, 0, &e), 0);
    assert_int_equal(kvc_meta_set_bool(&m, KVC_KEY_LAYERS_KNOWN, 0, &e), 0);
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_LLAMA_TOKEN_FORM, "plain", &e), 0);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_LLAMA_CELL_EXT, 3, &e), 0);
    struct kvc_facts f = kvc_facts_of(&m);
    assert_int_equal(f.layers, 32);
    assert_int_equal(f.query_heads, 24);
    assert_int_equal(f.kv_heads, 8);
    assert_int_equal(f.head_dim, 192);
    assert_int_equal(f.head_dim_v, 192); /* as that of K where it is not stored */
    assert_string_equal(f.architecture, "gemma3");
    assert_int_equal(f.hidden_place, KVC_HIDDEN_BEFORE_NORM);
    assert_int_equal(f.tokens_first, 256);
    assert_int_equal(f.window, 1024);
    assert_false(f.heads_known);
    assert_false(f.layers_known);
    assert_true(f.plain_tokens);
    assert_int_equal(f.cell_words, 3);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_MODEL_HEAD_DIM_V, 128, &e), 0);
    assert_int_equal(kvc_facts_of(&m).head_dim_v, 128);
    kvc_meta_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_known),
                                       cmocka_unit_test(rope_and_rotation), cmocka_unit_test(names),
                                       cmocka_unit_test(model_and_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
