/* test_decoded.c: the store of decoded blocks: what stays in it, what is held, threads that wait
 * for blocks, and threads that read rows of one container through it. */
#include "formats/api/kvc.h"
#include "formats/container/decoded.h"

#include "codecs/error.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 100, BLOCKS = 50, READERS = 4, READS = 3000, ROW = 4096 };

static struct kvc_decoded *store_of(uint64_t bytes, int one_each) {
    struct kvc_decoded *d = kvc_decoded_new(bytes, one_each, NULL);
    assert_non_null(d);
    return d;
}

/* Puts a block in that is filled with its number. */
static struct kvc_decoded_block *put(struct kvc_decoded *d, uint32_t tensor, uint64_t block,
                                     int kind) {
    struct kvc_decoded_block *b = kvc_decoded_block(d, tensor, block, kind, SIZE, NULL);
    assert_non_null(b);
    memset(b->bytes, (int)(block + tensor), SIZE);
    kvc_decoded_put(d, b);
    return b;
}

static int has(struct kvc_decoded *d, uint32_t tensor, uint64_t block, int kind) {
    struct kvc_decoded_block *b = kvc_decoded_find(d, tensor, block, kind);
    if (!b) return 0;
    assert_int_equal(b->tensor, tensor);
    assert_int_equal(b->block, block);
    assert_int_equal(b->bytes[SIZE - 1], (uint8_t)(block + tensor));
    kvc_decoded_release(b, 1);
    return 1;
}

static void the_block_used_longest_ago_goes_first(void **state) {
    (void)state;
    struct kvc_decoded *d = store_of(3 * SIZE, 0);
    for (uint64_t i = 0; i < 3; i++) kvc_decoded_release(put(d, 7, i, 0), 1);
    assert_true(has(d, 7, 0, 0));
    assert_false(has(d, 7, 0, 1)); /* another kind */
    assert_false(has(d, 7 + 256, 0, 0));
    kvc_decoded_release(put(d, 8, 9, 0), 1);
    assert_true(has(d, 7, 0, 0) && has(d, 7, 2, 0) && has(d, 8, 9, 0));
    assert_false(has(d, 7, 1, 0));
    kvc_decoded_trim(d, SIZE);
    assert_true(has(d, 8, 9, 0));
    assert_false(has(d, 7, 0, 0) || has(d, 7, 2, 0));
    kvc_decoded_free(d);
}

static void a_held_block_stays(void **state) {
    (void)state;
    struct kvc_decoded *d = store_of(0, 0);
    struct kvc_decoded_block *b = put(d, 1, 2, 0);
    kvc_decoded_release(put(d, 1, 3, 0), 1);
    assert_true(has(d, 1, 2, 0));
    kvc_decoded_trim(d, 0);
    assert_ptr_equal(kvc_decoded_find(d, 1, 2, 0), b);
    assert_false(has(d, 1, 3, 0));
    kvc_decoded_release(b, 2);
    kvc_decoded_trim(d, 0);
    assert_false(has(d, 1, 2, 0));
    kvc_decoded_free(d);
}

static void one_block_of_each_tensor_stays(void **state) {
    (void)state;
    struct kvc_decoded *d = store_of(UINT64_MAX, 1);
    for (uint32_t t = 0; t < 2; t++)
        for (uint64_t i = 0; i < 5; i++) kvc_decoded_release(put(d, 256 * t, i, 0), 1);
    for (uint64_t i = 0; i < 5; i++)
        assert_true(has(d, 0, i, 0) == (i == 4) && has(d, 256, i, 0) == (i == 4));
    struct kvc_decoded_block *held = kvc_decoded_find(d, 0, 4, 0);
    kvc_decoded_release(put(d, 0, 6, 0), 1);
    assert_true(has(d, 0, 4, 0) && has(d, 0, 6, 0));
    kvc_decoded_release(held, 1);
    kvc_decoded_release(put(d, 0, 7, 0), 1);
    assert_false(has(d, 0, 4, 0) || has(d, 0, 6, 0));
    assert_true(has(d, 0, 7, 0));
    kvc_decoded_free(d);
}

/* --- threads --- */

struct waiting {
    struct kvc_decoded *store;
    int failed, found; /* by the thread */
};

