/* kvc_store.h: libkvc_store's public interface: prefixes of prompts, kept as chunks in a directory,
 * Redis or S3, and found again by their tokens. Used beside kvc.h, whose struct kvc_error and
 * struct kvc_file it takes; not needed by anything else of kvc.
 *
 *   struct kvc_store *s = kvc_store_open("dir:/var/cache/kvc", NULL, e);
 *   struct kvc_store_namespace *ns = kvc_store_namespace_like(s, f, &options, e);
 *   kvc_store_put(ns, f, NULL, e);                             // packs in the background
 *   struct kvc_store_hit *hit = kvc_store_find(ns, tokens, n, NULL, e);
 *   int64_t end = kvc_store_load(hit, &memory, NULL, e);       // into the program's memory
 *
 * Failures of a store make a prefix shorter, and are counted: finding and loading return errors
 * only for requests that make no sense. Rows that are delivered have been checked against the
 * tokens of the request, the facts of the namespace, and the checksums of the container. No call
 * exceeds its timeout. Handles may be used by several threads at once, but a hit only by one. After
 * fork() the child must not use them. Files, hits and namespaces of a store are closed before it.
 */
#ifndef KVC_STORE_H
#define KVC_STORE_H

#include "kvc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVC_STORE_API __attribute__((visibility("default")))

struct kvc_store;
struct kvc_store_namespace;
struct kvc_store_hit;

KVC_STORE_API const char *kvc_store_version(void); /* that of libkvc */

/* --- stores --- */

struct kvc_store_options {
    size_t size;              /* of this struct (kvc.h) */
    unsigned threads;         /* that read and write; 0: 4 */
    uint64_t queue_bytes;     /* of caches that wait to be put; more are dropped. 0: 1 GiB */
    int64_t local_timeout_us; /* of finding, while only directories are asked; 0: 20 ms */
    int64_t timeout_us;       /* of finding, once remote tiers are asked; 0: 50 ms */
    int64_t load_timeout_us;  /* of loading; 0: 10 s */
    /* of a secret that signs objects: those without its signature are refused; NULL: none */
    const char *key_file;
    /* folder of kvc_store_redis.so and kvc_store_s3.so; NULL: where kvc was installed */
    const char *backends;
    /* 1: all of the text is checked, and nothing is made or connected before kvc_store_make().
     * Until then only kvc_store_describe_tier() without a timeout, kvc_store_namespace_like(),
     * kvc_store_put_check() and kvc_store_close() may be called. */
    int unmade;
};
/* Opens a chain of tiers, the fastest first:
 * "dir:/var/cache/kvc,redis://h1,h2,s3://bucket/prefix". Directories that do not exist are made,
 * once all of the text is checked. kvc-store(1) lists the options of each tier. */
KVC_STORE_API struct kvc_store *
kvc_store_open(const char *tiers, const struct kvc_store_options *options, struct kvc_error *e);
/* Makes the directories of a store that was opened `unmade`, and connects it. */
KVC_STORE_API int kvc_store_make(struct kvc_store *s, struct kvc_error *e);
/* Ends what is under way, without writing what waits: kvc_store_flush() does. kvc_store_close(NULL)
 * is legal. */
KVC_STORE_API void kvc_store_close(struct kvc_store *s);

/* --- namespaces --- */

struct kvc_store_namespace_options {
    size_t size; /* of this struct */
    /* that chunks are packed with; NULL: split. Lossless recipes share a namespace, whatever they
     * are */
    const char *recipe;
    /* path of a profile that the recipe needs; the store keeps it. NULL: none. A lossy recipe that
     * a profile serves gets one that the store learns: caches are kept lossless until it has tokens
     * enough, and are packed by the recipe then (STORE.md, "Learning") */
    const char *profile;
    /* tokens of a chunk, a multiple of 256; 0: by the size of a token, 256 to 1024 */
    uint64_t chunk;
    /* of a secret that keeps a tenant's caches apart from those of others; NULL: none */
    const char *tenant_file;
    int no_learning; /* 1: without a profile, the recipe packs without one */
    /* path of the model's weights, with which a better profile is learnt; NULL: none */
    const char *model;
};
/* Opens the namespace of caches that can stand for f: the same model, tokenizer, adapters, layers,
 * dtypes, RoPE, rotation and windows, and the same fidelity (kvc.5, "Namespace"). f needs no tokens
 * and no rows. */
