/* test_predict.c: prediction across layers, from learning to reading, over caches of an invented
 * model whose layers follow from each other. Not for bytes that are wrong (tests/conformance) or
 * for the kernel (test_kernels.c). */
#include "values_support.h"

#include "tests/quantised.h"
#include "tests/recipe_text.h"

#include "codecs/floats.h"
#include "codecs/little_endian.h"
#include "formats/cache/format.h"
#include "formats/container/container.h"
#include "formats/container/salvage.h"
#include "formats/file/restore.h"
#include "formats/io/safetensors_file.h"
#include "formats/model/predict_source.h"
#include "formats/model/predictor.h"
#include "formats/model/profile_learn.h"
#include "formats/model/profile_state.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 5, HEADS = 2, DIM = 16, WIDTH = HEADS * DIM, HIDDEN = 24, HALF = DIM / 2 };

static uint32_t random_state = 1;

static float random_float(void) { /* about normal */
    float sum = -3;
    for (int i = 0; i < 6; i++) sum += (float)random_bits() * 0x1p-24f;
    return sum;
}

/* A cache as a safetensors file in memory. */
struct file {
    struct kvc_buffer bytes;
    struct kvc_input in;
    struct kvc_cache *cache;
};

static void put(struct kvc_safetensors_writer *w, struct kvc_sink *to, const char *name,
                size_t tokens, const uint16_t *values) {
    const uint64_t dim[4] = {1, HEADS, tokens, DIM};
    struct kvc_error e;
    assert_int_equal(kvc_safetensors_add(w, name, "BF16", dim, 4, &e), 0);
    assert_int_equal(kvc_sink_write(to, values, 2 * WIDTH * tokens, &e), 0);
}

/* the token that all queries of a layer attend to; all 0: the cache has no queries */
static size_t attended_token[LAYERS];
enum { QUERIES = 8 };

/* Adds queries of the last tokens that are K of one token, several times as long. */
static void put_queries(struct kvc_safetensors_writer *w, struct kvc_sink *to, uint32_t layer,
                        const uint16_t *k, size_t tokens) {
    uint16_t query[HEADS * QUERIES * DIM];
    char name[32];
    for (size_t i = 0; i < HEADS * QUERIES * DIM; i++) {
        const size_t head = i / (QUERIES * DIM), d = i % DIM;
        float x;
        kvc_to_floats(&x, (const uint8_t *)(k + (head * tokens + attended_token[layer]) * DIM + d),
                      1, KVC_BF16);
        query[i] = kvc_float_to_bf16(4 * x);
    }
    snprintf(name, sizeof name, "queries.%u", (unsigned)layer);
    put(w, to, name, QUERIES, query);
}

/* Rotates the pairs of a head to a position, as RoPE with base 100 does. */
static void rotate(float *x, size_t position, int interleaved) {
    for (size_t i = 0; i < HALF; i++) {
        const double angle = (double)position * pow(100, -2.0 * (double)i / DIM);
        const float c = (float)cos(angle), s = (float)sin(angle);
        float *a = &x[interleaved ? 2 * i : i], *b = &x[interleaved ? 2 * i + 1 : HALF + i], u = *a,
              v = *b;
        *a = u * c - v * s;
        *b = v * c + u * s;
    }
}

/* Makes a cache of the model: hidden states that change a little from layer to layer, and K and V
 * of them. `seed` is that of the text. */
