/* learning.c: profiles that a store learns from what it holds. A recipe that wants a profile and
 * has none keeps caches lossless in its namespace until these are enough to learn from; then packed
 * in the namespace of recipe and profile, to which those before are moved. Spec: STORE.md,
 * "Learning". Not for how a profile comes of rows (kvc_learning_start()). */
#include "formats/store/store.h"

#include "formats/api/kvc_inspect.h"
#include "formats/api/sized.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* --- opening --- */

/* Refuses a cache that lost something: its values would teach their loss. */
static int check_lossless(const struct kvc_file *f, struct kvc_error *e) {
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    char *text = kvc_namespace_of(f, NULL, &facts, e);
    free(text);
    if (!text || strcmp(facts.fidelity, "lossless") == 0) return text ? 0 : -1;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "it has lost values already");
}

/* Has a namespace learn for caches like f, if its recipe takes a profile and has none. */
static int prepare(struct kvc_store_namespace *ns, const struct kvc_file *f,
                   const struct kvc_store_namespace_options *o, struct kvc_error *e) {
    struct kvc_recipe_info recipe = {.size = sizeof recipe};
    struct kvc_file_facts facts = {.size = sizeof facts};
    if (!o->recipe || o->profile || o->no_learning) return 0;
    if (kvc_recipe_describe(o->recipe, &recipe, e)) return -1;
    if (!recipe.lossy || !recipe.profiled || check_lossless(f, NULL) ||
        kvc_file_describe(f, &facts) || facts.heads_unknown)
        return 0;
    struct kvc_learn *x = ns->learn = calloc(1, sizeof *x);
    if (!x) return kvc_fail_memory(e, "what a store learns");
    pthread_mutex_init(&x->lock, NULL);
    atomic_init(&x->has_unpacked, 1);
    x->every = kvc_learning_least(NULL, NULL) / 8; /* others put too */
    x->model = o->model ? strdup(o->model) : NULL;
    return x->model || !o->model ? 0 : kvc_fail_memory(e, "what a store learns");
}

struct kvc_store_namespace *
kvc_store_namespace_like(struct kvc_store *s, const struct kvc_file *f,
                         const struct kvc_store_namespace_options *options, struct kvc_error *e) {
    if (KVC_NULL(e, s, f)) return NULL;
    struct kvc_store_namespace_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_namespace_options", e)) return NULL;
    struct kvc_store_namespace *ns = kvc_namespace_open(s, f, &o, e);
    if (!ns) return NULL;
    if (!prepare(ns, f, &o, e)) {
        kvc_learn_look(ns, f, 0);
        return ns;
    }
    kvc_store_namespace_close(ns);
    return NULL;
}

void kvc_learn_refused(struct kvc_store_namespace *ns) {
    atomic_store(&ns->learn->has_unpacked, 1);
    kvc_count(ns->store, KVC_COUNT_NOT_LEARNT, 1);
}

/* --- taking a profile --- */

/* Packs with a profile, which it takes over, from now on; NULL: without one. */
static void use_profile(struct kvc_store_namespace *ns, const struct kvc_file *f,
                        struct kvc_profile *p) {
    struct kvc_store_namespace *packed = kvc_namespace_packed(ns, f, p, NULL);
    if (packed) kvc_learnt_publish(ns, packed);
}

/* Returns 1 if the store says that something was learnt, which is used then. */
static int use_learnt(struct kvc_store_namespace *ns, const struct kvc_file *f) {
    uint8_t sha256[KVC_KEY_BYTES];
    struct kvc_profile *p;
    if (kvc_learnt_find(ns->store, ns->hash, sha256) || kvc_learnt_open(ns->store, sha256, &p))
        return 0;
    use_profile(ns, f, p);
    return 1;
}

/* --- what the recipes of a model share --- */

/* Names the namespace that a model's lossless caches, of the same tenant, would have. */
static int model_of(const struct kvc_store_namespace *ns, const struct kvc_file *f,
                    uint8_t hash[KVC_KEY_BYTES]) {
    const uint8_t *tenant = ns->has_tenant ? ns->tenant : NULL;
    const struct kvc_namespace_options how = {.size = sizeof how, .tenant = tenant};
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    char *text = kvc_namespace_of(f, &how, &facts, NULL);
    if (!text) return -1;
    memcpy(hash, facts.ns, sizeof facts.ns);
    free(text);
    return 0;
}

