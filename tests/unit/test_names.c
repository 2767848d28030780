/* test_names.c: what names mean, --map patterns, and the parts built from arrays of different
 * lengths. */
#include "formats/cache/mapped.h"
#include "formats/engines/arrays_list.h"

#include "formats/io/bytes.h"
#include "tests/unit/arrays_support.h"

static void assert_name(const char *name, const struct kvc_import_options *o,
                        enum kvc_name_kind kind, enum kvc_role role, uint32_t layer) {
    struct kvc_name found = kvc_name_of(name, o);
    assert_int_equal(found.kind, kind);
    if (kind != KVC_NAME_TENSOR) return;
    assert_int_equal(found.role, role);
    assert_int_equal(found.layer, layer);
}

static void test_conventions(void **state) {
    (void)state;
    assert_name("layers.0.keys", NULL, KVC_NAME_TENSOR, KVC_ROLE_K, 0);
    assert_name("layers.17.values", NULL, KVC_NAME_TENSOR, KVC_ROLE_V, 17);
    assert_name("key_cache.3", NULL, KVC_NAME_TENSOR, KVC_ROLE_K, 3);
    assert_name("value_cache.3", NULL, KVC_NAME_TENSOR, KVC_ROLE_V, 3);
    assert_name("past_key_values.5.key", NULL, KVC_NAME_TENSOR, KVC_ROLE_K, 5);
    assert_name("past_key_values.5.value", NULL, KVC_NAME_TENSOR, KVC_ROLE_V, 5);
    assert_name("queries.29", NULL, KVC_NAME_TENSOR, KVC_ROLE_QUERIES, 29);
    assert_name("hidden.999999", NULL, KVC_NAME_TENSOR, KVC_ROLE_HIDDEN, 999999);
    assert_name("tokens", NULL, KVC_NAME_TOKENS, KVC_ROLE_K, 0);
    assert_true(kvc_name_of("sliding.layers.1.keys", NULL).sliding);
    assert_name("positions", NULL, KVC_NAME_POSITIONS, KVC_ROLE_K, 0);
    assert_false(kvc_name_of("positions", NULL).sliding);
    assert_name("sliding.positions", NULL, KVC_NAME_POSITIONS, KVC_ROLE_K, 0);
    assert_true(kvc_name_of("sliding.positions", NULL).sliding);
    static const char *const others[] = {"",
                                         "layers..keys",
                                         "layers.01.keys",
                                         "layers.-1.keys",
                                         "layers.1.keys.x",
                                         "layers.1000000.keys",
                                         "layers.1",
                                         "layers.1a.keys",
                                         "xlayers.1.keys",
                                         "tokens.0",
                                         "key_cache.",
                                         "layers.keys",
                                         "continuation",
                                         "wk.0"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_name(others[i], NULL, KVC_NAME_OTHER, KVC_ROLE_K, 0);
}

static void test_map(void **state) {
    (void)state;
    static const char *const map[] = {"keys={i}.0", "values={i}.1", "tokens=ids", "positions=at",
                                      NULL};
    struct kvc_option_value value[] = {
        [KVC_ARRAYS_MAP] = {.list = map}, [KVC_ARRAYS_LATENT] = {.count = 0}};
    struct kvc_import_options o = {.value = value};
    struct kvc_error e;
    assert_int_equal(kvc_name_check_map(&o, &e), 0);
    assert_name("12.0", &o, KVC_NAME_TENSOR, KVC_ROLE_K, 12);
    assert_name("12.1", &o, KVC_NAME_TENSOR, KVC_ROLE_V, 12);
    assert_name("ids", &o, KVC_NAME_TOKENS, KVC_ROLE_K, 0);
    /* conventions for K and V are off */
    assert_name("layers.0.keys", &o, KVC_NAME_OTHER, KVC_ROLE_K, 0);
    assert_name("tokens", &o, KVC_NAME_OTHER, KVC_ROLE_K, 0);
    assert_name("at", &o, KVC_NAME_POSITIONS, KVC_ROLE_K, 0);
    assert_name("positions", &o, KVC_NAME_OTHER, KVC_ROLE_K, 0);
    assert_name("sliding.positions", &o, KVC_NAME_OTHER, KVC_ROLE_K, 0);
    assert_name("queries.2", &o, KVC_NAME_TENSOR, KVC_ROLE_QUERIES, 2); /* others stay */
    static const char *const bad[] = {"keys",       "keys=",         "keys=a", "keys={i}{i}",
                                      "tokens={i}", "positions={i}", "k={i}",  ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *const one[] = {bad[i], NULL};
        value[KVC_ARRAYS_MAP].list = one;
        assert_int_equal(kvc_name_check_map(&o, &e), -1);
        assert_int_equal(e.code, KVC_ERR_USAGE);
    }
}

static void test_print(void **state) {
    (void)state;
    char text[64];
    kvc_name_print(&(struct kvc_name){KVC_NAME_TENSOR, KVC_ROLE_K, 3, 0, 0}, text, sizeof text);
    assert_string_equal(text, "layers.3.keys");
    kvc_name_print(&(struct kvc_name){KVC_NAME_TENSOR, KVC_ROLE_V, 3, 1, 0}, text, sizeof text);
    assert_string_equal(text, "sliding.layers.3.values");
    kvc_name_print(&(struct kvc_name){KVC_NAME_TENSOR, KVC_ROLE_QUERIES, 0, 0, 0}, text,
                   sizeof text);
    assert_string_equal(text, "queries.0");
    kvc_name_print(&(struct kvc_name){.kind = KVC_NAME_TOKENS}, text, sizeof text);
    assert_string_equal(text, "tokens");
    kvc_name_print(&(struct kvc_name){.kind = KVC_NAME_POSITIONS}, text, sizeof text);
    assert_string_equal(text, "positions");
    kvc_name_print(&(struct kvc_name){.kind = KVC_NAME_POSITIONS, .sliding = 1}, text, sizeof text);
    assert_string_equal(text, "sliding.positions");
    assert_string_equal(kvc_name_show("a\x1b[31m\xc3\xa4", text, sizeof text), "a?[31m??");
    assert_string_equal(kvc_name_show("0123456789", text, 8), "0123...");
}

/* --- building --- */

static uint8_t bytes[4096];

/* An input over bytes of a test; the last few that were asked for are good. */
static const struct kvc_input *over(const void *data, size_t size) {
    static struct kvc_input in[16];
    static unsigned next;
    struct kvc_input *one = &in[next++ % 16];
    kvc_input_memory(one, "a test", data, size);
    return one;
}

static struct kvc_array array_of(const char *name, uint64_t heads, uint64_t tokens, uint64_t dim) {
    return (struct kvc_array){.name = name,
                              .type = "F16",
                              .info = kvc_dtype_info(KVC_F16),
                              .rank = 4,
                              .dim = {1, heads, tokens, dim},
                              .in = over(bytes, sizeof bytes),
                              .size = heads * tokens * dim * 2};
}

static int build(struct kvc_array *array, size_t n, const char *const *map, struct kvc_cache **c,
                 struct kvc_error *e) {
    struct kvc_option_value value[] = {
        [KVC_ARRAYS_MAP] = {.list = map}, [KVC_ARRAYS_LATENT] = {.count = 0}};
    struct kvc_import_options o = {.value = map ? value : NULL};
    *c = kvc_cache_new(e);
    assert_non_null(*c);
    assert_int_equal(kvc_cache_map(*c, NULL, NULL, e), 0);
    int status = kvc_names_build(*c, array, n, &o, e);
    return status ? status : kvc_cache_finish(*c, e);
}

static void refuse(struct kvc_array *array, size_t n, enum kvc_code code, const char *words) {
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_cache *c;
    assert_int_equal(build(array, n, NULL, &c, &e), -1);
    if (e.code != code || !strstr(e.message, words))
        fail_msg("code %d: %s", (int)e.code, e.message);
    kvc_cache_free(c);
}

static void test_parts(void **state) {
    (void)state;
    struct kvc_cache *c;
    struct kvc_error e;
    struct kvc_array array[] = {
        array_of("queries.1", 4, 2, 8),       array_of("layers.10.values", 2, 9, 4),
        array_of("layers.10.keys", 2, 9, 8),  array_of("layers.2.keys", 2, 9, 8),
        array_of("layers.2.values", 2, 9, 4), array_of("layers.3.keys", 2, 5, 8),
        array_of("other", 1, 1, 1),           array_of("layers.3.values", 2, 5, 8),
        array_of("hidden.1", 1, 2, 8),
    };
    array[8].rank = 3;
    memcpy(array[8].dim, (uint64_t[]){1, 2, 8}, 3 * sizeof(uint64_t));
    if (build(array, 9, NULL, &c, &e)) fail_msg("%s", e.message);
    assert_int_equal(c->n_parts, 3);
    static const struct {
        enum kvc_part_kind kind;
        uint64_t n;
        int64_t first;
    } parts[] = {{KVC_PART_LIVE, 9, 0}, {KVC_PART_WINDOW, 5, 4}, {KVC_PART_COMPANION, 2, 7}};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(c->part[i].kind, parts[i].kind);
        assert_int_equal(c->part[i].cells.n, parts[i].n);
        assert_int_equal(c->part[i].cells.pos[0], parts[i].first);
        assert_int_equal(c->part[i].cells.pos[parts[i].n - 1], 8);
    }
    static const uint32_t index[] = {2, 10, 3, 1, 1};
    assert_int_equal(c->n_layers, 5);
    for (unsigned i = 0; i < 5; i++) assert_int_equal(c->layer[i].index, index[i]);
    assert_int_equal(c->n_tensors, 8);
    static const uint32_t tensor[] = {0, 7, 6, 2, 3, 4, KVC_NONE, 5, 1}; /* layer by layer */
    for (unsigned i = 0; i < 9; i++) assert_int_equal(array[i].tensor, tensor[i]);
    assert_int_equal(c->tensor[c->layer[1].tensor[1]].shape.dim, 4);
    kvc_cache_free(c);
}

