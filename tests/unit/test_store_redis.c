/* test_store_redis.c: the parts of the Redis tier that need no server: slots, redirections,
 * replies that come in pieces, when a node is left alone. tests/store/redis.py has the rest. */
#include "formats/store/redis/redis_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const struct kvc_tier_ops *kvc_store_tier(void);

/* Vectors of the cluster specification and of redis-server's CLUSTER KEYSLOT. */
static void slots(void **unused) {
    (void)unused;
    assert_int_equal(kvc_redis_crc16("123456789", 9), 0x31c3);
    assert_int_equal(kvc_redis_slot("foo"), 12182);
    assert_int_equal(kvc_redis_slot("bar"), 5061);
    assert_int_equal(kvc_redis_slot(""), 0);
}

static void redirections(void **unused) {
    (void)unused;
    static const char *const bad[] = {"MOVED",        "MOVED ",          "MOVED x 1:2",
                                      "MOVED 1",      "MOVED 16384 h:1", "MOVED 1 h",
                                      "MOVED 1 h:",   "MOVED 1 h:0",     "MOVED 1 h:70000",
                                      "MOVED 1 h:1x", "MOVED 1 a b:1",   "MOVED -1 h:1"};
    struct kvc_redis_place_of to;
    assert_int_equal(kvc_redis_redirection("MOVED 3999 127.0.0.1:6381", &to), 0);
    assert_int_equal(to.slot, 3999);
    assert_string_equal(to.host, "127.0.0.1");
    assert_int_equal(to.port, 6381);
    assert_int_equal(kvc_redis_redirection("ASK 0 ::1:7000", &to), 0);
    assert_string_equal(to.host, "::1");
    assert_int_equal(kvc_redis_redirection("MOVED 1 :7000", &to), 0);
    assert_string_equal(to.host, "");
    assert_int_equal(kvc_redis_redirection("MOVED 1 ?:7000", &to), 0);
    assert_string_equal(to.host, "");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(kvc_redis_redirection(bad[i], &to), -1);
    assert_int_equal(kvc_redis_judge("MOVED 1 h:1"), KVC_REDIS_MOVED);
    assert_int_equal(kvc_redis_judge("OOM command not allowed"), KVC_REDIS_UNUSABLE);
    assert_int_equal(kvc_redis_judge("READONLY You can't write"), KVC_REDIS_STALE);
    assert_int_equal(kvc_redis_judge("WRONGTYPE Operation"), KVC_REDIS_REFUSED);
    assert_int_equal(kvc_redis_judge("MOVEDX"), KVC_REDIS_REFUSED);
}

/* --- replies --- */

struct placed {
    uint8_t bytes[64];
    size_t limit;
};

static uint8_t *place(void *state, size_t n) {
    struct placed *p = state;
    return n <= p->limit ? p->bytes : NULL;
}

/* Receives text in pieces of up to n bytes, and asks for replies after each. Returns their number;
 * -1: no protocol. */
static int receive(const char *text, size_t size, size_t n, struct placed *p,
                   struct kvc_redis_reply *reply, int room) {
    struct kvc_redis_reader r;
    struct kvc_error e;
    int count = 0, status = 0;
    assert_int_equal(kvc_redis_reader_init(&r, &e), 0);
    for (size_t at = 0; at < size && status >= 0;) {
        size_t most;
        uint8_t *to = kvc_redis_reader_room(&r, &most);
        assert_true(most > 0);
        if (most > n) most = n;
        if (most > size - at) most = size - at;
        memcpy(to, text + at, most);
        at += most;
        kvc_redis_reader_received(&r, most);
        while (count < room && (status = kvc_redis_reader_next(&r, p->limit ? place : NULL, p,
                                                               &reply[count], &e)) > 0)
            count++;
    }
    if (status == 0) assert_true(kvc_redis_reader_is_idle(&r));
    kvc_redis_reader_free(&r);
    return status < 0 ? -1 : count;
}

