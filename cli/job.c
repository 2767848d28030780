/* job.c: opens inputs and completes outputs of kvc-pack and kvc-unpack. Not for packing or
 * unpacking. */
#include "cli/job.h"
#include "cli/progress.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file that is converted. */
struct job_input {
    const struct kvc_file *f;
    struct kvc_source_info source;
    unsigned mode; /* for the output */
    int is_named;  /* its path is a regular file, of which this was known before it was opened */
    struct stat was;
};

static int take_suffix(const struct cli_option *o, void *state, const char *arg) {
    struct cli_job *j = state;
    j->suffix = arg;
    if (*arg && !strchr(arg, '/')) return 0;
    return cli_usage("--%s=%s: a suffix is not empty and has no slash", o->name, arg);
}

const struct cli_option job_options[] = {
    {"output", 'o', "OUTPUT", "write to OUTPUT", CLI_TEXT(struct cli_job, output)},
    {"stdout", 'c', NULL, "write to standard output", CLI_FLAG(struct cli_job, to_stdout)},
    {"output-dir", 0, "FOLDER",
     "write to files in FOLDER, which is made if need be; files below a folder keep their places",
     CLI_TEXT(struct cli_job, output_dir)},
    {"suffix", 0, "SUFFIX", "the suffix of containers (default .kvc)", .take = take_suffix},
    {"force", 'f', NULL, "replace existing files, write to a terminal",
     CLI_FLAG(struct cli_job, force)},
    {"keep", 'k', NULL, "keep the input (default)", CLI_SETS(struct cli_job, remove, 0)},
    {"rm", 0, NULL, "remove each input after its output is complete",
     CLI_FLAG(struct cli_job, remove)},
    {"skip-existing", 0, NULL, "skip inputs whose output exists; no error",
     CLI_FLAG(struct cli_job, skip_existing)},
    {"threads", 'T', "N", "threads (default 0: one per core)", .take = cli_take_threads,
     .field = offsetof(struct cli_job, threads), .max = JOB_MOST_THREADS},
    {"json", 0, "[=lines]", "print a report as JSON; lines: an object a line",
     CLI_CHOICE(struct cli_job, report.lines, "lines"), .min = 1},
    {"quiet", 'q', NULL, "print errors only; no notes, no progress",
     CLI_FLAG(struct cli_job, input.quiet)},
    {"verbose", 'v', NULL, "print what was done to each file", CLI_FLAG(struct cli_job, verbose)},
    {.name = NULL},
};

static const char json_needs_stdout[] = "--json needs standard output for its report: use -o FILE";

int job_collect(struct cli_job *j, int n, char **operand) {
    if (cli_threads_environment(JOB_MOST_THREADS, &j->threads)) return EXIT_TROUBLE;
    j->json = cli_given("json");
    j->files.suffix[0] = ".kvc";
    j->files.suffix[1] = j->files.others ? ".kvcp" : NULL;
    j->files.suffix[j->files.others ? 2 : 1] = j->suffix;
    return cli_files_collect(&j->files, n, operand);
}

int job_check(struct cli_job *j) {
    const int n = j->files.n;
    int inputs_from_stdin = !n && !j->files.named;
    for (int i = 0; i < n; i++) inputs_from_stdin += strcmp(j->files.path[i], "-") == 0;
    if (inputs_from_stdin > 1) return cli_usage("standard input can be read only once");
    if (j->output && j->to_stdout) return cli_usage("-o and -c exclude each other");
    if (j->output_dir && (j->output || j->to_stdout))
        return cli_usage("--output-dir excludes -o and -c");
    if (j->output_dir && inputs_from_stdin)
        return cli_usage("--output-dir has no name for standard input: use -o FILE");
    if (j->skip_existing && j->force) return cli_usage("--skip-existing and -f exclude each other");
    if (j->output && strcmp(j->output, "-") == 0) {
        j->output = NULL;
        j->to_stdout = 1;
    }
    if ((j->output || j->to_stdout) && n > 1 && !j->joins)
        return cli_usage("-%c takes one input, not %d", j->output ? 'o' : 'c', n);
    if (!n && !j->files.named && !j->output) j->to_stdout = 1;
    if (j->json && j->to_stdout && !j->test) return cli_usage("%s", json_needs_stdout);
    return 0;
}

