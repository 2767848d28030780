/* s3_put.c: writes objects: whole, or in parts that become an object at once; and the thread that
 * removes uploads that came to nothing. Spec: S3.md, "Requests". */
#include "formats/store/s3/s3_state.h"

#include "codecs/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_PARTS 10000
#define ATTEMPTS 4

struct put {
    struct kvc_s3_call c;
    struct kvc_s3 *l;
    char name[KVC_OBJECT_NAME];
    const uint8_t *data;
    size_t size;
    int replace, there;
    struct kvc_error *e;
};

/* Reports a write that was refused. What is too large is the fault of the object, and not of the
 * tier. */
static int refused(struct put *p, const struct kvc_s3_request *r) {
    kvc_s3_fail(p->l, r, p->e);
    if (p->e && !*r->why && (r->answer.status == 413 || strcmp(r->code, "EntityTooLarge") == 0))
        p->e->severity = KVC_SEVERITY_ITEM;
    return -1;
}

/* Asks whether the object is there: 1 or 0; -1: there is no answer. */
static int is_there(struct put *p) {
    struct kvc_s3_request r = {.method = "HEAD", .name = p->name};
    if (kvc_s3_ask(&p->c, &r, p->e)) return -1;
    kvc_s3_request_free(&r);
    if (r.answer.status == 200) return 1;
    return r.answer.status == 404 ? 0 : kvc_s3_fail(p->l, &r, p->e);
}

static const char *condition(const struct put *p) {
    return p->replace || p->l->setup.head_first || atomic_load(&p->l->no_condition) ? NULL : "*";
}

/* What an answer to a write with a condition means. */
enum verdict {
    WRITTEN,
    THERE,
    CONFLICT /* with another write at the same time */,
    NO_CONDITION,
    REFUSED
};

static enum verdict judge(const struct kvc_s3_request *r) {
    const int status = r->answer.status;
    if (*r->why) return REFUSED;
    if (status / 100 == 2) return WRITTEN;
    if (r->if_none_match && (status == 412 || status == 304)) return THERE;
    if (status == 409) return CONFLICT;
    if (r->if_none_match && (status == 501 || strcmp(r->code, "NotImplemented") == 0))
        return NO_CONDITION;
    return REFUSED;
}

static int put_whole(struct put *p) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct kvc_s3_request r = {.method = "PUT",
                                   .name = p->name,
                                   .body = p->data,
                                   .size = p->size,
                                   .if_none_match = condition(p)};
        if (kvc_s3_ask(&p->c, &r, p->e)) {
            kvc_s3_request_free(&r);
            return -1;
        }
        const enum verdict v = judge(&r);
        kvc_s3_request_free(&r);
        if (v == WRITTEN) return 0;
        if (v == REFUSED) return refused(p, &r);
        p->there = v == THERE;
        if (p->there) return 0;
        if (v == NO_CONDITION) atomic_store(&p->l->no_condition, 1);
        if (attempt == ATTEMPTS - 1) return refused(p, &r);
        const int there = p->replace ? 0 : is_there(p);
        if (there) {
            p->there = there > 0;
            return there > 0 ? 0 : -1;
        }
    }
    return -1;
}

/* --- parts --- */

static int begin_upload(struct put *p, char id[1024]) {
    struct kvc_s3_request r = {.method = "POST", .name = p->name, .query = {{"uploads", ""}}};
    int status = kvc_s3_ask(&p->c, &r, p->e);
    if (!status && r.answer.status != 200) status = refused(p, &r);
    if (!status) status = kvc_s3_read_upload(id, r.text ? r.text : "", r.length, p->e);
    kvc_s3_request_free(&r);
    return status;
}

static int take_part(void *state, struct kvc_s3_request *r, struct kvc_error *e) {
    struct put *p = state;
    if (*r->why || r->answer.status != 200) return refused(p, r);
    if (*r->answer.etag && !strpbrk(r->answer.etag, "<&>")) return 0;
    return kvc_fail(e, KVC_ERR_IO, "S3 bucket '%s': the server names no ETag of a part",
                    p->l->setup.bucket);
}

static int send_parts(struct put *p, struct kvc_s3_request *part, size_t n, size_t bytes,
                      char (*number)[24], const char *id) {
    for (size_t i = 0; i < n; i++) {
        const size_t first = i * bytes, left = p->size - first;
        snprintf(number[i], sizeof number[i], "%zu", i + 1);
        part[i] = (struct kvc_s3_request){.method = "PUT",
                                          .name = p->name,
                                          .query = {{"partNumber", number[i]}, {"uploadId", id}},
                                          .body = p->data + first,
                                          .size = left < bytes ? left : bytes};
    }
    return kvc_s3_ask_all(&p->c, part, n, take_part, p, p->e);
}

