/* test_npz.c: .npy headers, stored and deflated members, the way there and back, and real files
 * when $KVC_TEST_DATA is set. */
#include "formats/io/bytes.h"
#include "tests/unit/arrays_support.h"

#include <archive.h>
#include <archive_entry.h>

static const struct kvc_format *const format = &kvc_format_npz;

struct zip {
    struct archive *a;
    uint8_t data[16384];
    size_t n;
};

static void zip_open(struct zip *z, const char *compression) {
    z->a = archive_write_new();
    assert_int_equal(archive_write_set_format_zip(z->a), ARCHIVE_OK);
    assert_int_equal(archive_write_set_format_option(z->a, "zip", "compression", compression),
                     ARCHIVE_OK);
    archive_write_set_bytes_in_last_block(z->a, 1);
    assert_int_equal(archive_write_open_memory(z->a, z->data, sizeof z->data, &z->n), ARCHIVE_OK);
}

static void zip_add(struct zip *z, const char *name, const void *data, size_t n) {
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, name);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, (la_int64_t)n);
    assert_int_equal(archive_write_header(z->a, entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(z->a, data, n), n);
    archive_entry_free(entry);
}

static void zip_close(struct zip *z) {
    assert_int_equal(archive_write_close(z->a), ARCHIVE_OK);
    archive_write_free(z->a);
}

/* A .npy file of this header text and n bytes of data. */
static size_t make_npy(uint8_t *p, unsigned version, const char *text, const uint8_t *data,
                       size_t n) {
    size_t length = strlen(text), start = version == 1 ? 10 : 12;
    memcpy(p, "\x93NUMPY", 6);
    p[6] = (uint8_t)version;
    p[7] = 0;
    if (version == 1) put_u16(p + 8, (uint16_t)length);
    else put_u32(p + 8, (uint32_t)length);
    memcpy(p + start, text, length);
    memcpy(p + start + length, data, n);
    return start + length + n;
}

#define SHAPE "(1, 2, 3, 4)"
#define HEADER(descr) "{'descr': '" descr "', 'fortran_order': False, 'shape': " SHAPE ", }   \n"

static uint8_t values[96];
static const uint8_t ids[16] = {9, 0, 0, 0, 0, 0, 0, 0, 8};

static void add_array(struct zip *z, const char *name, unsigned version, const char *text,
                      const uint8_t *data, size_t n) {
    uint8_t npy[512];
    zip_add(z, name, npy, make_npy(npy, version, text, data, n));
}

static void make_file(struct zip *z, const char *compression) {
    for (size_t i = 0; i < sizeof values; i++) values[i] = (uint8_t)i;
    zip_open(z, compression);
    zip_add(z, "note.txt", "hello", 5);
    add_array(z, "layers.0.keys.npy", 1, HEADER("<f4"), values, 96);
    add_array(z, "layers.0.values.npy", 2, HEADER("|V2"), values, 48);
    add_array(z, "other.npy", 1, "{'descr': '<c8', 'fortran_order': True, 'shape': (0,), }\n",
              values, 0);
    add_array(z, "tokens.npy", 3, "{'shape': (2,), 'descr': \"<i8\", 'fortran_order': False}\n",
              ids, 16);
    zip_close(z);
}

static void check_file(const char *compression, int in_place) {
    static struct zip z;
    struct kvc_input in, again;
    size_t n;
    make_file(&z, compression);
    struct kvc_cache *c = import_bytes(format, &in, z.data, z.n, NULL);
    assert_int_equal(c->n_tokens, 2);
    assert_int_equal(c->tokens[0], 9);
    assert_int_equal(c->tensor[0].shape.dtype, KVC_F32);
    assert_int_equal(c->tensor[1].shape.dtype, KVC_BF16);
    uint8_t *rows = read_all(c, 0, &n);
    assert_memory_equal(rows + 32, values + 16, 16); /* token 1, head 0 */
    assert_memory_equal(rows + 48, values + 64, 16); /* token 1, head 1 */
    free(rows);
    if (in_place) assert_source_is(c, z.data, z.n);
    else assert_int_equal(c->n_extents, 0);
    assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_ROPE_PAIRING, ""), "halves");
    struct kvc_buffer b = export_bytes(format, c), twice = export_bytes(format, c);
    assert_int_equal(b.n, twice.n);
    assert_memory_equal(b.data, twice.data, b.n);
    struct kvc_cache *d = import_bytes(format, &again, b.data, b.n, NULL);
    assert_source_is(d, b.data, b.n);
    assert_int_equal(d->tensor[1].shape.dtype, KVC_F32); /* numpy has no bf16 */
    uint8_t *bf16 = read_all(c, 1, &n), *f32 = read_all(d, 1, &n);
    for (size_t i = 0; i < n / 4; i++) assert_memory_equal(f32 + 4 * i + 2, bf16 + 2 * i, 2);
    free(bf16);
    free(f32);
    kvc_cache_free(c);
    kvc_cache_free(d);
    kvc_input_close(&in);
    kvc_input_close(&again);
    free(b.data);
    free(twice.data);
}

