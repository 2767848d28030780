/* test_select.c: quickselect beside sorting, for many orders and equal numbers. */
#include "codecs/select.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 300 };

static uint32_t seed = 5;

static float number(unsigned kind, size_t i, size_t n) {
    seed = seed * 1664525 + 1013904223;
    switch (kind) {
    case 0: return (float)(seed >> 8);      /* no order */
    case 1: return (float)(seed >> 30) - 1; /* many equal ones, -0 too */
    case 2: return (float)i;                /* ascending */
    case 3: return (float)(n - i);          /* descending */
    case 4: return 3;                       /* all equal */
    case 5:
        return i < n / 2 ? (float)i : (float)(n - i); /* up and down */
    /* as scores of tokens that no query sees */
    default: return seed >> 31 ? INFINITY : (float)(seed & 7);
    }
}

static int ascending(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void selects(void **state) {
    (void)state;
    static const size_t counts[] = {1, 2, 3, 4, 7, 64, 299, MOST};
    uint64_t x[MOST], sorted[MOST], v[MOST];
    for (unsigned kind = 0; kind < 7; kind++)
        for (size_t c = 0; c < 2 * sizeof counts / sizeof counts[0]; c++) {
            const size_t n = counts[c / 2];
            for (size_t i = 0; i < n; i++)
                x[i] = kvc_select_key(number(kind, i, n), c % 2 ? (uint32_t)i : 0);
            memcpy(sorted, x, sizeof x);
            qsort(sorted, n, sizeof *sorted, ascending);
            for (size_t k = 0; k < n; k++) {
                memcpy(v, x, sizeof v);
                const uint64_t found = kvc_select(v, n, k);
                assert_true(found == sorted[k] && found == v[k]);
                for (size_t i = 0; i < n; i++) assert_true(i <= k ? v[i] <= found : v[i] >= found);
                qsort(v, n, sizeof *v, ascending); /* nothing is lost */
                assert_memory_equal(v, sorted, n * sizeof *v);
            }
        }
}

/* Keys order as values do, and then as numbers do. */
static void keys(void **state) {
    (void)state;
    static const float values[] = {-INFINITY, -3e38f, -1,   -0x1p-149f, 0,
                                   0x1p-149f, 1,      1.5f, 3e38f,      INFINITY};
    for (size_t i = 0; i < 10; i++)
        for (size_t j = 0; j < 10; j++) {
            assert_true(kvc_select_value(kvc_select_key(values[i], (uint32_t)j)) == values[i]);
            assert_int_equal(kvc_select_key(values[i], 7) < kvc_select_key(values[j], 7),
                             values[i] < values[j]);
            if (i < j)
                assert_true(kvc_select_key(values[i], UINT32_MAX) < kvc_select_key(values[j], 0));
        }
    assert_true(kvc_select_key(-0.0f, 3) == kvc_select_key(0, 3) &&
                kvc_select_key(2, 3) < kvc_select_key(2, 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(selects), cmocka_unit_test(keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
