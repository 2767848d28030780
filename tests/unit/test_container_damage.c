/* test_container_damage.c: damage of every bit of a container shows, also where blocks are decoded
 * two at once; other caches are refused. Not for what can still be read (test_salvage.c). */
#include "container_support.h"
#include "formats/container/device_blocks.h"

/* All that a file yields. */
struct content {
    uint32_t n_tensors;
    uint8_t *rows[16];
    size_t n_rows[16];
    uint8_t *literals, *meta;
    size_t n_literals, n_meta;
    int32_t *tokens;
    uint64_t n_tokens;
};

static void content_free(struct content *x) {
    for (uint32_t t = 0; t < x->n_tensors; t++) free(x->rows[t]);
    free(x->literals);
    free(x->meta);
    free(x->tokens);
}

static struct content content_of(const struct kvc_cache *c) {
    struct content x = {.n_tensors = c->n_tensors, .n_tokens = c->n_tokens};
    struct kvc_error e;
    assert_in_range(c->n_tensors, 1, 16);
    for (uint32_t t = 0; t < c->n_tensors; t++) x.rows[t] = rows_of(c, t, &x.n_rows[t]);
    x.literals = literals_of(c);
    x.n_literals = (size_t)c->literal_size;
    assert_int_equal(kvc_meta_encode(&c->meta, &x.meta, &x.n_meta, &e), 0);
    x.tokens = get_memory((size_t)c->n_tokens * sizeof *x.tokens);
    if (c->n_tokens) memcpy(x.tokens, c->tokens, (size_t)c->n_tokens * sizeof *x.tokens);
    return x;
}

enum verdict { REFUSED, ACCEPTED, OTHER_DATA };

/* What an open file says about itself before its blocks are read. */
static int facts_are(const struct kvc_cache *c, const struct content *x) {
    struct kvc_error e;
    uint8_t *meta;
    size_t n;
    if (c->n_tensors != x->n_tensors || c->n_tokens != x->n_tokens ||
        c->literal_size != x->n_literals)
        return 0;
    for (uint32_t t = 0; t < x->n_tensors; t++)
        if (kvc_tensor_bytes(&c->tensor[t]) != x->n_rows[t]) return 0;
    assert_int_equal(kvc_meta_encode(&c->meta, &meta, &n, &e), 0);
    int same = n == x->n_meta && memcmp(meta, x->meta, n) == 0 &&
               (!x->n_tokens ||
                memcmp(c->tokens, x->tokens, (size_t)x->n_tokens * sizeof *x->tokens) == 0);
    free(meta);
    return same;
}

/* Opens, reads everything and checks the rest. Whatever a call that succeeds hands out must be
 * right, also when a later one fails. */
static enum verdict try_bytes(const uint8_t *bytes, size_t n, const struct content *x) {
    struct kvc_input in;
    struct kvc_error e = {.code = KVC_OK};
    enum verdict verdict = ACCEPTED;
    kvc_input_memory(&in, "test", bytes, n);
    struct kvc_cache *c = kvc_container_open(&in, &e);
    if (!c) verdict = REFUSED;
    else if (!facts_are(c, x)) verdict = OTHER_DATA;
    for (uint32_t t = 0; c && verdict != OTHER_DATA && t < x->n_tensors; t++) {
        uint8_t *rows = get_memory(x->n_rows[t]);
        if (c->read(c, t, 0, c->tensor[t].shape.tokens, rows, &e)) verdict = REFUSED;
        else if (memcmp(rows, x->rows[t], x->n_rows[t]) != 0) verdict = OTHER_DATA;
        free(rows);
    }
    if (c && verdict != OTHER_DATA) {
        uint8_t *literals = get_memory(x->n_literals);
        if (x->n_literals && c->read_literal(c, 0, x->n_literals, literals, &e)) verdict = REFUSED;
        else if (memcmp(literals, x->literals, x->n_literals) != 0) verdict = OTHER_DATA;
        free(literals);
    }
    if (c && verdict != OTHER_DATA && kvc_container_check_rest(c, &e)) verdict = REFUSED;
    if (verdict == REFUSED && (e.code == KVC_OK || !*e.message)) fail_msg("refused without a word");
    kvc_cache_free(c);
    kvc_input_close(&in);
    return verdict;
}

