/* redis_lane.c: moves requests to a node and replies from it. */
#include "formats/store/redis/redis_lane.h"

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
static void restart(struct kvc_redis_lane *lane) {
    struct kvc_redis_request *q;
    struct kvc_redis_list all = {0};
    while ((q = kvc_redis_list_take(&lane->sent)) != NULL) kvc_redis_list_add(&all, q);
    while ((q = kvc_redis_list_take(&lane->unsent)) != NULL) kvc_redis_list_add(&all, q);
    while ((q = kvc_redis_list_take(&all)) != NULL) kvc_redis_list_add(&lane->unsent, q);
    kvc_redis_link_close(lane->link);
    lane->link = NULL;
    lane->offset = 0;
    lane->under_way = 0;
}

/* A connection failed: tries the node's next address, or a new connection if the server closed an
 * idle one, or gives up. */
static void lost(struct kvc_redis_run *run, struct kvc_redis_lane *lane, struct kvc_error *e) {
    const int new_one = lane->link && lane->fresh;
    const int next_address = new_one && (lane->link->connecting || lane->link->handshake);
    if (lane->link && !lane->fresh && !lane->answered) {
        restart(lane);
        return;
    }
    if (next_address) {
        pthread_mutex_lock(&run->l->lock);
        const int more = lane->address + 1 < lane->node->n_addresses;
        pthread_mutex_unlock(&run->l->lock);
        if (more) {
            lane->address++;
            restart(lane);
            return;
        }
    }
    run->lost(run, lane, 1, e);
}

void kvc_redis_lane_start(struct kvc_redis_run *run, struct kvc_redis_lane *lane) {
    struct kvc_error e;
    if (lane->link || lane->broken || !lane->unsent.first) return;
    if (kvc_redis_node_try(run->l, lane->node, &e)) {
        run->lost(run, lane, 0, &e);
        return;
    }
    lane->link = kvc_redis_node_link(run->l, lane->node, lane->address, run->deadline, &lane->fresh,
                                     &e);
    lane->since = kvc_now();
    if (!lane->link) {
        run->lost(run, lane, 1, &e);
        return;
    }
    lane->greeting = lane->fresh ? 0 : run->l->o.greeting_size;
    lane->greetings = lane->fresh ? run->l->o.greeting_replies : 0;
}

/* Bytes that are expected and have not come. */
static uint64_t under_way(const struct kvc_redis_lane *lane) {
    const struct kvc_redis_reader *in = &lane->link->in;
    const uint64_t came = in->left ? in->size - (in->left > 2 ? in->left - 2 : 0) : 0;
    return came < lane->under_way ? lane->under_way - came : 0;
}

/* 1: the next request may be sent. */
static int may_send(const struct kvc_redis_lane *lane) {
    const struct kvc_redis_request *q = lane->unsent.first;
    return q && (lane->offset || !lane->sent.first || under_way(lane) + q->expected <= WINDOW);
}

int kvc_redis_lane_wants(const struct kvc_redis_lane *lane, struct pollfd *p) {
    if (!lane->link || (!lane->unsent.first && !lane->sent.first)) return 0;
    p->fd = lane->link->fd;
    if (lane->link->connecting) p->events = POLLOUT;
    else if (lane->link->wants) p->events = lane->link->wants;
    else if (lane->link->handshake) p->events = POLLOUT;
    else p->events = (short)(POLLIN | (may_send(lane) ? POLLOUT : 0));
    return 1;
}

