/* kvc-pack.c: engine file (or standard input) to .kvc. Knows no byte of either. */
#include "cli/pack_job.h"
#include "cli/gpu.h"
#include "formats/api/kvc_inspect.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int pack_ends_in(const char *path, size_t n, const char *suffix) {
    const size_t m = strlen(suffix);
    return n > m && memcmp(path + n - m, suffix, m) == 0;
}

/* 1 when the options ask for something that packing a container again gives. */
static int packs_anew(const struct cli_pack *p) {
    const struct kvc_write_options *o = &p->how;
    return cli_given("recipe") || o->align || o->no_tokens || o->no_keys || p->token_ids_path ||
           p->part.given || p->base_path || o->embed_profile || o->dequantize ||
           o->target_kld > 0 || o->target_ratio > 0 || o->max_output_error > 0 ||
           o->max_logit_error > 0;
}

/* FILE.kvc, or with another suffix; of compressed input without .gz, .xz or .zst, as unpacking
 * returns what was inside. A container keeps its name. */
static char *default_name(void *state, const char *path, const struct kvc_file *f,
                          struct kvc_error *e) {
    static const char *const outer[] = {".gz", ".xz", ".zst"};
    const struct cli_pack *p = state;
    const struct kvc_source_info source = job_source(f);
    const int packed = source.packed;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--; /* of a folder */
    if (packed && !packs_anew(p) && !p->job.skip_existing) {
        cli_usage_error(e, "%s: is packed already; -r RECIPE packs it anew", path);
        return NULL;
    }
    for (int i = 0; *source.filter && i < 3; i++)
        if (pack_ends_in(path, n, outer[i])) {
            n -= strlen(outer[i]);
            break;
        }
    if (packed && pack_ends_in(path, n, ".kvc")) n -= strlen(".kvc");
    char *name;
    if (asprintf(&name, "%.*s%s", (int)n, path, p->job.suffix) >= 0) return name;
    cli_no_memory(e, "a name");
    return NULL;
}

/* --- packing --- */

static void say_note(void *state, enum kvc_note number, const char *name, const char *text) {
    struct cli_pack *p = state;
    const int estimated = number == KVC_NOTE_ESTIMATED;
    if (estimated || number == KVC_NOTE_NOT_ESTIMATED) { /* once, of whatever file */
        if (!p->said_queries[estimated]++) cli_warn("%s", text);
        return;
    }
    const int detail = number == KVC_NOTE_PAIRING || number == KVC_NOTE_TWICE;
    if (!detail || p->job.verbose) cli_note(NULL, number, name, text);
}

/* Chooses a profile for a file, by the options and the recipe in *how, where none is named, and
 * gives it to *how. */
static void choose_profile(struct cli_pack *p, const struct kvc_file *f,
                           struct kvc_write_options *how) {
    if (how->shared_profile || p->no_profile || p->joined.append || p->base) return;
    kvc_shared_profile_close(p->chosen);
    p->chosen = how->shared_profile = kvc_shared_profile_choose(f, how, NULL);
    p->profile = (struct kvc_profile_info){.size = sizeof p->profile};
    if (p->chosen) kvc_shared_profile_describe(p->chosen, &p->profile);
}

