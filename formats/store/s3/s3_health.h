/* s3_health.h: how the server fares: whether it is left alone, and after which time an answer is
 * late. Not for sending requests. */
#ifndef KVC_S3_HEALTH_H
#define KVC_S3_HEALTH_H

#include "formats/store/s3/s3_state.h"

/* -1: the server is left alone until some time that the message tells. */
int kvc_s3_admit(struct kvc_s3 *l, struct kvc_error *e);
/* Takes what a call met: good answers, and tries without any. After 3 failures in a row the server
 * is left alone for 1 s, then for twice as long each time, up to 30 s. */
void kvc_s3_judge(struct kvc_s3 *l, unsigned good, unsigned bad, const char *last);

/* Latencies of small answers (0) and large ones (1). */
void kvc_s3_note_latency(struct kvc_s3 *l, int class, int64_t microseconds);
/* Returns the 95th percentile, or 1 s while there are fewer than 8; 50 ms at least. */
int64_t kvc_s3_late(const struct kvc_s3 *l, int class);

/* Returns a random number in [0, 1), for jitter. */
double kvc_s3_jitter(struct kvc_s3 *l);

#endif
