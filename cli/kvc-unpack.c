/* kvc-unpack.c: .kvc (or any supported file) to an engine's file. Knows no byte of either. */
#include "cli/job.h"

#include "formats/container.h"
#include "formats/keys.h"
#include "formats/view.h"

#include <stdlib.h>
#include <string.h>

enum { OPT_TOKENS = JOB_OPT_FREE, OPT_LAYERS, OPT_TO, OPT_TO_PAIRING, OPT_LLAMA_VERSION };

static const struct option long_options[] = {
    CLI_INPUT_OPTIONS,
    JOB_OPTIONS,
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"layers", required_argument, NULL, OPT_LAYERS},
    {"to", required_argument, NULL, OPT_TO},
    {"to-pairing", required_argument, NULL, OPT_TO_PAIRING},
    {"llama-version", required_argument, NULL, OPT_LLAMA_VERSION},
    {NULL, 0, NULL, 0},
};

static const char help[] =
    "Usage: kvc-unpack [OPTION]... [FILE]...\n"
    "Unpack .kvc containers: FILE.kvc into FILE, byte for byte the file it was made from\n"
    "when it was packed losslessly, or standard input to standard output. Engine files\n"
    "are taken too, for conversion.\n"
    "\n"
    "  -o, --output=FILE       write to FILE\n"
    "  -c, --stdout            write to standard output\n"
    "      --to=FORMAT         another layout: llama, safetensors, npz or raw\n"
    "      --to-pairing=P      RoPE pairing of K in the output: halves, interleaved or\n"
    "                          none (default: what FORMAT's engine keeps)\n"
    "      --llama-version=N   slot version 2, 3 or 4 for --to=llama (default 4)\n"
    "      --tokens=A:B        positions A to B-1 only\n"
    "      --layers=LIST       these layers only, e.g. 0-3,7\n"
    "  -t, --test              check everything, write nothing; exit 1 when damaged\n"
    "  -T, --threads=N         threads; 0: one per core (default)\n"
    "  -f, --force             replace existing files, write to a terminal\n"
    "  -k, --keep              keep the input (default)\n"
    "      --rm                remove each input once its output is complete\n"
    "      --json              print a report as JSON\n"
    "  -q, --quiet             no warnings\n"
    "  -v, --verbose           say what was done\n"
    "  -h, --help              this text\n"
    "  -V, --version           the version; with -v also kernels and stages\n"
    "\n" CLI_INPUT_HELP
    "\nWith --model (or $KVC_MODEL) a .kvc of another model is refused.\n"
    "Exit status: 0 ok, 1 damaged (with -t), 2 trouble.\n";

struct unpack {
    struct job job;
    struct kvc_export_options export;
    const struct kvc_format *to;
    struct kvc_selection selection;
    uint8_t *layers;
    int selects;
    uint64_t written; /* bytes of the file at hand */
};

/* The format whose file the cache came from; NULL when it has no export. */
static const struct kvc_format *format_of_source(const struct kvc_cache *c) {
    const char *source = kvc_meta_text(&c->meta, KVC_KEY_SOURCE_FORMAT, "");
    if (strncmp(source, "llama.cpp", 9) == 0) return kvc_format_find("llama");
    const struct kvc_format *f = kvc_format_find(source);
    return f && f->export ? f : NULL;
}

/* FILE.kvc without .kvc, or with the target's suffix in its place. */
static char *default_name(void *state, const char *path, const struct kvc_input *in, struct kvc_error *e) {
    const struct kvc_format *to = ((const struct unpack *)state)->to;
    (void)in;
    size_t n = strlen(path), stem = n > 4 && strcmp(path + n - 4, ".kvc") == 0 ? n - 4 : n;
    if (!to && stem == n) {
        kvc_fail(e, KVC_ERR_USAGE, "%s: the name does not end in .kvc: use -o FILE", path);
        return NULL;
    }
    size_t suffix = to ? strlen(to->suffix) : 0;
    char *name = malloc(n + suffix + 1);
    if (!name) {
        kvc_fail_memory(e, "a name");
        return NULL;
    }
    memcpy(name, path, stem);
    name[stem] = '\0';
    if (to && (stem < suffix || strcmp(name + stem - suffix, to->suffix) != 0)) strcat(name, to->suffix);
    return name;
}

