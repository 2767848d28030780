/* cli.h: what the four tools share: messages, options, opening caches, safe output, JSON and TSV. Not for formats. */
#ifndef KVC_CLI_H
#define KVC_CLI_H

#include "formats/file/open.h"
#include "formats/io/member_sink.h"

#include <getopt.h>
#include <stdio.h>

#define EXIT_SAME 0
#define EXIT_DIFFER 1
#define EXIT_TROUBLE 2

/* Sets the tool's name ("kvc-dump"), also in argv[0], which getopt_long() puts into its messages, and the signal handling: SIGPIPE default, SIGINT, SIGTERM and SIGBUS remove the
 * temporary output first. Call first in main(). */
void cli_start(char **argv, const char *tool);
const char *cli_tool(void); /* that name */
/* "kvc-dump: MESSAGE" on stderr. */
void cli_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_error(const struct kvc_error *e);
/* The message and what would help, in the tools' options. */
const char *cli_error_text(const struct kvc_error *e, char *text, size_t size);
/* Puts "name: " before the message, unless it begins so already. Returns -1. */
int cli_error_about(struct kvc_error *e, const char *name);
/* One line of reason and "Try 'kvc-dump --help' for more information." Returns EXIT_TROUBLE. */
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* For getopt_long's '?' and ':' after it printed its own line. Returns EXIT_TROUBLE. */
int cli_try_help(void);
/* "kvc-dump 0.1.0 (format 0)"; `verbose` adds kernels and codecs, and calls more(), which prints lines about devices. Returns
 * EXIT_SAME. */
int cli_version(int verbose, void (*more)(void));
/* Flushes and closes stdout; EXIT_TROUBLE with a message when anything was not written, else `status`. */
int cli_finish(int status);

/* The options that say how to read input; every tool has them, and options of formats, which the table of formats lists: numbers from
 * CLI_OPT_FORMAT on for reading, from CLI_OPT_TARGET on for writing. Tools' own numbers lie between. */
enum { CLI_OPT_FROM = 1000, CLI_OPT_KV_HEADS, CLI_OPT_PAIRING, CLI_OPT_MODEL, CLI_OPT_WEIGHTS, CLI_OPT_PROFILE, CLI_OPT_FREE = 1100,
       CLI_OPT_FORMAT = 2000, CLI_OPT_TARGET = 3000 };
/* A table for getopt_long(): a tool's own options, up to one without a name, and all of these. Call once. */
const struct option *cli_long_options(const struct option *of_tool);
/* Their lines in a help text, headed "Reading input:"; the lines of options for writing. */
void cli_print_input_help(void);
void cli_print_target_help(void);
/* "kvc, llama or raw": all formats, or those that can be written. */
const char *cli_format_names(int writing, char *text, size_t size);
/* Refuses --OPTION=NAME, as there is no such format: says what was meant, or lists the formats and `more`. EXIT_TROUBLE. */
int cli_no_such_format(const char *option, const char *name, int writing, const char *more);

/* Options of formats as they were given: "KEY=VALUE". */
struct cli_settings {
    const char *item[64];
    unsigned n;
};
/* Takes "KEY=VALUE,KEY=VALUE", which --OPTION says, whose keys the format must have. 1: taken, -1: bad (message printed). */
int cli_take_settings(struct cli_settings *s, const struct kvc_format *f, int writing, const char *option, const char *text);
/* Takes an option of formats for writing. 1: taken, 0: not one of them, -1: bad value (message printed). */
int cli_target_option(struct cli_settings *s, int opt, const char *arg);

struct cli_input {
    struct kvc_import_options import;
    struct cli_settings settings; /* of formats, for reading */
    const char *model_path, *weights_path;
    struct kvc_weights *weights; /* opened by the first cli_open() when weights_path is set */
    struct kvc_model model; /* filled by the first cli_open() when model_path is set */
    int has_model;
    int full_fingerprint; /* hash every byte of the weights, not samples */
    int quiet;            /* no notes from cli_open() */
};
/* Opens --weights=FILE, once; it is closed when the program ends. */
int cli_open_weights(struct cli_input *options, struct kvc_error *e);
/* Takes $KVC_MODEL as --model=FILE, which an option replaces. Call before the options are taken. */
void cli_input_environment(struct cli_input *in);
/* Takes one of the options above. 1: taken, 0: not one of them, -1: bad value (message printed). */
int cli_input_option(struct cli_input *in, int opt, const char *arg);

/* Refuses "-" where standard input is a terminal: nobody types a cache. cli_open() and cli_check() call it. */
int cli_refuse_terminal(const char *path, struct kvc_error *e);
/* Opens a path as kvc_open_path() does, with what the options say; kvc_close() it. On failure prints nothing, fills *e and leaves *f
 * empty. A note goes to stderr where --model could not be compared by fingerprints. */
int cli_open(struct kvc_opened *f, const char *path, struct cli_input *options, struct kvc_error *e);

/* Reads all of a file and verifies what can be verified: EXIT_SAME, EXIT_DIFFER for a damaged .kvc, else EXIT_TROUBLE;
 * *e says why. *checksums is 1 for a .kvc, whose message does not name the file yet; other formats have none, so that
 * reading them is all the check there is. *damage lists all of it, for the caller to free, where more can be said than *e
 * does; else it is NULL. */
struct kvc_survey;
int cli_check(const char *path, struct cli_input *options, unsigned threads, int *checksums, struct kvc_survey **damage,
              struct kvc_error *e);
