/* test_lmcache.c: chunks of LMCache in all layouts and wrappings, pages of HiCache; what is
 * refused; real files when $KVC_TEST_DATA is set. */
#include "tests/unit/arrays_support.h"

#include "formats/engines/lmcache_chunk.h"
#include "formats/io/bytes.h"


/* 3 layers, K and V, 5 tokens, 2 heads, 4 channels of two bytes; each value says where it belongs.
 */
enum { L = 3, T = 5, H = 2, D = 4, LAYER = 2 * T * H * D, VALUES = L * LAYER, ROOM = 8192 };

static uint16_t value_of(unsigned l, unsigned c, unsigned t, unsigned h, unsigned d) {
    return (uint16_t)((((l * 2 + c) * T + t) * H + h) * D + d);
}

/* Writes the values of layers [first, first + layers) and tokens [token, token + tokens) with the
 * axes in this order. */
static size_t fill(uint8_t *data, const char *order, unsigned first, unsigned layers,
                   unsigned token, unsigned tokens) {
    const unsigned count[5] = {layers, 2, tokens, H, D}, n = layers * 2 * tokens * H * D;
    unsigned axis[5], at[5];
    for (unsigned i = 0; i < 5; i++) axis[i] = (unsigned)(strchr("lcthd", order[i]) - "lcthd");
    for (unsigned v = 0; v < n; v++) {
        unsigned rest = v;
        for (unsigned i = 5; i-- > 0;) {
            at[axis[i]] = rest % count[axis[i]];
            rest /= count[axis[i]];
        }
        put_u16(data + 2 * (size_t)v, value_of(first + at[0], at[1], token + at[2], at[3], at[4]));
    }
    return 2 * (size_t)n;
}

/* All rows of a cache are those of layers [first, first + n_layers), whatever its number of heads.
 */
static void assert_values(const struct kvc_cache *c, unsigned first, unsigned layers) {
    assert_int_equal(c->n_layers, layers);
    for (unsigned l = 0; l < layers; l++)
        for (unsigned k = 0; k < 2; k++) {
            size_t n;
            uint8_t *rows = read_all(c, c->layer[l].tensor[k], &n);
            assert_int_equal(n, 2 * T * H * D);
            for (unsigned i = 0; i < T * H * D; i++)
                assert_int_equal(get_u16(rows + 2 * i),
                                 value_of(first + l, k, i / (H * D), i / D % H, i % D));
            free(rows);
        }
}

struct file {
    uint8_t data[ROOM];
    size_t n;
};

/* The header of FSConnector; dtype 2 is f16. */
static void put_header(struct file *f, uint32_t length, uint32_t fmt, uint32_t dtype, uint32_t s0,
                       uint32_t s1, uint32_t s2, uint32_t s3) {
    const uint32_t word[7] = {length, fmt, dtype, s0, s1, s2, s3};
    for (int i = 0; i < 7; i++) put_u32(f->data + 4 * i, word[i]);
    f->n = 28 + length;
}

static struct file chunk_file(enum kvc_lmcache_layout layout) {
    struct file f;
    const struct kvc_lmcache_layout_info *info = &kvc_lmcache_layouts[layout];
    const unsigned layers = strchr(info->sizes, 'l') ? L : 1;
    const size_t n = fill(f.data + 28, info->order, 0, layers, 0, T);
    switch (layout) {
    case KVC_LMCACHE_T2D: put_header(&f, (uint32_t)n, 2, 2, T, 2, H * D, 0); break;
    case KVC_LMCACHE_2TD: put_header(&f, (uint32_t)n, 3, 2, 2, T, H * D, 0); break;
    case KVC_LMCACHE_FUSED: put_header(&f, (uint32_t)n, 1, 2, 1, L, T, 2 * H * D); break;
    default: put_header(&f, (uint32_t)n, 1, 2, 2, L, T, H * D);
    }
    return f;
}

static const struct kvc_import_options fused = {.format = "lmcache:fmt=fused,heads=2,first=7"};

