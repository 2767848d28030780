/* redis_level.h: what the files of the level share. Not for connections. */
#ifndef KVC_REDIS_LEVEL_H
#define KVC_REDIS_LEVEL_H

#include "formats/store/redis/redis_run.h"

#define KVC_REDIS_PREFIX 256
#define KVC_REDIS_KEY (KVC_REDIS_PREFIX + KVC_OBJECT_NAME)
#define KVC_REDIS_SLICE (1 << 20)

/* redis_open.c */
struct kvc_redis *kvc_redis_open(struct kvc_url *url, struct kvc_error *e);
void kvc_redis_close(struct kvc_level *level);

/* redis_level.c: write an object's key, and return its slot; write a request about it. */
int kvc_redis_key(const struct kvc_redis *l, const struct kvc_object *o, char key[KVC_REDIS_KEY]);
int kvc_redis_ask(const struct kvc_redis *l, struct kvc_redis_request *q, const char *verb, const struct kvc_object *o,
                  const char *second, const char *third, struct kvc_error *e);

/* redis_get.c, redis_walk.c */
int kvc_redis_get(struct kvc_level *level, const struct kvc_object *o, size_t n, kvc_instant deadline, kvc_level_take *take,
                  void *state, struct kvc_error *e);
int kvc_redis_walk(struct kvc_level *level, const uint8_t *space, kvc_level_seen *seen, void *state, struct kvc_error *e);
int kvc_redis_facts(struct kvc_level *level, struct kvc_level_facts *facts, kvc_instant deadline, struct kvc_error *e);

#endif
