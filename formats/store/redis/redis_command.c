/* redis_command.c: commands as they are sent. */
#include "formats/store/redis/redis_command.h"

#include <stdlib.h>
#include <string.h>

int kvc_redis_request_words(struct kvc_redis_request *q, int n, const char *const *word,
                            struct kvc_error *e) {
    const char *argv[8];
    for (int i = 0; i < n; i++) argv[i] = word[i];
    const int size = redisFormatCommandArgv(&q->text, n, argv, NULL);
    if (size < 0) {
        q->text = NULL;
        return kvc_fail_memory(e, "a command");
    }
    q->part[0] = (struct iovec){q->text, (size_t)size};
    q->parts = 1;
    return 0;
}

void kvc_redis_request_free(struct kvc_redis_request *q) {
    if (q->reply) freeReplyObject(q->reply);
    free(q->text);
    q->reply = NULL;
    q->text = NULL;
}

int kvc_redis_key(const struct kvc_redis *l, const struct kvc_object *o, char key[KVC_REDIS_KEY]) {
    const size_t n = strlen(l->o.prefix);
    memcpy(key, l->o.prefix, n);
    kvc_object_name(o, key + n);
    return (int)kvc_redis_slot(key);
}

int kvc_redis_ask(const struct kvc_redis *l, struct kvc_redis_request *q, const char *verb,
                  const struct kvc_object *o, const char *second, const char *third,
                  struct kvc_error *e) {
    char key[KVC_REDIS_KEY];
    const char *word[] = {verb, key, second, third};
    q->slot = kvc_redis_key(l, o, key);
    return kvc_redis_request_words(q, second ? third ? 4 : 3 : 2, word, e);
}