/* Packs a file by the options of *p, and fills p->done. */
static int pack_file(void *state, const struct kvc_file *f, struct cli_output *out,
                     struct kvc_error *e) {
    struct cli_pack *p = state;
    struct cli_progress progress;
    struct kvc_write_options how = p->how;
    struct kvc_file *part = p->part.given ? kvc_file_select(f, &p->part.selection, e) : NULL;
    if (p->part.given && !part) return -1;
    kvc_write_report_free(&p->done);
    cli_progress_start(&progress, job_source(f).name, p->job.input.quiet);
    p->start = progress.start;
    how.threads = p->job.threads;
    how.measure = p->job.verbose || p->job.json || cli_given("curve");
    how.progress = progress.on ? cli_progress_show : NULL;
    how.progress_state = &progress;
    how.put = cli_output_any_order(out);
    how.report = &p->done;
    choose_profile(p, part ? part : f, &how);
    const int status = how.embed_profile && !how.shared_profile
                           ? cli_usage_error(e, "--embed-profile wants a --profile=FILE, as no "
                                                "profile was chosen")
                           : kvc_file_pack(part ? part : f, &how, cli_output_write, out, e);
    cli_progress_end(&progress);
    kvc_file_close(part);
    p->job.bytes = p->done.bytes;
    p->job.from = p->done.row_bytes;
    if (status && kvc_error_need(e) == KVC_NEED_EXACT)
        cli_usage_error(e,
                        "recipe %s is lossy, and --rm would remove the only exact copy: add -f "
                        "if that is meant",
                        p->recipe_text);
    return status;
}

static int pack_one(struct cli_job *j, const char *path, struct kvc_error *e) {
    if (!job_file(j, path, e)) return EXIT_SAME;
    if (kvc_error_need(e) == KVC_NEED_MAIN_FILE && j->files.n > 1) {
        job_skip(j, path);
        if (!j->input.quiet) cli_warn("left out: %s", kvc_error_message(e));
        return EXIT_SAME;
    }
    cli_error(e);
    if (j->json) cli_report_failed(&j->report, path, e);
    return EXIT_TROUBLE;
}

/* --- options --- */

/* Takes --max-error=E, output:E or logit:E. */
static int take_max_error(const struct cli_option *o, void *into, const char *arg) {
    static const char output[] = "output:", logit[] = "logit:";
    struct cli_pack *p = into;
    struct kvc_write_options *how = &p->how;
    const int of_logits = strncmp(arg, logit, sizeof logit - 1) == 0;
    double *error = of_logits ? &how->max_logit_error : &how->max_output_error;
    if (of_logits ? how->max_output_error > 0 : how->max_logit_error > 0)
        return cli_usage("--max-error=E and --max-error=logit:E exclude each other");
    if (of_logits) arg += sizeof logit - 1;
    else if (strncmp(arg, output, sizeof output - 1) == 0) arg += sizeof output - 1;
    if (!cli_parse_f64(arg, error) && *error >= 1e-6 && *error <= 1e3) return 0;
    return cli_usage("--%s=%s is not a number from 1e-06 to 1000", o->name, arg);
}

static int take_recipe(const struct cli_option *o, void *into, const char *arg) {
    struct cli_pack *p = into;
    struct kvc_error *e = cli_error_new();
    int status = 0;
    p->recipe_text = p->how.recipe = arg;
    if (kvc_recipe_describe(arg, NULL, e))
        status = cli_folder_exists(arg)
                     ? cli_usage("-%c %s: is a folder, not a recipe; --recursive takes a folder",
                                 o->letter, arg)
                     : cli_usage("%s", kvc_error_message(e));
    kvc_error_free(e);
    return status;
}

static int take_align(const struct cli_option *o, void *into, const char *arg) {
    struct cli_pack *p = into;
    uint64_t n;
    if (cli_parse_u64(arg, &n) || n < 16 || n > 1 << 20 || (n & (n - 1)))
        return cli_usage("--%s=%s is not a power of two from 16 to 1M", o->name, arg);
    p->how.align = (unsigned)n;
    return 0;
}

