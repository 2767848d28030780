/* namespace.c: namespaces of a store. Spec: STORE.md, "Namespaces". Not for keys (keys.c). */
#include "formats/store/store.h"

#include "formats/api/sized.h"
#include "formats/io/hash.h"

#include <stdlib.h>
#include <string.h>

#define TENANT_TAG "kvc tenant 1"

/* --- opening --- */

static void free_learn(struct kvc_learn *x) {
    if (!x) return;
    kvc_store_namespace_close(x->packed);
    pthread_mutex_destroy(&x->lock);
    free(x->model);
    free(x);
}

void kvc_store_namespace_close(struct kvc_store_namespace *ns) {
    if (!ns || atomic_fetch_sub(&ns->refs, 1) != 1) return;
    for (unsigned i = 0; i < ns->n_profiles; i++) kvc_shared_profile_close(ns->profile[i]);
    kvc_shared_profile_close(ns->packs_with);
    free_learn(ns->learn);
    pthread_mutex_destroy(&ns->lock);
    free(ns->recipe);
    free(ns->asked);
    free(ns->fidelity);
    free(ns->facts);
    free(ns);
}

const char *kvc_store_namespace_name(const struct kvc_store_namespace *ns) {
    return kvc_learnt_or_own(ns)->name;
}

const char *kvc_store_namespace_facts(const struct kvc_store_namespace *ns) {
    return kvc_learnt_or_own(ns)->facts;
}

uint64_t kvc_store_namespace_chunk(const struct kvc_store_namespace *ns) {
    return ns->chunk;
}

static struct kvc_profile_info profile_info(const struct kvc_profile *p) {
    struct kvc_profile_info info = {.size = sizeof info};
    kvc_shared_profile_describe(p, &info);
    return info;
}

int kvc_store_namespace_describe(const struct kvc_store_namespace *ns,
                                 struct kvc_store_namespace_info *info) {
    ns = kvc_learnt_or_own(ns);
    struct kvc_store_namespace_info own = {.lossless = ns->lossless,
                                           .fidelity = ns->fidelity,
                                           .recipe = ns->recipe};
    if (ns->packs_with) {
        const struct kvc_profile_info profile = profile_info(ns->packs_with);
        own.profile = profile.data;
        own.profile_bytes = profile.bytes;
    }
    return kvc_sized_give(info, &own, sizeof own, "kvc_store_namespace_info", NULL);
}

int kvc_store_namespace_differ(const struct kvc_store_namespace *here,
                               const struct kvc_store_namespace *there, size_t *at, char *text,
                               size_t size) {
    return kvc_namespace_differ(kvc_learnt_or_own(here)->facts, kvc_learnt_or_own(there)->facts, at,
                                text, size);
}

static struct kvc_store_namespace *empty_namespace(struct kvc_store *s, struct kvc_error *e) {
    struct kvc_store_namespace *ns = calloc(1, sizeof *ns);
    if (!ns) {
        kvc_fail_memory(e, "a namespace");
        return NULL;
    }
    ns->store = s;
    atomic_init(&ns->refs, 1);
    pthread_mutex_init(&ns->lock, NULL);
    return ns;
}

static struct kvc_store_namespace *new_namespace(struct kvc_store *s,
                                                 const struct kvc_store_namespace_options *o,
                                                 struct kvc_error *e) {
    struct kvc_store_namespace *ns = empty_namespace(s, e);
    if (!ns) return NULL;
    ns->has_tenant = o->tenant_file != NULL;
    if ((!o->tenant_file || !kvc_store_secret(o->tenant_file, TENANT_TAG, ns->tenant, e)) &&
        (!o->profile || (ns->packs_with = kvc_shared_profile_open(o->profile, e))))
        return ns;
    kvc_store_namespace_close(ns);
    return NULL;
}

/* Takes the facts that make a namespace. */
static int take_facts(struct kvc_store_namespace *ns, const struct kvc_namespace_facts *f,
                      struct kvc_error *e) {
    memcpy(ns->hash, f->ns, sizeof ns->hash);
    memcpy(ns->identity, f->identity, sizeof ns->identity);
    kvc_hex(ns->hash, sizeof ns->hash, ns->name);
    ns->chunk = f->chunk;
    ns->lossless = f->lossless;
    ns->fidelity = strdup(f->fidelity);
    return ns->fidelity ? 0 : kvc_fail_memory(e, "a namespace");
}

