/* redis_run.h: commands on their way: to all nodes at once, pipelined, by one deadline, and again where a redirection points to. One
 * thread's; not for what commands mean. REDIS.md, "Connections", "Slots", "Failures". */
#ifndef KVC_REDIS_RUN_H
#define KVC_REDIS_RUN_H

#include "formats/store/redis/redis_nodes.h"

struct kvc_redis_run;
struct kvc_redis_request;

enum kvc_redis_state {
    KVC_REDIS_WAITING,
    KVC_REDIS_ANSWERED, /* `reply` or `placed` */
    KVC_REDIS_FAILED,   /* the node; the run's error says why */
    KVC_REDIS_DENIED    /* the server, for this command: `reply` is its error */
};

/* Gets a request that has an answer or has failed; may add others to the run, and may free this one. */
typedef void kvc_redis_done(struct kvc_redis_run *run, struct kvc_redis_request *q);

struct kvc_redis_request {
    struct kvc_redis_request *next;
    int slot; /* of the key; -1: `node` is given */
    int node;
    struct iovec part[3]; /* the command */
    size_t parts;
    char *text;             /* of part[0]; kvc_redis_request_free() frees it */
    uint64_t expected;      /* bytes of the reply, if these are many: limits what is under way on one connection */
    kvc_redis_place *place; /* for values; its state is this request. NULL: values come as `reply` */
    kvc_redis_done *done;   /* may be NULL */
    void *state;            /* the caller's */
    enum kvc_redis_state state_of;
    redisReply *reply;
    size_t placed;
    int asking;       /* ASKING goes before it */
    unsigned answers; /* still to skip: of ASKING */
    unsigned tries;
};

struct kvc_redis_list {
    struct kvc_redis_request *first, **last;
};

/* A run's connection to one node. */
struct kvc_redis_lane {
    int number;
    struct kvc_redis_node *node;
    struct kvc_redis_link *link; /* NULL: there is none (yet) */
    struct kvc_redis_list unsent, sent;
    size_t offset;      /* bytes sent of the first unsent request */
    size_t greeting;    /* bytes sent of the greeting */
    unsigned greetings; /* its replies that are still to come */
    uint64_t under_way; /* bytes expected of the sent ones */
    int fresh;          /* the connection is new */
    int answered;       /* it gave an answer in this run */
    int broken;         /* the node failed in this run */
    unsigned address;   /* of the node, that is tried */
    kvc_instant since;  /* when bytes were moved last */
};

struct kvc_redis_run {
    struct kvc_redis *l;
    kvc_instant deadline;
    struct kvc_redis_lane **lane;
    size_t n_lanes;
    struct kvc_redis_list later; /* to be tried again at `wake` */
    kvc_instant wake;
    size_t pending; /* requests */
    uint64_t rounds;
    int failed; /* `error` is set */
    struct kvc_error error;
};

void kvc_redis_run_init(struct kvc_redis_run *run, struct kvc_redis *l, kvc_instant deadline);
/* Gives connections back; those that wait for replies are closed, as a late reply must not be taken for another's. */
void kvc_redis_run_end(struct kvc_redis_run *run);

/* Writes a command of words into q; the slot is that of the key, word 1, or -1 if there is none. */
int kvc_redis_request_words(struct kvc_redis_request *q, int n, const char *const *word, struct kvc_error *e);
void kvc_redis_request_free(struct kvc_redis_request *q);
/* Adds a request; it stays the caller's, at its place, until it is done. */
void kvc_redis_run_add(struct kvc_redis_run *run, struct kvc_redis_request *q);
/* Moves bytes once, and waits for a possibility to. Returns 1 while requests are pending. */
int kvc_redis_run_step(struct kvc_redis_run *run);

/* Finds out who has which slots, if that is not known. */
int kvc_redis_discover(struct kvc_redis *l, kvc_instant deadline, struct kvc_error *e);

/* Fills *e from the error of a server or of the run; returns -1. */
int kvc_redis_explain(const struct kvc_redis_run *run, const struct kvc_redis_request *q, struct kvc_error *e);

#endif
