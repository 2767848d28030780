/* redis_state.h: what a tier knows of its cluster: servers, their idle connections, who has which
 * slot, whom to leave alone. All of it is under one lock, which nobody holds while waiting.
 * REDIS.md, "Slots" and "Failures". */
#ifndef KVC_REDIS_STATE_H
#define KVC_REDIS_STATE_H

#include "formats/store/tier.h"
#include "formats/store/redis/redis_socket.h"
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
    struct kvc_redis_socket *idle;
    unsigned n_idle;
    unsigned failures; /* without a success since */
    kvc_instant until; /* is left alone; 0: is not */
    int64_t pause;     /* of the last time */
    char why[128];     /* it failed the last time */
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
    char *setup; /* commands for a new connection: AUTH, SELECT */
    size_t setup_size;
    unsigned setup_replies;
    char *password; /* NULL: none. Messages must not repeat it */
    struct kvc_redis_tls *tls;
    int64_t ttl, timeout; /* microseconds; ttl 0: none */
    uint64_t max_object;
};

struct kvc_redis {
    struct kvc_tier tier;
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

#endif
