/* kvc-diff.c: the options of kvc-diff and the order of a comparison. Not for comparing (diff_*.c). */
#include "cli/diff/diff.h"
#include "cli/gpu.h"
#include "cli/html/diff_report.h"
#include "cli/html/page.h"
#include "formats/cache/view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char brief[] = "Usage: kvc-diff [OPTION]... A B\n"
                            "Compare two cache files of any supported formats; print the differences, or\n"
                            "nothing if they are the same.\n"
                            "\n"
                            "      --abs=X, --rel=R    values are equal if |a-b| <= X + R * |b|\n"
                            "      --tokens=A:B        compare positions A to B - 1\n"
                            "      --layers=LIST       compare these layers, like 0-3,7\n"
                            "      --attention         the effect of the differences on attention\n"
                            "      --queries=FILE      the same with the queries of FILE\n"
                            "      --by=WHAT           sum the errors by layer, head, position or channel\n"
                            "      --worst=N           print the N largest errors alone\n"
                            "      --report            print each value that differs, with its position\n"
                            "  -n, --count=COUNT       report at most COUNT values (implies --report)\n"
                            "      --json, --tsv       print JSON, or tab-separated rows\n"
                            "      --html=OUT          also write a page with pictures to OUT\n"
                            "  -q, --quiet             print nothing, only set the exit status\n"
                            "  -v, --verbose           also print equal tensors and notes\n"
                            "  -V, --version           print the version\n"
                            "\n"
                            "Exit status: 0 the same, 1 different, 2 trouble.\n"
                            "All options and examples: kvc-diff --help. The manual: man kvc-diff.\n";

static const char help[] = "Usage: kvc-diff [OPTION]... A B\n"
                           "Compare two cache files of any supported formats; print the differences, or\n"
                           "nothing if they are the same. Values are compared bit by bit unless --abs or\n"
                           "--rel is given. One of A and B may be \"-\".\n"
                           "\n"
                           "What is compared:\n"
                           "      --abs=X             values are equal if |a-b| <= X + R * |b|, for finite a\n"
                           "                          and b;\n"
                           "      --rel=R             either may be given (the other is then 0)\n"
                           "      --tokens=A:B        compare positions A to B - 1\n"
                           "      --layers=LIST       compare these layers, like 0-3,7\n"
                           "      --all               also compare provenance, other metadata and private\n"
                           "                          bytes\n"
                           "      --no-verify         .kvc: do not compare decoded values with their\n"
                           "                          digests\n"
                           "      --attention         measure the effect of the differences on attention,\n"
                           "                          with the queries of A or B\n"
                           "      --queries=FILE      the same with the queries of FILE\n"
                           "What is printed:\n"
                           "      --by=WHAT           sum the errors by layer, head (default), position or\n"
                           "                          channel\n"
                           "      --worst=N           print the N largest errors alone, the largest first\n"
                           "      --report            print each value that differs, with its position\n"
                           "  -n, --count=COUNT       report at most COUNT values (implies --report)\n"
                           "  -q, --quiet             print nothing, only set the exit status\n"
                           "  -v, --verbose           also print equal tensors and notes\n"
                           "      --json[=lines]      print one JSON object; lines: on one line\n"
                           "      --tsv               print tab-separated rows\n"
                           "      --html=OUT          also write a page with pictures to OUT; -: to standard\n"
                           "                          output, and print nothing else\n"
                           "      --plot=WHEN         draw the errors of layers: auto (on a terminal),\n"
                           "                          always, never\n"
                           "      --color=WHEN        colour them: auto (the same, and no $NO_COLOR),\n"
                           "                          always, never\n";

