/* redis_slots.h: slots of keys, and what servers say about slots: redirections, the list of slots,
 * kinds of errors. Not for connections. REDIS.md, "Slots" and "Failures". */
#ifndef KVC_REDIS_SLOTS_H
#define KVC_REDIS_SLOTS_H

#include <hiredis/hiredis.h>
#include <stddef.h>
#include <stdint.h>

#define KVC_REDIS_SLOTS 16384
#define KVC_REDIS_HOST 256

uint16_t kvc_redis_crc16(const char *text, size_t n);
/* Returns the slot of a key without braces. */
unsigned kvc_redis_slot(const char *key);

enum kvc_redis_verdict {
    KVC_REDIS_MOVED, /* another node has the slot */
    KVC_REDIS_ASK,   /* another node may have the key */
    KVC_REDIS_AGAIN, /* the same question has another answer soon */
    KVC_REDIS_STALE, /* the node is no master of the slot any more */
    /* the server cannot serve at present: no cluster, no memory, no permission */
    KVC_REDIS_UNUSABLE,
    KVC_REDIS_REFUSED /* this command failed */
};
/* Tells what an error's text means. */
enum kvc_redis_verdict kvc_redis_judge(const char *error);

struct kvc_redis_place_of { /* where a redirection points to */
    unsigned slot;
    char host[KVC_REDIS_HOST]; /* "": the host that sent it */
    uint16_t port;
};
/* Reads "MOVED 3999 127.0.0.1:6381" or the same with ASK. -1: it is damaged. */
int kvc_redis_redirection(const char *error, struct kvc_redis_place_of *to);

/* Gets each range of the reply to CLUSTER SLOTS, with its master. Returns 0, or another number to
 * stop. */
typedef int kvc_redis_range(void *state, unsigned first, unsigned last, const char *host,
                            uint16_t port);
/* -1: the reply is damaged, or `range` stopped. */
int kvc_redis_ranges(const redisReply *slots, kvc_redis_range *range, void *state);

#endif
