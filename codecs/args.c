/* args.c: reading and printing the numbers that stages take. Not for the grammar around them (recipe.c). */
#include "codecs/args.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "zstd takes level=1..19, not 'x'" */
static int refuse(const char *stage, const struct kvc_arg *table, size_t n, const char *text, size_t length,
                  struct kvc_error *e) {
    char known[160] = "";
    for (size_t i = 0; i < n; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s=%" PRId64 "..%" PRId64, i ? ", " : "",
                 table[i].key, table[i].min, table[i].max);
    return kvc_fail(e, KVC_ERR_USAGE, "%s takes %s, not '%.*s'", stage, n ? known : "no arguments", (int)length, text);
}

int kvc_args_parse(const char *stage, const struct kvc_arg *table, size_t n, const char *text,
                   struct kvc_stage_args *args, struct kvc_error *e) {
    unsigned given = 0;
    memset(args, 0, sizeof *args);
    for (size_t i = 0; i < n; i++) args->i[i] = table[i].fallback;
    while (*text) {
        const size_t length = strcspn(text, ":");
        const char *value = memchr(text, '=', length);
        size_t i = 0;
        while (i < n && !(value && strlen(table[i].key) == (size_t)(value - text) &&
                          memcmp(table[i].key, text, (size_t)(value - text)) == 0))
            i++;
        if (i == n || given >> i & 1 || value[1] < '0' || value[1] > '9') return refuse(stage, table, n, text, length, e);
        char *end;
        errno = 0;
        const int64_t number = strtoll(++value, &end, 10);
        if (end != text + length || errno || number < table[i].min || number > table[i].max)
            return kvc_fail(e, KVC_ERR_USAGE, "%s: %s must be %" PRId64 " to %" PRId64 ", not '%.*s'", stage,
                            table[i].key, table[i].min, table[i].max, (int)(text + length - value), value);
        args->i[i] = number;
        given |= 1u << i;
        text += length;
        if (*text == ':' && !*++text) return kvc_fail(e, KVC_ERR_USAGE, "%s: an argument is missing after ':'", stage);
    }
    return 0;
}

void kvc_args_print(const struct kvc_arg *table, size_t n, const struct kvc_stage_args *args, char *text, size_t size) {
    size_t used = 0;
    if (size) *text = '\0';
    for (size_t i = 0; i < n && used < size; i++)
        if (args->i[i] != table[i].fallback)
            used += (size_t)snprintf(text + used, size - used, "%s%s=%" PRId64, used ? ":" : "", table[i].key,
                                     args->i[i]);
}
