/* container_support.h: caches made of seeds and positions, packed, opened and compared, for the
 * tests of the container. Not for other tests. */
#ifndef CONTAINER_SUPPORT_H
#define CONTAINER_SUPPORT_H

#include "values_support.h"

#include "formats/cache/mapped.h"
#include "tests/recipe_text.h"
#include "formats/file/restore.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix.h"
#include "formats/container/records.h"
#include "formats/cache/view.h"
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- synthetic caches --- */

enum { MAX_BLOCKS_OF_MEMORY = 64 };

struct memory { /* what a cache's tensors and literals lie in */
    void *block[MAX_BLOCKS_OF_MEMORY];
    size_t n;
};

static inline void memory_free(void *owner) {
    struct memory *m = owner;
    for (size_t i = 0; i < m->n; i++) free(m->block[i]);
    free(m);
}

static inline uint8_t *remember(struct memory *m, size_t n) {
    assert_in_range(m->n, 0, MAX_BLOCKS_OF_MEMORY - 1);
    return m->block[m->n++] = get_memory(n);
}

/* A cache under construction; the first error ends the test. */
struct builder {
    struct kvc_cache *c;
    struct memory *m;
    struct kvc_error e;
};

static inline struct builder begin(void) {
    struct builder b = {0};
    b.c = kvc_cache_new(&b.e);
    b.m = calloc(1, sizeof *b.m);
    assert_non_null(b.c);
    assert_non_null(b.m);
    assert_int_equal(kvc_cache_map(b.c, memory_free, b.m, &b.e), 0);
    return b;
}

static inline uint32_t add_part(struct builder *b, enum kvc_part_kind kind, uint64_t cells,
                                int64_t first) {
    uint32_t part = kvc_cache_add_part(b->c, kind, cells, &b->e);
    assert_int_not_equal(part, KVC_NONE);
    for (uint64_t i = 0; i < cells; i++) b->c->part[part].cells.pos[i] = first + (int64_t)i;
    return part;
}

static inline uint32_t add_layer(struct builder *b, uint32_t part, uint32_t index,
                                 enum kvc_layer_kind kind) {
    uint32_t layer = kvc_cache_add_layer(b->c, part, index, kind, &b->e);
    assert_int_not_equal(layer, KVC_NONE);
    return layer;
}

static inline uint64_t mix(uint64_t x) {
    x ^= x >> 31;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 32;
}

/* A row that depends on seed and position only; its odd bytes are few different ones, as exponents
 * are. */
static inline void make_row(uint8_t *row, uint64_t n, uint64_t seed, int64_t pos) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t x = mix(seed << 48 ^ (uint64_t)pos << 20 ^ i);
        row[i] = (uint8_t)(i & 1 ? 0x38 + (x & 3) : x);
    }
}

enum layout { CANONICAL, HEADS_FIRST, TRANSPOSED };

static inline void add_tensor(struct builder *b, uint32_t layer, enum kvc_role role,
                              enum kvc_dtype dtype, uint64_t heads, uint64_t dim, uint64_t seed,
                              enum layout layout) {
    const struct kvc_cells *cells = &b->c->part[b->c->layer[layer].part].cells;
    struct kvc_shape shape = {.dtype = dtype, .tokens = cells->n, .heads = heads, .dim = dim};
    uint32_t t = kvc_cache_add_tensor(b->c, layer, role, &shape, &b->e);
    if (t == KVC_NONE) fail_msg("%s", b->e.message);
    struct kvc_tensor *tensor = &b->c->tensor[t];
    uint64_t size = kvc_dtype_info(dtype)->size;
    if (layout == HEADS_FIRST) tensor->source = kvc_strides_heads_first(&shape);
    if (layout == TRANSPOSED)
        tensor->source = (struct kvc_strides){size, dim * cells->n * size, cells->n * size};
    uint8_t *base = remember(b->m, (size_t)tensor->source_size),
            *row = get_memory((size_t)kvc_row_bytes(&shape));
    for (uint64_t i = 0; i < cells->n; i++) {
        make_row(row, kvc_row_bytes(&shape), seed, cells->pos[i]);
        kvc_rows_scatter(base, row, &shape, &tensor->source, i, 1, 0);
    }
    free(row);
    uint8_t *text = remember(b->m, 32);
    int n = snprintf((char *)text, 32, "tensor %u\n", (unsigned)t);
    struct kvc_input *in = (void *)remember(b->m, sizeof *in);
    kvc_input_memory(in, "text", text, (size_t)n);
    if (kvc_cache_map_memory(b->c, t, base, &b->e) ||
        kvc_cache_extent_literal(b->c, in, 0, in->size, &b->e) ||
        kvc_extents_tensor(b->c, t, &b->e))
        fail_msg("%s", b->e.message);
}

