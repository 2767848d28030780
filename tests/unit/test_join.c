/* test_join.c: caches joined from blocks of tokens and from heads, and the heads of one rank. */
#include "formats/cache/mapped.h"
#include "formats/cache/join.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix.h"
#include "formats/cache/shards.h"
#include "formats/cache/view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 600, HEADS = 4, DIM = 32, MAX_ROW = HEADS * DIM * 2 };
static uint8_t values[3][ROWS * MAX_ROW];
static uint8_t got[ROWS * MAX_ROW], due[ROWS * MAX_ROW];

struct made {
    enum kvc_dtype dtype;
    uint64_t rows;
    int64_t first;
    int tokens, words, queries;
    enum kvc_part_kind more; /* a second part of this kind; KVC_PART_LIVE: none */
};

static uint32_t add(struct kvc_cache *c, enum kvc_part_kind kind, uint64_t rows, int64_t first) {
    const uint32_t part = kvc_cache_add_part(c, kind, rows, NULL);
    for (uint64_t i = 0; i < rows; i++) c->part[part].cells.pos[i] = first + (int64_t)i;
    return part;
}

/* Makes a cache of one layer, whose rows are those of `values` from row m.first on. */
static struct kvc_cache *make(struct made m) {
    struct kvc_cache *c = kvc_cache_new(NULL);
    const uint32_t part = add(c, KVC_PART_LIVE, m.rows, m.first);
    if (m.words) {
        struct kvc_cells *cells = &c->part[part].cells;
        cells->words = malloc(2 * m.rows * sizeof *cells->words);
        cells->word_at = malloc((m.rows + 1) * sizeof *cells->word_at);
        for (uint64_t i = 0; i <= m.rows; i++) cells->word_at[i] = 2 * i;
        for (uint64_t i = 0; i < 2 * m.rows; i++)
            cells->words[i] = (uint32_t)(2 * m.first) + (uint32_t)i;
    }
    const uint32_t layer = kvc_cache_add_layer(c, part, 3, KVC_LAYER_FULL, NULL);
    struct kvc_shape shape = {m.dtype, m.rows, HEADS, DIM};
    const uint64_t row = kvc_row_bytes(&shape);
    assert_int_equal(kvc_cache_map(c, NULL, NULL, NULL), 0);
    for (int kv = 0; kv < 2; kv++) {
        const uint32_t t = kvc_cache_add_tensor(c, layer, kv ? KVC_ROLE_V : KVC_ROLE_K, &shape,
                                                NULL);
        assert_int_equal(kvc_cache_map_memory(c, t, values[kv] + (uint64_t)m.first * row, NULL), 0);
    }
    if (m.queries) {
        const uint32_t other = add(c, KVC_PART_COMPANION, m.rows, m.first);
        const uint32_t own = kvc_cache_add_layer(c, other, 3, KVC_LAYER_COMPANION, NULL);
        shape.heads = (uint64_t)m.queries;
        const uint32_t t = kvc_cache_add_tensor(c, own, KVC_ROLE_QUERIES, &shape, NULL);
        assert_int_equal(kvc_cache_map_memory(c, t,
                                              values[2] + (uint64_t)m.first * kvc_row_bytes(&shape),
                                              NULL),
                         0);
    }
    if (m.more) add(c, m.more, m.rows, m.first);
    if (m.tokens) {
        int32_t *tokens = malloc(m.rows * sizeof *tokens);
        for (uint64_t i = 0; i < m.rows; i++) tokens[i] = 1000 + (int32_t)m.first + (int32_t)i;
        assert_int_equal(kvc_cache_set_tokens(c, tokens, m.rows, NULL), 0);
        if (m.first) kvc_meta_set_u64(&c->meta, KVC_KEY_TOKENS_FIRST, (uint64_t)m.first, NULL);
        free(tokens);
    }
    assert_int_equal(kvc_cache_finish(c, NULL), 0);
    return c;
}

