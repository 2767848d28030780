/* test_store_scales.c: namespaces of K and V of 8 bits: only caches of the same scales share rows,
 * and unknown scales are shared only where somebody answers for them. Not for values
 * (test_scales.c). */
#include "store_support.h"

/* A cache of f8e4m3 in place of f16, with further facts. */
static struct made *make_8_bits(int32_t seed, const char *const *facts) {
    struct made *x = make(2 * CHUNK, seed, NULL);
    kvc_file_close(x->f);
    for (unsigned i = 0; i < ARRAYS; i++) {
        x->a[i].dtype = "f8e4m3";
        x->a[i].heads = 2;
        x->a[i].dim = ROW / 2;
        x->a[i].head = ROW / 2;
        x->a[i].channel = 1;
    }
    open_made(x, facts);
    return x;
}

#define USUAL "model.name=m", "model.architecture=llama", "rope.pairing=halves"
/* Each row is a namespace of its own; facts of a row are the same in other words. */
static const char *const namespaces[][3][6] = {
    {{USUAL, "scale.k=0.5", "scale.v=0.25"},
     {USUAL, "scale.k=5e-1,0.5:0.5", "scale.v=0.25,0.25,7"},
     {USUAL, "scale.k=0.5", "scale.v=.25"}},
    {{USUAL, "scale.k=0.5", "scale.v=0.5"},
     {USUAL, "scale.k=0.5:0.5", "scale.v=0.5"},
     {USUAL, "scale.k=0.5", "scale.v=0.50"}},
    {{USUAL, "scale.k=0.5,1", "scale.v=0.25"},
     {USUAL, "scale.k=0.5,1,2", "scale.v=0.25"},
     {USUAL, "scale.k=0.5:0.5,1", "scale.v=0.25"}},
    {{USUAL, "scale.k=0.5:0.25", "scale.v=0.25"},
     {USUAL, "scale.k=0.5:0.25,0.5:0.25", "scale.v=0.25"},
     {USUAL, "scale.k=0.5:2.5e-1", "scale.v=0.25"}},
    {{USUAL, "scale.k=1", "scale.v=1"},
     {USUAL, "scale.k=1,1", "scale.v=1"},
     {USUAL, "scale.k=1.0", "scale.v=1:1"}},
    {{USUAL, "scale.source=a"},
     {USUAL, "scale.source=a", "scale.k=0.5"},
     {USUAL, "scale.source=a", "scale.v=1,"}},
    {{USUAL, "scale.source=b"}, {USUAL, "scale.source=b", "scale.k=1"}, {USUAL, "scale.source=b"}},
};
enum { SPACES = sizeof namespaces / sizeof namespaces[0] };

static void only_equal_scales_share(void **state) {
    (void)state;
    struct kvc_store *s = open_store("shared", "");
    for (int i = 0; i < SPACES; i++) {
        struct made *x = make_8_bits(7, namespaces[i][0]);
        struct kvc_store_namespace *ns = open_namespace(s, x);
        assert_non_null(strstr(kvc_store_namespace_facts(ns), "\n20 scales "));
        assert_int_equal(count_found(ns, x), 0); /* what others put has other scales */
        put(ns, x);
        for (int j = 0; j < 3; j++) {
            struct made *y = make_8_bits(7, namespaces[i][j]);
            struct kvc_store_namespace *same = open_namespace(s, y);
            assert_string_equal(kvc_store_namespace_name(same), kvc_store_namespace_name(ns));
            assert_int_equal(count_found(same, y), 2 * CHUNK);
            kvc_store_namespace_close(same);
            unmake(y);
        }
        kvc_store_namespace_close(ns);
        unmake(x);
    }
    kvc_store_close(s);
}

/* What comes out of the store has the scales that went in. */
static void scales_stay_with_the_rows(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_store *s = open_store("kept", "");
    struct made *x = make_8_bits(9, namespaces[2][0]);
    struct kvc_store_namespace *ns = open_namespace(s, x);
    put(ns, x);
    struct kvc_store_hit *hit = find_n(ns, x->ids, x->m.tokens);
    struct kvc_file *f = kvc_store_get(hit, NULL, &e);
    if (!f) fail_msg("%s", e.message);
    char text[32];
    assert_string_equal(kvc_file_meta(f, "scale.k", text, sizeof text), "0.5,1");
    assert_string_equal(kvc_file_meta(f, "scale.v", text, sizeof text), "0.25");
    kvc_file_close(f);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    unmake(x);
    kvc_store_close(s);
}

static void unknown_scales_of_nobody_have_no_namespace(void **state) {
    (void)state;
    static const char *const of_nobody[][5] = {{USUAL}, {USUAL, "scale.k=1"}, {USUAL, "scale.v=1"}};
    struct kvc_store *s = open_store("nobody", "");
    for (int i = 0; i < 3; i++) {
        struct made *x = make_8_bits(7, of_nobody[i]);
        const struct kvc_store_namespace_options o = {.size = sizeof o, .chunk = CHUNK};
        struct kvc_error e;
        assert_null(kvc_store_namespace_like(s, x->f, &o, &e));
        assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
        assert_int_equal(e.need, KVC_NEED_SCALES);
        assert_non_null(strstr(e.message, "scale.source"));
        unmake(x);
    }
    kvc_store_close(s);
}

/* Caches of other types have the namespace that they always had, whatever these keys say. */
static void other_types_have_no_scales(void **state) {
    (void)state;
    static const char *const facts[][6] = {{USUAL}, {USUAL, "scale.k=0.5", "scale.source=a"}};
    struct kvc_store *s = open_store("f16", "");
    for (int i = 0; i < 2; i++) {
        struct made *x = make(2 * CHUNK, 7, facts[i]);
        struct kvc_store_namespace *ns = open_namespace(s, x);
        assert_null(strstr(kvc_store_namespace_facts(ns), "scale"));
        assert_string_equal(kvc_store_namespace_name(ns),
                            "a234e540b77bc8ad78c7f2e2e345428576a5767ac02934a34a590712829101a8");
        kvc_store_namespace_close(ns);
        unmake(x);
    }
    kvc_store_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_equal_scales_share),
        cmocka_unit_test(scales_stay_with_the_rows),
        cmocka_unit_test(unknown_scales_of_nobody_have_no_namespace),
        cmocka_unit_test(other_types_have_no_scales),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
