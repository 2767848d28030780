/* test_safetensors.c: the strict header, the way there and back, real files when $KVC_TEST_DATA is
 * set. */
#include "formats/io/bytes.h"
#include "kernels/kernels.h"
#include "tests/unit/arrays_support.h"

static const struct kvc_format *const format = &kvc_format_safetensors;

struct file {
    uint8_t data[4096];
    size_t n;
};

/* A file of this header and n data bytes that count up. */
static struct file make(const char *header, size_t n) {
    struct file f;
    size_t length = strlen(header);
    assert_true(8 + length + n <= sizeof f.data);
    put_u64(f.data, length);
    memcpy(f.data + 8, header, length);
    for (size_t i = 0; i < n; i++) f.data[8 + length + i] = (uint8_t)i;
    f.n = 8 + length + n;
    return f;
}

#define KV                                                                              \
    "\"layers.0.keys\":{\"dtype\":\"U8\",\"shape\":[1,2,3,4],\"data_offsets\":[4,28]}," \
    "\"layers.0.values\":{\"dtype\":\"U8\",\"shape\":[1,2,3,4],\"data_offsets\":[28,52]}"
#define TOKENS "\"tokens\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}"

static void test_import(void **state) {
    (void)state;
    struct file f =
        make("{\"__metadata__\":{\"rope_theta\":\"1e4\",\"n_heads\":\"6\",\"n_layers\":\"many\","
             "\"k_rope\":\"post\",\"model\":\"M\"}," KV "," TOKENS "}  ",
             52);
    struct kvc_input in;
    struct kvc_cache *c = import_bytes(format, &in, f.data, f.n, NULL);
    assert_int_equal(c->n_layers, 1);
    assert_int_equal(c->n_tokens, 1);
    assert_int_equal(c->tokens[0], 0x03020100);
    size_t n;
    uint8_t *rows = read_all(c, c->layer[0].tensor[0], &n);
    /* token 1 of [H][T][D] from byte 4 on */
    static const uint8_t second_row[8] = {8, 9, 10, 11, 20, 21, 22, 23};
    assert_int_equal(n, 24);
    assert_memory_equal(rows + 8, second_row, 8);
    free(rows);
    assert_source_is(c, f.data, f.n);
    assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_SOURCE_FORMAT, ""), "safetensors");
    assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_ROPE_PAIRING, ""), "halves");
    assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_ROPE_K, ""), "post");
    assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_MODEL_NAME, ""), "M");
    assert_true(kvc_meta_f64(&c->meta, KVC_KEY_ROPE_THETA, 0) == 1e4);
    assert_int_equal(kvc_meta_u64(&c->meta, KVC_KEY_MODEL_HEADS, 0), 6);
    assert_null(kvc_meta_find(&c->meta, KVC_KEY_MODEL_LAYERS));
    kvc_cache_free(c);
    kvc_input_close(&in);
}

static const char *pairing_of(const char *metadata, const struct kvc_import_options *o, char *text,
                              size_t size) {
    char header[512];
    snprintf(header, sizeof header, "{%s" TOKENS "," KV "}", metadata);
    struct file f = make(header, 52);
    struct kvc_input in;
    struct kvc_cache *c = import_bytes(format, &in, f.data, f.n, o);
    snprintf(text, size, "%s", kvc_meta_text(&c->meta, KVC_KEY_ROPE_PAIRING, "unknown"));
    kvc_cache_free(c);
    kvc_input_close(&in);
    return text;
}

