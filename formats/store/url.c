/* url.c: reads the texts that name levels. Spec: STORE.md, "Levels". */
#include "formats/store/url.h"

#include "formats/io/hash.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the length of the scheme that a text begins with, without ':'; 0: it has none. A path that begins with a letter and has a
 * colon may look like one, so the known schemes are asked. */
static size_t scheme_length(const char *text) {
    static const char *const known[] = {"dir", "redis", "rediss", "s3"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const size_t n = strlen(known[i]);
        if (strncmp(text, known[i], n) == 0 && text[n] == ':') return n;
    }
    return 0;
}

/* Decodes %XX in place. */
static int decode(char *text) {
    char *to = text;
    for (const char *p = text; *p; p++) {
        if (*p != '%') {
            *to++ = *p;
            continue;
        }
        const int high = kvc_hex_digit(p[1]), low = high < 0 ? -1 : kvc_hex_digit(p[2]);
        if (low < 0 || !(high | low)) return -1;
        *to++ = (char)(high << 4 | low);
        p += 2;
    }
    *to = '\0';
    return 0;
}

static int parse_options(struct kvc_url *u, char *text, const char *whole, struct kvc_error *e) {
    for (char *next; text && *text; text = next) {
        next = strchr(text, '&');
        if (next) *next++ = '\0';
        if (u->n == sizeof u->option / sizeof u->option[0])
            return kvc_fail(e, KVC_ERR_USAGE, "%s: more than %zu options", whole, u->n);
        struct kvc_url_option *o = &u->option[u->n++];
        char *value = strchr(text, '=');
        if (value) *value++ = '\0';
        if (!*text || decode(text) || (value && decode(value)))
            return kvc_fail(e, KVC_ERR_USAGE, "%s: options are written KEY=VALUE&KEY=VALUE, with %%XX for other characters",
                            whole);
        *o = (struct kvc_url_option){.key = text, .value = value ? value : ""};
    }
    return 0;
}

int kvc_url_parse(struct kvc_url *u, const char *text, struct kvc_error *e) {
    const size_t scheme = scheme_length(text);
    *u = (struct kvc_url){.scheme = "dir", .text = strdup(text)};
    if (!u->text) return kvc_fail_memory(e, "a store's name");
    char *place = u->text;
    if (scheme) {
        u->scheme = u->text;
        u->text[scheme] = '\0';
        place += scheme + 1;
        if (strcmp(u->scheme, "dir") != 0 && strncmp(place, "//", 2) == 0) place += 2;
    }
    char *options = strchr(place, '?');
    if (options) *options++ = '\0';
    u->place = place;
    int status = 0;
    if (!scheme && strstr(text, "://"))
        status = kvc_fail(e, KVC_ERR_USAGE, "'%.*s': there is no such backend: write dir:FOLDER, redis://HOST or s3://BUCKET",
                          (int)strcspn(text, ":"), text);
    else if (strcmp(u->scheme, "dir") != 0 && strchr(place, '@')) /* the text is not repeated: it may hold a password */
        status = kvc_fail(e, KVC_ERR_USAGE,
                          "%s: a user name and password do not belong into the name of a store: "
                          "kvc-store(1) says where they are read from",
                          u->scheme);
    else if (!*place)
        status = kvc_fail(e, KVC_ERR_USAGE, "'%s' names no store: write dir:FOLDER, redis://HOST or s3://BUCKET", text);
    else status = parse_options(u, options, text, e);
    if (status) kvc_url_free(u);
    return status;
}

void kvc_url_free(struct kvc_url *u) {
    free(u->text);
    *u = (struct kvc_url){0};
}

const char *kvc_url_text(struct kvc_url *u, const char *key, const char *otherwise) {
    for (size_t i = 0; i < u->n; i++)
        if (strcmp(u->option[i].key, key) == 0) {
            u->option[i].taken = 1;
            otherwise = u->option[i].value;
        }
    return otherwise;
}

int kvc_url_bytes(struct kvc_url *u, const char *key, uint64_t *value, struct kvc_error *e) {
    const char *text = kvc_url_text(u, key, NULL), *unit = "KMGT", *found;
    char *end = NULL;
    if (!text) return 0;
    const double v = strtod(text, &end);
    unsigned shift = 0;
    if (end != text && *end && (found = strchr(unit, *end)) != NULL) {
        shift = 10 * (unsigned)(found - unit + 1);
        end++;
    }
    if (end == text || *end || !(v >= 0) || ldexp(v, (int)shift) >= 0x1p63)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: '%s' is no number of bytes, as 500M or 20G", key, text);
    *value = (uint64_t)ldexp(v, (int)shift);
    return 0;
}

int kvc_url_time(struct kvc_url *u, const char *key, int64_t *microseconds, struct kvc_error *e) {
    static const struct {
        const char *name;
        double factor;
    } unit[] = {{"", 1e6}, {"s", 1e6}, {"ms", 1e3}, {"m", 60e6}, {"h", 3600e6}, {"d", 86400e6}};
    const char *text = kvc_url_text(u, key, NULL);
    char *end = NULL;
    if (!text) return 0;
    const double v = strtod(text, &end);
    for (size_t i = 0; end != text && i < sizeof unit / sizeof unit[0]; i++)
        if (strcmp(end, unit[i].name) == 0 && v >= 0 && v * unit[i].factor < 0x1p53) { /* exact, 285 years */
            *microseconds = (int64_t)(v * unit[i].factor);
            return 0;
        }
    return kvc_fail(e, KVC_ERR_USAGE, "%s: '%s' is no time, as 50ms, 30s or 7d", key, text);
}

int kvc_url_flag(struct kvc_url *u, const char *key, int *value, struct kvc_error *e) {
    const char *text = kvc_url_text(u, key, NULL);
    if (!text) return 0;
    if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: '%s' is neither yes nor no", key, text);
    *value = text[0] == 'y';
    return 0;
}

int kvc_url_rest(const struct kvc_url *u, struct kvc_error *e) {
    for (size_t i = 0; i < u->n; i++)
        if (!u->option[i].taken) return kvc_fail(e, KVC_ERR_USAGE, "%s: there is no option '%s'", u->scheme, u->option[i].key);
    return 0;
}

int kvc_url_split(const char *chain, char ***list, struct kvc_error *e) {
    const size_t length = strlen(chain);
    size_t n = 1;
    for (const char *p = chain; *p; p++) n += *p == ',' && scheme_length(p + 1);
    /* the pointers first, then the text */
    char **item = malloc(n * sizeof *item + length + 1);
    if (!item) return kvc_fail_memory(e, "names of levels");
    char *text = memcpy((char *)(item + n), chain, length + 1);
    n = 0;
    item[n++] = text;
    for (char *p = text; *p; p++)
        if (*p == ',' && scheme_length(p + 1)) {
            *p = '\0';
            item[n++] = p + 1;
        }
    *list = item;
    return (int)n;
}
