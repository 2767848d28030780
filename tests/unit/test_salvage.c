/* test_salvage.c: damaged containers: whatever is done to the bytes, nothing crashes, all damage is
 * listed, and every row that is said to be whole is the row that was packed. KVC_ROUNDS=N: so many
 * random damages of each container instead of 60. */
#include "formats/cache/mapped.h"
#include "tests/recipe_text.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/container/salvage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>

enum { ROWS = 600, STREAM_ROWS = 300, LAYERS = 4, HEADS = 2, DIM = 32 };
enum { ROW = HEADS * DIM * 2, TENSORS = 4 * LAYERS };

#define KVC_FIXTURES "tests/conformance/files"
#define TRANSFORM "sink:4,center,basis,steps,code:step=0.4"

static uint64_t state;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* --- a cache of K and V in f16, whose second stream repeats half of the first one's rows, with
 * literal bytes around its tensors --- */

static void release(void *rows) {
    free(rows);
}

static struct kvc_cache *make_cache(int streams) {
    static const uint8_t literal[] = "private bytes";
    static struct kvc_input source;
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    uint8_t *rows = calloc(TENSORS * ROWS, ROW), *at = rows;
    int32_t tokens[ROWS];
    assert_non_null(c);
    assert_non_null(rows);
    kvc_input_memory(&source, "literals", literal, sizeof literal);
    assert_int_equal(kvc_cache_map(c, release, rows, &e), 0);
    assert_int_equal(kvc_cache_add_part(c, KVC_PART_LIVE, ROWS, &e), 0);
    if (streams) assert_int_equal(kvc_cache_add_part(c, KVC_PART_LIVE, STREAM_ROWS, &e), 1);
    if (streams) c->part[1].stream = 1;
    for (uint32_t part = 0; part < c->n_parts; part++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            const uint32_t layer = kvc_cache_add_layer(c, part, l, KVC_LAYER_FULL, &e);
            for (int role = KVC_ROLE_K; role <= KVC_ROLE_V; role++) {
                const struct kvc_shape shape = {.dtype = KVC_F16,
                                                .tokens = c->part[part].cells.n,
                                                .heads = HEADS,
                                                .dim = DIM};
                const uint32_t t = kvc_cache_add_tensor(c, layer, (enum kvc_role)role, &shape, &e);
                assert_int_equal(kvc_cache_extent_literal(c, &source, 0, sizeof literal, &e), 0);
                assert_int_equal(kvc_cache_map_memory(c, t, at, &e), 0);
                assert_int_equal(kvc_extents_tensor(c, t, &e), 0);
                state = 1 + (uint64_t)role + 2 * l; /* the same in both parts */
                for (size_t i = 0; i < shape.tokens * ROW; i += 2) {
                    const uint64_t x = next_random();
                    at[i] = (uint8_t)x;
                    at[i + 1] = (uint8_t)(0x38 | (x >> 8 & 0x83)); /* about 1 in size */
                }
                at += shape.tokens * ROW;
            }
        }
    for (int i = 0; i < ROWS; i++) tokens[i] = 3 * i;
    assert_int_equal(kvc_cache_set_tokens(c, tokens, ROWS, &e), 0);
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, "halves", &e), 0);
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    return c;
}

static struct kvc_buffer pack(const char *recipe, int streams) {
    struct kvc_error e;
    struct kvc_cache *c = make_cache(streams);
    struct kvc_buffer b = {0};
    struct kvc_sink sink = kvc_sink_buffer(&b);
    const struct kvc_pack_options options = {.recipe = recipe_of(recipe), .threads = 1};
    if (kvc_container_write(c, &options, &sink, NULL, &e)) fail_msg("%s: %s", recipe, e.message);
    kvc_cache_free(c);
    return b;
}

static struct kvc_input input_of(const uint8_t *bytes, size_t n) {
    struct kvc_input in;
    kvc_input_memory(&in, "(test)", bytes, n);
    return in;
}

/* --- what is said of damaged bytes --- */

/* What is found in the bytes; every row called whole is compared with that of `good`. */
struct verdict {
    int opened, trouble, all_whole;
    uint64_t entries, whole_blocks;
};

