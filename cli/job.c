/* job.c: opens inputs and completes outputs of kvc-pack and kvc-unpack. Not for packing or
 * unpacking. */
#include "cli/job.h"

#include "formats/io/make_folders.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double job_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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

static int discard(void *state, const void *data, size_t n, struct kvc_error *e) {
    (void)state, (void)data, (void)n, (void)e;
    return 0;
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
static int convert_to_folder(struct cli_job *j, const char *target, const struct kvc_opened *f,
                             struct kvc_error *e) {
    struct cli_folder out;
    if (j->remove)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: --rm removes no input whose output is a folder: use -o FILE.tar",
                        f->input.name);
    if (cli_folder_open(&out, target, e)) return -1;
    if (j->write_members(j->state, f, &out.members, e)) {
        cli_error_about(e, f->input.name);
        cli_folder_abandon(&out);
        return -1;
    }
    j->total.out += out.members.out->offset;
    return cli_folder_commit(&out, e);
}

/* Refuses --rm for an input that is a folder or an archive: unpacking does not restore its links,
 * times and modes. */
static int refuse_removal(const struct cli_job *j, const struct kvc_opened *f,
                          struct kvc_error *e) {
    if (!j->remove || f->bundle.is_file) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "%s: --rm removes single files, not folders or archives",
                    f->input.name);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Opens, writes and completes an output file, or writes to nowhere with -t. */
static int convert_to_file(struct cli_job *j, const char *target, const struct kvc_opened *f,
                           struct kvc_error *e) {
    struct cli_output out = {.fd = -1};
    struct kvc_sink nowhere = {.write = discard};
    if (!j->test && cli_output_open(&out, target, j->force, f->input.mode, e)) return -1;
    const int is_file = out.path != NULL;
    out.times = f->input.has_times ? f->input.times : NULL;
    int status = j->write(j->state, f, j->test ? &nowhere : &out.sink, e);
    if (status) cli_error_about(e, f->input.name);
    else if (!j->test) status = cli_output_commit(&out, e);
    if (status && !j->test) cli_output_abandon(&out);
    if (!status && j->remove && is_file) status = cli_remove_input(&f->input, e);
    if (!status) j->total.out += j->test ? nowhere.offset : out.sink.offset;
    return status;
}

/* Returns the name of an input's output: the default name, below --output-dir if that is given. The
 * caller frees it. */
static char *output_name(struct cli_job *j, const char *path, const struct kvc_opened *f,
                         struct kvc_error *e) {
    char *name = j->name(j->state, path, f, e), *below = NULL;
    if (name && j->output_dir) {
        if (asprintf(&below, "%s/%s", j->output_dir, name + j->below) < 0) {
            below = NULL;
            kvc_fail_memory(e, "a name");
        }
        free(name);
        name = below;
    }
    if (name && !j->test && tfind(name, &j->written, compare_names)) {
        kvc_fail(e, KVC_ERR_USAGE, "%s: its output %s is that of another input", f->input.name,
                 name);
        free(name);
        name = NULL;
    }
    return name;
}

/* Names, opens, writes and completes the output of an open input. */
static int convert(struct cli_job *j, const char *path, int to_stdout, const struct kvc_opened *f,
                   struct kvc_error *e) {
    char *name = j->output || to_stdout ? NULL : output_name(j, path, f, e);
    const char *target = j->output ? j->output : name;
    int status = target || to_stdout ? 0 : -1;
    const int to_folder = target && !j->test && !ends_in_tar(target) && j->is_folder &&
                          j->is_folder(j->state, f);
    if (target && j->skip_existing &&
        (to_folder ? cli_folder_exists(target) : cli_output_exists(target))) {
        job_skip(j, f->input.name);
        free(name);
        return 0;
    }
    if (!status) status = refuse_removal(j, f, e);
    if (!status && name && j->output_dir && !j->test)
        status = kvc_make_folders(name, 1, e); /* a slash at its begin is the root's */
    if (!status)
        status = to_folder ? convert_to_folder(j, target, f, e) : convert_to_file(j, target, f, e);
    if (!status) {
        j->total.in += kvc_opened_size(f);
        j->done(j->state, f);
        /* belongs to the tree */
        if (name && !j->test && tsearch(name, &j->written, compare_names)) name = NULL;
    }
    free(name);
    return status;
}

int job_file(struct cli_job *j, const char *path, struct kvc_error *e) {
    struct kvc_opened f;
    int to_stdout = j->to_stdout || (strcmp(path, "-") == 0 && !j->output);
    if (to_stdout && j->json && !j->test)
        return kvc_fail(e, KVC_ERR_USAGE, "%s", json_needs_stdout);
    if (j->open ? j->open(j->state, &f, path, e) : cli_open(&f, path, &j->input, e)) return -1;
    int status = convert(j, path, to_stdout, &f, e);
    kvc_close(&f);
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
    cli_warn("%d files%s%s%s, %.2f s", n, sizes, failed, skipped, job_now() - t->start);
}

int job_run(struct cli_job *j, int (*one)(struct cli_job *j, const char *path)) {
    static char standard_input[] = "-";
    const int n = j->joins || (!j->files.n && !j->files.named) ? 1 : j->files.n;
    int worst = EXIT_SAME;
    j->total = (struct cli_job_total){.start = job_now()};
    if (j->json) cli_report_start(&j->report, stdout);
    for (int i = 0; i < n; i++) {
        j->below = j->files.n ? j->files.below[i] : 0;
        int status = one(j, j->files.n ? j->files.path[i] : standard_input);
        if (status > worst) worst = status;
        if (status != EXIT_SAME) j->total.failed++;
    }
    if (j->verbose && n > 1) say_total(j, n);
    if (j->json) cli_report_end(&j->report);
    tdestroy(j->written, free);
    cli_files_free(&j->files);
    return worst;
}