static void test_pairing(void **state) {
    (void)state;
    char text[32];
    struct kvc_import_options o = {.pairing = KVC_PAIRING_INTERLEAVED};
    assert_string_equal(pairing_of("", NULL, text, sizeof text), "halves");
    assert_string_equal(pairing_of("\"__metadata__\":{\"rope_pairing\":\"half\"},", NULL, text,
                                   sizeof text),
                        "halves");
    assert_string_equal(pairing_of("\"__metadata__\":{\"rope_pairing\":\"interleaved\"},", NULL,
                                   text, sizeof text),
                        "interleaved");
    assert_string_equal(pairing_of("\"__metadata__\":{\"rope_pairing\":\"unknown\"},", NULL, text,
                                   sizeof text),
                        "unknown");
    assert_string_equal(pairing_of("\"__metadata__\":{\"rope_pairing\":\"half\"},", &o, text,
                                   sizeof text),
                        "interleaved");
    assert_string_equal(pairing_of("\"__metadata__\":{\"architecture\":\"cohere\"},", NULL, text,
                                   sizeof text),
                        "interleaved");
    assert_string_equal(
        pairing_of("\"__metadata__\":{\"architecture\":\"cohere\",\"rope_pairing\":\"half\"},",
                   NULL, text, sizeof text),
        "halves");
}

static void test_strict(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t n;
        enum kvc_code code;
        const char *words;
    } bad[] = {
        {"{" KV "," TOKENS "}", 51, KVC_ERR_DAMAGED, "cut short"},
        {"{" KV "," TOKENS "}", 53, KVC_ERR_DAMAGED, "appended to"},
        {"{" KV "}", 52, KVC_ERR_DAMAGED, "holes"},
        {"{" KV "," TOKENS ",\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}", 52,
         KVC_ERR_DAMAGED, "overlaps"},
        {"{" TOKENS "," TOKENS "}", 4, KVC_ERR_DAMAGED, "JSON"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, KVC_ERR_DAMAGED,
         "counts"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, KVC_ERR_DAMAGED,
         "counts"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, KVC_ERR_DAMAGED,
         "needs 2 bytes"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, KVC_ERR_DAMAGED,
         "ends before"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,2]}}", 1, KVC_ERR_DAMAGED,
         "claims data bytes"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, KVC_ERR_DAMAGED,
         "exactly"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1,
         KVC_ERR_DAMAGED, "exactly"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, KVC_ERR_DAMAGED, "exactly"},
        {"{\"a\":[]}", 0, KVC_ERR_DAMAGED, "exactly"},
        {"{\"a\":{\"dtype\":\"Q9\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, KVC_ERR_DAMAGED,
         "'Q9'"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, KVC_ERR_UNSUPPORTED,
         "F4"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[2305843009213693952,16],\"data_offsets\":[0,0]}}", 0,
         KVC_ERR_DAMAGED, "overflows"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,18446744073709551616]}}", 1,
         KVC_ERR_DAMAGED, "JSON"},
        {"{\"__metadata__\":[]}", 0, KVC_ERR_DAMAGED, "__metadata__"},
        {"{\"__metadata__\":null,\"a\":0}", 0, KVC_ERR_DAMAGED, "'a'"}, /* as none */
        {"{\"__metadata__\":{\"a\":1}}", 0, KVC_ERR_DAMAGED, "is no text"},
        {"{\"a\xff\":{}}", 0, KVC_ERR_DAMAGED, "JSON"},
        {"{} {}", 0, KVC_ERR_DAMAGED, "JSON"},
        {"[]", 0, KVC_ERR_UNKNOWN_FORMAT, "no JSON object"},
        {"{}", 0, KVC_ERR_UNKNOWN_FORMAT, "no arrays"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         KVC_ERR_UNKNOWN_FORMAT, "no array is named"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct file f = make(bad[i].header, bad[i].n);
        refuse_bytes(format, f.data, f.n, NULL, bad[i].code, bad[i].words);
    }
    char deep[3800] = "{\"a\":";
    memset(deep + 5, '[', sizeof deep - 6);
    struct file f = make(deep, 0);
    refuse_bytes(format, f.data, f.n, NULL, KVC_ERR_DAMAGED, "JSON");
    f = make("{" KV "," TOKENS "}", 52);
    put_u64(f.data, f.n - 7);
    refuse_bytes(format, f.data, f.n, NULL, KVC_ERR_DAMAGED, "beyond the end");
    put_u64(f.data, UINT64_C(1) << 62);
    refuse_bytes(format, f.data, f.n, NULL, KVC_ERR_DAMAGED, "at most");
    refuse_bytes(format, f.data, 8, NULL, KVC_ERR_UNKNOWN_FORMAT, "too short");
    refuse_bytes(format, f.data, 0, NULL, KVC_ERR_UNKNOWN_FORMAT, "too short");
}