static int take_recipe(struct kvc_store_namespace *ns, const char *recipe, struct kvc_error *e) {
    ns->recipe = strdup(recipe);
    return ns->recipe ? 0 : kvc_fail_memory(e, "a recipe");
}

static int describe(struct kvc_store_namespace *ns, const struct kvc_file *f,
                    const struct kvc_store_namespace_options *o, struct kvc_error *e) {
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    const struct kvc_namespace_options how = {.size = sizeof how,
                                              .recipe = o->recipe,
                                              .shared_profile = ns->packs_with,
                                              .chunk = o->chunk,
                                              .tenant = ns->has_tenant ? ns->tenant : NULL};
    if (!(ns->facts = kvc_namespace_of(f, &how, &facts, e))) return -1;
    if (take_facts(ns, &facts, e)) return -1;
    if (!o->recipe) return 0;
    if (!(ns->asked = strdup(o->recipe))) return kvc_fail_memory(e, "a recipe");
    return take_recipe(ns, facts.recipe, e);
}

struct kvc_store_namespace *kvc_namespace_open(struct kvc_store *s, const struct kvc_file *f,
                                               const struct kvc_store_namespace_options *o,
                                               struct kvc_error *e) {
    struct kvc_store_namespace *ns = new_namespace(s, o, e);
    if (!ns || !describe(ns, f, o, e)) return ns;
    kvc_store_namespace_close(ns);
    return NULL;
}

/* Returns an empty namespace of a profile, which it takes over, that was learnt from another one.
 */
static struct kvc_store_namespace *learnt_namespace(const struct kvc_store_namespace *from,
                                                    struct kvc_profile *p, struct kvc_error *e) {
    struct kvc_store_namespace *packed = empty_namespace(from->store, e);
    if (!packed) {
        kvc_shared_profile_close(p);
        return NULL;
    }
    packed->packs_with = p;
    packed->has_tenant = from->has_tenant;
    memcpy(packed->tenant, from->tenant, sizeof packed->tenant);
    packed->is_learnt = 1;
    memcpy(packed->learnt_from, from->hash, sizeof packed->learnt_from);
    return packed;
}

struct kvc_store_namespace *kvc_namespace_packed(const struct kvc_store_namespace *ns,
                                                 const struct kvc_file *f, struct kvc_profile *p,
                                                 struct kvc_error *e) {
    /* as it was asked for: a profile may settle it to another step */
    const struct kvc_store_namespace_options o = {.recipe = ns->asked, .chunk = ns->chunk};
    struct kvc_store_namespace *packed = learnt_namespace(ns, p, e);
    if (!packed || !describe(packed, f, &o, e)) return packed;
    kvc_store_namespace_close(packed);
    return NULL;
}

/* --- namespaces that are in the store --- */

static struct kvc_object facts_object(const struct kvc_store_namespace *ns) {
    return kvc_object_of(KVC_OBJECT_NAMESPACE, ns->hash, ns->hash);
}

struct search {
    const char *name;
    struct kvc_object found;
    unsigned n;
};

static int see_namespace(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    struct search *s = state;
    char hex[2 * KVC_OBJECT_KEY + 1];
    (void)size, (void)used;
    if (o->kind != KVC_OBJECT_NAMESPACE) return 0;
    kvc_hex(o->key, sizeof o->key, hex);
    if (strncmp(hex, s->name, strlen(s->name)) != 0) return 0;
    s->n += !s->n || !kvc_object_equal(o, &s->found);
    s->found = *o;
    return 0;
}

