/* kvc-pack.c: engine file (or standard input) to .kvc. Knows no byte of either. */
#include "cli/pack_job.h"
#include "cli/gpu.h"

#include "codecs/recipe.h"
#include "formats/model/profile_learn.h"
#include "formats/cache/give_tokens.h"
#include "formats/file/given.h"
#include "formats/cache/view.h"
#include "formats/container/plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OPT_NO_VERIFY = JOB_OPT_FREE,
    OPT_ALIGN,
    OPT_NO_TOKENS,
    OPT_TOKEN_IDS,
    OPT_TOKENS,
    OPT_LAYERS,
    OPT_FINGERPRINT,
    OPT_QUERIES,
    OPT_DEQUANTIZE,
    OPT_EMBED_PROFILE,
    OPT_TARGET_KLD,
    OPT_TARGET_RATIO,
    OPT_MAX_ERROR,
    OPT_LEARN_PROFILE,
    OPT_LEARN_LAYERS,
    OPT_FORCE_PROFILE,
    OPT_COMPANIONS,
    OPT_JOIN,
    OPT_APPEND,
    OPT_CURVE
};

static const struct option long_options[] = {
    JOB_OPTIONS,
    {"recipe", required_argument, NULL, 'r'},
    {"queries", required_argument, NULL, OPT_QUERIES},
    {"dequantize", no_argument, NULL, OPT_DEQUANTIZE},
    {"target-kld", required_argument, NULL, OPT_TARGET_KLD},
    {"target-ratio", required_argument, NULL, OPT_TARGET_RATIO},
    {"max-error", required_argument, NULL, OPT_MAX_ERROR},
    {"learn-profile", required_argument, NULL, OPT_LEARN_PROFILE},
    {"learn-layers", required_argument, NULL, OPT_LEARN_LAYERS},
    {"embed-profile", no_argument, NULL, OPT_EMBED_PROFILE},
    {"force-profile", no_argument, NULL, OPT_FORCE_PROFILE},
    {"no-verify", no_argument, NULL, OPT_NO_VERIFY},
    {"align", required_argument, NULL, OPT_ALIGN},
    {"no-tokens", no_argument, NULL, OPT_NO_TOKENS},
    {"token-ids", required_argument, NULL, OPT_TOKEN_IDS},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"layers", required_argument, NULL, OPT_LAYERS},
    {"companions", required_argument, NULL, OPT_COMPANIONS},
    {"fingerprint", required_argument, NULL, OPT_FINGERPRINT},
    {"append", required_argument, NULL, OPT_APPEND},
    {"join", optional_argument, NULL, OPT_JOIN},
    {"curve", optional_argument, NULL, OPT_CURVE},
    {NULL, 0, NULL, 0},
};


static int ends_in(const char *path, size_t n, const char *suffix) {
    const size_t m = strlen(suffix);
    return n > m && memcmp(path + n - m, suffix, m) == 0;
}

/* 1 when the options ask for something that packing a container again gives. */
static int packs_anew(const struct cli_pack *p) {
    const struct kvc_pack_options *o = &p->how.options;
    const struct kvc_rate *rate = &p->how.rate;
    return p->has_recipe || o->align || o->no_tokens || p->token_ids_path || p->selects || o->embed_profile ||
           p->how.dequantize || rate->kld > 0 || rate->ratio > 0 || rate->output_error > 0 || rate->logit_error > 0;
}

/* FILE.kvc, or with another suffix; of compressed input without .gz, .xz or .zst, as unpacking returns what was inside. A container keeps its name. */
static char *default_name(void *state, const char *path, const struct kvc_opened *f, struct kvc_error *e) {
    static const char *const outer[] = {".gz", ".xz", ".zst"};
    const struct cli_pack *p = state;
    const int packed = kvc_cache_is_container(f->cache);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--; /* of a folder */
    if (packed && !packs_anew(p) && !p->job.skip_existing) {
        kvc_fail(e, KVC_ERR_USAGE, "%s: is packed already; -r RECIPE packs it anew", path);
        return NULL;
    }
    char *name = malloc(n + strlen(p->job.suffix) + 1);
    if (!name) {
        kvc_fail_memory(e, "a name");
        return NULL;
    }
    memcpy(name, path, n);
    name[n] = '\0';
    for (int i = 0; *f->input.filter && i < 3; i++)
        if (ends_in(name, n, outer[i])) {
            n -= strlen(outer[i]);
            break;
        }
    if (packed && ends_in(name, n, ".kvc")) n -= strlen(".kvc");
    strcpy(name + n, p->job.suffix);
    return name;
}

