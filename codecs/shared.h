/* shared.h: bytes that several threads need, made by the first thread that asks. Not for their content. */
#ifndef KVC_SHARED_H
#define KVC_SHARED_H

#include "codecs/error.h"

#include <pthread.h>
#include <stddef.h>

struct kvc_shared {
    pthread_mutex_t lock;
    void *bytes;  /* NULL: not made yet */
    unsigned tag; /* of their content */
};

int kvc_shared_init(struct kvc_shared *s, struct kvc_error *e);
void kvc_shared_free(struct kvc_shared *s);
/* Returns the n bytes; the first call makes them by make(what, bytes, e). Returns NULL after a failure, or when they were made
 * under another tag. */
const void *kvc_shared_get(struct kvc_shared *s, unsigned tag, size_t n,
                           int (*make)(const void *what, void *bytes, struct kvc_error *e), const void *what,
                           struct kvc_error *e);

#endif
