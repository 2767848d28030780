/* args.c: reading and printing the arguments that stages take. Not for the grammar around them
 * (recipe.c). */
#include "codecs/args.h"

#include "codecs/number.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "level=1..19", "kivi|kcvt", "P (0..0.5)" */
static void args_describe(const struct kvc_arg *arg, char *text, size_t size) {
    char value[96] = "";
    switch (arg->kind) {
    case KVC_ARG_INTEGER:
        snprintf(value, sizeof value, "%" PRId64 "..%" PRId64, arg->min, arg->max);
        break;
    case KVC_ARG_REAL:
        kvc_number_print(value, sizeof value, 6, arg->least);
        kvc_text_append(value, sizeof value, "..");
        kvc_number_print(value + strlen(value), sizeof value - strlen(value), 6, arg->most);
        break;
    case KVC_ARG_WORD:
        for (size_t i = 0; arg->words[i]; i++)
            snprintf(value + strlen(value), sizeof value - strlen(value), "%s%s", i ? "|" : "",
                     arg->words[i]);
        break;
    case KVC_ARG_FLAG: snprintf(text, size, "%s", arg->key); return;
    }
    snprintf(text, size, "%s%s%s", arg->key ? arg->key : "", arg->key ? "=" : "", value);
}

/* "zstd takes level=1..19, not 'x'" */
static int args_refuse(const char *stage, const struct kvc_arg *table, size_t n, const char *text,
                       size_t length, struct kvc_error *e) {
    char known[400] = "", one[128];
    for (size_t i = 0; i < n; i++) {
        args_describe(&table[i], one, sizeof one);
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", one);
    }
    return kvc_fail(e, KVC_ERR_USAGE, "%s takes %s, not '%.*s'", stage, n ? known : "no arguments",
                    (int)length, text);
}

enum { MAX_DIGITS = 15 }; /* so that digits / 10^k is rounded once: both are exact */

/* Reads digits with a point among or after them, in any locale. Returns 0 when the text is
 * something else. */
static int read_real(const char *text, size_t length, double *f) {
    double digits = 0, scale = 1;
    size_t point = length;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '.' && point == length) {
            point = i;
        } else if (text[i] >= '0' && text[i] <= '9' && i - (point < i) < MAX_DIGITS) {
            digits = 10 * digits + (text[i] - '0');
            if (point < i) scale *= 10;
        } else {
            return 0;
        }
    }
    *f = digits / scale;
    return 1;
}

/* Reads a value of the argument's kind. Returns 0 when the text is none, -1 when it is out of
 * range. */
static int read_value(const struct kvc_arg *arg, const char *text, size_t length, int64_t *i,
                      double *f) {
    char *end;
    errno = 0;
    if (arg->kind == KVC_ARG_WORD) {
        for (int64_t w = 0; arg->words[w]; w++)
            if (strlen(arg->words[w]) == length && memcmp(arg->words[w], text, length) == 0) {
                *i = w;
                return 1;
            }
        return 0;
    }
    if (!length || *text < '0' || *text > '9' || arg->kind == KVC_ARG_FLAG) return 0;
    if (arg->kind == KVC_ARG_INTEGER) {
        *i = strtoll(text, &end, 10);
        if (end != text + length) return 0;
        return errno || *i < arg->min || *i > arg->max ? -1 : 1;
    }
    if (!read_real(text, length, f)) return 0;
    return !(*f >= arg->least && *f <= arg->most) ? -1 : 1;
}

/* Reads one argument into the first row of the table that takes it. Returns the row, or -1. */
static int read_one(const char *stage, const struct kvc_arg *table, size_t n, const char *text,
                    size_t length, unsigned given, struct kvc_stage_args *args,
                    struct kvc_error *e) {
    const char *equals = memchr(text, '=', length);
    const size_t key = equals ? (size_t)(equals - text) : length;
    for (size_t i = 0; i < n; i++) {
        const struct kvc_arg *arg = &table[i];
        const int named = arg->key && strlen(arg->key) == key && memcmp(arg->key, text, key) == 0;
        if (given >> i & 1) continue;
        if (named && !equals && arg->kind == KVC_ARG_FLAG) {
            args->i[i] = 1;
            return (int)i;
        }
        if (equals ? !named || arg->kind == KVC_ARG_FLAG : arg->key != NULL) continue;
        const char *value = equals ? equals + 1 : text;
        const size_t size = (size_t)(text + length - value);
        int64_t number = 0;
        double real = 0;
        const int found = read_value(arg, value, size, &number, &real);
        if (found < 0 || (!found && equals && arg->kind == KVC_ARG_WORD)) {
            char what[128];
            args_describe(arg, what, sizeof what);
            kvc_fail(e, KVC_ERR_USAGE, "%s takes %s, not '%.*s'", stage, what, (int)length, text);
            return -1;
        }
        if (!found) continue;
        if (arg->kind == KVC_ARG_REAL) args->f[i] = real;
        else args->i[i] = number;
        return (int)i;
    }
    return args_refuse(stage, table, n, text, length, e);
}

