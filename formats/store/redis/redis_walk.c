/* redis_walk.c: lists the objects of all servers, and what servers tell of themselves. Spec:
 * REDIS.md, "Commands". */
#include "formats/store/redis/redis_state.h"

#include "codecs/memory.h"
#include "codecs/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Keys that SCAN looks at in one round trip. */
#define COUNT "1000"
/* Timeouts of the tier without a new object, after which SCAN counts as one without an end. */
#define PATIENCE 60

/* Objects that were seen: SCAN may tell a key twice, and a slot that moves is on two servers. */
struct seen_set {
    uint64_t *hash; /* 0: a free place */
    size_t room, n;
};

struct walk {
    struct kvc_redis *l;
    struct seen_set set;
    char pattern[2 * KVC_REDIS_KEY];
    kvc_tier_seen *seen;
    void *state;
    int stop;
    kvc_instant since; /* the last new object */
};

static void put_hash(struct seen_set *s, uint64_t h) {
    size_t at = (size_t)h & (s->room - 1);
    while (s->hash[at]) at = (at + 1) & (s->room - 1);
    s->hash[at] = h;
    s->n++;
}

/* Returns 1 if the object is new, 0 if it is not, -1 without memory. Keys are hashes, so that 8
 * bytes of them tell objects apart. */
static int is_new(struct seen_set *s, const struct kvc_object *o, struct kvc_error *e) {
    uint64_t h, ns;
    memcpy(&h, o->key, sizeof h);
    memcpy(&ns, o->ns, sizeof ns);
    h = (h ^ ns * 0x9e3779b97f4a7c15u) + o->kind;
    if (!h) h = 1;
    for (size_t at = (size_t)h & (s->room - 1); s->room && s->hash[at];
         at = (at + 1) & (s->room - 1))
        if (s->hash[at] == h) return 0;
    if (2 * (s->n + 1) > s->room) {
        struct seen_set larger = {.room = s->room ? 2 * s->room : 1024};
        if (!(larger.hash = kvc_alloc_zeros(larger.room, sizeof *larger.hash)))
            return kvc_fail_memory(e, "a list of objects");
        for (size_t i = 0; i < s->room; i++)
            if (s->hash[i]) put_hash(&larger, s->hash[i]);
        free(s->hash);
        *s = larger;
    }
    put_hash(s, h);
    return 1;
}

/* Writes the pattern of all keys, or of those of a namespace: the prefix with its special
 * characters set apart. */
static void write_pattern(const struct kvc_redis *l, const uint8_t *ns, char *to) {
    for (const char *p = l->o.prefix; *p; p++) {
        if (strchr("*?[]^\\-", *p)) *to++ = '\\';
        *to++ = *p;
    }
    for (size_t i = 0; ns && i < KVC_OBJECT_NS; i++) to += sprintf(to, "%02x", ns[i]);
    memcpy(to, "*", 2);
}

/* Sends requests to one server and waits for all of their replies. -1: one of them failed. */
static int run_all(struct kvc_redis *l, struct kvc_redis_request *q, size_t n, kvc_instant deadline,
                   struct kvc_error *e) {
    struct kvc_redis_run run;
    int status = 0;
    kvc_redis_run_init(&run, l, deadline);
    for (size_t i = 0; i < n; i++) kvc_redis_run_add(&run, &q[i]);
    while (kvc_redis_run_step(&run))
        ;
    for (size_t i = 0; i < n && !status; i++)
        if (q[i].state_of == KVC_REDIS_FAILED) status = kvc_redis_explain(&run, &q[i], e);
    kvc_redis_run_end(&run);
    return status;
}

static long long integer_of(const struct kvc_redis_request *q) {
    return q->reply && q->reply->type == REDIS_REPLY_INTEGER ? q->reply->integer : -1;
}

/* Asks for ages and sizes of the objects of one reply to SCAN, and hands them on. STRLEN makes an
 * object look used where the server is older than CLIENT NO-TOUCH, which such a server refuses
 * without harm. */