/* Lists what is to be sent: the rest of the greeting and of the first request, and further ones. */
static size_t list_pieces(const struct kvc_redis_run *run, const struct kvc_redis_lane *lane,
                          struct iovec *v) {
    size_t n = 0, skip = lane->offset;
    uint64_t bytes = under_way(lane);
    if (lane->greeting < run->l->o.greeting_size)
        v[n++] = (struct iovec){run->l->o.greeting + lane->greeting,
                                run->l->o.greeting_size - lane->greeting};
    for (const struct kvc_redis_request *q = lane->unsent.first; q && n + 4 <= PIECES;
         q = q->next) {
        if (n && q != lane->unsent.first && bytes + q->expected > WINDOW) break;
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
static void was_sent(struct kvc_redis_run *run, struct kvc_redis_lane *lane, size_t bytes) {
    const size_t greeting = run->l->o.greeting_size - lane->greeting,
                 cut = bytes < greeting ? bytes : greeting;
    lane->greeting += cut;
    bytes -= cut;
    for (struct kvc_redis_request *q; bytes && (q = lane->unsent.first) != NULL;) {
        size_t size = q->asking ? sizeof asking - 1 : 0;
        for (size_t i = 0; i < q->parts; i++) size += q->part[i].iov_len;
        /* nothing is under way: a round trip begins */
        if (!lane->offset && !lane->sent.first) run->rounds++;
        if (bytes < size - lane->offset) {
            lane->offset += bytes;
            return;
        }
        bytes -= size - lane->offset;
        lane->offset = 0;
        lane->under_way += q->expected;
        q->answers = q->asking != 0;
        kvc_redis_list_add(&lane->sent, kvc_redis_list_take(&lane->unsent));
    }
}

static int send_all(struct kvc_redis_run *run, struct kvc_redis_lane *lane, struct kvc_error *e) {
    while (may_send(lane)) {
        struct iovec v[PIECES];
        const size_t n = list_pieces(run, lane, v);
        const ssize_t sent = kvc_redis_link_send(lane->link, v, n, e);
        if (sent < 0) return -1;
        if (sent == 0) return 0;
        lane->since = kvc_now();
        was_sent(run, lane, (size_t)sent);
    }
    return 0;
}

static uint8_t *place(void *state, size_t n) {
    struct kvc_redis_request *q = ((struct kvc_redis_lane *)state)->sent.first;
    return q->place(q, n);
}

/* Replies to the greeting and to ASKING only matter if they are errors. */
static int preamble(const struct kvc_redis *l, struct kvc_redis_lane *lane,
                    struct kvc_redis_reply *r, struct kvc_error *e) {
    char text[200];
    int status = 0;
    if (r->tree->type == REDIS_REPLY_ERROR) {
        kvc_redis_quote(l, text, sizeof text, r->tree->str);
        status = kvc_fail(e, KVC_ERR_IO, "the server refuses: %s", text);
    }
    freeReplyObject(r->tree);
    if (lane->greetings) lane->greetings--;
    else lane->sent.first->answers--;
    return status;
}

/* Hands on the replies that are there. -1: the connection cannot be used any more. */
static int answers(struct kvc_redis_run *run, struct kvc_redis_lane *lane, struct kvc_error *e) {
    for (;;) {
        struct kvc_redis_request *q = lane->sent.first;
        struct kvc_redis_reply r;
        const int skip = lane->greetings || (q && q->answers);
        const int status = kvc_redis_reader_next(&lane->link->in,
                                                 !skip && q && q->place ? place : NULL, lane, &r,
                                                 e);
        if (status <= 0) return status;
        if (skip) {
            if (preamble(run->l, lane, &r, e)) return -1;
            continue;
        }
        if (!q) { /* an error may come before a command is complete, and the connection then ends */
            char text[200] = "";
            if (r.tree->type == REDIS_REPLY_ERROR)
                kvc_redis_quote(run->l, text, sizeof text, r.tree->str);
            freeReplyObject(r.tree);
            lane->answered = lane->answered || *text;
            return kvc_fail(e, KVC_ERR_IO,
                            *text ? "the server refuses: %s"
                                  : "there is a reply without a question%s",
                            text);
        }
        kvc_redis_list_take(&lane->sent);
        lane->under_way -= q->expected;
        q->reply = r.tree;
        q->placed = r.placed;
        if (!lane->answered) kvc_redis_node_worked(run->l, lane->node);
        lane->answered = 1;
        run->answer(run, lane, q);
        if (!lane->link) return 0; /* it failed meanwhile */
    }
}

/* Receives all that came, until the deadline. Returns -1 after the connection's last reply was
 * handed on. */
static int receive_all(struct kvc_redis_run *run, struct kvc_redis_lane *lane,
                       struct kvc_error *e) {
    for (;;) {
        const ssize_t n = kvc_redis_link_receive(lane->link, e);
        if (n <= 0) return (int)n;
        lane->since = kvc_now();
        if (answers(run, lane, e)) return -1;
        if (!lane->link || (!lane->sent.first && !lane->unsent.first) || kvc_now() >= run->deadline)
            return 0;
    }
}

void kvc_redis_lane_serve(struct kvc_redis_run *run, struct kvc_redis_lane *lane) {
    struct kvc_error e, said;
    if (!lane->link) return;
    if (lane->link->connecting || lane->link->handshake) {
        const int status = kvc_redis_link_connect(lane->link, &e);
        if (status < 0) lost(run, lane, &e);
        if (status <= 0) return;
        lane->since = kvc_now();
    }
    int status = receive_all(run, lane, &e);
    if (status == 0 && lane->link && (status = send_all(run, lane, &e)) != 0 &&
        receive_all(run, lane, &said))
        e = said;
    if (status && lane->link) lost(run, lane, &e);
}