static void test_import(void **state) {
    (void)state;
    check_file("store", 1);
    check_file("deflate", 0);
}

static void refuse_header(unsigned version, const char *text, size_t n, enum kvc_code code,
                          const char *words) {
    static struct zip z;
    zip_open(&z, "store");
    add_array(&z, "layers.0.keys.npy", version, text, values, n);
    add_array(&z, "layers.0.values.npy", 1, HEADER("<f4"), values, 96);
    zip_close(&z);
    refuse_bytes(format, z.data, z.n, NULL, code, words);
}

static void test_npy(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        "\n",
        "{}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': " SHAPE ", }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': " SHAPE ", } x\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': " SHAPE ", 'more': 1}\n",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': " SHAPE "}\n",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': " SHAPE "}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3, -4)}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (24)}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,, 24)}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 024)}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}\n",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': " SHAPE "}\n",
        "{'descr' '<f4', 'fortran_order': False, 'shape': " SHAPE "}\n",
        "{'descr': '<f4' 'fortran_order': False 'shape': " SHAPE "}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3, 4",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse_header(1, bad[i], 96, KVC_ERR_DAMAGED, "the header is not");
    refuse_header(1, HEADER("<f4"), 95, KVC_ERR_DAMAGED, "95 bytes of data");
    refuse_header(1, HEADER("<f2"), 96, KVC_ERR_DAMAGED, "96 bytes of data");
    refuse_header(1, HEADER(">f4"), 96, KVC_ERR_UNSUPPORTED, "'>f4'");
    refuse_header(1, HEADER("<f8"), 96, KVC_ERR_UNSUPPORTED, "'<f8'");
    refuse_header(4, HEADER("<f4"), 96, KVC_ERR_UNSUPPORTED, "version 4.0");
    refuse_header(1, "{'descr': '<f4', 'fortran_order': True, 'shape': " SHAPE "}\n", 96,
                  KVC_ERR_UNSUPPORTED, "Fortran");
}

static void test_members(void **state) {
    (void)state;
    static struct zip z;
    static const uint8_t zeros[8192];
    zip_open(&z, "store");
    add_array(&z, "layers.0.keys.npy", 1, HEADER("<f4"), values, 96);
    add_array(&z, "layers.0.keys.npy", 1, HEADER("<f4"), values, 96);
    zip_close(&z);
    refuse_bytes(format, z.data, z.n, NULL, KVC_ERR_DAMAGED,
                 "two members are named 'layers.0.keys.npy'");
    zip_open(&z, "store");
    zip_add(&z, "layers.0.keys.npy", "\x93NUMPY\1", 7);
    zip_close(&z);
    refuse_bytes(format, z.data, z.n, NULL, KVC_ERR_DAMAGED, "no .npy file");
    zip_open(&z, "store");
    zip_add(&z, "layers.0.keys.npy", "", 0);
    zip_close(&z);
    refuse_bytes(format, z.data, z.n, NULL, KVC_ERR_DAMAGED, "empty");
    zip_open(&z, "deflate");
    zip_add(&z, "a.npy", zeros, sizeof zeros);
    zip_add(&z, "b.txt", zeros, sizeof zeros);
    zip_close(&z);
    refuse_bytes(format, z.data, z.n, NULL, KVC_ERR_UNKNOWN_FORMAT, "found 'a', 'b.txt'");
    refuse_bytes(format, zeros, sizeof zeros, NULL, KVC_ERR_DAMAGED, "no zip");
    refuse_bytes(format, zeros, 0, NULL, KVC_ERR_DAMAGED, "no zip");
}

/* Members that claim 4 GB each, in the directory and in their own headers. */
static void test_bomb(void **state) {
    (void)state;
    static struct zip z;
    make_file(&z, "deflate");
    for (size_t i = 0; i + 46 < z.n; i++) {
        if (memcmp(z.data + i, "PK\1\2", 4) == 0) put_u32(z.data + i + 24, UINT32_MAX - 1);
        if (memcmp(z.data + i, "PK\3\4", 4) == 0) put_u32(z.data + i + 22, UINT32_MAX - 1);
    }
    refuse_bytes(format, z.data, z.n, NULL, KVC_ERR_DAMAGED, "the members claim");
}

/* A flipped bit in an array's data is noticed by its CRC. */
static void test_mutations(void **state) {
    (void)state;
    static struct zip z;
    struct kvc_input in;
    static const char *const ways[] = {"store", "deflate"};
    for (int i = 0; i < 2; i++) {
        make_file(&z, ways[i]);
        kvc_cache_free(import_bytes(format, &in, z.data, z.n, NULL));
        kvc_input_close(&in);
        mutate(format, z.data, z.n, z.n, 0);
    }
}

static void test_crc(void **state) {
    (void)state;
    static struct zip z;
    zip_open(&z, "store");
    add_array(&z, "layers.0.keys.npy", 1, HEADER("<f4"), values, 96);
    add_array(&z, "layers.0.values.npy", 1, HEADER("<f4"), values, 96);
    zip_close(&z);
    struct kvc_input in;
    kvc_cache_free(import_bytes(format, &in, z.data, z.n, NULL));
    kvc_input_close(&in);
    z.data[200] ^= 1; /* inside the first array */
    refuse_bytes(format, z.data, z.n, NULL, KVC_ERR_DAMAGED, "CRC");
}