KVC_STORE_API struct kvc_store_namespace *
kvc_store_namespace_like(struct kvc_store *s, const struct kvc_file *f,
                         const struct kvc_store_namespace_options *options, struct kvc_error *e);
/* Opens a namespace that is in the store, by the first hex digits of its name, one at least. */
KVC_STORE_API struct kvc_store_namespace *
kvc_store_namespace_named(struct kvc_store *s, const char *name,
                          const struct kvc_store_namespace_options *options, struct kvc_error *e);
KVC_STORE_API void kvc_store_namespace_close(struct kvc_store_namespace *ns); /* NULL is legal */
/* Its name, 64 hex digits; its facts, a line each, as the store keeps them; the tokens of a chunk.
 */
KVC_STORE_API const char *kvc_store_namespace_name(const struct kvc_store_namespace *ns);
KVC_STORE_API const char *kvc_store_namespace_facts(const struct kvc_store_namespace *ns);
KVC_STORE_API uint64_t kvc_store_namespace_chunk(const struct kvc_store_namespace *ns);
/* Texts and the profile belong to the namespace. */
struct kvc_store_namespace_info {
    size_t size;          /* of this struct; set by the caller */
    int lossless;         /* its values are those of their sources */
    const char *fidelity; /* "lossless", or the recipe that its values went through */
    const char *recipe;   /* that chunks are packed with; NULL: split */
    const void
        *profile; /* that they are packed with, given or learnt: the bytes of its file; NULL */
    size_t profile_bytes;
};
KVC_STORE_API int kvc_store_namespace_describe(const struct kvc_store_namespace *ns,
                                               struct kvc_store_namespace_info *info);
/* Finds what the facts of two namespaces differ in, from *at on, which begins with 0. Writes
 * "dtype (bf16 here, f16 there)". Returns 0 when there is nothing more. */
KVC_STORE_API int kvc_store_namespace_differ(const struct kvc_store_namespace *here,
                                             const struct kvc_store_namespace *there, size_t *at,
                                             char *text, size_t size);
/* Names of namespaces: 64 hex digits and a NUL. */
typedef char kvc_store_namespace_text[65];
/* Lists the namespaces of a store in the order of their names, which the caller frees with free(),
 * also after -1: a tier could not be listed, and the names are those of the tiers before it. */
KVC_STORE_API int kvc_store_namespaces(struct kvc_store *s, kvc_store_namespace_text **names,
                                       size_t *n, struct kvc_error *e);

/* --- finding and loading --- */

struct kvc_store_find_options {
    size_t size;                           /* of this struct */
    int64_t timeout_us;                    /* 0: the store's */
    const struct kvc_prefix_extra *extras; /* ascending by position */
    size_t n_extras;
};
/* Finds the longest prefix of n tokens that the store has, in whole chunks. The tokens are copied.
 * NULL only if the request makes no sense or memory is short; a hit of 0 tokens is none. What was
 * found stays readable for the grace of the tier (30 s in a directory). */
KVC_STORE_API struct kvc_store_hit *kvc_store_find(struct kvc_store_namespace *ns,
                                                   const int32_t *tokens, uint64_t n,
                                                   const struct kvc_store_find_options *options,
                                                   struct kvc_error *e);
KVC_STORE_API void kvc_store_hit_free(struct kvc_store_hit *hit); /* NULL is legal */

struct kvc_store_hit_info {
    size_t size;     /* of this struct; set by the caller */
    uint64_t tokens; /* found */
    uint64_t chunks, bytes;
    uint64_t asked;    /* tokens in whole chunks that were looked for */
    int64_t took_us;   /* time of the search */
    int late;          /* the timeout ended the search */
    const char *tiers; /* "dir 1024, redis 512": tokens by tier */
};
KVC_STORE_API int kvc_store_hit_describe(const struct kvc_store_hit *hit,
                                         struct kvc_store_hit_info *info);
/* Room that is enough for the name of an object, which consists of hex digits, '-', '.' and a word.
 */
#define KVC_STORE_OBJECT_NAME 96
/* Names the first chunk that was looked for and not found. Returns 0 if all were found, or `size`
 * is too small. */
KVC_STORE_API int kvc_store_hit_next(const struct kvc_store_hit *hit, char *name, size_t size);

