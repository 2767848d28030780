/* store.h: what the files of a store share: its tiers, counters and namespaces. Not for users
 * (kvc_store.h). */
#ifndef KVC_STORE_STATE_H
#define KVC_STORE_STATE_H

#include "formats/api/kvc_file.h"
#include "formats/api/kvc_store.h"
#include "formats/cache/prefix.h"
#include "formats/store/tier.h"
#include "formats/store/workers.h"

#include <pthread.h>
#include <stdatomic.h>

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
    KVC_COUNT_SHARED,   /* objects that were there already */
    KVC_COUNT_REFUSED,  /* declined by a tier: it would evict them first */
    KVC_COUNT_DROPPED,  /* puts for which the queue had no room */
    KVC_COUNT_FAILED,   /* objects that could not be packed, or that a tier did not take */
    KVC_COUNT_BACKFILL, /* objects that were copied to a faster tier */
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

/* Leaves a tier alone that has failed several times: for a second, then for longer and longer. */
struct kvc_breaker {
    pthread_mutex_t lock;
    unsigned failures;
    kvc_instant until; /* it is left alone until then */
    kvc_instant pause;
    char why[256]; /* it failed the last time */
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

struct kvc_store_namespace {
    struct kvc_store *store;
    uint8_t hash[KVC_KEY_BYTES]; /* of its facts */
    char name[2 * KVC_KEY_BYTES + 1];
    char *facts; /* the text of its object */
    char identity[KVC_IDENTITY_BYTES];
    uint64_t chunk;
    char *recipe; /* that chunks are packed with */
    int lossless;
    uint8_t tenant[KVC_KEY_BYTES];
    int has_tenant;
    int is_stored; /* the store has its facts; under the lock of profiles */
    pthread_mutex_t lock;
    struct kvc_profile *packs_with; /* NULL: none */
    struct kvc_profile *profile[8]; /* that chunks were packed with */
    unsigned n_profiles;
    atomic_int is_copied; /* its facts were copied to the faster tiers */
    atomic_uint refs;     /* of the user and of puts under way */
};

static inline void kvc_count(struct kvc_store *s, enum kvc_counter c, uint64_t n) {
    atomic_fetch_add_explicit(&s->count[c], n, memory_order_relaxed);
}

/* Checks everything that kvc_store_open() checks before it makes directories (chain.c). */
int kvc_store_check(const char *tiers, const struct kvc_store_options *options,
                    struct kvc_error *e);

/* --- calls of a tier (request.c) --- */

/* A call of a tier from a worker thread. Part of the struct of a request, of which clear() frees
 * the rest. */
struct kvc_request {
    struct kvc_task task;
    struct kvc_store *store;
    struct kvc_workers *workers; /* the store's io, unless the caller sets others */
    unsigned tier;
    kvc_instant deadline;
    int (*run)(struct kvc_request *r, struct kvc_tier *l, struct kvc_error *e);
    void (*clear)(struct kvc_request *r);
    atomic_uint refs;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* done, or whatever run() tells */
    int done, status;
    struct kvc_error error;
};
/* Sets up a request of one reference, the caller's. */
void kvc_request_init(struct kvc_request *r, struct kvc_store *s, unsigned tier,
                      kvc_instant deadline);
/* Queues it. If the tier is left alone at present, it is done at once, and has failed; then -1. */
int kvc_request_start(struct kvc_request *r);
/* Waits until it is done, and returns its status; -1 at the deadline. */
int kvc_request_wait(struct kvc_request *r, struct kvc_error *e);
void kvc_request_release(struct kvc_request *r);
/* Waits for a change until an instant; returns 0 when that is over. The lock is held. */
int kvc_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, kvc_instant until);
/* A condition whose waits end by CLOCK_MONOTONIC. */
void kvc_condition_init(pthread_cond_t *cond);

/* --- keys, namespaces and secrets (namespace.c, namespace_text.c, signature.c) --- */

/* Names object i of a chain: the chunk that ends at prefix key (i + 1) * chunk / 256. keys[j] is
 * H_(j+1). */
int kvc_chunk_object(const struct kvc_store_namespace *ns, const uint8_t *keys, size_t i,
                     struct kvc_object *o, struct kvc_error *e);
/* Names a cache that cannot be cut: by its last prefix key, number i, or by the start of the chain
 * (i = 0). */
int kvc_whole_object(const struct kvc_store_namespace *ns, const uint8_t *keys, size_t i,
                     struct kvc_object *o, struct kvc_error *e);
