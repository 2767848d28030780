/* test_layers.c: layer numbers and windows of caches that do and do not tell them. Not for where
 * patterns come from (test_model.c, tests/cli/profile-windows). */
#include "formats/cache/layers.h"

#include "formats/cache/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A part of `cells` cells with `layers` layers that count from 0. */
static void add_part(struct kvc_cache *c, enum kvc_part_kind kind, uint64_t cells,
                     uint32_t layers) {
    struct kvc_error e;
    const uint32_t part = kvc_cache_add_part(c, kind, cells, &e);
    const enum kvc_layer_kind layer = kind == KVC_PART_LIVE ? KVC_LAYER_FULL : KVC_LAYER_WINDOW;
    assert_int_not_equal(part, KVC_NONE);
    for (uint32_t i = 0; i < layers; i++)
        assert_int_not_equal(kvc_cache_add_layer(c, part, i, layer, &e), KVC_NONE);
}

/* llama.cpp's two caches, and a checkpoint of the second. */
static struct kvc_cache *two_caches(uint32_t full, uint32_t sliding) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    assert_non_null(c);
    add_part(c, KVC_PART_LIVE, 9, full);
    add_part(c, KVC_PART_WINDOW, 4, sliding);
    add_part(c, KVC_PART_SNAPSHOT, 4, sliding);
    assert_int_equal(kvc_meta_set_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, 0, &e), 0);
    return c;
}

static void patterns_repeat(void **state) {
    (void)state;
    struct kvc_layer_pattern p;
    kvc_pattern_repeat(&p, 7, 3, 512);
    assert_int_equal(p.n, 7);
    assert_int_equal(p.window, 512);
    assert_memory_equal(p.sliding, ((uint8_t[]){1, 1, 0, 1, 1, 0, 1}), 7);
    kvc_pattern_repeat(&p, 3, 1, 0);
    assert_memory_equal(p.sliding, ((uint8_t[]){0, 0, 0}), 3);
    kvc_pattern_repeat(&p, 3, 0, 0);
    assert_memory_equal(p.sliding, ((uint8_t[]){1, 1, 1}), 3);
    kvc_pattern_repeat(&p, KVC_MAX_PATTERN + 1, 3, 0);
    assert_int_equal(p.n, 0);
}

static uint64_t window_of(const struct kvc_cache *c, uint32_t layer) {
    return kvc_layer_window(&c->meta.facts, &c->layer[layer]);
}

static void two_caches_are_numbered(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_layer_pattern p;
    struct kvc_cache *c = two_caches(2, 4);
    kvc_pattern_repeat(&p, 6, 3, 512);
    assert_true(kvc_layers_ambiguous(c));
    assert_int_equal(kvc_layers_need_numbers(c, &e), -1);
    assert_int_equal(e.code, KVC_ERR_OTHER_MODEL);
    assert_int_equal(kvc_layers_settle(c, &p, &e), 1);
    static const uint32_t number[] = {2, 5, 0, 1, 3, 4, 0, 1, 3, 4};
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(c->layer[i].index, number[i]);
        assert_int_equal(window_of(c, i), i < 2 ? 0 : 512);
    }
    assert_false(kvc_layers_ambiguous(c));
    assert_int_equal(kvc_layers_need_numbers(c, &e), 0);
    assert_int_equal(kvc_layers_settle(c, &p, &e), 1); /* again: they stay */
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(c->layer[i].index, number[i]);
    kvc_cache_free(c);
}

/* A pattern that does not go with the cache, none at all, and recurrent layers, of which nobody
 * knows how many there are. */
static void other_models_change_nothing(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_layer_pattern p;
    for (int how = 0; how < 3; how++) {
        struct kvc_cache *c = two_caches(2, how ? 4 : 3);
        kvc_pattern_repeat(&p, how == 1 ? 0 : 6, 3, 512);
        if (how == 2) add_part(c, KVC_PART_STATE, 1, 1);
        assert_int_equal(kvc_layers_settle(c, &p, &e), 0);
        assert_true(kvc_layers_ambiguous(c));
        for (uint32_t i = 0; i < 2; i++) assert_int_equal(c->layer[i].index, i);
        kvc_cache_free(c);
    }
}

/* Arrays of transformers have the model's numbers: windows alone are new. One cache that holds all
 * layers is in their order. */
static void known_numbers_stay(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_layer_pattern p;
    kvc_pattern_repeat(&p, 3, 3, 64);
    for (int known = 0; known < 2; known++) {
        struct kvc_cache *c = kvc_cache_new(&e);
        assert_non_null(c);
        add_part(c, KVC_PART_LIVE, 9, 3);
        if (!known) assert_int_equal(kvc_meta_set_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, 0, &e), 0);
        assert_false(kvc_layers_ambiguous(c));
        assert_int_equal(kvc_layers_settle(c, &p, &e), 1);
        assert_true(kvc_meta_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, 1));
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(c->layer[i].index, i);
            assert_int_equal(c->layer[i].kind, i < 2 ? KVC_LAYER_WINDOW : KVC_LAYER_FULL);
            assert_int_equal(window_of(c, i), i < 2 ? 64 : 0);
        }
        kvc_cache_free(c);
    }
}

/* The metadata's window is that of sliding layers which have none of their own. */
static void windows_of_metadata(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_cache *c = two_caches(1, 1);
    assert_int_equal(window_of(c, 1), 0);
    assert_int_equal(kvc_meta_set_u64(&c->meta, KVC_KEY_WINDOW, 77, &e), 0);
    assert_int_equal(window_of(c, 0), 0);
    assert_int_equal(window_of(c, 1), 77);
    kvc_cache_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_repeat),
        cmocka_unit_test(two_caches_are_numbered),
        cmocka_unit_test(other_models_change_nothing),
        cmocka_unit_test(known_numbers_stay),
        cmocka_unit_test(windows_of_metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
