/* redis_connection.c: moves requests to a node and replies from it. */
#include "formats/store/redis/redis_connection.h"

#include <string.h>

/* Bytes of replies that are under way on one connection: the next slice is asked for shortly before
 * the last one is complete. More would only fill the server's memory, and its processor's caches.
 */
enum { WINDOW = (1 << 20) + (256 << 10), PIECES = 96 };

static const char asking[] = "*1\r\n$6\r\nASKING\r\n";

void kvc_redis_list_add(struct kvc_redis_list *list, struct kvc_redis_request *q) {
    if (!list->first) list->last = &list->first;
    q->next = NULL;
    *list->last = q;
    list->last = &q->next;
}

struct kvc_redis_request *kvc_redis_list_take(struct kvc_redis_list *list) {
    struct kvc_redis_request *q = list->first;
    if (q) {
        list->first = q->next;
        q->next = NULL;
    }
    return q;
}

/* Sends again, on a new connection, all that a closed one did not answer. */
static void restart(struct kvc_redis_connection *connection) {
    struct kvc_redis_request *q;
    struct kvc_redis_list all = {0};
    while ((q = kvc_redis_list_take(&connection->sent)) != NULL) kvc_redis_list_add(&all, q);
    while ((q = kvc_redis_list_take(&connection->unsent)) != NULL) kvc_redis_list_add(&all, q);
    while ((q = kvc_redis_list_take(&all)) != NULL) kvc_redis_list_add(&connection->unsent, q);
    kvc_redis_socket_close(connection->socket);
    connection->socket = NULL;
    connection->offset = 0;
    connection->under_way = 0;
}

/* A connection failed: tries the node's next address, or a new connection if the server closed an
 * idle one, or gives up. */
static void lost(struct kvc_redis_run *run, struct kvc_redis_connection *connection,
                 struct kvc_error *e) {
    const int new_one = connection->socket && connection->fresh;
    const int next_address = new_one &&
                             (connection->socket->connecting || connection->socket->handshake);
    if (connection->socket && !connection->fresh && !connection->answered) {
        restart(connection);
        return;
    }
    if (next_address) {
        pthread_mutex_lock(&run->l->lock);
        const int more = connection->address + 1 < connection->node->n_addresses;
        pthread_mutex_unlock(&run->l->lock);
        if (more) {
            connection->address++;
            restart(connection);
            return;
        }
    }
    run->lost(run, connection, 1, e);
}

void kvc_redis_connection_start(struct kvc_redis_run *run,
                                struct kvc_redis_connection *connection) {
    struct kvc_error e;
    if (connection->socket || connection->broken || !connection->unsent.first) return;
    if (kvc_redis_node_try(run->l, connection->node, &e)) {
        run->lost(run, connection, 0, &e);
        return;
    }
    connection->socket = kvc_redis_node_socket(run->l, connection->node, connection->address,
                                               run->deadline, &connection->fresh, &e);
    connection->since = kvc_now();
    if (!connection->socket) {
        run->lost(run, connection, 1, &e);
        return;
    }
    connection->setup = connection->fresh ? 0 : run->l->o.setup_size;
    connection->setup_replies = connection->fresh ? run->l->o.setup_replies : 0;
}

/* Bytes that are expected and have not come. */
static uint64_t under_way(const struct kvc_redis_connection *connection) {
    const struct kvc_redis_reader *in = &connection->socket->in;
    const uint64_t came = in->left ? in->size - (in->left > 2 ? in->left - 2 : 0) : 0;
    return came < connection->under_way ? connection->under_way - came : 0;
}

/* 1: the next request may be sent. */
static int may_send(const struct kvc_redis_connection *connection) {
    const struct kvc_redis_request *q = connection->unsent.first;
    return q && (connection->offset || !connection->sent.first ||
                 under_way(connection) + q->expected <= WINDOW);
}

int kvc_redis_connection_wants(const struct kvc_redis_connection *connection, struct pollfd *p) {
    if (!connection->socket || (!connection->unsent.first && !connection->sent.first)) return 0;
    p->fd = connection->socket->fd;
    if (connection->socket->connecting) p->events = POLLOUT;
    else if (connection->socket->wants) p->events = connection->socket->wants;
    else if (connection->socket->handshake) p->events = POLLOUT;
    else p->events = (short)(POLLIN | (may_send(connection) ? POLLOUT : 0));
    return 1;
}

/* Lists what is to be sent: the rest of the setup and of the first request, and further ones. */
static size_t list_pieces(const struct kvc_redis_run *run,
                          const struct kvc_redis_connection *connection, struct iovec *v) {
    size_t n = 0, skip = connection->offset;
    uint64_t bytes = under_way(connection);
    if (connection->setup < run->l->o.setup_size)
        v[n++] = (struct iovec){run->l->o.setup + connection->setup,
                                run->l->o.setup_size - connection->setup};
    for (const struct kvc_redis_request *q = connection->unsent.first; q && n + 4 <= PIECES;
         q = q->next) {
        if (n && q != connection->unsent.first && bytes + q->expected > WINDOW) break;
        bytes += q->expected;
        struct iovec piece[4];
        size_t pieces = 0;
        if (q->asking)
            piece[pieces++] = (struct iovec){(char *)(uintptr_t)asking, sizeof asking - 1};
        for (size_t i = 0; i < q->parts; i++) piece[pieces++] = q->part[i];
        for (size_t i = 0; i < pieces; i++) {
            const size_t cut = skip < piece[i].iov_len ? skip : piece[i].iov_len;
            skip -= cut;
            if (cut < piece[i].iov_len)
                v[n++] = (struct iovec){(uint8_t *)piece[i].iov_base + cut, piece[i].iov_len - cut};
        }
    }
    return n;
}

