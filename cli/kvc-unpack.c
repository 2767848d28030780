/* kvc-unpack.c: the options of kvc-unpack, and its inputs one after another. Not for writing an
 * output (unpack_*.c). */
#include "cli/damage.h"
#include "cli/unpack.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_TOKENS (UINT64_C(1) << 31) /* of a block */

/* Returns the length of a name without .kvc or --suffix, or its whole length. */
static size_t stem_length(const struct cli_unpack *u, const char *path) {
    const char *const suffix[] = {u->job.suffix, ".kvc"};
    const size_t n = strlen(path);
    for (int i = 0; i < 2; i++) {
        const size_t m = strlen(suffix[i]);
        if (n > m && path[n - m - 1] != '/' && strcmp(path + n - m, suffix[i]) == 0) return n - m;
    }
    return n;
}

/* Says what will be written, or why nothing can be. */
static int find_target(const struct cli_unpack *u, const struct kvc_file *f,
                       struct kvc_target_info *target, struct kvc_error *e) {
    const struct kvc_write_options o = unpack_options(u);
    *target = (struct kvc_target_info){.size = sizeof *target};
    return kvc_file_target(f, u->to, &o, target, e);
}

/* Returns FILE.kvc without .kvc, or with the target's suffix instead; the caller frees it. */
static char *default_name(void *state, const char *path, const struct kvc_file *f,
                          struct kvc_error *e) {
    const struct cli_unpack *u = state;
    struct kvc_target_info target;
    const size_t n = strlen(path), stem = stem_length(u, path);
    if (!u->to && stem == n) {
        cli_usage_error(e, "%s: the name does not end in %s: use -o FILE", path, u->job.suffix);
        return NULL;
    }
    /* What is whole of several files is one archive. */
    const int archive = u->salvage && job_source(f).members && !u->part.given &&
                        !find_target(u, f, &target, e);
    const char *suffix = u->to ? u->target.suffix : archive ? ".tar" : "";
    const size_t length = strlen(suffix);
    if (stem >= length && memcmp(path + stem - length, suffix, length) == 0) suffix = "";
    char *name;
    if (asprintf(&name, "%.*s%s", (int)stem, path, suffix) >= 0) return name;
    cli_no_memory(e, "a name");
    return NULL;
}

static int becomes_folder(void *state, const struct kvc_file *f) {
    const struct cli_unpack *u = state;
    struct kvc_target_info target;
    return !u->salvage && !find_target(u, f, &target, NULL) && target.members;
}

/* --- one input --- */

static int write_to(struct cli_unpack *u, const struct kvc_file *f,
                    const struct unpack_place *place, struct kvc_error *e) {
    u->loaded = 0;
    return u->salvage ? unpack_write_salvaged(u, f, place, e)
                      : unpack_write_from_device(u, f, place, e);
}

static int write_file(void *state, const struct kvc_file *f, struct cli_output *out,
                      struct kvc_error *e) {
    struct cli_unpack *u = state;
    const struct unpack_place place = {.out = out};
    struct kvc_target_info target;
    struct cli_progress progress;
    struct cli_counted counted;
    cli_progress_start(&progress, job_source(f).name, u->job.input.quiet);
    if (progress.on) {
        const int known = !u->part.given && !u->ranks && !find_target(u, f, &target, e);
        cli_counted_begin(&counted, &progress, known ? target.bytes : 0);
        out->count = cli_counted_add;
        out->count_state = &counted;
    }
    const int status = write_to(u, f, &place, e);
    if (progress.on) cli_counted_end(&counted);
    out->count = NULL;
    return status;
}

static int write_folder(void *state, const struct kvc_file *f, const char *folder,
                        struct kvc_error *e) {
    const struct unpack_place place = {.folder = folder};
    return write_to(state, f, &place, e);
}

static void say_done(void *state, const struct kvc_file *f) {
    struct cli_unpack *u = state;
    const char *name = job_source(f).name;
    if (u->job.json) {
        struct cli_json *j = &u->job.report.json;
        cli_report_file(&u->job.report, name);
        cli_json_text(j, "to", u->to ? u->target.name : "source");
        cli_json_u64(j, "bytes", u->job.bytes);
        if (u->loaded) cli_load_json(&u->load, j);
        if (u->salvage) cli_json_bool(j, "complete", !u->incomplete);
        if (u->salvage) cli_json_damage(j, f);
        cli_report_file_end(&u->job.report);
    }
    if (u->job.verbose) {
        char size[32];
        if (u->loaded) cli_load_say(&u->load, name);
        cli_size_text(u->job.bytes, size);
        cli_warn("%s: %s written", name, size);
    }
}

