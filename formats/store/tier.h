/* tier.h: what keeps the objects of a store: a directory, Redis, S3. Each backend is a row of
 * functions. The store (store.h) calls them from its worker threads, several at once, and from the
 * program's threads only to look after a store (walks, facts, drops). Not for what objects hold: a
 * tier moves bytes. */
#ifndef KVC_TIER_H
#define KVC_TIER_H

#include "formats/api/kvc_store.h"
#include "formats/store/object.h"
#include "formats/store/url.h"

#include <pthread.h>

/* Backends in shared objects tell by it for which version of this header they were built. */
#define KVC_TIER_ABI 5

/* Times are microseconds of CLOCK_MONOTONIC. A call should return at its deadline with what it has;
 * INT64_MAX: there is none. */
typedef int64_t kvc_instant;

/* Opaque; a backend's own struct begins with it. */
struct kvc_tier {
    const struct kvc_tier_ops *ops;
};

/* Takes object i of a get, whose bytes become the callee's to free(). NULL: the tier does not have
 * it, and then `why` may say what went wrong with it (NULL: nothing, it is not there). Returns 0,
 * or another number if no further objects are needed. Calls come one at a time, in the order of the
 * objects. */
typedef int kvc_tier_take(void *state, size_t i, void *data, size_t size,
                          const struct kvc_error *why);
/* Takes object i of `each`, which is there. Calls come one at a time, in any order. */
typedef void kvc_tier_there(void *state, size_t i);
/* Gets an object that a walk meets; `used` is when it was last read or written, seconds since 1970
 * (0: unknown). Returns 0, or another number to stop. */
typedef int kvc_tier_seen(void *state, const struct kvc_object *o, uint64_t size, int64_t used);

struct kvc_tier_put {
    const struct kvc_object *parent; /* the chunk before it; NULL: it is the first, or no chunk */
    int64_t seconds;                 /* to live; 0: as the tier is configured */
    int pin;                         /* is not evicted */
    int replace;                     /* take the place of an object that is there */
    double cost;                     /* to compute it anew, relative to others of its size; 0: 1 */
};

/* What became of a put. */
enum { KVC_PUT_STORED, KVC_PUT_SHARED /* it was there */, KVC_PUT_REFUSED };

/* Functions return 0, or -1 with *e. KVC_SEVERITY_RETRY says that the tier cannot be reached or
 * used at present (network, full or read-only disk, deadline): the store leaves it alone for a
 * while. Any other severity is about these objects only. */
struct kvc_tier_ops {
    unsigned abi; /* KVC_TIER_ABI */
    const char *scheme;
    const char *what; /* "directory" */
    /* across a network: deadlines are longer, and found objects are copied to faster tiers */
    int remote;
    /* chains are put from their last chunk on: it evicts what was put or used longest ago, chains
     * or not */
    int last_first;

    /* Checks the text. Connects to nobody and makes nothing: the first call does, or `make`. */
    struct kvc_tier *(*open)(struct kvc_url *url, struct kvc_error *e);
    void (*close)(struct kvc_tier *l);

    /* Finds how many of n chained objects are there, from the first one on without a gap, and their
     * sizes (0: unknown). At the deadline: as many as are known to be there, and -1. */
    int (*find)(struct kvc_tier *l, const struct kvc_object *o, size_t n, kvc_instant deadline,
                size_t *found, uint64_t *size, struct kvc_error *e);
    /* Reads n objects, several at a time where this is faster, and hands them over in order. -1:
     * what was not handed over could not be read. */
    int (*get)(struct kvc_tier *l, const struct kvc_object *o, size_t n, kvc_instant deadline,
               kvc_tier_take *take, void *state, struct kvc_error *e);
    /* Writes an object: whole, or not at all. Sets *there to KVC_PUT_STORED, to KVC_PUT_SHARED if
     * it was there already, to KVC_PUT_REFUSED if the tier declines it: the policy would evict it
     * first. */
    int (*put)(struct kvc_tier *l, const struct kvc_object *o, const void *data, size_t size,
               const struct kvc_tier_put *how, kvc_instant deadline, int *there,
               struct kvc_error *e);
    /* Removes objects; those that are not there are no error. */
    int (*drop)(struct kvc_tier *l, const struct kvc_object *o, size_t n, kvc_instant deadline,
                struct kvc_error *e);
    /* Lists all objects, or those of one namespace (its first bytes). */
    int (*walk)(struct kvc_tier *l, const uint8_t *ns, kvc_tier_seen *seen, void *state,
                struct kvc_error *e);
    /* Fills the fields from `objects` on, with what it knows without listing its objects. */
    int (*facts)(struct kvc_tier *l, struct kvc_store_tier_info *facts, kvc_instant deadline,
                 struct kvc_error *e);

