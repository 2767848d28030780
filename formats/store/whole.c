/* whole.c: reads caches that are one object: those that cannot be cut into chunks, as those of
 * sliding windows and recurrent states, found by the tokens that a prompt begins with, and those
 * under names that a program chose. Spec: STORE.md, "Objects". Not for putting
 * them (put.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Reads an object from a tier, and proves it; without `hashes`, its records are checked when they
 * are decoded. *why: code 0 if the tier has none, or what is bad. */
static struct kvc_file *read_cache(const struct kvc_chunk *chunk, unsigned tier,
                                   const struct kvc_object *o, kvc_instant deadline, int hashes,
                                   struct kvc_bytes **bytes, struct kvc_error *why) {
    struct kvc_store *s = chunk->ns->store;
    struct kvc_error unread;
    *why = (struct kvc_error){.code = KVC_OK};
    *bytes = kvc_store_read_tier(s, tier, o, deadline, &unread);
    if (!*bytes) return NULL;
    size_t size = (*bytes)->size;
    struct kvc_file *f = kvc_chunk_open(chunk, (*bytes)->data, &size, hashes, why);
    if (f) {
        kvc_file_own(f, *bytes, kvc_bytes_release);
        kvc_store_notify(s, tier, KVC_OP_TOUCH, o, 1, 0);
        return f;
    }
    kvc_bytes_release(*bytes);
    if (why->code != KVC_ERR_OTHER_MODEL) /* else it is sound, and of another prompt */
        kvc_store_mark_bad(s, tier, o, why);
    return NULL;
}

/* --- caches that cannot be cut --- */

/* Returns the number of the last key before `end` of which a tier has an object, plus 1; 0: it has
 * none. */
static size_t last_there(struct kvc_store *s, unsigned tier, const struct kvc_object *o, size_t end,
                         kvc_instant deadline) {
    struct kvc_call *c = kvc_call_ask(s, tier, KVC_OP_LAST, o, end, deadline);
    const size_t found = kvc_call_wait(c, NULL) ? 0 : c->found;
    kvc_call_release(c);
    return found;
}

/* Goes through the objects that a tier has, from the last key on, to the first that begins the
 * prompt. */
static struct kvc_file *search_tier(struct kvc_chunk *chunk, unsigned tier,
                                    const struct kvc_object *o, size_t n, kvc_instant deadline,
                                    kvc_instant read_until, struct kvc_error *e) {
    struct kvc_store *s = chunk->ns->store;
    for (size_t end = n, found; end && (found = last_there(s, tier, o, end, deadline)) != 0;
         end = found - 1) {
        struct kvc_error why;
        struct kvc_bytes *bytes;
        chunk->i = found - 1;
        if (kvc_store_is_bad(s, o[chunk->i].key)) continue;
        struct kvc_file *f = read_cache(chunk, tier, &o[chunk->i], read_until, 1, &bytes, &why);
        if (f) return f;
        if (why.code != KVC_OK && why.code != KVC_ERR_OTHER_MODEL && e) *e = why;
    }
    return NULL;
}

/* Finds the longest cache of one namespace. */
static struct kvc_file *find_whole(struct kvc_store_namespace *ns, const int32_t *tokens,
                                   uint64_t n, const struct kvc_store_find_options *o,
                                   struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    struct kvc_chunk chunk = {.ns = ns, .tokens = tokens, .whole = n};
    const size_t keys = (size_t)(n / KVC_PREFIX_TOKENS) + 1;
    struct kvc_object *object = NULL;
    uint8_t *key = NULL;
    struct kvc_file *f = NULL;
    const kvc_instant read_until = kvc_load_until(s, o->timeout_us);
    int status = kvc_namespace_keys(ns, tokens, n, o->extras, o->n_extras, &key, e);
    if (!status && !(object = calloc(keys, sizeof *object))) status = kvc_fail_memory(e, "keys");
    for (size_t i = 0; i < keys && !status; i++)
        status = kvc_whole_object(ns, key, i, &object[i], e);
    chunk.keys = key;
    for (unsigned l = 0; l < s->n_tiers && !f && !status; l++)
        f = search_tier(&chunk, l, object, keys, kvc_find_until(s, l, o->timeout_us), read_until,
                        e);
    free(object);
    free(key);
    return f;
}

