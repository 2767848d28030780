/* store_look.c: kvc-store init, ls, stat, stats, config and doctor. */
#include "cli/store/store_tool.h"
#include "cli/text.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <time.h>

int store_init(struct store_tool *t) {
    if (!t->quiet && !t->json) printf("%s\n", t->store);
    return EXIT_SAME;
}

/* --- ls --- */

struct listing {
    struct store_tool *tool;
    uint64_t n, bytes;
    int print;
};

static int see_object(void *state, unsigned tier, const char *name, uint64_t bytes, int64_t used) {
    struct listing *x = state;
    char size[32], age[32] = "-";
    x->n++;
    x->bytes += bytes;
    if (!x->print) return 0;
    if (x->tool->json) {
        cli_json_open(&x->tool->report, NULL, '{');
        cli_json_text(&x->tool->report, "name", name);
        cli_json_u64(&x->tool->report, "tier", tier);
        cli_json_u64(&x->tool->report, "bytes", bytes);
        cli_json_i64(&x->tool->report, "used", used);
        cli_json_close(&x->tool->report);
        return 0;
    }
    cli_size_text(bytes, size);
    if (used) store_age_text((int64_t)time(NULL) - used, age);
    printf("%u  %10s  %8s  %s\n", tier, size, age, name);
    return 0;
}

/* Prints the comment lines of a namespace's facts: what people know a model by. */
static void print_comments(const char *facts) {
    for (const char *p = facts; *p;) {
        const size_t n = strcspn(p, "\n");
        if (*p == '#') printf("  %.*s", (int)n - 2, p + 2);
        p += n + (p[n] != 0);
    }
}

/* Prints the profile that values went through, if it is known. */
static void print_profile(const char *facts) {
    static const char line[] = "\n17 profile.sha256 ";
    const char *p = strstr(facts, line);
    const char *hash = p ? p + sizeof line - 1 : "";
    if (strspn(hash, "0123456789abcdef") >= 16) printf(", profile %.16s", hash);
}

static int list_namespace(struct store_tool *t, const struct kvc_store_namespace *ns) {
    struct listing x = {.tool = t};
    const char *name = kvc_store_namespace_name(ns), *facts = kvc_store_namespace_facts(ns),
               *fidelity = store_namespace_info(ns).fidelity;
    const uint64_t chunk = kvc_store_namespace_chunk(ns);
    char size[32];
    if (kvc_store_walk(t->s, ns, see_object, &x, t->e)) return store_trouble(t);
    cli_size_text(x.bytes, size);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "namespace", name);
        cli_json_u64(&t->report, "objects", x.n);
        cli_json_u64(&t->report, "bytes", x.bytes);
        cli_json_u64(&t->report, "chunk", chunk);
        cli_json_text(&t->report, "fidelity", fidelity);
        cli_json_text(&t->report, "facts", facts);
        cli_json_close(&t->report);
        return EXIT_SAME;
    }
    printf("%.16s  %" PRIu64 " object%s, %s, chunks of %" PRIu64 " token%s, ", name, x.n,
           cli_s(x.n), size, chunk, cli_s(chunk));
    cli_print_safe(stdout, fidelity);
    print_profile(facts);
    print_comments(facts);
    printf("\n");
    return EXIT_SAME;
}

int store_ls(struct store_tool *t) {
    struct store_namespaces namespaces = {.n = 0};
    int status = EXIT_SAME;
    if (t->json) cli_json_open(&t->report, t->verbose ? "objects" : "namespaces", '[');
    if (!t->verbose || t->ns || t->like) status = store_take_namespaces(t, &namespaces);
    for (size_t i = 0; i < namespaces.n && !status && !t->verbose; i++)
        status = list_namespace(t, namespaces.item[i]);
    if (t->verbose && !status) {
        struct listing x = {.tool = t, .print = 1};
        if (kvc_store_walk(t->s, namespaces.n ? namespaces.item[0] : NULL, see_object, &x, t->e))
            status = store_trouble(t);
    }
    if (t->json) cli_json_close(&t->report);
    store_free_namespaces(&namespaces);
    return status;
}

