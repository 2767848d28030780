/* test_model.c: GGUF headers, facts, fingerprints, tokenizer hash, matching. Hashes come from
 * KEYS.md's worked examples, which were computed by an independent program. */
#include "temp_folder.h"

#include "formats/model/gguf.h"
#include "formats/io/hash.h"
#include "formats/cache/keys.h"
#include "formats/model/model.h"
#include "formats/model/vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void put_text(const char *name, const char *text) {
    put_file(name, text, strlen(text));
}

static void assert_hash(const uint8_t *hash, const char *hex) {
    char text[2 * KVC_SHA256_BYTES + 1];
    kvc_hex(hash, KVC_SHA256_BYTES, text);
    assert_string_equal(text, hex);
}

/* ---- a GGUF writer ---- */

struct bytes {
    uint8_t b[4096];
    size_t n;
};

static void add(struct bytes *f, const void *data, size_t n) {
    assert_true(f->n + n <= sizeof f->b);
    memcpy(f->b + f->n, data, n);
    f->n += n;
}
static void add_number(struct bytes *f, uint64_t v, size_t width) {
    for (; width; width--, v >>= 8) {
        uint8_t byte = (uint8_t)v;
        add(f, &byte, 1);
    }
}
static void add_string(struct bytes *f, const char *text) {
    add_number(f, strlen(text), 8);
    add(f, text, strlen(text));
}
static void begin(struct bytes *f, unsigned version, uint64_t tensors, uint64_t keys) {
    f->n = 0;
    add(f, "GGUF", 4);
    add_number(f, version, 4);
    add_number(f, tensors, 8);
    add_number(f, keys, 8);
}
static void add_text(struct bytes *f, const char *key, const char *text) {
    add_string(f, key);
    add_number(f, KVC_GGUF_STRING, 4);
    add_string(f, text);
}
static void add_u32(struct bytes *f, const char *key, uint32_t v) {
    add_string(f, key);
    add_number(f, KVC_GGUF_U32, 4);
    add_number(f, v, 4);
}
static void add_f32(struct bytes *f, const char *key, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    add_string(f, key);
    add_number(f, KVC_GGUF_F32, 4);
    add_number(f, bits, 4);
}
static void add_array(struct bytes *f, const char *key, uint32_t type, uint64_t n) {
    add_string(f, key);
    add_number(f, KVC_GGUF_ARRAY, 4);
    add_number(f, type, 4);
    add_number(f, n, 8);
}
static void add_tensor(struct bytes *f, const char *name, uint64_t dim, uint64_t offset) {
    add_string(f, name);
    add_number(f, 1, 4);
    add_number(f, dim, 8);
    add_number(f, 0, 4);
    add_number(f, offset, 8);
}
static void pad(struct bytes *f, size_t alignment) {
    while (f->n % alignment) add(f, "", 1);
}

/* The worked example of KEYS.md: 149 bytes, no tensors, three tokens of which the last is padding.
 */
static void tiny(struct bytes *f) {
    begin(f, 3, 0, 2);
    add_text(f, "general.architecture", "llama");
    add_array(f, "tokenizer.ggml.tokens", KVC_GGUF_STRING, 3);
    add_string(f, "a");
    add_string(f, "\xe2\x96\x81"
                  "b");
    add_string(f, "[PAD2]");
}

static void small(struct bytes *f, uint32_t kv0, uint32_t kv1) {
    begin(f, 2, 2, 9);
    add_text(f, "general.architecture", "gemma3");
    add_text(f, "general.name", "A \x01\xff\xc3\xa9");
    add_u32(f, "general.alignment", 64);
    add_u32(f, "gemma3.block_count", 2);
    add_u32(f, "gemma3.embedding_length", 64);
    add_u32(f, "gemma3.attention.head_count", 4);
    add_array(f, "gemma3.attention.head_count_kv", KVC_GGUF_I32, 2);
    add_number(f, kv0, 4);
    add_number(f, kv1, 4);
    add_u32(f, "gemma3.attention.value_length", 8);
    add_f32(f, "gemma3.rope.freq_base", 1000000);
    add_tensor(f, "token_embd.weight", 16, 0);
    add_tensor(f, "output_norm.weight", 16, 64);
    pad(f, 64);
    for (int i = 0; i < 128; i++) add_number(f, (uint64_t)i, 1);
}

