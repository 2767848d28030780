/* arrays_support.h: what the tests of named-array formats share. Not for other tests. */
#ifndef ARRAYS_SUPPORT_H
#define ARRAYS_SUPPORT_H

#include "formats/cache/mapped.h"
#include "formats/file/restore.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <openssl/evp.h>

/* Imports bytes that stay the caller's; the cache must be there. */
static inline struct kvc_cache *import_bytes(const struct kvc_format *format, struct kvc_input *in,
                                             const void *data, size_t n,
                                             const struct kvc_import_options *o) {
    struct kvc_error e;
    kvc_input_memory(in, "test", data, n);
    struct kvc_cache *c = kvc_format_import(format, in, o, &e);
    if (!c) fail_msg("%s", e.message);
    return c;
}

/* Import must refuse with this code, and say `words`. */
static inline void refuse_bytes(const struct kvc_format *format, const void *data, size_t n,
                                const struct kvc_import_options *o, enum kvc_code code,
                                const char *words) {
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_input in;
    kvc_input_memory(&in, "test", data, n);
    struct kvc_cache *c = kvc_format_import(format, &in, o, &e);
    assert_null(c);
    if (e.code != code || !strstr(e.message, words))
        fail_msg("code %d: %s", (int)e.code, e.message);
    kvc_input_close(&in);
}

/* All rows of a tensor, canonical; free() them. */
static inline uint8_t *read_all(const struct kvc_cache *c, uint32_t t, size_t *n) {
    struct kvc_error e;
    *n = (size_t)kvc_tensor_bytes(&c->tensor[t]);
    uint8_t *rows = malloc(*n + 1);
    assert_non_null(rows);
    if (c->read(c, t, 0, c->tensor[t].shape.tokens, rows, &e)) fail_msg("%s", e.message);
    return rows;
}

/* The extents put together must be the file again. */
static inline void assert_source_is(const struct kvc_cache *c, const void *data, size_t n) {
    struct kvc_buffer b = {0};
    struct kvc_sink out = kvc_sink_buffer(&b);
    struct kvc_error e;
    assert_true(c->n_extents > 0);
    if (kvc_source_write(c, 1, &out, &e)) fail_msg("%s", e.message);
    assert_int_equal(b.n, n);
    assert_memory_equal(b.data, data, n);
    free(b.data);
}

/* Every truncation is refused. With a flipped bit in the first `flipped` bytes, the file is refused
 * or loses no byte, if its values are `in_place`, and its rows can be read. */
static inline void mutate(const struct kvc_format *format, uint8_t *data, size_t n, size_t flipped,
                          int in_place) {
    struct kvc_input in;
    struct kvc_error e;
    for (size_t cut = 0; cut < n; cut++) {
        kvc_input_memory(&in, "test", data, cut);
        assert_null(kvc_format_import(format, &in, NULL, &e));
        assert_true(*e.message);
        kvc_input_close(&in);
    }
    for (size_t bit = 0; bit < 8 * flipped; bit++) {
        size_t bytes;
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        kvc_input_memory(&in, "test", data, n);
        struct kvc_cache *c = kvc_format_import(format, &in, NULL, &e);
        if (c && (in_place || c->n_extents)) assert_source_is(c, data, n);
        for (uint32_t t = 0; c && t < c->n_tensors; t++) free(read_all(c, t, &bytes));
        kvc_cache_free(c);
        kvc_input_close(&in);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

/* Two caches hold the same parts, positions, layers, tensors, tokens and rows. */
static inline void assert_same_cache(const struct kvc_cache *a, const struct kvc_cache *b) {
    assert_int_equal(a->n_parts, b->n_parts);
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->n_tensors, b->n_tensors);
    assert_int_equal(a->n_tokens, b->n_tokens);
    if (a->n_tokens) assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens);
    for (uint32_t i = 0; i < a->n_parts; i++) {
        assert_int_equal(a->part[i].kind, b->part[i].kind);
        const struct kvc_cells *x = &a->part[i].cells, *y = &b->part[i].cells;
        assert_int_equal(x->n, y->n);
        for (uint64_t k = 0; k < x->n; k++)
            assert_int_equal(x->pos[kvc_cell_at(x, k)], y->pos[kvc_cell_at(y, k)]);
    }
    for (uint32_t i = 0; i < a->n_layers; i++) {
        assert_int_equal(a->layer[i].part, b->layer[i].part);
        assert_int_equal(a->layer[i].index, b->layer[i].index);
        for (unsigned k = 0; k < 2; k++) {
            uint32_t ta = a->layer[i].tensor[k], tb = b->layer[i].tensor[k];
            assert_int_equal(ta == KVC_NONE, tb == KVC_NONE);
            if (ta == KVC_NONE) continue;
            assert_int_equal(a->tensor[ta].role, b->tensor[tb].role);
            assert_int_equal(a->tensor[ta].shape.dtype, b->tensor[tb].shape.dtype);
            assert_int_equal(a->tensor[ta].shape.heads, b->tensor[tb].shape.heads);
            assert_int_equal(a->tensor[ta].shape.dim, b->tensor[tb].shape.dim);
            size_t na, nb;
            uint8_t *ra = read_all(a, ta, &na), *rb = read_all(b, tb, &nb);
            assert_memory_equal(ra, rb, na);
            free(ra);
            free(rb);
        }
    }
}