static void replies_in_pieces(void **unused) {
    (void)unused;
    static const char text[] = "+OK\r\n:12\r\n$5\r\na\r\nbc\r\n$-1\r\n*2\r\n$1\r\n0\r\n*1\r\n$"
                               "2\r\n\r\n\r\n$0\r\n\r\n-ERR no\r\n$6\r\n\n\n\n\n\n\n\r\n";
    for (size_t n = 1; n < sizeof text; n++)
        for (size_t limit = 0; limit <= 64; limit += 64) {
            struct kvc_redis_reply r[8];
            struct placed p = {.limit = limit};
            assert_int_equal(receive(text, sizeof text - 1, n, &p, r, 8), 8);
            assert_int_equal(r[0].tree->type, REDIS_REPLY_STATUS);
            assert_int_equal(r[1].tree->integer, 12);
            assert_int_equal(r[3].tree->type, REDIS_REPLY_NIL);
            assert_int_equal(r[4].tree->element[1]->element[0]->len, 2);
            assert_string_equal(r[6].tree->str, "ERR no");
            if (limit) {
                assert_null(r[2].tree);
                assert_int_equal(r[2].placed, 5);
                assert_int_equal(r[5].placed, 0);
                assert_memory_equal(p.bytes, "\n\n\n\n\n\n", 6);
            } else assert_memory_equal(r[2].tree->str, "a\r\nbc", 5);
            for (size_t i = 0; i < 8; i++)
                if (r[i].tree) freeReplyObject(r[i].tree);
        }
}

static void replies_that_are_none(void **unused) {
    (void)unused;
    static const char *const bad[] = {"HTTP/1.1 200\r\n",
                                      "$3\r\nabcdef\r\n",
                                      "$99999999999999999999999999\r\n",
                                      "*524289\r\n",
                                      "*2147483647\r\n",
                                      "$x\r\n\r\n",
                                      "\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvc_redis_reply r[4];
        struct placed p = {.limit = 4};
        assert_int_equal(receive(bad[i], strlen(bad[i]), 64, &p, r, 4), -1);
    }
}

/* A line may be long, and has an end. */
static void long_lines(void **unused) {
    (void)unused;
    enum { SIZE = 1 << 20 };
    struct kvc_redis_reply r;
    struct placed p = {.limit = 0};
    char *text = malloc(SIZE);
    assert_non_null(text);
    memset(text, 'a', SIZE);
    for (const char *first = "+-:"; *first; first++) {
        text[0] = *first;
        assert_int_equal(receive(text, SIZE, 4096, &p, &r, 1), -1);
    }
    /* within an array, too, and after lines that are good */
    memcpy(text, "*3\r\n+a\r\n+", 10);
    assert_int_equal(receive(text, SIZE, 4096, &p, &r, 1), -1);
    memset(text, 'a', SIZE);
    text[0] = '+';
    memcpy(text + 60000, "\r\n", 2);
    assert_int_equal(receive(text, 60002, 4096, &p, &r, 1), 1);
    assert_int_equal(r.tree->len, 59999);
    freeReplyObject(r.tree);
    free(text);
}

/* The limits are those of a whole reply, however it is nested. */
static void large_trees(void **unused) {
    (void)unused;
    enum { SIZE = 21 << 20, STRINGS = 1000, STRING = 20 << 10, ARRAYS = 1 << 16 };
    struct kvc_redis_reply r[2];
    struct placed p = {.limit = 0};
    char *text = malloc(SIZE);
    assert_non_null(text);
    /* 16 elements in each array, which are parsed before the next one comes */
    for (size_t good = 0; good < 2; good++) {
        const size_t arrays = good ? ARRAYS / 4 : ARRAYS;
        size_t n = (size_t)sprintf(text, "*%zu\r\n", arrays);
        for (size_t i = 0; i < arrays; i++) {
            n += (size_t)sprintf(text + n, "*16\r\n");
            for (int k = 0; k < 16; k++) n += (size_t)sprintf(text + n, ":1\r\n");
        }
        assert_int_equal(receive(text, n, 4096, &p, r, 2), good ? 1 : -1);
        if (good) freeReplyObject(r[0].tree);
    }
    /* strings that are short enough each; two replies that are short enough each */
    for (size_t replies = 1; replies <= 2; replies++) {
        size_t n = 0;
        for (size_t i = 0; i < STRINGS; i++) {
            if (i % (STRINGS / replies) == 0)
                n += (size_t)sprintf(text + n, "*%zu\r\n", STRINGS / replies);
            n += (size_t)sprintf(text + n, "$%d\r\n", STRING);
            memset(text + n, 'a', STRING);
            n += STRING;
            n += (size_t)sprintf(text + n, "\r\n");
        }
        assert_int_equal(receive(text, n, 4096, &p, r, 2), replies == 2 ? 2 : -1);
        for (size_t k = 0; k < 2 && replies == 2; k++) freeReplyObject(r[k].tree);
    }
    free(text);
}