static int report(struct walk *w, int node, const struct kvc_object *o, size_t n,
                  struct kvc_error *e) {
    static const char *const quiet[] = {"CLIENT", "NO-TOUCH", "ON"}, *const normal[] = {"CLIENT",
                                                                                        "NO-TOUCH",
                                                                                        "OFF"};
    struct kvc_redis_request *q = kvc_alloc_zeros(2 * n + 2, sizeof *q);
    if (!q) return kvc_fail_memory(e, "commands");
    int status = kvc_redis_request_words(&q[0], 3, quiet, e);
    if (!status) status = kvc_redis_request_words(&q[2 * n + 1], 3, normal, e);
    for (size_t i = 0; i < n && !status; i++) {
        char key[KVC_REDIS_KEY];
        const char *const idle[] = {"OBJECT", "IDLETIME", key}, *const length[] = {"STRLEN", key};
        kvc_redis_key(w->l, &o[i], key);
        status = kvc_redis_request_words(&q[2 * i + 1], 3, idle, e);
        if (!status) status = kvc_redis_request_words(&q[2 * i + 2], 2, length, e);
    }
    for (size_t i = 0; i < 2 * n + 2; i++) {
        q[i].slot = -1;
        q[i].node = node;
        q[i].optional = i % 2 || i == 0; /* all but STRLEN */
    }
    if (!status) status = run_all(w->l, q, 2 * n + 2, kvc_now() + w->l->o.timeout, e);
    const int64_t now = (int64_t)time(NULL);
    for (size_t i = 0; i < n && !status && !w->stop; i++) {
        const long long idle = integer_of(&q[2 * i + 1]), size = integer_of(&q[2 * i + 2]);
        /* what is no string has no bytes, and reading it tells what is wrong */
        if (size < 0 && !kvc_redis_is_wrong_type(&q[2 * i + 2])) continue; /* it has moved away */
        w->stop = w->seen(w->state, &o[i], size < 0 ? 0 : (uint64_t)size,
                          idle < 0 || idle > now ? 0 : now - idle);
    }
    for (size_t i = 0; i < 2 * n + 2; i++) kvc_redis_request_free(&q[i]);
    free(q);
    return status;
}

/* Takes a reply to SCAN: an array of the next cursor and an array of keys. */
static int take_keys(struct walk *w, int node, const redisReply *r, char cursor[32],
                     struct kvc_error *e) {
    const size_t prefix = strlen(w->l->o.prefix);
    if (!r || r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
        r->element[0]->type != REDIS_REPLY_STRING || r->element[0]->len >= 32 ||
        r->element[1]->type != REDIS_REPLY_ARRAY)
        return kvc_fail(e, KVC_ERR_IO, "redis: the reply to SCAN is damaged");
    memcpy(cursor, r->element[0]->str, r->element[0]->len + 1);
    const redisReply *keys = r->element[1];
    struct kvc_object *o = kvc_alloc(keys->elements, sizeof *o);
    size_t n = 0;
    int status = o ? 0 : kvc_fail_memory(e, "a list of objects");
    for (size_t i = 0; i < keys->elements && status >= 0; i++) {
        const redisReply *key = keys->element[i];
        /* other keys may be there too */
        if (key->type != REDIS_REPLY_STRING || key->len <= prefix || strlen(key->str) != key->len ||
            memcmp(key->str, w->l->o.prefix, prefix) != 0 ||
            kvc_object_parse(key->str + prefix, &o[n]))
            continue;
        status = is_new(&w->set, &o[n], e);
        n += status == 1;
    }
    if (status >= 0) status = n ? report(w, node, o, n, e) : 0;
    if (n) w->since = kvc_now();
    free(o);
    return status;
}

static int walk_node(struct walk *w, int node, struct kvc_error *e) {
    char cursor[32] = "0";
    int status = 0;
    w->since = kvc_now();
    do {
        const char *const word[] = {"SCAN", cursor, "MATCH", w->pattern, "COUNT", COUNT};
        struct kvc_redis_request q = {.slot = -1, .node = node};
        if (kvc_redis_request_words(&q, 6, word, e)) return -1;
        status = run_all(w->l, &q, 1, kvc_now() + w->l->o.timeout, e);
        if (!status && q.state_of == KVC_REDIS_DENIED) {
            struct kvc_redis_run none = {.l = w->l};
            status = kvc_redis_explain(&none, &q, e);
        }
        if (!status) status = take_keys(w, node, q.reply, cursor, e);
        kvc_redis_request_free(&q);
        if (status || w->stop || strcmp(cursor, "0") == 0) return status;
    } while (kvc_now() - w->since < PATIENCE * w->l->o.timeout);
    return kvc_fail(e, KVC_ERR_IO, "redis: the server's list of keys does not end");
}

/* Lists the servers that have slots; the caller frees. */
static int *serving(struct kvc_redis *l, size_t *n) {
    pthread_mutex_lock(&l->lock);
    int *list = kvc_alloc(l->n_nodes, sizeof *list);
    *n = 0;
    for (size_t i = 0; list && i < l->n_nodes; i++)
        if (l->node[i]->serves) list[(*n)++] = (int)i;
    pthread_mutex_unlock(&l->lock);
    return list;
}

