/* test_container.c: what kvc_container_write() writes, kvc_container_open() reads again; damage of
 * every bit shows. */
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

static void *allocate(size_t n) {
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}

static void memory_free(void *owner) {
    struct memory *m = owner;
    for (size_t i = 0; i < m->n; i++) free(m->block[i]);
    free(m);
}

static uint8_t *remember(struct memory *m, size_t n) {
    assert_in_range(m->n, 0, MAX_BLOCKS_OF_MEMORY - 1);
    return m->block[m->n++] = allocate(n);
}

/* A cache under construction; the first error ends the test. */
struct builder {
    struct kvc_cache *c;
    struct memory *m;
    struct kvc_error e;
};

static struct builder begin(void) {
    struct builder b = {0};
    b.c = kvc_cache_new(&b.e);
    b.m = calloc(1, sizeof *b.m);
    assert_non_null(b.c);
    assert_non_null(b.m);
    assert_int_equal(kvc_cache_map(b.c, memory_free, b.m, &b.e), 0);
    return b;
}

static uint32_t add_part(struct builder *b, enum kvc_part_kind kind, uint64_t cells,
                         int64_t first) {
    uint32_t part = kvc_cache_add_part(b->c, kind, cells, &b->e);
    assert_int_not_equal(part, KVC_NONE);
    for (uint64_t i = 0; i < cells; i++) b->c->part[part].cells.pos[i] = first + (int64_t)i;
    return part;
}

static uint32_t add_layer(struct builder *b, uint32_t part, uint32_t index,
                          enum kvc_layer_kind kind) {
    uint32_t layer = kvc_cache_add_layer(b->c, part, index, kind, &b->e);
    assert_int_not_equal(layer, KVC_NONE);
    return layer;
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 31;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 32;
}

/* A row that depends on seed and position only; its odd bytes are few different ones, as exponents
 * are. */
static void make_row(uint8_t *row, uint64_t n, uint64_t seed, int64_t pos) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t x = mix(seed << 48 ^ (uint64_t)pos << 20 ^ i);
        row[i] = (uint8_t)(i & 1 ? 0x38 + (x & 3) : x);
    }
}

enum layout { CANONICAL, HEADS_FIRST, TRANSPOSED };

static void add_tensor(struct builder *b, uint32_t layer, enum kvc_role role, enum kvc_dtype dtype,
                       uint64_t heads, uint64_t dim, uint64_t seed, enum layout layout) {
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
            *row = allocate((size_t)kvc_row_bytes(&shape));
    for (uint64_t i = 0; i < cells->n; i++) {
        make_row(row, kvc_row_bytes(&shape), seed, cells->pos[i]);
        kvc_rows_scatter(base, row, &shape, &tensor->source, i, 1, 0);
    }
    free(row);
    uint8_t *text = remember(b->m, 32);
    int n = snprintf((char *)text, 32, "tensor %u\n", (unsigned)t);
    if (kvc_cache_map_memory(b->c, t, base, &b->e) ||
        kvc_cache_extent_bytes(b->c, text, (uint64_t)n, &b->e) ||
        kvc_cache_extent_tensor(b->c, t, &b->e))
        fail_msg("%s", b->e.message);
}

static struct kvc_cache *finish(struct builder *b) {
    if (kvc_cache_finish(b->c, &b->e)) fail_msg("%s", b->e.message);
    return b->c;
}

/* K and V of `layers` layers of one live part. */
static struct builder simple(enum kvc_dtype dtype, uint64_t cells, uint32_t layers, uint64_t heads,
                             uint64_t dim) {
    struct builder b = begin();
    uint32_t part = add_part(&b, KVC_PART_LIVE, cells, 0);
    for (uint32_t i = 0; i < layers; i++) {
        uint32_t layer = add_layer(&b, part, i, KVC_LAYER_FULL);
        add_tensor(&b, layer, KVC_ROLE_K, dtype, heads, dim, 2 * i + 1, CANONICAL);
        add_tensor(&b, layer, KVC_ROLE_V, dtype, heads, dim, 2 * i + 2, CANONICAL);
    }
    return b;
}

static void add_tokens(struct builder *b, uint64_t n) {
    int32_t *tokens = allocate((size_t)n * sizeof *tokens);
    for (uint64_t i = 0; i < n; i++) tokens[i] = (int32_t)(mix(i) & 0xffff);
    assert_int_equal(kvc_cache_set_tokens(b->c, tokens, n, &b->e), 0);
    free(tokens);
}

/* llama.cpp's server: a live cache, a sliding one, and two checkpoints of that, which repeat rows.
 */
static struct kvc_cache *with_checkpoints(uint64_t cells, enum kvc_dtype dtype) {
    struct builder b = begin();
    const struct {
        enum kvc_part_kind kind;
        uint64_t cells;
        int64_t first;
        uint64_t seed;
    } part[] = {
        {KVC_PART_LIVE, cells, 0, 10},
        {KVC_PART_SLIDING, cells / 2, (int64_t)(cells - cells / 2), 20},
        /* all rows repeat */
        {KVC_PART_CHECKPOINT, cells / 2, (int64_t)(cells - cells / 2), 20},
        /* all but the first two */
        {KVC_PART_CHECKPOINT, cells / 2, (int64_t)(cells - cells / 2) - 2, 20},
    };
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t number = add_part(&b, part[i].kind, part[i].cells, part[i].first);
        b.c->part[number].checkpoint = i == 3;
        uint32_t layer = add_layer(&b, number, 0, i ? KVC_LAYER_SLIDING : KVC_LAYER_FULL);
        b.c->layer[layer].window = i ? 512 : 0;
        add_tensor(&b, layer, KVC_ROLE_K, dtype, 1, 32, part[i].seed, CANONICAL);
        add_tensor(&b, layer, KVC_ROLE_V, dtype, 1, 32, part[i].seed + 1, CANONICAL);
    }
    return finish(&b);
}

/* --- writing, reading, comparing --- */

static struct kvc_buffer pack(const struct kvc_cache *c, const struct kvc_pack_options *o,
                              struct kvc_pack_report *report) {
    struct kvc_buffer b = {0};
    struct kvc_sink out = kvc_sink_buffer(&b);
    struct kvc_error e;
    if (kvc_container_write(c, o, &out, report, &e)) fail_msg("%s", e.message);
    return b;
}

static struct kvc_cache *open_bytes(struct kvc_input *in, const void *data, size_t n) {
    struct kvc_error e;
    kvc_input_memory(in, "test", data, n);
    struct kvc_cache *c = kvc_container_open(in, &e);
    if (!c) fail_msg("%s", e.message);
    return c;
}

