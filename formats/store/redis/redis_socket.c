/* redis_socket.c: sockets that do not block, plain or by TLS. */
#include "formats/store/redis/redis_socket.h"
#include "formats/store/redis/redis_tls.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int redis_socket_failed(struct kvc_error *e, int error) {
    return kvc_fail(e, KVC_ERR_IO, "%s", strerror(error));
}

static int hung_up(struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_IO, "the server closed the connection");
}

static int would_block(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

struct kvc_redis_socket *kvc_redis_socket_open(const struct sockaddr *address, socklen_t size,
                                               const struct kvc_redis_tls *tls, const char *host,
                                               struct kvc_error *e) {
    struct kvc_redis_socket *l = calloc(1, sizeof *l);
    const int yes = 1;
    if (!l) {
        kvc_fail_memory(e, "a connection");
        return NULL;
    }
    l->fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0) redis_socket_failed(e, errno);
    else if (kvc_redis_reader_init(&l->in, e) == 0) {
        setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(l->fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
        l->connecting = connect(l->fd, address, size) != 0;
        l->handshake = tls != NULL;
        if (l->connecting && errno != EINPROGRESS && errno != EINTR) redis_socket_failed(e, errno);
        else if (!tls || (l->tls = kvc_redis_tls_new(tls, l->fd, host, e)) != NULL) return l;
    }
    kvc_redis_socket_close(l);
    return NULL;
}

void kvc_redis_socket_close(struct kvc_redis_socket *l) {
    if (!l) return;
    kvc_redis_tls_free(l->tls);
    if (l->fd >= 0) close(l->fd);
    kvc_redis_reader_free(&l->in);
    free(l);
}

int kvc_redis_socket_connect(struct kvc_redis_socket *l, struct kvc_error *e) {
    if (l->connecting) {
        int error = 0;
        socklen_t size = sizeof error;
        if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &size) || error)
            return redis_socket_failed(e, error ? error : errno);
        l->connecting = 0;
    }
    if (!l->handshake) return 1;
    const int status = kvc_redis_tls_handshake(l->tls, &l->wants, e);
    l->handshake = status != 1;
    return status;
}

ssize_t kvc_redis_socket_send(struct kvc_redis_socket *l, struct iovec *v, size_t n,
                              struct kvc_error *e) {
    if (l->tls) return kvc_redis_tls_send(l->tls, v, n, &l->wants, e);
    const struct msghdr m = {.msg_iov = v, .msg_iovlen = n};
    const ssize_t sent = sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    return would_block(errno) ? 0 : redis_socket_failed(e, errno);
}

ssize_t kvc_redis_socket_receive(struct kvc_redis_socket *l, struct kvc_error *e) {
    size_t room;
    uint8_t *to = kvc_redis_reader_room(&l->in, &room);
    ssize_t n;
    if (l->tls) n = kvc_redis_tls_receive(l->tls, to, room, &l->wants, e);
    else {
        n = recv(l->fd, to, room, MSG_DONTWAIT);
        if (n < 0) return would_block(errno) ? 0 : redis_socket_failed(e, errno);
        if (n == 0) return hung_up(e);
    }
    if (n > 0) kvc_redis_reader_received(&l->in, (size_t)n);
    return n;
}

int kvc_redis_socket_is_quiet(struct kvc_redis_socket *l) {
    char byte;
    if (l->connecting || l->handshake || !kvc_redis_reader_is_idle(&l->in)) return 0;
    if (l->tls && kvc_redis_tls_pending(l->tls)) return 0;
    /* With TLS, a server may send session tickets at any time, which are no data. */
    const ssize_t n = recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return (n < 0 && would_block(errno)) || (n > 0 && l->tls != NULL);
}