static void test_layouts(void **state) {
    (void)state;
    static const enum kvc_lmcache_layout all[] = {KVC_LMCACHE_2LTD, KVC_LMCACHE_T2D,
                                                  KVC_LMCACHE_2TD, KVC_LMCACHE_FUSED};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const int is_fused = all[i] == KVC_LMCACHE_FUSED;
        struct file f = chunk_file(all[i]);
        struct kvc_input in;
        struct kvc_error e;
        struct kvc_cache *c = import_bytes(&kvc_format_lmcache, &in, f.data, f.n,
                                           is_fused ? &fused : NULL);
        assert_values(c, 0, strchr(kvc_lmcache_layouts[all[i]].sizes, 'l') ? L : 1);
        assert_source_is(c, f.data, f.n);
        assert_int_equal(c->meta.facts.heads_unknown, !is_fused);
        assert_int_equal(c->part[0].cells.pos[0], is_fused ? 7 : 0);
        if (!is_fused) assert_int_equal(kvc_cache_set_heads(c, H, &e), 0);
        assert_int_equal(c->tensor[0].shape.heads, H);
        assert_values(c, 0, c->n_layers);
        assert_source_is(c, f.data, f.n);
        assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_ROPE_PAIRING, ""), "halves");
        assert_true(kvc_meta_bool(&c->meta, KVC_KEY_ROPE_ASSUMED, 0));
        kvc_cache_free(c);
        kvc_input_close(&in);
        /* the same array without a header */
        char text[128];
        snprintf(text, sizeof text, "lmcache:dtype=f16,heads=2,dim=4,fmt=%s,layers=%u",
                 kvc_lmcache_layouts[all[i]].name,
                 strchr(kvc_lmcache_layouts[all[i]].sizes, 'l') ? L : 1u);
        const struct kvc_import_options o = {.format = text};
        c = import_bytes(&kvc_format_lmcache, &in, f.data + 28, f.n - 28, &o);
        assert_values(c, 0, c->n_layers);
        assert_source_is(c, f.data + 28, f.n - 28);
        assert_false(c->meta.facts.heads_unknown);
        kvc_cache_free(c);
        kvc_input_close(&in);
    }
}