static void test_tiny(void **state) {
    (void)state;
    struct bytes f;
    struct kvc_model m;
    struct kvc_error e;
    tiny(&f);
    assert_int_equal(f.n, 149);
    put_file("tiny.gguf", f.b, f.n);
    assert_int_equal(kvc_model_read(in_folder("tiny.gguf"), 1, &m, &e), 0);
    drop_file("tiny.gguf");
    assert_int_equal(m.kind, KVC_MODEL_GGUF);
    assert_int_equal(m.has_attention, 0);
    assert_string_equal(m.arch, "llama");
    assert_string_equal(m.name, "");
    assert_int_equal(m.pairing, KVC_PAIRING_INTERLEAVED);
    assert_true(m.rope_theta == 10000.0);
    assert_hash(m.sampled, "2237bc72da7b6022041b7d1c2e7b8dee6a69a53556bc61ecab8ae00be8327b64");
    assert_int_equal(m.has_full, 1);
    assert_hash(m.full, "babd3927ff6c32e4a1ebf40f4ed3e473bd05efa522b6e445b4c94aeb5d76e262");
    assert_int_equal(m.has_tokenizer, 1);
    assert_hash(m.tokenizer, "3b9db1c2c0c357356531ef7ada42f3b539ce2b426e8f8f3ddba5d703a2ba8c8b");
}

static void test_facts(void **state) {
    (void)state;
    struct bytes f;
    struct kvc_model m;
    struct kvc_error e;
    small(&f, 2, 2);
    put_file("m.gguf", f.b, f.n);
    assert_int_equal(kvc_model_read(in_folder("m.gguf"), 0, &m, &e), 0);
    assert_string_equal(m.name, "A ??\xc3\xa9");
    assert_int_equal(m.layers, 2);
    assert_int_equal(m.heads, 4);
    assert_int_equal(m.kv_heads, 2);
    assert_int_equal(m.head_dim, 16);
    assert_int_equal(m.head_dim_v, 8);
    assert_int_equal(m.rope_dim, 16);
    assert_true(m.rope_theta == 1000000.0);
    assert_string_equal(m.rope_type, "default");
    assert_int_equal(m.pairing, KVC_PAIRING_HALVES);
    assert_int_equal(m.has_tokenizer, 0);
    assert_int_equal(m.has_full, 0);
    small(&f, 2, 1); /* layers differ */
    put_file("m.gguf", f.b, f.n);
    assert_int_equal(kvc_model_read(in_folder("m.gguf"), 0, &m, &e), 0);
    assert_int_equal(m.kv_heads, 0);
    drop_file("m.gguf");
}

static int open_gguf(struct kvc_gguf *g, const uint8_t *data, size_t n, struct kvc_error *e) {
    struct kvc_input in;
    kvc_input_memory(&in, "a model", data, n);
    return kvc_gguf_open(g, &in, e);
}

