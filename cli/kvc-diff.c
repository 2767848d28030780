/* kvc-diff.c: the options of kvc-diff and the order of a comparison. Not for comparing (diff_*.c).
 */
#include "cli/diff/diff.h"
#include "cli/gpu.h"
#include "cli/html/page.h"
#include "cli/input_options.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct settings {
    struct cli_input input;
    const char *pairing[2];
    const char *queries; /* --queries, or NULL */
    struct diff_comparison diff;
    struct cli_selection part;
    enum cli_when plot, color;
    int tsv, report;
};

/* --- the whole comparison --- */

/* Opens both files, and shares what one tells of the model's layers. */
static int open_files(struct settings *s, char **path, struct kvc_error *e) {
    struct diff_comparison *d = &s->diff;
    for (int i = 0; i < 2; i++) {
        s->input.open.pairing = s->pairing[i];
        if (!(d->file[i].cache = cli_open(path[i], &s->input, e))) return -1;
        d->file[i].source.size = sizeof d->file[i].source;
        kvc_file_source(d->file[i].cache, &d->file[i].source);
    }
    s->input.open.pairing = NULL;
    for (int i = 0; i < 2; i++)
        if (kvc_file_borrow_layers(d->file[i].cache, d->file[1 - i].cache, e)) return -1;
    for (int i = 0; i < 2; i++)
        if (dump_file_describe(&d->file[i], e)) return -1;
    if (!s->queries) return 0;
    d->queries = cli_open(s->queries, &s->input, e);
    return d->queries ? 0 : -1;
}

static int trouble(struct settings *s, char **path, const struct kvc_error *e) {
    diff_failed(&s->diff, path[0], path[1], e);
    fflush(stdout); /* flush the differences before the error */
    cli_error(e);
    return EXIT_TROUBLE;
}

/* Compares the files, and writes the page. `why` is of the comparison, `e` of the page. */
static int compare_files(struct settings *s, char **path, struct kvc_error *why,
                         struct kvc_error *e) {
    struct diff_comparison *d = &s->diff;
    /* measures of attention do not change the exit status */
    if (d->quiet && !d->html) d->how.attention = 0;
    const int stopped = diff_start(d, why) || diff_compare(d, why);
    const int unwritten = d->html && diff_report(d, stopped ? why : NULL, e);
    if (unwritten) cli_error(e);
    if (stopped) return trouble(s, path, why);
    if (unwritten) return EXIT_TROUBLE;
    return diff_differs(d) ? EXIT_DIFFER : EXIT_SAME;
}

static int diff_run(struct settings *s, char **path) {
    struct kvc_error *e = cli_error_new(), *why = cli_error_new();
    const char *page = s->diff.html;
    const int failed = (page && html_may_write(page, e)) || open_files(s, path, e);
    const int status = failed ? trouble(s, path, e) : compare_files(s, path, why, e);
    kvc_error_free(e);
    kvc_error_free(why);
    return status;
}

static void release(struct diff_comparison *d) {
    kvc_comparing_free(d->steps);
    for (int s = 0; s < 2; s++) dump_file_close(&d->file[s]);
    kvc_file_close(d->queries);
    if (d->collected) diff_collect_free(d->collected);
    free(d->layer);
}

/* --- options --- */

/* Takes "P" for both files, or "P,Q". */
static int take_pairing(const struct cli_option *o, void *into, const char *arg) {
    static const char *const names[] = {"halves", "interleaved", "none"};
    const char *const comma = strchrnul(arg, ','), *const second = *comma ? comma + 1 : arg;
    const char **pairing = ((struct settings *)into)->pairing;
    const size_t n = (size_t)(comma - arg);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == n && strncmp(arg, names[i], n) == 0) pairing[0] = names[i];
        if (strcmp(second, names[i]) == 0) pairing[1] = names[i];
    }
    if (!pairing[0] || !pairing[1])
        return cli_usage(
            "--%s=%s is not halves, interleaved or none, or two of them separated by a comma",
            o->name, arg);
    return 0;
}

