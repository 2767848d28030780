/* whole.c: caches that cannot be cut into chunks, as those of sliding windows and recurrent states:
 * one object each, found by the tokens that a prompt begins with. Spec: STORE.md, "Whole caches".
 * Not for putting them (put.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"

#include <stdlib.h>
#include <string.h>

/* Asks a tier for the object with the last key, of those before number `end`. */
struct last_request {
    struct kvc_request base;
    struct kvc_object *object; /* of all keys */
    size_t end, found;
};

static void whole_clear(struct kvc_request *base) {
    free(((struct last_request *)base)->object);
}

static int whole_run(struct kvc_request *base, struct kvc_tier *l, struct kvc_error *e) {
    struct last_request *r = (struct last_request *)base;
    for (size_t i = r->end; i-- && kvc_now() < base->deadline;) {
        size_t found = 0;
        uint64_t size;
        if (l->ops->find(l, &r->object[i], 1, base->deadline, &found, &size, e)) return -1;
        if (!found) continue;
        r->found = i + 1;
        return 0;
    }
    return 0;
}

/* Returns the number of the last key before `end` of which a tier has an object, plus 1; 0: it has
 * none. */
static size_t last_there(struct kvc_store *s, unsigned tier, const struct kvc_object *o, size_t end,
                         kvc_instant deadline) {
    struct last_request *r = calloc(1, sizeof *r);
    struct kvc_error e;
    if (!r) return 0;
    kvc_request_init(&r->base, s, tier, deadline);
    r->base.run = whole_run;
    r->base.clear = whole_clear;
    r->end = end;
    size_t found = 0;
    if ((r->object = malloc(end * sizeof *o)) != NULL) {
        memcpy(r->object, o, end * sizeof *o);
        kvc_request_start(&r->base);
        if (!kvc_request_wait(&r->base, &e)) found = r->found;
    }
    kvc_request_release(&r->base);
    return found;
}

/* Opens an object, which then owns its bytes. */
static struct kvc_file *open_whole(const struct kvc_chunk *chunk, void *data, size_t size,
                                   struct kvc_error *e) {
    struct kvc_file *f = kvc_chunk_open(chunk, data, &size, 1, e);
    if (f) {
        f->owned = data;
        f->free_owned = free;
    } else {
        free(data);
    }
    return f;
}

/* Goes through the objects that a tier has, from the last key on, to the first that begins the
 * prompt. */
static struct kvc_file *search_tier(struct kvc_store_namespace *ns, unsigned tier,
                                    const struct kvc_object *o, size_t n, struct kvc_chunk *chunk,
                                    kvc_instant deadline, struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    for (size_t end = n, found; end && (found = last_there(s, tier, o, end, deadline)) != 0;
         end = found - 1) {
        size_t size;
        struct kvc_error why;
        chunk->i = found - 1;
        if (kvc_store_is_bad(s, o[chunk->i].key)) continue;
        void *data = kvc_store_read_tier(s, tier, &o[chunk->i], kvc_now() + KVC_OBJECT_TIME, &size,
                                         &why);
        if (!data) continue;
        struct kvc_file *f = open_whole(chunk, data, size, &why);
        if (f) {
            kvc_store_notify(s, tier, KVC_TOUCH, &o[chunk->i], 1, 0);
            return f;
        }
        if (why.code != KVC_ERR_MODEL) { /* else it is sound, and of another prompt */
            kvc_store_mark_bad(s, tier, &o[chunk->i], &why);
            if (e) *e = why;
        }
    }
    return NULL;
}

struct kvc_file *kvc_store_get_whole(struct kvc_store_namespace *ns, const int32_t *tokens,
                                     uint64_t n, const struct kvc_store_find_options *options,
                                     struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    struct kvc_store_find_options o;
    struct kvc_chunk chunk = {.ns = ns, .tokens = tokens, .whole = n};
    const size_t keys = (size_t)(n / KVC_PREFIX_TOKENS) + 1;
    struct kvc_object *object = NULL;
    uint8_t *key = NULL;
    struct kvc_file *f = NULL;
    if (e) *e = (struct kvc_error){.code = KVC_OK};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_find_options", e) || !n) return NULL;
    int status = kvc_namespace_keys(ns, tokens, n, o.extras, o.n_extras, &key, e);
    if (!status && !(object = calloc(keys, sizeof *object))) status = kvc_fail_memory(e, "keys");
    for (size_t i = 0; i < keys && !status; i++)
        status = kvc_whole_object(ns, key, i, &object[i], e);
    chunk.keys = key;
    kvc_count(s, KVC_COUNT_LOOKUPS, 1);
    kvc_count(s, KVC_COUNT_ASKED, n);
    for (unsigned l = 0; l < s->n_tiers && !f && !status; l++) {
        const int64_t time = o.timeout_us             ? o.timeout_us
                             : s->tier[l].ops->remote ? s->options.timeout_us
                                                      : s->options.local_timeout_us;
        f = search_tier(ns, l, object, keys, &chunk, kvc_now() + time, e);
    }
    if (f) kvc_count(s, KVC_COUNT_FOUND, f->cache->n_tokens);
    free(object);
    free(key);
    return f;
}
