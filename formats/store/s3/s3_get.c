/* s3_get.c: reads objects by ranges, several at once, and hands them over in order. Spec: S3.md,
 * "Reading". */
#include "formats/store/s3/s3_state.h"

#include "codecs/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Attempts at an object that changes while it is read. */
#define ATTEMPTS 3

/* An object on its way. */
struct fetch {
    char name[KVC_OBJECT_NAME];
    uint8_t *data;
    uint64_t size;    /* of the object, once it is known; before, what was guessed */
    uint64_t counted; /* bytes of the window */
    struct kvc_s3_request *part;
    size_t parts, left; /* requests, and those without an answer */
    int known;          /* an answer said the size */
    int attempts, over;
    char etag[136];
    struct kvc_error *why; /* NULL: nothing is wrong */
};

struct get {
    struct kvc_s3_call c;
    const struct kvc_object *o;
    struct fetch *f;
    /* objects; those before `first` are handed over, those from `next` on not yet begun */
    size_t n, first, next;
    uint64_t bytes; /* of the window */
    struct kvc_error *e;
};

static void drop_parts(struct get *g, struct fetch *f) {
    for (size_t i = 0; i < f->parts; i++) {
        kvc_s3_cancel(&g->c, &f->part[i]);
        kvc_s3_request_free(&f->part[i]);
    }
    free(f->part);
    f->part = NULL;
    f->parts = f->left = 0;
}

/* Ends an object without its bytes. */
static void miss(struct get *g, struct fetch *f) {
    drop_parts(g, f);
    free(f->data);
    f->data = NULL;
    f->over = 1;
    kvc_s3_remember(g->c.l->memory, &g->o[f - g->f], KVC_S3_UNKNOWN, 0, kvc_now());
}

/* The same, and says why. The text may be of a request, which ends too. None of it tells of a
 * damaged object, which would be deleted. */
static int refuse(struct get *g, struct fetch *f, enum kvc_code code, const char *what) {
    struct kvc_error *why = calloc(1, sizeof *why);
    if (!why) return kvc_fail_memory(g->e, "a message");
    kvc_fail(why, code, "S3 bucket '%s' at %s: %s: %s", g->c.l->setup.bucket, g->c.l->setup.base,
             f->name, what);
    why->severity = KVC_SEVERITY_ITEM;
    f->why = why;
    miss(g, f);
    return 0;
}

static void count_bytes(struct get *g, struct fetch *f, uint64_t bytes) {
    g->bytes = g->bytes - f->counted + bytes;
    f->counted = bytes;
}

/* Asks for the ranges from part `from` on, until `size`. */
static int ask_parts(struct get *g, struct fetch *f, size_t from, uint64_t size) {
    const uint64_t range = g->c.l->setup.range;
    const size_t parts = size ? (size_t)((size - 1) / range + 1) : 1;
    struct kvc_s3_request *part = kvc_alloc_zeros(parts, sizeof *part);
    if (!part) return kvc_fail_memory(g->e, "requests to S3");
    f->part = part;
    f->parts = parts;
    for (size_t i = from; i < parts; i++) {
        const uint64_t first = i * range, left = size - first;
        part[i] = (struct kvc_s3_request){.method = "GET",
                                          .name = f->name,
                                          .first = first,
                                          .bytes = left < range ? left : range,
                                          .into = f->data + first,
                                          .if_match = from ? f->etag : NULL,
                                          .index = (size_t)(f - g->f)};
        kvc_s3_add(&g->c, &part[i]);
        f->left++;
    }
    return 0;
}

/* Begins an object. If its size is remembered, all of its ranges are asked for at once, and all of
 * their answers must agree; else the first one. */
static int begin(struct get *g, struct fetch *f, uint64_t guess) {
    const uint64_t size = guess ? guess : g->c.l->setup.range;
    f->known = 0;
    f->size = guess;
    f->etag[0] = '\0';
    f->data = kvc_alloc(size, 1);
    if (!f->data) return kvc_fail_memory(g->e, "an object of S3");
    count_bytes(g, f, size);
    return ask_parts(g, f, 0, size);
}

/* Reads it once more: it has changed, or is not what was remembered. */
static int restart(struct get *g, struct fetch *f) {
    if (++f->attempts == ATTEMPTS) return refuse(g, f, KVC_ERR_IO, "it changes while it is read");
    miss(g, f);
    f->over = 0;
    return begin(g, f, 0);
}

static int complete(struct get *g, struct fetch *f) {
    drop_parts(g, f);
    uint8_t *fit = kvc_realloc(f->data, f->size ? f->size : 1, 1);
    if (fit) f->data = fit;
    f->over = 1;
    count_bytes(g, f, f->size);
    kvc_s3_remember(g->c.l->memory, &g->o[f - g->f], KVC_S3_THERE, f->size, kvc_now());
    return 0;
}

