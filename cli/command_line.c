/* command_line.c: the next option of a command line, with a proposal for a misspelt one, threads, help texts, and the list of
 * options from which completions are made. Not for what the options mean (kvc-*.c, input_options.c). */
#include "cli/cli.h"
#include "cli/habits.h"

#include "codecs/near.h"
#include "codecs/presets.h"
#include "codecs/registry.h"

#include <stdlib.h>
#include <string.h>

/* --- misspelt options --- */

/* Prints advice about an unknown letter. */
static void advise(int letter) {
    const char option[] = {(char)letter, '\0'}, *advice = cli_habit(cli_tool(), option);
    if (advice) cli_warn("%s", advice);
}

/* Returns 1 if a name begins with the word. getopt_long() has then listed such names. */
static int is_ambiguous(const struct option *options, const char *word) {
    for (; options->name; options++)
        if (strncmp(options->name, word, strlen(word)) == 0) return 1;
    return 0;
}

/* Prints advice about an unknown long option `argument`, with or without "=VALUE", or the options that resemble it. */
static void propose(const struct option *options, const char *argument) {
    char word[64];
    struct kvc_near near = {.word = word};
    const int n = snprintf(word, sizeof word, "%.*s", (int)strcspn(argument + 2, "="), argument + 2);
    if (n < 0 || (size_t)n >= sizeof word || is_ambiguous(options, word)) return;
    const char *advice = cli_habit(cli_tool(), word);
    if (advice) {
        cli_warn("%s", advice);
        return;
    }
    for (; options->name; options++) kvc_near_offer(&near, options->name);
    if (*near.text) cli_warn("did you mean --%s?", near.text);
}

/* --- the list --- */

static void print_formats(int writing) {
    for (size_t i = 0; kvc_format_at(i); i++)
        if (!writing || kvc_format_is_written(kvc_format_at(i))) printf(" %s", kvc_format_at(i)->name);
}

/* Prints the values that an option takes, if they are names. */
static void print_values(const char *option) {
    if (strcmp(option, "from") == 0) print_formats(0);
    else if (strcmp(option, "to") == 0) print_formats(1);
    else if (strstr(option, "pairing"))
        for (int p = KVC_PAIRING_UNKNOWN + 1; p <= KVC_PAIRING_NONE; p++) printf(" %s", kvc_pairing_name((enum kvc_pairing)p));
    else if (strcmp(option, "recipe") == 0) {
        for (size_t i = 0; kvc_preset_at(i); i++) printf(" %s", kvc_preset_at(i)->name);
        for (size_t i = 0; kvc_stage_at(i); i++) printf(" %s", kvc_stage_at(i)->name);
    }
}

static void list(const struct option *options, const char *letters) {
    static const char *const argument[] = {
        [no_argument] = "no", [required_argument] = "required", [optional_argument] = "optional"};
    for (; options->name; options++) {
        const int has_letter = options->val < 128 && strchr(letters, options->val);
        printf("%s\t%c\t%s\t", options->name, has_letter ? options->val : '-', argument[options->has_arg]);
        print_values(options->name);
        putchar('\n');
    }
}

int cli_next_option(int argc, char **argv, const char *letters, const struct option *options) {
    /* No row of the table, as getopt_long() would complete --list to it. */
    if (argc == 2 && strcmp(argv[1], "--list-options") == 0) {
        list(options, letters);
        exit(cli_finish(EXIT_SAME));
    }
    const int opt = getopt_long(argc, argv, letters, options, NULL);
    if (opt != '?') return opt;
    if (optopt > 0 && optopt < 128 && !strchr(letters, optopt)) advise(optopt);
    else if (!optopt && optind > 1 && strncmp(argv[optind - 1], "--", 2) == 0) propose(options, argv[optind - 1]);
    return opt;
}

int cli_take_threads(const char *arg, unsigned most, unsigned *threads) {
    enum { MOST = 1024 }; /* of all tools */
    const char *variable = getenv("KVC_THREADS");
    uint64_t n;
    if (arg) {
        if (cli_parse_u64(arg, &n) || n > most) return cli_usage("-T %s is not a number of threads (0 to %u)", arg, most);
    } else {
        if (!variable || !*variable) return 0;
        if (cli_parse_u64(variable, &n) || n > MOST) {
            cli_warn("KVC_THREADS=%s is not a number of threads (0 to %d); correct or unset the variable", variable, MOST);
            return EXIT_TROUBLE;
        }
    }
    *threads = n < most ? (unsigned)n : most;
    return 0;
}

int cli_help(int opt, const char *brief, const char *help, const char *end) {
    fputs(opt == 'h' ? brief : help, stdout);
    if (opt != 'h') {
        cli_print_input_help();
        fputs(end, stdout);
    }
    return cli_finish(EXIT_SAME);
}