static void test_sliding(void **state) {
    (void)state;
    struct kvc_cache *c;
    struct kvc_error e;
    struct kvc_array array[] = {
        array_of("layers.0.keys", 1, 6, 4),
        array_of("layers.0.values", 1, 6, 4),
        array_of("sliding.layers.0.keys", 1, 6, 4),
        array_of("sliding.layers.0.values", 1, 6, 4),
    };
    if (build(array, 4, NULL, &c, &e)) fail_msg("%s", e.message);
    assert_int_equal(c->n_parts, 2);
    assert_int_equal(c->part[1].kind, KVC_PART_WINDOW);
    assert_int_equal(c->layer[1].kind, KVC_LAYER_WINDOW);
    kvc_cache_free(c);
}

static void test_refusals(void **state) {
    (void)state;
    struct kvc_array pair[] = {array_of("layers.0.keys", 2, 3, 4),
                               array_of("layers.0.values", 2, 3, 4)};
    struct kvc_array a[4];
    refuse(pair, 1, KVC_ERR_UNSUPPORTED, "has K but no V");
    refuse(pair + 1, 1, KVC_ERR_UNSUPPORTED, "has V but no K");
    refuse(pair, 0, KVC_ERR_UNKNOWN_FORMAT, "no arrays");
    memcpy(a, pair, sizeof pair);
    a[0].dim[0] = 2;
    refuse(a, 2, KVC_ERR_UNSUPPORTED, "2 sequences");
    memcpy(a, pair, sizeof pair);
    a[0].rank = 3;
    refuse(a, 2, KVC_ERR_UNSUPPORTED, "[1, heads, tokens, head dim]");
    memcpy(a, pair, sizeof pair);
    a[1].info = NULL;
    a[1].type = "F64";
    refuse(a, 2, KVC_ERR_UNSUPPORTED, "F64");
    memcpy(a, pair, sizeof pair);
    a[1] = array_of("layers.0.values", 1, 3, 4);
    refuse(a, 2, KVC_ERR_DAMAGED, "differ in heads or tokens");
    a[1] = array_of("layers.0.values", 2, 4, 4);
    refuse(a, 2, KVC_ERR_DAMAGED, "differ in heads or tokens");
    memcpy(a, pair, sizeof pair);
    a[2] = array_of("key_cache.0", 2, 3, 4);
    refuse(a, 3, KVC_ERR_DAMAGED, "both are K of layer 0");
    a[2] = array_of("queries.0", 2, 4, 4);
    refuse(a, 3, KVC_ERR_DAMAGED, "companion part cover 4 tokens, more than the cache has (3)");
    a[2] = array_of("queries.0", 0, UINT64_C(1) << 60, 4);
    a[2].size = 0;
    refuse(a, 3, KVC_ERR_UNSUPPORTED, "no heads or channels");
    a[0] = array_of("a\nb", 1, 1, 1);
    refuse(a, 1, KVC_ERR_UNKNOWN_FORMAT, "found 'a?b'");
}

