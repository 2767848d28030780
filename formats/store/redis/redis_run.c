/* redis_run.c: requests, where they go, and what becomes of their replies. The bytes are moved by
 * redis_connection.c. */
#include "formats/store/redis/redis_run.h"

#include "codecs/memory.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Times in microseconds. A node that was silent for HUNG counts as failed for good, one that was
 * for SLOW as failed once. */
enum { MAX_TRIES = 16, TRY_AGAIN = 5000, HUNG = 20000, SLOW = 2000, FAILURES = 3 };

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
        kvc_redis_list_add(&connection->unsent, q);
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
    if (failures) kvc_redis_node_failed(run->l, connection->node, failures, e->message);
    while ((q = kvc_redis_list_take(&connection->sent)) != NULL) finish(run, q, KVC_REDIS_FAILED);
    while ((q = kvc_redis_list_take(&connection->unsent)) != NULL) finish(run, q, KVC_REDIS_FAILED);
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
        kvc_redis_list_add(&run->later, q);
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
    *run = (struct kvc_redis_run){.l = l,
                                  .deadline = deadline,
                                  .answer = answer,
                                  .lost = connection_failed};
}

int kvc_redis_is_wrong_type(const struct kvc_redis_request *q) {
    return q->state_of == KVC_REDIS_DENIED && strncmp(q->reply->str, "WRONGTYPE", 9) == 0;
}

int kvc_redis_explain(const struct kvc_redis_run *run, const struct kvc_redis_request *q,
                      struct kvc_error *e) {
    char text[200];
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

/* Waits until one of the connections can move bytes, or something is due. */
static void wait(struct kvc_redis_run *run, struct pollfd *p) {
    kvc_instant until = run->later.first && run->wake < run->deadline ? run->wake : run->deadline;
    for (size_t i = 0; i < run->n_connections; i++) {
        const kvc_instant limit = run->connection[i]->since + run->l->o.timeout;
        p[i] = (struct pollfd){.fd = -1};
        if (kvc_redis_connection_wants(run->connection[i], &p[i]) && limit < until) until = limit;
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
    for (struct kvc_redis_request *q; (q = kvc_redis_list_take(&due)) != NULL;) {
        if (now >= run->deadline) finish(run, q, KVC_REDIS_FAILED);
        else route(run, q);
    }
}

int kvc_redis_run_step(struct kvc_redis_run *run) {
    struct pollfd few[16], *p = few;
    if (!run->pending) return 0;
    for (size_t i = 0; i < run->n_connections; i++)
        kvc_redis_connection_start(run, run->connection[i]);
    if (!run->pending) return 0; /* all of their nodes are left alone */
    const size_t n = run->n_connections;
    if (n > sizeof few / sizeof few[0] && !(p = kvc_alloc(n, sizeof *p))) p = few;
    if (p != few || n <= sizeof few / sizeof few[0]) {
        wait(run, p);
        /* connections that are added meanwhile come in the next step */
        for (size_t i = 0; i < n; i++)
            if (p[i].revents) kvc_redis_connection_serve(run, run->connection[i]);
    }
    if (p != few) free(p);
    expire(run);
    return run->pending > 0;
}