static int test_one(struct cli_job *j, const char *path, struct kvc_error *e) {
    struct cli_unpack *u = j->state;
    struct kvc_check_report report;
    u->loaded = 0;
    int status = cli_check(path, &j->input, j->threads,
                           u->device.cuda ? unpack_check_container : NULL, u, &report, e);
    kvc_file_close(report.damaged);
    if (status != EXIT_SAME && report.has_checksums) kvc_error_about(e, cli_name(path));
    if (status == EXIT_SAME && !report.has_checksums && u->device.kind == CLI_DEVICE_CUDA) {
        kvc_error_set(e, KVC_ERR_UNSUPPORTED, KVC_NEED_NOTHING,
                      "%s: only .kvc files are decoded on a device", path);
        status = EXIT_TROUBLE;
    }
    if (status == EXIT_SAME && j->input.open.model) { /* a whole file must also be of this model */
        struct kvc_file *f = cli_open(path, &j->input, e);
        if (!f) status = EXIT_TROUBLE;
        kvc_file_close(f);
    }
    if (status == EXIT_SAME && j->verbose && u->loaded) cli_load_say(&u->load, path);
    if (status == EXIT_SAME && j->verbose)
        cli_warn("%s: ok%s", path,
                 report.has_checksums ? "" : " (structure only: the format has no checksums)");
    return status;
}

static int unpack_one(struct cli_job *j, const char *path, struct kvc_error *e) {
    struct cli_unpack *u = j->state;
    int status;
    if (j->test) status = test_one(j, path, e);
    else status = job_file(j, path, e) ? EXIT_TROUBLE : EXIT_SAME;
    if (status != EXIT_SAME) cli_error(e);
    else if (u->salvage && u->incomplete) status = EXIT_DIFFER;
    if (j->test && j->json) {
        cli_report_file(&j->report, path);
        cli_json_text(&j->report.json, "check",
                      status == EXIT_SAME     ? "ok"
                      : status == EXIT_DIFFER ? "damaged"
                                              : "trouble");
        if (status != EXIT_SAME) cli_json_error(&j->report.json, e);
        else if (u->loaded) cli_load_json(&u->load, &j->report.json);
        cli_report_file_end(&j->report);
    } else if (j->json && status != EXIT_SAME) {
        cli_report_failed(&j->report, path, e);
    }
    return status;
}

/* --- options --- */

/* Takes --to=FORMAT[:KEY=VALUE,...]. */
static int take_target(const struct cli_option *o, void *into, const char *arg) {
    struct cli_unpack *u = into;
    struct kvc_error *e = cli_error_new();
    int status = 0;
    u->to = arg;
    if (cli_find_format(arg, &u->target) || !u->target.written)
        status = cli_no_such_format(o->name, arg, 1);
    else if (kvc_format_check(arg, 1, NULL, e))
        status = cli_usage("--%s: %s", o->name, kvc_error_message(e));
    kvc_error_free(e);
    return status;
}

/* Takes --shard=RANK/RANKS. */
static int take_shard(const struct cli_option *o, void *into, const char *arg) {
    struct cli_unpack *u = into;
    const char *slash = strchr(arg, '/');
    char *rank = slash ? strndup(arg, (size_t)(slash - arg)) : NULL;
    uint64_t r = 0, n = 0;
    const int bad = !rank || cli_parse_u64(rank, &r) || cli_parse_u64(slash + 1, &n) || r >= n ||
                    n > UINT16_MAX;
    free(rank);
    if (bad) return cli_usage("--%s=%s is not RANK/RANKS, as 0/2 and 1/2", o->name, arg);
    u->rank = (uint32_t)r;
    u->ranks = (uint32_t)n;
    return 0;
}

static int take_device(const struct cli_option *o, void *into, const char *arg) {
    struct cli_unpack *u = into;
    if (!cli_device_parse(&u->device, arg)) return 0;
    return cli_usage("--%s=%s is none of cpu, cuda, cuda:N, auto", o->name, arg);
}

