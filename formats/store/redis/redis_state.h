/* redis_state.h: an open Redis tier, and what its files share: replies, slots, sockets, nodes, and
 * commands on their way. Not for users of a tier. REDIS.md. */
#ifndef KVC_REDIS_STATE_H
#define KVC_REDIS_STATE_H

#include "formats/store/tier.h"

#include <hiredis/hiredis.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* --- replies (redis_reply.c): turns what a server sends into replies. Values of objects go from
 * the socket into the caller's memory; all else is hiredis' tree --- */

/* Limits of a reply that is no value of an object: its bytes, those without an end of a line, and
 * the elements of all of its arrays. */
#define KVC_REDIS_MAX_REPLY (16 << 20)
#define KVC_REDIS_MAX_LINE (64 << 10)
#define KVC_REDIS_MAX_ELEMENTS (1 << 19)

/* Returns memory for a value of n bytes. NULL: it becomes a tree as other replies do. */
typedef uint8_t *kvc_redis_place(void *state, size_t n);

struct kvc_redis_reply {
    redisReply *tree; /* NULL: a value was placed */
    size_t placed;    /* its bytes */
};

struct kvc_redis_reader {
    redisReader *reader;
    redisReplyObjectFunctions functions;
    uint8_t *bytes; /* received and not yet parsed: [begin, end) */
    size_t begin, end;
    int inside;      /* the reader has the first part of a reply */
    size_t tree;     /* bytes of this reply that the reader was given */
    size_t elements; /* of the arrays of this reply */
    size_t line;     /* bytes of a line that the reader has */
    uint8_t *to;     /* the rest of a value comes here */
    size_t size;     /* of the value */
    size_t left;     /* of it, and of the two bytes after it; 0: no value is on its way */
};

int kvc_redis_reader_init(struct kvc_redis_reader *r, struct kvc_error *e);
void kvc_redis_reader_free(struct kvc_redis_reader *r);

/* Returns where to receive up to *n bytes; *n > 0. Call it when kvc_redis_reader_next() asked for
 * more. */
uint8_t *kvc_redis_reader_room(struct kvc_redis_reader *r, size_t *n);
void kvc_redis_reader_received(struct kvc_redis_reader *r, size_t n);

/* Returns 1 and the next reply, whose tree is the caller's; 0: more must be received first; -1:
 * this is no reply. A value may be placed if `place` is not NULL; the memory must stay until its
 * reply was returned. */
int kvc_redis_reader_next(struct kvc_redis_reader *r, kvc_redis_place *place, void *state,
                          struct kvc_redis_reply *reply, struct kvc_error *e);
/* 1: nothing was received beyond the replies that were returned. */
int kvc_redis_reader_is_idle(const struct kvc_redis_reader *r);

/* --- slots of keys, and what servers say about slots (redis_slots.c) --- */

#define KVC_REDIS_SLOTS 16384
#define KVC_REDIS_HOST 256

uint16_t kvc_redis_crc16(const char *text, size_t n);
/* Returns the slot of a key without braces. */
unsigned kvc_redis_slot(const char *key);

enum kvc_redis_verdict {
    KVC_REDIS_MOVED, /* another node has the slot */
    KVC_REDIS_ASK,   /* another node may have the key */
    KVC_REDIS_AGAIN, /* the same question has another answer soon */
    KVC_REDIS_STALE, /* the node is no master of the slot any more */
    /* the server cannot serve at present: no cluster, no memory, no permission */
    KVC_REDIS_UNUSABLE,
    KVC_REDIS_REFUSED /* this command failed */
};
/* Tells what an error's text means. */
enum kvc_redis_verdict kvc_redis_judge(const char *error);

struct kvc_redis_place_of { /* where a redirection points to */
    unsigned slot;
    char host[KVC_REDIS_HOST]; /* "": the host that sent it */
    uint16_t port;
};
/* Reads "MOVED 3999 127.0.0.1:6381" or the same with ASK. -1: it is damaged. */
int kvc_redis_redirection(const char *error, struct kvc_redis_place_of *to);

/* Gets each range of the reply to CLUSTER SLOTS, with its master. Returns 0, or another number to
 * stop. */
typedef int kvc_redis_range(void *state, unsigned first, unsigned last, const char *host,
                            uint16_t port);
/* -1: the reply is damaged, or `range` stopped. */
int kvc_redis_ranges(const redisReply *slots, kvc_redis_range *range, void *state);

/* --- sockets, plain or by TLS, that never wait (redis_socket.c) --- */

/* Settings of TLS that connections share. Files may be NULL: the system's authorities, and no
 * certificate of one's own. */
struct kvc_redis_tls;
struct kvc_redis_tls *kvc_redis_tls_open(const char *authorities, const char *certificate,
                                         const char *key, struct kvc_error *e);
void kvc_redis_tls_close(struct kvc_redis_tls *t); /* NULL is legal */

struct kvc_redis_socket {
    struct kvc_redis_socket *next; /* in a list of idle ones */
    int fd;
    int connecting; /* connect() has not ended */
    SSL *tls;       /* of this connection; NULL: plain */
    int handshake;  /* TLS is not agreed on yet */
    short wants;    /* what TLS waits for before anything else: POLLIN, POLLOUT, or 0 */
    struct kvc_redis_reader in;
};

/* Begins to connect. NULL: it cannot even begin. `host` is the name that a certificate must have.
 */
struct kvc_redis_socket *kvc_redis_socket_open(const struct sockaddr *address, socklen_t size,
                                               const struct kvc_redis_tls *tls, const char *host,
                                               struct kvc_error *e);
void kvc_redis_socket_close(struct kvc_redis_socket *l);