static int read_facts(struct kvc_store_namespace *ns, const struct kvc_object *object,
                      struct kvc_error *e) {
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    size_t size;
    struct kvc_bytes *bytes = kvc_store_read_object(ns->store, object, &size, e);
    if (!bytes) return -1;
    ns->facts = calloc(size + 1, 1);
    if (ns->facts) memcpy(ns->facts, bytes->data, size);
    kvc_bytes_release(bytes);
    if (!ns->facts) return kvc_fail_memory(e, "the facts of a namespace");
    if (strlen(ns->facts) + 1 < size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the facts of namespace %.16s are no text", ns->name);
    if (kvc_namespace_read(ns->facts, size, &facts, e)) return -1;
    if (facts.has_tenant != ns->has_tenant ||
        (facts.has_tenant && memcmp(facts.tenant, ns->tenant, KVC_KEY_BYTES) != 0))
        return kvc_fail(e, KVC_ERR_USAGE, "namespace %.16s belongs to %s", ns->name,
                        facts.has_tenant ? "a tenant, whose secret is needed" : "no tenant");
    ns->is_stored = !ns->packs_with; /* the profile may be missing */
    return take_facts(ns, &facts, e);
}

/* Takes the recipe that chunks of a namespace are packed with: the caller's, or that of its
 * fidelity. */
static int settle_recipe(struct kvc_store_namespace *ns, const char *asked, struct kvc_error *e) {
    struct kvc_recipe_info info = {.size = sizeof info};
    struct kvc_error why;
    if (!e) e = &why;
    if (!asked && ns->lossless) return 0;
    if (!asked &&
        kvc_recipe_describe(ns->fidelity, NULL, e)) /* of values with a past; to be read */
        return e->code == KVC_ERR_MEMORY ? -1 : 0;
    if (take_recipe(ns, asked ? asked : ns->fidelity, e)) return -1;
    if (kvc_recipe_describe(ns->recipe, &info, e)) return -1;
    if (ns->lossless ? !info.lossy : !asked || kvc_recipe_has_fidelity(asked, ns->fidelity))
        return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "recipe '%s' is not of the fidelity of namespace %.16s, which is '%s'", asked,
                    ns->name, ns->fidelity);
}

struct kvc_store_namespace *
kvc_store_namespace_named(struct kvc_store *s, const char *name,
                          const struct kvc_store_namespace_options *options, struct kvc_error *e) {
    if (KVC_NULL(e, s, name)) return NULL;
    struct kvc_store_namespace_options o;
    struct search search = {.name = name};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_namespace_options", e)) return NULL;
    /* all names begin with "", which a program may have for want of a name: it is none */
    for (unsigned i = 0; *name && i < s->n_tiers && !search.n; i++)
        if (s->tier[i].ops->walk(s->tier[i].tier, NULL, see_namespace, &search, e)) return NULL;
    if (search.n != 1) {
        kvc_fail(e, KVC_ERR_USAGE,
                 search.n ? "there are several namespaces whose names begin with '%s'"
                          : "there is no namespace '%s'",
                 name);
        return NULL;
    }
    struct kvc_store_namespace *ns = new_namespace(s, &o, e);
    if (!ns) return NULL;
    kvc_hex(search.found.key, sizeof search.found.key, ns->name);
    if (!read_facts(ns, &search.found, e) && !settle_recipe(ns, o.recipe, e)) return ns;
    kvc_store_namespace_close(ns);
    return NULL;
}

struct kvc_store_namespace *kvc_namespace_linked(const struct kvc_store_namespace *ns,
                                                 const uint8_t hash[KVC_KEY_BYTES],
                                                 struct kvc_profile *p, struct kvc_error *e) {
    struct kvc_store_namespace *packed = learnt_namespace(ns, p, e);
    if (!packed) return NULL;
    memcpy(packed->hash, hash, sizeof packed->hash);
    kvc_hex(packed->hash, sizeof packed->hash, packed->name);
    const struct kvc_object facts = facts_object(packed);
    if (!read_facts(packed, &facts, e) && !settle_recipe(packed, NULL, e)) return packed;
    kvc_store_namespace_close(packed);
    return NULL;
}

/* --- what a namespace needs in the store --- */

static int check_facts(const struct kvc_object *o, const void *data, size_t size,
                       struct kvc_error *e) {
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    if (kvc_namespace_read(data, size, &facts, e)) return -1;
    if (memcmp(facts.ns, o->key, sizeof facts.ns) == 0) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "its facts are of another name");
}

static int check_profile(const struct kvc_object *o, const void *data, size_t size,
                         struct kvc_error *e) {
    struct kvc_profile_info info = {.size = sizeof info};
    struct kvc_profile *p = kvc_shared_profile_open_memory(data, size, e);
    if (!p) return -1;
    kvc_shared_profile_describe(p, &info);
    const int same = memcmp(info.sha256, o->key, sizeof o->key) == 0;
    kvc_shared_profile_close(p);
    return same ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "its hash is another than its name");
}