static inline struct kvc_cache *finish(struct builder *b) {
    if (kvc_cache_finish(b->c, &b->e)) fail_msg("%s", b->e.message);
    return b->c;
}

/* K and V of `layers` layers of one live part. */
static inline struct builder simple(enum kvc_dtype dtype, uint64_t cells, uint32_t layers,
                                    uint64_t heads, uint64_t dim) {
    struct builder b = begin();
    uint32_t part = add_part(&b, KVC_PART_LIVE, cells, 0);
    for (uint32_t i = 0; i < layers; i++) {
        uint32_t layer = add_layer(&b, part, i, KVC_LAYER_FULL);
        add_tensor(&b, layer, KVC_ROLE_K, dtype, heads, dim, 2 * i + 1, CANONICAL);
        add_tensor(&b, layer, KVC_ROLE_V, dtype, heads, dim, 2 * i + 2, CANONICAL);
    }
    return b;
}

static inline void add_tokens(struct builder *b, uint64_t n) {
    int32_t *tokens = get_memory((size_t)n * sizeof *tokens);
    for (uint64_t i = 0; i < n; i++) tokens[i] = (int32_t)(mix(i) & 0xffff);
    assert_int_equal(kvc_cache_set_tokens(b->c, tokens, n, &b->e), 0);
    free(tokens);
}

/* llama.cpp's server: a live cache, a sliding one, and two checkpoints of that, which repeat rows.
 */
static inline struct kvc_cache *with_checkpoints(uint64_t cells, enum kvc_dtype dtype) {
    struct builder b = begin();
    const struct {
        enum kvc_part_kind kind;
        uint64_t cells;
        int64_t first;
        uint64_t seed;
    } part[] = {
        {KVC_PART_LIVE, cells, 0, 10},
        {KVC_PART_WINDOW, cells / 2, (int64_t)(cells - cells / 2), 20},
        /* all rows repeat */
        {KVC_PART_SNAPSHOT, cells / 2, (int64_t)(cells - cells / 2), 20},
        /* all but the first two */
        {KVC_PART_SNAPSHOT, cells / 2, (int64_t)(cells - cells / 2) - 2, 20},
    };
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t number = add_part(&b, part[i].kind, part[i].cells, part[i].first);
        b.c->part[number].snapshot = i == 3;
        uint32_t layer = add_layer(&b, number, 0, i ? KVC_LAYER_WINDOW : KVC_LAYER_FULL);
        b.c->layer[layer].window = i ? 512 : 0;
        add_tensor(&b, layer, KVC_ROLE_K, dtype, 1, 32, part[i].seed, CANONICAL);
        add_tensor(&b, layer, KVC_ROLE_V, dtype, 1, 32, part[i].seed + 1, CANONICAL);
    }
    return finish(&b);
}

/* --- writing, reading, comparing --- */

static inline struct kvc_buffer pack(const struct kvc_cache *c, const struct kvc_pack_options *o,
                                     struct kvc_pack_report *report) {
    struct kvc_buffer b = {0};
    struct kvc_sink out = kvc_sink_buffer(&b);
    struct kvc_error e;
    if (kvc_container_write(c, o, &out, report, &e)) fail_msg("%s", e.message);
    return b;
}

static inline struct kvc_cache *open_bytes(struct kvc_input *in, const void *data, size_t n) {
    struct kvc_error e;
    kvc_input_memory(in, "test", data, n);
    struct kvc_cache *c = kvc_container_open(in, &e);
    if (!c) fail_msg("%s", e.message);
    return c;
}