static int has_gradients(const struct kvc_profile *p) {
    struct kvc_profile_info info = {.size = sizeof info};
    return !kvc_shared_profile_describe(p, &info) && strcmp(info.metric, "fisher") == 0;
}

/* Opens the profile that another recipe learnt. NULL: none. */
static struct kvc_profile *open_shared(struct kvc_store *s, const uint8_t model[KVC_KEY_BYTES]) {
    uint8_t sha256[KVC_KEY_BYTES];
    struct kvc_profile *p = NULL;
    return kvc_learnt_find(s, model, sha256) || kvc_learnt_open(s, sha256, &p) ? NULL : p;
}

/* Has other recipes find a profile, unless they find one that is as good. */
static void share(const struct kvc_store_namespace *ns, const struct kvc_file *f,
                  const struct kvc_profile *p) {
    uint8_t model[KVC_KEY_BYTES];
    if (!p || model_of(ns, f, model)) return;
    struct kvc_profile *theirs = open_shared(ns->store, model);
    if (!theirs || (has_gradients(p) && !has_gradients(theirs)))
        kvc_store_put_learnt(ns->store, model, p, 1, NULL);
    kvc_shared_profile_close(theirs);
}

/* Has the store name a profile, which it takes over, NULL for none; or uses the one that another
 * process had it name meanwhile. */
static void adopt(struct kvc_store_namespace *ns, const struct kvc_file *f, struct kvc_profile *p) {
    struct kvc_store *s = ns->store;
    /* Profiles are pinned: one that nobody names would stay for good. The second put replaces what
     * names one that is nowhere to be had. */
    if (!use_learnt(ns, f) && !kvc_store_put_learnt(s, ns->hash, p, 0, NULL) &&
        !use_learnt(ns, f) && !kvc_store_put_learnt(s, ns->hash, p, 1, NULL))
        use_learnt(ns, f);
    kvc_shared_profile_close(p);
}

/* Returns 1 if another recipe learnt a profile that fits a cache, which is used then. With weights
 * gradients can be measured: a profile without them is not taken. */
static int use_shared(struct kvc_store_namespace *ns, const struct kvc_file *f, int has_model) {
    const struct kvc_write_options how = {.size = sizeof how, .threads = 1, .recipe = ns->asked};
    uint8_t model[KVC_KEY_BYTES];
    struct kvc_profile *p = model_of(ns, f, model) ? NULL : open_shared(ns->store, model);
    const char *fit = p && (has_gradients(p) || !has_model)
                          ? kvc_shared_profile_fit(p, f, &how, NULL)
                          : NULL;
    if (fit && strcmp(fit, "good") == 0) {
        adopt(ns, f, p);
        return 1;
    }
    kvc_shared_profile_close(p);
    return 0;
}

void kvc_learn_look(struct kvc_store_namespace *ns, const struct kvc_file *f, int puts) {
    struct kvc_learn *x = ns->learn;
    if (!x || !ns->store->io) return;
    const int is_learnt = atomic_load(&x->packed) || use_learnt(ns, f);
    if (puts && atomic_load(&x->packed) && !atomic_exchange(&x->is_shared, 1))
        share(ns, f, atomic_load(&x->packed)->packs_with); /* 1.0.0 did not */
    if (is_learnt || !puts) return;
    const struct kvc_write_options how = {.size = sizeof how, .threads = 1, .recipe = ns->asked};
    struct kvc_profile *p = kvc_shared_profile_choose(f, &how, NULL);
    share(ns, f, p);
    if (p) adopt(ns, f, p);
}

/* --- the caches that are lossless --- */

/* What a task works at. */
struct learning {
    struct kvc_task task;
    struct kvc_store_namespace *ns;
    int in_a_hurry;          /* somebody waits */
    struct kvc_model *model; /* weights; NULL: none */
    struct kvc_list list;    /* caches, by key and tier */
    uint64_t tokens;         /* of those that were read */
};