/* --- packing --- */

/* For --rm: refuses a recipe that would leave nothing of the exact values. */
static int refuse_loss(void *state, const struct kvc_cache *c, struct kvc_error *e) {
    const struct cli_pack *p = state;
    const struct kvc_recipe *recipe = kvc_recipe_or_default(p->how.options.recipe);
    struct kvc_plan plan;
    if (!p->job.remove || p->job.force || !kvc_recipe_is_lossy(recipe)) return 0;
    /* A recipe that fits no tensor is refused later, with the reason. */
    const int lossy = !kvc_plan_make(&plan, c, recipe, e) && !plan.lossless;
    kvc_plan_free(&plan);
    if (!lossy) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "recipe %s is lossy, and --rm would remove the only exact copy: add -f if that is meant",
                    p->recipe_text);
}

static void say_note(void *state, enum kvc_pack_note note, const struct kvc_cache *c) {
    struct cli_pack *p = state;
    const char *name = p->file->input.name;
    if (note == KVC_PACK_ROWS) pack_say_rows(p, c);
    if (p->job.input.quiet) return;
    switch (note) {
    case KVC_PACK_ROTATION_UNKNOWN:
        cli_warn("%s: whether the quantised K or V is Hadamard-rotated is unknown (llama.cpp before version 4 does not "
                 "say), so nothing is rotated back",
                 name);
        break;
    case KVC_PACK_PAIRING_CHOSEN:
        if (!p->job.verbose) break;
        cli_warn("%s: K is taken as paired in %s, which fits the profile", name, kvc_pairing_name(kvc_cache_pairing(c)));
        break;
    case KVC_PACK_PROFILE_UNUSED: cli_warn("%s: no stage of the recipe takes the profile: it is left aside", name); break;
    case KVC_PACK_ROWS: break;
    case KVC_PACK_OTHER_QUERIES: cli_warn("%s: the queries of %s are those of other tokens", name, p->queries.input.name); break;
    }
}

static void say_coded(void *state, const struct kvc_cache *c, const struct kvc_recipe *recipe) {
    struct cli_pack *p = state;
    cli_progress_end(&p->progress);
    if (p->job.verbose && !p->done.report.lossless) pack_say_lossy(p, p->file->input.name, c, recipe);
}

/* Packs the selected part of a cache. */
static int pack_part(struct cli_pack *p, const struct kvc_cache *c, struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_cache *part = kvc_view_select(c, &p->selection, e);
    const int status = part ? kvc_pack_cache(part, &p->how, out, &p->done, e) : -1;
    kvc_cache_free(part);
    return status;
}

static int pack_file(void *state, const struct kvc_opened *f, struct kvc_sink *out, struct kvc_error *e) {
    struct cli_pack *p = state;
    struct kvc_pack_options *o = &p->how.options;
    p->file = f;
    cli_progress_start(&p->progress, f->input.name, p->job.input.quiet);
    o->threads = p->job.threads;
    o->weights = p->job.input.weights;
    o->measure = p->job.verbose || p->job.json || p->curve;
    o->progress = p->progress.on ? cli_progress_show : NULL;
    o->progress_state = &p->progress;
    kvc_packed_free(&p->done);
    if (p->token_ids.n && kvc_cache_give_tokens(f->cache, p->token_ids.id, p->token_ids.n, e))
        return kvc_error_prefix(e, f->input.name);
    const int status = p->selects ? pack_part(p, f->cache, out, e) : kvc_pack_cache(f->cache, &p->how, out, &p->done, e);
    cli_progress_end(&p->progress);
    return status;
}

static int pack_one(struct cli_job *j, const char *path) {
    struct kvc_error e;
    if (!job_file(j, path, &e)) return EXIT_SAME;
    if (e.need == KVC_NEED_MAIN_FILE && j->files.n > 1) {
        job_skip(j, path);
        if (!j->input.quiet) cli_warn("left out: %s", e.message);
        return EXIT_SAME;
    }
    cli_error(&e);
    if (j->json) cli_report_failed(&j->report, path, &e);
    return EXIT_TROUBLE;
}

static int take_target(struct cli_pack *p, const char *arg, const char *option, double least, double most, double *target) {
    if (p->target && strcmp(p->target, option) != 0) return cli_usage("--%s and --%s exclude each other", p->target, option);
    p->target = option;
    if (cli_parse_f64(arg, target) || !(*target >= least && *target <= most))
        return cli_usage("--%s=%s is not a number from %g to %g", option, arg, least, most);
    return 0;
}

