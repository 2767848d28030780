/* store_why.c: kvc-store why: what namespaces lack of a prompt, and in what they differ. */
#include "cli/store/store_tool.h"
#include "cli/text.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

void store_age_text(int64_t seconds, char text[32]) {
    if (seconds < 0) seconds = 0; /* a clock was set back, or is another machine's */
    if (seconds < 120) snprintf(text, 32, "%" PRId64 " s", seconds);
    else if (seconds < 7200) snprintf(text, 32, "%" PRId64 " min", seconds / 60);
    else if (seconds < 172800) snprintf(text, 32, "%" PRId64 " h", seconds / 3600);
    else snprintf(text, 32, "%" PRId64 " d", seconds / 86400);
}

/* Returns 1 if a tier knows an object, and says what. */
static int explain_known(struct store_tool *t, unsigned tier, const char *url, const char *name,
                         char *text, size_t size) {
    struct kvc_store_object_info o = {.size = sizeof o};
    char age[32];
    if (kvc_store_object(t->s, tier, name, &o, NULL) <= 0) return 0;
    store_age_text((int64_t)time(NULL) - (o.state == KVC_STORE_PUT_ASIDE ? o.aside : o.used), age);
    if (o.state == KVC_STORE_PUT_ASIDE)
        snprintf(text, size,
                 "it was damaged, and put aside by %s %s ago, as %s; put stores it again", url, age,
                 o.path);
    else
        snprintf(text, size,
                 o.state == KVC_STORE_REMEMBERED
                     ? "evicted or refused by %s; it was last asked for %s ago"
                     : "too old for %s: last used %s ago",
                 url, age);
    return 1;
}

void store_explain(struct store_tool *t, const struct kvc_store_hit *hit, char *text, size_t size) {
    struct kvc_store_tier_info info = {.size = sizeof info};
    char name[KVC_STORE_OBJECT_NAME];
    int folders = 0;
    *text = '\0';
    if (!kvc_store_hit_next(hit, name, sizeof name)) return;
    for (unsigned i = 0; i < kvc_store_tiers(t->s); i++) {
        if (kvc_store_describe_tier(t->s, i, 0, &info, NULL) || !info.folder) continue;
        folders++;
        if (explain_known(t, i, info.url, name, text, size)) return;
    }
    kvc_store_describe_tier(t->s, 0, 0, &info, NULL);
    snprintf(text, size,
             folders ? "never stored, or forgotten"
                     : "never stored, evicted or, as damaged, removed: %s keeps no record",
             info.what);
}

/* Prints in which facts a namespace differs from the one that is wanted (NULL: from none). */
static void print_differences(struct store_tool *t, const struct kvc_store_namespace *wanted,
                              const struct kvc_store_namespace *ns) {
    char difference[256];
    size_t at = 0;
    while (wanted && kvc_store_namespace_differ(wanted, ns, &at, difference, sizeof difference)) {
        if (t->json) {
            cli_json_text(&t->report, NULL, difference);
            continue;
        }
        printf("  differs in ");
        cli_print_safe(stdout, difference);
        printf("\n");
    }
}

/* Prints what a namespace has of the tokens, and where it ends. Returns the tokens it has. */
static uint64_t explain_namespace(struct store_tool *t, struct kvc_store_namespace *ns,
                                  const struct kvc_store_namespace *wanted) {
    const struct kvc_store_find_options o = {.size = sizeof o, .timeout_us = 30000000};
    struct kvc_store_hit *hit = kvc_store_find(ns, t->ids.id, t->ids.n, &o, t->e);
    const uint64_t chunk = kvc_store_namespace_chunk(ns);
    const char *name = kvc_store_namespace_name(ns);
    char reason[512] = "";
    if (!hit) {
        store_trouble(t);
        return 0;
    }
    const uint64_t tokens = store_hit_info(hit).tokens;
    store_explain(t, hit, reason, sizeof reason);
    kvc_store_hit_free(hit);
    if (!*reason && t->ids.n % chunk)
        snprintf(reason, sizeof reason, "less than a chunk of %" PRIu64 " tokens is left", chunk);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "namespace", name);
        cli_json_u64(&t->report, "tokens", tokens);
        cli_json_u64(&t->report, "of", t->ids.n);
        cli_json_text(&t->report, "then", *reason ? reason : NULL);
        cli_json_open(&t->report, "differs", '[');
    } else {
        printf("namespace %.16s: %" PRIu64 " of %" PRIu64 " tokens%s%s\n", name, tokens, t->ids.n,
               *reason ? "; then: " : "", reason);
    }
    print_differences(t, wanted, ns);
    if (t->json) {
        cli_json_close(&t->report);
        cli_json_close(&t->report);
    }
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
    const char *name = kvc_store_namespace_name(wanted);
    int there = 0;
    for (size_t i = 0; i < all->n; i++)
        there |= strcmp(name, kvc_store_namespace_name(all->item[i])) == 0;
    if (t->json) {
        cli_json_text(&t->report, "wanted", name);
        cli_json_bool(&t->report, "there", there);
    } else if (!there) {
        printf("namespace %.16s, which these facts give, is not in the store\n", name);
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
        const uint64_t tokens = explain_namespace(t, all.item[i], wanted.n ? wanted.item[0] : NULL);
        if (tokens > best) best = tokens;
    }
    if (t->json) cli_json_close(&t->report);
    store_free_namespaces(&wanted);
    store_free_namespaces(&all);
    return status ? status : best ? EXIT_SAME : EXIT_DIFFER;
}