/* Lists the caches, of which keys give no order: the first ones are a sample of all. */
static int list_caches(struct learning *l, struct kvc_error *e) {
    struct kvc_list *list = &l->list;
    size_t n = 0;
    if (kvc_list_namespace(l->ns, list, e)) return -1;
    for (size_t i = 0; i < list->n; i++)
        if (kvc_object_is_cache(list->item[i].object.kind)) list->item[n++] = list->item[i];
    list->n = n;
    if (n) qsort(list->item, n, sizeof *list->item, kvc_listed_by_key);
    return 0;
}

/* Returns how many items from i on are of one object, in several tiers. */
static size_t same_object(const struct kvc_list *list, size_t i) {
    size_t n = 1;
    while (i + n < list->n && kvc_object_equal(&list->item[i].object, &list->item[i + n].object))
        n++;
    return n;
}

/* Opens bytes as a lossless cache of the namespace. With a model the file knows its facts, too,
 * which are of another namespace where programs that put caches do not; weights of another model
 * are of no use, and do no harm. */
static struct kvc_file *open_bytes(const struct learning *l, const struct kvc_object *o,
                                   const struct kvc_bytes *bytes, const struct kvc_model *model,
                                   struct kvc_error *e) {
    const struct kvc_store_namespace *ns = l->ns;
    struct kvc_open_options open = {.size = sizeof open, .format = "kvc", .profile_folders = ""};
    size_t size = bytes->size;
    if (kvc_chunk_signature(ns->store, o, bytes->data, &size, e)) return NULL;
    struct kvc_file *f = kvc_file_open_memory(bytes->data, size, &open, e);
    int status = f ? kvc_file_check_hashes(f, e) : -1;
    if (!status) status = kvc_file_check_prefix(f, e);
    if (!status) status = kvc_chunk_check_namespace(ns, f, e);
    if (!status) status = check_lossless(f, e);
    open.shared_model = model;
    struct kvc_file *known = status || !model
                                 ? NULL
                                 : kvc_file_open_memory(bytes->data, size, &open, NULL);
    if (!status && !known) return f;
    kvc_file_close(f);
    return known;
}

/* Reads and opens a cache. What is damaged is passed over here: who finds it puts it aside. */
static struct kvc_file *open_cache(const struct learning *l, const struct kvc_listed *item,
                                   const struct kvc_model *model, struct kvc_error *e) {
    struct kvc_bytes *bytes = kvc_store_read_tier(l->ns->store, item->tier, &item->object,
                                                  kvc_now() + KVC_OBJECT_TIME, e);
    if (!bytes) return NULL;
    struct kvc_file *f = open_bytes(l, &item->object, bytes, model, e);
    if (f) kvc_file_own(f, bytes, kvc_bytes_release);
    else kvc_bytes_release(bytes);
    return f;
}

static uint64_t tokens_of(const struct kvc_file *f) {
    struct kvc_file_facts facts = {.size = sizeof facts};
    return kvc_file_describe(f, &facts) ? 0 : facts.tokens;
}

/* Returns 1 if the caches have tokens enough to learn from, as far as can be told without reading
 * chunks. */
static int are_enough(struct learning *l) {
    const uint64_t least = kvc_learning_least(NULL, NULL);
    uint64_t tokens = 0;
    for (size_t i = 0; i < l->list.n && tokens < least; i += same_object(&l->list, i)) {
        const struct kvc_listed *item = &l->list.item[i];
        struct kvc_file *f = item->object.kind == KVC_OBJECT_CHUNK
                                 ? NULL
                                 : open_cache(l, item, NULL, NULL);
        tokens += f ? tokens_of(f) : item->object.kind == KVC_OBJECT_CHUNK ? l->ns->chunk : 0;
        kvc_file_close(f);
    }
    l->tokens = tokens;
    return tokens >= least;
}

/* --- learning --- */

static int by_place(const void *a, const void *b) {
    const struct kvc_listed *x = a, *y = b;
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    return memcmp(x->object.key, y->object.key, sizeof x->object.key);
}

static int by_number(const void *a, const void *b) {
    const int order = by_place(a, b);
    return order ? order : kvc_listed_by_key(a, b);
}