static int fill_values(void **state) {
    (void)state;
    uint32_t x = 1;
    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < sizeof values[i]; k++)
            values[i][k] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    return 0;
}

static void same_rows(const struct kvc_cache *a, const struct kvc_cache *b) {
    static const uint64_t ranges[][2] = {{0, ROWS}, {0, 1}, {255, 2}, {100, 400}, {599, 1}};
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (uint32_t t = 0; t < a->n_tensors; t++) {
        const struct kvc_shape *s = &a->tensor[t].shape, *r = &b->tensor[t].shape;
        assert_true(s->tokens == r->tokens && s->heads == r->heads && s->dim == r->dim &&
                    s->dtype == r->dtype);
        for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
            const uint64_t first = ranges[i][0], n = ranges[i][1];
            if (first + n > s->tokens) continue;
            assert_int_equal(a->read(a, t, first, n, got, NULL), 0);
            assert_int_equal(b->read(b, t, first, n, due, NULL), 0);
            assert_memory_equal(got, due, n * kvc_row_bytes(s));
        }
    }
    for (uint32_t p = 0; p < a->n_parts; p++)
        for (uint64_t i = 0; i < a->part[p].cells.n; i++)
            assert_int_equal(kvc_cells_position(&a->part[p].cells, i),
                             kvc_cells_position(&b->part[p].cells, i));
}

/* Joins up to three caches and frees them on failure. */
static struct kvc_cache *join(struct kvc_cache **c, size_t n, int heads,
                              struct kvc_join_report *report, struct kvc_error *e) {
    static const char *const names[] = {"a", "b", "c", "d"};
    struct kvc_join_operand from[4];
    for (size_t i = 0; i < n; i++)
        from[i] = (struct kvc_join_operand){.cache = c[i], .name = names[i]};
    return heads ? kvc_view_join_heads(from, n, report, e) : kvc_view_join(from, n, report, e);
}

static void free_all(struct kvc_cache **c, size_t n) {
    for (size_t i = 0; i < n; i++) kvc_cache_free(c[i]);
}

/* Joins two caches, which must be refused with words of the message; frees them. */
static void refused(struct kvc_cache *a, struct kvc_cache *b, int heads, const char *words) {
    struct kvc_cache *two[] = {a, b};
    struct kvc_join_report report;
    struct kvc_error e = {0};
    assert_null(join(two, 2, heads, &report, &e));
    if (!strstr(e.message, words)) fail_msg("'%s' is not in: %s", words, e.message);
    free_all(two, 2);
}

static void blocks_are_joined(void **state) {
    (void)state;
    const struct made all = {.dtype = KVC_F16, .rows = ROWS, .tokens = 1, .words = 1, .queries = 2};
    struct kvc_cache *whole = make(all), *c[3];
    const uint64_t cut[] = {0, 7, 300, ROWS};
    for (int i = 0; i < 3; i++) {
        struct made m = all;
        m.rows = cut[i + 1] - cut[i];
        m.first = (int64_t)cut[i];
        c[i] = make(m);
    }
    struct kvc_join_report report;
    struct kvc_error e;
    struct kvc_cache *v = join(c, 3, 0, &report, &e);
    if (!v) fail_msg("%s", e.message);
    assert_true(!report.by_order && !report.no_ids && !report.left_out);
    same_rows(v, whole);
    assert_int_equal(v->part[0].cells.n_blocks, whole->part[0].cells.n_blocks);
    assert_int_equal(v->n_tokens, ROWS);
    assert_memory_equal(v->tokens, whole->tokens, ROWS * sizeof *v->tokens);
    assert_null(kvc_meta_find(&v->meta, KVC_KEY_TOKENS_FIRST));
    assert_memory_equal(v->part[0].cells.words, whole->part[0].cells.words,
                        2 * ROWS * sizeof(uint32_t));
    assert_memory_equal(v->part[0].cells.word_at, whole->part[0].cells.word_at,
                        (ROWS + 1) * sizeof(uint64_t));
    assert_int_equal(v->n_extents, 0);
    assert_int_equal(v->read_literal(v, 0, 1, got, &e), -1);
    kvc_cache_free(v);

    /* the last two: token ids begin at 7 */
    v = join(c + 1, 2, 0, &report, &e);
    assert_non_null(v);
    assert_int_equal(kvc_meta_u64(&v->meta, KVC_KEY_TOKENS_FIRST, 0), 7);
    kvc_cache_free(v);
    free_all(c, 3);
    kvc_cache_free(whole);
}

