/* shared.c: something made once for several threads. */
#include "codecs/shared.h"

#include <stdlib.h>

int kvc_shared_init(struct kvc_shared *s, struct kvc_error *e) {
    s->bytes = NULL;
    return pthread_mutex_init(&s->lock, NULL) ? kvc_fail_memory(e, "a lock") : 0;
}

void kvc_shared_free(struct kvc_shared *s) {
    free(s->bytes);
    s->bytes = NULL;
    pthread_mutex_destroy(&s->lock);
}

const void *kvc_shared_get(struct kvc_shared *s, unsigned tag, size_t n,
                           int (*make)(const void *what, void *bytes, struct kvc_error *e), const void *what,
                           struct kvc_error *e) {
    pthread_mutex_lock(&s->lock);
    if (!s->bytes) {
        void *bytes = malloc(n ? n : 1);
        if (!bytes) kvc_fail_memory(e, "what layers share");
        else if (make(what, bytes, e)) free(bytes);
        else s->bytes = bytes;
        s->tag = tag;
    } else if (s->tag != tag) {
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "K and V of a layer cannot be looked at by two rules");
    }
    const void *found = s->tag == tag ? s->bytes : NULL;
    pthread_mutex_unlock(&s->lock);
    return found;
}