static uint64_t tokens_of(const struct kvc_file *f) {
    uint64_t n = 0;
    if (f) kvc_file_tokens(f, &n);
    return n;
}

struct kvc_file *kvc_store_get_whole(struct kvc_store_namespace *ns, const int32_t *tokens,
                                     uint64_t n, const struct kvc_store_find_options *options,
                                     struct kvc_error *e) {
    if (KVC_NULL(e, ns)) return NULL;
    if (n && KVC_NULL(e, tokens)) return NULL;
    struct kvc_store *s = ns->store;
    struct kvc_store_find_options o;
    if (e) *e = (struct kvc_error){.code = KVC_OK};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_find_options", e) || !n) return NULL;
    kvc_count(s, KVC_COUNT_LOOKUPS, 1);
    kvc_count(s, KVC_COUNT_ASKED, n);
    struct kvc_store_namespace *packed = kvc_learnt_namespace(ns);
    struct kvc_file *f = packed ? find_whole(packed, tokens, n, &o, e) : NULL;
    if (!packed || (kvc_learn_has_unpacked(ns) && tokens_of(f) < n)) {
        struct kvc_file *own = find_whole(ns, tokens, n, &o, e);
        const int longer = tokens_of(own) > tokens_of(f);
        kvc_file_close(longer ? f : own);
        f = longer ? own : f;
    }
    kvc_store_namespace_close(packed);
    kvc_count(s, KVC_COUNT_FOUND, tokens_of(f));
    return f;
}

/* --- named caches --- */

/* Decodes a cache, whose records are checked by it. Returns 0, or -1 with *e. */
typedef int decode_fn(void *state, struct kvc_file *f, struct kvc_error *e);

/* Reads the cache of a name in a namespace from the first tier that has it. With `decode`, a cache
 * that it finds damaged counts as bad. */
static struct kvc_file *read_named_in(struct kvc_store_namespace *ns,
                                      const struct kvc_store_name *name,
                                      const struct kvc_store_load_options *o, decode_fn *decode,
                                      void *state, struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    struct kvc_object object;
    const struct kvc_chunk chunk = {.ns = ns, .name = name};
    const kvc_instant began = kvc_now(), deadline = kvc_load_until(s, o->timeout_us);
    struct kvc_file *f = NULL;
    if (e) *e = (struct kvc_error){.code = KVC_OK};
    if (kvc_named_object(ns, name, &object, e)) return NULL;
    for (unsigned i = 0; i < s->n_tiers && !f && !kvc_store_is_bad(s, object.key); i++) {
        struct kvc_bytes *bytes;
        struct kvc_error why;
        f = read_cache(&chunk, i, &object, deadline, !decode, &bytes, &why);
        if (f && decode && decode(state, f, &why)) {
            kvc_file_close(f);
            f = NULL;
            if (why.code == KVC_ERR_DAMAGED) kvc_store_mark_bad(s, i, &object, &why);
            if (e) *e = why;
            break;
        }
        if (!f && why.code != KVC_OK && e) *e = why;
        if (!f) continue;
        kvc_count(s, KVC_COUNT_LOADED_BYTES, bytes->size);
        if (!i) continue;
        kvc_namespace_copy_facts(ns, i); /* faster tiers lack it */
        kvc_store_backfill(s, i, &object, NULL, bytes);
    }
    kvc_count(s, KVC_COUNT_LOAD_US, (uint64_t)(kvc_now() - began));
    return f;
}

/* The same in the namespace of a profile that was learnt, and then in the other one, where it may
 * wait to be packed. */
static struct kvc_file *read_named(struct kvc_store_namespace *ns,
                                   const struct kvc_store_name *name,
                                   const struct kvc_store_load_options *o, decode_fn *decode,
                                   void *state, struct kvc_error *e) {
    struct kvc_store_namespace *packed = kvc_learnt_namespace(ns);
    struct kvc_file *f = packed ? read_named_in(packed, name, o, decode, state, e) : NULL;
    if (!f && (!packed || kvc_learn_has_unpacked(ns)))
        f = read_named_in(ns, name, o, decode, state, e);
    kvc_store_namespace_close(packed);
    return f;
}

