/* test_libraries.c: libkvc.so, libkvc_store.so and libkvc_cuda.so together in one process, by their
 * public headers, linked as a program links them: handles and errors that one library made are used
 * by another. In a GPU's place is the host (tests/cuda/fake.c). Not for what each library does
 * alone. */
#include "temp_folder.h"

#include "formats/api/kvc.h"
#include "formats/api/kvc_cuda.h"
#include "formats/api/kvc_store.h"
#include "tests/dense_array.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <ftw.h>
#include <unistd.h>
#include <openssl/evp.h>
#include <xxhash.h>

enum { TOKENS = 300, LAYERS = 2, ARRAYS = 2 * LAYERS, HEADS = 2, DIM = 8, ROW = 2 * HEADS * DIM };

static struct kvc_error *e;
static char object_file[512];

/* A cache in memory; its rows are small numbers in binary16, which every stage takes. */
static struct {
    struct kvc_memory memory;
    struct kvc_memory_array array[ARRAYS];
    int32_t ids[TOKENS];
    uint8_t rows[ARRAYS][TOKENS * ROW];
} made;

static void describe(uint8_t rows[ARRAYS][TOKENS * ROW]) {
    static const char *const facts[] = {"model.name=m", "rope.pairing=halves", NULL};
    for (uint32_t i = 0; i < ARRAYS; i++)
        made.array[i] = dense_array(i % 2 ? "V" : "K", i / 2, "f16", 2, HEADS, DIM, rows[i]);
    made.memory = (struct kvc_memory){.size = sizeof made.memory,
                                      .array_size = sizeof made.array[0],
                                      .arrays = made.array,
                                      .n_arrays = ARRAYS,
                                      .tokens = TOKENS,
                                      .token_ids = made.ids,
                                      .n_token_ids = TOKENS,
                                      .facts = facts};
}

static int set_up(void **state) {
    for (int32_t t = 0; t < TOKENS; t++) made.ids[t] = 7 * t;
    for (uint32_t i = 0; i < ARRAYS; i++)
        for (size_t b = 0; b < sizeof made.rows[i]; b++)
            made.rows[i][b] = b % 2 ? (uint8_t)(0x38 + (b / 2 + i) % 5) : (uint8_t)(b * 37 / 2 + i);
    e = kvc_error_new();
    return e ? make_folder(state) : -1;
}

static int tear_down(void **state) {
    kvc_error_free(e);
    return remove_folder(state);
}

