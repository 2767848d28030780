/* job.h: inputs, outputs and their options, for kvc-pack and kvc-unpack. Not for packing or
 * unpacking a file. */
#ifndef KVC_JOB_H
#define KVC_JOB_H

#include "cli/file_list.h"
#include "cli/input_options.h"

enum { JOB_MOST_THREADS = 1024 };

struct cli_job {
    struct cli_input input;
    struct cli_files files;
    const char *output, *output_dir;
    const char *suffix; /* of containers; the tool sets ".kvc" */
    int to_stdout, force, remove, skip_existing, verbose, test, json;
    unsigned threads;
    struct cli_report report; /* if json is set */
    struct cli_job_total {
        unsigned failed, skipped;
        /* bytes of the converted inputs and of their outputs, as `from` and `bytes` of each */
        uint64_t in, out;
        double start;
    } total;

    size_t below;  /* bytes of the current input's path that --output-dir replaces */
    void *written; /* tsearch(): names of outputs */

    int joins; /* all operands are one input, which open() opens */

    void *state; /* the tool's own state, for the functions below */
    /* Opens an input as cli_open() does; NULL: cli_open(). */
    struct kvc_file *(*open)(void *state, const char *path, struct kvc_error *e);
    /* Returns the default name of the output of an input; the caller frees it. */
    char *(*name)(void *state, const char *path, const struct kvc_file *f, struct kvc_error *e);
    /* Is called before an output is opened; NULL: nothing is. */
    void (*before)(void *state, const char *path, const struct kvc_file *f);
    /* Writes the output of an input, and counts its bytes in `bytes`. */
    int (*write)(void *state, const struct kvc_file *f, struct cli_output *out,
                 struct kvc_error *e);
    /* For inputs with several output files: is_folder() returns 1 for such an input, and
     * write_folder() writes the files into a folder. NULL: each input has one output file. */
    int (*is_folder)(void *state, const struct kvc_file *f);
    int (*write_folder)(void *state, const struct kvc_file *f, const char *folder,
                        struct kvc_error *e);
    /* Reports a finished input according to job->json and job->verbose. */
    void (*done)(void *state, const struct kvc_file *f);
    uint64_t bytes; /* of the current output */
    /* bytes of the input that the total sets against them: the decompressed source's, unless
     * write() says of what its ratio is */
    uint64_t from;
    const char *target; /* its path; NULL: standard output */
};

/* Returns where a file came from. */
struct kvc_source_info job_source(const struct kvc_file *f);

/* The options; their state is a struct cli_job. */
extern const struct cli_option job_options[];
/* Takes $KVC_THREADS, collects the inputs as j->files, and checks -o, -c and standard output for
 * them. 0, or EXIT_TROUBLE (message printed). */
int job_collect(struct cli_job *j, int n, char **operand);
int job_check(struct cli_job *j);
/* Counts and reports an input that is left out. */
void job_skip(struct cli_job *j, const char *path);
/* Converts an input to its output, or with job->test to nowhere. The output appears complete or not
 * at all. */
int job_file(struct cli_job *j, const char *path, struct kvc_error *e);
/* Calls `one` for each input, or for standard input if none was asked for; if all are joined, once.
 * `one` prints messages, reports with json and returns an exit status. Returns the worst status,
 * and frees j->files. */
int job_run(struct cli_job *j,
            int (*one)(struct cli_job *j, const char *path, struct kvc_error *e));

#endif