static const struct cli_option coding[] = {
    {"recipe", 'r', "RECIPE",
     "how values are coded; split (default), fast, zstd, store, or with a profile near-lossless, "
     "small, tiny, which breaks identifiers and calls of tools; or what kvc-recipes(7) says; the "
     "default is cross with a --profile that predicts",
     .take = take_recipe, .names = cli_recipe_names},
    {"target-kld", 0, "K", "transform codec: the step that drifts by about K nats (an estimate)",
     CLI_DOUBLE(struct cli_pack, how.target_kld, 1e-7, 10)},
    {"target-ratio", 0, "R", "transform codec: make the file R times smaller",
     CLI_DOUBLE(struct cli_pack, how.target_ratio, 1, 1e4)},
    {"max-error", 0, "[MEASURE:]E",
     "transform codec: the coarsest step with an attention output error (p99, as kvc-diff has it) "
     "of at most E; MEASURE "
     "logit: of the logits",
     .take = take_max_error},
    {"queries", 0, "FILE", "queries for recipes that ask attention, out of another cache file",
     CLI_TEXT(struct cli_pack, queries_path)},
    {"embed-profile", 0, NULL, "carry the profile inside, so that the .kvc stands alone",
     CLI_FLAG(struct cli_pack, how.embed_profile)},
    {"force-profile", 0, NULL, "pack with a --profile that does not fit the cache's numbers",
     CLI_FLAG(struct cli_pack, how.force_profile)},
    {"learn", 0, "WHEN",
     "no: learn no profile from the FILEs, where the recipe takes one and the model has none "
     "(default yes)",
     CLI_CHOICE(struct cli_pack, learns.forbidden, "yes|no")},
    {"join", 0, "[=tokens|heads]",
     "pack the FILEs, consecutive blocks of one text, into one .kvc; heads: they hold the KV heads "
     "of tensor-parallel ranks",
     CLI_CHOICE(struct cli_pack, joined.heads, "tokens|heads")},
    {"append", 0, "OLD.KVC",
     "pack OLD.KVC and the FILEs that follow it into a new .kvc, by the recipe of OLD.KVC, whose "
     "blocks are copied",
     CLI_TEXT(struct cli_pack, joined.append)},
    {"base", 0, "OLD.KVC",
     "the FILE came out of OLD.KVC, and may have grown: first rows that are the same keep its "
     "blocks, the others are coded as they were",
     CLI_TEXT(struct cli_pack, base_path)},
    {"curve", 0, "[=PICTURE]",
     "pack nothing: print ratio and error of every preset; mark the recipe of the options; "
     "PICTURE: also draw them, as SVG",
     CLI_TEXT(struct cli_pack, curve_path)},
    {"dequantize", 0, NULL, "make K and V of block types and of 8 bits f16 first",
     CLI_FLAG(struct cli_pack, how.dequantize)},
    {.name = NULL},
};

/* Rows beside those of all jobs. */
static const struct cli_option data[] = {
    {"recursive", 0, NULL,
     "of a folder: pack each file below it, but for .kvc and profiles; else a folder is one cache",
     CLI_FLAG(struct cli_pack, job.files.recursive)},
    {"rm", 0, NULL,
     "remove each input once its .kvc is complete; with a lossy recipe only where -f is given as "
     "well",
     CLI_FLAG(struct cli_pack, job.remove)},
    {"test", 't', NULL, "do everything but write", CLI_FLAG(struct cli_pack, job.test)},
    {"align", 0, "SIZE", "start extents on multiples of SIZE, e.g. 4k for O_DIRECT",
     .take = take_align},
    {"no-verify", 0, NULL,
     "do not decode what was encoded, nor compare values of a .kvc that is packed anew with their "
     "digests",
     CLI_FLAG(struct cli_pack, job.input.open.no_verify)},
    {"no-tokens", 0, NULL,
     "leave the token ids out, and with them the source file's own bytes, which hold them too; "
     "their prefix keys stay",
     CLI_FLAG(struct cli_pack, how.no_tokens)},
    {"no-keys", 0, NULL, "leave out the prefix keys, by which a guess of the text is confirmed",
     CLI_FLAG(struct cli_pack, how.no_keys)},
    {"token-ids", 0, "FILE",
     "the token ids of a cache that holds none: a file of numbers, JSON of an engine, or another "
     "cache",
     CLI_TEXT(struct cli_pack, token_ids_path)},
    {"companions", 0, "WHAT",
     "no: leave queries and hidden states out, and with them the source file's own bytes; recipes "
     "still ask them "
     "(default yes)",
     CLI_CHOICE(struct cli_pack, how.no_companions, "yes|no")},
    {"fingerprint", 0, "HOW", "hash the --model file: full (default) or sampled",
     CLI_CHOICE(struct cli_pack, job.input.sampled_fingerprint, "full|sampled")},
    {.name = NULL},
};

