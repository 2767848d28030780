/* s3_answer.h: what the headers of an answer say, and the dates in them. Not for bodies. */
#ifndef KVC_S3_ANSWER_H
#define KVC_S3_ANSWER_H

#include <stddef.h>
#include <stdint.h>

struct kvc_s3_answer {
    int status;                  /* 0: no answer came */
    int64_t length;              /* Content-Length; -1: none */
    int64_t first, last, total;  /* Content-Range; total -1: none that can be read */
    int64_t date;                /* of the server, seconds since 1970; -1: none */
    int64_t retry;               /* Retry-After in seconds; -1: none */
    char etag[136];              /* with its quotes; "": none, or too long */
    char server[64], region[40]; /* printable characters only */
};

void kvc_s3_answer_begin(struct kvc_s3_answer *a);
/* Takes one line with its end. A line with a status begins a new answer: 100 may come before the
 * one that counts. */
void kvc_s3_answer_line(struct kvc_s3_answer *a, const char *line, size_t n);

/* Reads "1994-11-06T08:49:37.000Z"; -1: no such date. */
int64_t kvc_s3_date_iso(const char *text);

#endif
