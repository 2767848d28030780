/* json.c: writes JSON. Not for reading it. */
#include "cli/cli.h"
#include "cli/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The maximum depth, a bit for each open bracket. */
#define MAX_DEPTH 63

void cli_json_start(struct cli_json *j, FILE *out) {
    *j = (struct cli_json){.out = out, .first = 1};
}

static int in_array(const struct cli_json *j) {
    return (int)(j->in_array >> j->depth & 1);
}

static void new_line(const struct cli_json *j) {
    fputc('\n', j->out);
    for (unsigned i = 0; i < j->depth; i++) fputs("  ", j->out);
}

static void quoted(FILE *out, const char *text) {
    fputc('"', out);
    while (*text) {
        unsigned char c = (unsigned char)*text;
        size_t n = cli_utf8_length(text);
        if (!n) {
            fputs("\\ufffd", out);
            n = 1;
        } else if (c == '"' || c == '\\') {
            fprintf(out, "\\%c", c);
        } else if (c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)text[1] < 0xa0)) {
            fprintf(out, "\\u%04x", n == 1 ? c : (unsigned char)text[1]);
        } else {
            fwrite(text, 1, n, out);
        }
        text += n;
    }
    fputc('"', out);
}

/* Writes the comma, the new line and the key before a value. */
static void lead(struct cli_json *j, const char *key) {
    if (j->depth) {
        const int in_line = j->compact || j->lines;
        if (!j->first) fputs(in_line ? ", " : ",", j->out);
        if (!in_line) new_line(j);
    }
    j->first = 0;
    if (key && !in_array(j)) {
        quoted(j->out, key);
        fputs(": ", j->out);
    }
}

void cli_json_open(struct cli_json *j, const char *key, char bracket) {
    lead(j, key);
    fputc(bracket, j->out);
    if (j->depth < MAX_DEPTH) j->depth++;
    uint64_t bit = UINT64_C(1) << j->depth;
    j->in_array = bracket == '[' ? j->in_array | bit : j->in_array & ~bit;
    j->first = 1;
}

void cli_json_close(struct cli_json *j) {
    char bracket = in_array(j) ? ']' : '}';
    int empty = j->first;
    if (j->depth) j->depth--;
    if (!empty && !j->compact && !j->lines) new_line(j);
    fputc(bracket, j->out);
    j->first = 0;
}

void cli_json_text(struct cli_json *j, const char *key, const char *value) {
    lead(j, key);
    if (value) quoted(j->out, value);
    else fputs("null", j->out);
}

void cli_json_u64(struct cli_json *j, const char *key, uint64_t value) {
    lead(j, key);
    fprintf(j->out, "%" PRIu64, value);
}

void cli_json_i64(struct cli_json *j, const char *key, int64_t value) {
    lead(j, key);
    fprintf(j->out, "%" PRId64, value);
}

void cli_json_number(FILE *out, const char *text, int is_finite) {
    const int is_minus_zero = strcmp(text, "-0") == 0; /* an integer would lose its sign */
    fprintf(out, is_finite ? "%s%s" : "\"%s\"%s", text, is_minus_zero ? ".0" : "");
}

void cli_json_f64(struct cli_json *j, const char *key, double value) {
    char text[32];
    cli_double_text(value, text);
    lead(j, key);
    cli_json_number(j->out, text, isfinite(value));
}

void cli_json_bool(struct cli_json *j, const char *key, int value) {
    lead(j, key);
    fputs(value ? "true" : "false", j->out);
}

void cli_json_hex(struct cli_json *j, const char *key, const void *bytes, size_t n) {
    lead(j, key);
    fputc('"', j->out);
    for (size_t i = 0; i < n; i++) fprintf(j->out, "%02x", ((const unsigned char *)bytes)[i]);
    fputc('"', j->out);
}

void cli_json_end(struct cli_json *j) {
    fputc('\n', j->out);
}
