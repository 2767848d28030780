/* redis_socket.c: sockets that do not block, plain or by TLS. TLS is OpenSSL's, whose libcrypto kvc
 * needs anyway: hiredis has none before 1.0. */
#include "formats/store/redis/redis_state.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- TLS --- */

static int redis_tls_failed(struct kvc_error *e, const char *what) {
    char text[200] = "";
    const unsigned long error = ERR_peek_last_error();
    if (error) ERR_error_string_n(error, text, sizeof text);
    ERR_clear_error();
    return kvc_fail(e, KVC_ERR_IO, "TLS: %s%s%s", what, *text ? ": " : "", text);
}

struct kvc_redis_tls {
    SSL_CTX *settings;
    BIO_METHOD *socket; /* moves the bytes of TLS */
};

static int would_block(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* OpenSSL's own sockets are written by write(), which raises SIGPIPE where the server has gone: it
 * would end the program. */
static int bio_write(BIO *b, const char *data, int n) {
    BIO_clear_retry_flags(b);
    const ssize_t sent = send((int)(intptr_t)BIO_get_data(b), data, (size_t)n,
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && would_block(errno)) BIO_set_retry_write(b);
    return (int)sent;
}

static int bio_read(BIO *b, char *to, int n) {
    BIO_clear_retry_flags(b);
    const ssize_t received = recv((int)(intptr_t)BIO_get_data(b), to, (size_t)n, MSG_DONTWAIT);
    if (received < 0 && would_block(errno)) BIO_set_retry_read(b);
    return (int)received;
}

/* Nothing is kept back, so that there is nothing to flush. */
static long bio_control(BIO *b, int command, long number, void *pointer) {
    (void)b, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static struct kvc_redis_tls *tls_settings(void) {
    struct kvc_redis_tls *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->settings = SSL_CTX_new(TLS_client_method());
    t->socket = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "socket without signals");
    if (t->settings && t->socket && BIO_meth_set_write(t->socket, bio_write) &&
        BIO_meth_set_read(t->socket, bio_read) && BIO_meth_set_ctrl(t->socket, bio_control))
        return t;
    kvc_redis_tls_close(t);
    return NULL;
}

struct kvc_redis_tls *kvc_redis_tls_open(const char *authorities, const char *certificate,
                                         const char *key, struct kvc_error *e) {
    struct kvc_redis_tls *t = tls_settings();
    if (!t) {
        redis_tls_failed(e, "no memory");
        return NULL;
    }
    SSL_CTX *c = t->settings;
    SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(c, 1);
    int status = 0;
    if (authorities ? !SSL_CTX_load_verify_locations(c, authorities, NULL)
                    : !SSL_CTX_set_default_verify_paths(c))
        status = redis_tls_failed(e, authorities ? authorities
                                                 : "the system's authorities cannot be read");
    else if (certificate && SSL_CTX_use_certificate_chain_file(c, certificate) != 1)
        status = redis_tls_failed(e, certificate);
    else if (key && (SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1 ||
                     SSL_CTX_check_private_key(c) != 1))
        status = redis_tls_failed(e, key);
    if (status) {
        if (e) e->severity = KVC_SEVERITY_ITEM;
        kvc_redis_tls_close(t);
        return NULL;
    }
    return t;
}

void kvc_redis_tls_close(struct kvc_redis_tls *t) {
    if (!t) return;
    SSL_CTX_free(t->settings);
    BIO_meth_free(t->socket);
    free(t);
}

/* Returns TLS on a socket, to a server whose certificate has the name or address `host`. NULL: no
 * memory. */
static SSL *tls_new(const struct kvc_redis_tls *t, int fd, const char *host, struct kvc_error *e) {
    struct in6_addr address;
    SSL *s = SSL_new(t->settings);
    BIO *b = s ? BIO_new(t->socket) : NULL;
    int ok = b != NULL;
    if (ok) {
        BIO_set_data(b, (void *)(intptr_t)fd);
        BIO_set_init(b, 1);
        SSL_set_bio(s, b, b);
        SSL_set_connect_state(s);
        if (inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1)
            ok = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(s), host);
        else
            ok = SSL_set1_host(s, host) &&
                 SSL_ctrl(s, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                          (void *)(uintptr_t)host);
    }
    if (ok) return s;
    SSL_free(s);
    redis_tls_failed(e, "a connection cannot be prepared");
    return NULL;
}