static void test_damaged_gguf(void **state) {
    (void)state;
    struct bytes f;
    struct kvc_gguf g;
    struct kvc_error e;
    small(&f, 2, 2);
    assert_int_equal(open_gguf(&g, f.b, f.n, &e), 0);
    assert_int_equal(g.data_offset, f.n - 128);
    assert_int_equal(kvc_gguf_has_tensor(&g, "output_norm.weight"), 1);
    assert_int_equal(kvc_gguf_has_tensor(&g, "output"), 0);
    uint64_t last = g.data_offset + 64; /* where the last tensor starts */
    kvc_gguf_close(&g);
    /* in memory of its own, so that a sanitizer sees one byte too many */
    for (size_t n = 0; n <= last; n++) {
        uint8_t *copy = malloc(n ? n : 1);
        assert_non_null(copy);
        memcpy(copy, f.b, n);
        assert_int_equal(open_gguf(&g, copy, n, &e), -1);
        free(copy);
    }
    for (size_t bit = 0; bit < 8 * f.n; bit++) { /* must not crash, whatever it answers */
        uint8_t *copy = malloc(f.n);
        assert_non_null(copy);
        memcpy(copy, f.b, f.n);
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (open_gguf(&g, copy, f.n, &e) == 0) {
            uint8_t hash[KVC_SHA256_BYTES];
            int known;
            kvc_gguf_has_tensor(&g, "none");
            kvc_gguf_u64(&g, "gemma3.attention.head_count_kv", 0, NULL);
            assert_int_equal(kvc_vocab_hash_gguf(&g, hash, &known, &e), 0);
            kvc_gguf_close(&g);
        }
        free(copy);
    }

    begin(&f, 3, 0, UINT64_MAX);
    assert_int_equal(open_gguf(&g, f.b, f.n, &e), -1);
    begin(&f, 3, UINT64_MAX, 0);
    assert_int_equal(open_gguf(&g, f.b, f.n, &e), -1);
    begin(&f, 1, 0, 0);
    assert_int_equal(open_gguf(&g, f.b, f.n, &e), -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    begin(&f, 3u << 24, 0, 0);
    assert_int_equal(open_gguf(&g, f.b, f.n, &e), -1);
    assert_non_null(strstr(e.message, "big-endian"));
    begin(&f, 3, 0, 2); /* the same key twice */
    add_u32(&f, "a", 1);
    add_u32(&f, "a", 2);
    assert_int_equal(open_gguf(&g, f.b, f.n, &e), -1);
    assert_non_null(strstr(e.message, "twice"));
    begin(&f, 3, 0, 1); /* an array of 2^61 u64: its size wraps around 2^64 */
    add_array(&f, "a", KVC_GGUF_U64, UINT64_C(1) << 61);
    assert_int_equal(open_gguf(&g, f.b, f.n, &e), -1);
    begin(&f, 3, 0, 1);
    add_array(&f, "a", KVC_GGUF_ARRAY, 1);
    add_number(&f, 0, 8);
    assert_int_equal(open_gguf(&g, f.b, f.n, &e), -1);
    begin(&f, 3, 0, 1);
    add_u32(&f, "general.alignment", 48);
    assert_int_equal(open_gguf(&g, f.b, f.n, &e), -1);
    assert_non_null(strstr(e.message, "alignment"));
}

/* ---- safetensors ---- */

static void put_safetensors(const char *name, unsigned n, unsigned seed) {
    char header[128];
    int size = snprintf(header, sizeof header,
                        "{\"a\":{\"dtype\":\"U8\",\"shape\":[%u],\"data_offsets\":[0,%u]}}", n, n);
    size_t total = 8 + (size_t)size + n;
    uint8_t *file = calloc(1, total);
    assert_non_null(file);
    file[0] = (uint8_t)size;
    memcpy(file + 8, header, (size_t)size);
    for (unsigned i = 0; i < n; i++)
        file[8 + (size_t)size + i] = (uint8_t)((i * 7) ^ (i >> 8) ^ seed);
    put_file(name, file, total);
    free(file);
}

/* Tensors are found by name in any order of the file; of one name, the first. */
static void test_find_tensor(void **state) {
    (void)state;
    static const char *const names[] = {"b", "aaa", "", "ab", "b", "a", "aa"};
    enum { N = sizeof names / sizeof names[0] };
    struct bytes f;
    struct kvc_gguf g;
    struct kvc_gguf_tensor t;
    struct kvc_error e;
    begin(&f, 3, N, 0);
    for (unsigned i = 0; i < N; i++) add_tensor(&f, names[i], i + 1, 32 * i);
    pad(&f, 32);
    for (unsigned i = 0; i < 32 * N; i++) add_number(&f, 0, 1);
    assert_int_equal(open_gguf(&g, f.b, f.n, &e), 0);
    for (unsigned i = 0; i < N; i++) {
        const unsigned first = i == 4 ? 0 : i;
        assert_int_equal(kvc_gguf_tensor(&g, names[i], &t), 1);
        assert_int_equal(t.dim[0], first + 1);
        assert_int_equal(t.offset, g.data_offset + 32 * first);
    }
    assert_int_equal(kvc_gguf_tensor(&g, "c", &t), 0);
    assert_int_equal(kvc_gguf_tensor(&g, "aaaa", &t), 0);
    kvc_gguf_close(&g);
}

static void test_safetensors(void **state) {
    (void)state;
    struct kvc_model m;
    struct kvc_error e;
    put_safetensors("model.safetensors", 300001, 0);
    assert_int_equal(kvc_model_read(in_folder("model.safetensors"), 1, &m, &e), 0);
    assert_int_equal(m.kind, KVC_MODEL_SAFETENSORS);
    assert_string_equal(m.arch, "");
    assert_hash(m.sampled, "1cd0d79d87d68899c00ccc1683bf04dde2a109b460a36ca9c6529342d70aea57");
    assert_hash(m.full, "dfc27f5e94338e51af3a671a6cd6cb8d2ea3281ccba382598834476225883046");
    assert_int_equal(kvc_model_read(folder, 0, &m, &e), 0);
    assert_hash(m.sampled, "1cd0d79d87d68899c00ccc1683bf04dde2a109b460a36ca9c6529342d70aea57");

    /* the same bytes as the first of two parts: by the directory, and by either part's name */
    static const char *const two[] = {"w-00001-of-00002.safetensors",
                                      "w-00002-of-00002.safetensors"};
    char from[512];
    snprintf(from, sizeof from, "%s", in_folder("model.safetensors"));
    assert_int_equal(rename(from, in_folder(two[0])), 0);
    put_safetensors(two[1], 1000, 5);
    const char *both = "83b2071c0d163782f57fa14f2f2b39e436a16fba830e13e421b0dae6c1834974";
    assert_int_equal(kvc_model_read(folder, 0, &m, &e), 0);
    assert_hash(m.sampled, both);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kvc_model_read(in_folder(two[i]), 0, &m, &e), 0);
        assert_hash(m.sampled, both);
    }
    drop_file(two[1]);
    assert_int_equal(kvc_model_read(in_folder(two[0]), 0, &m, &e), -1);
    assert_non_null(strstr(e.message, two[1]));
    drop_file(two[0]);

    assert_int_equal(kvc_model_read(folder, 0, &m, &e), -1);
    assert_int_equal(kvc_model_read(in_folder("absent"), 0, &m, &e), -1);
    assert_int_equal(e.code, KVC_ERR_IO);
    put_file("x", "\x40\0\0\0\0\0\0\0{}", 10);
    assert_int_equal(kvc_model_read(in_folder("x"), 0, &m, &e), -1);
    assert_int_equal(e.code, KVC_ERR_UNKNOWN_FORMAT);
    drop_file("x");
}

