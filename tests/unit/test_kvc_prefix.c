/* test_kvc_prefix.c: prefixes, their keys, and namespaces of files, through the public interface.
 * Not for what keys are (test_prefix_*). */
#include "kvc_support.h"

#include "tests/dense_array.h"

enum { TOKENS = 600, RUNS = TOKENS / KVC_PREFIX_TOKENS, DIM = 8 };

static uint8_t rows[2][TOKENS * 2 * DIM];
static int32_t ids[TOKENS];

/* A cache of one layer in memory. */
static struct kvc_file *made(const char *dtype, struct kvc_error *e) {
    static const char *const facts[] = {"model.name=m", "rope.pairing=halves", NULL};
    struct kvc_memory_array a[2];
    for (unsigned i = 0; i < 2; i++)
        a[i] = dense_array(i ? "V" : "K", 0, dtype, 2, 1, DIM, rows[i]);
    for (int i = 0; i < TOKENS; i++) ids[i] = 7 * i;
    memset(rows, 0x3c, sizeof rows);
    const struct kvc_memory m = {.size = sizeof m,
                                 .array_size = sizeof a[0],
                                 .arrays = a,
                                 .n_arrays = 2,
                                 .tokens = TOKENS,
                                 .token_ids = ids,
                                 .n_token_ids = TOKENS,
                                 .facts = facts};
    struct kvc_file *f = kvc_file_open_arrays(&m, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    return f;
}

/* Packs a selection, and opens it again; `bytes` must outlive the handle. */
static struct kvc_file *packed(const struct kvc_file *f, const struct kvc_select_options *part,
                               struct memory *bytes, struct kvc_error *e) {
    struct kvc_file *view = kvc_file_select(f, part, e);
    if (!view || kvc_file_pack(view, NULL, append, bytes, e)) fail_msg("%s", kvc_error_message(e));
    kvc_file_close(view);
    struct kvc_file *p = kvc_file_open_memory(bytes->data, bytes->n, NULL, e);
    if (!p) fail_msg("%s", kvc_error_message(e));
    return p;
}

static void keys_of_a_prefix(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = made("f16", e);
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    char *text = kvc_namespace_of(f, NULL, &facts, e);
    uint8_t start[KVC_KEY_BYTES], keys[RUNS][KVC_KEY_BYTES], own[RUNS][KVC_KEY_BYTES],
        other[RUNS][KVC_KEY_BYTES];
    const struct kvc_prefix_extra extra = {.position = 300, .tag = 3, .bytes = "own", .size = 3};
    assert_int_equal(kvc_prefix_chain(facts.identity, ids, TOKENS, NULL, 0, start, keys[0],
                                      sizeof keys, e),
                     0);
    assert_int_equal(kvc_file_prefix_chain(f, facts.identity, TOKENS, own[0], sizeof own, e), 0);
    assert_memory_equal(keys, own, sizeof keys);
    assert_int_equal(kvc_file_prefix_chain(f, facts.identity, TOKENS + 1, own[0], sizeof own, e),
                     -1);
    assert_int_equal(kvc_prefix_chain(facts.identity, ids, TOKENS, &extra, 1, NULL, other[0],
                                      sizeof other, e),
                     0);
    assert_memory_equal(keys[0], other[0], KVC_KEY_BYTES); /* the extra is in the second run */
    assert_memory_not_equal(keys[1], other[1], KVC_KEY_BYTES);

    struct kvc_prefix_info x = {.size = sizeof x};
    struct memory bytes = {0};
    const struct kvc_select_options second = {
        .size = sizeof second, .first = 256, .end = 512, .store_name = "n", .store_name_bytes = 1};
    struct kvc_file *all = packed(f, &(struct kvc_select_options){.size = sizeof second}, &bytes,
                                  e);
    struct memory part_bytes = {0};
    struct kvc_file *part = packed(all, &second, &part_bytes, e);
    assert_int_equal(kvc_file_prefix(part, &x), 0);
    assert_int_equal(x.first, 256);
    assert_int_equal(x.end, 512);
    assert_int_equal(x.n_keys, 1);
    assert_memory_equal(x.parent, keys[0], KVC_KEY_BYTES);
    assert_memory_equal(x.keys, keys[1], KVC_KEY_BYTES);
    assert_true(x.can_be_cut && x.is_complete && !x.profile);
    assert_int_equal(x.name_bytes, 1);
    assert_memory_equal(x.name, "n", 1);
    assert_int_equal(kvc_file_check_prefix(part, e), 0);
    kvc_file_close(part);
    kvc_file_close(all);

    const struct kvc_select_options with = {.size = sizeof with, .extras = &extra, .n_extras = 1};
    struct kvc_file *view = kvc_file_select(f, &with, e);
    assert_int_equal(kvc_file_prefix_chain(view, facts.identity, TOKENS, own[0], sizeof own, e), 0);
    assert_memory_equal(own, other, sizeof own);
    kvc_file_close(view);
    kvc_file_close(f);
    free(text);
    free(bytes.data);
    free(part_bytes.data);
    kvc_error_free(e);
}

static void namespaces(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = made("f16", e), *g = made("bf16", e);
    struct kvc_namespace_facts x = {.size = sizeof x}, y = {.size = sizeof y};
    const uint8_t tenant[KVC_KEY_BYTES] = {1};
    const struct kvc_namespace_options own = {.size = sizeof own, .chunk = 512, .tenant = tenant},
                                       lossy = {.size = sizeof lossy, .recipe = "kivi4"},
                                       odd = {.size = sizeof odd, .chunk = 300};
    uint8_t ns[KVC_KEY_BYTES];
    char difference[200];
    size_t at = 0;
    char *a = kvc_namespace_of(f, &own, &x, e), *b = kvc_namespace_of(g, &own, &y, e);
    assert_true(a && b && x.lossless && x.has_tenant);
    assert_int_equal(x.chunk, 512);
    assert_memory_not_equal(x.ns, y.ns, sizeof x.ns);
    assert_int_equal(kvc_namespace_read(a, strlen(a), &y, e), 0);
    assert_memory_equal(x.ns, y.ns, sizeof x.ns);
    assert_string_equal(y.fidelity, "lossless");
    assert_int_equal(kvc_namespace_differ(a, b, &at, difference, sizeof difference), 1);
    assert_string_equal(difference, "layers, heads, channels or dtypes");
    assert_int_equal(kvc_namespace_differ(a, b, &at, difference, sizeof difference), 0);
    struct memory bytes = {0};
    struct kvc_file *p = packed(
        f, &(struct kvc_select_options){.size = sizeof(struct kvc_select_options)}, &bytes, e);
    assert_int_equal(kvc_file_namespace(p, 512, tenant, ns, e), 0);
    assert_memory_equal(ns, x.ns, sizeof ns);
    assert_int_equal(kvc_file_namespace(f, 512, tenant, ns, e), -1);
    a[strlen(a) / 2] = '\n';
    assert_int_equal(kvc_namespace_read(a, strlen(a), &y, e), -1);
    free(a);
    assert_non_null(a = kvc_namespace_of(f, &lossy, &x, e));
    assert_false(x.lossless);
    assert_string_equal(x.fidelity, x.recipe);
    assert_true(kvc_recipe_has_fidelity("kivi4", x.fidelity));
    assert_false(kvc_recipe_has_fidelity("kivi2", x.fidelity));
    assert_null(kvc_namespace_of(f, &odd, &x, e));
    kvc_file_close(p);
    kvc_file_close(f);
    kvc_file_close(g);
    free(a);
    free(b);
    free(bytes.data);
    kvc_error_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_of_a_prefix),
                                       cmocka_unit_test(namespaces)};
    return cmocka_run_group_tests_name("prefixes", tests, NULL, NULL);
}
