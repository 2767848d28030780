/* options.c: takes a command line by the table of the tool's options, and prints help texts and the
 * list of options. Not for what the options mean (kvc-*.c, job.c, input_options.c). */
#include "cli/options.h"

#include "cli/cli.h"
#include "cli/habits.h"

#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 96, FIRST_VALUE = 256, HELP_COLUMN = 26, SCREEN_WIDTH = 80 };

/* All rows of all groups. A row of a name that came before takes its place. */
static struct cli_row {
    const struct cli_option *option;
    void *state;
    const char *heading; /* before this row, or NULL */
    unsigned given;      /* its number among the given options; 0: not given */
} rows[MAX_OPTIONS];
static size_t n_rows;

const struct cli_option cli_common_options[] = {
    {.letter = 'h', .help = "print the most used options"},
    {.name = "help", .help = "print all options, and examples"},
    {.name = "version",
     .letter = 'V',
     .help = "print the version; with -v also kernels, stages and formats"},
    {.name = NULL},
};

/* Returns the row of a name of n bytes, or NULL. */
static struct cli_row *options_find(const char *name, size_t n) {
    for (size_t i = 0; i < n_rows; i++) {
        const char *own = rows[i].option->name;
        if (own && strncmp(own, name, n) == 0 && !own[n]) return &rows[i];
    }
    return NULL;
}

/* Returns the row of a value of getopt_long(), or NULL. */
static struct cli_row *find_value(int value) {
    if (value >= FIRST_VALUE) return &rows[value - FIRST_VALUE];
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i].option->letter == value) return &rows[i];
    return NULL;
}

static int is_optional(const struct cli_option *o) {
    return o->argument && strncmp(o->argument, "[=", 2) == 0;
}

static int argument_of(const struct cli_option *o) {
    if (!o->argument) return no_argument;
    return is_optional(o) ? optional_argument : required_argument;
}

/* --- arguments --- */

const char *cli_join_words(const char *words, const char *separators, const char *last, char *text,
                           size_t size) {
    size_t used = 0;
    while (*words && used < size) {
        const size_t n = strcspn(words, separators);
        const char *next = words + n + (words[n] != '\0');
        const char *between = !words[n] ? "" : next[strcspn(next, separators)] ? ", " : last;
        used += (size_t)snprintf(text + used, size - used, "%.*s%s", (int)n, words, between);
        words = next;
    }
    return text;
}

static int take_choice(const struct cli_option *o, unsigned *field, const char *arg) {
    char words[128];
    unsigned at = (unsigned)o->min;
    *field = 0;
    if (!arg) return 0;
    for (const char *word = o->wants; word; at++) {
        const size_t n = strcspn(word, "|");
        *field = at;
        if (strlen(arg) == n && memcmp(word, arg, n) == 0) return 0;
        word = word[n] ? word + n + 1 : NULL;
    }
    if (at - o->min == 1)
        return cli_usage("--%s=%s is not --%s or --%s=%s", o->name, arg, o->name, o->name,
                         o->wants);
    const int two = at - o->min == 2;
    cli_join_words(o->wants, "|", two ? " nor " : " or ", words, sizeof words);
    return cli_usage("--%s=%s is %s %s", o->name, arg, two ? "neither" : "not", words);
}

/* Takes one of the words of o->wants as a text. */
static int take_word(const struct cli_option *o, const char **field, const char *arg) {
    unsigned at;
    *field = arg;
    return take_choice(o, &at, arg);
}

static int take_number(const struct cli_option *o, void *field, const char *arg) {
    uint32_t *u32 = field;
    uint64_t *u64 = field, v;
    if (cli_parse_u64(arg, &v) || v < o->min || v > o->max) {
        if (o->wants) return cli_usage("--%s=%s is not %s", o->name, arg, o->wants);
        return cli_usage("--%s=%s is not a number from %llu to %llu", o->name, arg,
                         (unsigned long long)o->min, (unsigned long long)o->max);
    }
    if (o->kind == CLI_IS_U32) *u32 = (uint32_t)v;
    else *u64 = v;
    return 0;
}

static int take_double(const struct cli_option *o, double *field, const char *arg) {
    double v;
    if (cli_parse_f64(arg, &v) || !isfinite(v) || !(v >= o->low && v <= o->high)) {
        if (o->wants) return cli_usage("--%s=%s is not %s", o->name, arg, o->wants);
        return cli_usage("--%s=%s is not a number from %g to %g", o->name, arg, o->low, o->high);
    }
    *field = v;
    return 0;
}

static int options_take(const struct cli_row *row, const char *arg) {
    const struct cli_option *o = row->option;
    void *field = (char *)row->state + o->field;
    int *flag = field;
    const char **text = field;
    if (o->take) return o->take(o, row->state, arg);
    switch (o->kind) {
    case CLI_IS_SET: *flag = (int)o->max; return 0;
    case CLI_IS_TEXT: *text = arg; return 0;
    case CLI_IS_F64: return take_double(o, field, arg);
    case CLI_IS_CHOICE: return take_choice(o, field, arg);
    case CLI_IS_WORD: return take_word(o, text, arg);
    default: return take_number(o, field, arg);
    }
}