/* Writes the document that lists the parts. */
static char *list_parts(const struct kvc_s3_request *part, size_t n) {
    const size_t room = 64 + n * (sizeof part->answer.etag + 64);
    char *text = malloc(room);
    if (!text) return NULL;
    size_t used = (size_t)snprintf(text, room, "<CompleteMultipartUpload>");
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, room - used,
                                 "<Part><PartNumber>%zu</PartNumber><ETag>%s</ETag></Part>", i + 1,
                                 part[i].answer.etag);
    snprintf(text + used, room - used, "</CompleteMultipartUpload>");
    return text;
}

/* Makes an object of the parts. An answer of 200 may hold an error all the same. */
static int end_upload(struct put *p, const char *id, const char *body) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct kvc_s3_request r = {.method = "POST",
                                   .name = p->name,
                                   .query = {{"uploadId", id}},
                                   .body = body,
                                   .size = strlen(body),
                                   .if_none_match = condition(p)};
        char message[256];
        if (kvc_s3_ask(&p->c, &r, p->e)) {
            kvc_s3_request_free(&r);
            return -1;
        }
        enum verdict v = judge(&r);
        const int failed = v == WRITTEN && kvc_s3_read_error(r.code, message, r.text, r.length);
        kvc_s3_redact(p->l, r.code);
        if (failed) v = strcmp(r.code, "PreconditionFailed") == 0 ? THERE : CONFLICT;
        kvc_s3_request_free(&r);
        if (v == WRITTEN) return 0;
        p->there = v == THERE;
        if (p->there) return 0;
        if (v == NO_CONDITION) {
            atomic_store(&p->l->no_condition, 1);
        } else if (r.answer.status ==
                   404) { /* an attempt whose answer was lost may have ended it */
            const int there = is_there(p);
            if (there) return there > 0 ? 0 : -1;
            return refused(p, &r);
        } else if (v == REFUSED || attempt == ATTEMPTS - 1) {
            return refused(p, &r);
        }
    }
    return -1;
}

static int put_parts(struct put *p) {
    char id[1024];
    size_t bytes = (size_t)p->l->setup.part;
    if (p->size / bytes >= MAX_PARTS) bytes = p->size / MAX_PARTS + 1;
    const size_t n = (p->size - 1) / bytes + 1;
    if (!p->replace) {
        p->there = is_there(p);
        if (p->there) return p->there > 0 ? 0 : -1;
    }
    if (begin_upload(p, id)) return -1;
    struct kvc_s3_request *part = kvc_alloc_zeros(n, sizeof *part);
    char(*number)[24] = kvc_alloc(n, sizeof *number), *body = NULL;
    int status = part && number ? 0 : kvc_fail_memory(p->e, "parts of an upload");
    if (!status) status = send_parts(p, part, n, bytes, number, id);
    if (!status && (body = list_parts(part, n)) == NULL)
        status = kvc_fail_memory(p->e, "parts of an upload");
    if (!status) status = end_upload(p, id, body);
    if (status || p->there) kvc_s3_abort(p->l->aborts, p->name, id);
    free(body);
    free(number);
    free(part);
    return status;
}

int kvc_s3_put(struct kvc_tier *tier, const struct kvc_object *o, const void *data, size_t size,
               const struct kvc_tier_put *how, kvc_instant deadline, int *there,
               struct kvc_error *e) {
    struct put p = {
        .l = (struct kvc_s3 *)tier, .data = data, .size = size, .replace = how->replace, .e = e};
    uint64_t known_size;
    const enum kvc_s3_known known = kvc_s3_recall(p.l->memory, o, &known_size, kvc_now());
    *there = known == KVC_S3_THERE && !p.replace;
    if (*there) return 0;
    if (size > p.l->setup.max_object) {
        kvc_fail(e, KVC_ERR_USAGE,
                 "S3 bucket '%s': an object of %zu bytes is larger than max-object allows",
                 p.l->setup.bucket, size);
        if (e) e->severity = KVC_SEVERITY_ITEM;
        return -1;
    }
    if (known == KVC_S3_BAD) p.replace = 1;
    kvc_object_name(o, p.name);
    if (kvc_s3_call_begin(&p.c, p.l, deadline, e)) return -1;
    int status = 0;
    if (size > p.l->setup.part) {
        status = put_parts(&p);
    } else {
        if (!p.replace && !condition(&p)) p.there = is_there(&p);
        if (p.there) status = p.there > 0 ? 0 : -1;
        else status = put_whole(&p);
    }
    kvc_s3_call_end(&p.c);
    if (status) return -1;
    *there = p.there;
    kvc_s3_remember(p.l->memory, o, KVC_S3_THERE, p.there ? 0 : size, kvc_now());
    return 0;
}