static uint64_t compare_rows(const struct kvc_survey *s, struct kvc_cache *c,
                             struct kvc_cache *good) {
    static uint8_t a[KVC_BLOCK * ROW], b[KVC_BLOCK * ROW];
    struct kvc_error e;
    uint64_t at = 0, whole = 0;
    assert_int_equal(c->n_tensors, good->n_tensors);
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_cells *cells = &kvc_tensor_part(good, t)->cells;
        if (kvc_tensor_part(c, t)->cells.n_blocks != cells->n_blocks)
            fail_msg("tensor %u has other blocks", t);
        for (uint64_t block = 0; block < cells->n_blocks; block++) {
            const uint64_t first = cells->block[block], n = cells->block[block + 1] - first;
            const int readable = !c->read(c, t, first, n, a, &e);
            assert_int_equal(readable, s->whole[at]);
            if (!s->whole[at++]) continue;
            whole++;
            assert_int_equal(good->read(good, t, first, n, b, &e), 0);
            if (memcmp(a, b, (size_t)(n * ROW)) != 0)
                fail_msg("tensor %u, block %u: other rows", t, (unsigned)block);
            for (uint64_t i = first; i < first + n; i++)
                if (kvc_cells_position(&kvc_tensor_part(c, t)->cells, i) !=
                    kvc_cells_position(cells, i))
                    fail_msg("other positions");
        }
    }
    return whole;
}

static struct verdict judge(const uint8_t *bytes, size_t n, struct kvc_cache *good) {
    struct kvc_error e;
    struct kvc_input in = input_of(bytes, n);
    struct verdict v = {0};
    struct kvc_cache *c = kvc_import_damaged(&in, NULL, &e);
    if (!c) {
        kvc_input_close(&in);
        return v;
    }
    const struct kvc_survey *s = kvc_salvage_survey(c, 1, &e);
    assert_non_null(s);
    v.opened = 1;
    v.entries = s->n;
    v.trouble = s->trouble.code != KVC_OK;
    if (s->unusable.code == KVC_OK) {
        v.whole_blocks = compare_rows(s, c, good);
        v.all_whole = kvc_survey_all_whole(s, c);
        if (c->tokens) {
            assert_int_equal(c->n_tokens, good->n_tokens);
            assert_memory_equal(c->tokens, good->tokens, good->n_tokens * sizeof *c->tokens);
        }
    }
    kvc_cache_free(c);
    kvc_input_close(&in);
    return v;
}

/* A copy with one of several kinds of damage; *n is its size. */
static uint8_t *damage(const struct kvc_buffer *b, size_t *n) {
    uint8_t *p = malloc(b->n + 4096);
    const unsigned times = 1 + (unsigned)(next_random() % 3);
    assert_non_null(p);
    memcpy(p, b->data, b->n);
    memset(p + b->n, 0x5a, 4096);
    *n = b->n;
    for (unsigned i = 0; i < times; i++) {
        const size_t at = (size_t)(next_random() % *n), room = *n - at;
        const size_t some = 1 + (size_t)(next_random() % (room < 5000 ? room : 5000));
        switch (next_random() % 8) {
        case 0: *n = at ? at : 1; break;
        case 1: memset(p + at, 0, some); break;
        case 2: /* bytes of one place stand at another */
            memmove(p + at / 16 * 16, p + next_random() % (*n - some + 1) / 16 * 16, some);
            break;
        case 3: /* bytes are missing in the middle */
            memmove(p + at, p + at + some, room - some);
            *n -= some < *n ? some : 0;
            break;
        case 4: /* bytes follow */
            if (*n == b->n) *n += 1 + (size_t)(next_random() % 4096);
            break;
        default: p[at] ^= (uint8_t)(1u << next_random() % 8); break;
        }
        if (!*n) *n = 1;
    }
    return p;
}

static void check_recipe(const char *recipe, int streams) {
    struct kvc_error e;
    struct kvc_buffer b = pack(recipe, streams);
    struct kvc_input in = input_of(b.data, b.n);
    struct kvc_cache *good = kvc_format_import(&kvc_format_kvc, &in, NULL, &e);
    const char *text = getenv("KVC_ROUNDS");
    const long rounds = text ? strtol(text, NULL, 10) : 60;
    uint64_t rows = 0;
    assert_non_null(good);
    const struct verdict whole = judge(b.data, b.n, good);
    assert_true(whole.opened && whole.all_whole && !whole.entries && !whole.trouble);
    state = 88172645463325252u;
    for (long i = 0; i < rounds; i++) {
        size_t n;
        uint8_t *p = damage(&b, &n);
        const int changed = n != b.n || memcmp(p, b.data, n) != 0;
        const struct verdict v = judge(p, n, good);
        if (v.opened && changed != (v.entries || v.trouble))
            fail_msg("%s, round %ld: damage is not noticed", recipe, i);
        rows += v.whole_blocks;
        free(p);
    }
    assert_true(rows > 0);
    kvc_cache_free(good);
    kvc_input_close(&in);
    free(b.data);
}

