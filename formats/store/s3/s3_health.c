/* s3_health.c: the circuit breaker and the latencies of a server. Spec: S3.md, "Failures". */
#include "formats/store/s3/s3_health.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SECOND INT64_C(1000000)
#define FAILURES 3

static uint64_t next_random(struct kvc_s3 *l) {
    l->random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = l->random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

double kvc_s3_jitter(struct kvc_s3 *l) {
    pthread_mutex_lock(&l->lock);
    const uint64_t v = next_random(l);
    pthread_mutex_unlock(&l->lock);
    return (double)(v >> 11) * 0x1p-53;
}

int kvc_s3_admit(struct kvc_s3 *l, struct kvc_error *e) {
    int status = 0;
    const kvc_instant now = kvc_now();
    pthread_mutex_lock(&l->lock);
    if (l->failures >= FAILURES && now < l->until) {
        status = kvc_fail(e, KVC_ERR_IO,
                          "S3 bucket '%s' at %s is left alone for %" PRId64
                          " ms after failures: %s",
                          l->setup.bucket, l->setup.base, (l->until - now) / 1000 + 1, l->last);
        if (e) e->severity = KVC_SEVERITY_RETRY;
    } else if (l->failures >= FAILURES) {
        l->until = now + SECOND; /* this call finds out; the others wait for what it finds */
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

void kvc_s3_judge(struct kvc_s3 *l, unsigned good, unsigned bad, const char *last) {
    if (!good && !bad) return;
    const double jitter = 0.75 + 0.5 * kvc_s3_jitter(l);
    pthread_mutex_lock(&l->lock);
    if (good) {
        l->failures = l->pauses = 0;
        l->until = 0;
    } else {
        l->failures = l->failures + bad < FAILURES ? l->failures + bad : FAILURES;
        memcpy(l->last, last, strnlen(last, sizeof l->last - 1) + 1);
        l->last[sizeof l->last - 1] = '\0';
        if (l->failures == FAILURES) {
            const int64_t pause = l->pauses < 5 ? SECOND << l->pauses : 30 * SECOND;
            if (l->pauses < 5) l->pauses++;
            l->until = kvc_now() + (int64_t)((double)pause * jitter);
        }
    }
    pthread_mutex_unlock(&l->lock);
}

static int by_size(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

void kvc_s3_note_latency(struct kvc_s3 *l, int class, int64_t microseconds) {
    struct kvc_s3_latency *s = &l->latency[class];
    int64_t sample[KVC_S3_SAMPLES];
    pthread_mutex_lock(&l->lock);
    s->sample[s->n++ % KVC_S3_SAMPLES] = microseconds;
    const size_t n = s->n < KVC_S3_SAMPLES ? s->n : KVC_S3_SAMPLES;
    const int due = s->n % 8 == 0;
    if (due) memcpy(sample, s->sample, n * sizeof *sample);
    pthread_mutex_unlock(&l->lock);
    if (!due) return;
    qsort(sample, n, sizeof *sample, by_size);
    atomic_store(&s->late, sample[(n * 95 + 99) / 100 - 1]);
}

int64_t kvc_s3_late(const struct kvc_s3 *l, int class) {
    const int64_t late = atomic_load(&l->latency[class].late), least = SECOND / 20;
    if (!late) return SECOND;
    return late > least ? late : least;
}
