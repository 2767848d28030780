/* test_fit.c: the fit of the shipped profile and a real cache, through the library, and the choice
 * of a profile by it. Not for the tools (tests/cli/profile-*). */
#include "tests/recipe_text.h"
#include "formats/container/container.h"

#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/cache/view.h"
#include "formats/model/profile_choose.h"
#include "temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kvc_profile *profile;
static struct kvc_input input;

static struct kvc_cache *open_cache(const char *path) {
    struct kvc_error e;
    assert_int_equal(kvc_input_open(&input, path, &e), 0);
    struct kvc_cache *c = kvc_import_file(&input, &(struct kvc_import_options){.kv_heads = 3}, NULL,
                                          &e);
    assert_non_null(c);
    return c;
}

static void close_cache(struct kvc_cache *c) {
    kvc_cache_free(c);
    kvc_input_close(&input);
}

static int take_nothing(void *s, const void *data, size_t n, struct kvc_error *e) {
    (void)s, (void)data, (void)n, (void)e;
    return 0;
}

static int pack(const struct kvc_cache *c, const struct kvc_fit *fit, struct kvc_error *e) {
    struct kvc_sink nowhere = {.write = take_nothing};
    const struct kvc_pack_options options = {.recipe = recipe_of(
                                                 "derope@k,center,basis,steps,code:step=0.01"),
                                             .profile = profile,
                                             .fit = fit};
    return kvc_container_write(c, &options, &nowhere, NULL, e);
}

static void a_cache_of_the_model_fits(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_fit fit;
    struct kvc_cache *c = open_cache("samples/transformers-16.safetensors");
    assert_int_equal(kvc_profile_settle(profile, c, 1, 0, &fit, &e), 0);
    assert_int_equal(fit.verdict, KVC_FIT_GOOD);
    assert_int_equal(fit.n, 30);
    for (uint32_t i = 0; i < fit.n; i++)
        for (int r = 0; r < 2; r++)
            assert_true(fit.layer[i].layer == i && fit.layer[i].ratio[r] > 0.5 &&
                        fit.layer[i].ratio[r] < 2);
    assert_int_equal(pack(c, &fit, &e), 0);
    kvc_fit_free(&fit);
    close_cache(c);
}

/* One thread and several find the same, to the last bit: the medians stand in the container. */
static void threads_agree(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_fit one, four;
    struct kvc_cache *c = open_cache("samples/transformers-16.safetensors");
    assert_int_equal(kvc_fit_measure(&one, profile, c, KVC_PAIRING_HALVES, 1, &e), 0);
    assert_int_equal(kvc_fit_measure(&four, profile, c, KVC_PAIRING_HALVES, 4, &e), 0);
    assert_memory_equal(one.ratio, four.ratio, sizeof one.ratio);
    kvc_fit_free(&one);
    kvc_fit_free(&four);
    close_cache(c);
}

/* The fit is refused before packing, which takes the caller's word for it. */
static void layers_in_another_order_are_refused(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_fit fit;
    struct kvc_cache *c = open_cache("samples/transformers-16.safetensors");
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer[i].index = c->n_layers - 1 - c->layer[i].index;
    assert_int_equal(kvc_profile_settle(profile, c, 0, 0, &fit, &e), -1);
    assert_int_equal(e.code, KVC_ERR_OTHER_MODEL);
    assert_int_equal(kvc_profile_settle(profile, c, 0, 1, &fit, &e), 0);
    assert_int_equal(fit.verdict, KVC_FIT_BAD);
    assert_int_equal(pack(c, &fit, &e), 0);
    kvc_fit_free(&fit);
    close_cache(c);
}

/* A slot does not tell how K is paired: the way that fits is noted. One that it tells wrongly is
 * refused, and the right one named. */
static void the_pairing_that_fits_is_taken(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_fit fit;
    struct kvc_cache *c = open_cache("samples/slot-f16.bin");
    assert_int_equal(c->meta.facts.rope.pairing, KVC_PAIRING_UNKNOWN);
    assert_int_equal(kvc_profile_settle(profile, c, 0, 0, &fit, &e), 0);
    assert_int_equal(c->meta.facts.rope.pairing, KVC_PAIRING_INTERLEAVED);
    kvc_fit_free(&fit);
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, "halves", &e), 0);
    assert_int_equal(kvc_profile_settle(profile, c, 0, 0, &fit, &e), -1);
    assert_non_null(strstr(e.message, "paired in interleaved"));
    assert_int_equal(e.need, KVC_NEED_PAIRING);
    close_cache(c);
}

/* Rows of block types are not measured: nothing is said of their fit. */
static void block_types_are_unknown(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_fit fit;
    struct kvc_cache *c = open_cache("samples/slot-q4_1-q5_0.bin");
    assert_int_equal(kvc_fit_measure(&fit, profile, c, KVC_PAIRING_INTERLEAVED, 0, &e), 0);
    assert_int_equal(fit.verdict, KVC_FIT_UNKNOWN);
    assert_int_equal(fit.n, 0);
    kvc_fit_free(&fit);
    close_cache(c);
}

/* --- choosing --- */

/* Puts a copy of the shipped profile into the folder, with a text of its header replaced by one
 * that is not longer. Returns its first bytes of SHA-256. */
static uint64_t put_copy(const char *name, const char *was, const char *is) {
    size_t n;
    struct kvc_error e;
    uint8_t hash[KVC_SHA256_BYTES];
    uint64_t first;
    const uint8_t *bytes = kvc_profile_bytes(profile, &n);
    char *copy = malloc(n);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    char *at = memmem(copy, n, was, strlen(was));
    assert_non_null(at);
    memset(at, ' ', strlen(was));
    memcpy(at, is, strlen(is));
    put_file(name, copy, n);
    assert_int_equal(kvc_sha256((uint8_t *)copy, n, hash, &e), 0);
    free(copy);
    memcpy(&first, hash, sizeof first);
    return first;
}

