/* test_handles.c: the file of kvc-unpack --into (cli/handles.c): what it says, and what is refused. Not for the memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/handles.h"
#include "codecs/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define H1                                                             \
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f" \
    "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
#define POOL "\"pool\": {\"layers\": 2, \"pages\": 8, \"page_size\": 16, \"heads\": 3, \"dim\": 64}"
#define BASE "{\"handle\": \"" H1 "\", \"offset\": 512}"
#define TWO "\"bases\": [" BASE ", {\"handle\": \"" H1 "\"}]"

static int read_text(struct cli_handles *h, const char *text, struct kvc_error *e) {
    char path[] = "/tmp/kvc-handles-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    int status = cli_handles_read(h, path, e);
    unlink(path);
    return status;
}

static void named_layout(void **state) {
    (void)state;
    struct cli_handles h;
    struct kvc_error e;
    static const char text[] = "{\"layout\": \"vllm-flash\", " POOL ", \"dtype\": \"bf16\", \"table\": [5, 0, 7], "
                               "\"first\": 15, \"first_layer\": 4, " TWO "}";
    assert_int_equal(read_text(&h, text, &e), 0);
    const struct kvc_cuda_destination *d = &h.destination;
    assert_string_equal(d->layout, "vllm-flash");
    assert_string_equal(d->dtype, "bf16");
    assert_true(d->pool.layers == 2 && d->pool.pages == 8 && d->pool.page_size == 16 && d->pool.heads == 3);
    assert_true(d->pool.dim == 64 && d->pool.value_bytes == 2 && d->first == 15 && d->first_layer == 4);
    assert_int_equal(d->n_table, 3);
    assert_true(d->table[0] == 5 && d->table[1] == 0 && d->table[2] == 7);
    assert_int_equal(h.n_bases, 2);
    assert_true(h.base[0].offset == 512 && h.base[1].offset == 0);
    for (unsigned i = 0; i < KVC_CUDA_HANDLE; i++) assert_int_equal(h.base[1].handle[i], i);
    cli_handles_free(&h);
}

static void given_strides(void **state) {
    (void)state;
    struct cli_handles h;
    struct kvc_error e;
    static const char text[] = "{\"layout\": null, " POOL ", \"dtype\": \"f32\", \"table\": null, \"strides\": {\"layer\": 1, "
                               "\"kv\": -2, \"page\": 3, \"token\": 4, \"head\": 5, \"dim\": 281474976710656}, "
                               "\"bases\": [" BASE "]}";
    assert_int_equal(read_text(&h, text, &e), 0);
    const struct kvc_pool_strides *s = &h.destination.strides;
    assert_true(s->layer == 1 && s->kv == -2 && s->page == 3 && s->token == 4 && s->head == 5 && s->dim == INT64_C(1) << 48);
    assert_null(h.destination.layout);
    assert_null(h.destination.table);
    assert_true(h.destination.first == 0 && h.destination.first_layer == 0 && h.destination.pool.value_bytes == 4);
    cli_handles_free(&h);
}

#define GOOD(layout, rest) "{\"layout\": \"" layout "\", \"dtype\": \"f16\", " rest "}"
#define SIZES(a, b, c, d, e) \
    "\"pool\": {\"layers\": " a ", \"pages\": " b ", \"page_size\": " c ", \"heads\": " d ", \"dim\": " e "}, "

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "no JSON"},
        {"[]", "it is missing, or is no object"},
        {"{}", "dtype is none of"},
        {"{\"dtype\": \"f16\", \"dtype\": \"f16\"}", "no JSON"},
        {GOOD("dense", POOL ", \"bases\": [" BASE "], \"colour\": 1"), "colour is no known key"},
        {"{\"dtype\": \"q8_0\", " POOL "}", "dtype is none of"},
        {"{\"dtype\": \"u8\", " POOL "}", "dtype is none of"},
        {"{\"dtype\": 7, " POOL "}", "dtype is none of"},
        {GOOD("dense", "\"bases\": []"), "pool. is missing"},
        {GOOD("dense", "\"pool\": 5"), "pool. is missing, or is no object"},
        {GOOD("dense", "\"pool\": {\"layer\": 5}"), "pool.layer is no known key"},
        {GOOD("dense", "\"pool\": {\"layers\": 5}"), "pool.pages is not a number from 1 to 4294967295"},
        {GOOD("dense", SIZES("0", "1", "1", "1", "1") TWO), "pool.layers is not a number from 1 to 4096"},
        {GOOD("dense", SIZES("4097", "1", "1", "1", "1") TWO), "pool.layers is not a number"},
        {GOOD("dense", SIZES("1", "-1", "1", "1", "1") TWO), "pool.pages is not a number"},
        {GOOD("dense", SIZES("1", "1", "1.0", "1", "1") TWO), "pool.page_size is not a number"},
        {GOOD("dense", SIZES("1", "1", "1", "\"1\"", "1") TWO), "pool.heads is not a number"},
        {GOOD("dense", SIZES("1", "1", "1", "1", "4294967296") TWO), "pool.dim is not a number"},
        {GOOD("dense", SIZES("1", "1", "1", "1", "99999999999999999999") TWO), "no JSON"},
        {GOOD("dense", SIZES("4096", "4294967295", "4294967295", "1", "1") TWO), "pool does not fit its layout"},
        {GOOD("vllm-mla", POOL ", " TWO), "pool does not fit its layout"}, /* three heads */
        {GOOD("vllm-fast", POOL ", " TWO), "layout is no layout that kvc knows"},
        {"{\"layout\": 3, \"dtype\": \"f16\", " POOL "}", "layout is no layout"},
        {"{\"dtype\": \"f16\", " POOL ", " TWO "}", "strides. is missing"},
        {"{\"dtype\": \"f16\", " POOL ", \"strides\": {\"layer\": 1}, " TWO "}", "strides.kv is not a number"},
        {GOOD("dense", POOL ", \"strides\": {}, " TWO), "strides come with a layout"},
        {GOOD("vllm-flash", POOL ", \"table\": [], " TWO), "table is no list of pages"},
        {GOOD("vllm-flash", POOL ", \"table\": 3, " TWO), "table is no list of pages"},
        {GOOD("vllm-flash", POOL ", \"table\": [0, 1, 2, 3, 4, 5, 6, 7, 0], " TWO), "table is no list of pages"},
        {GOOD("vllm-flash", POOL ", \"table\": [0, 8], " TWO), "table has a number that is no page"},
        {GOOD("vllm-flash", POOL ", \"table\": [-1], " TWO), "table has a number that is no page"},
        {GOOD("vllm-flash", POOL ", \"table\": [\"1\"], " TWO), "table has a number that is no page"},
        {GOOD("vllm-flash", POOL ", \"first\": 16, " TWO), "first is not a number from 0 to 15"},
        {GOOD("vllm-flash", POOL ", \"first\": -1, " TWO), "first is not a number"},
        {GOOD("vllm-flash", POOL ", \"first_layer\": 4294967295, " TWO), "first_layer is not a number"},
        {GOOD("vllm-flash", POOL), "bases are missing"},
        {GOOD("vllm-flash", POOL ", \"bases\": {}"), "bases are missing, or no list"},
        {GOOD("vllm-flash", POOL ", \"bases\": []"), "bases are not as many as the layout has allocations"},
        {GOOD("dense", POOL ", " TWO), "bases are not as many"},
        {"{\"dtype\": \"f16\", " POOL ", \"strides\": {\"layer\": 1, \"kv\": 1, \"page\": 1, \"token\": 1, \"head\": 1, "
         "\"dim\": 1}, \"bases\": [" BASE ", " BASE ", " BASE "]}",
         "bases are neither 1, nor 1 or 2 a layer"},
        {GOOD("dense", POOL ", \"bases\": [\"" H1 "\"]"), "bases. is missing, or is no object"},
        {GOOD("dense", POOL ", \"bases\": [{\"handle\": \"" H1 "\", \"size\": 1}]"), "bases.size is no known key"},
        {GOOD("dense", POOL ", \"bases\": [{\"offset\": 0}]"), "bases.handle is not 128 hexadecimal digits"},
        {GOOD("dense", POOL ", \"bases\": [{\"handle\": \"0" H1 "\"}]"), "bases.handle is not 128"},
        {GOOD("dense", POOL ", \"bases\": [{\"handle\": \"" H1 "\", \"offset\": -1}]"), "bases.offset is not a number"},
        {GOOD("dense", POOL ", \"bases\": [{\"handle\": \"" H1 "\", \"offset\": \"0\"}]"), "bases.offset is not a number"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct cli_handles h;
        struct kvc_error e = {.code = KVC_OK};
        assert_int_equal(read_text(&h, bad[i].text, &e), -1);
        if (!strstr(e.message, bad[i].says)) fail_msg("%s\n  gave: %s\n  not: %s", bad[i].text, e.message, bad[i].says);
        assert_null(h.base);
        assert_null(h.table);
    }
}

static void unreadable(void **state) {
    (void)state;
    struct cli_handles h;
    struct kvc_error e;
    assert_int_equal(cli_handles_read(&h, "/nonexistent/handles", &e), -1);
    assert_int_equal(e.code, KVC_ERR_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_layout),
        cmocka_unit_test(given_strides),
        cmocka_unit_test(refused),
        cmocka_unit_test(unreadable),
    };
    return cmocka_run_group_tests_name("handles", tests, NULL, NULL);
}