static void order_gives_positions(void **state) {
    (void)state;
    struct kvc_cache *c[] = {make((struct made){.dtype = KVC_F16, .rows = 300}),
                             make((struct made){.dtype = KVC_F16, .rows = 100, .tokens = 1})};
    struct kvc_join_report report;
    struct kvc_cache *v = join(c, 2, 0, &report, NULL);
    assert_non_null(v);
    assert_true(report.by_order);
    assert_string_equal(report.no_ids, "a");
    assert_null(v->tokens);
    for (int64_t i = 0; i < 400; i++)
        assert_int_equal(kvc_cells_position(&v->part[0].cells, (uint64_t)i), i);
    assert_int_equal(v->read(v, 1, 299, 2, got, NULL), 0);
    assert_memory_equal(got, values[1] + 299 * MAX_ROW, MAX_ROW);
    assert_memory_equal(got + MAX_ROW, values[1], MAX_ROW);
    kvc_cache_free(v);
    /* llama.cpp records positions */
    kvc_meta_set_text(&c[1]->meta, KVC_KEY_SOURCE_FORMAT, "llama.cpp GGSQ", NULL);
    refused(c[0], c[1], 0, "rows of the first end at position 299, those of the second begin at 0");
}

static void positions_must_follow(void **state) {
    (void)state;
    const struct made first = {.dtype = KVC_F16, .rows = 100},
                      gap = {.dtype = KVC_F16, .rows = 100, .first = 101},
                      overlap = {.dtype = KVC_F16, .rows = 100, .first = 99};
    refused(make(first), make(gap), 0,
            "a and b cannot be joined: rows of the first end at position 99, those of the second "
            "begin at 101");
    refused(make(first), make(overlap), 0, "begin at 99");
    refused(make(gap), make(first), 0, "end at position 200, those of the second begin at 0");
    /* rows follow each other, token ids do not */
    struct kvc_cache *a = make((struct made){.dtype = KVC_F16, .rows = 100, .tokens = 1}),
                     *b = make(
                         (struct made){.dtype = KVC_F16, .rows = 100, .first = 100, .tokens = 1});
    a->n_tokens = 98;
    refused(a, b, 0, "token ids of the first end at position 97");
}

static void unlike_caches_are_refused(void **state) {
    (void)state;
    const struct made first = {.dtype = KVC_F16, .rows = 100},
                      second = {.dtype = KVC_F16, .rows = 100, .first = 100};
    struct made m = second;
    m.dtype = KVC_I8;
    refused(make(first), make(m), 0,
            "layer 3 K is f16 [4 heads x 32] in the first and i8 [4 heads x 32] in the second");
    struct kvc_cache *b = make(second);
    b->layer[0].index = 2;
    refused(make(first), b, 0, "the second has no layer 3 K");
    b = make(second);
    b->layer[0].tensor[1] = KVC_NONE;
    refused(make(first), b, 0, "the second has no layer 3 V");
    m = second;
    m.words = 1;
    refused(make(first), make(m), 0, "only some of them have cells of llama.cpp");
    m = second;
    m.more = KVC_PART_WINDOW;
    refused(make(first), make(m), 0, "window");
    m.more = KVC_PART_STATE;
    refused(make(first), make(m), 0, "recurrent states of b");
    m.more = KVC_PART_SNAPSHOT;
    refused(make(first), make(m), 0, "snapshots of b");
    b = make(second);
    add(b, KVC_PART_LIVE, 5, 0);
    refused(make(first), b, 0, "b has 2 streams");
}