/* What another engine would misread, because the source does not say it. */
static void warn_unknown(const struct unpack *u, const struct cli_file *f) {
    if (u->job.input.quiet) return;
    if (!kvc_cache_heads_known(f->cache))
        cli_warn("%s: the number of KV heads is unknown, so all of a row is written as one head; give --model or "
                 "--kv-heads", f->input.name);
    if (!kvc_meta_find(&f->cache->meta, KVC_KEY_HADAMARD_K) || !kvc_meta_find(&f->cache->meta, KVC_KEY_HADAMARD_V))
        cli_warn("%s: whether the quantised K or V is Hadamard-rotated is unknown (llama.cpp before version 4 does not "
                 "say), so it is written as it is", f->input.name);
    if (kvc_cache_pairing(f->cache) == KVC_PAIRING_UNKNOWN)
        cli_warn("%s: the RoPE pairing of K is unknown, so K is written as it is; give --model or --pairing",
                 f->input.name);
}

/* raw has no place for positions. */
static void warn_positions(const struct unpack *u, const struct kvc_cache *c, const char *name) {
    const struct kvc_cells *cells = c->n_parts ? &c->part[0].cells : NULL;
    if (u->job.input.quiet || !cells || !cells->n) return;
    if (kvc_cells_position(cells, 0) == 0 && kvc_cells_position(cells, cells->n - 1) == (int64_t)cells->n - 1)
        return;
    cli_warn("%s: raw does not hold positions, and these are not 0, 1, 2, ...", name);
}

static void warn_checkpoints(const struct unpack *u, const struct cli_file *f) {
    unsigned n = 0;
    for (uint32_t i = 0; i < f->cache->n_parts; i++) n += f->cache->part[i].kind == KVC_PART_CHECKPOINT;
    if (n && !u->job.input.quiet)
        cli_warn("%s: server checkpoints (%u) are not written; llama.cpp may process the prompt again", f->input.name, n);
}

static int unpack_file(void *state, const struct cli_file *f, struct kvc_sink *out, struct kvc_error *e) {
    const struct unpack *u = state;
    const struct kvc_format *own = format_of_source(f->cache), *to = u->to;
    int as_it_was = !u->selects && (!to || to == own) && !u->export.pairing && !u->export.llama_version;
    if (as_it_was && f->cache->n_extents) return kvc_source_write(f->cache, u->job.threads, out, e);
    if (as_it_was && !to && !u->job.input.quiet)
        cli_warn("%s: the source file's own bytes are not recorded (a compressed npz or a dequantised cache, for instance): "
                 "writing one with equal content", f->input.name);
    if (!to) to = own;
    if (!to) return kvc_fail(e, KVC_ERR_USAGE, "its source format cannot be written anew: use --to=FORMAT");
    struct kvc_cache *view = u->selects ? kvc_view_select(f->cache, &u->selection, e) : NULL;
    if (u->selects && !view) return -1;
    if (to == kvc_format_find("llama")) warn_checkpoints(u, f);
    else warn_unknown(u, f);
    if (to == kvc_format_find("raw")) warn_positions(u, view ? view : f->cache, f->input.name);
    int status = to->export(view ? view : f->cache, &u->export, out, e);
    /* without a selection this is a whole read, which notices damage anywhere in a .kvc */
    if (!status && !view && kvc_cache_is_container(f->cache)) status = kvc_container_check_rest(f->cache, e);
    kvc_cache_free(view);
    return status;
}

static int write_and_count(void *state, const struct cli_file *f, struct kvc_sink *out, struct kvc_error *e) {
    uint64_t start = out->offset;
    if (unpack_file(state, f, out, e)) return -1;
    ((struct unpack *)state)->written = out->offset - start;
    return 0;
}

static void say_done(void *state, const struct cli_file *f) {
    struct unpack *u = state;
    if (u->job.json) {
        struct cli_json *j = &u->job.report;
        job_report(&u->job, f->input.name);
        cli_json_text(j, "to", u->to ? u->to->name : "source");
        cli_json_u64(j, "bytes", u->written);
        cli_json_close(j);
    }
    if (u->job.verbose) {
        char size[32];
        cli_size_text(u->written, size);
        cli_warn("%s: %s written", f->input.name, size);
    }
}

