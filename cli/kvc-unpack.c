/* kvc-unpack.c: .kvc (or any supported file) to an engine's file. Knows no byte of either. */
#include "cli/cli.h"

#include "formats/container.h"
#include "formats/keys.h"
#include "formats/view.h"

#include <stdlib.h>
#include <string.h>

enum { OPT_TOKENS = CLI_OPT_FREE, OPT_LAYERS, OPT_TO, OPT_TO_PAIRING, OPT_LLAMA_VERSION, OPT_RM, OPT_JSON };

static const struct option long_options[] = {
    CLI_INPUT_OPTIONS,
    {"output", required_argument, NULL, 'o'},
    {"stdout", no_argument, NULL, 'c'},
    {"force", no_argument, NULL, 'f'},
    {"keep", no_argument, NULL, 'k'},
    {"rm", no_argument, NULL, OPT_RM},
    {"quiet", no_argument, NULL, 'q'},
    {"verbose", no_argument, NULL, 'v'},
    {"test", no_argument, NULL, 't'},
    {"threads", required_argument, NULL, 'T'},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"layers", required_argument, NULL, OPT_LAYERS},
    {"to", required_argument, NULL, OPT_TO},
    {"to-pairing", required_argument, NULL, OPT_TO_PAIRING},
    {"llama-version", required_argument, NULL, OPT_LLAMA_VERSION},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
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

struct options {
    struct cli_input input;
    struct kvc_export_options export;
    const struct kvc_format *to;
    const char *output;
    struct kvc_selection selection;
    uint8_t *layers;
    int selects, to_stdout, force, remove, verbose, test, json;
    unsigned threads;
    struct cli_json report; /* with --json */
};

/* The format whose file the cache came from; NULL when it has no export. */
static const struct kvc_format *format_of_source(const struct kvc_cache *c) {
    const char *source = kvc_meta_text(&c->meta, KVC_KEY_SOURCE_FORMAT, "");
    if (strncmp(source, "llama.cpp", 9) == 0) return kvc_format_find("llama");
    const struct kvc_format *f = kvc_format_find(source);
    return f && f->export ? f : NULL;
}