/* Joins take the first part of its kind, and the first tensor of a layer: others of other sizes
 * would be read as if they were these. */
static void parts_and_layers_are_there_once(void **state) {
    (void)state;
    for (int windows = 0; windows < 2; windows++) {
        struct kvc_cache *c = kvc_cache_new(NULL);
        assert_int_equal(kvc_cache_map(c, NULL, NULL, NULL), 0);
        add(c, KVC_PART_LIVE, 9, 0);
        for (uint64_t i = 1; i < 3; i++) {
            const uint64_t rows = windows && i == 1 ? 1 : 9;
            const uint32_t part = windows ? add(c, KVC_PART_WINDOW, rows, 0) : 0,
                           layer = kvc_cache_add_layer(c, part, 3, KVC_LAYER_FULL, NULL);
            const struct kvc_shape shape = {KVC_F16, rows, HEADS / i, DIM};
            const uint32_t t = kvc_cache_add_tensor(c, layer, KVC_ROLE_K, &shape, NULL);
            assert_int_equal(kvc_cache_map_memory(c, t, values[0], NULL), 0);
        }
        assert_int_equal(kvc_cache_finish(c, NULL), 0);
        const struct kvc_join_operand operand = {.cache = c, .name = "one"};
        for (int heads = 0; heads < 2; heads++) {
            struct kvc_join_report report;
            struct kvc_error e;
            assert_null(heads ? kvc_view_join_heads(&operand, 1, &report, &e)
                              : kvc_view_join(&operand, 1, &report, &e));
            assert_non_null(strstr(e.message, windows ? "several parts of window" : "twice"));
        }
        kvc_cache_free(c);
    }
}

static void metadata_are_merged(void **state) {
    (void)state;
    struct kvc_cache *c[] = {make((struct made){.dtype = KVC_F16, .rows = 10}),
                             make((struct made){.dtype = KVC_F16, .rows = 10, .first = 10})};
    kvc_meta_set_text(&c[0]->meta, KVC_KEY_MODEL_NAME, "m", NULL);
    kvc_meta_set_text(&c[1]->meta, KVC_KEY_MODEL_NAME, "m", NULL);
    kvc_meta_set_u64(&c[1]->meta, KVC_KEY_MODEL_LAYERS, 9, NULL);
    kvc_meta_set_text(&c[0]->meta, KVC_KEY_RECIPE, "zstd", NULL);
    kvc_meta_set_text(&c[0]->meta, KVC_KEY_SOURCE_FORMAT, "npz", NULL);
    kvc_meta_set_text(&c[1]->meta, KVC_KEY_SOURCE_FORMAT, "safetensors", NULL);
    kvc_meta_set_u64(&c[0]->meta, KVC_KEY_SOURCE_BYTES, 70, NULL);
    kvc_meta_set_u64(&c[1]->meta, KVC_KEY_SOURCE_BYTES, 30, NULL);
    kvc_meta_set_bool(&c[0]->meta, KVC_KEY_LAYERS_KNOWN, 0, NULL);
    struct kvc_join_report report;
    struct kvc_cache *v = join(c, 2, 0, &report, NULL);
    assert_non_null(v);
    assert_string_equal(kvc_meta_text(&v->meta, KVC_KEY_MODEL_NAME, ""), "m");
    assert_int_equal(kvc_meta_u64(&v->meta, KVC_KEY_MODEL_LAYERS, 0), 9);
    assert_int_equal(kvc_meta_u64(&v->meta, KVC_KEY_SOURCE_BYTES, 0), 100);
    assert_int_equal(v->meta.n, 3);
    kvc_cache_free(v);
    kvc_meta_set_text(&c[1]->meta, KVC_KEY_MODEL_NAME, "n", NULL);
    refused(c[0], c[1], 0,
            "a and b cannot be joined: model.name is m in the first and n in the second");
}

