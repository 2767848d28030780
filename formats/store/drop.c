/* drop.c: removes what a store has of a namespace, or of one prompt. Spec: STORE.md, "Deleting".
 * Not for evicting, which tiers do by themselves. */
#include "formats/store/store.h"

#include "formats/api/sized.h"

#include <stdlib.h>
#include <string.h>

#define AT_ONCE 32         /* objects that one call reads */
#define REMOVING 600000000 /* microseconds of a call */

/* --- a namespace --- */

static int64_t drop_all(struct kvc_store_namespace *ns, struct kvc_error *e) {
    struct kvc_list list = {.n = 0};
    int status = kvc_list_namespace(ns, &list, e);
    if (!status) status = kvc_list_remove(ns->store, &list, e);
    free(list.item);
    pthread_mutex_lock(&ns->lock);
    ns->is_stored = 0; /* the next put writes its facts anew */
    pthread_mutex_unlock(&ns->lock);
    return status ? -1 : (int64_t)list.n;
}

int64_t kvc_store_drop(struct kvc_store_namespace *ns, struct kvc_error *e) {
    if (KVC_NULL(e, ns)) return -1;
    /* first where caches wait to be packed: a cache that is packed meanwhile is among the rest */
    kvc_learnt_catch_up(ns);
    const int64_t own = drop_all(ns, e);
    struct kvc_store_namespace *packed = own < 0 ? NULL : kvc_learnt_namespace(ns);
    const int64_t n = packed ? drop_all(packed, e) : 0;
    kvc_store_namespace_close(packed);
    return own < 0 || n < 0 ? -1 : n + own;
}

/* --- one prompt --- */

struct prompt {
    struct kvc_store_namespace *ns;
    struct kvc_store_drop_options options;
    const int32_t *tokens;
    uint64_t n;
    size_t chunks; /* whole ones */
    size_t kept;   /* of these, from the first one on: others go on after them */
    uint8_t *keys;
    /* of its chunks, and of a cache that cannot be cut, with number `chunks`; sorted by key */
    struct kvc_listed *name;
    struct kvc_list own, others;
    int cancelled, is_short; /* of memory */
    uint64_t read, total;    /* bytes of others */
};

static int from_last(const void *a, const void *b) {
    const uint64_t x = ((const struct kvc_listed *)a)->number,
                   y = ((const struct kvc_listed *)b)->number;
    return x > y ? -1 : x < y;
}

static int name_objects(struct prompt *p, struct kvc_error *e) {
    const struct kvc_store_drop_options *o = &p->options;
    const size_t last = (size_t)(p->n / KVC_PREFIX_TOKENS);
    if (p->n > SIZE_MAX / 8) return kvc_fail(e, KVC_ERR_USAGE, "there are too many tokens");
    p->chunks = (size_t)(p->n / p->ns->chunk);
    if (kvc_namespace_keys(p->ns, p->tokens, p->n, o->extras, o->n_extras, &p->keys, e)) return -1;
    if (!(p->name = calloc(p->chunks + 1, sizeof *p->name))) return kvc_fail_memory(e, "a prompt");
    for (size_t i = 0; i <= p->chunks; i++) {
        p->name[i].number = i;
        if (i < p->chunks ? kvc_chunk_object(p->ns, p->keys, i, &p->name[i].object, e)
                          : kvc_whole_object(p->ns, p->keys, last, &p->name[i].object, e))
            return -1;
    }
    qsort(p->name, p->chunks + 1, sizeof *p->name, kvc_listed_by_key);
    return 0;
}

/* Notes an object of the prompt, or another chunk of the namespace. */
static int sort_out(struct prompt *p, struct kvc_listed item) {
    const struct kvc_listed key = {.object = item.object}; /* names are of no tier */
    const struct kvc_listed *own = bsearch(&key, p->name, p->chunks + 1, sizeof *p->name,
                                           kvc_listed_by_key);
    if (own) item.number = own->number;
    if (own) return kvc_list_add(&p->own, &item);
    return item.object.kind == KVC_OBJECT_CHUNK ? kvc_list_add(&p->others, &item) : 0;
}

