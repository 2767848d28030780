/* test_view.c: the cache model (order, blocks) and what is derived from it: selections, RoPE
 * pairing, floats. */
#include "formats/cache/mapped.h"
#include "formats/cache/keys.h"
#include "formats/cache/view.h"
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint8_t storage[1 << 20];

/* One layer of f16: K and V of `heads` heads of 8; cell i's K holds the half of 2048 + i in every
 * channel plus channel. */
static struct kvc_cache *cache_of(uint64_t cells, uint64_t heads, const int64_t *pos) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    uint32_t part = kvc_cache_add_part(c, KVC_PART_LIVE, cells, &e);
    if (pos) memcpy(c->part[part].cells.pos, pos, cells * sizeof *pos);
    uint32_t layer = kvc_cache_add_layer(c, part, 0, KVC_LAYER_FULL, &e);
    assert_int_equal(kvc_cache_map(c, NULL, NULL, &e), 0);
    for (enum kvc_role role = KVC_ROLE_K; role <= KVC_ROLE_V; role++) {
        struct kvc_shape shape = {KVC_F16, cells, heads, 8};
        uint32_t t = kvc_cache_add_tensor(c, layer, role, &shape, &e);
        uint8_t *base = storage + (role == KVC_ROLE_V ? sizeof storage / 2 : 0);
        for (uint64_t i = 0; i < cells * heads * 8; i++) {
            base[2 * i] = (uint8_t)(i % 8 + 16 * (i / 8 % heads));
            base[2 * i + 1] = (uint8_t)(i / (8 * heads));
        }
        assert_int_equal(kvc_cache_map_memory(c, t, base, &e), 0);
    }
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    return c;
}

static void rows_come_sorted(void **state) {
    (void)state;
    const int64_t pos[6] = {5, 3, 5, -1, 300, 3};
    struct kvc_cache *c = cache_of(6, 1, pos);
    const uint32_t order[6] = {3, 1, 5, 0, 2, 4}; /* equal positions by cell number */
    uint8_t rows[6 * 16];
    struct kvc_error e;
    assert_int_equal(c->read(c, 0, 0, 6, rows, &e), 0);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(kvc_cell_at(&c->part[0].cells, (uint64_t)i), order[i]);
        assert_int_equal(rows[16 * i + 1], order[i]);
    }
    /* windows: [-256, -1], [0, 255], [256, 511] */
    assert_int_equal(c->part[0].cells.n_blocks, 3);
    assert_int_equal(c->part[0].cells.block[1], 1);
    assert_int_equal(c->part[0].cells.block[2], 5);
    kvc_cache_free(c);
}

static void blocks_are_bounded(void **state) {
    (void)state;
    static int64_t pos[1000];
    for (int i = 0; i < 1000; i++) pos[i] = 7; /* a thousand sequences at one position */
    struct kvc_cache *c = cache_of(1000, 1, pos);
    const struct kvc_cells *x = &c->part[0].cells;
    assert_int_equal(x->n_blocks, 4);
    for (uint64_t b = 0; b < x->n_blocks; b++)
        assert_true(x->block[b + 1] - x->block[b] <= KVC_BLOCK);
    for (uint64_t r = 0; r < 1000; r++) {
        uint64_t b = kvc_cells_block_of(x, r);
        assert_true(x->block[b] <= r && r < x->block[b + 1]);
    }
    kvc_cache_free(c);
}

static void selection(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_cache *c = cache_of(20, 2, NULL);
    int32_t tokens[20];
    for (int i = 0; i < 20; i++) tokens[i] = 100 + i;
    assert_int_equal(kvc_cache_set_tokens(c, tokens, 20, &e), 0);
    struct kvc_selection s = {.first = 5, .end = 9};
    struct kvc_cache *v = kvc_view_select(c, &s, &e);
    assert_non_null(v);
    assert_int_equal(v->part[0].cells.n, 4);
    assert_int_equal(v->part[0].cells.pos[0], 5);
    assert_int_equal(v->n_tokens, 4);
    assert_int_equal(v->tokens[0], 105);
    assert_int_equal(kvc_meta_u64(&v->meta, KVC_KEY_TOKENS_FIRST, 0), 5);
    uint8_t rows[4 * 32];
    assert_int_equal(v->read(v, 0, 0, 4, rows, &e), 0);
    assert_int_equal(rows[1], 5);
    assert_int_equal(v->n_extents, 0);
    kvc_cache_free(v);
    s = (struct kvc_selection){.first = 20, .end = 30};
    assert_null(kvc_view_select(c, &s, &e));
    const uint8_t none[2] = {0, 1};
    s = (struct kvc_selection){.layers = none, .n_layers = 2};
    assert_null(kvc_view_select(c, &s, &e));
    kvc_cache_free(c);
}