/* Tokens of a text from its first on that are learnt from as one cache, and their chunks at most.
 * Gradients need a text from its first token on, and more of it than a chunk of large models has
 * (GRADIENTS.md). */
enum { TOGETHER = 2048, CHUNKS = TOGETHER / KVC_PREFIX_TOKENS };
/* numbers of listed items that are no chunks of these, and of those that were read */
#define LATER (UINT64_MAX - 1)
#define READ UINT64_MAX

static void set_number(struct kvc_list *list, size_t i, uint64_t number) {
    for (size_t n = same_object(list, i); n--;) list->item[i + n].number = number;
}

/* Puts the last chunks first, so that each brings the chunks of its text before it. */
static void order_caches(struct learning *l) {
    struct kvc_list *list = &l->list;
    uint64_t most, tokens = 0;
    kvc_learning_least(&most, NULL);
    for (size_t i = 0; i < list->n; i += same_object(list, i)) {
        struct kvc_prefix_info x = {.size = sizeof x};
        struct kvc_file *f = tokens < most && !l->ns->store->closing
                                 ? open_cache(l, &list->item[i], NULL, NULL)
                                 : NULL;
        const uint64_t n = f ? tokens_of(f) : 0;
        if (f) kvc_file_prefix(f, &x);
        set_number(list, i, f && x.first + n <= TOGETHER ? TOGETHER - x.first : LATER);
        tokens += n;
        kvc_file_close(f);
    }
    qsort(list->item, list->n, sizeof *list->item, by_number);
}

/* Returns the first item of an object; list->n: it is not there. */
static size_t find_item(const struct kvc_list *list, const struct kvc_object *o) {
    size_t i = 0;
    while (i < list->n && !kvc_object_equal(&list->item[i].object, o)) i += same_object(list, i);
    return i;
}

/* A cache, or the chunks of a text, the last one first. */
struct chain {
    size_t item[CHUNKS];
    struct kvc_file *file[CHUNKS];
    size_t n;
};

static void close_after(struct chain *c, size_t n) {
    while (c->n > n) kvc_file_close(c->file[--c->n]);
}

/* Finds the chunk of a key; list->n: it is not there, or was read already. */
static size_t parent_of(const struct learning *l, const uint8_t *key) {
    const struct kvc_list *list = &l->list;
    struct kvc_object o;
    if (kvc_key_object(l->ns, KVC_OBJECT_CHUNK, key, &o, NULL)) return list->n;
    const size_t i = find_item(list, &o);
    return i < list->n && list->item[i].number == READ ? list->n : i;
}

/* Opens item i, and the chunks of its text before it unless one of them cannot be had. */
static void open_chain(const struct learning *l, size_t i, struct chain *c) {
    c->n = 0;
    while (c->n < CHUNKS && i < l->list.n) {
        struct kvc_prefix_info x = {.size = sizeof x};
        struct kvc_file *f = open_cache(l, &l->list.item[i], l->model, NULL);
        if (!f) break;
        c->item[c->n] = i;
        c->file[c->n++] = f;
        kvc_file_prefix(f, &x);
        if (!x.parent) return;
        if (x.first + tokens_of(f) > TOGETHER) break;
        i = parent_of(l, x.parent);
    }
    if (c->n) close_after(c, 1);
}

static struct kvc_file *join(const struct learning *l, const struct chain *c) {
    const struct kvc_file *file[CHUNKS];
    const struct kvc_join_options how = {.size = sizeof how, .shared_model = l->model};
    for (size_t i = 0; i < c->n; i++) file[i] = c->file[c->n - 1 - i];
    return kvc_file_join_by(file, c->n, &how, NULL);
}

/* Adds item i, with the chunks before it. */
static int add_chain(struct learning *l, struct kvc_learning *learning, size_t i,
                     struct kvc_error *e) {
    struct chain c;
    open_chain(l, i, &c);
    struct kvc_file *joined = c.n > 1 ? join(l, &c) : NULL;
    if (c.n && !joined) close_after(&c, 1);
    set_number(&l->list, i, READ);
    for (size_t k = 0; k < c.n; k++) {
        set_number(&l->list, c.item[k], READ);
        l->tokens += tokens_of(c.file[k]);
    }
    const int status = c.n ? kvc_learning_add(learning, joined ? joined : c.file[0], e) : 0;
    kvc_file_close(joined);
    close_after(&c, 0);
    return status;
}