struct kvc_store_load_options {
    size_t size;         /* of this struct */
    uint64_t first, end; /* positions; end 0: to the last. Whole chunks that touch them are read */
    int64_t timeout_us;  /* 0: the store's */
    unsigned threads;    /* that decode; 0: one per core */
    int convert;         /* these two as in struct kvc_load_how */
    const char *pairing;
    /* Gets the bytes of chunks that were read, as they are stored. kvc_store_submit() and the
     * functions of names do not call it. If it cancels, the chunks from there on are not read, *e
     * says so, and kvc_store_get() returns NULL. NULL: none. */
    kvc_progress_fn *progress;
    void *progress_state;
};
/* Reads what was found, as one cache whose rows are decoded when they are read. NULL if nothing is
 * left of it. *e tells then, and is 0 for chunks that merely were gone. */
KVC_STORE_API struct kvc_file *kvc_store_get(struct kvc_store_hit *hit,
                                             const struct kvc_store_load_options *options,
                                             struct kvc_error *e);
/* Decodes what was found into memory (kvc.h), whose tokens are those from its first_position on.
 * Returns the position up to which everything from first_position on is there: first_position
 * itself if nothing is. What lies after it in memory is rubbish. -1 for a request that makes no
 * sense. */
KVC_STORE_API int64_t kvc_store_load(struct kvc_store_hit *hit, const struct kvc_memory *m,
                                     const struct kvc_store_load_options *options,
                                     struct kvc_error *e);
/* Gets the bytes of a checked chunk, a .kvc, for programs that decode by other means (kvc_cuda.h).
 * Returns 0, or another number to stop. They are the store's, until the call ends. */
typedef int kvc_store_chunk_fn(void *state, uint64_t first, uint64_t tokens, const void *data,
                               size_t size);
/* Reads the chunks of what was found, in order. Returns their tokens, or -1 as above. */
KVC_STORE_API int64_t kvc_store_chunks(struct kvc_store_hit *hit,
                                       const struct kvc_store_load_options *options,
                                       kvc_store_chunk_fn *take, void *state, struct kvc_error *e);

/* Finds and reads the longest cache that n tokens begin with, of those that cannot be cut into
 * chunks because layers keep a window or a state. It is one object; of several that share all whole
 * runs of 256 tokens the store keeps the last one. NULL if there is none. *e tells then what was
 * bad, or is 0. */
KVC_STORE_API struct kvc_file *kvc_store_get_whole(struct kvc_store_namespace *ns,
                                                   const int32_t *tokens, uint64_t n,
                                                   const struct kvc_store_find_options *options,
                                                   struct kvc_error *e);

/* --- putting --- */

struct kvc_store_put_options {
    size_t size;     /* of this struct */
    int wait;        /* return when it is stored, or was not */
    int64_t seconds; /* to live; 0: as the tiers say; more than 10^12 count as 10^12 */
    int pin;
    /* to compute it anew, relative to other prefixes of its size; 0: 1 */
    double cost;
    const struct kvc_prefix_extra *extras; /* as for kvc_store_find(); else those of f count */
    size_t n_extras;
    /* Is called once, from another thread, when f and what it reads from are not needed any more.
     * NULL: the call waits for that moment. */
    void (*done)(void *state, int stored);
    void *state;
    /* Gets the bytes of K and V that were packed, of those that the store lacks, while the call
     * waits; a call that does not wait tells nothing. If it cancels, the call fails, and the chunks
     * before are stored, but not in Redis, which gets the last one first. NULL: none. */
    kvc_progress_fn *progress;
    void *progress_state;
    /* Gets the bytes of the object of kvc_store_put_name(), as it is stored; 0 if no tier keeps
     * it, or if it was there and its tier does not tell. NULL: nobody asks. */
    uint64_t *stored_bytes;
};
/* Puts the whole chunks of a cache that begins at position 0 and has its token ids. Chunks that the
 * store has are not packed again. A cache with layers that keep a window or a state is put as it
 * is, for kvc_store_get_whole(). Returns 0; 1 if the queue is full and it was dropped (counted); -1
 * if f does not belong to the namespace or cannot be cut, if `progress` cancelled it, or if no tier
 * took the facts of the namespace, or a cache that is put as it is. If it waited and a tier failed
 * to take chunks, *e tells why after 0 too; kvc_store_find() tells what is there. */
KVC_STORE_API int kvc_store_put(struct kvc_store_namespace *ns, const struct kvc_file *f,
                                const struct kvc_store_put_options *options, struct kvc_error *e);