static int test_one(struct job *j, const char *path, struct kvc_error *e) {
    int checksums = 0, status = cli_check(path, &j->input, j->threads, &checksums, e);
    struct cli_file f;
    if (status != EXIT_SAME && checksums) kvc_error_prefix(e, strcmp(path, "-") == 0 ? "(stdin)" : path);
    if (status == EXIT_SAME && j->input.model_path) { /* whole, but of this model? */
        if (cli_open(&f, path, &j->input, e)) status = EXIT_TROUBLE;
        else cli_close(&f);
    }
    if (status == EXIT_SAME && j->verbose)
        cli_warn("%s: ok%s", path, checksums ? "" : " (as far as a format without checksums can tell)");
    return status;
}

static int unpack_one(struct job *j, const char *path) {
    struct kvc_error e;
    int status = j->test ? test_one(j, path, &e) : job_file(j, path, &e) ? EXIT_TROUBLE : EXIT_SAME;
    if (status != EXIT_SAME) cli_error(&e);
    if (j->test && j->json) {
        job_report(j, path);
        cli_json_text(&j->report, "check", status == EXIT_SAME ? "ok" : status == EXIT_DIFFER ? "damaged" : "trouble");
        if (status != EXIT_SAME) cli_json_text(&j->report, "message", e.message);
        cli_json_close(&j->report);
    }
    return status;
}

static int take_layers(struct unpack *u, const char *arg) {
    free(u->layers);
    u->layers = NULL;
    u->selection.n_layers = 0;
    if (cli_parse_list(arg, &u->layers, &u->selection.n_layers))
        return cli_usage("--layers=%s is not a list like 0-3,7", arg);
    u->selection.layers = u->layers;
    u->selects = 1;
    return 0;
}

/* An option of kvc-unpack alone; 0, or EXIT_TROUBLE (message printed). */
static int take_option(struct unpack *u, int opt, const char *arg) {
    uint64_t n;
    switch (opt) {
    case OPT_TOKENS:
        if (cli_parse_range(arg, &u->selection.first, &u->selection.end) || !u->selection.end)
            return cli_usage("--tokens=%s is not a range A:B", arg);
        u->selects = 1;
        return 0;
    case OPT_LAYERS: return take_layers(u, arg);
    case OPT_TO:
        u->to = kvc_format_find(arg);
        if (!u->to || !u->to->export) return cli_usage("--to=%s is none of llama, safetensors, npz, raw", arg);
        return 0;
    case OPT_TO_PAIRING:
        if (!kvc_pairing_parse(arg, &u->export.pairing))
            return cli_usage("--to-pairing=%s is none of halves, interleaved, none", arg);
        return 0;
    case OPT_LLAMA_VERSION:
        if (cli_parse_u64(arg, &n) || n < 2 || n > 4) return cli_usage("--llama-version=%s is not 2, 3 or 4", arg);
        u->export.llama_version = (uint32_t)n;
        return 0;
    default: return cli_try_help();
    }
}

int main(int argc, char **argv) {
    static struct unpack u = {.job = {.name = default_name, .write = write_and_count, .done = say_done}};
    const char *model = getenv("KVC_MODEL");
    int opt;
    cli_start(argv, "kvc-unpack");
    u.job.state = &u;
    if (model && *model) u.job.input.model_path = model;
    while ((opt = getopt_long(argc, argv, JOB_SHORT, long_options, NULL)) != -1) {
        int taken = job_option(&u.job, opt, optarg);
        if (taken < 0 || (!taken && take_option(&u, opt, optarg))) return EXIT_TROUBLE;
    }
    if (u.job.help) {
        fputs(help, stdout);
        return cli_finish(EXIT_SAME);
    }
    if (u.job.version) return cli_version(u.job.verbose);
    if (job_check(&u.job, argc - optind, argv + optind)) return EXIT_TROUBLE;
    int status = job_run(&u.job, argc - optind, argv + optind, unpack_one);
    free(u.layers);
    return cli_finish(status);
}