int kvc_object_check(const struct kvc_store *s, const struct kvc_object *o, const void *data,
                     size_t size, struct kvc_error *e) {
    uint8_t learnt[KVC_KEY_BYTES];
    if (kvc_chunk_signature(s, o, data, &size, e)) return -1;
    if (o->kind == KVC_OBJECT_NAMESPACE) return check_facts(o, data, size, e);
    if (o->kind == KVC_OBJECT_LEARNT) return kvc_learnt_read(data, size, learnt, e);
    return check_profile(o, data, size, e);
}

/* Returns 1 if a tier has the object and it is damaged. Objects of a later kvc, and those that this
 * process cannot verify for its key, are others' good ones. */
static int is_damaged(struct kvc_store *s, unsigned tier, const struct kvc_object *o) {
    struct kvc_error why = {.code = KVC_OK};
    struct kvc_bytes *bytes = kvc_store_read_tier(s, tier, o, kvc_now() + KVC_OBJECT_TIME, &why);
    if (bytes) kvc_object_check(s, o, bytes->data, bytes->size, &why);
    kvc_bytes_release(bytes);
    return why.code == KVC_ERR_DAMAGED || why.code == KVC_ERR_UNKNOWN_FORMAT;
}

/* What is written of an object that is there already: nothing; it where that is damaged; it. */
enum overwriting { NEVER, WHERE_DAMAGED, ALWAYS };

/* Writes an object to a tier. -1: it failed. */
static int put_to_tier(struct kvc_store *s, unsigned tier, const struct kvc_object *o,
                       struct kvc_bytes *bytes, enum overwriting over, struct kvc_error *e) {
    /* without a profile many chunks cannot be read */
    struct kvc_tier_put how = {.pin = o->kind == KVC_OBJECT_PROFILE, .replace = over == ALWAYS};
    /* which does not send a profile */
    if (over == NEVER && kvc_store_has(s, tier, o, kvc_now() + KVC_OBJECT_TIME))
        return KVC_PUT_SHARED;
    const int put = kvc_store_put_tier(s, tier, o, bytes, &how, kvc_now() + KVC_OBJECT_TIME, e);
    if (put != KVC_PUT_SHARED || over != WHERE_DAMAGED || !is_damaged(s, tier, o)) return put;
    how.replace = 1;
    return kvc_store_put_tier(s, tier, o, bytes, &how, kvc_now() + KVC_OBJECT_TIME, e);
}

struct kvc_bytes *kvc_store_read_object(struct kvc_store *s, const struct kvc_object *o,
                                        size_t *size, struct kvc_error *e) {
    const kvc_instant deadline = kvc_load_until(s, 0); /* a load may wait for it */
    int is_bad[KVC_MAX_TIERS] = {0};
    for (unsigned i = 0; i < s->n_tiers; i++) {
        struct kvc_error why;
        struct kvc_bytes *bytes = kvc_store_read_tier(s, i, o, deadline, &why);
        if (!bytes && !why.code) kvc_fail(e, KVC_ERR_IO, "the store has no object of this name");
        else if (!bytes && e) *e = why;
        if (!bytes) continue;
        *size = bytes->size;
        if (!kvc_object_check(s, o, bytes->data, *size, &why) &&
            !kvc_chunk_signature(s, o, bytes->data, size, &why)) {
            for (unsigned k = 0; k < i; k++)
                if (is_bad[k]) put_to_tier(s, k, o, bytes, WHERE_DAMAGED, NULL);
            kvc_store_backfill(s, i, o, NULL, bytes); /* faster tiers lack it */
            return bytes;
        }
        is_bad[i] = 1;
        if (e) *e = why;
        kvc_bytes_release(bytes);
    }
    return NULL;
}