static void make(struct file *f, uint32_t seed, size_t tokens, int interleaved, uint32_t layers) {
    static float k[LAYERS][WIDTH][HIDDEN], v[LAYERS][WIDTH][HIDDEN];
    float *hidden = malloc(tokens * HIDDEN * sizeof *hidden);
    uint16_t *values = malloc(2 * tokens * WIDTH);
    struct kvc_safetensors_writer w;
    struct kvc_buffer data = {0};
    struct kvc_sink to = kvc_sink_buffer(&data);
    struct kvc_error e;
    random_state = 7;
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < WIDTH; i++)
            for (size_t j = 0; j < HIDDEN; j++)
                k[l][i][j] = random_float(), v[l][i][j] = random_float();
    random_state = seed;
    for (size_t i = 0; i < tokens * HIDDEN; i++) hidden[i] = random_float();
    assert_int_equal(kvc_safetensors_writer_init(&w, &e), 0);
    kvc_safetensors_add_text(&w, "format", "kvc", &e);
    kvc_safetensors_add_text(&w, "rope_pairing", interleaved ? "interleaved" : "half", &e);
    kvc_safetensors_add_text(&w, "rope_theta", "100", &e);
    kvc_safetensors_add_text(&w, "rope_type", "default", &e);
    for (uint32_t l = 0; l < layers; l++)
        for (int is_v = 0; is_v < 2; is_v++) {
            char name[32];
            snprintf(name, sizeof name, "layers.%u.%s", (unsigned)l, is_v ? "values" : "keys");
            for (size_t i = 0; i < tokens * HIDDEN && !is_v; i++)
                hidden[i] += 0.15f * random_float();
            for (size_t t = 0; t < tokens; t++) {
                float row[WIDTH];
                for (size_t i = 0; i < WIDTH; i++) {
                    row[i] = 0.5f + 0.05f * (float)i;
                    for (size_t j = 0; j < HIDDEN; j++)
                        row[i] += (is_v ? v : k)[l][i][j] * hidden[t * HIDDEN + j];
                }
                for (size_t h = 0; h < HEADS; h++) {
                    float head[DIM];
                    /* channels of the model are paired as halves */
                    for (size_t i = 0; i < DIM; i++)
                        head[!interleaved || is_v ? i
                             : i < HALF           ? 2 * i
                                                  : 2 * (i - HALF) + 1] = row[h * DIM + i];
                    if (!is_v) rotate(head, t, interleaved);
                    for (size_t i = 0; i < DIM; i++)
                        values[(h * tokens + t) * DIM + i] = kvc_float_to_bf16(head[i]);
                }
            }
            put(&w, &to, name, tokens, values);
            if (!is_v && attended_token[l]) put_queries(&w, &to, l, values, tokens);
        }
    f->bytes = (struct kvc_buffer){0};
    struct kvc_sink out = kvc_sink_buffer(&f->bytes);
    assert_int_equal(kvc_safetensors_write(&w, &out, &e), 0);
    assert_int_equal(kvc_sink_write(&out, data.data, data.n, &e), 0);
    kvc_safetensors_writer_free(&w);
    kvc_input_memory(&f->in, "made", f->bytes.data, f->bytes.n);
    f->cache = kvc_format_import(&kvc_format_safetensors, &f->in, NULL, &e);
    if (!f->cache) fail_msg("%s", e.message);
    free(hidden);
    free(values);
    free(data.data);
}

static void release(struct file *f) {
    kvc_cache_free(f->cache);
    kvc_input_close(&f->in);
    free(f->bytes.data);
}

/* Learns a profile from two texts. */
static struct kvc_profile *learn(unsigned back, struct kvc_profile *base) {
    struct kvc_error e;
    struct kvc_learner *l = kvc_learner_new(&e);
    struct kvc_buffer bytes = {0};
    struct kvc_sink out = kvc_sink_buffer(&bytes);
    kvc_learner_predict(l, back, base);
    for (uint32_t seed = 100; seed < 102; seed++) {
        struct file f;
        make(&f, seed, 700, seed == 101, LAYERS); /* in both pairings */
        if (kvc_learner_add(l, f.cache, NULL, &e)) fail_msg("%s", e.message);
        release(&f);
    }
    if (kvc_learner_write(l, &out, &e)) fail_msg("%s", e.message);
    struct kvc_profile *p = kvc_profile_open_memory(bytes.data, bytes.n, &e);
    if (!p) fail_msg("%s", e.message);
    kvc_learner_free(l);
    free(bytes.data);
    return p;
}

static struct kvc_profile *profile; /* of one layer back */

static struct kvc_buffer pack(const struct kvc_cache *c, const char *recipe, struct kvc_profile *p,
                              unsigned threads, int embed) {
    const struct kvc_pack_options options = {.recipe = recipe_of(recipe),
                                             .profile = p,
                                             .threads = threads,
                                             .embed_profile = embed};
    struct kvc_buffer bytes = {0};
    struct kvc_sink out = kvc_sink_buffer(&bytes);
    struct kvc_error e;
    if (kvc_container_write(c, &options, &out, NULL, &e)) fail_msg("%s", e.message);
    return bytes;
}

