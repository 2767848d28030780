/* parallel.c: items processed by several threads in an ordered window.
 *
 * The calling thread works as the others do and commits between its items: a thread for commits
 * alone would take turns with the others on their cores, some times for each item. */
#include "formats/io/parallel.h"

#include "codecs/memory.h"
#include "formats/io/control_group.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 3 }; /* items in work or waiting to be committed, a thread */
/* seconds that commits wait in all before the calling thread only commits */
static const double WAITED = 10e-3;

enum slot_state { FREE, IN_WORK, DONE, FAILED };

struct slot {
    enum slot_state state;
    void *result;
    struct kvc_error error;
};

struct pool {
    const struct kvc_job *job;
    pthread_mutex_t lock;
    pthread_cond_t room;  /* workers wait for items */
    pthread_cond_t ready; /* the calling thread waits for the item to be committed next */
    /* item i is in slot[i % window], from committed <= i < committed + window */
    struct slot *slot;
    uint64_t window;
    uint64_t handed_out; /* items */
    uint64_t committed;  /* items below are committed */
    unsigned idle;       /* workers that wait */
    int caller_waits, stop;
};

static struct slot *slot_of(const struct pool *p, uint64_t item) {
    return &p->slot[item % p->window];
}

/* Returns 1 if an item of the same group is in work. */
static int group_in_work(const struct pool *p, uint64_t item) {
    const uint32_t group = p->job->group(p->job->state, item);
    for (uint64_t i = p->committed; i < p->committed + p->window && i < p->job->n; i++)
        if (slot_of(p, i)->state == IN_WORK && p->job->group(p->job->state, i) == group) return 1;
    return 0;
}

/* Hands out an item: the first whose group is not in work, else the first. Returns 0 where the
 * window has none. */
static int hand_out(struct pool *p, uint64_t *item) {
    int found = 0;
    for (uint64_t i = p->committed; i < p->committed + p->window && i < p->job->n; i++) {
        if (slot_of(p, i)->state != FREE) continue;
        const int apart = !p->job->group || !group_in_work(p, i);
        if (!found || apart) *item = i;
        found = 1;
        if (apart) break;
    }
    if (!found) return 0;
    slot_of(p, *item)->state = IN_WORK;
    p->handed_out++;
    return 1;
}

/* Does the work of an item. The lock is held before and after. */
static void parallel_work(struct pool *p, uint64_t item) {
    struct slot *slot = slot_of(p, item);
    pthread_mutex_unlock(&p->lock);
    const int status = p->job->work(p->job->state, item, &slot->result, &slot->error);
    pthread_mutex_lock(&p->lock);
    slot->state = status ? FAILED : DONE;
    if (p->caller_waits && item == p->committed) pthread_cond_signal(&p->ready);
}

static void *worker(void *arg) {
    struct pool *p = arg;
    uint64_t item;
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->handed_out < p->job->n) {
        if (hand_out(p, &item)) {
            parallel_work(p, item);
            continue;
        }
        p->idle++;
        pthread_cond_wait(&p->room, &p->lock);
        p->idle--;
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

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Commits the next item, which is done, and adds the time that this waited to *waited. */
static int commit_next(struct pool *p, double *waited, struct kvc_error *e) {
    struct slot *slot = slot_of(p, p->committed);
    void *result = slot->result;
    pthread_mutex_unlock(&p->lock);
    const double begin = seconds(CLOCK_MONOTONIC), worked = seconds(CLOCK_THREAD_CPUTIME_ID);
    const int status = commit(p->job, p->committed, result, e);
    *waited += seconds(CLOCK_MONOTONIC) - begin - (seconds(CLOCK_THREAD_CPUTIME_ID) - worked);
    pthread_mutex_lock(&p->lock);
    slot->state = FREE;
    slot->result = NULL;
    p->committed++;
    if (p->handed_out == p->job->n) pthread_cond_broadcast(&p->room);
    else if (p->idle) pthread_cond_signal(&p->room);
    return status;
}

/* The calling thread's part. thread[] has room for one thread more than the *started ones. */
static int parallel_run(struct pool *p, pthread_t *thread, unsigned *started, struct kvc_error *e) {
    int status = 0, only_commits = 0;
    double waited = 0;
    uint64_t item;
    while (p->committed < p->job->n && !status) {
        const struct slot *slot = slot_of(p, p->committed);
        if (slot->state == FAILED) {
            if (e) *e = slot->error;
            status = -1;
        } else if (slot->state == DONE) {
            status = commit_next(p, &waited, e);
            if (!only_commits && waited > WAITED &&
                pthread_create(&thread[*started], NULL, worker, p) == 0) {
                only_commits = 1;
                ++*started;
            }
        } else if (!only_commits && hand_out(p, &item)) {
            parallel_work(p, item);
        } else {
            p->caller_waits = 1;
            pthread_cond_wait(&p->ready, &p->lock);
            p->caller_waits = 0;
        }
    }
    return status;
}

unsigned kvc_parallel_threads(unsigned threads) {
    cpu_set_t may;
    if (threads) return threads;
    /* A container or taskset may allow fewer cores than there are; new threads have no others. */
    const long cores = sched_getaffinity(0, sizeof may, &may) == 0
                           ? CPU_COUNT(&may)
                           : sysconf(_SC_NPROCESSORS_ONLN); /* more than a cpu_set_t holds */
    const uint64_t limit = kvc_core_limit();
    if (cores <= 1) return 1;
    return (uint64_t)cores < limit ? (unsigned)cores : (unsigned)limit;
}

int kvc_parallel(const struct kvc_job *job, unsigned threads, struct kvc_error *e) {
    threads = kvc_parallel_threads(threads);
    if (threads > job->n) threads = (unsigned)job->n;
    if (threads <= 1) return run_alone(job, e);
    struct pool p = {.job = job, .window = WINDOW * (uint64_t)threads};
    pthread_t *thread = kvc_alloc(threads, sizeof *thread);
    p.slot = kvc_alloc_zeros(p.window, sizeof *p.slot);
    if (!thread || !p.slot) {
        free(thread);
        free(p.slot);
        return kvc_fail_memory(e, "threads");
    }
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.room, NULL);
    pthread_cond_init(&p.ready, NULL);
    unsigned started = 0;
    while (started < threads - 1 && pthread_create(&thread[started], NULL, worker, &p) == 0)
        started++;
    pthread_mutex_lock(&p.lock);
    const int status = parallel_run(&p, thread, &started, e);
    p.stop = 1;
    pthread_cond_broadcast(&p.room);
    pthread_mutex_unlock(&p.lock);
    for (unsigned t = 0; t < started; t++) pthread_join(thread[t], NULL);
    for (uint64_t s = 0; s < p.window; s++)
        if (p.slot[s].state == DONE && p.slot[s].result) job->discard(p.slot[s].result);
    pthread_cond_destroy(&p.ready);
    pthread_cond_destroy(&p.room);
    pthread_mutex_destroy(&p.lock);
    free(p.slot);
    free(thread);
    return status;
}
