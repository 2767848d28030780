/* redis_get.c: reads objects: several at a time, each in slices, so that no value of many megabytes
 * keeps other clients of its server waiting, and hands them over in order. Spec: REDIS.md,
 * "Reading". */
#include "formats/store/redis/redis_state.h"

#include "codecs/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Objects that are begun, and bytes of memory for them: the object that is next in turn may exceed
 * these alone. */
enum {
    MAX_BEGUN = 32,
    FIRST_BEGUN = 4,
    FIRST_GUESS = 64 << 10,
    MEMORY = 64 << 20,
    FIRST_MEMORY = KVC_REDIS_SLICE
};

struct object {
    size_t i;      /* of the call */
    uint64_t size; /* as STRLEN says */
    int known;     /* the size is */
    int admitted;  /* all slices are asked for */
    int empty;     /* the size is 0, and so the whole is asked for */
    int gone;      /* it is not there, or not any more */
    int changed, failed;
    uint64_t got;      /* bytes, from the first one on */
    unsigned requests; /* under way */
    uint8_t *data;
    uint64_t room;
    uint64_t held;         /* bytes of memory that are set aside for it */
    struct kvc_error *why; /* NULL: nothing is wrong with it */
};

/* One command about an object. */
struct slice {
    struct kvc_redis_request q;
    struct object *o;
    struct get *g;
    uint64_t offset, size;
};

struct get {
    struct kvc_redis_run run;
    struct kvc_redis *l;
    const struct kvc_object *name;
    size_t n, begun, handed;
    struct object object[MAX_BEGUN]; /* object i is in place i % MAX_BEGUN */
    uint64_t memory;
    /* bytes of the first slice of an object whose size is not known: those of the last known one;
     * 0: none is */
    uint64_t guess;
    struct kvc_error e;
    int failed;
};

static struct object *object_of(struct get *g, size_t i) {
    return &g->object[i % MAX_BEGUN];
}

/* Notes what is wrong with an object alone. */
static void blame(struct object *o, const struct kvc_error *e) {
    if (!o->why && (o->why = malloc(sizeof *o->why)) != NULL) *o->why = *e;
    o->changed = 1;
}

static void fail(struct get *g, struct object *o, const struct kvc_error *e) {
    o->failed = 1;
    if (!g->failed) g->e = *e;
    g->failed = 1;
}

static void changed(struct get *g, struct object *o) {
    struct kvc_error e;
    char name[KVC_OBJECT_NAME];
    kvc_object_name(&g->name[o->i], name);
    kvc_fail(&e, KVC_ERR_DAMAGED, "redis: object %s changed while it was read", name);
    e.severity = KVC_SEVERITY_ITEM;
    blame(o, &e);
}

/* Sets memory aside for an object, or less than before. */
static void hold(struct get *g, struct object *o, uint64_t bytes) {
    g->memory += bytes - o->held;
    o->held = bytes;
}

/* Gives memory for a slice: it grows with what arrives, not with what the server promises. Slices
 * come in order, but for a key that moves to another server in between. */
static uint8_t *place(void *state, size_t n) {
    struct slice *s = state;
    struct object *o = s->o;
    if (n > s->size || s->offset > o->got) return NULL;
    const uint64_t end = s->offset + n;
    if (!o->data || end > o->room) {
        uint64_t room = o->room ? 2 * o->room : FIRST_MEMORY;
        if (o->known && room > o->size) room = o->size;
        if (room < end) room = end;
        uint8_t *data = kvc_realloc(o->data, room, 1);
        if (!data) return NULL;
        o->data = data;
        o->room = room;
    }
    return o->data + s->offset;
}

static void slice_done(struct kvc_redis_run *run, struct kvc_redis_request *q);
static void size_done(struct kvc_redis_run *run, struct kvc_redis_request *q);
static void whole_done(struct kvc_redis_run *run, struct kvc_redis_request *q);

/* Asks for a part of an object; size 0: for its length; by whole_done: for the whole, of up to
 * `size` bytes. */