static void print_presets(void) {
    enum { SUMMARY_COLUMN = 19 };
    const char *what, *name;
    puts("\nPresets, recipes of the papers (lossy):");
    for (size_t i = 0; (name = kvc_preset_name(i, &what)) != NULL; i++)
        cli_print_wrapped(printf("  %s", name), SUMMARY_COLUMN, what);
}

static struct cli_pack pack = {
    .job = {.name = default_name,
            .write = pack_file,
            .done = pack_say_done,
            .suffix = ".kvc",
            .before = pack_learn},
    .recipe_text = "split",
    .how = {.size = sizeof pack.how},
    .part = {.selection = {.size = sizeof pack.part.selection}},
    .profile = {.size = sizeof pack.profile},
    .done = {.size = sizeof pack.done},
};

static int has_queries(const struct kvc_file *f) {
    struct kvc_tensor_info t = {.size = sizeof t};
    for (uint32_t i = 0; !kvc_file_tensor(f, i, &t); i++)
        if (strcmp(t.role, "queries") == 0) return 1;
    return 0;
}

/* How the input is to be read says nothing of the file with the queries, but for names of arrays
 * and the model. */
static int open_queries(struct cli_pack *p, struct kvc_error *e) {
    struct cli_input *in = &p->job.input;
    const struct kvc_open_options of_input = in->open;
    in->open = (struct kvc_open_options){.set = of_input.set,
                                         .model = of_input.model,
                                         .weights = of_input.weights,
                                         .profile_folders = of_input.profile_folders};
    p->how.queries = p->queries = cli_open(p->queries_path, in, e);
    in->open = of_input;
    if (!p->queries) return -1;
    if (has_queries(p->queries)) return 0;
    return kvc_error_set(e, KVC_ERR_UNSUPPORTED, KVC_NEED_NOTHING, "%s has no queries",
                         job_source(p->queries).name);
}

/* Takes the recipe and the profile of the base, for messages. */
static void describe_base(struct cli_pack *p) {
    struct kvc_meta_value v = {.size = sizeof v};
    if (!kvc_file_meta_value(p->base, "recipe", &v) && v.text) p->recipe_text = v.text;
    p->profile.model = !kvc_file_meta_value(p->base, "profile.model", &v) && v.text ? v.text : "";
    if (!kvc_file_meta_value(p->base, "profile.sha256", &v) &&
        v.n_bytes == sizeof p->profile.sha256)
        memcpy(p->profile.sha256, v.bytes, sizeof p->profile.sha256);
}

/* Opens the base, of which the options that say how to read the input say nothing. */
static int open_base(struct cli_pack *p, struct kvc_error *e) {
    struct cli_input *in = &p->job.input;
    const struct kvc_open_options of_input = in->open;
    in->open = (struct kvc_open_options){.weights = of_input.weights,
                                         .profile = of_input.profile,
                                         .profile_folders = of_input.profile_folders};
    p->how.base = p->base = cli_open(p->base_path, in, e);
    in->open = of_input;
    if (!p->base) return -1;
    if (!job_source(p->base).packed)
        return cli_usage_error(e,
                               "%s is no .kvc: --base=OLD.kvc wants the container that the FILE "
                               "came out of",
                               job_source(p->base).name);
    describe_base(p);
    return 0;
}

static int open_profile(struct cli_pack *p, struct kvc_error *e) {
    p->how.shared_profile = kvc_shared_profile_open(p->job.input.open.profile, e);
    return p->how.shared_profile ? kvc_shared_profile_describe(p->how.shared_profile, &p->profile)
                                 : -1;
}

