/* redis_reply.c: replies of RESP2. hiredis parses all but values of objects, which would be copied
 * twice and could claim any size. */
#include "formats/store/redis/redis_state.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM = 64 << 10, MAX_HEADER = 32 };

/* hiredis 1.0 widened the number of elements. */
#if HIREDIS_MAJOR < 1
typedef int elements;
#else
typedef size_t elements;
#endif

/* Makes an array of hiredis' own, whose memory follows from the number alone that the server
 * claims. */
static void *few_elements(const redisReadTask *task, elements n) {
    struct kvc_redis_reader *reader = task->privdata;
    if ((size_t)n > KVC_REDIS_MAX_ELEMENTS - reader->elements) return NULL;
    reader->elements += (size_t)n;
    redisReply *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->type = REDIS_REPLY_ARRAY;
    r->elements = (size_t)n;
    r->element = calloc(r->elements ? r->elements : 1, sizeof *r->element);
    if (!r->element) {
        free(r);
        return NULL;
    }
    if (task->parent) ((redisReply *)task->parent->obj)->element[task->idx] = r;
    return r;
}

int kvc_redis_reader_init(struct kvc_redis_reader *r, struct kvc_error *e) {
    *r = (struct kvc_redis_reader){.reader = redisReaderCreate(), .bytes = malloc(ROOM)};
    if (!r->reader || !r->bytes) {
        kvc_redis_reader_free(r);
        return kvc_fail_memory(e, "a connection");
    }
    r->functions = *r->reader->fn;
    r->functions.createArray = few_elements;
    r->reader->fn = &r->functions;
    r->reader->privdata = r;
    return 0;
}

void kvc_redis_reader_free(struct kvc_redis_reader *r) {
    if (r->reader) redisReaderFree(r->reader);
    free(r->bytes);
    *r = (struct kvc_redis_reader){0};
}

uint8_t *kvc_redis_reader_room(struct kvc_redis_reader *r, size_t *n) {
    if (r->left > 2) {
        *n = r->left - 2;
        return r->to;
    }
    if (r->begin) memmove(r->bytes, r->bytes + r->begin, r->end - r->begin);
    r->end -= r->begin;
    r->begin = 0;
    *n = ROOM - r->end;
    return r->bytes + r->end;
}

void kvc_redis_reader_received(struct kvc_redis_reader *r, size_t n) {
    if (r->left > 2) {
        r->to += n;
        r->left -= n;
    } else r->end += n;
}

static int not_a_reply(struct kvc_error *e, const char *what) {
    return kvc_fail(e, KVC_ERR_IO, "it does not speak Redis' protocol (%s)", what);
}

/* Reads "$N\r\n". Returns the length of the header, 0: it is not there yet, -1: this is no header
 * of a value. */
static int value_header(const uint8_t *p, size_t n, size_t *size) {
    *size = 0;
    for (size_t i = 1; i < n && i < MAX_HEADER; i++) {
        if (p[i] == '\r') {
            if (i + 1 == n) return 0;
            return i > 1 && p[i + 1] == '\n' ? (int)(i + 2) : -1;
        }
        if (p[i] < '0' || p[i] > '9' || *size > SIZE_MAX / 16) return -1;
        *size = *size * 10 + (size_t)(p[i] - '0');
    }
    return n < MAX_HEADER ? 0 : -1;
}

/* Moves what is there of a value, and of the line's end after it. Returns 1 at its end. */
static int value_bytes(struct kvc_redis_reader *r, struct kvc_redis_reply *reply,
                       struct kvc_error *e) {
    size_t n = r->end - r->begin;
    if (r->left > 2) {
        if (n > r->left - 2) n = r->left - 2;
        memcpy(r->to, r->bytes + r->begin, n);
        r->to += n;
        r->left -= n;
        r->begin += n;
        n = r->end - r->begin;
    }
    if (r->left > 2 || n < 2) return 0;
    if (memcmp(r->bytes + r->begin, "\r\n", 2) != 0)
        return not_a_reply(e, "a value is longer than its length");
    r->begin += 2;
    r->left = 0;
    *reply = (struct kvc_redis_reply){.placed = r->size};
    return 1;
}

/* Gives the reader bytes up to the next line's end. A reply ends with one, so that none of its
 * successor is inside the reader. */
static int line(struct kvc_redis_reader *r, struct kvc_redis_reply *reply, struct kvc_error *e) {
    const uint8_t *p = r->bytes + r->begin, *end = memchr(p, '\n', r->end - r->begin);
    const size_t n = end ? (size_t)(end + 1 - p) : r->end - r->begin;
    void *tree = NULL;
    if (!r->inside) r->tree = r->elements = 0;
    r->begin += n;
    r->inside = 1;
    r->line += n;
    r->tree += n;
    /* each feed parses it from its beginning */
    if (r->line > KVC_REDIS_MAX_LINE) return not_a_reply(e, "a line is too long");
    if (end) r->line = 0;
    if (r->tree > KVC_REDIS_MAX_REPLY) return not_a_reply(e, "a reply is too long");
    if (redisReaderFeed(r->reader, (const char *)p, n) != REDIS_OK ||
        redisReaderGetReply(r->reader, &tree) != REDIS_OK)
        return not_a_reply(e, r->reader->err == REDIS_ERR_OOM ? "a reply is too long"
                                                              : "damaged reply");
    if (!tree) return 0;
    r->inside = 0;
    *reply = (struct kvc_redis_reply){.tree = tree};
    return 1;
}

int kvc_redis_reader_next(struct kvc_redis_reader *r, kvc_redis_place *place, void *state,
                          struct kvc_redis_reply *reply, struct kvc_error *e) {
    for (int status; r->left || r->begin < r->end;) {
        if (r->left) return value_bytes(r, reply, e);
        if (!r->inside && place && r->bytes[r->begin] == '$') {
            const int header = value_header(r->bytes + r->begin, r->end - r->begin, &r->size);
            if (header == 0) return 0;
            if (header > 0) {
                r->to = place(state, r->size);
                if (r->to) {
                    r->begin += (size_t)header;
                    r->left = r->size + 2;
                    continue;
                }
            }
        }
        if ((status = line(r, reply, e)) != 0) return status;
    }
    return 0;
}

int kvc_redis_reader_is_idle(const struct kvc_redis_reader *r) {
    return !r->inside && !r->left && r->begin == r->end;
}
