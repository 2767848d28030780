/* test_kept_tables.c: tables kept on a device are told apart by their keys, whatever the keys'
 * hashes are. */
#include "formats/device/kept_tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { KEYS = 300, SIZE = 20 };

static uint64_t one_for_all(const struct kvc_program_key *key) {
    (void)key;
    return 7;
}

/* Keys that differ in one thing at a time: bytes, size, which, and whether the address or the
 * content counts. */
static struct kvc_program_key key_of(uint8_t content[KEYS][SIZE], unsigned i) {
    memset(content[i], 0, SIZE);
    content[i][SIZE - 1] = (uint8_t)(i / 6);
    content[i][0] = (uint8_t)(i / 6 >> 8);
    const size_t size[] = {SIZE, SIZE, SIZE - 1, 0, 0, SIZE};
    struct kvc_program_key key = {content[i], size[i % 6], i % 6 == 1 || i % 6 == 4 ? 3 : 0};
    if (i % 6 == 2 || i % 6 == 5) content[i][1] = (uint8_t)(i / 6 + 1);
    return key;
}

static void tables_are_told_apart(uint64_t (*hash)(const struct kvc_program_key *)) {
    static uint8_t content[KEYS][SIZE], again[KEYS][SIZE];
    struct kvc_kept k = {.hash = hash};
    struct kvc_error e;
    for (unsigned i = 0; i < KEYS; i++) {
        const struct kvc_program_key key = key_of(content, i);
        void *bytes = NULL;
        assert_null(kvc_kept_find(&k, &key, 1 + i % 40));
        if (kvc_kept_add(&k, &key, 1 + i % 40, &bytes, &e)) fail_msg("%s", e.message);
        memset(bytes, (int)(i & 255), 1 + i % 40);
    }
    assert_int_equal(k.n, KEYS);
    for (unsigned i = 0; i < KEYS; i++) { /* by bytes elsewhere, where content counts */
        struct kvc_program_key key = key_of(again, i);
        if (!key.size) key.bytes = content[i];
        const struct kvc_kept_table *t = kvc_kept_find(&k, &key, 1 + i % 40);
        assert_non_null(t);
        assert_int_equal(t->offset % 16, 0);
        for (unsigned n = 0; n < 1 + i % 40; n++) assert_int_equal(k.bytes[t->offset + n], i & 255);
        assert_null(kvc_kept_find(&k, &key, 100)); /* of another size */
    }
    kvc_kept_free(&k);
    assert_null(kvc_kept_find(&k, &(struct kvc_program_key){"x", 1, 0}, 1));
}

static void keys_of_different_hashes(void **state) {
    (void)state;
    tables_are_told_apart(NULL);
}

static void keys_of_one_hash(void **state) {
    (void)state;
    tables_are_told_apart(one_for_all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_different_hashes),
        cmocka_unit_test(keys_of_one_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
