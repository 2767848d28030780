/* s3_try.h: one transfer of a request by libcurl: its URL, headers, signature and body. Not for
 * when it is tried, nor how often. */
#ifndef KVC_S3_TRY_H
#define KVC_S3_TRY_H

#include "formats/store/s3/s3_request.h"

#include <curl/curl.h>

#define KVC_S3_IDLE 64

/* The connections of one call. */
struct kvc_s3_channel {
    CURLM *multi;
    CURL *idle[KVC_S3_IDLE]; /* handles for use again */
    unsigned n;
    struct kvc_s3_channel *next;
};

struct kvc_s3_try {
    struct kvc_s3_try *next; /* of the call */
    struct kvc_s3_request *r;
    CURL *easy;
    struct curl_slist *headers;
    kvc_instant started, moved; /* when bytes went to and fro last */
    kvc_instant answered;       /* when the answer began; 0: it has not */
    struct kvc_s3_answer answer;
    uint8_t *to;  /* the request's memory, or that of a hedge */
    uint8_t *own; /* memory of a hedge */
    uint64_t got;
    size_t sent;
    char *text;
    size_t length;
    int too_much; /* more bytes came than were asked for */
    char error[CURL_ERROR_SIZE];
};

/* Begins a transfer. -1: there is no memory, or the request is too long. */
int kvc_s3_try_begin(struct kvc_s3_try *t, struct kvc_s3 *l, struct kvc_s3_channel *channel,
                     kvc_instant now, kvc_instant deadline);
/* Ends it, whether it is over or not. */
void kvc_s3_try_end(struct kvc_s3_try *t, struct kvc_s3_channel *channel);

#endif
