/* kvc-dump.c: the options of kvc-dump, its files one after another, and --check. Not for the output of the other modes
 * (dump_*.c). */
#include "cli/damage.h"
#include "cli/gpu.h"
#include "cli/dump/dump.h"
#include "cli/file_list.h"
#include "cli/job.h"
#include "cli/html/page.h"
#include "cli/text.h"
#include "formats/container/container.h"
#include "formats/file/given.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_JSON = CLI_OPT_FREE, OPT_TSV, OPT_PART, OPT_COLOR, OPT_PLOT, OPT_MODE };
enum { MOST_THREADS = 1024 };

static const struct mode {
    const char *name;
    dump_fn *print; /* NULL: --check */
} modes[] = {
    {"summary", dump_summary},   {"header", dump_header}, {"layers", dump_layers}, {"tokens", dump_tokens},
    {"sections", dump_sections}, {"values", dump_values}, {"stats", dump_stats},   {"match", dump_match},
    {"html", dump_html},         {"list", dump_list},     {"check", NULL},
};
enum { SUMMARY, HEADER, LAYERS, TOKENS, SECTIONS, VALUES, STATS, MATCH, HTML, LIST, CHECK };

static const char brief[] = "Usage: kvc-dump [OPTION]... [FILE]...\n"
                            "Show the contents of KV-cache files: .kvc containers and files of engines.\n"
                            "\n"
                            "      --list              a row for each FILE, and totals\n"
                            "      --header            versions and all metadata keys\n"
                            "      --layers            one line for each layer\n"
                            "      --tokens            positions, token ids and cells\n"
                            "      --sections          records and sections, or where each tensor is\n"
                            "      --values=L:K:H      values of layer L, K or V, head H\n"
                            "      --stats             mean, rms, maximum and outlier channels of each head\n"
                            "      --check             verify every checksum and list all damage\n"
                            "      --match=TOKENS      how many leading tokens each FILE shares with TOKENS\n"
                            "      --html=OUT          write a page with pictures of one FILE to OUT\n"
                            "      --json, --tsv       print JSON, or tab-separated columns\n"
                            "  -q, --quiet             print nothing but errors\n"
                            "  -v, --verbose           with --check and --match: print more\n"
                            "  -V, --version           print the version\n"
                            "\n"
                            "All options and examples: kvc-dump --help. The manual: man kvc-dump.\n";

static const char help[] = "Usage: kvc-dump [OPTION]... [FILE]...\n"
                           "Show the contents of KV-cache files: .kvc containers and files of engines. FILE\n"
                           "may be a folder or a tar archive of several files; - or no FILE is standard\n"
                           "input.\n"
                           "\n"
                           "What to show (default: a summary on one screen):\n"
                           "      --list              a row for each FILE: tokens, size, ratio, lossy or\n"
                           "                          not, recipe, place of its profile, model; and totals\n"
                           "      --header            versions and all metadata keys\n"
                           "      --layers            one line for each layer\n"
                           "      --tokens            positions, token ids and cells\n"
                           "      --sections          .kvc: records and sections; other files: where each\n"
                           "                          tensor is\n"
                           "      --values=L:K:H[:A:B]\n"
                           "                          values of layer L, head H or \"all\", positions A to\n"
                           "                          B-1; K, or V, L(atent), R, S, Q(ueries), H(idden)\n"
                           "      --stats             mean, rms, maximum, NaN, Inf and outlier channels of\n"
                           "                          each head\n"
                           "      --check             read everything, verify every checksum and list all\n"
                           "                          damage\n"
                           "      --match=TOKENS      the number of leading tokens that each FILE shares\n"
                           "                          with TOKENS, and of its own tokens, the best FILE\n"
                           "                          first; TOKENS: a file of token ids (JSON of engines,\n"
                           "                          or a list), a cache file, or -\n"
                           "      --html=OUT          write a page with pictures of one FILE to OUT; -:\n"
                           "                          standard output\n"
                           "Which files, beside FILE:\n"
                           "      --recursive         of a folder: each .kvc below it\n"
                           "      --files-from=FILE   also the files that FILE names, one a line; - is\n"
                           "                          standard input\n"
                           "  -0, --null              names in it end with a NUL byte, as of find -print0\n"
                           "How to show it:\n"
                           "      --part=N            only part N of the file (the summary has their\n"
                           "                          numbers)\n"
                           "      --json[=lines]      print JSON; lines: one object on each line\n"
                           "      --tsv               print tab-separated columns; the first is the row's\n"
                           "                          type\n"
                           "      --plot=WHEN         draw sizes of layers and sections: auto (on a\n"
                           "                          terminal), always, never\n"
                           "      --color=WHEN        colours: auto (the same, and no $NO_COLOR), always,\n"
                           "                          never\n"
                           "      --no-verify         do not compare decoded values with their digests;\n"
                           "                          --check always does\n"
                           "  -T, --threads=N         threads for --check (default: one for each core)\n"
                           "  -q, --quiet             print nothing but errors\n"
                           "  -v, --verbose           with --check and --match: print more\n"
                           "  -h                      print the most used options\n"
                           "      --help              print this text\n"
                           "  -V, --version           print the version; with -v also kernels, stages and\n"
                           "                          devices\n";

