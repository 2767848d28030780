/* test_facts.c: the typed facts of metadata: values, absent keys, keys of another type, and every
 * way to change metadata. */
#include "formats/cache/cache.h"
#include "formats/cache/facts.h"
#include "formats/cache/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void nothing_is_known(void **state) {
    (void)state;
    const struct kvc_meta m = {0};
    const struct kvc_facts f = m.facts;
    assert_false(f.of_llama);
    assert_int_equal(f.rope.pairing, KVC_PAIRING_UNKNOWN);
    assert_false(f.rope.assumed);
    assert_false(f.rope.before);
    assert_int_equal(f.rope.type, KVC_ROPE_TYPE_UNKNOWN);
    assert_true(f.rope.theta >= 0 && f.rope.theta <= 0);
    assert_true(f.rope.factor >= 0 && f.rope.factor <= 0);
    assert_false(f.rope.dim_known);
    assert_int_equal(kvc_rope_channels(&f.rope, 128), 128);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(f.tile[i], 0);
        assert_false(f.tile_known[i]);
    }
    assert_false(f.heads_unknown);
    assert_false(f.layers_unknown);
    assert_int_equal(f.window, 0);
    assert_int_equal(f.hidden_place, KVC_HIDDEN_UNKNOWN);
    assert_int_equal(f.tokens_first, 0);
    assert_int_equal(f.layers + f.query_heads + f.kv_heads + f.head_dim + f.head_dim_v, 0);
    assert_null(f.architecture);
    assert_false(f.plain_tokens);
    assert_false(f.had_tokens);
    assert_null(f.profile);
    assert_int_equal(f.coordinates, 0);
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
    struct kvc_facts f = m.facts;
    assert_int_equal(f.rope.pairing, KVC_PAIRING_INTERLEAVED);
    assert_true(f.rope.assumed);
    assert_true(f.rope.before);
    assert_true(f.rope.theta >= 5e5 && f.rope.theta <= 5e5);
    assert_true(f.rope.factor >= 8 && f.rope.factor <= 8);
    assert_int_equal(kvc_rope_channels(&f.rope, 128), 64);
    assert_true(f.tile_known[0] && f.tile_known[1]);
    assert_int_equal(f.tile[0], 0);
    assert_int_equal(f.tile[1], 256);
    /* 0 rotated channels differ from an unknown number */
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_ROPE_DIM, 0, &e), 0);
    f = m.facts;
    assert_true(f.rope.dim_known);
    assert_int_equal(kvc_rope_channels(&f.rope, 128), 0);
    /* a value of another type counts as absent */
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_ROPE_DIM, "64", &e), 0);
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_ROPE_PAIRING, "both", &e), 0);
    f = m.facts;
    assert_int_equal(kvc_rope_channels(&f.rope, 128), 128);
    assert_int_equal(f.rope.pairing, KVC_PAIRING_UNKNOWN);
    kvc_meta_free(&m);
}

static void names(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int of_llama;
    } formats[] = {{"llama.cpp GGSQ", 1},
                   {"llama.cpp GGSN", 1},
                   {"safetensors", 0},
                   {"another", 0}};
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
        assert_int_equal(m.facts.of_llama, formats[i].of_llama);
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_ROPE_TYPE, types[i].text, &e), 0);
        assert_int_equal(m.facts.rope.type, types[i].type);
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
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_CELLS_COORDINATES, 3, &e), 0);
    struct kvc_facts f = m.facts;
    assert_int_equal(f.layers, 32);
    assert_int_equal(f.query_heads, 24);
    assert_int_equal(f.kv_heads, 8);
    assert_int_equal(f.head_dim, 192);
    assert_int_equal(f.head_dim_v, 0); /* as that of K */
    assert_string_equal(f.architecture, "gemma3");
    assert_int_equal(f.hidden_place, KVC_HIDDEN_BEFORE_NORM);
    assert_int_equal(f.tokens_first, 256);
    assert_int_equal(f.window, 1024);
    assert_true(f.heads_unknown);
    assert_true(f.layers_unknown);
    assert_true(f.plain_tokens);
    assert_int_equal(f.coordinates, 3);
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_MODEL_HEAD_DIM_V, 128, &e), 0);
    assert_int_equal(m.facts.head_dim_v, 128);
    kvc_meta_free(&m);
}

