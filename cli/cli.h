/* cli.h: messages, options, opening of caches, safe output and JSON for all tools. Not for formats.
 */
#ifndef KVC_CLI_H
#define KVC_CLI_H

#include "formats/api/kvc.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#define EXIT_SAME 0
#define EXIT_DIFFER 1
#define EXIT_TROUBLE 2

/* Sets the tool's name ("kvc-dump"), also in argv[0] for the messages of getopt_long(), and handles
 * signals. SIGINT, SIGTERM, SIGHUP and SIGPIPE remove a temporary output file and then end the
 * program as usual; those that are ignored stay ignored. SIGBUS removes it and exits with
 * EXIT_TROUBLE. SIGXFSZ is ignored, so that write() fails. Must be called first in main(). */
void cli_start(char **argv, const char *tool);
const char *cli_tool(void); /* the tool's name */
/* Returns what messages call an operand: "(stdin)" for "-". */
const char *cli_name(const char *path);
/* Prints "kvc-dump: MESSAGE" on stderr. */
void cli_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_error(const struct kvc_error *e);
enum { CLI_ERROR_TEXT = 1200 }; /* bytes of a message */
/* Writes the message into `text`, with the tools' options that would help. Returns `text`. */
const char *cli_error_text(const struct kvc_error *e, char *text, size_t size);
/* Returns the message without "NAME: " before it. */
const char *cli_error_unnamed(const struct kvc_error *e, const char *name);
/* Returns a new error; ends the program where there is no memory for it. kvc_error_free() frees it.
 */
struct kvc_error *cli_error_new(void);
/* Fill *e: there is no memory for `what`; the system refused something. Return -1. */
#define cli_no_memory(e, what) \
    kvc_error_set(e, KVC_ERR_MEMORY, KVC_NEED_NOTHING, "out of memory for %s", what)
#define cli_io_error(e, ...) kvc_error_set(e, KVC_ERR_IO, KVC_NEED_NOTHING, __VA_ARGS__)
#define cli_usage_error(e, ...) kvc_error_set(e, KVC_ERR_USAGE, KVC_NEED_NOTHING, __VA_ARGS__)
/* Returns an array of items of `size` bytes with room for one more than its n; NULL: no memory. */
void *cli_room_for_one(void *array, size_t n, size_t size);
/* Prints a line with the reason and "Try 'kvc-dump --help' for more information." Returns
 * EXIT_TROUBLE. */
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints the line about --help alone, after getopt_long() printed the reason. Returns EXIT_TROUBLE.
 */
int cli_try_help(void);
/* Prints "kvc-dump 1.0.0 (format 1)". `verbose` adds kernels, stages, presets and formats, and
 * calls more() (NULL: nothing), which prints lines about devices. Closes stdout; returns as
 * cli_finish() does. */
int cli_version(int verbose, void (*more)(void));
/* Flushes and closes stdout. Returns EXIT_TROUBLE and prints a message if anything could not be
 * written, else `status`. */
int cli_finish(int status);

/* Options of formats as given: "KEY=VALUE". Their texts live as long as the program, so the struct
 * must be static. */
struct cli_settings {
    const char *item[64];
    unsigned n;
};
struct cli_input {
    struct kvc_open_options open;
    struct cli_settings settings; /* of formats, for reading */
    struct cli_settings facts;    /* of --fact and --scale */
    /* --model and --weights, which the first cli_given_open() opens */
    struct kvc_model *model;
    struct kvc_weights *weights;
    int sampled_fingerprint; /* hash samples of the weights, not every byte */
    int quiet;               /* no notes from cli_open() */
};
/* Opens --model=FILE and --weights=FILE, once, and fills *o with the options of opening. */
int cli_given_open(struct cli_input *in, struct kvc_open_options *o, struct kvc_error *e);
/* Refuses "-" if standard input is a terminal. cli_open() and cli_check() call it. */
int cli_refuse_terminal(const char *path, struct kvc_error *e);
/* Opens a file, a folder or an archive as the options say. Prints its notes on stderr. */
struct kvc_file *cli_open(const char *path, struct cli_input *in, struct kvc_error *e);
/* Prints a note on stderr, with the tools' options that would help: a kvc_note_fn. */
kvc_note_fn cli_note;