/* A window that has lost its first tokens refuses a range that needs them. */
static void evicted_tokens(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    kvc_cache_map(c, NULL, NULL, &e);
    for (int i = 0; i < 2; i++) {
        uint64_t cells = i ? 4 : 10;
        uint32_t part = kvc_cache_add_part(c, i ? KVC_PART_WINDOW : KVC_PART_LIVE, cells, &e);
        for (uint64_t j = 0; i && j < cells; j++) c->part[part].cells.pos[j] = (int64_t)(6 + j);
        uint32_t layer = kvc_cache_add_layer(c, part, 0, i ? KVC_LAYER_WINDOW : KVC_LAYER_FULL, &e);
        struct kvc_shape shape = {KVC_F16, cells, 1, 8};
        uint32_t t = kvc_cache_add_tensor(c, layer, KVC_ROLE_K, &shape, &e);
        assert_int_equal(kvc_cache_map_memory(c, t, storage, &e), 0);
    }
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    struct kvc_selection s = {.first = 0, .end = 8};
    assert_null(kvc_view_select(c, &s, &e));
    assert_int_equal(e.code, KVC_ERR_NOT_SLICEABLE);
    s = (struct kvc_selection){.first = 6, .end = 8};
    struct kvc_cache *v = kvc_view_select(c, &s, &e);
    assert_non_null(v);
    assert_int_equal(v->part[1].cells.n, 2);
    kvc_cache_free(v);
    s = (struct kvc_selection){.first = 0, .end = 10}; /* all of it is always there */
    v = kvc_view_select(c, &s, &e);
    assert_non_null(v);
    assert_int_equal(v->part[1].cells.n, 4);
    kvc_cache_free(v);
    kvc_cache_free(c);
}

static void pairing(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_cache *c = cache_of(3, 2, NULL);
    assert_null(kvc_view_pairing(c, KVC_PAIRING_HALVES, &e)); /* unknown so far */
    assert_int_equal(kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, "interleaved", &e), 0);
    /* channels 6 and 7 are not rotated */
    assert_int_equal(kvc_meta_set_u64(&c->meta, KVC_KEY_ROPE_DIM, 6, &e), 0);
    struct kvc_cache *v = kvc_view_pairing(c, KVC_PAIRING_HALVES, &e);
    assert_non_null(v);
    assert_int_equal(v->meta.facts.rope.pairing, KVC_PAIRING_HALVES);
    uint8_t k[3 * 32], plain[3 * 32];
    const uint8_t want[8] = {0, 2, 4, 1, 3, 5, 6, 7}; /* interleaved[2i] = halves[i] */
    assert_int_equal(v->read(v, 0, 0, 3, k, &e), 0);
    for (int head = 0; head < 2; head++)
        for (int i = 0; i < 8; i++) assert_int_equal(k[16 * head + 2 * i], want[i] + 16 * head);
    assert_int_equal(v->read(v, 1, 0, 3, k, &e), 0); /* V as it was */
    assert_int_equal(c->read(c, 1, 0, 3, plain, &e), 0);
    assert_memory_equal(k, plain, sizeof k);
    struct kvc_cache *back = kvc_view_pairing(v, KVC_PAIRING_INTERLEAVED, &e);
    assert_non_null(back);
    assert_int_equal(back->read(back, 0, 0, 3, k, &e), 0);
    assert_int_equal(c->read(c, 0, 0, 3, plain, &e), 0);
    assert_memory_equal(k, plain, sizeof k);
    kvc_cache_free(back);
    kvc_cache_free(v);
    assert_int_equal(kvc_meta_set_bool(&c->meta, KVC_KEY_HEADS_KNOWN, 0, &e), 0);
    assert_null(kvc_view_pairing(c, KVC_PAIRING_HALVES, &e)); /* which channels are a head's? */
    kvc_cache_free(c);
}

