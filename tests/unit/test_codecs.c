/* test_codecs.c: shapes and strides, sections, recipes, and the round trip of every stage in the
 * registry. */
#include "recipe_support.h"
#include "values_support.h"

#include "codecs/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum kvc_dtype dtypes[] = {KVC_F32,  KVC_F16,  KVC_BF16,  KVC_F8E4M3, KVC_F8E5M2,
                                        KVC_U8,   KVC_I8,   KVC_Q8_0,  KVC_Q4_0,   KVC_Q4_1,
                                        KVC_Q5_0, KVC_Q5_1, KVC_IQ4_NL};
#define N_DTYPES (sizeof dtypes / sizeof dtypes[0])

static uint32_t random_state = 7;

static void dtype_table(void **state) {
    (void)state;
    for (size_t i = 0; i < N_DTYPES; i++) {
        const struct kvc_dtype_info *info = kvc_dtype_info(dtypes[i]);
        unsigned sum = 0;
        assert_non_null(info);
        for (int p = 0; info->planes[p]; p++) sum += info->planes[p];
        assert_int_equal(sum, info->size);
        assert_ptr_equal(kvc_dtype_by_name(info->name), info);
        if (info->ggml >= 0) assert_ptr_equal(kvc_dtype_by_ggml(info->ggml), info);
    }
    assert_null(kvc_dtype_info(99));
    assert_null(kvc_dtype_by_ggml(200));
    assert_null(kvc_dtype_by_ggml(-1));
}

static void shapes(void **state) {
    (void)state;
    struct kvc_shape s = {KVC_F16, 10, 3, 64};
    assert_true(kvc_shape_check(&s));
    assert_int_equal(kvc_row_bytes(&s), 384);
    s = (struct kvc_shape){KVC_Q8_0, 10, 3, 80}; /* 240 values: blocks of 32 do not fit */
    assert_false(kvc_shape_check(&s));
    s = (struct kvc_shape){KVC_Q8_0, 10, 4, 80}; /* 320 values: ten blocks that straddle heads */
    assert_true(kvc_shape_check(&s));
    assert_int_equal(kvc_row_bytes(&s), 340);
    s = (struct kvc_shape){KVC_F32, 1, UINT64_C(1) << 33, UINT64_C(1) << 33};
    assert_false(kvc_shape_check(&s));
    s = (struct kvc_shape){KVC_F32, UINT64_MAX, 1, 1};
    assert_false(kvc_shape_check(&s));
    s = (struct kvc_shape){KVC_F32, 1, 0, 1};
    assert_false(kvc_shape_check(&s));
}

static void strides(void **state) {
    (void)state;
    struct kvc_shape s = {KVC_F16, 10, 3, 64};
    struct kvc_strides c = kvc_strides_canonical(&s), h = kvc_strides_heads_first(&s);
    assert_true(kvc_strides_check(&s, &c, 3840));
    assert_false(kvc_strides_check(&s, &c, 3839));
    assert_true(kvc_strides_check(&s, &h, 3840));
    struct kvc_strides transposed = {2, 64 * 20, 20};
    assert_true(kvc_strides_check(&s, &transposed, 3840));
    struct kvc_strides overlap = {100, 128, 2}; /* tokens would share bytes */
    assert_false(kvc_strides_check(&s, &overlap, 100000));
    struct kvc_strides zero = {0, 128, 2};
    assert_false(kvc_strides_check(&s, &zero, 100000));
    struct kvc_strides wrap = {UINT64_MAX / 4, 128, 2};
    assert_false(kvc_strides_check(&s, &wrap, UINT64_MAX));
    struct kvc_shape straddling = {KVC_Q8_0, 10, 4, 80};
    struct kvc_strides rows = kvc_strides_canonical(&straddling);
    assert_true(kvc_strides_check(&straddling, &rows, 3400));
    assert_false(kvc_strides_check(&straddling, &rows, 3399));
}