    /* These may be NULL: the tier has nothing of the kind. */
    /* Opens what objects are kept in, and makes it where it does not exist: called before any other
     * function but `close` and `folder`. */
    int (*make)(struct kvc_tier *l, struct kvc_error *e);
    /* Returns the path of a directory, and whether it is there. */
    const char *(*folder)(const struct kvc_tier *l, int *exists);
    /* As `find`, for who is about to put: an index is not believed. NULL: find has none. */
    int (*count)(struct kvc_tier *l, const struct kvc_object *o, size_t n, kvc_instant deadline,
                 size_t *found, uint64_t *size, struct kvc_error *e);
    /* Finds which of n objects are there, each for itself, many in a round trip; hands them over as
     * soon as they are known. NULL: `find` does it, again after each object that is not there. */
    int (*each)(struct kvc_tier *l, const struct kvc_object *o, size_t n, kvc_instant deadline,
                kvc_tier_there *there, void *state, struct kvc_error *e);
    /* Puts a damaged or forged object aside, or removes it. */
    int (*quarantine)(struct kvc_tier *l, const struct kvc_object *o, struct kvc_error *e);
    /* Notes that the n objects of a chain were read: the first ones are to stay longest. */
    int (*touch)(struct kvc_tier *l, const struct kvc_object *o, size_t n, struct kvc_error *e);
    /* Notes that n objects of a chain, of about `size` bytes each, were asked for and are not going
     * to be put now. */
    int (*missed)(struct kvc_tier *l, const struct kvc_object *o, size_t n, uint64_t size,
                  struct kvc_error *e);
    /* Keeps objects until a time in seconds since 1970; 0: no longer. */
    int (*pin)(struct kvc_tier *l, const struct kvc_object *o, size_t n, int64_t until,
               struct kvc_error *e);
    /* Notes that a chain will be asked for within so many seconds; 0: never again. */
    int (*expect)(struct kvc_tier *l, const struct kvc_object *o, size_t n, int64_t seconds,
                  struct kvc_error *e);
    /* As kvc_store_object(), kvc_store_clean(), kvc_store_configure() and kvc_store_examine(). */
    int (*record)(struct kvc_tier *l, const struct kvc_object *o,
                  struct kvc_store_object_info *info, struct kvc_error *e);
    int (*clean)(struct kvc_tier *l, const struct kvc_store_clean_options *options,
                 struct kvc_store_cleaned *cleaned, struct kvc_error *e);
    int (*configure)(struct kvc_tier *l, const char *const *set, char *text, size_t size,
                     struct kvc_error *e);
    void (*examine)(struct kvc_tier *l, kvc_store_finding_fn *fn, void *state);
};

/* --- for backends and the store --- */

kvc_instant kvc_now(void);
/* Returns the instant after so many microseconds; the last one there is where it would be later. */
kvc_instant kvc_after(int64_t microseconds);
/* Waits for a change until an instant; returns 0 when that is over. The lock is held; the condition
 * is one of kvc_condition_init(), whose waits end by CLOCK_MONOTONIC. */
int kvc_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, kvc_instant until);
void kvc_condition_init(pthread_cond_t *cond);

/* A circuit breaker: leaves a server alone that has failed 3 times in a row, for 1 s, then for
 * twice as long each time, up to 30 s and a quarter more. */
#define KVC_BREAKER_FAILURES 3
#define KVC_BREAKER_TEXT 256
struct kvc_breaker {
    pthread_mutex_t lock;
    unsigned failures;          /* without a success since */
    kvc_instant until;          /* it is left alone until then */
    kvc_instant pause;          /* of the last time */
    char why[KVC_BREAKER_TEXT]; /* it failed the last time */
};
void kvc_breaker_init(struct kvc_breaker *b);
void kvc_breaker_free(struct kvc_breaker *b);
/* Returns the microseconds for which the server is to be left alone, and why; 0: it can be asked.
 * One call finds out whether it is back: the others go on leaving it alone meanwhile. */
int64_t kvc_breaker_is_open(struct kvc_breaker *b, char why[KVC_BREAKER_TEXT]);
/* Counts a success (0), or failures. */
void kvc_breaker_note(struct kvc_breaker *b, unsigned failures, const char *why);

/* Returns memory for the bytes of an object, which kvc_tier_free() or free() frees. The kernel
 * zeroes new memory page by page as it is written first, which takes longer than reading a file
 * into it: so large memory is of large pages, and up to 64 MiB of it that kvc_tier_free() was given
 * are kept for the next objects of the process, until a store is closed. */
void *kvc_tier_memory(size_t size);
void kvc_tier_free(void *data); /* of malloc(), and NULL, are legal */
void kvc_tier_free_kept(void);

/* Returns a number below n that differs from call to call and from process to process, so that many
 * of them do not come back at the same instant. */
uint64_t kvc_jitter(uint64_t n);

/* Writes '*' over a secret in a text that a server sent, as far as the text repeats it: 12 bytes of
 * the secret in a row, or all of a shorter one. `secret` NULL or "": there is none. */
void kvc_tier_redact(char *text, const char *secret);

/* A backend in a shared object exports this one function. */
#define KVC_TIER_ENTRY "kvc_store_tier"
typedef const struct kvc_tier_ops *kvc_tier_entry(void);

#endif
