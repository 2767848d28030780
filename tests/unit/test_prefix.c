/* test_prefix.c: identities and the chain of prefix keys. Hashes come from KEYS.md's worked
 * examples. */
#include "formats/io/hash.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix_space.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Computes the keys of a list of tokens from position 0 on. */
static void keys_of(const char *identity, const int32_t *tokens, uint64_t n, uint8_t *keys) {
    struct kvc_prefix p;
    struct kvc_error e;
    assert_int_equal(kvc_prefix_begin(&p, identity, &e), 0);
    assert_int_equal(kvc_prefix_keys(&p, tokens, n, keys, &e), 0);
}

static uint64_t common_of(const char *identity, const uint8_t *keys, uint64_t n_keys,
                          const int32_t *tokens, uint64_t n) {
    struct kvc_prefix p;
    struct kvc_error e;
    uint64_t common;
    assert_int_equal(kvc_prefix_begin(&p, identity, &e), 0);
    assert_int_equal(kvc_prefix_common(&p, keys, n_keys, tokens, n, &common, &e), 0);
    return common;
}

#define KEY_1 "84c3dd383b409e8034d6a8ce7874f7294bbc9ab950d99c37c34483edfc733e64"
#define KEY_2 "843e3b5441875e077d4c14d1a8ffe78c6f1feb0eaaa16d57415f1f3963e3648a"

static void test_keys(void **state) {
    (void)state;
    int32_t tokens[767];
    uint8_t keys[2 * KVC_KEY_BYTES], none = 77;
    struct kvc_prefix p;
    struct kvc_error e;
    count_up(tokens, 767);
    keys_of("unknown", tokens, 767, keys);
    assert_hash(keys, KEY_1);
    assert_hash(keys + KVC_KEY_BYTES, KEY_2);
    memset(keys, 0, sizeof keys);
    keys_of("unknown", tokens, 512, keys);
    assert_hash(keys + KVC_KEY_BYTES, KEY_2);
    memset(keys, 0, sizeof keys);
    keys_of("unknown", tokens, 256, keys);
    assert_hash(keys, KEY_1);
    assert_int_equal(keys[KVC_KEY_BYTES], 0);
    keys_of("unknown", tokens, 255, &none);
    keys_of("unknown", tokens, 0, &none);
    assert_int_equal(none, 77);
    assert_int_equal(kvc_prefix_begin(&p, "unknown", &e), 0);
    assert_hash(p.start, "aca764b8277018d0dbec2e51b71255a03ef18f03991e5b66c9fd35ee1ed163d5");
}

static void test_common(void **state) {
    (void)state;
    int32_t tokens[768];
    uint8_t keys[3 * KVC_KEY_BYTES];
    count_up(tokens, 768);
    keys_of("m", tokens, 768, keys);
    assert_int_equal(common_of("m", keys, 3, tokens, 768), 768);
    assert_int_equal(common_of("m", keys, 3, tokens, 767), 512);
    assert_int_equal(common_of("m", keys, 1, tokens, 768), 256);
    assert_int_equal(common_of("other", keys, 3, tokens, 768), 0);
    tokens[300] = -1;
    assert_int_equal(common_of("m", keys, 3, tokens, 768), 256);
    assert_int_equal(common_of("m", NULL, 0, tokens, 768), 0);
}