int cli_take_threads(const struct cli_option *o, void *state, const char *arg) {
    void *field = (char *)state + o->field;
    unsigned *threads = field;
    uint64_t n;
    if (cli_parse_u64(arg, &n) || n > o->max)
        return cli_usage("-T %s is not a number of threads (0 to %u)", arg, (unsigned)o->max);
    *threads = (unsigned)n;
    return 0;
}

int cli_threads_environment(unsigned most, unsigned *threads) {
    enum { MOST = 1024 }; /* of all tools */
    const char *variable = getenv("KVC_THREADS");
    uint64_t n;
    if (!variable || !*variable || cli_given("threads")) return 0;
    if (cli_parse_u64(variable, &n) || n > MOST) {
        cli_warn(
            "KVC_THREADS=%s is not a number of threads (0 to %d); correct or unset the variable",
            variable, MOST);
        return EXIT_TROUBLE;
    }
    *threads = n < most ? (unsigned)n : most;
    return 0;
}

/* --- misspelt options --- */

/* Returns 1 if a name begins with the word. getopt_long() has then listed such names. */
static int is_ambiguous(const char *word) {
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i].option->name && strncmp(rows[i].option->name, word, strlen(word)) == 0)
            return 1;
    return 0;
}

/* Prints advice about an unknown long option `argument`, with or without "=VALUE", or the options
 * that resemble it. */
static void propose(const char *argument) {
    char word[64];
    const char *names[MAX_OPTIONS];
    char near[160];
    size_t n_names = 0;
    const int n = snprintf(word, sizeof word, "%.*s", (int)strcspn(argument + 2, "="),
                           argument + 2);
    if (n < 0 || (size_t)n >= sizeof word || is_ambiguous(word)) return;
    const char *advice = cli_habit(cli_tool(), word);
    if (advice) {
        cli_warn("%s", advice);
        return;
    }
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i].option->name) names[n_names++] = rows[i].option->name;
    names[n_names] = NULL;
    if (*kvc_similar_names(word, names, near, sizeof near)) cli_warn("did you mean --%s?", near);
}

/* Prints what to use in place of an option that getopt_long() refused. */
static void advise(char **argv) {
    const char letter[] = {(char)optopt, '\0'};
    const int is_letter = optopt > 0 && optopt < 128;
    const char *advice = is_letter && !find_value(optopt) ? cli_habit(cli_tool(), letter) : NULL;
    if (advice) cli_warn("%s", advice);
    if (!optopt && optind > 1 && strncmp(argv[optind - 1], "--", 2) == 0) propose(argv[optind - 1]);
}

/* --- texts --- */

/* Returns the length of the words of a text, or of the items of a list with commas, that fit into
 * `width` columns. */
static int line_length(const char *text, int width) {
    const int length = (int)strlen(text);
    int fits = length < width ? length : width;
    while (fits && fits < length && text[fits] != ' ' && text[fits - 1] != ',') fits--;
    return fits ? fits : length;
}

void cli_print_wrapped(int used, int column, const char *text) {
    if (used >= column) used = printf("\n") - 1;
    while (*text) {
        const int length = line_length(text, SCREEN_WIDTH - column);
        printf("%*s%.*s\n", column - used, "", length, text);
        text += length + (text[length] == ' ');
        used = 0;
    }
}

/* Writes the help of an option with its names. Returns `text`. */
static const char *help_text(const struct cli_option *o, char *text, size_t size) {
    const char *mark = strstr(o->help, "%s");
    char names[512];
    if (!mark) snprintf(text, size, "%s", o->help);
    else
        snprintf(text, size, "%.*s%s%s", (int)(mark - o->help), o->help,
                 cli_join_words(o->names(), " ", " or ", names, sizeof names), mark + 2);
    return text;
}

void cli_print_help(int used, const char *help, int brief) {
    const char *end = brief ? strstr(help, "; ") : NULL;
    char text[1024];
    snprintf(text, sizeof text, "%.*s", end ? (int)(end - help) : (int)strlen(help), help);
    cli_print_wrapped(used, HELP_COLUMN, text);
}

/* Prints "  -l, --name=ARGUMENT  help". */
static void print_option(const struct cli_option *o, int brief) {
    char help[1024];
    int used = o->letter ? printf("  -%c%s", o->letter, o->name ? ", " : "") : printf("      ");
    const char *argument = o->argument ? o->argument : "";
    const int length = (int)(brief ? strcspn(argument, "[") : strlen(argument));
    if (o->name)
        used += printf("--%s%s%.*s", o->name, argument_of(o) == required_argument ? "=" : "",
                       length, argument);
    cli_print_help(used, help_text(o, help, sizeof help), brief);
}

/* Prints -h: the options that line->brief names. */
static void print_brief(const struct cli_command_line *line) {
    const char *tool = cli_tool(), *word = line->brief;
    printf("%s\n", line->usage);
    if (line->print_commands) line->print_commands('h');
    while (*word) {
        const size_t n = strcspn(word, " ");
        const struct cli_row *row = options_find(word, n);
        if (row) print_option(row->option, 1);
        word += n + strspn(word + n, " ");
    }
    printf("\nAll options and examples: %s --help. The manual: man %s.\n", tool, tool);
}