/* The following never wait. *wants: the event of poll() without which nothing goes on; 0: POLLIN
 * for receiving, POLLOUT for sending. They return bytes (the handshake 1 at its end), 0: not now,
 * -1: failed or at the end. */

static void tls_begin(short *wants) {
    *wants = 0;
    errno = 0;
    ERR_clear_error();
}

/* Says why a call ended without bytes. `usual` is the event that goes without saying. */
static int judge(SSL *s, int result, short usual, short *wants, struct kvc_error *e) {
    const int system = errno;
    switch (SSL_get_error(s, result)) {
    case SSL_ERROR_WANT_READ: *wants = usual == POLLIN ? 0 : POLLIN; return 0;
    case SSL_ERROR_WANT_WRITE: *wants = usual == POLLOUT ? 0 : POLLOUT; return 0;
    case SSL_ERROR_ZERO_RETURN: return kvc_fail(e, KVC_ERR_IO, "the server closed the connection");
    case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        return kvc_fail(e, KVC_ERR_IO, "%s",
                        system ? strerror(system) : "the server closed the connection");
    default: break;
    }
    const long verify = SSL_get_verify_result(s);
    return redis_tls_failed(e,
                            verify == X509_V_OK ? "failed" : X509_verify_cert_error_string(verify));
}

static int tls_handshake(SSL *tls, short *wants, struct kvc_error *e) {
    tls_begin(wants);
    const int result = SSL_do_handshake(tls);
    return result == 1 ? 1 : judge(tls, result, 0, wants, e);
}

static ssize_t tls_send(SSL *tls, const struct iovec *v, size_t n, short *wants,
                        struct kvc_error *e) {
    /* Gathers what is small: a record of TLS has up to 16 KiB. */
    char record[16 << 10];
    const void *from = v[0].iov_base;
    size_t size = v[0].iov_len;
    if (size < sizeof record && n > 1) {
        size = 0;
        for (size_t i = 0; i < n && size < sizeof record; i++) {
            const size_t part = v[i].iov_len < sizeof record - size ? v[i].iov_len
                                                                    : sizeof record - size;
            memcpy(record + size, v[i].iov_base, part);
            size += part;
        }
        from = record;
    }
    size_t sent = 0;
    tls_begin(wants);
    const int result = SSL_write_ex(tls, from, size, &sent);
    return result == 1 ? (ssize_t)sent : judge(tls, result, POLLOUT, wants, e);
}

static ssize_t tls_receive(SSL *tls, void *to, size_t n, short *wants, struct kvc_error *e) {
    size_t received = 0;
    tls_begin(wants);
    const int result = SSL_read_ex(tls, to, n, &received);
    return result == 1 ? (ssize_t)received : judge(tls, result, POLLIN, wants, e);
}

/* --- sockets --- */

static int redis_socket_failed(struct kvc_error *e, int error) {
    return kvc_fail(e, KVC_ERR_IO, "%s", strerror(error));
}

static int hung_up(struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_IO, "the server closed the connection");
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
        else if (!tls || (l->tls = tls_new(tls, l->fd, host, e)) != NULL) return l;
    }
    kvc_redis_socket_close(l);
    return NULL;
}

void kvc_redis_socket_close(struct kvc_redis_socket *l) {
    if (!l) return;
    SSL_free(l->tls);
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
    const int status = tls_handshake(l->tls, &l->wants, e);
    l->handshake = status != 1;
    return status;
}

ssize_t kvc_redis_socket_send(struct kvc_redis_socket *l, struct iovec *v, size_t n,
                              struct kvc_error *e) {
    if (l->tls) return tls_send(l->tls, v, n, &l->wants, e);
    /* its type differs between C libraries; there are few */
    const struct msghdr m = {.msg_iov = v, .msg_iovlen = (uint16_t)n};
    const ssize_t sent = sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    return would_block(errno) ? 0 : redis_socket_failed(e, errno);
}

ssize_t kvc_redis_socket_receive(struct kvc_redis_socket *l, struct kvc_error *e) {
    size_t room;
    uint8_t *to = kvc_redis_reader_room(&l->in, &room);
    ssize_t n;
    if (l->tls) n = tls_receive(l->tls, to, room, &l->wants, e);
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
    if (l->tls && SSL_has_pending(l->tls)) return 0;
    /* With TLS, a server may send session tickets at any time, which are no data. */
    const ssize_t n = recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return (n < 0 && would_block(errno)) || (n > 0 && l->tls != NULL);
}
