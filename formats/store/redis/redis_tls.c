/* redis_tls.c: TLS by OpenSSL, whose libcrypto kvc needs anyway. hiredis has none before 1.0. */
#include "formats/store/redis/redis_tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>

struct kvc_redis_tls; /* is an SSL_CTX */

static int redis_tls_failed(struct kvc_error *e, const char *what) {
    char text[200] = "";
    const unsigned long error = ERR_peek_last_error();
    if (error) ERR_error_string_n(error, text, sizeof text);
    ERR_clear_error();
    return kvc_fail(e, KVC_ERR_IO, "TLS: %s%s%s", what, *text ? ": " : "", text);
}

struct kvc_redis_tls *kvc_redis_tls_open(const char *authorities, const char *certificate,
                                         const char *key, struct kvc_error *e) {
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    if (!c) {
        redis_tls_failed(e, "no memory");
        return NULL;
    }
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
        SSL_CTX_free(c);
        return NULL;
    }
    return (struct kvc_redis_tls *)(void *)c;
}

void kvc_redis_tls_close(struct kvc_redis_tls *t) {
    SSL_CTX_free((SSL_CTX *)(void *)t);
}

void *kvc_redis_tls_new(const struct kvc_redis_tls *t, int fd, const char *host,
                        struct kvc_error *e) {
    struct in6_addr address;
    union {
        const struct kvc_redis_tls *settings;
        SSL_CTX *context; /* counts its users */
    } of = {.settings = t};
    SSL *s = SSL_new(of.context);
    int ok = s && SSL_set_fd(s, fd);
    if (ok) {
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

void kvc_redis_tls_free(void *tls) {
    SSL_free(tls);
}

/* Says why a call ended without bytes. */
static int judge(SSL *s, int result, short *wants, struct kvc_error *e) {
    const int system = errno;
    switch (SSL_get_error(s, result)) {
    case SSL_ERROR_WANT_READ: *wants = POLLIN; return 0;
    case SSL_ERROR_WANT_WRITE: *wants = POLLOUT; return 0;
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

int kvc_redis_tls_handshake(void *tls, short *wants, struct kvc_error *e) {
    *wants = 0;
    errno = 0;
    ERR_clear_error();
    const int result = SSL_do_handshake(tls);
    return result == 1 ? 1 : judge(tls, result, wants, e);
}

ssize_t kvc_redis_tls_send(void *tls, const struct iovec *v, size_t n, short *wants,
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
    *wants = 0;
    errno = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(tls, from, size, &sent);
    if (result != 1) {
        const int status = judge(tls, result, wants, e);
        if (*wants == POLLOUT) *wants = 0;
        return status;
    }
    return (ssize_t)sent;
}

ssize_t kvc_redis_tls_receive(void *tls, void *to, size_t n, short *wants, struct kvc_error *e) {
    size_t received = 0;
    *wants = 0;
    errno = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(tls, to, n, &received);
    if (result != 1) {
        const int status = judge(tls, result, wants, e);
        if (*wants == POLLIN) *wants = 0;
        return status;
    }
    return (ssize_t)received;
}

int kvc_redis_tls_pending(void *tls) {
    return SSL_has_pending(tls);
}
