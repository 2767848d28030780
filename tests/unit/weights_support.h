/* weights_support.h: a small model, written as safetensors and as GGUF, and its projections, for
 * the tests of weights. Not for other tests. */
#ifndef WEIGHTS_SUPPORT_H
#define WEIGHTS_SUPPORT_H

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
static inline float k_value(size_t out, size_t in) {
    return (float)((int)((out * 37 + in * 11) % 251) - 125) / 8;
}
static inline float v_value(size_t out, size_t in) {
    return (float)((int)((out * 53 + in * 29) % 241) - 120) / 8;
}
static inline float k_bias_value(size_t out) {
    return (float)out - 3.5f;
}
static inline float v_bias_value(size_t out) {
    return 0.25f * (float)out + 1;
}
static inline float norm_value(size_t in) {
    return 1 + (float)in / 32;
}

/* Where channel i of a head in halves stands when pairs are interleaved. */
static inline size_t in_pairs(size_t channel, size_t rotated) {
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

static inline void add(struct bytes *f, const void *data, size_t n) {
    assert_true(f->n + n <= sizeof f->b);
    memcpy(f->b + f->n, data, n);
    f->n += n;
}
static inline void add_number(struct bytes *f, uint64_t v, size_t width) {
    for (; width; width--, v >>= 8) {
        uint8_t byte = (uint8_t)v;
        add(f, &byte, 1);
    }
}
static inline void add_string(struct bytes *f, const char *text) {
    add_number(f, strlen(text), 8);
    add(f, text, strlen(text));
}

static inline size_t count_of(const struct tensor *t) {
    size_t n = 1;
    for (unsigned i = 0; i < t->rank; i++) n *= (size_t)t->dim[i];
    return n;
}

/* 32 values as a block of a type of ggml: a scale of 1/8 keeps multiples of 1/8 within the type's
 * reach exact. */
static inline void add_block(struct bytes *f, unsigned type, const float *x) {
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

static inline void add_values(struct bytes *f, unsigned type, const float *x, size_t n) {
    uint32_t bits;
    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, &x[i], sizeof bits);
        if (type == 0) add_number(f, bits, 4);
        if (type == 1) add_number(f, kvc_float_to_half(x[i]), 2);
        if (type == 30) add_number(f, bits >> 16, 2);
        if (type != 0 && type != 1 && type != 30 && i % 32 == 0) add_block(f, type, x + i);
    }
}

static inline void make_safetensors(struct bytes *f, const char *metadata, const struct tensor *t,
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

/* bytes and values of a block, where matrices of the next GGUF point to blocks; 0: to floats */
static size_t block_bytes, block_values;
static uint32_t position_sections; /* of the next GGUF: more than 0 is M-RoPE */

static inline void make_gguf(struct bytes *f, const char *arch, const struct tensor *t, size_t n) {
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
        if (block_bytes && t[i].rank == 2)
            add(data, t[i].values, count_of(&t[i]) / block_values * block_bytes);
        else if (t[i].values) add_values(data, t[i].type, t[i].values, count_of(&t[i]));
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

static inline struct model *make_model(enum kvc_pairing pairing) {
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

static inline void list(struct tensor t[ALL], const char *const *name, unsigned type,
                        const struct model *m) {
    const struct tensor all[ALL] = {{name[0], type, 2, {OUT, IN}, m->k},
                                    {name[1], type, 2, {OUT_V, IN}, m->v},
                                    {name[2], 0, 1, {OUT}, m->k_bias},
                                    {name[3], 0, 1, {OUT_V}, m->v_bias},
                                    {name[4], 0, 1, {IN}, m->norm}};
    memcpy(t, all, sizeof all);
}

static inline void put_safetensors(const char *file, const char *metadata, const struct tensor *t,
                                   size_t n) {
    struct bytes *f = malloc(sizeof *f);
    assert_non_null(f);
    make_safetensors(f, metadata, t, n);
    put_file(file, f->b, f->n);
    free(f);
}
static inline void put_gguf(const char *file, const char *arch, const struct tensor *t, size_t n) {
    struct bytes *f = malloc(sizeof *f);
    assert_non_null(f);
    make_gguf(f, arch, t, n);
    put_file(file, f->b, f->n);
    free(f);
}

/* ---- reading them ---- */

static inline struct kvc_projection load(const char *path, uint32_t layer,
                                         const struct kvc_projection_shape *shape) {
    struct kvc_error e = {.message = ""};
    struct kvc_projection p = {.k = NULL};
    struct kvc_weights *w = kvc_weights_open(path, &e);
    if (!w || kvc_weights_load(w, layer, shape, &p, &e)) fail_msg("%s: %s", path, e.message);
    kvc_weights_close(w); /* what was loaded does not need the file */
    return p;
}

/* Opening or loading fails with this code and words. */
static inline void assert_refused(const char *path, uint32_t layer,
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

static inline void assert_values(const struct kvc_projection *p, size_t rotated) {
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

#endif
