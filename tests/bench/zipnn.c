/* zipnn.c: a Python process that runs ZipNN when asked, so that it is timed in turn with everything
 * else. The other end is zipnn_peer.py. */
#include "tests/bench/bench.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SCRIPT "tests/bench/zipnn_peer.py"  /* bench runs where the Makefile is */
#define VENV "build/engine-venv/bin/python" /* of tests/engine */

static FILE *requests, *answers;
static pid_t process;
static char text[64]; /* the last answer */

static int hear(void) {
    if (!fgets(text, sizeof text, answers)) return -1;
    text[strcspn(text, "\n")] = '\0';
    return 0;
}

/* Starts it with this Python; 0 when it has ZipNN. */
static int start(char *python) {
    int in[2], out[2];
    char script[] = SCRIPT, *argv[] = {python, script, NULL};
    posix_spawn_file_actions_t files;
    if (pipe(in) || pipe(out) || posix_spawn_file_actions_init(&files)) give_up("ZipNN", "no pipe");
    posix_spawn_file_actions_adddup2(&files, in[0], 0);
    posix_spawn_file_actions_adddup2(&files, out[1], 1);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", 1, 0); /* why it cannot be imported */
    posix_spawn_file_actions_addclose(&files, in[1]);
    posix_spawn_file_actions_addclose(&files, out[0]);
    if (posix_spawnp(&process, python, &files, NULL, argv, environ)) process = 0;
    posix_spawn_file_actions_destroy(&files);
    close(in[0]);
    close(out[1]);
    requests = fdopen(in[1], "w");
    answers = fdopen(out[0], "r");
    if (!requests || !answers) give_up("ZipNN", "no pipe");
    if (process && !hear()) return 0;
    zipnn_stop();
    return -1;
}

void zipnn_stop(void) {
    if (requests) fclose(requests);
    if (answers) fclose(answers);
    requests = answers = NULL;
    if (process) waitpid(process, NULL, 0);
    process = 0;
}

const char *zipnn_version(void) {
    static char version[sizeof text];
    static int tried;
    if (!tried++) {
        char venv[] = VENV, standard[] = "python3", *python = getenv("PYTHON");
        signal(SIGPIPE, SIG_IGN); /* should it end early */
        /* ZipNN makes its output anew each time. Let its process keep the memory, as buffers are
         * kept here: page faults then count for neither. */
        setenv("MALLOC_MMAP_MAX_", "0", 0);
        setenv("MALLOC_TRIM_THRESHOLD_", "4000000000", 0);
        if (!start(python && *python ? python : standard) || !start(venv))
            memcpy(version, text, sizeof text);
    }
    return *version ? version : NULL;
}

/* The number that answers the request; 0 when the process is gone. */
static double number(const char *request, const char *about) {
    if (fprintf(requests, "%s%s\n", request, about) < 0 || fflush(requests) || hear()) return 0;
    return strtod(text, NULL);
}

size_t zipnn_file(const char *dtype, const char *path) {
    static const char *const names[][2] = {{"bf16", "file bfloat16 "},
                                           {"f16", "file float16 "},
                                           {"f32", "file float32 "}};
    for (size_t i = 0; zipnn_version() && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(dtype, names[i][0]) == 0) return (size_t)number(names[i][1], path);
    return 0;
}

void zipnn_run(struct job *job) {
    const char *request = job->what;
    job->own = number(request, "");
    if (!(job->own > 0)) give_up("ZipNN", "its process ended early");
}