static const char end_of_help[] = "\n"
                                  "Exit status: 0 ok; 1 damaged .kvc (--check), or no file shares a token\n"
                                  "(--match); 2 trouble.\n"
                                  "\n"
                                  "Examples:\n"
                                  "  kvc-dump slot.kvc                       what is in it, on one screen\n"
                                  "  kvc-dump --check -v *.kvc               are these files whole?\n"
                                  "  kvc-dump --values=0:K:all slot.kvc      all keys of the first layer\n"
                                  "  kvc-dump --match=prompt.json *.kvc      the cache that begins like a prompt\n"
                                  "  kvc-dump --json slot.bin | jq .files    for programs\n";

struct settings {
    struct cli_input input;
    struct cli_files files;
    struct dump_options options;
    unsigned mode, threads;
    int has_threads; /* -T was given */
    const char *tokens_path;
    enum cli_when plot, color;
    int quiet, version;
};

static const struct dump_column cells_of_damage[] = {{"record", 0}, {"kind", 0},        {"part", 0},      {"layer", 0},
                                                     {"role", 0},   {"first_token", 0}, {"end_token", 0}, {"offset", 0},
                                                     {"bytes", 0},  {"reason", 0},      {NULL, 0}};

/* Prints the line of --check, and as JSON and TSV all damage. `message`, `e` and `damage` may be NULL. */
static void print_check(struct dump_out *o, const struct settings *s, const char *name, const char *verdict, const char *message,
                        const struct kvc_error *e, const struct kvc_survey *damage) {
    if (o->style == DUMP_JSON) {
        dump_begin(o, name);
        cli_json_text(&o->report.json, "check", verdict);
        if (!e) cli_json_text(&o->report.json, "message", message);
        if (damage) cli_json_damage(&o->report.json, damage);
        if (e) dump_failed(o, name, e);
        else dump_end(o);
    } else if (o->style == DUMP_TSV) {
        static const struct dump_column columns[] = {{"verdict", 0}, {"name", 0}, {"message", 0}, {NULL, 0}};
        dump_heading(o, "check", columns);
        fprintf(o->out, "check\t%s\t", verdict);
        cli_print_safe(o->out, name);
        fputc('\t', o->out);
        cli_print_safe(o->out, message ? message : "-");
        fputc('\n', o->out);
        if (damage) dump_heading(o, "damage", cells_of_damage);
        if (damage) cli_tsv_damage(o->out, damage);
    } else if (s->options.verbose && strcmp(verdict, "ok") == 0) {
        cli_print_safe(o->out, name);
        fputs(": ok", o->out);
        if (message) fprintf(o->out, " (%s)", message);
        fputc('\n', o->out);
    }
}

static int check_file(struct dump_out *o, const char *path, struct settings *s) {
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_survey *damage;
    int checksums = 0, status = cli_check(path, &s->input, s->threads, &checksums, &damage, &e);
    const char *name = strcmp(path, "-") == 0 ? "(stdin)" : path;
    if (status == EXIT_SAME) {
        print_check(o, s, name, "ok", checksums ? NULL : "structure only: the format has no checksums", NULL, NULL);
        return status;
    }
    char text[sizeof e.message + 160];
    print_check(o, s, name, status == EXIT_DIFFER ? "damaged" : "trouble", cli_error_text(&e, text, sizeof text), &e, damage);
    if (damage) cli_say_damage(name, damage);
    if (checksums) kvc_error_prefix(&e, name);
    if (!damage || status == EXIT_TROUBLE) cli_error(&e);
    kvc_survey_free(damage);
    return status;
}