static void test_mutations(void **state) {
    (void)state;
    struct file f = make("{\"__metadata__\":{\"rope_dim\":\"4\"}," KV "," TOKENS "}", 52);
    mutate(format, f.data, f.n, f.n - 52, 1);
}

static void test_probe(void **state) {
    (void)state;
    char why[128];
    struct kvc_input in;
    struct file f = make("{" KV "}", 0);
    kvc_input_memory(&in, "test", f.data, f.n);
    assert_true(kvc_format_probe(format, &in, why, sizeof why));
    kvc_input_close(&in);
    kvc_input_memory(&in, "test", f.data, 8);
    assert_false(kvc_format_probe(format, &in, why, sizeof why));
    assert_non_null(strstr(why, "short"));
    kvc_input_close(&in);
}

static void test_export(void **state) {
    (void)state;
    struct file f =
        make("{\"__metadata__\":{\"rope_theta\":\"100000.0\",\"rope_dim\":\"4\",\"model\":\"a "
             "\\\"b\\\"\"},"
             "\"queries.1\":{\"dtype\":\"BF16\",\"shape\":[1,4,2,4],\"data_offsets\":[52,116]},"
             "\"hidden.0\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[116,128]}," KV
             "," TOKENS "}",
             128);
    struct kvc_input in, again;
    struct kvc_cache *c = import_bytes(format, &in, f.data, f.n, NULL);
    struct kvc_buffer b = export_bytes(format, c), twice = export_bytes(format, c);
    assert_int_equal(b.n, twice.n);
    assert_memory_equal(b.data, twice.data, b.n);
    assert_int_equal(get_u64(b.data) % 8, 0);
    struct kvc_cache *d = import_bytes(format, &again, b.data, b.n, NULL);
    assert_same_cache(c, d);
    assert_string_equal(kvc_meta_text(&d->meta, KVC_KEY_MODEL_NAME, ""), "a \"b\"");
    assert_true(kvc_meta_f64(&d->meta, KVC_KEY_ROPE_THETA, 0) == 1e5);
    assert_int_equal(kvc_meta_u64(&d->meta, KVC_KEY_ROPE_DIM, 0), 4);
    assert_string_equal(kvc_meta_text(&d->meta, KVC_KEY_ROPE_PAIRING, ""), "halves");
    kvc_cache_free(c);
    kvc_cache_free(d);
    kvc_input_close(&in);
    kvc_input_close(&again);
    free(b.data);
    free(twice.data);
}

/* K that an engine keeps interleaved comes out in halves, V as it is. */
static void test_export_pairing(void **state) {
    (void)state;
    struct kvc_import_options o = {.pairing = KVC_PAIRING_INTERLEAVED};
    struct file f = make("{\"__metadata__\":{\"rope_dim\":\"4\"}," KV "," TOKENS "}", 52);
    struct kvc_input in, again;
    struct kvc_cache *c = import_bytes(format, &in, f.data, f.n, &o);
    struct kvc_buffer b = export_bytes(format, c);
    struct kvc_cache *d = import_bytes(format, &again, b.data, b.n, NULL);
    assert_string_equal(kvc_meta_text(&d->meta, KVC_KEY_ROPE_PAIRING, ""), "halves");
    size_t n;
    uint8_t *k = read_all(d, d->layer[0].tensor[0], &n),
            *v = read_all(d, d->layer[0].tensor[1], &n);
    assert_memory_equal(k, ((uint8_t[]){4, 6, 5, 7}), 4);
    assert_memory_equal(v, ((uint8_t[]){28, 29, 30, 31}), 4);
    free(k);
    free(v);
    kvc_cache_free(c);
    kvc_cache_free(d);
    kvc_input_close(&in);
    kvc_input_close(&again);
    free(b.data);
}

