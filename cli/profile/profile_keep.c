/* profile_keep.c: kvc-profile learn and add. Not for learning itself (cli/learn.c). */
#include "cli/learn.h"
#include "cli/profile/profile_tool.h"
#include "cli/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Prints where a profile is; as JSON an object of `name`, open for more keys. */
static void print_kept(const struct profile_tool *t, struct cli_report *r, const char *name,
                       const struct kvc_profile *p, const char *path) {
    struct kvc_profile_info info = {.size = sizeof info};
    kvc_shared_profile_describe(p, &info);
    if (!t->json) {
        cli_print_safe(t->out, path);
        fputc('\n', t->out);
        return;
    }
    cli_report_file(r, name);
    cli_json_text(&r->json, "path", path);
    cli_json_text(&r->json, "model", info.model);
    cli_json_hex(&r->json, "sha256", info.sha256, sizeof info.sha256);
    cli_json_u64(&r->json, "bytes", info.bytes);
}

/* --- learn --- */

/* What was not there, and what that costs (measured on SmolLM2: man/kvc-profile.5). */
static void say_missing(const char *path, const struct kvc_learning_info *info) {
    if (!info->has_gradients)
        cli_warn("%s: made without gradients: files come out about 1.3 to 1.9 times larger, at "
                 "equal quality, than with them (--model gives the weights that they take)",
                 path);
    if (!info->has_queries)
        cli_warn("%s: made without queries: no token is told from another when packing, which "
                 "costs about as much again",
                 path);
    if (!info->knows_rope)
        cli_warn("%s: made of K behind RoPE, as its base, scaling or pairing is unknown (--model "
                 "tells): K takes about 40 %% more",
                 path);
}

/* Says what was learnt. A profile that got predictors keeps its own metric. */
static void say_learnt(const struct profile_tool *t, const struct kvc_profile *learnt,
                       const char *path, const struct kvc_learning_info *info, double seconds) {
    struct cli_report r = {.lines = t->lines};
    if (!t->input.quiet && !t->input.open.profile) say_missing(path, info);
    if (!t->json && t->output) return;
    if (t->json) cli_report_start(&r, t->out);
    print_kept(t, &r, path, learnt, path);
    if (!t->json) return;
    cli_json_u64(&r.json, "caches", (uint64_t)t->n);
    cli_json_bool(&r.json, "queries", info->has_queries);
    cli_json_bool(&r.json, "rope", info->knows_rope);
    cli_json_bool(&r.json, "gradients", info->has_gradients);
    cli_json_f64(&r.json, "seconds", seconds);
    cli_report_file_end(&r);
    cli_report_end(&r);
}

/* Writes a profile to -o, or into the folder. Returns the path, which the caller frees. */
static char *put(struct profile_tool *t, const struct kvc_profile *learnt) {
    const char *path = t->output;
    if (!path) return cli_profile_keep(learnt, CLI_PROFILE_OWN, t->e);
    const int to_stdout = strcmp(path, "-") == 0;
    if (cli_profile_write(learnt, to_stdout ? NULL : path, t->force, CLI_PROFILE_PUBLIC, t->e))
        return NULL;
    char *copy = strdup(path);
    if (!copy) cli_no_memory(t->e, "a path");
    return copy;
}

/* Refuses an output that could not be written, before the work. */
static int check_output(struct profile_tool *t) {
    char folder[4096];
    if (t->output && strcmp(t->output, "-") == 0)
        return t->json ? cli_usage("--json needs standard output for its report: use -o FILE") : 0;
    if (t->output && !t->force && cli_output_exists(t->output))
        return cli_usage("%s exists already: use -f to replace it", t->output);
    if (t->output || kvc_shared_profile_folder(folder, sizeof folder)) return 0;
    return cli_usage("there is no folder for profiles (kvc-profile(5)): use -o FILE");
}

static int learn(struct profile_tool *t, struct kvc_profile *base) {
    const struct kvc_learning_options how = {.size = sizeof how,
                                             .back = t->back,
                                             .base = base,
                                             .force_profile = t->force_profile,
                                             .threads = t->threads};
    struct kvc_learning_info info = {.size = sizeof info};
    struct cli_progress progress;
    const struct cli_learn_from from = {.path = (const char *const *)t->operand,
                                        .n = (size_t)t->n,
                                        .input = &t->input,
                                        .progress = &progress};
    const double start = cli_now();
    cli_progress_start(&progress, "learning", t->input.quiet);
    struct kvc_profile *learnt = cli_learn(&from, &how, &info, t->e);
    cli_progress_end(&progress);
    char *path = learnt ? put(t, learnt) : NULL;
    const int status = path ? EXIT_SAME : profile_trouble(t);
    if (path) say_learnt(t, learnt, path, &info, cli_now() - start);
    free(path);
    kvc_shared_profile_close(learnt);
    return status;
}

int profile_learn(struct profile_tool *t) {
    const char *base = t->input.open.profile;
    struct kvc_profile *p = NULL;
    int from_stdin = 0;
    for (int i = 0; i < t->n; i++) from_stdin += strcmp(t->operand[i], "-") == 0;
    if (!t->n) return cli_usage("learn needs caches to learn from");
    if (from_stdin > 1) return cli_usage("standard input can be read only once");
    if (base && !t->back) return cli_usage("--back=0 adds nothing to the profile of --profile");
    if (t->force_profile && !base) return cli_usage("--force-profile wants a --profile=FILE");
    if (check_output(t)) return EXIT_TROUBLE;
    if (base && !(p = kvc_shared_profile_open(base, t->e))) return profile_trouble(t);
    const int status = learn(t, p);
    kvc_shared_profile_close(p);
    return status;
}

/* --- add --- */

static int add(struct profile_tool *t, struct cli_report *r, const char *file) {
    struct kvc_profile *p = kvc_shared_profile_open(file, t->e);
    char *path = p ? cli_profile_keep(p, CLI_PROFILE_PUBLIC, t->e) : NULL;
    const int status = path ? EXIT_SAME : profile_trouble(t);
    if (path) print_kept(t, r, file, p, path);
    if (path && t->json) cli_report_file_end(r);
    if (!path && t->json) cli_report_failed(r, file, t->e);
    free(path);
    kvc_shared_profile_close(p);
    return status;
}

int profile_add(struct profile_tool *t) {
    struct cli_report r = {.lines = t->lines};
    int worst = EXIT_SAME;
    if (!t->n) return cli_usage("name the profiles to add");
    if (t->json) cli_report_start(&r, t->out);
    for (int i = 0; i < t->n; i++) {
        const int status = add(t, &r, t->operand[i]);
        if (status > worst) worst = status;
    }
    if (t->json) cli_report_end(&r);
    return worst;
}
