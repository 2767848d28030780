/* sized.h: public structs whose first field is their size: of callers that were built with an earlier or a later kvc.h. Not for
 * users. */
#ifndef KVC_SIZED_H
#define KVC_SIZED_H

#include "codecs/error.h"

#include <stddef.h>

/* Copies a caller's struct of options, NULL for all zero, to *own, which has `size` bytes and the size as first field. What the
 * caller does not know is zero. KVC_ERR_USAGE when the caller has not set the size, KVC_ERR_UNSUPPORTED when the struct says
 * something that is unknown here. `name` is the struct's, for messages. */
int kvc_sized_take(void *own, size_t size, const void *callers, const char *name, struct kvc_error *e);

/* Copies results to a caller's struct, as much as the caller knows, and zeros the rest of it; its size stays. Errors as above. */
int kvc_sized_give(void *callers, const void *own, size_t size, const char *name, struct kvc_error *e);

#endif
