/* named.c: caches under names that a program chose, one object each. Spec: STORE.md, "Named
 * caches". Not for caches that are found by their tokens (find.c, whole.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"
#include "formats/cache/keys.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- finding --- */

/* Asks a tier for objects, each by itself. */
struct each_request {
    struct kvc_request base;
    struct kvc_object *object;
    uint8_t *there;
    uint64_t *size; /* 0: unknown */
    size_t n;
};

static void named_clear(struct kvc_request *base) {
    struct each_request *r = (struct each_request *)base;
    free(r->object);
    free(r->there);
    free(r->size);
}

/* Tiers count objects up to the first that they lack, so the search goes on after each of these.
 */
static int named_run(struct kvc_request *base, struct kvc_tier *l, struct kvc_error *e) {
    struct each_request *r = (struct each_request *)base;
    int status = 0;
    for (size_t i = 0, found; i < r->n && !status; i += found + 1) {
        found = 0;
        status = l->ops->find(l, r->object + i, r->n - i, base->deadline, &found, r->size + i, e);
        memset(r->there + i, 1, found);
    }
    return status;
}

static struct each_request *named_ask(struct kvc_store *s, unsigned tier,
                                      const struct kvc_object *o, size_t n, kvc_instant deadline) {
    struct each_request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    kvc_request_init(&r->base, s, tier, deadline);
    r->base.run = named_run;
    r->base.clear = named_clear;
    r->n = n;
    r->object = calloc(n, sizeof *o);
    r->there = calloc(n, 1);
    r->size = calloc(n, sizeof *r->size);
    if (r->object && r->there && r->size) {
        memcpy(r->object, o, n * sizeof *o);
        kvc_request_start(&r->base);
        return r;
    }
    kvc_request_release(&r->base);
    return NULL;
}

/* Takes what a tier has. A request that is still under way tells nothing. */
static void answer(struct each_request *r, uint8_t *there) {
    if (!r) return;
    kvc_request_wait(&r->base, NULL);
    pthread_mutex_lock(&r->base.lock);
    for (size_t i = 0; i < r->n && r->base.done; i++) there[i] |= r->there[i];
    pthread_mutex_unlock(&r->base.lock);
    kvc_request_release(&r->base);
}

static int64_t named_count(struct kvc_store *s, const struct kvc_object *o, size_t n,
                           uint8_t *there) {
    int64_t found = 0;
    for (size_t i = 0; i < n; i++) {
        if (there[i] && kvc_store_is_bad(s, o[i].key)) there[i] = 0;
        found += there[i];
    }
    return found;
}

/* Asks directories one after the other, and all other tiers at the same time if something is left.
 */
static int64_t search(struct kvc_store *s, const struct kvc_object *o, size_t n, uint8_t *there,
                      int64_t time) {
    struct each_request *remote[KVC_MAX_TIERS] = {NULL};
    const kvc_instant now = kvc_now();
    memset(there, 0, n);
    for (unsigned i = 0; i < s->n_tiers; i++)
        if (!s->tier[i].ops->remote && (!i || memchr(there, 0, n)))
            answer(named_ask(s, i, o, n, now + (time ? time : s->options.local_timeout_us)), there);
    const int left = memchr(there, 0, n) != NULL;
    for (unsigned i = 0; i < s->n_tiers && left; i++)
        if (s->tier[i].ops->remote)
            remote[i] = named_ask(s, i, o, n, now + (time ? time : s->options.timeout_us));
    for (unsigned i = 0; i < s->n_tiers; i++) answer(remote[i], there);
    return named_count(s, o, n, there);
}

