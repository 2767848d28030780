/* test_store_drop.c: removing one prompt: what others share, images, a caller who cancels, tiers
 * that have other parts of it. */
#include "store_support.h"

#include "formats/api/kvc_file.h"

/* A cache of n chunks, of which the first `common` are those of every cache, whatever the seed. */
static struct made *prompt(uint64_t n, uint64_t common, int32_t seed) {
    struct made *x = make(n * CHUNK, 5, NULL);
    kvc_file_close(x->f);
    for (uint64_t t = common * CHUNK; t < MOST; t++) x->ids[t] = seed + (int32_t)(t % 1000);
    open_made(x, NULL);
    return x;
}

static struct kvc_store_dropped drop_from(struct kvc_store_namespace *ns, const struct made *x,
                                          uint64_t n, const struct kvc_store_drop_options *o) {
    struct kvc_store_dropped d = {.size = sizeof d};
    struct kvc_error e;
    if (kvc_store_drop_tokens(ns, x->ids, n, o, &d, &e)) fail_msg("%s", e.message);
    return d;
}

static void check_drop(struct kvc_store_namespace *ns, const struct made *x, uint64_t removed,
                       uint64_t kept) {
    const struct kvc_store_dropped d = drop_from(ns, x, x->m.tokens, NULL);
    assert_int_equal(d.removed, removed);
    assert_int_equal(d.kept, kept);
    assert_int_equal(d.bytes != 0, removed != 0);
    assert_int_equal(count_found(ns, x), kept * CHUNK);
}

static void shared_beginnings(void **state) {
    (void)state;
    struct made *a = prompt(5, 2, 1000), *b = prompt(4, 2, 3000), *c = prompt(3, 0, 5000),
                *d = prompt(7, 5, 0);
    memcpy(d->ids, a->ids, 5 * CHUNK * sizeof *d->ids);
    struct kvc_store *s = open_store("shared", "");
    struct kvc_store_namespace *ns = open_namespace(s, a);
    kvc_file_close(d->f);
    open_made(d, NULL);
    put(ns, a);
    put(ns, b);
    put(ns, c);
    check_drop(ns, a, 3, 2);
    check_drop(ns, a, 0, 2);
    assert_int_equal(read_back(ns, b), 4 * CHUNK);
    assert_int_equal(read_back(ns, c), 3 * CHUNK);
    put(ns, d); /* begins with all of a */
    check_drop(ns, a, 0, 5);
    assert_int_equal(read_back(ns, d), 7 * CHUNK);
    check_drop(ns, d, 5, 2);
    check_drop(ns, b, 4, 0);
    assert_int_equal(drop_from(ns, c, CHUNK - 1, NULL).removed, 0); /* less than a chunk */
    assert_int_equal(drop_from(ns, c, 2 * CHUNK, NULL).kept, 2);
    check_drop(ns, c, 3, 0);
    assert_int_equal(kvc_store_drop(ns, NULL), 1); /* the facts alone are left */
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(a);
    unmake(b);
    unmake(c);
    unmake(d);
}

static int cancel(void *state, uint64_t done, uint64_t total) {
    int *calls = state;
    assert_true(done <= total && total);
    return ++*calls == 2;
}

/* Nothing is removed before everything is known. */
static void cancelled(void **state) {
    (void)state;
    struct made *a = prompt(4, 1, 1000), *b = prompt(4, 1, 3000);
    struct kvc_store *s = open_store("cancelled", "");
    struct kvc_store_namespace *ns = open_namespace(s, a);
    struct kvc_error e;
    int calls = 0;
    const struct kvc_store_drop_options o = {.size = sizeof o,
                                             .progress = cancel,
                                             .progress_state = &calls};
    put(ns, a);
    put(ns, b);
    assert_int_equal(kvc_store_drop_tokens(ns, a->ids, 4 * CHUNK, &o, NULL, &e), -1);
    assert_non_null(strstr(e.message, "cancelled"));
    assert_int_equal(calls, 2);
    assert_int_equal(count_found(ns, a), 4 * CHUNK);
    struct kvc_store_drop_options wrong = {.size = 3};
    assert_int_equal(kvc_store_drop_tokens(ns, a->ids, 4 * CHUNK, &wrong, NULL, &e), -1);
    check_drop(ns, a, 3, 1);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(a);
    unmake(b);
}

/* Equal tokens with other images are other prompts. */
static void images(void **state) {
    (void)state;
    struct made *a = prompt(3, 3, 0);
    struct kvc_store *s = open_store("images", "");
    struct kvc_store_namespace *ns = open_namespace(s, a);
    const struct kvc_prefix_extra cat = {.position = CHUNK + 3,
                                         .tag = 1,
                                         .bytes = "0123456789abcdef",
                                         .size = 16};
    const struct kvc_store_put_options with = {.size = sizeof with,
                                               .wait = 1,
                                               .extras = &cat,
                                               .n_extras = 1};
    const struct kvc_store_find_options find = {.size = sizeof find, .extras = &cat, .n_extras = 1};
    const struct kvc_store_drop_options drop = {.size = sizeof drop, .extras = &cat, .n_extras = 1};
    struct kvc_error e = {.code = KVC_OK};
    put(ns, a);
    assert_int_equal(kvc_store_put(ns, a->f, &with, &e), 0);
    const struct kvc_store_dropped d = drop_from(ns, a, 3 * CHUNK, &drop);
    assert_int_equal(d.removed, 2);
    assert_int_equal(d.kept, 1);
    struct kvc_store_hit *hit = kvc_store_find(ns, a->ids, 3 * CHUNK, &find, &e);
    assert_int_equal(found_of(hit), CHUNK);
    kvc_store_hit_free(hit);
    assert_int_equal(read_back(ns, a), 3 * CHUNK);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(a);
}

