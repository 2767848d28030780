/* test_weights.c: projections out of safetensors and GGUF: values, permutation, bias, norm,
 * identity; and K and V rebuilt from the hidden states of real files when $KVC_TEST_DATA is set.
 * Not for files that are refused (test_weights_refused.c). */
#include "weights_support.h"

#include "formats/api/kvc.h"

/* Every float type, safetensors in halves and an interleaved GGUF, to both pairings: same values,
 * same identity. */
static void test_values(void **state) {
    (void)state;
    static const unsigned types[] = {0, 1, 30};
    struct model *hf_model = make_model(KVC_PAIRING_HALVES),
                 *gg_model = make_model(KVC_PAIRING_INTERLEAVED);
    uint8_t first[KVC_SHA256_BYTES], other[KVC_SHA256_BYTES];
    struct tensor t[ALL];
    struct kvc_error e;
    int seen = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        list(t, hf, types[i], hf_model);
        put_safetensors("w.safetensors", "", t, ALL);
        list(t, gg, types[i], gg_model);
        put_gguf("w.gguf", "llama", t, ALL);
        for (int gguf = 0; gguf < 2; gguf++)
            for (int pairs = 0; pairs < 2; pairs++) {
                const char *path = in_folder(gguf ? "w.gguf" : "w.safetensors");
                struct kvc_projection p = load(path, 3, pairs ? &interleaved : &halves);
                assert_non_null(p.k_bias);
                assert_non_null(p.v_bias);
                assert_non_null(p.norm);
                assert_int_equal(p.shape.rotated, DIM);
                assert_values(&p, DIM);
                assert_true(p.norm_epsilon == (gguf ? 1e-5f : 0));
                assert_int_equal(p.norm_bias, 0);
                assert_int_equal(p.k_norm, 0);
                assert_int_equal(kvc_projection_fingerprint(&p, seen++ ? other : first, &e), 0);
                if (seen > 1) assert_memory_equal(first, other, sizeof first);
                kvc_projection_free(&p);
            }
    }
    drop_file("w.safetensors");
    drop_file("w.gguf");
    free(hf_model);
    free(gg_model);
}

/* The identity is the SHA-256 of what weights.h says, byte for byte; every part counts. */
static void test_identity(void **state) {
    (void)state;
    struct model *m = make_model(KVC_PAIRING_HALVES);
    struct tensor t[ALL];
    struct kvc_error e;
    struct bytes *f = calloc(1, sizeof *f);
    uint8_t want[KVC_SHA256_BYTES], have[KVC_SHA256_BYTES];
    float x;
    assert_non_null(f);
    list(t, hf, 30, m);
    for (size_t n = NO_BIAS; n <= ALL; n++) { /* also with one bias alone */
        f->n = 0;
        add(f, "kvc projection 0\n", 17);
        for (size_t i = 0; i < IN; i++)
            for (size_t o = 0; o < OUT; o++) add(f, (x = k_value(o, i), &x), sizeof x);
        add_number(f, n > 2, 1);
        if (n > 2) add(f, m->k_bias, sizeof m->k_bias);
        for (size_t i = 0; i < IN; i++)
            for (size_t o = 0; o < OUT_V; o++) add(f, (x = v_value(o, i), &x), sizeof x);
        add_number(f, n > 3, 1);
        if (n > 3) add(f, m->v_bias, sizeof m->v_bias);
        add_number(f, n > 4, 1);
        if (n > 4) add(f, m->norm, sizeof m->norm);
        assert_int_equal(kvc_sha256(f->b, f->n, want, &e), 0);
        put_safetensors("w.safetensors", "", t, n);
        for (int pairs = 0; pairs < 2; pairs++) {
            struct kvc_projection p = load(in_folder("w.safetensors"), 3,
                                           pairs ? &interleaved : &halves);
            assert_int_equal(kvc_projection_fingerprint(&p, have, &e), 0);
            assert_memory_equal(have, want, sizeof want);
            kvc_projection_free(&p);
        }
    }
    drop_file("w.safetensors");
    free(f);
    free(m);
}

