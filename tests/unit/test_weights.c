/* test_weights.c: projections out of safetensors and GGUF: values, permutation, bias, norm,
 * identity, refusals; and K and V rebuilt from the hidden states of real files when $KVC_TEST_DATA
 * is set. */
#include "temp_folder.h"

#include "formats/io/bytes.h"
#include "formats/model/gguf.h"
#include "formats/io/input.h"
#include "formats/model/weights.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- a small model: 3 KV heads, K of 8 channels a head and V of 4, 32 channels in ---- */

enum { IN = 32, HEADS = 3, DIM = 8, DIM_V = 4, OUT = HEADS * DIM, OUT_V = HEADS * DIM_V };

static const struct kvc_projection_shape halves = {IN, HEADS, DIM, DIM_V, 0, KVC_PAIRING_HALVES};
static const struct kvc_projection_shape interleaved = {IN,    HEADS, DIM,
                                                        DIM_V, 0,     KVC_PAIRING_INTERLEAVED};

/* Values that every float type holds: multiples of 1/8 below 2^7 in size with 8 bits; [out][in] as
 * files have them. */
static float k_value(size_t out, size_t in) {
    return (float)((int)((out * 37 + in * 11) % 251) - 125) / 8;
}
static float v_value(size_t out, size_t in) {
    return (float)((int)((out * 53 + in * 29) % 241) - 120) / 8;
}
static float k_bias_value(size_t out) {
    return (float)out - 3.5f;
}
static float v_bias_value(size_t out) {
    return 0.25f * (float)out + 1;
}
static float norm_value(size_t in) {
    return 1 + (float)in / 32;
}

/* Where channel i of a head in halves stands when pairs are interleaved. */
static size_t in_pairs(size_t channel, size_t rotated) {
    size_t i = channel % DIM, head = channel - i;
    if (i >= rotated) return channel;
    return head + (i < rotated / 2 ? 2 * i : 2 * (i - rotated / 2) + 1);
}

/* ---- writing files ---- */

struct tensor {
    const char *name;
    unsigned type; /* ggml's number; safetensors know 0, 1 and 30 of them */
    unsigned rank;
    uint64_t dim[3]; /* outermost first */
    const float *values;
};

struct bytes {
    uint8_t b[65536];
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

static size_t count_of(const struct tensor *t) {
    size_t n = 1;
    for (unsigned i = 0; i < t->rank; i++) n *= (size_t)t->dim[i];
    return n;
}

/* 32 values as a block of a type of ggml: a scale of 1/8 keeps multiples of 1/8 within the type's
 * reach exact. */
static void add_block(struct bytes *f, unsigned type, const float *x) {
    const struct {
        unsigned type;
        int bias, minimum, bits;
    } blocks[] = {{8, 0, 0, 8}, {2, 8, 0, 4}, {3, 0, 1, 4}}, *b = blocks;
    while (b->type != type) b++;
    add_number(f, kvc_float_to_half(0.125f), 2);
    if (b->minimum) add_number(f, kvc_float_to_half(-1), 2); /* q4_1: x = q * 1/8 - 1 */
    uint8_t q[32];
    for (size_t i = 0; i < 32; i++)
        q[i] = (uint8_t)((int)((x[i] + (b->minimum ? 1 : 0)) * 8) + b->bias);
    for (size_t i = 0; i < (b->bits == 8 ? 32u : 16u); i++)
        add_number(f, b->bits == 8 ? q[i] : (uint64_t)(q[i] | q[i + 16] << 4), 1);
}

static void add_values(struct bytes *f, unsigned type, const float *x, size_t n) {
    uint32_t bits;
    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, &x[i], sizeof bits);
        if (type == 0) add_number(f, bits, 4);
        if (type == 1) add_number(f, kvc_float_to_half(x[i]), 2);
        if (type == 30) add_number(f, bits >> 16, 2);
        if (type != 0 && type != 1 && type != 30 && i % 32 == 0) add_block(f, type, x + i);
    }
}

static void make_safetensors(struct bytes *f, const char *metadata, const struct tensor *t,
                             size_t n) {
    char header[4096];
    size_t used = (size_t)snprintf(header, sizeof header, "{%s", metadata), at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = count_of(&t[i]) * (t[i].type ? 2 : 4);
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", used > 1 ? "," : "",
                                 t[i].name,
                                 t[i].type == 0   ? "F32"
                                 : t[i].type == 1 ? "F16"
                                                  : "BF16");
        for (unsigned d = 0; d < t[i].rank; d++)
            used += (size_t)snprintf(header + used, sizeof header - used, "%s%" PRIu64,
                                     d ? "," : "", t[i].dim[d]);
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    header[used++] = '}';
    f->n = 0;
    add_number(f, used, 8);
    add(f, header, used);
    for (size_t i = 0; i < n; i++) add_values(f, t[i].type, t[i].values, count_of(&t[i]));
}