/* Exports; free() the buffer's data. */
static inline struct kvc_buffer export_bytes(const struct kvc_format *format,
                                             const struct kvc_cache *c) {
    struct kvc_buffer b = {0};
    struct kvc_sink out = kvc_sink_buffer(&b);
    struct kvc_error e;
    if (kvc_export(format, c, NULL, &out, &e)) fail_msg("%s", e.message);
    return b;
}

/* Export must refuse with this code, say `words` and write nothing. */
static inline void refuse_export(const struct kvc_format *format, const struct kvc_cache *c,
                                 const struct kvc_export_options *o, enum kvc_code code,
                                 const char *words) {
    struct kvc_buffer b = {0};
    struct kvc_sink out = kvc_sink_buffer(&b);
    struct kvc_error e = {.code = KVC_OK};
    assert_int_equal(kvc_export(format, c, o, &out, &e), -1);
    if (e.code != code || !strstr(e.message, words))
        fail_msg("code %d: %s", (int)e.code, e.message);
    assert_int_equal(b.n, 0);
}

/* A cache of `layers` layers in raw's order; tests then change its cells and metadata. */
static inline struct kvc_cache *raw_cache(struct kvc_input *in, const void *data, size_t n,
                                          const char *dtype, uint64_t layers, uint64_t tokens,
                                          uint64_t heads, uint64_t dim, enum kvc_pairing pairing) {
    char text[160];
    snprintf(text, sizeof text, "raw:dtype=%s,layers=%llu,tokens=%llu,heads=%llu,dim=%llu", dtype,
             (unsigned long long)layers, (unsigned long long)tokens, (unsigned long long)heads,
             (unsigned long long)dim);
    const struct kvc_import_options o = {.format = text, .pairing = pairing};
    return import_bytes(&kvc_format_raw, in, data, n, &o);
}

/* Gives a part other positions. */
static inline void set_positions(struct kvc_cache *c, uint32_t part, const int64_t *pos) {
    struct kvc_error e;
    memcpy(c->part[part].cells.pos, pos, (size_t)c->part[part].cells.n * sizeof *pos);
    if (kvc_cells_arrange(&c->part[part].cells, &e)) fail_msg("%s", e.message);
}

/* Adds a part of the given kind and stream with one layer, whose K and V lie at `data`. */
static inline uint32_t add_part(struct kvc_cache *c, enum kvc_part_kind kind, uint32_t stream,
                                uint32_t index, uint64_t tokens, const uint8_t *data) {
    struct kvc_error e;
    struct kvc_shape shape = c->tensor[0].shape;
    uint32_t part = kvc_cache_add_part(c, kind, tokens, &e);
    shape.tokens = tokens;
    c->part[part].stream = stream;
    uint32_t layer = kvc_cache_add_layer(c, part, index,
                                         kind == KVC_PART_WINDOW ? KVC_LAYER_WINDOW
                                                                 : KVC_LAYER_FULL,
                                         &e);
    for (unsigned k = 0; k < 2; k++) {
        uint32_t t = kvc_cache_add_tensor(c, layer, k ? KVC_ROLE_V : KVC_ROLE_K, &shape, &e);
        assert_true(t != KVC_NONE);
        assert_int_equal(kvc_cache_map_memory(c, t, data, &e), 0);
    }
    if (kvc_cache_finish(c, &e)) fail_msg("%s", e.message);
    return part;
}

/* Exported and imported again the cache must be the same; `check`, if there is one, gets what came
 * back. */
static inline void assert_round_trip(const struct kvc_format *format, const struct kvc_cache *c,
                                     void (*check)(const struct kvc_cache *back)) {
    struct kvc_input in;
    struct kvc_buffer b = export_bytes(format, c);
    struct kvc_cache *back = import_bytes(format, &in, b.data, b.n, NULL);
    assert_same_cache(c, back);
    if (check) check(back);
    kvc_cache_free(back);
    kvc_input_close(&in);
    free(b.data);
}

/* --- real files, when $KVC_TEST_DATA names their directory --- */

static inline const char *data_path(const char *file, char *path, size_t size) {
    const char *dir = getenv("KVC_TEST_DATA");
    if (!dir || !*dir) skip();
    snprintf(path, size, "%s/%s", dir, file);
    return path;
}

static inline void open_data(struct kvc_input *in, const char *file) {
    char path[512];
    struct kvc_error e;
    if (kvc_input_open(in, data_path(file, path, sizeof path), &e) ||
        kvc_input_pin(in, 0, in->size, &e))
        fail_msg("%s", e.message);
}

