/* profile_support.h: profile files, built byte by byte as kvc-profile(5) lays them out, for the
 * tests of profiles. Not for other tests. */
#ifndef PROFILE_SUPPORT_H
#define PROFILE_SUPPORT_H

#include "values_support.h"

#include "formats/model/predictor.h"
#include "formats/cache/mapped.h"
#include "formats/model/profile_fit.h"

#include "formats/cache/keys.h"
#include "formats/model/layer_rope.h"

#include <math.h>
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
#include <openssl/evp.h>

static uint32_t random_state = 11;

/* --- building one --- */

enum { MOST_TENSORS = 32, MOST_KEYS = 12, MOST_HEADER = 8192 };

struct tensor {
    char name[64];
    const char *dtype;
    unsigned rank;
    uint64_t dim[4];
    uint8_t *bytes;
    size_t size;
};

struct key {
    const char *name, *value;
};

struct maker {
    struct tensor tensor[MOST_TENSORS];
    struct key key[MOST_KEYS];
    size_t tensors, keys;
};

/* Layer 0: K of 2 heads of 8 channels, 6 of which turn, V of 2 of 5; 4 query heads, 3 queries.
 * Layer 1: V alone, of one head of 4. Layer 2: nothing. */
enum {
    HEADS = 2,
    DIM = 8,
    HALF = 3,
    DIM_V = 5,
    QUERY_HEADS = 4,
    QUERIES = 3,
    DIM_1 = 4,
    LAYERS = 3,
    INPUTS = 28
};

static inline size_t size_of(const char *dtype) {
    return strcmp(dtype, "I8") == 0    ? 1
           : strcmp(dtype, "F32") == 0 ? 4
           : strcmp(dtype, "F64") == 0 ? 8
                                       : 2;
}

static inline struct tensor *add_tensor(struct maker *m, const char *name, const char *dtype,
                                        unsigned rank, uint64_t a, uint64_t b, uint64_t c) {
    struct tensor *t = &m->tensor[m->tensors++];
    assert_true(m->tensors <= MOST_TENSORS);
    *t = (struct tensor){.dtype = dtype, .rank = rank, .dim = {a, b, c, 1}};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->size = size_of(dtype) * (size_t)(a * (rank > 1 ? b : 1) * (rank > 2 ? c : 1));
    t->bytes = calloc(t->size + 1, 1);
    assert_non_null(t->bytes);
    return t;
}

static inline void put_f32(struct tensor *t, size_t i, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (unsigned b = 0; b < 4; b++) t->bytes[4 * i + b] = (uint8_t)(bits >> 8 * b);
}

static inline void put_f64(struct tensor *t, size_t i, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (unsigned b = 0; b < 8; b++) t->bytes[8 * i + b] = (uint8_t)(bits >> 8 * b & 255);
}

static inline float f32_of(const struct tensor *t, size_t i) {
    uint32_t bits = 0;
    float x;
    for (unsigned b = 0; b < 4; b++) bits |= (uint32_t)t->bytes[4 * i + b] << 8 * b;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float random_float(void) {
    return (float)random_bits() * 0x1p-22f - 2;
}

static inline void add_role(struct maker *m, unsigned layer, char role, uint64_t heads,
                            uint64_t dim) {
    char name[32];
    snprintf(name, sizeof name, "layers.%u.%c.mean", layer, role);
    struct tensor *t = add_tensor(m, name, "F32", 2, heads, dim, 1);
    for (size_t i = 0; i < heads * dim; i++) put_f32(t, i, random_float());
    snprintf(name, sizeof name, "layers.%u.%c.basis", layer, role);
    t = add_tensor(m, name, "I8", 3, heads, dim, dim);
    for (size_t i = 0; i < heads * dim * dim; i++) {
        const int8_t x = (int8_t)(i / dim % dim == i % dim ? 100 : (int)(random_bits() % 41) - 20);
        memcpy(&t->bytes[i], &x, 1);
    }
    snprintf(name, sizeof name, "layers.%u.%c.scale", layer, role);
    t = add_tensor(m, name, "F32", 2, heads, dim, 1);
    for (size_t i = 0; i < heads * dim; i++) put_f32(t, i, 0.001f * (float)(1 + i));
}

static inline struct maker make_good(void) {
    struct maker m = {.tensors = 0};
    static const struct key keys[] = {
        {"kvc.profile", "1"},           {"model.layers", "3"}, {"model.name", "Tiny"},
        {"metric", "fisher"},           {"texts", "a, b"},     {"made", "by hand"},
        {"model.architecture", "llama"}};
    memcpy(m.key, keys, sizeof keys);
    m.keys = sizeof keys / sizeof keys[0];
    struct tensor *t = add_tensor(&m, "layers.0.rope", "F64", 1, HALF, 1, 1);
    for (size_t i = 0; i < HALF; i++) put_f64(t, i, pow(10000, -(double)i / HALF));
    add_role(&m, 0, 'k', HEADS, DIM);
    add_role(&m, 0, 'v', HEADS, DIM_V);
    t = add_tensor(&m, "layers.0.queries", "I8", 3, QUERY_HEADS, QUERIES, DIM);
    for (size_t i = 0; i < QUERY_HEADS * QUERIES * DIM; i++) t->bytes[i] = (uint8_t)random_bits();
    t = add_tensor(&m, "layers.0.queries.scale", "F32", 2, QUERY_HEADS, QUERIES, 1);
    for (size_t i = 0; i < QUERY_HEADS * QUERIES; i++) put_f32(t, i, 0.01f + 0.001f * (float)i);
    add_role(&m, 1, 'v', 1, DIM_1);
    t = add_tensor(&m, "layers.0.k.weight", "F32", 1, HEADS, 1, 1); /* for people: not read */
    put_f32(t, 0, NAN);
    return m;
}

static inline void free_maker(struct maker *m) {
    for (size_t i = 0; i < m->tensors; i++) free(m->tensor[i].bytes);
}

static inline struct tensor *tensor_of(struct maker *m, const char *name) {
    size_t i = 0;
    while (i < m->tensors && strcmp(m->tensor[i].name, name) != 0) i++;
    if (i == m->tensors) fail_msg("no tensor %s", name);
    return &m->tensor[i];
}

static inline struct key *key_of(struct maker *m, const char *name) {
    size_t i = 0;
    while (i < m->keys && strcmp(m->key[i].name, name) != 0) i++;
    if (i == m->keys) fail_msg("no key %s", name);
    return &m->key[i];
}

__attribute__((format(printf, 2, 3))) static void append(char *text, const char *format, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text + used, MOST_HEADER - used, format, args);
    va_end(args);
    assert_in_range(n, 0, MOST_HEADER - used - 1);
}