static int show_file(struct dump_out *o, const char *path, struct settings *s) {
    struct kvc_opened f;
    struct kvc_error e = {.code = KVC_OK};
    int status = EXIT_SAME;
    s->options.start = job_now();
    if (cli_open(&f, path, &s->input, &e)) {
        const int no_cache = e.code == KVC_ERR_UNKNOWN || e.code == KVC_ERR_UNSUPPORTED;
        if (no_cache && s->mode == SUMMARY && !dump_no_cache(o, path, &e)) return status;
        dump_failed(o, path, &e);
        cli_error(&e);
        return EXIT_TROUBLE;
    }
    if (modes[s->mode].print(o, &f, &s->options, &e)) {
        kvc_error_prefix(&e, f.input.name);
        dump_failed(o, path, &e);
        fflush(o->out); /* flush the output before the error */
        cli_error(&e);
        status = EXIT_TROUBLE;
    }
    dump_end(o);
    kvc_close(&f);
    return status;
}

static int each_file(struct dump_out *o, struct settings *s) {
    static char dash[] = "-", *standard_input[] = {dash};
    const int from_stdin = !s->files.n && !s->files.named, n = from_stdin ? 1 : s->files.n;
    char **path = from_stdin ? standard_input : s->files.path;
    int worst = EXIT_SAME;
    uint64_t failed = 0, damaged = 0;
    o->several = n > 1;
    if (o->style == DUMP_JSON) cli_report_start(&o->report, o->out);
    for (int i = 0; i < n; i++) {
        int status = s->mode == CHECK ? check_file(o, path[i], s) : show_file(o, path[i], s);
        if (status > worst) worst = status;
        failed += status != EXIT_SAME;
        damaged += s->mode == CHECK && status == EXIT_DIFFER;
    }
    if (s->mode == CHECK && n > 1 && s->options.verbose && o->style == DUMP_TEXT)
        fprintf(o->out, "%d files: %" PRIu64 " whole, %" PRIu64 " damaged, %" PRIu64 " not checked\n", n, (uint64_t)n - failed,
                damaged, failed - damaged);
    if (s->mode == LIST) dump_list_end(o, &s->options, failed);
    const uint64_t sharing = s->mode == MATCH ? dump_match_end(o, &s->options) : 0;
    if (o->style == DUMP_JSON) cli_report_end(&o->report);
    return worst == EXIT_SAME && s->mode == MATCH && !sharing ? EXIT_DIFFER : worst;
}

/* Takes a mode. 0, or EXIT_TROUBLE (message printed). */
static int set_mode(struct settings *s, unsigned mode, const char *arg) {
    if (s->mode != SUMMARY && s->mode != mode)
        return cli_usage("--%s and --%s exclude each other", modes[s->mode].name, modes[mode].name);
    s->mode = mode;
    if (mode == VALUES && dump_values_take(arg, &s->options.values)) return EXIT_TROUBLE;
    if (mode == MATCH) s->tokens_path = arg;
    if (mode == HTML) s->options.html = arg;
    return 0;
}

/* Takes an option. 0, or EXIT_TROUBLE (message printed). */
static int take_option(struct settings *s, struct dump_out *o, int opt, const char *arg) {
    uint64_t n;
    if (opt >= OPT_MODE && opt < CLI_OPT_FORMAT) return set_mode(s, (unsigned)(opt - OPT_MODE), arg);
    switch (opt) {
    case OPT_JSON:
    case OPT_TSV: {
        enum dump_style style = opt == OPT_JSON ? DUMP_JSON : DUMP_TSV;
        if (o->style != DUMP_TEXT && o->style != style) return cli_usage("--json and --tsv exclude each other");
        o->style = style;
        return opt == OPT_JSON ? cli_report_option(arg, &o->report.lines) : 0;
    }
    case OPT_PART:
        if (cli_parse_u64(arg, &n) || n >= KVC_NONE) return cli_usage("--part=%s is not the number of a part", arg);
        s->options.part = (uint32_t)n;
        return 0;
    case OPT_COLOR: return cli_when_option("color", arg, &s->color);
    case OPT_PLOT: return cli_when_option("plot", arg, &s->plot);
    case 'T': s->has_threads = 1; return cli_take_threads(arg, MOST_THREADS, &s->threads);
    case 'q': s->quiet = s->input.quiet = s->options.quiet = 1; return 0;
    case 'v': s->options.verbose++; return 0;
    case 'V': s->version = 1; return 0;
    case '?':
    case ':': return cli_try_help();
    default: return !cli_files_option(&s->files, opt, arg) && cli_input_option(&s->input, opt, arg) < 0 ? EXIT_TROUBLE : 0;
    }
}