static void test_lone(void **state) {
    (void)state;
    static const char *const map[] = {"keys=latent.{i}", NULL};
    struct kvc_array array[] = {array_of("latent.0", 1, 3, 4), array_of("latent.1", 1, 3, 4)};
    struct kvc_cache *c;
    struct kvc_error e;
    if (build(array, 2, map, &c, &e)) fail_msg("%s", e.message);
    assert_int_equal(c->n_layers, 2);
    assert_int_equal(c->layer[0].tensor[1], KVC_NONE);
    kvc_cache_free(c);
}

static void test_tokens(void **state) {
    (void)state;
    static const uint8_t wide[16] = {7, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f};
    static const uint8_t large[8] = {0, 0, 0, 0x80}, negative[4] = {0xff, 0xff, 0xff, 0xff};
    struct kvc_array a[] = {array_of("layers.0.keys", 2, 3, 4),
                            array_of("layers.0.values", 2, 3, 4),
                            {.name = "tokens",
                             .type = "I64",
                             .int_size = 8,
                             .rank = 2,
                             .dim = {1, 2},
                             .in = over(wide, sizeof wide),
                             .size = 16}};
    struct kvc_cache *c;
    struct kvc_error e;
    if (build(a, 3, NULL, &c, &e)) fail_msg("%s", e.message);
    assert_int_equal(c->n_tokens, 2);
    assert_int_equal(c->tokens[0], 7);
    assert_int_equal(c->tokens[1], INT32_MAX);
    kvc_cache_free(c);
    a[2].dim[1] = 1;
    a[2].size = 8;
    a[2].in = over(large, sizeof large);
    refuse(a, 3, KVC_ERR_DAMAGED, "entry 0 is no token id");
    a[2] = (struct kvc_array){.name = "tokens",
                              .type = "I32",
                              .int_size = 4,
                              .rank = 1,
                              .dim = {1},
                              .in = over(negative, sizeof negative),
                              .size = 4};
    refuse(a, 3, KVC_ERR_DAMAGED, "entry 0 is no token id");
    a[2].int_size = 0;
    a[2].type = "F32";
    refuse(a, 3, KVC_ERR_UNSUPPORTED, "tokens must be");
}

