/* s3_abort.h: removes uploads that came to nothing, after the call that began them is over. Not for
 * objects. */
#ifndef KVC_S3_ABORT_H
#define KVC_S3_ABORT_H

#include "formats/store/s3/s3_state.h"

struct kvc_s3_aborts *kvc_s3_aborts_new(struct kvc_s3 *l);
/* Hands an upload to a thread that removes it. */
void kvc_s3_abort(struct kvc_s3_aborts *a, const char *name, const char *upload);
/* Tries those that are left once more, for 2 s at most, and ends the thread. */
void kvc_s3_aborts_free(struct kvc_s3_aborts *a);

#endif