static const uint8_t sixteen[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const struct kvc_extra two_extras[] = {{10, KVC_EXTRA_MEDIA, sizeof sixteen, sixteen},
                                              {255, KVC_EXTRA_USER, 4, (const uint8_t *)"user"}};

static void test_extras(void **state) {
    (void)state;
    int32_t tokens[512];
    uint8_t keys[2 * KVC_KEY_BYTES];
    char hex[2 * 64 + 1];
    struct kvc_meta meta = {0};
    struct kvc_prefix p;
    struct kvc_extra *item;
    size_t n;
    struct kvc_error e;
    count_up(tokens, 512);
    assert_int_equal(kvc_extras_store(&meta, two_extras, 2, &e), 0);
    const struct kvc_meta_entry *entry = kvc_meta_find(&meta, KVC_KEY_PREFIX_EXTRAS);
    assert_int_equal(entry->size, 47);
    kvc_hex(entry->value, 47, hex);
    assert_string_equal(hex, "0000000000000000"
                             "0102000000"
                             "010a0000001000"
                             "000102030405060708090a0b0c0d0e0f"
                             "03ff0000000400"
                             "75736572");
    assert_int_equal(kvc_prefix_of(&p, &meta, &e), 0); /* without an identity: "unknown" */
    assert_int_equal(kvc_prefix_keys(&p, tokens, 512, keys, &e), 0);
    assert_hash(keys, "24d7a9185dc264b5006e2a69a22242fc397e1d4d4fbfec52c5a03577f8826fe1");
    assert_hash(keys + KVC_KEY_BYTES,
                "d2dcc37091af1eafc4c48116c816507a82bed47a34a3da688596ab3914a505e8");

    /* of the second block, after a parent */
    const struct kvc_extra second = {256, KVC_EXTRA_EMBEDDINGS, sizeof sixteen, sixteen};
    keys_of("unknown", tokens, 256, keys);
    assert_int_equal(kvc_extras_store(&meta, &second, 1, &e), 0);
    assert_int_equal(kvc_meta_set_bytes(&meta, KVC_KEY_PREFIX_PARENT, keys, KVC_KEY_BYTES, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&meta, KVC_KEY_TOKENS_FIRST, 256, &e), 0);
    assert_int_equal(kvc_prefix_of(&p, &meta, &e), 0);
    assert_int_equal(kvc_prefix_keys(&p, tokens + 256, 256, keys, &e), 0);
    assert_hash(keys, "8f71b7bc57c7f9b53717984741515ac0df872b15bae884bc510eae54e78bbb20");

    /* back as they were */
    assert_int_equal(kvc_extras_list(&meta, &item, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_int_equal(item->position, 256);
    assert_int_equal(item->tag, KVC_EXTRA_EMBEDDINGS);
    assert_memory_equal(item->bytes, sixteen, item->size);
    free(item);

    /* what cannot be stored leaves the metadata as they were */
    const struct kvc_extra twice[] = {second, second};
    assert_int_equal(kvc_extras_store(&meta, twice, 2, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    assert_int_equal(kvc_meta_find(&meta, KVC_KEY_PREFIX_EXTRAS)->size, 36);
    assert_int_equal(kvc_extras_store(&meta, NULL, 0, &e), 0);
    assert_null(kvc_meta_find(&meta, KVC_KEY_PREFIX_EXTRAS));
    kvc_meta_free(&meta);
}

static void test_identity(void **state) {
    (void)state;
    struct kvc_meta meta = {0};
    struct kvc_error e;
    char text[KVC_IDENTITY_BYTES];
    uint8_t hash[KVC_SHA256_BYTES];
    assert_int_equal(kvc_prefix_identity(&meta, text, sizeof text, NULL), 0);
    assert_string_equal(text, "unknown");

    assert_int_equal(kvc_meta_set_text(&meta, KVC_KEY_MODEL_NAME, "m", &e), 0);
    assert_int_equal(kvc_meta_set_text(&meta, KVC_KEY_MODEL_ARCH, "llama", &e), 0);
    assert_int_equal(kvc_meta_set_u64(&meta, KVC_KEY_MODEL_LAYERS, 30, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&meta, KVC_KEY_MODEL_KV_HEADS, 3, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&meta, KVC_KEY_MODEL_HEAD_DIM, 64, &e), 0);
    assert_int_equal(kvc_prefix_identity(&meta, text, sizeof text, NULL), 0);
    assert_string_equal(text,
                        "model:c4e63992ff405979a8657b161cb5b5a4cabe751133a2e18f95859ba9da15e46d");

    /* each is preferred to those before it */
    static const char *const keys[] = {"model.fingerprint.safetensors.sampled",
                                       "model.fingerprint.gguf.sampled",
                                       "model.fingerprint.safetensors.pieces",
                                       "model.fingerprint.gguf.pieces"};
    for (unsigned i = 0; i < 4; i++) {
        char hex[2 * KVC_SHA256_BYTES + 1], wanted[256];
        memset(hash, (int)(0xa0 + i), sizeof hash);
        kvc_hex(hash, sizeof hash, hex);
        snprintf(wanted, sizeof wanted, "%s:%s", keys[i], hex);
        assert_int_equal(kvc_meta_set_bytes(&meta, keys[i], hash, sizeof hash, &e), 0);
        assert_int_equal(kvc_prefix_identity(&meta, text, sizeof text, NULL), 0);
        assert_string_equal(text, wanted);
    }

    /* adapters; the longest identity there is still fits */
    for (unsigned i = 0; i < 4; i++)
        if (i != 0) kvc_meta_remove(&meta, keys[i]);
    assert_int_equal(kvc_meta_set_text(&meta, KVC_KEY_MODEL_ADAPTERS, "a.gguf", &e), 0);
    assert_int_equal(kvc_prefix_identity(&meta, text, sizeof text, NULL), 0);
    assert_int_equal(strlen(text), 37 + 1 + 64 + 6 + 16);
    assert_string_equal(strrchr(text, '+'), "+lora:6a8d1dcf949b6bff");

    /* what the file names already wins */
    assert_int_equal(kvc_meta_set_text(&meta, KVC_KEY_PREFIX_IDENTITY, "mine", &e), 0);
    assert_int_equal(kvc_prefix_identity(&meta, text, sizeof text, NULL), 0);
    assert_string_equal(text, "mine");
    assert_int_equal(kvc_prefix_identity_of_model(&meta, text, sizeof text, NULL), 0);
    assert_string_equal(strrchr(text, '+'), "+lora:6a8d1dcf949b6bff");
    kvc_meta_free(&meta);
}

static struct kvc_prefix_matched match(const struct kvc_cache *c, const int32_t *tokens,
                                       uint64_t n) {
    struct kvc_prefix_matched m;
    struct kvc_error e;
    if (kvc_prefix_match(c, tokens, n, &m, &e)) fail_msg("%s", e.message);
    return m;
}

static void test_match(void **state) {
    (void)state;
    int32_t held[] = {5, 6, 7}, asked[] = {5, 6, 8, 9};
    struct kvc_cache c = {.tokens = held, .n_tokens = 3};
    struct kvc_prefix_matched m;
    struct kvc_error e;
    assert_int_equal(match(&c, asked, 4).common, 2);
    assert_int_equal(match(&c, asked, 4).by_keys, 0);
    assert_int_equal(match(&c, held, 3).common, 3);
    assert_int_equal(match(&c, held, 1).common, 1);

    /* equal ids from the first token with extras on may stand for something else */
    const struct kvc_extra extra = {1, 9, 1, sixteen};
    assert_int_equal(kvc_extras_store(&c.meta, &extra, 1, &e), 0);
    assert_int_equal(match(&c, held, 3).common, 1);
    kvc_meta_free(&c.meta);
    c = (struct kvc_cache){0};
    assert_int_equal(kvc_prefix_match(&c, asked, 4, &m, &e), -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
}

/* A cache of tokens 256 to 611, with its ids or with its key. */
static void test_match_after_parent(void **state) {
    (void)state;
    int32_t tokens[700];
    uint8_t keys[2 * KVC_KEY_BYTES];
    struct kvc_error e;
    count_up(tokens, 700);
    keys_of("m", tokens, 512, keys);
    for (int by_keys = 0; by_keys < 2; by_keys++) {
        struct kvc_cache c = {0};
        if (by_keys) c.prefix_keys = keys + KVC_KEY_BYTES, c.n_prefix_keys = 1;
        else c.tokens = tokens + 256, c.n_tokens = 356;
        assert_int_equal(kvc_meta_set_text(&c.meta, KVC_KEY_PREFIX_IDENTITY, "m", &e), 0);
        assert_int_equal(kvc_meta_set_bytes(&c.meta, KVC_KEY_PREFIX_PARENT, keys, KVC_KEY_BYTES,
                                            &e),
                         0);
        assert_int_equal(kvc_meta_set_u64(&c.meta, KVC_KEY_TOKENS_FIRST, 256, &e), 0);
        const struct kvc_prefix_matched m = match(&c, tokens, 700);
        assert_int_equal(m.common, by_keys ? 512 : 612);
        assert_int_equal(m.first, 256);
        assert_int_equal(m.by_keys, by_keys);
        assert_int_equal(match(&c, tokens, 256).common, 0); /* none of the cache's own tokens */
        assert_int_equal(match(&c, tokens, 200).common, 0);
        assert_int_equal(match(&c, tokens, 400).common, by_keys ? 0 : 400);
        tokens[100]++; /* another sequence leads to the same tokens */
        assert_int_equal(match(&c, tokens, 700).common, 0);
        tokens[100]--;
        kvc_meta_free(&c.meta);
    }
}

/* --- namespaces --- */

static void space_of(const struct kvc_cache *c, const struct kvc_space *space, uint8_t *hash) {
    struct kvc_error e;
    if (kvc_prefix_space(c, &c->meta, space, hash, &e)) fail_msg("%s", e.message);
}

/* Computed with Python's hashlib: every fact unknown but identity "unknown", no layers, and
 * fidelity. */
static void test_space(void **state) {
    (void)state;
    struct kvc_cache c = {0};
    struct kvc_error e;
    uint8_t lossless[KVC_KEY_BYTES], other[KVC_KEY_BYTES], tenant[KVC_KEY_BYTES];
    space_of(&c, &(struct kvc_space){.lossless = 1}, lossless);
    assert_hash(lossless, "d51ef42c135b44cc5e1f072e4f2a2c9e71394969cb11a31b75ed6a95be60ebc8");
    assert_int_equal(kvc_meta_set_text(&c.meta, KVC_KEY_RECIPE, "kivi4", &e), 0);
    assert_int_equal(kvc_meta_set_text(&c.meta, KVC_KEY_PROFILE, "no bytes", &e), 0);
    space_of(&c, &(struct kvc_space){.lossless = 1}, other);
    assert_memory_equal(lossless, other, sizeof other);
    for (size_t i = 0; i < sizeof tenant; i++) tenant[i] = (uint8_t)i;
    space_of(&c, &(struct kvc_space){.chunk = 256, .tenant = tenant}, other);
    assert_hash(other, "242c73e655adbace755482cd877d336a01833a90a256e806788ea114ccca6a18");
    kvc_meta_free(&c.meta);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),   cmocka_unit_test(test_common),
        cmocka_unit_test(test_extras), cmocka_unit_test(test_identity),
        cmocka_unit_test(test_match),  cmocka_unit_test(test_match_after_parent),
        cmocka_unit_test(test_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