/* Refuses a cache that kvc_store_put() would refuse. *tokens gets how many it would store: 0 if
 * they are less than a chunk. With `try_recipe` a first object is packed too, and not kept: a
 * recipe may refuse the cache. */
KVC_STORE_API int kvc_store_put_check(struct kvc_store_namespace *ns, const struct kvc_file *f,
                                      int try_recipe, uint64_t *tokens, struct kvc_error *e);
/* Waits until everything that was put is stored, and a profile that is being learnt, with what is
 * packed by it. Returns 0, or -1 after `timeout_us` (0: waits
 * without a limit). */
KVC_STORE_API int kvc_store_flush(struct kvc_store *s, int64_t timeout_us);

/* --- caches by names --- */

/* A name that the program chose, for engines that hand out hashes instead of tokens (vLLM's tiers,
 * LMCache's adapters, HiCache). Whoever chooses names answers for it that caches of one name and
 * namespace are the same. Nothing finds them by tokens. */
#define KVC_STORE_MAX_NAME 256
/* Fixed. */
struct kvc_store_name {
    const void *bytes;
    size_t size; /* 1 to KVC_STORE_MAX_NAME */
};
/* Sets there[i] to 1 for each of n names that the store has a cache of, else to 0. What is not
 * known after the timeout counts as missing. Returns how many are there, or -1 for a request that
 * makes no sense. */
KVC_STORE_API int64_t kvc_store_find_names(struct kvc_store_namespace *ns,
                                           const struct kvc_store_name *names, size_t n,
                                           uint8_t *there,
                                           const struct kvc_store_find_options *options,
                                           struct kvc_error *e);
/* Puts a cache under a name, as one object; it needs no tokens, and may begin at any position.
 * Packs it in the calling thread, and returns when it is stored: 0 if a tier has it now, 1 if every
 * tier failed or declined it (counted; *e tells why; code 0: the eviction policy ranks it below
 * what is stored), -1 if f does not belong to the namespace. Of the options `seconds`, `pin`,
 * `cost` and `stored_bytes` count. */
KVC_STORE_API int kvc_store_put_name(struct kvc_store_namespace *ns,
                                     const struct kvc_store_name *name, const struct kvc_file *f,
                                     const struct kvc_store_put_options *options,
                                     struct kvc_error *e);
/* Reads the cache of a name; its rows are decoded when they are read. NULL if there is none. *e
 * tells then what was bad, or is 0. Of the options `timeout_us` counts. */
KVC_STORE_API struct kvc_file *kvc_store_get_name(struct kvc_store_namespace *ns,
                                                  const struct kvc_store_name *name,
                                                  const struct kvc_store_load_options *options,
                                                  struct kvc_error *e);
/* Decodes the cache of a name into memory, whose index 0 gets its first position. Returns 1, or 0
 * if there is none: memory is rubbish then, and *e as above. -1 for a request that makes no sense.
 * `first` and `end` of the options do not count. */
KVC_STORE_API int kvc_store_load_name(struct kvc_store_namespace *ns,
                                      const struct kvc_store_name *name, const struct kvc_memory *m,
                                      const struct kvc_store_load_options *options,
                                      struct kvc_error *e);
/* Removes the caches of n names. Returns 0, or -1 if a tier failed. */
KVC_STORE_API int kvc_store_drop_names(struct kvc_store_namespace *ns,
                                       const struct kvc_store_name *names, size_t n,
                                       struct kvc_error *e);

/* --- hints --- */

/* Keeps what was found for so many seconds; 0: for good. kvc_store_unpin() ends that. Both wait for
 * the tiers. */
KVC_STORE_API int kvc_store_pin(struct kvc_store_hit *hit, int64_t seconds, struct kvc_error *e);
KVC_STORE_API int kvc_store_unpin(struct kvc_store_hit *hit, struct kvc_error *e);
/* Keeps the prefix for so many seconds (an hour at most), in which a request for it is expected.
 * Does not wait. */
KVC_STORE_API void kvc_store_expect(struct kvc_store_hit *hit, int64_t seconds);
/* Makes the chunks of the prefix that no other prompt shares the first to be evicted. Does not
 * wait. */
KVC_STORE_API void kvc_store_evict_soon(struct kvc_store_hit *hit);

/* --- in an engine's loop --- */

