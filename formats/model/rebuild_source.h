/* rebuild_source.h: hidden states and weights for the stage that rebuilds rows (codecs/rebuild.h).
 * Not for the arithmetic. */
#ifndef KVC_REBUILD_SOURCE_H
#define KVC_REBUILD_SOURCE_H

#include "codecs/rebuild.h"
#include "formats/cache/cache.h"
#include "formats/model/weights.h"

#include <pthread.h>

/* Projections out of an open weights file. The projection that was used last is kept. For several
 * threads. */
struct kvc_projections {
    const struct kvc_weights *weights; /* NULL: none were given */
    pthread_mutex_t lock;
    struct kvc_projections_slot *slot;
};
int kvc_projections_init(struct kvc_projections *p, const struct kvc_weights *weights,
                         struct kvc_error *e);
void kvc_projections_free(struct kvc_projections *p);

/* Reads decoded rows of a tensor of hidden states. */
typedef int kvc_rows_fn(const void *owner, uint32_t tensor, uint64_t first, uint64_t n,
                        uint8_t *dst, struct kvc_error *e);

/* The sources of one tensor of a cache. */
struct kvc_rebuilder {
    struct kvc_rebuild rebuild;
    const struct kvc_cache *cache;
    uint32_t tensor;
    struct kvc_projections *projections;
    kvc_rows_fn *read;
    const void *read_owner;
    int64_t *position; /* owned; NULL: the cells' own */
};
int kvc_rebuilder_init(struct kvc_rebuilder *r, const struct kvc_cache *c, uint32_t tensor,
                       struct kvc_projections *p, kvc_rows_fn *read, const void *read_owner,
                       struct kvc_error *e);
void kvc_rebuilder_free(struct kvc_rebuilder *r);

/* Returns the tensor of hidden states of a model layer whose rows have the positions of `tensor`,
 * or KVC_NONE. */
uint32_t kvc_find_hidden(const struct kvc_cache *c, uint32_t tensor, uint32_t layer_index);

#endif