static void test_latent(void **state) {
    (void)state;
    struct file f;
    struct kvc_input in;
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < 60; k++) f.data[28 + k] = (uint8_t)k;
        if (i) put_header(&f, 60, 6, 3, 6, 5, 0, 0);
        else put_header(&f, 60, 6, 3, 1, 2, 3, 5);
        struct kvc_cache *c = import_bytes(&kvc_format_lmcache, &in, f.data, f.n, NULL);
        assert_int_equal(c->n_layers, i ? 1 : 2);
        assert_int_equal(c->n_tensors, c->n_layers);
        assert_int_equal(c->layer[0].kind, KVC_LAYER_LATENT);
        assert_int_equal(c->tensor[0].role, KVC_ROLE_LATENT);
        assert_int_equal(c->tensor[0].shape.dim, 5);
        assert_source_is(c, f.data, f.n);
        if (!i) assert_round_trip(&kvc_format_lmcache, c, NULL);
        if (!i) assert_round_trip(&kvc_format_lmcache_gds, c, NULL);
        kvc_cache_free(c);
        kvc_input_close(&in);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t word[7];
        size_t n; /* of data */
        enum kvc_code code;
        const char *words;
    } bad[] = {
        {{23, 1, 2, 2, 1, 1, 6}, 24, KVC_ERR_DAMAGED, "cut short"},
        {{24, 1, 2, 2, 1, 1, 6}, 23, KVC_ERR_DAMAGED, "cut short"},
        {{24, 1, 2, 2, 1, 1, 7}, 24, KVC_ERR_DAMAGED, "shape makes 28"},
        {{24, 1, 2, 2, 1, 0, 6}, 24, KVC_ERR_DAMAGED, "is 0"},
        {{24, 1, 99, 2, 1, 1, 6}, 24, KVC_ERR_DAMAGED, "dtype 99"},
        {{24, 1, 0, 2, 1, 1, 6}, 24, KVC_ERR_DAMAGED, "dtype 0"},
        {{24, 1, 5, 2, 1, 1, 1}, 24, KVC_ERR_UNSUPPORTED, "float64"},
        {{24, 1, 2, 2, 1, UINT32_MAX, 6}, 24, KVC_ERR_DAMAGED, "negative"},
        {{24, 1, 2, 2, INT32_MAX, INT32_MAX, INT32_MAX}, 24, KVC_ERR_DAMAGED, "64 bits"},
        {{24, 1, 2, 3, 1, 1, 6}, 24, KVC_ERR_DAMAGED, "2 planes"},
        {{24, 2, 2, 1, 2, 6, 6}, 24, KVC_ERR_DAMAGED, "3 sizes"},
        {{24, 1, 2, 1, 1, 1, 12}, 24, KVC_ERR_UNSUPPORTED, "fmt=fused"},
        {{24, 0, 2, 2, 1, 1, 6}, 24, KVC_ERR_UNSUPPORTED, "UNDEFINED"},
        {{24, 4, 6, 24, 0, 0, 0}, 24, KVC_ERR_UNSUPPORTED, "BINARY"},
        {{24, 5, 6, 24, 0, 0, 0}, 24, KVC_ERR_UNSUPPORTED, "BINARY_BUFFER"},
        {{24, 7, 2, 2, 6, 0, 0}, 24, KVC_ERR_UNSUPPORTED, "EC_TD"},
        {{24, 8, 2, 2, 6, 0, 0}, 24, KVC_ERR_UNSUPPORTED, "HS_TD"},
        {{24, 9, 2, 2, 1, 1, 6}, 24, KVC_ERR_UNSUPPORTED, "does not know"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint8_t data[64] = {0};
        for (int k = 0; k < 7; k++) put_u32(data + 4 * k, bad[i].word[k]);
        refuse_bytes(&kvc_format_lmcache, data, 28 + bad[i].n, NULL, bad[i].code, bad[i].words);
    }
    static const uint32_t groups[12] = {20, 1, 6, 2, 1, 1, 2, 6, 2, 1, 2, 4};
    uint8_t data[68] = {0};
    for (int k = 0; k < 12; k++) put_u32(data + 4 * k, groups[k]);
    refuse_bytes(&kvc_format_lmcache, data, sizeof data, NULL, KVC_ERR_UNSUPPORTED, "2 groups");
}

static void test_options(void **state) {
    (void)state;
    static const struct {
        const char *format, *words;
    } bad[] = {
        {"lmcache:dtype=f16", "needs its geometry"},
        {"lmcache:dtype=f16,layers=3,dim=4", "needs its geometry"},
        {"lmcache:dtype=q8_0,layers=3,heads=2,dim=4", "no type of LMCache"},
        {"lmcache:dtype=f16,layers=3,heads=2,dim=4,fmt=x", "not one of"},
        {"lmcache:dtype=f16,layers=3,heads=2,dim=4,fmt=t2d", "one layer"},
        {"lmcache:dtype=f16,layers=3,heads=2,dim=4,tokens=4", "makes 384 bytes, but there are 480"},
        {"lmcache:dtype=f16,layers=7,heads=2,dim=4", "in whole tokens"},
        {"lmcache:dtype=f32,layers=65536,heads=4294967295,dim=4294967295", "64 bits"},
    };
    const struct file f = chunk_file(KVC_LMCACHE_2LTD);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct kvc_import_options o = {.format = bad[i].format};
        refuse_bytes(&kvc_format_lmcache, f.data + 28, f.n - 28, &o,
                     i == 7 ? KVC_ERR_DAMAGED : KVC_ERR_USAGE, bad[i].words);
    }
    const struct kvc_import_options heads = {.format = "lmcache:heads=3"},
                                    none = {.format = "lmcache:fmt=fused"};
    refuse_bytes(&kvc_format_lmcache, f.data, f.n, &heads, KVC_ERR_USAGE, "not 3 heads");
    const struct file g = chunk_file(KVC_LMCACHE_FUSED);
    refuse_bytes(&kvc_format_lmcache, g.data, g.n, &none, KVC_ERR_UNSUPPORTED, "number of heads");
}