struct kvc_source_info job_source(const struct kvc_file *f) {
    struct kvc_source_info source = {.size = sizeof source};
    kvc_file_source(f, &source);
    return source;
}

void job_skip(struct cli_job *j, const char *path) {
    j->total.skipped++;
    if (!j->json) return;
    cli_report_file(&j->report, path);
    cli_json_bool(&j->report.json, "skipped", 1);
    cli_report_file_end(&j->report);
}

static int ends_in_tar(const char *path) {
    const size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".tar") == 0;
}

/* Writes an output that is a folder. --rm is refused, because folders below it are not made
 * durable. */
static int convert_to_folder(struct cli_job *j, const char *target, const struct job_input *in,
                             struct kvc_error *e) {
    struct cli_folder out;
    if (j->remove)
        return cli_usage_error(
            e, "%s: --rm removes no input whose output is a folder: use -o FILE.tar",
            in->source.name);
    if (cli_folder_open(&out, target, e)) return -1;
    if (j->write_folder(j->state, in->f, out.temporary, e)) {
        kvc_error_about(e, in->source.name);
        cli_folder_abandon(&out);
        return -1;
    }
    j->total.out += j->bytes;
    return cli_folder_commit(&out, e);
}

/* Refuses --rm for an input that is a folder or an archive: unpacking does not restore its links,
 * times and modes. */
static int refuse_removal(const struct cli_job *j, const struct job_input *in,
                          struct kvc_error *e) {
    if (!j->remove || in->source.is_file) return 0;
    return cli_usage_error(e, "%s: --rm removes single files, not folders or archives",
                           in->source.name);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(a, b);
}

/* For --rm: removes an input file, except if the output replaced it. */
static int remove_input(const char *path, const struct job_input *in, struct kvc_error *e) {
    struct stat st;
    if (!in->is_named || stat(path, &st)) return 0;
    if (st.st_dev != in->was.st_dev || st.st_ino != in->was.st_ino || !unlink(path)) return 0;
    return cli_io_error(e, "%s: cannot be removed: %s", path, strerror(errno));
}

/* Opens, writes and completes an output file, or writes to nowhere with -t. */
static int convert_to_file(struct cli_job *j, const char *path, const char *target,
                           const struct job_input *in, struct kvc_error *e) {
    const struct timespec times[2] = {in->was.st_atim, in->was.st_mtim};
    struct cli_output out = {.fd = -1};
    if (!j->test && cli_output_open(&out, target, j->force, in->mode, e)) return -1;
    const int is_file = out.path != NULL;
    out.times = in->is_named ? times : NULL;
    const int failed = j->write(j->state, in->f, &out, e);
    int status = j->test ? failed : cli_output_end(&out, failed, e);
    if (failed) kvc_error_about(e, in->source.name);
    if (!status && j->remove && is_file) status = remove_input(path, in, e);
    if (!status) j->total.out += j->bytes;
    return status;
}

/* Returns the name of an input's output: the default name, below --output-dir if that is given. The
 * caller frees it. */
static char *output_name(struct cli_job *j, const char *path, const struct job_input *in,
                         struct kvc_error *e) {
    char *name = j->name(j->state, path, in->f, e), *below = NULL;
    if (name && j->output_dir) {
        if (asprintf(&below, "%s/%s", j->output_dir, name + j->below) < 0) {
            below = NULL;
            cli_no_memory(e, "a name");
        }
        free(name);
        name = below;
    }
    if (name && !j->test && tfind(name, &j->written, compare_names)) {
        cli_usage_error(e, "%s: its output %s is that of another input", in->source.name, name);
        free(name);
        name = NULL;
    }
    return name;
}

