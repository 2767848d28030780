/* profile_look.c: kvc-profile list, show and fit. Not for what kvc-dump says of a profile
 * (dump_model.c). */
#include "cli/dump/dump.h"
#include "cli/profile/profile_tool.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_DIGITS = 4, SHOWN_DIGITS = 12, HEX = 64 };

static void hash_text(const struct kvc_profile_info *info, char hex[HEX + 1]) {
    for (size_t i = 0; i < sizeof info->sha256; i++)
        snprintf(hex + 2 * i, 3, "%02x", info->sha256[i]);
}

static struct dump_out begin(const struct profile_tool *t) {
    struct dump_out o = {.style = t->json ? DUMP_JSON : DUMP_TEXT,
                         .out = t->out,
                         .report = {.lines = t->lines}};
    if (t->json) cli_report_start(&o.report, o.out);
    return o;
}

static void end(struct dump_out *o) {
    if (o->depth) dump_table_end(o);
    if (o->style == DUMP_JSON) cli_report_end(&o->report);
}

/* --- names of profiles --- */

/* Profiles that a name means: the file of this path, or those in the folders whose hash begins so,
 * or whose model's name contains it. */
struct sought {
    const char *name;
    int is_hash;
    /* gets each */
    void (*take)(void *state, const char *path, struct kvc_profile *p);
    void *state;
    size_t found;
};

static int is_hash(const char *name) {
    const size_t n = strlen(name);
    if (n < LEAST_DIGITS || n > HEX) return 0;
    return strspn(name, "0123456789abcdefABCDEF") == n;
}

static int consider(void *state, const char *path) {
    struct sought *s = state;
    struct kvc_profile_info info = {.size = sizeof info};
    struct kvc_profile *p = kvc_shared_profile_open(path, NULL);
    char hex[HEX + 1];
    if (!p) return 0; /* as readers, which pass it over */
    kvc_shared_profile_describe(p, &info);
    hash_text(&info, hex);
    const int by_hash = s->is_hash && strncasecmp(hex, s->name, strlen(s->name)) == 0;
    if (by_hash || strcasestr(info.model, s->name)) {
        s->found++;
        s->take(s->state, path, p);
    }
    kvc_shared_profile_close(p);
    return 0;
}

/* Finds what a name means. Returns an exit status, EXIT_DIFFER where there is no such profile
 * (message printed). */
static int seek(struct profile_tool *t, struct sought *s) {
    if (!*s->name) return cli_usage("name a profile: its file, its hash or its model");
    if (cli_output_exists(s->name)) {
        struct kvc_profile *p = kvc_shared_profile_open(s->name, t->e);
        if (!p) return profile_trouble(t);
        s->found = 1;
        s->take(s->state, s->name, p);
        kvc_shared_profile_close(p);
        return EXIT_SAME;
    }
    s->is_hash = is_hash(s->name);
    kvc_shared_profile_visit(consider, s);
    if (s->found) return EXIT_SAME;
    cli_warn("%s: there is no such file, nor a profile of this hash or model: kvc-profile list "
             "shows those in the folders",
             s->name);
    return EXIT_DIFFER;
}

/* --- list --- */

static void list_one(void *state, const char *path, struct kvc_profile *p) {
    static const struct dump_column columns[] = {{"sha256", -SHOWN_DIGITS},
                                                 {"layers", 6},
                                                 {"size", 9},
                                                 {"metric", -10},
                                                 {"predicts", -8},
                                                 {"model", -24},
                                                 {"made", -24},
                                                 {"file", -1},
                                                 {NULL, 0}};
    struct dump_out *o = state;
    struct kvc_profile_info info = {.size = sizeof info};
    char hex[HEX + 1];
    uint64_t bytes;
    kvc_shared_profile_describe(p, &info);
    hash_text(&info, hex);
    if (o->style == DUMP_TEXT) hex[SHOWN_DIGITS] = '\0';
    dump_file_row(o, path, "profile", columns);
    dump_text(o, hex);
    dump_u64(o, kvc_shared_profile_layers(p, &bytes));
    dump_bytes(o, bytes);
    dump_text(o, info.metric);
    dump_yes(o, info.predicts);
    dump_short_text(o, *info.model ? info.model : NULL, 24);
    dump_short_text(o, kvc_shared_profile_text(p, "made"), 24);
    dump_file_row_end(o, path);
    dump_end(o);
}

