/* test_rows.c: what is doubtful about rows beside ids, padding and windows: each verdict, from each
 * source, and what is usual and no reason to doubt. */
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/cache/rows.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 2, MOST_ROWS = 700, LAYERS = 2, TENSORS = 2 * LAYERS };

/* The bytes of one cache: a row of DIM bytes for each tensor and token. */
static uint8_t rows[TENSORS][MOST_ROWS][DIM];

/* Fills all rows with values that are not zero, and makes the last ones zero. */
static void fill(uint64_t n, uint64_t zeros) {
    memset(rows, 7, sizeof rows);
    for (unsigned t = 0; t < TENSORS; t++)
        for (uint64_t i = n - zeros; i < n; i++) memset(rows[t][i], 0, DIM);
}

static void add_layer(struct kvc_cache *c, uint32_t part, uint32_t index, unsigned first,
                      uint64_t n, enum kvc_layer_kind kind) {
    struct kvc_error e;
    const struct kvc_shape shape = {.dtype = KVC_U8, .tokens = n, .heads = 1, .dim = DIM};
    const uint32_t layer = kvc_cache_add_layer(c, part, index, kind, &e);
    assert_int_not_equal(layer, KVC_NONE);
    for (unsigned k = 0; k < 2; k++) {
        const uint32_t t = kvc_cache_add_tensor(c, layer, k ? KVC_ROLE_V : KVC_ROLE_K, &shape, &e);
        assert_int_not_equal(t, KVC_NONE);
        assert_int_equal(kvc_cache_map_memory(c, t, rows[first + k][0], &e), 0);
    }
}

/* Returns a cache of two layers in one part over `rows`, with ids 0, 1, ... */
static struct kvc_cache *make(uint64_t n, uint64_t ids) {
    static int32_t id[MOST_ROWS + 8];
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    assert_non_null(c);
    assert_int_equal(kvc_cache_map(c, NULL, NULL, &e), 0);
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_LIVE, n, &e), 0);
    for (uint32_t i = 0; i < LAYERS; i++) add_layer(c, 0, i, 2 * i, n, KVC_LAYER_FULL);
    if (ids) assert_int_equal(kvc_cache_set_tokens(c, id, ids, &e), 0);
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_SOURCE_FORMAT, "safetensors", &e), 0);
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    return c;
}

/* Looks at a cache, checks that its line has `said` ("": nothing is said) and that it is refused or
 * not, and frees it. */
static struct kvc_rows verdict(struct kvc_cache *c, const char *said, int refused) {
    struct kvc_rows r;
    struct kvc_error e = {.code = KVC_OK};
    char text[400];
    if (kvc_rows_look(&r, c, &e)) fail_msg("%s", e.message);
    kvc_rows_say(&r, "", text, sizeof text);
    if (*said ? !strstr(text, said) : *text) fail_msg("said: '%s', wanted: '%s'", text, said);
    if ((kvc_rows_refuse(&r, &e) != 0) != refused) fail_msg("refused: %d: %s", !refused, text);
    if (refused) assert_int_equal(e.code, KVC_ERR_USAGE);
    if (refused && *said && !strstr(e.message, said))
        fail_msg("refused by '%s', wanted: '%s'", e.message, said);
    kvc_cache_free(c);
    return r;
}

/* --- ids --- */

static void test_ids(void **state) {
    (void)state;
    fill(40, 0);
    static const struct {
        uint64_t ids;
        int other;
        const char *said;
    } cases[] = {{0, 0, ""},
                 {40, 0, ""},
                 {41, 0, ""}, /* the last token is sampled, and its row not computed */
                 {42, 1, "42 token ids for 40 rows, and nothing says which ids the rows are of"},
                 {60, 1, "--tokens=0:40"},
                 {39, 0, "39 token ids for 40 rows: the last rows have none"},
                 {1, 0, "1 token ids for 40 rows: the last rows have none"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kvc_rows r = verdict(make(40, cases[i].ids), cases[i].said, cases[i].other);
        assert_int_equal(r.rows, 40);
        assert_int_equal(r.ids, cases[i].ids);
        assert_int_equal(r.other_ids, cases[i].other);
    }
}

/* More ids than rows are no reason to doubt where something says which they are of. */
static void test_ids_that_are_told(void **state) {
    (void)state;
    struct kvc_error e;
    fill(40, 0);
    struct kvc_cache *c = make(40, 60); /* an array of positions, though it counts from 0 */
    assert_int_equal(kvc_meta_set_bool(&c->meta, KVC_KEY_POSITIONS_GIVEN, 1, &e), 0);
    verdict(c, "", 0);

    c = make(40, 60); /* a slot: its cells have positions */
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_SOURCE_FORMAT, "llama.cpp GGSQ", &e), 0);
    verdict(c, "", 0);

    c = make(40, 60); /* the last rows of a text */
    for (uint64_t i = 0; i < 40; i++) c->part[0].cells.pos[i] = 20 + (int64_t)i;
    assert_int_equal(kvc_cells_arrange(&c->part[0].cells, &e), 0);
    verdict(c, "", 0);

    c = make(40, 60); /* a pruned cache that says which rows it kept */
    for (uint64_t i = 0; i < 40; i++) c->part[0].cells.pos[i] = (int64_t)(i + i / 2);
    assert_int_equal(kvc_cells_arrange(&c->part[0].cells, &e), 0);
    verdict(c, "", 0);
}

