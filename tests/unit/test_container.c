/* test_container.c: what kvc_container_write() writes, kvc_container_open() reads again: shapes,
 * references, metadata, selections, options, rows in any layout. Not for damage
 * (test_container_damage.c). */
#include "container_support.h"

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
    cells->words = get_memory(600 * sizeof *cells->words);
    cells->word_at = get_memory(301 * sizeof *cells->word_at);
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
             sliding = add_part(&b, KVC_PART_WINDOW, 8, 32),
             recurrent = add_part(&b, KVC_PART_STATE, 1, 39),
             companion = add_part(&b, KVC_PART_COMPANION, 16, 24);
    b.c->part[live].stream = 3;
    add_tensor(&b, add_layer(&b, live, 0, KVC_LAYER_FULL), KVC_ROLE_K, KVC_F16, 2, 8, 1, CANONICAL);
    add_tensor(&b, add_layer(&b, live, 1, KVC_LAYER_LATENT), KVC_ROLE_LATENT, KVC_F16, 1, 24, 2,
               CANONICAL);
    add_tensor(&b, add_layer(&b, sliding, 2, KVC_LAYER_WINDOW), KVC_ROLE_V, KVC_F16, 2, 8, 3,
               CANONICAL);
    uint32_t state_layer = add_layer(&b, recurrent, 3, KVC_LAYER_STATE);
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
    char *text = get_memory(100001);
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
    struct kvc_input source;
    kvc_input_memory(&source, "literals", bytes, (size_t)n);
    assert_int_equal(kvc_cache_extent_literal(b.c, &source, 0, n, &b.e), 0);
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
            uint8_t *some = get_memory((size_t)count * row);
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
    uint8_t *rows = rows_of(c, t, &n), *want = get_memory(room), *got = get_memory(room);
    for (uint64_t i = 0; i < 4; i++) { /* all rows, then runs that begin and end within blocks */
        const uint64_t first = i ? mix(i) % shape->tokens : 0,
                       count = i ? mix(i + 9) % (shape->tokens - first + 1) : shape->tokens;
        const struct kvc_row_places places = {.base = got + AROUND,
                                              .strides = *s,
                                              .first = first,
                                              .past = past};
        uint8_t *room_for_rows = get_memory((size_t)count * row);
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
            place_all(of[k], "store");
            place_all(of[k], "zstd");
            place_all(of[k], "fast");
            place_all(of[k], "split");
            kvc_cache_free(of[k]);
        }
    }
}

/* Rows that are stored as they are go to their places, and nowhere else. */
static void stored_rows_are_copied_once(void **state) {
    (void)state;
    struct builder b = simple(KVC_F16, 700, 1, 3, 64);
    struct kvc_cache *c = finish(&b);
    struct kvc_buffer bytes =
        pack(c, &(struct kvc_pack_options){.recipe = recipe_of("store"), .threads = 1}, NULL);
    struct kvc_input in;
    struct kvc_cache *d = open_bytes(&in, bytes.data, bytes.n);
    for (uint32_t t = 0; t < d->n_tensors; t++) {
        const struct kvc_shape *shape = &c->tensor[t].shape;
        struct kvc_error e;
        size_t n;
        uint8_t *rows = rows_of(c, t, &n), *want = get_memory(n), *got = get_memory(n),
                *room = get_memory(n);
        const struct kvc_row_places places = {.base = got,
                                              .strides = kvc_strides_heads_first(shape)};
        kvc_rows_scatter(want, rows, shape, &places.strides, 0, shape->tokens, 0);
        memset(room, 0xee, n);
        if (kvc_container_place(d, t, 0, shape->tokens, &places, room, &e))
            fail_msg("%s", e.message);
        assert_memory_equal(got, want, n);
        for (size_t i = 0; i < n; i++) assert_int_equal(room[i], 0xee);
        free(rows), free(want), free(got), free(room);
    }
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(bytes.data);
    kvc_cache_free(c);
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
        cmocka_unit_test(stored_rows_are_copied_once),
    };
    return cmocka_run_group_tests_name("container", tests, NULL, NULL);
}