/* Finds and loads in the background. `m`, its arrays and their memory must stay until the event
 * came; tokens are copied. Returns a number above 0, or -1. */
KVC_STORE_API int64_t kvc_store_submit(struct kvc_store_namespace *ns, const int32_t *tokens,
                                       uint64_t n, const struct kvc_memory *m,
                                       const struct kvc_store_load_options *options,
                                       struct kvc_error *e);
struct kvc_store_event {
    size_t size;        /* of this struct; set by the caller */
    int64_t number;     /* that kvc_store_submit() returned */
    uint64_t end;       /* position up to which memory is filled */
    enum kvc_code code; /* of a request that made no sense; 0 */
};
/* A descriptor that is readable while there are events. */
KVC_STORE_API int kvc_store_fd(const struct kvc_store *s);
/* Takes an event: 1, or 0 if there is none; -1 when event->size is not set. Never waits. */
KVC_STORE_API int kvc_store_poll(struct kvc_store *s, struct kvc_store_event *event);

/* --- looking after a store --- */

/* Removes all objects of a namespace, from all tiers. Returns how many, or -1. */
KVC_STORE_API int64_t kvc_store_drop(struct kvc_store_namespace *ns, struct kvc_error *e);

struct kvc_store_drop_options {
    size_t size;                           /* of this struct */
    const struct kvc_prefix_extra *extras; /* as for kvc_store_find() */
    size_t n_extras;
    /* Gets the bytes of other chunks that were read. If it cancels, nothing is removed, and the
     * call fails. NULL: none. */
    kvc_progress_fn *progress;
    void *progress_state;
};
struct kvc_store_dropped {
    size_t size; /* of this struct; set by the caller */
    /* chunks, each counted once, however many tiers had it; a cache that cannot be cut is one */
    uint64_t removed;
    uint64_t kept;  /* chunks that were left, as others go on after them */
    uint64_t bytes; /* of what was removed, in all tiers */
};
/* Removes the whole chunks of one prompt from all tiers, and a cache of its last key that cannot
 * be cut and has no other tokens. A chunk stays if the store has a chunk of another prompt that
 * goes on after it, and with it those before it; to know this, the other chunks of the namespace
 * are read. A prompt that ends within this one is not known as such: its chunks are removed. What
 * is put meanwhile may lose its beginning. Returns 0 with what was done in *dropped (NULL: nobody
 * asks), or -1 if a tier failed: then a part may be removed, the end of the prompt first. */
KVC_STORE_API int kvc_store_drop_tokens(struct kvc_store_namespace *ns, const int32_t *tokens,
                                        uint64_t n, const struct kvc_store_drop_options *options,
                                        struct kvc_store_dropped *dropped, struct kvc_error *e);
/* Counters: "json" or "prometheus" text into a caller's buffer. Returns the bytes that the text
 * takes with its NUL, which may be more than `size`; 0 for a form that this library does not know.
 */
KVC_STORE_API size_t kvc_store_stats(const struct kvc_store *s, const char *form, char *text,
                                     size_t size);
/* Returns a counter by its name in them; 0 if there is none. */
KVC_STORE_API uint64_t kvc_store_counter(const struct kvc_store *s, const char *name);
struct kvc_store_counter_info {
    size_t size; /* of this struct; set by the caller */
    const char *name;
    const char *what; /* in a line */
    uint64_t value;
};
/* Counter i of all tiers; -1 past the last, or when info->size is not set. */
KVC_STORE_API int kvc_store_counter_describe(const struct kvc_store *s, size_t i,
                                             struct kvc_store_counter_info *info);

/* --- tiers --- */

KVC_STORE_API unsigned kvc_store_tiers(const struct kvc_store *s); /* how many a store has */
/* Texts belong to the store. */
struct kvc_store_tier_info {
    size_t size;        /* of this struct; set by the caller */
    const char *url;    /* that the store was opened with */
    const char *scheme; /* "dir" */
    const char *what;   /* "directory" */
    const char *folder; /* of a directory; NULL: it is none */
    int exists;         /* 0: a directory that is to be made */
    /* What follows the tier is asked for. */
    /* of the store, without listing it; bytes that it may have; -1: unknown, or without a limit.
     * Another's keys in the same server or bucket do not count. */
    int64_t objects, bytes, limit;
    char text[256]; /* what it is, for people: "Redis 7.0.15, cluster of 3 masters" */
    /* 1: since its index was made, a directory has counted these: */
    int has_history;
    uint64_t puts, reads, evicted, evicted_bytes, refused;
    uint64_t trash_bytes; /* of evicted objects that can still be read */
    uint64_t remembered;  /* records of objects that were evicted or refused */
};
/* Describes a tier. With timeout_us 0 it is not asked; -1: it does not answer in time, and only the
 * first fields are filled. */
