/* sigv4.h: AWS Signature Version 4 of a request, in its Authorization header. Not for sending requests, nor for signed URLs. */
#ifndef KVC_SIGV4_H
#define KVC_SIGV4_H

#include <stddef.h>
#include <time.h>

#define KVC_SIGV4_HEX 65  /* room for a hash in hex digits, with its NUL */
#define KVC_SIGV4_DATE 17 /* "20130524T000000Z" */
#define KVC_SIGV4_PAIRS 16
#define KVC_SIGV4_ROOM 8192 /* for a canonical request: session tokens may have some KB */

#define KVC_SIGV4_UNSIGNED "UNSIGNED-PAYLOAD"
#define KVC_SIGV4_EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" /* SHA-256 of no bytes */

/* A header (its name in lower case) or a parameter of a query. */
struct kvc_sigv4_pair {
    const char *name, *value;
};

struct kvc_sigv4_key {
    const char *id, *secret, *region, *service;
};

struct kvc_sigv4_request {
    const char *method;
    const char *path;                    /* as it is sent: encoded */
    const char *query;                   /* of kvc_sigv4_query() */
    const char *date;                    /* of kvc_sigv4_date(), and the value of x-amz-date */
    const char *hash;                    /* of the body, or KVC_SIGV4_UNSIGNED */
    const struct kvc_sigv4_pair *header; /* all headers that are signed, with "host" */
    size_t headers;
};

/* Functions that write text return its length, or -1 if it does not fit, or for lack of memory. */

/* Encodes all bytes but letters, digits and "-._~", and '/' if `slash` says that it stays. */
int kvc_sigv4_encode(const char *text, int slash, char *to, size_t room);
/* Writes the query of a request: encoded, sorted, without '?'. */
int kvc_sigv4_query(const struct kvc_sigv4_pair *pair, size_t n, char *to, size_t room);
void kvc_sigv4_date(time_t t, char to[KVC_SIGV4_DATE]);
int kvc_sigv4_hash(const void *data, size_t size, char to[KVC_SIGV4_HEX]);
/* Writes the request in the form that is signed, and the names of its headers as they are listed there. */
int kvc_sigv4_canonical(const struct kvc_sigv4_request *r, char *to, size_t room, char *names, size_t names_room);
/* Writes the value of the Authorization header. */
int kvc_sigv4_sign(const struct kvc_sigv4_request *r, const struct kvc_sigv4_key *key, char *to, size_t room);

#endif
