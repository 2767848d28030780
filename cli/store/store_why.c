/* store_why.c: kvc-store why: what namespaces lack of a prompt, and in what they differ. */
#include "cli/store/store_tool.h"
#include "cli/text.h"
#include "formats/store/dir/dir.h"
#include "formats/store/namespace_text.h"
#include "formats/store/store.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

void store_age_text(int64_t seconds, char text[32]) {
    if (seconds < 120) snprintf(text, 32, "%" PRId64 " s", seconds);
    else if (seconds < 7200) snprintf(text, 32, "%" PRId64 " min", seconds / 60);
    else if (seconds < 172800) snprintf(text, 32, "%" PRId64 " h", seconds / 3600);
    else snprintf(text, 32, "%" PRId64 " d", seconds / 86400);
}

/* Returns 1 if a directory has put an object aside, and says so. */
static int explain_bad(const struct kvc_store_tier *l, const struct kvc_object *o, char *text,
                       size_t size) {
    const struct kvc_dir *d = (const struct kvc_dir *)l->tier;
    char path[KVC_OBJECT_NAME + 8] = "bad/", age[32];
    struct stat st;
    kvc_object_name(o, path + 4);
    if (fstatat(d->root.fd, path, &st, AT_SYMLINK_NOFOLLOW)) return 0;
    store_age_text((int64_t)time(NULL) - st.st_ctim.tv_sec, age);
    snprintf(text, size, "it was damaged, and put aside by %s %s ago, as %s; put stores it again",
             l->url, age, path);
    return 1;
}

/* Returns 1 if the index of a directory knows an object, and says what. */
static int explain_record(const struct kvc_store_tier *l, const struct kvc_object *o, char *text,
                          size_t size) {
    const struct kvc_dir *d = (const struct kvc_dir *)l->tier;
    struct kvc_index_record r;
    char age[32];
    struct kvc_index_txn *txn = d->index ? kvc_index_begin(d->index, 0, NULL) : NULL;
    const int known = txn && kvc_index_get(txn, o->key, &r, NULL) > 0;
    kvc_index_abort(txn);
    if (!known) return 0;
    store_age_text((int64_t)time(NULL) - r.used, age);
    snprintf(text, size,
             r.ghost ? "evicted or refused by %s; it was last asked for %s ago"
                     : "too old for %s: last used %s ago",
             l->url, age);
    return 1;
}

void store_explain(const struct kvc_store *s, const struct kvc_object *o, char *text, size_t size) {
    int dirs = 0;
    for (unsigned i = 0; i < s->n_tiers; i++) {
        if (s->tier[i].ops != &kvc_tier_dir) continue;
        dirs++;
        if (explain_record(&s->tier[i], o, text, size) || explain_bad(&s->tier[i], o, text, size))
            return;
    }
    snprintf(text, size,
             dirs ? "never stored, or forgotten"
                  : "never stored, evicted or, as damaged, removed: %s keeps no record",
             s->tier[0].ops->what);
}

/* Prints what a namespace has of the tokens, and where it ends. Returns the tokens it has. */
static uint64_t explain_namespace(struct store_tool *t, struct kvc_store_namespace *ns,
                                  const char *wanted) {
    const struct kvc_store_find_options o = {.size = sizeof o, .timeout_us = 30000000};
    struct kvc_error e;
    struct kvc_store_hit *hit = kvc_store_find(ns, t->ids.id, t->ids.n, &o, &e);
    char reason[512] = "", difference[256];
    if (!hit) {
        store_trouble(&e);
        return 0;
    }
    const uint64_t tokens = hit->chunks * ns->chunk;
    if (tokens < hit->asked) store_explain(t->s, &hit->object[hit->chunks], reason, sizeof reason);
    else if (t->ids.n % ns->chunk)
        snprintf(reason, sizeof reason, "less than a chunk of %" PRIu64 " tokens is left",
                 ns->chunk);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "namespace", ns->name);
        cli_json_u64(&t->report, "tokens", tokens);
        cli_json_u64(&t->report, "of", t->ids.n);
        cli_json_text(&t->report, "then", *reason ? reason : NULL);
        cli_json_open(&t->report, "differs", '[');
    } else {
        printf("namespace %.16s: %" PRIu64 " of %" PRIu64 " tokens%s%s\n", ns->name, tokens,
               t->ids.n, *reason ? "; then: " : "", reason);
    }
    size_t at = 0;
    while (wanted &&
           kvc_namespace_text_differ(wanted, ns->facts, &at, difference, sizeof difference)) {
        if (t->json) {
            cli_json_text(&t->report, NULL, difference);
            continue;
        }
        printf("  differs in ");
        cli_print_safe(stdout, difference);
        printf("\n");
    }
    if (t->json) {
        cli_json_close(&t->report);
        cli_json_close(&t->report);
    }
    kvc_store_hit_free(hit);
    return tokens;
}

/* Opens all namespaces, of every fidelity. */
static int take_every(struct store_tool *t, struct store_namespaces *all) {
    const char *like = t->like, *recipe = t->of_namespace.recipe;
    t->like = t->of_namespace.recipe = NULL;
    const int status = store_take_namespaces(t, all);
    t->like = like;
    t->of_namespace.recipe = recipe;
    return status;
}

/* Says whether the store has the namespace that the facts of --like give. */
static void explain_wanted(struct store_tool *t, const struct kvc_store_namespace *wanted,
                           const struct store_namespaces *all) {
    int there = 0;
    for (size_t i = 0; i < all->n; i++) there |= strcmp(wanted->name, all->item[i]->name) == 0;
    if (t->json) {
        cli_json_text(&t->report, "wanted", wanted->name);
        cli_json_bool(&t->report, "there", there);
    } else if (!there) {
        printf("namespace %.16s, which these facts give, is not in the store\n", wanted->name);
    }
}

int store_why(struct store_tool *t) {
    struct store_namespaces wanted = {.n = 0}, all = {.n = 0};
    int status = store_take_tokens(t);
    uint64_t best = 0;
    if (status) return status;
    if (t->like) status = store_take_namespaces(t, &wanted);
    if (!status) status = take_every(t, &all);
    if (!status && !all.n && !t->json) printf("the store has no namespace that can be read\n");
    if (!status && wanted.n) explain_wanted(t, wanted.item[0], &all);
    if (t->json) cli_json_open(&t->report, "namespaces", '[');
    for (size_t i = 0; i < all.n && !status; i++) {
        const uint64_t tokens = explain_namespace(t, all.item[i],
                                                  wanted.n ? wanted.item[0]->facts : NULL);
        if (tokens > best) best = tokens;
    }
    if (t->json) cli_json_close(&t->report);
    store_free_namespaces(&wanted);
    store_free_namespaces(&all);
    return status ? status : best ? EXIT_SAME : EXIT_DIFFER;
}
