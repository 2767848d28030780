/* redis_reply.h: turns what a server sends into replies. Values of objects go from the socket into
 * the caller's memory; all else is hiredis' tree. Not for sockets, nor for what replies mean.
 * REDIS.md, "Connections". */
#ifndef KVC_REDIS_REPLY_H
#define KVC_REDIS_REPLY_H

#include "codecs/error.h"

#include <hiredis/hiredis.h>
#include <stddef.h>
#include <stdint.h>

/* Limits of what a server may send: bytes of a reply that is no value of an object, and elements of
 * one array. */
#define KVC_REDIS_MAX_REPLY (16 << 20)
#define KVC_REDIS_MAX_LINE (64 << 10) /* bytes without an end of a line, in such a reply */
#define KVC_REDIS_MAX_ELEMENTS (1 << 17)

/* Returns memory for a value of n bytes. NULL: it becomes a tree as other replies do. */
typedef uint8_t *kvc_redis_place(void *state, size_t n);

struct kvc_redis_reply {
    redisReply *tree; /* NULL: a value was placed */
    size_t placed;    /* its bytes */
};

struct kvc_redis_reader {
    redisReader *reader;
    redisReplyObjectFunctions functions;
    uint8_t *bytes; /* received and not yet parsed: [begin, end) */
    size_t begin, end;
    int inside;  /* the reader has the first part of a reply */
    size_t line; /* bytes of a line that the reader has */
    uint8_t *to; /* the rest of a value comes here */
    size_t size; /* of the value */
    size_t left; /* of it, and of the two bytes after it; 0: no value is on its way */
};

int kvc_redis_reader_init(struct kvc_redis_reader *r, struct kvc_error *e);
void kvc_redis_reader_free(struct kvc_redis_reader *r);

/* Returns where to receive up to *n bytes; *n > 0. Call it when kvc_redis_reader_next() asked for
 * more. */
uint8_t *kvc_redis_reader_room(struct kvc_redis_reader *r, size_t *n);
void kvc_redis_reader_received(struct kvc_redis_reader *r, size_t n);

/* Returns 1 and the next reply, whose tree is the caller's; 0: more must be received first; -1:
 * this is no reply. A value may be placed if `place` is not NULL; the memory must stay until its
 * reply was returned. */
int kvc_redis_reader_next(struct kvc_redis_reader *r, kvc_redis_place *place, void *state,
                          struct kvc_redis_reply *reply, struct kvc_error *e);
/* 1: nothing was received beyond the replies that were returned. */
int kvc_redis_reader_is_idle(const struct kvc_redis_reader *r);

#endif
