/* test_align.c: two caches brought to one meaning of channels: what is told, what is guessed, and
 * what is left alone. Not for the words of kvc-diff (tests/cli). */
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/compare/align.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 40, HEADS = 2, DIM = 64, VALUES = ROWS * HEADS * DIM };

static float values[2][VALUES]; /* K and V, K paired as halves, not rotated */

static int make_values(void **state) {
    (void)state;
    uint32_t bits = 1;
    for (int r = 0; r < 2; r++)
        for (size_t i = 0; i < VALUES; i++) {
            bits = bits * 1664525 + 1013904223;
            values[r][i] = (float)(bits >> 8) / (float)(1 << 23) - 1;
        }
    return 0;
}

/* A cache over storage of its own. */
struct made {
    struct kvc_cache *cache;
    uint8_t bytes[2][sizeof(float) * VALUES];
};

/* Blocks of 32 values as q8_0: f16 scale, 32 bytes. */
static void to_q8_0(uint8_t *to, const float *from, size_t n) {
    for (; n; n -= 32, from += 32, to += 34) {
        float maximum = 0, scale;
        for (int i = 0; i < 32; i++) maximum = fmaxf(maximum, fabsf(from[i]));
        scale = maximum / 127;
        kvc_kernels_get()->f32_to_f16(to, &scale, 1);
        for (int i = 0; i < 32; i++) to[2 + i] = (uint8_t)(int8_t)lrintf(from[i] / scale);
    }
}

static void interleave(float *x) {
    float head[DIM];
    for (size_t h = 0; h < ROWS * HEADS; h++) {
        memcpy(head, x + h * DIM, sizeof head);
        for (size_t i = 0; i < DIM / 2; i++) {
            x[h * DIM + 2 * i] = head[i];
            x[h * DIM + 2 * i + 1] = head[DIM / 2 + i];
        }
    }
}

/* How K is, which the metadata then may tell. */
struct way {
    enum kvc_dtype dtype;
    int interleaved;
    unsigned tile;
};

static void make(struct made *m, const struct way *way) {
    static float x[VALUES];
    struct kvc_error e;
    m->cache = kvc_cache_new(&e);
    const uint32_t part = kvc_cache_add_part(m->cache, KVC_PART_LIVE, ROWS, &e);
    const uint32_t layer = kvc_cache_add_layer(m->cache, part, 0, KVC_LAYER_FULL, &e);
    assert_int_equal(kvc_cache_map(m->cache, NULL, NULL, &e), 0);
    for (uint32_t r = 0; r < 2; r++) {
        const struct kvc_shape shape = {way->dtype, ROWS, HEADS, DIM};
        memcpy(x, values[r], sizeof x);
        if (!r && way->interleaved) interleave(x);
        if (!r && way->tile) kvc_hadamard(x, VALUES, way->tile);
        if (way->dtype == KVC_F32) memcpy(m->bytes[r], x, sizeof x);
        else to_q8_0(m->bytes[r], x, VALUES);
        const uint32_t t = kvc_cache_add_tensor(m->cache, layer, r ? KVC_ROLE_V : KVC_ROLE_K,
                                                &shape, &e);
        assert_int_equal(kvc_cache_map_memory(m->cache, t, m->bytes[r], &e), 0);
    }
    assert_int_equal(kvc_cache_finish(m->cache, &e), 0);
}

static void tell_pairing(struct made *m, const char *pairing) {
    struct kvc_error e;
    assert_int_equal(kvc_meta_set_text(&m->cache->meta, KVC_KEY_ROPE_PAIRING, pairing, &e), 0);
}

static void tell_tile(struct made *m, uint64_t tile) {
    struct kvc_error e;
    assert_int_equal(kvc_meta_set_u64(&m->cache->meta, KVC_KEY_HADAMARD_K, tile, &e), 0);
}

/* Aligns the two, and returns the relative error of K then; the caches' metadata stay as they were.
 */
static double align(struct kvc_align *a, struct made *m) {
    struct kvc_error e = {.message = ""};
    struct kvc_matching rows;
    struct kvc_difference d = {0};
    const struct kvc_compare_options loose = {.name = {"A", "B"}};
    const size_t before[2] = {m[0].cache->meta.n, m[1].cache->meta.n};
    assert_int_equal(kvc_match_rows(&m[0].cache->part[0].cells, &m[1].cache->part[0].cells,
                                    INT64_MIN, INT64_MAX, &rows, &e),
                     0);
    *a = (struct kvc_align){.cache = {m[0].cache, m[1].cache},
                            .name = {"A", "B"},
                            .sample = {{{0, 0}, &rows}, {{1, 1}, &rows}}};
    if (kvc_align_caches(a, &e)) fail_msg("%s", e.message);
    assert_int_equal(kvc_compare_tensor(a->cache[0], 0, a->cache[1], 0, &rows, 1, &loose, &d, &e),
                     0);
    for (int s = 0; s < 2; s++) assert_int_equal(m[s].cache->meta.n, before[s]);
    kvc_align_free(a);
    for (int s = 0; s < 2; s++) assert_ptr_equal(a->cache[s], m[s].cache);
    kvc_matching_free(&rows);
    for (int s = 0; s < 2; s++) kvc_cache_free(m[s].cache);
    return d.frobenius;
}

static const struct way plain = {KVC_F32, 0, 0}, interleaved = {KVC_F32, 1, 0},
                        rotated = {KVC_F32, 0, 64};
static struct made m[2];

