/* test_extents.c: sources of several members and of regions: gaps, places, the section EXTENTS
 * (formats/cache/extents.c, mapped.c, formats/container/extents_section.c, formats/file/restore.c).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "formats/cache/mapped.h"
#include "formats/container/container.h"
#include "formats/container/extents_section.h"
#include "formats/file/restore.h"
#include "formats/io/bytes.h"
#include "formats/io/member_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 6, HEADS = 2, DIM = 4, ROW = HEADS * DIM * 2, TENSOR = TOKENS * ROW };

/* A cache of one layer, K and V of TOKENS f16 rows, over bytes that the caller maps. */
static struct kvc_cache *two_tensors(void) {
    const struct kvc_shape shape = {KVC_F16, TOKENS, HEADS, DIM};
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    assert_non_null(c);
    assert_int_equal(kvc_cache_map(c, NULL, NULL, &e), 0);
    const uint32_t part = kvc_cache_add_part(c, KVC_PART_LIVE, TOKENS, &e);
    const uint32_t layer = kvc_cache_add_layer(c, part, 0, KVC_LAYER_FULL, &e);
    assert_int_equal(kvc_cache_add_tensor(c, layer, KVC_ROLE_K, &shape, &e), 0);
    assert_int_equal(kvc_cache_add_tensor(c, layer, KVC_ROLE_V, &shape, &e), 1);
    return c;
}

static struct kvc_place place_at(uint32_t tensor, uint64_t cell, uint64_t n, uint64_t offset,
                                 uint64_t token) {
    return (struct kvc_place){
        .tensor = tensor, .cell = cell, .n = n, .offset = offset, .strides = {token, DIM * 2, 2}};
}

/* --- gaps --- */