/* Companions are joined where they match, also if only some caches have them, and else left out. */
static void companions(void **state) {
    (void)state;
    struct kvc_cache *c[] = {
        make((struct made){.dtype = KVC_F16, .rows = 10}),
        make((struct made){.dtype = KVC_F16, .rows = 10, .first = 10, .queries = 2}),
        make((struct made){.dtype = KVC_F16, .rows = 10, .first = 20, .queries = 4})};
    struct kvc_join_report report;
    struct kvc_cache *v = join(c, 2, 0, &report, NULL);
    assert_non_null(v);
    assert_int_equal(v->n_parts, 2);
    assert_int_equal(v->part[1].cells.n, 10);
    assert_int_equal(v->part[1].cells.pos[0], 10);
    assert_int_equal(v->read(v, 2, 0, 10, got, NULL), 0);
    assert_memory_equal(got, values[2] + 10 * MAX_ROW / 2, 10 * MAX_ROW / 2);
    kvc_cache_free(v);
    v = join(c, 3, 0, &report, NULL);
    assert_non_null(v);
    assert_true(report.left_out);
    assert_int_equal(v->n_parts, 1);
    kvc_cache_free(v);
    free_all(c, 3);
}

/* Of two halves of one cache, the second gets another set, or none. */
static void sets_tell_shards_apart(struct kvc_cache *half[2]) {
    uint8_t set[KVC_SHARD_SET_BYTES];
    struct kvc_join_report report;
    struct kvc_error e;
    memcpy(set, half[1]->meta.facts.shard_set, sizeof set);
    set[15] ^= 1;
    kvc_meta_set_bytes(&half[1]->meta, KVC_KEY_SHARD_SET, set, sizeof set, NULL);
    assert_null(join(half, 2, 1, &report, &e));
    assert_string_equal(e.message, "a and b are shards of two caches (shard.set differs)");
    kvc_meta_remove(&half[1]->meta, KVC_KEY_SHARD_SET);
    kvc_cache_free(join(half, 2, 1, &report, &e));
    /* the set follows from ids and model */
    set[15] ^= 1;
    assert_int_equal(kvc_shard_name_set(&half[1]->meta, half[1], NULL), 0);
    assert_memory_equal(half[1]->meta.facts.shard_set, set, sizeof set);
    kvc_meta_remove(&half[1]->meta, KVC_KEY_SHARD_SET);
    kvc_meta_set_text(&half[1]->meta, KVC_KEY_MODEL_NAME, "another", NULL);
    assert_int_equal(kvc_shard_name_set(&half[1]->meta, half[1], NULL), 0);
    assert_memory_not_equal(half[1]->meta.facts.shard_set, set, sizeof set);
    kvc_meta_remove(&half[1]->meta, KVC_KEY_MODEL_NAME);
    kvc_meta_remove(&half[1]->meta, KVC_KEY_SHARD_SET);
    half[1]->tokens[0]++;
    assert_int_equal(kvc_shard_name_set(&half[1]->meta, half[1], NULL), 0);
    assert_memory_not_equal(half[1]->meta.facts.shard_set, set, sizeof set);
    half[1]->tokens[0]--;
    kvc_meta_set_bytes(&half[1]->meta, KVC_KEY_SHARD_SET, set, sizeof set, NULL);
    /* a range of the cache is another one */
    const struct kvc_selection range = {.end = 5};
    struct kvc_cache *cut = kvc_view_select(half[1], &range, NULL);
    assert_non_null(cut);
    assert_null(cut->meta.facts.shard_set);
    kvc_cache_free(cut);
}

