/* progress.h: the line on standard error that shows how far work has come. Not for reports of
 * finished work. */
#ifndef KVC_PROGRESS_H
#define KVC_PROGRESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* A line "NAME  42 %  123.4 MB/s  0:12 left". It appears after a second of work, on a terminal
 * alone. */
struct cli_progress {
    const char *name;    /* of the input */
    double start, shown; /* seconds of cli_now(); `shown` 0: the line is not on the screen */
    int on;
    int width; /* columns of the line */
};
/* Returns seconds of a monotonic clock. */
double cli_now(void);
/* Begins; `name` must live until cli_progress_end(). */
void cli_progress_start(struct cli_progress *p, const char *name, int quiet);
/* Shows that `done` of `total` bytes are done; total 0: unknown. `state` is the struct
 * cli_progress. Returns 0. */
int cli_progress_show(void *state, uint64_t done, uint64_t total);

/* Counts bytes of several threads, and shows how many of `total` are done. */
struct cli_counted {
    struct cli_progress *progress;
    uint64_t total;
    atomic_uint_least64_t done;
    pthread_mutex_t lock; /* of the progress */
};
void cli_counted_begin(struct cli_counted *c, struct cli_progress *p, uint64_t total);
/* `state` is the struct cli_counted. */
void cli_counted_add(void *state, size_t n);
/* Removes the line. */
void cli_counted_end(struct cli_counted *c);

/* Removes the line. Must be called before anything else is printed, and at the end. */
void cli_progress_end(struct cli_progress *p);

#endif