/* --- GDS --- */

static struct file gds_file(const char *entry, size_t n) {
    struct file f;
    memset(f.data, ' ', 4096);
    put_u64(f.data, 4088);
    memcpy(f.data + 8, entry, strlen(entry));
    for (size_t i = 0; i < n; i++) f.data[4096 + i] = (uint8_t)i;
    f.n = 4096 + n;
    return f;
}

static void test_gds(void **state) {
    (void)state;
    static const struct {
        const char *entry;
        size_t n;
        enum kvc_code code;
        const char *words;
    } bad[] = {
        {"{\"kvcache\":{\"dtype\":\"F16\",\"shape\":[2,1,1,6],\"data_offsets\":[0,24],\"fmt\":1}}",
         23, KVC_ERR_DAMAGED, "cut short"},
        {"{\"kvcache\":{\"dtype\":\"F16\",\"shape\":[2,1,1,6],\"data_offsets\":[0,24],\"fmt\":1}}",
         25, KVC_ERR_DAMAGED, "appended"},
        {"{\"kvcache\":{\"dtype\":\"F16\",\"shape\":[2,1,1,7],\"data_offsets\":[0,24],\"fmt\":1}}",
         24, KVC_ERR_DAMAGED, "shape makes"},
        {"{\"kvcache\":{\"dtype\":\"F16\",\"shape\":[2,1,1,6],\"data_offsets\":[0,24]}}", 24,
         KVC_ERR_DAMAGED, "memory format"},
        {"{\"kvcache\":{\"dtype\":\"F16\",\"shape\":[2,1,1,-6],\"data_offsets\":[0,24],\"fmt\":1}}",
         24, KVC_ERR_DAMAGED, "counts"},
        {"{\"kvcache\":{\"dtype\":\"F16\",\"shape\":[2,1,1,1,6],\"data_offsets\":[0,24],\"fmt\":1}"
         "}",
         24, KVC_ERR_DAMAGED, "more than 4"},
        {"{\"kvcache\":{\"dtype\":\"F16\",\"data_offsets\":[0,24],\"fmt\":1}}", 24, KVC_ERR_DAMAGED,
         "must have"},
        {"{\"kvcache\":{\"dtype\":\"I64\",\"shape\":[2,1,1,6],\"data_offsets\":[0,24],\"fmt\":1}}",
         24, KVC_ERR_UNSUPPORTED, "I64"},
        {"{\"kvcache\":{\"dtype\":\"F16\",\"shape\":[2,1,1,6],\"data_offsets\":[0,24],\"fmt\":4}}",
         24, KVC_ERR_UNSUPPORTED, "BINARY"},
        {"{\"kvcache\":{\"dtype\":\"F16\",\"shape\":[2,1,1,6],\"shapes\":[],\"data_offsets\":[0,24]"
         ",\"fmt\":1}}",
         24, KVC_ERR_UNSUPPORTED, "groups"},
        {"{\"kvcache\":{},\"kvcache\":{}}", 24, KVC_ERR_UNKNOWN_FORMAT, "JSON"},
        {"{\"kvcache\":{},\"other\":{}}", 24, KVC_ERR_UNKNOWN_FORMAT, "no array"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct file f = gds_file(bad[i].entry, bad[i].n);
        refuse_bytes(&kvc_format_lmcache_gds, f.data, f.n, NULL, bad[i].code, bad[i].words);
    }
    struct file f = gds_file("{\"kvcache\":{\"dtype\":\"F8E5M2\",\"shape\":[2,1,2,6],\"data_"
                             "offsets\":[0,24],\"fmt\":1,\"x\":[]}}",
                             24);
    struct kvc_input in;
    struct kvc_cache *c = import_bytes(&kvc_format_lmcache_gds, &in, f.data, f.n, NULL);
    assert_int_equal(c->tensor[0].shape.dtype, KVC_F8E5M2);
    assert_source_is(c, f.data, f.n);
    kvc_cache_free(c);
    kvc_input_close(&in);
    mutate(&kvc_format_lmcache_gds, f.data, f.n, 100, 1);
}

/* --- several files --- */

struct members {
    struct kvc_bundle bundle;
    struct kvc_member member[3];
    struct kvc_input in[3];
};

static void bundle_of(struct members *m, size_t n, const char *const *name, const struct file *f) {
    memset(m, 0, sizeof *m);
    m->bundle = (struct kvc_bundle){.name = "bundle", .n = n, .member = m->member};
    for (size_t i = 0; i < n; i++) {
        kvc_input_memory(&m->in[i], name[i], f[i].data, f[i].n);
        m->member[i] = (struct kvc_member){.name = (char *)(uintptr_t)name[i],
                                           .size = f[i].n,
                                           .in = &m->in[i]};
    }
}

/* Reads all literals, whose order shows in the extents of the members. */
static void assert_members(const struct kvc_cache *c, const struct members *m) {
    uint64_t size[3] = {0};
    assert_int_equal(c->n_members, m->bundle.n);
    for (uint64_t i = 0; i < c->n_extents; i++) size[c->extent[i].member] += c->extent[i].size;
    for (size_t i = 0; i < m->bundle.n; i++) assert_int_equal(size[i], m->bundle.member[i].size);
}

static struct file layer_file(unsigned layer) {
    struct file f;
    put_header(&f, (uint32_t)fill(f.data + 28, "ltchd", layer, 1, 0, T), 2, 2, T, 2, H * D, 0);
    return f;
}

static void refuse_members(const struct members *m, const char *format, const char *words) {
    struct kvc_error e = {.code = KVC_OK};
    const struct kvc_import_options o = {.format = format};
    assert_null(kvc_import(&m->bundle, &o, NULL, &e));
    if (!strstr(e.message, words)) fail_msg("%s", e.message);
}

static void test_layers(void **state) {
    (void)state;
    static const char *const keys[] = {"org-SEP-m@4@1@ab@half@10.data",
                                       "org-SEP-m@4@1@ab@half@2.data", "notes"};
    static const char *const twice[] = {"a/m@1@0@ab@half@2.data", "b/m@1@0@ab@half@2.data"};
    static const char *const chunks[] = {"m@1@0@ab@half@2.data", "m@1@0@ac@half@3.data"};
    static const char *const plain[] = {"b.data", "a.data"};
    const struct file file[] = {layer_file(1), layer_file(0), {.data = "hello", .n = 5}};
    struct members m;
    struct kvc_error e;
    const struct kvc_format *format;
    bundle_of(&m, 3, keys, file);
    struct kvc_cache *c = kvc_import(&m.bundle, NULL, &format, &e);
    if (!c) fail_msg("%s", e.message);
    assert_ptr_equal(format, &kvc_format_lmcache);
    assert_values(c, 0, 2); /* in the order of their keys */
    assert_int_equal(c->layer[0].index, 2);
    assert_int_equal(c->layer[1].index, 10);
    assert_true(kvc_meta_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, 0));
    assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_MODEL_NAME, ""), "org/m");
    assert_int_equal(c->meta.facts.shard_rank, 1);
    assert_int_equal(c->meta.facts.shard_ranks, 4);
    assert_members(c, &m);
    kvc_cache_free(c);
    bundle_of(&m, 2, twice, file);
    refuse_members(&m, "lmcache", "two files hold layer 2");
    bundle_of(&m, 2, chunks, file);
    refuse_members(&m, "lmcache", "several chunks");
    const struct file reversed[] = {file[1], file[0]};
    bundle_of(&m, 2, plain, reversed);
    c = kvc_import(&m.bundle, NULL, NULL, &e);
    assert_non_null(c);
    assert_values(c, 0, 2); /* in the order of the files */
    assert_false(kvc_meta_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, 1));
    kvc_cache_free(c);
    const struct file whole[] = {chunk_file(KVC_LMCACHE_2LTD), file[0]};
    bundle_of(&m, 2, plain, whole);
    refuse_members(&m, "lmcache", "order of chunks");
    struct file shorter[] = {layer_file(0), layer_file(1)};
    put_header(&shorter[1], 2 * 2 * H * D, 2, 2, 1, 2, H * D, 0);
    bundle_of(&m, 2, plain, shorter);
    refuse_members(&m, "lmcache", "tokens");
}