static int list_all(struct prompt *p, struct kvc_error *e) {
    struct kvc_list all = {.n = 0};
    int status = kvc_list_namespace(p->ns, &all, e);
    for (size_t i = 0; i < all.n && !status; i++)
        if (sort_out(p, all.item[i])) status = kvc_fail_memory(e, "a list of objects");
    free(all.item);
    return status;
}

/* Notes after which chunk of the prompt another chunk goes on, if it does. */
static void note_parent(struct prompt *p, const struct kvc_object *o, const void *data,
                        size_t size) {
    const struct kvc_open_options open = {.size = sizeof open,
                                          .format = "kvc",
                                          .profile_folders = ""}; /* no rows are read */
    struct kvc_error why = {.code = KVC_OK};
    struct kvc_file *f = kvc_chunk_signature(p->ns->store, o, data, &size, &why)
                             ? NULL
                             : kvc_file_open_memory(data, size, &open, &why);
    p->is_short |= !f && why.code == KVC_ERR_MEMORY;
    if (!f) return; /* a damaged or forged chunk is nobody's */
    struct kvc_prefix_info prefix = {.size = sizeof prefix};
    kvc_file_prefix(f, &prefix);
    const uint64_t first = prefix.first, chunk = p->ns->chunk, i = first / chunk;
    if (prefix.parent && first % chunk == 0 && i > p->kept && i <= p->chunks) {
        const uint8_t *key = p->keys + (first / KVC_PREFIX_TOKENS - 1) * KVC_KEY_BYTES;
        if (memcmp(prefix.parent, key, KVC_KEY_BYTES) == 0) p->kept = (size_t)i;
    }
    kvc_file_close(f);
}

struct reading {
    struct prompt *p;
    const struct kvc_object *object;
};

static int drop_take(void *state, size_t i, void *data, size_t size, const struct kvc_error *why) {
    struct reading *r = state;
    struct prompt *p = r->p;
    (void)why;
    if (data) note_parent(p, &r->object[i], data, size);
    free(data);
    p->read += size;
    if (p->options.progress && p->options.progress(p->options.progress_state, p->read, p->total))
        p->cancelled = 1;
    return p->cancelled || p->kept == p->chunks;
}

/* Leaves each of the other chunks once, in the fastest tier that has it. */
static void drop_doubles(struct prompt *p) {
    struct kvc_list *x = &p->others;
    size_t n = 0;
    if (x->n) qsort(x->item, x->n, sizeof *x->item, kvc_listed_by_key);
    for (size_t i = 0; i < x->n; i++) {
        if (n && memcmp(x->item[n - 1].object.key, x->item[i].object.key, KVC_OBJECT_KEY) == 0)
            continue;
        p->total += x->item[i].bytes;
        x->item[n++] = x->item[i];
    }
    x->n = n;
}

/* Reads the other chunks of the namespace, of which each says what it goes on after. */
static int read_others(struct prompt *p, struct kvc_error *e) {
    struct kvc_store *s = p->ns->store;
    struct kvc_object o[AT_ONCE];
    struct reading r = {.p = p, .object = o};
    drop_doubles(p);
    for (unsigned tier = 0; tier < s->n_tiers; tier++) {
        struct kvc_tier *l = s->tier[tier].tier;
        size_t n = 0;
        for (size_t i = 0; i < p->others.n && p->kept < p->chunks; i++) {
            if (p->others.item[i].tier == tier) o[n++] = p->others.item[i].object;
            if (!n || (n < AT_ONCE && i + 1 < p->others.n)) continue;
            if (l->ops->get(l, o, n, kvc_now() + REMOVING, drop_take, &r, e)) return -1;
            if (p->cancelled) return kvc_fail(e, KVC_ERR_IO, "cancelled by the caller");
            if (p->is_short) return kvc_fail_memory(e, "a chunk");
            n = 0;
        }
    }
    return 0;
}