static uint32_t position_sections; /* of the next GGUF: more than 0 is M-RoPE */

static void make_gguf(struct bytes *f, const char *arch, const struct tensor *t, size_t n) {
    char key[128];
    struct bytes *data = calloc(1, sizeof *data);
    assert_non_null(data);
    f->n = 0;
    add(f, "GGUF", 4);
    add_number(f, 3, 4);
    add_number(f, n, 8);
    add_number(f, 3, 8);
    add_string(f, "general.architecture");
    add_number(f, KVC_GGUF_STRING, 4);
    add_string(f, arch);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    add_string(f, key);
    add_number(f, KVC_GGUF_F32, 4);
    const float epsilon = 1e-5f;
    uint32_t bits;
    memcpy(&bits, &epsilon, sizeof bits);
    add_number(f, bits, 4);
    snprintf(key, sizeof key, "%s.rope.dimension_sections", arch);
    add_string(f, key);
    add_number(f, KVC_GGUF_ARRAY, 4);
    add_number(f, KVC_GGUF_I32, 4);
    add_number(f, 4, 8);
    for (int i = 0; i < 4; i++) add_number(f, position_sections, 4);
    for (size_t i = 0; i < n; i++) {
        add_string(f, t[i].name);
        add_number(f, t[i].rank, 4);
        for (unsigned d = t[i].rank; d-- > 0;) add_number(f, t[i].dim[d], 8);
        add_number(f, t[i].type, 4);
        add_number(f, data->n, 8);
        if (t[i].values) add_values(data, t[i].type, t[i].values, count_of(&t[i]));
        else add_number(data, 0, 1);
        while (data->n % 32) add_number(data, 0, 1);
    }
    while (f->n % 32) add_number(f, 0, 1);
    add(f, data->b, data->n);
    free(data);
}

/* The model's tensors, K in `pairing`. */
struct model {
    float k[OUT * IN], v[OUT_V * IN], k_bias[OUT], v_bias[OUT_V], norm[IN];
};

static struct model *make_model(enum kvc_pairing pairing) {
    struct model *m = malloc(sizeof *m);
    assert_non_null(m);
    for (size_t o = 0; o < OUT; o++) {
        size_t row = pairing == KVC_PAIRING_INTERLEAVED ? in_pairs(o, DIM) : o;
        m->k_bias[row] = k_bias_value(o);
        for (size_t i = 0; i < IN; i++) m->k[row * IN + i] = k_value(o, i);
    }
    for (size_t o = 0; o < OUT_V; o++) {
        m->v_bias[o] = v_bias_value(o);
        for (size_t i = 0; i < IN; i++) m->v[o * IN + i] = v_value(o, i);
    }
    for (size_t i = 0; i < IN; i++) m->norm[i] = norm_value(i);
    return m;
}

enum { ALL = 5, NO_NORM = 4, NO_BIAS = 2 }; /* how many of the tensors below a file has */

static const char *const hf[] = {"model.layers.3.self_attn.k_proj.weight",
                                 "model.layers.3.self_attn.v_proj.weight",
                                 "model.layers.3.self_attn.k_proj.bias",
                                 "model.layers.3.self_attn.v_proj.bias",
                                 "model.layers.3.input_layernorm.weight"};
static const char *const gg[] = {"blk.3.attn_k.weight", "blk.3.attn_v.weight", "blk.3.attn_k.bias",
                                 "blk.3.attn_v.bias", "blk.3.attn_norm.weight"};

static void list(struct tensor t[ALL], const char *const *name, unsigned type,
                 const struct model *m) {
    const struct tensor all[ALL] = {{name[0], type, 2, {OUT, IN}, m->k},
                                    {name[1], type, 2, {OUT_V, IN}, m->v},
                                    {name[2], 0, 1, {OUT}, m->k_bias},
                                    {name[3], 0, 1, {OUT_V}, m->v_bias},
                                    {name[4], 0, 1, {IN}, m->norm}};
    memcpy(t, all, sizeof all);
}

static void put_safetensors(const char *file, const char *metadata, const struct tensor *t,
                            size_t n) {
    struct bytes *f = malloc(sizeof *f);
    assert_non_null(f);
    make_safetensors(f, metadata, t, n);
    put_file(file, f->b, f->n);
    free(f);
}
static void put_gguf(const char *file, const char *arch, const struct tensor *t, size_t n) {
    struct bytes *f = malloc(sizeof *f);
    assert_non_null(f);
    make_gguf(f, arch, t, n);
    put_file(file, f->b, f->n);
    free(f);
}

