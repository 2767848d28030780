/* test_kvc.c: the public interface alone, as a program that links libkvc uses it. */
#include "formats/api/kvc.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct memory {
    uint8_t *data;
    size_t n;
};

static int append(void *state, const void *data, size_t n) {
    struct memory *m = state;
    uint8_t *grown = realloc(m->data, m->n + n);
    if (!grown) return -1;
    memcpy(grown + m->n, data, n);
    m->data = grown;
    m->n += n;
    return 0;
}

static int refuse(void *state, const void *data, size_t n) {
    (void)state, (void)data, (void)n;
    return 1;
}

static struct memory file_bytes(const char *path) {
    struct memory m = {0};
    uint8_t chunk[4096];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f) return m;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) append(&m, chunk, n);
    fclose(f);
    return m;
}

#define SAMPLE "samples/slot-f16.bin"

static void a_slot_through_the_library(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct memory source = file_bytes(SAMPLE), packed = {0}, back = {0}, converted = {0};
    struct kvc_open_options options = {.kv_heads = 3, .pairing = "interleaved"};
    struct kvc_file *f = kvc_file_open(SAMPLE, &options, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    assert_string_equal(kvc_file_format(f), "llama");
    assert_int_equal(kvc_file_tensors(f), 60);
    struct kvc_tensor_info info;
    assert_int_equal(kvc_file_tensor(f, 0, &info), 0);
    assert_int_equal(kvc_file_tensor(f, 60, &info), -1);
    assert_string_equal(info.role, "K");
    assert_string_equal(info.dtype, "f16");
    assert_int_equal(info.rows, 16);
    assert_int_equal(info.heads, 3);
    assert_int_equal(info.dim, 64);
    assert_int_equal(info.row_bytes, 384);
    assert_int_equal(kvc_file_position(f, 0, 5), 5);
    uint64_t n;
    const int32_t *tokens = kvc_file_tokens(f, &n);
    assert_int_equal(n, 16);
    assert_int_equal(tokens[0], 42185);
    char text[64];
    assert_string_equal(kvc_file_meta(f, "source.format", text, sizeof text), "llama.cpp GGSQ");
    assert_null(kvc_file_meta(f, "no.such.key", text, sizeof text));
    assert_int_equal(kvc_file_meta_size(f, "no.such.key"), 0);
    assert_int_equal(kvc_file_meta_size(f, "source.format"), sizeof "llama.cpp GGSQ");
    assert_ptr_equal(kvc_file_meta(f, "source.format", text, sizeof "llama.cpp GGSQ"), text);
    assert_null(kvc_file_meta(f, "source.format", text, sizeof "llama.cpp GGSQ" - 1)); /* nothing is cut off */
    assert_string_equal(text, "");
    assert_null(kvc_file_meta(f, "source.format", NULL, 0));

    struct kvc_write_options pack = {.recipe = "zstd", .threads = 2};
    assert_int_equal(kvc_file_pack(f, &pack, append, &packed, e), 0);
    struct kvc_file *p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    if (!p) fail_msg("%s", kvc_error_message(e));
    assert_string_equal(kvc_file_format(p), "kvc");
    assert_int_equal(kvc_file_check(p, 2, e), 0);
    uint8_t a[384], b[384];
    assert_int_equal(kvc_file_read(f, 7, 3, 1, a, e), 0);
    assert_int_equal(kvc_file_read(p, 7, 3, 1, b, e), 0);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(kvc_file_read(p, 7, 16, 1, b, e), -1);
    assert_int_equal(kvc_file_read(p, 60, 0, 1, b, e), -1);
    assert_int_equal(kvc_file_unpack(p, NULL, NULL, append, &back, e), 0);
    assert_int_equal(back.n, source.n);
    assert_memory_equal(back.data, source.data, source.n);
    assert_int_equal(kvc_file_unpack(p, "safetensors", NULL, append, &converted, e), 0);
    assert_true(converted.n > 368640);
    assert_int_equal(kvc_file_unpack(p, "bogus", NULL, append, &converted, e), -1);
    assert_int_equal(kvc_error_code(e), 10);
    assert_int_equal(kvc_file_pack(p, NULL, refuse, NULL, e), -1);
    assert_int_equal(kvc_error_code(e), 21);
    kvc_file_close(p);

    packed.data[packed.n / 2] ^= 4; /* somewhere in the blocks */
    p = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    assert_non_null(p);
    assert_int_equal(kvc_file_check(p, 1, e), -1);
    assert_int_equal(kvc_error_code(e), 31);
    assert_int_equal(kvc_error_severity(e), 2);
    assert_true(kvc_error_offset(e) < packed.n);
    kvc_file_close(p);
    kvc_file_close(f);
    kvc_error_free(e);
    free(source.data);
    free(packed.data);
    free(back.data);
    free(converted.data);
}

static void metadata_lists_are_whole_or_absent(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = kvc_file_open("tests/golden/profile-v0.kvc", NULL, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    char text[65];
    assert_int_equal(kvc_file_meta_size(f, "profile.sha256"), 65); /* hex */
    assert_null(kvc_file_meta(f, "profile.sha256", text, 64));
    assert_ptr_equal(kvc_file_meta(f, "profile.sha256", text, 65), text);
    assert_int_equal(strlen(text), 64);
    kvc_file_close(f);
    kvc_error_free(e);
}

/* Row after row decodes a block once: the second row is still to be had when the file's bytes are gone. */
static void rows_come_from_a_kept_block(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    struct memory packed = file_bytes("tests/golden/split-v0.kvc");
    struct kvc_file *f = kvc_file_open_memory(packed.data, packed.n, NULL, e);
    struct kvc_tensor_info info;
    if (!f) fail_msg("%s", kvc_error_message(e));
    assert_int_equal(kvc_file_tensor(f, 1, &info), 0);
    assert_true(info.rows > 2);
    uint8_t *rows = malloc(info.rows * info.row_bytes), *row = malloc(info.row_bytes);
    assert_true(rows && row);
    assert_int_equal(kvc_file_read(f, 1, 0, info.rows, rows, e), 0);
    assert_int_equal(kvc_file_read(f, 1, 0, 1, row, e), 0);
    assert_memory_equal(row, rows, info.row_bytes);
    memset(packed.data + 64, 0, packed.n - 64);
    assert_int_equal(kvc_file_read(f, 1, 1, 1, row, e), 0);
    assert_memory_equal(row, rows + info.row_bytes, info.row_bytes);
    assert_int_equal(kvc_file_read(f, 1, 1, 0, row, e), 0);
    assert_int_equal(kvc_file_read(f, 0, 0, 1, row, e), -1); /* of another tensor none is kept */
    assert_int_equal(kvc_error_code(e), 31);
    assert_int_equal(kvc_file_read(f, 0, 0, 1, row, e), -1);
    assert_int_equal(kvc_file_check(f, 1, e), -1);
    kvc_file_close(f);
    kvc_error_free(e);
    free(packed.data);
    free(rows);
    free(row);
}

/* Each thread reads all rows one by one, all of them the same tensors. */
static void *read_rows(void *state) {
    const struct kvc_file *f = state;
    struct kvc_tensor_info info;
    uint8_t *row = NULL, *rows = NULL;
    void *bad = NULL;
    for (uint32_t t = 0; !bad && !kvc_file_tensor(f, t, &info); t++) {
        uint8_t *more = realloc(row, info.row_bytes), *all = more ? realloc(rows, info.row_bytes * info.rows) : NULL;
        if (more) row = more;
        if (all) rows = all;
        if (!more || !all || kvc_file_read(f, t, 0, info.rows, rows, NULL)) bad = state;
        for (uint64_t r = 0; !bad && r < info.rows; r++)
            if (kvc_file_read(f, t, r, 1, row, NULL) || memcmp(row, rows + r * info.row_bytes, info.row_bytes) != 0) bad = state;
    }
    free(row);
    free(rows);
    return bad;
}

static void threads_share_kept_blocks(void **state) {
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    struct kvc_error *e = kvc_error_new();
    struct kvc_file *f = kvc_file_open("tests/golden/kivi-v0.kvc", NULL, e);
    void *bad;
    (void)state;
    if (!f) fail_msg("%s", kvc_error_message(e));
    for (unsigned i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&thread[i], NULL, read_rows, f), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(thread[i], &bad);
        assert_null(bad);
    }
    kvc_file_close(f);
    kvc_error_free(e);
}

static void what_cannot_be_opened(void **state) {
    (void)state;
    struct kvc_error *e = kvc_error_new();
    assert_null(kvc_file_open("no/such/file", NULL, e));
    assert_int_equal(kvc_error_code(e), 21);
    assert_non_null(strstr(kvc_error_message(e), "no/such/file"));
    assert_null(kvc_file_open_memory("nothing", 7, NULL, e));
    assert_int_equal(kvc_error_code(e), 30);
    struct kvc_open_options options = {.pairing = "thirds"};
    assert_null(kvc_file_open(SAMPLE, &options, e));
    assert_int_equal(kvc_error_code(e), 10);
    options = (struct kvc_open_options){.model = "no/such/weights"};
    assert_null(kvc_file_open(SAMPLE, &options, e));
    assert_non_null(strstr(kvc_error_message(e), "no/such/weights"));
    assert_null(kvc_file_open("no/such/file", NULL, NULL)); /* an error object is not required */
    kvc_file_close(NULL);
    kvc_error_free(e);
    kvc_error_free(NULL);
}

static void versions(void **state) {
    (void)state;
    assert_int_equal(kvc_version_of_format(), 0);
    assert_true(strlen(kvc_version()) >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_through_the_library),
        cmocka_unit_test(metadata_lists_are_whole_or_absent),
        cmocka_unit_test(rows_come_from_a_kept_block),
        cmocka_unit_test(threads_share_kept_blocks),
        cmocka_unit_test(what_cannot_be_opened),
        cmocka_unit_test(versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