static uint8_t *rows_of(const struct kvc_cache *c, uint32_t t, size_t *n) {
    struct kvc_error e;
    *n = (size_t)kvc_tensor_bytes(&c->tensor[t]);
    uint8_t *rows = allocate(*n);
    if (c->read(c, t, 0, c->tensor[t].shape.tokens, rows, &e)) fail_msg("%s", e.message);
    return rows;
}

static uint8_t *literals_of(const struct kvc_cache *c) {
    struct kvc_error e;
    uint8_t *bytes = allocate((size_t)c->literal_size);
    if (c->literal_size && c->read_literal(c, 0, c->literal_size, bytes, &e))
        fail_msg("%s", e.message);
    return bytes;
}

static void assert_same_cells(const struct kvc_cells *a, const struct kvc_cells *b) {
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_blocks, b->n_blocks);
    if (a->n) assert_memory_equal(a->pos, b->pos, (size_t)a->n * sizeof *a->pos);
    assert_int_equal(a->words == NULL, b->words == NULL);
    if (!a->words) return;
    assert_memory_equal(a->word_at, b->word_at, (size_t)(a->n + 1) * sizeof *a->word_at);
    if (a->word_at[a->n])
        assert_memory_equal(a->words, b->words, (size_t)a->word_at[a->n] * sizeof *a->words);
}

static int put(void *state, uint64_t offset, const void *data, size_t n, struct kvc_error *e) {
    (void)e;
    memcpy((uint8_t *)state + offset, data, n);
    return 0;
}

/* The source of a cache is also `want` where it is made in memory, or put in any order; after bytes
 * that are there already. */