static const char end_of_help[] = "                          kvc-diff: --pairing=P,Q for A and B\n"
                                  "\n"
                                  "  -h                      print the most used options\n"
                                  "      --help              print this text\n"
                                  "  -V, --version           print the version\n"
                                  "\n"
                                  "Exit status: 0 the same, 1 different, 2 trouble.\n"
                                  "\n"
                                  "Examples:\n"
                                  "  kvc-diff slot.bin slot.bin.kvc          are the values the same?\n"
                                  "  kvc-diff --rel=1e-3 llama.bin hf.safetensors\n"
                                  "                                          two engines, with a tolerance\n"
                                  "  kvc-diff --queries=q.safetensors exact.kvc lossy.kvc\n"
                                  "                                          what attention makes of the loss\n";

enum {
    OPT_ABS = CLI_OPT_FREE,
    OPT_REL,
    OPT_TOKENS,
    OPT_LAYERS,
    OPT_ALL,
    OPT_REPORT,
    OPT_JSON,
    OPT_TSV,
    OPT_ATTENTION,
    OPT_QUERIES,
    OPT_HTML,
    OPT_COLOR,
    OPT_PLOT,
    OPT_BY,
    OPT_WORST
};

struct settings {
    struct cli_input input;
    enum kvc_pairing pairing[2];
    const char *queries; /* --queries, or NULL */
    struct diff_comparison diff;
    enum cli_when plot, color;
    int version;
};

/* --- the whole comparison --- */

static int open_files(struct settings *s, char **path, struct kvc_error *e) {
    struct diff_comparison *d = &s->diff;
    for (int i = 0; i < 2; i++) {
        s->input.import.pairing = s->pairing[i];
        if (cli_open(&d->file[i], path[i], &s->input, e)) return -1;
        d->cache[i] = d->file[i].cache;
        d->compare.name[i] = d->file[i].input.name;
    }
    s->input.import.pairing = KVC_PAIRING_UNKNOWN;
    for (int i = 0; i < 2; i++)
        if (kvc_layers_borrow(d->file[i].cache, d->file[1 - i].cache, e)) return -1;
    return s->queries ? cli_open(&d->queries, s->queries, &s->input, e) : 0;
}

/* Matches the parts and tensors; refuses a selection of nothing. */
static int find_pairs(struct diff_comparison *d, struct kvc_error *e) {
    for (int s = 0; s < 2; s++) d->pairs.cache[s] = d->cache[s];
    if (kvc_pairs_find(&d->pairs, e)) return -1;
    switch (kvc_pairs_reach(&d->pairs)) {
    case KVC_PAIRS_NO_LAYERS: return kvc_fail(e, KVC_ERR_USAGE, "--layers: neither file has any of these layers");
    case KVC_PAIRS_NO_POSITIONS: return kvc_fail(e, KVC_ERR_USAGE, "--tokens: neither file has any of these positions");
    default: return 0;
    }
}

static int compare_files(struct diff_comparison *d, struct kvc_error *e) {
    if (d->quiet && !d->html) d->attention = 0; /* measures of attention do not change the exit status */
    if (find_pairs(d, e) || diff_attention_possible(d, e)) return -1;
    diff_begin(d);
    if (diff_facts(d, e)) return -1;
    diff_geometry(d);
    if (diff_may_end(d)) return 0;
    diff_begin_tensors(d);
    if (diff_align(d, e) || diff_values(d, e) || diff_attention(d, e)) return -1;
    diff_end(d);
    return 0;
}

static int trouble(struct settings *s, char **path, const struct kvc_error *e) {
    diff_failed(&s->diff, path[0], path[1], e);
    fflush(stdout); /* flush the differences before the error */
    cli_error(e);
    return EXIT_TROUBLE;
}

static int run(struct settings *s, char **path) {
    struct kvc_error e = {.code = KVC_OK}, why = {.code = KVC_OK};
    struct diff_comparison *d = &s->diff;
    if ((d->html && html_may_write(d->html, &e)) || open_files(s, path, &e)) return trouble(s, path, &e);
    const int stopped = compare_files(d, &why);
    const int unwritten = d->html && diff_report(d, stopped ? &why : NULL, &e);
    if (unwritten) cli_error(&e);
    if (stopped) return trouble(s, path, &why);
    if (unwritten) return EXIT_TROUBLE;
    return diff_differs(d) ? EXIT_DIFFER : EXIT_SAME;
}