static void read_config(const char *config, struct kvc_model *m) {
    struct kvc_error e;
    put_text("config.json", config);
    assert_int_equal(kvc_model_read(folder, 0, m, &e), 0);
}

static void test_config(void **state) {
    (void)state;
    struct kvc_model m;
    struct kvc_error e;
    put_safetensors("model.safetensors", 100, 0);
    read_config(
        "{\"model_type\":\"llama\",\"_name_or_path\":\"/home/x/Some-1B\",\"num_hidden_layers\":16,"
        "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"hidden_size\":2048,\"rope_theta\":"
        "500000.0,"
        "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0},\"sliding_window\":null}",
        &m);
    assert_string_equal(m.name, "Some-1B");
    assert_string_equal(m.arch, "llama");
    assert_int_equal(m.layers, 16);
    assert_int_equal(m.heads, 32);
    assert_int_equal(m.kv_heads, 8);
    assert_int_equal(m.head_dim, 64);
    assert_int_equal(m.head_dim_v, 64);
    assert_int_equal(m.rope_dim, 64);
    assert_true(m.rope_theta == 500000.0 && m.rope_factor == 32.0);
    assert_string_equal(m.rope_type, "llama3");
    assert_int_equal(m.pairing, KVC_PAIRING_HALVES);
    assert_int_equal(m.window, 0);

    read_config(
        "{\"model_type\":\"gemma3\",\"text_config\":{\"num_hidden_layers\":34,\"num_attention_"
        "heads\":8,"
        "\"head_dim\":256,\"num_key_value_heads\":4,\"sliding_window\":1024,\"rope_parameters\":{"
        "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0},"
        "\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,\"rope_theta\":1000000.0}}}}",
        &m);
    assert_int_equal(m.layers, 34);
    assert_int_equal(m.kv_heads, 4);
    assert_int_equal(m.head_dim, 256);
    assert_int_equal(m.window, 1024);
    assert_true(m.rope_theta == 1000000.0 && m.rope_factor == 8.0);
    assert_string_equal(m.rope_type, "linear");

    read_config("{\"model_type\":\"qwen2\",\"num_attention_heads\":14,\"hidden_size\":896,"
                "\"sliding_window\":32768,"
                "\"use_sliding_window\":false,\"rope_parameters\":{\"rope_theta\":1000000.0,"
                "\"rope_type\":\"default\","
                "\"partial_rotary_factor\":0.5}}",
                &m);
    assert_int_equal(m.kv_heads, 14); /* absent: as many as heads */
    assert_int_equal(m.window, 0);
    assert_int_equal(m.head_dim, 64);
    assert_int_equal(m.rope_dim, 32);
    assert_true(m.rope_theta == 1000000.0);
    assert_string_equal(m.rope_type, "default");

    /* a model that takes pictures: its text model pairs */
    read_config("{\"model_type\":\"cohere2_vision\",\"text_config\":{\"model_type\":\"cohere2\"}}",
                &m);
    assert_string_equal(m.arch, "cohere2_vision");
    assert_int_equal(m.pairing, KVC_PAIRING_INTERLEAVED);
    read_config("{\"model_type\":\"falcon\",\"alibi\":true}", &m);
    assert_int_equal(m.pairing, KVC_PAIRING_NONE);
    read_config("{\"model_type\":\"deepseek_v3\",\"kv_lora_rank\":32}", &m);
    assert_int_equal(m.pairing, KVC_PAIRING_UNKNOWN);
    read_config(
        "{\"model_type\":\"x\",\"num_hidden_layers\":-3,\"num_attention_heads\":99999999999999,"
        "\"hidden_size\":[],\"rope_scaling\":7,\"head_dim\":\"a\",\"rope_theta\":-1}",
        &m);
    assert_int_equal(m.layers, 0);
    assert_int_equal(m.heads, 0);
    assert_int_equal(m.head_dim, 0);
    assert_true(m.rope_theta == 0);

    put_text("config.json", "{\"a\":1,\"a\":2}");
    assert_int_equal(kvc_model_read(folder, 0, &m, &e), -1);
    assert_int_equal(strncmp(e.message, "config.json: ", 13), 0);
    drop_file("config.json");
    drop_file("model.safetensors");
}

