/* store_open.c: opens the store and the files of a command, and says what it makes. Not for what a
 * store's text means (formats/store/url.h). */
#include "cli/store/store_tool.h"
#include "formats/store/dir/dir.h"
#include "formats/store/store.h"

#include <stdlib.h>
#include <string.h>

int store_trouble(const struct kvc_error *e) {
    cli_error(e);
    return EXIT_TROUBLE;
}

struct kvc_file *store_open_file(struct store_tool *t, const char *path) {
    struct kvc_error e;
    const struct cli_input *in = &t->input;
    struct kvc_open_options o = in->open;
    o.size = sizeof o;
    o.set = in->settings.n ? in->settings.item : NULL;
    struct kvc_file *f = kvc_file_open(path, &o, &e);
    if (!f) store_trouble(&e);
    return f;
}

/* Returns 1 if a folder is a store. */
static int is_store(const char *folder) {
    char path[4096];
    return snprintf(path, sizeof path, "%s/" KVC_CONF_NAME, folder) < (int)sizeof path &&
           cli_output_exists(path);
}

/* Finds the directories of a chain that are no stores. Returns how many tiers there are, -1 with
 * *e; bit i of *missing is tier i. */
static int find_missing(const char *store, uint32_t *missing, struct kvc_error *e) {
    struct kvc_url url;
    char **list = NULL;
    const int n = kvc_url_split(store, &list, e);
    int status = n < 0 ? -1 : 0;
    *missing = 0;
    if (n > KVC_MAX_TIERS)
        status = kvc_fail(e, KVC_ERR_USAGE, "a store has at most %d tiers", KVC_MAX_TIERS);
    for (int i = 0; i < n && !status; i++) {
        if ((status = kvc_url_parse(&url, list[i], e)) != 0) break;
        if (strcmp(url.scheme, "dir") == 0 && !is_store(url.place)) *missing |= UINT32_C(1) << i;
        kvc_url_free(&url);
    }
    free(list);
    return status ? -1 : n;
}

int store_is_new(struct store_tool *t) {
    struct kvc_error e;
    uint32_t missing;
    if (find_missing(t->store, &missing, &e) < 0 ||
        (missing && kvc_store_check(t->store, &t->open, &e))) {
        store_trouble(&e);
        return -1;
    }
    return missing != 0;
}

int store_refuse_new(const struct store_tool *t) {
    struct kvc_url url;
    struct kvc_error e;
    char **list = NULL;
    const int n = kvc_url_split(t->store, &list, &e);
    int refused = 0;
    for (int i = 0; i < n && !refused; i++) {
        if (kvc_url_parse(&url, list[i], &e)) continue;
        refused = strcmp(url.scheme, "dir") == 0 && !is_store(url.place);
        if (refused)
            cli_warn("%s: there is no %s; kvc-store init makes a store", url.place,
                     cli_folder_exists(url.place) ? "store in this folder" : "such folder");
        kvc_url_free(&url);
    }
    free(list);
    return EXIT_TROUBLE;
}

/* init KEY=VALUE: the limits become options of the directory's URL. */
static char *url_with_limits(const struct store_tool *t) {
    size_t size = strlen(t->store) + 2;
    for (int i = 0; i < t->n; i++) size += 3 * strlen(t->operand[i]) + 1;
    char *url = malloc(size), *at = url;
    if (!url) return NULL;
    at = stpcpy(at, t->store);
    for (int i = 0; i < t->n; i++) {
        *at++ = i || strchr(t->store, '?') ? '&' : '?';
        for (const char *p = t->operand[i]; *p; p++)
            if (*p == '%' || *p == '&' || *p == ',') at += sprintf(at, "%%%02x", (unsigned)*p);
            else *at++ = *p;
    }
    *at = '\0';
    return url;
}

/* Refuses limits that would not be those of one directory. */
static int check_limits(const struct store_tool *t) {
    struct kvc_error e;
    char **list = NULL;
    const int tiers = t->n ? kvc_url_split(t->store, &list, &e) : 1;
    if (tiers < 0) return store_trouble(&e);
    free(list);
    if (tiers > 1)
        return cli_usage("init takes limits of one directory: make each store by itself");
    for (int i = 0; i < t->n; i++)
        if (!strchr(t->operand[i], '=')) return cli_usage("'%s' is not KEY=VALUE", t->operand[i]);
    return EXIT_SAME;
}

struct kvc_store *store_open_tiers(struct store_tool *t, const char *tiers) {
    struct kvc_error e;
    uint32_t missing = 0;
    char size[32];
    if (find_missing(tiers, &missing, &e) < 0) missing = 0; /* opening it says what is wrong */
    struct kvc_store *s = kvc_store_open(tiers, &t->open, &e);
    if (!s) store_trouble(&e);
    for (unsigned i = 0; s && i < s->n_tiers && !t->quiet; i++) {
        const struct kvc_dir *d = missing >> i & 1 ? (const struct kvc_dir *)s->tier[i].tier : NULL;
        if (!d) continue;
        const uint64_t limit = d->root.conf->max_size;
        cli_size_text(limit, size);
        cli_warn("%s: made a store %s%s; kvc-store config max-size=SIZE changes the limit",
                 d->root.path, limit ? "of up to " : "without a limit", limit ? size : "");
    }
    return s;
}

int store_open(struct store_tool *t, int with_limits) {
    struct kvc_error e;
    if (!with_limits)
        return (t->s = store_open_tiers(t, t->store)) != NULL ? EXIT_SAME : EXIT_TROUBLE;
    const int status = check_limits(t);
    if (status) return status;
    char *url = url_with_limits(t);
    if (!url) return EXIT_TROUBLE;
    t->s = kvc_store_open(url, &t->open, &e);
    free(url);
    return t->s ? EXIT_SAME : store_trouble(&e);
}