/* Names a cache by the name that the program chose. */
int kvc_named_object(const struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                     struct kvc_object *o, struct kvc_error *e);
/* Computes the prefix keys of tokens from position 0 on. The caller frees *keys. */
int kvc_namespace_keys(const struct kvc_store_namespace *ns, const int32_t *tokens, uint64_t n,
                       const struct kvc_store_extra *extras, size_t n_extras, uint8_t **keys,
                       struct kvc_error *e);
/* The same with the extras of a cache's metadata. */
int kvc_namespace_keys_of(const struct kvc_store_namespace *ns, const int32_t *tokens, uint64_t n,
                          const struct kvc_meta *meta, uint8_t **keys, struct kvc_error *e);
/* Writes extras into metadata. */
int kvc_namespace_extras(struct kvc_meta *meta, const struct kvc_store_extra *extras, size_t n,
                         struct kvc_error *e);
/* Reads a secret from a file that only its owner may read, and makes a key of it for a purpose. */
int kvc_store_secret(const char *path, const char *tag, uint8_t key[KVC_KEY_BYTES],
                     struct kvc_error *e);
void kvc_namespace_hold(struct kvc_store_namespace *ns);
/* Names the object of its facts. */
struct kvc_object kvc_namespace_object(const struct kvc_store_namespace *ns);
/* Stores what the namespace needs to be read by others: its facts and its profile. Does it once. */
int kvc_namespace_store(struct kvc_store_namespace *ns, struct kvc_error *e);
/* Puts the same to one tier once more, which may have evicted it, and so touches it. */
void kvc_namespace_keep(struct kvc_store_namespace *ns, unsigned tier);
/* Tells a tier that they were used: without them, nobody can name the namespace of the chunks that
 * were, or read these. */
void kvc_namespace_touch(struct kvc_store_namespace *ns, unsigned tier);
/* Copies the facts of a namespace to the tiers before `tier`, once: objects there would be of a
 * namespace that nobody can name. */
void kvc_namespace_copy_facts(struct kvc_store_namespace *ns, unsigned tier);
/* Returns the profile of a hash, from the store if it is not known yet. It stays the namespace's.
 */
struct kvc_profile *kvc_namespace_profile(struct kvc_store_namespace *ns, const uint8_t *sha256,
                                          struct kvc_error *e);

/* --- objects (chunk.c, signature.c) --- */

/* A chunk as it was read. */
struct kvc_chunk {
    struct kvc_store_namespace *ns; /* gets the profile that rows need */
    size_t i;                       /* in the chain */
    const int32_t *tokens;          /* of the whole prefix */
    const uint8_t *keys;
    /* not 0: a cache that cannot be cut, of at most so many tokens, of which the first 256 i have
     * keys */
    uint64_t whole;
    /* not NULL: a named cache, which needs none of the above but the namespace */
    const struct kvc_store_name *name;
};
/* Opens the bytes of a chunk, which must outlive the handle, and proves that they are this chunk:
 * signature, checksums of records (with `hashes`), namespace, parent, tokens and keys. An error
 * names the object. *size becomes that without the signature. */
struct kvc_file *kvc_chunk_open(const struct kvc_chunk *chunk, const void *data, size_t *size,
                                int hashes, struct kvc_error *e);
/* Puts the name of an object before what is wrong with its bytes. */
void kvc_chunk_blame(const struct kvc_object *o, struct kvc_error *e);
/* Signs an object: appends what kvc_chunk_open() takes off. *data is reallocated. */
int kvc_chunk_sign(const struct kvc_store *s, const struct kvc_object *o, void **data, size_t *size,
                   struct kvc_error *e);
/* Checks and takes off the signature of any object. */
int kvc_chunk_signature(const struct kvc_store *s, const struct kvc_object *o, const void *data,
                        size_t *size, struct kvc_error *e);

/* --- single objects (object_io.c) --- */

/* Reads an object from the first tier that has it. NULL with *e. The caller frees it. */
void *kvc_store_read_object(struct kvc_store *s, const struct kvc_object *o, size_t *size,
                            struct kvc_error *e);
/* The same of one tier, with its signature. */
void *kvc_store_read_tier(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                          kvc_instant deadline, size_t *size, struct kvc_error *e);
/* microseconds, of a whole read or write that nobody waits for in a hurry */
#define KVC_OBJECT_TIME 30000000
/* Writes an object to every tier that lacks it. -1 if no tier took it. */
int kvc_store_write_object(struct kvc_store *s, const struct kvc_object *o, const void *data,
                           size_t size, struct kvc_error *e);
