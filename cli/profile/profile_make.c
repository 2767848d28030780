/* profile_make.c: kvc-profile make, which becomes the program in Python that runs the model
 * (share/make_profile). Not for what it measures, nor for learning from caches (profile_keep.c). */
#include "cli/profile/profile_tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef KVC_DATA
#define KVC_DATA "/usr/local/share/kvc"
#endif
#define PROGRAM "make_profile"

enum { PATH_SIZE = 4096, MOST_ARGUMENTS = 40 /* beside texts */ };

/* The command line of the program, freed by free_words(). */
struct command_line {
    char **word;
    size_t n;
    int failed; /* there was no memory for a word */
};

__attribute__((format(printf, 2, 3))) static void add(struct command_line *c, const char *format,
                                                      ...) {
    va_list list;
    va_start(list, format);
    if (vasprintf(&c->word[c->n], format, list) < 0) c->failed = 1;
    else c->n++;
    va_end(list);
}

static void free_words(struct command_line *c) {
    for (size_t i = 0; i < c->n; i++) free(c->word[i]);
    free(c->word);
}

/* Writes the path of a file that is named from the folder of this tool. Returns whether it is
 * there. */
static int beside(const char *self, const char *file, char path[PATH_SIZE]) {
    const char *slash = strrchr(self, '/');
    const int n = snprintf(path, PATH_SIZE, "%.*s%s", slash ? (int)(slash + 1 - self) : 0, self,
                           file);
    return n < PATH_SIZE && access(path, R_OK) == 0;
}

/* Finds the program: of a kvc that is not installed, of one that was moved, or where it was
 * installed. */
static int find_program(const char *self, char path[PATH_SIZE]) {
    if (beside(self, "share/" PROGRAM, path)) return 1;
    if (beside(self, "../share/kvc/" PROGRAM, path)) return 1;
    snprintf(path, PATH_SIZE, "%s", KVC_DATA "/" PROGRAM);
    return access(path, R_OK) == 0;
}

/* Adds where an interrupted run goes on: beside the output, or in the folder of profiles. */
static int add_state(struct command_line *c, const struct profile_tool *t) {
    char folder[PATH_SIZE];
    const char *model = t->operand[0];
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/') n--;
    const char *name = memrchr(model, '/', n);
    name = name && n > 1 ? name + 1 : model;
    if (t->output) return 0;
    if (!kvc_shared_profile_folder(folder, sizeof folder)) return -1;
    add(c, "--state=%s/%.*s.making", folder, (int)(n - (size_t)(name - model)), name);
    return 0;
}

static void add_numbers(struct command_line *c, const struct profile_tool *t) {
    const struct {
        const char *name;
        unsigned value;
    } number[] = {{"back", t->back},       {"threads", t->threads},
                  {"measure", t->measure}, {"tokens", t->tokens},
                  {"samples", t->samples}, {"predict-tokens", t->predict_tokens}};
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        if (number[i].value) add(c, "--%s=%u", number[i].name, number[i].value);
}

static int no_memory(void) {
    cli_warn("out of memory for a command line");
    return EXIT_TROUBLE;
}

/* Fills the command line. Returns -1 where there is no folder for an interrupted run. */
static int fill(struct command_line *c, struct profile_tool *t, const char *self,
                const char *program) {
    add(c, "python3");
    add(c, "-B"); /* its folder may be the system's */
    add(c, "%s", program);
    add(c, "--kvc-profile=%s", self);
    add_numbers(c, t);
    if (t->resume) add(c, "--resume");
    if (t->float32) add(c, "--float32");
    if (t->force) add(c, "--force");
    if (t->input.quiet) add(c, "--quiet");
    if (t->json) add(c, t->lines ? "--json=lines" : "--json");
    if (t->output) add(c, "--output=%s", t->output);
    if (add_state(c, t)) return -1;
    add(c, "--");
    for (int i = 0; i < t->n; i++) add(c, "%s", t->operand[i]);
    return 0;
}

/* Becomes the program. Returns only in failure. */
static int become(char **words) {
    fflush(stdout);
    execvp(words[0], words);
    if (errno == ENOENT)
        cli_warn("make runs python3, which no folder of PATH has: install Python 3.10 or newer, "
                 "and for it the packages torch, transformers and safetensors");
    else cli_warn("python3 cannot be run: %s", strerror(errno));
    return EXIT_TROUBLE;
}

/* Runs the program with what was asked of this tool. Returns only in failure. */
static int run_program(struct profile_tool *t, const char *self, const char *program) {
    struct command_line c = {
        .word = calloc((size_t)t->n + MOST_ARGUMENTS, sizeof *c.word),
    };
    if (!c.word) return no_memory();
    int status;
    if (fill(&c, t, self, program))
        status = cli_usage("there is no folder for profiles (kvc-profile(5)): use -o FILE");
    else if (c.failed) status = no_memory();
    else status = become(c.word);
    free_words(&c);
    return status;
}

static int cannot_read(const char *path) {
    cli_warn("%s: %s", path, strerror(errno));
    return EXIT_TROUBLE;
}

int profile_make(struct profile_tool *t) {
    char self[PATH_SIZE], program[PATH_SIZE];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    if (t->n < 2) return cli_usage("make needs a model, and texts that it reads");
    if (!t->back) return cli_usage("make always adds predictors: --back is 1 to 7");
    if (t->output && strcmp(t->output, "-") == 0)
        return cli_usage("make may be interrupted, and goes on beside its output: use -o FILE");
    if (t->output && !t->force && cli_output_exists(t->output))
        return cli_usage("%s exists already: use -f to replace it", t->output);
    for (int i = 0; i < t->n; i++)
        if (access(t->operand[i], R_OK)) return cannot_read(t->operand[i]);
    if (!find_program(self, program)) {
        cli_warn("make runs %s, which is not there: it is installed with kvc's data", program);
        return EXIT_TROUBLE;
    }
    return run_program(t, self, program);
}
