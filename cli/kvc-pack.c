/* kvc-pack.c: engine file (or standard input) to .kvc. Knows no byte of either. */
#include "cli/cli.h"

#include "codecs/stage.h"
#include "formats/container.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OPT_NO_VERIFY = CLI_OPT_FREE, OPT_ALIGN, OPT_NO_TOKENS, OPT_FINGERPRINT, OPT_JSON, OPT_RM };

static const struct option long_options[] = {
    CLI_INPUT_OPTIONS,
    {"recipe", required_argument, NULL, 'r'},
    {"output", required_argument, NULL, 'o'},
    {"stdout", no_argument, NULL, 'c'},
    {"force", no_argument, NULL, 'f'},
    {"keep", no_argument, NULL, 'k'},
    {"rm", no_argument, NULL, OPT_RM},
    {"quiet", no_argument, NULL, 'q'},
    {"verbose", no_argument, NULL, 'v'},
    {"test", no_argument, NULL, 't'},
    {"threads", required_argument, NULL, 'T'},
    {"no-verify", no_argument, NULL, OPT_NO_VERIFY},
    {"align", required_argument, NULL, OPT_ALIGN},
    {"no-tokens", no_argument, NULL, OPT_NO_TOKENS},
    {"fingerprint", required_argument, NULL, OPT_FINGERPRINT},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

static const char help[] =
    "Usage: kvc-pack [OPTION]... [FILE]...\n"
    "Pack KV-cache files into .kvc containers: FILE into FILE.kvc, or standard input\n"
    "to standard output. Lossless unless a recipe says otherwise.\n"
    "\n"
    "  -r, --recipe=RECIPE     stages that code the cache, e.g. store or zstd (default)\n"
    "  -o, --output=FILE       write to FILE\n"
    "  -c, --stdout            write to standard output\n"
    "  -f, --force             replace existing files, write to a terminal\n"
    "  -k, --keep              keep the input (default)\n"
    "      --rm                remove each input once its .kvc is complete\n"
    "  -t, --test              do everything but write\n"
    "  -T, --threads=N         threads; 0: one per core (default)\n"
    "      --align=SIZE        start extents on multiples of SIZE, e.g. 4k for O_DIRECT\n"
    "      --no-verify         do not decode what was encoded\n"
    "      --no-tokens         leave the token ids out, and with them the source file's own\n"
    "                          bytes, which hold them too; their prefix keys stay\n"
    "      --fingerprint=HOW   hash the --model file: sampled (default) or full\n"
    "      --json              print a report as JSON\n"
    "  -q, --quiet             no warnings\n"
    "  -v, --verbose           say what was done; show progress\n"
    "  -h, --help              this text\n"
    "  -V, --version           the version; with -v also kernels and stages\n"
    "\n" CLI_INPUT_HELP
    "\nExit status: 0 ok, 2 trouble.\n";

struct options {
    struct cli_input input;
    struct kvc_pack_options pack;
    const char *output;
    int to_stdout, force, remove, verbose, test, json;
    struct cli_json report; /* with --json */
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct progress {
    double start, shown;
};

/* Only on a terminal, and only for work of more than a second. */
static void show_progress(void *state, uint64_t done, uint64_t total) {
    struct progress *p = state;
    double t = now();
    if (t - p->start < 1 || t - p->shown < 0.1) return;
    p->shown = t;
    fprintf(stderr, "\r%3d %%", total ? (int)(100 * ((double)done / (double)total)) : 100);
}

static int discard(void *state, const void *data, size_t n, struct kvc_error *e) {
    (void)state, (void)data, (void)n, (void)e;
    return 0;
}

static void report(struct options *o, const char *name, const struct cli_file *f, const struct kvc_pack_report *r,
                   double seconds) {
    double ratio = r->stored_bytes ? (double)f->input.size / (double)r->stored_bytes : 0;
    if (o->json) {
        struct cli_json *j = &o->report;
        cli_json_open(j, NULL, '{');
        cli_json_text(j, "file", name);
        cli_json_text(j, "format", f->format->name);
        cli_json_u64(j, "source_bytes", f->input.size);
        cli_json_u64(j, "tensor_bytes", r->tensor_bytes);
        cli_json_u64(j, "stored_bytes", r->stored_bytes);
        cli_json_f64(j, "ratio", ratio);
        cli_json_u64(j, "records", r->records);
        cli_json_u64(j, "sections", r->sections);
        cli_json_u64(j, "same_rows", r->same_rows);
        cli_json_bool(j, "lossless", r->lossless);
        cli_json_bool(j, "verified", !o->pack.no_verify);
        cli_json_f64(j, "seconds", seconds);
        cli_json_close(j);
    }
    if (o->verbose) {
        char from[32], to[32];
        cli_size_text(f->input.size, from);
        cli_size_text(r->stored_bytes, to);
        cli_warn("%s: %s -> %s (%.3f), %s%s, %.2f s", name, from, to, ratio, r->lossless ? "lossless" : "lossy",
                 o->pack.no_verify ? "" : ", verified", seconds);
    }
}

/* FILE.kvc; of compressed input without .gz, .xz or .zst, as unpacking gives back what was inside. */
static char *default_name(const char *path, const struct kvc_input *in, struct kvc_error *e) {
    static const char *const outer[] = {".gz", ".xz", ".zst"};
    size_t n = strlen(path);
    char *name = malloc(n + sizeof ".kvc");
    if (!name) {
        kvc_fail_memory(e, "a name");
        return NULL;
    }
    memcpy(name, path, n + 1);
    for (int i = 0; *in->filter && i < 3; i++)
        if (n > strlen(outer[i]) && strcmp(name + n - strlen(outer[i]), outer[i]) == 0) {
            n -= strlen(outer[i]);
            break;
        }
    memcpy(name + n, ".kvc", sizeof ".kvc");
    return name;
}

/* What the file does not say and a later conversion will miss. */
static void warn_unknown(const struct options *o, const struct cli_file *f) {
    if (o->input.quiet || !o->verbose || kvc_meta_find(&f->cache->meta, "model.fingerprint.gguf.sampled") ||
        kvc_meta_find(&f->cache->meta, "model.fingerprint.safetensors.sampled"))
        return;
    cli_warn("%s: packed without a model fingerprint; --model=FILE adds one", f->input.name);
}

static int pack_one(struct options *o, const char *path, struct kvc_error *e) {
    struct cli_file f;
    struct cli_output out = {.fd = -1};
    struct kvc_pack_report r = {0};
    struct progress progress = {.start = now()};
    int to_stdout = o->to_stdout || (strcmp(path, "-") == 0 && !o->output), is_file = 0;
    if (to_stdout && o->json && !o->test)
        return kvc_fail(e, KVC_ERR_USAGE, "--json needs standard output for its report: use -o FILE");
    if (cli_open(&f, path, &o->input, e)) return -1;
    char *name = o->output || to_stdout ? NULL : default_name(path, &f.input, e);
    const char *target = o->output ? o->output : name;
    int status = target || to_stdout ? 0 : -1;
    struct kvc_sink nowhere = {.write = discard};
    if (!status && !o->test) status = cli_output_open(&out, target, o->force, f.input.mode, e);
    if (!status) {
        int visible = !o->input.quiet && isatty(STDERR_FILENO);
        o->pack.progress = visible ? show_progress : NULL;
        o->pack.progress_state = &progress;
        status = kvc_container_write(f.cache, &o->pack, o->test ? &nowhere : &out.sink, &r, e);
        if (progress.shown > 0) fputs("\r     \r", stderr);
        is_file = out.path != NULL;
        if (status) kvc_error_prefix(e, f.input.name);
        else if (!o->test) status = cli_output_commit(&out, e);
    }
    if (!o->test && status) cli_output_abandon(&out);
    if (!status) {
        warn_unknown(o, &f);
        report(o, f.input.name, &f, &r, now() - progress.start);
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
    cli_start(argv, "kvc-pack");
    while ((opt = getopt_long(argc, argv, "r:o:cfkqvtT:hV", long_options, NULL)) != -1) {
        int taken = cli_input_option(&o.input, opt, optarg);
        if (taken < 0) return EXIT_TROUBLE;
        if (taken) continue;
        switch (opt) {
        case 'r': o.pack.recipe = optarg; break;
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
            o.pack.threads = (unsigned)n;
            break;
        case OPT_NO_VERIFY: o.pack.no_verify = 1; break;
        case OPT_NO_TOKENS: o.pack.no_tokens = 1; break;
        case OPT_ALIGN:
            if (cli_parse_u64(optarg, &n) || n < 16 || n > 1 << 20 || (n & (n - 1)))
                return cli_usage("--align=%s is not a power of two from 16 to 1M", optarg);
            o.pack.align = (unsigned)n;
            break;
        case OPT_FINGERPRINT:
            if (strcmp(optarg, "full") != 0 && strcmp(optarg, "sampled") != 0)
                return cli_usage("--fingerprint=%s is neither sampled nor full", optarg);
            o.input.full_fingerprint = strcmp(optarg, "full") == 0;
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
    if (o.output && inputs > 1) return cli_usage("-o takes one input, not %d", inputs);
    if (o.to_stdout && inputs > 1) return cli_usage("-c takes one input, not %d", inputs);
    if (!inputs && !o.output) o.to_stdout = 1;
    if (o.json && o.to_stdout && !o.test) return cli_usage("--json needs standard output for its report: use -o FILE");
    struct kvc_recipe recipe;
    struct kvc_error wrong;
    if (o.pack.recipe && kvc_recipe_parse(o.pack.recipe, &recipe, &wrong)) return cli_usage("%s", wrong.message);
    if (o.json) cli_json_start(&o.report, stdout);
    if (o.json && inputs > 1) cli_json_open(&o.report, NULL, '[');
    int status = EXIT_SAME;
    for (int i = 0; i < (inputs ? inputs : 1); i++) {
        struct kvc_error e;
        const char *path = inputs ? argv[optind + i] : "-";
        if (pack_one(&o, path, &e)) {
            cli_error(&e);
            status = EXIT_TROUBLE;
        }
    }
    if (o.json && inputs > 1) cli_json_close(&o.report);
    if (o.json) cli_json_end(&o.report);
    return cli_finish(status);
}