/* Opens a container, and checks all of it. */
static struct kvc_cache *unpack(struct kvc_input *in, const struct kvc_buffer *packed) {
    struct kvc_error e;
    kvc_input_memory(in, "packed", packed->data, packed->n);
    struct kvc_cache *c = kvc_format_import(&kvc_format_kvc, in, NULL, &e);
    if (!c || kvc_container_check(c, 2, &e)) fail_msg("%s", e.message);
    return c;
}

/* Reads a tensor whole, or from row `first` on. */
static uint8_t *read_rows(const struct kvc_cache *c, uint32_t t, uint64_t first,
                          struct kvc_error *e) {
    const uint64_t n = c->tensor[t].shape.tokens - first;
    uint8_t *rows = malloc((size_t)(n * kvc_row_bytes(&c->tensor[t].shape)));
    if (!c->read(c, t, first, n, rows, e)) return rows;
    free(rows);
    return NULL;
}

static void same_rows(const struct kvc_cache *a, const struct kvc_cache *b, uint32_t t,
                      uint64_t first) {
    struct kvc_error e = {.code = KVC_OK};
    uint8_t *x = read_rows(a, t, first, &e), *y = read_rows(b, t, first, &e);
    if (!x || !y) fail_msg("%s", e.message);
    assert_memory_equal(x, y,
                        (size_t)((a->tensor[t].shape.tokens - first) *
                                 kvc_row_bytes(&a->tensor[t].shape)));
    free(x);
    free(y);
}

/* --- learning --- */

static void what_is_learnt(void **state) {
    (void)state;
    struct kvc_error e;
    const struct kvc_predictor *p;
    assert_true(kvc_profile_predicts(profile));
    assert_int_equal(kvc_profile_predictor(profile, 0, KVC_ROLE_K, KVC_PAIRING_HALVES, &p, &e), 0);
    assert_null(p);
    for (uint32_t l = 0; l <= LAYERS; l++)
        for (int is_v = 0; is_v < 2; is_v++) {
            const unsigned due = l == LAYERS ? 0 : (l ? 2u : 0u) + (unsigned)is_v;
            assert_int_equal(kvc_profile_predictor(profile, l, is_v ? KVC_ROLE_V : KVC_ROLE_K,
                                                   KVC_PAIRING_HALVES, &p, &e),
                             0);
            assert_int_equal(p ? p->n : 0, due);
            if (!p) continue;
            assert_int_equal(p->matrix.outputs, WIDTH);
            assert_int_equal(p->matrix.inputs, due * WIDTH);
            for (unsigned i = 0; i < p->n; i++) {
                assert_int_equal(p->input[i].layer, i < 2 && l ? l - 1 : l);
                assert_int_equal(p->input[i].is_v, i < 2 && l ? i : 0);
                assert_int_equal(p->input[i].at, i * WIDTH);
            }
        }
    /* with a base: the rest of the base stays, and the predictors are the same */
    struct kvc_profile *none = learn(0, NULL), *added = learn(1, none);
    size_t n[2];
    assert_false(kvc_profile_predicts(none));
    assert_true(kvc_profile_predicts(added));
    assert_string_equal(kvc_profile_text(added, "made"), kvc_profile_text(none, "made"));
    const struct kvc_predictor *q;
    assert_int_equal(kvc_profile_predictor(profile, 3, KVC_ROLE_V, KVC_PAIRING_HALVES, &p, &e), 0);
    assert_int_equal(kvc_profile_predictor(added, 3, KVC_ROLE_V, KVC_PAIRING_HALVES, &q, &e), 0);
    assert_memory_equal(p->matrix.weights, q->matrix.weights,
                        kvc_dot_bytes(p->matrix.outputs, p->matrix.inputs));
    assert_true(kvc_profile_bytes(added, &n[0]) && kvc_profile_bytes(profile, &n[1]));
    kvc_profile_free(none);
    kvc_profile_free(added);
}

static float weight_of_v(const struct kvc_profile *p, uint32_t layer) {
    struct kvc_profile_array a;
    struct kvc_error e;
    assert_int_equal(kvc_profile_array(p, layer, "v.weight", "F32", 1, &a, &e), 1);
    return get_f32(a.data);
}

