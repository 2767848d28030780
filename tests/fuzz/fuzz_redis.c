/* fuzz_redis.c: any bytes as a server's replies to finding, reading, writing, listing and to the
 * question for slots. A thread sends them to every connection. What is read has at most the bytes
 * that were sent. */
#include "formats/store/redis/redis_state.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const struct kvc_tier_ops *kvc_store_tier(void);

enum { OBJECTS = 5, LIMIT = 64 << 10, DEADLINE = 500000 };

/* Under the lock, as a connection may be accepted after its call has ended. */
static uint8_t bytes[LIMIT];
static size_t n_bytes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int listener;
static uint16_t port;

/* Sends the bytes, and waits for the other side to close. */
static void *serve(void *unused) {
    static uint8_t copy[LIMIT];
    (void)unused;
    for (;;) {
        char sink[4096];
        const int s = accept(listener, NULL, NULL);
        if (s < 0) continue;
        pthread_mutex_lock(&lock);
        const size_t size = n_bytes;
        memcpy(copy, bytes, size);
        pthread_mutex_unlock(&lock);
        for (size_t at = 0; at < size;) {
            const ssize_t n = send(s, copy + at, size - at, MSG_NOSIGNAL);
            if (n <= 0) break;
            at += (size_t)n;
        }
        shutdown(s, SHUT_WR);
        while (recv(s, sink, sizeof sink, 0) > 0)
            ;
        close(s);
    }
    return NULL;
}

static void start(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    pthread_t thread;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, size) || listen(listener, 16) ||
        getsockname(listener, (struct sockaddr *)&a, &size) ||
        pthread_create(&thread, NULL, serve, NULL))
        abort();
    port = ntohs(a.sin_port);
}

static int take(void *state, size_t i, void *data, size_t size, const struct kvc_error *why) {
    size_t *next = state;
    if (i != *next || size > n_bytes || (data && why) || (!data && size)) abort();
    (*next)++;
    free(data);
    return 0;
}

static int seen(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    (void)state;
    (void)o;
    (void)size;
    return used < 0;
}

/* Each object is handed over once at most. */
static void note_there(void *state, size_t i) {
    int *there = state;
    if (i >= OBJECTS || there[i]++) abort();
}

static void call(const struct kvc_tier_ops *ops, unsigned choice, int known) {
    struct kvc_object o[OBJECTS] = {0};
    struct kvc_store_tier_info facts;
    struct kvc_url url;
    struct kvc_error e = {0};
    uint64_t size[OBJECTS];
    size_t found = 0, next = 0;
    char text[64];
    int there, each[OBJECTS] = {0}, status = 0;
    snprintf(text, sizeof text, "redis://127.0.0.1:%u?max-object=1M", (unsigned)port);
    if (kvc_url_parse(&url, text, &e)) abort();
    struct kvc_tier *tier = ops->open(&url, &e);
    kvc_url_free(&url);
    if (!tier) abort();
    struct kvc_redis *l = (struct kvc_redis *)tier;
    if (known) {
        memset(l->slot, 0, sizeof l->slot);
        l->known = l->node[0]->serves = 1;
    }
    for (uint8_t i = 0; i < OBJECTS; i++) o[i].key[0] = i;
    const kvc_instant deadline = kvc_now() + DEADLINE;
    switch (choice % 7) {
    case 0:
        status = ops->find(tier, o, OBJECTS, deadline, &found, size, &e);
        if (found > OBJECTS) abort();
        break;
    case 1: status = ops->get(tier, o, OBJECTS, deadline, take, &next, &e); break;
    case 2:
        status = ops->put(tier, o, "value", 5, &(struct kvc_tier_put){0}, deadline, &there, &e);
        break;
    case 3: status = ops->drop(tier, o, OBJECTS, deadline, &e); break;
    case 4: status = ops->walk(tier, NULL, seen, NULL, &e); break;
    case 5: status = ops->facts(tier, &facts, deadline, &e); break;
    default: status = ops->each(tier, o, OBJECTS, deadline, note_there, each, &e);
    }
    if (status && !e.message[0]) abort();
    ops->close(tier);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (size < 1 || size > LIMIT) return 0;
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
    n_bytes = size - 1;
    memcpy(bytes, data + 1, n_bytes);
    pthread_mutex_unlock(&lock);
    call(kvc_store_tier(), data[0] & 7, !(data[0] & 8));
    return 0;
}