/* Adds the caches that were not read yet. */
static int add_caches(struct learning *l, struct kvc_learning *learning, struct kvc_error *e) {
    uint64_t most;
    kvc_learning_least(&most, NULL);
    for (size_t i = 0; i < l->list.n && l->tokens < most; i += same_object(&l->list, i)) {
        if (l->ns->store->closing) return kvc_fail(e, KVC_ERR_IO, "the store is being closed");
        if (l->list.item[i].number != READ && add_chain(l, learning, i, e)) return -1;
    }
    return 0;
}

static int is_closing(void *state) {
    const struct learning *l = state;
    return l->ns->store->closing;
}

/* Learns from all caches but `test`, object o, which the profile must fit. */
static struct kvc_profile *learn_without(struct learning *l, const struct kvc_object *o,
                                         const struct kvc_file *test, struct kvc_error *e) {
    const struct kvc_learning_options how = {.size = sizeof how,
                                             .back = kvc_learning_back(test),
                                             .threads = 1,
                                             .stop = is_closing,
                                             .stop_state = l};
    const struct kvc_write_options packs = {.size = sizeof packs,
                                            .threads = 1,
                                            .recipe = l->ns->asked};
    struct kvc_learning *learning = kvc_learning_start(&how, e);
    order_caches(l);
    set_number(&l->list, find_item(&l->list, o), READ);
    int status = learning ? add_caches(l, learning, e) : -1;
    struct kvc_profile *p = status ? NULL : kvc_learning_profile(learning, e);
    kvc_learning_free(learning);
    const char *fit = p ? kvc_shared_profile_fit(p, test, &packs, NULL) : "good";
    if (strcmp(fit, "good") == 0) return p;
    kvc_fail(e, KVC_ERR_OTHER_MODEL, "the fit of what was learnt to a cache besides is %s", fit);
    kvc_shared_profile_close(p);
    return NULL;
}

/* Learns a profile, and uses it. If the caches are such that there can be none, the store notes it;
 * what failed for other reasons is tried again when there is more. */
static void learn(struct learning *l) {
    struct kvc_store_namespace *ns = l->ns;
    struct kvc_error why = {.code = KVC_OK};
    struct kvc_file *test = NULL;
    size_t i = 0;
    while (i < l->list.n && !(test = open_cache(l, &l->list.item[i], NULL, &why)))
        i += same_object(&l->list, i);
    /* another handle, or process, may have learnt meanwhile */
    if (!test || use_learnt(ns, test) || use_shared(ns, test, l->model != NULL) || !are_enough(l)) {
        kvc_file_close(test);
        return;
    }
    l->tokens = tokens_of(test);
    const struct kvc_object own = l->list.item[i].object;
    struct kvc_profile *p = learn_without(l, &own, test, &why);
    const int passing = why.code == KVC_ERR_MEMORY || why.code == KVC_ERR_IO;
    kvc_count(ns->store, p ? KVC_COUNT_LEARNT : KVC_COUNT_NOT_LEARNT, 1);
    share(ns, test, p);
    if (p || !passing) adopt(ns, test, p);
    kvc_file_close(test);
}

/* --- packing what is there --- */

/* What becomes of a cache. */
struct move {
    struct kvc_object twin, parent; /* its name in the namespace of the profile; the chunk before */
    struct kvc_object before;       /* that chunk here */
    uint64_t first;                 /* position */
    int has_before, stays;
    int others; /* another process packs the cache, too */
    int unread; /* for want of memory, say: it may be a chunk after any other */
};