static int vocab_hash(const char *json, uint64_t limit, uint8_t *hash) {
    struct kvc_error e;
    int known;
    assert_int_equal(kvc_vocab_hash_json((const uint8_t *)json, strlen(json), limit, hash, &known,
                                         &e),
                     0);
    return known;
}

static void test_tokenizer_json(void **state) {
    (void)state;
    static const char *const same[] = {
        "{\"model\":{\"vocab\":{\"\xe2\x96\x81"
        "b\":1,\"a\":0}}}", /* a map, in any order */
        "{\"model\":{\"vocab\":{\"a\":0,\" b\":1,\"[PAD2]\":2}},\"added_tokens\":[]}", /* padding at
                                                                                        * the end
                                                                                        */
        "{\"model\":{\"vocab\":[[\"a\",0],[\"\xe2\x96\x81"
        "b\",-1.5]]}}", /* Unigram */
        "{\"model\":{\"vocab\":{\"x\":0}},\"added_tokens\":[{\"id\":1,\"content\":\" b\"},"
        "{\"id\":0,\"content\":\"a\"}]}", /* added tokens win */
        "{\"model\":{\"vocab\":{\"a\":0,\" b\":1,\"z\":2}},"
        "\"added_tokens\":[{\"id\":900,\"content\":\"y\"}]}", /* tokens beyond the limit do not
                                                                 count */
    };
    uint8_t hash[KVC_SHA256_BYTES];
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        assert_int_equal(vocab_hash(same[i], i == 4 ? 2 : 0, hash), 1);
        assert_hash(hash, "3b9db1c2c0c357356531ef7ada42f3b539ce2b426e8f8f3ddba5d703a2ba8c8b");
    }

    /* A hole is spelled as the conversion to GGUF spells it. */
    uint8_t hole[KVC_SHA256_BYTES];
    assert_int_equal(vocab_hash("{\"model\":{\"vocab\":{\"a\":0,\"c\":2}}}", 0, hole), 1);
    assert_int_equal(vocab_hash("{\"model\":{\"vocab\":{\"a\":0,\"[PAD1]\":1,\"c\":2}}}", 0, hash),
                     1);
    assert_memory_equal(hash, hole, sizeof hash);

    static const char *const none[] = {
        "{}",
        "[]",
        "{\"model\":{\"vocab\":{}}}",
        "{\"model\":{\"vocab\":{\"a\":0,\"b\":0}}}",
        "{\"model\":{\"vocab\":{\"a\":-1}}}",
        "{\"model\":{\"vocab\":{\"a\":9000000000000000000}}}",
        "{\"model\":{\"vocab\":{\"a\":4194304}}}",
        "{\"model\":{\"vocab\":[1,2]}}",
        "{\"model\":{\"vocab\":{\"a\":0}},\"added_tokens\":[{\"id\":1}]}",
        "{\"model\":{\"vocab\":{\"a\\u0000\":0}}}",
    };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_int_equal(vocab_hash(none[i], 0, hash), 0);

    struct kvc_error e;
    int known;
    assert_int_equal(kvc_vocab_hash_json((const uint8_t *)"{", 1, 0, hash, &known, &e), -1);
    assert_int_equal(e.code, KVC_ERR_DAMAGED);

    struct kvc_model m;
    put_safetensors("model.safetensors", 100, 0);
    put_text("tokenizer.json", same[0]);
    assert_int_equal(kvc_model_read(folder, 0, &m, &e), 0);
    assert_int_equal(m.has_tokenizer, 1);
    assert_hash(m.tokenizer, "3b9db1c2c0c357356531ef7ada42f3b539ce2b426e8f8f3ddba5d703a2ba8c8b");
    drop_file("tokenizer.json");
    drop_file("model.safetensors");
}