/* Layers whose queries attend to far tokens matter, and so do early layers; those that attend to
 * near tokens matter little. */
static void attention_makes_a_metric(void **state) {
    (void)state;
    for (uint32_t l = 0; l < LAYERS; l++) attended_token[l] = l == 2 ? 692 : 100;
    struct kvc_profile *p = learn(0, NULL);
    memset(attended_token, 0, sizeof attended_token);
    assert_int_equal(kvc_profile_metric(p), KVC_METRIC_QUERY);
    assert_true(weight_of_v(p, 2) < weight_of_v(p, 1) / 10);
    assert_true(weight_of_v(p, 2) < weight_of_v(p, 3) / 10);
    assert_true(weight_of_v(p, 3) < weight_of_v(p, 1) && weight_of_v(p, 1) < weight_of_v(p, 0));
    kvc_profile_free(p);
}

/* --- prediction by the words of cross.md --- */

/* Predicts V of layer 1 at a token as the spec says, in doubles where they are exact and in floats
 * where it rounds. */
static void the_words_of_the_spec(void **state) {
    (void)state;
    struct kvc_error e;
    const struct kvc_predictor *p;
    const struct kvc_small *s[3];
    float row[3][WIDTH], got[WIDTH];
    int8_t inputs[3 * WIDTH];
    int8_t small[WIDTH];
    assert_int_equal(kvc_profile_predictor(profile, 1, KVC_ROLE_V, KVC_PAIRING_HALVES, &p, &e), 0);
    random_state = 5;
    for (int t = 0; t < 3; t++) {
        assert_int_equal(kvc_profile_small(profile, t == 2, t == 1 ? KVC_ROLE_V : KVC_ROLE_K,
                                           KVC_PAIRING_HALVES, &s[t], &e),
                         0);
        for (size_t i = 0; i < WIDTH; i++) row[t][i] = 8 * random_float();
        row[t][3] = NAN, row[t][4] = INFINITY, row[t][5] = -1e30f;
        kvc_small_row(s[t], small, row[t]);
        for (size_t i = 0; i < WIDTH; i++) {
            volatile float d = row[t][i] - s[t]->mean[i], u = d * s[t]->gain[i];
            const float due = u != u ? 0 : u > 127 ? 127 : u < -127 ? -127 : rintf(u);
            assert_true((float)small[i] >= due && (float)small[i] <= due);
            inputs[(size_t)t * WIDTH + i] = small[i];
        }
    }
    kvc_predict_rows(p, got, inputs, 1);
    for (size_t i = 0; i < WIDTH; i++) {
        double sum = 0;
        for (size_t j = 0; j < 3 * WIDTH; j++)
            sum += (double)p->matrix.weights[kvc_dot_place(p->matrix.inputs, i, j)] * inputs[j];
        volatile float product = (float)sum * p->matrix.scale[i];
        const float due = product + p->matrix.mean[i];
        assert_memory_equal(&got[i], &due, sizeof due);
    }
}

/* --- packing and reading --- */

static void layers_help_each_other(void **state) {
    (void)state;
    struct kvc_error e;
    size_t size[2];
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        struct file f;
        make(&f, 5, 600, interleaved, LAYERS);
        struct kvc_buffer plain = pack(f.cache, "split", NULL, 1, 0),
                          packed = pack(f.cache, "cross", profile, 1, 1);
        struct kvc_buffer again = pack(f.cache, "cross", profile, 3, 1),
                          bare = pack(f.cache, "cross", NULL, 1, 0);
        size_t own;
        kvc_profile_bytes(profile, &own);
        size[interleaved] = packed.n - own;
        assert_true(size[interleaved] < plain.n * 9 / 10);
        assert_true(bare.n < plain.n + 64); /* without a profile: as split */
        assert_int_equal(again.n, packed.n);
        assert_memory_equal(again.data, packed.data, packed.n);
        struct kvc_input in;
        struct kvc_cache *c = unpack(&in, &packed);
        for (uint32_t t = 0; t < c->n_tensors; t++) same_rows(f.cache, c, t, 0);
        const uint32_t tensors = c->n_tensors;
        kvc_cache_free(c);
        /* each by itself, from the last rows of the last layer on */
        for (uint32_t t = tensors; t-- > 0;) {
            c = kvc_format_import(&kvc_format_kvc, &in, NULL, &e);
            same_rows(f.cache, c, t, t % 2 ? 599 : 300);
            struct kvc_buffer back = {0};
            struct kvc_sink out = kvc_sink_buffer(&back);
            if (t == 0 && kvc_source_write(c, 2, &out, &e)) fail_msg("%s", e.message);
            if (t == 0) assert_int_equal(back.n, f.bytes.n);
            if (t == 0) assert_memory_equal(back.data, f.bytes.data, back.n);
            free(back.data);
            kvc_cache_free(c);
        }
        kvc_input_close(&in);
        free(plain.data);
        free(packed.data);
        free(again.data);
        free(bare.data);
        release(&f);
    }
    /* the order of K's channels does not matter */
    assert_true(size[0] < size[1] + 300 && size[1] < size[0] + 300);
}