static void places_of_hidden_states(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum kvc_hidden_place place;
    } cases[] = {
        {"input of k_proj and v_proj, after the attention RMSNorm", KVC_HIDDEN_AFTER_NORM},
        {"after-norm", KVC_HIDDEN_AFTER_NORM},
        {"After input_layernorm", KVC_HIDDEN_AFTER_NORM},
        {"input of the layer, before its norm", KVC_HIDDEN_BEFORE_NORM},
        {"BEFORE LayerNorm", KVC_HIDDEN_BEFORE_NORM},
        {"before attention, after the RMSNorm (input_layernorm)", KVC_HIDDEN_AFTER_NORM},
        {"after the embedding, before the norm", KVC_HIDDEN_BEFORE_NORM},
        {"output of the norm, before k_proj", KVC_HIDDEN_UNKNOWN},
        {"after the attention norm, before the final norm", KVC_HIDDEN_UNKNOWN},
        {"after attention", KVC_HIDDEN_UNKNOWN},
        {"norm", KVC_HIDDEN_UNKNOWN},
        {"", KVC_HIDDEN_UNKNOWN},
    };
    struct kvc_meta m = {0};
    struct kvc_error e;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_HIDDEN_STATES, cases[i].text, &e), 0);
        if (m.facts.hidden_place != cases[i].place) fail_msg("%s", cases[i].text);
    }
    kvc_meta_free(&m);
}

/* Facts are as the list is, whatever changed it, and their texts are the list's own. */
static void facts_follow_the_list(void **state) {
    (void)state;
    struct kvc_meta m = {0}, copy = {0}, read = {0};
    struct kvc_error e;
    uint8_t *bytes;
    size_t n;
    static const char *const given[] = {"rope.pairing=halves", "rope.theta=500000", NULL};
    assert_int_equal(kvc_meta_set_bool(&m, KVC_KEY_ROPE_ASSUMED, 1, &e), 0);
    assert_true(m.facts.rope.assumed);
    assert_int_equal(kvc_meta_give(&m, given, &e), 0);
    assert_int_equal(m.facts.rope.pairing, KVC_PAIRING_HALVES);
    assert_false(m.facts.rope.assumed); /* who gives a pairing knows it */
    assert_true(m.facts.rope.theta > 499999);
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_MODEL_ARCH, "llama", &e), 0);
    for (int i = 0; i < 100; i++) { /* the list moves */
        char key[16];
        snprintf(key, sizeof key, "a.%d", i);
        assert_int_equal(kvc_meta_set_u64(&m, key, 1, &e), 0);
    }
    assert_ptr_equal(m.facts.architecture, kvc_meta_text(&m, KVC_KEY_MODEL_ARCH, NULL));
    assert_int_equal(kvc_meta_copy(&copy, &m, &e), 0);
    assert_ptr_equal(copy.facts.architecture, kvc_meta_text(&copy, KVC_KEY_MODEL_ARCH, NULL));
    assert_int_equal(copy.facts.rope.pairing, KVC_PAIRING_HALVES);
    assert_int_equal(kvc_meta_set_text(&m, KVC_KEY_MODEL_ARCH, "gemma3", &e), 0);
    assert_string_equal(m.facts.architecture, "gemma3");
    assert_string_equal(copy.facts.architecture, "llama");
    assert_int_equal(kvc_meta_encode(&m, &bytes, &n, &e), 0);
    assert_int_equal(kvc_meta_decode(&read, bytes, n, &e), 0);
    free(bytes);
    assert_string_equal(read.facts.architecture, "gemma3");
    const struct kvc_meta_entry *entry = kvc_meta_find(&read, KVC_KEY_MODEL_ARCH);
    assert_int_equal(kvc_meta_set_entry(&copy, entry, &e), 0);
    assert_string_equal(copy.facts.architecture, "gemma3");
    kvc_meta_remove(&m, KVC_KEY_MODEL_ARCH);
    kvc_meta_remove(&m, KVC_KEY_ROPE_PAIRING);
    kvc_meta_remove(&m, KVC_KEY_ROPE_THETA);
    assert_null(m.facts.architecture);
    assert_int_equal(m.facts.rope.pairing, KVC_PAIRING_UNKNOWN);
    assert_true(m.facts.rope.theta >= 0 && m.facts.rope.theta <= 0);
    /* presence counts for these, not their value */
    assert_int_equal(kvc_meta_set_u64(&m, KVC_KEY_HADAMARD_K, 0, &e), 0);
    assert_true(m.facts.tile_known[0]);
    kvc_meta_remove(&m, KVC_KEY_HADAMARD_K);
    assert_false(m.facts.tile_known[0]);
    kvc_meta_free(&m);
    assert_int_equal(copy.facts.rope.pairing, KVC_PAIRING_HALVES);
    kvc_meta_free(&copy);
    assert_null(copy.facts.architecture);
    kvc_meta_free(&read);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_known),
                                       cmocka_unit_test(rope_and_rotation),
                                       cmocka_unit_test(names),
                                       cmocka_unit_test(model_and_tokens),
                                       cmocka_unit_test(places_of_hidden_states),
                                       cmocka_unit_test(facts_follow_the_list)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