int profile_list(struct profile_tool *t) {
    struct dump_out o = begin(t);
    struct sought all = {.name = "", .take = list_one, .state = &o};
    kvc_shared_profile_visit(consider, &all);
    end(&o);
    return EXIT_SAME;
}

/* --- show --- */

static void show_one(void *state, const char *path, struct kvc_profile *p) {
    struct dump_out *o = state;
    dump_profile(o, path, p);
}

int profile_show(struct profile_tool *t) {
    struct dump_out o = begin(t);
    int worst = EXIT_SAME;
    if (!t->n) return cli_usage("name a profile: its file, its hash or its model");
    o.several = 1;
    for (int i = 0; i < t->n; i++) {
        struct sought s = {.name = t->operand[i], .take = show_one, .state = &o};
        const int status = seek(t, &s);
        if (status > worst) worst = status;
    }
    end(&o);
    return worst;
}

/* --- fit --- */

/* What a profile gives to a cache. */
struct fitting {
    struct profile_tool *t;
    struct dump_out *o;
    const struct kvc_file *f;
    const char *path;
    int status; /* EXIT_DIFFER: it does not fit */
};

static void print_gain(struct dump_out *o, const char *recipe, const struct kvc_write_report *r) {
    for (int v = 0; v < 2; v++)
        if (r->n_layers) dump_key_f64(o, v ? "fit_v" : "fit_k", r->fit_ratio[v]);
        else dump_key_none(o, v ? "fit_v" : "fit_k");
    dump_key_text(o, "recipe", recipe);
    dump_key_u64(o, "bytes", r->bytes);
    dump_key_f64(o, "ratio", r->bytes ? (double)r->row_bytes / (double)r->bytes : 0);
    if (!(r->kld[0] > 0)) return;
    dump_key_f64(o, "predicted_kld", r->kld[0]);
    dump_key_f64(o, "predicted_kld_recall", r->kld[1]);
}

/* Packs the cache to nowhere, which tells all. */
static void fit_one(void *state, const char *path, struct kvc_profile *p) {
    struct fitting *x = state;
    struct profile_tool *t = x->t;
    struct kvc_write_report report = {.size = sizeof report};
    struct cli_output nowhere = {.fd = -1};
    const struct kvc_write_options how = {.size = sizeof how,
                                          .recipe = t->recipe,
                                          .shared_profile = p,
                                          .no_verify = 1,
                                          .threads = t->threads,
                                          .report = &report};
    const int failed = kvc_file_pack(x->f, &how, cli_output_write, &nowhere, t->e);
    const int misfit = failed && kvc_error_code(t->e) == KVC_ERR_OTHER_MODEL &&
                       kvc_error_need(t->e) != KVC_NEED_PROFILE;
    if (failed && !misfit) {
        kvc_error_about(t->e, x->path);
        dump_failed(x->o, path, t->e);
        x->status = profile_trouble(t);
    } else if (!failed && !report.fit) {
        x->status = cli_usage("the recipe %s takes no profile", t->recipe);
    } else {
        dump_begin(x->o, path);
        dump_key_text(x->o, "fit", misfit ? "bad" : report.fit);
        if (misfit) dump_key_text(x->o, "reason", kvc_error_message(t->e));
        else print_gain(x->o, t->recipe, &report);
        dump_end(x->o);
        if (misfit && x->status == EXIT_SAME) x->status = EXIT_DIFFER;
    }
    kvc_write_report_free(&report);
}

int profile_fit(struct profile_tool *t) {
    if (t->n != 2) return cli_usage("fit takes a profile and a cache");
    struct kvc_file *f = cli_open(t->operand[1], &t->input, t->e);
    if (!f) return profile_trouble(t);
    struct dump_out o = begin(t);
    o.several = 1;
    struct fitting x = {.t = t, .o = &o, .f = f, .path = t->operand[1]};
    struct sought s = {.name = t->operand[0], .take = fit_one, .state = &x};
    const int status = seek(t, &s);
    end(&o);
    kvc_file_close(f);
    return status > x.status ? status : x.status;
}
