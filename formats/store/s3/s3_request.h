/* s3_request.h: a request to S3 and its answer. Not for how they travel. */
#ifndef KVC_S3_REQUEST_H
#define KVC_S3_REQUEST_H

#include "formats/store/s3/s3_answer.h"
#include "formats/store/s3/s3_state.h"

#define KVC_S3_QUERY 4
#define KVC_S3_HASH 65 /* room for a hash in hex digits, with its NUL */

struct kvc_s3_parameter {
    const char *name, *value; /* NULL: left out */
};

struct kvc_s3_try;

struct kvc_s3_request {
    /* the question, of the caller, whose memory stays until the answer */
    const char *method;
    /* of an object, after the prefix; NULL: the bucket */
    const char *name;
    /* by their names: libcurl 7.88 signs them in this order */
    struct kvc_s3_parameter query[KVC_S3_QUERY];
    const char *if_match, *if_none_match;
    uint64_t first, bytes; /* a range of an object; bytes 0: no range is named */
    const void *body;
    size_t size;
    uint8_t *into; /* where the bytes of an object go: `bytes` of them at most; NULL: text */
    size_t index;  /* the caller's */

    /* the answer */
    struct kvc_s3_answer answer;
    uint64_t got; /* bytes in `into` */
    /* of an answer that is no object; of the request, which kvc_s3_request_free() frees */
    char *text;
    size_t length; /* of the text */
    char code[64]; /* S3's word for an error */
    char why[256]; /* says why there is no answer; "": there is one, be it 200 or 404 */
    int wrong;     /* answers came, but of wrong lengths */

    /* of those who send it */
    struct kvc_s3_try *running[2];
    struct kvc_s3_request *next;
    kvc_instant due;
    unsigned tries;
    int hedged;
    char hash[KVC_S3_HASH]; /* of the body, or the word for none */
};

#endif