/* --- positions --- */

static uint8_t numbers[4][64];

/* An array of n integers of `size` bytes. */
static struct kvc_array integers(const char *name, unsigned size, unsigned slot,
                                 const int64_t *value, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (size == 8) put_u64(numbers[slot] + 8 * i, (uint64_t)value[i]);
        else put_u32(numbers[slot] + 4 * i, (uint32_t)value[i]);
    }
    return (struct kvc_array){.name = name,
                              .type = size == 8 ? "I64" : "I32",
                              .int_size = size,
                              .rank = 1,
                              .dim = {n},
                              .in = over(numbers[slot], sizeof numbers[slot]),
                              .size = n * size};
}

static void assert_positions(const struct kvc_cache *c, uint32_t part, const int64_t *pos) {
    for (uint64_t i = 0; i < c->part[part].cells.n; i++)
        assert_int_equal(c->part[part].cells.pos[i], pos[i]);
}

/* Positions of the first part come from their array, in any order; the other parts have its last
 * ones. */
static void test_positions(void **state) {
    (void)state;
    static const int64_t pos[] = {40, 7, 9, 41}, last[] = {40, 41};
    for (unsigned size = 4; size <= 8; size += 4) {
        struct kvc_array a[] = {
            array_of("layers.0.keys", 1, 4, 4), array_of("layers.0.values", 1, 4, 4),
            array_of("layers.1.keys", 1, 2, 4), array_of("layers.1.values", 1, 2, 4),
            array_of("queries.1", 4, 2, 4),     integers("positions", size, 0, pos, 4),
        };
        if (size == 4) { /* [1,T] will do */
            a[5].rank = 2;
            a[5].dim[0] = 1;
            a[5].dim[1] = 4;
        }
        struct kvc_cache *c;
        struct kvc_error e;
        if (build(a, 6, NULL, &c, &e)) fail_msg("%s", e.message);
        assert_int_equal(a[5].tensor, KVC_NONE);
        assert_int_equal(c->n_parts, 3);
        assert_positions(c, 0, pos);
        assert_positions(c, 1, last);
        assert_positions(c, 2, last);
        kvc_cache_free(c);
    }
}