static int refuse_all(struct kvc_tier *l, const struct kvc_object *o, size_t n,
                      kvc_instant deadline, kvc_tier_take *take, void *call, struct kvc_error *e) {
    struct kvc_error why;
    (void)l, (void)o, (void)n, (void)deadline, (void)e;
    kvc_fail(&why, KVC_ERR_IO, "too many open files");
    take(call, 0, NULL, 0, &why);
    return 0;
}

/* A cache that cannot be cut is read before it is removed: who cannot is told, and may call again.
 */
static void unread(void **state) {
    (void)state;
    struct made *x = make(CHUNK, 3, NULL);
    const struct kvc_store_put_options o = {.size = sizeof o, .wait = 1};
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_store *s = open_store("unread", "");
    for (uint32_t p = 0; p < x->f->cache->n_parts; p++) x->f->cache->part[p].kind = KVC_PART_WINDOW;
    struct kvc_store_namespace *ns = open_namespace(s, x);
    if (kvc_store_put(ns, x->f, &o, &e)) fail_msg("%s", e.message);
    struct kvc_tier *directory = s->tier[0].tier;
    const struct kvc_tier_ops *own = directory->ops;
    struct kvc_tier_ops ops = *own;
    ops.get = refuse_all;
    directory->ops = &ops;
    assert_int_equal(kvc_store_drop_tokens(ns, x->ids, CHUNK, NULL, NULL, &e), -1);
    assert_non_null(strstr(e.message, "too many open files"));
    directory->ops = own;
    assert_int_equal(drop_from(ns, x, CHUNK, NULL).removed, 1);
    assert_int_equal(drop_from(ns, x, CHUNK, NULL).removed, 0);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* Tiers that have different parts: what goes on in one keeps chunks in all, and each chunk counts
 * once. */
static void tiers(void **state) {
    (void)state;
    struct made *a = prompt(4, 2, 1000), *b = prompt(3, 2, 3000);
    char one[300], two[300], both[620];
    tier_url(one, sizeof one, "one", "");
    tier_url(two, sizeof two, "two", "");
    snprintf(both, sizeof both, "%s,%s", one, two);
    struct kvc_store *s = open_store("one", ""), *t = open_store("two", "");
    struct kvc_store_namespace *first = open_namespace(s, a), *second = open_namespace(t, a);
    put(first, a);
    put(second, a);
    put(second, b);
    struct kvc_store *chain = open_store_with(both, &patient);
    struct kvc_store_namespace *ns = open_namespace(chain, a);
    struct kvc_store_dropped d = drop_from(ns, a, a->m.tokens, NULL);
    assert_int_equal(d.removed, 2);
    assert_int_equal(d.kept, 2);
    assert_int_equal(count_found(first, a), 2 * CHUNK);
    assert_int_equal(count_found(second, a), 2 * CHUNK);
    d = drop_from(ns, b, b->m.tokens, NULL);
    assert_int_equal(d.removed, 3);
    assert_int_equal(d.kept, 0);
    assert_int_equal(count_found(first, b) + count_found(second, b), 0);
    kvc_store_namespace_close(ns);
    kvc_store_namespace_close(first);
    kvc_store_namespace_close(second);
    kvc_store_close(chain);
    kvc_store_close(s);
    kvc_store_close(t);
    unmake(a);
    unmake(b);
}

/* A program goes on after another one dropped its namespace: what it puts then is found by all. */
static void dropped_by_another(void **state) {
    (void)state;
    struct made *a = prompt(2, 0, 1000), *b = prompt(3, 0, 3000);
    struct kvc_store *s = open_store("another", ""), *t = open_store("another", "");
    struct kvc_store_namespace *ns = open_namespace(s, a), *other;
    struct kvc_error e;
    put(ns, a);
    assert_non_null(other = kvc_store_namespace_named(t, kvc_store_namespace_name(ns), NULL, &e));
    assert_int_equal(kvc_store_drop(other, &e), 3);
    kvc_store_namespace_close(other);
    assert_null(kvc_store_namespace_named(t, kvc_store_namespace_name(ns), NULL, &e));
    sleep(3); /* it looks now and then only */
    put(ns, b);
    other = kvc_store_namespace_named(t, kvc_store_namespace_name(ns), NULL, &e);
    if (!other) fail_msg("%s", e.message);
    assert_int_equal(read_back(other, b), 3 * CHUNK);
    assert_int_equal(kvc_store_drop(other, &e), 4);
    kvc_store_namespace_close(other);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    kvc_store_close(t);
    unmake(a);
    unmake(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_beginnings),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(images),
        cmocka_unit_test(tiers),
        cmocka_unit_test(unread),
        cmocka_unit_test(dropped_by_another),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