static void test_gds_members(void **state) {
    (void)state;
    static const char *const names[] = {"d/m%401%400%40ab%40half.kvcache.safetensors",
                                        "d/m%401%400%40ab%40half.kvcache.safetensors.metadata"};
    static const char *const two[] = {"a.safetensors", "b.safetensors"};
    const char *entry =
        "{\"kvcache\":{\"dtype\":\"U8\",\"shape\":[2,1,2,6],\"data_offsets\":[0,24],\"fmt\":1}}";
    struct file file[] = {gds_file(entry, 24), gds_file(entry, 0)};
    struct members m;
    struct kvc_error e;
    const struct kvc_format *format;
    bundle_of(&m, 2, names, file);
    struct kvc_cache *c = kvc_import(&m.bundle, NULL, &format, &e);
    if (!c) fail_msg("%s", e.message);
    assert_ptr_equal(format, &kvc_format_lmcache_gds);
    assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_MODEL_NAME, ""), "m");
    assert_members(c, &m);
    kvc_cache_free(c);
    file[1].data[100] = 'x';
    refuse_members(&m, "lmcache-gds", "differs from the header");
    const struct file same[] = {file[0], file[0]};
    bundle_of(&m, 2, two, same);
    refuse_members(&m, "lmcache-gds", "several chunks");
}

