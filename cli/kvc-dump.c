/* kvc-dump.c: the options of kvc-dump, its files one after another, and --check. Not for the output
 * of the other modes (dump_*.c). */
#include "cli/damage.h"
#include "cli/gpu.h"
#include "cli/dump/dump.h"
#include "cli/file_list.h"
#include "cli/input_options.h"
#include "cli/job.h"
#include "cli/html/page.h"
#include "cli/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_THREADS = 1024 };
enum mode { SUMMARY, HEADER, LAYERS, TOKENS, SECTIONS, VALUES, STATS, MATCH, HTML, LIST, CHECK };

struct settings {
    struct cli_input input;
    struct cli_files files;
    struct dump_options options;
    int mode;
    unsigned threads;
    const char *tokens_path;
    enum cli_when plot, color;
    int lines; /* --json=lines */
    int tsv;
};

static dump_fn *const print_mode[] = {
    [SUMMARY] = dump_summary, [HEADER] = dump_header,     [LAYERS] = dump_layers,
    [TOKENS] = dump_tokens,   [SECTIONS] = dump_sections, [VALUES] = dump_values,
    [STATS] = dump_stats,     [MATCH] = dump_match,       [HTML] = dump_html,
    [LIST] = dump_list,
};

static const struct dump_column cells_of_damage[] = {
    {"record", 0},    {"kind", 0},   {"part", 0},  {"layer", 0},  {"role", 0}, {"first_token", 0},
    {"end_token", 0}, {"offset", 0}, {"bytes", 0}, {"reason", 0}, {NULL, 0}};

/* Prints the line of --check, and as JSON and TSV all damage. `message`, `e` and `damage` may be
 * NULL. */