static void floats_undo_the_rotation(void **state) {
    (void)state;
    struct kvc_error e;
    float x[64], got[64];
    for (int i = 0; i < 64; i++) x[i] = (float)(i * i % 31);
    memcpy(storage, x, sizeof x);
    kvc_hadamard((float *)(void *)storage, 64, 64);
    struct kvc_cache *c = kvc_cache_new(&e);
    uint32_t part = kvc_cache_add_part(c, KVC_PART_LIVE, 1, &e);
    uint32_t layer = kvc_cache_add_layer(c, part, 0, KVC_LAYER_FULL, &e);
    struct kvc_shape shape = {KVC_F32, 1, 1, 64};
    kvc_cache_map(c, NULL, NULL, &e);
    uint32_t t = kvc_cache_add_tensor(c, layer, KVC_ROLE_K, &shape, &e);
    assert_int_equal(kvc_cache_map_memory(c, t, storage, &e), 0);
    assert_int_equal(kvc_cache_finish(c, &e), 0);
    kvc_meta_set_u64(&c->meta, KVC_KEY_HADAMARD_K, 64, &e);
    struct kvc_cache *v = kvc_view_float(c, &e);
    assert_non_null(v);
    assert_int_equal(v->read(v, 0, 0, 1, (uint8_t *)got, &e), 0);
    for (int i = 0; i < 64; i++) assert_true(got[i] - x[i] < 1e-4f && x[i] - got[i] < 1e-4f);
    assert_int_equal(kvc_meta_u64(&v->meta, KVC_KEY_HADAMARD_K, 9), 0);
    kvc_cache_free(v);
    kvc_meta_set_u64(&c->meta, KVC_KEY_HADAMARD_K, 128, &e); /* does not divide the row */
    assert_null(kvc_view_float(c, &e));
    kvc_cache_free(c);
}

static void heads_are_set_later(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_cache *c = cache_of(3, 1, NULL);
    assert_int_equal(kvc_cache_set_heads(c, 3, &e), -1);
    assert_int_equal(kvc_cache_set_heads(c, 2, &e), 0);
    assert_int_equal(c->tensor[0].shape.heads, 2);
    assert_int_equal(c->tensor[0].shape.dim, 4);
    uint8_t rows[3 * 16];
    assert_int_equal(c->read(c, 0, 0, 3, rows, &e), 0);
    assert_int_equal(rows[2 * 5], 5);
    kvc_cache_free(c);
}

static void metadata(void **state) {
    (void)state;
    struct kvc_error e;
    struct kvc_meta m = {0}, back = {0};
    uint64_t many[2] = {1, UINT64_MAX};
    assert_int_equal(kvc_meta_set_text(&m, "b.text", "x", &e), 0);
    assert_int_equal(kvc_meta_set_u64(&m, "a", 7, &e), 0);
    assert_int_equal(kvc_meta_set_f64(&m, "c", 0.1, &e), 0);
    assert_int_equal(kvc_meta_set_i64(&m, "d", -3, &e), 0);
    assert_int_equal(kvc_meta_set_bool(&m, "e", 1, &e), 0);
    assert_int_equal(kvc_meta_set_bytes(&m, "f", "\0\1", 2, &e), 0);
    assert_int_equal(kvc_meta_set_u64s(&m, "g", many, 2, &e), 0);
    assert_int_equal(kvc_meta_set_text(&m, "b.text", "yy", &e), 0);
    assert_int_equal(kvc_meta_set_text(&m, "Upper", "x", &e), -1);
    assert_int_equal(m.n, 7);
    uint8_t *bytes;
    size_t n;
    assert_int_equal(kvc_meta_encode(&m, &bytes, &n, &e), 0);
    assert_int_equal(kvc_meta_decode(&back, bytes, n, &e), 0);
    assert_string_equal(kvc_meta_text(&back, "b.text", ""), "yy");
    assert_true(kvc_meta_f64(&back, "c", 0) == 0.1);
    assert_int_equal(kvc_meta_i64(&back, "d", 0), -3);
    assert_int_equal(kvc_meta_u64(&back, "d", 5), 5); /* of another type: the default */
    char text[64];
    kvc_meta_print(kvc_meta_find(&back, "f"), text, sizeof text);
    assert_string_equal(text, "0001");
    kvc_meta_print(kvc_meta_find(&back, "g"), text, sizeof text);
    assert_string_equal(text, "1 18446744073709551615");
    for (size_t cut = 0; cut < n; cut++) {
        struct kvc_meta part = {0};
        uint8_t *copy = malloc(cut + 1);
        memcpy(copy, bytes, cut);
        assert_int_equal(kvc_meta_decode(&part, copy, cut, &e), -1);
        kvc_meta_free(&part);
        free(copy);
    }
    free(bytes);
    kvc_meta_free(&m);
    kvc_meta_free(&back);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_sorted),
        cmocka_unit_test(blocks_are_bounded),
        cmocka_unit_test(selection),
        cmocka_unit_test(evicted_tokens),
        cmocka_unit_test(pairing),
        cmocka_unit_test(floats_undo_the_rotation),
        cmocka_unit_test(heads_are_set_later),
        cmocka_unit_test(metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
