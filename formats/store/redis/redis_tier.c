/* redis_tier.c: the tier of the schemes redis and rediss: its table of functions, finding,
 * writing and removing. Spec: REDIS.md. */
#include "formats/store/redis/redis_state.h"

#include "codecs/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvc_tier *open_tier(struct kvc_url *url, struct kvc_error *e);

struct batch {
    struct kvc_redis_run run;
    struct kvc_redis_request *q;
    size_t n;
    kvc_redis_done *done; /* of each command; NULL: none */
    void *state;          /* of these */
};

/* Sends one command about each of n objects, all at once. */
static int batch_run(struct batch *b, struct kvc_redis *l, const char *verb, const char *second,
                     const char *third, const struct kvc_object *o, size_t n, kvc_instant deadline,
                     struct kvc_error *e) {
    b->q = kvc_alloc_zeros(n, sizeof *b->q);
    b->n = n;
    if (!b->q) return kvc_fail_memory(e, "commands");
    for (size_t i = 0; i < n; i++)
        if (kvc_redis_ask(l, &b->q[i], verb, &o[i], second, third, e)) return -1;
    if (kvc_redis_discover(l, deadline, e)) return -1;
    kvc_redis_run_init(&b->run, l, deadline);
    /* the last one first: of a chain, its beginning is to be what was used last */
    for (size_t i = n; i--;) {
        b->q[i].done = b->done;
        b->q[i].state = b->state;
        kvc_redis_run_add(&b->run, &b->q[i]);
    }
    while (kvc_redis_run_step(&b->run))
        ;
    return 0;
}

static void batch_end(struct batch *b) {
    kvc_redis_run_end(&b->run);
    for (size_t i = 0; b->q && i < b->n; i++) kvc_redis_request_free(&b->q[i]);
    free(b->q);
}

/* What finding tells, beside how many objects are there. */
struct finding {
    uint64_t rounds;   /* of questions, over all servers */
    int is_wrong_type; /* the first one that is missing is a key of another type */
};

/* Finds objects in one round trip. */
static int redis_level_find(struct kvc_redis *l, const struct kvc_object *o, size_t n,
                            kvc_instant deadline, size_t *found, uint64_t *size,
                            struct finding *more, struct kvc_error *e) {
    struct batch b = {0};
    *found = 0;
    *more = (struct finding){0};
    int status = n ? batch_run(&b, l, "STRLEN", NULL, NULL, o, n, deadline, e) : 0;
    for (size_t i = 0; !status && i < n; i++) {
        if (!kvc_redis_is_integer(&b.q[i])) {
            /* what is no string is no object of a store */
            more->is_wrong_type = kvc_redis_is_wrong_type(&b.q[i]);
            if (b.q[i].state_of != KVC_REDIS_DENIED) status = kvc_redis_explain(&b.run, &b.q[i], e);
            break;
        }
        if (b.q[i].reply->integer <= 0) break;
        size[i] = (uint64_t)b.q[i].reply->integer;
        *found = i + 1;
    }
    more->rounds = b.run.rounds;
    batch_end(&b);
    return status;
}

static void count_rounds(struct kvc_redis *l, uint64_t rounds) {
    pthread_mutex_lock(&l->lock);
    l->finds++;
    l->find_rounds += rounds;
    pthread_mutex_unlock(&l->lock);
}

static int tier_find(struct kvc_tier *tier, const struct kvc_object *o, size_t n,
                     kvc_instant deadline, size_t *found, uint64_t *size, struct kvc_error *e) {
    struct kvc_redis *l = (struct kvc_redis *)tier;
    struct finding more;
    const int status = redis_level_find(l, o, n, deadline, found, size, &more, e);
    count_rounds(l, more.rounds);
    return status;
}

struct each {
    struct batch b;
    kvc_tier_there *there;
    void *state;
};

static void each_done(struct kvc_redis_run *run, struct kvc_redis_request *q) {
    const struct each *x = q->state;
    (void)run;
    if (kvc_redis_is_integer(q) && q->reply->integer > 0) x->there(x->state, (size_t)(q - x->b.q));
}

