/* redis_lookup.c: names of hosts. */
#include "formats/store/redis/redis_lookup.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Fills the list of addresses; returns their number. */
static unsigned resolve(const char *host, uint16_t port, int flags,
                        struct kvc_redis_address list[KVC_REDIS_MAX_ADDRESSES]) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8];
    unsigned n = 0;
    snprintf(service, sizeof service, "%u", (unsigned)port);
    if (getaddrinfo(host, service, &hints, &found)) return 0;
    for (const struct addrinfo *a = found; a && n < KVC_REDIS_MAX_ADDRESSES; a = a->ai_next) {
        if (a->ai_addrlen > sizeof list[n].a) continue;
        memcpy(&list[n].a, a->ai_addr, a->ai_addrlen);
        list[n++].size = a->ai_addrlen;
    }
    freeaddrinfo(found);
    return n;
}

static void *look(void *arg) {
    struct kvc_redis_node *n = arg;
    struct kvc_redis_address list[KVC_REDIS_MAX_ADDRESSES];
    const unsigned found = resolve(n->host, n->port, 0, list);
    pthread_mutex_lock(&n->of->lock);
    memcpy(n->address, list, found * sizeof list[0]);
    n->n_addresses = found;
    n->lookup = KVC_REDIS_LOOKED;
    pthread_cond_broadcast(&n->of->looked);
    pthread_mutex_unlock(&n->of->lock);
    return NULL;
}

/* Starts the thread, unless one is looking already, and waits for it. Under the lock, which it
 * leaves while it waits. */
static void redis_lookup_ask(struct kvc_redis *l, struct kvc_redis_node *n, kvc_instant deadline) {
    if (n->lookup == KVC_REDIS_LOOKED) {
        pthread_join(n->looker, NULL); /* it has left the lock and ends */
        n->lookup = KVC_REDIS_NO_LOOKUP;
    }
    if (n->lookup == KVC_REDIS_NO_LOOKUP && pthread_create(&n->looker, NULL, look, n) == 0)
        n->lookup = KVC_REDIS_LOOKING;
    const kvc_instant limit = kvc_now() + l->o.timeout;
    if (deadline > limit) deadline = limit;
    const struct timespec until = {.tv_sec = deadline / 1000000,
                                   .tv_nsec = deadline % 1000000 * 1000};
    while (n->lookup == KVC_REDIS_LOOKING &&
           pthread_cond_timedwait(&l->looked, &l->lock, &until) == 0)
        ;
}

int kvc_redis_lookup(struct kvc_redis *l, struct kvc_redis_node *n, unsigned i,
                     kvc_instant deadline, struct kvc_redis_address *to, struct kvc_error *e) {
    struct kvc_redis_address list[KVC_REDIS_MAX_ADDRESSES];
    const unsigned found = resolve(n->host, n->port, AI_NUMERICHOST, list);
    int late = 0;
    to->size = 0;
    pthread_mutex_lock(&l->lock);
    if (found) {
        memcpy(n->address, list, found * sizeof list[0]);
        n->n_addresses = found;
    } else if (!n->n_addresses && !i) redis_lookup_ask(l, n, deadline);
    if (i < n->n_addresses) *to = n->address[i];
    late = n->lookup == KVC_REDIS_LOOKING;
    pthread_mutex_unlock(&l->lock);
    if (to->size) return 0;
    return kvc_fail(e, KVC_ERR_IO,
                    late ? "no name server tells its address in time" : "its name has no address");
}

void kvc_redis_lookup_end(struct kvc_redis_node *n) {
    if (n->lookup != KVC_REDIS_NO_LOOKUP) pthread_join(n->looker, NULL);
    n->lookup = KVC_REDIS_NO_LOOKUP;
}
