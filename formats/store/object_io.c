/* object_io.c: reads and writes single objects, as facts of namespaces and profiles. Not for chunks
 * on an engine's way (fetch.c, put.c). */
#include "formats/store/store.h"

#include <stdlib.h>
#include <string.h>

struct object_request {
    struct kvc_request base;
    struct kvc_object object;
    void *data; /* read, or to be written */
    size_t size;
    /* what is wrong with an object that was not read; code 0: it is not there */
    struct kvc_error why;
    struct kvc_tier_put how;
    struct kvc_object parent;
    int there;
};

static void object_io_clear(struct kvc_request *r) {
    free(((struct object_request *)r)->data);
}

static int object_io_take(void *state, size_t i, void *data, size_t size,
                          const struct kvc_error *why) {
    struct object_request *r = state;
    (void)i;
    r->data = data;
    r->size = size;
    if (why) r->why = *why;
    return 0;
}

static int run_get(struct kvc_request *base, struct kvc_tier *l, struct kvc_error *e) {
    struct object_request *r = (struct object_request *)base;
    if (l->ops->get(l, &r->object, 1, base->deadline, object_io_take, r, e)) return -1;
    if (r->why.code == KVC_OK) return 0;
    *e = r->why;
    return -1;
}

static int run_put(struct kvc_request *base, struct kvc_tier *l, struct kvc_error *e) {
    struct object_request *r = (struct object_request *)base;
    return l->ops->put(l, &r->object, r->data, r->size, &r->how, base->deadline, &r->there, e);
}

static struct object_request *new_request(struct kvc_store *s, unsigned tier,
                                          const struct kvc_object *o, kvc_instant deadline,
                                          struct kvc_error *e) {
    struct object_request *r = calloc(1, sizeof *r);
    if (!r) {
        kvc_fail_memory(e, "a request");
        return NULL;
    }
    kvc_request_init(&r->base, s, tier, deadline);
    r->base.clear = object_io_clear;
    r->object = *o;
    return r;
}

void *kvc_store_read_tier(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                          kvc_instant deadline, size_t *size, struct kvc_error *e) {
    struct object_request *r = new_request(s, tier, o, deadline, e);
    void *data = NULL;
    if (!r) return NULL;
    kvc_fail(e, KVC_ERR_IO, "the store has no object of this name");
    r->base.run = run_get;
    kvc_request_start(&r->base);
    if (!kvc_request_wait(&r->base, e) && r->data) {
        data = r->data;
        *size = r->size;
        r->data = NULL;
    }
    kvc_request_release(&r->base);
    return data;
}

void *kvc_store_read_object(struct kvc_store *s, const struct kvc_object *o, size_t *size,
                            struct kvc_error *e) {
    void *data = NULL;
    for (unsigned i = 0; i < s->n_tiers && !data; i++) {
        data = kvc_store_read_tier(s, i, o, kvc_now() + KVC_OBJECT_TIME, size, e);
        if (!data) continue;
        const size_t stored = *size; /* with its signature */
        if (kvc_chunk_signature(s, o, data, size, e)) {
            free(data);
            data = NULL;
            continue;
        }
        void *copy = i ? malloc(stored + 1) : NULL; /* faster tiers lack it */
        if (copy) kvc_store_backfill(s, i, o, NULL, memcpy(copy, data, stored), stored);
    }
    return data;
}

int kvc_store_put_tier(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                       const void *data, size_t size, const struct kvc_tier_put *how,
                       kvc_instant deadline, int *there, struct kvc_error *e) {
    struct object_request *r = new_request(s, tier, o, deadline, e);
    if (!r) return -1;
    /* a copy, as the call may return before the tier has done */
    if (!(r->data = malloc(size + 1))) {
        kvc_request_release(&r->base);
        return kvc_fail_memory(e, "an object");
    }
    memcpy(r->data, data, size);
    r->size = size;
    r->how = *how;
    if (how->parent) {
        r->parent = *how->parent;
        r->how.parent = &r->parent;
    }
    r->base.run = run_put;
    kvc_request_start(&r->base);
    const int status = kvc_request_wait(&r->base, e);
    *there = status ? 0 : r->there;
    kvc_request_release(&r->base);
    return status;
}

int kvc_store_write_object(struct kvc_store *s, const struct kvc_object *o, const void *data,
                           size_t size, struct kvc_error *e) {
    /* without it many chunks cannot be read */
    const struct kvc_tier_put how = {.pin = o->kind == KVC_OBJECT_PROFILE};
    void *bytes = malloc(size + 1);
    int status = 0, there, stored = 0;
    if (!bytes) return kvc_fail_memory(e, "an object");
    memcpy(bytes, data, size);
    if (kvc_chunk_sign(s, o, &bytes, &size, e)) status = -1;
    for (unsigned i = 0; i < s->n_tiers && !status; i++)
        if (!kvc_store_put_tier(s, i, o, bytes, size, &how, kvc_now() + KVC_OBJECT_TIME, &there, e))
            stored++;
    free(bytes);
    return stored ? 0 : -1;
}
