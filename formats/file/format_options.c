/* format_options.c: parses options of formats. */
#include "formats/file/format_options.h"

#include "codecs/memory.h"
#include "codecs/near.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static size_t key_length(const char *item) {
    return strcspn(item, "=");
}

/* Returns the position of the option in the table, or -1. */
static int format_options_find(const struct kvc_format_option *table, const char *item) {
    const size_t n = key_length(item);
    for (int i = 0; table && table[i].key; i++)
        if (strlen(table[i].key) == n && memcmp(table[i].key, item, n) == 0) return i;
    return -1;
}

/* Parses digits, optionally followed by K, M or G. */
static int read_count(const char *text, uint64_t *count) {
    static const char units[] = "KMG";
    const char *p = text;
    for (*count = 0; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(*count, 10, count) ||
            __builtin_add_overflow(*count, (uint64_t)(*p - '0'), count))
            return -1;
    if (p == text) return -1;
    const char unit = *p >= 'a' && *p <= 'z' ? (char)(*p - 'a' + 'A') : *p,
               *at = unit ? strchr(units, unit) : NULL;
    if (!unit) return 0;
    if (!at || p[1]) return -1;
    if (__builtin_mul_overflow(*count, UINT64_C(1) << 10 * (at - units + 1), count)) return -1;
    return 0;
}

static int fail_unknown(const struct kvc_format_option *table, const char *name, const char *item,
                        struct kvc_error *e) {
    const int n = (int)key_length(item);
    char key[64];
    snprintf(key, sizeof key, "%.*s", n, item);
    struct kvc_near near = {.word = key};
    for (int i = 0; table && table[i].key; i++) kvc_near_offer(&near, table[i].key);
    return kvc_fail(e, KVC_ERR_USAGE, "%s: there is no option '%s'%s%s%s", name, key,
                    *near.text ? "; did you mean " : "", near.text, *near.text ? "?" : "");
}

/* Reads the value of an option from "KEY=VALUE". The value points into the text. */
static int format_options_take(const struct kvc_format_option *o, struct kvc_option_value *value,
                               const char *item, const char *name, struct kvc_error *e) {
    const char *equals = strchr(item, '=');
    if (o->kind == KVC_OPTION_FLAG) {
        if (equals) return kvc_fail(e, KVC_ERR_USAGE, "%s: %s takes no value", name, o->key);
        value->count = 1;
        return 0;
    }
    if (!equals || !equals[1])
        return kvc_fail(e, KVC_ERR_USAGE, "%s: %s wants a value: %s=%s", name, o->key, o->key,
                        o->value);
    value->text = equals + 1;
    if (o->kind != KVC_OPTION_COUNT) return 0;
    if (read_count(equals + 1, &value->count) || value->count < o->min || value->count > o->max)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: %s=%s is not a number from %" PRIu64 " to %" PRIu64,
                        name, o->key, equals + 1, o->min, o->max);
    return 0;
}

/* Copies the items of both lists, those of `own` first. *n_own is the number of these. */
static int copy_items(struct kvc_option_values *v, const char *own, const char *const *set,
                      size_t *n_own, struct kvc_error *e) {
    size_t n = own && *own ? 1 : 0, i = 0;
    for (const char *p = own; p && *p; p++) n += *p == ',';
    *n_own = n;
    for (const char *const *s = set; s && *s; s++) n++;
    if (!(v->text = kvc_alloc_zeros(n + 1, sizeof *v->text))) return kvc_fail_memory(e, "options");
    for (const char *p = own; i < *n_own; i++) {
        const size_t length = strcspn(p, ",");
        if (!(v->text[i] = strndup(p, length))) return kvc_fail_memory(e, "options");
        p += length + 1;
    }
    for (; i < n; i++)
        if (!(v->text[i] = strdup(set[i - *n_own]))) return kvc_fail_memory(e, "options");
    return 0;
}

/* Gives each list option its texts, in their order. */
static int make_lists(struct kvc_option_values *v, const struct kvc_format_option *table,
                      struct kvc_error *e) {
    size_t n = 0, at = 0;
    while (v->text[n]) n++;
    if (!(v->list = kvc_alloc_zeros(n + KVC_MAX_FORMAT_OPTIONS, sizeof *v->list)))
        return kvc_fail_memory(e, "options");
    for (int o = 0; o < KVC_MAX_FORMAT_OPTIONS && table && table[o].key; o++) {
        v->value[o].list = &v->list[at];
        for (size_t i = 0; i < n; i++) {
            const char *equals = strchr(v->text[i], '=');
            if (table[o].kind == KVC_OPTION_LIST && format_options_find(table, v->text[i]) == o &&
                equals)
                v->list[at++] = equals + 1;
        }
        at++; /* the NULL after them */
    }
    return 0;
}

int kvc_options_read(struct kvc_option_values *v, const struct kvc_format_option *table,
                     const char *name, const char *own, const char *const *set,
                     struct kvc_error *e) {
    size_t n_own = 0;
    memset(v, 0, sizeof *v);
    int status = copy_items(v, own, set, &n_own, e);
    if (!status) status = make_lists(v, table, e);
    for (size_t i = 0; !status && v->text[i]; i++) {
        const int o = format_options_find(table, v->text[i]);
        if (o >= 0) status = format_options_take(&table[o], &v->value[o], v->text[i], name, e);
        else if (i < n_own) status = fail_unknown(table, name, v->text[i], e);
    }
    if (status) kvc_options_free(v);
    return status;
}

void kvc_options_free(struct kvc_option_values *v) {
    for (size_t i = 0; v->text && v->text[i]; i++) free(v->text[i]);
    free(v->text);
    free(v->list);
    memset(v, 0, sizeof *v);
}