struct ranges {
    unsigned n, slots;
    char host[64];
};

static int range(void *state, unsigned first, unsigned last, const char *host, uint16_t port) {
    struct ranges *r = state;
    r->n++;
    r->slots += last - first + 1;
    snprintf(r->host, sizeof r->host, "%s:%u", host, (unsigned)port);
    return 0;
}

static void lists_of_slots(void **unused) {
    (void)unused;
    static const struct {
        const char *text;
        int status;
        unsigned n;
    } list[] = {{"*2\r\n*3\r\n:0\r\n:99\r\n*2\r\n$1\r\nh\r\n:7\r\n*3\r\n:100\r\n:100\r\n*2\r\n$-"
                 "1\r\n:8\r\n",
                 0, 2},
                {"*0\r\n", 0, 0},
                {":1\r\n", -1, 0},
                {"*1\r\n:1\r\n", -1, 0},
                {"*1\r\n*2\r\n:0\r\n:1\r\n", -1, 0},
                {"*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n$1\r\nh\r\n:7\r\n", -1, 0},
                {"*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nh\r\n:7\r\n", -1, 0},
                {"*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n$1\r\nh\r\n:7\r\n", -1, 0},
                {"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\nh\r\n:70000\r\n", -1, 0},
                {"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n:1\r\n:7\r\n", -1, 0},
                {"*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n$1\r\nh\r\n", -1, 0}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        struct kvc_redis_reply r;
        struct placed p = {.limit = 0};
        struct ranges found = {0};
        assert_int_equal(receive(list[i].text, strlen(list[i].text), 1000, &p, &r, 1), 1);
        assert_int_equal(kvc_redis_ranges(r.tree, range, &found), list[i].status);
        if (!list[i].status) assert_int_equal(found.n, list[i].n);
        if (i == 0) assert_int_equal(found.slots, 101);
        if (i == 0) assert_string_equal(found.host, ":8");
        freeReplyObject(r.tree);
    }
}

/* --- nodes --- */

static struct kvc_redis *open_tier(const char *text) {
    struct kvc_url url;
    struct kvc_error e;
    assert_int_equal(kvc_url_parse(&url, text, &e), 0);
    struct kvc_tier *tier = kvc_store_tier()->open(&url, &e);
    kvc_url_free(&url);
    if (!tier) fail_msg("%s", e.message);
    return (struct kvc_redis *)tier;
}

