/* test_profile.c: profile files, built here byte by byte as kvc-profile(5) lays them out: what is
 * read out of good ones, and that all others are refused; which caches one fits, and where one is
 * found. Not for what stages do with them (test_transform.c). */
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

static uint32_t random_bits(void) {
    random_state = random_state * 1664525 + 1013904223;
    return random_state >> 8;
}

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

static size_t size_of(const char *dtype) {
    return strcmp(dtype, "I8") == 0    ? 1
           : strcmp(dtype, "F32") == 0 ? 4
           : strcmp(dtype, "F64") == 0 ? 8
                                       : 2;
}

static struct tensor *add_tensor(struct maker *m, const char *name, const char *dtype,
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

static void put_f32(struct tensor *t, size_t i, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (unsigned b = 0; b < 4; b++) t->bytes[4 * i + b] = (uint8_t)(bits >> 8 * b);
}

static void put_f64(struct tensor *t, size_t i, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (unsigned b = 0; b < 8; b++) t->bytes[8 * i + b] = (uint8_t)(bits >> 8 * b & 255);
}

static float f32_of(const struct tensor *t, size_t i) {
    uint32_t bits = 0;
    float x;
    for (unsigned b = 0; b < 4; b++) bits |= (uint32_t)t->bytes[4 * i + b] << 8 * b;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float random_float(void) {
    return (float)random_bits() * 0x1p-22f - 2;
}

static void add_role(struct maker *m, unsigned layer, char role, uint64_t heads, uint64_t dim) {
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

static struct maker make_good(void) {
    struct maker m = {.tensors = 0};
    static const struct key keys[] = {
        {"kvc.profile", "0"},           {"model.layers", "3"}, {"model.name", "Tiny"},
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

static void free_maker(struct maker *m) {
    for (size_t i = 0; i < m->tensors; i++) free(m->tensor[i].bytes);
}

static struct tensor *tensor_of(struct maker *m, const char *name) {
    size_t i = 0;
    while (i < m->tensors && strcmp(m->tensor[i].name, name) != 0) i++;
    if (i == m->tensors) fail_msg("no tensor %s", name);
    return &m->tensor[i];
}

static struct key *key_of(struct maker *m, const char *name) {
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
static uint8_t *render_with(const struct maker *m, const char *header, size_t *size) {
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

static void write_header(const struct maker *m, char *text) {
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

static uint8_t *render(const struct maker *m, size_t *size) {
    char header[MOST_HEADER];
    write_header(m, header);
    return render_with(m, header, size);
}

static struct kvc_profile *must_open(const struct maker *m) {
    struct kvc_error e;
    size_t n;
    uint8_t *bytes = render(m, &n);
    struct kvc_profile *p = kvc_profile_open_memory(bytes, n, &e);
    if (!p) fail_msg("%s", e.message);
    free(bytes);
    return p;
}

/* --- what is read --- */

/* kvc-profile(5): where channel d of a head stands in a cache of this pairing. */
static size_t channel(size_t d, size_t half, enum kvc_pairing pairing) {
    if (pairing == KVC_PAIRING_HALVES || d >= 2 * half) return d;
    return d < half ? 2 * d : 2 * (d - half) + 1;
}

static const struct kvc_profile_part *part_of(struct kvc_profile *p, uint32_t layer,
                                              enum kvc_role role, enum kvc_pairing pairing,
                                              int encoder) {
    const struct kvc_profile_part *part;
    struct kvc_error e;
    if (kvc_profile_part(p, layer, role, pairing, encoder, &part, &e)) fail_msg("%s", e.message);
    return part;
}

static void check_part(struct maker *m, const struct kvc_profile_part *p, unsigned layer, char role,
                       size_t heads, size_t dim, size_t half, enum kvc_pairing pairing) {
    char name[3][32];
    snprintf(name[0], sizeof name[0], "layers.%u.%c.mean", layer, role);
    snprintf(name[1], sizeof name[1], "layers.%u.%c.basis", layer, role);
    snprintf(name[2], sizeof name[2], "layers.%u.%c.scale", layer, role);
    const struct tensor *mean = tensor_of(m, name[0]), *basis = tensor_of(m, name[1]),
                        *scale = tensor_of(m, name[2]);
    assert_non_null(p);
    assert_int_equal(p->heads, heads);
    assert_int_equal(p->dim, dim);
    assert_int_equal(p->half, half);
    assert_true(!p->angle == !half);
    for (size_t i = 0; i < half; i++) assert_true(p->angle[i] == pow(10000, -(double)i / HALF));
    for (size_t i = 0; i < heads * dim; i++) {
        assert_true(p->mean[i / dim * dim + channel(i % dim, half, pairing)] == f32_of(mean, i));
        for (size_t d = 0; d < dim; d++) {
            int8_t code;
            memcpy(&code, &basis->bytes[i * dim + d], 1);
            assert_true(p->basis[i * dim + channel(d, half, pairing)] ==
                        (float)code * f32_of(scale, i));
        }
    }
}

static void check_encoder(struct maker *m, const struct kvc_profile_part *p, int queries,
                          enum kvc_pairing pairing) {
    assert_non_null(p->inverse);
    for (size_t h = 0; h < p->heads; h++)
        for (size_t i = 0; i < p->dim; i++)
            for (size_t j = 0; j < p->dim; j++) {
                const float *row = p->basis + (h * p->dim + i) * p->dim,
                            *column = p->inverse + h * p->dim * p->dim + j;
                double sum = 0;
                for (size_t d = 0; d < p->dim; d++)
                    sum += (double)row[d] * (double)column[d * p->dim];
                assert_true(fabs(sum - (i == j)) < 1e-4);
            }
    if (!queries) {
        assert_int_equal(p->n_queries, 0);
        return;
    }
    assert_int_equal(p->n_queries, QUERIES);
    assert_int_equal(p->query_heads, QUERY_HEADS);
    const struct tensor *query = tensor_of(m, "layers.0.queries"),
                        *scale = tensor_of(m, "layers.0.queries.scale");
    for (size_t i = 0; i < QUERY_HEADS; i++)
        for (size_t q = 0; q < QUERIES; q++)
            for (size_t d = 0; d < DIM; d++) {
                int8_t code;
                memcpy(&code, &query->bytes[(i * QUERIES + q) * DIM + d], 1);
                assert_true(p->query[(q * QUERY_HEADS + i) * DIM + channel(d, HALF, pairing)] ==
                            (float)code * f32_of(scale, i * QUERIES + q));
            }
}

static void what_it_says(void **state) {
    (void)state;
    struct maker m = make_good();
    struct kvc_error e;
    uint8_t digest[32];
    size_t n, size;
    uint8_t *bytes = render(&m, &n);
    struct kvc_profile *p = kvc_profile_open_memory(bytes, n, &e);
    if (!p) fail_msg("%s", e.message);
    assert_int_equal(kvc_profile_layers(p), LAYERS);
    assert_string_equal(kvc_profile_model(p), "Tiny");
    assert_int_equal(kvc_profile_metric(p), KVC_METRIC_FISHER);
    assert_memory_equal(kvc_profile_bytes(p, &size), bytes, n);
    assert_int_equal(size, n);
    assert_int_equal(EVP_Digest(bytes, n, digest, NULL, EVP_sha256(), NULL), 1);
    assert_memory_equal(kvc_profile_sha256(p), digest, 32);
    memset(bytes, 0xee, n); /* they were copied */
    free(bytes);
    for (enum kvc_pairing pairing = KVC_PAIRING_HALVES; pairing <= KVC_PAIRING_INTERLEAVED;
         pairing++) {
        const struct kvc_profile_part *k = part_of(p, 0, KVC_ROLE_K, pairing, 0);
        const struct kvc_profile_part *v = part_of(p, 0, KVC_ROLE_V, pairing, 0);
        check_part(&m, k, 0, 'k', HEADS, DIM, HALF, pairing);
        check_part(&m, v, 0, 'v', HEADS, DIM_V, 0, pairing);
        assert_null(k->inverse);
        assert_int_equal(k->n_queries, 0);
        assert_ptr_equal(part_of(p, 0, KVC_ROLE_K, pairing, 1), k);
        assert_ptr_equal(part_of(p, 0, KVC_ROLE_V, pairing, 1), v);
        check_part(&m, k, 0, 'k', HEADS, DIM, HALF, pairing);
        check_encoder(&m, k, 1, pairing);
        check_encoder(&m, v, 1, pairing);
        assert_ptr_equal(part_of(p, 0, KVC_ROLE_K, pairing, 0), k);
        const struct kvc_profile_part *other = part_of(p, 1, KVC_ROLE_V, pairing, 1);
        check_part(&m, other, 1, 'v', 1, DIM_1, 0, pairing);
        check_encoder(&m, other, 0, pairing);
        assert_null(part_of(p, 1, KVC_ROLE_K, pairing, 1));
        assert_null(part_of(p, 2, KVC_ROLE_K, pairing, 0));
        assert_null(part_of(p, 2, KVC_ROLE_V, pairing, 1));
        assert_null(part_of(p, LAYERS, KVC_ROLE_K, pairing, 0));
        assert_null(part_of(p, UINT32_MAX, KVC_ROLE_V, pairing, 1));
        assert_null(part_of(p, 0, KVC_ROLE_HIDDEN, pairing, 1));
    }
    /* K that no pairing turns is as halves */
    assert_ptr_equal(part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_NONE, 0),
                     part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_HALVES, 0));
    kvc_profile_free(p);
    kvc_profile_free(NULL);

    static const struct {
        const char *name;
        enum kvc_profile_metric metric;
    } metrics[] = {{"query", KVC_METRIC_QUERY},
                   {"covariance", KVC_METRIC_COVARIANCE},
                   {"of tomorrow", KVC_METRIC_COVARIANCE}};
    for (size_t i = 0; i < 3; i++) {
        key_of(&m, "metric")->value = metrics[i].name;
        p = must_open(&m);
        assert_int_equal(kvc_profile_metric(p), metrics[i].metric);
        kvc_profile_free(p);
    }
    key_of(&m, "model.name")->name = "unheard-of";
    key_of(&m, "metric")->name = "neither";
    p = must_open(&m);
    assert_string_equal(kvc_profile_model(p), "");
    assert_int_equal(kvc_profile_metric(p), KVC_METRIC_COVARIANCE);
    kvc_profile_free(p);
    free_maker(&m);
}

/* A matrix without an inverse decodes; encoders are refused, however often they ask. */
static void no_inverse(void **state) {
    (void)state;
    struct maker m = make_good();
    const struct kvc_profile_part *part;
    struct kvc_error e;
    put_f32(tensor_of(&m, "layers.0.k.scale"), 3, 0);
    struct kvc_profile *p = must_open(&m);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvc_profile_part(p, 0, KVC_ROLE_K, KVC_PAIRING_HALVES, 1, &part, &e), -1);
        assert_null(part);
        assert_int_equal(e.code, KVC_ERR_DAMAGED);
        assert_non_null(part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_HALVES, 0));
        assert_non_null(part_of(p, 0, KVC_ROLE_V, KVC_PAIRING_HALVES, 1));
    }
    kvc_profile_free(p);
    free_maker(&m);
}

/* --- what is refused --- */

static void refuse(const uint8_t *bytes, size_t n, enum kvc_code code, const char *what) {
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_profile *p = kvc_profile_open_memory(bytes, n, &e);
    if (p) fail_msg("%s: taken", what);
    if (e.code != code || strlen(e.message) < 10)
        fail_msg("%s: code %d: %s", what, (int)e.code, e.message);
}

static void refuse_maker(struct maker *m, enum kvc_code code, const char *what) {
    size_t n;
    uint8_t *bytes = render(m, &n);
    refuse(bytes, n, code, what);
    free(bytes);
    free_maker(m);
}

static void wrong_metadata(void **state) {
    (void)state;
    static const struct {
        const char *name, *value;
        enum kvc_code code;
    } cases[] = {
        {"kvc.profile", "2", KVC_ERR_UNSUPPORTED},
        {"kvc.profile", "00", KVC_ERR_UNSUPPORTED},
        {"kvc.profile", "", KVC_ERR_UNKNOWN},
        {"kvc.profile", "0 and a long tail of other words", KVC_ERR_UNSUPPORTED},
        {"model.layers", "0", KVC_ERR_DAMAGED},
        {"model.layers", "4097", KVC_ERR_DAMAGED},
        {"model.layers", "-1", KVC_ERR_DAMAGED},
        {"model.layers", "", KVC_ERR_DAMAGED},
        {"model.layers", "three", KVC_ERR_DAMAGED},
        {"model.layers", "99999999999999999999999", KVC_ERR_DAMAGED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct maker m = make_good();
        key_of(&m, cases[i].name)->value = cases[i].value;
        refuse_maker(&m, cases[i].code, cases[i].value);
    }
    struct maker m = make_good();
    key_of(&m, "kvc.profile")->name = "kvc.profiles";
    refuse_maker(&m, KVC_ERR_UNKNOWN, "another file of safetensors");
    m = make_good();
    key_of(&m, "model.layers")->name = "layers";
    refuse_maker(&m, KVC_ERR_DAMAGED, "no number of layers");
    m = make_good();
    m.key[m.keys++] = (struct key){"metric", "fisher"};
    refuse_maker(&m, KVC_ERR_DAMAGED, "a key that stands twice");
    m = make_good();
    struct tensor *t = add_tensor(&m, "layers.0.k.mean", "F32", 2, HEADS, DIM, 1);
    assert_int_equal(t->size, HEADS * DIM * 4);
    refuse_maker(&m, KVC_ERR_DAMAGED, "a tensor that stands twice");
    m = make_good();
    for (size_t i = 0; i < m.tensors; i++) m.tensor[i].name[0] = 'x';
    refuse_maker(&m, KVC_ERR_DAMAGED, "nothing of any layer");
    /* as many layers as there may be, of which two say something */
    m = make_good();
    key_of(&m, "model.layers")->value = "4096";
    struct kvc_profile *p = must_open(&m);
    assert_int_equal(kvc_profile_layers(p), 4096);
    assert_null(part_of(p, 4095, KVC_ROLE_K, KVC_PAIRING_HALVES, 1));
    kvc_profile_free(p);
    free_maker(&m);
}

static void wrong_tensors(void **state) {
    (void)state;
    static const char *const names[] = {"layers.0.rope",          "layers.0.k.mean",
                                        "layers.0.k.basis",       "layers.0.k.scale",
                                        "layers.0.v.mean",        "layers.0.v.basis",
                                        "layers.0.v.scale",       "layers.0.queries",
                                        "layers.0.queries.scale", "layers.1.v.mean",
                                        "layers.1.v.basis",       "layers.1.v.scale"};
    static const char *const dtypes[] = {"I8", "F32", "F64", "F16", "U8", "BF16", ""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
            struct maker m = make_good();
            struct tensor *t = tensor_of(&m, names[i]);
            if (strcmp(t->dtype, dtypes[d]) == 0) {
                free_maker(&m);
                continue;
            }
            t->dtype = dtypes[d];
            refuse_maker(&m, KVC_ERR_DAMAGED, names[i]);
        }
        for (unsigned d = 0; d < 3; d++)
            for (unsigned how = 0; how < 5;
                 how++) { /* a dimension that is another; sizes with it, or not */
                static const uint64_t others[] = {0, 1, 0, UINT64_C(1) << 62, 1 << 21};
                struct maker m = make_good();
                struct tensor *t = tensor_of(&m, names[i]);
                const uint64_t old = t->dim[d], other = how == 2 ? old + 1 : others[how];
                if (d >= t->rank || old == other ||
                    (how == 2 && strcmp(names[i], "layers.0.rope") == 0)) {
                    free_maker(&m); /* rope: below */
                    continue;
                }
                t->dim[d] = other;
                if (how == 2) {
                    free(t->bytes);
                    t->size = t->size / old * other;
                    t->bytes = calloc(t->size, 1);
                }
                refuse_maker(&m, KVC_ERR_DAMAGED, names[i]);
            }
        for (int d = -1; d <= 1; d += 2) { /* a rank that is another */
            struct maker m = make_good();
            struct tensor *t = tensor_of(&m, names[i]);
            if (d < 0 && t->rank > 1) t->dim[t->rank - 2] *= t->dim[t->rank - 1];
            t->rank = (unsigned)((int)t->rank + d);
            refuse_maker(&m, KVC_ERR_DAMAGED, names[i]);
        }
        struct maker m = make_good(); /* not there */
        snprintf(tensor_of(&m, names[i])->name, sizeof m.tensor[0].name, "gone");
        if (strstr(names[i], "basis") || strcmp(names[i], "layers.0.rope") == 0 ||
            strcmp(names[i], "layers.0.queries") == 0) {
            kvc_profile_free(must_open(&m)); /* then the others count for nothing */
            free_maker(&m);
        } else {
            refuse_maker(&m, KVC_ERR_DAMAGED, names[i]);
        }
    }
    static const float wild[] = {NAN, INFINITY, -INFINITY, 0x1p+100f, -0x1p+100f, 3e38f};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (size_t w = 0; w < sizeof wild / sizeof wild[0]; w++) {
            struct maker m = make_good();
            struct tensor *t = tensor_of(&m, names[i]);
            if (strcmp(t->dtype, "F32") != 0) {
                free_maker(&m);
                continue;
            }
            put_f32(t, t->size / 4 - 1, wild[w]);
            refuse_maker(&m, KVC_ERR_DAMAGED, names[i]);
        }
    static const char *const scales[] = {"layers.0.k.scale", "layers.0.v.scale",
                                         "layers.0.queries.scale"};
    for (size_t i = 0; i < 3; i++) {
        struct maker m = make_good();
        put_f32(tensor_of(&m, scales[i]), 1, -0.001f);
        refuse_maker(&m, KVC_ERR_DAMAGED, "a scale below 0");
    }
}

/* A profile of version 1: V of layer 1, of 4 channels, is predicted from K and V of layer 0, of 16
 * and 10. */
static struct maker make_predicting(void) {
    struct maker m = make_good();
    key_of(&m, "kvc.profile")->value = "1";
    m.key[m.keys++] = (struct key){"predictor.back", "1"};
    struct tensor *t = add_tensor(&m, "layers.0.k.gain", "F32", 2, HEADS, DIM, 1);
    for (size_t i = 0; i < HEADS * DIM; i++) put_f32(t, i, (float)i);
    t = add_tensor(&m, "layers.0.v.gain", "F32", 2, HEADS, DIM_V, 1);
    for (size_t i = 0; i < HEADS * DIM_V; i++) put_f32(t, i, 100 + (float)i);
    t = add_tensor(&m, "layers.1.v.predictor", "I8", 2, DIM_1, HEADS * DIM + HEADS * DIM_V, 1);
    for (size_t i = 0; i < t->size; i++) t->bytes[i] = (uint8_t)i;
    t = add_tensor(&m, "layers.1.v.predictor.scale", "F32", 2, 1, DIM_1, 1);
    for (size_t i = 0; i < DIM_1; i++) put_f32(t, i, 1 + (float)i);
    return m;
}

static void predictors(void **state) {
    (void)state;
    struct kvc_error e;
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        struct maker m = make_predicting();
        struct kvc_profile *p = must_open(&m);
        const enum kvc_pairing pairing = interleaved ? KVC_PAIRING_INTERLEAVED : KVC_PAIRING_HALVES;
        const struct kvc_predictor *x;
        const struct kvc_small *s;
        assert_true(kvc_profile_predicts(p));
        assert_int_equal(kvc_profile_predictor(p, 0, KVC_ROLE_V, pairing, &x, &e), 0);
        assert_null(x);
        assert_int_equal(kvc_profile_predictor(p, 1, KVC_ROLE_V, pairing, &x, &e), 0);
        assert_int_equal(x->n, 2);
        const int8_t *const weights = x->matrix.weights;
        assert_int_equal(x->matrix.outputs, DIM_1);
        /* of 26 channels: each tensor's inputs are rounded up */
        assert_int_equal(x->matrix.inputs, INPUTS);
        assert_int_equal(x->input[1].at, HEADS * DIM);
        assert_int_equal(kvc_profile_small(p, 0, KVC_ROLE_K, pairing, &s, &e), 0);
        for (size_t d = 0; d < HEADS * DIM; d++) { /* channels of K are in the cache's order */
            const size_t to = d / DIM * DIM + channel(d % DIM, HALF, pairing);
            assert_true(s->gain[to] >= (float)d && s->gain[to] <= (float)d);
            for (size_t i = 0; i < DIM_1; i++)
                assert_int_equal(weights[kvc_dot_place(INPUTS, i, to)], (int8_t)(i * 26 + d));
        }
        for (size_t i = 0; i < DIM_1; i++)
            for (size_t j = 16; j < INPUTS; j++)
                assert_int_equal(weights[kvc_dot_place(INPUTS, i, j)],
                                 j < 26 ? (int8_t)(i * 26 + j) : 0);
        assert_int_equal(kvc_profile_small(p, 1, KVC_ROLE_V, pairing, &s, &e), 0);
        assert_null(s);
        kvc_profile_free(p);
        free_maker(&m);
    }
    static const char *const backs[] = {"", "0", "8", "-1", "one"};
    for (size_t i = 0; i < sizeof backs / sizeof backs[0]; i++) {
        struct maker m = make_predicting();
        key_of(&m, "predictor.back")->value = backs[i];
        refuse_maker(&m, KVC_ERR_DAMAGED, backs[i]);
    }
    struct maker m = make_predicting();
    tensor_of(&m, "layers.1.v.predictor")->dim[1]--;
    tensor_of(&m, "layers.1.v.predictor")->size -= DIM_1;
    refuse_maker(&m, KVC_ERR_DAMAGED, "an input too few");
    static const struct {
        const char *tensor;
        float value;
    } numbers[] = {{"layers.0.k.gain", NAN},
                   {"layers.0.k.gain", -1},
                   {"layers.0.v.gain", 0x1p40f},
                   {"layers.1.v.predictor.scale", 0x1p40f},
                   {"layers.1.v.predictor.scale", INFINITY},
                   {"layers.1.v.mean", 0x1p41f}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        m = make_predicting();
        put_f32(tensor_of(&m, numbers[i].tensor), 1, numbers[i].value);
        refuse_maker(&m, KVC_ERR_DAMAGED, numbers[i].tensor);
    }
    static const char *const missing[] = {"layers.1.v.predictor.scale", "layers.0.v.gain",
                                          "layers.0.k.mean"};
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++) {
        m = make_predicting();
        tensor_of(&m, missing[i])->name[0] = 'x';
        refuse_maker(&m, KVC_ERR_DAMAGED, missing[i]);
    }
    m = make_predicting(); /* in version 0 they are other tensors, which mean nothing */
    key_of(&m, "kvc.profile")->value = "0";
    struct kvc_profile *p = must_open(&m);
    assert_false(kvc_profile_predicts(p));
    kvc_profile_free(p);
    free_maker(&m);
}

static void wrong_rope(void **state) {
    (void)state;
    static const double angles[] = {1.0000001, -0.0001, NAN, INFINITY, 2};
    for (size_t i = 0; i < sizeof angles / sizeof angles[0]; i++) {
        struct maker m = make_good();
        put_f64(tensor_of(&m, "layers.0.rope"), i % HALF, angles[i]);
        refuse_maker(&m, KVC_ERR_UNSUPPORTED, "an angle");
    }
    static const double right[] = {1, 0, 0x1p-1070};
    for (size_t i = 0; i < 3; i++) {
        struct maker m = make_good();
        put_f64(tensor_of(&m, "layers.0.rope"), i, right[i]);
        struct kvc_profile *p = must_open(&m);
        assert_true(part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_HALVES, 0)->angle[i] == right[i]);
        kvc_profile_free(p);
        free_maker(&m);
    }
    for (uint64_t half = 4; half <= 5; half++) { /* as many pairs as K's channels make; one more */
        struct maker m = make_good();
        snprintf(tensor_of(&m, "layers.0.rope")->name, sizeof m.tensor[0].name, "gone");
        add_tensor(&m, "layers.0.rope", "F64", 1, half, 1, 1);
        if (half == 5) {
            refuse_maker(&m, KVC_ERR_DAMAGED, "more pairs than channels");
            continue;
        }
        struct kvc_profile *p = must_open(&m);
        assert_int_equal(part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_INTERLEAVED, 1)->half, 4);
        kvc_profile_free(p);
        free_maker(&m);
    }
    struct maker m = make_good(); /* and without queries */
    snprintf(tensor_of(&m, "layers.0.queries")->name, sizeof m.tensor[0].name, "gone");
    snprintf(tensor_of(&m, "layers.0.rope")->name, sizeof m.tensor[0].name, "gone too");
    add_tensor(&m, "layers.0.rope", "F64", 1, 5, 1, 1);
    refuse_maker(&m, KVC_ERR_DAMAGED, "more pairs than channels of K");
    /* where K is missing, queries must still hold what turns */
    m = make_good();
    for (size_t i = 0; i < m.tensors; i++)
        if (strncmp(m.tensor[i].name, "layers.0.k.", 11) == 0) m.tensor[i].name[0] = 'x';
    struct kvc_profile *p = must_open(&m);
    assert_null(part_of(p, 0, KVC_ROLE_K, KVC_PAIRING_INTERLEAVED, 1));
    assert_int_equal(part_of(p, 0, KVC_ROLE_V, KVC_PAIRING_INTERLEAVED, 1)->n_queries, QUERIES);
    kvc_profile_free(p);
    snprintf(tensor_of(&m, "layers.0.rope")->name, sizeof m.tensor[0].name, "gone");
    add_tensor(&m, "layers.0.rope", "F64", 1, 20, 1, 1);
    refuse_maker(&m, KVC_ERR_DAMAGED, "more pairs than channels of queries");
}