static int read_token_ids(struct cli_pack *p, struct kvc_error *e) {
    const struct kvc_open_options plain = {.size = sizeof plain, .map = 1};
    if (kvc_token_ids_read(p->token_ids_path, &plain, &p->token_ids, &p->n_token_ids, e)) return -1;
    if (p->job.joins) return 0; /* they are those of the joined cache */
    p->job.input.open.token_ids = p->token_ids;
    p->job.input.open.n_token_ids = p->n_token_ids;
    return 0;
}

static int pack_run(struct cli_pack *p, struct kvc_error *e) {
    const int n = p->job.files.n, curve = cli_given("curve");
    if (curve && (n != 1 || strcmp(p->job.files.path[0], "-") == 0))
        return cli_usage("--curve needs one FILE, which is read several times");
    if (curve &&
        (p->job.output || p->job.to_stdout || p->job.test || p->job.remove || p->job.joins))
        return cli_usage("--curve writes no .kvc: leave out the options of the output");
    if ((p->job.input.open.profile && open_profile(p, e)) || (p->base_path && open_base(p, e)) ||
        (p->queries_path && open_queries(p, e)) || (p->token_ids_path && read_token_ids(p, e))) {
        cli_error(e);
        return EXIT_TROUBLE;
    }
    p->how.exact = p->job.remove && !p->job.force;
    return curve ? pack_curve(p, p->job.files.path[0], e) : job_run(&p->job, pack_one);
}

static int pack_all(struct cli_pack *p) {
    struct kvc_error *e = cli_error_new();
    const int status = pack_run(p, e);
    pack_join_close(p);
    kvc_write_report_free(&p->done);
    kvc_file_close(p->queries);
    kvc_file_close(p->base);
    free(p->token_ids);
    free(p->part.layers);
    free(p->learns.model);
    kvc_shared_profile_close(p->how.shared_profile);
    kvc_shared_profile_close(p->chosen);
    kvc_error_free(e);
    return status;
}

/* Takes $KVC_RECIPE if no option decides about the recipe. 0, or EXIT_TROUBLE (message printed). */
static int take_environment(struct cli_pack *p) {
    const char *variable = getenv("KVC_RECIPE");
    if (!variable || !*variable || cli_given("recipe") || p->joined.append || p->base_path)
        return 0;
    struct kvc_error *e = cli_error_new();
    p->recipe_text = p->how.recipe = variable;
    const int refused = kvc_recipe_describe(variable, NULL, e);
    if (refused) cli_warn("KVC_RECIPE=%s: %s", variable, kvc_error_message(e));
    kvc_error_free(e);
    return refused ? EXIT_TROUBLE : 0;
}

/* Standard input can be one of them: 0, or EXIT_TROUBLE (message printed). */
static int check_stdin(const struct cli_pack *p) {
    const char *const more[] = {p->queries_path, p->token_ids_path};
    const struct cli_files *files = &p->job.files;
    int uses = (!files->n && !files->named) || (files->from && strcmp(files->from, "-") == 0);
    for (int i = 0; i < files->n; i++) uses |= strcmp(files->path[i], "-") == 0;
    for (int i = 0; i < 2; i++) uses += more[i] && strcmp(more[i], "-") == 0;
    return uses > 1
               ? cli_usage(
                     "only one of the input, the queries and the token ids can be standard input")
               : 0;
}