static void left_alone(void **unused) {
    (void)unused;
    struct kvc_redis *l = open_tier("redis://127.0.0.1:1,[::1]:2,h3");
    struct kvc_error e;
    assert_int_equal(l->n_nodes, 3);
    assert_string_equal(l->node[1]->name, "[::1]:2");
    assert_string_equal(l->node[2]->name, "h3:6379");
    struct kvc_redis_node *n = l->node[0];
    for (int i = 0; i < 2; i++) kvc_redis_node_failed(n, 1, "refused");
    assert_int_equal(kvc_redis_node_try(n, &e), 0);
    kvc_breaker_note(&n->breaker, 0, NULL);
    for (int64_t pause = 1000000, i = 0; i < 7; i++) {
        const kvc_instant before = kvc_now();
        kvc_redis_node_failed(n, i ? 1 : 3, "refused");
        const kvc_instant now = kvc_now();
        assert_true(n->breaker.until >= before + pause &&
                    n->breaker.until <= now + pause + pause / 4);
        assert_int_equal(kvc_redis_node_try(n, &e), -1);
        assert_int_equal(e.severity, KVC_SEVERITY_RETRY);
        assert_non_null(strstr(e.message, "after failures: refused"));
        n->breaker.until = now - 1; /* the pause is over: one may try, the others not yet */
        assert_int_equal(kvc_redis_node_try(n, &e), 0);
        assert_int_equal(kvc_redis_node_try(n, &e), -1);
        pause = pause < 15000000 ? 2 * pause : 30000000;
    }
    kvc_breaker_note(&n->breaker, 0, NULL);
    assert_int_equal(kvc_redis_node_try(n, &e), 0);
    l->tier.ops->close(&l->tier);
}

/* Messages repeat nothing that is secret. */
static void secrets(void **unused) {
    (void)unused;
    static const struct {
        const char *secret, *text, *left;
    } cases[] = {
        {"s3cret", "bad password AUTH s3cret", "bad password AUTH ******"},
        {"s3cret", "s3crets3cret, s3cre", "************, s3cre"},
        {"correct horse battery", "a correct horse battery b", "a ********************* b"},
        {"correct horse battery", "cut off: correct horse b", "cut off: ***************"},
        {"correct horse battery", "horse battery staple", "************* staple"},
        {"correct horse battery", "a horse, a battery", "a horse, a battery"},
        {"", "nothing", "nothing"},
        {NULL, "nothing", "nothing"},
    };
    char text[64], quoted[10];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, "%s", cases[i].text);
        kvc_tier_redact(text, cases[i].secret);
        assert_string_equal(text, cases[i].left);
    }
    setenv("KVC_REDIS_PASSWORD", "pa\xc3\xa4ss", 1);
    struct kvc_redis *l = open_tier("redis://h");
    unsetenv("KVC_REDIS_PASSWORD");
    kvc_redis_quote(l, quoted, sizeof quoted, "a\npa\xc3\xa4ss\033 and more");
    assert_string_equal(quoted, "a?******?");
    const int named = kvc_redis_node_add(l, "xpa\xc3\xa4ssy", 7);
    assert_string_equal(l->node[named]->name, "x******y:7");
    assert_string_equal(l->node[named]->host, "xpa\xc3\xa4ssy");
    l->tier.ops->close(&l->tier);
}

static void keys(void **unused) {
    (void)unused;
    struct kvc_redis *l = open_tier("redis://h?prefix=p:");
    struct kvc_object o = {.kind = KVC_OBJECT_PROFILE};
    struct kvc_redis_request q = {0};
    struct kvc_error e;
    char key[KVC_REDIS_KEY];
    memset(o.key, 0xab, sizeof o.key);
    kvc_redis_key(l, &o, key);
    assert_int_equal(strlen(key), 2 + 16 + 1 + 64 + 5);
    assert_int_equal(strncmp(key, "p:0000000000000000-abab", 23), 0);
    assert_int_equal(kvc_redis_ask(l, &q, "STRLEN", &o, NULL, NULL, &e), 0);
    assert_int_equal(q.slot, kvc_redis_slot(key));
    assert_int_equal(strncmp(q.text, "*2\r\n$6\r\nSTRLEN\r\n$88\r\np:", 23), 0);
    kvc_redis_request_free(&q);
    l->tier.ops->close(&l->tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots),
        cmocka_unit_test(redirections),
        cmocka_unit_test(replies_in_pieces),
        cmocka_unit_test(replies_that_are_none),
        cmocka_unit_test(lists_of_slots),
        cmocka_unit_test(long_lines),
        cmocka_unit_test(large_trees),
        cmocka_unit_test(left_alone),
        cmocka_unit_test(secrets),
        cmocka_unit_test(keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