/* Query heads that KV heads do not share evenly, and queries of other channels than K's. */
static void wrong_queries(void **state) {
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        const uint64_t heads = i == 0 ? 3 : 4, n = i == 1 ? 4097 : 3,
                       dim = i == 2   ? 7
                             : i == 3 ? 9
                                      : DIM;
        struct maker m = make_good();
        snprintf(tensor_of(&m, "layers.0.queries")->name, sizeof m.tensor[0].name, "gone");
        snprintf(tensor_of(&m, "layers.0.queries.scale")->name, sizeof m.tensor[0].name,
                 "gone too");
        add_tensor(&m, "layers.0.queries", "I8", 3, heads, n, dim);
        add_tensor(&m, "layers.0.queries.scale", "F32", 2, heads, n, 1);
        refuse_maker(&m, KVC_ERR_DAMAGED, "queries");
    }
}

static void wrong_headers(void **state) {
    (void)state;
    struct maker m = make_good();
    char good[MOST_HEADER], header[MOST_HEADER];
    size_t n;
    write_header(&m, good);
    static const struct {
        const char *was, *is;
        enum kvc_code code;
    } cases[] = {
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[24,0]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[-24,0]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[0,24,48]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[0]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[0.0,24.0]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":24", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[9000000,9000024]", KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[9223372036854775783,9223372036854775807]",
         KVC_ERR_DAMAGED},
        {"\"data_offsets\":[0,24]", "\"data_offset\":[0,24]", KVC_ERR_DAMAGED},
        {"\"shape\":[3]", "\"shape\":[\"3\"]", KVC_ERR_DAMAGED},
        {"\"shape\":[3]", "\"shape\":[-3]", KVC_ERR_DAMAGED},
        {"\"shape\":[3]", "\"shape\":3", KVC_ERR_DAMAGED},
        {"\"shape\":[3]", "\"shape\":[]", KVC_ERR_DAMAGED},
        {"\"dtype\":\"F64\"", "\"dtype\":64", KVC_ERR_DAMAGED},
        {"\"dtype\":\"F64\"", "\"type\":\"F64\"", KVC_ERR_DAMAGED},
        {"\"kvc.profile\":\"0\"", "\"kvc.profile\":0", KVC_ERR_DAMAGED},
        {"\"model.layers\":\"3\"", "\"model.layers\":3", KVC_ERR_DAMAGED},
        {"\"__metadata__\":{", "\"__metadata\":{", KVC_ERR_DAMAGED},
        {"}}", "}", KVC_ERR_DAMAGED},
        {"{\"__metadata__\"", "{[\"__metadata__\"", KVC_ERR_DAMAGED},
        {"{\"__metadata__\"", " {\"__metadata__\"", KVC_ERR_UNKNOWN},
        {"610]}", "611]}", KVC_ERR_DAMAGED}, /* of a tensor that nobody reads */
        {"610]}", "609]}", KVC_ERR_DAMAGED},
        {",610]}", "]}", KVC_ERR_DAMAGED},
        {"Tiny", "\xff\xfe", KVC_ERR_DAMAGED},
        {"Tiny", "\\u0000", KVC_ERR_DAMAGED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *at = strstr(good, cases[i].was);
        assert_non_null(at);
        if (strcmp(cases[i].was, "}}") == 0) at = strrchr(good, '}') - 1;
        header[0] = '\0';
        append(header, "%.*s%s%s", (int)(at - good), good, cases[i].is, at + strlen(cases[i].was));
        uint8_t *bytes = render_with(&m, header, &n);
        refuse(bytes, n, cases[i].code, cases[i].is);
        free(bytes);
    }
    /* a key with a rest that is no header is none */
    const uint8_t list[] = {2, 0, 0, 0, 0, 0, 0, 0, '[', ']'},
                  nothing[] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    refuse(list, sizeof list, KVC_ERR_UNKNOWN, "a list");
    refuse(nothing, sizeof nothing, KVC_ERR_UNKNOWN, "an empty header");
    uint8_t *bytes = render(&m, &n);
    static const uint64_t sizes[] = {0, 1, UINT64_MAX, UINT64_MAX - 7, UINT64_C(1) << 63};
    for (size_t i = 0; i < 5; i++) {
        for (unsigned b = 0; b < 8; b++) bytes[b] = (uint8_t)(sizes[i] >> 8 * b & 255);
        refuse(bytes, n, KVC_ERR_UNKNOWN, "the header's size");
    }
    free(bytes);
    free_maker(&m);
}

