/* verify.c: checks all that a store has, each object alone: that it is whole, and that its tokens,
 * name or facts give the name it is kept under. Spec: STORE.md, "Proof". Not for what a request
 * asks for (chunk.c). */
#include "formats/store/store.h"

#include "codecs/memory.h"
#include "formats/api/sized.h"

#include <stdlib.h>
#include <string.h>

struct verifying {
    struct kvc_store *s;
    struct kvc_store_verify_options options;
    struct kvc_store_namespace **ns; /* those that can be read */
    size_t n_ns;
    unsigned tier;          /* that is read now */
    struct kvc_object *bad; /* to be put aside */
    size_t n_bad;
    struct kvc_error down; /* why the tier cannot be read any more; code KVC_OK: it can */
    struct kvc_store_verified sum;
    uint64_t total; /* bytes, of progress; 0: unknown */
    int failed;     /* there is no memory */
};

/* Returns the namespace of an object, if it can be read: that of a tenant cannot. */
static const struct kvc_store_namespace *namespace_of(const struct verifying *v,
                                                      const struct kvc_object *o) {
    for (size_t i = 0; i < v->n_ns; i++)
        if (memcmp(v->ns[i]->hash, o->ns, sizeof o->ns) == 0) return v->ns[i];
    return NULL;
}

/* Checks that the tokens of a chunk give its name. */
static int check_chunk(const struct kvc_store_namespace *ns, const struct kvc_object *o,
                       const struct kvc_prefix_info *x, struct kvc_error *e) {
    struct kvc_object own;
    if (!ns) return 0;
    const int chunk = x->n_keys == ns->chunk / KVC_PREFIX_TOKENS;
    if (chunk && kvc_chunk_object(ns, x->keys, 0, &own, e)) return -1;
    if (chunk && kvc_object_equal(&own, o)) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "its tokens are of another name");
}

/* Checks a named cache, which says its name. */
static int check_named(const struct kvc_store_namespace *ns, const struct kvc_object *o,
                       const struct kvc_prefix_info *x, struct kvc_error *e) {
    const struct kvc_store_name name = {x->name, x->name_bytes};
    struct kvc_object own;
    if (!x->name) return kvc_fail(e, KVC_ERR_DAMAGED, "it does not say its name");
    if (!ns) return 0;
    if (kvc_named_object(ns, &name, &own, e)) return -1;
    if (kvc_object_equal(&own, o)) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "it is of another name");
}

static int check_cache(const struct verifying *v, const struct kvc_object *o, const void *data,
                       size_t size, struct kvc_error *e) {
    const struct kvc_open_options open = {.size = sizeof open,
                                          .format = "kvc",
                                          .profile_folders = ""}; /* no rows are read */
    struct kvc_prefix_info x = {.size = sizeof x};
    struct kvc_file *f = kvc_file_open_memory(data, size, &open, e);
    if (!f) return -1;
    int status = kvc_file_check_hashes(f, e) || kvc_file_check_prefix(f, e) ? -1 : 0;
    kvc_file_prefix(f, &x);
    if (!status && o->kind == KVC_OBJECT_CHUNK) status = check_chunk(namespace_of(v, o), o, &x, e);
    if (!status && o->kind == KVC_OBJECT_NAMED) status = check_named(namespace_of(v, o), o, &x, e);
    kvc_file_close(f);
    return status;
}

static int check_bytes(const struct verifying *v, const struct kvc_object *o, const void *data,
                       size_t size, struct kvc_error *e) {
    if (!kvc_object_is_cache(o->kind)) return kvc_object_check(v->s, o, data, size, e);
    if (kvc_chunk_signature(v->s, o, data, &size, e)) return -1;
    return check_cache(v, o, data, size, e);
}

static void tell(const struct verifying *v, const struct kvc_error *why) {
    if (v->options.bad) v->options.bad(v->options.bad_state, why);
}

static int note_bad(struct verifying *v, const struct kvc_object *o, struct kvc_error *why,
                    int put_aside) {
    kvc_chunk_blame(o, why);
    tell(v, why);
    v->sum.bad++;
    if (!put_aside && v->options.repair) {
        kvc_fail(why, KVC_ERR_UNSUPPORTED, "it stays where it is: it may be good");
        kvc_chunk_blame(o, why);
        tell(v, why);
    }
    if (!put_aside) return 0;
    struct kvc_object *more = kvc_room_for_one(v->bad, v->n_bad, sizeof *more);
    v->failed |= !more;
    if (!more) return 1;
    v->bad = more;
    v->bad[v->n_bad++] = *o;
    return 0;
}

/* Says whether no object of the tier can be judged now: it is down, it is left alone at present, as
 * other calls failed, or there is no memory. */