/* The convention is transformers' own for the architecture, unless the caller says otherwise. */
static void test_export_architecture(void **state) {
    (void)state;
    static const uint8_t data[2 * 4] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const struct {
        const char *arch;
        enum kvc_pairing have, asked;
        const char *recorded;
        uint8_t k[4];
    } cases[] = {
        {"llama", KVC_PAIRING_INTERLEAVED, 0, "halves", {0, 2, 1, 3}},
        {"cohere2", KVC_PAIRING_INTERLEAVED, 0, "interleaved", {0, 1, 2, 3}},
        {"cohere2", KVC_PAIRING_HALVES, 0, "interleaved", {0, 2, 1, 3}},
        {"cohere2", KVC_PAIRING_HALVES, KVC_PAIRING_HALVES, "halves", {0, 1, 2, 3}},
        {"mpt", KVC_PAIRING_NONE, 0, "none", {0, 1, 2, 3}},
        {"mpt", KVC_PAIRING_HALVES, 0, "halves", {0, 1, 2, 3}},
        {"llama", KVC_PAIRING_UNKNOWN, 0, "unknown", {0, 1, 2, 3}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvc_input in, again;
        struct kvc_error e;
        struct kvc_buffer b = {0};
        struct kvc_sink out = kvc_sink_buffer(&b);
        struct kvc_export_options o = {.pairing = cases[i].asked};
        struct kvc_cache *c = raw_cache(&in, data, sizeof data, "u8", 1, 1, 1, 4, cases[i].have);
        assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_MODEL_ARCH, cases[i].arch, &e), 0);
        if (kvc_export(format, c, &o, &out, &e)) fail_msg("%s", e.message);
        struct kvc_cache *d = import_bytes(format, &again, b.data, b.n, NULL);
        assert_string_equal(kvc_meta_text(&d->meta, KVC_KEY_ROPE_PAIRING, "unknown"),
                            cases[i].recorded);
        size_t n;
        uint8_t *k = read_all(d, d->layer[0].tensor[0], &n);
        assert_memory_equal(k, cases[i].k, 4);
        free(k);
        free(b.data);
        kvc_cache_free(c);
        kvc_cache_free(d);
        kvc_input_close(&in);
        kvc_input_close(&again);
    }
}

/* A cache of one layer, one head of 32 q8_0 values and one cell. */
static void test_blocks(void **state) {
    (void)state;
    uint8_t raw[2][34];
    for (int k = 0; k < 2; k++) {
        put_u16(raw[k], 0x3800); /* 0.5 */
        for (int i = 0; i < 32; i++) raw[k][2 + i] = (uint8_t)(i - 16 * k);
    }
    const struct kvc_import_options o = {
        .format = "raw:dtype=q8_0,layers=1,tokens=1,heads=1,dim=32"};
    struct kvc_input in, again;
    struct kvc_cache *c = import_bytes(&kvc_format_raw, &in, raw, sizeof raw, &o);
    struct kvc_buffer b = export_bytes(format, c);
    struct kvc_cache *d = import_bytes(format, &again, b.data, b.n, NULL);
    assert_int_equal(d->tensor[0].shape.dtype, KVC_F32);
    assert_null(kvc_meta_find(&d->meta, KVC_KEY_HADAMARD_K)); /* unknown stays unknown */
    assert_null(kvc_meta_find(&d->meta, KVC_KEY_HADAMARD_V));
    for (uint32_t t = 0; t < 2; t++) {
        size_t n;
        uint8_t *rows = read_all(d, d->layer[0].tensor[t], &n);
        assert_int_equal(n, 128);
        for (int i = 0; i < 32; i++) {
            float v;
            memcpy(&v, rows + 4 * i, 4);
            assert_true(v == 0.5f * (float)(i - 16 * (int)t));
        }
        free(rows);
    }
    kvc_cache_free(c);
    kvc_cache_free(d);
    kvc_input_close(&in);
    kvc_input_close(&again);
    free(b.data);
}