static int take_max_error(struct cli_pack *p, const char *arg) {
    static const char output[] = "output:", logit[] = "logit:";
    struct kvc_rate *rate = &p->how.rate;
    const int of_logits = strncmp(arg, logit, sizeof logit - 1) == 0;
    if (of_logits ? rate->output_error > 0 : rate->logit_error > 0)
        return cli_usage("--max-error=E and --max-error=logit:E exclude each other");
    if (of_logits) return take_target(p, arg + sizeof logit - 1, "max-error", 1e-6, 1e3, &rate->logit_error);
    if (strncmp(arg, output, sizeof output - 1) == 0) arg += sizeof output - 1;
    return take_target(p, arg, "max-error", 1e-6, 1e3, &rate->output_error);
}

/* An option of kvc-pack alone; 0, or EXIT_TROUBLE (message printed). */
static int take_layers(struct cli_pack *p, const char *arg) {
    uint64_t n;
    if (cli_parse_u64(arg, &n) || n > 7) return cli_usage("--learn-layers=%s is not a number from 0 to 7", arg);
    p->learn_layers = (unsigned)n;
    return 0;
}

static int take_part(struct cli_pack *p, const char *arg) {
    free(p->layers);
    p->layers = NULL;
    if (cli_take_list("--layers=", arg, &p->layers, &p->selection.n_layers)) return EXIT_TROUBLE;
    p->selection.layers = p->layers;
    p->selects = 1;
    return 0;
}

static int take_option(struct cli_pack *p, int opt, const char *arg) {
    uint64_t n;
    struct kvc_error e;
    switch (opt) {
    case 'r':
        p->recipe_text = arg;
        p->how.options.recipe = &p->recipe;
        p->has_recipe = 1;
        if (!kvc_recipe_parse(arg, &p->recipe, &e)) return 0;
        if (cli_folder_exists(arg)) return cli_usage("-r %s: is a folder, not a recipe; --recursive takes a folder", arg);
        return cli_usage("%s", e.message);
    case OPT_NO_VERIFY: p->how.options.no_verify = p->job.input.import.no_verify = 1; return 0;
    case OPT_NO_TOKENS: p->how.options.no_tokens = 1; return 0;
    case OPT_TOKEN_IDS: p->token_ids_path = arg; return 0;
    case OPT_TOKENS: p->selects = 1; return cli_take_range("--tokens=", arg, &p->selection.first, &p->selection.end);
    case OPT_LAYERS: return take_part(p, arg);
    case OPT_QUERIES: p->queries_path = arg; return 0;
    case OPT_DEQUANTIZE: p->how.dequantize = 1; return 0;
    case OPT_TARGET_KLD: return take_target(p, arg, "target-kld", 1e-7, 10, &p->how.rate.kld);
    case OPT_TARGET_RATIO: return take_target(p, arg, "target-ratio", 1, 1e4, &p->how.rate.ratio);
    case OPT_MAX_ERROR: return take_max_error(p, arg);
    case OPT_COMPANIONS:
        if (strcmp(arg, "no") != 0 && strcmp(arg, "yes") != 0) return cli_usage("--companions=%s is neither yes nor no", arg);
        p->how.no_companions = strcmp(arg, "no") == 0;
        return 0;
    case OPT_JOIN:
        if (arg && strcmp(arg, "heads") != 0 && strcmp(arg, "tokens") != 0)
            return cli_usage("--join=%s is neither tokens nor heads", arg);
        p->job.joins = 1;
        p->joined.heads = arg && strcmp(arg, "heads") == 0;
        return 0;
    case OPT_APPEND:
        p->joined.append = arg;
        p->job.joins = 1;
        return 0;
    case OPT_CURVE:
        p->curve = 1;
        p->curve_path = arg;
        return 0;
    case OPT_LEARN_PROFILE: p->learn_path = arg; return 0;
    case OPT_LEARN_LAYERS: return take_layers(p, arg);
    case OPT_EMBED_PROFILE: p->how.options.embed_profile = 1; return 0;
    case OPT_FORCE_PROFILE: p->how.force_profile = 1; return 0;
    case OPT_ALIGN:
        if (cli_parse_u64(arg, &n) || n < 16 || n > 1 << 20 || (n & (n - 1)))
            return cli_usage("--align=%s is not a power of two from 16 to 1M", arg);
        p->how.options.align = (unsigned)n;
        return 0;
    case OPT_FINGERPRINT:
        if (strcmp(arg, "full") != 0 && strcmp(arg, "sampled") != 0)
            return cli_usage("--fingerprint=%s is neither sampled nor full", arg);
        p->job.input.full_fingerprint = strcmp(arg, "full") == 0;
        return 0;
    default: return cli_try_help();
    }
}

