/* store_look.c: kvc-store init, ls, stat, stats, config and doctor. */
#include "cli/store/store_tool.h"
#include "cli/text.h"
#include "formats/store/dir/dir.h"
#include "formats/store/namespace_text.h"
#include "formats/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* Returns the directory among the tiers, the first one; NULL: there is none. */
static struct kvc_dir *directory(const struct kvc_store *s) {
    for (unsigned i = 0; i < s->n_tiers; i++)
        if (s->tier[i].ops == &kvc_tier_dir) return (struct kvc_dir *)s->tier[i].tier;
    return NULL;
}

int store_init(struct store_tool *t) {
    if (!t->quiet && !t->json) printf("%s\n", t->store);
    return EXIT_SAME;
}

/* --- ls --- */

struct listing {
    struct store_tool *tool;
    const struct kvc_store_namespace *ns; /* NULL: all */
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
        cli_json_i64(&x->tool->report, "written", used);
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

static int list_namespace(struct store_tool *t, const struct kvc_store_namespace *ns) {
    struct kvc_error e;
    struct listing x = {.tool = t};
    struct kvc_namespace_facts facts;
    char size[32];
    if (kvc_store_walk(t->s, ns, see_object, &x, &e)) return store_trouble(&e);
    if (kvc_namespace_text_read(ns->facts, strlen(ns->facts), &facts, &e)) return store_trouble(&e);
    cli_size_text(x.bytes, size);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "namespace", ns->name);
        cli_json_u64(&t->report, "objects", x.n);
        cli_json_u64(&t->report, "bytes", x.bytes);
        cli_json_u64(&t->report, "chunk", ns->chunk);
        cli_json_text(&t->report, "fidelity", facts.fidelity);
        cli_json_text(&t->report, "facts", ns->facts);
        cli_json_close(&t->report);
        return EXIT_SAME;
    }
    printf("%.16s  %" PRIu64 " objects, %s, chunks of %" PRIu64 " tokens, ", ns->name, x.n, size,
           ns->chunk);
    cli_print_safe(stdout, facts.fidelity);
    print_comments(ns->facts);
    printf("\n");
    return EXIT_SAME;
}

int store_ls(struct store_tool *t) {
    struct kvc_error e;
    struct store_namespaces namespaces = {.n = 0};
    int status = EXIT_SAME;
    if (t->json) cli_json_open(&t->report, t->verbose ? "objects" : "namespaces", '[');
    if (!t->verbose || t->ns || t->like) status = store_take_namespaces(t, &namespaces);
    for (size_t i = 0; i < namespaces.n && !status && !t->verbose; i++)
        status = list_namespace(t, namespaces.item[i]);
    if (t->verbose && !status) {
        struct listing x = {.tool = t, .print = 1};
        if (kvc_store_walk(t->s, namespaces.n ? namespaces.item[0] : NULL, see_object, &x, &e))
            status = store_trouble(&e);
    }
    if (t->json) cli_json_close(&t->report);
    store_free_namespaces(&namespaces);
    return status;
}

/* --- stat --- */

static int stat_object(struct store_tool *t, const char *name) {
    struct kvc_object o;
    struct kvc_index_record r;
    const struct kvc_dir *d = directory(t->s);
    char path[KVC_ROOT_PATH], age[32];
    struct kvc_error e;
    if (kvc_object_parse(name, &o))
        return cli_usage("'%s' is no name of an object, as kvc-store ls -v prints them", name);
    if (!d || !d->index) return cli_usage("kvc-store stat needs a directory with an index");
    struct kvc_index_txn *txn = kvc_index_begin(d->index, 0, &e);
    if (!txn) return store_trouble(&e);
    const int found = kvc_index_get(txn, o.key, &r, &e);
    kvc_index_abort(txn);
    if (found < 0) return store_trouble(&e);
    if (!found) {
        if (!t->quiet)
            cli_warn("%s: the index does not know it%s", name,
                     o.kind == KVC_OBJECT_CHUNK ? "" : ": it has chunks only");
        return EXIT_DIFFER;
    }
    kvc_root_path(&o, path);
    store_age_text((int64_t)time(NULL) - r.used, age);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "name", name);
        cli_json_text(&t->report, "path", path);
        cli_json_bool(&t->report, "resident", !r.ghost);
        cli_json_u64(&t->report, "bytes", r.size);
        cli_json_u64(&t->report, "uses", r.uses);
        cli_json_u64(&t->report, "depth", r.depth);
        cli_json_u64(&t->report, "children", r.children);
        cli_json_i64(&t->report, "used", r.used);
        cli_json_i64(&t->report, "pinned", r.pinned);
        cli_json_i64(&t->report, "expires", r.expires);
        cli_json_close(&t->report);
        return EXIT_SAME;
    }
    printf("%s\n  %s, %" PRIu64 " bytes, chunk %" PRIu32 " of its chain, %" PRIu32
           " children\n  used %u%s times, last %s ago%s%s\n",
           r.ghost ? "evicted" : path, r.ghost ? "remembered" : "stored", r.size, r.depth,
           r.children, r.uses, r.uses == KVC_INDEX_USES ? " or more" : "", age,
           r.pinned > (int64_t)time(NULL) ? ", pinned" : "", r.expires ? ", expires" : "");
    return EXIT_SAME;
}