static void release(struct diff_comparison *d) {
    kvc_align_free(&d->align);
    for (int s = 0; s < 2; s++) kvc_close(&d->file[s]);
    kvc_attended_free(&d->attended);
    if (d->queries.cache) kvc_close(&d->queries);
    if (d->collected) diff_collect_free(d->collected);
    kvc_pairs_free(&d->pairs);
    kvc_groups_free(&d->groups);
    free(d->layer);
    free(d->keep);
}

/* --- options: 0, or EXIT_TROUBLE with a message printed --- */

static int tolerance_option(struct diff_comparison *d, const char *name, const char *arg, double *to) {
    if (cli_parse_f64(arg, to) || !isfinite(*to) || *to < 0)
        return cli_usage("--%s: '%s' is not a number of 0 or more", name, arg);
    d->compare.exact = 0;
    return 0;
}

static int tokens_option(struct diff_comparison *d, const char *arg) {
    uint64_t first, end;
    if (cli_take_range("--tokens=", arg, &first, &end)) return EXIT_TROUBLE;
    d->pairs.first = first > INT64_MAX ? INT64_MAX : (int64_t)first;
    d->pairs.last = end > INT64_MAX ? INT64_MAX : (int64_t)(end - 1);
    return 0;
}

static int count_option(struct diff_comparison *d, const char *arg) {
    d->compare.report = diff_report_value;
    return cli_parse_u64(arg, &d->count) ? cli_usage("--count: '%s' is not a number", arg) : 0;
}

/* Takes "P" for both files, or "P,Q". */
static int pairing_option(enum kvc_pairing pairing[2], const char *arg) {
    const char *comma = strchrnul(arg, ','), *second = *comma ? comma + 1 : arg;
    char first[32];
    snprintf(first, sizeof first, "%.*s", (int)(comma - arg), arg);
    if (!kvc_pairing_parse(first, &pairing[0]) || !kvc_pairing_parse(second, &pairing[1]))
        return cli_usage("--pairing: '%s' is not halves, interleaved or none, or two of them separated by a comma", arg);
    return 0;
}

static int style_option(struct diff_comparison *d, enum diff_style style) {
    if (d->style != DIFF_TEXT && d->style != style) return cli_usage("--json and --tsv exclude each other");
    d->style = style;
    return 0;
}

static int take_option(struct settings *s, int opt, const char *arg) {
    struct diff_comparison *d = &s->diff;
    switch (opt) {
    case OPT_ABS: return tolerance_option(d, "abs", arg, &d->compare.abs);
    case OPT_REL: return tolerance_option(d, "rel", arg, &d->compare.rel);
    case OPT_TOKENS: return tokens_option(d, arg);
    case OPT_LAYERS:
        if (cli_take_list("--layers=", arg, &d->keep, &d->pairs.n_keep)) return EXIT_TROUBLE;
        d->pairs.keep = d->keep;
        return 0;
    case OPT_ALL: d->all = 1; return 0;
    case OPT_QUERIES: s->queries = arg; /* fall through */
    case OPT_ATTENTION: d->attention = 1; return 0;
    case OPT_REPORT: d->compare.report = diff_report_value; return 0;
    case 'n': return count_option(d, arg);
    case OPT_COLOR: return cli_when_option("color", arg, &s->color);
    case OPT_PLOT: return cli_when_option("plot", arg, &s->plot);
    case OPT_BY:
        if (!kvc_group_parse(arg, &d->groups.by)) return 0;
        return cli_usage("--by=%s is not layer, head, position or channel", arg);
    case OPT_WORST:
        if (!cli_parse_u64(arg, &d->groups.worst) && d->groups.worst && d->groups.worst <= KVC_GROUPS_WORST) return 0;
        return cli_usage("--worst=%s is not a number from 1 to %u", arg, (unsigned)KVC_GROUPS_WORST);
    case 'q': d->quiet = s->input.quiet = 1; return 0;
    case 'v': d->verbose = 1; return 0;
    case OPT_JSON: return style_option(d, DIFF_JSON) || cli_report_option(arg, &d->report.lines) ? EXIT_TROUBLE : 0;
    case OPT_TSV: return style_option(d, DIFF_TSV);
    case OPT_HTML: d->html = arg; return 0;
    case CLI_OPT_PAIRING: return pairing_option(s->pairing, arg);
    case 'V': s->version = 1; return 0;
    case '?':
    case ':': return cli_try_help();
    default: return cli_input_option(&s->input, opt, arg) < 0 ? EXIT_TROUBLE : 0;
    }
}