/* Returns the objects of names; the caller frees them. */
static struct kvc_object *objects_of(const struct kvc_store_namespace *ns,
                                     const struct kvc_store_name *names, size_t n,
                                     struct kvc_error *e) {
    struct kvc_object *o = calloc(n, sizeof *o);
    if (!o) {
        kvc_fail_memory(e, "names");
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        if (kvc_named_object(ns, &names[i], &o[i], e)) {
            free(o);
            return NULL;
        }
    return o;
}

int64_t kvc_store_find_names(struct kvc_store_namespace *ns, const struct kvc_store_name *names,
                             size_t n, uint8_t *there, const struct kvc_store_find_options *options,
                             struct kvc_error *e) {
    struct kvc_store_find_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_find_options", e)) return -1;
    if (!n) return 0;
    struct kvc_object *object = objects_of(ns, names, n, e);
    if (!object) return -1;
    kvc_count(ns->store, KVC_COUNT_LOOKUPS, 1);
    const int64_t found = search(ns->store, object, n, there, o.timeout_us);
    free(object);
    return found;
}

/* --- reading --- */

/* Reads and proves the object of a tier. NULL: it has none, or a bad one. */
static struct kvc_file *read_from(const struct kvc_chunk *chunk, unsigned tier,
                                  const struct kvc_object *o, kvc_instant deadline,
                                  struct kvc_error *e) {
    struct kvc_store_namespace *ns = (struct kvc_store_namespace *)(uintptr_t)chunk->ns;
    struct kvc_store *s = ns->store;
    struct kvc_error why;
    size_t size;
    void *data = kvc_store_read_tier(s, tier, o, deadline, &size, &why);
    if (!data) return NULL;
    const size_t stored = size; /* with its signature */
    struct kvc_file *f = kvc_chunk_open(chunk, data, &size, 1, &why);
    if (!f) {
        free(data);
        kvc_store_mark_bad(s, tier, o, &why);
        if (e) *e = why;
        return NULL;
    }
    f->owned = data;
    f->free_owned = free;
    kvc_count(s, KVC_COUNT_LOADED_BYTES, stored);
    kvc_store_notify(s, tier, KVC_TOUCH, o, 1, 0);
    void *copy = tier ? malloc(stored) : NULL; /* faster tiers lack it */
    if (copy) {
        kvc_namespace_copy_facts(ns, tier);
        kvc_store_backfill(s, tier, o, NULL, memcpy(copy, data, stored), stored);
    }
    return f;
}

struct kvc_file *kvc_store_get_name(struct kvc_store_namespace *ns,
                                    const struct kvc_store_name *name,
                                    const struct kvc_store_load_options *options,
                                    struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    struct kvc_store_load_options o;
    struct kvc_object object;
    const struct kvc_chunk chunk = {.ns = ns, .name = name};
    const kvc_instant began = kvc_now();
    struct kvc_file *f = NULL;
    if (e) *e = (struct kvc_error){.code = KVC_OK};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_load_options", e) ||
        kvc_named_object(ns, name, &object, e))
        return NULL;
    const kvc_instant deadline = began + (o.timeout_us ? o.timeout_us : s->options.load_timeout_us);
    for (unsigned i = 0; i < s->n_tiers && !f && !kvc_store_is_bad(s, object.key); i++)
        f = read_from(&chunk, i, &object, deadline, e);
    kvc_count(s, KVC_COUNT_LOAD_US, (uint64_t)(kvc_now() - began));
    return f;
}

/* Has memory begin where the cache does. Refuses memory for another number of tokens. */
static int begin_with(struct kvc_memory *m, const struct kvc_cache *c, struct kvc_error *e) {
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const struct kvc_cells *cells = &c->part[p].cells;
        if (c->part[p].kind != KVC_PART_LIVE) continue;
        if (cells->n != m->tokens)
            return kvc_fail(e, KVC_ERR_USAGE,
                            "the cache of this name has %" PRIu64
                            " tokens, and memory is for %" PRIu64,
                            cells->n, m->tokens);
        if (cells->n) m->first_position = kvc_cells_position(cells, 0);
    }
    return 0;
}

int kvc_store_load_name(struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                        const struct kvc_memory *m, const struct kvc_store_load_options *options,
                        struct kvc_error *e) {
    struct kvc_store_load_options o;
    struct kvc_memory memory;
    struct kvc_error why;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_load_options", &why) ||
        kvc_sized_take(&memory, sizeof memory, m, "kvc_memory", &why)) {
        if (e) *e = why;
        return -1;
    }
    struct kvc_file *f = kvc_store_get_name(ns, name, &o, &why);
    if (f) {
        const kvc_instant began = kvc_now();
        const struct kvc_load_how how = {.size = sizeof how,
                                         .threads = o.threads,
                                         .convert = o.convert,
                                         .pairing = o.pairing};
        if (begin_with(&memory, f->cache, &why) || kvc_file_load(f, &memory, &how, &why)) {
            kvc_file_close(f);
            f = NULL;
        } else {
            why.code = KVC_OK;
            kvc_count(ns->store, KVC_COUNT_LOADED, memory.tokens);
        }
        kvc_count(ns->store, KVC_COUNT_LOAD_US, (uint64_t)(kvc_now() - began));
    }
    if (e) *e = why;
    kvc_file_close(f);
    return f ? 1 : why.code == KVC_ERR_USAGE || why.code == KVC_ERR_SLICE ? -1 : 0;
}