/* Gather out of every layout, scatter back into an empty one: the same bytes. */
static void gather_and_scatter(void **state) {
    (void)state;
    struct kvc_shape s = {KVC_F16, 5, 3, 8};
    const struct kvc_strides layout[] = {kvc_strides_canonical(&s),
                                         kvc_strides_heads_first(&s),
                                         {2, 80, 10}};
    for (size_t l = 0; l < 3; l++) {
        uint8_t source[240], back[240] = {0}, row[48];
        for (size_t i = 0; i < sizeof source; i++) source[i] = random_byte();
        for (uint64_t t = 0; t < s.tokens; t++) {
            kvc_rows_gather(row, source, &s, &layout[l], t, 1);
            for (uint64_t h = 0; h < 3; h++)
                for (uint64_t d = 0; d < 8; d++)
                    assert_memory_equal(row + 2 * (h * 8 + d),
                                        source + t * layout[l].token + h * layout[l].head +
                                            d * layout[l].block,
                                        2);
            kvc_rows_scatter(back, row, &s, &layout[l], t, 1, t % 2);
        }
        assert_memory_equal(back, source, sizeof source);
    }
}

static void digests_add_up(void **state) {
    (void)state;
    uint8_t rows[6 * 10];
    for (size_t i = 0; i < sizeof rows; i++) rows[i] = random_byte();
    uint64_t whole = kvc_digest_rows(rows, 10, 100, 6);
    assert_int_equal(whole,
                     kvc_digest_rows(rows, 10, 100, 2) + kvc_digest_rows(rows + 20, 10, 102, 4));
    assert_int_not_equal(whole, kvc_digest_rows(rows, 10, 101, 6));
}

static int round_trip(const struct kvc_stage *stage, const char *text, enum kvc_dtype dtype,
                      uint64_t tokens, int kind) {
    struct kvc_error e;
    struct kvc_pipeline line = {.n = 1};
    struct kvc_shape shape = {dtype, tokens, 2, 64};
    size_t n = (size_t)(tokens * kvc_row_bytes(&shape));
    uint8_t *source = malloc(n + 1), *rows = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        source[i] = kind == 0   ? 0
                    : kind == 1 ? random_byte()
                    : kind == 2 ? 0xff
                                : (uint8_t)(i % 2 ? 0x3c : random_byte());
    memcpy(rows, source, n);
    line.step[0].stage = stage;
    assert_int_equal(kvc_stage_parse(stage, text, &line.step[0].args, &e), 0);
    assert_true(!stage->accepts || stage->accepts(&line.step[0].args, &shape, &e));
    struct kvc_sections list;
    kvc_sections_init(&list);
    struct kvc_block block = {.shape = shape, .rows = rows};
    assert_int_equal(kvc_pipeline_encode(&line, &block, &list, &e), 0);
    kvc_sections_seal(&list);
    memset(rows, 0xaa, n);
    assert_int_equal(kvc_pipeline_decode(&line, &block, list.section, list.count, &e), 0);
    int same = memcmp(rows, source, n) == 0;
    size_t total = 0;
    for (size_t i = 0; i < list.count; i++) total += list.section[i].size;
    assert_true(total <= n + 64); /* what does not shrink is stored */
    /* one section less, one more, a wrong type: refused */
    if (list.count) {
        assert_int_equal(kvc_pipeline_decode(&line, &block, list.section, list.count - 1, &e), -1);
        list.section[0].type ^= 64;
        assert_int_equal(kvc_pipeline_decode(&line, &block, list.section, list.count, &e), -1);
    }
    kvc_sections_free(&list);
    free(source);
    free(rows);
    return same;
}

static void every_stage_returns_every_bit(void **state) {
    (void)state;
    const uint64_t tokens[] = {1, 3, 255, 256};
    for (size_t s = 0; kvc_stage_at(s); s++) {
        const unsigned both = KVC_STAGE_TERMINAL | KVC_STAGE_LOSSLESS;
        if ((kvc_stage_at(s)->flags & both) != both) continue;
        for (size_t d = 0; d < N_DTYPES; d++)
            for (size_t t = 0; t < 4; t++)
                for (int kind = 0; kind < 4; kind++)
                    assert_true(round_trip(kvc_stage_at(s), "", dtypes[d], tokens[t], kind));
    }
    assert_true(round_trip(kvc_stage_find("zstd"), "level=19", KVC_F16, 100, 3));
}