/* Names, opens, writes and completes the output of an open input. */
static int convert(struct cli_job *j, const char *path, int to_stdout, const struct job_input *in,
                   struct kvc_error *e) {
    char *name = j->output || to_stdout ? NULL : output_name(j, path, in, e);
    const char *target = j->output ? j->output : name;
    int status = target || to_stdout ? 0 : -1;
    j->target = target;
    const int to_folder = target && !j->test && !ends_in_tar(target) && j->is_folder &&
                          j->is_folder(j->state, in->f);
    if (target && j->skip_existing &&
        (to_folder ? cli_folder_exists(target) : cli_output_exists(target))) {
        job_skip(j, in->source.name);
        free(name);
        return 0;
    }
    if (!status) status = refuse_removal(j, in, e);
    if (!status && j->before) j->before(j->state, path, in->f);
    j->from = in->source.bytes;
    if (!status && name && j->output_dir && !j->test) status = cli_make_folders(name, e);
    if (!status)
        status = to_folder ? convert_to_folder(j, target, in, e)
                           : convert_to_file(j, path, target, in, e);
    if (!status) {
        j->total.in += j->from;
        j->done(j->state, in->f);
        /* belongs to the tree */
        if (name && !j->test && tsearch(name, &j->written, compare_names)) name = NULL;
    }
    free(name);
    return status;
}

/* Looks at a file before it is opened: files of /proc have size 0, and pipes no mode. */
static void look_at(struct job_input *in, const struct cli_job *j, const char *path) {
    const int is_stdin = strcmp(path, "-") == 0,
              found = is_stdin ? fstat(STDIN_FILENO, &in->was) : stat(path, &in->was);
    const int is_regular = !j->joins && !found && S_ISREG(in->was.st_mode) && in->was.st_size;
    in->mode = is_regular ? in->was.st_mode & 07777 : 0666;
    in->is_named = is_regular && !is_stdin;
}

int job_file(struct cli_job *j, const char *path, struct kvc_error *e) {
    struct job_input in = {.f = NULL};
    int to_stdout = j->to_stdout || (strcmp(path, "-") == 0 && !j->output);
    if (to_stdout && j->json && !j->test) return cli_usage_error(e, "%s", json_needs_stdout);
    look_at(&in, j, path);
    struct kvc_file *f = j->open ? j->open(j->state, path, e) : cli_open(path, &j->input, e);
    if (!f) return -1;
    in.f = f;
    in.source = job_source(f);
    int status = convert(j, path, to_stdout, &in, e);
    kvc_file_close(f);
    return status;
}

/* Prints "20 files: 93.1 MB -> 77.2 MB (1.206), 2 failed, 3 skipped, 1.20 s". */
static void say_total(const struct cli_job *j, int n) {
    const struct cli_job_total *t = &j->total;
    char from[32], to[32], sizes[96] = "", failed[32] = "", skipped[32] = "";
    cli_size_text(t->in, from);
    cli_size_text(t->out, to);
    if (t->out)
        snprintf(sizes, sizeof sizes, ": %s -> %s (%.3f)", from, to,
                 (double)t->in / (double)t->out);
    if (t->failed) snprintf(failed, sizeof failed, ", %u failed", t->failed);
    if (t->skipped) snprintf(skipped, sizeof skipped, ", %u skipped", t->skipped);
    cli_warn("%d files%s%s%s, %.2f s", n, sizes, failed, skipped, cli_now() - t->start);
}

int job_run(struct cli_job *j,
            int (*one)(struct cli_job *j, const char *path, struct kvc_error *e)) {
    static char standard_input[] = "-";
    const int n = j->joins || (!j->files.n && !j->files.named) ? 1 : j->files.n;
    struct kvc_error *e = cli_error_new();
    int worst = EXIT_SAME;
    j->total = (struct cli_job_total){.start = cli_now()};
    if (j->json) cli_report_start(&j->report, stdout);
    for (int i = 0; i < n; i++) {
        j->below = j->files.n ? j->files.below[i] : 0;
        int status = one(j, j->files.n ? j->files.path[i] : standard_input, e);
        if (status > worst) worst = status;
        if (status != EXIT_SAME) j->total.failed++;
    }
    if (j->verbose && n > 1) say_total(j, n);
    if (j->json) cli_report_end(&j->report);
    tdestroy(j->written, free);
    kvc_error_free(e);
    cli_files_free(&j->files);
    return worst;
}