/* Flips every bit and cuts at every length. */
static void damage(struct kvc_cache *c, const struct kvc_pack_options *o) {
    struct kvc_buffer packed = pack(c, o, NULL);
    struct kvc_input in;
    assert_in_range(packed.n, 1, 32768);
    uint8_t *bytes = get_memory(packed.n); /* exactly as large, so that reading beyond shows */
    memcpy(bytes, packed.data, packed.n);
    struct kvc_cache *d = open_bytes(&in, bytes, packed.n);
    struct content x = content_of(d);
    kvc_cache_free(d);
    kvc_input_close(&in);
    assert_int_equal(try_bytes(bytes, packed.n, &x), ACCEPTED);
    for (size_t i = 0; i < packed.n; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            bytes[i] ^= (uint8_t)(1u << bit);
            enum verdict verdict = try_bytes(bytes, packed.n, &x);
            if (verdict != REFUSED)
                fail_msg("bit %u of byte %zu flipped: %s", bit, i,
                         verdict == ACCEPTED ? "not noticed" : "other data");
            bytes[i] ^= (uint8_t)(1u << bit);
        }
    free(bytes);
    for (size_t n = 0; n < packed.n; n++) {
        uint8_t *cut = get_memory(n);
        memcpy(cut, packed.data, n);
        if (try_bytes(cut, n, &x) != REFUSED) fail_msg("cut to %zu bytes: not noticed", n);
        free(cut);
    }
    content_free(&x);
    free(packed.data);
    kvc_cache_free(c);
}

static void damage_of_a_stored_file(void **state) {
    (void)state;
    struct builder b = simple(KVC_F16, 20, 2, 1, 8);
    struct kvc_cells *cells = &b.c->part[0].cells;
    cells->pos[19] = 300;
    add_tokens(&b, 20);
    damage(finish(&b), &(struct kvc_pack_options){.recipe = recipe_of("store"), .threads = 1});
}

static void damage_of_a_compressed_file(void **state) {
    (void)state;
    struct builder b = simple(KVC_BF16, 70, 1, 1, 16);
    add_tokens(&b, 70);
    damage(finish(&b), &(struct kvc_pack_options){.recipe = recipe_of("zstd"), .threads = 1});
}

/* Recipes whose blocks are decoded two at once, the last one with a stage between runs of rows. */
static const char *const by_two[] = {"split", "center,basis,steps,code:step=0.5",
                                     "center,lowrank:r=2,code:step=0.5"};
enum { BY_TWO = sizeof by_two / sizeof by_two[0] };

/* Blocks that are decoded two at once: any number of them, read from anywhere. */
static void blocks_two_by_two(void **state) {
    static const uint64_t cells[] = {256, 300, 512, 700, 1280};
    (void)state;
    kvc_kernels_choice(); /* makes the trial of kernels */
    for (size_t k = 0; k < BY_TWO * sizeof cells / sizeof cells[0]; k++) {
        const size_t i = k / BY_TWO;
        struct builder b = simple(KVC_BF16, cells[i], 1, 2, 16);
        struct kvc_cache *c = finish(&b);
        struct kvc_buffer packed = pack(
            c, &(struct kvc_pack_options){.recipe = recipe_of(by_two[k % BY_TWO]), .threads = 1},
            NULL);
        struct kvc_input in;
        struct kvc_cache *d = open_bytes(&in, packed.data, packed.n);
        struct kvc_error e;
        size_t n;
        uint8_t *want = rows_of(c, 0, &n), *got = get_memory(n + 8);
        const size_t row = n / cells[i];
        if (k % BY_TWO == 0) assert_same(c, d);
        for (uint64_t t = 0; t < cells[i]; t += KVC_BLOCK) /* alone */
            assert_int_equal(d->read(d, 0, t, cells[i] - t < KVC_BLOCK ? cells[i] - t : KVC_BLOCK,
                                     want + t * row, &e),
                             0);
        assert_int_equal(kvc_container_check(d, 1, &e), 0);
        for (uint64_t first = 0; first < cells[i]; first += first % 256 < 2 ? 1 : 127)
            for (uint64_t end = first + 1; end <= cells[i];
                 end += end % 256 < 2 || end + 127 > cells[i] ? 1 : 127) {
                /* at an address where blocks are decoded, or not */
                uint8_t *to = got + (first + end) % 2 * 4;
                memset(got, 0xa5, n + 8);
                assert_int_equal(d->read(d, 0, first, end - first, to, &e), 0);
                assert_memory_equal(to, want + first * row, (end - first) * row);
                if (to + (end - first) * row < got + n + 8)
                    assert_int_equal(to[(end - first) * row], 0xa5);
            }
        free(want);
        free(got);
        kvc_cache_free(d);
        kvc_input_close(&in);
        free(packed.data);
        kvc_cache_free(c);
    }
}