static void test_lossless(void **unused) {
    (void)unused;
    check_recipe("split", 0);
}

static void test_references(void **unused) {
    (void)unused;
    check_recipe("zstd", 1);
}

static void test_side_data(void **unused) {
    (void)unused;
    check_recipe(TRANSFORM, 0);
}

static void test_pairs(void **unused) {
    (void)unused;
    check_recipe("minicache", 0);
}

/* --- dependent data --- */

/* The record of a type, tensor and number. */
static struct kvc_record_info find_record(struct kvc_cache *c, unsigned type, uint32_t tensor,
                                          uint32_t number) {
    struct kvc_record_info info;
    struct kvc_error e;
    for (uint64_t i = 0; i < kvc_container_records(c); i++) {
        assert_int_equal(kvc_container_record(c, i, &info, NULL, 0, &e), 0);
        if (info.type == type &&
            (tensor == KVC_NONE || (info.tensor == tensor && info.block == number)))
            return info;
    }
    fail_msg("there is no such record");
    return info;
}

/* One bit of a record is flipped: so many blocks go with it; all of them where `lost` is ALL. */
#define ALL UINT64_MAX
static void check_flip(const char *recipe, int streams, unsigned type, uint32_t tensor,
                       uint64_t lost) {
    struct kvc_error e;
    struct kvc_buffer b = pack(recipe, streams);
    struct kvc_input in = input_of(b.data, b.n);
    struct kvc_cache *good = kvc_format_import(&kvc_format_kvc, &in, NULL, &e);
    assert_non_null(good);
    const struct kvc_record_info r = find_record(good, type, tensor, 0);
    uint8_t *p = malloc(b.n);
    assert_non_null(p);
    memcpy(p, b.data, b.n);
    const uint64_t all = judge(p, b.n, good).whole_blocks;
    p[r.offset + 50] ^= 1;
    const struct verdict v = judge(p, b.n, good);
    assert_true(v.entries > 0);
    free(p);
    kvc_cache_free(good);
    kvc_input_close(&in);
    free(b.data);
    assert_int_equal(v.whole_blocks, lost == ALL ? 0 : all - lost);
}

static void test_what_goes_with_it(void **unused) {
    (void)unused;
    /* a block alone; rows that refer to it; a segment's side data; the second of a pair */
    check_flip("split", 0, KVC_RECORD_BLOCK, 2, 1);
    check_flip("zstd", 1, KVC_RECORD_BLOCK, 2, 2);
    check_flip(TRANSFORM, 0, KVC_RECORD_SIDE, 2, 3);
    check_flip("minicache", 0, KVC_RECORD_BLOCK, 4, 2);
    /* and what rows do not need */
    check_flip("split", 0, KVC_RECORD_META, KVC_NONE, 0);
    check_flip("split", 0, KVC_RECORD_TOKENS, KVC_NONE, 0);
    check_flip("split", 0, KVC_RECORD_SOURCE, KVC_NONE, 0);
    check_flip("split", 0, KVC_RECORD_INDEX, KVC_NONE, 0);
    check_flip("split", 0, KVC_RECORD_CELLS, KVC_NONE, ALL);
    check_flip("split", 0, KVC_RECORD_TABLE, KVC_NONE, ALL);
}

static void test_narrow(void **unused) {
    struct kvc_error e;
    struct kvc_buffer b = pack("split", 0);
    struct kvc_input in = input_of(b.data, b.n);
    struct kvc_cache *good = kvc_format_import(&kvc_format_kvc, &in, NULL, &e);
    const uint8_t layers[] = {1, 0, 1, 1};
    const struct {
        struct kvc_selection asked;
        uint64_t end; /* 0: nothing is whole */
    } cases[] = {{{0}, 256},
                 {{.first = 100}, 256},
                 {{.first = 0, .end = 200}, 200},
                 {{.first = 256}, 0},
                 {{.first = 300}, 0},
                 {{.first = 512}, INT64_MAX},
                 {{.layers = layers, .n_layers = 4}, INT64_MAX}};
    (void)unused;
    b.data[find_record(good, KVC_RECORD_BLOCK, 3, 1).offset + 100] ^= 4;
    kvc_cache_free(good);
    struct kvc_cache *c = kvc_import_damaged(&in, NULL, &e);
    assert_non_null(c);
    const struct kvc_survey *s = kvc_salvage_survey(c, 2, &e);
    assert_non_null(s);
    assert_int_equal(s->n, 1);
    assert_string_equal(s->damage[0].place, "layer 1 V, tokens 256:512");
    assert_string_equal(s->damage[0].reason, "checksum mismatch");
    assert_string_equal(s->whole_layers, "0,2-3");
    assert_string_equal(s->whole_tokens, "0:256,512:600");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvc_selection x = cases[i].asked;
        const int status = kvc_survey_narrow(s, c, &x, &e);
        assert_int_equal(status, cases[i].end ? 0 : -1);
        if (cases[i].end) assert_int_equal(x.end, cases[i].end);
    }
    kvc_cache_free(c);
    kvc_input_close(&in);
    free(b.data);
}

