/* workers.c: a queue of tasks and the threads that take them. */
#include "formats/store/workers.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define MAX_THREADS 64

struct kvc_workers {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct kvc_task *first, **last;
    int ends;
    unsigned n;
    pthread_t thread[MAX_THREADS];
};

static void *work(void *state) {
    struct kvc_workers *w = state;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->ends) pthread_cond_wait(&w->more, &w->lock);
        struct kvc_task *task = w->first;
        if (!task) break;
        if (!(w->first = task->next)) w->last = &w->first;
        pthread_mutex_unlock(&w->lock);
        task->run(task);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct kvc_workers *kvc_workers_new(unsigned threads, struct kvc_error *e) {
    struct kvc_workers *w = calloc(1, sizeof *w);
    sigset_t all, before;
    if (!w) {
        kvc_fail_memory(e, "threads");
        return NULL;
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    w->last = &w->first;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    sigfillset(&all); /* signals are the program's, and go to its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (w->n < threads && !pthread_create(&w->thread[w->n], NULL, work, w)) w->n++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (w->n) return w;
    kvc_workers_free(w);
    kvc_fail(e, KVC_ERR_MEMORY, "no thread can be started");
    return NULL;
}

void kvc_workers_add(struct kvc_workers *w, struct kvc_task *task) {
    task->next = NULL;
    pthread_mutex_lock(&w->lock);
    *w->last = task;
    w->last = &task->next;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}

void kvc_workers_free(struct kvc_workers *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->ends = 1;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n; i++) pthread_join(w->thread[i], NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
