/* options.h: the command line of a tool: one table of its options, from which the parser, -h,
 * --help, completions and the heads of the man page's entries are made. Not for what an option
 * means (the tools, job.c, input_options.c). */
#ifndef KVC_OPTIONS_H
#define KVC_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

struct cli_option;

/* Takes the argument of an option, NULL if there is none. `state` is that of the group. 0, or
 * EXIT_TROUBLE (message printed). */
typedef int cli_take(const struct cli_option *o, void *state, const char *arg);

/* What an option does with its argument, unless it has a function `take`. `field` is a place in the
 * group's state. */
enum cli_kind {
    CLI_IS_SET,  /* none: the int becomes `max` */
    CLI_IS_TEXT, /* the const char * points to it, NULL if it was left out */
    CLI_IS_U32,  /* a number from `min` to `max`, also with K, M or G: powers of 1024 */
    CLI_IS_U64,  /* the same */
    CLI_IS_F64,  /* a finite number from `low` to `high` */
    /* the int or enum becomes `min` for the first of the words, one more for the next; 0 if it was
       left out */
    CLI_IS_CHOICE,
    CLI_IS_WORD, /* the const char * points to it, which is one of the words */
};

/* A row; a row without a name and a letter ends the table. */
struct cli_option {
    const char *name; /* without "--"; NULL: the letter is all */
    char letter;      /* 0: none */
    /* its name, "FILE" or "A:B"; "[=WORD]": may be left out; NULL: the option has none */
    const char *argument;
    /* For --help. -h and completions show it up to "; ", and -h the argument up to "[". "%s" is the
     * list of `names`. */
    const char *help;
    enum cli_kind kind;
    size_t field;
    uint64_t min, max;
    double low, high;
    /* of numbers: "a number of heads", for messages; NULL: the bounds. "yes|no": the words that it
     * may be */
    const char *wants;
    cli_take *take;
    /* returns the words that the argument may be, separated by spaces */
    const char *(*names)(void);
    unsigned group; /* the tool's own */
};

/* The fields of a row after its texts. The member must have the type that is written. */
#define CLI_MEMBER(type, member) (((type *)NULL)->member)
#define CLI_FIELD(type, member, ...) \
    .field = offsetof(type, member) * !!sizeof(_Generic(CLI_MEMBER(type, member), __VA_ARGS__))
#define CLI_SETS(type, member, value) \
    .kind = CLI_IS_SET, CLI_FIELD(type, member, int : 1), .max = (value)
#define CLI_FLAG(type, member) CLI_SETS(type, member, 1)
#define CLI_TEXT(type, member) .kind = CLI_IS_TEXT, CLI_FIELD(type, member, const char * : 1)
#define CLI_NUMBER(type, member, from, to)                                                 \
    .kind = sizeof CLI_MEMBER(type, member) == 4 ? CLI_IS_U32 : CLI_IS_U64, .min = (from), \
    .max = (to), CLI_FIELD(type, member, uint32_t : 1, uint64_t : 1)
#define CLI_DOUBLE(type, member, from, to) \
    .kind = CLI_IS_F64, CLI_FIELD(type, member, double : 1), .low = (from), .high = (to)
#define CLI_WORD(type, member, words) \
    .kind = CLI_IS_WORD, CLI_FIELD(type, member, const char * : 1), .wants = (words)
#define CLI_CHOICE(type, member, words) \
    .kind = CLI_IS_CHOICE, CLI_FIELD(type, member, int : 1, unsigned : 1), .wants = (words)

/* Rows under a heading, and what their fields are in. A row with the name of one before takes its
 * place, also in --help. */
struct cli_group {
    const char *heading; /* NULL: that of the group before */
    const struct cli_option *options;
    void *state;
};

struct cli_command_line {
    const char *usage;              /* "Usage: ..." and what the tool does: for -h and --help */
    const char *more;               /* continues it in --help; or NULL */
    const char *brief;              /* the options that -h shows: names separated by spaces */
    const char *end;                /* of --help: exit status and examples */
    const struct cli_group *groups; /* a group without options ends them */
    /* the tool's commands for -h ('h'), --help (0) and --list-options ('l'); or NULL */
    void (*print_commands)(int how);
    void (*print_presets)(void); /* after the options of --help; or NULL */
    void (*print_devices)(void); /* for -V -v, as cli_version() takes it; or NULL */
};

/* Takes all options, and moves the operands to argv + optind. Abbreviations of long options,
 * options between operands and "--" are those of getopt_long(). After an unknown option prints what
 * to use instead (habits.h), or an option with a similar name. Prints -h, --help and -V, and exits.
 * 0, or EXIT_TROUBLE (message printed).
 *
 * --list-options as the only argument prints a row an option: name, letter, "no", "optional" or
 * "required" argument, words that it may be, help, name of the argument; separated by tabs. The
 * rows of commands have "-" and a name. */
int cli_take_options(const struct cli_command_line *line, int argc, char **argv);
/* Says that a tool has no such command, and which of `names`, which ends with NULL, it may be:
 * `meant`, or if that is NULL one with a similar name. Returns EXIT_TROUBLE. */
int cli_no_command(const char *name, const char *const *names, const char *meant);
/* Returns 1 if an option was given, by its name in the table. */
int cli_given(const char *name);
/* Refuses two given options of these names, which are separated by spaces. 0, or EXIT_TROUBLE
 * (message printed). */
int cli_exclusive(const char *names);
/* Calls refuse() for every given option until it returns a value other than 0. Returns this value.
 */
int cli_each_given(int (*refuse)(void *state, const struct cli_option *o), void *state);

/* -h, --help and -V, for every tool. */
extern const struct cli_option cli_common_options[];
/* Takes a number of threads up to o->max into an unsigned. */
cli_take cli_take_threads;
/* Takes $KVC_THREADS, if it is set and -T was not given. 0, or EXIT_TROUBLE (message printed). */
int cli_threads_environment(unsigned most, unsigned *threads);
/* Writes "a|b|c" as "a, b or c", where `separators` has the | and `last` is " or ". Returns `text`.
 */
const char *cli_join_words(const char *words, const char *separators, const char *last, char *text,
                           size_t size);
/* Ends a line of a help text, `used` bytes of which are printed, with the help of an option or a
 * command. `brief`: up to "; ". */
void cli_print_help(int used, const char *help, int brief);
/* Ends a line of a help text, `used` bytes of which are printed: `text` follows from `column` on,
 * on as many lines as it needs. */
void cli_print_wrapped(int used, int column, const char *text);

#endif