static void assert_source_anywhere(const struct kvc_cache *c, const uint8_t *want, size_t n) {
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

static void assert_same_source(const struct kvc_cache *a, const struct kvc_cache *b) {
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
static void assert_same(const struct kvc_cache *a, const struct kvc_cache *b) {
    assert_int_equal(a->n_parts, b->n_parts);
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (uint32_t i = 0; i < a->n_parts; i++) {
        assert_int_equal(a->part[i].kind, b->part[i].kind);
        assert_int_equal(a->part[i].stream, b->part[i].stream);
        assert_int_equal(a->part[i].checkpoint, b->part[i].checkpoint);
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

static void assert_same_tokens(const struct kvc_cache *a, const struct kvc_cache *b) {
    assert_int_equal(a->n_tokens, b->n_tokens);
    if (a->n_tokens)
        assert_memory_equal(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof *a->tokens);
}

/* Every byte of the file belongs to one record, the header or the footer. */
static void assert_records_fill(const struct kvc_cache *c, size_t size) {
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
    assert_int_equal(at + 32, size);
    assert_int_equal(blocks, stored);
}

/* Packs, opens, checks and compares; packing what was opened gives the same bytes. */
static void round_trip(const struct kvc_cache *c, const struct kvc_pack_options *o) {
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

static void round_trip_all(struct kvc_cache *c) {
    for (size_t r = 0; r < sizeof recipes / sizeof recipes[0]; r++)
        round_trip(c, &(struct kvc_pack_options){.recipe = recipe_of(recipes[r]), .threads = 1});
    kvc_cache_free(c);
}

/* --- tests: shapes --- */

static void every_dtype_and_ragged_size(void **state) {
    static const uint64_t sizes[] = {0, 1, 255, 256, 257, 600};
    (void)state;
    for (unsigned dtype = 0; dtype < 32; dtype++) {
        if (!kvc_dtype_info(dtype)) continue;
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            struct builder b = simple((enum kvc_dtype)dtype, sizes[i], 1, 2, 32);
            round_trip_all(finish(&b));
        }
    }
}

static void no_parts(void **state) {
    (void)state;
    struct builder b = begin();
    round_trip_all(finish(&b));
}

static void rows_of_one_byte_and_of_many(void **state) {
    (void)state;
    struct builder tiny = simple(KVC_U8, 3, 1, 1, 1), wide = simple(KVC_F32, 2, 1, 64, 1024);
    round_trip_all(finish(&tiny));
    round_trip_all(finish(&wide));
}

static void blocks_across_heads(void **state) {
    (void)state;
    struct builder b = simple(KVC_Q5_1, 300, 1, 2, 16);
    round_trip_all(finish(&b));
}

static void cells_out_of_order(void **state) {
    (void)state;
    struct builder b = begin();
    uint32_t part = add_part(&b, KVC_PART_LIVE, 700, 0);
    int64_t *pos = b.c->part[part].cells.pos;
    /* some twice, some below 0 */
    for (uint64_t i = 0; i < 700; i++) pos[i] = (int64_t)(mix(i) % 5000) - 1000;
    pos[0] = pos[699];
    uint32_t layer = add_layer(&b, part, 4, KVC_LAYER_FULL);
    add_tensor(&b, layer, KVC_ROLE_K, KVC_F16, 2, 8, 1, CANONICAL);
    add_tensor(&b, layer, KVC_ROLE_V, KVC_F16, 2, 8, 2, TRANSPOSED);
    round_trip_all(finish(&b));
}

static void one_position_for_all(void **state) {
    (void)state;
    struct builder b = begin();
    uint32_t part = add_part(&b, KVC_PART_LIVE, 600, 0);
    for (uint64_t i = 0; i < 600; i++) b.c->part[part].cells.pos[i] = 77;
    add_tensor(&b, add_layer(&b, part, 0, KVC_LAYER_FULL), KVC_ROLE_K, KVC_F16, 1, 8, 1, CANONICAL);
    struct kvc_cache *c = finish(&b);
    assert_int_equal(c->part[0].cells.n_blocks, 3);
    round_trip_all(c);
}

static void far_positions(void **state) {
    static const int64_t pos[] = {INT32_MIN, -257, -256, -1, 0, 255, 256, INT32_MAX};
    (void)state;
    struct builder b = begin();
    uint32_t part = add_part(&b, KVC_PART_LIVE, 8, 0);
    memcpy(b.c->part[part].cells.pos, pos, sizeof pos);
    add_tensor(&b, add_layer(&b, part, 0, KVC_LAYER_FULL), KVC_ROLE_K, KVC_F16, 1, 8, 1, CANONICAL);
    struct kvc_cache *c = finish(&b);
    assert_int_equal(c->part[0].cells.n_blocks, 6);
    round_trip_all(c);
}

static void words_of_cells(void **state) {
    (void)state;
    struct builder b = simple(KVC_F16, 300, 1, 1, 8);
    struct kvc_cells *cells = &b.c->part[0].cells;
    cells->words = allocate(600 * sizeof *cells->words);
    cells->word_at = allocate(301 * sizeof *cells->word_at);
    uint64_t n = 0;
    for (uint64_t i = 0; i < 300; i++) {
        cells->word_at[i] = n;
        for (uint64_t w = 0; w < i % 4; w++) cells->words[n++] = (uint32_t)mix(i + w);
    }
    cells->word_at[300] = n;
    round_trip_all(finish(&b));
}

static void layouts_of_the_source(void **state) {
    (void)state;
    struct builder b = begin();
    uint32_t part = add_part(&b, KVC_PART_LIVE, 300, 0);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t layer = add_layer(&b, part, i, KVC_LAYER_FULL);
        add_tensor(&b, layer, KVC_ROLE_K, KVC_BF16, 3, 8, i, (enum layout)i);
        add_tensor(&b, layer, KVC_ROLE_V, KVC_BF16, 3, 8, i + 9, (enum layout)((i + 1) % 3));
    }
    round_trip_all(finish(&b));
}

static void every_kind_and_role(void **state) {
    (void)state;
    struct builder b = begin();
    uint32_t live = add_part(&b, KVC_PART_LIVE, 40, 0),
             sliding = add_part(&b, KVC_PART_SLIDING, 8, 32),
             recurrent = add_part(&b, KVC_PART_RECURRENT, 1, 39),
             companion = add_part(&b, KVC_PART_COMPANION, 16, 24);
    b.c->part[live].stream = 3;
    add_tensor(&b, add_layer(&b, live, 0, KVC_LAYER_FULL), KVC_ROLE_K, KVC_F16, 2, 8, 1, CANONICAL);
    add_tensor(&b, add_layer(&b, live, 1, KVC_LAYER_LATENT), KVC_ROLE_LATENT, KVC_F16, 1, 24, 2,
               CANONICAL);
    add_tensor(&b, add_layer(&b, sliding, 2, KVC_LAYER_SLIDING), KVC_ROLE_V, KVC_F16, 2, 8, 3,
               CANONICAL);
    uint32_t state_layer = add_layer(&b, recurrent, 3, KVC_LAYER_RECURRENT);
    add_tensor(&b, state_layer, KVC_ROLE_R, KVC_F32, 1, 100, 4, CANONICAL);
    add_tensor(&b, state_layer, KVC_ROLE_S, KVC_F32, 1, 200, 5, CANONICAL);
    add_tensor(&b, add_layer(&b, companion, 0, KVC_LAYER_COMPANION), KVC_ROLE_QUERIES, KVC_BF16, 6,
               8, 6, HEADS_FIRST);
    add_tensor(&b, add_layer(&b, companion, 0, KVC_LAYER_COMPANION), KVC_ROLE_HIDDEN, KVC_BF16, 1,
               48, 7, CANONICAL);
    round_trip_all(finish(&b));
}

/* --- tests: what is stored once --- */

static void repeated_rows_are_references(void **state) {
    static const enum kvc_dtype dtypes[] = {KVC_F16, KVC_Q8_0};
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        struct kvc_cache *c = with_checkpoints(1000, dtypes[d]);
        struct kvc_pack_report report;
        struct kvc_pack_options o = {.recipe = recipe_of("store"), .threads = 2};
        struct kvc_buffer b = pack(c, &o, &report);
        /* K and V of the first checkpoint whole, of the second all but two rows */
        assert_int_equal(report.same_rows, 2 * (500 + 498));
        uint64_t row = kvc_row_bytes(&c->tensor[0].shape);
        assert_in_range(b.n, 1, 2 * (1000 + 500 + 2) * row + 8192);
        free(b.data);
        round_trip_all(c);
    }
}

static void companions_are_never_references(void **state) {
    (void)state;
    struct builder b = begin();
    struct kvc_pack_report report;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t part = add_part(&b, KVC_PART_COMPANION, 20, 0),
                 layer = add_layer(&b, part, 0, KVC_LAYER_COMPANION);
        add_tensor(&b, layer, KVC_ROLE_QUERIES, KVC_F16, 1, 8, 1, CANONICAL);
    }
    struct kvc_cache *c = finish(&b);
    struct kvc_buffer bytes = pack(c, &(struct kvc_pack_options){.threads = 1}, &report);
    assert_int_equal(report.same_rows, 0);
    free(bytes.data);
    round_trip_all(c);
}

/* --- tests: tokens, metadata, literals --- */

static void tokens_and_keys(void **state) {
    static const uint64_t counts[] = {1, 255, 256, 600};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct builder b = simple(KVC_F16, counts[i], 1, 1, 8);
        add_tokens(&b, counts[i]);
        assert_int_equal(kvc_meta_set_text(&b.c->meta, KVC_KEY_MODEL_NAME, "model", &b.e), 0);
        struct kvc_cache *c = finish(&b);
        for (int without = 0; without < 2; without++) {
            struct kvc_pack_options o = {.threads = 1, .no_tokens = without};
            round_trip(c, &o);
            struct kvc_buffer bytes = pack(c, &o, NULL);
            struct kvc_input in;
            struct kvc_cache *d = open_bytes(&in, bytes.data, bytes.n);
            const uint64_t n_keys = d->n_prefix_keys;
            struct kvc_prefix_matched m;
            assert_int_equal(d->tokens == NULL, without);
            assert_int_equal(n_keys, counts[i] / KVC_PREFIX_TOKENS);
            assert_int_equal(d->prefix_keys != NULL, n_keys > 0);
            if (!without || n_keys) { /* else nothing is left to compare */
                assert_int_equal(kvc_prefix_match(d, c->tokens, c->n_tokens, &m, &b.e), 0);
                assert_int_equal(m.by_keys, without);
                assert_int_equal(m.common, without ? n_keys * KVC_PREFIX_TOKENS : counts[i]);
            }
            kvc_cache_free(d);
            kvc_input_close(&in);
            free(bytes.data);
        }
        kvc_cache_free(c);
    }
}

/* Packs positions [first, end) of c, opens and checks the result. */
static struct kvc_cache *packed_selection(const struct kvc_cache *c, uint64_t first, uint64_t end,
                                          int no_tokens, struct kvc_buffer *bytes,
                                          struct kvc_input *in) {
    const struct kvc_selection s = {.first = first, .end = end};
    const struct kvc_pack_options o = {.threads = 1, .no_tokens = no_tokens, .space = 1};
    struct kvc_error e;
    struct kvc_cache *view = kvc_view_select(c, &s, &e);
    if (!view) fail_msg("%s", e.message);
    *bytes = pack(view, &o, NULL);
    struct kvc_cache *d = open_bytes(in, bytes->data, bytes->n);
    if (kvc_container_check(d, 1, &e)) fail_msg("%s", e.message);
    assert_non_null(kvc_meta_find(&d->meta, KVC_KEY_PREFIX_SPACE));
    kvc_cache_free(view);
    return d;
}

