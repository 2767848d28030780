/* redis_run.c: requests, where they go, and what becomes of their replies; the connections that
 * move them. */
#include "formats/store/redis/redis_state.h"

#include "codecs/memory.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Times in microseconds. A node that was silent for HUNG counts as failed for good, one that was
 * for SLOW as failed once. */
enum { MAX_TRIES = 16, TRY_AGAIN = 5000, HUNG = 20000, SLOW = 2000, FAILURES = 3 };

/* --- requests --- */

static void list_add(struct kvc_redis_list *list, struct kvc_redis_request *q) {
    if (!list->first) list->last = &list->first;
    q->next = NULL;
    *list->last = q;
    list->last = &q->next;
}

static struct kvc_redis_request *list_take(struct kvc_redis_list *list) {
    struct kvc_redis_request *q = list->first;
    if (q) {
        list->first = q->next;
        q->next = NULL;
    }
    return q;
}

void kvc_redis_run_end(struct kvc_redis_run *run) {
    for (size_t i = 0; i < run->n_connections; i++) {
        struct kvc_redis_connection *connection = run->connection[i];
        if (connection->socket &&
            (connection->sent.first || connection->offset || connection->setup_replies))
            kvc_redis_socket_close(connection->socket);
        else if (connection->socket)
            kvc_redis_node_give(run->l, connection->node, connection->socket);
        free(connection);
    }
    free(run->connection);
    run->connection = NULL;
    run->n_connections = 0;
}

static void finish(struct kvc_redis_run *run, struct kvc_redis_request *q,
                   enum kvc_redis_state state) {
    q->state_of = state;
    run->pending--;
    if (q->done) q->done(run, q);
}

/* Notes the first error of a run, of a node if it is not NULL; the others mostly follow from it. */
static void note(struct kvc_redis_run *run, const struct kvc_redis_node *node,
                 const struct kvc_error *e) {
    char text[sizeof node->name + 16] = "redis";
    if (run->failed) return;
    if (node) snprintf(text, sizeof text, "redis: %s", node->name);
    run->error = *e;
    run->failed = 1;
    run->error.severity = KVC_SEVERITY_RETRY;
    kvc_error_prefix(&run->error, text);
}

static struct kvc_redis_connection *connection_of(struct kvc_redis_run *run, int number) {
    for (size_t i = 0; i < run->n_connections; i++)
        if (run->connection[i]->number == number) return run->connection[i];
    struct kvc_redis_connection **list = kvc_room_for_one(run->connection, run->n_connections,
                                                          sizeof *run->connection);
    if (!list) return NULL;
    run->connection = list;
    struct kvc_redis_connection *connection = calloc(1, sizeof *connection);
    if (!connection) return NULL;
    connection->number = number;
    pthread_mutex_lock(&run->l->lock);
    connection->node = run->l->node[number];
    pthread_mutex_unlock(&run->l->lock);
    return run->connection[run->n_connections++] = connection;
}

/* Puts a request into the queue of its node. */
static void route(struct kvc_redis_run *run, struct kvc_redis_request *q) {
    struct kvc_redis *l = run->l;
    struct kvc_error e;
    int number = q->node;
    if (q->slot >= 0 && !q->asking) {
        pthread_mutex_lock(&l->lock);
        number = l->slot[q->slot] == KVC_REDIS_NOBODY ? -1 : l->slot[q->slot];
        if (number < 0) l->stale = 1;
        pthread_mutex_unlock(&l->lock);
    }
    struct kvc_redis_connection *connection = number < 0 ? NULL : connection_of(run, number);
    if (!connection) {
        if (number < 0) kvc_fail(&e, KVC_ERR_IO, "no server of the cluster has slot %d", q->slot);
        else kvc_fail_memory(&e, "a connection");
        note(run, NULL, &e);
        finish(run, q, KVC_REDIS_FAILED);
    } else if (connection->broken) finish(run, q, KVC_REDIS_FAILED);
    else {
        if (!connection->unsent.first && !connection->sent.first) connection->since = kvc_now();
        list_add(&connection->unsent, q);
    }
}

void kvc_redis_run_add(struct kvc_redis_run *run, struct kvc_redis_request *q) {
    q->state_of = KVC_REDIS_WAITING;
    q->reply = NULL;
    q->placed = 0;
    q->tries = 0;
    q->asking = 0;
    run->pending++;
    route(run, q);
}

static void connection_failed(struct kvc_redis_run *run, struct kvc_redis_connection *connection,
                              unsigned failures, const struct kvc_error *e) {
    struct kvc_redis_request *q;
    note(run, connection->node, e);
    if (connection->socket) kvc_redis_socket_close(connection->socket);
    connection->socket = NULL;
    connection->broken = 1;
    connection->offset = 0;
    if (failures) kvc_redis_node_failed(connection->node, failures, e->message);
    while ((q = list_take(&connection->sent)) != NULL) finish(run, q, KVC_REDIS_FAILED);
    while ((q = list_take(&connection->unsent)) != NULL) finish(run, q, KVC_REDIS_FAILED);
}