/* More layers back, a cache that lacks layers, and lossy neighbours. */
static void other_inputs(void **state) {
    (void)state;
    struct kvc_profile *three = learn(3, NULL);
    struct kvc_error e;
    struct file f;
    make(&f, 6, 300, 0, LAYERS);
    static const char *const recipes[] = {"cross", "cross@l1-4,split",
                                          "cross@k,quant:kivi:bits=4@v", "sink:3,cross"};
    for (size_t r = 0; r < sizeof recipes / sizeof recipes[0]; r++)
        for (int many = 0; many < 2; many++) {
            struct kvc_buffer packed = pack(f.cache, recipes[r], many ? three : profile, 1, 1);
            struct kvc_input in;
            kvc_input_memory(&in, recipes[r], packed.data, packed.n);
            struct kvc_cache *c = kvc_format_import(&kvc_format_kvc, &in, NULL, &e);
            if (!c || kvc_container_check(c, 1, &e)) fail_msg("%s: %s", recipes[r], e.message);
            for (uint32_t t = 0; t < c->n_tensors; t++)
                if (r != 2 || c->tensor[t].role == KVC_ROLE_K) same_rows(f.cache, c, t, 0);
            kvc_cache_free(c);
            kvc_input_close(&in);
            free(packed.data);
        }
    release(&f);
    make(&f, 6, 300, 0, 2); /* a cache of the first layers */
    struct kvc_buffer packed = pack(f.cache, "cross", three, 1, 1);
    free(packed.data);
    release(&f);
    kvc_profile_free(three);
}

/* Rows of q8_0, rotated or not. Where that is unknown they are coded as by split. */
static void quantised_layers_help_each_other(void **state) {
    (void)state;
    static const uint64_t tiles[][2] = {{16, 32},
                                        {0, 0},
                                        {2, TILE_UNKNOWN},
                                        {TILE_UNKNOWN, TILE_UNKNOWN}};
    size_t size[4];
    for (unsigned i = 0; i < 4; i++) {
        struct file f;
        uint8_t *bytes;
        make(&f, 5, 600, i % 2, LAYERS);
        struct kvc_cache *q = quantised_cache(f.cache, tiles[i], &bytes);
        /* a block whose scale is 0, and others that are not finite */
        memset(bytes, 0, 34);
        memcpy(bytes + 34, "\x01\x7e\x80\x80", 4); /* K of layer 0: a NaN */
        memcpy(bytes + 68, "\x00\xfc\x05\x81", 4); /* an infinity */
        /* the same in K of layer 1 */
        memcpy(bytes + (size_t)34 * 600 * 2 + 34, bytes + 34, 72 - 34);
        struct kvc_buffer plain = pack(q, "split", NULL, 1, 0),
                          packed = pack(q, "cross", profile, 1, 1);
        struct kvc_buffer again = pack(q, "cross", profile, 3, 1),
                          apart = pack(q, "cross", profile, 1, 0);
        size[i] = apart.n;
        assert_int_equal(again.n, packed.n);
        assert_memory_equal(again.data, packed.data, packed.n);
        if (i < 2) assert_true(size[i] < plain.n * 85 / 100);
        if (i == 3) assert_true(size[i] < plain.n + 512);
        struct kvc_input in;
        struct kvc_error e;
        struct kvc_cache *c = unpack(&in, &packed);
        for (uint32_t t = 0; t < c->n_tensors; t++) same_rows(q, c, t, 0);
        kvc_cache_free(c);
        for (uint32_t t = 2 * LAYERS; t-- > 0;) { /* each by itself, from the last on */
            c = kvc_format_import(&kvc_format_kvc, &in, NULL, &e);
            same_rows(q, c, t, t % 2 ? 599 : 300);
            kvc_cache_free(c);
        }
        kvc_input_close(&in);
        free(plain.data);
        free(packed.data);
        free(again.data);
        free(apart.data);
        kvc_cache_free(q);
        free(bytes);
        release(&f);
    }
    assert_true(size[2] > size[0] && size[2] < size[3]); /* K alone is predicted */
    assert_true(size[3] > size[1] * 115 / 100);
}

