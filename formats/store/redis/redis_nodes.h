/* redis_nodes.h: servers, their connections, when to leave them alone, and what they say. Not for
 * commands. REDIS.md, "Failures". */
#ifndef KVC_REDIS_NODES_H
#define KVC_REDIS_NODES_H

#include "formats/store/redis/redis_state.h"

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
int kvc_redis_node_try(struct kvc_redis *l, struct kvc_redis_node *n, struct kvc_error *e);
/* Counts a success, or failures: at 3 of them the node is left alone, and messages say why. */
void kvc_redis_node_worked(struct kvc_redis *l, struct kvc_redis_node *n);
void kvc_redis_node_failed(struct kvc_redis *l, struct kvc_redis_node *n, unsigned failures,
                           const char *why);

/* Copies what a server says for a message: printable, not long, and without the password. */
void kvc_redis_quote(const struct kvc_redis *l, char *to, size_t room, const char *text);

#endif
