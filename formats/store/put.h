/* put.h: a cache that is being put, as the files that put it share it. Not for users (kvc_store.h).
 */
#ifndef KVC_STORE_PUT_H
#define KVC_STORE_PUT_H

#include "formats/store/store.h"

#define KVC_PUT_TIME 60000000 /* microseconds, of an object on a tier */

/* A cache that is to be put. */
struct kvc_put_job {
    struct kvc_task task;
    struct kvc_store_namespace *ns;
    struct kvc_file *file;
    struct kvc_file *given; /* `file` with the caller's extras; NULL: it has its own */
    struct kvc_store_put_options options;
    uint8_t *keys;
    struct kvc_object *object;
    size_t n;       /* chunks */
    uint64_t whole; /* tokens of a cache that cannot be cut; 0: it is cut into chunks */
    uint64_t bytes; /* that it counts in the queue */
    struct kvc_error error;
    int status, waits;
    size_t part, parts; /* number of the object that is being packed, of those that are packed */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* of what follows, which is under `lock` */
    int done, cancelled;
    uint64_t packed, total; /* bytes of K and V; total 0: unknown yet */
};

/* Write the chunks that tiers lack, and a cache that cannot be cut; and the facts of its
 * namespace, once an object is packed. -1: it cannot be packed, or, of one that cannot be cut, no
 * tier took it. *e may say why a tier failed after 0, too. */
int kvc_put_chunks(struct kvc_put_job *job, struct kvc_error *e);
int kvc_put_whole(struct kvc_put_job *job, struct kvc_error *e);

#endif
