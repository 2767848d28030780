/* kvc-unpack.c: the options of kvc-unpack, and its inputs one after another. Not for writing an output (unpack_*.c). */
#include "cli/damage.h"
#include "cli/unpack.h"

#include "codecs/near.h"
#include "formats/file/restore.h"

#include <stdlib.h>
#include <string.h>

enum { OPT_TOKENS = JOB_OPT_FREE, OPT_LAYERS, OPT_TO, OPT_TO_PAIRING, OPT_DEVICE, OPT_SALVAGE, OPT_LOSSY, OPT_BLOCKS, OPT_SHARD };

static const struct option long_options[] = {
    JOB_OPTIONS,
    {"lossy-metadata", no_argument, NULL, OPT_LOSSY},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"layers", required_argument, NULL, OPT_LAYERS},
    {"to", required_argument, NULL, OPT_TO},
    {"to-pairing", required_argument, NULL, OPT_TO_PAIRING},
    {"blocks", required_argument, NULL, OPT_BLOCKS},
    {"shard", required_argument, NULL, OPT_SHARD},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"salvage", no_argument, NULL, OPT_SALVAGE},
    {"no-verify", no_argument, NULL, CLI_OPT_NO_VERIFY},
    {NULL, 0, NULL, 0},
};

static const char brief[] = "Usage: kvc-unpack [OPTION]... [FILE]...\n"
                            "Unpack .kvc containers: FILE.kvc to FILE, or standard input to standard output.\n"
                            "What was packed losslessly comes back byte for byte.\n"
                            "\n"
                            "  -o, --output=FILE       write to FILE\n"
                            "  -c, --stdout            write to standard output\n"
                            "      --to=FORMAT         write another layout: llama, safetensors, npz, ...\n"
                            "      --tokens=A:B        select positions A to B-1\n"
                            "      --layers=LIST       select these layers, e.g. 0-3,7\n"
                            "      --device=D          decode on cpu (default), cuda, cuda:N, or auto\n"
                            "      --salvage           write what is whole of a damaged .kvc\n"
                            "  -f, --force             replace existing files, write to a terminal\n"
                            "      --rm                remove each input after its output is complete\n"
                            "      --skip-existing     skip inputs whose output exists\n"
                            "  -t, --test              check everything, write nothing; exit 1 if damaged\n"
                            "  -T, --threads=N         threads; 0: one per core (default)\n"
                            "  -q, --quiet             print errors only\n"
                            "  -v, --verbose           print a line for each file\n"
                            "  -V, --version           print the version\n"
                            "\n"
                            "All options and examples: kvc-unpack --help. The manual: man kvc-unpack.\n";

static const char help[] = "Usage: kvc-unpack [OPTION]... [FILE]...\n"
                           "Unpack .kvc containers: FILE.kvc to FILE, or standard input to standard output.\n"
                           "What was packed losslessly comes back byte for byte; several files as a folder.\n"
                           "Engine files can be converted, too.\n"
                           "\n"
                           "  -o, --output=FILE       write to FILE; several files to the folder FILE, or to\n"
                           "                          FILE.tar\n"
                           "  -c, --stdout            write to standard output\n"
                           "      --output-dir=DIR    write to files in DIR, which is made if need be; files\n"
                           "                          below a folder keep their places\n"
                           "      --suffix=SUFFIX     inputs end in it, or in .kvc\n"
                           "      --recursive         of a folder: unpack each .kvc below it\n"
                           "      --files-from=FILE   also the files that FILE names, one a line; - is\n"
                           "                          standard input\n"
                           "  -0, --null              names in it end with a NUL byte, as of find -print0\n"
                           "      --to-pairing=P      RoPE pairing of K in the output: halves, interleaved\n"
                           "                          or none (default: the pairing of FORMAT's engine)\n"
                           "      --lossy-metadata    write FORMAT also if it does not hold all that the\n"
                           "                          input has beside K and V (token ids, facts of the\n"
                           "                          model), and say what is left out\n"
                           "      --tokens=A:B        select positions A to B-1\n"
                           "      --layers=LIST       select these layers, e.g. 0-3,7\n"
                           "      --blocks=N          with --to: write files of N tokens each, as a folder\n"
                           "                          or a tar archive; kvc-pack --join makes them one cache\n"
                           "                          again\n"
                           "      --shard=R/N         with --to: write only the KV heads of rank R (0, 1,\n"
                           "                          ...) of N\n"
                           "      --device=D          decode on cpu (default), cuda, cuda:N, or auto (cuda\n"
                           "                          if there is one)\n"
                           "      --salvage           write what is whole of a damaged or truncated .kvc,\n"
                           "                          and say what is lost; exit 1 if anything is\n"
                           "      --no-verify         do not compare decoded values with their digests\n"
                           "  -t, --test              check everything, write nothing; exit 1 if damaged\n"
                           "  -T, --threads=N         threads; 0: one per core (default)\n"
                           "  -f, --force             replace existing files, write to a terminal\n"
                           "  -k, --keep              keep the input (default)\n"
                           "      --rm                remove each input after its output is complete\n"
                           "      --skip-existing     skip inputs whose output exists; no error\n"
                           "      --json[=lines]      print a report as JSON; lines: an object a line\n"
                           "  -q, --quiet             print errors only\n"
                           "  -v, --verbose           print a line for each file\n"
                           "  -h                      print the most used options\n"
                           "      --help              print this text\n"
                           "  -V, --version           print the version; with -v also kernels, stages and\n"
                           "                          devices\n"
                           "\n";
