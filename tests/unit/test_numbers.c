/* test_numbers.c: numbers as people type and read them (cli/numbers.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/cli.h"
#include "cli/kld_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void u64(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t v;
    } good[] = {{"0", 0},
                {"7", 7},
                {"0010", 10},
                {"4K", 4096},
                {"4k", 4096},
                {"3M", 3 << 20},
                {"2G", UINT64_C(2) << 30},
                {"18446744073709551615", UINT64_MAX},
                {"17179869183G", UINT64_C(17179869183) << 30}};
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "-1",
                                      "+1",
                                      "0x10",
                                      "1.5",
                                      "1kk",
                                      "K",
                                      "1KK",
                                      "18446744073709551616",
                                      "17179869184G",
                                      "99999999999999999999999"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t v = 1;
        assert_int_equal(cli_parse_u64(good[i].text, &v), 0);
        assert_true(v == good[i].v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t v = 42;
        assert_int_equal(cli_parse_u64(bad[i], &v), -1);
        assert_true(v == 42);
    }
}

static void f64(void **state) {
    (void)state;
    static const char *const bad[] = {"",   " 1",    "1 ", "nan", "inf", "0x1p3",
                                      "1e", "1e999", "-",  ".",   "1,5", "1.2.3"};
    double v = 0;
    assert_int_equal(cli_parse_f64("1e-3", &v), 0);
    assert_true(v == 1e-3);
    assert_int_equal(cli_parse_f64("-2.5", &v), 0);
    assert_true(v == -2.5);
    assert_int_equal(cli_parse_f64("+0", &v), 0);
    assert_true(v == 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(cli_parse_f64(bad[i], &v), -1);
}

static void ranges(void **state) {
    (void)state;
    static const char *const bad[] = {"",      ":",   "5",    "3:2",  "a:b",
                                      "1:2:3", "1-2", "-1:2", "1: 2", "1:2x"};
    uint64_t first, end;
    assert_int_equal(cli_parse_range("2:5", &first, &end), 0);
    assert_true(first == 2 && end == 5);
    assert_int_equal(cli_parse_range("2:", &first, &end), 0);
    assert_true(first == 2 && end == UINT64_MAX);
    assert_int_equal(cli_parse_range(":4K", &first, &end), 0);
    assert_true(first == 0 && end == 4096);
    assert_int_equal(cli_parse_range("3:3", &first, &end), 0);
    assert_true(first == 3 && end == 3);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(cli_parse_range(bad[i], &first, &end), -1);
}

/* The rows of kvc-quality(7): a limit belongs to the row above it. */
static void divergences(void **state) {
    static const struct {
        double nats;
        const char *words;
    } due[] = {{1e-12, "89 %"},   {0.00029, "89 %"},    {0.0003, "57 %"}, {0.0016, "38 %"},
               {0.005, "21 %"},   {0.005, "one in 30"}, {0.01, "2 %"},    {0.0999, "one in 9"},
               {0.1, "one in 4"}, {1e300, "one in 4"}};
    char text[160];
    (void)state;
    for (size_t i = 0; i < sizeof due / sizeof due[0]; i++)
        assert_non_null(
            strstr(cli_kld_text(CLI_KLD_TOKENS, due[i].nats, text, sizeof text), due[i].words));
    assert_non_null(
        strstr(cli_kld_text(CLI_KLD_ATTENTION, 0.0002, text, sizeof text), "at most 1 %"));
    assert_non_null(
        strstr(cli_kld_text(CLI_KLD_ATTENTION, 0.5, text, sizeof text), "at most 50 %"));
    assert_non_null(strstr(cli_kld_text(CLI_KLD_ATTENTION, 7, text, sizeof text), "at most 100 %"));
}