static void print_check(struct dump_out *o, const struct settings *s, const char *name,
                        const char *verdict, const char *message, const struct kvc_error *e,
                        const struct kvc_file *damage) {
    if (o->style == DUMP_JSON) {
        dump_begin(o, name);
        cli_json_text(&o->report.json, "check", verdict);
        if (damage) cli_json_damage(&o->report.json, damage);
        if (e) dump_failed(o, name, e);
        else dump_end(o);
    } else if (o->style == DUMP_TSV) {
        static const struct dump_column columns[] = {{"verdict", 0},
                                                     {"name", 0},
                                                     {"message", 0},
                                                     {NULL, 0}};
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
    struct kvc_error *e = cli_error_new();
    struct kvc_check_report report;
    const int status = cli_check(path, &s->input, s->threads, NULL, NULL, &report, e);
    struct kvc_file *damage = report.damaged;
    const char *name = cli_name(path);
    if (status == EXIT_SAME) {
        print_check(o, s, name, "ok",
                    report.has_checksums ? NULL : "structure only: the format has no checksums",
                    NULL, NULL);
        kvc_error_free(e);
        return status;
    }
    char text[CLI_ERROR_TEXT];
    print_check(o, s, name, status == EXIT_DIFFER ? "damaged" : "trouble",
                cli_error_text(e, text, sizeof text), e, damage);
    if (damage) cli_say_damage(name, damage);
    if (report.has_checksums) kvc_error_about(e, name);
    if (!damage || status == EXIT_TROUBLE) cli_error(e);
    kvc_error_free(e);
    kvc_file_close(damage);
    return status;
}

/* Shows a file that could not be opened, where it is a profile or a model's weights. */
static int show_no_cache(struct dump_out *o, const char *path, const struct settings *s,
                         struct kvc_error *e) {
    const enum kvc_code code = kvc_error_code(e);
    const int no_cache = code == KVC_ERR_UNKNOWN_FORMAT || code == KVC_ERR_UNSUPPORTED;
    if (no_cache && s->mode == SUMMARY && !dump_no_cache(o, path, e)) return EXIT_SAME;
    dump_failed(o, path, e);
    cli_error(e);
    return EXIT_TROUBLE;
}

static int show_file(struct dump_out *o, const char *path, struct settings *s) {
    struct dump_file f;
    struct kvc_error *e = cli_error_new();
    int status = EXIT_SAME;
    s->options.start = cli_now();
    if (dump_file_open(&f, path, &s->input, e)) {
        status = show_no_cache(o, path, s, e);
        kvc_error_free(e);
        return status;
    }
    if (print_mode[s->mode](o, &f, &s->options, e)) {
        kvc_error_about(e, f.source.name);
        dump_failed(o, path, e);
        fflush(o->out); /* flush the output before the error */
        cli_error(e);
        status = EXIT_TROUBLE;
    }
    dump_end(o);
    dump_file_close(&f);
    kvc_error_free(e);
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
        fprintf(o->out,
                "%d files: %" PRIu64 " whole, %" PRIu64 " damaged, %" PRIu64 " not checked\n", n,
                (uint64_t)n - failed, damaged, failed - damaged);
    if (s->mode == LIST) dump_list_end(o, &s->options, failed);
    const uint64_t sharing = s->mode == MATCH ? dump_match_end(o, &s->options) : 0;
    if (o->style == DUMP_JSON) cli_report_end(&o->report);
    return worst == EXIT_SAME && s->mode == MATCH && !sharing ? EXIT_DIFFER : worst;
}

/* --- options --- */

static int take_values(const struct cli_option *o, void *into, const char *arg) {
    struct settings *s = into;
    (void)o;
    return dump_values_take(arg, &s->options.values);
}

static const struct cli_option modes[] = {
    {"list", 0, NULL,
     "a row for each FILE, and totals; tokens, size, ratio, lossy or not, recipe, place of its "
     "profile, model",
     CLI_SETS(struct settings, mode, LIST)},
    {"header", 0, NULL, "versions and all metadata keys", CLI_SETS(struct settings, mode, HEADER)},
    {"layers", 0, NULL, "one line for each layer", CLI_SETS(struct settings, mode, LAYERS)},
    {"tokens", 0, NULL, "positions, token ids and cells", CLI_SETS(struct settings, mode, TOKENS)},
    {"sections", 0, NULL, "records and sections of a .kvc, or where tensors are",
     CLI_SETS(struct settings, mode, SECTIONS)},
    {"values", 0, "L:ROLE:H[:A:B]",
     "values of layer L, head H; H may be \"all\"; A:B: positions A to B-1; ROLE: K, or V, "
     "L(atent), R, S, Q(ueries), H(idden)",
     .take = take_values},
    {"stats", 0, NULL,
     "mean, rms, maximum and outlier channels of each head; also numbers of NaN and Inf",
     CLI_SETS(struct settings, mode, STATS)},
    {"check", 0, NULL, "read everything, verify checksums, list all damage",
     CLI_SETS(struct settings, mode, CHECK)},
    {"match", 0, "TOKENS",
     "how many leading tokens each FILE shares with TOKENS; and of its own tokens, the best FILE "
     "first; TOKENS: a file of "
     "token ids (JSON of engines, or a list), a cache file, or -",
     CLI_TEXT(struct settings, tokens_path)},
    {"html", 0, "OUT", "write a page with pictures of one FILE to OUT; -: standard output",
     CLI_TEXT(struct settings, options.html)},
    {.name = NULL},
};

static const struct cli_option how[] = {
    {"part", 0, "N",
     "with --layers, --tokens, --values, --stats: only part N (the summary has the numbers)",
     CLI_NUMBER(struct settings, options.part, 0, KVC_NO_NUMBER - 1),
     .wants = "the number of a part"},
    {"json", 0, "[=lines]",
     "print JSON (--tsv: tab-separated columns); lines: one object on each line",
     CLI_CHOICE(struct settings, lines, "lines"), .min = 1},
    {"tsv", 0, NULL, "print tab-separated columns; the first is the row's type",
     CLI_SETS(struct settings, tsv, 1)},
    {"plot", 0, "WHEN",
     "draw sizes of layers and sections; WHEN: auto (on a terminal), always, never",
     CLI_CHOICE(struct settings, plot, CLI_WHEN_WORDS)},
    {"color", 0, "WHEN",
     "print in colours; WHEN: auto (on a terminal, and no $NO_COLOR), always, never",
     CLI_CHOICE(struct settings, color, CLI_WHEN_WORDS)},
    {"no-verify", 0, NULL, "do not compare decoded values with their digests; --check always does",
     CLI_FLAG(struct settings, input.open.no_verify)},
    {"threads", 'T', "N", "threads for --check (default: one for each core)",
     .take = cli_take_threads, .field = offsetof(struct settings, threads), .max = MOST_THREADS},
    {"quiet", 'q', NULL, "print nothing but errors", CLI_FLAG(struct settings, input.quiet)},
    {"verbose", 'v', NULL, "with --check and --match: print more",
     CLI_FLAG(struct settings, options.verbose)},
    {.name = NULL},
};

/* Returns 1 if inputs, --files-from and --match read standard input more than once. */
static int stdin_twice(const struct settings *s) {
    const struct cli_files *f = &s->files;
    int uses = (s->tokens_path && strcmp(s->tokens_path, "-") == 0) + (!f->n && !f->named) +
               (f->from && strcmp(f->from, "-") == 0);
    for (int i = 0; i < f->n; i++) uses += strcmp(f->path[i], "-") == 0;
    return uses > 1;
}

/* Reads what the files need. */
static int prepare(struct settings *s, struct kvc_token_texts **texts, struct kvc_error *e) {
    struct kvc_kernels_info kernels = {.size = sizeof kernels};
    kvc_kernels_describe(&kernels);
    if (!kernels.name)
        return cli_usage_error(e, "KVC_KERNEL=%s names no kernel table that this CPU can run",
                               getenv("KVC_KERNEL"));
    if (s->tokens_path && cli_token_ids(&s->options.tokens, s->tokens_path, &s->input, e))
        return -1;
    if (s->options.html && html_may_write(s->options.html, e)) return -1;
    if (s->mode != TOKENS || !s->input.open.model) return 0;
    return kvc_shared_texts_open(s->input.open.model, texts, e);
}

static int dump_run(struct settings *s, struct dump_out *o) {
    struct kvc_error *e = cli_error_new();
    struct kvc_token_texts *texts = NULL;
    const int unready = prepare(s, &texts, e);
    if (unready) cli_error(e);
    kvc_error_free(e);
    if (unready) return EXIT_TROUBLE;
    s->options.texts = texts;
    FILE *nowhere = s->input.quiet ? fopen("/dev/null", "w") : NULL;
    if (s->input.quiet && !nowhere) {
        cli_warn("cannot open /dev/null");
        return EXIT_TROUBLE;
    }
    o->out = nowhere ? nowhere : stdout;
    o->canvas = cli_canvas_on(o->out, s->plot, s->color);
    int status = each_file(o, s);
    if (nowhere) fclose(nowhere);
    kvc_shared_texts_close(texts);
    return status;
}

static int takes_part(int mode) {
    return mode == LAYERS || mode == TOKENS || mode == VALUES || mode == STATS;
}

/* Sets the mode that has an argument, and the style. 0, or EXIT_TROUBLE (message printed). */
static int dump_settle(struct settings *s, struct dump_out *o) {
    if (cli_exclusive("list header layers tokens sections values stats check match html") ||
        cli_exclusive("json tsv"))
        return EXIT_TROUBLE;
    if (cli_given("values")) s->mode = VALUES;
    if (s->tokens_path) s->mode = MATCH;
    if (s->options.html) s->mode = HTML;
    if (cli_given("json")) o->style = DUMP_JSON;
    if (s->tsv) o->style = DUMP_TSV;
    o->report.lines = s->lines;
    s->options.quiet = s->input.quiet;
    if (s->mode == HTML && o->style != DUMP_TEXT)
        return cli_usage("--html and --json or --tsv exclude each other");
    if (s->options.part != KVC_NO_NUMBER && !takes_part(s->mode))
        return cli_usage("--part is for --layers, --tokens, --values and --stats: the others show "
                         "all parts");
    return cli_threads_environment(MOST_THREADS, &s->threads);
}

int main(int argc, char **argv) {
    static struct settings s = {.options.part = KVC_NO_NUMBER};
    struct dump_out o = {.style = DUMP_TEXT};
    const struct cli_group groups[] = {{"What to show (default: a summary on one screen)", modes,
                                        &s},
                                       {"Which files, beside FILE", cli_files_options, &s.files},
                                       {"How to show it", how, &s},
                                       {NULL, cli_common_options, NULL},
                                       {"Reading input", cli_input_options, &s.input},
                                       {NULL, cli_format_options(0), &s.input.settings},
                                       {NULL, NULL, NULL}};
    const struct cli_command_line line = {
        .usage = "Usage: kvc-dump [OPTION]... [FILE]...\n"
                 "Show the contents of KV-cache files: .kvc containers and files of engines.\n",
        .more = "FILE may be a folder or a tar archive of several files; - or no FILE is standard\n"
                "input.\n",
        .brief = "list header layers tokens sections values stats check match html json quiet "
                 "verbose version",
        .groups = groups,
        .print_devices = cli_cuda_version,
        .end = "\n"
               "Exit status: 0 ok; 1 damaged .kvc (--check), or no file shares a token\n"
               "(--match); 2 trouble.\n"
               "\n"
               "Examples:\n"
               "  kvc-dump slot.kvc                       what is in it, on one screen\n"
               "  kvc-dump --check -v *.kvc               are these files whole?\n"
               "  kvc-dump --values=0:K:all slot.kvc      all keys of the first layer\n"
               "  kvc-dump --match=prompt.json *.kvc      the cache that begins like a prompt\n"
               "  kvc-dump --json slot.bin | jq .files    for programs\n"};
    cli_start(argv, "kvc-dump");
    cli_input_environment(&s.input);
    s.input.sampled_fingerprint = 1; /* nothing of the model is stored */
    if (cli_take_options(&line, argc, argv) || dump_settle(&s, &o)) return EXIT_TROUBLE;
    s.files.suffix[0] = ".kvc";
    if (cli_files_collect(&s.files, argc - optind, argv + optind)) return EXIT_TROUBLE;
    if (s.mode == HTML && s.files.n > 1)
        return cli_usage("--html shows one file, but %d are given", s.files.n);
    if (stdin_twice(&s)) return cli_usage("standard input can be read only once");
    const int status = dump_run(&s, &o);
    cli_files_free(&s.files);
    free(s.options.tokens.id);
    return cli_finish(status);
}
