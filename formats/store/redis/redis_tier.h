/* redis_tier.h: what the files of the tier share. Not for connections. */
#ifndef KVC_REDIS_TIER_H
#define KVC_REDIS_TIER_H

#include "formats/store/redis/redis_command.h"
#include "formats/store/redis/redis_run.h"

/* Bytes of a value that one command reads. */
#define KVC_REDIS_SLICE (1 << 20)

/* redis_discover.c: finds out who has which slots, if that is not known. */
int kvc_redis_discover(struct kvc_redis *l, kvc_instant deadline, struct kvc_error *e);

/* redis_open.c */
struct kvc_redis *kvc_redis_open(struct kvc_url *url, struct kvc_error *e);
void kvc_redis_close(struct kvc_tier *tier);

/* redis_get.c, redis_walk.c */
int kvc_redis_get(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                  kvc_tier_take *take, void *state, struct kvc_error *e);
int kvc_redis_walk(struct kvc_tier *tier, const uint8_t *ns, kvc_tier_seen *seen, void *state,
                   struct kvc_error *e);
int kvc_redis_facts(struct kvc_tier *tier, struct kvc_tier_facts *facts, kvc_instant deadline,
                    struct kvc_error *e);

#endif
