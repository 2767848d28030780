/* test_alloc.c: out of memory. Packing, learning, opening, checking and unpacking are run again and
 * again, each time with the next allocation failing: every run ends with the error of memory or
 * succeeds. The address sanitizer shows that nothing leaks, clang's undefined-behaviour sanitizer
 * that no null pointer is moved. */
#include "tests/unit/failing_alloc.h"

#include "codecs/memory.h"
#include "formats/cache/join.h"
#include "formats/container/container.h"
#include "formats/file/restore.h"
#include "formats/cache/format.h"
#include "formats/io/input.h"
#include "formats/model/profile_learn.h"
#include "formats/file/rate.h"
#include "formats/cache/view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- allocations that fail --- */

static uint64_t countdown; /* the allocation that fails, counted from here; 0: none */
static int fail_on;        /* all that follow it fail too */
static int has_failed;

static int fails(void) {
    if (has_failed && fail_on) return 1;
    if (!countdown || --countdown) return 0;
    has_failed = 1;
    return 1;
}

/* --- what is run --- */

struct work {
    const char *path, *recipe; /* NULL: nothing is packed, but opened, checked and unpacked */
    int profile;               /* packed with the profile that the file carries */
    int learn;                 /* a profile is learnt, nothing is packed */
    uint64_t rows;             /* positions of layer 1 that are packed; 0: all of all layers */
    int joins;                 /* blocks and heads of it are joined, nothing is packed */
    int exports;               /* there is a source file to write again */
};

static const char *name_of(const struct work *w) {
    return w->recipe ? w->recipe : w->learn ? "learning" : w->joins ? "joining" : "unpacking";
}

static int discard(void *state, const void *data, size_t n, struct kvc_error *e) {
    (void)state, (void)data, (void)n, (void)e;
    return 0;
}

/* `c`: the rows that are packed, of `from`. */
static int pack(const struct kvc_cache *from, const struct kvc_cache *c, const struct work *w,
                struct kvc_buffer *packed, struct kvc_error *e) {
    struct kvc_recipe asked;
    struct kvc_pack_options options = {.recipe = &asked, .threads = 1, .embed_profile = w->profile};
    struct kvc_sink out = kvc_sink_buffer(packed);
    struct kvc_rate rate = {0};
    struct kvc_rate_report rated;
    struct kvc_recipe recipe;
    int embedded;
    if (kvc_recipe_parse(w->recipe, &asked, e)) return -1;
    if (w->profile)
        options.profile = (struct kvc_profile *)(uintptr_t)kvc_container_profile(from, &embedded);
    if (w->profile && !options.profile) return kvc_fail_memory(e, "the profile");
    if (kvc_rate_settle(c, &options, &rate, &recipe, &rated, e)) return -1;
    options.recipe = &recipe;
    return kvc_container_write(c, &options, &out, NULL, e);
}

static int learn(const struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_sink nowhere = {.write = discard};
    struct kvc_learner *l = kvc_learner_new(e);
    if (!l) return -1;
    int status = kvc_learner_add(l, c, NULL, e);
    if (!status) status = kvc_learner_write(l, &nowhere, e);
    kvc_learner_free(l);
    return status;
}

static int unpack(const struct kvc_input *in, const struct work *w, struct kvc_error *e) {
    const struct kvc_format *format;
    struct kvc_sink nowhere = {.write = discard};
    struct kvc_cache *c = kvc_import_file(in, NULL, &format, e);
    if (!c) return -1;
    int status = kvc_container_check(c, 1, e);
    if (!status && w->exports) status = kvc_source_write(c, 1, &nowhere, e);
    kvc_cache_free(c);
    return status;
}

/* Joins two halves of c, and the heads of three ranks of the result. */
static int join(const struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_selection half[] = {{.end = 2}, {.first = 2, .end = UINT64_MAX}};
    struct kvc_cache *block[2] = {NULL}, *rank[3] = {NULL}, *blocks = NULL, *heads = NULL;
    struct kvc_join_report report;
    int left_out, status = -1;
    for (int i = 0; i < 2; i++)
        if (!(block[i] = kvc_view_select(c, &half[i], e))) goto end;
    const struct kvc_join_operand both[] = {{.cache = block[0], .name = "a"},
                                            {.cache = block[1], .name = "b"}};
    if (!(blocks = kvc_view_join(both, 2, &report, e))) goto end;
    for (uint32_t i = 0; i < 3; i++)
        if (!(rank[i] = kvc_view_shard(blocks, i, 3, &left_out, e))) goto end;
    const struct kvc_join_operand ranks[] = {{.cache = rank[0], .name = "0"},
                                             {.cache = rank[1], .name = "1"},
                                             {.cache = rank[2], .name = "2"}};
    if (!(heads = kvc_view_join_heads(ranks, 3, &report, e))) goto end;
    uint8_t row[4096];
    assert_true(kvc_row_bytes(&heads->tensor[0].shape) <= sizeof row);
    status = heads->read(heads, 0, 0, 1, row, e);
end:
    kvc_cache_free(heads);
    for (int i = 0; i < 3; i++) kvc_cache_free(rank[i]);
    kvc_cache_free(blocks);
    for (int i = 0; i < 2; i++) kvc_cache_free(block[i]);
    return status;
}