static void redis_get_ask(struct get *g, struct object *o, uint64_t offset, uint64_t size,
                          kvc_redis_done *done) {
    struct kvc_error e;
    struct slice *s = calloc(1, sizeof *s);
    char first[24], last[24];
    int status = s ? 0 : kvc_fail_memory(&e, "a command");
    snprintf(first, sizeof first, "%" PRIu64, offset);
    snprintf(last, sizeof last, "%" PRIu64, offset + size - 1);
    if (!status && size && done != whole_done)
        status = kvc_redis_ask(g->l, &s->q, "GETRANGE", &g->name[o->i], first, last, &e);
    else if (!status)
        status = kvc_redis_ask(g->l, &s->q, size ? "GET" : "STRLEN", &g->name[o->i], NULL, NULL,
                               &e);
    if (status) {
        free(s);
        fail(g, o, &e);
        return;
    }
    s->o = o;
    s->g = g;
    s->offset = offset;
    s->size = size;
    s->q.done = done;
    s->q.place = size ? place : NULL;
    s->q.expected = o->known || !size ? size : g->guess ? g->guess : FIRST_GUESS;
    o->requests++;
    kvc_redis_run_add(&g->run, &s->q);
}

/* Ends a command. Returns its object if the reply has the type; NULL: the object failed. */
static struct object *ended(struct kvc_redis_run *run, struct kvc_redis_request *q, int is_right) {
    struct slice *s = (struct slice *)q;
    struct object *o = s->o;
    struct kvc_error e;
    o->requests--;
    if (q->state_of == KVC_REDIS_ANSWERED && is_right) return o;
    kvc_redis_explain(run, q, &e);
    if (q->state_of == KVC_REDIS_DENIED) blame(o, &e);
    else fail(s->g, o, &e);
    return NULL;
}

static void free_slice(struct kvc_redis_request *q) {
    kvc_redis_request_free(q);
    free(q);
}

static void slice_done(struct kvc_redis_run *run, struct kvc_redis_request *q) {
    const struct slice *s = (const struct slice *)q;
    struct object *o = ended(run, q, !q->reply || q->reply->type == REDIS_REPLY_STRING);
    if (o && q->reply) changed(s->g, o); /* place() did not take it */
    else if (o && s->offset == o->got) o->got += q->placed;
    free_slice(q);
}

/* An object of no bytes and one that is not there have one length. GET tells them apart, and may
 * find what has come meanwhile. */
static void whole_done(struct kvc_redis_run *run, struct kvc_redis_request *q) {
    struct object *o = ended(run, q, !q->reply || q->reply->type == REDIS_REPLY_NIL);
    if (o) {
        o->gone = q->reply != NULL;
        o->size = o->got = q->placed;
    }
    free_slice(q);
}

static void size_done(struct kvc_redis_run *run, struct kvc_redis_request *q) {
    struct get *g = ((struct slice *)q)->g;
    struct object *o = ended(run, q, kvc_redis_is_integer(q));
    const long long size = o ? q->reply->integer : 0;
    free_slice(q);
    if (!o) return;
    if (o->known) { /* the second time, after the last slice */
        if (size == 0) o->gone = 1;
        else if ((uint64_t)size != o->size) changed(g, o);
        return;
    }
    o->known = 1;
    if (size < 0 || (uint64_t)size > g->l->o.max_object) {
        struct kvc_error e;
        kvc_fail(&e, KVC_ERR_UNSUPPORTED,
                 "redis: an object of %lld bytes is larger than max-object=%" PRIu64, size,
                 g->l->o.max_object);
        blame(o, &e);
    } else if (size == 0) {
        o->empty = 1;
        hold(g, o, 0);
    } else {
        o->size = (uint64_t)size;
        g->guess = o->size < KVC_REDIS_SLICE ? o->size : KVC_REDIS_SLICE;
        if (o->size <= KVC_REDIS_SLICE) hold(g, o, o->size);
    }
}

/* Asks for all slices of the objects whose turn it is, as far as there is memory, and begins
 * further objects. */