static void heads_are_divided_and_joined(void **state) {
    (void)state;
    const enum kvc_dtype dtypes[] = {KVC_F16, KVC_Q8_0};
    for (int d = 0; d < 2; d++) {
        struct kvc_cache *whole = make((struct made){
                             .dtype = dtypes[d], .rows = ROWS, .tokens = 1, .words = 1}),
                         *c[2];
        struct kvc_join_report report;
        struct kvc_error e;
        int left_out;
        for (uint32_t i = 0; i < 2; i++) {
            c[i] = kvc_view_shard(whole, i, 2, &left_out, &e);
            if (!c[i]) fail_msg("%s", e.message);
            assert_int_equal(left_out, 0);
            assert_int_equal(c[i]->tensor[0].shape.heads, 2);
        }
        assert_int_equal(c[1]->meta.facts.shard_rank, 1);
        assert_int_equal(c[1]->meta.facts.shard_ranks, 2);
        assert_non_null(c[0]->meta.facts.shard_set);
        assert_memory_equal(c[0]->meta.facts.shard_set, c[1]->meta.facts.shard_set,
                            KVC_SHARD_SET_BYTES);
        const uint64_t row = kvc_row_bytes(&whole->tensor[0].shape);
        assert_int_equal(c[1]->read(c[1], 1, 5, 1, got, NULL), 0);
        assert_memory_equal(got, values[1] + 5 * row + row / 2, row / 2);
        struct kvc_cache *v = join(c, 2, 1, &report, &e);
        if (!v) fail_msg("%s", e.message);
        same_rows(v, whole);
        assert_int_equal(v->meta.facts.shard_ranks, 0);
        assert_null(v->meta.facts.shard_set);
        assert_memory_equal(v->tokens, whole->tokens, ROWS * sizeof *v->tokens);
        assert_memory_equal(v->part[0].cells.words, whole->part[0].cells.words,
                            2 * ROWS * sizeof(uint32_t));
        kvc_cache_free(v);
        assert_null(kvc_view_shard(c[0], 0, 2, &left_out, &e)); /* is a shard already */
        sets_tell_shards_apart(c);
        refused(c[1], c[0], 1, "a: is shard 1/2, and is given as 0/2");
        assert_null(kvc_view_shard(whole, 0, 3, &left_out, &e));
        assert_non_null(strstr(e.message, "4 heads cannot be divided by 3 ranks"));
        assert_null(kvc_view_shard(whole, 2, 2, &left_out, &e));
        kvc_meta_set_u64(&whole->meta, KVC_KEY_HADAMARD_K, 128, NULL);
        /* a rotation over all four heads */
        assert_null(kvc_view_shard(whole, 0, 2, &left_out, &e));
        kvc_meta_set_bool(&whole->meta, KVC_KEY_HEADS_KNOWN, 0, NULL);
        assert_null(kvc_view_shard(whole, 0, 2, &left_out, &e));
        assert_int_equal(e.need, KVC_NEED_HEADS);
        kvc_cache_free(whole);
    }
}

static void ranks_must_match(void **state) {
    (void)state;
    const struct made m = {.dtype = KVC_F16, .rows = 10, .tokens = 1};
    struct made other = m;
    other.first = 1;
    refused(make(m), make(other), 1, "row 0 is position 0 in the first and 1 in the second");
    other = m;
    other.rows = 9;
    refused(make(m), make(other), 1, "the first has 10 tokens and the second 9");
    struct kvc_cache *b = make(m);
    b->tokens[4]++;
    refused(make(m), b, 1, "their token ids differ");
    b = make(m);
    b->tensor[0].role = KVC_ROLE_LATENT;
    struct kvc_cache *a = make(m);
    a->tensor[0].role = KVC_ROLE_LATENT;
    refused(a, b, 1, "latent attention of a has no KV heads");
    /* where the number of heads is unknown, it stays unknown */
    struct kvc_cache *c[] = {make(m), make(m)};
    for (int i = 0; i < 2; i++) {
        for (int t = 0; t < 2; t++)
            c[i]->tensor[t].shape.dim *= c[i]->tensor[t].shape.heads,
                c[i]->tensor[t].shape.heads = 1;
        kvc_meta_set_bool(&c[i]->meta, KVC_KEY_HEADS_KNOWN, 0, NULL);
    }
    struct kvc_join_report report;
    struct kvc_cache *v = join(c, 2, 1, &report, NULL);
    assert_non_null(v);
    assert_int_equal(v->tensor[0].shape.heads, 1);
    assert_int_equal(v->tensor[0].shape.dim, 2 * HEADS * DIM);
    assert_true(v->meta.facts.heads_unknown);
    kvc_cache_free(v);
    free_all(c, 2);
}

