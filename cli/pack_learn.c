/* pack_learn.c: when kvc-pack learns a profile: for a recipe that takes one, of a model that has
 * none, from inputs with rows enough. Not for learning itself (learn.c). */
#include "cli/learn.h"
#include "cli/pack_job.h"
#include "formats/api/kvc_inspect.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The inputs that are of the model of a file. */
struct group {
    uint8_t model[KVC_KEY_BYTES]; /* a hash of the facts that all of them share */
    const char **path;
    uint64_t *rows; /* of each that count */
    uint8_t *left_out;
    size_t n;
    uint64_t tokens;
};

static void group_free(struct group *g) {
    free(g->path);
    free(g->rows);
    free(g->left_out);
}

/* Hashes what caches of the model of f have in common. Returns 0 for a cache that nothing is to be
 * learnt from: it lost values already, or its heads are unknown. */
static int hash_model(const struct kvc_file *f, uint8_t model[KVC_KEY_BYTES]) {
    struct kvc_file_facts own = {.size = sizeof own};
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    if (kvc_file_describe(f, &own) || own.heads_unknown) return 0;
    char *text = kvc_namespace_of(f, NULL, &facts, NULL);
    const int lossless = text && strcmp(facts.fidelity, "lossless") == 0;
    free(text);
    memcpy(model, facts.ns, KVC_KEY_BYTES);
    return lossless;
}

/* Returns 1 for the first file of a model, which is noted. */
static int is_first(struct cli_learns *x, const uint8_t model[KVC_KEY_BYTES]) {
    for (size_t i = 0; i < x->n; i++)
        if (memcmp(x->model[i], model, KVC_KEY_BYTES) == 0) return 0;
    uint8_t(*grown)[KVC_KEY_BYTES] = cli_room_for_one(x->model, x->n, sizeof *grown);
    if (!grown) return 0;
    x->model = grown;
    memcpy(x->model[x->n++], model, KVC_KEY_BYTES);
    return 1;
}

/* Returns 1 for a file or a folder, which can be read twice, and 0 for pipes. */
static int stays(const char *path) {
    struct stat st;
    if (strcmp(path, "-") == 0 || stat(path, &st)) return 0;
    return S_ISDIR(st.st_mode) || (S_ISREG(st.st_mode) && st.st_size > 0);
}

/* Returns 1 if options and recipe let a profile be learnt for an input. */
static int may_learn(const struct cli_pack *p, const char *path) {
    struct kvc_recipe_info recipe = {.size = sizeof recipe};
    char folder[4096];
    if (p->learns.forbidden || p->no_profile || p->how.shared_profile || p->job.joins || p->base ||
        p->job.test || !p->how.recipe || !stays(path))
        return 0;
    return !kvc_recipe_describe(p->how.recipe, &recipe, NULL) && recipe.profiled &&
           kvc_shared_profile_folder(folder, sizeof folder);
}

/* Opens an input without a word: what is wrong with it is said when it is packed. */
static struct kvc_file *look(struct cli_pack *p, const char *path) {
    struct cli_input quiet = p->job.input;
    quiet.quiet = 1;
    return stays(path) ? cli_open(path, &quiet, NULL) : NULL;
}

static int collect(struct cli_pack *p, struct group *g) {
    const struct cli_files *files = &p->job.files;
    uint64_t of_one;
    kvc_learning_least(NULL, &of_one);
    g->path = calloc((size_t)files->n, sizeof *g->path);
    g->rows = calloc((size_t)files->n, sizeof *g->rows);
    g->left_out = calloc((size_t)files->n, 1);
    if (!g->path || !g->rows || !g->left_out) return -1;
    for (int i = 0; i < files->n; i++) {
        uint8_t model[KVC_KEY_BYTES];
        struct kvc_file *f = look(p, files->path[i]);
        if (f && hash_model(f, model) && memcmp(model, g->model, sizeof model) == 0) {
            const uint64_t rows = cli_learn_rows(f);
            g->path[g->n] = files->path[i];
            g->rows[g->n] = rows < of_one ? rows : of_one;
            g->tokens += g->rows[g->n++];
        }
        kvc_file_close(f);
    }
    return 0;
}

/* Keeps each `every`-th of the inputs, but for those that were left out. */
static void keep_some(struct group *g, size_t every) {
    const size_t all = g->n;
    g->n = 0;
    g->tokens = 0;
    for (size_t i = 0; every && i < all; i += every) {
        if (g->left_out[i]) continue;
        g->path[g->n] = g->path[i];
        g->rows[g->n] = g->rows[i];
        g->tokens += g->rows[g->n++];
    }
}

/* Returns how a learnt profile fits the file that it is for, or where nothing was learnt from this
 * one, the first of the others. */