/* Sends a request to where an error points. Returns 0; -1: it points nowhere. */
static int redirect(struct kvc_redis_run *run, const struct kvc_redis_connection *connection,
                    struct kvc_redis_request *q, int ask) {
    struct kvc_redis_place_of to;
    if (q->slot < 0 || q->tries++ == MAX_TRIES || kvc_redis_redirection(q->reply->str, &to) ||
        to.slot != (unsigned)q->slot)
        return -1;
    const int number = kvc_redis_node_add(run->l, to.host[0] ? to.host : connection->node->host,
                                          to.port);
    if (number < 0) return -1;
    if (!ask) {
        pthread_mutex_lock(&run->l->lock);
        run->l->slot[to.slot] = (uint16_t)number;
        run->l->stale = 1;
        pthread_mutex_unlock(&run->l->lock);
    }
    freeReplyObject(q->reply);
    q->reply = NULL;
    q->asking = ask;
    q->node = number;
    route(run, q);
    return 0;
}

static void answer(struct kvc_redis_run *run, struct kvc_redis_connection *connection,
                   struct kvc_redis_request *q) {
    if (!q->reply || q->reply->type != REDIS_REPLY_ERROR) {
        finish(run, q, KVC_REDIS_ANSWERED);
        return;
    }
    enum kvc_redis_verdict verdict = kvc_redis_judge(q->reply->str);
    const int elsewhere = verdict == KVC_REDIS_MOVED || verdict == KVC_REDIS_ASK;
    /* a question to this very node is answered so */
    if (q->optional || (elsewhere && q->slot < 0)) verdict = KVC_REDIS_REFUSED;
    else if (elsewhere) {
        if (redirect(run, connection, q, verdict == KVC_REDIS_ASK) == 0) return;
    } else if (verdict == KVC_REDIS_AGAIN && q->tries++ < MAX_TRIES) {
        kvc_redis_quote(run->l, run->later_why, sizeof run->later_why, q->reply->str);
        freeReplyObject(q->reply);
        q->reply = NULL;
        q->asking = 0;
        if (!run->later.first) run->wake = kvc_now() + TRY_AGAIN;
        list_add(&run->later, q);
        return;
    }
    if (verdict != KVC_REDIS_REFUSED) {
        struct kvc_error e;
        kvc_redis_explain(run, q, &e);
        note(run, connection->node, &e);
        pthread_mutex_lock(&run->l->lock);
        run->l->stale = 1;
        pthread_mutex_unlock(&run->l->lock);
    }
    finish(run, q, verdict == KVC_REDIS_REFUSED ? KVC_REDIS_DENIED : KVC_REDIS_FAILED);
}

void kvc_redis_run_init(struct kvc_redis_run *run, struct kvc_redis *l, kvc_instant deadline) {
    *run = (struct kvc_redis_run){.l = l, .deadline = deadline};
}

int kvc_redis_is_wrong_type(const struct kvc_redis_request *q) {
    return q->state_of == KVC_REDIS_DENIED && strncmp(q->reply->str, "WRONGTYPE", 9) == 0;
}

int kvc_redis_explain(const struct kvc_redis_run *run, const struct kvc_redis_request *q,
                      struct kvc_error *e) {
    char text[200];
    if (q && q->state_of == KVC_REDIS_ANSWERED)
        return kvc_fail(e, KVC_ERR_IO,
                        "redis: the server's reply is of another type than the command's");
    if (q && q->reply && q->reply->type == REDIS_REPLY_ERROR) {
        const int denied = kvc_redis_judge(q->reply->str) == KVC_REDIS_REFUSED;
        kvc_redis_quote(run->l, text, sizeof text, q->reply->str);
        const enum kvc_code code = kvc_redis_is_wrong_type(q) ? KVC_ERR_DAMAGED : KVC_ERR_IO;
        kvc_fail(e, code, "the server refuses: %s", text);
        if (e && denied) e->severity = KVC_SEVERITY_ITEM;
        return -1;
    }
    if (run->failed) {
        if (e) *e = run->error;
        return -1;
    }
    return kvc_fail(e, KVC_ERR_IO, "redis: no answer within the time limit%s%s",
                    *run->later_why ? ": the server says: " : "", run->later_why);
}

/* --- connections: move requests to a node and replies from it --- */

/* Bytes of replies that are under way on one connection: the next slice is asked for shortly before
 * the last one is complete. More would only fill the server's memory, and its processor's caches.
 */