static void close_packed(struct kvc_cache *c, struct kvc_buffer *bytes, struct kvc_input *in) {
    kvc_cache_free(c);
    kvc_input_close(in);
    free(bytes->data);
}

/* Refuses keys and parent of the part that are not those of the whole from position `first` on. */
static void assert_keys_of(const struct kvc_cache *part, const struct kvc_cache *whole,
                           uint64_t first, uint64_t n) {
    const struct kvc_meta_entry *parent = kvc_meta_find(&part->meta, KVC_KEY_PREFIX_PARENT);
    const uint8_t *key = whole->prefix_keys + first / KVC_PREFIX_TOKENS * KVC_KEY_BYTES;
    assert_int_equal(part->n_prefix_keys, n);
    if (n) assert_memory_equal(part->prefix_keys, key, n * KVC_KEY_BYTES);
    assert_int_equal(parent != NULL, first > 0);
    if (!parent) return;
    assert_int_equal(parent->size, KVC_KEY_BYTES);
    assert_memory_equal(parent->value, key - KVC_KEY_BYTES, KVC_KEY_BYTES);
    assert_int_equal(kvc_meta_u64(&part->meta, KVC_KEY_TOKENS_FIRST, 0), first);
}

/* Selections of a cache, of its container with token ids, of that without, and of selections. */
static void selections_keep_their_keys(void **state) {
    static const struct {
        uint64_t first, end, keys;
    } ranges[] = {{0, 256, 1},    {0, 700, 2},   {256, 512, 1},
                  {256, 1100, 3}, {512, 600, 0}, {768, 1024, 1}};
    const uint8_t media[16] = {1};
    const struct kvc_extra extras[] = {{300, KVC_EXTRA_MEDIA, sizeof media, media},
                                       {800, 99, 3, media}};
    (void)state;
    for (int without = 0; without < 2; without++) {
        struct builder b = simple(KVC_F16, 1100, 1, 1, 8);
        add_tokens(&b, 1100);
        assert_int_equal(kvc_meta_set_text(&b.c->meta, KVC_KEY_MODEL_NAME, "model", &b.e), 0);
        assert_int_equal(kvc_extras_store(&b.c->meta, extras, 2, &b.e), 0);
        struct kvc_cache *c = finish(&b);
        struct kvc_buffer bytes[2], whole_bytes;
        struct kvc_input in[2], whole_in;
        struct kvc_cache *whole = packed_selection(c, 0, 1100, without, &whole_bytes, &whole_in);
        assert_int_equal(whole->n_prefix_keys, 4);
        assert_int_equal(whole->tokens == NULL, without);
        for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
            struct kvc_cache *d = packed_selection(whole, ranges[i].first, ranges[i].end, 0,
                                                   &bytes[0], &in[0]);
            assert_keys_of(d, whole, ranges[i].first, ranges[i].keys);
            close_packed(d, &bytes[0], &in[0]);
            if (without) continue;
            /* before it was ever packed */
            d = packed_selection(c, ranges[i].first, ranges[i].end, 0, &bytes[0], &in[0]);
            assert_keys_of(d, whole, ranges[i].first, ranges[i].keys);
            close_packed(d, &bytes[0], &in[0]);
        }
        struct kvc_cache *half = packed_selection(whole, 256, 1100, 0, &bytes[0], &in[0]);
        struct kvc_cache *d = packed_selection(half, 512, 1024, 0, &bytes[1], &in[1]);
        assert_keys_of(d, whole, 512, 2);
        assert_int_equal(kvc_meta_find(&d->meta, KVC_KEY_PREFIX_EXTRAS) != NULL, !without);
        close_packed(d, &bytes[1], &in[1]);
        d = packed_selection(half, 300, 1024, 0, &bytes[1], &in[1]);
        assert_int_equal(d->n_prefix_keys, 0);
        assert_null(kvc_meta_find(&d->meta, KVC_KEY_PREFIX_PARENT));
        assert_null(kvc_meta_find(&d->meta, KVC_KEY_PREFIX_EXTRAS));
        close_packed(d, &bytes[1], &in[1]);
        close_packed(half, &bytes[0], &in[0]);
        close_packed(whole, &whole_bytes, &whole_in);
        kvc_cache_free(c);
    }
}

static void metadata_of_every_type(void **state) {
    static const uint64_t list[] = {1, UINT64_MAX, 0};
    (void)state;
    struct builder b = simple(KVC_F16, 10, 1, 1, 8);
    struct kvc_meta *m = &b.c->meta;
    char *text = allocate(100001);
    memset(text, 'x', 100000);
    text[100000] = '\0';
    if (kvc_meta_set_bool(m, "x-test.bool", 1, &b.e) ||
        kvc_meta_set_u64(m, "x-test.u64", UINT64_MAX, &b.e) ||
        kvc_meta_set_i64(m, "x-test.i64", INT64_MIN, &b.e) ||
        kvc_meta_set_f64(m, "x-test.f64", -0.0, &b.e) ||
        kvc_meta_set_text(m, "x-test.text", "", &b.e) ||
        kvc_meta_set_text(m, "x-test.long", text, &b.e) ||
        kvc_meta_set_bytes(m, "x-test.bytes", "\0\1", 2, &b.e) ||
        kvc_meta_set_u64s(m, "x-test.u64s", list, 3, &b.e))
        fail_msg("%s", b.e.message);
    free(text);
    round_trip_all(finish(&b));
}

/* Literal bytes in three chunks, of which the first compresses beyond what a reader believes. */
static void long_literals(void **state) {
    const uint64_t chunk = 4194304, n = 2 * chunk + 12345;
    (void)state;
    struct builder b = simple(KVC_F16, 10, 1, 1, 8);
    uint8_t *bytes = remember(b.m, (size_t)n), piece[64];
    memset(bytes, 0, (size_t)n);
    for (uint64_t i = chunk; i < n; i++) bytes[i] = (uint8_t)mix(i);
    assert_int_equal(kvc_cache_extent_bytes(b.c, bytes, n, &b.e), 0);
    struct kvc_cache *c = finish(&b);
    struct kvc_pack_options o = {.threads = 1};
    round_trip(c, &o);
    struct kvc_buffer packed = pack(c, &o, NULL);
    struct kvc_input in;
    struct kvc_cache *d = open_bytes(&in, packed.data, packed.n);
    uint64_t before = c->literal_size - n;
    for (uint64_t at = chunk - 40; at < chunk + 40; at++) {
        if (d->read_literal(d, at, sizeof piece, piece, &b.e)) fail_msg("%s", b.e.message);
        assert_memory_equal(piece, bytes + at - before, sizeof piece);
    }
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(packed.data);
    kvc_cache_free(c);
}

