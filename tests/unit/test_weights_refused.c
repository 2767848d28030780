/* test_weights_refused.c: files of weights that are refused: shapes, types, damage, ends that are
 * missing. */
#include "weights_support.h"

static void test_shapes(void **state) {
    (void)state;
    struct model *m = make_model(KVC_PAIRING_HALVES);
    struct tensor t[ALL];
    list(t, hf, 30, m);
    put_safetensors("w.safetensors", "", t, ALL);
    const char *path = in_folder("w.safetensors");
    assert_refused(path, 2, &halves, KVC_ERR_UNSUPPORTED,
                   "w.safetensors: no tensor 'model.layers.2.self_attn.k_proj.weight'");
    struct kvc_projection_shape s = halves;
    s.heads = 4;
    assert_refused(path, 3, &s, KVC_ERR_OTHER_MODEL,
                   "w.safetensors: 'model.layers.3.self_attn.k_proj.weight' has shape [24][32], "
                   "but the cache needs "
                   "[32][32]");
    s = halves;
    s.in = 31;
    assert_refused(path, 3, &s, KVC_ERR_OTHER_MODEL, "[24][32], but the cache needs [24][31]");
    s = halves;
    s.dim_v = 8;
    assert_refused(path, 3, &s, KVC_ERR_OTHER_MODEL,
                   "v_proj.weight' has shape [12][32], but the cache needs [24][32]");
    s = halves;
    s.heads = UINT64_C(1) << 61;
    assert_refused(path, 3, &s, KVC_ERR_USAGE, "no projection has");
    s = halves;
    s.dim = 0;
    assert_refused(path, 3, &s, KVC_ERR_USAGE, "no projection has");
    s = halves;
    s.pairing = KVC_PAIRING_UNKNOWN;
    assert_refused(path, 3, &s, KVC_ERR_USAGE, "pairing of the cache's K is unknown");
    s.pairing = KVC_PAIRING_NONE;
    assert_refused(path, 3, &s, KVC_ERR_OTHER_MODEL, "as 'halves', the cache's K as 'none'");

    for (size_t i = 2; i < ALL; i++) { /* vectors of the wrong length or rank */
        struct tensor wrong[ALL];
        memcpy(wrong, t, sizeof t);
        wrong[i].dim[0]--;
        put_safetensors("w.safetensors", "", wrong, ALL);
        assert_refused(path, 3, &halves, KVC_ERR_OTHER_MODEL, wrong[i].name);
        memcpy(wrong, t, sizeof t);
        wrong[i].rank = 2;
        wrong[i].dim[1] = 1;
        put_safetensors("w.safetensors", "", wrong, ALL);
        assert_refused(path, 3, &halves, KVC_ERR_OTHER_MODEL, wrong[i].name);
    }
    put_safetensors("w.safetensors", "", t, 1);
    assert_refused(path, 3, &halves, KVC_ERR_UNSUPPORTED,
                   "no tensor 'model.layers.3.self_attn.v_proj.weight'");
    list(t, gg, 30, m);
    put_gguf("w.gguf", "newmodel", t, ALL);
    assert_refused(in_folder("w.gguf"), 3, &halves, KVC_ERR_UNSUPPORTED, "architecture 'newmodel'");
    position_sections = 16;
    put_gguf("w.gguf", "qwen2", t, ALL);
    position_sections = 0;
    assert_refused(in_folder("w.gguf"), 3, &halves, KVC_ERR_UNSUPPORTED, "architecture 'qwen2'");
    put_gguf("w.gguf", "mpt", t, ALL); /* no RoPE at all */
    s = halves;
    s.pairing = KVC_PAIRING_NONE;
    struct kvc_projection p = load(in_folder("w.gguf"), 3, &s);
    assert_values(&p, DIM);
    kvc_projection_free(&p);
    drop_file("w.safetensors");
    drop_file("w.gguf");
    free(m);
}