static void go_on(struct get *g) {
    int waits = 0;
    for (size_t i = g->handed; i < g->begun; i++) {
        struct object *o = object_of(g, i);
        if (!o->known) waits = 1;
        /* place() may move the bytes of an object: another command must not write there meanwhile
         */
        if (o->empty && !o->admitted && !o->requests && !o->why && !o->failed) {
            o->admitted = 1;
            redis_get_ask(g, o, 0, KVC_REDIS_MAX_REPLY, whole_done);
        }
        if (!o->known || o->admitted || o->why || o->failed || o->size <= KVC_REDIS_SLICE) continue;
        const uint64_t rest = o->size - KVC_REDIS_SLICE;
        if (i != g->handed && (waits || g->memory + rest > MEMORY)) return;
        o->admitted = 1;
        hold(g, o, o->size);
        for (uint64_t at = KVC_REDIS_SLICE; at < o->size && !o->failed; at += KVC_REDIS_SLICE)
            redis_get_ask(g, o, at, o->size - at < KVC_REDIS_SLICE ? o->size - at : KVC_REDIS_SLICE,
                          slice_done);
        if (!o->failed) redis_get_ask(g, o, 0, 0, size_done);
    }
    while (g->begun < g->n && g->begun - g->handed < (g->guess ? MAX_BEGUN : FIRST_BEGUN) &&
           g->memory + KVC_REDIS_SLICE <= MEMORY && !g->failed) {
        struct object *o = object_of(g, g->begun);
        *o = (struct object){.i = g->begun++};
        hold(g, o, KVC_REDIS_SLICE);
        redis_get_ask(g, o, 0, 0, size_done);
        if (!o->failed) redis_get_ask(g, o, 0, KVC_REDIS_SLICE, slice_done);
    }
}

static int is_complete(const struct object *o) {
    const int asked = o->admitted || (!o->empty && o->size <= KVC_REDIS_SLICE);
    return !o->requests && ((o->known && asked) || o->why || o->failed);
}

/* Hands over what is complete. Returns 0, 1: no more are needed, -1: the next one failed. */
static int hand_over(struct get *g, kvc_tier_take *take, void *state) {
    while (g->handed < g->begun) {
        struct object *o = object_of(g, g->handed);
        if (!is_complete(o)) return 0;
        if (o->failed) return -1;
        const int there = !o->gone && (o->size || o->empty) && !o->changed;
        if (there && o->got != o->size) changed(g, o);
        void *data = NULL;
        if (there && !o->changed) {
            data = o->data ? o->data : malloc(1);
            o->data = NULL;
            if (!data) return kvc_fail_memory(&g->e, "an object");
        }
        hold(g, o, 0);
        g->handed++;
        const int stop = take(state, o->i, data, data ? o->size : 0,
                              data || o->gone ? NULL : o->why);
        free(o->data);
        free(o->why);
        *o = (struct object){0};
        if (stop) return 1;
    }
    return 0;
}

/* Ends the commands that are still under way, without their nodes being blamed. */
static void give_up(struct get *g) {
    for (size_t i = 0; i < g->run.n_connections; i++) {
        struct kvc_redis_connection *connection = g->run.connection[i];
        for (struct kvc_redis_request *q = connection->sent.first, *next; q; q = next) {
            next = q->next;
            free_slice(q);
        }
        for (struct kvc_redis_request *q = connection->unsent.first, *next; q; q = next) {
            next = q->next;
            free_slice(q);
        }
        connection->unsent.first = NULL;
    }
    for (struct kvc_redis_request *q = g->run.later.first, *next; q; q = next) {
        next = q->next;
        free_slice(q);
    }
    kvc_redis_run_end(&g->run);
    for (size_t i = g->handed; i < g->begun; i++) {
        free(object_of(g, i)->data);
        free(object_of(g, i)->why);
    }
}

int kvc_redis_get(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                  kvc_tier_take *take, void *state, struct kvc_error *e) {
    struct kvc_redis *l = (struct kvc_redis *)tier;
    struct get *g;
    int status = 0;
    if (!n) return 0;
    if (kvc_redis_discover(l, deadline, e)) return -1;
    if (!(g = calloc(1, sizeof *g))) return kvc_fail_memory(e, "objects");
    g->l = l;
    g->name = o;
    g->n = n;
    kvc_redis_run_init(&g->run, l, deadline);
    while (!status && g->handed < n) {
        go_on(g);
        status = hand_over(g, take, state);
        if (status || g->handed == n) break;
        kvc_redis_run_step(&g->run);
        status = hand_over(g, take, state);
    }
    if (status < 0) *e = g->e;
    give_up(g);
    free(g);
    return status < 0 ? -1 : 0;
}
