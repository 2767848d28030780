/* redis_nodes.c: servers, their connections, and when to leave them alone. */
#include "formats/store/redis/redis_nodes.h"

#include "formats/store/redis/redis_lookup.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IDLE = 16, FAILURES = 3, FIRST_PAUSE = 1000000, MAX_PAUSE = 30000000 };

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
        kvc_redis_lookup_end(n);
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
    if (!to.size && kvc_redis_lookup(l, n, address, deadline, &to, e)) return NULL;
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

int kvc_redis_node_try(struct kvc_redis *l, struct kvc_redis_node *n, struct kvc_error *e) {
    const kvc_instant now = kvc_now();
    char why[sizeof n->why];
    pthread_mutex_lock(&l->lock);
    const kvc_instant until = n->until;
    memcpy(why, n->why, sizeof why);
    /* one call finds out whether the node is back; the others go on leaving it alone meanwhile */
    if (until && now >= until) n->until = now + n->pause;
    pthread_mutex_unlock(&l->lock);
    if (now >= until) return 0;
    return kvc_fail(e, KVC_ERR_IO, "it is left alone for %" PRId64 " ms more after failures: %s",
                    (until - now) / 1000 + 1, why);
}

void kvc_redis_node_worked(struct kvc_redis *l, struct kvc_redis_node *n) {
    pthread_mutex_lock(&l->lock);
    n->failures = 0;
    n->until = n->pause = 0;
    pthread_mutex_unlock(&l->lock);
}

void kvc_redis_node_failed(struct kvc_redis *l, struct kvc_redis_node *n, unsigned failures,
                           const char *why) {
    pthread_mutex_lock(&l->lock);
    snprintf(n->why, sizeof n->why, "%s", why);
    n->failures += failures;
    n->n_addresses = 0; /* a name may have another address now */
    if (n->failures >= FAILURES) {
        n->failures = FAILURES;
        n->pause = n->pause ? 2 * n->pause : FIRST_PAUSE;
        if (n->pause > MAX_PAUSE) n->pause = MAX_PAUSE;
        /* up to a quarter more, so that many clients do not come back at one time */
        l->dice = l->dice * 6364136223846793005u + 1442695040888963407u;
        n->until = kvc_now() + n->pause + (int64_t)((l->dice >> 33) % (uint64_t)(n->pause / 4));
    }
    l->stale = 1;
    pthread_mutex_unlock(&l->lock);
}

void kvc_redis_quote(const struct kvc_redis *l, char *to, size_t room, const char *text) {
    snprintf(to, room, "%s", text);
    kvc_tier_redact(to, l->o.password);
    for (; *to; to++)
        if (*to < ' ' || *to > '~') *to = '?';
}
