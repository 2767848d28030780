/* redis_nodes.c: servers, the addresses of their names, their connections, and when to leave them
 * alone. */
#include "formats/store/redis/redis_state.h"

#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- names of hosts --- */

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
    while (n->lookup == KVC_REDIS_LOOKING && kvc_wait_until(&l->looked, &l->lock, deadline))
        ;
}

/* Returns an address of a node. -1: it has none, or it is not known until the deadline: a resolver
 * may take seconds. */
static int look_up(struct kvc_redis *l, struct kvc_redis_node *n, unsigned i, kvc_instant deadline,
                   struct kvc_redis_address *to, struct kvc_error *e) {
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

/* --- nodes --- */

enum { MAX_IDLE = 16 };

static int add_locked(struct kvc_redis *l, const char *host, uint16_t port) {
    for (size_t i = 0; i < l->n_nodes; i++)
        if (l->node[i]->port == port && strcmp(l->node[i]->host, host) == 0) return (int)i;
    if (l->n_nodes == KVC_REDIS_MAX_NODES || strlen(host) >= KVC_REDIS_HOST) return -1;
    struct kvc_redis_node *n = calloc(1, sizeof *n);
    if (!n) return -1;
    memcpy(n->host, host, strlen(host) + 1);
    snprintf(n->name, sizeof n->name, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
             (unsigned)port);
    kvc_tier_redact(n->name, l->o.password); /* a server may have named the host */
    n->port = port;
    n->of = l;
    kvc_breaker_init(&n->breaker);
    l->node[l->n_nodes] = n;
    return (int)l->n_nodes++;
}

int kvc_redis_node_add(struct kvc_redis *l, const char *host, uint16_t port) {
    pthread_mutex_lock(&l->lock);
    const int i = add_locked(l, host, port);
    pthread_mutex_unlock(&l->lock);
    return i;
}

void kvc_redis_nodes_free(struct kvc_redis *l) {
    for (size_t i = 0; i < l->n_nodes; i++) {
        struct kvc_redis_node *n = l->node[i];
        /* waits for its thread */
        if (n->lookup != KVC_REDIS_NO_LOOKUP) pthread_join(n->looker, NULL);
        kvc_breaker_free(&n->breaker);
        for (struct kvc_redis_socket *socket; (socket = n->idle) != NULL;) {
            n->idle = socket->next;
            kvc_redis_socket_close(socket);
        }
        free(n);
    }
    free(l->node);
}

struct kvc_redis_socket *kvc_redis_node_socket(struct kvc_redis *l, struct kvc_redis_node *n,
                                               unsigned address, kvc_instant deadline, int *fresh,
                                               struct kvc_error *e) {
    struct kvc_redis_address to = {.size = 0};
    *fresh = 0;
    for (struct kvc_redis_socket *socket;;) {
        pthread_mutex_lock(&l->lock);
        socket = n->idle;
        if (socket) {
            n->idle = socket->next;
            n->n_idle--;
        } else if (address < n->n_addresses) to = n->address[address];
        pthread_mutex_unlock(&l->lock);
        if (!socket) break;
        socket->next = NULL;
        if (kvc_redis_socket_is_quiet(socket)) return socket;
        kvc_redis_socket_close(socket);
    }
    *fresh = 1;
    if (!to.size && look_up(l, n, address, deadline, &to, e)) return NULL;
    return kvc_redis_socket_open((const struct sockaddr *)&to.a, to.size, l->o.tls, n->host, e);
}

void kvc_redis_node_give(struct kvc_redis *l, struct kvc_redis_node *n,
                         struct kvc_redis_socket *socket) {
    int kept = 0;
    if (kvc_redis_socket_is_quiet(socket)) {
        pthread_mutex_lock(&l->lock);
        kept = n->n_idle < MAX_IDLE;
        if (kept) {
            socket->next = n->idle;
            n->idle = socket;
            n->n_idle++;
        }
        pthread_mutex_unlock(&l->lock);
    }
    if (!kept) kvc_redis_socket_close(socket);
}

int kvc_redis_node_try(struct kvc_redis_node *n, struct kvc_error *e) {
    char why[KVC_BREAKER_TEXT];
    const int64_t left = kvc_breaker_is_open(&n->breaker, why);
    if (!left) return 0;
    return kvc_fail(e, KVC_ERR_IO, "it is left alone for %" PRId64 " ms more after failures: %s",
                    left / 1000 + 1, why);
}

void kvc_redis_node_failed(struct kvc_redis_node *n, unsigned failures, const char *why) {
    kvc_breaker_note(&n->breaker, failures, why);
    pthread_mutex_lock(&n->of->lock);
    n->n_addresses = 0; /* a name may have another address now */
    n->of->stale = 1;
    pthread_mutex_unlock(&n->of->lock);
}

void kvc_redis_quote(const struct kvc_redis *l, char *to, size_t room, const char *text) {
    snprintf(to, room, "%s", text);
    kvc_tier_redact(to, l->o.password);
    for (; *to; to++)
        if (*to < ' ' || *to > '~') *to = '?';
}