/* Checks the options beside --base. 0, or EXIT_TROUBLE (message printed). */
static int check_base(const struct cli_pack *p) {
    static const char *const others[] = {"recipe",    "target-kld", "target-ratio",
                                         "max-error", "append",     "curve"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (cli_given(others[i]))
            return cli_usage("--base and --%s exclude each other: the recipe is that of %s",
                             others[i], p->base_path);
    if (p->job.remove) return cli_usage("--base and --rm exclude each other");
    return p->job.files.n > 1 && !p->job.joins ? cli_usage("--base is of one FILE") : 0;
}

/* Refuses options that leave out what --rm would remove for good. 0, or EXIT_TROUBLE (message
 * printed). */
static int check_remove(void) {
    static const char *const leaving[] = {"layers", "tokens", "dequantize", "no-tokens"};
    const char *left = pack.how.no_companions ? "companions=no" : NULL;
    for (size_t i = sizeof leaving / sizeof leaving[0]; i--;)
        if (cli_given(leaving[i])) left = leaving[i];
    return left ? cli_usage("--%s leaves out what --rm would remove for good", left) : 0;
}

static int rebuilds(const struct cli_pack *p) {
    struct kvc_recipe_info info = {.size = sizeof info};
    if (p->how.recipe) kvc_recipe_describe(p->how.recipe, &info, NULL);
    return info.rebuilds;
}

int main(int argc, char **argv) {
    struct cli_pack *p = &pack;
    const struct cli_group groups[] = {{"Coding", coding, p},
                                       {"Files", job_options, &p->job},
                                       {NULL, cli_files_options, &p->job.files},
                                       {NULL, data, p},
                                       {NULL, cli_selection_options, &p->part},
                                       {NULL, cli_common_options, NULL},
                                       {"Reading input", cli_input_options, &p->job.input},
                                       {NULL, cli_format_options(0), &p->job.input.settings},
                                       {NULL, NULL, NULL}};
    const struct cli_command_line line = {
        .usage = "Usage: kvc-pack [OPTION]... [FILE]...\n"
                 "Pack KV-cache files into .kvc containers: FILE into FILE.kvc, or standard input\n"
                 "to standard output. Lossless unless a recipe says otherwise.\n",
        .brief = "recipe profile target-ratio curve model output stdout force rm skip-existing "
                 "test threads quiet verbose version",
        .groups = groups,
        .print_presets = print_presets,
        .print_devices = cli_cuda_version,
        .end = "\n"
               "Exit status: 0 ok, 2 trouble.\n"
               "\n"
               "Examples:\n"
               "  kvc-pack slot.bin                       slot.bin.kvc, lossless\n"
               "  kvc-pack -r small --profile=model.kvcp slot.bin\n"
               "                                          about twenty times smaller, lossy\n"
               "  kvc-pack --skip-existing *.bin          only what was not packed before\n"
               "  tar c folder | kvc-pack >folder.kvc     a cache of several files, in a pipe\n"};
    cli_start(argv, "kvc-pack");
    p->job.state = p->how.note_state = p;
    cli_input_environment(&p->job.input);
    if (cli_take_options(&line, argc, argv) || cli_exclusive("target-kld target-ratio max-error"))
        return EXIT_TROUBLE;
    if (take_environment(p)) return EXIT_TROUBLE;
    p->no_profile = p->job.input.open.profile && strcmp(p->job.input.open.profile, "none") == 0;
    if (p->no_profile) p->job.input.open.profile = NULL;
    p->how.no_verify = p->job.input.open.no_verify;
    p->job.joins = cli_given("join") || p->joined.append;
    p->job.files.others = 1;
    if (job_collect(&p->job, argc - optind, argv + optind)) return EXIT_TROUBLE;
    if (job_check(&p->job) || pack_check_join(p) || check_stdin(p)) return EXIT_TROUBLE;
    if (p->base_path && check_base(p)) return EXIT_TROUBLE;
    if (p->how.force_profile && !p->job.input.open.profile)
        return cli_usage("--force-profile wants a --profile=FILE");
    if (p->job.remove && check_remove()) return EXIT_TROUBLE;
    if (!p->job.input.quiet) p->how.note = say_note;
    if (p->how.no_companions && rebuilds(p))
        return cli_usage(
            "--companions=no leaves out the hidden states that this recipe rebuilds K and V from");
    return cli_finish(pack_all(p));
}