int store_stat(struct store_tool *t) {
    int worst = EXIT_SAME;
    if (!t->n) return cli_usage("name the objects");
    if (t->json) cli_json_open(&t->report, "objects", '[');
    for (int i = 0; i < t->n; i++) {
        const int status = stat_object(t, t->operand[i]);
        if (status > worst) worst = status;
    }
    if (t->json) cli_json_close(&t->report);
    return worst;
}

/* --- stats --- */

struct total {
    uint64_t objects, bytes;
};

static int store_look_add(void *state, const struct kvc_object *o, uint64_t bytes, int64_t used) {
    struct total *x = state;
    (void)o, (void)used;
    x->objects++;
    x->bytes += bytes;
    return 0;
}

/* Prints what a tier holds of the store: its objects are counted, for a server's own counts are
 * those of all that it has. */
static int print_tier(struct store_tool *t, unsigned i) {
    struct kvc_tier_facts f;
    struct kvc_error e;
    const struct kvc_store_tier *l = &t->s->tier[i];
    struct total sum = {0};
    char size[32], limit[32] = "";
    if (l->ops->facts(l->tier, &f, kvc_now() + 10000000, &e) ||
        l->ops->walk(l->tier, NULL, store_look_add, &sum, &e))
        return store_trouble(&e);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "scheme", l->ops->scheme);
        cli_json_text(&t->report, "what", f.text);
        cli_json_u64(&t->report, "objects", sum.objects);
        cli_json_u64(&t->report, "bytes", sum.bytes);
        if (f.limit >= 0) cli_json_i64(&t->report, "limit", f.limit);
        cli_json_close(&t->report);
        return EXIT_SAME;
    }
    cli_size_text(sum.bytes, size);
    if (f.limit >= 0) cli_size_text((uint64_t)f.limit, limit);
    printf("%u  %s  ", i, l->ops->scheme);
    cli_print_safe(stdout, f.text);
    printf(": %" PRIu64 " objects, %s%s%s\n", sum.objects, size, *limit ? " of " : "", limit);
    return EXIT_SAME;
}

static void print_index(struct store_tool *t, const struct kvc_dir *d) {
    struct kvc_index_txn *txn = d && d->index ? kvc_index_begin(d->index, 0, NULL) : NULL;
    if (!txn) return;
    const struct kvc_index_sums *s = kvc_index_sums(txn);
    char trash[32], evicted[32];
    cli_size_text(s->trash, trash);
    cli_size_text(s->evicted_bytes, evicted);
    if (t->json) {
        cli_json_u64(&t->report, "puts", s->puts);
        cli_json_u64(&t->report, "reads", s->hits);
        cli_json_u64(&t->report, "evicted", s->evicted);
        cli_json_u64(&t->report, "evicted_bytes", s->evicted_bytes);
        cli_json_u64(&t->report, "refused", s->refused);
        cli_json_u64(&t->report, "trash_bytes", s->trash);
        cli_json_u64(&t->report, "ghosts", s->ghost_records);
    } else {
        printf("since the index was made: %" PRIu64 " objects put, %" PRIu64 " read, %" PRIu64
               " evicted (%s), %" PRIu64 " refused; %s in the trash, %" PRIu64 " remembered\n",
               s->puts, s->hits, s->evicted, evicted, s->refused, trash, s->ghost_records);
    }
    kvc_index_abort(txn);
}

int store_stats(struct store_tool *t) {
    int worst = EXIT_SAME;
    if (t->json) cli_json_open(&t->report, "tiers", '[');
    for (unsigned i = 0; i < t->s->n_tiers; i++) {
        const int status = print_tier(t, i);
        if (status > worst) worst = status;
    }
    if (t->json) cli_json_close(&t->report);
    print_index(t, directory(t->s));
    return worst;
}

/* --- config --- */

