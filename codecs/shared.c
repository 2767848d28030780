/* shared.c: something made once for several threads. */
#include "codecs/shared.h"

#include <stdlib.h>
#include <string.h>

int kvc_shared_init(struct kvc_shared *s, struct kvc_error *e) {
    memset(s, 0, sizeof *s);
    if (pthread_mutex_init(&s->lock, NULL)) return kvc_fail_memory(e, "a lock");
    if (!pthread_cond_init(&s->changed, NULL)) return 0;
    pthread_mutex_destroy(&s->lock);
    return kvc_fail_memory(e, "a lock");
}

void kvc_shared_free(struct kvc_shared *s) {
    free(s->bytes);
    s->bytes = NULL;
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
}

/* Makes parts until all are begun or one has failed, then waits for those of other threads. Called,
 * and returns, under the lock. */
static void make_parts(struct kvc_shared *s,
                       int (*make)(const void *what, void *bytes, size_t part, struct kvc_error *e),
                       const void *what) {
    while (s->begun < s->parts && !s->failed) {
        struct kvc_error error;
        const size_t part = s->begun++;
        pthread_mutex_unlock(&s->lock);
        const int failed = make(what, s->bytes, part, &error);
        pthread_mutex_lock(&s->lock);
        s->made++;
        if (failed && !s->failed) s->error = error;
        s->failed |= failed;
        pthread_cond_broadcast(&s->changed);
    }
    while (s->made < s->begun) pthread_cond_wait(&s->changed, &s->lock);
}

const void *kvc_shared_get(struct kvc_shared *s, unsigned tag, size_t n, size_t parts,
                           int (*make)(const void *what, void *bytes, size_t part,
                                       struct kvc_error *e),
                           const void *what, struct kvc_error *e) {
    const void *found = NULL;
    pthread_mutex_lock(&s->lock);
    if (!s->bytes && (s->bytes = malloc(n ? n : 1))) {
        s->tag = tag;
        s->parts = parts;
    }
    if (!s->bytes) kvc_fail_memory(e, "what layers share");
    else if (s->tag != tag)
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "K and V of a layer cannot be looked at by two rules");
    else {
        make_parts(s, make, what);
        if (!s->failed) found = s->bytes;
        else if (e) *e = s->error;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}