static void *await_blocks(void *state) {
    struct waiting *w = state;
    struct kvc_decoded_block *b;
    for (uint64_t i = 0; (b = kvc_decoded_await(w->store, 3, i, 0, &w->failed)); i++) {
        w->found += b->block == i && b->bytes[0] == (uint8_t)(i + 3);
        kvc_decoded_release(b, 1);
    }
    return NULL;
}

static void a_thread_gets_the_blocks_that_another_puts_in(void **state) {
    (void)state;
    struct waiting w = {.store = store_of(UINT64_MAX, 0)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, await_blocks, &w), 0);
    for (uint64_t i = 0; i < BLOCKS; i++) put(w.store, 3, i, 0);
    put(w.store, 3, BLOCKS + 1, 0); /* the one before never comes */
    kvc_decoded_fail(w.store, &w.failed);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_in_range(w.found, 0, BLOCKS);
    struct waiting again = {.store = w.store, .failed = 1}; /* blocks that are there are found */
    await_blocks(&again);
    assert_int_equal(again.found, BLOCKS);
    kvc_decoded_free(w.store);
}

struct reader {
    const struct kvc_file *file;
    uint8_t *const *rows; /* by tensor */
    uint32_t seed;
    unsigned wrong;
};

/* Reads single rows and runs across the ends of blocks, and compares them. */
static void *read_rows(void *state) {
    struct reader *r = state;
    const uint32_t tensors = kvc_file_tensors(r->file);
    uint8_t *row = malloc(3 * ROW);
    for (unsigned i = 0; i < READS && row; i++) {
        struct kvc_tensor_info t = {.size = sizeof t};
        r->seed = r->seed * 1664525 + 1013904223;
        const uint32_t tensor = (r->seed >> 8) % tensors;
        kvc_file_tensor(r->file, tensor, &t);
        const uint64_t n = 1 + i % 3, first = (r->seed >> 12) % (t.rows - n + 1);
        r->wrong += kvc_file_read(r->file, tensor, first, n, row, 3 * ROW, NULL) ||
                    memcmp(row, r->rows[tensor] + first * t.row_bytes, (size_t)(n * t.row_bytes));
    }
    r->wrong += !row;
    free(row);
    return NULL;
}

/* `memory`: bytes that decoding may take; 0: the default. */
static void check_readers(uint64_t memory) {
    const struct kvc_open_options options = {.size = sizeof options, .max_memory = memory};
    struct kvc_file *f = kvc_file_open("samples/prompt.safetensors.kvc", &options, NULL);
    assert_non_null(f);
    const uint32_t tensors = kvc_file_tensors(f);
    uint8_t **rows = calloc(tensors, sizeof *rows);
    assert_non_null(rows);
    for (uint32_t i = 0; i < tensors; i++) {
        struct kvc_tensor_info t = {.size = sizeof t};
        assert_int_equal(kvc_file_tensor(f, i, &t), 0);
        assert_true(t.rows >= 3 && t.row_bytes <= ROW);
        assert_non_null(rows[i] = malloc((size_t)(t.rows * t.row_bytes)));
        assert_int_equal(kvc_file_read(f, i, 0, t.rows, rows[i], t.rows * t.row_bytes, NULL), 0);
    }
    struct reader reader[READERS];
    pthread_t thread[READERS];
    for (uint32_t i = 0; i < READERS; i++) {
        reader[i] = (struct reader){f, rows, i + 1, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, read_rows, &reader[i]), 0);
    }
    for (int i = 0; i < READERS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_int_equal(reader[i].wrong, 0);
    }
    for (uint32_t i = 0; i < tensors; i++) free(rows[i]);
    free(rows);
    kvc_file_close(f);
}

static void threads_read_rows_of_one_container(void **state) {
    (void)state;
    check_readers(0);
    check_readers(1 << 23); /* of which few blocks may be kept */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_block_used_longest_ago_goes_first),
        cmocka_unit_test(a_held_block_stays),
        cmocka_unit_test(one_block_of_each_tensor_stays),
        cmocka_unit_test(a_thread_gets_the_blocks_that_another_puts_in),
        cmocka_unit_test(threads_read_rows_of_one_container),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
