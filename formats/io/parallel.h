/* parallel.h: work done by several threads, committed in order by one. Not for what the work is. */
#ifndef KVC_PARALLEL_H
#define KVC_PARALLEL_H

#include "codecs/error.h"

#include <stdint.h>

struct kvc_job {
    uint64_t n; /* items 0 .. n - 1 */
    /* Makes *result. Called from several threads, for items in any order. */
    int (*work)(void *state, uint64_t item, void **result, struct kvc_error *e);
    /* Takes the result and frees it. Called on the calling thread, for items in order. NULL: there
     * are no results. */
    int (*commit)(void *state, uint64_t item, void *result, struct kvc_error *e);
    /* Frees a result that is not committed because of an error. NULL where there are no results. */
    void (*discard)(void *result);
    /* Returns the group of an item. Items of a group may wait for each other, so that an item of
     * another group is handed out first while one of the group is in work. NULL: items are handed
     * out in order. */
    uint32_t (*group)(const void *state, uint64_t item);
    void *state;
};

/* Returns the number of threads that `threads` means: 0 is one per core that may be used, by
 * affinity and by the quota of a control group. */
unsigned kvc_parallel_threads(unsigned threads);

/* Runs the job on `threads` threads (0: one per core), of which the calling thread is one, as long
 * as commits do not wait for their output: then another thread takes its place, and it only
 * commits. The error of the lowest failing item wins, so that the message does not depend on the
 * number of threads. At most 3 * threads results exist at a time. */
int kvc_parallel(const struct kvc_job *job, unsigned threads, struct kvc_error *e);

#endif
