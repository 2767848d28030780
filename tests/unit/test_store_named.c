/* test_store_named.c: caches under names that a program chose: finding, putting, reading, damage,
 * forgeries, several tiers. */
#include "store_support.h"

#include "formats/store/dir/dir.h"

#include <sys/stat.h>

#define OF(text) ((const struct kvc_store_name){text, sizeof text - 1})
#define N 37 /* tokens of a named cache: no multiple of anything */

/* A cache without token ids that begins at a position of its own. */
static struct made *make_nameless(int32_t seed, int64_t first) {
    struct made *x = make(N, seed, NULL);
    kvc_file_close(x->f);
    x->m.token_ids = NULL;
    x->m.n_token_ids = 0;
    x->m.first_position = first;
    open_made(x, NULL);
    return x;
}

static int put_as(struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                  const struct made *x) {
    struct kvc_error e = {.code = KVC_OK};
    const int status = kvc_store_put_name(ns, name, x->f, NULL, &e);
    if (status < 0) fail_msg("%s", e.message);
    return status;
}

static int is_found(struct kvc_store_namespace *ns, const struct kvc_store_name *name) {
    uint8_t there;
    assert_true(kvc_store_find_names(ns, name, 1, &there, NULL, NULL) >= 0);
    return there;
}

/* Loads a name: 1 if the rows of x came, 0 if nothing did. */
static int loads(struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                 const struct made *x) {
    struct made *y = calloc(1, sizeof *y);
    struct kvc_error e;
    assert_non_null(y);
    describe(y, N);
    const int status = kvc_store_load_name(ns, name, &y->m, NULL, &e);
    if (status < 0) fail_msg("%s", e.message);
    for (unsigned i = 0; i < ARRAYS && status; i++)
        assert_memory_equal(y->rows[i], x->rows[i], N * ROW);
    free(y);
    return status;
}

static void object_path(const struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                        const char *tier, char *path, size_t size) {
    struct kvc_object o;
    char text[KVC_OBJECT_NAME];
    assert_int_equal(kvc_named_object(ns, name, &o, NULL), 0);
    kvc_object_name(&o, text);
    snprintf(path, size, "%s/%s/obj/%.2s/%.2s/%s", folder, tier, text + 17, text + 19, text);
}