/* --- putting and removing --- */

/* Packs a cache with its name. */
static int pack(const struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                struct kvc_file *f, void **data, size_t *size, struct kvc_error *e) {
    const struct kvc_part_options all = {.size = sizeof all, .no_companions = 1};
    const struct kvc_write_options how = {.size = sizeof how,
                                          .threads = 1, /* programs put from several threads */
                                          .recipe = ns->recipe,
                                          .shared_profile = ns->packs_with};
    struct kvc_file *named = kvc_file_select(f, &all, e);
    if (!named) return -1;
    int status = kvc_meta_set_bytes(&named->opened.cache->meta, KVC_KEY_STORE_NAME, name->bytes,
                                    name->size, e);
    if (!status) status = kvc_file_pack_memory(named, &how, data, size, e);
    kvc_file_close(named);
    return status;
}

/* Writes an object to every tier. Returns how many have it now. */
static unsigned write_tiers(struct kvc_store *s, const struct kvc_object *o, const void *data,
                            size_t size, const struct kvc_tier_put *how, struct kvc_error *e) {
    unsigned stored = 0;
    for (unsigned l = 0; l < s->n_tiers; l++) {
        int there;
        const int failed = kvc_store_put_tier(s, l, o, data, size, how, kvc_now() + KVC_OBJECT_TIME,
                                              &there, e);
        kvc_count(s,
                  failed                     ? KVC_COUNT_FAILED
                  : there == KVC_PUT_REFUSED ? KVC_COUNT_REFUSED
                  : there                    ? KVC_COUNT_SHARED
                                             : KVC_COUNT_PUT,
                  1);
        if (failed || there == KVC_PUT_REFUSED) continue;
        if (!there) kvc_count(s, KVC_COUNT_PUT_BYTES, size);
        stored++;
    }
    return stored;
}

/* Returns 1 if the first tier has the object already, and its bytes; slower tiers were given it
 * by whoever put it there. */
static int is_there(struct kvc_store *s, const struct kvc_object *o, uint64_t *size) {
    struct each_request *r = kvc_store_is_bad(s, o->key)
                                 ? NULL
                                 : named_ask(s, 0, o, 1, kvc_now() + KVC_OBJECT_TIME);
    if (!r) return 0;
    const int there = !kvc_request_wait(&r->base, NULL) && r->there[0];
    if (there) *size = r->size[0];
    kvc_request_release(&r->base);
    if (there) kvc_count(s, KVC_COUNT_SHARED, 1);
    return there;
}

int kvc_store_put_name(struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                       struct kvc_file *f, const struct kvc_store_put_options *options,
                       struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    struct kvc_store_put_options o;
    struct kvc_object object;
    struct kvc_error why = {.code = KVC_OK};
    const struct kvc_chunk chunk = {.ns = ns, .name = name};
    void *data = NULL;
    size_t size;
    uint64_t unasked, *told;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_put_options", e) ||
        kvc_named_object(ns, name, &object, e))
        return -1;
    told = o.stored_bytes ? o.stored_bytes : &unasked;
    *told = 0;
    if (is_there(s, &object, told)) return 0;
    const struct kvc_tier_put how = {.seconds = o.seconds,
                                     .pin = o.pin,
                                     .cost = o.cost,
                                     .replace = kvc_store_is_bad(s, object.key)};
    if (pack(ns, name, f, &data, &size, e) || kvc_chunk_sign(s, &object, &data, &size, e)) {
        free(data);
        return -1;
    }
    size_t bare = size;
    struct kvc_file *proof = kvc_chunk_open(&chunk, data, &bare, 0, e);
    kvc_file_close(proof);
    const int stored = proof && !kvc_namespace_store(ns, &why) &&
                       write_tiers(s, &object, data, size, &how, &why);
    free(data);
    if (!proof) return -1;
    if (stored) kvc_store_clear_bad(s, object.key);
    *told = stored ? size : 0;
    if (e) *e = why;
    return stored ? 0 : 1;
}

int kvc_store_drop_names(struct kvc_store_namespace *ns, const struct kvc_store_name *names,
                         size_t n, struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    struct kvc_object *o = n ? objects_of(ns, names, n, e) : NULL;
    int status = n && !o ? -1 : 0;
    for (unsigned i = 0; i < s->n_tiers && n && !status; i++)
        status = s->tier[i].ops->drop(s->tier[i].tier, o, n, kvc_now() + KVC_OBJECT_TIME, e);
    free(o);
    return status;
}
