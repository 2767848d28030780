/* kvc-unpack.c: the options of kvc-unpack, and its inputs one after another. Not for writing an
 * output (unpack_*.c). */
#include "cli/damage.h"
#include "cli/unpack.h"

#include "formats/file/restore.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Returns FILE.kvc without .kvc, or with the target's suffix instead; the caller frees it. */
static char *default_name(void *state, const char *path, const struct kvc_opened *f,
                          struct kvc_error *e) {
    const struct cli_unpack *u = state;
    const struct kvc_format *to = u->to;
    const size_t n = strlen(path), stem = stem_length(u, path);
    if (!to && stem == n) {
        kvc_fail(e, KVC_ERR_USAGE, "%s: the name does not end in %s: use -o FILE", path,
                 u->job.suffix);
        return NULL;
    }
    /* What is whole of several files is one archive. */
    const char *suffix = to ? to->suffix
                         : u->salvage && f->cache->n_members && unpack_wants_source(u, f->cache)
                             ? ".tar"
                             : "";
    const size_t length = strlen(suffix);
    char *name = malloc(n + length + 1);
    if (!name) {
        kvc_fail_memory(e, "a name");
        return NULL;
    }
    memcpy(name, path, stem);
    name[stem] = '\0';
    if (stem < length || strcmp(name + stem - length, suffix) != 0) strcat(name, suffix);
    return name;
}

static int becomes_folder(void *state, const struct kvc_opened *f) {
    const struct cli_unpack *u = state;
    const struct kvc_format *to = unpack_target(u, f->cache);
    return !u->salvage && (u->blocks ? 1
                           : to      ? to->export_members != NULL
                                     : f->cache->n_members != 0);
}

/* --- one input --- */

static int write_one(struct cli_unpack *u, const struct kvc_opened *f, struct kvc_sink *out,
                     struct kvc_error *e) {
    const int device = unpack_on_device(u, &f->input, e);
    u->loaded = 0;
    if (u->salvage) return unpack_write_salvaged(u, f, out, e);
    if (device < 0) return -1;
    return device ? unpack_write_from_device(u, f, out, e) : unpack_write(u, f, f->cache, out, e);
}

/* Returns the size of the output: of the source, or else about that of the tensors; 0 for a part,
 * whose size is not known. */
static uint64_t expected_size(const struct cli_unpack *u, const struct kvc_cache *c) {
    uint64_t bytes = 0;
    if (u->part.given || u->ranks) return 0;
    if (unpack_wants_source(u, c) && !c->n_members) return kvc_source_size(c, 0);
    for (uint32_t t = 0; t < c->n_tensors; t++) bytes += kvc_tensor_bytes(&c->tensor[t]);
    return bytes;
}

static int write_and_count(void *state, const struct kvc_opened *f, struct kvc_sink *out,
                           struct kvc_error *e) {
    struct cli_unpack *u = state;
    struct cli_progress progress;
    struct cli_counted counted;
    uint64_t start = out->offset;
    int status;
    cli_progress_start(&progress, f->input.name, u->job.input.quiet);
    if (progress.on) {
        struct kvc_sink shown = cli_counted_begin(&counted, &progress, out,
                                                  expected_size(u, f->cache));
        status = write_one(u, f, &shown, e);
        cli_counted_end(&counted, &shown);
    } else {
        status = write_one(u, f, out, e);
    }
    if (!status) u->written = out->offset - start;
    return status;
}

static int write_members(void *state, const struct kvc_opened *f, const struct kvc_member_sink *out,
                         struct kvc_error *e) {
    struct cli_unpack *u = state;
    u->loaded = 0;
    if (unpack_write_members(u, f, out, e)) return -1;
    u->written = out->out->offset;
    return 0;
}

static void say_done(void *state, const struct kvc_opened *f) {
    struct cli_unpack *u = state;
    if (u->job.json) {
        struct cli_json *j = &u->job.report.json;
        cli_report_file(&u->job.report, f->input.name);
        cli_json_text(j, "to", u->to ? u->to->name : "source");
        cli_json_u64(j, "bytes", u->written);
        if (u->loaded) cli_load_json(&u->load, j);
        if (u->salvage) cli_json_bool(j, "complete", !u->incomplete);
        if (u->salvage) cli_json_damage(j, u->survey);
        cli_report_file_end(&u->job.report);
    }
    if (u->job.verbose) {
        char size[32];
        if (u->loaded) cli_load_say(&u->load, f->input.name);
        cli_size_text(u->written, size);
        cli_warn("%s: %s written", f->input.name, size);
    }
}

