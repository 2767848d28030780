/* conf.c: reads and writes kvc-store.conf. Spec: STORE.md, "Directory". */
#include "formats/store/dir/conf.h"

#include "codecs/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct kvc_conf kvc_conf_default = {.max_size = UINT64_C(20) << 30,
                                          .min_free = 5,
                                          .grace = 30,
                                          .durability = KVC_DURABLE_DATA,
                                          .indexed = 1};

static const char *const keys[] = {"max-size", "min-free",   "max-age", "max-namespace-size",
                                   "grace",    "durability", "index",   "shared"};
static const char *const durability[] = {"none", "data", "full"};

const char *kvc_conf_key(size_t i) {
    return i < sizeof keys / sizeof keys[0] ? keys[i] : NULL;
}

static int take_percent(struct kvc_url *url, double *value, struct kvc_error *e) {
    const char *text = kvc_url_text(url, "min-free", NULL);
    double v = 0;
    if (!text) return 0;
    const char *end = kvc_number_begin(text, &v);
    if (!end || (*end && strcmp(end, "%") != 0) || !(v >= 0 && v <= 100))
        return kvc_fail(e, KVC_ERR_USAGE, "min-free: '%s' is not a percentage (examples: 5, 2.5%%)",
                        text);
    *value = v;
    return 0;
}

static int take_word(struct kvc_url *url, const char *key, const char *const *word, size_t n,
                     int *value, struct kvc_error *e) {
    const char *text = kvc_url_text(url, key, NULL);
    if (!text) return 0;
    for (size_t i = 0; i < n; i++)
        if (strcmp(text, word[i]) == 0) {
            *value = (int)i;
            return 0;
        }
    return kvc_fail(e, KVC_ERR_USAGE, "%s: there is no '%s'; choose none, data or full", key, text);
}

static int take_seconds(struct kvc_url *url, const char *key, int64_t *value, struct kvc_error *e) {
    int64_t t = *value * 1000000;
    if (kvc_url_time(url, key, &t, e)) return -1;
    *value = t / 1000000;
    return 0;
}

int kvc_conf_take(struct kvc_conf *c, struct kvc_url *url, struct kvc_error *e) {
    int durable = (int)c->durability, any = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        any |= kvc_url_text(url, keys[i], NULL) != NULL;
    if (kvc_url_bytes(url, "max-size", &c->max_size, e) || take_percent(url, &c->min_free, e) ||
        take_seconds(url, "max-age", &c->max_age, e) ||
        kvc_url_bytes(url, "max-namespace-size", &c->max_namespace_size, e) ||
        take_seconds(url, "grace", &c->grace, e) ||
        take_word(url, "durability", durability, 3, &durable, e) ||
        kvc_url_flag(url, "index", &c->indexed, e) || kvc_url_flag(url, "shared", &c->shared, e))
        return -1;
    c->durability = (enum kvc_durability)durable;
    return any;
}

/* Adds "KEY=VALUE" of a line to the options. `line` is cut. */
static int take_line(struct kvc_url *url, char *line, size_t number, struct kvc_error *e) {
    char *value = strchr(line, '=');
    size_t end = value ? (size_t)(value - line) : 0;
    if (!value || url->n == sizeof url->option / sizeof url->option[0])
        return kvc_fail(e, KVC_ERR_USAGE, KVC_CONF_NAME ": line %zu is not KEY = VALUE", number);
    while (end && strchr(" \t", line[end - 1])) end--;
    line[end] = '\0';
    value += 1 + strspn(value + 1, " \t");
    for (end = strlen(value); end && strchr(" \t\r", value[end - 1]);) value[--end] = '\0';
    url->option[url->n++] = (struct kvc_url_option){.key = line, .value = value};
    return 0;
}

int kvc_conf_parse(struct kvc_conf *c, const char *text, struct kvc_error *e) {
    struct kvc_url url = {.scheme = KVC_CONF_NAME, .text = strdup(text)};
    if (!url.text) return kvc_fail_memory(e, KVC_CONF_NAME);
    int status = 0;
    size_t number = 1;
    *c = kvc_conf_default;
    for (char *line = url.text, *next; line && !status; line = next, number++) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        line += strspn(line, " \t");
        if (*line && *line != '#' && *line != '\r') status = take_line(&url, line, number, e);
    }
    const char *version = kvc_url_text(&url, "version", "1");
    if (!status && strcmp(version, "1") != 0)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED,
                          KVC_CONF_NAME ": version %.20s of a store needs a later kvc", version);
    if (!status) status = kvc_conf_take(c, &url, e) < 0 ? -1 : 0;
    if (!status) status = kvc_url_rest(&url, e);
    kvc_url_free(&url);
    return status;
}

void kvc_conf_print(const struct kvc_conf *c, char *text, size_t size) {
    char min_free[32];
    kvc_number_print(min_free, sizeof min_free, 6, c->min_free);
    snprintf(text, size,
             "# A prefix store of kvc: see kvc-store(1). Change it with kvc-store config.\n"
             "version = 1\n"
             "# bytes of objects, 0: no limit\n"
             "max-size = %" PRIu64 "\n"
             "# per cent of the file system that stay free\n"
             "min-free = %s\n"
             "# time since the last use after which objects go, 0: never\n"
             "max-age = %" PRId64 "s\n"
             "# bytes of one namespace, 0: no limit\n"
             "max-namespace-size = %" PRIu64 "\n"
             "# time for which evicted objects can still be read\n"
             "grace = %" PRId64 "s\n"
             "# none, data or full: what is on the disk before an object counts as stored\n"
             "durability = %s\n"
             "index = %s\n"
             "# yes: others may own or write this folder\n"
             "shared = %s\n",
             c->max_size, min_free, c->max_age, c->max_namespace_size, c->grace,
             durability[c->durability], c->indexed ? "yes" : "no", c->shared ? "yes" : "no");
}

int kvc_conf_equal(const struct kvc_conf *a, const struct kvc_conf *b) {
    char x[2048], y[2048];
    kvc_conf_print(a, x, sizeof x);
    kvc_conf_print(b, y, sizeof y);
    return strcmp(x, y) == 0;
}