/* Token ids that the user gives: kvc-dump --match, kvc-store. */
struct cli_token_ids {
    int32_t *id; /* the caller frees them, also after a failure */
    uint64_t n;
};
/* Reads them from a file as kvc_token_ids_read() does; `in` is for a cache file. */
int cli_token_ids(struct cli_token_ids *ids, const char *path, const struct cli_input *in,
                  struct kvc_error *e);

/* Reads all of a file and checks it, by check() or where that is NULL by kvc_file_check(). Returns
 * EXIT_SAME, EXIT_DIFFER for a damaged .kvc, or EXIT_TROUBLE; *e says why. report->has_checksums is
 * 1 for a .kvc, and then the message does not name the file. The caller closes report->damaged. */
int cli_check(const char *path, struct cli_input *in, unsigned threads, kvc_check_fn *check,
              void *state, struct kvc_check_report *report, struct kvc_error *e);

/* An output file that appears complete or not at all. It has no name, or a temporary name, until
 * cli_output_commit() makes it durable and names it. path NULL: stdout, which is refused if it is a
 * terminal, except with `force`. */
struct cli_output {
    const char *name;  /* for messages: the caller's path, or "standard output" */
    int fd;            /* -1: the output goes nowhere */
    uint64_t offset;   /* bytes that cli_output_write() wrote */
    atomic_int failed; /* errno of a write that failed; 0: none did */
    /* is told of written bytes, from any thread; NULL: is not called */
    void (*count)(void *state, size_t n);
    void *count_state;
    char *path;                   /* NULL for standard output and devices */
    char *temporary;              /* the file's name until it is committed, or NULL */
    const struct timespec *times; /* of last access and modification that a file gets; NULL: now */
    int force;
};
int cli_output_open(struct cli_output *o, const char *path, int force, unsigned mode,
                    struct kvc_error *e);
/* Opens with a temporary name, as cli_output_open() does only on file systems that have no files
 * without names. */
int cli_output_open_named(struct cli_output *o, const char *path, int force, unsigned mode,
                          struct kvc_error *e);
/* Write, as kvc_write_fn and kvc_put_fn do; `state` is the struct cli_output. */
kvc_write_fn cli_output_write;
kvc_put_fn cli_output_put;
/* Returns cli_output_put() where the output takes bytes in any order, or NULL. */
kvc_put_fn *cli_output_any_order(const struct cli_output *o);
/* Fails, and leaves the output, also where its name alone is not durable: cli_sync_name(). */
int cli_output_commit(struct cli_output *o, struct kvc_error *e);
void cli_output_abandon(struct cli_output *o); /* removes the temporary file; may be called twice */
/* Commits an output, or where `status` says that writing failed, says in *e why. Abandons what is
 * not committed. Returns 0, or another number after a failure. */
int cli_output_end(struct cli_output *o, int status, struct kvc_error *e);
/* Opens the folder of a path. Returns a descriptor, or -1. */
int cli_directory_of(const char *path, int flags, struct kvc_error *e);
/* Makes the name durable that a complete output has got in its folder. After a failure the output
 * stays, because what it replaced is gone; its input must stay as well. */
int cli_sync_name(int dir, const char *path, struct kvc_error *e);
int cli_output_exists(const char *path); /* 1 if path is a regular file */
/* Makes the folders that a path names before its last slash. The path is the same afterwards. */
int cli_make_folders(char *path, struct kvc_error *e);
/* for signal handlers: removes the temporary file of the open output */
void cli_output_remove_all(void);

/* An output folder of several files that appears complete or not at all. It must not exist. Signals
 * leave its temporary folder. */
struct cli_folder {
    char *path, *temporary; /* callers write into the latter */
    int made;               /* it exists */
};
int cli_folder_exists(const char *path); /* 1 if path is a folder */
int cli_folder_open(struct cli_folder *o, const char *path, struct kvc_error *e);
int cli_folder_commit(struct cli_folder *o, struct kvc_error *e);
/* removes the temporary folder; may be called twice */
void cli_folder_abandon(struct cli_folder *o);

/* Parse decimal numbers with an optional K, M or G (powers of 1024), and ranges "A:B", "A:", ":B".
 * 0, or -1 if malformed. */