#define assert_good(condition)                                                  \
    do {                                                                        \
        if (!(condition)) fail_msg("%s: %s", #condition, kvc_error_message(e)); \
    } while (0)

static struct kvc_file *open_made(void) {
    describe(made.rows);
    struct kvc_file *f = kvc_file_open_arrays(&made.memory, e);
    assert_good(f);
    return f;
}

/* --- a store with one object --- */

struct stored {
    struct kvc_store *store;
    struct kvc_store_namespace *ns;
};
static const struct kvc_store_name name = {"a cache", 7};

static struct stored open_stored(const char *place) {
    char url[256];
    struct stored s;
    struct kvc_file *f = open_made();
    const struct kvc_store_namespace_options options = {.size = sizeof options, .recipe = "split"};
    snprintf(url, sizeof url, "dir:%s/%s?min-free=0&durability=none", folder, place);
    assert_good(s.store = kvc_store_open(url, NULL, e));
    assert_good(s.ns = kvc_store_namespace_like(s.store, f, &options, e));
    assert_good(kvc_store_put_name(s.ns, &name, f, NULL, e) == 0);
    kvc_file_close(f);
    return s;
}

static void close_stored(struct stored s) {
    kvc_store_namespace_close(s.ns);
    kvc_store_close(s.store);
}

static struct kvc_file *get_stored(struct stored s) {
    return kvc_store_get_name(s.ns, &name, NULL, e);
}

static void check_rows(const struct kvc_file *f) {
    static uint8_t rows[TOKENS * ROW];
    for (uint32_t i = 0; i < ARRAYS; i++) {
        assert_good(kvc_file_read(f, i, 0, TOKENS, rows, sizeof rows, e) == 0);
        assert_memory_equal(rows, made.rows[i], sizeof rows);
    }
}

static void a_handle_of_the_store_is_whole(void **state) {
    (void)state;
    struct stored s = open_stored("whole");
    struct kvc_file *f, *part;
    void *packed;
    size_t n;
    assert_good(f = get_stored(s));
    assert_good(kvc_file_check(f, 1, e) == 0);
    check_rows(f);
    const struct kvc_select_options half = {.size = sizeof half, .end = 256};
    assert_good(part = kvc_file_select(f, &half, e));
    assert_good(kvc_file_pack_memory(part, NULL, &packed, &n, e) == 0);
    kvc_file_close(part);
    free(packed);
    /* placed without a copy, and as another layout */
    static uint8_t rows[ARRAYS][TOKENS * ROW];
    describe(rows);
    assert_good(kvc_file_load(f, &made.memory, NULL, e) == 0);
    assert_memory_equal(rows, made.rows, sizeof rows);
    const struct kvc_write_options lossy = {.size = sizeof lossy, .lossy_metadata = 1};
    assert_good(kvc_file_unpack_memory(f, "safetensors", &lossy, NULL, 0, &n, e) == 0);
    assert_true(n > sizeof rows);
    /* back into the store under another name: the store takes a handle of its own */
    const struct kvc_store_name other = {"another", 7};
    assert_good(kvc_store_put_name(s.ns, &other, f, NULL, e) == 0);
    kvc_file_close(f);
    close_stored(s);
}

static int note_object(const char *path, const struct stat *st, int type, struct FTW *walk) {
    (void)st, (void)walk;
    if (type == FTW_F && strstr(path, "damaged/obj/"))
        snprintf(object_file, sizeof object_file, "%s", path);
    return 0;
}

static uint64_t get(const uint8_t *p, unsigned n) {
    uint64_t x = 0;
    for (unsigned i = n; i--;) x = x << 8 | p[i];
    return x;
}

static void put(uint8_t *p, uint64_t x) {
    for (unsigned i = 0; i < 8; i++) p[i] = (uint8_t)(x >> 8 * i);
}

static void seal(uint8_t *record) {
    const size_t size = (size_t)get(record + 4, 4) * 16;
    put(record + 24, XXH3_64bits_withSeed(record + 32, size - 32, XXH3_64bits(record, 24)));
}

static void hash_number(EVP_MD_CTX *h, uint64_t x, unsigned n) {
    uint8_t bytes[8];
    put(bytes, x);
    assert_int_equal(EVP_DigestUpdate(h, bytes, n), 1);
}

/* Writes the content id of the records before the INDEX into the footer. */
static void mend_content(const uint8_t *file, const uint8_t *index, uint8_t *id) {
    EVP_MD_CTX *h = EVP_MD_CTX_new();
    assert_int_equal(EVP_DigestInit_ex(h, EVP_sha256(), NULL), 1);
    assert_int_equal(EVP_DigestUpdate(h, "kvc content 1\n", 14), 1);
    hash_number(h, 8, 4);
    hash_number(h, 0, 4);
    for (const uint8_t *r = file + 32; r < index; r += get(r + 4, 4) * 16) {
        if (!(r[1] & 1)) continue;
        hash_number(h, r[0], 4);
        hash_number(h, get(r + 8, 4), 4);
        hash_number(h, get(r + 12, 4), 4);
        hash_number(h, get(r + 24, 8), 8);
    }
    assert_int_equal(EVP_DigestFinal_ex(h, id, NULL), 1);
    EVP_MD_CTX_free(h);
}

/* Gives the first block of a container another digest, and mends whatever covers it (FORMAT.md 3 to
 * 5): only who decodes the block can find that its rows are not those that the digest is of. */
static void spoil_digest(uint8_t *file, size_t n) {
    uint8_t *index = file + get(file + n - 64, 8), *block = file + 32;
    while (block[0] != 7) block += get(block + 4, 4) * 16;
    uint8_t old[4]; /* as INDEX has it */
    memcpy(old, block + 24, sizeof old);
    block[16] ^= 1;
    seal(block);
    for (uint8_t *p = index + 32; p < file + n - 64; p++)
        if (memcmp(p, old, 4) == 0) memcpy(p, block + 24, 4);
    seal(index);
    mend_content(file, index, file + n - 48);
    put(file + n - 8, XXH3_64bits_withSeed(file + n - 64, 56, get(index + 24, 8)));
}

/* A handle that libkvc_store made of a file whose digest is wrong: libkvc, which checks it, finds
 * that. */
static void damage_is_found_across_libraries(void **state) {
    (void)state;
    static uint8_t bytes[1 << 18];
    struct stored s = open_stored("damaged");
    struct kvc_file *f;
    nftw(folder, note_object, 16, FTW_PHYS);
    FILE *object = fopen(object_file, "r+b");
    assert_non_null(object);
    const size_t n = fread(bytes, 1, sizeof bytes, object);
    assert_in_range(n, 1000, sizeof bytes - 1);
    spoil_digest(bytes, n);
    rewind(object);
    assert_int_equal(fwrite(bytes, 1, n, object), n);
    assert_int_equal(fclose(object), 0);
    assert_good(f = get_stored(s));
    assert_int_equal(kvc_file_check(f, 1, e), -1);
    assert_int_equal(kvc_error_code(e), 31);
    kvc_file_close(f);
    close_stored(s);
}

/* --- the device --- */

static int append(void *state, const void *data, size_t n) {
    return fwrite(data, 1, n, state) == n ? 0 : 1;
}

static void a_file_of_the_device_is_whole(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/device.kvc", folder);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    describe(made.rows);
    const struct kvc_write_options options = {.size = sizeof options, .recipe = "fast"};
    assert_good(kvc_cuda_pack(&made.memory, NULL, &options, append, out, NULL, e) == 0);
    assert_int_equal(fclose(out), 0);
    struct kvc_file *f;
    assert_good(f = kvc_file_open(path, NULL, e));
    assert_good(kvc_file_check(f, 1, e) == 0);
    check_rows(f);
    /* through the store, and back onto the device */
    struct stored s = open_stored("device");
    const struct kvc_store_name of_device = {"of the device", 13};
    assert_good(kvc_store_put_name(s.ns, &of_device, f, NULL, e) == 0);
    kvc_file_close(f);
    assert_good(f = kvc_store_get_name(s.ns, &of_device, NULL, e));
    assert_good(kvc_file_check(f, 1, e) == 0);
    check_rows(f);
    kvc_file_close(f);
    close_stored(s);
    const struct kvc_cuda_options verify = {.size = sizeof verify, .verify = 1};
    struct kvc_cuda_plan *plan;
    static uint8_t rows[TOKENS * ROW];
    assert_good(plan = kvc_cuda_plan_new(path, &verify, NULL, e));
    assert_good(kvc_cuda_load(plan, NULL, e) == 0 && kvc_cuda_finish(plan, e) == 0);
    for (uint32_t i = 0; i < ARRAYS; i++) {
        assert_good(kvc_cuda_read(plan, i, 0, TOKENS, rows, sizeof rows, e) == 0);
        assert_memory_equal(rows, made.rows[i], sizeof rows);
    }
    kvc_cuda_plan_free(plan);
}

/* A plan whose next load is cancelled loads again; its tensors have handles for other processes. */
static void a_plan_is_cancelled_and_exported(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/plan.kvc", folder);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    struct kvc_file *f = open_made();
    assert_good(kvc_file_pack(f, NULL, append, out, e) == 0);
    assert_int_equal(fclose(out), 0);
    kvc_file_close(f);
    struct kvc_cuda_plan *plan;
    static uint8_t rows[TOKENS * ROW];
    assert_good(plan = kvc_cuda_plan_new(path, NULL, NULL, e));
    kvc_cuda_cancel(plan);
    assert_int_equal(kvc_cuda_load(plan, NULL, e), -1);
    assert_non_null(strstr(kvc_error_message(e), "cancelled"));
    assert_int_equal(kvc_cuda_read(plan, 0, 0, 1, rows, sizeof rows, e), -1);
    assert_good(kvc_cuda_load(plan, NULL, e) == 0 && kvc_cuda_finish(plan, e) == 0);
    kvc_cuda_cancel(NULL);
    uint8_t handle[2][KVC_CUDA_HANDLE];
    uint64_t offset;
    struct kvc_cuda_tensor t = {.size = sizeof t};
    for (uint32_t i = 0; i < ARRAYS; i++) {
        assert_good(kvc_cuda_read(plan, i, 0, TOKENS, rows, sizeof rows, e) == 0);
        assert_memory_equal(rows, made.rows[i], sizeof rows);
        offset = 1;
        assert_good(kvc_cuda_export(plan, i, handle[i % 2], &offset, e) == 0);
        assert_int_equal(kvc_cuda_plan_tensor(plan, i, &t), 0);
        /* the host's handle is the address */
        assert_memory_equal(handle[i % 2], &t.address, sizeof t.address);
        assert_int_equal(offset, 0);
    }
    assert_memory_not_equal(handle[0], handle[1], sizeof handle[0]);
    assert_int_equal(kvc_cuda_export(plan, ARRAYS, handle[0], &offset, e), -1);
    assert_int_equal(kvc_error_code(e), KVC_ERR_USAGE);
    kvc_cuda_plan_free(plan);
}

/* An error that one library fills is read by another. */
static void errors_cross(void **state) {
    (void)state;
    assert_null(kvc_store_open("dir:/tmp/x?nonsense=1", NULL, e));
    assert_int_equal(kvc_error_code(e), 10);
    assert_true(strlen(kvc_error_message(e)) > 0);
    assert_null(kvc_cuda_plan_new("/nowhere", NULL, NULL, e));
    assert_int_equal(kvc_error_code(e), 21);
    assert_string_equal(kvc_version(), kvc_store_version());
    assert_string_equal(kvc_version(), kvc_cuda_version());
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_handle_of_the_store_is_whole),
                                       cmocka_unit_test(damage_is_found_across_libraries),
                                       cmocka_unit_test(a_file_of_the_device_is_whole),
                                       cmocka_unit_test(a_plan_is_cancelled_and_exported),
                                       cmocka_unit_test(errors_cross)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
