/* s3_state.h: an open S3 tier, as its files share it. */
#ifndef KVC_S3_STATE_H
#define KVC_S3_STATE_H

#include "formats/store/tier.h"
#include "formats/store/s3/s3_search.h"
#include "formats/store/s3/s3_setup.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVC_S3_SAMPLES 64

/* Latencies of one class of requests, until the answer begins. */
struct kvc_s3_latency {
    int64_t sample[KVC_S3_SAMPLES]; /* of the latest requests, in microseconds */
    size_t n;                       /* all that there were */
    atomic_int_least64_t late;      /* their 95th percentile */
};

struct kvc_s3_counters {
    atomic_uint_least64_t rounds; /* of questions that finding asked */
    atomic_uint_least64_t requests, retries, hedges, hedges_won;
};

struct kvc_s3_channel;
struct kvc_s3_aborts;

struct kvc_s3 {
    struct kvc_tier tier;
    struct kvc_s3_setup setup;
    struct kvc_s3_memory *memory;
    struct kvc_s3_counters counters;
    atomic_int no_condition;      /* the server does not know If-None-Match: it is asked first */
    struct kvc_s3_aborts *aborts; /* uploads that are still to be removed */

    pthread_mutex_t lock; /* of the following, never held while waiting */
    struct kvc_s3_channel *idle;
    struct kvc_s3_latency latency[2]; /* of small and of large answers */
    uint64_t random;
    unsigned failures; /* since the last good answer */
    unsigned pauses;   /* since then */
    kvc_instant until; /* the server is left alone */
    char last[256];    /* why */
};

#endif