static void without_a_source(void **state) {
    (void)state;
    struct builder b = simple(KVC_F16, 10, 1, 1, 8);
    struct kvc_cache *c = finish(&b);
    c->n_extents = 0;
    c->literal_size = 0;
    round_trip_all(c);
}

/* --- tests: options --- */

static void recipes_with_selectors(void **state) {
    static const struct {
        const char *recipe, *canonical, *k0, *v0, *k2, *v2;
    } cases[] = {
        {NULL, "split", "split", "split", "split", "split"},
        {"store@k", "store@k", "store", "split", "store", "split"},
        {"store@k,zstd:level=3@v", "store@k,zstd:level=3@v", "store", "zstd:level=3", "store",
         "zstd:level=3"},
        {"zstd:level=9@l1-2,store", "zstd:level=9@l1-2,store", "store", "store", "zstd:level=9",
         "zstd:level=9"},
        {"store@v@l0@l2,zstd:level=1", "store@v@l0@l2,zstd", "zstd", "store", "zstd", "store"},
    };
    (void)state;
    struct builder b = simple(KVC_F16, 300, 3, 1, 16);
    struct kvc_cache *c = finish(&b);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvc_pack_options o = {.recipe = recipe_of(cases[i].recipe), .threads = 1};
        round_trip(c, &o);
        struct kvc_buffer bytes = pack(c, &o, NULL);
        struct kvc_input in;
        struct kvc_cache *d = open_bytes(&in, bytes.data, bytes.n);
        assert_string_equal(kvc_meta_text(&d->meta, KVC_KEY_RECIPE, ""), cases[i].canonical);
        assert_string_equal(kvc_container_pipeline(d, 0), cases[i].k0);
        assert_string_equal(kvc_container_pipeline(d, 1), cases[i].v0);
        assert_string_equal(kvc_container_pipeline(d, 4), cases[i].k2);
        assert_string_equal(kvc_container_pipeline(d, 5), cases[i].v2);
        kvc_cache_free(d);
        kvc_input_close(&in);
        free(bytes.data);
    }
    kvc_cache_free(c);
}

static void options_that_are_refused(void **state) {
    const struct kvc_pack_options cases[] = {
        {.recipe = recipe_of("store@l7")},
        {.align = 24},
        {.align = 8},
        {.align = 1u << 21},
    };
    (void)state;
    struct builder b = simple(KVC_F16, 5, 1, 1, 8);
    struct kvc_cache *c = finish(&b);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvc_buffer bytes = {0};
        struct kvc_sink out = kvc_sink_buffer(&bytes);
        struct kvc_error e = {.code = KVC_OK};
        assert_int_equal(kvc_container_write(c, &cases[i], &out, NULL, &e), -1);
        assert_int_equal(e.code, KVC_ERR_USAGE);
        assert_true(*e.message);
        free(bytes.data);
    }
    kvc_cache_free(c);
}

/* Several runs of blocks per tensor, so that threads meet. */
static void threads_give_the_same_bytes(void **state) {
    static const unsigned threads[] = {2, 5, 0};
    (void)state;
    struct builder b = simple(KVC_BF16, 13000, 1, 1, 8);
    struct kvc_cache *live = finish(&b), *same = with_checkpoints(5000, KVC_F16);
    struct kvc_cache *caches[] = {live, same};
    for (size_t i = 0; i < 2; i++) {
        for (size_t r = 0; r < sizeof recipes / sizeof recipes[0]; r++) {
            struct kvc_pack_options o = {.recipe = recipe_of(recipes[r]),
                                         .threads = 1,
                                         .align = 4096};
            struct kvc_buffer one = pack(caches[i], &o, NULL);
            for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
                o.threads = threads[t];
                struct kvc_buffer many = pack(caches[i], &o, NULL);
                assert_int_equal(many.n, one.n);
                assert_memory_equal(many.data, one.data, one.n);
                free(many.data);
            }
            free(one.data);
        }
        kvc_cache_free(caches[i]);
    }
}

/* The first block and the first after an extent of 1 MiB or more start at multiples of the
 * alignment. */
static void extents_are_aligned(void **state) {
    static const unsigned aligns[] = {16, 64, 4096, 1u << 20};
    (void)state;
    struct builder b = simple(KVC_F32, 3000, 2, 2, 64);
    struct kvc_cache *c = finish(&b);
    for (size_t a = 0; a < sizeof aligns / sizeof aligns[0]; a++) {
        struct kvc_pack_options o = {.recipe = recipe_of("store"),
                                     .threads = 1,
                                     .align = aligns[a]};
        round_trip(c, &o);
        struct kvc_buffer bytes = pack(c, &o, NULL);
        struct kvc_input in;
        struct kvc_cache *d = open_bytes(&in, bytes.data, bytes.n);
        uint64_t extent = 0, extents = 0;
        for (uint64_t i = 0; i < kvc_container_records(d); i++) {
            struct kvc_record_info info;
            assert_int_equal(kvc_container_record(d, i, &info, NULL, 0, &b.e), 0);
            assert_true(info.type != KVC_RECORD_PAD || aligns[a] > 16);
            if (info.type != KVC_RECORD_BLOCK || (extent && info.offset - extent < 1u << 20))
                continue;
            extent = info.offset;
            extents++;
            assert_int_equal(extent % aligns[a], 0);
        }
        assert_in_range(extents, 5, 6); /* of 6 MB */
        kvc_cache_free(d);
        kvc_input_close(&in);
        free(bytes.data);
    }
    kvc_cache_free(c);
}

static void behind_other_bytes_of_the_sink(void **state) {
    (void)state;
    struct builder b = simple(KVC_F16, 100, 1, 1, 8);
    struct kvc_cache *c = finish(&b);
    struct kvc_pack_options o = {.threads = 1, .align = 4096};
    struct kvc_buffer alone = pack(c, &o, NULL), bytes = {0};
    struct kvc_sink out = kvc_sink_buffer(&bytes);
    assert_int_equal(kvc_sink_write(&out, "eleven byte", 11, &b.e), 0);
    if (kvc_container_write(c, &o, &out, NULL, &b.e)) fail_msg("%s", b.e.message);
    assert_int_equal(bytes.n, alone.n + 11);
    assert_memory_equal(bytes.data + 11, alone.data, alone.n);
    free(alone.data);
    free(bytes.data);
    kvc_cache_free(c);
}