static inline uint8_t *rows_of(const struct kvc_cache *c, uint32_t t, size_t *n) {
    struct kvc_error e;
    *n = (size_t)kvc_tensor_bytes(&c->tensor[t]);
    uint8_t *rows = get_memory(*n);
    if (c->read(c, t, 0, c->tensor[t].shape.tokens, rows, &e)) fail_msg("%s", e.message);
    return rows;
}

static inline uint8_t *literals_of(const struct kvc_cache *c) {
    struct kvc_error e;
    uint8_t *bytes = get_memory((size_t)c->literal_size);
    if (c->literal_size && c->read_literal(c, 0, c->literal_size, bytes, &e))
        fail_msg("%s", e.message);
    return bytes;
}

static inline void assert_same_cells(const struct kvc_cells *a, const struct kvc_cells *b) {
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_blocks, b->n_blocks);
    if (a->n) assert_memory_equal(a->pos, b->pos, (size_t)a->n * sizeof *a->pos);
    assert_int_equal(a->words == NULL, b->words == NULL);
    if (!a->words) return;
    assert_memory_equal(a->word_at, b->word_at, (size_t)(a->n + 1) * sizeof *a->word_at);
    if (a->word_at[a->n])
        assert_memory_equal(a->words, b->words, (size_t)a->word_at[a->n] * sizeof *a->words);
}

static inline int put(void *state, uint64_t offset, const void *data, size_t n,
                      struct kvc_error *e) {
    (void)e;
    memcpy((uint8_t *)state + offset, data, n);
    return 0;
}

/* The source of a cache is also `want` where it is made in memory, or put in any order; after bytes
 * that are there already. */
static inline void assert_source_anywhere(const struct kvc_cache *c, const uint8_t *want,
                                          size_t n) {
    enum { BEFORE = 5 };
    struct kvc_error e;
    for (unsigned threads = 1; threads <= 3; threads += 2)
        for (int in_memory = 0; in_memory < 2; in_memory++) {
            uint8_t *got = calloc(1, n + BEFORE);
            struct kvc_sink sink = {.put = put, .state = got};
            if (in_memory) sink = kvc_sink_memory(got, n + BEFORE);
            assert_int_equal(kvc_sink_write(&sink, "12345", BEFORE, &e), 0);
            if (kvc_source_write(c, threads, &sink, &e)) fail_msg("%s", e.message);
            assert_int_equal(sink.offset, n + BEFORE);
            assert_memory_equal(got, "12345", BEFORE);
            assert_memory_equal(got + BEFORE, want, n);
            if (in_memory) { /* too small by a byte */
                sink = kvc_sink_memory(got, n - 1);
                assert_int_equal(kvc_source_write(c, threads, &sink, &e), -1);
            }
            free(got);
        }
}

static inline void assert_same_source(const struct kvc_cache *a, const struct kvc_cache *b) {
    struct kvc_buffer x = {0}, y = {0};
    struct kvc_sink to_x = kvc_sink_buffer(&x), to_y = kvc_sink_buffer(&y);
    struct kvc_error e;
    assert_int_equal(a->n_extents, b->n_extents);
    if (!a->n_extents) return;
    if (kvc_source_write(a, 1, &to_x, &e) || kvc_source_write(b, 2, &to_y, &e))
        fail_msg("%s", e.message);
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.data, y.data, x.n);
    assert_source_anywhere(b, x.data, x.n);
    free(x.data);
    free(y.data);
}

