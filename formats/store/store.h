/* store.h: what the files of a store share: its namespaces, keys, objects and hits. Not for users
 * (kvc_store.h), nor for calls of tiers (call.h). */
#ifndef KVC_STORE_STATE_H
#define KVC_STORE_STATE_H

#include "formats/api/kvc_store.h"
#include "formats/store/call.h"

/* What a namespace learns, if its caches are lossless until there is a profile for its recipe
 * (learning.c). */
struct kvc_learn {
    char *model; /* path of weights; NULL: none */
    /* the namespace of recipe and profile; NULL: nothing was learnt yet. Is set once. */
    _Atomic(struct kvc_store_namespace *) packed;
    atomic_int has_unpacked;  /* this one may have caches, although there is `packed` */
    atomic_int is_shared;     /* other recipes find the profile, as far as this handle knows */
    _Atomic kvc_instant seen; /* when it was last looked whether another process learnt */
    pthread_mutex_t lock;     /* of what follows */
    uint64_t fresh, every; /* tokens that were put since the last look, and after which to look */
    int runs, has_run;     /* a task looks, or will; has looked */
};

struct kvc_store_namespace {
    struct kvc_store *store;
    uint8_t hash[KVC_KEY_BYTES]; /* of its facts */
    char name[2 * KVC_KEY_BYTES + 1];
    char *facts; /* the text of its object */
    char identity[KVC_IDENTITY_BYTES];
    uint64_t chunk;
    char *fidelity;
    char *recipe; /* that chunks are packed with */
    char *asked;  /* the same as the caller named it, before a step was settled; or NULL */
    int lossless;
    uint8_t tenant[KVC_KEY_BYTES];
    int has_tenant;
    int is_stored; /* the store has its facts; under the lock of profiles */
    pthread_mutex_t lock;
    struct kvc_profile *packs_with; /* NULL: none */
    struct kvc_profile *profile[8]; /* that chunks were packed with */
    unsigned n_profiles;
    _Atomic kvc_instant looked; /* when it was last looked whether the store has them */
    atomic_int is_copied;       /* its facts were copied to the faster tiers */
    atomic_uint refs;           /* of the user and of puts under way */
    struct kvc_learn *learn;    /* NULL: nothing */
    int is_learnt;              /* packs_with was learnt from the namespace of this hash */
    uint8_t learnt_from[KVC_KEY_BYTES];
};

/* --- keys, namespaces and secrets (keys.c, namespace.c) --- */

/* Names object i of a chain: the chunk that ends at prefix key (i + 1) * chunk / 256. keys[j] is
 * H_(j+1). */
int kvc_chunk_object(const struct kvc_store_namespace *ns, const uint8_t *keys, size_t i,
                     struct kvc_object *o, struct kvc_error *e);
/* Names an object by its kind and its prefix key. */
int kvc_key_object(const struct kvc_store_namespace *ns, enum kvc_object_kind kind,
                   const uint8_t key[KVC_KEY_BYTES], struct kvc_object *o, struct kvc_error *e);
/* Names a cache that cannot be cut: by its last prefix key, number i, or by the start of the chain
 * (i = 0). */
int kvc_whole_object(const struct kvc_store_namespace *ns, const uint8_t *keys, size_t i,
                     struct kvc_object *o, struct kvc_error *e);
/* Names a cache by the name that the program chose. */
int kvc_named_object(const struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                     struct kvc_object *o, struct kvc_error *e);
/* The same of n names. The caller frees what is returned. */
struct kvc_object *kvc_named_objects(const struct kvc_store_namespace *ns,
                                     const struct kvc_store_name *names, size_t n,
                                     struct kvc_error *e);
/* Computes the prefix keys of tokens from position 0 on. The caller frees *keys. */
int kvc_namespace_keys(const struct kvc_store_namespace *ns, const int32_t *tokens, uint64_t n,
                       const struct kvc_prefix_extra *extras, size_t n_extras, uint8_t **keys,
                       struct kvc_error *e);
/* The same of the first n tokens of a file, with its extras. */
int kvc_namespace_keys_of(const struct kvc_store_namespace *ns, const struct kvc_file *f,
                          uint64_t n, uint8_t **keys, struct kvc_error *e);
/* Reads a secret from a file that only its owner may read, and makes a key of it for a purpose. */
int kvc_store_secret(const char *path, const char *tag, uint8_t key[KVC_KEY_BYTES],
                     struct kvc_error *e);
