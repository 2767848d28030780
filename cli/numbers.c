/* numbers.c: parses and prints numbers of options and text. Not for JSON (json.c). */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The maximum number in a list: far more than the layers of a model, and 1 MiB of marks. */
#define MAX_LISTED (1u << 20)

/* Reads digits and a suffix from *text on, and moves *text after them. */
static int take_u64(const char **text, uint64_t *v) {
    const char *s = *text;
    uint64_t n = 0;
    if (*s < '0' || *s > '9') return -1;
    for (; *s >= '0' && *s <= '9'; s++) {
        unsigned digit = (unsigned)(*s - '0');
        if (n > (UINT64_MAX - digit) / 10) return -1;
        n = 10 * n + digit;
    }
    static const char units[] = "KkMmGg";
    const char *unit = *s ? strchr(units, *s) : NULL;
    unsigned shift = unit ? 10 * (unsigned)((unit - units) / 2 + 1) : 0;
    if (unit) s++;
    if (n > UINT64_MAX >> shift) return -1;
    *v = n << shift;
    *text = s;
    return 0;
}

int cli_parse_u64(const char *text, uint64_t *v) {
    uint64_t n;
    if (take_u64(&text, &n) || *text) return -1;
    *v = n;
    return 0;
}

int cli_parse_f64(const char *text, double *v) {
    char *end;
    /* no white space, hexadecimal digits, "inf" or "nan" */
    if (text[strspn(text, "0123456789+-.eE")] || !*text) return -1;
    const double x = strtod(text, &end);
    if (*end || !isfinite(x)) return -1;
    *v = x;
    return 0;
}

int cli_parse_range(const char *text, uint64_t *first, uint64_t *end) {
    uint64_t from = 0, to = UINT64_MAX;
    if (strcmp(text, ":") == 0) return -1;
    if (*text != ':' && take_u64(&text, &from)) return -1;
    if (*text++ != ':') return -1;
    if (*text && take_u64(&text, &to)) return -1;
    if (*text || to < from) return -1;
    *first = from;
    *end = to;
    return 0;
}

/* Returns the number after "A-" in an argument "A-B", or 0. */
static uint64_t after_dash(const char *text, uint64_t *first) {
    uint64_t last;
    if (take_u64(&text, first) || *text++ != '-' || take_u64(&text, &last) || *text ||
        last == UINT64_MAX)
        return 0;
    return last + 1;
}

int cli_take_range(const char *before, const char *arg, uint64_t *first, uint64_t *end) {
    uint64_t from, to;
    if (!cli_parse_range(arg, first, end)) {
        if (*first < *end) return 0;
        return cli_usage("%s%s has no tokens: in A:B the end B is not included", before, arg);
    }
    if ((to = after_dash(arg, &from)) > from)
        return cli_usage("%s%s is not a range A:B: write %" PRIu64 ":%" PRIu64
                         "; the end is not included",
                         before, arg, from, to);
    return cli_usage("%s%s is not a range A:B with A below B, as 0:64 for the first 64 tokens",
                     before, arg);
}

int cli_take_list(const char *before, const char *arg, uint8_t **keep, uint32_t *n) {
    uint64_t first, end;
    if (!cli_parse_list(arg, keep, n)) return 0;
    if (!cli_parse_range(arg, &first, &end) && first < end && end != UINT64_MAX)
        return cli_usage("%s%s is not a list like 0-3,7: write %" PRIu64 "-%" PRIu64
                         "; the end is included",
                         before, arg, first, end - 1);
    return cli_usage("%s%s is not a list like 0-3,7", before, arg);
}

int cli_parse_list(const char *text, uint8_t **keep, uint32_t *n) {
    for (;;) {
        uint64_t first, last;
        if (take_u64(&text, &first)) return -1;
        last = first;
        if (*text == '-') {
            text++;
            if (take_u64(&text, &last)) return -1;
        }
        if (last < first || last >= MAX_LISTED) return -1;
        if (last >= *n) {
            uint8_t *grown = realloc(*keep, (size_t)last + 1);
            if (!grown) return -1;
            memset(grown + *n, 0, (size_t)last + 1 - *n);
            *keep = grown;
            *n = (uint32_t)last + 1;
        }
        memset(*keep + first, 1, (size_t)(last - first) + 1);
        if (!*text) return 0;
        if (*text++ != ',') return -1;
    }
}

/* Writes a number with as many digits as it takes to read it back; `most` always do. */
static void shortest(double v, int digits, int most, int is_float, char text[32]) {
    if (!isfinite(v)) {
        snprintf(text, 32, "%s", isnan(v) ? "NaN" : v > 0 ? "Infinity" : "-Infinity");
        return;
    }
    for (; digits <= most; digits++) {
        double back;
        snprintf(text, 32, "%.*g", digits, v);
        if (!cli_parse_f64(text, &back) && (is_float ? (double)(float)back : back) == v) return;
    }
}

void cli_float_text(float v, char text[32]) {
    shortest((double)v, 6, 9, 1, text);
}

void cli_double_text(double v, char text[32]) {
    shortest(v, 15, 17, 0, text);
}

static unsigned size_unit = 1000;

void cli_sizes_by_1024(void) {
    size_unit = 1024;
}

void cli_size_text(uint64_t bytes, char text[32]) {
    static const char *const units[2][6] = {{"kB", "MB", "GB", "TB", "PB", "EB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}};
    if (bytes < size_unit) {
        snprintf(text, 32, "%" PRIu64 " B", bytes);
        return;
    }
    double v = (double)bytes / size_unit;
    size_t unit = 0;
    /* 999.95 would be printed as 1000.0. */
    for (; v >= size_unit - 0.05 && unit + 1 < sizeof units[0] / sizeof units[0][0]; unit++)
        v /= size_unit;
    snprintf(text, 32, "%.1f %s", v, units[size_unit == 1024][unit]);
}
