/* test_json.c: writing JSON (cli/json.c) and text that is safe to show (cli/text.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/cli.h"
#include "cli/text.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct captured {
    FILE *out;
    char *text;
    size_t n;
};

static void capture(struct captured *c) {
    c->out = open_memstream(&c->text, &c->n);
    assert_non_null(c->out);
}

static void expect(struct captured *c, const char *want) {
    assert_int_equal(fclose(c->out), 0);
    assert_string_equal(c->text, want);
    free(c->text);
}

static void layout(void **state) {
    (void)state;
    struct captured c;
    struct cli_json j;
    capture(&c);
    cli_json_start(&j, c.out);
    cli_json_open(&j, NULL, '{');
    cli_json_text(&j, "name", "x");
    cli_json_open(&j, "empty", '[');
    cli_json_close(&j);
    cli_json_open(&j, "list", '[');
    cli_json_u64(&j, NULL, UINT64_MAX);
    cli_json_i64(&j, NULL, INT64_MIN);
    cli_json_close(&j);
    cli_json_open(&j, "inner", '{');
    cli_json_bool(&j, "yes", 1);
    cli_json_bool(&j, "no", 0);
    cli_json_close(&j);
    cli_json_hex(&j, "hex", "\x00\xff\x10", 3);
    cli_json_text(&j, "nothing", NULL);
    cli_json_close(&j);
    cli_json_end(&j);
    expect(&c, "{\n"
               "  \"name\": \"x\",\n"
               "  \"empty\": [],\n"
               "  \"list\": [\n"
               "    18446744073709551615,\n"
               "    -9223372036854775808\n"
               "  ],\n"
               "  \"inner\": {\n"
               "    \"yes\": true,\n"
               "    \"no\": false\n"
               "  },\n"
               "  \"hex\": \"00ff10\",\n"
               "  \"nothing\": null\n"
               "}\n");
}

static void compact(void **state) {
    (void)state;
    struct captured c;
    struct cli_json j;
    capture(&c);
    cli_json_start(&j, c.out);
    j.compact = 1;
    cli_json_open(&j, NULL, '[');
    cli_json_u64(&j, NULL, 1);
    cli_json_open(&j, NULL, '{');
    cli_json_u64(&j, "a", 2);
    cli_json_u64(&j, "b", 3);
    cli_json_close(&j);
    cli_json_close(&j);
    cli_json_end(&j);
    expect(&c, "[1, {\"a\": 2, \"b\": 3}]\n");
}

static void doubles(void **state) {
    (void)state;
    struct captured c;
    struct cli_json j;
    capture(&c);
    cli_json_start(&j, c.out);
    j.compact = 1;
    cli_json_open(&j, NULL, '[');
    cli_json_f64(&j, NULL, 0.1);
    cli_json_f64(&j, NULL, -0.0);
    cli_json_f64(&j, NULL, 1e300);
    cli_json_f64(&j, NULL, NAN);
    cli_json_f64(&j, NULL, INFINITY);
    cli_json_f64(&j, NULL, -INFINITY);
    cli_json_close(&j);
    expect(&c, "[0.1, -0.0, 1e+300, \"NaN\", \"Infinity\", \"-Infinity\"]");
}

static void escapes(void **state) {
    (void)state;
    struct captured c;
    struct cli_json j;
    capture(&c);
    cli_json_start(&j, c.out);
    j.compact = 1;
    cli_json_open(&j, NULL, '{');
    cli_json_text(
        &j, "a\"b",
        "tab\t nl\n q\" b\\ esc\x1b del\x7f nel\xc2\x85 \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    cli_json_text(&j, "bad", "x\xff\xc3y\xed\xa0\x80\xc0\xaf");
    cli_json_close(&j);
    expect(
        &c,
        "{\"a\\\"b\": \"tab\\u0009 nl\\u000a q\\\" b\\\\ esc\\u001b del\\u007f nel\\u0085 \xc3\xa9 "
        "\xe2\x82\xac "
        "\xf0\x9f\x98\x80\", \"bad\": \"x\\ufffd\\ufffdy\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\"}");
}

/* Whatever bytes a name holds, a JSON reader takes the result. */
static void any_bytes(void **state) {
    (void)state;
    uint32_t random = 1;
    for (int i = 0; i < 2000; i++) {
        char name[17] = {0};
        struct captured c;
        struct cli_json j;
        json_error_t error;
        for (size_t k = 0; k + 1 < sizeof name; k++) {
            random = random * 1664525u + 1013904223u;
            name[k] = (char)(random >> 24 ? random >> 24 : 1);
        }
        capture(&c);
        cli_json_start(&j, c.out);
        cli_json_open(&j, NULL, '{');
        cli_json_text(&j, name, name);
        cli_json_close(&j);
        cli_json_end(&j);
        assert_int_equal(fclose(c.out), 0);
        json_t *back = json_loads(c.text, JSON_REJECT_DUPLICATES, &error);
        assert_non_null(back);
        json_decref(back);
        free(c.text);
    }
}

static void utf8(void **state) {
    (void)state;
    assert_int_equal(cli_utf8_length("a"), 1);
    assert_int_equal(cli_utf8_length("\xc3\xa9"), 2);
    assert_int_equal(cli_utf8_length("\xe2\x82\xac"), 3);
    assert_int_equal(cli_utf8_length("\xf4\x8f\xbf\xbf"), 4);
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xc3",
                                      "\xc3z",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xe2\x82",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(cli_utf8_length(bad[i]), 0);
}

static void safe_text(void **state) {
    (void)state;
    struct captured c;
    capture(&c);
    size_t n = cli_print_safe(
        c.out, "ok \xc3\xa9 \t\n\x1b[2J\\ \x7f \xc2\x9b \xff \xe2\x80\xae \xe2\x80\x93");
    static const char want[] =
        "ok \xc3\xa9 \\x09\\x0a\\x1b[2J\\x5c \\x7f \\xc2\\x9b \\xff \\xe2\\x80\\xae \xe2\x80\x93";
    assert_int_equal(n, sizeof want - 1);
    expect(&c, want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout),    cmocka_unit_test(compact),   cmocka_unit_test(doubles),
        cmocka_unit_test(escapes),   cmocka_unit_test(any_bytes), cmocka_unit_test(utf8),
        cmocka_unit_test(safe_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