/* --- zeros --- */

static void test_zeros(void **state) {
    (void)state;
    static const struct {
        uint64_t rows, zeros, ids, found;
        const char *said;
        int refused;
    } cases[] = {{40, 1, 0, 1, "the last 1 of 40 rows are zeros", 0},
                 {40, 12, 0, 12, "--tokens=0:28 leaves them out", 0},
                 /* a static cache: the ids end where the rows do */
                 {40, 12, 28, 12, "the last 12 of 40 rows", 0},
                 {40, 12, 29, 12, "the last 12 of 40 rows", 1},
                 {40, 12, 40, 12, "the last 12 of 40 rows", 1},
                 {40, 39, 1, 39, "--tokens=0:1", 0},
                 {700, 256, 0, 256, "--tokens=0:444", 0}, /* blocks of 256 rows are read at once */
                 {700, 257, 0, 257, "--tokens=0:443", 0},
                 {700, 258, 0, 258, "--tokens=0:442", 0},
                 {700, 699, 0, 699, "--tokens=0:1", 0},
                 /* zeros alone: of a test, not of a cache that is not full */
                 {40, 40, 40, 0, "", 0},
                 {700, 700, 0, 0, "", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fill(cases[i].rows, cases[i].zeros);
        const struct kvc_rows r = verdict(make(cases[i].rows, cases[i].ids), cases[i].said,
                                          cases[i].refused);
        assert_int_equal(r.zeros, cases[i].found);
    }
}

/* Rows count as zero only where all tensors have zeros, and only at the end. */
static void test_zeros_of_all(void **state) {
    (void)state;
    for (unsigned t = 0; t < TENSORS; t++) {
        fill(40, 12);
        rows[t][39][DIM - 1] = 1;
        assert_int_equal(verdict(make(40, 40), "", 0).zeros, 0);
        fill(40, 12);
        rows[t][35][0] = 1; /* one tensor has fewer zeros than the others */
        assert_int_equal(verdict(make(40, 40), "the last 4 of 40 rows", 1).zeros, 4);
    }
    fill(40, 0);
    for (unsigned t = 0; t < TENSORS; t++) memset(rows[t][10], 0, 5 * DIM);
    verdict(make(40, 40), "", 0);
}

/* The first part decides; companions are no K or V. */
static void test_zeros_elsewhere(void **state) {
    (void)state;
    struct kvc_error e;
    const struct kvc_shape shape = {.dtype = KVC_U8, .tokens = 4, .heads = 1, .dim = DIM};
    static const uint8_t nothing[4 * DIM];
    fill(40, 0);
    struct kvc_cache *c = make(40, 40);
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_COMPANION, 4, &e), 1);
    const uint32_t layer = kvc_cache_add_layer(c, 1, 0, KVC_LAYER_COMPANION, &e);
    const uint32_t t = kvc_cache_add_tensor(c, layer, KVC_ROLE_QUERIES, &shape, &e);
    assert_int_not_equal(t, KVC_NONE);
    assert_int_equal(kvc_cache_map_memory(c, t, nothing, &e), 0);
    for (uint64_t i = 0; i < 4; i++) c->part[1].cells.pos[i] = 36 + (int64_t)i;
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    verdict(c, "", 0);
}

static int fail_read(const struct kvc_cache *c, uint32_t t, uint64_t first, uint64_t n,
                     uint8_t *dst, struct kvc_error *e) {
    (void)c, (void)t, (void)first, (void)n, (void)dst;
    return kvc_fail(e, KVC_ERR_IO, "the disk is gone");
}

static void test_rows_that_cannot_be_read(void **state) {
    (void)state;
    struct kvc_rows r;
    struct kvc_error e;
    fill(40, 0);
    struct kvc_cache *c = make(40, 40);
    c->read = fail_read;
    assert_int_equal(kvc_rows_look(&r, c, &e), -1);
    assert_int_equal(e.code, KVC_ERR_IO);
    c->read = NULL; /* the rows are elsewhere: ids are compared all the same */
    assert_int_equal(kvc_rows_look(&r, c, &e), 0);
    assert_int_equal(r.rows, 40);
    kvc_cache_free(c);
}

/* --- padding --- */

static void test_padding(void **state) {
    (void)state;
    struct kvc_error e;
    fill(40, 0);
    struct kvc_cache *c = make(40, 40);
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROWS_USED, "10:40", &e), 0);
    verdict(c, "leaves out all rows but 10:40 as padding", 1);
    c = make(40, 0);
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROWS_USED, "scattered", &e), 0);
    verdict(c, "rows between others: padding that no token range takes out", 1);
}