/* Goes on connecting after poll() saw POLLOUT, or what `wants` says. Returns 1 when bytes may be
 * sent, 0: not yet, -1: it failed. */
int kvc_redis_socket_connect(struct kvc_redis_socket *l, struct kvc_error *e);
/* Send or receive what is possible now. Return bytes, 0: nothing is possible, -1: the connection is
 * at its end. */
ssize_t kvc_redis_socket_send(struct kvc_redis_socket *l, struct iovec *v, size_t n,
                              struct kvc_error *e);
ssize_t kvc_redis_socket_receive(struct kvc_redis_socket *l, struct kvc_error *e);
/* 1: the connection is quiet and whole, so that it may be used again. */
int kvc_redis_socket_is_quiet(struct kvc_redis_socket *l);

/* --- what a tier knows of its cluster; all of it is under one lock, which nobody holds while
 * waiting --- */

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
    struct kvc_breaker breaker;
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
};

/* --- servers, their connections, when to leave them alone, and what they say (redis_nodes.c) ---
 */

/* Returns the number of the node, which it adds if it is new. -1: there are too many, or no memory.
 */
int kvc_redis_node_add(struct kvc_redis *l, const char *host, uint16_t port);
void kvc_redis_nodes_free(struct kvc_redis *l);

/* Returns an idle connection, or a new one. *fresh: it is new. NULL: the node is to be left alone,
 * or cannot be reached. `address` is the number of the address to try, of which a node has up to
 * KVC_REDIS_MAX_ADDRESSES. */
struct kvc_redis_socket *kvc_redis_node_socket(struct kvc_redis *l, struct kvc_redis_node *n,
                                               unsigned address, kvc_instant deadline, int *fresh,
                                               struct kvc_error *e);
/* Gives a connection back; one that is not quiet is closed. */
void kvc_redis_node_give(struct kvc_redis *l, struct kvc_redis_node *n,
                         struct kvc_redis_socket *socket);
/* Fails, at once, if the node is to be left alone. */
int kvc_redis_node_try(struct kvc_redis_node *n, struct kvc_error *e);
void kvc_redis_node_failed(struct kvc_redis_node *n, unsigned failures, const char *why);

/* Copies what a server says for a message: printable, not long, and without the password. */
void kvc_redis_quote(const struct kvc_redis *l, char *to, size_t room, const char *text);

/* --- commands on their way (redis_run.c): to all nodes at once, pipelined, by one deadline, and
 * again where a redirection points to; of one thread --- */

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
    size_t pending;      /* requests */
    uint64_t rounds;
    int failed; /* `error` is set */
    struct kvc_error error;
};

void kvc_redis_run_init(struct kvc_redis_run *run, struct kvc_redis *l, kvc_instant deadline);
/* Gives connections back; those that wait for replies are closed, as a late reply must not be taken
 * for another's. */
void kvc_redis_run_end(struct kvc_redis_run *run);

/* Adds a request; it stays the caller's, at its place, until it is done. */
void kvc_redis_run_add(struct kvc_redis_run *run, struct kvc_redis_request *q);
/* Moves bytes once, and waits for a possibility to. Returns 1 while requests are pending. */
int kvc_redis_run_step(struct kvc_redis_run *run);

/* 1: the answer to a request is a number. */
static inline int kvc_redis_is_integer(const struct kvc_redis_request *q) {
    return q->state_of == KVC_REDIS_ANSWERED && q->reply && q->reply->type == REDIS_REPLY_INTEGER;
}
/* 1: the server refused a command, as the key has another type than an object's. */
int kvc_redis_is_wrong_type(const struct kvc_redis_request *q);
/* Fills *e from the error of a server or of the run, or says that an answer is none that the
 * command has; returns -1. */
int kvc_redis_explain(const struct kvc_redis_run *run, const struct kvc_redis_request *q,
                      struct kvc_error *e);

/* --- commands (redis_discover.c) --- */

#define KVC_REDIS_PREFIX 256
#define KVC_REDIS_KEY (KVC_REDIS_PREFIX + KVC_OBJECT_NAME)

/* Writes a command of words into q. */
int kvc_redis_request_words(struct kvc_redis_request *q, int n, const char *const *word,
                            struct kvc_error *e);
void kvc_redis_request_free(struct kvc_redis_request *q);

/* Writes an object's key, and returns its slot. */
int kvc_redis_key(const struct kvc_redis *l, const struct kvc_object *o, char key[KVC_REDIS_KEY]);
/* Writes a request about an object: `verb`, its key, and up to two further words. */
int kvc_redis_ask(const struct kvc_redis *l, struct kvc_redis_request *q, const char *verb,
                  const struct kvc_object *o, const char *second, const char *third,
                  struct kvc_error *e);

/* --- the tier --- */

/* Bytes of a value that one command reads. */
#define KVC_REDIS_SLICE (1 << 20)

/* Finds out who has which slots, if that is not known. */
int kvc_redis_discover(struct kvc_redis *l, kvc_instant deadline, struct kvc_error *e);

/* redis_open.c */
struct kvc_redis *kvc_redis_open(struct kvc_url *url, struct kvc_error *e);
void kvc_redis_close(struct kvc_tier *tier);

/* redis_get.c, redis_walk.c */
int kvc_redis_get(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                  kvc_tier_take *take, void *state, struct kvc_error *e);
int kvc_redis_walk(struct kvc_tier *tier, const uint8_t *ns, kvc_tier_seen *seen, void *state,
                   struct kvc_error *e);
int kvc_redis_facts(struct kvc_tier *tier, struct kvc_store_tier_info *facts, kvc_instant deadline,
                    struct kvc_error *e);

#endif