KVC_STORE_API int kvc_store_describe_tier(struct kvc_store *s, unsigned tier, int64_t timeout_us,
                                          struct kvc_store_tier_info *info, struct kvc_error *e);

/* Gets an object of a tier: its name, bytes, and when it was used last, seconds since 1970.
 * Returns 0, or another number to stop. */
typedef int kvc_store_walk_fn(void *state, unsigned tier, const char *name, uint64_t bytes,
                              int64_t used);
/* Lists the objects of all tiers, or of one; of a namespace, or all (NULL). */
KVC_STORE_API int kvc_store_walk(struct kvc_store *s, const struct kvc_store_namespace *ns,
                                 kvc_store_walk_fn *fn, void *state, struct kvc_error *e);
KVC_STORE_API int kvc_store_walk_tier(struct kvc_store *s, unsigned tier,
                                      const struct kvc_store_namespace *ns, kvc_store_walk_fn *fn,
                                      void *state, struct kvc_error *e);

enum kvc_store_object_state {
    KVC_STORE_STORED = 1,
    KVC_STORE_REMEMBERED = 2, /* it was evicted or refused */
    KVC_STORE_PUT_ASIDE = 3,  /* it was damaged */
    KVC_STORE_OBJECT_FORCE = 0x7fffffff
};
/* What a directory knows of an object. Times are seconds since 1970. */
struct kvc_store_object_info {
    size_t size; /* of this struct; set by the caller */
    enum kvc_store_object_state state;
    char path[128]; /* of its file in the directory, where it is stored or was put aside */
    int64_t aside;  /* when it was put aside: nothing else is known of it then */
    uint64_t bytes;
    unsigned uses; /* how often it was put or read; `many`: or more */
    int many;
    uint32_t depth, children; /* in its chain; stored chunks that go on after it */
    int64_t used;             /* when it was used last */
    int64_t pinned, expires;  /* until when; 0: not, never */
};
/* Tells what a tier knows of the object of a name. Returns 1, or 0 if nothing is known; -1 with
 * code 10 for what is no name, 32 if the tier keeps no records. */
KVC_STORE_API int kvc_store_object(struct kvc_store *s, unsigned tier, const char *name,
                                   struct kvc_store_object_info *info, struct kvc_error *e);

struct kvc_store_clean_options {
    size_t size;       /* of this struct */
    int evict;         /* 1: until objects take at most max_size; 0: as configured */
    uint64_t max_size; /* bytes */
    int64_t older;     /* evict what was not used for so many seconds; 0: as configured */
    int dry_run;
};
struct kvc_store_cleaned {
    size_t size;               /* of this struct; set by the caller */
    uint64_t objects, bytes;   /* that were there before anything was evicted */
    uint64_t adopted, missing; /* files that the index lacked, records whose file was gone */
    uint64_t evicted, evicted_bytes, expired, trash_bytes;
    uint64_t strangers; /* what is in the store's folders and is no object */
};
/* Brings the index and the files of a directory together, evicts what is too old or too much, and
 * empties the trash. -1 with code 32 for other tiers, which do so by themselves. `cleaned` may be
 * NULL. */
KVC_STORE_API int kvc_store_clean(struct kvc_store *s, unsigned tier,
                                  const struct kvc_store_clean_options *options,
                                  struct kvc_store_cleaned *cleaned, struct kvc_error *e);
/* Changes the limits of a directory, for all who use it: "KEY=VALUE", NULL-terminated; NULL: none.
 * Writes its configuration into `text`. -1 with code 32 for other tiers, which have none. */
KVC_STORE_API int kvc_store_configure(struct kvc_store *s, unsigned tier, const char *const *set,
                                      char *text, size_t size, struct kvc_error *e);
/* Examines a tier: whether it answers; a directory's file system and folders. Each finding is good
 * or bad, and has more to say or "". */
typedef void kvc_store_finding_fn(void *state, int good, const char *what, const char *more);
KVC_STORE_API void kvc_store_examine(struct kvc_store *s, unsigned tier, kvc_store_finding_fn *fn,
                                     void *state);