static void test_pairing(void **state) {
    (void)state;
    assert_int_equal(kvc_pairing_of_gguf_arch("llama"), KVC_PAIRING_INTERLEAVED);
    assert_int_equal(kvc_pairing_of_gguf_arch("olmo"), KVC_PAIRING_INTERLEAVED);
    assert_int_equal(kvc_pairing_of_gguf_arch("olmo2"), KVC_PAIRING_HALVES);
    assert_int_equal(kvc_pairing_of_gguf_arch("qwen3"), KVC_PAIRING_HALVES);
    assert_int_equal(kvc_pairing_of_gguf_arch("gemma3"), KVC_PAIRING_HALVES);
    assert_int_equal(kvc_pairing_of_gguf_arch("gpt2"), KVC_PAIRING_NONE);
    assert_int_equal(kvc_pairing_of_gguf_arch("qwen2vl"), KVC_PAIRING_HALVES);
    assert_int_equal(kvc_pairing_of_gguf_arch(""), KVC_PAIRING_UNKNOWN);
    assert_int_equal(kvc_pairing_of_transformers("llama"), KVC_PAIRING_HALVES);
    assert_int_equal(kvc_pairing_of_transformers("cohere2"), KVC_PAIRING_INTERLEAVED);
    assert_int_equal(kvc_pairing_of_transformers("gpt2"), KVC_PAIRING_NONE);
    assert_int_equal(kvc_pairing_of_transformers("opt"), KVC_PAIRING_NONE);
    assert_int_equal(kvc_pairing_of_transformers("glm4v_text"), KVC_PAIRING_INTERLEAVED);
}

/* ---- matching ---- */