/* Names a cache as it is called in another namespace. */
static int name_twin(const struct learning *l, const struct kvc_store_namespace *ns,
                     enum kvc_object_kind kind, const struct kvc_file *f, struct move *m,
                     struct kvc_error *e) {
    struct kvc_prefix_info x = {.size = sizeof x};
    kvc_file_prefix(f, &x);
    m->has_before = kind == KVC_OBJECT_CHUNK && x.parent;
    m->first = x.first;
    if (kind == KVC_OBJECT_NAMED)
        return kvc_named_object(ns, &(struct kvc_store_name){x.name, x.name_bytes}, &m->twin, e);
    if (kind == KVC_OBJECT_STATE)
        return kvc_whole_object(ns, x.keys, (size_t)x.n_keys, &m->twin, e);
    if (!x.n_keys || (x.parent && (kvc_key_object(l->ns, kind, x.parent, &m->before, e) ||
                                   kvc_key_object(ns, kind, x.parent, &m->parent, e))))
        return -1;
    return kvc_key_object(ns, kind, x.keys + (x.n_keys - 1) * KVC_KEY_BYTES, &m->twin, e);
}

/* Returns 1 if packed bytes are a cache of the namespace. */
static int is_of(const struct kvc_store_namespace *ns, const void *data, size_t size) {
    const struct kvc_open_options open = {.size = sizeof open,
                                          .format = "kvc",
                                          .profile_folders = ""};
    struct kvc_file *f = kvc_file_open_memory(data, size, &open, NULL);
    const int is = f && !kvc_chunk_check_namespace(ns, f, NULL);
    kvc_file_close(f);
    return is;
}

/* Packs a cache for the namespace of the profile. NULL: the recipe refuses it. */
static struct kvc_bytes *pack_anew(const struct kvc_store_namespace *ns, const struct kvc_file *f,
                                   const struct kvc_object *o) {
    const struct kvc_write_options how = {.size = sizeof how,
                                          .threads = 1,
                                          .recipe = ns->recipe,
                                          .shared_profile = ns->packs_with,
                                          .no_companions = 1};
    void *data = NULL;
    size_t size = 0;
    if (kvc_file_pack_memory(f, &how, &data, &size, NULL)) return NULL;
    if (is_of(ns, data, size)) return kvc_chunk_sign(ns->store, o, data, size, NULL);
    free(data);
    return NULL;
}

/* Writes a packed cache to the tier of an item, and has it live and stay as long as the item.
 * Returns what the tier says; -1: it is not there. */
static int put_twin(struct kvc_store *s, const struct kvc_listed *item, const struct kvc_object *o,
                    const struct kvc_object *parent, struct kvc_bytes *bytes) {
    struct kvc_tier *tier = s->tier[item->tier].tier;
    struct kvc_store_object_info old = {.pinned = 0};
    struct kvc_tier_put how = {.parent = parent};
    if (tier->ops->record && tier->ops->record(tier, &item->object, &old, NULL) <= 0)
        old.pinned = old.expires = 0;
    const int64_t rest = old.expires - (int64_t)time(NULL);
    how.pin = old.pinned == INT64_MAX;
    if (old.expires) how.seconds = rest > 0 ? rest : 1;
    const int put = kvc_store_put_counted(s, item->tier, o, bytes, &how,
                                          kvc_now() + KVC_OBJECT_TIME, NULL);
    if (put < 0 || put == KVC_PUT_REFUSED) return -1;
    if (old.pinned && !how.pin) kvc_store_notify(s, item->tier, KVC_OP_PIN, o, 1, old.pinned);
    return put;
}

/* Two processes may move a cache: the one that finds what the other put removes the cache, and the
 * other must not take that for a drop. So one waits before it removes, and the other believes in a
 * drop for a shorter time only. */
enum { NOTICED = 1000000, WAIT = 2 * NOTICED }; /* microseconds */