/* Writes signed bytes to one tier; *there as in tier.h. */
int kvc_store_put_tier(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                       const void *data, size_t size, const struct kvc_tier_put *how,
                       kvc_instant deadline, int *there, struct kvc_error *e);

/* Refuses a cache that cannot be put into a namespace, and tells into how many chunks it is cut;
 * *whole is its tokens if it cannot be cut, else 0 (put.c). The namespace's store need not be open.
 */
int kvc_put_check(const struct kvc_store_namespace *ns, const struct kvc_file *f, size_t *chunks,
                  uint64_t *whole, struct kvc_error *e);
/* Packs the first chunk, or a cache that cannot be cut, and keeps nothing: a recipe may refuse it.
 */
int kvc_put_try(struct kvc_store_namespace *ns, struct kvc_file *f, uint64_t whole,
                struct kvc_error *e);

/* --- hits (find.c, fetch.c) --- */

struct kvc_store_hit {
    struct kvc_store_namespace *ns;
    int32_t *tokens;
    uint64_t asked; /* tokens in whole chunks, which `tokens` holds */
    uint8_t *keys;
    size_t chunks; /* found */
    struct kvc_object *object;
    uint64_t *bytes;
    uint8_t *tier; /* of each chunk */
    int64_t took;
    int late;
    char tiers[256];
};
/* Writes which tiers its chunks come from. */
void kvc_hit_list_tiers(struct kvc_store_hit *hit);
/* Reads chunks [first, end) of a hit one after the other, proves them, and gives each to `use`,
 * which owns data then. Returns how many were used. *e is filled if a chunk was bad or a tier
 * failed. */
typedef int kvc_use_chunk(void *state, size_t i, struct kvc_file *f, void *data, size_t size,
                          struct kvc_error *e);
size_t kvc_fetch(struct kvc_store_hit *hit, size_t first, size_t end, kvc_instant deadline,
                 int hashes, kvc_use_chunk *use, void *state, struct kvc_error *e);
/* Counts the objects of a chain that a tier has, from the first one on. -1 if it cannot be asked.
 */
int kvc_store_count(struct kvc_store *s, unsigned tier, const struct kvc_object *o, size_t n,
                    kvc_instant deadline, size_t *found, struct kvc_error *e);

/* --- in the background (background.c) --- */

enum kvc_background {
    KVC_TOUCH,
    KVC_MISSED,
    KVC_QUARANTINE,
    KVC_PIN,
    KVC_EXPECT,
    KVC_CONNECT,
    KVC_DROP,
    KVC_COPY
};
/* Tells a tier something of n objects of a chain, where it wants to know (tier.h); `value` is the
 * size, time or seconds of what is told. A touch comes after the copies that were begun before it.
 */
void kvc_store_notify(struct kvc_store *s, unsigned tier, enum kvc_background what,
                      const struct kvc_object *o, size_t n, int64_t value);
/* Has a tier connect, by a longer deadline than finding has: a connection that takes longer than
 * that would never come about. */
void kvc_store_connect(struct kvc_store *s, unsigned tier);
/* Tells all tiers, and waits for them. */
int kvc_store_notify_all(struct kvc_store *s, enum kvc_background what, const struct kvc_object *o,
                         size_t n, int64_t value, struct kvc_error *e);
/* Copies an object to the tiers before `tier`; frees data. */
void kvc_store_backfill(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                        const struct kvc_object *parent, void *data, size_t size);
/* Takes what is wrong with an object: remembers a bad one as missing, and has its tier put it
 * aside. */
void kvc_store_mark_bad(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                        const struct kvc_error *why);
int kvc_store_is_bad(struct kvc_store *s, const uint8_t *key);
/* Notes that a sound object was written in place of a bad one. */
void kvc_store_clear_bad(struct kvc_store *s, const uint8_t *key);

/* --- what waits (queue.c, events.c) --- */

/* Adds to what waits, unless it would be more than the queue holds. 1: there is no room. */
int kvc_queue_add(struct kvc_store *s, uint64_t bytes);
void kvc_queue_remove(struct kvc_store *s, uint64_t bytes);

/* A request in the background, and later its event. */
struct kvc_event {
    struct kvc_task task;
    struct kvc_store_namespace *ns;
    int32_t *tokens;
    uint64_t n, end;
    struct kvc_memory memory;
    struct kvc_store_load_options options;
    int64_t number;
    int code;
    struct kvc_event *next;
};
void kvc_event_free(struct kvc_event *x);

#endif
