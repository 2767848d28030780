/* tiers.c: what a store's tiers tell: what they are, which objects and namespaces they have, what
 * they know of an object; and what a directory does for who looks after it. Spec: STORE.md,
 * "Tiers". Not for reading objects (load.c, verify.c). */
#include "formats/store/store.h"

#include "codecs/memory.h"
#include "formats/api/sized.h"
#include "formats/io/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Refuses the number of a tier that the store does not have. */
static int check_tier(const struct kvc_store *s, unsigned tier, struct kvc_error *e) {
    if (tier < s->n_tiers) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "the store has no tier %u", tier);
}

/* Fails for a tier that has nothing of the kind. */
static int lacks(const struct kvc_store_tier *t, const char *what, struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: %s has no %s", t->url, t->ops->what, what);
}

unsigned kvc_store_tiers(const struct kvc_store *s) {
    return s->n_tiers;
}

int kvc_store_describe_tier(struct kvc_store *s, unsigned tier, int64_t timeout_us,
                            struct kvc_store_tier_info *info, struct kvc_error *e) {
    if (KVC_NULL(e, s, info)) return -1;
    struct kvc_store_tier_info own = {.objects = -1, .bytes = -1, .limit = -1};
    if (check_tier(s, tier, e)) return -1;
    const struct kvc_store_tier *t = &s->tier[tier];
    const int failed = timeout_us && t->ops->facts(t->tier, &own, kvc_after(timeout_us), e) != 0;
    own.url = t->url;
    own.scheme = t->ops->scheme;
    own.what = t->ops->what;
    own.exists = 1;
    own.folder = t->ops->folder ? t->ops->folder(t->tier, &own.exists) : NULL;
    if (kvc_sized_give(info, &own, sizeof own, "kvc_store_tier_info", failed ? NULL : e)) return -1;
    return failed ? -1 : 0;
}

/* --- lists --- */

struct walk {
    unsigned tier;
    kvc_store_walk_fn *fn;
    void *state;
    int stopped;
};

static int see_object(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    struct walk *w = state;
    char name[KVC_OBJECT_NAME];
    kvc_object_name(o, name);
    w->stopped = w->fn(w->state, w->tier, name, size, used);
    return w->stopped;
}

static int walk_tier(struct kvc_store *s, struct walk *w, const struct kvc_store_namespace *ns,
                     struct kvc_error *e) {
    struct kvc_tier *l = s->tier[w->tier].tier;
    return l->ops->walk(l, ns ? ns->hash : NULL, see_object, w, e);
}

int kvc_store_walk_tier(struct kvc_store *s, unsigned tier, const struct kvc_store_namespace *ns,
                        kvc_store_walk_fn *fn, void *state, struct kvc_error *e) {
    if (KVC_NULL(e, s)) return -1;
    if (!fn) return kvc_null_function(e, __func__, "fn");
    struct walk w = {.tier = tier, .fn = fn, .state = state};
    return check_tier(s, tier, e) ? -1 : walk_tier(s, &w, ns, e);
}

int kvc_store_walk(struct kvc_store *s, const struct kvc_store_namespace *ns, kvc_store_walk_fn *fn,
                   void *state, struct kvc_error *e) {
    if (KVC_NULL(e, s)) return -1;
    if (!fn) return kvc_null_function(e, __func__, "fn");
    struct walk w = {.fn = fn, .state = state};
    for (; w.tier < s->n_tiers && !w.stopped; w.tier++)
        if (walk_tier(s, &w, ns, e)) return -1;
    return 0;
}

static int add_bytes(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    uint64_t *sum = state;
    (void)o, (void)used;
    *sum += size;
    return 0;
}

uint64_t kvc_store_bytes(struct kvc_store *s, unsigned tier, const struct kvc_store_namespace *ns) {
    struct kvc_tier *l = s->tier[tier].tier;
    uint64_t sum = 0;
    return l->ops->walk(l, ns ? ns->hash : NULL, add_bytes, &sum, NULL) ? 0 : sum;
}

struct names {
    kvc_store_namespace_text *item;
    size_t n;
    int failed;
};

