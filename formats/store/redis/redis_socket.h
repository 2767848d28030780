/* redis_socket.h: one connection to a server: it never waits. Not for which server, nor for what is
 * sent. REDIS.md, "Connections". */
#ifndef KVC_REDIS_SOCKET_H
#define KVC_REDIS_SOCKET_H

#include "formats/store/redis/redis_reply.h"

#include <sys/socket.h>
#include <sys/uio.h>

struct kvc_redis_tls; /* settings of TLS, redis_tls.h */

struct kvc_redis_socket {
    struct kvc_redis_socket *next; /* in a list of idle ones */
    int fd;
    int connecting; /* connect() has not ended */
    void *tls;      /* of this connection; NULL: plain */
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

#endif