static int tier_each(struct kvc_tier *tier, const struct kvc_object *o, size_t n,
                     kvc_instant deadline, kvc_tier_there *there, void *state,
                     struct kvc_error *e) {
    struct kvc_redis *l = (struct kvc_redis *)tier;
    struct each x = {.b = {.done = each_done, .state = &x}, .there = there, .state = state};
    int status = n ? batch_run(&x.b, l, "STRLEN", NULL, NULL, o, n, deadline, e) : 0;
    for (size_t i = 0; !status && i < n; i++)
        if (!kvc_redis_is_integer(&x.b.q[i]) && x.b.q[i].state_of != KVC_REDIS_DENIED)
            status = kvc_redis_explain(&x.b.run, &x.b.q[i], e);
    count_rounds(l, x.b.run.rounds);
    batch_end(&x.b);
    return status;
}

/* Sends a command to all objects, whose replies are integers that do not matter. */
static int for_all(struct kvc_tier *tier, const char *verb, const char *second, const char *third,
                   const struct kvc_object *o, size_t n, kvc_instant deadline,
                   struct kvc_error *e) {
    struct batch b = {0};
    int status = n ? batch_run(&b, (struct kvc_redis *)tier, verb, second, third, o, n, deadline, e)
                   : 0;
    for (size_t i = 0; !status && i < n; i++)
        if (!kvc_redis_is_integer(&b.q[i])) status = kvc_redis_explain(&b.run, &b.q[i], e);
    batch_end(&b);
    return status;
}

static int tier_drop(struct kvc_tier *tier, const struct kvc_object *o, size_t n,
                     kvc_instant deadline, struct kvc_error *e) {
    return for_all(tier, "UNLINK", NULL, NULL, o, n, deadline, e);
}

static kvc_instant limit_of(const struct kvc_tier *tier) {
    return kvc_now() + ((const struct kvc_redis *)tier)->o.timeout;
}

static int tier_quarantine(struct kvc_tier *tier, const struct kvc_object *o, struct kvc_error *e) {
    return for_all(tier, "UNLINK", NULL, NULL, o, 1, limit_of(tier), e);
}

static int tier_touch(struct kvc_tier *tier, const struct kvc_object *o, size_t n,
                      struct kvc_error *e) {
    return for_all(tier, "STRLEN", NULL, NULL, o, n, limit_of(tier), e);
}

static int tier_pin(struct kvc_tier *tier, const struct kvc_object *o, size_t n, int64_t until,
                    struct kvc_error *e) {
    const struct kvc_redis *l = (const struct kvc_redis *)tier;
    char number[32];
    if (!until && !l->o.ttl) return 0;
    if (until == INT64_MAX) return for_all(tier, "PERSIST", NULL, NULL, o, n, limit_of(tier), e);
    if (until) {
        /* GT: a key that lives longer is left so */
        snprintf(number, sizeof number, "%" PRId64, until);
        return for_all(tier, "EXPIREAT", number, "GT", o, n, limit_of(tier), e);
    }
    snprintf(number, sizeof number, "%" PRId64, l->o.ttl / 1000);
    return for_all(tier, "PEXPIRE", number, NULL, o, n, limit_of(tier), e);
}

/* Writes SET's words around the value, which is sent from where it is. */
static int set_command(struct kvc_redis *l, struct kvc_redis_request *q, const struct kvc_object *o,
                       const void *data, size_t size, const struct kvc_tier_put *how,
                       char tail[128], struct kvc_error *e) {
    char key[KVC_REDIS_KEY], number[32];
    const int64_t seconds = how->seconds < INT64_C(1000000000000) ? how->seconds
                                                                  : INT64_C(1000000000000);
    const int64_t ttl = how->pin ? 0 : seconds > 0 ? seconds * 1000 : l->o.ttl / 1000;
    const int words = 3 + !how->replace + (ttl > 0 ? 2 : 0);
    q->slot = kvc_redis_key(l, o, key);
    q->text = malloc(sizeof key + 128);
    if (!q->text) return kvc_fail_memory(e, "a command");
    const int head = snprintf(q->text, sizeof key + 128,
                              "*%d\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", words, strlen(key), key,
                              size);
    int rest = snprintf(tail, 128, "\r\n%s", how->replace ? "" : "$2\r\nNX\r\n");
    if (ttl > 0) {
        const int digits = snprintf(number, sizeof number, "%" PRId64, ttl);
        rest += snprintf(tail + rest, 128 - (size_t)rest, "$2\r\nPX\r\n$%d\r\n%s\r\n", digits,
                         number);
    }
    q->part[0] = (struct iovec){q->text, (size_t)head};
    q->part[1] = (struct iovec){(void *)(uintptr_t)data, size};
    q->part[2] = (struct iovec){tail, (size_t)rest};
    q->parts = 3;
    return 0;
}