static inline void kvc_namespace_hold(struct kvc_store_namespace *ns) {
    atomic_fetch_add(&ns->refs, 1);
}
/* Opens the namespace of caches like f. */
struct kvc_store_namespace *kvc_namespace_open(struct kvc_store *s, const struct kvc_file *f,
                                               const struct kvc_store_namespace_options *o,
                                               struct kvc_error *e);
/* Opens the namespace of caches like f that the recipe of `ns` packs with a profile that was learnt
 * from it, which it takes over; NULL: without one, which is `ns` itself, in another handle. */
struct kvc_store_namespace *kvc_namespace_packed(const struct kvc_store_namespace *ns,
                                                 const struct kvc_file *f, struct kvc_profile *p,
                                                 struct kvc_error *e);
/* Opens the namespace of a hash, which is packed with a profile, taken over, that was learnt from
 * another one. */
struct kvc_store_namespace *kvc_namespace_linked(const struct kvc_store_namespace *ns,
                                                 const uint8_t hash[KVC_KEY_BYTES],
                                                 struct kvc_profile *p, struct kvc_error *e);
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
/* Returns the profile of a hash; if it is not known yet, from the store, or from the folders of
 * profiles. It stays the namespace's. `model` is for messages. */
struct kvc_profile *kvc_namespace_profile(struct kvc_store_namespace *ns, const uint8_t *sha256,
                                          const char *model, struct kvc_error *e);

/* --- objects (chunk.c) --- */

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
/* Refuses a cache that is not of the namespace, nor lossless and of it once it is packed. */
int kvc_chunk_check_namespace(const struct kvc_store_namespace *ns, const struct kvc_file *f,
                              struct kvc_error *e);
/* Puts the name of an object before what is wrong with its bytes. */
void kvc_chunk_blame(const struct kvc_object *o, struct kvc_error *e);
/* Takes over the bytes of an object, of malloc(), and signs them: appends what kvc_chunk_open()
 * takes off. NULL: it failed. */
struct kvc_bytes *kvc_chunk_sign(const struct kvc_store *s, const struct kvc_object *o, void *data,
                                 size_t size, struct kvc_error *e);
/* Checks and takes off the signature of any object. */
int kvc_chunk_signature(const struct kvc_store *s, const struct kvc_object *o, const void *data,
                        size_t *size, struct kvc_error *e);

/* Checks the bytes of a profile or of the facts of a namespace, or which profile was learnt from
 * it: its signature, and that it is what its name says. */
int kvc_object_check(const struct kvc_store *s, const struct kvc_object *o, const void *data,
                     size_t size, struct kvc_error *e);

/* Reads such an object from the first tier that has it whole, and writes it to faster ones in which
 * it is damaged. *size is that without its signature. */
struct kvc_bytes *kvc_store_read_object(struct kvc_store *s, const struct kvc_object *o,
                                        size_t *size, struct kvc_error *e);
/* Writes a profile to all tiers, and that it was learnt from the namespace of this hash: unless
 * another one was, or with `replace` in its place. -1: no tier took it. */
int kvc_store_put_learnt(struct kvc_store *s, const uint8_t from[KVC_KEY_BYTES],
                         const struct kvc_profile *p, int replace, struct kvc_error *e);
/* Reads a profile from the store. */
struct kvc_profile *kvc_store_profile(struct kvc_store *s, const uint8_t *sha256,
                                      struct kvc_error *e);

/* --- what was learnt (learnt.c, catch_up.c), and learning (learning.c) --- */

/* Reads and writes the text of the object that tells which profile was learnt from a namespace; its
 * length is returned. A profile of which all bytes are 0 is none. */
int kvc_learnt_is_none(const uint8_t sha256[KVC_KEY_BYTES]);
int kvc_learnt_read(const void *data, size_t size, uint8_t sha256[KVC_KEY_BYTES],
                    struct kvc_error *e);
enum { KVC_LEARNT_TEXT = 96 };
size_t kvc_learnt_text(const uint8_t sha256[KVC_KEY_BYTES], char text[KVC_LEARNT_TEXT]);
/* Reads which profile was learnt from the namespace of a hash. -1: the store does not say it. */
int kvc_learnt_find(struct kvc_store *s, const uint8_t from[KVC_KEY_BYTES],
                    uint8_t sha256[KVC_KEY_BYTES]);
/* Opens the profile of a hash, of the store or of the folders of profiles; *p NULL for none at all.
 * -1: it cannot be had. */
int kvc_learnt_open(struct kvc_store *s, const uint8_t sha256[KVC_KEY_BYTES],
                    struct kvc_profile **p);
/* Returns 1 if caches packed with the profile are in another namespace: in the same they are where
 * it only chooses steps. */
