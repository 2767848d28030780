/* kvc-pack.c: engine file (or standard input) to .kvc. Knows no byte of either. */
#include "cli/job.h"

#include "codecs/recipe.h"
#include "formats/container.h"
#include "formats/keys.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OPT_NO_VERIFY = JOB_OPT_FREE, OPT_ALIGN, OPT_NO_TOKENS, OPT_FINGERPRINT };

static const struct option long_options[] = {
    CLI_INPUT_OPTIONS,
    JOB_OPTIONS,
    {"recipe", required_argument, NULL, 'r'},
    {"no-verify", no_argument, NULL, OPT_NO_VERIFY},
    {"align", required_argument, NULL, OPT_ALIGN},
    {"no-tokens", no_argument, NULL, OPT_NO_TOKENS},
    {"fingerprint", required_argument, NULL, OPT_FINGERPRINT},
    {NULL, 0, NULL, 0},
};

static const char help[] =
    "Usage: kvc-pack [OPTION]... [FILE]...\n"
    "Pack KV-cache files into .kvc containers: FILE into FILE.kvc, or standard input\n"
    "to standard output. Lossless unless a recipe says otherwise.\n"
    "\n"
    "  -r, --recipe=RECIPE     stages that code the cache: split (default, smallest), fast,\n"
    "                          zstd, store (as it is); kvc-recipes(7) says more\n"
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

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct progress {
    double start, shown;
};

struct pack {
    struct job job;
    struct kvc_pack_options options;
    struct kvc_pack_report report; /* of the file at hand */
    struct progress progress;
};

/* Only on a terminal, and only for work of more than a second. */
static void show_progress(void *state, uint64_t done, uint64_t total) {
    struct progress *p = state;
    double t = now();
    if (t - p->start < 1 || t - p->shown < 0.1) return;
    p->shown = t;
    fprintf(stderr, "\r%3d %%", total ? (int)(100 * ((double)done / (double)total)) : 100);
}

/* FILE.kvc; of compressed input without .gz, .xz or .zst, as unpacking gives back what was inside. */
static char *default_name(void *state, const char *path, const struct kvc_input *in, struct kvc_error *e) {
    static const char *const outer[] = {".gz", ".xz", ".zst"};
    size_t n = strlen(path);
    char *name = malloc(n + sizeof ".kvc");
    (void)state;
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

static int pack_file(void *state, const struct cli_file *f, struct kvc_sink *out, struct kvc_error *e) {
    struct pack *p = state;
    p->progress = (struct progress){.start = now()};
    p->options.threads = p->job.threads;
    p->options.progress = !p->job.input.quiet && isatty(STDERR_FILENO) ? show_progress : NULL;
    p->options.progress_state = &p->progress;
    int status = kvc_container_write(f->cache, &p->options, out, &p->report, e);
    if (p->progress.shown > 0) fputs("\r     \r", stderr);
    return status;
}

static int has_fingerprint(const struct kvc_meta *m) {
    for (size_t i = 0; i < m->n; i++)
        if (strncmp(m->entry[i].key, KVC_KEY_FINGERPRINT, strlen(KVC_KEY_FINGERPRINT)) == 0) return 1;
    return 0;
}

static void say_done(void *state, const struct cli_file *f) {
    struct pack *p = state;
    const struct kvc_pack_report *r = &p->report;
    double ratio = r->stored_bytes ? (double)f->input.size / (double)r->stored_bytes : 0;
    double seconds = now() - p->progress.start;
    if (p->job.json) {
        struct cli_json *j = &p->job.report;
        job_report(&p->job, f->input.name);
        cli_json_text(j, "format", f->format->name);
        cli_json_u64(j, "source_bytes", f->input.size);
        cli_json_u64(j, "tensor_bytes", r->tensor_bytes);
        cli_json_u64(j, "stored_bytes", r->stored_bytes);
        cli_json_f64(j, "ratio", ratio);
        cli_json_u64(j, "records", r->records);
        cli_json_u64(j, "sections", r->sections);
        cli_json_u64(j, "same_rows", r->same_rows);
        cli_json_bool(j, "lossless", r->lossless);
        cli_json_bool(j, "verified", !p->options.no_verify);
        cli_json_f64(j, "seconds", seconds);
        cli_json_close(j);
    }
    if (p->options.no_tokens && !p->job.input.quiet && f->cache->n_extents)
        cli_warn("%s: without its token ids, and so without the file's own bytes: it cannot be given back as it was",
                 f->input.name);
    if (!p->job.verbose) return;
    char from[32], to[32];
    cli_size_text(f->input.size, from);
    cli_size_text(r->stored_bytes, to);
    if (!p->job.input.quiet && !has_fingerprint(&f->cache->meta))
        cli_warn("%s: packed without a model fingerprint; --model=FILE adds one", f->input.name);
    cli_warn("%s: %s -> %s (%.3f), %s%s, %.2f s", f->input.name, from, to, ratio, r->lossless ? "lossless" : "lossy",
             p->options.no_verify ? "" : ", verified", seconds);
}

static int pack_one(struct job *j, const char *path) {
    struct kvc_error e;
    if (!job_file(j, path, &e)) return EXIT_SAME;
    cli_error(&e);
    return EXIT_TROUBLE;
}

/* An option of kvc-pack alone; 0, or EXIT_TROUBLE (message printed). */
static int take_option(struct pack *p, int opt, const char *arg) {
    uint64_t n;
    struct kvc_recipe recipe;
    struct kvc_error e;
    switch (opt) {
    case 'r':
        p->options.recipe = arg;
        return kvc_recipe_parse(arg, &recipe, &e) ? cli_usage("%s", e.message) : 0;
    case OPT_NO_VERIFY: p->options.no_verify = 1; return 0;
    case OPT_NO_TOKENS: p->options.no_tokens = 1; return 0;
    case OPT_ALIGN:
        if (cli_parse_u64(arg, &n) || n < 16 || n > 1 << 20 || (n & (n - 1)))
            return cli_usage("--align=%s is not a power of two from 16 to 1M", arg);
        p->options.align = (unsigned)n;
        return 0;
    case OPT_FINGERPRINT:
        if (strcmp(arg, "full") != 0 && strcmp(arg, "sampled") != 0)
            return cli_usage("--fingerprint=%s is neither sampled nor full", arg);
        p->job.input.full_fingerprint = strcmp(arg, "full") == 0;
        return 0;
    default: return cli_try_help();
    }
}

int main(int argc, char **argv) {
    static struct pack p = {.job = {.name = default_name, .write = pack_file, .done = say_done}};
    int opt;
    cli_start(argv, "kvc-pack");
    p.job.state = &p;
    while ((opt = getopt_long(argc, argv, "r:" JOB_SHORT, long_options, NULL)) != -1) {
        int taken = job_option(&p.job, opt, optarg);
        if (taken < 0 || (!taken && take_option(&p, opt, optarg))) return EXIT_TROUBLE;
    }
    if (p.job.help) {
        fputs(help, stdout);
        return cli_finish(EXIT_SAME);
    }
    if (p.job.version) return cli_version(p.job.verbose);
    if (job_check(&p.job, argc - optind, argv + optind)) return EXIT_TROUBLE;
    if (p.options.no_tokens && p.job.remove)
        return cli_usage("--no-tokens leaves out what --rm would remove for good");
    return cli_finish(job_run(&p.job, argc - optind, argv + optind, pack_one));
}