/* Queries and token ids that are as many as the rows are in the order of the rows; an id more,
 * which only input_ids may have, is left out where the rows leave positions out. */
static void test_order(void **state) {
    (void)state;
    static const int64_t ids[] = {10, 11, 12, 13, 14}, gaps[] = {40, 7, 9, 41},
                         run[] = {2, 0, 1, 3};
    static const struct {
        const char *ids, *positions;
        const int64_t *pos;
        uint64_t n, left;
        int32_t expected[5];
    } way[] = {{"tokens", "positions", gaps, 4, 4, {11, 12, 10, 13}},
               {"input_ids", "position_ids", gaps, 4, 4, {11, 12, 10, 13}},
               {"input_ids", "position_ids", gaps, 5, 4, {11, 12, 10, 13}},
               {"input_ids", "position_ids", run, 5, 5, {11, 12, 10, 13, 14}},
               {"tokens", "positions", run, 5, 5, {10, 11, 12, 13, 14}},
               {"tokens", "positions", run, 3, 3, {10, 11, 12}}};
    for (size_t i = 0; i < sizeof way / sizeof way[0]; i++) {
        struct kvc_array a[] = {array_of("layers.0.keys", 1, 4, 4),
                                array_of("layers.0.values", 1, 4, 4),
                                array_of("queries.0", 4, 4, 4),
                                integers(way[i].ids, 8, 0, ids, way[i].n),
                                integers(way[i].positions, 8, 1, way[i].pos, 4)};
        struct kvc_cache *c;
        struct kvc_error e;
        if (build(a, 5, NULL, &c, &e)) fail_msg("%s", e.message);
        assert_positions(c, 0, way[i].pos);
        assert_positions(c, 1, way[i].pos);
        assert_int_equal(c->n_tokens, way[i].left);
        assert_memory_equal(c->tokens, way[i].expected, way[i].left * sizeof *c->tokens);
        kvc_cache_free(c);
    }
}

static void test_sliding_positions(void **state) {
    (void)state;
    static const int64_t pos[] = {3, 5, 9};
    static const char *const map[] = {"positions=where", NULL};
    struct kvc_cache *c;
    struct kvc_error e;
    struct kvc_array a[] = {
        array_of("layers.0.keys", 1, 4, 4),          array_of("layers.0.values", 1, 4, 4),
        array_of("layers.1.keys", 1, 3, 4),          array_of("layers.1.values", 1, 3, 4),
        array_of("layers.2.keys", 1, 2, 4),          array_of("layers.2.values", 1, 2, 4),
        integers("sliding.positions", 8, 0, pos, 3),
    };
    if (build(a, 7, NULL, &c, &e)) fail_msg("%s", e.message);
    assert_positions(c, 0, (int64_t[]){0, 1, 2, 3});
    assert_positions(c, 1, pos); /* the one as long */
    assert_positions(c, 2, (int64_t[]){2, 3});
    kvc_cache_free(c);
    if (build(a, 7, map, &c, &e)) fail_msg("%s", e.message); /* --map turns the convention off */
    assert_positions(c, 1, (int64_t[]){1, 2, 3});
    kvc_cache_free(c);
    a[6] = integers("where", 4, 0, (int64_t[]){-1, 0, 1, 2}, 4);
    if (build(a, 7, map, &c, &e)) fail_msg("%s", e.message);
    assert_positions(c, 0, (int64_t[]){-1, 0, 1, 2});
    assert_positions(c, 1, (int64_t[]){0, 1, 2});
    kvc_cache_free(c);
    /* Sliding-window layers alone, and more of them than live ones: their positions must be told.
     */
    struct kvc_array b[] = {
        array_of("sliding.layers.0.keys", 1, 3, 4),  array_of("sliding.layers.0.values", 1, 3, 4),
        integers("sliding.positions", 8, 0, pos, 3), array_of("layers.0.keys", 1, 2, 4),
        array_of("layers.0.values", 1, 2, 4),
    };
    if (build(b, 2, NULL, &c, &e)) fail_msg("%s", e.message);
    assert_int_equal(c->part[0].kind, KVC_PART_WINDOW);
    assert_positions(c, 0, (int64_t[]){0, 1, 2});
    kvc_cache_free(c);
    if (build(b, 3, NULL, &c, &e)) fail_msg("%s", e.message);
    assert_positions(c, 0, pos);
    kvc_cache_free(c);
    if (build(b, 5, NULL, &c, &e)) fail_msg("%s", e.message);
    assert_positions(c, 0, (int64_t[]){0, 1});
    assert_positions(c, 1, pos);
    kvc_cache_free(c);
    b[2].name = "other";
    refuse(b, 5, KVC_ERR_DAMAGED, "window part cover 3 tokens, more than the cache has (2)");
}