/* All of `a` stands in `b`; b may know more metadata. */
static inline void assert_same(const struct kvc_cache *a, const struct kvc_cache *b) {
    assert_int_equal(a->n_parts, b->n_parts);
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (uint32_t i = 0; i < a->n_parts; i++) {
        assert_int_equal(a->part[i].kind, b->part[i].kind);
        assert_int_equal(a->part[i].stream, b->part[i].stream);
        assert_int_equal(a->part[i].snapshot, b->part[i].snapshot);
        assert_same_cells(&a->part[i].cells, &b->part[i].cells);
    }
    if (a->n_layers) assert_memory_equal(a->layer, b->layer, a->n_layers * sizeof *a->layer);
    for (uint32_t t = 0; t < a->n_tensors; t++) {
        const struct kvc_tensor *x = &a->tensor[t], *y = &b->tensor[t];
        size_t n, m;
        assert_int_equal(x->layer, y->layer);
        assert_int_equal(x->role, y->role);
        assert_int_equal(x->shape.dtype, y->shape.dtype);
        assert_int_equal(x->shape.heads, y->shape.heads);
        assert_int_equal(x->shape.dim, y->shape.dim);
        assert_int_equal(x->source_size, y->source_size);
        uint8_t *p = rows_of(a, t, &n), *q = rows_of(b, t, &m);
        assert_int_equal(n, m);
        assert_memory_equal(p, q, n);
        free(p);
        free(q);
    }
    for (size_t i = 0; i < a->meta.n; i++) {
        const struct kvc_meta_entry *x = &a->meta.entry[i], *y = kvc_meta_find(&b->meta, x->key);
        assert_non_null(y);
        assert_int_equal(x->type, y->type);
        assert_int_equal(x->size, y->size);
        assert_memory_equal(x->value, y->value, (size_t)x->size);
    }
}

static inline void assert_same_tokens(const struct kvc_cache *a, const struct kvc_cache *b) {
    assert_int_equal(a->n_tokens, b->n_tokens);
    if (a->n_tokens)
        assert_memory_equal(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof *a->tokens);
}

/* Every byte of the file belongs to one record, the header or the footer. */
static inline void assert_records_fill(const struct kvc_cache *c, size_t size) {
    struct kvc_record_info info;
    struct kvc_section section[KVC_MAX_PLANES + 1];
    struct kvc_error e;
    uint64_t at = 32, blocks = 0, stored = 0;
    for (uint64_t i = 0; i < kvc_container_records(c); i++) {
        if (kvc_container_record(c, i, &info, section, KVC_MAX_PLANES + 1, &e))
            fail_msg("%s", e.message);
        assert_int_equal(info.offset, at);
        assert_non_null(kvc_record_name(info.type));
        assert_true(info.type == KVC_RECORD_BLOCK || !info.digest);
        at += info.size;
        blocks += info.type == KVC_RECORD_BLOCK ? info.size : 0;
    }
    for (uint32_t t = 0; t < c->n_tensors; t++) stored += kvc_container_stored(c, t);
    assert_int_equal(at + 64, size);
    assert_int_equal(blocks, stored);
}

/* Packs, opens, checks and compares; packing what was opened gives the same bytes. */
static inline void round_trip(const struct kvc_cache *c, const struct kvc_pack_options *o) {
    struct kvc_pack_report report;
    struct kvc_buffer first = pack(c, o, &report);
    struct kvc_input in;
    struct kvc_error e;
    struct kvc_cache *d = open_bytes(&in, first.data, first.n);
    assert_true(kvc_cache_is_container(d));
    assert_false(kvc_cache_is_container(c));
    assert_int_equal(report.stored_bytes, first.n);
    assert_int_equal(report.records, kvc_container_records(d));
    assert_true(report.lossless);
    if (kvc_container_check(d, 2, &e)) fail_msg("%s", e.message);
    assert_same(c, d);
    if (o->no_tokens) {
        assert_null(d->tokens);
        assert_int_equal(d->n_extents, 0); /* the source's private bytes would tell the tokens */
    } else {
        assert_same_tokens(c, d);
        assert_same_source(c, d);
    }
    assert_records_fill(d, first.n);
    struct kvc_buffer second = pack(d, o, NULL);
    assert_int_equal(second.n, first.n);
    assert_memory_equal(second.data, first.data, first.n);
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(first.data);
    free(second.data);
}

static const char *const recipes[] = {"store", "zstd", "zstd:level=5"};

static inline void round_trip_all(struct kvc_cache *c) {
    for (size_t r = 0; r < sizeof recipes / sizeof recipes[0]; r++)
        round_trip(c, &(struct kvc_pack_options){.recipe = recipe_of(recipes[r]), .threads = 1});
    kvc_cache_free(c);
}

#endif