static struct kvc_model some_model(void) {
    struct kvc_model m = {.kind = KVC_MODEL_GGUF,
                          .name = "M",
                          .arch = "llama",
                          .layers = 30,
                          .heads = 9,
                          .kv_heads = 3,
                          .head_dim = 64,
                          .head_dim_v = 64,
                          .pairing = KVC_PAIRING_INTERLEAVED,
                          .rope_type = "default",
                          .rope_theta = 1e5,
                          .rope_dim = 64,
                          .has_tokenizer = 1};
    memset(m.tokenizer, 1, sizeof m.tokenizer);
    memset(m.sampled, 2, sizeof m.sampled);
    return m;
}

static void test_store(void **state) {
    (void)state;
    struct kvc_model m = some_model();
    struct kvc_meta meta = {0};
    struct kvc_error e;
    assert_int_equal(kvc_model_store(&m, &meta, 1, &e), 0);
    assert_string_equal(kvc_meta_text(&meta, KVC_KEY_MODEL_NAME, ""), "M");
    assert_string_equal(kvc_meta_text(&meta, KVC_KEY_MODEL_ARCH, ""), "llama");
    assert_string_equal(kvc_meta_text(&meta, KVC_KEY_ROPE_PAIRING, ""), "interleaved");
    assert_int_equal(kvc_meta_u64(&meta, KVC_KEY_MODEL_KV_HEADS, 0), 3);
    assert_null(kvc_meta_find(&meta, KVC_KEY_MODEL_HEAD_DIM_V));
    assert_null(kvc_meta_find(&meta, KVC_KEY_WINDOW));
    assert_true(kvc_meta_f64(&meta, KVC_KEY_ROPE_THETA, 0) == 1e5);
    const struct kvc_meta_entry *print = kvc_meta_find(&meta, "model.fingerprint.gguf.sampled");
    assert_non_null(print);
    assert_memory_equal(print->value, m.sampled, sizeof m.sampled);
    assert_null(kvc_meta_find(&meta, "model.fingerprint.gguf.pieces"));
    kvc_meta_free(&meta);

    struct kvc_meta other = {0};
    /* a transformers cache of the same model */
    assert_int_equal(kvc_model_store(&m, &other, 0, &e), 0);
    assert_string_equal(kvc_meta_text(&other, KVC_KEY_ROPE_PAIRING, ""), "halves");
    assert_int_equal(kvc_model_store(&m, &other, 1, &e), 0); /* stays */
    assert_string_equal(kvc_meta_text(&other, KVC_KEY_ROPE_PAIRING, ""), "halves");
    kvc_meta_free(&other);
}