/* A real file of any format, as it is imported without options. */
static inline struct kvc_cache *open_real(struct kvc_input *in, const char *file) {
    struct kvc_error e;
    open_data(in, file);
    struct kvc_cache *c = kvc_import_file(in, NULL, NULL, &e);
    if (!c) fail_msg("%s", e.message);
    return c;
}

/* What index.json says about a file; json_decref() *index. */
static inline const json_t *data_facts(const char *file, json_t **index) {
    char path[512];
    size_t i;
    json_t *entry;
    *index = json_load_file(data_path("index.json", path, sizeof path), 0, NULL);
    assert_non_null(*index);
    json_array_foreach(json_object_get(*index, "files"), i,
                       entry) if (strcmp(json_string_value(json_object_get(entry, "path")), file) ==
                                  0) return entry;
    fail_msg("%s is not in index.json", file);
    return NULL;
}

static inline void assert_sha256(const uint8_t *data, size_t n, const char *hex) {
    uint8_t hash[32];
    char text[65];
    assert_int_equal(EVP_Digest(data, n, hash, NULL, EVP_sha256(), NULL), 1);
    for (int i = 0; i < 32; i++) snprintf(text + 2 * i, 3, "%02x", hash[i]);
    assert_string_equal(text, hex);
}

/* Checks a cache against the facts of its file: geometry, first tokens, K and V of layer 0. */
static inline void assert_facts(const struct kvc_cache *c, const json_t *facts) {
    uint64_t layers = (uint64_t)json_integer_value(json_object_get(facts, "layers"));
    uint64_t tokens = (uint64_t)json_integer_value(json_object_get(facts, "tokens"));
    const json_t *first = json_object_get(facts, "first_tokens");
    assert_true(c->n_layers >= layers);
    assert_int_equal(c->part[0].kind, KVC_PART_LIVE);
    assert_int_equal(c->part[0].cells.n, tokens);
    if (first) assert_int_equal(c->n_tokens, tokens);
    for (size_t i = 0; i < json_array_size(first); i++)
        assert_int_equal(c->tokens[i], json_integer_value(json_array_get(first, i)));
    for (unsigned k = 0; k < 2; k++) {
        uint32_t t = kvc_cache_find_tensor(c, 0, 0, k ? KVC_ROLE_V : KVC_ROLE_K);
        assert_true(t != KVC_NONE);
        const struct kvc_shape *shape = &c->tensor[t].shape;
        assert_int_equal(shape->heads, json_integer_value(json_object_get(facts, "kv_heads")));
        assert_int_equal(shape->dim, json_integer_value(json_object_get(facts, "head_dim")));
        size_t n, values = (size_t)(shape->tokens * shape->heads * shape->dim);
        uint8_t *rows = read_all(c, t, &n);
        assert_sha256(rows, n,
                      json_string_value(json_object_get(facts, k ? "v0_sha256" : "k0_sha256")));
        float *floats = malloc(values * sizeof *floats);
        assert_non_null(floats);
        kvc_dtype_info(shape->dtype)->to_f32(floats, rows, values);
        double sum = 0, want = json_number_value(
                            json_object_get(json_object_get(facts, k ? "v0" : "k0"), "sum"));
        for (size_t i = 0; i < values; i++) sum += (double)floats[i];
        assert_true(sum - want < 1e-6 && want - sum < 1e-6);
        free(floats);
        free(rows);
    }
    if (json_object_get(facts, "queries0_sha256")) {
        const struct kvc_part *last = &c->part[c->n_parts - 1];
        assert_true(kvc_cache_find_tensor(c, c->n_parts - 1, 0, KVC_ROLE_QUERIES) != KVC_NONE);
        assert_int_equal(last->cells.pos[0] + 64, c->part[0].cells.n);
    }
}

/* A real file has its facts and, where its values are `in_place`, its bytes; an export of it is
 * the same cache. */
static inline void assert_real(const struct kvc_format *format, const char *file,
                               const struct kvc_import_options *o, int in_place) {
    struct kvc_input in, again;
    struct kvc_error e;
    json_t *index;
    const json_t *facts = data_facts(file, &index);
    open_data(&in, file);
    struct kvc_cache *c = kvc_format_import(format, &in, o, &e);
    if (!c) fail_msg("%s: %s", file, e.message);
    assert_facts(c, facts);
    if (in_place) assert_source_is(c, in.data, (size_t)in.size);
    else assert_int_equal(c->n_extents, 0);
    struct kvc_buffer b = export_bytes(format, c);
    struct kvc_cache *d = import_bytes(format, &again, b.data, b.n, NULL);
    assert_same_cache(c, d);
    kvc_cache_free(d);
    kvc_cache_free(c);
    kvc_input_close(&again);
    kvc_input_close(&in);
    free(b.data);
    json_decref(index);
}

#endif