static void print_help(const struct cli_command_line *line) {
    printf("%s%s\n", line->usage, line->more ? line->more : "");
    if (line->print_commands) line->print_commands(0);
    for (size_t i = 0; i < n_rows; i++) {
        if (rows[i].heading) printf("%s%s:\n", i ? "\n" : "", rows[i].heading);
        print_option(rows[i].option, 0);
    }
    if (line->print_presets) line->print_presets();
    fputs(line->end, stdout);
}

static void print_list(const struct cli_command_line *line) {
    static const char *const argument[] = {
        [no_argument] = "no", [required_argument] = "required", [optional_argument] = "optional"};
    for (size_t i = 0; i < n_rows; i++) {
        const struct cli_option *o = rows[i].option;
        char help[1024], words[128] = "";
        if (!o->name) continue;
        const char *names = o->names ? o->names() : words;
        if (o->wants &&
            (o->kind == CLI_IS_CHOICE || o->kind == CLI_IS_WORD || strchr(o->wants, '|')))
            snprintf(words, sizeof words, "%s", o->wants);
        for (char *p = words; *p; p++)
            if (*p == '|') *p = ' ';
        printf("%s\t%c\t%s\t%s\t%s\t%s\n", o->name, o->letter ? o->letter : '-',
               argument[argument_of(o)], names, help_text(o, help, sizeof help),
               o->argument ? o->argument : "");
    }
    if (line->print_commands) line->print_commands('l');
}

/* --- the command line --- */

int cli_given(const char *name) {
    const struct cli_row *row = options_find(name, strlen(name));
    return row && row->given;
}

int cli_exclusive(const char *names) {
    const struct cli_row *first = NULL;
    while (*names) {
        const size_t n = strcspn(names, " ");
        const struct cli_row *row = options_find(names, n);
        names += n + strspn(names + n, " ");
        if (!row || !row->given) continue;
        if (first) {
            const int later = row->given > first->given;
            return cli_usage("--%s and --%s exclude each other",
                             (later ? first : row)->option->name,
                             (later ? row : first)->option->name);
        }
        first = row;
    }
    return 0;
}

int cli_each_given(int (*refuse)(void *state, const struct cli_option *o), void *state) {
    int status = 0;
    for (size_t i = 0; i < n_rows && !status; i++)
        if (rows[i].given) status = refuse(state, rows[i].option);
    return status;
}

/* Lists all rows, and writes them as getopt_long() takes them. */
static void options_collect(const struct cli_group *group, struct option *long_options,
                            char *letters) {
    for (; group->options; group++)
        for (const struct cli_option *o = group->options; o->name || o->letter; o++) {
            struct cli_row *row = o->name ? options_find(o->name, strlen(o->name)) : NULL;
            if (!row) {
                if (n_rows + 1 == MAX_OPTIONS) abort();
                row = &rows[n_rows++];
                row->heading = o == group->options ? group->heading : NULL;
            }
            row->option = o;
            row->state = group->state;
        }
    for (size_t i = 0; i < n_rows; i++) {
        const struct cli_option *o = rows[i].option;
        if (o->name)
            *long_options++ = (struct option){o->name, argument_of(o), NULL, FIRST_VALUE + (int)i};
        if (o->letter) *letters++ = o->letter;
        if (o->letter && o->argument) *letters++ = ':';
    }
}

int cli_take_options(const struct cli_command_line *line, int argc, char **argv) {
    struct option long_options[MAX_OPTIONS] = {{NULL, 0, NULL, 0}};
    char letters[2 * MAX_OPTIONS] = "";
    unsigned n_given = 0;
    int value;
    options_collect(line->groups, long_options, letters);
    /* No row of the table, as getopt_long() would complete --list to it. */
    if (argc == 2 && strcmp(argv[1], "--list-options") == 0) {
        print_list(line);
        exit(cli_finish(EXIT_SAME));
    }
    while ((value = getopt_long(argc, argv, letters, long_options, NULL)) != -1) {
        struct cli_row *row = value == '?' ? NULL : find_value(value);
        if (!row) {
            advise(argv);
            return cli_try_help();
        }
        row->given = ++n_given;
        if (row->option->letter == 'h') print_brief(line);
        if (cli_given("help")) print_help(line);
        if (row->option->letter == 'h' || cli_given("help")) exit(cli_finish(EXIT_SAME));
        if (row->state && options_take(row, optarg)) return EXIT_TROUBLE;
    }
    if (cli_given("version")) exit(cli_version(cli_given("verbose"), line->print_devices));
    return 0;
}

int cli_no_command(const char *name, const char *const *names, const char *meant) {
    char near[128];
    if (!meant) meant = kvc_similar_names(name, names, near, sizeof near);
    return cli_usage("there is no command '%s'%s%s%s", name, *meant ? "; did you mean " : "", meant,
                     *meant ? "?" : "");
}
