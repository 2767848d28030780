/* redis_discover.c: commands as they are sent; and the slots, for which all known servers are
 * asked: the first answer counts. */
#include "formats/store/redis/redis_state.h"

#include "codecs/memory.h"

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

/* --- slots --- */

enum { PAUSE = 1000000, GRACE = 5000 };

struct discovery {
    struct kvc_redis *l;
    size_t n; /* servers that are asked */
    int found;
    struct kvc_error e;
    int failed;
    const struct kvc_redis_node *node; /* that answers */
    uint16_t slot[KVC_REDIS_SLOTS];
};

static int take_range(void *state, unsigned first, unsigned last, const char *host, uint16_t port) {
    struct discovery *d = state;
    const int number = kvc_redis_node_add(d->l, *host ? host : d->node->host, port);
    if (number < 0) return -1;
    for (unsigned i = first; i <= last; i++) d->slot[i] = (uint16_t)number;
    d->found = 1;
    return 0;
}

static void fail(struct discovery *d, const struct kvc_error *e) {
    if (!d->failed) d->e = *e;
    d->failed = 1;
}

static void use(struct discovery *d, int clustered) {
    struct kvc_redis *l = d->l;
    pthread_mutex_lock(&l->lock);
    memcpy(l->slot, d->slot, sizeof l->slot);
    for (size_t i = 0; i < l->n_nodes; i++) l->node[i]->serves = 0;
    for (unsigned i = 0; i < KVC_REDIS_SLOTS; i++)
        if (l->slot[i] != KVC_REDIS_NOBODY) l->node[l->slot[i]]->serves = 1;
    l->known = 1;
    l->clustered = clustered;
    l->stale = 0;
    pthread_mutex_unlock(&l->lock);
}

static void answered(struct kvc_redis_run *run, struct kvc_redis_request *q) {
    struct discovery *d = q->state;
    struct kvc_error e;
    (void)run;
    if (d->found) return;
    if (q->state_of == KVC_REDIS_DENIED && strstr(q->reply->str, "cluster support disabled")) {
        if (d->n > 1) {
            kvc_fail(&e, KVC_ERR_USAGE,
                     "redis: one of the %zu hosts is no member of a cluster: name one host, or "
                     "members of one cluster",
                     d->n);
            fail(d, &e);
            return;
        }
        for (unsigned i = 0; i < KVC_REDIS_SLOTS; i++) d->slot[i] = (uint16_t)q->node;
        d->found = 1;
        use(d, 0);
        return;
    }
    if (q->state_of != KVC_REDIS_ANSWERED) {
        if (q->state_of == KVC_REDIS_DENIED) {
            kvc_redis_explain(run, q, &e);
            fail(d, &e);
        }
        return;
    }
    pthread_mutex_lock(&d->l->lock);
    d->node = d->l->node[q->node];
    pthread_mutex_unlock(&d->l->lock);
    memset(d->slot, 0xff, sizeof d->slot);
    if (kvc_redis_ranges(q->reply, take_range, d) == 0 && d->found) {
        use(d, 1);
        return;
    }
    d->found = 0;
    kvc_fail(&e, KVC_ERR_IO, "redis: %s does not tell which server has which slots", d->node->name);
    fail(d, &e);
}

static int redis_discover_ask(struct discovery *d, kvc_instant deadline, struct kvc_error *e) {
    static const char *const word[] = {"CLUSTER", "SLOTS"};
    struct kvc_redis_run run;
    struct kvc_redis_request *q = kvc_alloc_zeros(d->n, sizeof *q);
    int status = 0;
    if (!q) return kvc_fail_memory(e, "a command");
    kvc_redis_run_init(&run, d->l, deadline);
    for (size_t i = 0; i < d->n && !status; i++)
        status = kvc_redis_request_words(&q[i], 2, word, e);
    for (size_t i = 0; i < d->n && !status; i++) {
        q[i].slot = -1;
        q[i].node = (int)i;
        q[i].state = d;
        q[i].done = answered;
        kvc_redis_run_add(&run, &q[i]);
    }
    while (!status && kvc_redis_run_step(&run) && !d->found)
        ;
    /* the others mostly answer at once, and their connections can then be kept */
    const kvc_instant until = kvc_now() + GRACE;
    if (until < run.deadline)
        while (!status && kvc_now() < until && kvc_redis_run_step(&run))
            ;
    if (!status && !d->found) {
        if (d->failed) *e = d->e;
        else kvc_redis_explain(&run, NULL, e);
        status = -1;
    }
    kvc_redis_run_end(&run);
    for (size_t i = 0; i < d->n; i++) kvc_redis_request_free(&q[i]);
    free(q);
    return status;
}

int kvc_redis_discover(struct kvc_redis *l, kvc_instant deadline, struct kvc_error *e) {
    const kvc_instant now = kvc_now();
    struct kvc_error unused;
    struct discovery d = {.l = l};
    pthread_mutex_lock(&l->lock);
    const int known = l->known,
              due = !known || (l->stale && l->clustered && now - l->asked >= PAUSE);
    if (due) l->asked = now;
    d.n = l->n_nodes;
    pthread_mutex_unlock(&l->lock);
    if (!due) return 0;
    const int status = redis_discover_ask(&d, deadline, e ? e : &unused);
    return known ? 0 : status;
}
