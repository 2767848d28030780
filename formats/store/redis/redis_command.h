/* redis_command.h: writes commands. Not for sending them. REDIS.md, "Commands". */
#ifndef KVC_REDIS_COMMAND_H
#define KVC_REDIS_COMMAND_H

#include "formats/store/redis/redis_connection.h"

#define KVC_REDIS_PREFIX 256
#define KVC_REDIS_KEY (KVC_REDIS_PREFIX + KVC_OBJECT_NAME)

/* Writes a command of words into q. */
int kvc_redis_request_words(struct kvc_redis_request *q, int n, const char *const *word,
                            struct kvc_error *e);
void kvc_redis_request_free(struct kvc_redis_request *q);

/* Writes an object's key, and returns its slot. */
int kvc_redis_key(const struct kvc_redis *l, const struct kvc_object *o, char key[KVC_REDIS_KEY]);
/* Writes a request about an object: `verb`, its key, and up to two further words. */
int kvc_redis_ask(const struct kvc_redis *l, struct kvc_redis_request *q, const char *verb,
                  const struct kvc_object *o, const char *second, const char *third,
                  struct kvc_error *e);

#endif
