/* job.h: what kvc-pack and kvc-unpack have in common: files in, files out, and the options about that. Not for what is
 * done to a file. */
#ifndef KVC_JOB_H
#define KVC_JOB_H

#include "cli/cli.h"

enum { JOB_OPT_RM = CLI_OPT_FREE, JOB_OPT_JSON, JOB_OPT_SKIP, JOB_OPT_FREE = CLI_OPT_FREE + 20 };

#define JOB_SHORT "o:cfkqvtT:hV"
#define JOB_OPTIONS                               \
    {"output", required_argument, NULL, 'o'},     \
    {"stdout", no_argument, NULL, 'c'},           \
    {"force", no_argument, NULL, 'f'},            \
    {"keep", no_argument, NULL, 'k'},             \
    {"rm", no_argument, NULL, JOB_OPT_RM},        \
    {"skip-existing", no_argument, NULL, JOB_OPT_SKIP}, \
    {"quiet", no_argument, NULL, 'q'},            \
    {"verbose", no_argument, NULL, 'v'},          \
    {"test", no_argument, NULL, 't'},             \
    {"threads", required_argument, NULL, 'T'},    \
    {"json", optional_argument, NULL, JOB_OPT_JSON},    \
    {"help", no_argument, NULL, 'h'},             \
    {"version", no_argument, NULL, 'V'}

struct job {
    struct cli_input input;
    const char *output;
    int to_stdout, force, remove, skip_existing, verbose, test, json, version, help;
    unsigned threads;
    struct cli_report report; /* with json */
    struct job_total {
        unsigned failed, skipped;
        uint64_t in, out; /* bytes of the inputs that became outputs, after decompression, and of these */
        double start;
    } total;

    void *state; /* the tool's own, handed to the functions below */
    /* The output's default name for an input; the caller frees it. */
    char *(*name)(void *state, const char *path, const struct kvc_input *in, struct kvc_error *e);
    /* Writes what becomes of one input. */
    int (*write)(void *state, const struct kvc_opened *f, struct kvc_sink *out, struct kvc_error *e);
    /* Where an input may become several files: 1 when this one does, and writes them. NULL: each becomes one file. */
    int (*is_folder)(void *state, const struct kvc_opened *f);
    int (*write_members)(void *state, const struct kvc_opened *f, const struct kvc_member_sink *out, struct kvc_error *e);
    /* Says what was done, as job->json and job->verbose ask for. */
    void (*done)(void *state, const struct kvc_opened *f);
};

/* Seconds of a clock that only goes forward. */
double job_now(void);

/* Takes one of the options above or of CLI_INPUT_OPTIONS: 1 taken, 0 not one of them, -1 bad value (message printed). */
int job_option(struct job *j, int opt, const char *arg);
/* Settles -o, -c and standard output for n operands; 0, or EXIT_TROUBLE (message printed). */
int job_check(struct job *j, int n, char **paths);
/* One input to its output (with job->test: to nowhere): the output appears whole or not at all. */
int job_file(struct job *j, const char *path, struct kvc_error *e);
/* Runs `one` on each operand (standard input when there is none), which returns an exit status after printing its own
 * message and reporting with json; returns the worst. */
int job_run(struct job *j, int n, char **paths, int (*one)(struct job *j, const char *path));

#endif
