/* redis_lookup.h: addresses of a node's name, which a resolver may take seconds to find: a thread
 * asks it, so that deadlines hold. */
#ifndef KVC_REDIS_LOOKUP_H
#define KVC_REDIS_LOOKUP_H

#include "formats/store/redis/redis_state.h"

/* Returns an address of the node. -1: it has none, or it is not known until the deadline. */
int kvc_redis_lookup(struct kvc_redis *l, struct kvc_redis_node *n, unsigned i,
                     kvc_instant deadline, struct kvc_redis_address *to, struct kvc_error *e);
/* Waits for the node's thread, if it has one. */
void kvc_redis_lookup_end(struct kvc_redis_node *n);

#endif