static int take_range(struct get *g, struct fetch *f, const struct kvc_s3_request *r) {
    const uint64_t total = r->answer.status == 206 ? (uint64_t)r->answer.total : r->got,
                   range = g->c.l->setup.range;
    if (f->size && total != f->size) return restart(g, f);
    if (total > range && !*r->answer.etag)
        return refuse(g, f, KVC_ERR_UNSUPPORTED,
                      "the server sends no ETag, so that ranges may not belong together");
    if (f->known && strcmp(f->etag, r->answer.etag) != 0) return restart(g, f);
    memcpy(f->etag, r->answer.etag, sizeof f->etag);
    f->known = 1;
    if (f->size || total <= range) {
        f->size = total;
        return f->left ? 0 : complete(g, f);
    }
    if (total > g->c.l->setup.max_object) {
        char text[128];
        snprintf(text, sizeof text, "it has %" PRIu64 " bytes, more than max-object allows", total);
        return refuse(g, f, KVC_ERR_UNSUPPORTED, text);
    }
    uint8_t *grown = kvc_realloc(f->data, total, 1);
    if (!grown) return kvc_fail_memory(g->e, "an object of S3");
    f->data = grown;
    f->size = total;
    count_bytes(g, f, total);
    drop_parts(g, f);
    return ask_parts(g, f, 1, total);
}

static int take_answer(struct get *g, struct kvc_s3_request *r) {
    struct fetch *f = &g->f[r->index];
    const int status = r->answer.status;
    f->left--;
    if (*r->why) return r->wrong ? refuse(g, f, KVC_ERR_IO, r->why) : kvc_s3_fail(g->c.l, r, g->e);
    if (status == 200 || status == 206) return take_range(g, f, r);
    if (status == 404 && strcmp(r->code, "NoSuchBucket") != 0) {
        miss(g, f);
        return 0;
    }
    if (status == 412 || (status == 416 && f->size)) return restart(g, f);
    if (status != 416) return kvc_s3_fail(g->c.l, r, g->e);
    return complete(g, f); /* the object has no bytes, so that there is no such range */
}

/* Begins as many objects as the window has room for. */
static int begin_more(struct get *g) {
    struct kvc_s3 *l = g->c.l;
    for (; g->next < g->n; g->next++) {
        struct fetch *f = &g->f[g->next];
        uint64_t guess = 0;
        const enum kvc_s3_known known = kvc_s3_recall(l->memory, &g->o[g->next], &guess, kvc_now());
        if (guess > l->setup.max_object || known != KVC_S3_THERE) guess = 0;
        if (g->next > g->first && g->bytes + (guess ? guess : l->setup.range) > l->setup.window)
            break;
        kvc_object_name(&g->o[g->next], f->name);
        if (known == KVC_S3_BAD) f->over = 1;
        else if (begin(g, f, guess)) return -1;
    }
    return 0;
}

/* Hands over what is complete. Returns 1 if no more is needed. */
static int hand_over(struct get *g, kvc_tier_take *take, void *state) {
    while (g->first < g->next && g->f[g->first].over) {
        struct fetch *f = &g->f[g->first];
        uint8_t *data = f->data;
        f->data = NULL;
        count_bytes(g, f, 0);
        const int stop = take(state, g->first++, data, data ? (size_t)f->size : 0, f->why);
        if (stop) return 1;
    }
    return 0;
}

int kvc_s3_get(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
               kvc_tier_take *take, void *state, struct kvc_error *e) {
    struct get g = {.o = o, .n = n, .e = e};
    if (!n) return 0;
    g.f = kvc_alloc_zeros(n, sizeof *g.f);
    if (!g.f) return kvc_fail_memory(e, "objects of S3");
    int status = kvc_s3_call_begin(&g.c, (struct kvc_s3 *)tier, deadline, e), stop = 0;
    if (!status) {
        while (!status && !stop && g.first < n) {
            struct kvc_s3_request *r = NULL;
            status = begin_more(&g);
            if (!status && !g.f[g.first].over) status = kvc_s3_next(&g.c, &r, e);
            if (!status && r) status = take_answer(&g, r);
            if (!status) stop = hand_over(&g, take, state);
        }
        for (size_t i = 0; i < g.next; i++) drop_parts(&g, &g.f[i]);
        kvc_s3_call_end(&g.c);
    }
    for (size_t i = 0; i < n; i++) {
        free(g.f[i].data);
        free(g.f[i].why);
    }
    free(g.f);
    return status;
}
