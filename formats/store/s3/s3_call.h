/* s3_call.h: sends requests at once and waits for their answers, with retries, hedging and a
 * deadline. Not for what requests mean. */
#ifndef KVC_S3_CALL_H
#define KVC_S3_CALL_H

#include "formats/store/s3/s3_request.h"

struct kvc_s3_call {
    struct kvc_s3 *l;
    kvc_instant deadline;
    struct kvc_s3_channel *channel;
    struct kvc_s3_request *waiting, *done; /* lists, the oldest first */
    struct kvc_s3_try *tries;              /* that run */
    unsigned running, hedges;
    unsigned good, bad; /* answers, and tries without */
    char last[256];     /* what the last bad try met */
};

/* -1: the server is left alone for now, or there is no memory. */
int kvc_s3_call_begin(struct kvc_s3_call *c, struct kvc_s3 *l, kvc_instant deadline,
                      struct kvc_error *e);
/* Gives up what still runs. */
void kvc_s3_call_end(struct kvc_s3_call *c);

void kvc_s3_add(struct kvc_s3_call *c, struct kvc_s3_request *r);
/* Waits for an answer to any request. 0: *r is NULL if none is open. -1: the deadline is over. */
int kvc_s3_next(struct kvc_s3_call *c, struct kvc_s3_request **r, struct kvc_error *e);
/* Asks one question. -1: there is no answer. */
int kvc_s3_ask(struct kvc_s3_call *c, struct kvc_s3_request *r, struct kvc_error *e);
/* Forgets a request, answered or not. */
void kvc_s3_cancel(struct kvc_s3_call *c, struct kvc_s3_request *r);
void kvc_s3_request_free(struct kvc_s3_request *r);

/* Takes what is secret out of a text that the server may have made. */
void kvc_s3_redact(const struct kvc_s3 *l, char *text);
/* Reports a request that failed, or was answered with a status that the caller did not expect.
 * Returns -1. */
int kvc_s3_fail(const struct kvc_s3 *l, const struct kvc_s3_request *r, struct kvc_error *e);
void kvc_s3_channels_free(struct kvc_s3 *l);

#endif
