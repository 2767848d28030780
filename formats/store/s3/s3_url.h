/* s3_url.h: the URL of a request, in the form that libcurl signs. Not for its headers. */
#ifndef KVC_S3_URL_H
#define KVC_S3_URL_H

#include "formats/store/s3/s3_request.h"

/* Writes the URL, encoded as Signature Version 4 asks for it: libcurl 7.88 signs paths and queries
 * as they are. -1: it does not fit. */
int kvc_s3_url(const struct kvc_s3_setup *s, const struct kvc_s3_request *r, char *to, size_t room);

#endif