/* Weights that are opened once serve several files, and outlive them. */
static void test_opened_once(void **state) {
    (void)state;
    struct model *m = make_model(KVC_PAIRING_HALVES);
    struct tensor t[ALL];
    struct kvc_error e;
    list(t, hf, 30, m);
    put_safetensors("w.safetensors", "", t, ALL);
    struct kvc_weights *w = kvc_shared_weights_open(in_folder("w.safetensors"), &e);
    if (!w) fail_msg("%s", e.message);
    const struct kvc_open_options o = {.size = sizeof o, .shared_weights = w};
    struct kvc_file *f[2] = {kvc_file_open("samples/tiny.kvc", &o, &e),
                             kvc_file_open("samples/tiny.kvc", &o, &e)};
    for (int i = 0; i < 2; i++) {
        assert_non_null(f[i]);
        assert_int_equal(kvc_file_check(f[i], 1, &e), 0);
        kvc_file_close(f[i]);
    }
    const struct kvc_projection_shape *shape = &halves;
    struct kvc_projection p;
    assert_int_equal(kvc_weights_load(w, 3, shape, &p, &e), 0);
    kvc_projection_free(&p);
    kvc_shared_weights_close(w);
    assert_null(kvc_shared_weights_open("samples/tiny.kvc", &e));
    assert_int_equal(e.need, KVC_NEED_AS_INPUT);
    drop_file("w.safetensors");
    free(m);
}

/* Only the rotated channels of a head are in pairs. */
static void test_partial(void **state) {
    (void)state;
    struct model *m = make_model(KVC_PAIRING_HALVES);
    struct tensor t[ALL];
    list(t, hf, 0, m);
    put_safetensors("w.safetensors", "", t, ALL);
    struct kvc_projection_shape shape = interleaved;
    shape.rotated = 4;
    struct kvc_projection p = load(in_folder("w.safetensors"), 3, &shape);
    assert_values(&p, 4);
    kvc_projection_free(&p);
    shape.rotated = 5;
    assert_refused(in_folder("w.safetensors"), 3, &shape, KVC_ERR_USAGE,
                   "RoPE cannot rotate 5 channels of a head of 8");
    shape.rotated = 10;
    assert_refused(in_folder("w.safetensors"), 3, &shape, KVC_ERR_USAGE, "cannot rotate 10");
    drop_file("w.safetensors");
    free(m);
}

/* Block types: values that the type holds exactly come back exactly. */
static void test_blocks(void **state) {
    (void)state;
    static const struct {
        unsigned type;
        int low, span; /* of x * 8 */
    } blocks[] = {{8, -127, 255}, {2, -8, 16}, {3, -8, 16}};
    float k[OUT * IN], v[OUT_V * IN];
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
        for (size_t i = 0; i < OUT * IN; i++)
            k[i] = (float)(blocks[b].low + (int)(i * 7) % blocks[b].span) / 8;
        for (size_t i = 0; i < OUT_V * IN; i++)
            v[i] = (float)(blocks[b].low + (int)(i * 5) % blocks[b].span) / 8;
        const struct tensor t[] = {{gg[0], blocks[b].type, 2, {OUT, IN}, k},
                                   {gg[1], blocks[b].type, 2, {OUT_V, IN}, v}};
        put_gguf("w.gguf", "qwen2", t, 2); /* an architecture in halves */
        struct kvc_projection p = load(in_folder("w.gguf"), 3, &interleaved);
        assert_null(p.k_bias);
        assert_null(p.v_bias);
        assert_null(p.norm);
        for (size_t o = 0; o < OUT; o++)
            for (size_t i = 0; i < IN; i++)
                assert_true(p.k[i * OUT + in_pairs(o, DIM)] == k[o * IN + i]);
        for (size_t o = 0; o < OUT_V; o++)
            for (size_t i = 0; i < IN; i++) assert_true(p.v[i * OUT_V + o] == v[o * IN + i]);
        kvc_projection_free(&p);
    }
    const struct tensor ragged[] = {{gg[0], 8, 2, {OUT, 40}, NULL}};
    const struct kvc_projection_shape forty = {40, HEADS, DIM, DIM_V, 0, KVC_PAIRING_HALVES};
    put_gguf("w.gguf", "qwen2", ragged, 1);
    assert_refused(in_folder("w.gguf"), 3, &forty, KVC_ERR_DAMAGED,
                   "dimensions that no tensor of q8_0 can have");
    drop_file("w.gguf");
}

