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
    case 0: return (float)(seed >> 8);                         /* no order */
    case 1: return (float)(seed >> 30) - 1;                    /* many equal ones, -0 too */
    case 2: return (float)i;                                   /* ascending */
    case 3: return (float)(n - i);                             /* descending */
    case 4: return 3;                                          /* all equal */
    case 5: return i < n / 2 ? (float)i : (float)(n - i);      /* up and down */
    default: return seed >> 31 ? INFINITY : (float)(seed & 7); /* as scores of tokens that no query sees */
    }
}

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void selects(void **state) {
    (void)state;
    static const size_t counts[] = {1, 2, 3, 4, 7, 64, 299, MOST};
    float x[MOST], sorted[MOST], v[MOST];
    for (unsigned kind = 0; kind < 7; kind++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            const size_t n = counts[c];
            for (size_t i = 0; i < n; i++) x[i] = number(kind, i, n);
            memcpy(sorted, x, sizeof x);
            qsort(sorted, n, sizeof *sorted, ascending);
            for (size_t k = 0; k < n; k++) {
                memcpy(v, x, sizeof v);
                const float found = kvc_select(v, n, k);
                assert_true(found >= sorted[k] && found <= sorted[k]);
                for (size_t i = 0; i < n; i++) assert_true(i <= k ? v[i] <= found : v[i] >= found);
                qsort(v, n, sizeof *v, ascending); /* nothing is lost */
                for (size_t i = 0; i < n; i++) assert_true(v[i] >= sorted[i] && v[i] <= sorted[i]);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(selects)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