/* --- uploads that came to nothing --- */

#define SECOND INT64_C(1000000)
#define TRIES 12

struct upload {
    struct upload *next;
    char name[KVC_OBJECT_NAME], id[1024];
    unsigned tries;
    kvc_instant due;
};

struct kvc_s3_aborts {
    struct kvc_s3 *l;
    pthread_mutex_t lock;
    pthread_cond_t more;
    pthread_t thread;
    struct upload *list;
    int running, stop;
    kvc_instant last; /* of the last tries, once it is to stop */
};

/* Removes an upload. Returns 0 once it is gone. */
static int remove_upload(struct kvc_s3_aborts *a, const struct upload *u, kvc_instant deadline) {
    struct kvc_s3_request r = {.method = "DELETE", .name = u->name, .query = {{"uploadId", u->id}}};
    struct kvc_s3_call c;
    if (kvc_s3_call_begin(&c, a->l, deadline, NULL)) return -1;
    int status = kvc_s3_ask(&c, &r, NULL);
    if (!status && r.answer.status / 100 != 2 && r.answer.status != 404) status = -1;
    kvc_s3_call_end(&c);
    kvc_s3_request_free(&r);
    return status;
}

/* Takes the upload that is due, with the lock held. Sets *wait to the time of the next one. */
static struct upload *take_due(struct kvc_s3_aborts *a, kvc_instant now, kvc_instant *wait) {
    *wait = INT64_MAX;
    for (struct upload **at = &a->list; *at; at = &(*at)->next) {
        struct upload *u = *at;
        if (a->stop || u->due <= now) {
            *at = u->next;
            return u;
        }
        if (u->due < *wait) *wait = u->due;
    }
    return NULL;
}

static void *work(void *state) {
    struct kvc_s3_aborts *a = state;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        kvc_instant now = kvc_now(), wait;
        struct upload *u = take_due(a, now, &wait);
        if (!u && a->stop) break;
        if (!u) {
            kvc_wait_until(&a->more, &a->lock, wait);
            continue;
        }
        const int stop = a->stop;
        const kvc_instant deadline = stop ? a->last : now + 5 * SECOND;
        pthread_mutex_unlock(&a->lock);
        const int failed = remove_upload(a, u, deadline);
        pthread_mutex_lock(&a->lock);
        if (!failed || stop || ++u->tries == TRIES) {
            free(u);
            continue;
        }
        u->due = kvc_now() + (SECOND / 8 << (u->tries < 9 ? u->tries : 9));
        u->next = a->list;
        a->list = u;
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

struct kvc_s3_aborts *kvc_s3_aborts_new(struct kvc_s3 *l) {
    struct kvc_s3_aborts *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->l = l;
    kvc_condition_init(&a->more);
    pthread_mutex_init(&a->lock, NULL);
    return a;
}

void kvc_s3_abort(struct kvc_s3_aborts *a, const char *name, const char *upload) {
    struct upload *u = calloc(1, sizeof *u);
    if (!u) return; /* a rule of the bucket removes it later */
    memcpy(u->name, name, strlen(name) + 1);
    memcpy(u->id, upload, strlen(upload) + 1);
    pthread_mutex_lock(&a->lock);
    u->next = a->list;
    a->list = u;
    if (!a->running) a->running = !pthread_create(&a->thread, NULL, work, a);
    pthread_cond_signal(&a->more);
    pthread_mutex_unlock(&a->lock);
}

void kvc_s3_aborts_free(struct kvc_s3_aborts *a) {
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    a->stop = 1;
    a->last = kvc_now() + 2 * SECOND;
    pthread_cond_signal(&a->more);
    const int running = a->running;
    pthread_mutex_unlock(&a->lock);
    if (running) pthread_join(a->thread, NULL);
    while (a->list) {
        struct upload *u = a->list;
        a->list = u->next;
        free(u);
    }
    pthread_cond_destroy(&a->more);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
