/* s3_list.c: lists and deletes objects. Spec: S3.md, "Listing" and "Deleting". */
#include "formats/store/s3/s3_call.h"
#include "formats/store/s3/s3_ops.h"
#include "formats/store/s3/s3_xml.h"

#include "codecs/memory.h"
#include "formats/io/hash.h"

#include <stdlib.h>
#include <string.h>

/* Objects that are deleted in one round. */
#define ROUND 256
/* Microseconds that a page of a list may take with all of its tries, beside the time of one that
 * stands still. */
#define PAGE_TIME INT64_C(60000000)

/* Gives the objects of one page. Returns 1 to stop. */
static int take_page(const struct kvc_s3 *l, const struct kvc_s3_listing *list, kvc_tier_seen *seen,
                     void *state) {
    const size_t prefix = strlen(l->setup.prefix);
    for (size_t i = 0; i < list->n; i++) {
        struct kvc_object o = {0};
        const struct kvc_s3_entry *x = &list->entry[i];
        /* is not ours */
        if (strncmp(x->key, l->setup.prefix, prefix) != 0 || kvc_object_parse(x->key + prefix, &o))
            continue;
        if (seen(state, &o, x->size, x->modified)) return 1;
    }
    return 0;
}

/* Asks for the page after a token, by a deadline of its own. */
static int read_page(struct kvc_s3_call *c, const char *prefix, const char *token,
                     struct kvc_s3_listing *list, struct kvc_error *e) {
    struct kvc_s3_request r = {.method = "GET",
                               .query = {{"continuation-token", token},
                                         {"encoding-type", "url"},
                                         {"list-type", "2"},
                                         {"prefix", prefix}}};
    c->deadline = kvc_now() + PAGE_TIME + c->l->setup.stall;
    int status = kvc_s3_ask(c, &r, e);
    if (!status && r.answer.status != 200) status = kvc_s3_fail(c->l, &r, e);
    if (!status) status = kvc_s3_read_listing(list, r.text ? r.text : "", r.length, e);
    kvc_s3_request_free(&r);
    return status;
}

int kvc_s3_walk(struct kvc_tier *tier, const uint8_t *ns, kvc_tier_seen *seen, void *state,
                struct kvc_error *e) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    struct kvc_s3_call c;
    char prefix[sizeof l->setup.prefix + 2 * KVC_OBJECT_NS + 2], *token = NULL;
    size_t n = strlen(l->setup.prefix);
    memcpy(prefix, l->setup.prefix, n + 1);
    if (ns) {
        kvc_hex(ns, KVC_OBJECT_NS, prefix + n);
        n += 2 * KVC_OBJECT_NS;
        memcpy(prefix + n, "-", 2);
    }
    if (kvc_s3_call_begin(&c, l, INT64_MAX, e)) return -1;
    int status = 0, more = 1, stop = 0;
    while (!status && more && !stop) {
        struct kvc_s3_listing list;
        status = read_page(&c, prefix, token, &list, e);
        if (status) break;
        stop = take_page(l, &list, seen, state);
        more = list.more;
        if (more && token && strcmp(token, list.next) == 0)
            status = kvc_fail(e, KVC_ERR_DAMAGED,
                              "S3 bucket '%s': the server repeats a page of its list",
                              l->setup.bucket);
        free(token);
        token = list.next;
        list.next = NULL;
        kvc_s3_listing_free(&list);
    }
    free(token);
    kvc_s3_call_end(&c);
    return status;
}

struct delete {
    struct kvc_s3_request r;
    char name[KVC_OBJECT_NAME];
};

/* Deletes up to ROUND objects. */
static int delete_some(struct kvc_s3_call *c, struct delete *d, const struct kvc_object *o,
                       size_t n, struct kvc_error *e) {
    struct kvc_s3_request *r;
    int status = 0;
    for (size_t i = 0; i < n; i++) {
        d[i] = (struct delete){.r = {.method = "DELETE", .index = i}};
        kvc_object_name(&o[i], d[i].name);
        d[i].r.name = d[i].name;
        kvc_s3_add(c, &d[i].r);
        kvc_s3_remember(c->l->memory, &o[i], KVC_S3_UNKNOWN, 0, kvc_now());
    }
    for (size_t left = n; left && !status; left--) {
        status = kvc_s3_next(c, &r, e);
        if (status) break;
        if (*r->why || (r->answer.status / 100 != 2 &&
                        (r->answer.status != 404 || strcmp(r->code, "NoSuchBucket") == 0)))
            status = kvc_s3_fail(c->l, r, e);
    }
    for (size_t i = 0; i < n; i++) {
        kvc_s3_cancel(c, &d[i].r);
        kvc_s3_request_free(&d[i].r);
    }
    return status;
}

int kvc_s3_drop(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                struct kvc_error *e) {
    struct kvc_s3_call c;
    if (!n) return 0;
    struct delete *d = kvc_alloc_zeros(n < ROUND ? n : ROUND, sizeof *d);
    if (!d) return kvc_fail_memory(e, "requests to S3");
    int status = kvc_s3_call_begin(&c, (struct kvc_s3 *)tier, deadline, e);
    if (!status) {
        for (size_t i = 0; i < n && !status; i += ROUND)
            status = delete_some(&c, d, o + i, n - i < ROUND ? n - i : ROUND, e);
        kvc_s3_call_end(&c);
    }
    free(d);
    return status;
}

int kvc_s3_quarantine(struct kvc_tier *tier, const struct kvc_object *o, struct kvc_error *e) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    /* also if it is deleted: until the server has done so, it is not read again */
    const int status = l->setup.delete_bad ? kvc_s3_drop(tier, o, 1, kvc_now() + 5000000, e) : 0;
    if (!l->setup.delete_bad || status) kvc_s3_remember(l->memory, o, KVC_S3_BAD, 0, kvc_now());
    return status;
}
