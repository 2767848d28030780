/* store_keep.c: kvc-store gc, verify, pin, unpin and drop. */
#include "cli/store/store_tool.h"

#include <inttypes.h>

/* --- gc --- */

static void print_cleaned(struct store_tool *t, const struct kvc_store_cleaned *c) {
    char size[32], evicted[32], trash[32];
    const int dry = t->clean.dry_run;
    /* objects were counted before some were evicted */
    const uint64_t objects = dry ? c->objects : c->objects - c->evicted;
    const uint64_t bytes = dry ? c->bytes : c->bytes - c->evicted_bytes;
    cli_size_text(bytes, size);
    cli_size_text(c->evicted_bytes, evicted);
    cli_size_text(c->trash_bytes, trash);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_u64(&t->report, "objects", objects);
        cli_json_u64(&t->report, "bytes", bytes);
        cli_json_u64(&t->report, "adopted", c->adopted);
        cli_json_u64(&t->report, "missing", c->missing);
        cli_json_u64(&t->report, "evicted", c->evicted);
        cli_json_u64(&t->report, "evicted_bytes", c->evicted_bytes);
        cli_json_u64(&t->report, "expired", c->expired);
        cli_json_u64(&t->report, "trash_bytes", c->trash_bytes);
        cli_json_u64(&t->report, "strangers", c->strangers);
        cli_json_close(&t->report);
        return;
    }
    if (t->quiet) return;
    printf("%" PRIu64 " object%s, %s; ", objects, cli_s(objects), size);
    if (dry)
        printf("would evict %s, %" PRIu64 " object%s expired", evicted, c->expired,
               cli_s(c->expired));
    else
        printf("evicted %" PRIu64 " (%s), %" PRIu64 " of them expired", c->evicted, evicted,
               c->expired);
    printf("; %s in the trash\n", trash);
    if (c->adopted || c->missing)
        printf("the index lacked %" PRIu64 " file%s, and %" PRIu64 " of its records had none\n",
               c->adopted, cli_s(c->adopted), c->missing);
    if (c->strangers)
        printf("%" PRIu64 " file%s besides objects in the store's folders\n", c->strangers,
               cli_s(c->strangers));
}

int store_gc(struct store_tool *t) {
    int any = 0, status = EXIT_SAME;
    if (t->json) cli_json_open(&t->report, "directories", '[');
    for (unsigned i = 0; i < kvc_store_tiers(t->s) && !status; i++) {
        struct kvc_store_cleaned cleaned = {.size = sizeof cleaned};
        const int failed = kvc_store_clean(t->s, i, &t->clean, &cleaned, t->e);
        if (failed && kvc_error_code(t->e) == KVC_ERR_UNSUPPORTED) continue;
        any = 1;
        if (failed) status = store_trouble(t);
        else print_cleaned(t, &cleaned);
    }
    if (t->json) cli_json_close(&t->report);
    if (any) return status;
    return cli_usage("kvc-store gc is for directories; Redis and S3 expire objects by themselves");
}

/* --- verify --- */

static void print_bad(void *state, const struct kvc_error *why) {
    struct store_tool *t = state;
    cli_progress_end(&t->progress);
    cli_error(why);
}

int store_verify(struct store_tool *t) {
    const struct kvc_store_verify_options o = {.size = sizeof o,
                                               .repair = t->repair,
                                               .bad = print_bad,
                                               .bad_state = t,
                                               .progress = store_progress(t, t->store),
                                               .progress_state = t};
    struct kvc_store_verified v = {.size = sizeof v};
    const unsigned n_tiers = kvc_store_tiers(t->s);
    char size[32], tiers[32] = "", aside[48];
    const int failed = kvc_store_verify(t->s, &o, &v, t->e);
    cli_progress_end(&t->progress);
    cli_size_text(v.bytes, size);
    if (t->json) {
        cli_json_u64(&t->report, "objects", v.objects);
        cli_json_u64(&t->report, "bytes", v.bytes);
        cli_json_u64(&t->report, "bad", v.bad);
        if (t->repair) cli_json_u64(&t->report, "put_aside", v.put_aside);
    } else if (!t->quiet) {
        if (n_tiers > 1) snprintf(tiers, sizeof tiers, " in %u tiers", n_tiers);
        if (v.put_aside && v.put_aside < v.bad)
            snprintf(aside, sizeof aside, ", %" PRIu64 " put aside", v.put_aside);
        else snprintf(aside, sizeof aside, "%s", v.put_aside ? ", put aside" : "");
        printf("%" PRIu64 " object%s%s, %s: %" PRIu64 " bad%s\n", v.objects, cli_s(v.objects),
               tiers, size, v.bad, aside);
    }
    if (failed) return store_trouble(t);
    return v.bad ? EXIT_DIFFER : EXIT_SAME;
}