/* K and V of one head of 32 values, rotated in tiles of 16, come out rotated back, as float32, and
 * K in halves. */
static void check_rotated(const char *dtype, const void *data, size_t size, float values[2][32]) {
    struct kvc_input in, again;
    struct kvc_error e;
    struct kvc_cache *c = raw_cache(&in, data, size, dtype, 1, 1, 1, 32, KVC_PAIRING_INTERLEAVED);
    assert_int_equal(kvc_meta_set_u64(&c->meta, KVC_KEY_HADAMARD_K, 16, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&c->meta, KVC_KEY_HADAMARD_V, 16, &e), 0);
    struct kvc_buffer b = export_bytes(format, c);
    struct kvc_cache *d = import_bytes(format, &again, b.data, b.n, NULL);
    assert_int_equal(kvc_meta_u64(&d->meta, KVC_KEY_HADAMARD_K, 1), 0);
    assert_int_equal(kvc_meta_u64(&d->meta, KVC_KEY_HADAMARD_V, 1), 0);
    assert_string_equal(kvc_meta_text(&d->meta, KVC_KEY_ROPE_PAIRING, ""), "halves");
    for (unsigned k = 0; k < 2; k++) {
        float want[32];
        size_t n;
        memcpy(want, values[k], sizeof want);
        kvc_hadamard(want, 32, 16);
        assert_int_equal(d->tensor[d->layer[0].tensor[k]].shape.dtype, KVC_F32);
        uint8_t *rows = read_all(d, d->layer[0].tensor[k], &n);
        for (unsigned i = 0; i < 32; i++) {
            unsigned from = k ? i : i < 16 ? 2 * i : 2 * (i - 16) + 1;
            assert_memory_equal(rows + 4 * i, &want[from], 4);
        }
        free(rows);
    }
    kvc_cache_free(c);
    kvc_cache_free(d);
    kvc_input_close(&in);
    kvc_input_close(&again);
    free(b.data);
}

static void test_rotated(void **state) {
    (void)state;
    uint8_t blocks[2][34];
    float values[2][32];
    for (int k = 0; k < 2; k++) {
        put_u16(blocks[k], 0x3c00); /* 1 */
        for (int i = 0; i < 32; i++) {
            values[k][i] = (float)((i * 7 + k) % 11 - 5);
            blocks[k][2 + i] = (uint8_t)((i * 7 + k) % 11 - 5);
        }
    }
    check_rotated("q8_0", blocks, sizeof blocks, values);
    check_rotated("f32", values, sizeof values, values);
}

/* Where it is unknown whether K is rotated, it stays as it is and its pairing too. */
static void test_rotation_unknown(void **state) {
    (void)state;
    uint8_t data[2][34] = {{0, 0x3c, 1, 2, 3, 4}, {0, 0x3c, 5}};
    struct kvc_input in, again;
    struct kvc_export_options o = {.pairing = KVC_PAIRING_HALVES};
    struct kvc_cache *c = raw_cache(&in, data, sizeof data, "q8_0", 1, 1, 1, 32,
                                    KVC_PAIRING_INTERLEAVED);
    struct kvc_buffer b = export_bytes(format, c);
    struct kvc_cache *d = import_bytes(format, &again, b.data, b.n, NULL);
    assert_string_equal(kvc_meta_text(&d->meta, KVC_KEY_ROPE_PAIRING, ""), "interleaved");
    assert_null(kvc_meta_find(&d->meta, KVC_KEY_HADAMARD_K));
    size_t n;
    uint8_t *k = read_all(d, d->layer[0].tensor[0], &n);
    assert_memory_equal(k, ((float[]){1, 2, 3, 4}), 16);
    free(k);
    refuse_export(format, c, &o, KVC_ERR_UNSUPPORTED, "whether K is Hadamard-rotated is unknown");
    kvc_cache_free(c);
    kvc_cache_free(d);
    kvc_input_close(&in);
    kvc_input_close(&again);
    free(b.data);
}

/* --- positions --- */

static uint8_t small[2 * 4 * 4]; /* one layer, 4 tokens, one head of 4 */