/* --- stat --- */

/* Returns the first tier that is a directory; UINT_MAX: there is none. */
static unsigned first_directory(struct store_tool *t) {
    struct kvc_store_tier_info info = {.size = sizeof info};
    for (unsigned i = 0; !kvc_store_describe_tier(t->s, i, 0, &info, NULL); i++)
        if (info.folder) return i;
    return UINT_MAX;
}

static int is_chunk(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".kv") == 0;
}

static int stat_object(struct store_tool *t, unsigned tier, const char *name) {
    struct kvc_store_object_info o = {.size = sizeof o};
    char age[32];
    const int known = kvc_store_object(t->s, tier, name, &o, t->e);
    const enum kvc_code code = known < 0 ? kvc_error_code(t->e) : KVC_OK;
    if (code == KVC_ERR_USAGE && tier != UINT_MAX)
        return cli_usage("'%s' is no name of an object, as kvc-store ls -v prints them", name);
    if (code == KVC_ERR_USAGE || code == KVC_ERR_UNSUPPORTED)
        return cli_usage("kvc-store stat needs a directory with an index");
    if (code) return store_trouble(t);
    if (!known || o.state == KVC_STORE_PUT_ASIDE) {
        if (!t->quiet)
            cli_warn("%s: the index does not know it%s", name,
                     is_chunk(name) ? "" : ": it has chunks only");
        return EXIT_DIFFER;
    }
    const int stored = o.state == KVC_STORE_STORED;
    store_age_text((int64_t)time(NULL) - o.used, age);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "name", name);
        cli_json_text(&t->report, "path", o.path);
        cli_json_bool(&t->report, "stored", stored);
        cli_json_u64(&t->report, "bytes", o.bytes);
        cli_json_u64(&t->report, "uses", o.uses);
        cli_json_u64(&t->report, "depth", o.depth);
        cli_json_u64(&t->report, "children", o.children);
        cli_json_i64(&t->report, "used", o.used);
        cli_json_i64(&t->report, "pinned", o.pinned);
        cli_json_i64(&t->report, "expires", o.expires);
        cli_json_close(&t->report);
        return EXIT_SAME;
    }
    printf("%s\n  %s, %" PRIu64 " bytes, chunk %" PRIu32 " of its chain, %" PRIu32
           " child%s\n  used %u%s time%s, last %s ago%s%s\n",
           stored ? o.path : "evicted", stored ? "stored" : "remembered", o.bytes, o.depth,
           o.children, o.children == 1 ? "" : "ren", o.uses, o.many ? " or more" : "",
           cli_s(o.uses), age, o.pinned > (int64_t)time(NULL) ? ", pinned" : "",
           o.expires ? ", expires" : "");
    return EXIT_SAME;
}

int store_stat(struct store_tool *t) {
    int worst = EXIT_SAME;
    if (!t->n) return cli_usage("name the objects");
    if (t->json) cli_json_open(&t->report, "objects", '[');
    for (int i = 0; i < t->n; i++) {
        const int status = stat_object(t, first_directory(t), t->operand[i]);
        if (status > worst) worst = status;
    }
    if (t->json) cli_json_close(&t->report);
    return worst;
}

/* --- stats --- */

/* Prints what a tier holds of the store: its objects are counted, for a server's own counts are
 * those of all that it has. */
static int print_tier(struct store_tool *t, unsigned tier) {
    struct kvc_store_tier_info info = {.size = sizeof info};
    struct listing sum = {.tool = t};
    char size[32], limit[32] = "";
    if (kvc_store_describe_tier(t->s, tier, 10000000, &info, t->e) ||
        kvc_store_walk_tier(t->s, tier, NULL, see_object, &sum, t->e))
        return store_trouble(t);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "scheme", info.scheme);
        cli_json_text(&t->report, "what", info.text);
        cli_json_u64(&t->report, "objects", sum.n);
        cli_json_u64(&t->report, "bytes", sum.bytes);
        if (info.limit >= 0) cli_json_i64(&t->report, "limit", info.limit);
        cli_json_close(&t->report);
        return EXIT_SAME;
    }
    cli_size_text(sum.bytes, size);
    if (info.limit >= 0) cli_size_text((uint64_t)info.limit, limit);
    printf("%u  %s  ", tier, info.scheme);
    cli_print_safe(stdout, info.text);
    printf(": %" PRIu64 " object%s, %s%s%s\n", sum.n, cli_s(sum.n), size, *limit ? " of " : "",
           limit);
    return EXIT_SAME;
}