static int see_namespace(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    struct names *x = state;
    (void)size, (void)used;
    if (o->kind != KVC_OBJECT_NAMESPACE) return 0;
    void *more = kvc_room_for_one(x->item, x->n, sizeof *x->item);
    x->failed = !more;
    if (!more) return 1;
    x->item = more;
    kvc_hex(o->key, sizeof o->key, x->item[x->n++]);
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

int kvc_store_namespaces(struct kvc_store *s, kvc_store_namespace_text **names, size_t *n,
                         struct kvc_error *e) {
    if (KVC_NULL(e, s, names, n)) return -1;
    struct names x = {.n = 0};
    int status = 0;
    for (unsigned i = 0; i < s->n_tiers && !status; i++) {
        status = s->tier[i].ops->walk(s->tier[i].tier, NULL, see_namespace, &x, e);
        if (x.failed) status = kvc_fail_memory(e, "names");
    }
    if (x.n) qsort(x.item, x.n, sizeof *x.item, by_name);
    *n = 0; /* several tiers may have the same */
    for (size_t i = 0; i < x.n; i++)
        if (!*n || strcmp(x.item[*n - 1], x.item[i]) != 0)
            memmove(x.item[(*n)++], x.item[i], sizeof *x.item);
    *names = x.item;
    return status;
}

/* --- one object --- */

int kvc_store_hit_next(const struct kvc_store_hit *hit, char *name, size_t size) {
    char own[KVC_STORE_OBJECT_NAME];
    if (size) *name = '\0';
    if (hit->chunks * hit->ns->chunk >= hit->asked) return 0;
    kvc_object_name(&hit->object[hit->chunks], own);
    if (strlen(own) >= size) return 0;
    strcpy(name, own);
    return 1;
}

int kvc_store_object(struct kvc_store *s, unsigned tier, const char *name,
                     struct kvc_store_object_info *info, struct kvc_error *e) {
    if (KVC_NULL(e, s, name, info)) return -1;
    struct kvc_store_object_info own = {.size = sizeof own};
    struct kvc_object o;
    if (check_tier(s, tier, e)) return -1;
    const struct kvc_store_tier *t = &s->tier[tier];
    if (kvc_object_parse(name, &o))
        return kvc_fail(e, KVC_ERR_USAGE, "'%s' is no name of an object", name);
    if (!t->ops->record) return lacks(t, "records of objects", e);
    const int known = t->ops->record(t->tier, &o, &own, e);
    if (known <= 0) return known;
    return kvc_sized_give(info, &own, sizeof own, "kvc_store_object_info", e) ? -1 : 1;
}

/* --- looking after a directory --- */

int kvc_store_clean(struct kvc_store *s, unsigned tier,
                    const struct kvc_store_clean_options *options,
                    struct kvc_store_cleaned *cleaned, struct kvc_error *e) {
    if (KVC_NULL(e, s)) return -1;
    if (kvc_sized_check(cleaned, "kvc_store_cleaned", e)) return -1;
    struct kvc_store_clean_options o;
    struct kvc_store_cleaned own;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_clean_options", e) ||
        check_tier(s, tier, e))
        return -1;
    if (o.older < 0)
        return kvc_fail(e, KVC_ERR_USAGE, "objects cannot be older than %" PRId64 " s", o.older);
    const struct kvc_store_tier *t = &s->tier[tier];
    if (!t->ops->clean) return lacks(t, "limits of its own", e);
    if (t->ops->clean(t->tier, &o, &own, e)) return -1;
    return cleaned ? kvc_sized_give(cleaned, &own, sizeof own, "kvc_store_cleaned", e) : 0;
}

int kvc_store_configure(struct kvc_store *s, unsigned tier, const char *const *set, char *text,
                        size_t size, struct kvc_error *e) {
    if (KVC_NULL(e, s)) return -1;
    if (size && KVC_NULL(e, text)) return -1;
    if (check_tier(s, tier, e)) return -1;
    const struct kvc_store_tier *t = &s->tier[tier];
    if (!t->ops->configure) return lacks(t, "configuration", e);
    return t->ops->configure(t->tier, set, text, size, e);
}

#define EXAMINE_TIME 5000000 /* microseconds */

void kvc_store_examine(struct kvc_store *s, unsigned tier, kvc_store_finding_fn *fn, void *state) {
    struct kvc_store_tier_info f;
    struct kvc_error e;
    char text[64];
    if (tier >= s->n_tiers || !fn) return;
    const struct kvc_store_tier *t = &s->tier[tier];
    const kvc_instant began = kvc_now();
    const int failed = t->ops->facts(t->tier, &f, began + EXAMINE_TIME, &e);
    const uint64_t tenths = (uint64_t)(kvc_now() - began + 50) / 100;
    snprintf(text, sizeof text, "answers in %" PRIu64 ".%" PRIu64 " ms", tenths / 10, tenths % 10);
    fn(state, !failed, t->url, failed ? e.message : text);
    if (t->ops->examine) t->ops->examine(t->tier, fn, state);
}

/* --- numbers --- */

int kvc_store_read_time(const char *name, const char *text, int64_t *microseconds,
                        struct kvc_error *e) {
    if (KVC_NULL(e, name, text, microseconds)) return -1;
    struct kvc_url url = {.option[0] = {.key = name, .value = text}, .n = 1};
    return kvc_url_time(&url, name, microseconds, e);
}

int kvc_store_read_size(const char *name, const char *text, uint64_t *bytes, struct kvc_error *e) {
    if (KVC_NULL(e, name, text, bytes)) return -1;
    struct kvc_url url = {.option[0] = {.key = name, .value = text}, .n = 1};
    return kvc_url_bytes(&url, name, bytes, e);
}
