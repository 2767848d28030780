/* redis_tls.h: TLS of a connection, by OpenSSL. Not for sockets. REDIS.md. */
#ifndef KVC_REDIS_TLS_H
#define KVC_REDIS_TLS_H

#include "codecs/error.h"

#include <sys/types.h>
#include <sys/uio.h>

struct kvc_redis_tls; /* settings that connections share */

/* Files may be NULL: the system's authorities, and no certificate of one's own. */
struct kvc_redis_tls *kvc_redis_tls_open(const char *authorities, const char *certificate,
                                         const char *key, struct kvc_error *e);
void kvc_redis_tls_close(struct kvc_redis_tls *t);

/* TLS on a socket, to a server whose certificate has the name or address `host`. NULL: no memory.
 */
void *kvc_redis_tls_new(const struct kvc_redis_tls *t, int fd, const char *host,
                        struct kvc_error *e);
void kvc_redis_tls_free(void *tls);
/* These never wait. *wants: the event of poll() without which nothing goes on; 0: POLLIN for
 * receiving, POLLOUT for sending. The handshake returns 1 at its end, the others bytes; 0: not now,
 * -1: failed or at its end. */
int kvc_redis_tls_handshake(void *tls, short *wants, struct kvc_error *e);
ssize_t kvc_redis_tls_send(void *tls, const struct iovec *v, size_t n, short *wants,
                           struct kvc_error *e);
ssize_t kvc_redis_tls_receive(void *tls, void *to, size_t n, short *wants, struct kvc_error *e);
/* 1: bytes were received and not yet handed on, of which poll() does not know. */
int kvc_redis_tls_pending(void *tls);

#endif