static void test_keys(void **state) {
    (void)state;
    static const struct {
        const char *name, *model;
        int layer;
    } keys[] = {
        {"/x/a-SEP-b@8@3@-1f@fp8_e4m3fn.data", "a/b", -1},
        {"m@1@0@ab@half@31@tag%1.pt", "m", 31},
        {"m@0x02010201@0@ab12.data", "m", -1},
        {"a%2Fb%401%400%40ab%40half.weka1", "a/b", -1},
        {"vllm@-models-m@1@0@ab.pt", "-models-m", -1},
        {"m@1@0@ab.data", NULL, 0},
        {"m@1@x@ab@half.data", NULL, 0},
        {"@1@0@ab@half.data", NULL, 0},
        {"chunk.data", NULL, 0},
        {"m@1@0@xy@half.data", NULL, 0},
        {"m@1@0@ab@Half.data", NULL, 0},
        {"m@1111111111@0@ab@half", NULL, 0},
        {"a\nb@1@0@ab@half", NULL, 0},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct kvc_lmcache_key key;
        assert_int_equal(kvc_lmcache_key_of(&key, keys[i].name), keys[i].model != NULL);
        if (!keys[i].model) continue;
        assert_string_equal(key.model, keys[i].model);
        assert_int_equal(key.has_layer, keys[i].layer >= 0);
        if (key.has_layer) assert_int_equal(key.layer, keys[i].layer);
    }
}

/* --- pages --- */

