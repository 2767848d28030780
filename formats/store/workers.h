/* workers.h: threads that run tasks in the order in which they came. Not for work that is divided
 * among cores (io/parallel.h). */
#ifndef KVC_WORKERS_H
#define KVC_WORKERS_H

#include "codecs/error.h"

struct kvc_workers;
/* A task; part of the caller's struct, which must stay until run() is called. */
struct kvc_task {
    void (*run)(struct kvc_task *task);
    struct kvc_task *next;
};

struct kvc_workers *kvc_workers_new(unsigned threads, struct kvc_error *e);
void kvc_workers_add(struct kvc_workers *w, struct kvc_task *task);
/* Runs what waits, and ends the threads. NULL is legal. */
void kvc_workers_free(struct kvc_workers *w);

#endif