static const char *fit_of(struct cli_pack *p, struct kvc_profile *learnt, const char *path,
                          const struct kvc_file *f, const struct group *g) {
    size_t i = 0;
    while (i < g->n && strcmp(g->path[i], path) != 0) i++;
    struct kvc_file *other = i < g->n ? NULL : look(p, g->path[0]);
    const char *fit = kvc_shared_profile_fit(learnt, other ? other : f, &p->how, NULL);
    kvc_file_close(other);
    return fit ? fit : "unknown";
}

/* Learns a profile, and checks it by the file that it is for. */
static struct kvc_profile *learn(struct cli_pack *p, const char *path, const struct kvc_file *f,
                                 struct group *g, struct kvc_error *e) {
    const struct kvc_learning_options how = {.size = sizeof how,
                                             .back = kvc_learning_back(f),
                                             .threads = p->job.threads};
    struct kvc_learning_info info = {.size = sizeof info};
    struct cli_input quiet = p->job.input;
    struct cli_progress progress;
    struct cli_learn_from from = {.path = g->path,
                                  .n = g->n,
                                  .input = &quiet,
                                  .progress = &progress,
                                  .left_out = g->left_out,
                                  .quiet = p->job.input.quiet};
    kvc_learning_least(NULL, &from.most);
    quiet.quiet = 1;
    cli_progress_start(&progress, "learning a profile", p->job.input.quiet);
    struct kvc_profile *learnt = cli_learn(&from, &how, &info, e);
    cli_progress_end(&progress);
    keep_some(g, 1);
    const int few = g->tokens < kvc_learning_least(NULL, NULL);
    const char *fit = learnt && !few ? fit_of(p, learnt, path, f, g) : "";
    if (!learnt || strcmp(fit, "good") == 0) return learnt;
    if (few)
        cli_usage_error(e, "the other FILEs have %" PRIu64 " tokens together, fewer than %" PRIu64,
                        g->tokens, kvc_learning_least(NULL, NULL));
    else cli_usage_error(e, "its fit to the cache itself is %s", fit);
    kvc_shared_profile_close(learnt);
    return NULL;
}

static void say_learnt(const struct group *g, const struct kvc_profile *learnt, const char *path,
                       double seconds) {
    struct kvc_profile_info info = {.size = sizeof info};
    kvc_shared_profile_describe(learnt, &info);
    cli_warn("learnt a profile of %s from %zu file%s in %.0f s: %s (--learn=no forbids it)",
             *info.model ? info.model : "the model", g->n, cli_s(g->n), seconds, path);
}

static void say_too_few(struct cli_pack *p, const struct group *g, const char *path) {
    if (p->hinted_profile) return;
    p->hinted_profile = 1;
    cli_warn("%s: is packed without a profile of its model, with which files are smaller: to learn "
             "one, kvc-pack wants FILEs of %" PRIu64 " tokens together, which have %" PRIu64
             " here (kvc-profile(1); --learn=no omits this note)",
             path, kvc_learning_least(NULL, NULL), g->tokens);
}

/* Learns and keeps a profile for f, or says why not. */
static void learn_group(struct cli_pack *p, const char *path, const struct kvc_file *f,
                        struct group *g) {
    struct kvc_error *e = cli_error_new();
    const int quiet = p->job.input.quiet;
    const double start = cli_now();
    uint64_t most;
    kvc_learning_least(&most, NULL);
    keep_some(g, (size_t)((g->tokens + most - 1) / most)); /* of about as many tokens as serve */
    struct kvc_profile *learnt = learn(p, path, f, g, e);
    char *kept = learnt ? cli_profile_keep(learnt, CLI_PROFILE_OWN, e) : NULL;
    if (kept && !quiet) say_learnt(g, learnt, kept, cli_now() - start);
    p->hinted_profile |= !kept;
    if (!kept && !quiet)
        cli_warn("%s: is packed without a profile, as none could be learnt: %s", path,
                 kvc_error_message(e));
    free(kept);
    kvc_shared_profile_close(learnt);
    kvc_error_free(e);
}

void pack_learn(void *state, const char *path, const struct kvc_file *f) {
    struct cli_pack *p = state;
    struct group g = {.n = 0};
    if (!may_learn(p, path) || !hash_model(f, g.model) || !is_first(&p->learns, g.model)) return;
    struct kvc_profile *chosen = kvc_shared_profile_choose(f, &p->how, NULL);
    kvc_shared_profile_close(chosen);
    if (chosen || collect(p, &g)) {
        group_free(&g);
        return;
    }
    if (g.tokens >= kvc_learning_least(NULL, NULL)) learn_group(p, path, f, &g);
    else if (!p->job.input.quiet) say_too_few(p, &g, path);
    group_free(&g);
}