static int run(const struct work *w, struct kvc_error *e) {
    const struct kvc_format *format;
    struct kvc_buffer packed = {0};
    struct kvc_input in, again;
    if (kvc_input_open(&in, w->path, e)) return -1;
    struct kvc_cache *c = kvc_import_file(&in, NULL, &format, e), *view = NULL;
    int status = c ? 0 : -1;
    const struct kvc_selection few = {.end = w->rows,
                                      .layers = (const uint8_t[]){1},
                                      .n_layers = 1};
    if (!status && w->rows && !(view = kvc_view_select(c, &few, e))) status = -1;
    if (!status && w->learn) status = learn(view, e);
    if (!status && w->joins) status = join(c, e);
    if (!status && w->recipe) status = pack(c, view ? view : c, w, &packed, e);
    kvc_cache_free(view);
    kvc_cache_free(c);
    if (!status && !w->recipe && !w->learn && !w->joins) status = unpack(&in, w, e);
    if (!status && w->recipe) {
        kvc_input_memory(&again, "packed", packed.data, packed.n);
        status = unpack(&again, w, e);
        kvc_input_close(&again);
    }
    free(packed.data);
    kvc_input_close(&in);
    return status;
}

/* Runs until no allocation was left to fail. */
static void fail_each(const struct work *w, int and_all_after, uint64_t stride) {
    uint64_t failed = 0, survived = 0;
    struct kvc_error e;
    has_failed = 0;
    countdown = 0;
    if (run(w, &e)) fail_msg("%s, %s: %s", w->path, name_of(w), e.message);
    for (uint64_t n = 1;; n += stride) {
        e.code = KVC_OK;
        has_failed = 0;
        fail_on = and_all_after;
        countdown = n;
        const int status = run(w, &e);
        countdown = 0;
        fail_on = 0;
        if (status && e.code != KVC_ERR_MEMORY)
            fail_msg("%s, %s: without allocation %llu: %s", w->path, name_of(w),
                     (unsigned long long)n, e.message);
        failed += status != 0;
        survived += !status && has_failed;
        if (!has_failed) break;
    }
    has_failed = 0;
    if (getenv("KVC_ALLOC_VERBOSE"))
        printf("%s, %s: %llu runs failed, %llu did without\n", w->path, name_of(w),
               (unsigned long long)failed, (unsigned long long)survived);
    assert_true(failed > 20);
}

static void products_that_overflow(void **state) {
    (void)state;
    uint8_t *p = kvc_alloc(3, 5);
    assert_non_null(p);
    memset(p, 1, 15);
    assert_null(kvc_alloc(SIZE_MAX / 2, 3));
    assert_null(kvc_alloc(UINT64_C(1) << 32, UINT64_C(1) << 32)); /* 2^64: 0 in 64 bits */
    assert_null(kvc_alloc_zeros(UINT64_C(1) << 32, UINT64_C(1) << 32));
    assert_null(kvc_realloc(p, (UINT64_C(1) << 63) + 1, 2));
    for (unsigned i = 0; i < 15; i++) assert_int_equal(p[i], 1); /* still there */
    p = kvc_realloc(p, 0, 5);
    assert_non_null(p);
    free(p);
    assert_non_null(p = kvc_alloc(0, 8));
    free(p);
    assert_non_null(p = kvc_alloc_zeros(7, 3));
    for (unsigned i = 0; i < 21; i++) assert_int_equal(p[i], 0);
    free(p);
}

/* two layers of f16, 640 rows, RoPE known, a profile inside */
#define GOLDEN "tests/golden/profile-v1.kvc"

static void packing_unpacking_and_learning(void **state) {
    static const struct work work[] = {
        {.path = "samples/tiny.safetensors", .recipe = "split", .exports = 1},
        {.path = "tests/fuzz/corpus/lmcache/2ltd", .recipe = "store", .exports = 1},
        {.path = "samples/tiny.safetensors", .joins = 1},
        {.path = GOLDEN, .rows = 120, .recipe = "kivi4"},
        {.path = GOLDEN, .rows = 120, .recipe = "gear4"},
        {.path = GOLDEN, .rows = 120, .recipe = "small"},
        /* two blocks, which are checked at once */
        {.path = GOLDEN, .rows = 1320, .recipe = "small"},
        {.path = GOLDEN, .rows = 1320, .recipe = "cross"},
        {.path = GOLDEN, .rows = 120, .learn = 1},
        {.path = GOLDEN,
         .rows = 120,
         .recipe = "sink:4,derope@k,center,basis,steps,code:step=0.2",
         .profile = 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof work / sizeof work[0]; i++) {
        fail_each(&work[i], 0, 1);
        fail_each(&work[i], 1, 7);
    }
}

static void decoding_every_stage(void **state) {
    static const char *const names[] = {"codes",       "ends",      "fast",    "gear",
                                        "kcvt",        "kivi",      "lowrank", "merge",
                                        "merge-heads", "own-basis", "profile", "prune",
                                        "scales",      "token",     "zip",     "zstd"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/golden/%s-v1.kvc", names[i]);
        fail_each(&(struct work){.path = path}, 0, 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_that_overflow),
        cmocka_unit_test(packing_unpacking_and_learning),
        cmocka_unit_test(decoding_every_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