/* --- lossy, in closed loop --- */

#define LOSSY "sink:2,derope@k,predict,center,basis,steps,code:step=0.3"

/* Returns the relative error of a tensor, Frobenius norms. */
static double error_of(const struct kvc_cache *a, const struct kvc_cache *b, uint32_t t) {
    struct kvc_error e;
    double error = 0, all = 0;
    uint8_t *x = read_rows(a, t, 0, &e), *y = read_rows(b, t, 0, &e);
    for (size_t i = 0; i < a->tensor[t].shape.tokens * WIDTH; i++) {
        float u, v;
        kvc_to_floats(&u, x + 2 * i, 1, KVC_BF16);
        kvc_to_floats(&v, y + 2 * i, 1, KVC_BF16);
        error += (double)(u - v) * (double)(u - v);
        all += (double)u * (double)u;
    }
    free(x);
    free(y);
    return sqrt(error / all);
}

static void errors_do_not_add_up(void **state) {
    (void)state;
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        struct file f;
        make(&f, 5, 600, interleaved, LAYERS);
        static const char *const plain = "sink:2,derope@k,center,basis,steps,code:step=0.3";
        struct kvc_buffer alone = pack(f.cache, plain, profile, 1, 1),
                          packed = pack(f.cache, LOSSY, profile, 1, 1);
        struct kvc_buffer again = pack(f.cache, LOSSY, profile, 4, 1);
        struct kvc_input in, other;
        size_t own;
        kvc_profile_bytes(profile, &own);
        assert_int_equal(again.n, packed.n);
        assert_memory_equal(again.data, packed.data, packed.n);
        assert_true((packed.n - own) * 10 < (alone.n - own) * 9);
        struct kvc_cache *c = unpack(&in, &packed), *d = unpack(&other, &alone);
        for (uint32_t t = 0; t < c->n_tensors; t++)
            assert_true(error_of(f.cache, c, t) < 1.1 * error_of(f.cache, d, t));
        for (uint32_t t = c->n_tensors; t-- > 0;) { /* part of it: as the whole */
            struct kvc_input third;
            kvc_input_memory(&third, "packed", packed.data, packed.n);
            struct kvc_error e;
            struct kvc_cache *x = kvc_format_import(&kvc_format_kvc, &third, NULL, &e);
            same_rows(c, x, t, t % 2 ? 599 : 255);
            kvc_cache_free(x);
            kvc_input_close(&third);
        }
        kvc_cache_free(c);
        kvc_cache_free(d);
        kvc_input_close(&in);
        kvc_input_close(&other);
        free(alone.data);
        free(packed.data);
        free(again.data);
        release(&f);
    }
}

/* Counts sections INPUTS. */
static unsigned predicted_tensors(const struct kvc_buffer *packed) {
    struct kvc_input in;
    struct kvc_cache *c = unpack(&in, packed);
    unsigned n = 0;
    for (uint64_t i = 0; i < kvc_container_records(c); i++) {
        struct kvc_record_info record;
        struct kvc_section section[64];
        struct kvc_error e;
        assert_int_equal(kvc_container_record(c, i, &record, section, 64, &e), 0);
        for (unsigned k = 0; k < record.n_sections && k < 64; k++)
            n += section[k].type == KVC_SECTION_INPUTS;
    }
    kvc_cache_free(c);
    kvc_input_close(&in);
    return n;
}