/* Returns 1 if an object that cannot be cut holds tokens of the prompt, and no others; -1: it
 * cannot be read at present. */
static int is_of_prompt(const struct prompt *p, const struct kvc_listed *x, struct kvc_error *e) {
    const struct kvc_chunk chunk = {.ns = p->ns,
                                    .i = (size_t)(p->n / KVC_PREFIX_TOKENS),
                                    .tokens = p->tokens,
                                    .keys = p->keys,
                                    .whole = p->n};
    struct kvc_error why = {.code = KVC_OK};
    struct kvc_bytes *bytes = kvc_store_read_tier(p->ns->store, x->tier, &x->object,
                                                  kvc_now() + REMOVING, &why);
    size_t size = bytes ? bytes->size : 0;
    struct kvc_file *f = bytes ? kvc_chunk_open(&chunk, bytes->data, &size, 0, &why) : NULL;
    const int is = f != NULL;
    kvc_file_close(f);
    kvc_bytes_release(bytes);
    if (is || why.code == KVC_OK || why.severity != KVC_SEVERITY_RETRY) return is;
    if (e) *e = why;
    return -1;
}

/* Leaves what is to be removed in the list, the last one of the chain first, and counts. */
static int choose(struct prompt *p, struct kvc_store_dropped *d, struct kvc_error *e) {
    struct kvc_list *x = &p->own;
    size_t n = 0;
    uint64_t last = UINT64_MAX;
    if (x->n) qsort(x->item, x->n, sizeof *x->item, from_last);
    for (size_t i = 0; i < x->n; i++) {
        const struct kvc_listed *own = &x->item[i];
        const int whole = own->number == p->chunks,
                  goes = whole ? is_of_prompt(p, own, e) : own->number >= p->kept;
        if (goes < 0) return -1;
        if (whole && !goes) continue; /* it is of another prompt with the same last key */
        if (own->number != last) ++*(goes ? &d->removed : &d->kept);
        last = own->number;
        if (!goes) continue;
        d->bytes += own->bytes;
        x->item[n++] = *own;
    }
    x->n = n;
    return 0;
}

static int drop_tokens_in(struct prompt *p, struct kvc_store_dropped *d, struct kvc_error *e) {
    int status = name_objects(p, e);
    if (!status) status = list_all(p, e);
    if (!status && p->own.n && p->chunks) status = read_others(p, e);
    if (!status) status = choose(p, d, e);
    if (!status) status = kvc_list_remove(p->ns->store, &p->own, e);
    free(p->own.item);
    free(p->others.item);
    free(p->name);
    free(p->keys);
    return status;
}

int kvc_store_drop_tokens(struct kvc_store_namespace *ns, const int32_t *tokens, uint64_t n,
                          const struct kvc_store_drop_options *options,
                          struct kvc_store_dropped *dropped, struct kvc_error *e) {
    if (KVC_NULL(e, ns)) return -1;
    if (n && KVC_NULL(e, tokens)) return -1;
    if (kvc_sized_check(dropped, "kvc_store_dropped", e)) return -1;
    struct kvc_store_drop_options o;
    struct kvc_store_dropped own = {.size = sizeof own};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_drop_options", e)) return -1;
    struct prompt p = {.ns = ns, .options = o, .tokens = tokens, .n = n};
    kvc_learnt_catch_up(ns);
    int status = drop_tokens_in(&p, &own, e); /* first, as in kvc_store_drop() */
    struct kvc_store_namespace *packed = kvc_learnt_namespace(ns);
    p = (struct prompt){.ns = packed, .options = o, .tokens = tokens, .n = n};
    if (packed && !status) status = drop_tokens_in(&p, &own, e);
    kvc_store_namespace_close(packed);
    if (status) return -1;
    return dropped ? kvc_sized_give(dropped, &own, sizeof own, "kvc_store_dropped", e) : 0;
}