static const struct option long_options[] = {
    {"abs", required_argument, NULL, OPT_ABS},
    {"rel", required_argument, NULL, OPT_REL},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"layers", required_argument, NULL, OPT_LAYERS},
    {"all", no_argument, NULL, OPT_ALL},
    {"attention", no_argument, NULL, OPT_ATTENTION},
    {"queries", required_argument, NULL, OPT_QUERIES},
    {"color", required_argument, NULL, OPT_COLOR},
    {"plot", required_argument, NULL, OPT_PLOT},
    {"by", required_argument, NULL, OPT_BY},
    {"worst", required_argument, NULL, OPT_WORST},
    {"report", no_argument, NULL, OPT_REPORT},
    {"no-verify", no_argument, NULL, CLI_OPT_NO_VERIFY},
    {"count", required_argument, NULL, 'n'},
    {"quiet", no_argument, NULL, 'q'},
    {"verbose", no_argument, NULL, 'v'},
    {"json", optional_argument, NULL, OPT_JSON},
    {"tsv", no_argument, NULL, OPT_TSV},
    {"html", required_argument, NULL, OPT_HTML},
    {"help", no_argument, NULL, CLI_OPT_HELP},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

int main(int argc, char **argv) {
    static struct settings s = {.diff = {.compare = {.exact = 1, .state = &s.diff},
                                         .count = UINT64_MAX,
                                         .groups = {.give = diff_print_group, .state = &s.diff},
                                         .pairs = {.first = INT64_MIN, .last = INT64_MAX}}};
    static struct diff_collected collected;
    int opt, status;
    const struct option *options = cli_long_options(long_options, 0);
    cli_start(argv, "kvc-diff");
    cli_input_environment(&s.input);
    while ((opt = cli_next_option(argc, argv, "n:qvhV", options)) != -1) {
        if (opt == 'h' || opt == CLI_OPT_HELP) return cli_help(opt, brief, help, end_of_help);
        if ((status = take_option(&s, opt, optarg))) return status;
    }
    if (s.version) return cli_version(s.diff.verbose, cli_cuda_version);
    s.diff.canvas = cli_canvas_on(stdout, s.plot, s.color);
    if (s.diff.groups.worst && !s.diff.groups.by) s.diff.groups.by = KVC_GROUP_HEAD;
    if (s.diff.groups.by && s.diff.compare.report)
        return cli_usage("--report and -n print values, --by and --worst sums: choose one");
    char **path = argv + optind;
    if (argc - optind != 2) return cli_usage("two files are needed, but %d given", argc - optind);
    if (strcmp(path[0], "-") == 0 && strcmp(path[1], "-") == 0)
        return cli_usage("only one of the two files can be standard input");
    if (s.queries && strcmp(s.queries, "-") == 0 && (strcmp(path[0], "-") == 0 || strcmp(path[1], "-") == 0))
        return cli_usage("only one of A, B and the queries can be standard input");
    if (s.diff.html && strcmp(s.diff.html, "-") == 0) {
        if (s.diff.style != DIFF_TEXT) return cli_usage("--html=- and --json or --tsv exclude each other");
        s.diff.quiet = 1;
    }
    if (s.diff.html) s.diff.collected = &collected;
    status = run(&s, path);
    release(&s.diff);
    return cli_finish(status);
}