/* Puts a cache, of n tiers, into the namespace of the profile, or notes that it stays here. */
static void move_cache(struct learning *l, const struct kvc_store_namespace *packed,
                       const struct kvc_listed *item, size_t n, struct move *m) {
    struct kvc_store *s = l->ns->store;
    struct kvc_bytes *bytes = NULL;
    struct kvc_error why = {.code = KVC_OK};
    struct kvc_file *f = open_cache(l, item, NULL, &why);
    int status = f ? name_twin(l, packed, item->object.kind, f, m, &why) : -1;
    m->unread = status && why.code != KVC_OK && why.severity == KVC_SEVERITY_RETRY;
    for (size_t i = 0; i < n && !status; i++) {
        const int there = kvc_store_has(s, item[i].tier, &m->twin, kvc_now() + KVC_OBJECT_TIME);
        m->others |= there;
        if (there) continue;
        if (!bytes && !(bytes = pack_anew(packed, f, &m->twin))) status = -1;
        const kvc_instant began = kvc_now();
        const struct kvc_object *parent = m->has_before ? &m->parent : NULL;
        const int put = status ? -1 : put_twin(s, &item[i], &m->twin, parent, bytes);
        status = put < 0 ? -1 : 0;
        m->others |= put == KVC_PUT_SHARED;
        /* a cache that was dropped meanwhile does not come back */
        if (put == KVC_PUT_STORED &&
            !kvc_store_has(s, item[i].tier, &item->object, kvc_now() + KVC_OBJECT_TIME) &&
            kvc_now() - began < NOTICED)
            s->tier[item[i].tier].tier->ops->drop(s->tier[item[i].tier].tier, &m->twin, 1,
                                                  kvc_now() + KVC_OBJECT_TIME, NULL);
    }
    if (bytes && !status) kvc_count(s, KVC_COUNT_REPACKED, 1);
    m->stays = status != 0;
    kvc_bytes_release(bytes);
    kvc_file_close(f);
}

/* Returns the chunk before item i; list->n: it is not there. */
static size_t place_before(const struct learning *l, const struct move *m, size_t i) {
    const struct kvc_list *list = &l->list;
    struct kvc_listed before = {.object = m[i].before, .number = m[i].first - l->ns->chunk};
    const struct kvc_listed *at = bsearch(&before, list->item, list->n, sizeof before, by_place);
    before.number = UINT64_MAX; /* it could not be read when they were put in order */
    if (!at) at = bsearch(&before, list->item, list->n, sizeof before, by_place);
    size_t k = at ? (size_t)(at - list->item) : list->n;
    while (at && k && !by_place(&list->item[k - 1], at)) k--;
    return k;
}

/* Has the chunks stay that come before one that stays: without them nobody would find it. */
static void keep_before(const struct learning *l, struct move *m) {
    for (size_t i = 0; i < l->list.n; i++)
        for (size_t k = i; m[k].stays && m[k].has_before;) {
            k = place_before(l, m, k);
            if (k == l->list.n || m[k].stays) break;
            m[k].stays = 1;
        }
}

/* Puts chunks in the order in which they go on; what cannot be read counts as the last. */
static void sort_caches(struct learning *l) {
    struct kvc_list *list = &l->list;
    for (size_t i = 0, n; i < list->n && !l->ns->store->closing; i += n) {
        struct kvc_prefix_info x = {.size = sizeof x, .first = UINT64_MAX};
        struct kvc_file *f = open_cache(l, &list->item[i], NULL, NULL);
        if (f) kvc_file_prefix(f, &x);
        kvc_file_close(f);
        n = same_object(list, i);
        set_number(list, i, x.first);
    }
    if (list->n) qsort(list->item, list->n, sizeof *list->item, by_number);
}

/* Moves lossless caches to the namespace of the profile. Where it is not certain what stays,
 * nothing is removed yet. */
static void move_caches(struct learning *l, struct kvc_store_namespace *packed) {
    struct kvc_list moved = {.n = 0}, *list = &l->list;
    struct kvc_object *twin = calloc(list->n + 1, sizeof *twin);
    struct move *m = calloc(list->n + 1, sizeof *m);
    size_t n = 0, left = 0;
    int uncertain = 0, others = 0;
    if (!twin || !m || kvc_namespace_store(packed, NULL)) {
        free(twin);
        free(m);
        return;
    }
    sort_caches(l);
    for (size_t i = 0, same; i < list->n && !l->ns->store->closing; i += same) {
        same = same_object(list, i);
        move_cache(l, packed, &list->item[i], same, &m[i]);
        if (!m[i].stays) twin[n++] = m[i].twin;
        uncertain |= m[i].unread;
        others |= m[i].others;
    }
    for (const kvc_instant end = kvc_now() + WAIT;
         others && !l->ns->store->closing && kvc_now() < end;)
        usleep(NOTICED / 50);
    uncertain |= l->ns->store->closing;
    if (!uncertain) keep_before(l, m);
    for (size_t i = list->n; i-- && !uncertain;) { /* those that go on after others first */
        if (i && kvc_object_equal(&list->item[i - 1].object, &list->item[i].object)) continue;
        left += m[i].stays != 0;
        for (size_t k = same_object(list, i); k-- && !m[i].stays;)
            left += kvc_list_add(&moved, &list->item[i + k]) != 0;
    }
    kvc_list_touch(l->ns->store, twin, n);
    kvc_list_remove(l->ns->store, &moved, NULL);
    if (!left && !uncertain) atomic_store(&l->ns->learn->has_unpacked, 0);
    free(moved.item);
    free(twin);
    free(m);
}

