/* redis_connection.h: requests of a run, and its connection to one node. Not for where requests go,
 * nor for what becomes of replies (redis_run.h). REDIS.md, "Connections". */
#ifndef KVC_REDIS_CONNECTION_H
#define KVC_REDIS_CONNECTION_H

#include "formats/store/redis/redis_nodes.h"

#include <poll.h>

struct kvc_redis_run;
struct kvc_redis_request;

enum kvc_redis_state {
    KVC_REDIS_WAITING,
    KVC_REDIS_ANSWERED, /* `reply` or `placed` */
    KVC_REDIS_FAILED,   /* the node; the run's error says why */
    KVC_REDIS_DENIED    /* the server, for this command: `reply` is its error */
};

/* Gets a request that has an answer or has failed; may add others to the run, and may free this
 * one. */
typedef void kvc_redis_done(struct kvc_redis_run *run, struct kvc_redis_request *q);

struct kvc_redis_request {
    struct kvc_redis_request *next;
    int slot; /* of the key; -1: `node` is given */
    int node;
    struct iovec part[3]; /* the command */
    size_t parts;
    char *text; /* of part[0]; kvc_redis_request_free() frees it */
    /* bytes of the reply, if these are many: limits what is under way on one connection */
    uint64_t expected;
    /* for values; its state is this request. NULL: values come as `reply` */
    kvc_redis_place *place;
    kvc_redis_done *done; /* may be NULL */
    void *state;          /* the caller's */
    enum kvc_redis_state state_of;
    redisReply *reply;
    size_t placed;
    int optional;     /* whatever error the server answers, this command alone is denied */
    int asking;       /* ASKING goes before it */
    unsigned answers; /* still to skip: of ASKING */
    unsigned tries;
};

struct kvc_redis_list {
    struct kvc_redis_request *first, **last;
};

/* A run's connection to one node. */
struct kvc_redis_connection {
    int number;
    struct kvc_redis_node *node;
    struct kvc_redis_socket *socket; /* NULL: there is none (yet) */
    struct kvc_redis_list unsent, sent;
    size_t offset;          /* bytes sent of the first unsent request */
    size_t setup;           /* bytes sent of the setup */
    unsigned setup_replies; /* its replies that are still to come */
    uint64_t under_way;     /* bytes expected of the sent ones */
    int fresh;              /* the connection is new */
    int answered;           /* it gave an answer in this run */
    int broken;             /* the node failed in this run */
    unsigned address;       /* of the node, that is tried */
    kvc_instant since;      /* when bytes were moved last */
};

struct kvc_redis_run {
    struct kvc_redis *l;
    kvc_instant deadline;
    struct kvc_redis_connection **connection;
    size_t n_connections;
    struct kvc_redis_list later; /* to be tried again at `wake` */
    kvc_instant wake;
    char later_why[128]; /* what the server said last to one of these */
    /* What becomes of a request that has its reply, and of a connection whose node failed so many
     * times; 0: the node is not to blame. */
    void (*answer)(struct kvc_redis_run *run, struct kvc_redis_connection *connection,
                   struct kvc_redis_request *q);
    void (*lost)(struct kvc_redis_run *run, struct kvc_redis_connection *connection,
                 unsigned failures, const struct kvc_error *e);
    size_t pending; /* requests */
    uint64_t rounds;
    int failed; /* `error` is set */
    struct kvc_error error;
};

void kvc_redis_list_add(struct kvc_redis_list *list, struct kvc_redis_request *q);
struct kvc_redis_request *kvc_redis_list_take(struct kvc_redis_list *list);

/* Gets a connection if there is something to send. */
void kvc_redis_connection_start(struct kvc_redis_run *run, struct kvc_redis_connection *connection);
/* Sets what poll() is to wait for; 0: nothing. */
int kvc_redis_connection_wants(const struct kvc_redis_connection *connection, struct pollfd *p);
/* Moves the bytes that can be moved, and hands on replies. */
void kvc_redis_connection_serve(struct kvc_redis_run *run, struct kvc_redis_connection *connection);

#endif
