/* test_prefix.c: identities and the chain of prefix keys. Hashes come from FORMAT.md's worked examples. */
#include "formats/io/hash.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void assert_hash(const uint8_t *hash, const char *hex) {
    char text[2 * KVC_SHA256_BYTES + 1];
    kvc_hex(hash, KVC_SHA256_BYTES, text);
    assert_string_equal(text, hex);
}

static void count_up(int32_t *tokens, int32_t n) {
    for (int32_t i = 0; i < n; i++) tokens[i] = i;
}

static void test_keys(void **state) {
    (void)state;
    int32_t tokens[767];
    uint8_t keys[2 * KVC_KEY_BYTES];
    struct kvc_error e;
    count_up(tokens, 767);
    assert_int_equal(kvc_prefix_keys("unknown", tokens, 767, keys, &e), 0);
    assert_hash(keys, "93ff363cd1ea4f6de85e79267e86ae5efa1d0c7a81983267f75b1185f1f0da07");
    assert_hash(keys + KVC_KEY_BYTES, "42a3299e3e2d562ebcb566ace55168de700c73d617a419beaeb17f3efb5e34b3");
    assert_int_equal(kvc_prefix_keys("unknown", tokens, 255, NULL, &e), 0);
}

static void test_common(void **state) {
    (void)state;
    int32_t tokens[768];
    uint8_t keys[3 * KVC_KEY_BYTES];
    uint64_t common;
    struct kvc_error e;
    count_up(tokens, 768);
    assert_int_equal(kvc_prefix_keys("m", tokens, 768, keys, &e), 0);
    assert_int_equal(kvc_prefix_common("m", keys, 3, tokens, 768, &common, &e), 0);
    assert_int_equal(common, 768);
    assert_int_equal(kvc_prefix_common("m", keys, 3, tokens, 767, &common, &e), 0);
    assert_int_equal(common, 512);
    assert_int_equal(kvc_prefix_common("m", keys, 1, tokens, 768, &common, &e), 0);
    assert_int_equal(common, 256);
    assert_int_equal(kvc_prefix_common("other", keys, 3, tokens, 768, &common, &e), 0);
    assert_int_equal(common, 0);
    tokens[300] = -1;
    assert_int_equal(kvc_prefix_common("m", keys, 3, tokens, 768, &common, &e), 0);
    assert_int_equal(common, 256);
    assert_int_equal(kvc_prefix_common("m", NULL, 0, tokens, 768, &common, &e), 0);
    assert_int_equal(common, 0);
}

static void test_identity(void **state) {
    (void)state;
    struct kvc_meta meta = {0};
    struct kvc_error e;
    char text[KVC_IDENTITY_BYTES];
    uint8_t hash[KVC_SHA256_BYTES];
    kvc_prefix_identity(&meta, text, sizeof text);
    assert_string_equal(text, "unknown");

    assert_int_equal(kvc_meta_set_text(&meta, KVC_KEY_MODEL_NAME, "m", &e), 0);
    assert_int_equal(kvc_meta_set_text(&meta, KVC_KEY_MODEL_ARCH, "llama", &e), 0);
    assert_int_equal(kvc_meta_set_u64(&meta, KVC_KEY_MODEL_LAYERS, 30, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&meta, KVC_KEY_MODEL_KV_HEADS, 3, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&meta, KVC_KEY_MODEL_HEAD_DIM, 64, &e), 0);
    kvc_prefix_identity(&meta, text, sizeof text);
    assert_string_equal(text, "model:c4e63992ff405979a8657b161cb5b5a4cabe751133a2e18f95859ba9da15e46d");

    /* weakest to strongest: each is preferred to those before it */
    static const char *const keys[] = {"model.fingerprint.safetensors.sampled", "model.fingerprint.gguf.sampled",
                                       "model.fingerprint.safetensors.full", "model.fingerprint.gguf.full"};
    for (unsigned i = 0; i < 4; i++) {
        char hex[2 * KVC_SHA256_BYTES + 1], wanted[256];
        memset(hash, (int)(0xa0 + i), sizeof hash);
        kvc_hex(hash, sizeof hash, hex);
        snprintf(wanted, sizeof wanted, "%s:%s", keys[i], hex);
        assert_int_equal(kvc_meta_set_bytes(&meta, keys[i], hash, sizeof hash, &e), 0);
        kvc_prefix_identity(&meta, text, sizeof text);
        assert_string_equal(text, wanted);
    }

    /* adapters; the longest identity there is still fits */
    for (unsigned i = 1; i < 4; i++) kvc_meta_remove(&meta, keys[i]);
    assert_int_equal(kvc_meta_set_text(&meta, KVC_KEY_MODEL_ADAPTERS, "a.gguf", &e), 0);
    kvc_prefix_identity(&meta, text, sizeof text);
    assert_int_equal(strlen(text), 37 + 1 + 64 + 6 + 16);
    assert_string_equal(strrchr(text, '+'), "+lora:6a8d1dcf949b6bff");

    /* what the file names already wins */
    assert_int_equal(kvc_meta_set_text(&meta, KVC_KEY_PREFIX_IDENTITY, "mine", &e), 0);
    kvc_prefix_identity(&meta, text, sizeof text);
    assert_string_equal(text, "mine");
    kvc_meta_free(&meta);
}

static void test_match(void **state) {
    (void)state;
    int32_t held[] = {5, 6, 7}, asked[] = {5, 6, 8, 9};
    struct kvc_cache c = {.tokens = held, .n_tokens = 3};
    uint64_t common;
    int by_keys;
    struct kvc_error e;
    assert_int_equal(kvc_prefix_match(&c, asked, 4, &common, &by_keys, &e), 0);
    assert_int_equal(common, 2);
    assert_int_equal(by_keys, 0);
    assert_int_equal(kvc_prefix_match(&c, held, 3, &common, &by_keys, &e), 0);
    assert_int_equal(common, 3);
    assert_int_equal(kvc_prefix_match(&c, held, 1, &common, &by_keys, &e), 0);
    assert_int_equal(common, 1);
    c.tokens = NULL;
    c.n_tokens = 0;
    assert_int_equal(kvc_prefix_match(&c, asked, 4, &common, &by_keys, &e), -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_common),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