int store_config(struct store_tool *t) {
    struct kvc_dir *d = directory(t->s);
    struct kvc_error e;
    char text[2048];
    if (!d) return cli_usage("only directories have a configuration");
    struct kvc_conf c = *d->root.conf;
    for (int i = 0; i < t->n; i++) {
        struct kvc_url url = {.scheme = "config"};
        char *item = strdup(t->operand[i]), *value = item ? strchr(item, '=') : NULL;
        if (value) *value++ = '\0';
        url.option[0] = (struct kvc_url_option){.key = item, .value = value};
        url.n = 1;
        int status = value ? EXIT_SAME : cli_usage("'%s' is not KEY=VALUE", t->operand[i]);
        if (!status && (kvc_conf_take(&c, &url, &e) < 0 || kvc_url_rest(&url, &e)))
            status = store_trouble(&e);
        free(item);
        if (status) return status;
    }
    if (t->n && kvc_root_configure(&d->root, &c, &e)) return store_trouble(&e);
    kvc_conf_print(&c, text, sizeof text);
    if (t->json) cli_json_text(&t->report, "config", text);
    else if (!t->quiet || !t->n) fputs(text, stdout);
    return EXIT_SAME;
}

/* --- doctor --- */

struct doctor {
    struct store_tool *t;
    int worst;
};

static void say(struct doctor *x, int good, const char *what, const char *more) {
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

/* What stands in the place of objects. */
struct strangers {
    uint64_t n;
    char first[KVC_ROOT_PATH];
};

static int see_stranger(void *state, const struct kvc_object *o, const struct stat *st,
                        struct kvc_error *e) {
    struct strangers *x = state;
    (void)e;
    if (!S_ISREG(st->st_mode) && !x->n++) kvc_root_path(o, x->first);
    return 0;
}

/* Looks for what is no object, and for links in the place of folders. */
static void examine_names(struct doctor *x, const struct kvc_root *r) {
    struct strangers no_files = {.n = 0};
    struct kvc_root_strangers others;
    struct kvc_error e;
    char text[KVC_ROOT_PATH + 100] = "";
    if (kvc_root_walk(r, see_stranger, &no_files, &others, &e)) {
        say(x, 0, "folders", e.message);
        return;
    }
    if (no_files.n)
        snprintf(text, sizeof text, "%" PRIu64 " are none, as %s: kvc-store gc puts them aside",
                 no_files.n, no_files.first);
    say(x, !no_files.n, "objects are files", text);
    snprintf(text, sizeof text, "%s", others.first);
    if (others.n > 1) snprintf(text, sizeof text, "%" PRIu64 ", as %s", others.n, others.first);
    say(x, !others.n, others.n ? "what is no object" : "nothing else is in the folders", text);
}

static void examine_folder(struct doctor *x, const struct kvc_dir *d) {
    static const struct kvc_object any = {.kind = KVC_OBJECT_CHUNK};
    const struct kvc_root *r = &d->root;
    struct statvfs fs;
    struct kvc_root_file f;
    struct kvc_error e;
    char text[128];
    if (kvc_root_create(r, &any, &f, &e)) {
        say(x, 0, "files can be written", e.message);
    } else {
        say(x, 1, *f.temporary ? "no files without names" : "files without names (O_TMPFILE)",
            *f.temporary ? "temporary names are used" : "");
        kvc_root_drop(r, &f);
    }
    examine_names(x, r);
    say(x, r->local, "file system of this machine",
        r->local ? "" : "no index: limits are kept by kvc-store gc only");
    say(x, d->index || !r->conf->indexed, "index", d->index ? "" : "none");
    if (fstatvfs(r->fd, &fs)) return;
    const double free_share = fs.f_blocks ? 100. * (double)fs.f_bavail / (double)fs.f_blocks : 0;
    snprintf(text, sizeof text, "%.1f %% free, %g %% are to stay free", free_share,
             r->conf->min_free);
    say(x, free_share > r->conf->min_free, "room on the file system", text);
    snprintf(text, sizeof text, "%" PRIu64 " left", (uint64_t)fs.f_favail);
    say(x, !fs.f_files || fs.f_favail > 10000, "inodes", fs.f_files ? text : "");
}

int store_doctor(struct store_tool *t) {
    struct doctor x = {.t = t};
    struct kvc_tier_facts f;
    struct kvc_error e;
    char text[128];
    if (t->json) cli_json_open(&t->report, "checks", '[');
    for (unsigned i = 0; i < t->s->n_tiers; i++) {
        const struct kvc_store_tier *l = &t->s->tier[i];
        const kvc_instant began = kvc_now();
        const int failed = l->ops->facts(l->tier, &f, began + 5000000, &e);
        snprintf(text, sizeof text, "answers in %.1f ms", (double)(kvc_now() - began) / 1000);
        say(&x, !failed, l->url, failed ? e.message : text);
        if (l->ops == &kvc_tier_dir) examine_folder(&x, (const struct kvc_dir *)l->tier);
    }
    if (t->json) cli_json_close(&t->report);
    return x.worst;
}