static const char end_of_help[] = "\n"
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
                                  "                                          the first 256 tokens\n";

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
static char *default_name(void *state, const char *path, const struct kvc_opened *f, struct kvc_error *e) {
    const struct cli_unpack *u = state;
    const struct kvc_format *to = u->to;
    const size_t n = strlen(path), stem = stem_length(u, path);
    if (!to && stem == n) {
        kvc_fail(e, KVC_ERR_USAGE, "%s: the name does not end in %s: use -o FILE", path, u->job.suffix);
        return NULL;
    }
    /* What is whole of several files is one archive. */
    const char *suffix = to ? to->suffix : u->salvage && f->cache->n_members && unpack_wants_source(u, f->cache) ? ".tar" : "";
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
    return !u->salvage && (u->blocks ? 1 : to ? to->export_members != NULL : f->cache->n_members != 0);
}

/* --- one input --- */

static int write_one(struct cli_unpack *u, const struct kvc_opened *f, struct kvc_sink *out, struct kvc_error *e) {
    const int device = unpack_on_device(u, &f->input, e);
    u->loaded = 0;
    if (u->salvage) return unpack_write_salvaged(u, f, out, e);
    if (device < 0) return -1;
    return device ? unpack_write_from_device(u, f, out, e) : unpack_write(u, f, f->cache, out, e);
}

/* Returns the size of the output: of the source, or else about that of the tensors; 0 for a part, whose size is not known. */
static uint64_t expected_size(const struct cli_unpack *u, const struct kvc_cache *c) {
    uint64_t bytes = 0;
    if (u->selects || u->ranks) return 0;
    if (unpack_wants_source(u, c) && !c->n_members) return kvc_source_size(c, 0);
    for (uint32_t t = 0; t < c->n_tensors; t++) bytes += kvc_tensor_bytes(&c->tensor[t]);
    return bytes;
}

static int write_and_count(void *state, const struct kvc_opened *f, struct kvc_sink *out, struct kvc_error *e) {
    struct cli_unpack *u = state;
    struct cli_progress progress;
    struct cli_counted counted;
    uint64_t start = out->offset;
    int status;
    cli_progress_start(&progress, f->input.name, u->job.input.quiet);
    if (progress.on) {
        struct kvc_sink shown = cli_counted_begin(&counted, &progress, out, expected_size(u, f->cache));
        status = write_one(u, f, &shown, e);
        cli_counted_end(&counted, &shown);
    } else {
        status = write_one(u, f, out, e);
    }
    if (!status) u->written = out->offset - start;
    return status;
}

static int write_members(void *state, const struct kvc_opened *f, const struct kvc_member_sink *out, struct kvc_error *e) {
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
    int checksums = 0, status = cli_check_with(path, &j->input, unpack_check_container, u, &checksums, e);
    struct kvc_opened f;
    if (status != EXIT_SAME && checksums) cli_error_about(e, strcmp(path, "-") == 0 ? "(stdin)" : path);
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
        cli_warn("%s: ok%s", path, checksums ? "" : " (structure only: the format has no checksums)");
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
        cli_json_text(&j->report.json, "check", status == EXIT_SAME ? "ok" : status == EXIT_DIFFER ? "damaged" : "trouble");
        if (status != EXIT_SAME) cli_json_error(&j->report.json, &e);
        else if (u->loaded) cli_load_json(&u->load, &j->report.json);
        cli_report_file_end(&j->report);
    } else if (j->json && status != EXIT_SAME) {
        cli_report_failed(&j->report, path, &e);
    }
    return status;
}

