/* events.c: finding and loading in the background, for an engine's loop. */
#include "formats/store/store.h"

#include "formats/api/sized.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void events_run(struct kvc_task *task) {
    struct kvc_event *x = (struct kvc_event *)task;
    struct kvc_store *s = x->ns->store;
    const uint64_t one = 1;
    struct kvc_error e = {.code = KVC_OK};
    struct kvc_store_hit *hit = s->closing ? NULL
                                           : kvc_store_find(x->ns, x->tokens, x->n, NULL, &e);
    x->end = (uint64_t)x->memory.first_position;
    if (hit) x->end = kvc_store_load(hit, &x->memory, &x->options, &e);
    x->code = e.code == KVC_ERR_USAGE || e.code == KVC_ERR_SLICE ? (int)e.code : 0;
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(x->ns);
    pthread_mutex_lock(&s->lock);
    x->next = NULL;
    *s->last_event = x;
    s->last_event = &x->next;
    pthread_mutex_unlock(&s->lock);
    (void)!write(s->event_fd, &one, sizeof one);
}

int64_t kvc_store_submit(struct kvc_store_namespace *ns, const int32_t *tokens, uint64_t n,
                         const struct kvc_memory *m, const struct kvc_store_load_options *options,
                         struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    struct kvc_store_load_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_load_options", e)) return -1;
    if (m->size != sizeof *m)
        return kvc_fail(e, KVC_ERR_USAGE, "struct kvc_memory is of another version of kvc.h");
    struct kvc_event *x = calloc(1, sizeof *x);
    if (x && n < SIZE_MAX / 8) x->tokens = malloc((size_t)n * sizeof *tokens + 1);
    if (!x || !x->tokens) {
        free(x);
        return kvc_fail_memory(e, "a request");
    }
    memcpy(x->tokens, tokens, (size_t)n * sizeof *tokens);
    x->task.run = events_run;
    x->ns = ns;
    x->n = n;
    x->memory = *m;
    x->options = o;
    x->options.progress = NULL; /* it would be called from another thread */
    kvc_namespace_hold(ns);
    pthread_mutex_lock(&s->lock);
    const int64_t number = x->number = ++s->number;
    pthread_mutex_unlock(&s->lock);
    kvc_workers_add(s->jobs, &x->task);
    return number;
}

int kvc_store_fd(const struct kvc_store *s) {
    return s->event_fd;
}

int kvc_store_poll(struct kvc_store *s, struct kvc_store_event *event) {
    uint64_t count;
    pthread_mutex_lock(&s->lock);
    struct kvc_event *x = s->events;
    if (x && !(s->events = x->next)) s->last_event = &s->events;
    if (!s->events) (void)!read(s->event_fd, &count, sizeof count); /* nothing is left */
    pthread_mutex_unlock(&s->lock);
    if (!x) return 0;
    const struct kvc_store_event own = {.size = sizeof own,
                                        .number = x->number,
                                        .end = x->end,
                                        .code = x->code};
    kvc_sized_give(event, &own, sizeof own, "kvc_store_event", NULL);
    kvc_event_free(x);
    return 1;
}