enum { WINDOW = (1 << 20) + (256 << 10), PIECES = 96 };

static const char asking[] = "*1\r\n$6\r\nASKING\r\n";

/* Sends again, on a new connection, all that a closed one did not answer. */
static void restart(struct kvc_redis_connection *connection) {
    struct kvc_redis_request *q;
    struct kvc_redis_list all = {0};
    while ((q = list_take(&connection->sent)) != NULL) list_add(&all, q);
    while ((q = list_take(&connection->unsent)) != NULL) list_add(&all, q);
    while ((q = list_take(&all)) != NULL) list_add(&connection->unsent, q);
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
    connection_failed(run, connection, 1, e);
}

static void connection_start(struct kvc_redis_run *run, struct kvc_redis_connection *connection) {
    struct kvc_error e;
    if (connection->socket || connection->broken || !connection->unsent.first) return;
    if (kvc_redis_node_try(connection->node, &e)) {
        connection_failed(run, connection, 0, &e);
        return;
    }
    connection->socket = kvc_redis_node_socket(run->l, connection->node, connection->address,
                                               run->deadline, &connection->fresh, &e);
    connection->since = kvc_now();
    if (!connection->socket) {
        connection_failed(run, connection, 1, &e);
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

static int connection_wants(const struct kvc_redis_connection *connection, struct pollfd *p) {
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
        list_add(&connection->sent, list_take(&connection->unsent));
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
        list_take(&connection->sent);
        connection->under_way -= q->expected;
        q->reply = r.tree;
        q->placed = r.placed;
        if (!connection->answered) kvc_breaker_note(&connection->node->breaker, 0, NULL);
        connection->answered = 1;
        answer(run, connection, q);
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

static void connection_serve(struct kvc_redis_run *run, struct kvc_redis_connection *connection) {
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

/* --- the loop --- */

/* Waits until one of the connections can move bytes, or something is due. */
static void wait(struct kvc_redis_run *run, struct pollfd *p) {
    kvc_instant until = run->later.first && run->wake < run->deadline ? run->wake : run->deadline;
    for (size_t i = 0; i < run->n_connections; i++) {
        const kvc_instant limit = run->connection[i]->since + run->l->o.timeout;
        p[i] = (struct pollfd){.fd = -1};
        if (connection_wants(run->connection[i], &p[i]) && limit < until) until = limit;
    }
    const kvc_instant now = kvc_now(), left = until - now;
    const int64_t most = 3600 * INT64_C(1000000);
    struct timespec t = {0};
    if (left > 0)
        t = (struct timespec){(left < most ? left : most) / 1000000,
                              (left < most ? left : most) % 1000000 * 1000};
    if (ppoll(p, run->n_connections, &t, NULL) < 0)
        for (size_t i = 0; i < run->n_connections; i++) p[i].revents = 0;
}

/* Fails connections that were silent for too long, and all of them at the deadline. */
static void expire(struct kvc_redis_run *run) {
    const kvc_instant now = kvc_now();
    for (size_t i = 0; i < run->n_connections; i++) {
        struct kvc_redis_connection *connection = run->connection[i];
        struct kvc_error e;
        if (!connection->unsent.first && !connection->sent.first) continue;
        const int64_t silent = now - connection->since;
        if (now < run->deadline && silent < run->l->o.timeout) continue;
        kvc_fail(&e, KVC_ERR_IO, "no answer within the time limit");
        connection_failed(run, connection, silent >= HUNG ? FAILURES : silent >= SLOW, &e);
    }
    if (now < run->deadline && (!run->later.first || now < run->wake)) return;
    struct kvc_redis_list due = run->later;
    run->later.first = NULL;
    for (struct kvc_redis_request *q; (q = list_take(&due)) != NULL;) {
        if (now >= run->deadline) finish(run, q, KVC_REDIS_FAILED);
        else route(run, q);
    }
}

int kvc_redis_run_step(struct kvc_redis_run *run) {
    struct pollfd few[16], *p = few;
    if (!run->pending) return 0;
    for (size_t i = 0; i < run->n_connections; i++) connection_start(run, run->connection[i]);
    if (!run->pending) return 0; /* all of their nodes are left alone */
    const size_t n = run->n_connections;
    if (n > sizeof few / sizeof few[0] && !(p = kvc_alloc(n, sizeof *p))) p = few;
    if (p != few || n <= sizeof few / sizeof few[0]) {
        wait(run, p);
        /* connections that are added meanwhile come in the next step */
        for (size_t i = 0; i < n; i++)
            if (p[i].revents) connection_serve(run, run->connection[i]);
    }
    if (p != few) free(p);
    expire(run);
    return run->pending > 0;
}
