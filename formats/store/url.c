/* url.c: reads the texts that name tiers. Spec: STORE.md, "Tiers". */
#include "formats/store/url.h"

#include "codecs/near.h"
#include "codecs/number.h"
#include "formats/io/hash.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SCHEME 32

/* Returns the length of the scheme that a text begins with, without ':': "dir", or a word before
 * "://". 0: it is a path. */
static size_t scheme_length(const char *text) {
    const size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789");
    return strncmp(text, "dir:", 4) == 0 || (n < MAX_SCHEME && strncmp(text + n, "://", 3) == 0)
               ? n
               : 0;
}

/* Refuses a path that would become a folder and is none by its looks: it has a word and a colon as
 * URLs have, or lacks a tier before, between or after commas. One that is there may have such a
 * name. */
static int check_path(const char *path, int is_named, struct kvc_error *e) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.";
    const size_t length = strlen(path);
    const int lacks_one = *path == ',' || (length && path[length - 1] == ',') || strstr(path, ",,");
    if (lacks_one && access(path, F_OK))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "'%s': there is no tier before, between or after its commas", path);
    for (const char *p = is_named ? strchr(path, ',') : path; p; p = strchr(p, ',')) {
        p += *p == ',';
        const size_t n = strspn(p, letters);
        if (n > 1 && p[n] == ':' && access(path, F_OK))
            return kvc_fail(
                e, KVC_ERR_USAGE,
                "'%.*s:' begins no store: write dir:FOLDER, redis://HOST or s3://BUCKET; "
                "a folder of this name must be made first",
                (int)n, p);
    }
    return 0;
}

/* Decodes %XX in place. */
static int url_decode(char *text) {
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

/* Returns what looks like an option after a comma, as in "st,max-size=60M"; NULL: nothing does. */
static const char *option_after_comma(const char *text) {
    while ((text = strchr(text, ',')) != NULL) {
        const size_t word = strspn(++text, "abcdefghijklmnopqrstuvwxyz-");
        if (word && text[word] == '=') return text;
    }
    return NULL;
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
        if (value && option_after_comma(value))
            return kvc_fail(
                e, KVC_ERR_USAGE,
                "%s: options are separated by '&', not by commas (%%2c is a comma in a value)",
                u->place);
        if (!*text || url_decode(text) || (value && url_decode(value)))
            return kvc_fail(
                e, KVC_ERR_USAGE,
                "%s: options are written KEY=VALUE&KEY=VALUE, with %%XX for other characters",
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
        if (strcmp(u->scheme, "dir") != 0) place += 2;
    }
    char *options = strchr(place, '?');
    if (options) *options++ = '\0';
    u->place = place;
    int status = 0;
    if (strcmp(u->scheme, "dir") == 0 && check_path(place, scheme != 0, e)) status = -1;
    else if (strcmp(u->scheme, "dir") != 0 &&
             strchr(place, '@')) /* the text is not repeated: it may hold a password */
        status = kvc_fail(e, KVC_ERR_USAGE,
                          "%s: a user name and password do not belong into the name of a store: "
                          "kvc-store(1) says where they are read from",
                          u->scheme);
    else if (!*place)
        status = kvc_fail(e, KVC_ERR_USAGE,
                          "'%s' names no store: write dir:FOLDER, redis://HOST or s3://BUCKET",
                          text);
    else status = parse_options(u, options, text, e);
    if (status) kvc_url_free(u);
    return status;
}

void kvc_url_free(struct kvc_url *u) {
    free(u->text);
    *u = (struct kvc_url){0};
}

/* Notes that the backend has an option. */
static void note_known(struct kvc_url *u, const char *key) {
    for (size_t i = 0; i < u->n_known; i++)
        if (strcmp(u->known[i], key) == 0) return;
    if (u->n_known < sizeof u->known / sizeof u->known[0]) u->known[u->n_known++] = key;
}

const char *kvc_url_text(struct kvc_url *u, const char *key, const char *otherwise) {
    note_known(u, key);
    for (size_t i = 0; i < u->n; i++)
        if (strcmp(u->option[i].key, key) == 0) {
            u->option[i].taken = 1;
            otherwise = u->option[i].value;
        }
    return otherwise;
}

int kvc_url_bytes(struct kvc_url *u, const char *key, uint64_t *value, struct kvc_error *e) {
    const char *text = kvc_url_text(u, key, NULL), *unit = "KMGT", *found;
    double v = 0;
    if (!text) return 0;
    const char *end = kvc_number_begin(text, &v);
    unsigned shift = 0;
    if (end && *end && (found = strchr(unit, *end)) != NULL) {
        shift = 10 * (unsigned)(found - unit + 1);
        end += strcmp(end + 1, "iB") == 0 ? 3 : 1;
    }
    if (!end || *end || !(v >= 0) || ldexp(v, (int)shift) >= 0x1p63)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: '%s' is not a size (examples: 500M, 20G)", key,
                        text);
    *value = (uint64_t)ldexp(v, (int)shift);
    return 0;
}