static void test_probe(void **state) {
    (void)state;
    static struct zip z;
    char why[64];
    struct kvc_input in;
    make_file(&z, "store");
    kvc_input_memory(&in, "test", z.data, z.n);
    assert_true(kvc_format_probe(format, &in, why, sizeof why));
    kvc_input_close(&in);
    kvc_input_memory(&in, "test", z.data, 3);
    assert_false(kvc_format_probe(format, &in, why, sizeof why));
    kvc_input_close(&in);
}

static int fail_write(void *state, const void *data, size_t n, struct kvc_error *e) {
    (void)data;
    size_t *room = state;
    if (n > *room) return kvc_fail(e, KVC_ERR_IO, "disk full");
    *room -= n;
    return 0;
}

static void test_full_disk(void **state) {
    (void)state;
    static struct zip z;
    zip_open(&z, "store");
    add_array(&z, "layers.0.keys.npy", 1, HEADER("<f4"), values, 96);
    add_array(&z, "layers.0.values.npy", 1, HEADER("<f4"), values, 96);
    zip_close(&z);
    struct kvc_input in;
    struct kvc_cache *c = import_bytes(format, &in, z.data, z.n, NULL);
    for (size_t room = 0; room < 800; room += 100) {
        size_t left = room;
        struct kvc_error e = {.code = KVC_OK};
        struct kvc_sink out = {.write = fail_write, .state = &left};
        assert_int_equal(kvc_export(format, c, NULL, &out, &e), -1);
        assert_int_equal(e.code, KVC_ERR_IO);
        assert_string_equal(e.message, "disk full");
    }
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* --- positions --- */

static uint64_t first_token(const struct kvc_cache *c) {
    return kvc_meta_u64(&c->meta, KVC_KEY_TOKENS_FIRST, 0);
}

static void begins_at_5(const struct kvc_cache *back) {
    assert_int_equal(first_token(back), 5);
}

static void begins_at_0(const struct kvc_cache *back) {
    assert_null(kvc_meta_find(&back->meta, KVC_KEY_TOKENS_FIRST));
}

static void test_positions(void **state) {
    (void)state;
    float data[2 * 4 * 4];
    for (unsigned i = 0; i < 32; i++) data[i] = (float)i;
    struct kvc_input in;
    struct kvc_error e;
    struct kvc_cache *c = raw_cache(&in, data, sizeof data, "f32", 1, 4, 1, 4, KVC_PAIRING_HALVES);
    assert_round_trip(format, c, begins_at_0);
    assert_int_equal(kvc_cache_set_tokens(c, (int32_t[]){1, 2, 3, 4}, 4, &e), 0);
    assert_round_trip(format, c, begins_at_0);
    set_positions(c, 0, (int64_t[]){5, 6, 7, 8});
    assert_round_trip(format, c, begins_at_5);
    set_positions(c, 0, (int64_t[]){8, 6, 5, 7});
    assert_round_trip(format, c, begins_at_5);
    set_positions(c, 0, (int64_t[]){5, 6, 8, 9});
    assert_round_trip(format, c, begins_at_0);
    set_positions(c, 0, (int64_t[]){5, 6, 7, 8});
    assert_int_equal(kvc_cache_set_tokens(c, (int32_t[]){1, 2, 3}, 3, &e), 0);
    assert_round_trip(format, c, begins_at_0);
    add_part(c, KVC_PART_WINDOW, 0, 0, 2, (const uint8_t *)data);
    set_positions(c, 1, (int64_t[]){5, 8});
    assert_round_trip(format, c, NULL);
    kvc_cache_free(c);
    kvc_input_close(&in);
}

/* --- real files --- */

static void test_real(void **state) {
    (void)state;
    assert_real(format, "npz/smol-64.npz", NULL, 1);
    assert_real(format, "npz/smol-16-deflate.npz", NULL, 0);
}

/* A llama.cpp slot whose cells are neither in order nor without holes. */
static void test_holes(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_cache *c = open_real(&in, "llama.cpp/v4-holes.bin");
    assert_round_trip(format, c, begins_at_0);
    kvc_cache_free(c);
    kvc_input_close(&in);
}

static void test_damaged(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_error e = {.code = KVC_OK};
    open_data(&in, "damaged/bad-npz-trunc.npz");
    assert_null(kvc_format_import(format, &in, NULL, &e));
    assert_int_equal(e.code, KVC_ERR_DAMAGED);
    assert_non_null(strstr(e.message, "central directory"));
    kvc_input_close(&in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_import),    cmocka_unit_test(test_npy),
        cmocka_unit_test(test_members),   cmocka_unit_test(test_bomb),
        cmocka_unit_test(test_mutations), cmocka_unit_test(test_crc),
        cmocka_unit_test(test_probe),     cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_real),      cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_positions), cmocka_unit_test(test_holes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
