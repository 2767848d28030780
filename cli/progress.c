/* progress.c: shows how far work has come on standard error. Not for drawing (terminal.c). */
#include "cli/progress.h"
#include "cli/cli.h"
#include "cli/text.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAME = 30 }; /* bytes of the name at most */
#define WAIT 1.0    /* seconds of work without a line */
#define EACH 0.1    /* seconds between two lines */

double cli_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cli_progress_start(struct cli_progress *p, const char *name, int quiet) {
    *p = (struct cli_progress){.name = name,
                               .start = cli_now(),
                               .on = !quiet && isatty(STDERR_FILENO)};
}

/* Returns the last bytes of a name, from the begin of a character on. */
static const char *short_name(const char *name) {
    const size_t n = strlen(name);
    if (n <= NAME) return name;
    for (name += n - NAME; ((unsigned char)*name & 0xc0) == 0x80;) name++;
    return name;
}

int cli_progress_show(void *state, uint64_t done, uint64_t total) {
    struct cli_progress *p = state;
    const double now = cli_now(), seconds = now - p->start;
    char rate[32], text[128];
    if (!p->on || seconds < WAIT || now - p->shown < EACH) return 0;
    p->shown = now;
    cli_size_text((uint64_t)((double)done / seconds), rate);
    if (total && done <= total) {
        const double part = (double)done / (double)total;
        const uint64_t left = part > 0 ? (uint64_t)(seconds * (1 - part) / part + 0.5) : 0;
        snprintf(text, sizeof text, "  %3d %%  %s/s  %" PRIu64 ":%02u left", (int)(100 * part),
                 rate, left / 60, (unsigned)(left % 60));
    } else {
        snprintf(text, sizeof text, "  %s/s", rate);
    }
    putc('\r', stderr);
    const int width = (int)(cli_print_safe(stderr, short_name(p->name)) + strlen(text));
    fputs(text, stderr);
    if (width < p->width) fprintf(stderr, "%*s", p->width - width, "");
    p->width = width;
    fflush(stderr);
    return 0;
}

void cli_progress_end(struct cli_progress *p) {
    if (p->width) fprintf(stderr, "\r%*s\r", p->width, "");
    p->width = 0;
}

/* --- counted bytes --- */

void cli_counted_begin(struct cli_counted *c, struct cli_progress *p, uint64_t total) {
    *c = (struct cli_counted){.progress = p, .total = total};
    pthread_mutex_init(&c->lock, NULL);
}

void cli_counted_add(void *state, size_t n) {
    struct cli_counted *c = state;
    const uint64_t done = atomic_fetch_add(&c->done, n) + n;
    if (pthread_mutex_trylock(&c->lock)) return; /* another thread shows a line */
    cli_progress_show(c->progress, done, c->total);
    pthread_mutex_unlock(&c->lock);
}

void cli_counted_end(struct cli_counted *c) {
    pthread_mutex_destroy(&c->lock);
    cli_progress_end(c->progress);
}