/* Files of one layer each repeat the tokens and positions of the cache. */
static void test_repeated_integers(void **state) {
    (void)state;
    static const int64_t pos[] = {5, 6, 9}, other[] = {5, 6, 10};
    struct kvc_array a[] = {
        array_of("layers.0.keys", 2, 3, 4),  array_of("layers.0.values", 2, 3, 4),
        integers("positions", 8, 0, pos, 3), integers("tokens", 8, 2, pos, 3),
        array_of("layers.1.keys", 2, 3, 4),  array_of("layers.1.values", 2, 3, 4),
        integers("positions", 8, 1, pos, 3), integers("tokens", 4, 3, pos, 3),
    };
    struct kvc_cache *c;
    struct kvc_error e;
    if (build(a, 8, NULL, &c, &e)) fail_msg("%s", e.message);
    assert_int_equal(c->n_layers, 2);
    assert_int_equal(c->n_tokens, 3);
    assert_positions(c, 0, pos);
    kvc_cache_free(c);
    a[6] = integers("positions", 8, 1, other, 3);
    refuse(a, 8, KVC_ERR_DAMAGED, "both are positions of the cache, but differ");
    a[6] = integers("positions", 8, 1, pos, 2);
    refuse(a, 8, KVC_ERR_DAMAGED, "both are positions of the cache, but differ");
    a[6] = integers("positions", 8, 1, pos, 3);
    a[7] = integers("tokens", 8, 3, other, 3);
    refuse(a, 8, KVC_ERR_DAMAGED, "array 'tokens' (I64 [3]) of ");
    refuse(a, 8, KVC_ERR_DAMAGED, "both are tokens of the cache, but differ");
    a[7].size--;
    refuse(a, 8, KVC_ERR_DAMAGED, "23 bytes of data");
}

static void test_bad_positions(void **state) {
    (void)state;
    static const int64_t pos[] = {0, 1, INT64_MAX};
    struct kvc_array a[] = {
        array_of("layers.0.keys", 2, 3, 4),
        array_of("layers.0.values", 2, 3, 4),
        integers("positions", 8, 0, pos, 3),
        integers("positions", 8, 1, pos, 3),
    };
    refuse(a, 3, KVC_ERR_DAMAGED, "entry 2 is no position");
    a[2] = integers("positions", 8, 0, pos, 2);
    refuse(a, 3, KVC_ERR_DAMAGED,
           "array 'positions' (I64 [2]): no live layers have as many tokens");
    a[2].name = "sliding.positions";
    refuse(a, 3, KVC_ERR_DAMAGED, "no window layers have as many tokens");
    a[2] = integers("positions", 8, 0, pos, 3);
    a[2].size--;
    refuse(a, 3, KVC_ERR_DAMAGED, "23 bytes of data");
    a[2].size++;
    a[2].rank = 3;
    refuse(a, 3, KVC_ERR_UNSUPPORTED, "positions must be [T] or [1,T]");
    a[2].rank = 1;
    a[2].int_size = 0;
    refuse(a, 3, KVC_ERR_UNSUPPORTED, "map=positions=NAME");
}