/* ---- reading them ---- */

static struct kvc_projection load(const char *path, uint32_t layer,
                                  const struct kvc_projection_shape *shape) {
    struct kvc_error e = {.message = ""};
    struct kvc_projection p = {.k = NULL};
    struct kvc_weights *w = kvc_weights_open(path, &e);
    if (!w || kvc_weights_load(w, layer, shape, &p, &e)) fail_msg("%s: %s", path, e.message);
    kvc_weights_close(w); /* what was loaded does not need the file */
    return p;
}

/* Opening or loading fails with this code and words. */
static void assert_refused(const char *path, uint32_t layer,
                           const struct kvc_projection_shape *shape, enum kvc_code code,
                           const char *words) {
    struct kvc_error e = {.message = ""};
    struct kvc_projection p;
    struct kvc_weights *w = kvc_weights_open(path, &e);
    if (w) {
        assert_int_equal(kvc_weights_load(w, layer, shape, &p, &e), -1);
        assert_null(p.k);
        assert_null(p.v);
        kvc_weights_close(w);
    }
    if (!strstr(e.message, words)) fail_msg("'%s' is not in: %s", words, e.message);
    assert_int_equal(e.code, code);
}

static void assert_values(const struct kvc_projection *p, size_t rotated) {
    int pairs = p->shape.pairing == KVC_PAIRING_INTERLEAVED;
    for (size_t o = 0; o < OUT; o++)
        for (size_t i = 0; i < IN; i++)
            assert_true(p->k[i * OUT + (pairs ? in_pairs(o, rotated) : o)] == k_value(o, i));
    for (size_t o = 0; o < OUT_V; o++)
        for (size_t i = 0; i < IN; i++) assert_true(p->v[i * OUT_V + o] == v_value(o, i));
    for (size_t o = 0; p->k_bias && o < OUT; o++)
        assert_true(p->k_bias[pairs ? in_pairs(o, rotated) : o] == k_bias_value(o));
    for (size_t o = 0; p->v_bias && o < OUT_V; o++) assert_true(p->v_bias[o] == v_bias_value(o));
    for (size_t i = 0; p->norm && i < IN; i++) assert_true(p->norm[i] == norm_value(i));
}

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
    assert_refused(folder, 3, &halves, KVC_ERR_UNKNOWN, "no safetensors weights");
    assert_refused(in_folder("absent"), 3, &halves, KVC_ERR_IO, "cannot read the weights");
    free(m);
}

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
    assert_refused(path, 3, &s, KVC_ERR_MODEL,
                   "w.safetensors: 'model.layers.3.self_attn.k_proj.weight' has shape [24][32], "
                   "but the cache needs "
                   "[32][32]");
    s = halves;
    s.in = 31;
    assert_refused(path, 3, &s, KVC_ERR_MODEL, "[24][32], but the cache needs [24][31]");
    s = halves;
    s.dim_v = 8;
    assert_refused(path, 3, &s, KVC_ERR_MODEL,
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
    assert_refused(path, 3, &s, KVC_ERR_MODEL, "as 'halves', the cache's K as 'none'");

    for (size_t i = 2; i < ALL; i++) { /* vectors of the wrong length or rank */
        struct tensor wrong[ALL];
        memcpy(wrong, t, sizeof t);
        wrong[i].dim[0]--;
        put_safetensors("w.safetensors", "", wrong, ALL);
        assert_refused(path, 3, &halves, KVC_ERR_MODEL, wrong[i].name);
        memcpy(wrong, t, sizeof t);
        wrong[i].rank = 2;
        wrong[i].dim[1] = 1;
        put_safetensors("w.safetensors", "", wrong, ALL);
        assert_refused(path, 3, &halves, KVC_ERR_MODEL, wrong[i].name);
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
        {14,
         "w.gguf: 'blk.3.attn_k.weight' has type q6_K (number 14); kvc reads weights in f32, f16"},
        {12, "type q4_K"},
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
        {"{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,0]}", KVC_ERR_MODEL,
         "has shape [2][0]"},
        {"{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}", KVC_ERR_MODEL, "has shape []"},
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
    assert_refused(in_folder("w.safetensors"), 0, &tiny, KVC_ERR_UNKNOWN, "neither a GGUF");
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
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_partial),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_damaged_safetensors),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests_name("weights", tests, make_folder, remove_folder);
}