/* --- pins --- */

static int change_pin(struct store_tool *t, int pin) {
    struct store_namespaces namespaces;
    struct store_found found = {.hit = NULL};
    int status = store_take_namespaces(t, &namespaces);
    if (!status) status = store_find_longest(t, &namespaces, &found);
    struct kvc_store_hit *hit = found.hit;
    const uint64_t tokens = store_hit_info(hit).tokens;
    if (!status && !hit) {
        cli_warn("the store has no prefix of these tokens");
        status = EXIT_DIFFER;
    }
    if (hit && (pin ? kvc_store_pin(hit, t->seconds, t->e) : kvc_store_unpin(hit, t->e)))
        status = store_trouble(t);
    if (hit && t->json) cli_json_u64(&t->report, "tokens", tokens);
    if (hit && !status && !t->quiet && !t->json)
        printf("%" PRIu64 " token%s %s\n", tokens, cli_s(tokens), pin ? "pinned" : "unpinned");
    kvc_store_hit_free(hit);
    store_free_namespaces(&namespaces);
    return status;
}

int store_pin(struct store_tool *t) {
    return change_pin(t, 1);
}

int store_unpin(struct store_tool *t) {
    return change_pin(t, 0);
}

/* --- drop --- */

static int drop_namespace(struct store_tool *t, struct kvc_store_namespace *ns) {
    const int64_t n = kvc_store_drop(ns, t->e);
    if (n < 0) return store_trouble(t);
    if (t->json) cli_json_i64(&t->report, "objects", n);
    else if (!t->quiet) printf("%" PRId64 " object%s removed\n", n, cli_s((uint64_t)n));
    return n ? EXIT_SAME : EXIT_DIFFER;
}

/* Removes a prompt from a namespace. Adds up what was removed and kept. */
static int drop_prompt(struct store_tool *t, struct kvc_store_namespace *ns,
                       struct kvc_store_dropped *sum) {
    const struct kvc_store_drop_options o = {.size = sizeof o,
                                             .progress = store_show,
                                             .progress_state = t};
    struct kvc_store_dropped d = {.size = sizeof d};
    const char *name = kvc_store_namespace_name(ns);
    char size[32];
    cli_progress_start(&t->progress, name, t->quiet);
    const int failed = kvc_store_drop_tokens(ns, t->ids.id, t->ids.n, &o, &d, t->e);
    cli_progress_end(&t->progress);
    if (failed) return store_trouble(t);
    sum->removed += d.removed;
    sum->kept += d.kept;
    if (!d.removed && !d.kept) return EXIT_SAME;
    cli_size_text(d.bytes, size);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "namespace", name);
        cli_json_u64(&t->report, "removed", d.removed);
        cli_json_u64(&t->report, "kept", d.kept);
        cli_json_u64(&t->report, "bytes", d.bytes);
        cli_json_close(&t->report);
    } else if (!t->quiet) {
        printf("namespace %.16s: %" PRIu64 " chunk%s of %s%s removed", name, d.removed,
               cli_s(d.removed), size, kvc_store_tiers(t->s) > 1 ? " in all tiers" : "");
        if (d.kept) printf(", %" PRIu64 " kept, after which other prompts go on", d.kept);
        printf("\n");
    }
    return EXIT_SAME;
}

static int drop_tokens(struct store_tool *t, const struct store_namespaces *namespaces) {
    struct kvc_store_dropped sum = {.size = sizeof sum};
    int status = store_take_tokens(t);
    if (status) return status;
    if (t->json) cli_json_open(&t->report, "namespaces", '[');
    for (size_t i = 0; i < namespaces->n && !status; i++)
        status = drop_prompt(t, namespaces->item[i], &sum);
    if (t->json) cli_json_close(&t->report);
    if (status || sum.removed) return status;
    if (sum.kept && !t->quiet)
        cli_warn("longer prompts begin with these tokens; to remove one, give all of its tokens");
    else if (!t->quiet) cli_warn("the store has no chunk of these tokens");
    return EXIT_DIFFER;
}

int store_drop(struct store_tool *t) {
    struct store_namespaces namespaces;
    if (!t->ns && !t->like && !t->tokens)
        return cli_usage(
            "name the prompt (--tokens=FILE), or the namespace (--namespace=NAME or --like=FILE)");
    int status = store_take_namespaces(t, &namespaces);
    if (!status && t->tokens) status = drop_tokens(t, &namespaces);
    for (size_t i = 0; i < namespaces.n && !status && !t->tokens; i++)
        status = drop_namespace(t, namespaces.item[i]);
    store_free_namespaces(&namespaces);
    return status;
}
