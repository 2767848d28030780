/* queue.c: what waits to be put or copied: how much, and for how long. */
#include "formats/store/store.h"

int kvc_queue_add(struct kvc_store *s, uint64_t bytes) {
    pthread_mutex_lock(&s->lock);
    /* One that is larger than the queue has its turn when nothing else waits. */
    const int full = s->waiting && (s->waiting_bytes > s->options.queue_bytes ||
                                    bytes > s->options.queue_bytes - s->waiting_bytes);
    if (!full) {
        s->waiting++;
        s->waiting_bytes += bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return full;
}

void kvc_queue_remove(struct kvc_store *s, uint64_t bytes) {
    pthread_mutex_lock(&s->lock);
    s->waiting--;
    s->waiting_bytes -= bytes;
    if (!s->waiting) pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
}

int kvc_store_flush(struct kvc_store *s, int64_t deadline) {
    const kvc_instant until = deadline ? kvc_now() + deadline : INT64_MAX;
    pthread_mutex_lock(&s->lock);
    while (s->waiting && kvc_wait_until(&s->idle, &s->lock, until)) continue;
    const int status = s->waiting ? -1 : 0;
    pthread_mutex_unlock(&s->lock);
    return status;
}
