/* temporary.h: a file without a name, for data that is too large for memory, in the folder of
 * TMPDIR or /tmp. It is gone when it is closed, or with the process. Not for output (cli/output.c).
 */
#ifndef KVC_TEMPORARY_H
#define KVC_TEMPORARY_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

struct kvc_temporary {
    int fd; /* -1: none */
    uint64_t size;
};

int kvc_temporary_open(struct kvc_temporary *t, struct kvc_error *e);
void kvc_temporary_close(struct kvc_temporary *t);
/* Appends n bytes. On failure *t is not to be used any more, but to be closed. */
int kvc_temporary_append(struct kvc_temporary *t, const void *data, size_t n, struct kvc_error *e);
/* Copies bytes [offset, offset + n), which must have been appended. From any thread. */
int kvc_temporary_read(const struct kvc_temporary *t, uint64_t offset, void *dst, size_t n,
                       struct kvc_error *e);

#endif