static void any_range_of_rows(void **state) {
    (void)state;
    struct kvc_cache *c = with_checkpoints(1200, KVC_F16);
    struct kvc_buffer bytes = pack(c, &(struct kvc_pack_options){.threads = 1}, NULL);
    struct kvc_input in;
    struct kvc_cache *d = open_bytes(&in, bytes.data, bytes.n);
    struct kvc_error e;
    for (uint32_t t = 0; t < d->n_tensors; t++) {
        size_t n, row = (size_t)kvc_row_bytes(&c->tensor[t].shape);
        uint64_t tokens = c->tensor[t].shape.tokens;
        uint8_t *rows = rows_of(c, t, &n);
        for (uint64_t i = 0; i < 40; i++) {
            uint64_t first = mix(i) % tokens, count = mix(i + 100) % (tokens - first + 1);
            /* exactly as large, so that writing beyond shows */
            uint8_t *some = allocate((size_t)count * row);
            if (d->read(d, t, first, count, some, &e)) fail_msg("%s", e.message);
            assert_memory_equal(some, rows + first * row, (size_t)count * row);
            free(some);
        }
        free(rows);
    }
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(bytes.data);
    kvc_cache_free(c);
}

/* Decodes runs of a tensor's rows to their places in a layout, and compares them with the
 * original's rows copied there; what lies between and around them stays as it is. */
static void place_tensor(const struct kvc_cache *c, const struct kvc_cache *d, uint32_t t,
                         const struct kvc_strides *s, size_t size, int past) {
    enum { AROUND = 16 };
    const struct kvc_shape *shape = &c->tensor[t].shape;
    const size_t row = (size_t)kvc_row_bytes(shape), room = size + 2 * AROUND;
    struct kvc_error e;
    size_t n;
    uint8_t *rows = rows_of(c, t, &n), *want = allocate(room), *got = allocate(room);
    for (uint64_t i = 0; i < 4; i++) { /* all rows, then runs that begin and end within blocks */
        const uint64_t first = i ? mix(i) % shape->tokens : 0,
                       count = i ? mix(i + 9) % (shape->tokens - first + 1) : shape->tokens;
        const struct kvc_row_places places = {.base = got + AROUND,
                                              .strides = *s,
                                              .first = first,
                                              .past = past};
        uint8_t *room_for_rows = allocate((size_t)count * row);
        memset(want, (int)i + 1, room);
        memset(got, (int)i + 1, room);
        kvc_rows_scatter(want + AROUND, rows + first * row, shape, s, first, count, 0);
        if (kvc_container_place(d, t, first, count, &places, room_for_rows, &e))
            fail_msg("%s", e.message);
        assert_memory_equal(got, want, room);
        free(room_for_rows);
    }
    free(rows), free(want), free(got);
}

static void place_all(struct kvc_cache *c, const char *recipe) {
    struct kvc_buffer bytes =
        pack(c, &(struct kvc_pack_options){.recipe = recipe_of(recipe), .threads = 1}, NULL);
    struct kvc_input in;
    struct kvc_cache *d = open_bytes(&in, bytes.data, bytes.n);
    for (uint32_t t = 0; t < d->n_tensors; t++) {
        const struct kvc_shape *shape = &c->tensor[t].shape;
        const size_t value = kvc_dtype_info(shape->dtype)->size,
                     all = (size_t)(shape->tokens * kvc_row_bytes(shape));
        const struct kvc_strides by_head = kvc_strides_heads_first(shape),
                                 rows = kvc_strides_canonical(shape);
        const struct kvc_strides apart = {rows.token + 6, rows.head, rows.block},
                                 turned = {value, shape->tokens * shape->dim * value,
                                           shape->tokens * value};
        for (int past = 0; past < 2; past++) {
            place_tensor(c, d, t, &by_head, all, past);
            place_tensor(c, d, t, &rows, all, past);
            place_tensor(c, d, t, &apart, all + 6 * (size_t)shape->tokens, past);
            place_tensor(c, d, t, &turned, all, past);
        }
    }
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(bytes.data);
}

static void rows_in_any_layout(void **state) {
    (void)state;
    const enum kvc_dtype dtypes[] = {KVC_F16, KVC_BF16, KVC_F32};
    for (size_t i = 0; i < 3; i++) {
        struct builder b = simple(dtypes[i], 700, 1, 3, 64), odd = simple(dtypes[i], 300, 1, 2, 40);
        struct kvc_cache *of[] = {finish(&b), finish(&odd), with_checkpoints(600, dtypes[i])};
        for (size_t k = 0; k < 3; k++) {
            place_all(of[k], "fast");
            place_all(of[k], "split");
            kvc_cache_free(of[k]);
        }
    }
}

/* --- tests: damage --- */

/* All that a file yields. */
struct content {
    uint32_t n_tensors;
    uint8_t *rows[16];
    size_t n_rows[16];
    uint8_t *literals, *meta;
    size_t n_literals, n_meta;
    int32_t *tokens;
    uint64_t n_tokens;
};

static void content_free(struct content *x) {
    for (uint32_t t = 0; t < x->n_tensors; t++) free(x->rows[t]);
    free(x->literals);
    free(x->meta);
    free(x->tokens);
}

static struct content content_of(const struct kvc_cache *c) {
    struct content x = {.n_tensors = c->n_tensors, .n_tokens = c->n_tokens};
    struct kvc_error e;
    assert_in_range(c->n_tensors, 1, 16);
    for (uint32_t t = 0; t < c->n_tensors; t++) x.rows[t] = rows_of(c, t, &x.n_rows[t]);
    x.literals = literals_of(c);
    x.n_literals = (size_t)c->literal_size;
    assert_int_equal(kvc_meta_encode(&c->meta, &x.meta, &x.n_meta, &e), 0);
    x.tokens = allocate((size_t)c->n_tokens * sizeof *x.tokens);
    if (c->n_tokens) memcpy(x.tokens, c->tokens, (size_t)c->n_tokens * sizeof *x.tokens);
    return x;
}

enum verdict { REFUSED, ACCEPTED, OTHER_DATA };

/* What an open file says about itself before its blocks are read. */
static int facts_are(const struct kvc_cache *c, const struct content *x) {
    struct kvc_error e;
    uint8_t *meta;
    size_t n;
    if (c->n_tensors != x->n_tensors || c->n_tokens != x->n_tokens ||
        c->literal_size != x->n_literals)
        return 0;
    for (uint32_t t = 0; t < x->n_tensors; t++)
        if (kvc_tensor_bytes(&c->tensor[t]) != x->n_rows[t]) return 0;
    assert_int_equal(kvc_meta_encode(&c->meta, &meta, &n, &e), 0);
    int same = n == x->n_meta && memcmp(meta, x->meta, n) == 0 &&
               (!x->n_tokens ||
                memcmp(c->tokens, x->tokens, (size_t)x->n_tokens * sizeof *x->tokens) == 0);
    free(meta);
    return same;
}

/* Opens, reads everything and checks the rest. Whatever a call that succeeds hands out must be
 * right, also when a later one fails. */