/* Prints what the first directory has counted. */
static void print_history(struct store_tool *t) {
    struct kvc_store_tier_info s = {.size = sizeof s};
    char trash[32], evicted[32];
    if (kvc_store_describe_tier(t->s, first_directory(t), 10000000, &s, NULL) || !s.has_history)
        return;
    cli_size_text(s.trash_bytes, trash);
    cli_size_text(s.evicted_bytes, evicted);
    if (t->json) {
        cli_json_u64(&t->report, "puts", s.puts);
        cli_json_u64(&t->report, "reads", s.reads);
        cli_json_u64(&t->report, "evicted", s.evicted);
        cli_json_u64(&t->report, "evicted_bytes", s.evicted_bytes);
        cli_json_u64(&t->report, "refused", s.refused);
        cli_json_u64(&t->report, "trash_bytes", s.trash_bytes);
        cli_json_u64(&t->report, "remembered", s.remembered);
    } else {
        printf("since the index was made: %" PRIu64 " object%s put, %" PRIu64 " read, %" PRIu64
               " evicted (%s), %" PRIu64 " refused; %s in the trash, %" PRIu64 " remembered\n",
               s.puts, cli_s(s.puts), s.reads, s.evicted, evicted, s.refused, trash, s.remembered);
    }
}

int store_stats(struct store_tool *t) {
    int worst = EXIT_SAME;
    if (t->json) cli_json_open(&t->report, "tiers", '[');
    for (unsigned i = 0; i < kvc_store_tiers(t->s); i++) {
        const int status = print_tier(t, i);
        if (status > worst) worst = status;
    }
    if (t->json) cli_json_close(&t->report);
    print_history(t);
    return worst;
}

/* --- config --- */

int store_config(struct store_tool *t) {
    const unsigned tier = first_directory(t);
    char text[2048];
    if (tier == UINT_MAX) return cli_usage("only directories have a configuration");
    for (int i = 0; i < t->n; i++)
        if (!strchr(t->operand[i], '=')) return cli_usage("'%s' is not KEY=VALUE", t->operand[i]);
    if (kvc_store_configure(t->s, tier, (const char *const *)t->operand, text, sizeof text, t->e))
        return store_trouble(t);
    if (t->json) cli_json_text(&t->report, "config", text);
    else if (!t->quiet || !t->n) fputs(text, stdout);
    return EXIT_SAME;
}

/* --- doctor --- */

struct doctor {
    struct store_tool *t;
    int worst;
};

static void say(void *state, int good, const char *what, const char *more) {
    struct doctor *x = state;
    if (!good && x->worst < EXIT_DIFFER) x->worst = EXIT_DIFFER;
    if (x->t->json) {
        cli_json_open(&x->t->report, NULL, '{');
        cli_json_bool(&x->t->report, "good", good);
        cli_json_text(&x->t->report, "what", what);
        cli_json_text(&x->t->report, "more", more);
        cli_json_close(&x->t->report);
    } else {
        printf("%s  %s%s", good ? "ok  " : "BAD ", what, *more ? ": " : "");
        cli_print_safe(stdout, more);
        printf("\n");
    }
}

int store_doctor(struct store_tool *t) {
    struct doctor x = {.t = t};
    if (t->json) cli_json_open(&t->report, "checks", '[');
    for (unsigned i = 0; i < kvc_store_tiers(t->s); i++) kvc_store_examine(t->s, i, say, &x);
    if (t->json) cli_json_close(&t->report);
    return x.worst;
}