int kvc_redis_walk(struct kvc_tier *tier, const uint8_t *ns, kvc_tier_seen *seen, void *state,
                   struct kvc_error *e) {
    struct kvc_redis *l = (struct kvc_redis *)tier;
    struct walk w = {.l = l, .seen = seen, .state = state};
    size_t n;
    if (kvc_redis_discover(l, kvc_now() + l->o.timeout, e)) return -1;
    int *node = serving(l, &n), status = node ? 0 : kvc_fail_memory(e, "a list of servers");
    write_pattern(l, ns, w.pattern);
    for (size_t i = 0; !status && i < n && !w.stop; i++) status = walk_node(&w, node[i], e);
    free(node);
    free(w.set.hash);
    return status;
}

/* Reads "name:value" of INFO. */
static const char *info(const redisReply *r, const char *name) {
    const size_t n = strlen(name);
    for (const char *p = r && r->type == REDIS_REPLY_STRING ? r->str : NULL; p;
         p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, name, n) == 0 && p[n] == ':') return p + n + 1;
    }
    return NULL;
}

static int64_t number(const redisReply *r, const char *name) {
    const char *text = info(r, name);
    return text && *text >= '0' && *text <= '9' ? (int64_t)strtoll(text, NULL, 10) : 0;
}

/* Copies a word of INFO. */
static void word(const struct kvc_redis *l, const redisReply *r, const char *name, char *to,
                 size_t room) {
    const char *text = info(r, name);
    char line[64] = "?";
    if (text) snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\r\n"), text);
    kvc_redis_quote(l, to, room, line);
}

/* What the servers say of themselves; their keys may be others' too. */
struct about {
    char version[32], policy[32];
    int valkey;
    int64_t used, limit; /* bytes of memory; limit 0: a server has none */
};

static void add_server(const struct kvc_redis *l, struct about *x, const redisReply *server,
                       const redisReply *memory, int first) {
    const int64_t limit = number(memory, "maxmemory");
    x->valkey = info(server, "valkey_version") != NULL;
    word(l, server, x->valkey ? "valkey_version" : "redis_version", x->version, sizeof x->version);
    word(l, memory, "maxmemory_policy", x->policy, sizeof x->policy);
    x->used += number(memory, "used_memory");
    x->limit = limit && (first || x->limit) ? x->limit + limit : 0;
}

static void redis_walk_describe(struct kvc_redis *l, const struct about *x, size_t servers,
                                char *text, size_t size) {
    char kind[48] = "single server", limit[48] = "";
    char used[32], most[32];
    const double mib = 1 << 20;
    kvc_number_print(used, sizeof used, 3, (double)x->used / mib);
    kvc_number_print(most, sizeof most, 3, (double)x->limit / mib);
    if (x->limit) snprintf(limit, sizeof limit, " of %s MiB", most);
    pthread_mutex_lock(&l->lock);
    if (l->clustered) snprintf(kind, sizeof kind, "cluster of %zu masters", servers);
    snprintf(text, size,
             "%s %s, %s; %" PRIu64 " finds in %" PRIu64
             " round trips; memory of all keys %s MiB%s, %s",
             x->valkey ? "Valkey" : "Redis", x->version, kind, l->finds, l->find_rounds, used,
             limit, x->policy);
    pthread_mutex_unlock(&l->lock);
}

int kvc_redis_facts(struct kvc_tier *tier, struct kvc_store_tier_info *facts, kvc_instant deadline,
                    struct kvc_error *e) {
    static const char *const server[] = {"INFO", "server"}, *const memory[] = {"INFO", "memory"};
    struct kvc_redis *l = (struct kvc_redis *)tier;
    struct about x = {.version = "?", .policy = "?"};
    size_t n;
    if (kvc_redis_discover(l, deadline, e)) return -1;
    int *node = serving(l, &n), status = 0;
    struct kvc_redis_request *q = kvc_alloc_zeros(2 * n, sizeof *q);
    if (!node || !q) status = kvc_fail_memory(e, "a list of servers");
    for (size_t i = 0; i < 2 * n && !status; i++) {
        status = kvc_redis_request_words(&q[i], 2, i % 2 ? memory : server, e);
        q[i].slot = -1;
        q[i].node = node[i / 2];
    }
    if (!status) status = run_all(l, q, 2 * n, deadline, e);
    *facts = (struct kvc_store_tier_info){.objects = -1, .bytes = -1, .limit = -1};
    for (size_t i = 0; i < n && !status; i++)
        add_server(l, &x, q[2 * i].reply, q[2 * i + 1].reply, i == 0);
    redis_walk_describe(l, &x, n, facts->text, sizeof facts->text);
    for (size_t i = 0; q && i < 2 * n; i++) kvc_redis_request_free(&q[i]);
    free(q);
    free(node);
    return status;
}