static struct kvc_cache *small_cache(struct kvc_input *in) {
    for (size_t i = 0; i < sizeof small; i++) small[i] = (uint8_t)i;
    return raw_cache(in, small, sizeof small, "u8", 1, 4, 1, 4, KVC_PAIRING_HALVES);
}

/* The header of an export names an array; 0 where it does not. */
static int exports(const struct kvc_cache *c, const char *name) {
    struct kvc_buffer b = export_bytes(format, c);
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":{", name);
    int found = memmem(b.data, b.n, quoted, strlen(quoted)) != NULL;
    free(b.data);
    return found;
}

static void begins_at_5(const struct kvc_cache *back) {
    assert_int_equal(kvc_meta_u64(&back->meta, KVC_KEY_TOKENS_FIRST, 0), 5);
}

static void test_positions(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_error e;
    struct kvc_cache *c = small_cache(&in);
    /* arrays are in order of position: nothing to say */
    set_positions(c, 0, (int64_t[]){3, 1, 0, 2});
    assert_false(exports(c, "positions"));
    assert_round_trip(format, c, NULL);
    set_positions(c, 0, (int64_t[]){0, 9, 300, 2});
    assert_true(exports(c, "positions"));
    assert_round_trip(format, c, NULL);
    set_positions(c, 0, (int64_t[]){5, 6, 7, 8});
    assert_int_equal(kvc_cache_set_tokens(c, (int32_t[]){1, 2}, 2, &e), 0);
    assert_int_equal(kvc_meta_set_u64(&c->meta, KVC_KEY_TOKENS_FIRST, 5, &e), 0);
    assert_round_trip(format, c, begins_at_5);
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* llama.cpp's two caches both number their layers from 0; cells out of order come out by position.
 */
static void test_two_caches(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_cache *c = small_cache(&in);
    add_part(c, KVC_PART_WINDOW, 0, 0, 4, small + 8);
    set_positions(c, 1, (int64_t[]){3, 2, 1, 0});
    assert_true(exports(c, "sliding.layers.0.keys"));
    assert_false(exports(c, "sliding.positions"));
    assert_round_trip(format, c, NULL);
    c->part[1].kind = KVC_PART_STATE;
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "recurrent");
    kvc_cache_free(c);
    kvc_input_close(&in);
}

static void test_sliding(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_cache *c = small_cache(&in);
    add_part(c, KVC_PART_WINDOW, 0, 1, 2, small);
    /* the last two, as transformers has them: nothing to say */
    set_positions(c, 1, (int64_t[]){3, 2});
    assert_true(exports(c, "layers.1.keys"));
    assert_false(exports(c, "sliding.positions"));
    assert_round_trip(format, c, NULL);
    set_positions(c, 0, (int64_t[]){4, 5, 7, 9});
    set_positions(c, 1, (int64_t[]){7, 9});
    assert_false(exports(c, "sliding.positions"));
    assert_round_trip(format, c, NULL);
    set_positions(c, 1, (int64_t[]){4, 9});
    assert_true(exports(c, "sliding.positions"));
    assert_round_trip(format, c, NULL);
    add_part(c, KVC_PART_WINDOW, 0, 2, 1, small);
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED,
                  "two arrays would be named sliding.positions");
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* Sliding-window layers that are as long as the live ones, longer, or alone stay what they are. */
static void test_sliding_marked(void **state) {
    (void)state;
    for (uint64_t n = 4; n <= 5; n++) {
        struct kvc_input in;
        struct kvc_cache *c = small_cache(&in);
        add_part(c, KVC_PART_WINDOW, 0, 1, n, small);
        assert_true(exports(c, "sliding.layers.1.keys"));
        assert_int_equal(exports(c, "sliding.positions"), n > 4);
        assert_round_trip(format, c, NULL);
        kvc_cache_free(c);
        kvc_input_close(&in);
    }
    struct kvc_input in;
    struct kvc_cache *c = small_cache(&in);
    c->part[0].kind = KVC_PART_WINDOW;
    c->layer[0].kind = KVC_LAYER_WINDOW;
    set_positions(c, 0, (int64_t[]){6, 7, 8, 9});
    assert_true(exports(c, "sliding.positions"));
    assert_round_trip(format, c, NULL);
    kvc_cache_free(c);
    kvc_input_close(&in);
}

