/* store_open.c: opens the store and the files of a command, and says what it makes; its progress.
 * Not for what a store's text means (kvc_store.h). */
#include "cli/store/store_tool.h"

#include <stdlib.h>
#include <string.h>

int store_trouble(const struct store_tool *t) {
    cli_error(t->e);
    return EXIT_TROUBLE;
}

struct kvc_file *store_open_file(struct store_tool *t, const char *path) {
    const struct cli_input *in = &t->input;
    struct kvc_open_options o = in->open;
    o.size = sizeof o;
    o.set = in->settings.n ? in->settings.item : NULL;
    struct kvc_file *f = kvc_file_open(path, &o, t->e);
    if (!f) store_trouble(t);
    return f;
}

int store_show(void *state, uint64_t done, uint64_t total) {
    struct store_tool *t = state;
    cli_progress_show(&t->progress, done, total);
    return 0;
}

kvc_progress_fn *store_progress(struct store_tool *t, const char *name) {
    cli_progress_start(&t->progress, name, t->quiet);
    return t->progress.on ? store_show : NULL;
}

/* --- stores --- */

static int is_unmade(struct kvc_store *s, unsigned tier) {
    struct kvc_store_tier_info info = {.size = sizeof info};
    return !kvc_store_describe_tier(s, tier, 0, &info, NULL) && !info.exists;
}

int store_open(struct store_tool *t) {
    if (!(t->s = kvc_store_open(t->store, &t->open, t->e))) return store_trouble(t);
    t->unmade = 0;
    for (unsigned i = 0; i < kvc_store_tiers(t->s); i++) t->unmade |= is_unmade(t->s, i);
    return EXIT_SAME;
}

int store_refuse_unmade(struct store_tool *t) {
    struct kvc_store_tier_info info = {.size = sizeof info};
    for (unsigned i = 0; i < kvc_store_tiers(t->s); i++) {
        if (kvc_store_describe_tier(t->s, i, 0, &info, t->e)) return store_trouble(t);
        if (info.exists) continue;
        cli_warn("%s: there is no %s; kvc-store init makes a store", info.folder,
                 cli_folder_exists(info.folder) ? "store in this folder" : "such folder");
        break;
    }
    return EXIT_TROUBLE;
}

static void say_made(struct kvc_store *s, unsigned tier) {
    struct kvc_store_tier_info info = {.size = sizeof info};
    char size[32];
    if (kvc_store_describe_tier(s, tier, INT64_MAX / 2, &info, NULL)) return;
    cli_size_text((uint64_t)info.limit, size);
    cli_warn("%s: made a store %s%s; kvc-store config max-size=SIZE changes the limit", info.folder,
             info.limit < 0 ? "without a limit" : "of up to ", info.limit < 0 ? "" : size);
}

int store_make(struct store_tool *t, struct kvc_store *s) {
    uint32_t unmade = 0;
    for (unsigned i = 0; i < kvc_store_tiers(s); i++) unmade |= (uint32_t)is_unmade(s, i) << i;
    if (kvc_store_make(s, t->e)) return store_trouble(t);
    for (unsigned i = 0; i < kvc_store_tiers(s) && !t->quiet; i++)
        if (unmade >> i & 1) say_made(s, i);
    return EXIT_SAME;
}

/* --- init --- */

/* Returns the store's text with limits, KEY=VALUE, as options of the directory. */
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

int store_open_limited(struct store_tool *t) {
    t->unmade = 0; /* it is made by the caller */
    if (!t->n) return EXIT_SAME;
    if (kvc_store_tiers(t->s) > 1)
        return cli_usage("init takes limits of one directory: make each store by itself");
    for (int i = 0; i < t->n; i++)
        if (!strchr(t->operand[i], '=')) return cli_usage("'%s' is not KEY=VALUE", t->operand[i]);
    char *url = url_with_limits(t);
    kvc_store_close(t->s);
    t->s = url ? kvc_store_open(url, &t->open, t->e) : NULL;
    if (!url) cli_no_memory(t->e, "a store");
    free(url);
    return t->s ? EXIT_SAME : store_trouble(t);
}