static void recipes_that_predict(void **state) {
    (void)state;
    struct kvc_profile *three = learn(3, NULL), *none = learn(0, NULL);
    struct file f;
    make(&f, 6, 300, 0, LAYERS);
    const struct {
        const char *recipe;
        struct kvc_profile *profile;
        unsigned predicted;
    } cases[] = {
        {LOSSY, profile, 2 * LAYERS - 1},
        {LOSSY, three, 2 * LAYERS - 1},
        {LOSSY, none, 0},
        {LOSSY, NULL, 0},
        {"derope@k,predict:every=2,center,basis,code:step=0.3", profile, 2 * 2 + LAYERS - 2},
        {"predict,center,basis,code:step=0.3", profile, LAYERS}, /* K after RoPE is not predicted */
        {"predict@v,center@v,basis@v,code:step=0.3@v", profile, LAYERS},
        {"derope@k,predict@k,center,basis,code:step=0.3", profile, LAYERS - 1},
        {"derope@k,predict@k,center@k,basis@k,code:step=0.3@k,cross@v", profile, 2 * LAYERS - 1},
        {"derope@k,predict,quant:token:bits=8", profile, 2 * LAYERS - 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvc_buffer packed = pack(f.cache, cases[i].recipe, cases[i].profile, 3, 1);
        const unsigned got = predicted_tensors(&packed);
        if (got != cases[i].predicted) fail_msg("%s: %u predicted", cases[i].recipe, got);
        free(packed.data);
    }
    static const char *const refused[][2] = {{"predict,cross", "both predict"},
                                             {"merge:slerp,predict", "merges"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct kvc_pack_options options = {.recipe = recipe_of(refused[i][0]),
                                                 .profile = profile};
        struct kvc_buffer bytes = {0};
        struct kvc_sink out = kvc_sink_buffer(&bytes);
        struct kvc_error e;
        assert_int_equal(kvc_container_write(f.cache, &options, &out, NULL, &e), -1);
        if (!strstr(e.message, refused[i][1])) fail_msg("%s", e.message);
        free(bytes.data);
    }
    release(&f);
    kvc_profile_free(three);
    kvc_profile_free(none);
}

/* --- what is missing or damaged --- */

static void the_profile_is_needed(void **state) {
    (void)state;
    struct kvc_error e;
    struct file f;
    make(&f, 5, 300, 0, LAYERS);
    struct kvc_buffer packed = pack(f.cache, "cross", profile, 1, 0);
    struct kvc_input in;
    kvc_input_memory(&in, "packed", packed.data, packed.n);
    struct kvc_cache *c = kvc_format_import(&kvc_format_kvc, &in, NULL, &e);
    kvc_container_set_profile(c, &(struct kvc_profile_places){.given = NULL});
    same_rows(f.cache, c, 0, 0); /* K of layer 0 stands on nothing */
    for (uint32_t t = 1; t < c->n_tensors; t++) {
        assert_null(read_rows(c, t, 0, &e));
        assert_non_null(strstr(e.message, "profile"));
    }
    kvc_cache_free(c);
    kvc_input_close(&in);
    free(packed.data);
    release(&f);
}

static unsigned asked; /* how often inputs were asked for */

static int count_inputs(const void *owner, uint32_t tensor, const uint64_t *row, size_t n,
                        int8_t *to, size_t stride, struct kvc_error *e) {
    (void)owner, (void)tensor, (void)e;
    asked++;
    for (size_t i = 0; i < n; i++) memset(to + i * stride, (int)row[i], WIDTH);
    return 0;
}

/* Predicts four rows, from `first` on; returns 1 where their inputs were asked for. */
static int is_computed(const struct kvc_predict_source *s, uint64_t first) {
    struct kvc_error e = {.code = KVC_OK};
    uint32_t from[KVC_AHEAD_MOST];
    const uint64_t row[4] = {first, first + 1, first + 2, first + 3};
    const int n = kvc_predict_inputs(s, from, &e);
    const unsigned before = asked;
    assert_true(n > 0);
    struct kvc_predict_source fresh = *s;
    fresh.memo = NULL;
    fresh.ahead.owner = &fresh;
    float *again = fresh.ahead.rows(&fresh.ahead, from, (size_t)n, row, 4, &e);
    asked = before;
    float *got = s->ahead.rows(&s->ahead, from, (size_t)n, row, 4, &e);
    assert_non_null(again);
    assert_non_null(got);
    assert_memory_equal(got, again,
                        4 * s->cache->tensor[s->tensor].shape.heads *
                            s->cache->tensor[s->tensor].shape.dim * sizeof *got);
    free(again);
    free(got);
    return asked != before;
}

/* Encoders predict a block when stages look at it, and again when they verify it: from the memo. */
static void predictions_are_kept_once(void **state) {
    (void)state;
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_predict_source s;
    struct kvc_predict_memo memo = {.oldest = 0};
    struct file f;
    make(&f, 9, 64, 0, LAYERS);
    uint32_t tensor = 0;
    while (f.cache->layer[f.cache->tensor[tensor].layer].index == 0) tensor++;
    kvc_predict_source_init(&s, f.cache, tensor, profile, KVC_PAIRING_HALVES, count_inputs, NULL);
    s.memo = &memo;
    for (uint64_t round = 0; round < 3; round++)
        for (uint64_t b = 0; b < KVC_PREDICT_KEPT; b++)
            assert_int_equal(is_computed(&s, b), round != 1);
    assert_true(is_computed(&s, KVC_PREDICT_KEPT)); /* none was free: block 0 gives way */
    assert_false(is_computed(&s, KVC_PREDICT_KEPT));
    assert_true(is_computed(&s, 0));
    assert_false(is_computed(&s, 1));
    kvc_predict_memo_free(&memo);
    assert_false(e.code);
    release(&f);
}

static void damage_spreads_upwards(void **state) {
    (void)state;
    struct kvc_error e;
    struct file f;
    make(&f, 5, 600, 0, LAYERS);
    struct kvc_buffer packed = pack(f.cache, "cross", profile, 1, 1);
    struct kvc_input in;
    kvc_input_memory(&in, "packed", packed.data, packed.n);
    /* a byte of the second block of K of layer 2: found by trying, from the middle of the file on
     */
    uint64_t at = 0;
    for (uint64_t i = packed.n / 4; i < packed.n && !at; i += 997) {
        packed.data[i] ^= 0x40;
        struct kvc_cache *d = kvc_import_damaged(&in, NULL, &e);
        const struct kvc_survey *s = d ? kvc_salvage_survey(d, 2, &e) : NULL;
        for (uint64_t k = 0; s && k < s->n && !at; k++)
            if (s->damage[k].has_tensor && s->damage[k].layer == 2 &&
                s->damage[k].role == KVC_ROLE_K && s->damage[k].has_tokens &&
                s->damage[k].first == 256 && s->damage[k].offset <= i &&
                i < s->damage[k].offset + s->damage[k].size)
                at = i;
        if (at) { /* layers below, and other tokens, are whole */
            assert_string_equal(s->whole_layers, "0-1");
            assert_string_equal(s->whole_tokens, "0:256,512:600");
            for (uint32_t t = 0; t < d->n_tensors; t++) {
                const int below = d->layer[d->tensor[t].layer].index < 2;
                uint8_t *rows = read_rows(d, t, below ? 0 : 512, &e);
                assert_non_null(rows);
                free(rows);
                rows = read_rows(d, t, 0, &e);
                assert_int_equal(rows != NULL, below);
                free(rows);
            }
        }
        kvc_cache_free(d);
        packed.data[i] ^= 0x40;
    }
    assert_true(at != 0);
    kvc_input_close(&in);
    free(packed.data);
    release(&f);
}

static int make_profile(void **state) {
    (void)state;
    profile = learn(1, NULL);
    return 0;
}

static int free_profile(void **state) {
    (void)state;
    kvc_profile_free(profile);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_learnt),
        cmocka_unit_test(attention_makes_a_metric),
        cmocka_unit_test(the_words_of_the_spec),
        cmocka_unit_test(layers_help_each_other),
        cmocka_unit_test(other_inputs),
        cmocka_unit_test(the_profile_is_needed),
        cmocka_unit_test(damage_spreads_upwards),
        cmocka_unit_test(predictions_are_kept_once),
        cmocka_unit_test(errors_do_not_add_up),
        cmocka_unit_test(recipes_that_predict),
        cmocka_unit_test(quantised_layers_help_each_other),
    };
    return cmocka_run_group_tests(tests, make_profile, free_profile);
}
