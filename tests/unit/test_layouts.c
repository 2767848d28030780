/* test_layouts.c: the table of engines' pools (formats/api/pool_layouts.c), against index
 * arithmetic written out from the shapes that the engines document. Not for what is written to
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "formats/api/kvc.h"

#include <string.h>

/* Small sizes, all different, and where value (l, kv, b, t, h, d) lies in its allocation. */
struct at {
    uint64_t NL, NB, BS, NH, HS;
    uint64_t l, kv, b, t, h, d;
};

/* Row by row of the engines' own shapes; NB pages, NL layers, BS tokens a page, NH heads, HS
 * channels. */
static uint64_t nl_2_slots_nh_hs(const struct at *a) { /* [NL, 2, NB * BS, NH, HS] */
    return (((a->l * 2 + a->kv) * (a->NB * a->BS) + (a->b * a->BS + a->t)) * a->NH + a->h) * a->HS +
           a->d;
}
static uint64_t nb_nh_bs_hs(const struct at *a) { /* [NB, NH, BS, HS] */
    return ((a->b * a->NH + a->h) * a->BS + a->t) * a->HS + a->d;
}
static uint64_t two_nb_bs_nh_hs(const struct at *a) { /* [2, NB, BS, NH, HS] */
    return (((a->kv * a->NB + a->b) * a->BS + a->t) * a->NH + a->h) * a->HS + a->d;
}
static uint64_t two_nb_nh_bs_hs(const struct at *a) { /* [2, NB, NH, BS, HS] */
    return (((a->kv * a->NB + a->b) * a->NH + a->h) * a->BS + a->t) * a->HS + a->d;
}
static uint64_t nb_two_bs_nh_hs(const struct at *a) { /* [NB, 2, BS, NH, HS] */
    return (((a->b * 2 + a->kv) * a->BS + a->t) * a->NH + a->h) * a->HS + a->d;
}
static uint64_t nb_two_nh_bs_hs(const struct at *a) { /* [NB, 2, NH, BS, HS] */
    return (((a->b * 2 + a->kv) * a->NH + a->h) * a->BS + a->t) * a->HS + a->d;
}
static uint64_t nb_bs_nh_cs(const struct at *a) { /* [NB, BS, NH, 2 * HS]: K, then V */
    return ((a->b * a->BS + a->t) * a->NH + a->h) * (2 * a->HS) + a->kv * a->HS + a->d;
}
static uint64_t nb_nh_bs_cs(const struct at *a) { /* [NB, NH, BS, 2 * HS] */
    return ((a->b * a->NH + a->h) * a->BS + a->t) * (2 * a->HS) + a->kv * a->HS + a->d;
}
static uint64_t nb_bs_nh_hs(const struct at *a) { /* [NB, BS, NH, HS] */
    return ((a->b * a->BS + a->t) * a->NH + a->h) * a->HS + a->d;
}
static uint64_t nb_bs_hs(const struct at *a) { /* [NB, BS, HS] */
    return (a->b * a->BS + a->t) * a->HS + a->d;
}
static uint64_t nb_nl_two_bs_nh_hs(const struct at *a) { /* [NB, NL, 2, BS, NH, HS] */
    return ((((a->b * a->NL + a->l) * 2 + a->kv) * a->BS + a->t) * a->NH + a->h) * a->HS + a->d;
}
static uint64_t nb_nl_bs_nh_cs(const struct at *a) { /* [NB, NL, BS, NH, 2 * HS] */
    return (((a->b * a->NL + a->l) * a->BS + a->t) * a->NH + a->h) * (2 * a->HS) + a->kv * a->HS +
           a->d;
}
static uint64_t nb_nl_nh_bs_cs(const struct at *a) { /* [NB, NL, NH, BS, 2 * HS] */
    return (((a->b * a->NL + a->l) * a->NH + a->h) * a->BS + a->t) * (2 * a->HS) + a->kv * a->HS +
           a->d;
}
static uint64_t slots_nh_hs(const struct at *a) { /* [NB * BS, NH, HS] */
    uint64_t slot = a->b * a->BS + a->t;
    return slot * (a->NH * a->HS) + a->h * a->HS + a->d;
}
static uint64_t slots_one_hs(const struct at *a) { /* [NB * BS, 1, HS] */
    return (a->b * a->BS + a->t) * a->HS + a->d;
}
static uint64_t nb_nl_two_nh_bs_hs(const struct at *a) { /* [NB, NL, 2, NH, BS, HS] */
    return ((((a->b * a->NL + a->l) * 2 + a->kv) * a->NH + a->h) * a->BS + a->t) * a->HS + a->d;
}