/* The prefixes of language models inside others, and a cache that has its weights with it. */
static void test_names(void **state) {
    (void)state;
    static const char *const prefix[] = {"model.", "language_model.model.", "model.language_model.",
                                         ""};
    struct model *m = make_model(KVC_PAIRING_HALVES);
    struct tensor t[ALL];
    for (size_t n = 0; n < sizeof prefix / sizeof prefix[0]; n++) {
        char name[ALL][128];
        list(t, hf, 30, m);
        for (size_t i = 0; i < ALL; i++) {
            snprintf(name[i], sizeof name[i], "%s%s", prefix[n], hf[i] + strlen("model."));
            t[i].name = name[i];
        }
        put_safetensors("w.safetensors", "", t, ALL);
        struct kvc_projection p = load(in_folder("w.safetensors"), 3, &halves);
        assert_values(&p, DIM);
        assert_non_null(p.norm);
        kvc_projection_free(&p);
    }
    const struct tensor own[] = {{"wk.3", 30, 2, {OUT, IN}, m->k},
                                 {"wv.3", 30, 2, {OUT_V, IN}, m->v}};
    put_safetensors("w.safetensors", "\"__metadata__\":{\"rope_pairing\":\"half\"}", own, 2);
    struct kvc_projection p = load(in_folder("w.safetensors"), 3, &halves);
    assert_values(&p, DIM);
    assert_null(p.norm);
    kvc_projection_free(&p);
    free(m);
    m = make_model(KVC_PAIRING_INTERLEAVED);
    const struct tensor paired[] = {{"wk.3", 30, 2, {OUT, IN}, m->k},
                                    {"wv.3", 30, 2, {OUT_V, IN}, m->v}};
    put_safetensors("w.safetensors", "\"__metadata__\":{\"rope_pairing\":\"interleaved\"}", paired,
                    2);
    p = load(in_folder("w.safetensors"), 3, &halves);
    assert_values(&p, DIM);
    kvc_projection_free(&p);
    put_safetensors("w.safetensors", "\"__metadata__\":{\"rope_pairing\":\"odd\"}", paired, 2);
    assert_refused(in_folder("w.safetensors"), 3, &halves, KVC_ERR_UNSUPPORTED,
                   "not known which channels");
    drop_file("w.safetensors");
    free(m);
}

/* What config.json says: epsilon, and an architecture that transformers interleaves, or whose norm
 * is kept less 1. */
static void test_config(void **state) {
    (void)state;
    struct model *m = make_model(KVC_PAIRING_HALVES);
    struct tensor t[ALL];
    list(t, hf, 0, m);
    put_safetensors("model.safetensors", "", t, ALL);
    static const char llama[] = "{\"model_type\":\"llama\",\"rms_norm_eps\":1e-05}";
    put_file("config.json", llama, strlen(llama));
    struct kvc_projection p = load(folder, 3, &halves);
    assert_values(&p, DIM);
    assert_true(p.norm_epsilon == 1e-5f); /* as the GGUF of the same model has it */
    kvc_projection_free(&p);

    static const char gemma[] =
        "{\"model_type\":\"paligemma\",\"text_config\":{\"model_type\":\"gemma2\","
        "\"rms_norm_eps\":1e-6}}";
    put_file("config.json", gemma, strlen(gemma));
    p = load(in_folder("model.safetensors"), 3, &halves);
    assert_true(p.norm_epsilon == 1e-6f);
    for (size_t i = 0; i < IN; i++) assert_true(p.norm[i] == norm_value(i) + 1);
    kvc_projection_free(&p);

    static const char cohere[] = "{\"model_type\":\"cohere\",\"rms_norm_eps\":\"small\"}";
    put_file("config.json", cohere, strlen(cohere));
    p = load(folder, 3, &interleaved);
    assert_true(p.norm_epsilon == 0);
    /* interleaved in the file already */
    for (size_t o = 0; o < OUT; o++) assert_true(p.k[o] == k_value(o, 0));
    kvc_projection_free(&p);

    put_file("config.json", "[]", 2);
    assert_refused(folder, 3, &halves, KVC_ERR_DAMAGED, "config.json: no valid JSON object");
    drop_file("config.json");
    drop_file("model.safetensors");
    free(m);
}