/* A window and two snapshots of it: what is damaged of these is left out, and the window read. */
static void test_narrow_snapshots(void **unused) {
    struct kvc_error e;
    struct kvc_input file, in;
    struct kvc_selection x = {.first = 0};
    (void)unused;
    assert_int_equal(kvc_input_open(&file, KVC_FIXTURES "/good-same.kvc", &e), 0);
    uint8_t *bytes = malloc(file.size);
    assert_non_null(bytes);
    memcpy(bytes, file.data, file.size);
    in = input_of(bytes, file.size);
    struct kvc_cache *good = kvc_format_import(&kvc_format_kvc, &in, NULL, &e);
    assert_non_null(good);
    assert_int_equal(kvc_tensor_part(good, 5)->kind, KVC_PART_SNAPSHOT);
    bytes[find_record(good, KVC_RECORD_BLOCK, 5, 0).offset + 60] ^= 4;
    kvc_cache_free(good);
    struct kvc_cache *c = kvc_import_damaged(&in, NULL, &e);
    assert_non_null(c);
    const struct kvc_survey *s = kvc_salvage_survey(c, 1, &e);
    assert_non_null(s);
    assert_int_equal(s->n, 1);
    assert_int_equal(kvc_survey_narrow(s, c, &x, &e), 0);
    assert_true(x.no_snapshots && !x.no_companions);
    struct kvc_cache *view = kvc_view_select(c, &x, &e);
    assert_non_null(view);
    assert_int_equal(view->n_parts, 1);
    assert_int_equal(view->n_tensors, 2);
    for (uint32_t t = 0; t < view->n_tensors; t++) {
        uint8_t rows[64];
        assert_true(kvc_row_bytes(&view->tensor[t].shape) <= sizeof rows);
        assert_int_equal(view->read(view, t, 0, 1, rows, &e), 0);
    }
    kvc_cache_free(view);
    kvc_cache_free(c);
    kvc_input_close(&in);
    kvc_input_close(&file);
    free(bytes);
}

/* Every file that a reader refuses can be surveyed, and what is said of its table is a reason. */
static void test_refused_files(void **unused) {
    struct dirent **list;
    int surveyed = 0, unusable = 0;
    const int n = scandir(KVC_FIXTURES, &list, NULL, alphasort);
    assert_true(n > 500);
    (void)unused;
    for (int i = 0; i < n; i++) {
        char path[512];
        struct kvc_input in;
        struct kvc_error e;
        snprintf(path, sizeof path, KVC_FIXTURES "/%s", list[i]->d_name);
        free(list[i]);
        if (!strstr(path, "/bad-") && !strstr(path, "/unsupported-")) continue;
        assert_int_equal(kvc_input_open(&in, path, &e), 0);
        struct kvc_cache *c = kvc_salvage_open(&in, &e);
        const struct kvc_survey *s = c ? kvc_salvage_survey(c, 2, &e) : NULL;
        if (!s) assert_true(strlen(e.message) > 10);
        surveyed += s != NULL;
        unusable += s && kvc_salvage_refusal(c);
        if (c) kvc_cache_free(c);
        kvc_input_close(&in);
    }
    free(list);
    assert_true(surveyed > 300 && unusable > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_files), cmocka_unit_test(test_lossless),
        cmocka_unit_test(test_references),    cmocka_unit_test(test_side_data),
        cmocka_unit_test(test_pairs),         cmocka_unit_test(test_what_goes_with_it),
        cmocka_unit_test(test_narrow),        cmocka_unit_test(test_narrow_snapshots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
