/* test_scales.c: scales of K and V of 8 bits (formats/cache/scales.h): their text, values times
 * scales wherever values are needed, and what is refused without them. Not for namespaces
 * (test_store_scales.c) or the tools (tests/cli/scales). */
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/cache/scales.h"
#include "formats/cache/view.h"
#include "tests/dense_array.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- the text --- */

static void texts(void **state) {
    (void)state;
    static const char *const good[] = {"1",  "0.5",  "2e-3", "0.5,0.25", "0.5:0.25,1:2", ",1",
                                       "1,", "1,,2", ",",    "1:2:3",    ".5",           "5."};
    static const char *const bad[] = {"",     "0",  "-1",   "x",    "1x",  "1 2",  "1;2",  ":",
                                      ":1",   "1:", "1::2", "1:,2", "nan", "inf",  "1e99", "0x1",
                                      "1,-1", " 1", "1 ",   "1, 2", "0,1", "1e-60"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (kvc_scales_check(good[i])) fail_msg("'%s' is refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (!kvc_scales_check(bad[i])) fail_msg("'%s' is taken", bad[i]);
}

/* --- caches in memory: 3 tokens of two layers with 2 heads of 4 channels --- */

enum {
    TOKENS = 3,
    LAYERS = 2,
    HEADS = 2,
    DIM = 4,
    ROW = HEADS * DIM,
    VALUES = TOKENS * ROW,
    ARRAYS = 2 * LAYERS
};

/* Numbers that f8e4m3, f8e5m2 and integers hold, and their codes. */
static const float numbers[DIM] = {1, 2, 3, 4};
static const struct {
    const char *dtype;
    uint8_t code[DIM];
} types[] = {{"f8e4m3", {0x38, 0x40, 0x44, 0x48}},
             {"f8e5m2", {0x3c, 0x40, 0x42, 0x44}},
             {"u8", {1, 2, 3, 4}},
             {"i8", {1, 2, 3, 4}}};
enum { TYPES = sizeof types / sizeof types[0] };

struct stored {
    uint8_t bytes[ARRAYS][VALUES];
    struct kvc_memory_array array[ARRAYS];
    struct kvc_memory memory;
};

static void describe(struct stored *x, int type, const char *const *facts) {
    for (unsigned i = 0; i < ARRAYS; i++) {
        for (unsigned v = 0; v < VALUES; v++) x->bytes[i][v] = types[type].code[v % DIM];
        x->array[i] = dense_array(i % 2 ? "V" : "K", i / 2, types[type].dtype, 1, HEADS, DIM,
                                  x->bytes[i]);
    }
    x->memory = (struct kvc_memory){.size = sizeof x->memory,
                                    .array_size = sizeof x->array[0],
                                    .arrays = x->array,
                                    .n_arrays = ARRAYS,
                                    .tokens = TOKENS,
                                    .facts = facts};
}

static struct kvc_file *open_stored(struct stored *x, int type, const char *const *facts) {
    struct kvc_error e;
    describe(x, type, facts);
    struct kvc_file *f = kvc_file_open_arrays(&x->memory, &e);
    if (!f) fail_msg("%s", e.message);
    return f;
}

/* Loads a file into arrays of a dtype, and returns the values as floats:
 * [array][token][head][channel]. */
static int load(const struct kvc_file *f, const char *dtype, float value[ARRAYS][VALUES],
                struct kvc_error *e) {
    const struct kvc_dtype_info *info = kvc_dtype_by_name(dtype);
    static uint8_t bytes[ARRAYS][4 * VALUES];
    struct stored x;
    describe(&x, 0, NULL);
    for (unsigned i = 0; i < ARRAYS; i++) {
        struct kvc_memory_array *a = &x.array[i];
        a->dtype = dtype;
        a->data = bytes[i];
        a->channel = info->size;
        a->head = DIM * info->size;
        a->token = ROW * info->size;
    }
    const struct kvc_load_how how = {.size = sizeof how, .threads = 1, .convert = 1};
    if (kvc_file_load(f, &x.memory, &how, e)) return -1;
    for (unsigned i = 0; i < ARRAYS; i++) info->to_f32(value[i], bytes[i], VALUES);
    return 0;
}

/* The scales of layer 0 and 1, of head 0 and 1, of K and of V. */
typedef float scales[2][LAYERS][HEADS];
static const char *const of_heads[] = {"scale.k=0.5:0.25,2:4", "scale.v=8:16,1:0.125", NULL};
static const scales by_head = {{{0.5f, 0.25f}, {2, 4}}, {{8, 16}, {1, 0.125f}}};
static const char *const of_layers[] = {"scale.k=0.5,2", "scale.v=8", NULL};
static const scales by_layer = {{{0.5f, 0.5f}, {2, 2}}, {{8, 8}, {8, 8}}};
static const char *const plain[] = {"scale.k=1", "scale.v=1", NULL};
static const scales ones = {{{1, 1}, {1, 1}}, {{1, 1}, {1, 1}}};

static void check_values(float value[ARRAYS][VALUES], const scales s) {
    for (unsigned i = 0; i < ARRAYS; i++)
        for (unsigned v = 0; v < VALUES; v++) {
            const float due = numbers[v % DIM] * s[i % 2][i / 2][v / DIM % HEADS];
            if (value[i][v] < due || value[i][v] > due)
                fail_msg("array %u, value %u: %g, not %g", i, v, (double)value[i][v], (double)due);
        }
}

/* From memory, from a .kvc, and from a selection of one. */
static void check_load(const struct kvc_file *f, const scales s) {
    static const char *const into[] = {"f32", "f16", "bf16"};
    float value[ARRAYS][VALUES];
    struct kvc_error e;
    void *data;
    size_t n;
    const uint8_t both[] = {1, 1};
    const struct kvc_select_options all = {.size = sizeof all, .layers = both, .n_layers = 2};
    if (kvc_file_pack_memory(f, NULL, &data, &n, &e)) fail_msg("%s", e.message);
    struct kvc_file *packed = kvc_file_open_memory(data, n, NULL, &e),
                    *some = packed ? kvc_file_select(packed, &all, &e) : NULL;
    if (!some) fail_msg("%s", e.message);
    const struct kvc_file *const from[] = {f, packed, some};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 3; i++) {
            if (load(from[k], into[i], value, &e)) fail_msg("%s", e.message);
            check_values(value, s);
        }
    kvc_file_close(some);
    kvc_file_close(packed);
    free(data);
}

static void values_are_what_is_stored_times_scales(void **state) {
    (void)state;
    struct stored x;
    for (int type = 0; type < TYPES; type++) {
        struct kvc_file *f = open_stored(&x, type, of_heads);
        check_load(f, by_head);
        kvc_file_close(f);
        f = open_stored(&x, type, of_layers);
        check_load(f, by_layer);
        kvc_file_close(f);
        f = open_stored(&x, type, plain);
        check_load(f, ones);
        kvc_file_close(f);
    }
}

static void refuse_load(const struct kvc_file *f, enum kvc_code code, enum kvc_need need,
                        const char *words) {
    float value[ARRAYS][VALUES];
    struct kvc_error e = {.code = KVC_OK};
    assert_int_equal(load(f, "f16", value, &e), -1);
    if (e.code != code || e.need != need || !strstr(e.message, words))
        fail_msg("%d %d: %s", (int)e.code, (int)e.need, e.message);
}

static void without_scales_there_are_no_values(void **state) {
    (void)state;
    static const char *const of_k[] = {"scale.k=1", NULL},
                             *const of_layer_0[] = {"scale.k=1", "scale.v=1,", NULL},
                             *const of_3[] = {"scale.k=1:2:3", "scale.v=1", NULL};
    struct stored x;
    for (int type = 0; type < TYPES; type++) {
        struct kvc_file *f = open_stored(&x, type, NULL);
        refuse_load(f, KVC_ERR_UNSUPPORTED, KVC_NEED_SCALES, "layer 0 K");
        kvc_file_close(f);
        f = open_stored(&x, type, of_k);
        refuse_load(f, KVC_ERR_UNSUPPORTED, KVC_NEED_SCALES, "layer 0 V");
        kvc_file_close(f);
        f = open_stored(&x, type, of_layer_0);
        refuse_load(f, KVC_ERR_UNSUPPORTED, KVC_NEED_SCALES, "layer 1 V");
        kvc_file_close(f);
        f = open_stored(&x, type, of_3);
        refuse_load(f, KVC_ERR_USAGE, KVC_NEED_NOTHING, "3 scales for the 2 heads of layer 0");
        kvc_file_close(f);
    }
    static const char *const wrong[] = {"scale.k=half", NULL};
    struct kvc_error e;
    describe(&x, 0, wrong);
    assert_null(kvc_file_open_arrays(&x.memory, &e));
    assert_int_equal(e.code, KVC_ERR_USAGE);
}

/* The bytes of an array of the same type are those that are stored, whatever the scales. */
static void bytes_stay(void **state) {
    (void)state;
    struct stored x, to;
    struct kvc_error e;
    for (int type = 0; type < TYPES; type++)
        for (int known = 0; known < 2; known++) {
            struct kvc_file *f = open_stored(&x, type, known ? of_heads : NULL);
            const struct kvc_load_how how = {.size = sizeof how, .threads = 1, .convert = 1};
            describe(&to, type, NULL);
            memset(to.bytes, 0xff, sizeof to.bytes);
            if (kvc_file_load(f, &to.memory, &how, &e)) fail_msg("%s", e.message);
            assert_memory_equal(to.bytes, x.bytes, sizeof x.bytes);
            kvc_file_close(f);
        }
}

/* Facts that are given when a file is opened replace its own. */
static void facts_of_the_caller(void **state) {
    (void)state;
    struct stored x;
    struct kvc_error e;
    void *data;
    size_t n;
    float value[ARRAYS][VALUES];
    struct kvc_file *f = open_stored(&x, 0, plain);
    if (kvc_file_pack_memory(f, NULL, &data, &n, &e)) fail_msg("%s", e.message);
    kvc_file_close(f);
    const struct kvc_open_options o = {.size = sizeof o, .facts = of_heads};
    if (!(f = kvc_file_open_memory(data, n, &o, &e))) fail_msg("%s", e.message);
    if (load(f, "f32", value, &e)) fail_msg("%s", e.message);
    check_values(value, by_head);
    kvc_file_close(f);
    static const char *const unknown[] = {"scale.q=1", NULL}, *const own[] = {"recipe=split", NULL},
                             *const word[] = {"scale.k", NULL};
    static const char *const *const bad[] = {unknown, own, word};
    static const char *const says[] = {"did you mean scale.k, scale.v?", "no fact 'recipe'",
                                       "KEY=VALUE"};
    for (int i = 0; i < 3; i++) {
        const struct kvc_open_options wrong = {.size = sizeof wrong, .facts = bad[i]};
        assert_null(kvc_file_open_memory(data, n, &wrong, &e));
        assert_int_equal(e.code, KVC_ERR_USAGE);
        if (!strstr(e.message, says[i])) fail_msg("%s", e.message);
    }
    free(data);
}

/* --- comparing --- */

static int compare(const struct kvc_file *a, const struct kvc_file *b, struct kvc_comparison *c,
                   struct kvc_error *e) {
    *c = (struct kvc_comparison){.size = sizeof *c};
    return kvc_file_compare(a, b, NULL, c, e);
}

static void comparing(void **state) {
    (void)state;
    struct stored x, y;
    struct kvc_error e;
    struct kvc_comparison c;
    static const char *const half[] = {"scale.k=0.5", "scale.v=0.5", NULL};
    struct kvc_file *unknown = open_stored(&x, 0, NULL), *one = open_stored(&x, 0, plain),
                    *twice = open_stored(&x, 0, half), *same = open_stored(&x, 0, plain),
                    *other = open_stored(&y, 1, plain), *other_unknown = open_stored(&y, 1, NULL);
    assert_int_equal(compare(unknown, unknown, &c, &e), 0);
    assert_int_equal(compare(one, same, &c, &e), 0);
    assert_int_equal(compare(one, other, &c, &e), 0); /* other bytes, and equal values */
    assert_true(c.values == ARRAYS * VALUES && c.differ == 0);
    /* equal bytes, */
    assert_int_equal(compare(one, twice, &c, &e), 1);
    /* and other values */
    assert_true(c.differ == c.values && c.values == ARRAYS * VALUES && c.max_abs >= 2 &&
                c.max_abs <= 2);
    struct kvc_file *const pairs[][2] = {{unknown, one},
                                         {one, unknown},
                                         {unknown, other},
                                         {unknown, other_unknown}};
    for (int i = 0; i < 4; i++) {
        e.need = KVC_NEED_NOTHING;
        assert_int_equal(compare(pairs[i][0], pairs[i][1], &c, &e), -1);
        assert_int_equal(e.need, KVC_NEED_SCALES);
    }
    kvc_file_close(unknown);
    kvc_file_close(one);
    kvc_file_close(twice);
    kvc_file_close(same);
    kvc_file_close(other);
    kvc_file_close(other_unknown);
}

/* --- packing --- */

/* Dequantised: f16 of the values, and no scales. */
static void dequantized(void **state) {
    (void)state;
    struct stored x;
    struct kvc_error e;
    void *data;
    size_t n;
    float value[ARRAYS][VALUES];
    const struct kvc_write_options how = {.size = sizeof how, .threads = 1, .dequantize = 1};
    struct kvc_file *f = open_stored(&x, 0, of_heads);
    if (kvc_file_pack_memory(f, &how, &data, &n, &e)) fail_msg("%s", e.message);
    kvc_file_close(f);
    if (!(f = kvc_file_open_memory(data, n, NULL, &e))) fail_msg("%s", e.message);
    assert_int_equal(kvc_file_meta_size(f, "scale.k"), 0);
    struct kvc_tensor_info t = {.size = sizeof t};
    assert_int_equal(kvc_file_tensor(f, 0, &t), 0);
    assert_string_equal(t.dtype, "f16");
    if (load(f, "f32", value, &e)) fail_msg("%s", e.message);
    check_values(value, by_head);
    kvc_file_close(f);
    free(data);
    f = open_stored(&x, 0, NULL);
    assert_int_equal(kvc_file_pack_memory(f, &how, &data, &n, &e), -1);
    assert_int_equal(e.need, KVC_NEED_SCALES);
    kvc_file_close(f);
}

/* Queries are values of their own, whatever K is stored in. */
static void queries_need_no_scales(void **state) {
    (void)state;
    struct stored x;
    struct kvc_error e;
    struct kvc_memory_array array[ARRAYS + 1];
    static float q[TOKENS][ROW];
    describe(&x, 0, NULL);
    memcpy(array, x.array, sizeof x.array);
    array[ARRAYS] = dense_array("queries", 0, "f32", sizeof(float), HEADS, DIM, q);
    x.memory.arrays = array;
    x.memory.n_arrays = ARRAYS + 1;
    struct kvc_file *f = kvc_file_open_arrays(&x.memory, &e);
    if (!f) fail_msg("%s", e.message);
    struct kvc_cache *view = kvc_view_queries(f->cache, f->cache->meta.facts.rope.pairing, &e);
    if (!view) fail_msg("%s", e.message);
    float row[ROW];
    for (uint32_t t = 0; t < view->n_tensors; t++) {
        const int of_queries = view->tensor[t].role == KVC_ROLE_QUERIES;
        assert_int_equal(view->read(view, t, 0, 1, (uint8_t *)row, &e), of_queries ? 0 : -1);
        if (!of_queries) assert_int_equal(e.need, KVC_NEED_SCALES);
    }
    kvc_cache_free(view);
    kvc_file_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(values_are_what_is_stored_times_scales),
        cmocka_unit_test(without_scales_there_are_no_values),
        cmocka_unit_test(bytes_stay),
        cmocka_unit_test(facts_of_the_caller),
        cmocka_unit_test(comparing),
        cmocka_unit_test(dequantized),
        cmocka_unit_test(queries_need_no_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