/* Norms that the caller must know of: a bias (LayerNorm), and one of K. */
static void test_norms(void **state) {
    (void)state;
    struct model *m = make_model(KVC_PAIRING_HALVES);
    struct tensor t[ALL + 1];
    list(t, gg, 0, m);
    t[ALL] = (struct tensor){"blk.3.attn_k_norm.weight", 0, 1, {DIM}, m->norm};
    put_gguf("w.gguf", "qwen3", t, ALL + 1);
    struct kvc_projection p = load(in_folder("w.gguf"), 3, &halves);
    assert_int_equal(p.k_norm, 1);
    assert_int_equal(p.norm_bias, 0);
    kvc_projection_free(&p);
    drop_file("w.gguf");
    list(t, hf, 0, m);
    t[ALL] = (struct tensor){"model.layers.3.input_layernorm.bias", 0, 1, {IN}, m->norm};
    put_safetensors("w.safetensors", "", t, ALL + 1);
    p = load(in_folder("w.safetensors"), 3, &halves);
    assert_int_equal(p.k_norm, 0);
    assert_int_equal(p.norm_bias, 1);
    kvc_projection_free(&p);
    t[ALL].name = "model.layers.3.self_attn.k_norm.weight";
    put_safetensors("w.safetensors", "", t, ALL + 1);
    p = load(in_folder("w.safetensors"), 3, &halves);
    assert_int_equal(p.k_norm, 1);
    kvc_projection_free(&p);
    drop_file("w.safetensors");
    free(m);
}

/* K in one shard, V in another: by either name, and by the directory. */
static void test_shards(void **state) {
    (void)state;
    static const char *const st[] = {"w-00001-of-00002.safetensors",
                                     "w-00002-of-00002.safetensors"};
    static const char *const gf[] = {"w-00001-of-00002.gguf", "w-00002-of-00002.gguf"};
    struct model *m = make_model(KVC_PAIRING_HALVES);
    struct tensor t[ALL];
    list(t, hf, 30, m);
    put_safetensors(st[0], "", t, 1);
    put_safetensors(st[1], "", t + 1, ALL - 1);
    list(t, gg, 30, m);
    put_gguf(gf[0], "qwen2", t, 1);
    put_gguf(gf[1], "qwen2", t + 1, ALL - 1);
    for (int i = 0; i < 5; i++) {
        struct kvc_projection p = load(i < 4 ? in_folder(i < 2 ? st[i] : gf[i - 2]) : folder, 3,
                                       &halves);
        assert_values(&p, DIM);
        assert_non_null(p.norm);
        kvc_projection_free(&p);
    }
    assert_refused(in_folder(gf[1]), 4, &halves, KVC_ERR_UNSUPPORTED,
                   "and the other shards: no tensor 'blk.4.attn_k.weight'");
    drop_file(gf[0]);
    assert_refused(in_folder(gf[1]), 3, &halves, KVC_ERR_IO, gf[0]);
    drop_file(gf[1]);
    put_file(st[1], "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    assert_refused(folder, 3, &halves, KVC_ERR_DAMAGED, "GGUF and safetensors");
    drop_file(st[0]);
    drop_file(st[1]);
    assert_refused(folder, 3, &halves, KVC_ERR_UNKNOWN_FORMAT, "no safetensors weights");
    assert_refused(in_folder("absent"), 3, &halves, KVC_ERR_IO, "cannot read the weights");
    free(m);
}

/* ---- real caches with their weights ---- */

/* One bf16 tensor of a safetensors file as doubles; the caller frees. */
static double *real_tensor(const struct kvc_input *in, const json_t *header, const char *name,
                           size_t n) {
    uint64_t data = 8 + get_u64(in->data);
    const json_t *offsets = json_object_get(json_object_get(header, name), "data_offsets");
    uint64_t begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    assert_int_equal(json_integer_value(json_array_get(offsets, 1)), begin + 2 * n);
    double *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)get_u16(in->data + data + begin + 2 * i) << 16;
        float f;
        memcpy(&f, &bits, sizeof f);
        x[i] = (double)f;
    }
    return x;
}