static void test_companions(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_cache *c = small_cache(&in);
    uint32_t part = add_part(c, KVC_PART_COMPANION, 0, 0, 2, small);
    for (uint32_t t = 2; t < 4; t++)
        c->tensor[t].role = t == 2 ? KVC_ROLE_QUERIES : KVC_ROLE_HIDDEN;
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "of other than the last tokens");
    set_positions(c, part, (int64_t[]){2, 3});
    assert_true(exports(c, "queries.0"));
    c->layer[0].part = part; /* nothing but companions */
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "no K or V");
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* --- one sequence a file --- */

static void test_sequences(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_error e;
    struct kvc_cache *c = small_cache(&in);
    assert_true(kvc_cache_add_part(c, KVC_PART_LIVE, 0, &e) == 1);
    c->part[1].stream = 1; /* no cells: no second sequence */
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    free(export_bytes(format, c).data);
    c->part[0].stream = 3; /* the only one that has any */
    assert_true(exports(c, "layers.0.keys"));
    add_part(c, KVC_PART_LIVE, 4, 0, 2, small);
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "the cache holds 2 streams");
    c->part[2].kind = KVC_PART_SNAPSHOT;
    assert_true(exports(c, "layers.0.keys"));
    set_positions(c, 0, (int64_t[]){0, 2, 1, 2});
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "position 2 occurs twice");
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* Cells with further coordinates (M-RoPE) may share a position when they belong to the same
 * sequences. */
static void test_coordinates(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_error e;
    struct kvc_cache *c = small_cache(&in);
    struct kvc_cells *cells = &c->part[0].cells;
    cells->words = malloc(12 * sizeof *cells->words);
    cells->word_at = malloc(5 * sizeof *cells->word_at);
    assert_true(cells->words && cells->word_at);
    for (unsigned i = 0; i < 12; i++) cells->words[i] = i % 3 == 2 ? 0 : i; /* x, y, sequence */
    for (unsigned i = 0; i < 5; i++) cells->word_at[i] = 3 * i;
    set_positions(c, 0, (int64_t[]){0, 1, 1, 1});
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "twice");
    assert_int_equal(kvc_meta_set_u64(&c->meta, KVC_KEY_CELLS_COORDINATES, 2, &e), 0);
    assert_round_trip(format, c, NULL);
    cells->words[8] = 1;
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "position 1 occurs twice");
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* --- real files --- */