/* Splits one array by patterns; the array's dimensions are those given. Returns the status. */
static int split(struct kvc_array_list *list, const char *const *map, const uint64_t *dim,
                 unsigned rank, struct kvc_error *e) {
    struct kvc_option_value value[] = {
        [KVC_ARRAYS_MAP] = {.list = map}, [KVC_ARRAYS_LATENT] = {.count = 0}};
    const struct kvc_import_options o = {.value = value};
    struct kvc_array a = array_of("cache", 1, 1, 1);
    a.rank = rank;
    memcpy(a.dim, dim, rank * sizeof *dim);
    *list = (struct kvc_array_list){.n = 0};
    assert_int_equal(kvc_name_check_map(&o, e), 0);
    assert_int_equal(kvc_arrays_add(list, &a, e), 0);
    return kvc_arrays_split(list, &o, e);
}

static void test_split(void **state) {
    (void)state;
    static const char *const apart[] = {"keys=cache", "axes=lhtd", NULL}, *const both[] = {
                                                                              "kv=cache",
                                                                              "axes=tlchd", NULL};
    struct kvc_array_list list;
    struct kvc_error e;
    /* neighbours, each as a layer's array would be */
    assert_int_equal(split(&list, apart, (uint64_t[]){3, 2, 5, 4}, 4, &e), 0);
    assert_int_equal(list.n, 3);
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(list.array[i].known.layer, i);
        assert_int_equal(list.array[i].at, i * 80);
        assert_int_equal(list.array[i].size, 80);
        assert_false(list.array[i].strided);
    }
    kvc_arrays_clear(&list);

    /* between each other */
    assert_int_equal(split(&list, both, (uint64_t[]){5, 3, 2, 2, 4}, 5, &e), 0);
    assert_int_equal(list.n, 6);
    for (uint64_t i = 0; i < 6; i++) {
        assert_int_equal(list.array[i].known.layer, i / 2);
        assert_int_equal(list.array[i].known.role, i % 2 ? KVC_ROLE_V : KVC_ROLE_K);
        assert_int_equal(list.array[i].at, i * 16);
        assert_int_equal(list.array[i].stride[2], 96); /* from token to token */
        assert_int_equal(list.array[i].size, 4 * 96 + 16);
        assert_true(list.array[i].strided);
    }
    kvc_arrays_clear(&list);

    assert_int_equal(split(&list, apart, (uint64_t[]){2, 2, 0, 4}, 4, &e), 0); /* no tokens */
    assert_int_equal(list.n, 2);
    assert_int_equal(list.array[1].size, 0);
    assert_int_equal(list.array[1].at, 0);
    kvc_arrays_clear(&list);
    static const struct {
        uint64_t dim[4];
        enum kvc_code code;
    } bad[] = {{{0, 2, 5, 4}, KVC_ERR_UNSUPPORTED},
               {{4097, 1, 1, 1}, KVC_ERR_UNSUPPORTED},
               {{UINT64_MAX, 0, 1, 1}, KVC_ERR_UNSUPPORTED},
               {{1, 0, UINT64_MAX / 4, 4}, KVC_ERR_DAMAGED}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(split(&list, apart, bad[i].dim, 4, &e), -1);
        assert_int_equal(e.code, bad[i].code);
        kvc_arrays_clear(&list);
    }
}

static void test_axes(void **state) {
    (void)state;
    static const char *const bad[][3] = {{"keys=a", "axes=td"},    {"keys=a", "axes=l"},
                                         {"keys=a", "axes=ltdt"},  {"kv=a", "axes=ltd"},
                                         {"keys=a", "axes=lctd"},  {"keys={i}", "axes=ltd"},
                                         {"tokens=a", "axes=ltd"}, {"keys=a", "axes=lhtd-"},
                                         {"keys=a", "axes="},      {"kv=a", "keys=b"},
                                         {"hidden=a", "axes=bhtd"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvc_option_value value[] = {
            [KVC_ARRAYS_MAP] = {.list = bad[i]}, [KVC_ARRAYS_LATENT] = {.count = 0}};
        const struct kvc_import_options o = {.value = value};
        struct kvc_error e = {.code = KVC_OK};
        if (!kvc_name_check_map(&o, &e)) fail_msg("%s %s", bad[i][0], bad[i][1]);
        assert_int_equal(e.code, KVC_ERR_USAGE);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conventions),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_axes),
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_sliding),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_lone),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_sliding_positions),
        cmocka_unit_test(test_repeated_integers),
        cmocka_unit_test(test_bad_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