static const struct option long_options[] = {
    {"list", no_argument, NULL, OPT_MODE + LIST},
    {"header", no_argument, NULL, OPT_MODE + HEADER},
    {"layers", no_argument, NULL, OPT_MODE + LAYERS},
    {"tokens", no_argument, NULL, OPT_MODE + TOKENS},
    {"sections", no_argument, NULL, OPT_MODE + SECTIONS},
    {"values", required_argument, NULL, OPT_MODE + VALUES},
    {"stats", no_argument, NULL, OPT_MODE + STATS},
    {"match", required_argument, NULL, OPT_MODE + MATCH},
    {"html", required_argument, NULL, OPT_MODE + HTML},
    {"check", no_argument, NULL, OPT_MODE + CHECK},
    CLI_FILES_OPTIONS,
    {"part", required_argument, NULL, OPT_PART},
    {"no-verify", no_argument, NULL, CLI_OPT_NO_VERIFY},
    {"color", required_argument, NULL, OPT_COLOR},
    {"plot", required_argument, NULL, OPT_PLOT},
    {"json", optional_argument, NULL, OPT_JSON},
    {"tsv", no_argument, NULL, OPT_TSV},
    {"threads", required_argument, NULL, 'T'},
    {"quiet", no_argument, NULL, 'q'},
    {"verbose", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, CLI_OPT_HELP},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

/* Returns 1 if inputs, --files-from and --match read standard input more than once. */
static int stdin_twice(const struct settings *s) {
    const struct cli_files *f = &s->files;
    int uses = (s->tokens_path && strcmp(s->tokens_path, "-") == 0) + (!f->n && !f->named) +
               (f->from && strcmp(f->from, "-") == 0);
    for (int i = 0; i < f->n; i++) uses += strcmp(f->path[i], "-") == 0;
    return uses > 1;
}

static int run(struct settings *s, struct dump_out *o) {
    struct kvc_error e = {.code = KVC_OK};
    if (!kvc_kernels_get()) {
        cli_warn("KVC_KERNEL=%s names no kernel table that this CPU can run", getenv("KVC_KERNEL"));
        return EXIT_TROUBLE;
    }
    if (s->tokens_path && cli_token_ids(&s->options.tokens, s->tokens_path, &s->input.import, &e)) {
        cli_error(&e);
        return EXIT_TROUBLE;
    }
    if (s->options.html && html_may_write(s->options.html, &e)) {
        cli_error(&e);
        return EXIT_TROUBLE;
    }
    struct kvc_token_texts *texts = NULL;
    if (s->mode == TOKENS && s->input.model_path && kvc_token_texts_read(s->input.model_path, &texts, &e)) {
        kvc_given_no_weights(s->input.model_path, &e);
        cli_error(&e);
        return EXIT_TROUBLE;
    }
    s->options.texts = texts;
    FILE *nowhere = s->quiet ? fopen("/dev/null", "w") : NULL;
    if (s->quiet && !nowhere) {
        cli_warn("cannot open /dev/null");
        return EXIT_TROUBLE;
    }
    o->out = nowhere ? nowhere : stdout;
    o->canvas = cli_canvas_on(o->out, s->plot, s->color);
    int status = each_file(o, s);
    if (nowhere) fclose(nowhere);
    kvc_token_texts_free(texts);
    return status;
}

int main(int argc, char **argv) {
    static struct settings s = {.options.part = KVC_NONE};
    struct dump_out o = {.style = DUMP_TEXT};
    int opt, status;
    const struct option *options = cli_long_options(long_options, 0);
    cli_start(argv, "kvc-dump");
    cli_input_environment(&s.input);
    while ((opt = cli_next_option(argc, argv, "hVqvT:" CLI_FILES_SHORT, options)) != -1) {
        if (opt == 'h' || opt == CLI_OPT_HELP) return cli_help(opt, brief, help, end_of_help);
        if ((status = take_option(&s, &o, opt, optarg))) return status;
    }
    if (s.version) return cli_version(s.options.verbose, cli_cuda_version);
    if (s.mode == HTML && o.style != DUMP_TEXT) return cli_usage("--html and --json or --tsv exclude each other");
    if (s.mode == HTML && s.options.part != KVC_NONE) return cli_usage("--html shows all parts, not --part");
    if (!s.has_threads && cli_take_threads(NULL, MOST_THREADS, &s.threads)) return EXIT_TROUBLE;
    s.files.suffix[0] = ".kvc";
    if (cli_files_collect(&s.files, argc - optind, argv + optind)) return EXIT_TROUBLE;
    if (s.mode == HTML && s.files.n > 1) return cli_usage("--html shows one file, but %d are given", s.files.n);
    if (stdin_twice(&s)) return cli_usage("standard input can be read only once");
    status = run(&s, &o);
    cli_files_free(&s.files);
    free(s.options.tokens.id);
    return cli_finish(status);
}