static void gaps_of_regions(void **state) {
    (void)state;
    struct kvc_cache *c = two_tensors();
    struct kvc_gap *gap;
    uint64_t n;
    struct kvc_error e;
    /* rows of K and V alternate, and 8 bytes follow each pair */
    const struct kvc_place pairs[] = {place_at(0, 0, TOKENS, 0, 2 * ROW + 8),
                                      place_at(1, 0, TOKENS, ROW, 2 * ROW + 8)};
    assert_int_equal(kvc_region_gaps(c, TOKENS * (2 * ROW + 8), pairs, 2, &gap, &n, &e), 0);
    assert_int_equal(n, TOKENS);
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(gap[i].offset, i * (2 * ROW + 8) + 2 * ROW);
        assert_int_equal(gap[i].size, 8);
    }
    free(gap);
    const struct kvc_place full[] = {place_at(0, 0, TOKENS, 0, ROW),
                                     place_at(1, 0, TOKENS, TENSOR, ROW)};
    assert_int_equal(kvc_region_gaps(c, 2 * TENSOR, full, 2, &gap, &n, &e), 0);
    assert_int_equal(n, 0);
    free(gap);
    assert_int_equal(kvc_region_gaps(c, 2 * TENSOR + 3, full, 2, &gap, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_int_equal(gap[0].offset, 2 * TENSOR);
    assert_int_equal(gap[0].size, 3);
    free(gap);
    kvc_cache_free(c);
}

static void refuse(uint64_t size, const struct kvc_place *place, uint64_t n, const char *why) {
    struct kvc_cache *c = two_tensors();
    struct kvc_gap *gap;
    uint64_t n_gaps;
    struct kvc_error e;
    assert_int_equal(kvc_region_gaps(c, size, place, n, &gap, &n_gaps, &e), -1);
    assert_null(gap);
    if (!strstr(e.message, why)) fail_msg("\"%s\" is not about \"%s\"", e.message, why);
    kvc_cache_free(c);
}

static void regions_are_checked(void **state) {
    (void)state;
    const struct kvc_place whole = place_at(0, 0, TOKENS, 0, ROW);
    const struct kvc_place twice[] = {whole, place_at(1, 0, TOKENS, TENSOR - 2, ROW)};
    const struct kvc_place interlocked[] = {place_at(0, 0, TOKENS, 0, 2 * ROW),
                                            place_at(1, 0, TOKENS, ROW - 2, 2 * ROW)};
    struct kvc_place one;
    refuse(TENSOR - 1, &whole, 1, "outside");
    refuse(2 * TENSOR, twice, 2, "shares bytes");
    refuse(2 * TENSOR, interlocked, 2, "shares bytes");
    refuse(0, &whole, 1, "0 bytes");
    refuse(UINT64_MAX, &whole, 1, "bytes");
    one = place_at(0, 0, TOKENS + 1, 0, ROW), refuse(2 * TENSOR, &one, 1, "outside");
    one = place_at(0, TOKENS, 1, 0, ROW), refuse(TENSOR, &one, 1, "outside");
    one = place_at(0, UINT64_MAX, 2, 0, ROW), refuse(TENSOR, &one, 1, "outside");
    one = place_at(0, 0, 0, 0, ROW), refuse(TENSOR, &one, 1, "outside");
    one = place_at(2, 0, 1, 0, ROW), refuse(TENSOR, &one, 1, "outside");
    one = place_at(0, 0, 2, UINT64_MAX - 3, ROW), refuse(TENSOR, &one, 1, "outside");
    one = place_at(0, 0, TOKENS, 0, UINT64_MAX / 2), refuse(TENSOR, &one, 1, "outside");
    /* its own rows lie in each other */
    one = place_at(0, 0, TOKENS, 0, 2), refuse(TENSOR, &one, 1, "outside");
}

static void cells_lie_in_one_place(void **state) {
    (void)state;
    struct kvc_error e;
    const struct kvc_place missing[] = {place_at(0, 0, 2, 0, ROW), place_at(0, 3, 3, 2 * ROW, ROW),
                                        place_at(1, 0, TOKENS, TENSOR, ROW)};
    const struct kvc_place doubled[] = {place_at(0, 0, 4, 0, ROW), place_at(0, 3, 3, 4 * ROW, ROW),
                                        place_at(1, 0, TOKENS, 2 * TENSOR, ROW)};
    const struct kvc_place turned[] = {place_at(0, 3, 3, 0, ROW),
                                       place_at(1, 0, TOKENS, TENSOR, ROW),
                                       place_at(0, 0, 3, 3 * ROW, ROW)};
    const struct kvc_place *const lists[] = {missing, doubled, turned};
    for (int i = 0; i < 3; i++) {
        struct kvc_cache *c = two_tensors();
        assert_int_equal(kvc_extents_region(c, 4 * TENSOR, lists[i], 3, NULL, NULL, &e), 0);
        assert_int_equal(kvc_extents_check(c, &e), i == 2 ? 0 : -1);
        kvc_cache_free(c);
    }
}

/* --- members --- */

static void names_of_members(void **state) {
    (void)state;
    static const char *const good[] = {"a",   "a/b", "a b/c.bin", "\xc3\xa4.bin",
                                       "...", ".a",  "a/..b"};
    static const char *const bad[] = {
        "",      "/a",       "a/",   "a//b",         ".",
        "..",    "a/..",     "../a", "a/./b",        "a\nb",
        "a\x7f", "\xc0\x80", "\xff", "\xed\xa0\x80", "\xf4\x90\x80\x80"};
    char longest[KVC_MAX_MEMBER_NAME + 2];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(kvc_member_name_is_sane(good[i], strlen(good[i])), 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(kvc_member_name_is_sane(bad[i], strlen(bad[i])), 0);
    assert_int_equal(kvc_member_name_is_sane("a\0b", 3), 0);
    memset(longest, 'x', sizeof longest);
    longest[KVC_MAX_MEMBER_NAME] = '\0';
    assert_int_equal(kvc_member_name_is_sane(longest, KVC_MAX_MEMBER_NAME), 1);
    longest[KVC_MAX_MEMBER_NAME] = 'x';
    longest[KVC_MAX_MEMBER_NAME + 1] = '\0';
    assert_int_equal(kvc_member_name_is_sane(longest, KVC_MAX_MEMBER_NAME + 1), 0);
}

/* --- through a container --- */

/* Pages of two tokens in two members, K and V by turns in each page, pages in any order, and bytes
 * between and after them that nobody knows. */
struct paged {
    uint8_t bytes[2][512];
    struct kvc_input in[2];
    struct kvc_cache *cache;
};

static void make_paged(struct paged *p) {
    enum { PAGE = 4 * ROW + 8 };
    /* member and offset of the pages of tokens 0, 2 and 4 */
    static const uint64_t page[3][2] = {{1, PAGE}, {0, 4}, {1, 0}};
    struct kvc_error e;
    for (int m = 0; m < 2; m++) {
        for (size_t i = 0; i < sizeof p->bytes[m]; i++)
            p->bytes[m][i] = (uint8_t)(i * 7 + (size_t)m * 100);
        kvc_input_memory(&p->in[m], "a test", p->bytes[m], m ? 2 * PAGE + 5 : PAGE + 9);
    }
    struct kvc_cache *c = p->cache = two_tensors();
    for (uint32_t t = 0; t < 2; t++)
        for (uint64_t i = 0; i < 3; i++) {
            const struct kvc_place x = place_at(t, 2 * i, 2, page[i][1] + t * ROW, 2 * ROW);
            assert_int_equal(kvc_cache_map_place(c, &p->in[page[i][0]], &x, &e), 0);
        }
    const struct kvc_place first[] = {place_at(0, 2, 2, 4, 2 * ROW),
                                      place_at(1, 2, 2, 4 + ROW, 2 * ROW)};
    const struct kvc_place second[] = {place_at(0, 4, 2, 0, 2 * ROW),
                                       place_at(1, 4, 2, ROW, 2 * ROW),
                                       place_at(0, 0, 2, PAGE, 2 * ROW),
                                       place_at(1, 0, 2, PAGE + ROW, 2 * ROW)};
    assert_int_equal(kvc_extents_member(c, "0.bin", &e), 0);
    assert_int_equal(kvc_cache_extent_region(c, &p->in[0], 0, PAGE + 4, first, 2, &e), 0);
    assert_int_equal(kvc_cache_extent_literal(c, &p->in[0], PAGE + 4, 5, &e), 0);
    assert_int_equal(kvc_extents_member(c, "nothing", &e), 0);
    assert_int_equal(kvc_extents_member(c, "a/1.bin", &e), 0);
    assert_int_equal(kvc_cache_extent_literal(c, &p->in[1], 0, 0, &e), 0);
    assert_int_equal(kvc_cache_extent_region(c, &p->in[1], 0, p->in[1].size, second, 4, &e), 0);
    if (kvc_cache_finish(c, &e) || kvc_extents_check(c, &e)) fail_msg("%s", e.message);
}

/* Members as they come. */
struct taken {
    struct kvc_buffer bytes[3];
    struct kvc_sink sink;
    char name[3][16];
    uint64_t size[3];
    int n, open;
};

static int take(void *state, const void *data, size_t n, struct kvc_error *e) {
    struct taken *t = state;
    struct kvc_sink to = kvc_sink_buffer(&t->bytes[t->n - 1]);
    assert_int_equal(t->open, 1);
    return kvc_sink_write(&to, data, n, e);
}

static int begin(void *state, const char *name, uint64_t size, struct kvc_error *e) {
    struct taken *t = state;
    (void)e;
    assert_true(!t->open && t->n < 3);
    t->open = 1;
    t->size[t->n] = size;
    snprintf(t->name[t->n++], sizeof t->name[0], "%s", name);
    return 0;
}

static int finish(void *state, struct kvc_error *e) {
    (void)e;
    ((struct taken *)state)->open = 0;
    return 0;
}

static void check_members(const struct kvc_cache *c, const struct paged *p, unsigned threads) {
    static const char *const names[] = {"0.bin", "nothing", "a/1.bin"};
    struct taken t = {.sink = {.write = take, .state = &t}};
    const struct kvc_member_sink out = {.out = &t.sink,
                                        .begin = begin,
                                        .finish = finish,
                                        .state = &t};
    struct kvc_error e;
    if (kvc_source_write_members(c, threads, &out, &e)) fail_msg("%s", e.message);
    assert_true(t.n == 3 && !t.open);
    for (int i = 0; i < 3; i++) {
        const struct kvc_input *in = i == 1 ? NULL : &p->in[i / 2];
        assert_string_equal(t.name[i], names[i]);
        assert_int_equal(t.bytes[i].n, in ? in->size : 0);
        assert_int_equal(t.size[i], t.bytes[i].n);
        if (in) assert_memory_equal(t.bytes[i].data, in->data, t.bytes[i].n);
        free(t.bytes[i].data);
    }
}

static void members_and_pages_come_back(void **state) {
    (void)state;
    struct paged p;
    struct kvc_error e;
    struct kvc_buffer packed = {0};
    struct kvc_sink to = kvc_sink_buffer(&packed);
    struct kvc_input in;
    uint8_t rows[TENSOR], again[TENSOR];
    make_paged(&p);
    check_members(p.cache, &p, 1);
    if (kvc_container_write(p.cache, &(struct kvc_pack_options){.threads = 2}, &to, NULL, &e))
        fail_msg("%s", e.message);
    kvc_input_memory(&in, "a container", packed.data, packed.n);
    struct kvc_cache *c = kvc_container_open(&in, &e);
    if (!c) fail_msg("%s", e.message);
    check_members(c, &p, 1);
    check_members(c, &p, 3);
    for (uint32_t t = 0; t < 2; t++) {
        assert_int_equal(p.cache->read(p.cache, t, 0, TOKENS, rows, &e), 0);
        assert_int_equal(c->read(c, t, 0, TOKENS, again, &e), 0);
        assert_memory_equal(rows, again, TENSOR);
        /* token 0 is in the second page of the second member */
        assert_int_equal(rows[0], p.in[1].data[4 * ROW + 8 + t * ROW]);
    }
    struct kvc_sink nowhere = {.write = take};
    const struct kvc_member_sink one_file = {.out = &nowhere};
    assert_int_equal(kvc_source_write_members(c, 1, &one_file, &e), -1);
    kvc_cache_free(c);
    free(packed.data);
    kvc_cache_free(p.cache);
}

/* --- the section, damaged --- */

static void read_section(const uint64_t *number, size_t n, const char *why) {
    struct kvc_cache *c = two_tensors();
    struct kvc_error e;
    uint8_t bytes[256];
    size_t size = 0;
    for (size_t i = 0; i < n; i++) size += put_varint(bytes + size, number[i]);
    const int status = kvc_extents_read(c, bytes, size, 1000, &e);
    if (!why && status) fail_msg("%s", e.message);
    if (why && (!status || !strstr(e.message, why)))
        fail_msg("\"%s\" is not about \"%s\"", status ? e.message : "", why);
    kvc_cache_free(c);
}
#define SECTION(why, ...) \
    read_section((const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / 8, why)

static void sections_are_checked(void **state) {
    (void)state;
    enum { REGION = 3, MEMBER = 4 };
    SECTION(NULL, 2, 1, 2);
    SECTION(NULL, 3, MEMBER, 1, 'a', 1, 2);
    SECTION(NULL, 1, REGION, 2 * TENSOR + 1, 2, 0, 0, TOKENS, 0, ROW, DIM * 2, 2, 1, 0, TOKENS,
            TENSOR, ROW, DIM * 2, 2);
    SECTION("cut short", 2, 1);
    SECTION("none", 0);
    SECTION("every tensor once", 1, 1);
    SECTION("every tensor once", 3, 1, 2, 1);
    SECTION("names no tensor", 1, 9);
    SECTION("continues", 4, 0, 5, 0, 5, 1, 2);
    SECTION("empty", 3, 0, 0, 1, 2);
    SECTION("bytes follow", 2, 1, 2, 0);
    SECTION("first member", 3, 1, MEMBER, 1, 'a', 2);
    SECTION("one name", 4, MEMBER, 1, 'a', 1, MEMBER, 1, 'a', 2);
    SECTION("relative path", 3, MEMBER, 2, '.', '.', 1, 2);
    SECTION("name of a member", 3, MEMBER, 9, 'a');
    SECTION("no places", 1, REGION, 8, 0);
    SECTION("more than the section", 1, REGION, 8, 1000);
    SECTION("larger than its places", 1, REGION, 1 << 20, 1, 0, 0, TOKENS, 0, ROW, DIM * 2, 2);
    SECTION("shares bytes", 1, REGION, 2 * TENSOR, 2, 0, 0, TOKENS, 0, ROW, DIM * 2, 2, 1, 0,
            TOKENS, 2, ROW, DIM * 2, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaps_of_regions),
        cmocka_unit_test(regions_are_checked),
        cmocka_unit_test(cells_lie_in_one_place),
        cmocka_unit_test(names_of_members),
        cmocka_unit_test(members_and_pages_come_back),
        cmocka_unit_test(sections_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