static void stage_table(void **state) {
    (void)state;
    unsigned last = 0;
    for (size_t i = 0; kvc_stage_at(i); i++) {
        const struct kvc_stage *s = kvc_stage_at(i);
        assert_true(s->id > last); /* sorted, unique */
        last = s->id;
        assert_ptr_equal(kvc_stage_find(s->name), s);
        assert_ptr_equal(kvc_stage_by_id(s->id), s);
    }
    assert_null(kvc_stage_find("bogus"));
    assert_null(kvc_stage_by_id(0));
}

static void recipes(void **state) {
    (void)state;
    static const struct {
        const char *text, *canonical;
    } good[] = {
        {"store", "store"},
        {"zstd:level=1", "zstd"},
        {"zstd:level=7", "zstd:level=7"},
        {"store@k,zstd@v", "store@k,zstd@v"},
        {"zstd@l3-3@v@l7-9", "zstd@v@l3@l7-9"},
        {"store@v@k", "store@k@v"},
    };
    static const char *const bad[] = {"",
                                      "bogus",
                                      "store,",
                                      ",store",
                                      "zstd:",
                                      "zstd:level=0",
                                      "zstd:level=20",
                                      "zstd:level=1x",
                                      "zstd:7",
                                      "store:x",
                                      "store@",
                                      "store@x",
                                      "store@l",
                                      "store@l3-",
                                      "store@l5-3",
                                      "store@l99999999999",
                                      "zstd:level= 1",
                                      "zstd:level=+1"};
    struct kvc_error e;
    struct kvc_recipe r;
    char text[256];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_recipe(good[i].text, good[i].canonical);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_no_recipe(bad[i]);
    assert_int_equal(kvc_recipe_parse("store@k", &r, &e), 0);
    assert_int_equal(kvc_recipe_print(&r, text, 7), -1);
}

static void pipelines(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_recipe r;
    struct kvc_pipeline p;
    char text[64];
    assert_int_equal(kvc_recipe_parse("zstd:level=3:", &r, &e), -1);
    assert_int_equal(kvc_recipe_parse("zstd:level=3:level=4", &r, &e), -1);
    assert_int_equal(kvc_recipe_parse("store@k@l0-3,zstd:level=3@v", &r, &e), 0);
    static const struct {
        unsigned select;
        uint32_t layer;
        const char *want;
    } cases[] = {
        {KVC_SELECT_K, 0, "store"},
        {KVC_SELECT_K, 3, "store"},
        {KVC_SELECT_K, 4, "split"},
        {KVC_SELECT_V, 0, "zstd:level=3"},
        {0, 0, "split"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvc_recipe_pipeline(&r, cases[i].select, cases[i].layer, &p);
        assert_int_equal(kvc_pipeline_print(&p, text, sizeof text), 0);
        assert_string_equal(text, cases[i].want);
        assert_true(kvc_pipeline_lossless(&p));
    }
}

static void sections_refuse(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_sections list;
    uint8_t bytes[1000] = {0}, out[1000];
    kvc_sections_init(&list);
    assert_int_equal(kvc_sections_add(&list, KVC_SECTION_RAW, 0, 0, bytes, sizeof bytes, 1, &e), 0);
    kvc_sections_seal(&list);
    struct kvc_section s = list.section[0];
    assert_int_equal(s.coder, KVC_CODER_ZSTD);
    assert_int_equal(kvc_section_decode(&s, out, 1000, &e), 0);
    assert_int_equal(kvc_section_decode(&s, out, 999, &e), -1);
    s.raw_size = 999; /* the frame holds more than the directory says */
    assert_int_equal(kvc_section_decode(&s, out, 999, &e), -1);
    s = list.section[0];
    s.size--;
    assert_int_equal(kvc_section_decode(&s, out, 1000, &e), -1);
    s = list.section[0];
    s.coder = 9;
    assert_int_equal(kvc_section_decode(&s, out, 1000, &e), -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    s.coder = KVC_CODER_STORE;
    assert_int_equal(kvc_section_decode(&s, out, 1000, &e), -1);
    kvc_sections_free(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtype_table),    cmocka_unit_test(shapes),
        cmocka_unit_test(strides),        cmocka_unit_test(gather_and_scatter),
        cmocka_unit_test(digests_add_up), cmocka_unit_test(every_stage_returns_every_bit),
        cmocka_unit_test(stage_table),    cmocka_unit_test(recipes),
        cmocka_unit_test(pipelines),      cmocka_unit_test(sections_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