static void test_real(void **state) {
    (void)state;
    static const char *const files[] = {"hf/smol-gpl3.safetensors",
                                        "hf/smol-argparse-f16.safetensors",
                                        "hidden/smol-mha-512.safetensors",
                                        "hidden/smol-gqa-128.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        assert_real(format, files[i], NULL, 1);
}

/* MLX names its arrays "layer.0" and "layer.1": known by --map only. */
static void test_mlx(void **state) {
    (void)state;
    static const char *const map[] = {"map=keys={i}.0", "map=values={i}.1", NULL};
    struct kvc_import_options o = {.set = map};
    struct kvc_input in;
    struct kvc_error e;
    open_data(&in, "mlx/smol-32.safetensors");
    assert_null(kvc_format_import(format, &in, NULL, &e));
    assert_int_equal(e.code, KVC_ERR_UNKNOWN_FORMAT);
    assert_non_null(strstr(e.message, "--map='keys={i}.0' --map='values={i}.1'"));
    kvc_input_close(&in);
    assert_real(format, "mlx/smol-32.safetensors", &o, 1);
}

static void test_real_llama(void **state) {
    (void)state;
    static const char *const whole[] = {"llama.cpp/v4-holes.bin", "llama.cpp/v3-gemma-iswa.bin"};
    struct kvc_input in;
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        struct kvc_cache *c = open_real(&in, whole[i]);
        assert_round_trip(format, c, NULL);
        kvc_cache_free(c);
        kvc_input_close(&in);
    }
    struct kvc_cache *c = open_real(&in, "llama.cpp/session-v11-2streams.bin");
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "the cache holds 2 streams");
    kvc_cache_free(c);
    kvc_input_close(&in);
    c = open_real(&in, "llama.cpp/session-v11-unified-2seq.bin");
    refuse_export(format, c, NULL, KVC_ERR_UNSUPPORTED, "position 12 occurs twice");
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* Layer 0's K of a q8_0 slot, exported, is within a hundredth of what transformers computed. */
static void test_real_q8_0(void **state) {
    (void)state;
    struct kvc_input in, theirs, again;
    struct kvc_error e;
    struct kvc_cache *c = open_real(&in, "llama.cpp/v4-q8_0.bin");
    struct kvc_cache *t = open_real(&theirs, "hf/smol-gpl3.safetensors");
    assert_int_equal(kvc_cache_set_heads(c, 3, &e), 0);
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, "interleaved", &e), 0);
    struct kvc_buffer b = export_bytes(format, c);
    struct kvc_cache *d = import_bytes(format, &again, b.data, b.n, NULL);
    size_t n, m, values = 128 * 3 * 64;
    uint8_t *ours = read_all(d, kvc_cache_find_tensor(d, 0, 0, KVC_ROLE_K), &n);
    uint8_t *bf16 = read_all(t, kvc_cache_find_tensor(t, 0, 0, KVC_ROLE_K), &m);
    float *want = malloc(values * sizeof *want);
    assert_true(want && n == values * 4 && m >= values * 2);
    kvc_dtype_info(KVC_BF16)->to_f32(want, bf16, values);
    double difference = 0, size = 0;
    for (size_t i = 0; i < values; i++) {
        float have;
        memcpy(&have, ours + 4 * i, 4);
        difference += ((double)have - (double)want[i]) * ((double)have - (double)want[i]);
        size += (double)want[i] * (double)want[i];
    }
    assert_true(difference < 1e-4 * size);
    free(want);
    free(ours);
    free(bf16);
    free(b.data);
    kvc_cache_free(c);
    kvc_cache_free(d);
    kvc_cache_free(t);
    kvc_input_close(&in);
    kvc_input_close(&again);
    kvc_input_close(&theirs);
}

static void test_damaged(void **state) {
    (void)state;
    char path[512];
    json_t *entry, *index = json_load_file(data_path("index.json", path, sizeof path), 0, NULL);
    size_t i, seen = 0;
    json_array_foreach(json_object_get(index, "files"), i, entry) {
        const char *file = json_string_value(json_object_get(entry, "path"));
        if (strncmp(file, "damaged/bad-st-", 15)) continue;
        struct kvc_input in;
        struct kvc_error e = {.code = KVC_OK};
        open_data(&in, file);
        assert_null(kvc_format_import(format, &in, NULL, &e));
        if (getenv("KVC_TEST_VERBOSE")) print_message("%s: %s\n", file, e.message);
        assert_true(e.code == KVC_ERR_DAMAGED || e.code == KVC_ERR_UNKNOWN_FORMAT);
        kvc_input_close(&in);
        seen++;
    }
    assert_true(seen > 0);
    json_decref(index);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_import),
        cmocka_unit_test(test_pairing),
        cmocka_unit_test(test_strict),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_export),
        cmocka_unit_test(test_export_pairing),
        cmocka_unit_test(test_export_architecture),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_rotated),
        cmocka_unit_test(test_rotation_unknown),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_two_caches),
        cmocka_unit_test(test_sliding),
        cmocka_unit_test(test_sliding_marked),
        cmocka_unit_test(test_companions),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_coordinates),
        cmocka_unit_test(test_real),
        cmocka_unit_test(test_mlx),
        cmocka_unit_test(test_real_llama),
        cmocka_unit_test(test_real_q8_0),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