/* FILE.kvc without .kvc, or with the target's suffix in its place. */
static char *default_name(const char *path, const struct kvc_format *to, struct kvc_error *e) {
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
static void warn_unknown(const struct options *o, const struct cli_file *f) {
    if (o->input.quiet) return;
    if (!kvc_meta_bool(&f->cache->meta, KVC_KEY_HEADS_KNOWN, 1))
        cli_warn("%s: the number of KV heads is unknown, so all of a row is written as one head; give --model or "
                 "--kv-heads", f->input.name);
    if (kvc_cache_pairing(f->cache) == KVC_PAIRING_UNKNOWN)
        cli_warn("%s: the RoPE pairing of K is unknown, so K is written as it is; give --model or --pairing",
                 f->input.name);
}

static void warn_checkpoints(const struct options *o, const struct cli_file *f) {
    unsigned n = 0;
    for (uint32_t i = 0; i < f->cache->n_parts; i++) n += f->cache->part[i].kind == KVC_PART_CHECKPOINT;
    if (n && !o->input.quiet)
        cli_warn("%s: its %u server checkpoints are not written; llama.cpp may process the prompt again", f->input.name, n);
}

static int write_cache(const struct options *o, const struct cli_file *f, struct kvc_sink *out, struct kvc_error *e) {
    const struct kvc_format *own = format_of_source(f->cache), *to = o->to;
    int as_it_was = !o->selects && (!to || to == own) && !o->export.pairing && !o->export.llama_version;
    if (as_it_was && f->cache->n_extents) return kvc_source_write(f->cache, o->threads, out, e);
    if (as_it_was && !to && !o->input.quiet)
        cli_warn("%s: the source file's own bytes are not recorded (a compressed npz, for instance): "
                 "writing one with equal content", f->input.name);
    if (!to) to = own;
    if (!to) return kvc_fail(e, KVC_ERR_USAGE, "its source format cannot be written anew: use --to=FORMAT");
    if (to == kvc_format_find("llama")) warn_checkpoints(o, f);
    else warn_unknown(o, f);
    if (!o->selects) return to->export(f->cache, &o->export, out, e);
    struct kvc_cache *view = kvc_view_select(f->cache, &o->selection, e);
    int status = view ? to->export(view, &o->export, out, e) : -1;
    kvc_cache_free(view);
    return status;
}

static int test_one(struct options *o, const char *path, struct kvc_error *e) {
    int checksums = 0, status = cli_check(path, &o->input, o->threads, &checksums, e);
    struct cli_file f;
    if (status != EXIT_SAME && checksums) kvc_error_prefix(e, strcmp(path, "-") == 0 ? "(stdin)" : path);
    if (status == EXIT_SAME && o->input.model_path) { /* whole, but of this model? */
        if (cli_open(&f, path, &o->input, e)) status = EXIT_TROUBLE;
        else cli_close(&f);
    }
    if (status != EXIT_SAME) cli_error(e);
    else if (o->verbose)
        cli_warn("%s: ok%s", path, checksums ? "" : " (as far as a format without checksums can tell)");
    return status;
}

static void report(struct options *o, const struct cli_file *f, uint64_t written) {
    if (o->json) {
        struct cli_json *j = &o->report;
        cli_json_open(j, NULL, '{');
        cli_json_text(j, "file", f->input.name);
        cli_json_text(j, "to", o->to ? o->to->name : "source");
        cli_json_u64(j, "bytes", written);
        cli_json_close(j);
    }
    if (o->verbose) {
        char size[32];
        cli_size_text(written, size);
        cli_warn("%s: %s written", f->input.name, size);
    }
}

static int unpack_one(struct options *o, const char *path, struct kvc_error *e) {
    struct cli_file f;
    struct cli_output out = {.fd = -1};
    int to_stdout = o->to_stdout || (strcmp(path, "-") == 0 && !o->output);
    if (to_stdout && o->json)
        return kvc_fail(e, KVC_ERR_USAGE, "--json needs standard output for its report: use -o FILE");
    if (cli_open(&f, path, &o->input, e)) return -1;
    char *name = o->output || to_stdout ? NULL : default_name(path, o->to, e);
    const char *target = o->output ? o->output : name;
    uint64_t written = 0;
    int status = target || to_stdout ? 0 : -1, is_file = 0;
    if (!status) status = cli_output_open(&out, target, o->force, f.input.mode, e);
    if (!status) {
        status = write_cache(o, &f, &out.sink, e);
        written = out.sink.offset;
        is_file = out.path != NULL;
        if (status) kvc_error_prefix(e, f.input.name);
        else status = cli_output_commit(&out, e);
        if (status) cli_output_abandon(&out);
    }
    if (!status) {
        report(o, &f, written);
        if (o->remove && is_file) status = cli_remove_input(&f.input, e);
    }
    free(name);
    cli_close(&f);
    return status;
}

int main(int argc, char **argv) {
    struct options o = {0};
    int opt, version = 0;
    uint64_t n;
    cli_start(argv, "kvc-unpack");
    o.input.model_path = getenv("KVC_MODEL");
    if (o.input.model_path && !*o.input.model_path) o.input.model_path = NULL;
    while ((opt = getopt_long(argc, argv, "o:cfkqvtT:hV", long_options, NULL)) != -1) {
        int taken = cli_input_option(&o.input, opt, optarg);
        if (taken < 0) return EXIT_TROUBLE;
        if (taken) continue;
        switch (opt) {
        case 'o': o.output = optarg; break;
        case 'c': o.to_stdout = 1; break;
        case 'f': o.force = 1; break;
        case 'k': o.remove = 0; break;
        case OPT_RM: o.remove = 1; break;
        case 'q': o.input.quiet = 1; break;
        case 'v': o.verbose = 1; break;
        case 't': o.test = 1; break;
        case 'T':
            if (cli_parse_u64(optarg, &n) || n > 1024) return cli_usage("-T %s is not a number of threads", optarg);
            o.threads = (unsigned)n;
            break;
        case OPT_TOKENS:
            if (cli_parse_range(optarg, &o.selection.first, &o.selection.end) || !o.selection.end)
                return cli_usage("--tokens=%s is not a range A:B", optarg);
            o.selects = 1;
            break;
        case OPT_LAYERS:
            free(o.layers);
            o.layers = NULL;
            o.selection.n_layers = 0;
            if (cli_parse_list(optarg, &o.layers, &o.selection.n_layers))
                return cli_usage("--layers=%s is not a list like 0-3,7", optarg);
            o.selection.layers = o.layers;
            o.selects = 1;
            break;
        case OPT_TO:
            o.to = kvc_format_find(optarg);
            if (!o.to || !o.to->export) return cli_usage("--to=%s is none of llama, safetensors, npz, raw", optarg);
            break;
        case OPT_TO_PAIRING:
            if (!kvc_pairing_parse(optarg, &o.export.pairing))
                return cli_usage("--to-pairing=%s is none of halves, interleaved, none", optarg);
            break;
        case OPT_LLAMA_VERSION:
            if (cli_parse_u64(optarg, &n) || n < 2 || n > 4) return cli_usage("--llama-version=%s is not 2, 3 or 4", optarg);
            o.export.llama_version = (uint32_t)n;
            break;
        case OPT_JSON: o.json = 1; break;
        case 'h': fputs(help, stdout); return cli_finish(EXIT_SAME);
        case 'V': version = 1; break;
        default: return cli_try_help();
        }
    }
    if (version) return cli_version(o.verbose);
    int inputs = argc - optind;
    if (o.output && o.to_stdout) return cli_usage("-o and -c exclude each other");
    if (o.output && strcmp(o.output, "-") == 0) {
        o.output = NULL;
        o.to_stdout = 1;
    }
    if ((o.output || o.to_stdout) && inputs > 1) return cli_usage("-o and -c take one input, not %d", inputs);
    if (!inputs && !o.output) o.to_stdout = 1;
    if (o.json && o.to_stdout && !o.test) return cli_usage("--json needs standard output for its report: use -o FILE");
    if (o.json) cli_json_start(&o.report, stdout);
    if (o.json && inputs > 1) cli_json_open(&o.report, NULL, '[');
    int status = EXIT_SAME;
    for (int i = 0; i < (inputs ? inputs : 1); i++) {
        struct kvc_error e;
        const char *path = inputs ? argv[optind + i] : "-";
        int result;
        if (o.test) {
            result = test_one(&o, path, &e);
        } else {
            result = unpack_one(&o, path, &e) ? EXIT_TROUBLE : EXIT_SAME;
            if (result) cli_error(&e);
        }
        if (result > status) status = result;
    }
    if (o.json && inputs > 1) cli_json_close(&o.report);
    if (o.json) cli_json_end(&o.report);
    free(o.layers);
    return cli_finish(status);
}
