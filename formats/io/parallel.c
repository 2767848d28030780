/* parallel.c: items processed by several threads in an ordered window. */
#include "formats/io/parallel.h"

#include "codecs/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum slot_state { EMPTY, DONE, FAILED };

struct slot {
    enum slot_state state;
    void *result;
    struct kvc_error error;
};

struct pool {
    const struct kvc_job *job;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct slot *slot; /* item i is in slot[i % window] */
    uint64_t window;
    uint64_t next;      /* next item to hand out */
    uint64_t committed; /* items below are committed */
    int stop;
};

static void *worker(void *arg) {
    struct pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->next < p->job->n) {
        if (p->next - p->committed >= p->window) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        uint64_t item = p->next++;
        struct slot *slot = &p->slot[item % p->window];
        pthread_mutex_unlock(&p->lock);
        int status = p->job->work(p->job->state, item, &slot->result, &slot->error);
        pthread_mutex_lock(&p->lock);
        slot->state = status ? FAILED : DONE;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int commit(const struct kvc_job *job, uint64_t item, void *result, struct kvc_error *e) {
    return job->commit ? job->commit(job->state, item, result, e) : 0;
}

/* Runs the job on the calling thread alone. */
static int run_alone(const struct kvc_job *job, struct kvc_error *e) {
    for (uint64_t i = 0; i < job->n; i++) {
        void *result = NULL;
        if (job->work(job->state, i, &result, e) || commit(job, i, result, e)) return -1;
    }
    return 0;
}

int kvc_parallel(const struct kvc_job *job, unsigned threads, struct kvc_error *e) {
    if (!threads) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        threads = cores > 0 ? (unsigned)cores : 1;
    }
    if (threads > job->n) threads = (unsigned)job->n;
    if (threads <= 1) return run_alone(job, e);
    struct pool p = {.job = job, .window = 2 * (uint64_t)threads};
    pthread_t *thread = kvc_alloc(threads, sizeof *thread);
    p.slot = calloc((size_t)p.window, sizeof *p.slot);
    if (!thread || !p.slot) {
        free(thread);
        free(p.slot);
        return kvc_fail_memory(e, "threads");
    }
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    unsigned started = 0;
    while (started < threads && pthread_create(&thread[started], NULL, worker, &p) == 0) started++;
    int status = 0;
    if (!started) {
        status = run_alone(job, e);
    } else {
        pthread_mutex_lock(&p.lock);
        for (uint64_t i = 0; i < job->n && !status; i++) {
            struct slot *slot = &p.slot[i % p.window];
            while (slot->state == EMPTY) pthread_cond_wait(&p.changed, &p.lock);
            if (slot->state == FAILED) {
                if (e) *e = slot->error;
                status = -1;
                break;
            }
            void *result = slot->result;
            pthread_mutex_unlock(&p.lock);
            status = commit(job, i, result, e);
            pthread_mutex_lock(&p.lock);
            slot->state = EMPTY;
            slot->result = NULL;
            p.committed = i + 1;
            pthread_cond_broadcast(&p.changed);
        }
        p.stop = 1;
        pthread_cond_broadcast(&p.changed);
        pthread_mutex_unlock(&p.lock);
        for (unsigned t = 0; t < started; t++) pthread_join(thread[t], NULL);
        for (uint64_t s = 0; s < p.window; s++)
            if (p.slot[s].state == DONE && p.slot[s].result) job->discard(p.slot[s].result);
    }
    pthread_cond_destroy(&p.changed);
    pthread_mutex_destroy(&p.lock);
    free(p.slot);
    free(thread);
    return status;
}