static void round_trip(void **state) {
    (void)state;
    struct made *x = make_nameless(3, 0), *y = make_nameless(4, 4096);
    struct kvc_store *s = open_store("rt", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    const struct kvc_store_name names[] = {OF("none"), OF("a"), OF("b\0c"), OF("b"), OF("a")};
    uint8_t there[5];
    struct kvc_error e;
    assert_int_equal(put_as(ns, &names[1], x), 0);
    assert_int_equal(put_as(ns, &names[2], y), 0);
    assert_int_equal(kvc_store_find_names(ns, names, 5, there, NULL, &e), 3);
    assert_memory_equal(there, ((uint8_t[]){0, 1, 1, 0, 1}), 5);
    assert_int_equal(loads(ns, &names[1], x), 1);
    assert_int_equal(loads(ns, &names[2], y), 1); /* whatever its position */
    assert_int_equal(loads(ns, &names[3], x), 0);
    struct kvc_file *f = kvc_store_get_name(ns, &names[2], NULL, &e);
    assert_non_null(f);
    assert_int_equal(kvc_file_position(f, 0, 0), 4096);
    kvc_file_close(f);
    assert_null(kvc_store_get_name(ns, &names[0], NULL, &e));
    assert_int_equal(e.code, KVC_OK);
    /* what is there is not written again */
    assert_int_equal(counted(s, KVC_COUNT_PUT), 2);
    assert_int_equal(put_as(ns, &names[1], y), 0);
    assert_int_equal(counted(s, KVC_COUNT_PUT), 2);
    assert_int_equal(counted(s, KVC_COUNT_SHARED), 1);
    assert_int_equal(loads(ns, &names[1], x), 1);
    assert_int_equal(kvc_store_drop_names(ns, names, 2, &e), 0);
    assert_int_equal(kvc_store_find_names(ns, names, 5, there, NULL, &e), 1);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
    unmake(y);
}

static void refused(void **state) {
    (void)state;
    struct made *x = make_nameless(3, 0), *z;
    struct kvc_store *s = open_store("no", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    char text[KVC_STORE_MAX_NAME + 1] = "";
    const struct kvc_store_name empty = {"", 0}, longest = {text, KVC_STORE_MAX_NAME},
                                longer = {text, sizeof text}, a = OF("a");
    struct kvc_error e;
    uint8_t there;
    assert_int_equal(kvc_store_put_name(ns, &empty, x->f, NULL, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    assert_int_equal(kvc_store_put_name(ns, &longer, x->f, NULL, &e), -1);
    assert_int_equal(kvc_store_find_names(ns, &longer, 1, &there, NULL, &e), -1);
    assert_int_equal(put_as(ns, &longest, x), 0);
    assert_int_equal(loads(ns, &longest, x), 1);
    /* a cache of another model is not put, and arrays of other shapes are not filled */
    static const char *const facts[] = {"model.name=n", "model.architecture=llama",
                                        "rope.pairing=halves", NULL};
    z = make(N, 3, facts);
    assert_int_equal(kvc_store_put_name(ns, &a, z->f, NULL, &e), -1);
    assert_int_equal(is_found(ns, &a), 0);
    for (unsigned more = 0; more < 3; more += 2) {
        describe(z, N - 1 + more);
        assert_int_equal(kvc_store_load_name(ns, &longest, &z->m, NULL, &e), -1);
        assert_int_equal(e.code, KVC_ERR_USAGE);
    }
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
    unmake(z);
}

/* Flips a byte: nothing comes, it is counted once and put aside, and a put heals it. */
static void damaged(void **state) {
    (void)state;
    char path[400];
    size_t n = 1;
    struct made *x = make_nameless(3, 0);
    const struct kvc_store_name a = OF("a");
    for (size_t at = 0; at < n; at += 61) {
        struct kvc_store *s = open_store("bad", "");
        struct kvc_store_namespace *ns = open_namespace(s, x);
        assert_int_equal(put_as(ns, &a, x), 0);
        object_path(ns, &a, "bad", path, sizeof path);
        uint8_t *data = read_file(path, &n);
        data[at] ^= 0x20;
        write_file(path, data, n);
        free(data);
        assert_int_equal(loads(ns, &a, x), 0);
        assert_int_equal(is_found(ns, &a), 0); /* not again, so that no engine loops */
        assert_int_equal(loads(ns, &a, x), 0);
        assert_int_equal(counted(s, KVC_COUNT_BAD), 1);
        wait_for_all(s);
        assert_int_equal(put_as(ns, &a, x), 0);
        assert_int_equal(is_found(ns, &a), 1);
        assert_int_equal(loads(ns, &a, x), 1);
        kvc_store_namespace_close(ns);
        kvc_store_close(s);
    }
    unmake(x);
}

/* An object under another name, and one of another namespace, are not delivered. */
static void forged(void **state) {
    (void)state;
    static const char *const facts[] = {"model.name=n", "model.architecture=llama",
                                        "rope.pairing=halves", NULL};
    struct made *x = make_nameless(3, 0), *z = make(N, 3, facts);
    struct kvc_store *s = open_store("forged", "&index=no");
    struct kvc_store_namespace *ns = open_namespace(s, x), *other = open_namespace(s, z);
    const struct kvc_store_name a = OF("a"), b = OF("b"), c = OF("c");
    char from[400], to[400];
    size_t n;
    assert_int_equal(put_as(ns, &a, x), 0);
    assert_int_equal(put_as(ns, &b, x), 0);
    assert_int_equal(put_as(ns, &c, x), 0);
    assert_int_equal(put_as(other, &c, z), 0);
    object_path(ns, &a, "forged", from, sizeof from);
    object_path(ns, &b, "forged", to, sizeof to);
    uint8_t *data = read_file(from, &n);
    write_file(to, data, n);
    free(data);
    assert_int_equal(loads(ns, &b, x), 0);
    object_path(other, &c, "forged", from, sizeof from);
    object_path(ns, &c, "forged", to, sizeof to);
    data = read_file(from, &n);
    write_file(to, data, n);
    free(data);
    assert_int_equal(loads(ns, &c, x), 0);
    assert_int_equal(counted(s, KVC_COUNT_BAD), 2);
    assert_int_equal(loads(ns, &a, x), 1);
    kvc_store_namespace_close(ns);
    kvc_store_namespace_close(other);
    kvc_store_close(s);
    unmake(x);
    unmake(z);
}

/* Two tiers: what the first lacks comes from the second; one that takes nothing does not matter;
 * none at all is 1. */
static void tiers(void **state) {
    (void)state;
    char url[700], one[300], two[300], path[400];
    struct made *x = make_nameless(3, 0);
    const struct kvc_store_name a = OF("a"), b = OF("b");
    tier_url(one, sizeof one, "l1", "");
    tier_url(two, sizeof two, "l2", "");
    snprintf(url, sizeof url, "%s,%s", one, two);
    struct kvc_store *s = open_store_with(url, &patient);
    struct kvc_store_namespace *ns = open_namespace(s, x);
    assert_int_equal(put_as(ns, &a, x), 0);
    assert_int_equal(counted(s, KVC_COUNT_PUT), 2);
    object_path(ns, &a, "l1", path, sizeof path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(loads(ns, &a, x), 1);
    wait_for_all(s);
    assert_int_equal(access(path, F_OK), 0); /* it is back */
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    s = open_store_with(tier_url(url, sizeof url, "tiny", "&max-size=64"), &patient);
    ns = open_namespace(s, x);
    struct kvc_error e;
    assert_int_equal(kvc_store_put_name(ns, &b, x->f, NULL, &e), 1);
    assert_true(counted(s, KVC_COUNT_REFUSED) + counted(s, KVC_COUNT_FAILED) == 1);
    assert_int_equal(is_found(ns, &b), 0);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* The bytes of an object are those of its file, also where it was there already; 0 where no tier
 * keeps it. */
static void stored_bytes(void **state) {
    (void)state;
    char url[300], key[200], path[400];
    struct made *x = make_nameless(3, 0);
    const struct kvc_store_name a = OF("a"), b = OF("b");
    struct stat st;
    uint64_t bytes = 7;
    struct kvc_error e;
    const struct kvc_store_put_options o = {.size = sizeof o, .stored_bytes = &bytes};
    struct kvc_store_options with_key = patient;
    snprintf(key, sizeof key, "%s/own-key", folder);
    write_file(key, "0123456789abcdef", 16);
    with_key.key_file = key;
    struct kvc_store *s = open_store_with(tier_url(url, sizeof url, "bytes", ""), &with_key);
    struct kvc_store_namespace *ns = open_namespace(s, x);
    for (int again = 0; again < 2; again++, bytes = 7) {
        assert_int_equal(kvc_store_put_name(ns, &a, x->f, &o, &e), 0);
        object_path(ns, &a, "bytes", path, sizeof path);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(bytes, st.st_size); /* with its signature */
        assert_int_equal(counted(s, KVC_COUNT_SHARED), again);
    }
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    s = open_store_with(tier_url(url, sizeof url, "small", "&max-size=64"), &patient);
    ns = open_namespace(s, x);
    assert_int_equal(kvc_store_put_name(ns, &b, x->f, &o, &e), 1);
    assert_int_equal(bytes, 0);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* With a key file, objects of others are not taken. */
static void signed_ones(void **state) {
    (void)state;
    char url[300], key[200];
    struct made *x = make_nameless(3, 0);
    const struct kvc_store_name a = OF("a"), b = OF("b");
    snprintf(key, sizeof key, "%s/key", folder);
    write_file(key, "0123456789abcdef", 16);
    struct kvc_store_options o = patient;
    tier_url(url, sizeof url, "signed", "");
    struct kvc_store *plain = open_store_with(url, &patient);
    struct kvc_store_namespace *ns = open_namespace(plain, x);
    assert_int_equal(put_as(ns, &a, x), 0);
    o.key_file = key;
    struct kvc_store *s = open_store_with(url, &o);
    struct kvc_store_namespace *own = open_namespace(s, x);
    assert_int_equal(loads(own, &a, x), 0);
    assert_int_equal(put_as(own, &b, x), 0);
    assert_int_equal(loads(own, &b, x), 1);
    assert_int_equal(loads(ns, &b, x), 1); /* who has no key strips the signature */
    kvc_store_namespace_close(own);
    kvc_store_close(s);
    kvc_store_namespace_close(ns);
    kvc_store_close(plain);
    unmake(x);
}

/* What lived its life, or was evicted and then dropped, is not read either. */
static void gone(void **state) {
    (void)state;
    struct kvc_store *s = open_store("gone", "");
    struct made *x = make_nameless(5, 0);
    struct kvc_store_namespace *ns = open_namespace(s, x);
    const struct kvc_store_name name = OF("short"), other = OF("evicted");
    const struct kvc_store_put_options brief = {.size = sizeof brief, .seconds = 1};
    const struct kvc_store_clean_options all = {.size = sizeof all, .evict = 1};
    struct kvc_store_cleaned cleaned = {.size = sizeof cleaned};
    struct kvc_error e;
    assert_int_equal(kvc_store_put_name(ns, &name, x->f, &brief, &e), 0);
    assert_int_equal(put_as(ns, &other, x), 0);
    assert_true(loads(ns, &name, x) && loads(ns, &other, x));
    sleep(2);
    assert_false(loads(ns, &name, x));
    assert_int_equal(kvc_store_clean(s, 0, &all, &cleaned, &e), 0);
    assert_int_equal(kvc_store_drop_names(ns, &other, 1, &e), 0);
    assert_false(loads(ns, &other, x));
    /* it is put again, to live for good */
    assert_int_equal(put_as(ns, &name, x), 0);
    assert_true(loads(ns, &name, x));
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),   cmocka_unit_test(refused), cmocka_unit_test(damaged),
        cmocka_unit_test(forged),       cmocka_unit_test(tiers),   cmocka_unit_test(signed_ones),
        cmocka_unit_test(stored_bytes), cmocka_unit_test(gone)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