static void test_pages(void **state) {
    (void)state;
    static const struct {
        const char *layout, *order;
    } layouts[] = {{"layer_first", "clthd"},
                   {"page_first", "ctlhd"},
                   {"page_first_direct", "clthd"},
                   {"page_head", "chtld"}};
    static const char *const names[] = {"1.bin", "0.bin"};
    for (size_t i = 0; i < 4; i++) {
        char text[128];
        struct kvc_error e;
        struct members m;
        struct file whole;
        const size_t n = fill(whole.data, layouts[i].order, 0, L, 0, T);
        whole.n = n;
        snprintf(text, sizeof text,
                 "hicache:layout=%s,dtype=f16,layers=3,heads=2,dim=4,page=5,first=10",
                 layouts[i].layout);
        const struct kvc_import_options o = {.format = text};
        struct kvc_input in;
        struct kvc_cache *c = import_bytes(&kvc_format_hicache, &in, whole.data, whole.n, &o);
        assert_values(c, 0, L);
        assert_int_equal(c->part[0].cells.pos[4], 14);
        assert_source_is(c, whole.data, whole.n);
        kvc_cache_free(c);
        kvc_input_close(&in);
        /* two pages of two tokens, the rest of the values unused */
        struct file page[2];
        for (unsigned k = 0; k < 2; k++)
            page[k].n = fill(page[k].data, layouts[i].order, 0, L, 2 * k, 2);
        bundle_of(&m, 2, names, page);
        snprintf(text, sizeof text, "hicache:layout=%s,dtype=f16,layers=3,heads=2,dim=4,page=2",
                 layouts[i].layout);
        if (!(c = kvc_import(&m.bundle, &o, NULL, &e))) fail_msg("%s", e.message);
        assert_members(c, &m);
        for (unsigned t = 0; t < c->n_tensors; t++) {
            size_t size;
            uint8_t *rows = read_all(c, t, &size);
            assert_int_equal(size, 2 * 4 * H * D);
            for (unsigned v = 0; v < 4 * H * D; v++)
                assert_int_equal(get_u16(rows + 2 * v),
                                 value_of(c->tensor[t].layer, c->tensor[t].role == KVC_ROLE_V,
                                          v / (H * D), v / D % H, v % D));
            free(rows);
        }
        kvc_cache_free(c);
    }
    static const struct {
        const char *format, *words;
    } bad[] = {
        {"hicache:layout=page_head", "needs the geometry"},
        {"hicache:layout=x,dtype=f16,layers=3,heads=2,dim=4,page=5", "not one of"},
        {"hicache:layout=page_head,dtype=q4_0,layers=3,heads=2,dim=4,page=5", "no type"},
        {"hicache:layout=page_head,dtype=f16,layers=3,heads=2,dim=4,page=4", "pages of 384 bytes"},
        {"hicache:layout=page_head,dtype=f16,layers=3,heads=2,dim=8,page=5", "read with latent"},
        {"hicache:layout=page_head,dtype=f16,layers=3,dim=8,page=5,latent", "latents have none"},
        {"hicache:layout=page_first,dtype=f16,layers=3,heads=2,dim=8,page=5,latent", "one head"},
        {"hicache:layout=page_first,dtype=f16,layers=3,dim=8,page=5,latent", "pages of 240 bytes"},
        {"hicache:layout=page_first,dtype=f16,layers=3,dim=8,page=5", "needs the geometry"},
        {"hicache:layout=page_head,dtype=f16,layers=65536,heads=4294967295,dim=4294967295,page=9",
         "64 bits"},
    };
    const uint8_t data[2 * VALUES] = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct kvc_import_options o = {.format = bad[i].format};
        refuse_bytes(&kvc_format_hicache, data, sizeof data, &o, KVC_ERR_USAGE, bad[i].words);
    }
}

/* --- writing --- */

