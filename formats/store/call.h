/* call.h: an open store, and calls of its tiers from its threads, with deadlines: what a program
 * waits for, and what goes on in the background. Not for what is asked (find.c, load.c, put.c). */
#ifndef KVC_STORE_CALL_H
#define KVC_STORE_CALL_H

#include "formats/api/kvc_store.h"
#include "formats/store/tier.h"

#include <pthread.h>
#include <stdatomic.h>

/* Threads that run tasks in the order in which they came. */
struct kvc_workers;
/* A task; part of the caller's struct, which must stay until run() is called. */
struct kvc_task {
    void (*run)(struct kvc_task *task);
    struct kvc_task *next;
};
struct kvc_workers *kvc_workers_new(unsigned threads, struct kvc_error *e);
void kvc_workers_add(struct kvc_workers *w, struct kvc_task *task);
/* Runs what waits, and ends the threads. NULL is legal. */
void kvc_workers_free(struct kvc_workers *w);

#define KVC_MAX_TIERS 8

/* Counters, by name in kvc_store_stats(). */
enum kvc_counter {
    KVC_COUNT_LOOKUPS,
    KVC_COUNT_ASKED, /* tokens */
    KVC_COUNT_FOUND, /* tokens */
    KVC_COUNT_FIND_US,
    KVC_COUNT_LATE,   /* calls that a deadline ended */
    KVC_COUNT_LOADED, /* tokens */
    KVC_COUNT_LOADED_BYTES,
    KVC_COUNT_LOAD_US,
    KVC_COUNT_SHORT, /* tokens that were found and not delivered */
    KVC_COUNT_GONE,  /* objects that were found, and then were not there */
    KVC_COUNT_BAD,   /* objects that were damaged, forged, or of other facts */
    KVC_COUNT_PUT,   /* objects that were stored */
    KVC_COUNT_PUT_BYTES,
    KVC_COUNT_SHARED,     /* objects that were there already */
    KVC_COUNT_REFUSED,    /* declined by a tier: it would evict them first */
    KVC_COUNT_DROPPED,    /* puts for which the queue had no room */
    KVC_COUNT_FAILED,     /* objects that could not be packed, or that a tier did not take */
    KVC_COUNT_BACKFILL,   /* objects that were copied to a faster tier */
    KVC_COUNT_LEARNT,     /* profiles */
    KVC_COUNT_NOT_LEARNT, /* or learnt, and refused by a cache */
    KVC_COUNT_REPACKED,   /* objects, with a learnt profile */
    KVC_COUNTERS
};

/* Of a tier. */
enum kvc_tier_counter {
    KVC_TIER_CALLS,
    KVC_TIER_FAILURES,
    KVC_TIER_REFUSED,
    KVC_TIER_HITS,
    KVC_TIER_COUNTERS
};

struct kvc_store_tier {
    struct kvc_tier *tier;
    const struct kvc_tier_ops *ops;
    char *url;
    void *handle; /* NULL: built in */
    struct kvc_breaker breaker;
    atomic_uint_fast64_t count[KVC_TIER_COUNTERS];
};

/* A key that was found to be bad, and for how long it counts as missing. */
struct kvc_bad_key {
    uint8_t key[KVC_OBJECT_KEY];
    kvc_instant until;
};
#define KVC_BAD_KEYS 256

struct kvc_store {
    struct kvc_store_tier tier[KVC_MAX_TIERS];
    unsigned n_tiers;
    struct kvc_store_options options; /* with defaults filled in */
    struct kvc_workers *io;           /* call the tiers */
    struct kvc_workers *copier;       /* one thread: a chunk is copied after the one before it */
    struct kvc_workers *jobs;         /* pack, find and load; they wait for io */
    struct kvc_workers *learner;      /* one thread; NULL: nothing has been learnt */
    uint8_t secret[32];               /* that signs objects */
    int is_signed;
    atomic_uint_fast64_t count[KVC_COUNTERS];

    pthread_mutex_t lock;            /* of all below */
    pthread_cond_t idle;             /* waiting becomes 0 */
    uint64_t waiting, waiting_bytes; /* puts and copies that are queued or under way */
    struct kvc_bad_key bad[KVC_BAD_KEYS];
    unsigned n_bad, next_bad;
    struct kvc_event *events, **last_event;
    int64_t number; /* of the next event */
    int event_fd;
    atomic_int closing;
};

static inline void kvc_count(struct kvc_store *s, enum kvc_counter c, uint64_t n) {
    atomic_fetch_add_explicit(&s->count[c], n, memory_order_relaxed);
}

/* Bytes of an object, which calls share. */
struct kvc_bytes {
    atomic_uint refs;
    void *data;
    size_t size;
};
/* Takes over memory of malloc(), which it frees if it fails. NULL: there is no memory. */
struct kvc_bytes *kvc_bytes_of(void *data, size_t size);
void kvc_bytes_release(void *bytes); /* NULL is legal */

/* What a tier is asked. All but the first five are noted in the background, where the tier wants to
 * know (tier.h). */