static uint64_t nb_nh_two_turned(const struct at *a) { /* [NB, NH, 2 * BS, HS], but K as [HS, BS] */
    uint64_t half = (a->b * a->NH + a->h) * 2 + a->kv;
    return half * a->BS * a->HS + (a->kv ? a->t * a->HS + a->d : a->d * a->BS + a->t);
}

static const struct {
    const char *name;
    uint64_t (*offset)(const struct at *a); /* in values */
    unsigned per_layer;                     /* allocations a layer; 0: one for all */
    unsigned latent;
} rows[] = {
    {"dense", nl_2_slots_nh_hs, 0, 0},
    {"transformers", nb_nh_bs_hs, 2, 0},
    {"vllm-flash", two_nb_bs_nh_hs, 1, 0},
    {"vllm-flash-hnd", two_nb_nh_bs_hs, 1, 0},
    {"vllm-flashinfer", nb_two_bs_nh_hs, 1, 0},
    {"vllm-flashinfer-hnd", nb_two_nh_bs_hs, 1, 0},
    {"vllm-unified", nb_bs_nh_cs, 1, 0},
    {"vllm-unified-hnd", nb_nh_bs_cs, 1, 0},
    {"vllm-pairs", nb_bs_nh_hs, 2, 0},
    {"vllm-mla", nb_bs_hs, 1, 1},
    {"vllm-cross-layer", nb_nl_two_bs_nh_hs, 0, 0},
    {"vllm-cross-unified", nb_nl_bs_nh_cs, 0, 0},
    {"vllm-cross-unified-hnd", nb_nl_nh_bs_cs, 0, 0},
    {"vllm-cpu", nb_nh_two_turned, 1, 0},
    {"sglang-mha", slots_nh_hs, 2, 0},
    {"sglang-mla", slots_one_hs, 1, 1},
    {"trtllm", nb_nl_two_nh_bs_hs, 0, 0},
};

/* Every value of a small pool: the strides' address is the shape's. */
static void same_addresses(size_t row, const struct kvc_pool_strides *k,
                           const struct kvc_pool_strides *v, uint64_t NL, uint64_t NB, uint64_t BS,
                           uint64_t NH, uint64_t HS, uint64_t bytes) {
    struct at a = {.NL = NL, .NB = NB, .BS = BS, .NH = NH, .HS = HS};
    for (a.l = 0; a.l < NL; a.l++)
        for (a.kv = 0; a.kv < (rows[row].latent ? 1 : 2); a.kv++) {
            const struct kvc_pool_strides *s = a.kv ? v : k;
            for (a.b = 0; a.b < NB; a.b++)
                for (a.t = 0; a.t < BS; a.t++)
                    for (a.h = 0; a.h < NH; a.h++)
                        for (a.d = 0; a.d < HS; a.d++) {
                            int64_t at = (int64_t)a.b * s->page + (int64_t)a.t * s->token +
                                         (int64_t)a.h * s->head + (int64_t)a.d * s->dim +
                                         (int64_t)a.l * s->layer + (int64_t)a.kv * s->kv;
                            assert_true(at == (int64_t)(rows[row].offset(&a) * bytes));
                        }
        }
}

static void addresses(void **state) {
    (void)state;
    static const uint64_t value_bytes[] = {1, 2, 4};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kvc_pool_layout *layout = kvc_pool_layout_find(rows[i].name);
        assert_non_null(layout);
        assert_true(strlen(layout->what) > 0);
        for (size_t v = 0; v < 3; v++) {
            struct kvc_pool pool = {.layers = 3,
                                    .pages = 4,
                                    .page_size = 5,
                                    .heads = rows[i].latent ? 1 : 2,
                                    .dim = 6,
                                    .value_bytes = value_bytes[v]};
            struct kvc_pool_strides s, of_v;
            memset(&s, 0xa5, sizeof s);
            assert_int_equal(kvc_pool_layout_strides(layout, &pool, &s, &of_v),
                             rows[i].per_layer ? 3 * rows[i].per_layer : 1);
            if (rows[i].per_layer) assert_true(s.layer == 0);
            if (rows[i].per_layer == 2 || rows[i].latent) assert_true(s.kv == 0);
            if (rows[i].latent) assert_true(s.head == 0);
            same_addresses(i, &s, &of_v, 3, 4, 5, pool.heads, 6, pool.value_bytes);
            /* one page, as a cache that is not paged has */
            pool.pages = 1;
            assert_true(kvc_pool_layout_strides(layout, &pool, &s, &of_v) > 0);
            same_addresses(i, &s, &of_v, 3, 1, 5, pool.heads, 6, pool.value_bytes);
        }
    }
}