/* Writes an object to the tiers from `first` to `end`. -1: none took it. */
static int put_object(struct kvc_store *s, unsigned first, unsigned end, const struct kvc_object *o,
                      const void *data, size_t size, enum overwriting over, struct kvc_error *e) {
    void *copy = malloc(size + 1);
    unsigned stored = 0;
    if (!copy) return kvc_fail_memory(e, "an object");
    memcpy(copy, data, size);
    struct kvc_bytes *bytes = kvc_chunk_sign(s, o, copy, size, e);
    if (!bytes) return -1;
    for (; first < end; first++) stored += put_to_tier(s, first, o, bytes, over, e) >= 0;
    kvc_bytes_release(bytes);
    return stored ? 0 : -1;
}

static int put_profile(struct kvc_store *s, unsigned first, unsigned end,
                       const struct kvc_profile *p, enum overwriting over, struct kvc_error *e) {
    const struct kvc_profile_info info = profile_info(p);
    const struct kvc_object o = kvc_object_of(KVC_OBJECT_PROFILE, NULL, info.sha256);
    return put_object(s, first, end, &o, info.data, info.bytes, over, e);
}

/* Writes which profile was learnt from the namespace of a hash; NULL: that there can be none. With
 * the hash of another namespace as `key`: that this one is packed with the profile. */
static int put_learnt(struct kvc_store *s, unsigned first, unsigned end,
                      const uint8_t from[KVC_KEY_BYTES], const uint8_t key[KVC_KEY_BYTES],
                      const struct kvc_profile *p, enum overwriting over, struct kvc_error *e) {
    const struct kvc_profile_info info = p ? profile_info(p) : (struct kvc_profile_info){.size = 0};
    const struct kvc_object o = kvc_object_of(KVC_OBJECT_LEARNT, from, key);
    char text[KVC_LEARNT_TEXT];
    return put_object(s, first, end, &o, text, kvc_learnt_text(info.sha256, text), over, e);
}

int kvc_store_put_learnt(struct kvc_store *s, const uint8_t from[KVC_KEY_BYTES],
                         const struct kvc_profile *p, int replace, struct kvc_error *e) {
    if (p && put_profile(s, 0, s->n_tiers, p, WHERE_DAMAGED, e)) return -1;
    return put_learnt(s, 0, s->n_tiers, from, from, p, replace ? ALWAYS : WHERE_DAMAGED, e);
}

/* Writes the profile that chunks are packed with, that it was learnt, and the facts. */
static int put_facts(struct kvc_store_namespace *ns, unsigned first, unsigned end,
                     enum overwriting over, struct kvc_error *e) {
    struct kvc_store *s = ns->store;
    const struct kvc_object o = facts_object(ns);
    const struct kvc_profile *p = ns->packs_with;
    const uint8_t *from = ns->is_learnt ? ns->learnt_from : NULL;
    if (p && put_profile(s, first, end, p, over, e)) return -1;
    if (from && put_learnt(s, first, end, from, from, p, over, e)) return -1;
    if (from && p && memcmp(ns->hash, from, sizeof ns->hash) != 0 &&
        put_learnt(s, first, end, from, ns->hash, p, over, e))
        return -1;
    return put_object(s, first, end, &o, ns->facts, strlen(ns->facts), over, e);
}

#define LOOK_AGAIN 2000000 /* microseconds */

/* Writes the facts again where they are gone: another program dropped the namespace, a server began
 * anew, or a rule of a bucket removed what is old. Without them nobody else finds what is put. */
static void look_again(struct kvc_store_namespace *ns) {
    kvc_instant before = atomic_load(&ns->looked);
    const kvc_instant now = kvc_now();
    if (now - before >= LOOK_AGAIN && atomic_compare_exchange_strong(&ns->looked, &before, now))
        put_facts(ns, 0, ns->store->n_tiers, NEVER, NULL);
}

int kvc_namespace_store(struct kvc_store_namespace *ns, struct kvc_error *e) {
    pthread_mutex_lock(&ns->lock);
    const int was_stored = ns->is_stored;
    if (!was_stored) {
        ns->is_stored = !put_facts(ns, 0, ns->store->n_tiers, WHERE_DAMAGED, e);
        atomic_store(&ns->looked, kvc_now());
    }
    const int status = ns->is_stored ? 0 : -1;
    pthread_mutex_unlock(&ns->lock);
    if (was_stored) look_again(ns);
    return status;
}

void kvc_namespace_keep(struct kvc_store_namespace *ns, unsigned tier) {
    put_facts(ns, tier, tier + 1, NEVER, NULL);
}