static void lists(void **state) {
    (void)state;
    static const char *const bad[] = {"",  ",",   "1,",      ",1",           "3-2", "1-",
                                      "a", "1 2", "1048576", "0-4000000000", "1--2"};
    uint8_t *keep = NULL;
    uint32_t n = 0;
    assert_int_equal(cli_parse_list("0-3,7", &keep, &n), 0);
    assert_int_equal(n, 8);
    assert_memory_equal(keep, "\1\1\1\1\0\0\0\1", 8);
    assert_int_equal(cli_parse_list("5", &keep, &n), 0); /* adds up */
    assert_int_equal(n, 8);
    assert_memory_equal(keep, "\1\1\1\1\0\1\0\1", 8);
    assert_int_equal(cli_parse_list("9", &keep, &n), 0);
    assert_int_equal(n, 10);
    assert_memory_equal(keep, "\1\1\1\1\0\1\0\1\0\1", 10);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(cli_parse_list(bad[i], &keep, &n), -1);
    free(keep);
}

static void float_reads_back(uint32_t bits) {
    float v, back;
    char text[32];
    memcpy(&v, &bits, sizeof v);
    cli_float_text(v, text);
    if (!isfinite(v)) return;
    back = strtof(text, NULL);
    assert_memory_equal(&back, &v, sizeof v);
}

static void float_text(void **state) {
    (void)state;
    char text[32];
    cli_float_text(0.5f, text);
    assert_string_equal(text, "0.5");
    cli_float_text(0.1f, text);
    assert_string_equal(text, "0.1");
    cli_float_text(-0.0f, text);
    assert_string_equal(text, "-0");
    cli_float_text(NAN, text);
    assert_string_equal(text, "NaN");
    cli_float_text(-INFINITY, text);
    assert_string_equal(text, "-Infinity");
    /* every exponent, with awkward mantissas */
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        float_reads_back(exponent << 23);
        float_reads_back(exponent << 23 | 1);
        float_reads_back(exponent << 23 | 0x7fffff);
        float_reads_back(UINT32_C(1) << 31 | exponent << 23 | 0x2aaaab);
    }
    for (uint32_t i = 0, bits = 1; i < 20000; i++, bits = bits * 1664525u + 1013904223u)
        float_reads_back(bits);
}

static void double_text(void **state) {
    (void)state;
    char text[32];
    uint64_t bits = 1;
    cli_double_text(0.1, text);
    assert_string_equal(text, "0.1");
    cli_double_text(100000, text);
    assert_string_equal(text, "100000");
    cli_double_text(INFINITY, text);
    assert_string_equal(text, "Infinity");
    for (int i = 0; i < 20000;
         i++, bits = bits * UINT64_C(6364136223846793005) + 1442695040888963407u) {
        double v, back;
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v)) continue;
        cli_double_text(v, text);
        back = strtod(text, NULL);
        assert_memory_equal(&back, &v, sizeof v);
    }
}

static void sizes(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},           {999, "999 B"},     {1000, "1.0 kB"},      {25819488, "25.8 MB"},
        {999949, "999.9 kB"}, {999950, "1.0 MB"}, {999999999, "1.0 GB"}, {UINT64_MAX, "18.4 EB"}};
    char text[32];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cli_size_text(cases[i].bytes, text);
        assert_string_equal(text, cases[i].text);
    }
}

/* The last test: the unit stays. */
static void sizes_by_1024(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1000, "1000 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {1048524, "1023.9 KiB"},
                 {1048525, "1.0 MiB"},
                 {62914560, "60.0 MiB"},
                 {UINT64_MAX, "16.0 EiB"}};
    char text[32];
    cli_sizes_by_1024();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cli_size_text(cases[i].bytes, text);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(u64),         cmocka_unit_test(f64),   cmocka_unit_test(ranges),
        cmocka_unit_test(divergences), cmocka_unit_test(lists), cmocka_unit_test(float_text),
        cmocka_unit_test(double_text), cmocka_unit_test(sizes), cmocka_unit_test(sizes_by_1024),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