/* --- in the background --- */

/* Has the calling thread take a tenth of a busy core. */
static void give_way(void) {
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10); /* Linux: of a thread */
}

/* Learns, if nothing was yet, and moves what is there. */
static void look(struct learning *l) {
    const struct kvc_learn *x = l->ns->learn;
    struct kvc_store_namespace *packed = NULL;
    l->list.n = 0;
    l->tokens = 0;
    if (l->ns->store->closing || list_caches(l, NULL)) return;
    if (!atomic_load(&x->packed) && x->model && !l->model)
        l->model = kvc_shared_model_open(x->model, 0, NULL);
    if (!atomic_load(&x->packed)) learn(l);
    packed = kvc_learnt_namespace(l->ns);
    if (packed && kvc_learnt_is_apart(l->ns, packed)) move_caches(l, packed);
    kvc_store_namespace_close(packed);
}

/* Returns 1 if so much was put losslessly meanwhile that it is to be looked at again, and else
 * notes that the task ends. */
static int goes_on(struct learning *l) {
    struct kvc_learn *x = l->ns->learn;
    pthread_mutex_lock(&x->lock);
    if (l->tokens >= kvc_learning_least(NULL, NULL))
        x->every = l->tokens; /* it failed, if it is not packed */
    const uint64_t enough = atomic_load(&x->packed) ? 1 : x->every;
    const int more = x->fresh >= enough && !l->ns->store->closing;
    x->fresh = more ? 0 : x->fresh;
    x->runs = more;
    x->has_run = 1;
    pthread_mutex_unlock(&x->lock);
    return more;
}

static void run(struct kvc_task *task) {
    struct learning *l = (struct learning *)task;
    struct kvc_store_namespace *ns = l->ns;
    if (!l->in_a_hurry) give_way();
    do look(l);
    while (goes_on(l));
    kvc_shared_model_close(l->model);
    free(l->list.item);
    free(l);
    kvc_queue_remove(ns->store, 0);
    kvc_store_namespace_close(ns);
}

/* Notes that tokens were put. Returns 1 if the store is to be looked at now. */
static int is_due(struct kvc_learn *x, uint64_t tokens) {
    pthread_mutex_lock(&x->lock);
    const int packed = atomic_load(&x->packed) != NULL;
    x->fresh += tokens;
    if (packed && tokens) { /* by a put that had begun before there was a profile */
        atomic_store(&x->has_unpacked, 1);
        x->has_run = 0;
    }
    const int due = !x->runs && (!x->has_run || (!packed && x->fresh >= x->every));
    if (due) x->fresh = 0;
    x->runs |= due;
    pthread_mutex_unlock(&x->lock);
    return due;
}

void kvc_learn_note(struct kvc_store_namespace *ns, uint64_t tokens, int in_a_hurry) {
    struct kvc_store *s = ns->store;
    if (!ns->learn || s->closing || !is_due(ns->learn, tokens)) return;
    struct learning *l = calloc(1, sizeof *l);
    if (l) *l = (struct learning){.task.run = run, .ns = ns, .in_a_hurry = in_a_hurry};
    if (l && !kvc_learner_start(ns, &l->task)) return;
    pthread_mutex_lock(&ns->learn->lock);
    ns->learn->runs = 0; /* the next put tries again */
    pthread_mutex_unlock(&ns->learn->lock);
    free(l);
}