static void leaves_equal_alone(void **state) {
    (void)state;
    struct kvc_align a;
    make(&m[0], &plain);
    make(&m[1], &plain);
    assert_true(align(&a, m) == 0);
    assert_int_equal(a.n_notes, 0);
    make(&m[0], &plain); /* both say the same, though they are not */
    make(&m[1], &interleaved);
    tell_pairing(&m[0], "halves");
    tell_pairing(&m[1], "halves");
    assert_true(align(&a, m) > 0.5);
    assert_int_equal(a.n_notes, 0);
}

static void permutes_told_pairings(void **state) {
    (void)state;
    struct kvc_align a;
    make(&m[0], &plain);
    make(&m[1], &interleaved);
    tell_pairing(&m[0], "halves");
    tell_pairing(&m[1], "interleaved");
    assert_true(align(&a, m) == 0);
    assert_int_equal(a.n_notes, 1);
    assert_int_equal(a.note[0].kind, KVC_ALIGN_PAIRINGS_DIFFER);
    assert_int_equal(a.note[0].side, 0);
}

static void guesses_pairings(void **state) {
    (void)state;
    for (int told = 0; told < 3; told++) { /* by neither, by A, by B */
        struct kvc_align a;
        make(&m[0], &interleaved);
        make(&m[1], &plain);
        if (told == 1) tell_pairing(&m[0], "interleaved");
        if (told == 2) tell_pairing(&m[1], "halves");
        assert_true(align(&a, m) == 0);
        assert_int_equal(a.n_notes, 1);
        assert_int_equal(a.note[0].kind, KVC_ALIGN_PAIRING_GUESSED);
        assert_int_equal(a.note[0].pairing[0], KVC_PAIRING_INTERLEAVED);
        assert_int_equal(a.note[0].pairing[1], KVC_PAIRING_HALVES);
        assert_int_equal(a.note[0].told[0],
                         told == 1 ? KVC_PAIRING_INTERLEAVED : KVC_PAIRING_UNKNOWN);
        assert_true(a.note[0].error == 0 && a.note[0].plain > 0.5);
    }
    struct kvc_align a; /* what is told is not tried otherwise */
    make(&m[0], &interleaved);
    make(&m[1], &plain);
    tell_pairing(&m[0], "halves");
    assert_true(align(&a, m) > 0.5);
    assert_int_equal(a.n_notes, 0);
    make(&m[0], &interleaved); /* nor are caches without RoPE */
    make(&m[1], &plain);
    tell_pairing(&m[0], "none");
    assert_true(align(&a, m) > 0.5);
    assert_int_equal(a.n_notes, 0);
}

static void rotates_back_what_is_told(void **state) {
    (void)state;
    struct kvc_align a;
    make(&m[0], &rotated);
    make(&m[1], &plain);
    tell_tile(&m[0], 64);
    tell_tile(&m[1], 0);
    assert_true(align(&a, m) < 1e-6);
    assert_int_equal(a.n_notes, 1);
    assert_int_equal(a.note[0].kind, KVC_ALIGN_TILES_DIFFER);
    assert_true(a.note[0].tile[0] == 64 && a.note[0].tile[1] == 0);
}

static void guesses_tiles(void **state) {
    (void)state;
    static const struct way turned = {KVC_Q8_0, 0, 128}, straight = {KVC_Q8_0, 0, 0},
                            both = {KVC_Q8_0, 1, 64};
    struct kvc_align a;
    make(&m[0], &plain);
    make(&m[1], &turned);
    tell_tile(&m[0], 0);
    assert_true(align(&a, m) < 0.02);
    assert_int_equal(a.n_notes, 1);
    assert_int_equal(a.note[0].kind, KVC_ALIGN_TILE_GUESSED);
    assert_int_equal(a.note[0].role, KVC_ROLE_K);
    assert_int_equal(a.note[0].side, 1);
    assert_int_equal(a.note[0].tile[1], 128);
    make(&m[0], &straight); /* the other way round: no rotation, where the other side has one */
    make(&m[1], &rotated);
    tell_tile(&m[1], 64);
    assert_true(align(&a, m) < 0.02);
    assert_int_equal(a.n_notes, 1);
    assert_int_equal(a.note[0].side, 0);
    assert_int_equal(a.note[0].tile[0], 0);
    make(&m[0], &plain); /* rotated and paired otherwise at once */
    make(&m[1], &both);
    tell_tile(&m[0], 0);
    assert_true(align(&a, m) < 0.02);
    assert_int_equal(a.n_notes, 2);
    assert_int_equal(a.note[0].kind, KVC_ALIGN_TILE_GUESSED);
    assert_int_equal(a.note[0].tile[1], 64);
    assert_int_equal(a.note[1].kind, KVC_ALIGN_PAIRING_GUESSED);
    assert_int_equal(a.note[1].pairing[1], KVC_PAIRING_INTERLEAVED);
    make(&m[0], &plain); /* floats are not guessed: llama.cpp rotates block types only */
    make(&m[1], &rotated);
    tell_tile(&m[0], 0);
    assert_true(align(&a, m) > 0.5);
    assert_int_equal(a.n_notes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_equal_alone), cmocka_unit_test(permutes_told_pairings),
        cmocka_unit_test(guesses_pairings),   cmocka_unit_test(rotates_back_what_is_told),
        cmocka_unit_test(guesses_tiles),
    };
    return cmocka_run_group_tests(tests, make_values, NULL);
}