static int take_layers(struct cli_unpack *u, const char *arg) {
    free(u->layers);
    u->layers = NULL;
    u->selection.n_layers = 0;
    if (cli_take_list("--layers=", arg, &u->layers, &u->selection.n_layers)) return EXIT_TROUBLE;
    u->selection.layers = u->layers;
    u->selects = 1;
    return 0;
}

/* Takes --to=FORMAT[:KEY=VALUE,...]. */
static int take_target(struct cli_unpack *u, const char *arg) {
    const char *colon = strchr(arg, ':');
    u->to = kvc_format_find(arg);
    if (!u->to || !kvc_format_is_written(u->to)) return cli_no_such_format("to", arg, 1);
    return colon && cli_take_settings(&u->settings, u->to, 1, "to", colon + 1) < 0 ? EXIT_TROUBLE : 0;
}

/* Takes --shard=RANK/RANKS. */
static int take_shard(struct cli_unpack *u, const char *arg) {
    const char *slash = strchr(arg, '/');
    char *rank = slash ? strndup(arg, (size_t)(slash - arg)) : NULL;
    uint64_t r = 0, n = 0;
    const int bad = !rank || cli_parse_u64(rank, &r) || cli_parse_u64(slash + 1, &n) || r >= n || n > UINT16_MAX;
    free(rank);
    if (bad) return cli_usage("--shard=%s is not RANK/RANKS, as 0/2 and 1/2", arg);
    u->rank = (uint32_t)r;
    u->ranks = (uint32_t)n;
    return 0;
}

/* Takes an option of kvc-unpack alone. 0, or EXIT_TROUBLE (message printed). */
static int take_option(struct cli_unpack *u, int opt, const char *arg) {
    switch (opt) {
    case OPT_TOKENS: u->selects = 1; return cli_take_range("--tokens=", arg, &u->selection.first, &u->selection.end);
    case OPT_LAYERS: return take_layers(u, arg);
    case OPT_TO: return take_target(u, arg);
    case OPT_TO_PAIRING:
        if (!kvc_pairing_parse(arg, &u->export.pairing))
            return cli_usage("--to-pairing=%s is none of halves, interleaved, none", arg);
        return 0;
    case OPT_LOSSY: u->lossy_metadata = 1; return 0;
    case OPT_BLOCKS:
        if (cli_parse_u64(arg, &u->blocks) || !u->blocks || u->blocks > KVC_MAX_CELLS)
            return cli_usage("--blocks=%s is not a number of tokens", arg);
        return 0;
    case OPT_SHARD: return take_shard(u, arg);
    case OPT_DEVICE:
        if (cli_device_parse(&u->device, arg)) return cli_usage("--device=%s is none of cpu, cuda, cuda:N, auto", arg);
        return 0;
    case OPT_SALVAGE: u->salvage = u->job.input.import.salvage = 1; return 0;
    default: return (opt = cli_target_option(&u->settings, opt, arg)) ? (opt < 0 ? EXIT_TROUBLE : 0) : cli_try_help();
    }
}

static int print_help(int opt) {
    if (opt == 'h') return cli_help(opt, brief, help, "");
    fputs(help, stdout);
    puts("Writing other layouts:");
    cli_print_target_help();
    cli_print_input_help();
    fputs(end_of_help, stdout);
    return cli_finish(EXIT_SAME);
}

int main(int argc, char **argv) {
    static struct cli_unpack u = {.job = {.name = default_name,
                                          .write = write_and_count,
                                          .is_folder = becomes_folder,
                                          .write_members = write_members,
                                          .done = say_done,
                                          .suffix = ".kvc"}};
    int opt;
    const struct option *options = cli_long_options(long_options, 1);
    cli_start(argv, "kvc-unpack");
    u.job.state = &u;
    cli_input_environment(&u.job.input);
    while ((opt = cli_next_option(argc, argv, JOB_SHORT, options)) != -1) {
        int taken = job_option(&u.job, opt, optarg);
        if (taken < 0 || (!taken && take_option(&u, opt, optarg))) return EXIT_TROUBLE;
    }
    if (u.job.help) return print_help(u.job.help);
    if (u.job.version) return cli_version(u.job.verbose, cli_cuda_version);
    if (job_environment(&u.job)) return EXIT_TROUBLE;
    if (job_collect(&u.job, argc - optind, argv + optind) || job_check(&u.job)) return EXIT_TROUBLE;
    if (unpack_check_dividing(&u) || unpack_check_salvage(&u) || unpack_open_device(&u)) return EXIT_TROUBLE;
    int status = job_run(&u.job, unpack_one);
    free(u.layers);
    return cli_finish(status);
}