static void test_match(void **state) {
    (void)state;
    struct kvc_model m = some_model(), n = m;
    struct kvc_meta meta = {0}, empty = {0};
    struct kvc_error e;
    char note[512];
    assert_int_equal(kvc_model_match(&empty, &m, note, sizeof note, &e), 0);
    assert_string_equal(note, "the cache does not say which model made it");

    assert_int_equal(kvc_model_store(&m, &meta, 1, &e), 0);
    assert_int_equal(kvc_model_match(&meta, &m, note, sizeof note, &e), 0);
    assert_string_equal(note, "");
    n.sampled[31] ^= 1; /* same geometry, other weights */
    assert_int_equal(kvc_model_match(&meta, &n, note, sizeof note, &e), -1);
    assert_int_equal(e.code, KVC_ERR_OTHER_MODEL);
    assert_non_null(strstr(e.message, "model.fingerprint.gguf.sampled"));
    n.kv_heads = 1;
    assert_int_equal(kvc_model_match(&meta, &n, note, sizeof note, &e), -1);
    assert_non_null(strstr(e.message, "cache: model.kv-heads 3, weights: 1"));

    /* another kind of file: facts count, the architecture's spelling and the pairing do not */
    struct kvc_model s = m;
    s.kind = KVC_MODEL_SAFETENSORS;
    snprintf(s.arch, sizeof s.arch, "smollm");
    s.pairing = KVC_PAIRING_HALVES;
    s.rope_theta = 1e5 + 1e-4; /* less than a float holds */
    assert_int_equal(kvc_model_match(&meta, &s, note, sizeof note, &e), 0);
    assert_non_null(strstr(note, "another kind"));
    assert_non_null(strstr(note, "model.kv-heads"));
    assert_non_null(strstr(note, "tokenizer.sha256"));
    assert_null(strstr(note, "architecture"));
    s.head_dim_v = 32; /* the cache holds no head-dim-v: it equals head-dim */
    assert_int_equal(kvc_model_match(&meta, &s, note, sizeof note, &e), -1);
    assert_non_null(strstr(e.message, "cache: model.head-dim-v 64, weights: 32"));
    s.head_dim_v = 0;
    s.rope_theta = 10000;
    assert_int_equal(kvc_model_match(&meta, &s, note, sizeof note, &e), -1);
    assert_non_null(strstr(e.message, "cache: rope.theta 100000, weights: 10000"));
    s.rope_theta = 0; /* unknown */
    s.tokenizer[0] ^= 1;
    assert_int_equal(kvc_model_match(&meta, &s, note, sizeof note, &e), -1);
    assert_non_null(strstr(e.message, "tokenizer.sha256"));
    kvc_meta_free(&meta);

    /* a session file names its architecture and no more */
    assert_int_equal(kvc_meta_set_text(&meta, KVC_KEY_MODEL_ARCH, "gemma3", &e), 0);
    assert_int_equal(kvc_model_match(&meta, &m, note, sizeof note, &e), -1);
    assert_non_null(strstr(e.message, "cache: model.architecture gemma3, weights: llama"));
    assert_int_equal(kvc_model_match(&meta, &s, note, sizeof note, &e), 0);
    kvc_meta_free(&meta);

    /* only a full fingerprint in the cache, none of the weights */
    struct kvc_model f = m;
    f.has_full = 1;
    memset(f.full, 3, sizeof f.full);
    assert_int_equal(kvc_model_store(&f, &meta, 1, &e), 0);
    kvc_meta_remove(&meta, "model.fingerprint.gguf.sampled");
    assert_int_equal(kvc_model_match(&meta, &f, note, sizeof note, &e), 0);
    assert_string_equal(note, "");
    assert_int_equal(kvc_model_match(&meta, &m, note, sizeof note, &e), 0);
    assert_non_null(strstr(note, "only a full fingerprint"));
    kvc_meta_free(&meta);
}

/* SmolLM2-135M-Instruct as llama.cpp's converter wrote it, when the caller has it. */
static void test_real(void **state) {
    (void)state;
    const char *path = getenv("KVC_TEST_GGUF");
    if (!path || !*path) {
        print_message("SKIPPED: KVC_TEST_GGUF names no GGUF file\n");
        skip();
    }
    struct kvc_model m;
    struct kvc_error e;
    assert_int_equal(kvc_model_read(path, 1, &m, &e), 0);
    assert_string_equal(m.arch, "llama");
    assert_int_equal(m.layers, 30);
    assert_int_equal(m.heads, 9);
    assert_int_equal(m.kv_heads, 3);
    assert_int_equal(m.head_dim, 64);
    assert_int_equal(m.head_dim_v, 64);
    assert_int_equal(m.rope_dim, 64);
    assert_true(m.rope_theta == 100000.0);
    assert_string_equal(m.rope_type, "default");
    assert_int_equal(m.pairing, KVC_PAIRING_INTERLEAVED);
    assert_int_equal(m.window, 0);
    assert_int_equal(m.has_tokenizer, 1);
    assert_hash(m.sampled, "83d186d223f019f5407d7f22a4b5f28cd115f20a0f94a62c9cce559f856942cb");
    assert_hash(m.full, "54fcbd9a4a83d8079e46737c1bf966547cbffd1a805932dfc2a5e5b2cc9597ba");
    assert_hash(m.tokenizer, "3efec3d69a5707fee805b21a2e89f26272df5fc532db811a334dac8eacedae20");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),         cmocka_unit_test(test_facts),
        cmocka_unit_test(test_damaged_gguf), cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_config),       cmocka_unit_test(test_tokenizer_json),
        cmocka_unit_test(test_pairing),      cmocka_unit_test(test_store),
        cmocka_unit_test(test_match),        cmocka_unit_test(test_real),
        cmocka_unit_test(test_find_tensor),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