int kvc_url_time(struct kvc_url *u, const char *key, int64_t *microseconds, struct kvc_error *e) {
    static const struct {
        const char *name;
        double factor;
    } unit[] = {{"", 1e6}, {"s", 1e6}, {"ms", 1e3}, {"m", 60e6}, {"h", 3600e6}, {"d", 86400e6}};
    const char *text = kvc_url_text(u, key, NULL);
    double v = 0;
    if (!text) return 0;
    const char *end = kvc_number_begin(text, &v);
    for (size_t i = 0; end && i < sizeof unit / sizeof unit[0]; i++)
        if (strcmp(end, unit[i].name) == 0 && v >= 0 &&
            v * unit[i].factor < 0x1p53) { /* exact, 285 years */
            *microseconds = (int64_t)(v * unit[i].factor);
            return 0;
        }
    return kvc_fail(e, KVC_ERR_USAGE, "%s: '%s' is not a time (examples: 50ms, 30s, 7d)", key,
                    text);
}

int kvc_url_flag(struct kvc_url *u, const char *key, int *value, struct kvc_error *e) {
    const char *text = kvc_url_text(u, key, NULL);
    if (!text) return 0;
    if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: '%s' is neither yes nor no", key, text);
    *value = text[0] == 'y';
    return 0;
}

/* Collects the keys that a word resembles. Returns 1 if there are any. */
static int resembles(const struct kvc_url *u, struct kvc_near *near) {
    for (size_t i = 0; i < u->n_known; i++) kvc_near_offer(near, u->known[i]);
    return *near->text != '\0';
}

/* Refuses an option that the backend does not have. */
static int refuse_option(const struct kvc_url *u, const char *key, struct kvc_error *e) {
    struct kvc_near near = {.word = key};
    char list[700] = "";
    size_t at = 0;
    const int is_near = resembles(u, &near);
    for (size_t i = 0; i < u->n_known && at < sizeof list - 40; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%.36s", i ? ", " : "", u->known[i]);
    return kvc_fail(e, KVC_ERR_USAGE, "%s: there is no option '%.60s'%s%s%s (options: %s)",
                    u->scheme, key, is_near ? "; did you mean " : "", near.text, is_near ? "?" : "",
                    list);
}

/* Refuses options that were written after a comma, as part of the place. A folder that is there may
 * have such a name. */
static int check_place(const struct kvc_url *u, struct kvc_error *e) {
    const char *last = u->place ? strrchr(u->place, '/') : NULL, *text = last ? last : u->place;
    const int is_folder = strcmp(u->scheme, "dir") == 0;
    char word[33];
    if (!text || !(text = option_after_comma(text)) || (is_folder && access(u->place, F_OK) == 0))
        return 0;
    struct kvc_near near = {.word = word};
    snprintf(word, sizeof word, "%.*s", (int)strcspn(text, "="), text);
    if (!is_folder && !resembles(u, &near)) return 0;
    const int before = (int)(text - 1 - u->place);
    return kvc_fail(
        e, KVC_ERR_USAGE,
        "%.*s: options follow '?' and are separated by '&', not by commas: write %.*s?%s=VALUE%s",
        before, u->place, before, u->place, word,
        is_folder ? "; if the folder is to have a name with a comma, make it first" : "");
}

int kvc_url_rest(const struct kvc_url *u, struct kvc_error *e) {
    for (size_t i = 0; i < u->n; i++)
        if (!u->option[i].taken) return refuse_option(u, u->option[i].key, e);
    return check_place(u, e);
}

int kvc_url_split(const char *chain, char ***list, struct kvc_error *e) {
    const size_t length = strlen(chain);
    size_t n = 1;
    for (const char *p = chain; *p; p++) n += *p == ',' && scheme_length(p + 1);
    /* the pointers first, then the text */
    char **item = malloc(n * sizeof *item + length + 1);
    if (!item) return kvc_fail_memory(e, "names of tiers");
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