static int test_one(struct cli_job *j, const char *path, struct kvc_error *e) {
    struct cli_unpack *u = j->state;
    u->loaded = 0;
    int checksums = 0,
        status = cli_check_with(path, &j->input, unpack_check_container, u, &checksums, e);
    struct kvc_opened f;
    if (status != EXIT_SAME && checksums)
        cli_error_about(e, strcmp(path, "-") == 0 ? "(stdin)" : path);
    if (status == EXIT_SAME && !checksums && u->device.kind == CLI_DEVICE_CUDA) {
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: only .kvc files are decoded on a device", path);
        status = EXIT_TROUBLE;
    }
    if (status == EXIT_SAME && j->input.model_path) { /* a whole file must also be of this model */
        if (cli_open(&f, path, &j->input, e)) status = EXIT_TROUBLE;
        else kvc_close(&f);
    }
    if (status == EXIT_SAME && j->verbose && u->loaded) cli_load_say(&u->load, path);
    if (status == EXIT_SAME && j->verbose)
        cli_warn("%s: ok%s", path,
                 checksums ? "" : " (structure only: the format has no checksums)");
    return status;
}

static int unpack_one(struct cli_job *j, const char *path) {
    struct cli_unpack *u = j->state;
    struct kvc_error e;
    int status;
    if (j->test) status = test_one(j, path, &e);
    else status = job_file(j, path, &e) ? EXIT_TROUBLE : EXIT_SAME;
    if (status != EXIT_SAME) cli_error(&e);
    else if (u->salvage && u->incomplete) status = EXIT_DIFFER;
    if (j->test && j->json) {
        cli_report_file(&j->report, path);
        cli_json_text(&j->report.json, "check",
                      status == EXIT_SAME     ? "ok"
                      : status == EXIT_DIFFER ? "damaged"
                                              : "trouble");
        if (status != EXIT_SAME) cli_json_error(&j->report.json, &e);
        else if (u->loaded) cli_load_json(&u->load, &j->report.json);
        cli_report_file_end(&j->report);
    } else if (j->json && status != EXIT_SAME) {
        cli_report_failed(&j->report, path, &e);
    }
    return status;
}

/* --- options --- */

/* Takes --to=FORMAT[:KEY=VALUE,...]. */
static int take_target(const struct cli_option *o, void *into, const char *arg) {
    struct cli_unpack *u = into;
    const char *colon = strchr(arg, ':');
    u->to = kvc_format_find(arg);
    if (!u->to || !kvc_format_is_written(u->to)) return cli_no_such_format(o->name, arg, 1);
    return colon ? cli_take_settings(&u->settings, u->to, 1, o->name, colon + 1) : 0;
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
     CLI_CHOICE(struct cli_unpack, export.pairing, CLI_PAIRING_WORDS),
     .min = KVC_PAIRING_UNKNOWN + 1},
    {"lossy-metadata", 0, NULL,
     "write FORMAT also if it does not hold all that the input has beside K and V (token ids, "
     "facts of the model), and say "
     "what is left out",
     CLI_FLAG(struct cli_unpack, lossy_metadata)},
    {"blocks", 0, "N",
     "with --to: write files of N tokens each, as a folder or a tar archive; kvc-pack --join makes "
     "them one cache again",
     CLI_NUMBER(struct cli_unpack, blocks, 1, KVC_MAX_CELLS), .wants = "a number of tokens"},
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
     CLI_FLAG(struct cli_unpack, job.input.import.no_verify)},
    {"test", 't', NULL, "check everything, write nothing, exit 1 if damaged",
     CLI_FLAG(struct cli_unpack, job.test)},
    {.name = NULL},
};

static struct cli_unpack unpack = {
    .job = {.name = default_name,
            .write = write_and_count,
            .is_folder = becomes_folder,
            .write_members = write_members,
            .done = say_done,
            .suffix = ".kvc"},
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
    u->job.input.import.salvage = u->salvage;
    if (job_collect(&u->job, argc - optind, argv + optind) || job_check(&u->job))
        return EXIT_TROUBLE;
    if (unpack_check_dividing(u) || unpack_check_salvage(u) || unpack_open_device(u))
        return EXIT_TROUBLE;
    int status = job_run(&u->job, unpack_one);
    free(u->part.layers);
    return cli_finish(status);
}
