/* redis_nodes.h: what a level knows of its cluster: servers, their idle connections, who has which slot, whom to leave alone. All of it
 * is under one lock, which nobody holds while waiting. Not for commands. REDIS.md, "Slots" and "Failures". */
#ifndef KVC_REDIS_NODES_H
#define KVC_REDIS_NODES_H

#include "formats/store/level.h"
#include "formats/store/redis/redis_link.h"
#include "formats/store/redis/redis_slots.h"

#include <pthread.h>

#define KVC_REDIS_MAX_NODES 1024
#define KVC_REDIS_MAX_ADDRESSES 4
#define KVC_REDIS_NOBODY UINT16_MAX

struct kvc_redis_node {
    char host[KVC_REDIS_HOST];
    uint16_t port;
    char name[KVC_REDIS_HOST + 10]; /* for messages */
    int serves;                     /* has slots, or is the single server */
    struct kvc_redis_link *idle;
    unsigned n_idle;
    unsigned failures; /* without a success since */
    kvc_instant until; /* is left alone; 0: is not */
    int64_t pause;     /* of the last time */
    struct kvc_redis_address {
        struct sockaddr_storage a;
        socklen_t size;
    } address[KVC_REDIS_MAX_ADDRESSES];
    unsigned n_addresses;
    enum { KVC_REDIS_NO_LOOKUP, KVC_REDIS_LOOKING, KVC_REDIS_LOOKED } lookup;
    pthread_t looker;
    struct kvc_redis *of;
};

struct kvc_redis_options {
    char *prefix;
    char *greeting; /* commands for a new connection: AUTH, SELECT */
    size_t greeting_size;
    unsigned greeting_replies;
    struct kvc_redis_tls *tls;
    int64_t ttl, timeout; /* microseconds; ttl 0: none */
    uint64_t max_object;
};

struct kvc_redis {
    struct kvc_level level;
    struct kvc_redis_options o; /* does not change */
    pthread_mutex_t lock;       /* of all that follows */
    pthread_cond_t looked;
    struct kvc_redis_node **node; /* no node is removed before the end */
    size_t n_nodes;
    uint16_t slot[KVC_REDIS_SLOTS]; /* number of a node, or KVC_REDIS_NOBODY */
    int known, clustered;
    int stale;         /* a server contradicted the slots, or a node failed */
    kvc_instant asked; /* when slots were last asked for */
    uint64_t finds, find_rounds;
    uint64_t dice;
};

/* Returns the number of the node, which it adds if it is new. -1: there are too many, or no memory. */
int kvc_redis_node_add(struct kvc_redis *l, const char *host, uint16_t port);
/* The same under the lock. */
int kvc_redis_node_add_locked(struct kvc_redis *l, const char *host, uint16_t port);
void kvc_redis_nodes_free(struct kvc_redis *l);

/* Returns an idle connection, or a new one. *fresh: it is new. NULL: the node is to be left alone, or cannot be reached. `address` is the
 * number of the address to try, of which a node has up to KVC_REDIS_MAX_ADDRESSES. */
struct kvc_redis_link *kvc_redis_node_link(struct kvc_redis *l, struct kvc_redis_node *n, unsigned address, kvc_instant deadline,
                                           int *fresh, struct kvc_error *e);
/* Gives a connection back; one that is not quiet is closed. */
void kvc_redis_node_give(struct kvc_redis *l, struct kvc_redis_node *n, struct kvc_redis_link *link);
/* Fails, at once, if the node is to be left alone. */
int kvc_redis_node_try(struct kvc_redis *l, struct kvc_redis_node *n, struct kvc_error *e);
/* Counts a success, or failures: at 3 of them the node is left alone. */
void kvc_redis_node_worked(struct kvc_redis *l, struct kvc_redis_node *n);
void kvc_redis_node_failed(struct kvc_redis *l, struct kvc_redis_node *n, unsigned failures);

#endif