static void table(void **state) {
    (void)state;
    size_t n = 0;
    for (const struct kvc_pool_layout *layout; (layout = kvc_pool_layout_at(n)); n++)
        assert_ptr_equal(kvc_pool_layout_find(layout->name), layout); /* names are unique */
    assert_int_equal(n, sizeof rows / sizeof rows[0]);
    assert_null(kvc_pool_layout_at(n));
    assert_null(kvc_pool_layout_at(SIZE_MAX));
    static const char *const unknown[] = {"", "vllm", "vllm-flash2", "VLLM-FLASH", " dense"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        assert_null(kvc_pool_layout_find(unknown[i]));
}

static void bad_sizes(void **state) {
    (void)state;
    const struct kvc_pool good = {
        .layers = 2, .pages = 2, .page_size = 16, .heads = 1, .dim = 64, .value_bytes = 2};
    struct kvc_pool_strides s, of_v;
    assert_int_equal(kvc_pool_layout_strides(NULL, &good, &s, &of_v), -1);
    for (size_t i = 0; kvc_pool_layout_at(i); i++) {
        const struct kvc_pool_layout *layout = kvc_pool_layout_at(i);
        assert_true(kvc_pool_layout_strides(layout, &good, &s, &of_v) > 0);
        for (size_t field = 0; field < 5; field++) {
            struct kvc_pool p = good;
            uint64_t *const fields[] = {&p.layers, &p.pages, &p.page_size, &p.heads, &p.dim};
            *fields[field] = 0;
            assert_int_equal(kvc_pool_layout_strides(layout, &p, &s, &of_v), -1);
        }
        static const uint64_t value_bytes[] = {0, 3, 8, UINT64_MAX};
        for (size_t v = 0; v < 4; v++) {
            struct kvc_pool p = good;
            p.value_bytes = value_bytes[v];
            assert_int_equal(kvc_pool_layout_strides(layout, &p, &s, &of_v), -1);
        }
    }
    struct kvc_pool heads = good;
    heads.heads = 2;
    assert_int_equal(kvc_pool_layout_strides(kvc_pool_layout_find("vllm-mla"), &heads, &s, &of_v),
                     -1);
    assert_int_equal(kvc_pool_layout_strides(kvc_pool_layout_find("sglang-mla"), &heads, &s, &of_v),
                     -1);
}

static void overflow(void **state) {
    (void)state;
    struct kvc_pool_strides s, of_v;
    for (size_t i = 0; kvc_pool_layout_at(i); i++) {
        const struct kvc_pool_layout *layout = kvc_pool_layout_at(i);
        /* 4 KiB a token, 2^51 tokens: 2^63 bytes of K alone */
        struct kvc_pool p = {.layers = 1,
                             .pages = UINT64_C(1) << 31,
                             .page_size = UINT64_C(1) << 20,
                             .heads = 1,
                             .dim = 2048,
                             .value_bytes = 2};
        assert_int_equal(kvc_pool_layout_strides(layout, &p, &s, &of_v), -1);
        p.pages >>= 2; /* 2^61, or twice that */
        assert_true(kvc_pool_layout_strides(layout, &p, &s, &of_v) > 0);
        for (size_t field = 0; field < 4; field++) {
            struct kvc_pool wild = {
                .layers = 1, .pages = 1, .page_size = 1, .heads = 1, .dim = 1, .value_bytes = 2};
            uint64_t *const fields[] = {&wild.pages, &wild.page_size, &wild.dim, &wild.layers};
            *fields[field] = UINT64_MAX;
            assert_int_equal(kvc_pool_layout_strides(layout, &wild, &s, &of_v), -1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(addresses),
        cmocka_unit_test(bad_sizes),
        cmocka_unit_test(overflow),
    };
    return cmocka_run_group_tests_name("layouts", tests, NULL, NULL);
}