int kvc_learnt_is_apart(const struct kvc_store_namespace *ns,
                        const struct kvc_store_namespace *packed);
/* Has a namespace pack into another one, which it takes over, from now on. */
void kvc_learnt_publish(struct kvc_store_namespace *ns, struct kvc_store_namespace *packed);
/* Looks whether another process had the store learn since the namespace was opened, and moved what
 * was there; `later` in the background, and not often. */
void kvc_learnt_catch_up(struct kvc_store_namespace *ns);
void kvc_learnt_catch_up_later(struct kvc_store_namespace *ns);
/* Has the thread of learning, which is started once it is needed, run a task that closes `ns` and
 * leaves the queue at its end. -1: it cannot, now. */
int kvc_learner_start(struct kvc_store_namespace *ns, struct kvc_task *task);

/* Returns the namespace of the profile that was learnt if there is one, and else ns; it lives as
 * long as ns. */
static inline const struct kvc_store_namespace *
kvc_learnt_or_own(const struct kvc_store_namespace *ns) {
    const struct kvc_store_namespace *packed = ns->learn ? atomic_load(&ns->learn->packed) : NULL;
    return packed ? packed : ns;
}
/* Returns the namespace of the profile, for the caller to close; NULL: there is none. */
static inline struct kvc_store_namespace *kvc_learnt_namespace(struct kvc_store_namespace *ns) {
    struct kvc_store_namespace *packed = ns->learn ? atomic_load(&ns->learn->packed) : NULL;
    if (packed) kvc_namespace_hold(packed);
    else if (ns->learn) kvc_learnt_catch_up_later(ns);
    return packed;
}
/* Returns 1 if a namespace that learns may have caches, beside those of the profile. */
static inline int kvc_learn_has_unpacked(const struct kvc_store_namespace *ns) {
    return atomic_load(&ns->learn->has_unpacked);
}
/* Looks for what was learnt before; with `puts`, which f is about to be, also for a profile that
 * fits f, in the folders of profiles. f is a cache of the namespace. Calls tiers. */
void kvc_learn_look(struct kvc_store_namespace *ns, const struct kvc_file *f, int puts);
/* Notes that tokens were put losslessly, or 0 that some were to the namespace of the profile,
 * and has a profile learnt once there are enough: with a low priority, unless the caller is in
 * a hurry. */
void kvc_learn_note(struct kvc_store_namespace *ns, uint64_t tokens, int in_a_hurry);
/* Notes that the recipe refused a cache with the learnt profile, which was put as it is. */
void kvc_learn_refused(struct kvc_store_namespace *ns);

/* --- lists of objects (list.c) --- */

/* An object of a namespace in a tier. `number` is its user's. */
struct kvc_listed {
    struct kvc_object object;
    uint64_t bytes;
    unsigned tier;
    uint64_t number;
};
struct kvc_list {
    struct kvc_listed *item;
    size_t n;
};
/* Orders items by key and tier, as qsort() asks. */
int kvc_listed_by_key(const void *a, const void *b);
/* Appends an item. -1: there is no memory. */
int kvc_list_add(struct kvc_list *x, const struct kvc_listed *item);
/* Appends what all tiers have of a namespace. */
int kvc_list_namespace(const struct kvc_store_namespace *ns, struct kvc_list *list,
                       struct kvc_error *e);
/* Removes the objects of a list from their tiers, in the order of the list. */
int kvc_list_remove(struct kvc_store *s, const struct kvc_list *x, struct kvc_error *e);
/* Tells tiers that evict what was used longest ago in which order chunks go on. */
void kvc_list_touch(struct kvc_store *s, const struct kvc_object *o, size_t n);

/* Returns the bytes of a tier's objects, of a namespace or all (NULL); 0: they are unknown
 * (tiers.c). */
uint64_t kvc_store_bytes(struct kvc_store *s, unsigned tier, const struct kvc_store_namespace *ns);

/* --- finding (find.c) --- */

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
/* Returns the instant until which a tier may look; timeout_us 0: as the store's options say.
 */
kvc_instant kvc_find_until(const struct kvc_store *s, unsigned tier, int64_t timeout_us);
/* Until when a load may take; 0: as the store says. */
static inline kvc_instant kvc_load_until(const struct kvc_store *s, int64_t timeout_us) {
    return kvc_after(timeout_us ? timeout_us : s->options.load_timeout_us);
}
/* Writes which tiers its chunks come from. */
void kvc_hit_list_tiers(struct kvc_store_hit *hit);

#endif