static const struct cli_option what[] = {
    {"abs", 0, "X", "values are equal if |a-b| <= X + R * |b| (--rel=R); for finite a and b",
     CLI_DOUBLE(struct settings, diff.how.abs, 0, DBL_MAX), .wants = "a number of 0 or more"},
    {"rel", 0, "R", "the R of --abs: either may be given, the other is then 0",
     CLI_DOUBLE(struct settings, diff.how.rel, 0, DBL_MAX), .wants = "a number of 0 or more"},
    {"all", 0, NULL, "also compare provenance, other metadata and private bytes",
     CLI_SETS(struct settings, diff.how.meta, 2)},
    {"no-verify", 0, NULL, ".kvc: do not compare decoded values with their digests",
     CLI_FLAG(struct settings, input.open.no_verify)},
    {"attention", 0, NULL,
     "measure the effect of the differences on attention; with the queries of A or B",
     CLI_FLAG(struct settings, diff.how.attention)},
    {"queries", 0, "FILE", "the same with the queries of FILE", CLI_TEXT(struct settings, queries)},
    {.name = NULL},
};

static const struct cli_option output[] = {
    {"by", 0, "WHAT",
     "sum errors by layer, head, position or channel; with --worst the default is head",
     CLI_CHOICE(struct settings, diff.detail.by, "layer|head|position|channel"),
     .min = KVC_GROUP_LAYER},
    {"worst", 0, "N", "print the N largest errors alone, largest first",
     CLI_NUMBER(struct settings, diff.detail.worst, 1, KVC_GROUPS_WORST)},
    {"report", 0, NULL, "print each value that differs, with its position",
     CLI_FLAG(struct settings, report)},
    {"count", 'n', "COUNT", "report at most COUNT values (implies --report)",
     CLI_NUMBER(struct settings, diff.count, 0, UINT64_MAX), .wants = "a number"},
    {"json", 0, "[=lines]",
     "print JSON (--tsv: tab-separated rows); one object; lines: on one line",
     CLI_CHOICE(struct settings, diff.report.lines, "lines"), .min = 1},
    {"tsv", 0, NULL, "print tab-separated rows", CLI_FLAG(struct settings, tsv)},
    {"html", 0, "OUT",
     "also write a page with pictures to OUT; -: to standard output, and print nothing else",
     CLI_TEXT(struct settings, diff.html)},
    {"plot", 0, "WHEN", "draw the errors of layers; WHEN: auto (on a terminal), always, never",
     CLI_CHOICE(struct settings, plot, CLI_WHEN_WORDS)},
    {"color", 0, "WHEN",
     "draw in colours; WHEN: auto (on a terminal, and no $NO_COLOR), always, never",
     CLI_CHOICE(struct settings, color, CLI_WHEN_WORDS)},
    {"quiet", 'q', NULL, "print nothing, only set the exit status",
     CLI_FLAG(struct settings, input.quiet)},
    {"verbose", 'v', NULL, "also print equal tensors and notes",
     CLI_FLAG(struct settings, diff.verbose)},
    {.name = NULL},
};

static const struct cli_option reading[] = {
    {"pairing", 0, "P[,Q]",
     "RoPE pairing of K, of both files or of A and B: halves, interleaved or none",
     .take = take_pairing, .wants = CLI_PAIRING_WORDS},
    {.name = NULL},
};