static void test_export(void **state) {
    (void)state;
    static const char *const fmt[] = {"fmt=2ltd", "fmt=fused", "fmt=t2d", "fmt=2td"};
    static const enum kvc_lmcache_layout layout[] = {KVC_LMCACHE_2LTD, KVC_LMCACHE_FUSED,
                                                     KVC_LMCACHE_T2D, KVC_LMCACHE_2TD};
    uint8_t data[2 * VALUES];
    fill(data, "lcthd", 0, L, 0, T);
    for (size_t i = 0; i < 4; i++) {
        const unsigned layers = i < 2 ? L : 1;
        const struct kvc_export_options o = {.own = fmt[i]};
        struct kvc_input in;
        struct kvc_error e;
        struct kvc_buffer b = {0};
        struct kvc_sink out = kvc_sink_buffer(&b);
        struct kvc_cache *c = raw_cache(&in, data, layers * 2 * LAYER, "f16", layers, T, H, D,
                                        KVC_PAIRING_HALVES);
        if (kvc_export(&kvc_format_lmcache, c, &o, &out, &e)) fail_msg("%s", e.message);
        const struct file want = chunk_file(layout[i]);
        assert_int_equal(b.n, want.n);
        assert_memory_equal(b.data, want.data, want.n);
        free(b.data);
        if (i == 1)
            refuse_export(&kvc_format_lmcache, c, &(struct kvc_export_options){.own = "fmt=t2d"},
                          KVC_ERR_USAGE, "one layer");
        if (i == 1)
            refuse_export(&kvc_format_lmcache, c, &(struct kvc_export_options){.own = "fmt=mla"},
                          KVC_ERR_USAGE, "latents");
        kvc_cache_free(c);
        kvc_input_close(&in);
    }
    struct kvc_input in;
    struct kvc_cache *c = raw_cache(&in, data, 2 * VALUES, "i8", L, 2 * T, H, D,
                                    KVC_PAIRING_HALVES);
    refuse_export(&kvc_format_lmcache, c, NULL, KVC_ERR_UNSUPPORTED, "i8");
    struct kvc_buffer b = export_bytes(&kvc_format_lmcache_gds, c);
    assert_memory_equal(b.data + 8,
                        "{\"kvcache\": {\"dtype\": \"I8\", \"shape\": [2, 3, 10, 8], "
                        "\"data_offsets\": [0, 480], \"fmt\": 1, ",
                        87);
    assert_int_equal(b.n, 4096 + 480);
    free(b.data);
    add_part(c, KVC_PART_WINDOW, 0, 9, 2, data);
    refuse_export(&kvc_format_lmcache, c, NULL, KVC_ERR_UNSUPPORTED,
                  "window layers of another length");
    kvc_cache_free(c);
    kvc_input_close(&in);
}

static void test_mutations(void **state) {
    (void)state;
    struct file f = chunk_file(KVC_LMCACHE_2LTD);
    mutate(&kvc_format_lmcache, f.data, f.n, 28, 1);
}

/* --- real files --- */

static void check_real(const char *file) {
    char path[512];
    json_t *index;
    struct kvc_input in;
    struct kvc_error e;
    const json_t *facts = data_facts(file, &index);
    const struct kvc_import_options o = {.kv_heads = 3};
    if (kvc_input_open(&in, data_path(file, path, sizeof path), &e)) fail_msg("%s", e.message);
    struct kvc_cache *c = kvc_import_file(&in, &o, NULL, &e);
    if (!c) fail_msg("%s", e.message);
    assert_facts(c, facts);
    kvc_cache_free(c);
    kvc_input_close(&in);
    json_decref(index);
}

static void test_real(void **state) {
    (void)state;
    check_real("lmcache/fs/HuggingFaceTB-SmolLM2-135M-Instruct@1@0@891a190460f702c@bfloat16.data");
    check_real("lmcache/gds/61/74/"
               "HuggingFaceTB%2FSmolLM2-135M-Instruct%401%400%40891a190460f702c%40bfloat16.kvcache."
               "safetensors");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),   cmocka_unit_test(test_latent),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_options),
        cmocka_unit_test(test_mutations), cmocka_unit_test(test_gds),
        cmocka_unit_test(test_layers),    cmocka_unit_test(test_gds_members),
        cmocka_unit_test(test_keys),      cmocka_unit_test(test_pages),
        cmocka_unit_test(test_export),    cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