/* Notes that bytes were sent: requests that are complete wait for their replies. */
static void was_sent(struct kvc_redis_run *run, struct kvc_redis_connection *connection,
                     size_t bytes) {
    const size_t setup = run->l->o.setup_size - connection->setup,
                 cut = bytes < setup ? bytes : setup;
    connection->setup += cut;
    bytes -= cut;
    for (struct kvc_redis_request *q; bytes && (q = connection->unsent.first) != NULL;) {
        size_t size = q->asking ? sizeof asking - 1 : 0;
        for (size_t i = 0; i < q->parts; i++) size += q->part[i].iov_len;
        /* nothing is under way: a round trip begins */
        if (!connection->offset && !connection->sent.first) run->rounds++;
        if (bytes < size - connection->offset) {
            connection->offset += bytes;
            return;
        }
        bytes -= size - connection->offset;
        connection->offset = 0;
        connection->under_way += q->expected;
        q->answers = q->asking != 0;
        kvc_redis_list_add(&connection->sent, kvc_redis_list_take(&connection->unsent));
    }
}

static int send_all(struct kvc_redis_run *run, struct kvc_redis_connection *connection,
                    struct kvc_error *e) {
    while (may_send(connection)) {
        struct iovec v[PIECES];
        const size_t n = list_pieces(run, connection, v);
        const ssize_t sent = kvc_redis_socket_send(connection->socket, v, n, e);
        if (sent < 0) return -1;
        if (sent == 0) return 0;
        connection->since = kvc_now();
        was_sent(run, connection, (size_t)sent);
    }
    return 0;
}

static uint8_t *place(void *state, size_t n) {
    struct kvc_redis_request *q = ((struct kvc_redis_connection *)state)->sent.first;
    return q->place(q, n);
}

/* Replies to the setup and to ASKING only matter if they are errors. */
static int preamble(const struct kvc_redis *l, struct kvc_redis_connection *connection,
                    struct kvc_redis_reply *r, struct kvc_error *e) {
    char text[200];
    int status = 0;
    if (r->tree->type == REDIS_REPLY_ERROR) {
        kvc_redis_quote(l, text, sizeof text, r->tree->str);
        status = kvc_fail(e, KVC_ERR_IO, "the server refuses: %s", text);
    }
    freeReplyObject(r->tree);
    if (connection->setup_replies) connection->setup_replies--;
    else connection->sent.first->answers--;
    return status;
}

/* Hands on the replies that are there. -1: the connection cannot be used any more. */
static int answers(struct kvc_redis_run *run, struct kvc_redis_connection *connection,
                   struct kvc_error *e) {
    for (;;) {
        struct kvc_redis_request *q = connection->sent.first;
        struct kvc_redis_reply r;
        const int skip = connection->setup_replies || (q && q->answers);
        const int status = kvc_redis_reader_next(&connection->socket->in,
                                                 !skip && q && q->place ? place : NULL, connection,
                                                 &r, e);
        if (status <= 0) return status;
        if (skip) {
            if (preamble(run->l, connection, &r, e)) return -1;
            continue;
        }
        if (!q) { /* an error may come before a command is complete, and the connection then ends */
            char text[200] = "";
            if (r.tree->type == REDIS_REPLY_ERROR)
                kvc_redis_quote(run->l, text, sizeof text, r.tree->str);
            freeReplyObject(r.tree);
            connection->answered = connection->answered || *text;
            return kvc_fail(e, KVC_ERR_IO,
                            *text ? "the server refuses: %s"
                                  : "unexpected reply: no request is outstanding%s",
                            text);
        }
        kvc_redis_list_take(&connection->sent);
        connection->under_way -= q->expected;
        q->reply = r.tree;
        q->placed = r.placed;
        if (!connection->answered) kvc_redis_node_worked(run->l, connection->node);
        connection->answered = 1;
        run->answer(run, connection, q);
        if (!connection->socket) return 0; /* it failed meanwhile */
    }
}

/* Receives all that came, until the deadline. Returns -1 after the connection's last reply was
 * handed on. */
static int receive_all(struct kvc_redis_run *run, struct kvc_redis_connection *connection,
                       struct kvc_error *e) {
    for (;;) {
        const ssize_t n = kvc_redis_socket_receive(connection->socket, e);
        if (n <= 0) return (int)n;
        connection->since = kvc_now();
        if (answers(run, connection, e)) return -1;
        if (!connection->socket || (!connection->sent.first && !connection->unsent.first) ||
            kvc_now() >= run->deadline)
            return 0;
    }
}

void kvc_redis_connection_serve(struct kvc_redis_run *run,
                                struct kvc_redis_connection *connection) {
    struct kvc_error e, said;
    if (!connection->socket) return;
    if (connection->socket->connecting || connection->socket->handshake) {
        const int status = kvc_redis_socket_connect(connection->socket, &e);
        if (status < 0) lost(run, connection, &e);
        if (status <= 0) return;
        connection->since = kvc_now();
    }
    int status = receive_all(run, connection, &e);
    if (status == 0 && connection->socket && (status = send_all(run, connection, &e)) != 0 &&
        receive_all(run, connection, &said))
        e = said;
    if (status && connection->socket) lost(run, connection, &e);
}