static void test_types(void **state) {
    (void)state;
    static const struct {
        unsigned type;
        const char *words;
    } refused[] = {
        {16,
         "w.gguf: 'blk.3.attn_k.weight' has type iq2_xxs (number 16); kvc reads weights in f32, "
         "f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_K to q6_K, iq4_nl and iq4_xs: take"},
        {9, "type q8_1"},
        {15, "type q8_K"},
        {28, "type f64"},
        {39, "type mxfp4"},
        {4, "type unknown (number 4)"},
        {1000, "type unknown (number 1000)"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct tensor t[] = {{gg[0], refused[i].type, 2, {OUT, IN}, NULL}};
        put_gguf("w.gguf", "llama", t, 1);
        assert_refused(in_folder("w.gguf"), 3, &halves, KVC_ERR_UNSUPPORTED, refused[i].words);
    }
    drop_file("w.gguf");
}

/* Headers of safetensors that do not hold together; 16 bytes of data follow each. */
static void test_damaged_safetensors(void **state) {
    (void)state;
    static const struct kvc_projection_shape tiny = {2, 1, 2, 2, 0, KVC_PAIRING_HALVES};
    static const struct {
        const char *entry;
        enum kvc_code code;
        const char *words;
    } bad[] = {
        {"{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,17]}", KVC_ERR_DAMAGED,
         "cut short"},
        {"{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[4,20]}", KVC_ERR_DAMAGED,
         "cut short"},
        {"{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[9223372036854775791,"
         "9223372036854775807]}",
         KVC_ERR_DAMAGED, "cut short"},
        {"{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,0]}", KVC_ERR_DAMAGED,
         "ends before it begins"},
        {"{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0]}", KVC_ERR_DAMAGED,
         "two data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[-16,0]}", KVC_ERR_DAMAGED,
         "no whole numbers"},
        {"{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,16]}", KVC_ERR_DAMAGED,
         "exactly dtype, shape"},
        {"{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,16]}", KVC_ERR_DAMAGED,
         "needs 8 bytes"},
        {"{\"shape\":[2,2],\"data_offsets\":[0,16]}", KVC_ERR_DAMAGED, "dtype"},
        {"[]", KVC_ERR_DAMAGED, "dtype"},
        {"{\"dtype\":\"F32\",\"shape\":[2,-2],\"data_offsets\":[0,16]}", KVC_ERR_DAMAGED,
         "other than counts"},
        {"{\"dtype\":\"F32\",\"shape\":[4611686018427387904,2,2],\"data_offsets\":[0,0]}",
         KVC_ERR_DAMAGED, "overflows 64 bits"},
        {"{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,0]}", KVC_ERR_OTHER_MODEL,
         "has shape [2][0]"},
        {"{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}", KVC_ERR_OTHER_MODEL,
         "has shape []"},
        {"{\"dtype\":\"F32\",\"shape\":[1,1,1,2,2],\"data_offsets\":[0,16]}", KVC_ERR_UNSUPPORTED,
         "5 dimensions"},
        {"{\"dtype\":\"F64\",\"shape\":[2,1],\"data_offsets\":[0,16]}", KVC_ERR_UNSUPPORTED,
         "dtype F64; kvc reads"},
        {"{\"dtype\":\"F8_E4M3\",\"shape\":[2,2],\"data_offsets\":[0,4]}", KVC_ERR_UNSUPPORTED,
         "dtype F8_E4M3"},
        {"{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}", KVC_ERR_UNSUPPORTED,
         "no tensor 'wv.0'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bytes f = {.n = 0};
        char header[256];
        snprintf(header, sizeof header, "{\"wk.0\":%s}", bad[i].entry);
        add_number(&f, strlen(header), 8);
        add(&f, header, strlen(header));
        for (int n = 0; n < 4; n++) add_number(&f, 0, 4);
        put_file("w.safetensors", f.b, f.n);
        assert_refused(in_folder("w.safetensors"), 0, &tiny, bad[i].code, bad[i].words);
    }
    put_file("w.safetensors", "\4\0\0\0\0\0\0\0{\"a}", 12);
    assert_refused(in_folder("w.safetensors"), 0, &tiny, KVC_ERR_DAMAGED, "no valid JSON");
    put_file("w.safetensors", "\377\377\377\377\377\377\377\377{}", 10);
    assert_refused(in_folder("w.safetensors"), 0, &tiny, KVC_ERR_UNKNOWN_FORMAT, "neither a GGUF");
    drop_file("w.safetensors");
}

/* A file cut anywhere is refused, or gives the whole projection; never a crash. */
static void test_cut(void **state) {
    (void)state;
    struct model *m = make_model(KVC_PAIRING_HALVES);
    struct bytes *f = malloc(sizeof *f);
    assert_non_null(f);
    struct tensor t[ALL];
    for (int gguf = 0; gguf < 2; gguf++) {
        const char *name = gguf ? "w.gguf" : "w.safetensors";
        list(t, gguf ? gg : hf, 30, m);
        if (gguf) make_gguf(f, "qwen2", t, ALL);
        else make_safetensors(f, "", t, ALL);
        /* the last tensor, which only the end of the file cuts */
        size_t data = f->n - sizeof m->norm;
        for (size_t n = 0; n < f->n; n += n < 1200 || n > data - 8 ? 1 : 97) {
            struct kvc_error e;
            put_file(name, f->b, n);
            struct kvc_weights *w = kvc_weights_open(in_folder(name), &e);
            struct kvc_projection p;
            if (w) assert_int_equal(kvc_weights_load(w, 3, &halves, &p, &e), -1);
            kvc_weights_close(w);
        }
        drop_file(name);
    }
    /* dimensions whose product passes 2^63, or whose bytes pass the file */
    const struct tensor wide[] = {{gg[0], 0, 2, {UINT64_C(1) << 31, UINT64_C(1) << 31}, NULL}};
    const struct kvc_projection_shape shape = {UINT64_C(1) << 31, 1, UINT64_C(1) << 31, 1, 0,
                                               KVC_PAIRING_HALVES};
    put_gguf("w.gguf", "qwen2", wide, 1);
    assert_refused(in_folder("w.gguf"), 3, &shape, KVC_ERR_DAMAGED, "no tensor of f32 can have");
    const struct tensor wider[] = {{gg[0], 1, 2, {UINT64_C(1) << 31, UINT64_C(1) << 31}, NULL}};
    put_gguf("w.gguf", "qwen2", wider, 1);
    assert_refused(in_folder("w.gguf"), 3, &shape, KVC_ERR_DAMAGED, "cut short");
    drop_file("w.gguf");
    free(f);
    free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_damaged_safetensors),
        cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests_name("weights_refused", tests, make_folder, remove_folder);
}