int kvc_args_parse(const char *stage, const struct kvc_arg *table, size_t n, const char *text,
                   struct kvc_stage_args *args, struct kvc_error *e) {
    unsigned given = 0;
    memset(args, 0, sizeof *args);
    for (size_t i = 0; i < n; i++) {
        args->i[i] = table[i].fallback;
        args->f[i] = table[i].otherwise;
    }
    while (*text) {
        const size_t length = strcspn(text, ":");
        const int taken = read_one(stage, table, n, text, length, given, args, e);
        if (taken < 0) return -1;
        given |= 1u << taken;
        text += length;
        if (*text == ':' && !*++text)
            return kvc_fail(e, KVC_ERR_USAGE, "%s: an argument is missing after ':'", stage);
    }
    for (size_t i = 0; i < n; i++)
        if (table[i].required && !(given >> i & 1)) {
            char what[128];
            args_describe(&table[i], what, sizeof what);
            return kvc_fail(e, KVC_ERR_USAGE, "%s needs %s", stage, what);
        }
    return 0;
}

#define MOST_DIGITS 1e15 /* a number with MAX_DIGITS digits is less */

/* Prints the shortest decimal that reads back as x, if x was read from a decimal; of others,
 * which only files have, about as many digits. */
static void print_real(double x, char *text, size_t size) {
    double scale = 1;
    int decimals = 0;
    while (decimals < MAX_DIGITS && fabs(x) * scale < MOST_DIGITS &&
           floor(x * scale + 0.5) / scale != x) {
        scale *= 10;
        decimals++;
    }
    if (!decimals) {
        kvc_number_print(text, size, MAX_DIGITS + 2, x);
        return;
    }
    const int64_t digits = (int64_t)floor(x * scale + 0.5), whole = (int64_t)scale;
    snprintf(text, size, "%" PRId64 ".%0*" PRId64, digits / whole, decimals, digits % whole);
}

void kvc_args_print(const struct kvc_arg *table, size_t n, const struct kvc_stage_args *args,
                    char *text, size_t size) {
    size_t used = 0;
    if (size) *text = '\0';
    for (size_t i = 0; i < n && used < size; i++) {
        const struct kvc_arg *arg = &table[i];
        char value[64];
        const int same = arg->kind == KVC_ARG_REAL ? args->f[i] == arg->otherwise
                                                   : args->i[i] == arg->fallback;
        if (same && (arg->key || !arg->required)) continue;
        switch (arg->kind) {
        case KVC_ARG_INTEGER: snprintf(value, sizeof value, "%" PRId64, args->i[i]); break;
        case KVC_ARG_REAL: print_real(args->f[i], value, sizeof value); break;
        case KVC_ARG_WORD: snprintf(value, sizeof value, "%s", arg->words[args->i[i]]); break;
        case KVC_ARG_FLAG: *value = '\0'; break;
        }
        used += (size_t)snprintf(text + used, size - used, "%s%s%s%s", used ? ":" : "",
                                 arg->key ? arg->key : "", arg->key && *value ? "=" : "", value);
    }
}

int kvc_text_append(char *text, size_t size, const char *more) {
    size_t used = strlen(text), n = strlen(more);
    if (used + n >= size) return -1;
    memcpy(text + used, more, n + 1);
    return 0;
}

int kvc_args_same(const struct kvc_stage_args *a, const struct kvc_stage_args *b) {
    for (size_t k = 0; k < sizeof a->f / sizeof a->f[0]; k++)
        if (a->f[k] < b->f[k] || a->f[k] > b->f[k]) return 0; /* none is a NaN */
    return memcmp(a->i, b->i, sizeof a->i) == 0;
}