/* A file in memory of exactly its size; free() it. */
static inline uint8_t *render_with(const struct maker *m, const char *header, size_t *size) {
    const size_t n = strlen(header);
    size_t at = 8 + n;
    for (size_t i = 0; i < m->tensors; i++) at += m->tensor[i].size;
    uint8_t *bytes = malloc(at);
    assert_non_null(bytes);
    *size = at;
    for (unsigned b = 0; b < 8; b++) bytes[b] = (uint8_t)((uint64_t)n >> 8 * b & 255);
    memcpy(bytes + 8, header, n);
    at = 8 + n;
    for (size_t i = 0; i < m->tensors; at += m->tensor[i++].size)
        memcpy(bytes + at, m->tensor[i].bytes, m->tensor[i].size);
    return bytes;
}

static inline void write_header(const struct maker *m, char *text) {
    size_t at = 0;
    text[0] = '\0';
    append(text, "{\"__metadata__\":{");
    for (size_t i = 0; i < m->keys; i++)
        append(text, "%s\"%s\":\"%s\"", i ? "," : "", m->key[i].name, m->key[i].value);
    append(text, "}");
    for (size_t i = 0; i < m->tensors; i++) {
        const struct tensor *t = &m->tensor[i];
        append(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (unsigned d = 0; d < t->rank; d++)
            append(text, "%s%llu", d ? "," : "", (unsigned long long)t->dim[d]);
        append(text, "],\"data_offsets\":[%zu,%zu]}", at, at + t->size);
        at += t->size;
    }
    append(text, "}");
    while (strlen(text) % 8) append(text, " ");
}

static inline uint8_t *render(const struct maker *m, size_t *size) {
    char header[MOST_HEADER];
    write_header(m, header);
    return render_with(m, header, size);
}

static inline struct kvc_profile *must_open(const struct maker *m) {
    struct kvc_error e;
    size_t n;
    uint8_t *bytes = render(m, &n);
    struct kvc_profile *p = kvc_profile_open_memory(bytes, n, &e);
    if (!p) fail_msg("%s", e.message);
    free(bytes);
    return p;
}

/* --- looking into one --- */

/* kvc-profile(5): where channel d of a head stands in a cache of this pairing. */
static inline size_t channel(size_t d, size_t half, enum kvc_pairing pairing) {
    if (pairing == KVC_PAIRING_HALVES || d >= 2 * half) return d;
    return d < half ? 2 * d : 2 * (d - half) + 1;
}

static inline const struct kvc_profile_part *part_of(struct kvc_profile *p, uint32_t layer,
                                                     enum kvc_role role, enum kvc_pairing pairing,
                                                     int encoder) {
    const struct kvc_profile_part *part;
    struct kvc_error e;
    if (kvc_profile_part(p, layer, role, pairing, encoder, &part, &e)) fail_msg("%s", e.message);
    return part;
}


#endif