int cli_parse_u64(const char *text, uint64_t *v);
int cli_parse_f64(const char *text, double *v);
int cli_parse_range(const char *text, uint64_t *first, uint64_t *end); /* absent end: UINT64_MAX */
/* Take a range "A:B" of tokens, positions A to B-1, at least one of them; and a list like "0-3,7"
 * of layers, as cli_parse_list() does. `before` is the option as typed, "--tokens=". 0, or
 * EXIT_TROUBLE (message printed, which says how to write the one in place of the other). */
int cli_take_range(const char *before, const char *arg, uint64_t *first, uint64_t *end);
int cli_take_list(const char *before, const char *arg, uint8_t **keep, uint32_t *n);
/* Sets keep[i] for each number i of a list like "0-3,7". Grows *keep, which the caller frees. 0, or
 * -1 if malformed. */
int cli_parse_list(const char *text, uint8_t **keep, uint32_t *n);

/* Write the shortest decimal that reads back as the same number, or "NaN", "Infinity", "-Infinity".
 */
void cli_float_text(float v, char text[32]);
void cli_double_text(double v, char text[32]);
/* Writes bytes as "25.8 MB", in powers of 1000. */
void cli_size_text(uint64_t bytes, char text[32]);
/* Has cli_size_text() write "24.6 MiB", in powers of 1024: for a tool whose options take sizes so.
 */
void cli_sizes_by_1024(void);
/* Returns how a noun ends after the number n. */
static inline const char *cli_s(uint64_t n) {
    return n == 1 ? "" : "s";
}

/* A writer of JSON: adds commas, indentation and escapes. `key` is NULL inside arrays. Doubles that
 * JSON cannot represent become the strings "NaN", "Infinity" and "-Infinity". Invalid UTF-8 bytes
 * become U+FFFD. */
struct cli_json {
    FILE *out;
    unsigned depth;
    uint64_t in_array;
    int first;
    int compact; /* write on one line until it is 0 again */
    int lines;   /* write everything on one line */
};
void cli_json_start(struct cli_json *j, FILE *out);
void cli_json_open(struct cli_json *j, const char *key, char bracket); /* '{' or '[' */
void cli_json_close(struct cli_json *j);
void cli_json_text(struct cli_json *j, const char *key, const char *value); /* NULL: null */
void cli_json_u64(struct cli_json *j, const char *key, uint64_t value);
void cli_json_i64(struct cli_json *j, const char *key, int64_t value);
void cli_json_f64(struct cli_json *j, const char *key, double value);
/* Prints the text of a number as a value of JSON; one that is not finite is a text there. */
void cli_json_number(FILE *out, const char *text, int is_finite);
void cli_json_bool(struct cli_json *j, const char *key, int value);
void cli_json_hex(struct cli_json *j, const char *key, const void *bytes, size_t n);
void cli_json_end(struct cli_json *j); /* newline */
/* Adds the key "error": an object of `kind` (a word) and `message`. */
void cli_json_error(struct cli_json *j, const struct kvc_error *e);

/* The report of --json: one object with "schema", "tool" and the array "files", which has an object
 * for each input in order. With
 * --json=lines, each of these objects is a line with "schema" and "tool". The object of an input
 * that failed has "error". */
struct cli_report {
    struct cli_json json;
    int lines;
};
void cli_report_start(struct cli_report *r, FILE *out);
/* Opens an input's object, which the caller fills; `name` "-" is written as "(stdin)". */
void cli_report_file(struct cli_report *r, const char *name);
void cli_report_file_end(struct cli_report *r);
void cli_report_failed(struct cli_report *r, const char *name, const struct kvc_error *e);
/* Ends the array "files" and opens the object "total", which the caller fills and closes before
 * cli_report_end(). Returns NULL for --json=lines, which has no totals. */
struct cli_json *cli_report_total(struct cli_report *r);
void cli_report_end(struct cli_report *r);
/* Opens a report of one object without "files", which the caller fills. The end closes everything
 * inside, and adds the error unless it is NULL. */
void cli_report_alone(struct cli_report *r, FILE *out);
void cli_report_alone_end(struct cli_report *r, const struct kvc_error *e);

#endif