static enum verdict try_bytes(const uint8_t *bytes, size_t n, const struct content *x) {
    struct kvc_input in;
    struct kvc_error e = {.code = KVC_OK};
    enum verdict verdict = ACCEPTED;
    kvc_input_memory(&in, "test", bytes, n);
    struct kvc_cache *c = kvc_container_open(&in, &e);
    if (!c) verdict = REFUSED;
    else if (!facts_are(c, x)) verdict = OTHER_DATA;
    for (uint32_t t = 0; c && verdict != OTHER_DATA && t < x->n_tensors; t++) {
        uint8_t *rows = allocate(x->n_rows[t]);
        if (c->read(c, t, 0, c->tensor[t].shape.tokens, rows, &e)) verdict = REFUSED;
        else if (memcmp(rows, x->rows[t], x->n_rows[t]) != 0) verdict = OTHER_DATA;
        free(rows);
    }
    if (c && verdict != OTHER_DATA) {
        uint8_t *literals = allocate(x->n_literals);
        if (x->n_literals && c->read_literal(c, 0, x->n_literals, literals, &e)) verdict = REFUSED;
        else if (memcmp(literals, x->literals, x->n_literals) != 0) verdict = OTHER_DATA;
        free(literals);
    }
    if (c && verdict != OTHER_DATA && kvc_container_check_rest(c, &e)) verdict = REFUSED;
    if (verdict == REFUSED && (e.code == KVC_OK || !*e.message)) fail_msg("refused without a word");
    kvc_cache_free(c);
    kvc_input_close(&in);
    return verdict;
}

/* Flips every bit and cuts at every length. */
static void damage(struct kvc_cache *c, const struct kvc_pack_options *o) {
    struct kvc_buffer packed = pack(c, o, NULL);
    struct kvc_input in;
    assert_in_range(packed.n, 1, 32768);
    uint8_t *bytes = allocate(packed.n); /* exactly as large, so that reading beyond shows */
    memcpy(bytes, packed.data, packed.n);
    struct kvc_cache *d = open_bytes(&in, bytes, packed.n);
    struct content x = content_of(d);
    kvc_cache_free(d);
    kvc_input_close(&in);
    assert_int_equal(try_bytes(bytes, packed.n, &x), ACCEPTED);
    for (size_t i = 0; i < packed.n; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            bytes[i] ^= (uint8_t)(1u << bit);
            enum verdict verdict = try_bytes(bytes, packed.n, &x);
            if (verdict != REFUSED)
                fail_msg("bit %u of byte %zu flipped: %s", bit, i,
                         verdict == ACCEPTED ? "not noticed" : "other data");
            bytes[i] ^= (uint8_t)(1u << bit);
        }
    free(bytes);
    for (size_t n = 0; n < packed.n; n++) {
        uint8_t *cut = allocate(n);
        memcpy(cut, packed.data, n);
        if (try_bytes(cut, n, &x) != REFUSED) fail_msg("cut to %zu bytes: not noticed", n);
        free(cut);
    }
    content_free(&x);
    free(packed.data);
    kvc_cache_free(c);
}

static void damage_of_a_stored_file(void **state) {
    (void)state;
    struct builder b = simple(KVC_F16, 20, 2, 1, 8);
    struct kvc_cells *cells = &b.c->part[0].cells;
    cells->pos[19] = 300;
    add_tokens(&b, 20);
    damage(finish(&b), &(struct kvc_pack_options){.recipe = recipe_of("store"), .threads = 1});
}

static void damage_of_a_compressed_file(void **state) {
    (void)state;
    struct builder b = simple(KVC_BF16, 70, 1, 1, 16);
    add_tokens(&b, 70);
    damage(finish(&b), &(struct kvc_pack_options){.recipe = recipe_of("zstd"), .threads = 1});
}

/* Recipes whose blocks are decoded two at once, the last one with a stage between runs of rows. */
static const char *const by_two[] = {"split", "center,basis,steps,code:step=0.5",
                                     "center,lowrank:r=2,code:step=0.5"};
enum { BY_TWO = sizeof by_two / sizeof by_two[0] };

/* Blocks that are decoded two at once: any number of them, read from anywhere. */
static void blocks_two_by_two(void **state) {
    static const uint64_t cells[] = {256, 300, 512, 700, 1280};
    (void)state;
    kvc_kernels_choice(); /* makes the trial of kernels */
    for (size_t k = 0; k < BY_TWO * sizeof cells / sizeof cells[0]; k++) {
        const size_t i = k / BY_TWO;
        struct builder b = simple(KVC_BF16, cells[i], 1, 2, 16);
        struct kvc_cache *c = finish(&b);
        struct kvc_buffer packed = pack(
            c, &(struct kvc_pack_options){.recipe = recipe_of(by_two[k % BY_TWO]), .threads = 1},
            NULL);
        struct kvc_input in;
        struct kvc_cache *d = open_bytes(&in, packed.data, packed.n);
        struct kvc_error e;
        size_t n;
        uint8_t *want = rows_of(c, 0, &n), *got = allocate(n + 8);
        const size_t row = n / cells[i];
        if (k % BY_TWO == 0) assert_same(c, d);
        for (uint64_t t = 0; t < cells[i]; t += KVC_BLOCK) /* alone */
            assert_int_equal(d->read(d, 0, t, cells[i] - t < KVC_BLOCK ? cells[i] - t : KVC_BLOCK,
                                     want + t * row, &e),
                             0);
        assert_int_equal(kvc_container_check(d, 1, &e), 0);
        for (uint64_t first = 0; first < cells[i]; first += first % 256 < 2 ? 1 : 127)
            for (uint64_t end = first + 1; end <= cells[i];
                 end += end % 256 < 2 || end + 127 > cells[i] ? 1 : 127) {
                /* at an address where blocks are decoded, or not */
                uint8_t *to = got + (first + end) % 2 * 4;
                memset(got, 0xa5, n + 8);
                assert_int_equal(d->read(d, 0, first, end - first, to, &e), 0);
                assert_memory_equal(to, want + first * row, (end - first) * row);
                if (to + (end - first) * row < got + n + 8)
                    assert_int_equal(to[(end - first) * row], 0xa5);
            }
        free(want);
        free(got);
        kvc_cache_free(d);
        kvc_input_close(&in);
        free(packed.data);
        kvc_cache_free(c);
    }
}