enum kvc_op {
    KVC_OP_FIND,  /* how many objects of a chain are there */
    KVC_OP_COUNT, /* the same, and an index is not believed */
    KVC_OP_EACH,  /* which objects are there */
    KVC_OP_LAST,  /* the last object that is there */
    KVC_OP_GET,
    KVC_OP_PUT,
    KVC_OP_DROP,
    KVC_OP_TOUCH,
    KVC_OP_MISSED,
    KVC_OP_PIN,
    KVC_OP_EXPECT,
    KVC_OP_QUARANTINE,
    KVC_OP_CONNECT
};

struct kvc_call {
    struct kvc_task task;
    struct kvc_store *store;
    struct kvc_workers *workers; /* the store's io, unless the caller sets others */
    unsigned tier;
    enum kvc_op op;
    kvc_instant deadline;
    atomic_uint refs;
    uint64_t queued; /* bytes that it counts in the queue */
    int in_queue;

    struct kvc_object *object; /* the call's own: it may outlive the caller */
    size_t n;
    int64_t value; /* the size, time or seconds of a note */
    /* of a put */
    struct kvc_bytes *bytes;
    struct kvc_tier_put how;
    struct kvc_object parent;
    int there; /* as in tier.h */
    /* of a search: how many, or the number of the last one plus 1; their sizes, 0: unknown */
    size_t found;
    uint64_t *size;
    uint8_t *is_there; /* under the lock, also before the call is done */
    int partial;       /* the tier failed after it had found some */

    pthread_mutex_t lock;   /* of what follows */
    pthread_cond_t changed; /* done, or an object has arrived */
    int done, status;
    struct kvc_error error;
    int stop;       /* nobody waits any more */
    size_t arrived; /* got[0] to got[arrived - 1] are filled */
    struct kvc_got {
        struct kvc_bytes *bytes; /* NULL: none came */
        struct kvc_error why;    /* what is wrong with the object; code 0: it is not there */
    } * got;
    struct kvc_call *next; /* the caller's */
};

/* Returns a call of one reference, which is queued; if the tier is left alone at present, it has
 * failed at once. NULL: there is no memory, or the tier has no such function. */
struct kvc_call *kvc_call_ask(struct kvc_store *s, unsigned tier, enum kvc_op op,
                              const struct kvc_object *o, size_t n, kvc_instant deadline);
/* Waits until it is done, and returns its status; -1 at the deadline, or if c is NULL. */
int kvc_call_wait(struct kvc_call *c, struct kvc_error *e);
/* Waits until object i of a get has arrived. Returns 0 if it does not come. */
int kvc_call_arrives(struct kvc_call *c, size_t i);
void kvc_call_release(struct kvc_call *c); /* NULL is legal */

/* --- in the background --- */

/* Notes something of n objects of a chain with a tier. A touch comes after the copies that were
 * begun before it. */
void kvc_store_notify(struct kvc_store *s, unsigned tier, enum kvc_op op,
                      const struct kvc_object *o, size_t n, int64_t value);
/* Has a tier connect, by a longer deadline than finding has: a connection that takes longer than
 * that would never come about. */
void kvc_store_connect(struct kvc_store *s, unsigned tier);
/* Notifies all tiers, and waits for them. */
int kvc_store_notify_all(struct kvc_store *s, enum kvc_op op, const struct kvc_object *o, size_t n,
                         int64_t value, struct kvc_error *e);
/* Copies an object to the tiers before `tier`. */
void kvc_store_backfill(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                        const struct kvc_object *parent, struct kvc_bytes *bytes);

/* What waits to be put or copied: adds to it, unless it would be more than the queue holds. 1:
 * there is no room. */
int kvc_queue_add(struct kvc_store *s, uint64_t bytes);
void kvc_queue_remove(struct kvc_store *s, uint64_t bytes);

/* --- single objects --- */

/* microseconds, of a whole read or write that nobody waits for in a hurry */
#define KVC_OBJECT_TIME 30000000
/* Reads an object from a tier, with its signature. NULL: *e says why, with code 0 if it is not
 * there. */
struct kvc_bytes *kvc_store_read_tier(struct kvc_store *s, unsigned tier,
                                      const struct kvc_object *o, kvc_instant deadline,
                                      struct kvc_error *e);
/* Writes signed bytes to a tier. Returns what became of them, as *there of tier.h; -1: it failed.
 */
int kvc_store_put_tier(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                       struct kvc_bytes *bytes, const struct kvc_tier_put *how,
                       kvc_instant deadline, struct kvc_error *e);
/* The same, and counts it. */
int kvc_store_put_counted(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                          struct kvc_bytes *bytes, const struct kvc_tier_put *how,
                          kvc_instant deadline, struct kvc_error *e);

/* Counts the objects of a chain that a tier has, from the first one on. -1 if it cannot be asked.
 */
int kvc_store_count(struct kvc_store *s, unsigned tier, const struct kvc_object *o, size_t n,
                    kvc_instant deadline, size_t *found, struct kvc_error *e);
/* Returns 1 if a tier has an object. */
int kvc_store_has(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                  kvc_instant deadline);

/* --- bad objects --- */

/* Takes what is wrong with an object: remembers a bad one as missing, and has its tier put it
 * aside. */
void kvc_store_mark_bad(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                        const struct kvc_error *why);
int kvc_store_is_bad(struct kvc_store *s, const uint8_t *key);
/* Notes that a sound object was written in place of a bad one. */
void kvc_store_clear_bad(struct kvc_store *s, const uint8_t *key);

#endif