/* Returns the first bytes of the hash of the profile that is chosen, 0 where none is. */
static uint64_t choose(const struct kvc_cache *c, const char *recipe, int dequantize) {
    uint64_t first = 0;
    struct kvc_profile *p = kvc_profile_choose(c, recipe_of(recipe), dequantize, 1);
    if (p) memcpy(&first, kvc_profile_sha256(p), sizeof first);
    kvc_profile_free(p);
    return first;
}

static void the_best_profile_is_chosen(void **state) {
    (void)state;
    static const char fingerprint[] =
        "83d186d223f019f5407d7f22a4b5f28cd115f20a0f94a62c9cce559f856942cb";
    struct kvc_error e;
    uint8_t weights[KVC_SHA256_BYTES];
    char places[200];
    struct kvc_cache *c = open_cache("samples/transformers-16.safetensors");
    snprintf(places, sizeof places, "%s:none", folder);
    setenv("KVC_PROFILE_PATH", places, 1);
    assert_true(!choose(c, "small", 0));
    put_file("text.kvcp", "text", 4);
    put_copy("layers.kvcp", "\"model.layers\":\"30\"", "\"model.layers\":\"31\"");
    put_copy("requires.kvcp", "\"model.heads\":\"9\"", "\"requires\":\"what\"");
    assert_true(!choose(c, "small", 0));
    const uint64_t no_metric = put_copy("a.kvcp", "\"fisher\"", "\"query\"");
    assert_true(choose(c, "small", 0) == no_metric);
    const uint64_t plain = put_copy("b.kvcp", "\"predictor.back\"", "\"predictor\"");
    assert_true(choose(c, "small", 0) == plain);
    const uint64_t other = put_copy(
        "c.kvcp", fingerprint, "0000000000000000000000000000000000000000000000000000000000000000");
    assert_true(choose(c, "small", 0) == other);
    const uint64_t plainer = put_copy("d.kvcp", "\"model.heads\"", "\"model.head\"");
    /* of two that are equal but for texts, the one of the smaller hash */
    const uint64_t either = choose(c, "small", 0);
    assert_true(either == other || either == plainer);
    drop_file("text.kvcp");
    assert_true(choose(c, "small", 0) == either);
    /* recipes that take none, or only one with predictors */
    assert_true(!choose(c, "split", 0));
    assert_true(choose(c, "derope@k,center,basis,code:step=1", 0) != 0);
    assert_true(choose(c, "cross", 0) == either);

    /* the weights decide, where both are known */
    for (size_t i = 0; i < sizeof weights; i++) {
        unsigned byte;
        assert_int_equal(sscanf(fingerprint + 2 * i, "%2x", &byte), 1);
        weights[i] = (uint8_t)byte;
    }
    assert_int_equal(kvc_meta_set_bytes(&c->meta, KVC_KEY_FINGERPRINT "gguf.sampled", weights,
                                        sizeof weights, &e),
                     0);
    assert_true(choose(c, "small", 0) == plainer);
    drop_file("d.kvcp");
    assert_true(choose(c, "small", 0) == plain);
    drop_file("b.kvcp");
    assert_true(choose(c, "small", 0) == no_metric);
    assert_true(!choose(c, "cross", 0) == !no_metric);
    drop_file("a.kvcp");
    assert_true(!choose(c, "small", 0)); /* of other weights */
    put_copy("d.kvcp", "\"model.heads\"", "\"model.head\"");
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer[i].index = c->n_layers - 1 - c->layer[i].index;
    assert_true(!choose(c, "small", 0)); /* its values do not fit */
    close_cache(c);
    unsetenv("KVC_PROFILE_PATH");
}

/* Block types are compared as they are dequantised. The cache stays as it is. */
static void slots_are_measured(void **state) {
    (void)state;
    char places[200];
    snprintf(places, sizeof places, "%s:none", folder);
    setenv("KVC_PROFILE_PATH", places, 1);
    const uint64_t only = put_copy("d.kvcp", "\"model.heads\"", "\"model.head\"");
    struct kvc_cache *c = open_cache("samples/slot-q4_1-q5_0.bin");
    assert_true(!choose(c, "small", 0));
    assert_true(choose(c, "small", 1) == only);
    assert_int_equal(c->meta.facts.rope.pairing, KVC_PAIRING_UNKNOWN);
    close_cache(c);
    c = open_cache("samples/slot-f16.bin");
    assert_true(choose(c, "small", 0) == only);
    assert_int_equal(c->meta.facts.rope.pairing, KVC_PAIRING_UNKNOWN);
    close_cache(c);
    unsetenv("KVC_PROFILE_PATH");
}

static int open_profile(void **state) {
    (void)state;
    return (profile = kvc_profile_open("samples/smollm2-135m-instruct-predict.kvcp", NULL)) ? 0
                                                                                            : -1;
}

static int close_profile(void **state) {
    (void)state;
    kvc_profile_free(profile);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cache_of_the_model_fits),
        cmocka_unit_test(threads_agree),
        cmocka_unit_test(layers_in_another_order_are_refused),
        cmocka_unit_test(the_pairing_that_fits_is_taken),
        cmocka_unit_test(block_types_are_unknown),
        cmocka_unit_test_setup_teardown(the_best_profile_is_chosen, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(slots_are_measured, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, open_profile, close_profile);
}