void kvc_namespace_touch(struct kvc_store_namespace *ns, unsigned tier) {
    struct kvc_object o[sizeof ns->profile / sizeof ns->profile[0] + 3] = {facts_object(ns)};
    size_t n = 1;
    if (ns->is_learnt) o[n++] = kvc_object_of(KVC_OBJECT_LEARNT, ns->learnt_from, ns->learnt_from);
    pthread_mutex_lock(&ns->lock);
    if (ns->packs_with)
        o[n++] = kvc_object_of(KVC_OBJECT_PROFILE, NULL, profile_info(ns->packs_with).sha256);
    for (unsigned i = 0; i < ns->n_profiles; i++)
        o[n++] = kvc_object_of(KVC_OBJECT_PROFILE, NULL, profile_info(ns->profile[i]).sha256);
    pthread_mutex_unlock(&ns->lock);
    kvc_store_notify(ns->store, tier, KVC_OP_TOUCH, o, n, 0);
}

static int is_profile(const struct kvc_profile *p, const uint8_t *sha256) {
    const struct kvc_profile_info info = profile_info(p);
    return memcmp(info.sha256, sha256, sizeof info.sha256) == 0;
}

static struct kvc_profile *known_profile(const struct kvc_store_namespace *ns,
                                         const uint8_t *sha256) {
    struct kvc_profile *p = ns->packs_with;
    if (p && is_profile(p, sha256)) return p;
    for (unsigned i = 0; i < ns->n_profiles; i++)
        if (is_profile(ns->profile[i], sha256)) return ns->profile[i];
    return NULL;
}

void kvc_namespace_copy_facts(struct kvc_store_namespace *ns, unsigned tier) {
    const struct kvc_object o = facts_object(ns);
    void *data = atomic_exchange(&ns->is_copied, 1) ? NULL : strdup(ns->facts);
    if (!data) return;
    struct kvc_bytes *bytes = kvc_chunk_sign(ns->store, &o, data, strlen(ns->facts), NULL);
    if (bytes) kvc_store_backfill(ns->store, tier, &o, NULL, bytes);
    kvc_bytes_release(bytes);
}

struct kvc_profile *kvc_store_profile(struct kvc_store *s, const uint8_t *sha256,
                                      struct kvc_error *e) {
    const struct kvc_object o = kvc_object_of(KVC_OBJECT_PROFILE, NULL, sha256);
    size_t size;
    struct kvc_bytes *bytes = kvc_store_read_object(s, &o, &size, e);
    struct kvc_profile *p = bytes ? kvc_shared_profile_open_memory(bytes->data, size, e) : NULL;
    kvc_bytes_release(bytes);
    return p;
}

/* Returns the code of objects whose profile cannot be read: whatever is wrong with the profile,
 * they are sound, and stay in the store. */
static enum kvc_code code_without_profile(enum kvc_code why) {
    const int tells = why == KVC_ERR_MEMORY || why == KVC_ERR_VERIFY || why == KVC_ERR_UNSUPPORTED;
    return tells ? why : KVC_ERR_IO;
}

struct kvc_profile *kvc_namespace_profile(struct kvc_store_namespace *ns, const uint8_t *sha256,
                                          const char *model, struct kvc_error *e) {
    const unsigned room = sizeof ns->profile / sizeof ns->profile[0];
    struct kvc_error why = {.code = KVC_ERR_IO}, nowhere;
    pthread_mutex_lock(&ns->lock);
    struct kvc_profile *p = known_profile(ns, sha256);
    if (!p && ns->n_profiles == room) {
        kvc_fail(e, KVC_ERR_UNSUPPORTED,
                 "the chunks of a namespace were packed with more than %u profiles", room);
    } else if (!p) {
        p = kvc_store_profile(ns->store, sha256, &why);
        if (!p && !(p = kvc_shared_profile_find(sha256, model, &nowhere)))
            kvc_fail_need(e, code_without_profile(why.code), KVC_NEED_PROFILE, "%.200s; %s",
                          why.message, nowhere.message);
        if (p) ns->profile[ns->n_profiles++] = p;
    }
    pthread_mutex_unlock(&ns->lock);
    return p;
}