static int ends(const struct verifying *v, int unread, const struct kvc_error *why) {
    struct kvc_store_tier *t = &v->s->tier[v->tier];
    char text[KVC_BREAKER_TEXT];
    if (why->code == KVC_ERR_MEMORY) return 1;
    return unread && why->severity == KVC_SEVERITY_RETRY &&
           (t->ops->remote || kvc_breaker_is_open(&t->breaker, text));
}

/* Says whether an object is bad, and not what reads it: a process short of files, or a server, may
 * have a good one that it does not give, and a later kvc may have written it. */
static int is_its_fault(const struct verifying *v, int unread, const struct kvc_error *why) {
    if (why->code == KVC_ERR_UNSUPPORTED || why->severity == KVC_SEVERITY_RETRY) return 0;
    return !unread || !v->s->tier[v->tier].ops->remote || why->code == KVC_ERR_DAMAGED;
}

static int see(void *state, const struct kvc_object *o, uint64_t listed, int64_t used) {
    struct verifying *v = state;
    struct kvc_error why = {.code = KVC_OK};
    struct kvc_bytes *bytes = kvc_store_read_tier(v->s, v->tier, o, kvc_now() + KVC_OBJECT_TIME,
                                                  &why);
    (void)listed, (void)used;
    if (!bytes && why.code == KVC_OK) return 0; /* it has just gone */
    const int unread = !bytes, bad = unread || check_bytes(v, o, bytes->data, bytes->size, &why);
    if (bad && ends(v, unread, &why)) {
        kvc_bytes_release(bytes);
        v->down = why;
        return 1;
    }
    v->sum.objects++;
    v->sum.bytes += bytes ? bytes->size : 0;
    kvc_bytes_release(bytes);
    if (v->options.progress) v->options.progress(v->options.progress_state, v->sum.bytes, v->total);
    return bad ? note_bad(v, o, &why, is_its_fault(v, unread, &why)) : 0;
}

static int verify_tier(struct verifying *v, struct kvc_error *e) {
    struct kvc_tier *l = v->s->tier[v->tier].tier;
    struct kvc_error why;
    v->n_bad = 0;
    v->down.code = KVC_OK;
    int status = l->ops->walk(l, NULL, see, v, e);
    if (!status && v->failed) status = kvc_fail_memory(e, "a list of objects");
    if (!status && v->down.code != KVC_OK) {
        *e = v->down;
        status = -1;
    }
    for (size_t i = 0; i < v->n_bad && v->options.repair && l->ops->quarantine; i++)
        if (l->ops->quarantine(l, &v->bad[i], &why)) tell(v, &why);
        else v->sum.put_aside++;
    return status;
}

/* Reads the tiers. One that cannot be read does not keep the others from it: the first error is
 * the call's, further ones are told. */
static int verify_tiers(struct verifying *v, struct kvc_error *e) {
    int status = 0;
    for (; v->tier < v->s->n_tiers; v->tier++) {
        struct kvc_error why;
        if (!verify_tier(v, &why)) continue;
        if (status) tell(v, &why);
        else if (e) *e = why;
        status = -1;
    }
    return status;
}

/* Opens the namespaces whose names can be checked. Facts that are damaged, and tiers that cannot be
 * read, are met again as objects. */
static int open_namespaces(struct verifying *v, struct kvc_error *e) {
    kvc_store_namespace_text *name;
    size_t n;
    kvc_store_namespaces(v->s, &name, &n, NULL);
    v->ns = calloc(n + 1, sizeof *v->ns);
    for (size_t i = 0; i < n && v->ns; i++)
        if ((v->ns[v->n_ns] = kvc_store_namespace_named(v->s, name[i], NULL, NULL))) v->n_ns++;
    free(name);
    return v->ns ? 0 : kvc_fail_memory(e, "namespaces");
}

int kvc_store_verify(struct kvc_store *s, const struct kvc_store_verify_options *options,
                     struct kvc_store_verified *verified, struct kvc_error *e) {
    if (KVC_NULL(e, s)) return -1;
    if (kvc_sized_check(verified, "kvc_store_verified", e)) return -1;
    struct verifying v = {.s = s};
    if (kvc_sized_take(&v.options, sizeof v.options, options, "kvc_store_verify_options", e))
        return -1;
    int status = open_namespaces(&v, e);
    for (unsigned i = 0; i < s->n_tiers && v.options.progress; i++)
        v.total += kvc_store_bytes(s, i, NULL);
    if (!status) status = verify_tiers(&v, e);
    for (size_t i = 0; i < v.n_ns; i++) kvc_store_namespace_close(v.ns[i]);
    free(v.ns);
    free(v.bad);
    if (verified && kvc_sized_give(verified, &v.sum, sizeof v.sum, "kvc_store_verified", e))
        return -1;
    return status;
}