/* Blocks with the prefix key at their first token: the chain begins with the first block, and goes
 * through the others. */
static void prefix_keys_must_continue(void **state) {
    (void)state;
    const struct kvc_extra extra = {.position = 300,
                                    .tag = KVC_EXTRA_MEDIA,
                                    .size = KVC_MIN_EXTRA_HASH,
                                    .bytes = values[0]};
    struct kvc_cache *whole = make((struct made){.dtype = KVC_F16, .rows = ROWS, .tokens = 1}),
                     *c[3];
    assert_int_equal(kvc_extras_store(&whole->meta, &extra, 1, NULL), 0);
    const uint64_t cut[] = {0, 256, 512, ROWS};
    for (int i = 0; i < 3; i++)
        c[i] = kvc_view_select(whole, &(struct kvc_selection){.first = cut[i], .end = cut[i + 1]},
                               NULL);
    const struct kvc_meta_entry *parent = kvc_meta_find(&c[1]->meta, KVC_KEY_PREFIX_PARENT);
    assert_non_null(parent);
    struct kvc_join_report report;
    struct kvc_error e;
    struct kvc_cache *v = join(c, 3, 0, &report, &e);
    if (!v) fail_msg("%s", e.message);
    assert_null(kvc_meta_find(&v->meta, KVC_KEY_PREFIX_PARENT));
    const struct kvc_meta_entry *had = kvc_meta_find(&whole->meta, KVC_KEY_PREFIX_EXTRAS),
                                *has = kvc_meta_find(&v->meta, KVC_KEY_PREFIX_EXTRAS);
    assert_true(has && has->size == had->size);
    assert_memory_equal(has->value, had->value, had->size);
    kvc_cache_free(v);
    v = join(c + 1, 2, 0, &report, &e);
    if (!v) fail_msg("%s", e.message);
    const struct kvc_meta_entry *kept = kvc_meta_find(&v->meta, KVC_KEY_PREFIX_PARENT);
    assert_true(kept && memcmp(kept->value, parent->value, parent->size) == 0);
    kvc_cache_free(v);
    c[0]->tokens[100]++; /* another text */
    assert_null(join(c, 3, 0, &report, &e));
    assert_non_null(strstr(e.message, "b does not continue a"));
    c[0]->tokens[100]--;
    c[1]->tokens[0]++;
    assert_null(join(c + 1, 2, 0, &report, &e));
    assert_non_null(strstr(e.message, "b does not continue a"));
    free_all(c, 3);
    kvc_cache_free(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_joined),
        cmocka_unit_test(order_gives_positions),
        cmocka_unit_test(positions_must_follow),
        cmocka_unit_test(unlike_caches_are_refused),
        cmocka_unit_test(parts_and_layers_are_there_once),
        cmocka_unit_test(metadata_are_merged),
        cmocka_unit_test(companions),
        cmocka_unit_test(heads_are_divided_and_joined),
        cmocka_unit_test(ranks_must_match),
        cmocka_unit_test(prefix_keys_must_continue),
    };
    return cmocka_run_group_tests(tests, fill_values, NULL);
}