/* How the input is to be read says nothing of the file with the queries, but for names of arrays and the model. */
static int open_queries(struct cli_pack *p, struct kvc_error *e) {
    struct cli_input *in = &p->job.input;
    const struct kvc_import_options of_input = in->import;
    in->import = (struct kvc_import_options){.set = of_input.set, .profile_folders = of_input.profile_folders};
    const int status = cli_open(&p->queries, p->queries_path, in, e);
    in->import = of_input;
    p->how.options.queries = p->queries.cache;
    if (status || kvc_cache_has_queries(p->queries.cache)) return status;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s has no queries", p->queries.input.name);
}

static int open_profile(struct cli_pack *p, struct kvc_error *e) {
    p->how.options.profile = kvc_given_profile(p->job.input.import.profile, e);
    return p->how.options.profile ? 0 : -1;
}

/* --- learning a profile --- */

/* What was not there, and what that costs (measured on SmolLM2: man/kvc-profile.5). */
static void say_learnt(const struct cli_pack *p, const struct kvc_learner *l) {
    if (p->job.input.quiet || p->how.options.profile) return; /* a profile that got predictors keeps its own metric */
    cli_warn("%s: made without gradients: files come out about 1.3 to 1.9 times larger, at equal quality, than with a profile of "
             "make_profile.py",
             p->learn_path);
    if (!kvc_learner_has_queries(l))
        cli_warn("%s: made without queries: no token is told from another when packing, which costs about as much again",
                 p->learn_path);
    if (!kvc_learner_knows_rope(l))
        cli_warn("%s: made of K behind RoPE, as its base or pairing is unknown (--model tells): K takes about 40 %% more",
                 p->learn_path);
}

/* Gives a cache the heads, layers and pairing that the profile has which gets predictors, and checks that it is of its model. */
static int fit_base(const struct cli_pack *p, struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_fit fit;
    if (!p->how.options.profile) return 0;
    if (kvc_profile_adopt(p->how.options.profile, c, e) ||
        kvc_profile_settle(p->how.options.profile, c, p->job.threads, p->how.force_profile, &fit, e))
        return -1;
    kvc_fit_free(&fit);
    return 0;
}

static int learn_files(struct cli_pack *p, struct kvc_learner *l, int n, char **paths, struct kvc_error *e) {
    for (int i = 0; i < n; i++) {
        struct kvc_opened f;
        if (cli_open(&f, paths[i], &p->job.input, e)) return -1;
        const int status = fit_base(p, f.cache, e) || kvc_learner_add(l, f.cache, e) ? kvc_error_prefix(e, f.input.name) : 0;
        kvc_close(&f);
        if (status) return -1;
    }
    return 0;
}

static int learn(struct cli_pack *p, int n, char **paths) {
    struct kvc_error e;
    struct cli_output out;
    struct kvc_learner *l = kvc_learner_new(&e);
    int status = l ? 0 : -1;
    if (!status && p->job.input.import.profile) status = open_profile(p, &e);
    if (!status) {
        kvc_learner_predict(l, p->learn_layers, p->how.options.profile);
        status = learn_files(p, l, n, paths, &e);
    }
    const char *path = strcmp(p->learn_path, "-") == 0 ? NULL : p->learn_path;
    if (!status) status = cli_output_open(&out, path, p->job.force, 0666, &e);
    if (!status) {
        status = kvc_learner_write(l, &out.sink, &e) || cli_output_commit(&out, &e);
        cli_output_abandon(&out);
    }
    if (status) cli_error(&e);
    else say_learnt(p, l);
    kvc_learner_free(l);
    kvc_profile_free(p->how.options.profile);
    return status ? EXIT_TROUBLE : EXIT_SAME;
}