struct kvc_file *kvc_store_get_name(struct kvc_store_namespace *ns,
                                    const struct kvc_store_name *name,
                                    const struct kvc_store_load_options *options,
                                    struct kvc_error *e) {
    if (KVC_NULL(e, ns, name)) return NULL;
    struct kvc_store_load_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_load_options", e)) return NULL;
    return read_named(ns, name, &o, NULL, NULL, e);
}

/* Has memory begin where the cache does. Refuses memory for another number of tokens. */
static int begin_with(struct kvc_memory *m, const struct kvc_file *f, struct kvc_error *e) {
    struct kvc_tensor_info t = {.size = sizeof t};
    for (uint32_t i = 0; !kvc_file_tensor(f, i, &t); i++) {
        if (strcmp(t.part, "live") != 0) continue;
        if (t.rows != m->tokens)
            return kvc_fail(e, KVC_ERR_USAGE,
                            "the cache of this name has %" PRIu64
                            " tokens, and memory is for %" PRIu64,
                            t.rows, m->tokens);
        if (t.rows) m->first_position = kvc_file_position(f, i, 0);
    }
    return 0;
}

/* What a cache is decoded into. */
struct loading {
    struct kvc_memory memory;
    const struct kvc_store_load_options *o;
};

static int load_memory(void *state, struct kvc_file *f, struct kvc_error *e) {
    struct loading *l = state;
    const struct kvc_load_how how = {.size = sizeof how,
                                     .threads = l->o->threads,
                                     .convert = l->o->convert,
                                     .pairing = l->o->pairing};
    if (begin_with(&l->memory, f, e)) return -1;
    return kvc_file_load(f, &l->memory, &how, e);
}

int kvc_store_load_name(struct kvc_store_namespace *ns, const struct kvc_store_name *name,
                        const struct kvc_memory *m, const struct kvc_store_load_options *options,
                        struct kvc_error *e) {
    if (KVC_NULL(e, ns, name, m)) return -1;
    struct kvc_store_load_options o;
    struct loading l = {.o = &o};
    struct kvc_error why;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_load_options", &why) ||
        kvc_sized_take(&l.memory, sizeof l.memory, m, "kvc_memory", &why)) {
        if (e) *e = why;
        return -1;
    }
    struct kvc_file *f = read_named(ns, name, &o, load_memory, &l, &why);
    if (f) {
        why.code = KVC_OK;
        kvc_count(ns->store, KVC_COUNT_LOADED, l.memory.tokens);
    }
    if (e) *e = why;
    kvc_file_close(f);
    if (f) return 1;
    if (why.code == KVC_ERR_USAGE || why.code == KVC_ERR_NOT_SLICEABLE) return -1;
    return 0;
}

static int drop_names_in(struct kvc_store_namespace *ns, const struct kvc_store_name *names,
                         size_t n, struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    struct kvc_object *o = n ? kvc_named_objects(ns, names, n, e) : NULL;
    int status = n && !o ? -1 : 0;
    for (unsigned i = 0; i < s->n_tiers && n && !status; i++)
        status = s->tier[i].ops->drop(s->tier[i].tier, o, n, kvc_now() + KVC_OBJECT_TIME, e);
    free(o);
    return status;
}

int kvc_store_drop_names(struct kvc_store_namespace *ns, const struct kvc_store_name *names,
                         size_t n, struct kvc_error *e) {
    if (KVC_NULL(e, ns)) return -1;
    if (n && KVC_NULL(e, names)) return -1;
    kvc_learnt_catch_up(ns);
    int status = drop_names_in(ns, names, n, e); /* first, as in kvc_store_drop() */
    struct kvc_store_namespace *packed = kvc_learnt_namespace(ns);
    if (packed && !status) status = drop_names_in(packed, names, n, e);
    kvc_store_namespace_close(packed);
    return status;
}