/* Any shorter file is none, and any changed byte is refused in words, or changes what is read and
 * nothing else. */
static void cut_and_changed(void **state) {
    (void)state;
    struct maker m = make_good();
    size_t n;
    uint8_t *bytes = render(&m, &n);
    for (size_t cut = 0; cut < n; cut++) {
        struct kvc_error e = {.code = KVC_OK};
        uint8_t *own = malloc(cut); /* so that a sanitizer sees the end */
        if (cut) memcpy(own, bytes, cut);
        struct kvc_profile *p = kvc_profile_open_memory(own, cut, &e);
        if (p) fail_msg("%zu bytes of %zu are taken", cut, n);
        assert_true((e.code == KVC_ERR_UNKNOWN || e.code == KVC_ERR_DAMAGED) &&
                    strlen(e.message) > 10);
        free(own);
    }
    for (size_t i = 0; i < n; i++) {
        struct kvc_error e = {.code = KVC_OK};
        const struct kvc_profile_part *part;
        const uint8_t old = bytes[i];
        bytes[i] = (uint8_t)(bytes[i] ^ (1 + random_bits() % 255));
        struct kvc_profile *p = kvc_profile_open_memory(bytes, n, &e);
        bytes[i] = old;
        for (uint32_t k = 0; p && k < 12; k++)
            if (kvc_profile_part(p, k / 4, k % 2 ? KVC_ROLE_K : KVC_ROLE_V,
                                 k & 2 ? KVC_PAIRING_INTERLEAVED : KVC_PAIRING_HALVES, 1, &part,
                                 &e))
                assert_true(strlen(e.message) > 10);
        if (!p) assert_true(strlen(e.message) > 10);
        kvc_profile_free(p);
    }
    free(bytes);
    free_maker(&m);
}

