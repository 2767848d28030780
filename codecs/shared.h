/* shared.h: bytes that several threads need, made by those that ask first. Not for their content.
 */
#ifndef KVC_SHARED_H
#define KVC_SHARED_H

#include "codecs/error.h"

#include <pthread.h>
#include <stddef.h>

struct kvc_shared {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void *bytes;               /* NULL: nobody asked yet */
    unsigned tag;              /* of their content */
    size_t begun, made, parts; /* parts that threads have begun and made, and all */
    int failed;
    struct kvc_error error; /* of the part that failed first */
};

int kvc_shared_init(struct kvc_shared *s, struct kvc_error *e);
void kvc_shared_free(struct kvc_shared *s);
/* Returns the n bytes. The first call begins to make them, part by part, by make(what, bytes, part,
 * e); calls of other threads make the next parts, with their own `what`, rather than wait. Returns
 * NULL after a failure, or when the bytes were made under another tag. */
const void *kvc_shared_get(struct kvc_shared *s, unsigned tag, size_t n, size_t parts,
                           int (*make)(const void *what, void *bytes, size_t part,
                                       struct kvc_error *e),
                           const void *what, struct kvc_error *e);

#endif
