/* attack.h: what the attacks on the directory tier share: objects whose bytes follow from their
 * keys, a scratch store, and a store's books beside its files. Not for other tests.
 *
 * Objects stand in chains; object (chain, depth) continues (chain, depth - 1). */
#ifndef ATTACK_H
#define ATTACK_H

#include "formats/store/dir/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ATTACK_ROOM 4096 /* bytes of the largest object */
#define ATTACK_DEPTH 12  /* of the longest chain */

/* Ends the process, with the place of the fault: its seed and operation. */
static uint64_t attack_seed, attack_step;
#define DIE(...)                                                                        \
    (fprintf(stderr, "%s:%d: seed %" PRIu64 ", step %" PRIu64 ": ", __FILE__, __LINE__, \
             attack_seed, attack_step),                                                 \
     fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), _exit(1))

struct attack_random {
    uint64_t state;
};

static inline uint64_t attack_next(struct attack_random *r) {
    r->state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    uint64_t x = r->state;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t attack_below(struct attack_random *r, uint64_t n) {
    return attack_next(r) % n;
}

/* --- objects --- */

static inline struct kvc_object attack_object(unsigned chain, unsigned depth) {
    struct kvc_object o = {.kind = KVC_OBJECT_CHUNK};
    struct attack_random r = {((uint64_t)chain << 32) + depth + 1};
    for (size_t i = 0; i < sizeof o.key; i += 8) {
        const uint64_t x = attack_next(&r);
        memcpy(o.key + i, &x, 8);
    }
    o.ns[0] = (uint8_t)(chain % 4); /* of four namespaces */
    return o;
}

static inline void attack_chain(unsigned chain, struct kvc_object o[ATTACK_DEPTH]) {
    for (unsigned i = 0; i < ATTACK_DEPTH; i++) o[i] = attack_object(chain, i);
}

static inline size_t attack_size(const struct kvc_object *o) {
    return 100 + ((size_t)o->key[0] << 8 | o->key[1]) % (ATTACK_ROOM - 100);
}

static inline void attack_fill(const struct kvc_object *o, uint8_t data[ATTACK_ROOM]) {
    struct attack_random r;
    memcpy(&r.state, o->key + 8, 8);
    for (size_t i = 0; i < ATTACK_ROOM; i += 8) {
        const uint64_t x = attack_next(&r);
        memcpy(data + i, &x, 8);
    }
}

/* Whether bytes are those of the object. */
static inline int attack_is(const struct kvc_object *o, const void *data, size_t size) {
    uint8_t due[ATTACK_ROOM];
    attack_fill(o, due);
    return size == attack_size(o) && memcmp(data, due, size) == 0;
}

/* --- a store --- */

static char attack_folder[128];

static inline int attack_remove_one(const char *path, const struct stat *st, int type,
                                    struct FTW *f) {
    (void)st, (void)type, (void)f;
    return remove(path);
}

static inline void attack_remove(void) {
    if (*attack_folder) nftw(attack_folder, attack_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Makes a scratch folder, in memory if nothing else is asked for: no attack needs a disk. */
static inline void attack_scratch(void) {
    const char *tmp = getenv("TMPDIR");
    if (!tmp || !*tmp) tmp = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(attack_folder, sizeof attack_folder, "%.90s/kvc-attack-XXXXXX", tmp);
    if (!mkdtemp(attack_folder)) DIE("%s: %s", attack_folder, strerror(errno));
}

/* Opens the store in it. NULL with *e. */
static inline struct kvc_dir *attack_try_open(const char *options, struct kvc_error *e) {
    char text[400];
    struct kvc_url url;
    snprintf(text, sizeof text, "dir:%s/store?%s", attack_folder, options);
    if (kvc_url_parse(&url, text, e)) return NULL;
    struct kvc_tier *l = kvc_tier_dir.open(&url, e);
    kvc_url_free(&url);
    if (l && l->ops->make(l, e)) {
        l->ops->close(l);
        l = NULL;
    }
    return (struct kvc_dir *)l;
}

static inline struct kvc_dir *attack_open(const char *options) {
    struct kvc_error e;
    struct kvc_dir *d = attack_try_open(options, &e);
    if (!d) DIE("cannot be opened: %s", e.message);
    return d;
}

static inline int attack_put(struct kvc_dir *d, unsigned chain, unsigned depth,
                             const struct kvc_tier_put *how, int *there, struct kvc_error *e) {
    const struct kvc_object o = attack_object(chain, depth),
                            parent = attack_object(chain, depth - 1);
    uint8_t data[ATTACK_ROOM];
    struct kvc_tier_put own = how ? *how : (struct kvc_tier_put){0};
    own.parent = depth ? &parent : NULL;
    attack_fill(&o, data);
    return kvc_tier_dir.put(&d->tier, &o, data, attack_size(&o), &own, INT64_MAX, there, e);
}

/* Finds a chain, and checks the sizes that are said. */
static inline size_t attack_find(struct kvc_dir *d, unsigned chain, struct kvc_error *e) {
    struct kvc_object o[ATTACK_DEPTH];
    uint64_t size[ATTACK_DEPTH];
    size_t found = 0;
    attack_chain(chain, o);
    if (kvc_tier_dir.find(&d->tier, o, ATTACK_DEPTH, INT64_MAX, &found, size, e)) return SIZE_MAX;
    for (size_t i = 0; i < found; i++)
        if (size[i] != attack_size(&o[i]))
            DIE("find says %" PRIu64 " bytes of an object of %zu", size[i], attack_size(&o[i]));
    return found;
}

/* What a get has brought. */
struct attack_got {
    const struct kvc_object *o;
    size_t next;             /* index that is due */
    uint32_t there, missing; /* bits */
    struct kvc_error why;    /* of the last that failed */
};

static inline int attack_take(void *state, size_t i, void *data, size_t size,
                              const struct kvc_error *why) {
    struct attack_got *g = state;
    if (i != g->next++) DIE("get hands over object %zu when %zu is due", i, g->next - 1);
    if (data && why) DIE("get hands over an object with an error");
    if (data && !attack_is(&g->o[i], data, size)) DIE("get hands over wrong bytes");
    if (data) g->there |= UINT32_C(1) << i;
    else if (!why) g->missing |= UINT32_C(1) << i;
    else g->why = *why;
    free(data);
    return 0;
}

/* Reads n objects, each of which is right or absent. */
static inline struct attack_got attack_get(struct kvc_dir *d, const struct kvc_object *o,
                                           size_t n) {
    struct attack_got g = {.o = o};
    struct kvc_error e;
    const int status = kvc_tier_dir.get(&d->tier, o, n, INT64_MAX, attack_take, &g, &e);
    if (!status && g.next != n) DIE("get ends after %zu of %zu objects", g.next, n);
    return g;
}

/* --- books --- */

struct attack_books {
    uint64_t bytes, records; /* of the index */
    uint64_t file_bytes, files;
    struct kvc_root_strangers strangers;
};

static inline int attack_count(void *state, const struct kvc_object *o, const struct stat *st,
                               struct kvc_error *e) {
    struct attack_books *b = state;
    (void)o, (void)e;
    b->file_bytes += (uint64_t)st->st_size;
    b->files++;
    return 0;
}

static inline struct attack_books attack_count_all(struct kvc_dir *d) {
    struct attack_books b = {0};
    struct kvc_error e;
    struct kvc_index_txn *t = kvc_index_begin(d->index, 1, &e); /* nobody writes now */
    if (!t) DIE("%s", e.message);
    b.bytes = kvc_index_sums(t)->bytes;
    b.records = kvc_index_sums(t)->records;
    if (kvc_root_walk(&d->root, attack_count, &b, &b.strangers, &e)) DIE("%s", e.message);
    kvc_index_abort(t);
    return b;
}

/* Files and index say the same. */
static inline void attack_check_books(struct kvc_dir *d) {
    const struct attack_books b = attack_count_all(d);
    if (b.bytes != b.file_bytes || b.records != b.files || b.strangers.n)
        DIE("the index has %" PRIu64 " records of %" PRIu64 " bytes; there are %" PRIu64
            " files of %" PRIu64 " bytes and %" PRIu64 " strangers",
            b.records, b.bytes, b.files, b.file_bytes, b.strangers.n);
}

static inline struct kvc_store_cleaned attack_clean(struct kvc_dir *d) {
    struct kvc_store_cleaned counts;
    struct kvc_error e;
    if (kvc_dir_clean(&d->tier, &(struct kvc_store_clean_options){.evict = 0}, &counts, &e))
        DIE("cannot be cleaned: %s", e.message);
    return counts;
}

/* Objects in a folder of the store. What was being named when its process was killed has another
 * name, and stays for a minute. */
static inline unsigned attack_names(const char *folder) {
    char path[300];
    unsigned n = 0;
    snprintf(path, sizeof path, "find %s/store/%s -name '*.kv' | wc -l", attack_folder, folder);
    FILE *f = popen(path, "r");
    if (!f || fscanf(f, "%u", &n) != 1) DIE("cannot list %s", folder);
    pclose(f);
    return n;
}

static inline uint64_t attack_number(int argc, char **argv, int i, uint64_t otherwise) {
    return i < argc ? strtoull(argv[i], NULL, 10) : otherwise;
}

static inline double attack_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

#endif