/* --- caches --- */

struct geometry {
    uint32_t layer;                          /* number in the model */
    uint64_t k_heads, k_dim, v_heads, v_dim; /* 0 heads: no such tensor */
};

static struct kvc_cache *make_cache(const struct geometry *g, const char *pairing) {
    static const uint8_t rows[4096];
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    const uint32_t part = kvc_cache_add_part(c, KVC_PART_LIVE, 4, &e);
    uint32_t layer = kvc_cache_add_layer(c, part, g->layer, KVC_LAYER_FULL, &e);
    if (kvc_cache_map(c, NULL, NULL, &e)) fail_msg("%s", e.message);
    for (unsigned v = 0; v < 2; v++) {
        const struct kvc_shape shape = {KVC_F32, 4, v ? g->v_heads : g->k_heads,
                                        v ? g->v_dim : g->k_dim};
        if (!shape.heads) continue;
        const uint32_t t = kvc_cache_add_tensor(c, layer, v ? KVC_ROLE_V : KVC_ROLE_K, &shape, &e);
        if (t == KVC_NONE || kvc_cache_map_memory(c, t, rows, &e)) fail_msg("%s", e.message);
    }
    if (pairing && kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, pairing, &e))
        fail_msg("%s", e.message);
    if (kvc_cache_finish(c, &e)) fail_msg("%s", e.message);
    return c;
}