/* Relative difference of K (rotated by RoPE if theta is not 0) or V from a row times the weights.
 */
static double difference(const double *hidden, const float *w, const double *cache, size_t tokens,
                         size_t in, size_t heads, size_t dim, double theta) {
    double off = 0, all = 0;
    double *row = malloc(heads * dim * sizeof *row);
    assert_non_null(row);
    for (size_t t = 0; t < tokens; t++) {
        for (size_t c = 0; c < heads * dim; c++) row[c] = 0;
        for (size_t i = 0; i < in; i++)
            for (size_t c = 0; c < heads * dim; c++)
                row[c] += hidden[t * in + i] * (double)w[i * heads * dim + c];
        for (size_t h = 0; h < heads; h++)
            for (size_t j = 0; theta > 0 && j < dim / 2; j++) {
                double angle = (double)t * pow(theta, -2.0 * (double)j / (double)dim);
                double *a = &row[h * dim + j], *b = a + dim / 2, x = *a, y = *b;
                *a = x * cos(angle) - y * sin(angle);
                *b = x * sin(angle) + y * cos(angle);
            }
        for (size_t h = 0; h < heads; h++)
            for (size_t j = 0; j < dim; j++) {
                double have = row[h * dim + j], want = cache[(h * tokens + t) * dim + j];
                off += (have - want) * (have - want);
                all += want * want;
            }
    }
    free(row);
    return sqrt(off / all);
}

static void test_real(void **state) {
    (void)state;
    const char *data = getenv("KVC_TEST_DATA");
    if (!data) {
        print_message("SKIPPED: KVC_TEST_DATA names no folder of real files\n");
        skip();
    }
    static const struct {
        const char *file;
        size_t layers, tokens, heads;
    } files[] = {{"hidden/smol-mha-512.safetensors", 2, 512, 9},
                 {"hidden/smol-gqa-128.safetensors", 1, 128, 3}};
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
        char path[1024], name[64];
        snprintf(path, sizeof path, "%s/%s", data, files[f].file);
        struct kvc_input in;
        struct kvc_error e;
        assert_int_equal(kvc_input_open(&in, path, &e), 0);
        assert_int_equal(kvc_input_pin(&in, 0, in.size, &e), 0);
        json_t *header = json_loadb((const char *)in.data + 8, (size_t)get_u64(in.data), 0, NULL);
        assert_non_null(header);
        size_t tokens = files[f].tokens, heads = files[f].heads, n = heads * tokens * 64;
        const struct kvc_projection_shape shape = {576, heads, 64, 64, 0, KVC_PAIRING_HALVES};
        for (uint32_t layer = 0; layer < files[f].layers; layer++) {
            struct kvc_projection p = load(path, layer, &shape);
            snprintf(name, sizeof name, "hidden.%" PRIu32, layer);
            double *hidden = real_tensor(&in, header, name, tokens * 576);
            snprintf(name, sizeof name, "layers.%" PRIu32 ".keys", layer);
            double *k = real_tensor(&in, header, name, n);
            snprintf(name, sizeof name, "layers.%" PRIu32 ".values", layer);
            double *v = real_tensor(&in, header, name, n);
            double dk = difference(hidden, p.k, k, tokens, 576, heads, 64, 1e5);
            double dv = difference(hidden, p.v, v, tokens, 576, heads, 64, 0);
            print_message("%s layer %" PRIu32 ": K %.5f, V %.5f\n", files[f].file, layer, dk, dv);
            assert_true(dk < 0.005); /* bf16 rounds to 0.0017 of a value on average */
            assert_true(dv < 0.005);
            free(hidden);
            free(k);
            free(v);
            kvc_projection_free(&p);
        }
        json_decref(header);
        kvc_input_close(&in);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),      cmocka_unit_test(test_identity),
        cmocka_unit_test(test_opened_once), cmocka_unit_test(test_partial),
        cmocka_unit_test(test_blocks),      cmocka_unit_test(test_names),
        cmocka_unit_test(test_config),      cmocka_unit_test(test_norms),
        cmocka_unit_test(test_shards),      cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests_name("weights", tests, make_folder, remove_folder);
}