/* Reading rows says of a damaged block what reading that block alone says. */
static void check_damage_of_one(const char *recipe) {
    enum { BLOCKS = 5 };
    struct builder b = simple(KVC_BF16, BLOCKS * KVC_BLOCK, 1, 1, 32);
    struct kvc_cache *c = finish(&b);
    struct kvc_buffer packed =
        pack(c, &(struct kvc_pack_options){.recipe = recipe_of(recipe), .threads = 1}, NULL);
    size_t n;
    uint8_t *rows = rows_of(c, 0, &n);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        struct kvc_input in;
        struct kvc_error alone, all;
        struct kvc_cache *d = open_bytes(&in, packed.data, packed.n);
        const struct kvc_records *k = kvc_records_of(d);
        const struct kvc_record *r = &k->record[k->block_record[k->first_block[0] + block]];
        packed.data[r->offset + r->size / 2] ^= 1;
        assert_int_equal(d->read(d, 0, block * KVC_BLOCK, KVC_BLOCK, rows, &alone), -1);
        assert_int_equal(alone.code, KVC_ERR_DAMAGED);
        assert_int_equal(d->read(d, 0, 0, BLOCKS * KVC_BLOCK, rows, &all), -1);
        assert_string_equal(all.message, alone.message);
        assert_int_equal(kvc_container_check(d, 1, &all), -1);
        assert_string_equal(all.message, alone.message);
        assert_int_equal(all.code, alone.code);
        for (uint64_t other = 0; other < BLOCKS; other++)
            assert_int_equal(d->read(d, 0, other * KVC_BLOCK, KVC_BLOCK, rows, &all),
                             other == block ? -1 : 0);
        packed.data[r->offset + r->size / 2] ^= 1;
        kvc_cache_free(d);
        kvc_input_close(&in);
    }
    free(rows);
    free(packed.data);
    kvc_cache_free(c);
}

static void damage_of_references_and_padding(void **state) {
    (void)state;
    damage(with_checkpoints(12, KVC_F8E4M3),
           &(struct kvc_pack_options){.recipe = recipe_of("zstd"), .threads = 1, .align = 4096});
}

/* What container.h promises of a cache that is no container: errors, or nothing. */
static void refused_of(struct kvc_cache *c) {
    struct kvc_error e;
    struct kvc_record_info info;
    struct kvc_program program = {0};
    const struct kvc_container_header header = kvc_container_header(c);
    char text[64];
    uint8_t row[1024];
    int embedded = 1;
    assert_false(kvc_cache_is_container(c));
    assert_null(kvc_records_of(c));
    kvc_container_set_weights(c, NULL);
    kvc_container_set_profile(c, &(struct kvc_profile_places){.given = "no/such/profile"});
    assert_null(kvc_container_profile(c, &embedded));
    assert_int_equal(embedded, 0);
    assert_int_equal(header.write_version | header.read_version | header.align, 0);
    assert_int_equal(kvc_container_records(c), 0);
    assert_string_equal(kvc_container_pipeline(c, 0), "");
    assert_int_equal(kvc_container_lossless(c), 0);
    assert_int_equal(kvc_container_stored(c, 0), 0);
#define REFUSED(call)                        \
    e.code = KVC_OK;                         \
    assert_int_equal(call, -1);              \
    assert_int_equal(e.code, KVC_ERR_USAGE); \
    assert_non_null(strstr(e.message, ".kvc"))
    REFUSED(kvc_container_transform(c, 0, text, sizeof text, &e));
    REFUSED(kvc_container_record(c, 0, &info, NULL, 0, &e));
    REFUSED(kvc_container_check(c, 1, &e));
    REFUSED(kvc_container_check_rest(c, &e));
    REFUSED(kvc_blocks_read(c, 0, 0, 1, row, &e));
    REFUSED(kvc_blocks_read_literal(c, 0, 1, row, &e));
    REFUSED(kvc_container_lower(c, 0, 0, NULL, &program, &e));
#undef REFUSED
}

static void other_caches_are_refused(void **state) {
    (void)state;
    struct builder b = simple(KVC_F16, 20, 1, 1, 8);
    struct kvc_cache *c = finish(&b);
    struct kvc_pack_options o = {.recipe = recipe_of("store")};
    struct kvc_record_info info;
    struct kvc_input in;
    struct kvc_error e;
    refused_of(c); /* as importers make them */
    struct kvc_buffer packed = pack(c, &o, NULL);
    struct kvc_cache *d = open_bytes(&in, packed.data, packed.n);
    struct kvc_cache *view = kvc_view_float(d, &e);
    assert_non_null(view);
    refused_of(view); /* of a container, but none */
    assert_int_equal(kvc_container_record(d, kvc_container_records(d), &info, NULL, 0, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    assert_int_equal(kvc_cache_map_memory(d, 0, packed.data, &e), -1); /* and the other way round */
    assert_int_equal(e.code, KVC_ERR_USAGE);
    assert_int_equal(kvc_cache_extent_bytes(d, packed.data, 1, &e), -1);
    assert_int_equal(kvc_container_check(d, 1, &e), 0);
    kvc_cache_free(view);
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(packed.data);
    kvc_cache_free(c);
}

static void damage_of_one_block_of_two(void **state) {
    (void)state;
    kvc_kernels_choice(); /* makes the trial of kernels */
    for (size_t k = 0; k < BY_TWO; k++) check_damage_of_one(by_two[k]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_and_ragged_size),
        cmocka_unit_test(no_parts),
        cmocka_unit_test(rows_of_one_byte_and_of_many),
        cmocka_unit_test(blocks_across_heads),
        cmocka_unit_test(cells_out_of_order),
        cmocka_unit_test(one_position_for_all),
        cmocka_unit_test(far_positions),
        cmocka_unit_test(words_of_cells),
        cmocka_unit_test(layouts_of_the_source),
        cmocka_unit_test(every_kind_and_role),
        cmocka_unit_test(repeated_rows_are_references),
        cmocka_unit_test(companions_are_never_references),
        cmocka_unit_test(tokens_and_keys),
        cmocka_unit_test(selections_keep_their_keys),
        cmocka_unit_test(metadata_of_every_type),
        cmocka_unit_test(long_literals),
        cmocka_unit_test(without_a_source),
        cmocka_unit_test(recipes_with_selectors),
        cmocka_unit_test(options_that_are_refused),
        cmocka_unit_test(threads_give_the_same_bytes),
        cmocka_unit_test(extents_are_aligned),
        cmocka_unit_test(behind_other_bytes_of_the_sink),
        cmocka_unit_test(any_range_of_rows),
        cmocka_unit_test(rows_in_any_layout),
        cmocka_unit_test(damage_of_a_stored_file),
        cmocka_unit_test(damage_of_a_compressed_file),
        cmocka_unit_test(other_caches_are_refused),
        cmocka_unit_test(damage_of_references_and_padding),
        cmocka_unit_test(blocks_two_by_two),
        cmocka_unit_test(damage_of_one_block_of_two),
    };
    return cmocka_run_group_tests_name("container", tests, NULL, NULL);
}