static const struct geometry right = {0, HEADS, DIM, HEADS, DIM_V};

static void fits(const struct kvc_profile *p, struct kvc_cache *c, enum kvc_code code,
                 const char *what) {
    struct kvc_error e = {.code = KVC_OK};
    const int status = kvc_profile_fits(p, c, &e);
    if (code == KVC_OK ? status != 0 : status != -1 || e.code != code || strlen(e.message) < 20)
        fail_msg("%s: code %d: %s", what, (int)e.code, status ? e.message : "fits");
    kvc_cache_free(c);
}

static struct kvc_cache *with_text(struct kvc_cache *c, const char *key, const char *value) {
    struct kvc_error e;
    if (kvc_meta_set_text(&c->meta, key, value, &e)) fail_msg("%s", e.message);
    return c;
}

static struct kvc_cache *with_number(struct kvc_cache *c, const char *key, double value) {
    struct kvc_error e;
    const int whole = strcmp(key, KVC_KEY_ROPE_THETA) != 0 && strcmp(key, KVC_KEY_ROPE_FACTOR) != 0;
    if (whole ? kvc_meta_set_u64(&c->meta, key, (uint64_t)value, &e)
              : kvc_meta_set_f64(&c->meta, key, value, &e))
        fail_msg("%s", e.message);
    return c;
}