static int run(struct cli_pack *p) {
    struct kvc_error e;
    const int n = p->job.files.n;
    int status = EXIT_TROUBLE;
    if (p->curve && (n != 1 || strcmp(p->job.files.path[0], "-") == 0))
        return cli_usage("--curve needs one FILE, which is read several times");
    if (p->curve && (p->learn_path || p->job.output || p->job.to_stdout || p->job.test || p->job.remove || p->job.joins))
        return cli_usage("--curve writes no .kvc: leave out the options of the output");
    if (p->learn_path && !n) return cli_usage("--learn-profile needs caches to learn from");
    if (p->learn_path && (p->has_recipe || p->job.output || p->job.output_dir || p->job.to_stdout || p->job.test ||
                          p->job.remove || p->queries_path || p->token_ids_path || p->selects || p->job.json))
        return cli_usage("--learn-profile packs nothing: of the options of packing, only --profile goes with it");
    if (p->learn_path && p->job.input.import.profile && !p->learn_layers)
        return cli_usage("--learn-layers=0 adds nothing to the profile that --profile names");
    if (p->learn_path)
        return *p->learn_path ? learn(p, n, p->job.files.path) : cli_usage("--learn-profile wants a file to write");
    if ((p->job.input.import.profile && open_profile(p, &e)) || (p->queries_path && open_queries(p, &e)) ||
        (p->token_ids_path && cli_token_ids(&p->token_ids, p->token_ids_path, NULL, &e)))
        cli_error(&e);
    else if (p->curve) status = pack_curve(p, p->job.files.path[0]);
    else status = job_run(&p->job, pack_one);
    pack_join_close(p);
    if (p->queries.cache) kvc_close(&p->queries);
    free(p->token_ids.id);
    free(p->layers);
    kvc_packed_free(&p->done);
    kvc_profile_free(p->how.options.profile);
    return status;
}

/* Takes $KVC_RECIPE if no option decides about the recipe. 0, or EXIT_TROUBLE (message printed). */
static int take_environment(struct cli_pack *p) {
    const char *variable = getenv("KVC_RECIPE");
    struct kvc_error e;
    if (!variable || !*variable || p->has_recipe || p->joined.append || p->learn_path) return 0;
    if (kvc_recipe_parse(variable, &p->recipe, &e)) {
        cli_warn("KVC_RECIPE=%s: %s", variable, e.message);
        return EXIT_TROUBLE;
    }
    p->recipe_text = variable;
    p->how.options.recipe = &p->recipe;
    return 0;
}

/* Standard input can be one of them: 0, or EXIT_TROUBLE (message printed). */
static int check_stdin(const struct cli_pack *p) {
    const char *const more[] = {p->queries_path, p->token_ids_path};
    const struct cli_files *files = &p->job.files;
    int uses = (!files->n && !files->named) || (files->from && strcmp(files->from, "-") == 0);
    for (int i = 0; i < files->n; i++) uses |= strcmp(files->path[i], "-") == 0;
    for (int i = 0; i < 2; i++) uses += more[i] && strcmp(more[i], "-") == 0;
    return uses > 1 ? cli_usage("only one of the input, the queries and the token ids can be standard input") : 0;
}

int main(int argc, char **argv) {
    static struct cli_pack p = {.job = {.name = default_name, .write = pack_file, .done = pack_say_done, .suffix = ".kvc"},
                                .recipe_text = KVC_DEFAULT_STAGE,
                                .learn_layers = 1,
                                .how = {.note = say_note, .check = refuse_loss, .coded = say_coded}};
    int opt;
    const struct option *options = cli_long_options(long_options, 0);
    cli_start(argv, "kvc-pack");
    p.job.state = p.how.state = &p;
    cli_input_environment(&p.job.input);
    while ((opt = cli_next_option(argc, argv, "r:" JOB_SHORT, options)) != -1) {
        int taken = job_option(&p.job, opt, optarg);
        if (taken < 0 || (!taken && take_option(&p, opt, optarg))) return EXIT_TROUBLE;
    }
    if (p.job.help) return pack_help(p.job.help);
    if (p.job.version) return cli_version(p.job.verbose, cli_cuda_version);
    if (job_environment(&p.job) || take_environment(&p)) return EXIT_TROUBLE;
    p.job.files.others = 1;
    if (job_collect(&p.job, argc - optind, argv + optind)) return EXIT_TROUBLE;
    if (job_check(&p.job) || pack_check_join(&p) || check_stdin(&p)) return EXIT_TROUBLE;
    if ((p.how.options.embed_profile || p.how.force_profile) && !p.job.input.import.profile)
        return cli_usage("--%s-profile wants a --profile=FILE", p.how.force_profile ? "force" : "embed");
    if ((p.how.options.no_tokens || p.how.dequantize || p.how.no_companions || p.selects) && p.job.remove)
        return cli_usage("--%s leaves out what --rm would remove for good", p.selects && p.layers     ? "layers"
                                                                            : p.selects               ? "tokens"
                                                                            : p.how.dequantize        ? "dequantize"
                                                                            : p.how.options.no_tokens ? "no-tokens"
                                                                                                      : "companions=no");
    if (p.how.no_companions && kvc_recipe_has(p.how.options.recipe, KVC_STAGE_REBUILDS))
        return cli_usage("--companions=no leaves out the hidden states that this recipe rebuilds K and V from");
    return cli_finish(run(&p));
}