/* Reading rows says of a damaged block what reading that block alone says. */
static void check_damage_of_one(const char *recipe) {
    enum { BLOCKS = 5 };
    struct builder b = simple(KVC_BF16, BLOCKS * KVC_BLOCK, 1, 1, 32);
    struct kvc_cache *c = finish(&b);
    struct kvc_buffer packed =
        pack(c, &(struct kvc_pack_options){.recipe = recipe_of(recipe), .threads = 1}, NULL);
    size_t n;
    uint8_t *rows = rows_of(c, 0, &n);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        struct kvc_input in;
        struct kvc_error alone, all;
        struct kvc_cache *d = open_bytes(&in, packed.data, packed.n);
        const struct kvc_records *k = kvc_records_of(d);
        const struct kvc_record *r = &k->record[k->block_record[k->first_block[0] + block]];
        packed.data[r->offset + r->size / 2] ^= 1;
        assert_int_equal(d->read(d, 0, block * KVC_BLOCK, KVC_BLOCK, rows, &alone), -1);
        assert_int_equal(alone.code, KVC_ERR_DAMAGED);
        assert_int_equal(d->read(d, 0, 0, BLOCKS * KVC_BLOCK, rows, &all), -1);
        assert_string_equal(all.message, alone.message);
        assert_int_equal(kvc_container_check(d, 1, &all), -1);
        assert_string_equal(all.message, alone.message);
        assert_int_equal(all.code, alone.code);
        for (uint64_t other = 0; other < BLOCKS; other++)
            assert_int_equal(d->read(d, 0, other * KVC_BLOCK, KVC_BLOCK, rows, &all),
                             other == block ? -1 : 0);
        packed.data[r->offset + r->size / 2] ^= 1;
        kvc_cache_free(d);
        kvc_input_close(&in);
    }
    free(rows);
    free(packed.data);
    kvc_cache_free(c);
}

static void damage_of_references_and_padding(void **state) {
    (void)state;
    damage(with_checkpoints(12, KVC_F8E4M3),
           &(struct kvc_pack_options){.recipe = recipe_of("zstd"), .threads = 1, .align = 4096});
}

/* What container.h promises of a cache that is no container: errors, or nothing. */
static void refused_of(struct kvc_cache *c) {
    struct kvc_error e;
    struct kvc_record_info info;
    struct kvc_program program = {0};
    const struct kvc_container_header header = kvc_container_header(c);
    char text[64];
    uint8_t row[1024];
    int embedded = 1;
    assert_false(kvc_cache_is_container(c));
    assert_null(kvc_records_of(c));
    kvc_container_set_weights(c, NULL);
    kvc_container_set_profile(c, &(struct kvc_profile_places){.given = "no/such/profile"});
    assert_null(kvc_container_profile(c, &embedded));
    assert_int_equal(embedded, 0);
    assert_int_equal(header.write_version | header.read_version | header.align, 0);
    assert_int_equal(kvc_container_records(c), 0);
    assert_string_equal(kvc_container_pipeline(c, 0), "");
    assert_int_equal(kvc_container_lossless(c), 0);
    assert_int_equal(kvc_container_stored(c, 0), 0);
#define REFUSED(call)                        \
    e.code = KVC_OK;                         \
    assert_int_equal(call, -1);              \
    assert_int_equal(e.code, KVC_ERR_USAGE); \
    assert_non_null(strstr(e.message, ".kvc"))
    REFUSED(kvc_container_transform(c, 0, text, sizeof text, &e));
    REFUSED(kvc_container_record(c, 0, &info, NULL, 0, &e));
    REFUSED(kvc_container_check(c, 1, &e));
    REFUSED(kvc_container_check_rest(c, &e));
    REFUSED(kvc_blocks_read(c, 0, 0, 1, row, &e));
    REFUSED(kvc_container_lower(c, 0, 0, NULL, &program, &e));
#undef REFUSED
}

static void other_caches_are_refused(void **state) {
    (void)state;
    struct builder b = simple(KVC_F16, 20, 1, 1, 8);
    struct kvc_cache *c = finish(&b);
    struct kvc_pack_options o = {.recipe = recipe_of("store")};
    struct kvc_record_info info;
    struct kvc_input in;
    struct kvc_error e;
    refused_of(c); /* as importers make them */
    struct kvc_buffer packed = pack(c, &o, NULL);
    struct kvc_cache *d = open_bytes(&in, packed.data, packed.n);
    struct kvc_cache *view = kvc_view_float(d, &e);
    assert_non_null(view);
    refused_of(view); /* of a container, but none */
    assert_int_equal(kvc_container_record(d, kvc_container_records(d), &info, NULL, 0, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    assert_int_equal(kvc_cache_map_memory(d, 0, packed.data, &e), -1); /* and the other way round */
    assert_int_equal(e.code, KVC_ERR_USAGE);
    assert_int_equal(kvc_cache_extent_literal(d, &in, 0, 1, &e), -1);
    assert_int_equal(kvc_container_check(d, 1, &e), 0);
    kvc_cache_free(view);
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(packed.data);
    kvc_cache_free(c);
}

static void damage_of_one_block_of_two(void **state) {
    (void)state;
    kvc_kernels_choice(); /* makes the trial of kernels */
    for (size_t k = 0; k < BY_TWO; k++) check_damage_of_one(by_two[k]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_of_a_stored_file),
        cmocka_unit_test(damage_of_a_compressed_file),
        cmocka_unit_test(other_caches_are_refused),
        cmocka_unit_test(damage_of_references_and_padding),
        cmocka_unit_test(blocks_two_by_two),
        cmocka_unit_test(damage_of_one_block_of_two),
    };
    return cmocka_run_group_tests_name("container_damage", tests, NULL, NULL);
}