static struct kvc_cache *with_bytes(struct kvc_cache *c, const char *key, uint8_t last, size_t n) {
    uint8_t bytes[32] = {0x01, 0xab};
    struct kvc_error e;
    bytes[31] = last;
    if (kvc_meta_set_bytes(&c->meta, key, bytes, n, &e)) fail_msg("%s", e.message);
    return c;
}

static struct kvc_cache *with_rope(struct kvc_cache *c, double theta, double rotated) {
    with_text(c, KVC_KEY_ROPE_TYPE, "default");
    with_number(c, KVC_KEY_ROPE_THETA, theta);
    return with_number(c, KVC_KEY_ROPE_DIM, rotated);
}

static void caches(void **state) {
    (void)state;
    struct maker m = make_good();
    m.key[m.keys++] =
        (struct key){"model.fingerprint.gguf.full",
                     "01ab000000000000000000000000000000000000000000000000000000000007"};
    struct kvc_profile *p = must_open(&m);
    fits(p, make_cache(&right, "halves"), KVC_OK, "halves");
    fits(p, make_cache(&right, "interleaved"), KVC_OK, "interleaved");
    fits(p, make_cache(&right, NULL), KVC_ERR_UNSUPPORTED, "a pairing that is not known");
    static const struct {
        struct geometry g;
        enum kvc_code code;
    } cases[] = {
        {{0, 1, DIM, HEADS, DIM_V}, KVC_ERR_MODEL},
        {{0, HEADS, DIM + 2, HEADS, DIM_V}, KVC_ERR_MODEL},
        {{0, 1, HEADS * DIM, HEADS, DIM_V}, KVC_ERR_MODEL},
        {{0, HEADS, DIM, 1, HEADS * DIM_V}, KVC_ERR_MODEL},
        {{0, HEADS, DIM, HEADS, DIM}, KVC_ERR_MODEL},
        {{0, HEADS, DIM, 0, 0}, KVC_OK},
        {{0, 0, 0, HEADS, DIM_V}, KVC_OK},
        {{1, 5, 7, 1, DIM_1}, KVC_OK}, /* of K it knows nothing */
        {{1, 5, 7, 1, DIM_1 + 1}, KVC_ERR_MODEL},
        {{2, 9, 9, 9, 9}, KVC_OK},
        {{3, HEADS, DIM, HEADS, DIM_V}, KVC_ERR_MODEL},
        {{4000000000, 1, 1, 1, 1}, KVC_ERR_MODEL},
        {{0, 0, 0, 0, 0}, KVC_ERR_MODEL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        fits(p, make_cache(&cases[i].g, "halves"), cases[i].code, "a geometry");
    fits(p, with_number(make_cache(&right, "halves"), KVC_KEY_MODEL_LAYERS, 3), KVC_OK,
         "as many layers");
    fits(p, with_number(make_cache(&right, "halves"), KVC_KEY_MODEL_LAYERS, 4), KVC_ERR_MODEL,
         "other layers");
    /* fingerprints: of one kind the same or not, of another kind no matter */
    static const char full[] = "model.fingerprint.gguf.full",
                      sampled[] = "model.fingerprint.gguf.sampled";
    fits(p, with_bytes(make_cache(&right, "halves"), full, 7, 32), KVC_OK, "the same weights");
    fits(p, with_bytes(make_cache(&right, "halves"), full, 8, 32), KVC_ERR_MODEL, "other weights");
    fits(p, with_bytes(make_cache(&right, "halves"), sampled, 8, 32), KVC_OK, "another kind");
    fits(p, with_bytes(make_cache(&right, "halves"), full, 8, 16), KVC_OK, "no fingerprint at all");
    /* RoPE: what the cache says of it is the profile's, or not; where it says too little it is
     * believed */
    fits(p, with_rope(make_cache(&right, "halves"), 10000, 2 * HALF), KVC_OK, "the same RoPE");
    fits(p, with_rope(make_cache(&right, "halves"), 500000, 2 * HALF), KVC_ERR_MODEL,
         "another base");
    fits(p, with_rope(make_cache(&right, "halves"), 10000, DIM), KVC_ERR_MODEL, "other channels");
    fits(p,
         with_text(with_rope(make_cache(&right, "halves"), 500000, 6), KVC_KEY_ROPE_TYPE, "yarn"),
         KVC_OK, "YaRN");
    kvc_profile_free(p);
    free_maker(&m);
    /* K as it stands in caches of one pairing */
    m = make_good();
    snprintf(tensor_of(&m, "layers.0.rope")->name, sizeof m.tensor[0].name, "gone");
    m.key[m.keys++] = (struct key){"rope.pairing", "interleaved"};
    p = must_open(&m);
    fits(p, make_cache(&right, "interleaved"), KVC_OK, "the pairing");
    fits(p, make_cache(&right, "halves"), KVC_ERR_MODEL, "the other pairing");
    fits(p, make_cache(&right, NULL), KVC_OK, "no pairing");
    kvc_profile_free(p);
    free_maker(&m);
}

/* Angles of a layer, from the profile's part or from what the metadata tell. */
static void angles_of_caches(void **state) {
    (void)state;
    static const double own[] = {1, 0.5, 0.25};
    static const struct kvc_profile_part turned = {.heads = HEADS,
                                                   .dim = DIM,
                                                   .half = 3,
                                                   .angle = own};
    static const struct kvc_profile_part still = {.heads = HEADS, .dim = DIM};
    static const struct {
        const char *type, *pairing, *k;
        double theta, rotated, factor;
        const struct kvc_profile_part *part;
        size_t half; /* 0: no angles */
    } cases[] = {
        {"default", "halves", NULL, 10000, 0, 0, NULL, 4},
        {"default", "interleaved", "post", 500000, 6, 0, NULL, 3},
        {"linear", "halves", NULL, 10000, 8, 4, NULL, 4},
        {"yarn", "halves", NULL, 10000, 8, 4, NULL, 0},
        {"llama3", "halves", NULL, 10000, 8, 0, NULL, 0},
        {NULL, "halves", NULL, 10000, 8, 0, NULL, 0},
        {"default", NULL, NULL, 10000, 8, 0, NULL, 0},
        {"default", "none", NULL, 10000, 8, 0, NULL, 0},
        {"default", "halves", "pre", 10000, 8, 0, NULL, 0},
        {"default", "halves", NULL, 0, 8, 0, NULL, 0},
        {"default", "halves", NULL, 10000, 7, 0, NULL, 0},
        {"default", "halves", NULL, 10000, 10, 0, NULL, 0},
        {"linear", "halves", NULL, 10000, 8, 0.5, NULL, 0},
        {"yarn", "halves", NULL, 0, 0, 0, &turned, 3},
        {"default", "halves", NULL, 10000, 8, 0, &still, 0},
        {"default", "halves", "pre", 10000, 8, 0, &turned, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvc_cache *c = make_cache(&right, cases[i].pairing);
        struct kvc_rope_facts facts;
        struct kvc_error e;
        double *room;
        if (cases[i].type) with_text(c, KVC_KEY_ROPE_TYPE, cases[i].type);
        if (cases[i].k) with_text(c, KVC_KEY_ROPE_K, cases[i].k);
        if (cases[i].theta > 0) with_number(c, KVC_KEY_ROPE_THETA, cases[i].theta);
        if (cases[i].rotated > 0) with_number(c, KVC_KEY_ROPE_DIM, cases[i].rotated);
        if (cases[i].factor > 0) with_number(c, KVC_KEY_ROPE_FACTOR, cases[i].factor);
        if (kvc_rope_of_layer(c, 0, cases[i].part, &facts, &room, &e)) fail_msg("%s", e.message);
        if (!facts.angle != !cases[i].half)
            fail_msg("case %zu: there are %s angles", i, facts.angle ? "such" : "no");
        if (facts.angle) {
            assert_int_equal(facts.half, cases[i].half);
            assert_int_equal(facts.of_profile, cases[i].part != NULL);
            assert_int_equal(facts.pairing, strcmp(cases[i].pairing, "halves") == 0 ? 1 : 2);
        }
        for (size_t k = 0; facts.angle && k < facts.half; k++) {
            const double factor = cases[i].factor > 0 ? cases[i].factor : 1;
            const double want = cases[i].part
                                    ? own[k]
                                    : pow(cases[i].theta, -(double)k / (double)facts.half) / factor;
            assert_true(fabs(facts.angle[k] - want) <= 1e-15 * want);
        }
        free(room);
        kvc_cache_free(c);
    }
}

/* --- finding --- */

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kvc-profile-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void put_file(const char *name, const uint8_t *bytes, size_t n) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Where a profile is found from: the path given, a folder, more folders; all below the test's. */
static int found(const uint8_t *hash, const char *given, const char *in, const char *path,
                 struct kvc_error *e) {
    char where[3][256] = {"", "", ""};
    if (given) snprintf(where[0], sizeof where[0], "%s/%s", folder, given);
    if (in) snprintf(where[1], sizeof where[1], "%s/%s", folder, in);
    if (path) snprintf(where[2], sizeof where[2], "/nowhere::%s/empty:%s/%s", folder, folder, path);
    memset(e, 0, sizeof *e);
    const struct kvc_profile_places searched = {given ? where[0] : NULL, in ? where[1] : NULL,
                                                path ? where[2] : NULL, NULL};
    struct kvc_profile *p = kvc_profile_find(hash, "Tiny", &searched, e);
    if (p) assert_memory_equal(kvc_profile_sha256(p), hash, 32);
    kvc_profile_free(p);
    return p != NULL;
}

static void places(void **state) {
    (void)state;
    struct maker m = make_good(), other = make_good();
    struct kvc_error e;
    uint8_t hash[32], wrong[32] = {0x5a, 0x01};
    char path[200];
    size_t n, n_other;
    key_of(&other, "model.name")->value = "Another";
    uint8_t *bytes = render(&m, &n), *others = render(&other, &n_other);
    assert_int_equal(kvc_sha256(bytes, n, hash, &e), 0);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, (const char *[]){"empty", "a", "b"}[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    put_file("a/other.kvcp", others, n_other);
    put_file("a/cut.kvcp", bytes, n - 40);
    put_file("a/the one.kvcp", bytes, n);
    put_file("b/.kvcp", bytes, n);
    put_file("b/profile", bytes, n);
    put_file("b/profile.kvcp.bak", bytes, n);
    assert_true(found(hash, NULL, "a", NULL, &e));
    assert_true(found(hash, NULL, NULL, "a", &e));
    assert_true(found(hash, "b/profile", NULL, NULL, &e)); /* whatever it is called */
    assert_true(found(hash, "a/other.kvcp", "a", NULL, &e));
    assert_true(found(hash, "nowhere", "empty", "a", &e));
    assert_false(found(hash, NULL, NULL, NULL, &e));
    assert_false(found(hash, NULL, "b", "b", &e)); /* other names are none */
    assert_int_equal(e.code, KVC_ERR_MODEL);
    assert_non_null(strstr(e.message, "Tiny"));
    char hex[65];
    kvc_hex(hash, 32, hex);
    assert_non_null(strstr(e.message, hex));
    assert_false(found(hash, NULL, "nowhere", "nowhere", &e));
    assert_false(found(hash, "a/other.kvcp", NULL, NULL, &e));
    assert_int_equal(e.code, KVC_ERR_MODEL);
    assert_non_null(strstr(e.message, "Another"));
    assert_false(found(hash, "a/cut.kvcp", NULL, NULL, &e));
    assert_non_null(strstr(e.message, "cut.kvcp"));
    assert_false(found(wrong, "a/the one.kvcp", "a", "a", &e));
    assert_int_equal(e.code, KVC_ERR_MODEL);

    snprintf(path, sizeof path, "%s/a/the one.kvcp", folder);
    struct kvc_profile *p = kvc_profile_open(path, &e);
    if (!p) fail_msg("%s", e.message);
    assert_memory_equal(kvc_profile_sha256(p), hash, 32);
    kvc_profile_free(p);
    snprintf(path, sizeof path, "%s/a/cut.kvcp", folder);
    assert_null(kvc_profile_open(path, &e));
    assert_int_equal(e.code, KVC_ERR_DAMAGED);
    assert_non_null(strstr(e.message, path));
    snprintf(path, sizeof path, "%s/none.kvcp", folder);
    assert_null(kvc_profile_open(path, &e));
    assert_int_equal(e.code, KVC_ERR_IO);
    assert_non_null(strstr(e.message, path));
    free(bytes);
    free(others);
    free_maker(&m);
    free_maker(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_says),
        cmocka_unit_test(no_inverse),
        cmocka_unit_test(wrong_metadata),
        cmocka_unit_test(wrong_tensors),
        cmocka_unit_test(predictors),
        cmocka_unit_test(wrong_rope),
        cmocka_unit_test(wrong_queries),
        cmocka_unit_test(wrong_headers),
        cmocka_unit_test(cut_and_changed),
        cmocka_unit_test(caches),
        cmocka_unit_test(angles_of_caches),
        cmocka_unit_test_setup_teardown(places, make_folder, remove_folder),
    };
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