/* Sends SET. Sets *there to 1 if the key is there, of whatever type. */
static int set(struct kvc_redis *l, const struct kvc_object *o, const void *data, size_t size,
               const struct kvc_tier_put *how, kvc_instant deadline, int *there,
               struct kvc_error *e) {
    struct kvc_redis_request q = {0};
    struct batch b = {0};
    char tail[128];
    if (set_command(l, &q, o, data, size, how, tail, e) || kvc_redis_discover(l, deadline, e)) {
        kvc_redis_request_free(&q);
        return -1;
    }
    kvc_redis_run_init(&b.run, l, deadline);
    kvc_redis_run_add(&b.run, &q);
    while (kvc_redis_run_step(&b.run))
        ;
    const int answered = q.state_of == KVC_REDIS_ANSWERED && q.reply;
    *there = answered && q.reply->type == REDIS_REPLY_NIL;
    const int status = *there || (answered && q.reply->type == REDIS_REPLY_STATUS)
                           ? 0
                           : kvc_redis_explain(&b.run, &q, e);
    kvc_redis_request_free(&q);
    batch_end(&b);
    return status;
}

static int tier_put(struct kvc_tier *tier, const struct kvc_object *o, const void *data,
                    size_t size, const struct kvc_tier_put *how, kvc_instant deadline, int *there,
                    struct kvc_error *e) {
    enum { LARGE = 64 << 10 };
    struct kvc_redis *l = (struct kvc_redis *)tier;
    struct kvc_tier_put own = *how;
    struct finding more = {0};
    size_t found = 0;
    uint64_t old;
    *there = 0;
    if (size > l->o.max_object) {
        kvc_fail(e, KVC_ERR_USAGE,
                 "redis: an object of %zu bytes is larger than max-object=%" PRIu64, size,
                 l->o.max_object);
        return -1;
    }
    /* a round trip is cheaper than a large value that the server already has */
    if (size > LARGE && !own.replace && redis_level_find(l, o, 1, deadline, &found, &old, &more, e))
        return -1;
    *there = found == 1;
    own.replace |= more.is_wrong_type;
    if (!*there && set(l, o, data, size, &own, deadline, there, e)) return -1;
    /* a key of another type is nobody's object, and hides this one */
    if (*there && !found && redis_level_find(l, o, 1, deadline, &found, &old, &more, e)) return -1;
    if (*there && more.is_wrong_type) {
        own.replace = 1;
        if (set(l, o, data, size, &own, deadline, there, e)) return -1;
    }
    if (!*there || !own.pin) return 0;
    return for_all(tier, "PERSIST", NULL, NULL, o, 1, deadline, e); /* it had an end of life */
}

static const struct kvc_tier_ops ops = {.abi = KVC_TIER_ABI,
                                        .scheme = "redis",
                                        .what = "Redis",
                                        .remote = 1,
                                        .last_first = 1,
                                        .open = open_tier,
                                        .close = kvc_redis_close,
                                        .find = tier_find,
                                        .get = kvc_redis_get,
                                        .put = tier_put,
                                        .drop = tier_drop,
                                        .walk = kvc_redis_walk,
                                        .facts = kvc_redis_facts,
                                        .each = tier_each,
                                        .quarantine = tier_quarantine,
                                        .touch = tier_touch,
                                        .pin = tier_pin};

static struct kvc_tier *open_tier(struct kvc_url *url, struct kvc_error *e) {
    struct kvc_redis *l = kvc_redis_open(url, e);
    if (!l) return NULL;
    l->tier.ops = &ops;
    return &l->tier;
}

/* Both schemes have this one table: which of them it is, the URL says. */
const struct kvc_tier_ops *kvc_store_tier(void);
__attribute__((visibility("default"))) const struct kvc_tier_ops *kvc_store_tier(void) {
    return &ops;
}