static const struct cli_option what[] = {
    {"to", 0, "FORMAT[:OPTIONS]",
     "write another layout, as llama, safetensors, npz; FORMAT is %s; OPTIONS of a format: "
     "KEY=VALUE,KEY=VALUE",
     .take = take_target, .names = cli_target_names},
    {"to-pairing", 0, "P",
     "RoPE pairing of K in the output: halves, interleaved or none (default: the pairing of "
     "FORMAT's engine)",
     CLI_WORD(struct cli_unpack, pairing, CLI_PAIRING_WORDS)},
    {"lossy-metadata", 0, NULL,
     "write FORMAT also if it does not hold all that the input has beside K and V (token ids, "
     "facts of the model), and say "
     "what is left out",
     CLI_FLAG(struct cli_unpack, lossy_metadata)},
    {"blocks", 0, "N",
     "with --to: write files of N tokens each, as a folder or a tar archive; kvc-pack --join makes "
     "them one cache again",
     CLI_NUMBER(struct cli_unpack, blocks, 1, MOST_TOKENS), .wants = "a number of tokens"},
    {"shard", 0, "R/N", "with --to: write only the KV heads of rank R (0, 1, ...) of N",
     .take = take_shard},
    {"device", 0, "D", "decode on cpu (default), cuda, cuda:N, or auto; auto: cuda if there is one",
     .take = take_device},
    {.name = NULL},
};

static const struct cli_option files[] = {
    {"output", 'o', "OUTPUT",
     "write to OUTPUT; several files: to the folder OUTPUT, or to OUTPUT.tar",
     CLI_TEXT(struct cli_unpack, job.output)},
    {"salvage", 0, NULL,
     "write what is whole of a damaged .kvc; say what is lost, and exit 1 if anything is",
     CLI_FLAG(struct cli_unpack, salvage)},
    {"no-verify", 0, NULL, "do not compare decoded values with their digests",
     CLI_FLAG(struct cli_unpack, job.input.open.no_verify)},
    {"test", 't', NULL, "check everything, write nothing, exit 1 if damaged",
     CLI_FLAG(struct cli_unpack, job.test)},
    {.name = NULL},
};

static struct cli_unpack unpack = {
    .job = {.name = default_name,
            .write = write_file,
            .is_folder = becomes_folder,
            .write_folder = write_folder,
            .done = say_done,
            .suffix = ".kvc"},
    .part = {.selection = {.size = sizeof unpack.part.selection}},
};

int main(int argc, char **argv) {
    struct cli_unpack *u = &unpack;
    const struct cli_group groups[] = {{"What to write", what, u},
                                       {NULL, cli_format_options(1), &u->settings},
                                       {NULL, cli_selection_options, &u->part},
                                       {"Files", job_options, &u->job},
                                       {NULL, cli_files_options, &u->job.files},
                                       {NULL, files, u},
                                       {NULL, cli_common_options, NULL},
                                       {"Reading input", cli_input_options, &u->job.input},
                                       {NULL, cli_format_options(0), &u->job.input.settings},
                                       {NULL, NULL, NULL}};
    const struct cli_command_line line = {
        .usage = "Usage: kvc-unpack [OPTION]... [FILE]...\n"
                 "Unpack .kvc containers: FILE.kvc to FILE, or standard input to standard output.\n"
                 "What was packed losslessly comes back byte for byte.\n",
        .more = "Several files come back as a folder. Engine files can be converted, too.\n",
        .brief = "output stdout to tokens layers device salvage force rm skip-existing test "
                 "threads quiet verbose version",
        .groups = groups,
        .print_devices = cli_cuda_version,
        .end = "\n"
               "With --model (or $KVC_MODEL) a .kvc of another model is refused.\n"
               "Exit status: 0 ok, 1 damaged (with -t) or something was lost (--salvage), 2\n"
               "trouble.\n"
               "\n"
               "Examples:\n"
               "  kvc-unpack slot.bin.kvc                 slot.bin, as it was packed\n"
               "  kvc-unpack -t *.kvc                     are these files whole?\n"
               "  kvc-unpack --to=safetensors slot.bin.kvc\n"
               "                                          slot.bin.safetensors\n"
               "  kvc-unpack -c --tokens=0:256 --to=npz slot.bin.kvc >prefix.npz\n"
               "                                          the first 256 tokens\n"};
    cli_start(argv, "kvc-unpack");
    u->job.state = u;
    cli_input_environment(&u->job.input);
    if (cli_take_options(&line, argc, argv)) return EXIT_TROUBLE;
    if (job_collect(&u->job, argc - optind, argv + optind) || job_check(&u->job))
        return EXIT_TROUBLE;
    if (unpack_check_dividing(u) || unpack_check_salvage(u) || unpack_open_device(u))
        return EXIT_TROUBLE;
    int status = job_run(&u->job, unpack_one);
    free(u->part.layers);
    return cli_finish(status);
}