/* Passes on what the options ask for together. 0, or EXIT_TROUBLE (message printed). */
static int diff_settle(struct settings *s) {
    struct diff_comparison *d = &s->diff;
    if (cli_exclusive("json tsv")) return EXIT_TROUBLE;
    if (cli_given("json")) d->style = DIFF_JSON;
    if (s->tsv) d->style = DIFF_TSV;
    const struct kvc_select_options *part = &s->part.selection;
    d->how.first = part->first < INT64_MAX ? part->first : INT64_MAX;
    d->how.end = part->end;
    d->how.layers = part->layers;
    d->how.n_layers = part->n_layers;
    /* with --abs=0 numbers are compared, not bits: nothing is nearer than the smallest number */
    if ((cli_given("abs") || cli_given("rel")) && !(d->how.abs > 0 || d->how.rel > 0))
        d->how.abs = DBL_TRUE_MIN;
    d->detail.all = d->verbose;
    d->how.attention |= s->queries != NULL;
    d->quiet = s->input.quiet;
    d->canvas = cli_canvas_on(stdout, s->plot, s->color);
    if (s->report || cli_given("count")) d->detail.value = diff_report_value;
    if (d->detail.worst && !d->detail.by) d->detail.by = KVC_GROUP_HEAD;
    if (d->detail.by && d->detail.value)
        return cli_usage("--report and -n print values, --by and --worst sums: choose one");
    return 0;
}

/* Refuses to read standard input twice, and to print two things there. 0, or EXIT_TROUBLE (message
 * printed). */
static int check_paths(struct diff_comparison *d, const char *queries, int n, char **path) {
    if (n != 2) return cli_usage("two files are needed, but %d given", n);
    if (strcmp(path[0], "-") == 0 && strcmp(path[1], "-") == 0)
        return cli_usage("only one of the two files can be standard input");
    if (queries && strcmp(queries, "-") == 0 &&
        (strcmp(path[0], "-") == 0 || strcmp(path[1], "-") == 0))
        return cli_usage("only one of A, B and the queries can be standard input");
    if (!d->html || strcmp(d->html, "-") != 0) return 0;
    if (d->style != DIFF_TEXT) return cli_usage("--html=- and --json or --tsv exclude each other");
    d->quiet = 1;
    return 0;
}

int main(int argc, char **argv) {
    static struct settings s = {.diff = {.how = {.size = sizeof s.diff.how, .meta = 1},
                                         .detail = {.size = sizeof s.diff.detail,
                                                    .group = diff_print_group,
                                                    .state = &s.diff},
                                         .count = UINT64_MAX}};
    static struct diff_collected collected;
    const struct cli_group groups[] = {{"What is compared", what, &s},
                                       {NULL, cli_selection_options, &s.part},
                                       {"What is printed", output, &s},
                                       {NULL, cli_common_options, NULL},
                                       {"Reading input", cli_input_options, &s.input},
                                       {NULL, reading, &s},
                                       {NULL, cli_format_options(0), &s.input.settings},
                                       {NULL, NULL, NULL}};
    const struct cli_command_line line = {
        .usage = "Usage: kvc-diff [OPTION]... A B\n"
                 "Compare two cache files of any supported formats; print the differences, or\n"
                 "nothing if they are the same.\n"
                 "Exit status: 0 the same, 1 different, 2 trouble.\n",
        .more = "Values are compared bit by bit unless --abs or --rel is given. One of A and B\n"
                "may be \"-\".\n",
        .brief = "abs tokens layers attention queries by worst report count json html quiet "
                 "verbose version",
        .groups = groups,
        .print_devices = cli_cuda_version,
        .end = "\n"
               "Examples:\n"
               "  kvc-diff slot.bin slot.bin.kvc          are the values the same?\n"
               "  kvc-diff --rel=1e-3 llama.bin hf.safetensors\n"
               "                                          two engines, with a tolerance\n"
               "  kvc-diff --queries=q.safetensors exact.kvc lossy.kvc\n"
               "                                          what attention makes of the loss\n"};
    cli_start(argv, "kvc-diff");
    cli_input_environment(&s.input);
    s.input.sampled_fingerprint = 1; /* nothing of the model is stored */
    if (cli_take_options(&line, argc, argv) || diff_settle(&s)) return EXIT_TROUBLE;
    char **path = argv + optind;
    if (check_paths(&s.diff, s.queries, argc - optind, path)) return EXIT_TROUBLE;
    if (s.diff.html) s.diff.collected = &collected;
    const int status = diff_run(&s, path);
    release(&s.diff);
    free(s.part.layers);
    return cli_finish(status);
}
