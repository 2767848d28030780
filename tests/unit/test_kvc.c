/* test_kvc.c: the public interface alone, as a program that links libkvc uses it. */
#include "formats/kvc.h"

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
        cmocka_unit_test(what_cannot_be_opened),
        cmocka_unit_test(versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
