/* sized.h: copies public structs whose first field is their size. The caller may be built with an
 * earlier or a later kvc.h. Not for users of the library. */
#ifndef KVC_SIZED_H
#define KVC_SIZED_H

#include "codecs/error.h"

#include <stddef.h>

/* Copies a caller's struct of options, NULL for all zero, to *own, which has `size` bytes and the
 * size as first field. Fields that the caller does not know become zero. KVC_ERR_USAGE: the caller
 * has not set the size. KVC_ERR_UNSUPPORTED: a field that is unknown to this library is not zero.
 * `name` is the name of the struct, for messages. */
int kvc_sized_take(void *own, size_t size, const void *callers, const char *name,
                   struct kvc_error *e);

/* Copies results to a caller's struct, as many fields as the caller knows. Fields that this library
 * does not know become zero. The size stays. Errors as above. */
int kvc_sized_give(void *callers, const void *own, size_t size, const char *name,
                   struct kvc_error *e);

#endif