/* The first damage alone, with another way to verify an open .kvc than kvc_container_check(). */
typedef int cli_checker(void *state, const struct kvc_input *in, const struct kvc_cache *c, struct kvc_error *e);
int cli_check_with(const char *path, struct cli_input *options, cli_checker *check, void *state, int *checksums,
                   struct kvc_error *e);

/* Output that appears whole or not at all: a file without a name, or with a temporary one, that cli_output_commit() makes
 * durable and names. path NULL: stdout (refused when it is a terminal, unless force). */
struct cli_output {
    struct kvc_sink sink, raw; /* what callers write to; the descriptor behind it */
    const char *name;          /* for messages; the caller's path, or "standard output" */
    int fd;
    char *path;      /* NULL for standard output and devices */
    char *temporary; /* the name that the file has meanwhile, or NULL */
    const struct timespec *times; /* of last access and modification, for a file to get; NULL: now */
    int force;
};
int cli_output_open(struct cli_output *o, const char *path, int force, unsigned mode, struct kvc_error *e);
/* The same with a temporary name from the start, as cli_output_open() does where the file system needs it. */
int cli_output_open_named(struct cli_output *o, const char *path, int force, unsigned mode, struct kvc_error *e);
int cli_output_commit(struct cli_output *o, struct kvc_error *e);
void cli_output_abandon(struct cli_output *o); /* removes the temporary; safe to call twice */
int cli_output_exists(const char *path); /* 1 when a regular file is there */
/* For --rm: removes an input file whose output is complete, unless the output has taken its place. */
int cli_remove_input(const struct kvc_input *in, struct kvc_error *e);
void cli_output_remove_all(void); /* for signal handlers: removes the temporary of the output in progress */

/* The same of a folder of files, which must not exist. */
struct cli_folder {
    struct kvc_member_sink members; /* what callers write to */
    struct kvc_folder *folder;
    char *path, *temporary;
    int made; /* the temporary folder is there */
};
int cli_folder_open(struct cli_folder *o, const char *path, struct kvc_error *e);
int cli_folder_commit(struct cli_folder *o, struct kvc_error *e);
void cli_folder_abandon(struct cli_folder *o); /* removes the temporary; safe to call twice */

/* Numbers: decimal with optional K, M, G (1024); ranges "A:B", "A:", ":B"; lists "0-3,7". 0, or -1 when malformed. */
int cli_parse_u64(const char *text, uint64_t *v);
int cli_parse_f64(const char *text, double *v);
int cli_parse_range(const char *text, uint64_t *first, uint64_t *end); /* absent end: UINT64_MAX */
/* Sets keep[i] for each number of a list like "0-3,7"; grows *keep; caller frees. */
int cli_parse_list(const char *text, uint8_t **keep, uint32_t *n);

/* Shortest decimal that reads back to the same float / double; "NaN", "Infinity", "-Infinity" otherwise. */
void cli_float_text(float v, char text[32]);
void cli_double_text(double v, char text[32]);
/* "25.8 MB" into text. */
void cli_size_text(uint64_t bytes, char text[32]);

/* A JSON writer: commas, indentation and escapes are its business. One object or array at a time on `out`.
 * Keys are given inside objects and NULL inside arrays. Doubles that JSON cannot say become the strings "NaN",
 * "Infinity" and "-Infinity". Invalid UTF-8 bytes are written as U+FFFD. */
/* `compact`: on one line, until it is 0 again; `lines`: everything. */
struct cli_json { FILE *out; unsigned depth; uint64_t in_array; int first; int compact, lines; };
void cli_json_start(struct cli_json *j, FILE *out);
void cli_json_open(struct cli_json *j, const char *key, char bracket); /* '{' or '[' */
void cli_json_close(struct cli_json *j);
void cli_json_text(struct cli_json *j, const char *key, const char *value); /* NULL: null */
void cli_json_u64(struct cli_json *j, const char *key, uint64_t value);
void cli_json_i64(struct cli_json *j, const char *key, int64_t value);
void cli_json_f64(struct cli_json *j, const char *key, double value);
void cli_json_bool(struct cli_json *j, const char *key, int value);
void cli_json_hex(struct cli_json *j, const char *key, const void *bytes, size_t n);
void cli_json_end(struct cli_json *j); /* newline */
/* The key "error" with an object of `kind` (a word) and `message`. */
void cli_json_error(struct cli_json *j, const struct kvc_error *e);

/* What --json prints: one object with "schema", "tool" and the array "files", an object for each input in order; or, with
 * --json=lines, those objects alone, one a line, each with "schema" and "tool". One that failed has "error". */
struct cli_report { struct cli_json json; int lines; };
/* For the optional argument of --json. 0, or EXIT_TROUBLE (message printed). */
int cli_report_option(const char *arg, int *lines);
void cli_report_start(struct cli_report *r, FILE *out);
/* An input's object, to be filled in; `name` "-" is shown as "(stdin)". */
void cli_report_file(struct cli_report *r, const char *name);
void cli_report_file_end(struct cli_report *r);
void cli_report_failed(struct cli_report *r, const char *name, const struct kvc_error *e);
void cli_report_end(struct cli_report *r);
/* A report without "files": one object, to be filled in. The end closes what is open inside, and adds the error unless NULL. */
void cli_report_alone(struct cli_report *r, FILE *out);
void cli_report_alone_end(struct cli_report *r, const struct kvc_error *e);

#endif
