/* s3_find.c: finds the longest part of a chain that is there, by HEAD requests. Spec: S3.md,
 * "Finding". */
#include "formats/store/s3/s3_call.h"
#include "formats/store/s3/s3_ops.h"

#include <stdlib.h>
#include <string.h>

struct probe {
    struct kvc_s3_request r;
    char name[KVC_OBJECT_NAME];
};

/* Takes what is remembered: of the objects from the first one on, without a gap. */
static void recall(struct kvc_s3 *l, const struct kvc_object *o, size_t n, uint64_t *size,
                   struct kvc_s3_search *s) {
    const kvc_instant now = kvc_now();
    *s = (struct kvc_s3_search){0, n};
    for (size_t i = 0; i < n; i++) {
        const enum kvc_s3_known known = kvc_s3_recall(l->memory, &o[i], &size[i], now);
        if (known == KVC_S3_THERE && s->low == i) s->low++;
        if (known == KVC_S3_BAD) {
            s->high = i;
            return;
        }
    }
}

/* Asks one round of questions. */
static int s3_find_ask(struct kvc_s3_call *c, struct probe *p, const struct kvc_object *o,
                       const size_t *probe, size_t n, uint64_t *size, uint8_t *there,
                       struct kvc_error *e) {
    struct kvc_s3_request *r;
    for (size_t i = 0; i < n; i++) {
        p[i] = (struct probe){.r = {.method = "HEAD", .index = i}};
        kvc_object_name(&o[probe[i]], p[i].name);
        p[i].r.name = p[i].name;
        kvc_s3_add(c, &p[i].r);
    }
    atomic_fetch_add(&c->l->counters.rounds, 1);
    int status = 0;
    for (size_t left = n; left && !status; left--) {
        status = kvc_s3_next(c, &r, e);
        if (status) break;
        const size_t at = probe[r->index];
        there[r->index] = !*r->why && r->answer.status == 200;
        if (there[r->index]) {
            size[at] = r->answer.length > 0 ? (uint64_t)r->answer.length : 0;
            kvc_s3_remember(c->l->memory, &o[at], KVC_S3_THERE, size[at], kvc_now());
        } else if (*r->why || r->answer.status != 404) {
            status = kvc_s3_fail(c->l, r, e);
        }
    }
    for (size_t i = 0; i < n; i++) {
        kvc_s3_cancel(c, &p[i].r);
        kvc_s3_request_free(&p[i].r);
    }
    return status;
}

int kvc_s3_find(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                size_t *found, uint64_t *size, struct kvc_error *e) {
    struct kvc_s3 *l = (struct kvc_s3 *)tier;
    struct kvc_s3_search s;
    struct kvc_s3_call c;
    size_t probe[KVC_S3_PROBES], asked;
    uint8_t there[KVC_S3_PROBES];
    uint64_t known;
    memset(size, 0, n * sizeof *size);
    recall(l, o, n, size, &s);
    const size_t begun = *found = s.low;
    if (s.low == s.high) return 0;
    struct probe *p = calloc(KVC_S3_PROBES, sizeof *p);
    if (!p) return kvc_fail_memory(e, "requests to S3");
    int status = kvc_s3_call_begin(&c, l, deadline, e);
    if (!status) {
        while (!status && (asked = kvc_s3_probes(&s, probe)) != 0) {
            memset(there, 0, sizeof there);
            status = s3_find_ask(&c, p, o, probe, asked, size, there, e);
            if (!status) kvc_s3_narrow(&s, probe, there, asked);
            else /* what was answered from the first one on without a gap */
                for (size_t i = 0; i < asked && there[i]; i++) s.low = probe[i] + 1;
            *found = s.low;
        }
        kvc_s3_call_end(&c);
        /* Chains are put from their beginning on, so that those between are there too. */
        for (size_t i = begun; i < *found; i++)
            if (kvc_s3_recall(l->memory, &o[i], &known, kvc_now()) == KVC_S3_UNKNOWN)
                kvc_s3_remember(l->memory, &o[i], KVC_S3_THERE, 0, kvc_now());
    }
    free(p);
    return status;
}