struct kvc_store_verify_options {
    size_t size; /* of this struct */
    int repair;  /* put aside what is bad */
    /* Gets what is wrong with an object, its name first; called once more if it cannot be put
     * aside. NULL: it is counted only. */
    void (*bad)(void *state, const struct kvc_error *why);
    void *bad_state;
    /* Gets bytes of all tiers, which are listed for it first; returns 0, as it cannot cancel.
     * NULL: none. */
    kvc_progress_fn *progress;
    void *progress_state;
};
struct kvc_store_verified {
    size_t size; /* of this struct; set by the caller */
    uint64_t objects, bytes, bad;
    uint64_t put_aside; /* of the bad ones, with `repair` */
};
/* Reads all objects of all tiers, and checks each alone: signature, checksums, and whether its
 * tokens, name or facts are those that its name is made of, where its namespace can be read. -1: a
 * tier cannot be read; `verified`, which may be NULL, is of the others then. */
KVC_STORE_API int kvc_store_verify(struct kvc_store *s,
                                   const struct kvc_store_verify_options *options,
                                   struct kvc_store_verified *verified, struct kvc_error *e);

/* --- moving objects, as they are --- */

struct kvc_store_move_options {
    size_t size;                          /* of this struct */
    const struct kvc_store_namespace *ns; /* of this namespace only; NULL: of all */
    /* Gets bytes, which are listed for it first; returns 0, as it cannot cancel. NULL: none. */
    kvc_progress_fn *progress;
    void *progress_state;
    /* Gets what is wrong with an object, its name first, that cannot be read or put while others
     * can: it is left out. NULL: the first one ends the call. */
    void (*left_out)(void *state, const struct kvc_error *why);
    void *left_out_state;
};
struct kvc_store_moved {
    size_t size; /* of this struct; set by the caller */
    uint64_t objects, bytes;
    uint64_t there; /* of these were there already */
};
/* Copies the objects of a store's first tier to that of another. `moved` may be NULL, likewise
 * below. */
KVC_STORE_API int kvc_store_copy(struct kvc_store *from, struct kvc_store *to,
                                 const struct kvc_store_move_options *options,
                                 struct kvc_store_moved *moved, struct kvc_error *e);
/* Writes them as a tar archive. */
KVC_STORE_API int kvc_store_export(struct kvc_store *s,
                                   const struct kvc_store_move_options *options,
                                   kvc_write_fn *write, void *state, struct kvc_store_moved *moved,
                                   struct kvc_error *e);
/* Opens such an archive ("-": standard input), or objects in a folder, and checks their names. */
struct kvc_store_archive;
KVC_STORE_API struct kvc_store_archive *kvc_store_archive_open(const char *path,
                                                               struct kvc_error *e);
KVC_STORE_API void kvc_store_archive_close(struct kvc_store_archive *a); /* NULL is legal */
/* Puts the objects of an archive into the first tier; `ns` of the options does not count. */
KVC_STORE_API int kvc_store_import(struct kvc_store *s, const struct kvc_store_archive *a,
                                   const struct kvc_store_move_options *options,
                                   struct kvc_store_moved *moved, struct kvc_error *e);

/* --- numbers, as the options of tiers have them --- */

/* Read "30s", "50ms", "7d" as microseconds, and "500M", "20GiB" as bytes. Messages begin with
 * `name`. */
KVC_STORE_API int kvc_store_read_time(const char *name, const char *text, int64_t *microseconds,
                                      struct kvc_error *e);
KVC_STORE_API int kvc_store_read_size(const char *name, const char *text, uint64_t *bytes,
                                      struct kvc_error *e);

/* --- keys, for routers and indexers --- */

/* Writes the n / block hashes of vLLM's prefix caching with sha256_cbor
 * (vllm/v1/core/kv_cache_utils.py, hash_block_tokens) without extra keys into `size` bytes,
 * KVC_KEY_BYTES for each. LMCache's are the same, with its chunk as block
 * (lmcache/v1/token_database.py). `root` is vLLM's NONE_HASH, of KVC_KEY_BYTES. */
KVC_STORE_API int kvc_store_vllm_hashes(const uint8_t *root, const int32_t *tokens, uint64_t n,
                                        uint64_t block, uint8_t *hashes, size_t size,
                                        struct kvc_error *e);

#ifdef __cplusplus
}
#endif

#endif