static void test_padding_that_is_cut(void **state) {
    (void)state;
    static const struct {
        const char *used;
        uint64_t first, end;
        int stays;
    } cases[] = {{"10:40", 10, 40, 0},    {"10:40", 12, 30, 0}, {"10:40", 9, 40, 1},
                 {"10:40", 10, 41, 1},    {"10:40", 0, 10, 1},  {"", 0, 10, 0},
                 {"scattered", 0, 40, 1}, {"10:", 10, 11, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvc_meta meta = {0};
        struct kvc_error e;
        if (*cases[i].used)
            assert_int_equal(kvc_meta_set_text(&meta, KVC_KEY_ROWS_USED, cases[i].used, &e), 0);
        kvc_rows_cut(&meta, cases[i].first, cases[i].end);
        assert_int_equal(kvc_meta_find(&meta, KVC_KEY_ROWS_USED) != NULL, cases[i].stays);
        kvc_meta_free(&meta);
    }
}

/* --- layers of several lengths --- */

/* Returns a cache whose second layer has fewer rows, which nobody explained. */
static struct kvc_cache *make_short(uint64_t n, uint64_t shorter) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    assert_non_null(c);
    fill(n, 0);
    assert_int_equal(kvc_cache_map(c, NULL, NULL, &e), 0);
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_LIVE, n, &e), 0);
    add_layer(c, 0, 0, 0, n, KVC_LAYER_FULL);
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_WINDOW, shorter, &e), 1);
    add_layer(c, 1, 1, 2, shorter, KVC_LAYER_WINDOW);
    for (uint64_t i = 0; i < shorter; i++) c->part[1].cells.pos[i] = (int64_t)(n - shorter + i);
    assert_int_equal(kvc_meta_set_bool(&c->meta, KVC_KEY_WINDOW_ASSUMED, 1, &e), 0);
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    return c;
}

static void test_short_layers(void **state) {
    (void)state;
    struct kvc_error e;
    assert_int_equal(
        verdict(make_short(40, 30), "some layers have 30 rows and others 40", 1).short_of, 30);
    verdict(make_short(40, 30), "(--model, or sliding_window in the file, does)", 1);

    struct kvc_cache *c = make_short(40, 30); /* a model without windows: --model is no advice */
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_MODEL_ARCH, "llama", &e), 0);
    const struct kvc_rows r = verdict(c, "nothing says that a sliding window left the others out",
                                      1);
    char text[400];
    kvc_rows_say(&r, "", text, sizeof text);
    assert_null(strstr(text, "--model"));

    c = make_short(40, 30); /* the window is told for the model, or for the layer */
    assert_int_equal(kvc_meta_set_u64(&c->meta, KVC_KEY_WINDOW, 30, &e), 0);
    verdict(c, "", 0);
    c = make_short(40, 30);
    c->layer[1].window = 30;
    verdict(c, "", 0);
    c = make_short(40, 30); /* the names say it: of llama.cpp's second cache */
    kvc_meta_remove(&c->meta, KVC_KEY_WINDOW_ASSUMED);
    verdict(c, "", 0);
}

/* --- several sequences, no rows, all at once --- */

static void test_streams(void **state) {
    (void)state;
    struct kvc_error e;
    fill(40, 12);
    struct kvc_cache *c = make(40, 60);
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_LIVE, 4, &e), 1);
    c->part[1].stream = 1;
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    /* ids are of one sequence: of which, nobody knows */
    const struct kvc_rows r = verdict(c, "", 0);
    assert_int_equal(r.rows, 0);

    c = make(40, 60); /* a stream without cells is none */
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_LIVE, 0, &e), 1);
    c->part[1].stream = 1;
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    verdict(c, "60 token ids for 40 rows", 1);
}

static void test_states(void **state) {
    (void)state;
    struct kvc_rows r;
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    assert_non_null(c);
    assert_int_equal(kvc_rows_look(&r, c, &e), 0); /* nothing at all */
    assert_int_equal(r.rows, 0);
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_STATE, 1, &e), 0);
    assert_int_equal(kvc_rows_look(&r, c, &e), 0); /* a state stands for all tokens before it */
    assert_int_equal(r.rows, 0);
    kvc_cache_free(c);
}

static void test_all_at_once(void **state) {
    (void)state;
    struct kvc_error e;
    char text[400], cut[60];
    struct kvc_rows r = {
        .rows = 40, .ids = 60, .other_ids = 1, .zeros = 12, .short_of = 30, .used = "0:20"};
    kvc_rows_say(&r, "", text, sizeof text);
    assert_non_null(strstr(text, "60 token ids for 40 rows"));
    assert_non_null(strstr(text, "; the last 12 of 40 rows are zeros"));
    assert_int_equal(kvc_rows_refuse(&r, &e), -1);
    memset(cut, 'x', sizeof cut);
    kvc_rows_say(&r, "", cut, sizeof cut - 1); /* a line that has no room for all of it */
    assert_int_equal(cut[sizeof cut - 1], 'x');
    assert_true(strlen(cut) < sizeof cut - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_ids_that_are_told),
        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_zeros_of_all),
        cmocka_unit_test(test_zeros_elsewhere),
        cmocka_unit_test(test_rows_that_cannot_be_read),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_padding_that_is_cut),
        cmocka_unit_test(test_short_layers),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_all_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
