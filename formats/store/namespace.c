/* namespace.c: namespaces of a store. Spec: STORE.md, "Namespaces". Not for the text of their facts
 * (namespace_text.c), nor for keys (keys.c). */
#include "formats/store/store.h"

#include "codecs/recipe.h"
#include "formats/api/sized.h"
#include "formats/cache/facts.h"
#include "formats/cache/keys.h"
#include "formats/cache/values.h"
#include "formats/io/bytes.h"
#include "formats/file/given.h"
#include "formats/file/rate.h"
#include "formats/model/predictor.h"
#include "formats/model/profile.h"
#include "formats/store/namespace_text.h"

#include <stdlib.h>
#include <string.h>

#define TENANT_TAG "kvc tenant 1"

/* --- opening --- */

void kvc_namespace_hold(struct kvc_store_namespace *ns) {
    atomic_fetch_add(&ns->refs, 1);
}

void kvc_store_namespace_close(struct kvc_store_namespace *ns) {
    if (!ns || atomic_fetch_sub(&ns->refs, 1) != 1) return;
    for (unsigned i = 0; i < ns->n_profiles; i++) kvc_profile_free(ns->profile[i]);
    kvc_profile_free(ns->packs_with);
    pthread_mutex_destroy(&ns->lock);
    free(ns->recipe);
    free(ns->facts);
    free(ns);
}

const char *kvc_store_namespace_name(const struct kvc_store_namespace *ns) {
    return ns->name;
}

const char *kvc_store_namespace_facts(const struct kvc_store_namespace *ns) {
    return ns->facts;
}

uint64_t kvc_store_namespace_chunk(const struct kvc_store_namespace *ns) {
    return ns->chunk;
}

static struct kvc_store_namespace *new_namespace(struct kvc_store *s,
                                                 const struct kvc_store_namespace_options *o,
                                                 struct kvc_error *e) {
    struct kvc_store_namespace *ns = calloc(1, sizeof *ns);
    if (!ns) {
        kvc_fail_memory(e, "a namespace");
        return NULL;
    }
    ns->store = s;
    atomic_init(&ns->refs, 1);
    pthread_mutex_init(&ns->lock, NULL);
    if (o->tenant_file && kvc_store_secret(o->tenant_file, TENANT_TAG, ns->tenant, e)) {
        kvc_store_namespace_close(ns);
        return NULL;
    }
    ns->has_tenant = o->tenant_file != NULL;
    return ns;
}

/* Returns the bytes of a token's rows in the live part. */
static uint64_t token_bytes(const struct kvc_cache *c) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_tensor_part(c, t)->kind == KVC_PART_LIVE)
            bytes += kvc_row_bytes(&c->tensor[t].shape);
    return bytes;
}

/* bytes: below that, requests cost more than what they move */
#define GOOD_OBJECT (UINT64_C(2) << 20)
#define MAX_RUNS 4 /* 1024 tokens */

/* The smallest chunk whose object takes 2 MiB or more, as packing usually makes it smaller.
 * Everybody computes the same. */
static uint64_t choose_chunk(const struct kvc_cache *c, int lossless) {
    const uint64_t run = token_bytes(c) * KVC_PREFIX_TOKENS,
                   packed = lossless ? run / 3 * 2 : run / 8;
    uint64_t runs = 1;
    while (runs < MAX_RUNS && runs * packed < GOOD_OBJECT) runs++;
    return runs * KVC_PREFIX_TOKENS;
}

#define NO_STEP 1. /* stands for every step, where they are not compared */

/* Compares a recipe that was asked for with the text of a settled one. A step that packing finds is
 * no difference. */
static int is_fidelity(const char *asked, const char *settled) {
    struct kvc_recipe a, b;
    char x[KVC_MAX_RECIPE_TEXT], y[KVC_MAX_RECIPE_TEXT];
    double kld;
    if (kvc_recipe_parse(asked, &a, NULL) || kvc_recipe_parse(settled, &b, NULL)) return 0;
    for (unsigned i = 0; i < a.n && i < b.n; i++) {
        const struct kvc_stage *stage = a.item[i].stage;
        if (stage != b.item[i].stage || !stage->step || stage->step(&a.item[i].args, &kld) > 0)
            continue;
        stage->set_step(&a.item[i].args, NO_STEP);
        stage->set_step(&b.item[i].args, NO_STEP);
    }
    return !kvc_recipe_print(&a, x, sizeof x) && !kvc_recipe_print(&b, y, sizeof y) &&
           strcmp(x, y) == 0;
}

/* Sets what decides about the fidelity: the recipe, with its step settled as packing settles it,
 * and the profile. */
static int take_recipe(struct kvc_store_namespace *ns, const struct kvc_file *f,
                       const struct kvc_store_namespace_options *o, struct kvc_meta *meta,
                       struct kvc_error *e) {
    static const struct kvc_rate rate = {.kld = 0};
    struct kvc_recipe recipe, settled;
    struct kvc_rate_report report;
    char text[KVC_MAX_RECIPE_TEXT];
    if (o->profile && !(ns->packs_with = kvc_given_profile(o->profile, e))) return -1;
    ns->lossless = 1;
    if (!o->recipe) return 0;
    if (kvc_recipe_parse(o->recipe, &recipe, e)) return -1;
    const struct kvc_pack_options pack = {.recipe = &recipe, .profile = ns->packs_with};
    if (kvc_rate_settle(f->cache, &pack, &rate, &settled, &report, e)) return -1;
    if (kvc_recipe_print(&settled, text, sizeof text))
        return kvc_fail(e, KVC_ERR_USAGE, "the recipe is too long");
    if (!(ns->recipe = strdup(text))) return kvc_fail_memory(e, "a recipe");
    ns->lossless = !kvc_recipe_is_lossy(&settled);
    if (ns->lossless) return 0;
    kvc_meta_remove(meta, KVC_KEY_PROFILE);
    if (kvc_meta_set_text(meta, KVC_KEY_RECIPE, text, e)) return -1;
    if (!ns->packs_with) return 0;
    if (!(kvc_recipe_profile_need(&settled, kvc_profile_predicts(ns->packs_with)) &
          KVC_PROFILE_DECODES))
        return 0;
    return kvc_meta_set_bytes(meta, KVC_KEY_PROFILE, kvc_profile_sha256(ns->packs_with),
                              KVC_SHA256_BYTES, e);
}

static int space_describe(struct kvc_store_namespace *ns, const struct kvc_file *f,
                          const struct kvc_store_namespace_options *o, struct kvc_error *e) {
    struct kvc_meta meta = {0};
    /* as packing does */
    int status = kvc_meta_copy(&meta, &f->cache->meta, e);
    if (!status) status = kvc_values_pass(&meta, e);
    if (!status) {
        kvc_meta_remove(&meta, KVC_KEY_PREFIX_IDENTITY);
        kvc_prefix_identity_of_model(&meta, ns->identity, sizeof ns->identity);
        status = take_recipe(ns, f, o, &meta, e);
    }
    if (!status) {
        ns->chunk = o->chunk ? o->chunk : choose_chunk(f->cache, ns->lossless);
        const struct kvc_space facts = {.lossless = ns->lossless,
                                        .chunk = ns->chunk,
                                        .tenant = ns->has_tenant ? ns->tenant : NULL};
        ns->facts = kvc_namespace_text_write(f->cache, &meta, &facts, ns->hash, e);
        if (ns->facts) kvc_hex(ns->hash, sizeof ns->hash, ns->name);
        else status = -1;
    }
    kvc_meta_free(&meta);
    return status;
}

struct kvc_store_namespace *
kvc_store_namespace_like(struct kvc_store *s, const struct kvc_file *f,
                         const struct kvc_store_namespace_options *options, struct kvc_error *e) {
    struct kvc_store_namespace_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_namespace_options", e)) return NULL;
    if (o.chunk % KVC_PREFIX_TOKENS || o.chunk > (UINT64_C(1) << 32)) {
        kvc_fail(e, KVC_ERR_USAGE, "a chunk has a multiple of %d tokens", KVC_PREFIX_TOKENS);
        return NULL;
    }
    struct kvc_store_namespace *ns = new_namespace(s, &o, e);
    if (!ns || !space_describe(ns, f, &o, e)) return ns;
    kvc_store_namespace_close(ns);
    return NULL;
}

/* --- namespaces that are in the store --- */

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

/* Reads an object from the first tier that has it. *size is that without its signature. */
static struct kvc_bytes *read_object(struct kvc_store *s, const struct kvc_object *o, size_t *size,
                                     struct kvc_error *e) {
    for (unsigned i = 0; i < s->n_tiers; i++) {
        struct kvc_bytes *bytes = kvc_store_read_tier(s, i, o, kvc_now() + KVC_OBJECT_TIME, e);
        if (!bytes) continue;
        *size = bytes->size;
        if (!kvc_chunk_signature(s, o, bytes->data, size, e)) {
            kvc_store_backfill(s, i, o, NULL, bytes); /* faster tiers lack it */
            return bytes;
        }
        kvc_bytes_release(bytes);
    }
    return NULL;
}

static int take_facts(struct kvc_store_namespace *ns, const struct kvc_store_namespace_options *o,
                      const struct kvc_object *object, struct kvc_error *e) {
    struct kvc_namespace_facts facts;
    struct kvc_recipe recipe;
    size_t size;
    struct kvc_bytes *bytes = read_object(ns->store, object, &size, e);
    if (!bytes) return -1;
    ns->facts = calloc(size + 1, 1);
    if (ns->facts) memcpy(ns->facts, bytes->data, size);
    kvc_bytes_release(bytes);
    if (!ns->facts) return kvc_fail_memory(e, "the facts of a namespace");
    if (strlen(ns->facts) + 1 < size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the facts of namespace %.16s are no text", ns->name);
    if (kvc_namespace_text_read(ns->facts, size, &facts, e)) return -1;
    if (memcmp(facts.ns, object->key, sizeof facts.ns) != 0)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the facts of namespace %.16s are not those that its name stands for",
                        ns->name);
    if (facts.has_tenant != ns->has_tenant ||
        (facts.has_tenant && memcmp(facts.tenant, ns->tenant, KVC_KEY_BYTES) != 0))
        return kvc_fail(e, KVC_ERR_USAGE, "namespace %.16s belongs to %s", ns->name,
                        facts.has_tenant ? "a tenant, whose secret is needed" : "no tenant");
    memcpy(ns->hash, facts.ns, sizeof ns->hash);
    memcpy(ns->identity, facts.identity, sizeof ns->identity);
    ns->chunk = facts.chunk;
    ns->lossless = strcmp(facts.fidelity, "lossless") == 0;
    ns->is_stored = 1;
    if (o->profile && !(ns->packs_with = kvc_given_profile(o->profile, e))) return -1;
    if (!o->recipe && ns->lossless) return 0;
    /* of values with a past; to be read */
    if (!o->recipe && kvc_recipe_parse(facts.fidelity, &recipe, NULL)) return 0;
    if (!(ns->recipe = strdup(o->recipe ? o->recipe : facts.fidelity)))
        return kvc_fail_memory(e, "a recipe");
    if (kvc_recipe_parse(ns->recipe, &recipe, e)) return -1;
    if (ns->lossless ? !kvc_recipe_is_lossy(&recipe)
                     : !o->recipe || is_fidelity(o->recipe, facts.fidelity))
        return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "recipe '%s' is not of the fidelity of namespace %.16s, which is '%s'",
                    o->recipe, ns->name, facts.fidelity);
}

struct kvc_store_namespace *
kvc_store_namespace_named(struct kvc_store *s, const char *name,
                          const struct kvc_store_namespace_options *options, struct kvc_error *e) {
    struct kvc_store_namespace_options o;
    struct search search = {.name = name};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_namespace_options", e)) return NULL;
    for (unsigned i = 0; i < s->n_tiers && !search.n; i++)
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
    memcpy(ns->hash, search.found.key, sizeof ns->hash);
    kvc_hex(ns->hash, sizeof ns->hash, ns->name);
    if (!take_facts(ns, &o, &search.found, e)) return ns;
    kvc_store_namespace_close(ns);
    return NULL;
}

/* --- what a namespace needs in the store --- */

static struct kvc_object profile_object(const uint8_t *sha256) {
    struct kvc_object o = {.kind = KVC_OBJECT_PROFILE};
    memcpy(o.key, sha256, sizeof o.key);
    return o;
}

struct kvc_object kvc_namespace_object(const struct kvc_store_namespace *ns) {
    struct kvc_object o = {.kind = KVC_OBJECT_NAMESPACE};
    memcpy(o.ns, ns->hash, sizeof o.ns);
    memcpy(o.key, ns->hash, sizeof o.key);
    return o;
}

/* Writes an object to the tiers from `first` to `end` that lack it. -1: none took it. */
static int put_object(struct kvc_store *s, unsigned first, unsigned end, const struct kvc_object *o,
                      const void *data, size_t size, struct kvc_error *e) {
    /* without a profile many chunks cannot be read */
    const struct kvc_tier_put how = {.pin = o->kind == KVC_OBJECT_PROFILE};
    void *copy = malloc(size + 1);
    unsigned stored = 0;
    if (!copy) return kvc_fail_memory(e, "an object");
    memcpy(copy, data, size);
    if (kvc_chunk_sign(s, o, &copy, &size, e)) {
        free(copy);
        return -1;
    }
    struct kvc_bytes *bytes = kvc_bytes_of(copy, size);
    if (!bytes) return kvc_fail_memory(e, "an object");
    for (; first < end; first++)
        stored += kvc_store_put_tier(s, first, o, bytes, &how, kvc_now() + KVC_OBJECT_TIME, e) >= 0;
    kvc_bytes_release(bytes);
    return stored ? 0 : -1;
}

/* Writes the profile that chunks are packed with, and the facts. */
static int put_facts(struct kvc_store_namespace *ns, unsigned first, unsigned end,
                     struct kvc_error *e) {
    const struct kvc_object o = kvc_namespace_object(ns);
    if (ns->packs_with) {
        const struct kvc_object p = profile_object(kvc_profile_sha256(ns->packs_with));
        size_t size;
        const uint8_t *bytes = kvc_profile_bytes(ns->packs_with, &size);
        if (put_object(ns->store, first, end, &p, bytes, size, e)) return -1;
    }
    return put_object(ns->store, first, end, &o, ns->facts, strlen(ns->facts), e);
}

int kvc_namespace_store(struct kvc_store_namespace *ns, struct kvc_error *e) {
    pthread_mutex_lock(&ns->lock);
    if (!ns->is_stored) ns->is_stored = !put_facts(ns, 0, ns->store->n_tiers, e);
    const int status = ns->is_stored ? 0 : -1;
    pthread_mutex_unlock(&ns->lock);
    return status;
}

void kvc_namespace_keep(struct kvc_store_namespace *ns, unsigned tier) {
    put_facts(ns, tier, tier + 1, NULL);
}

void kvc_namespace_touch(struct kvc_store_namespace *ns, unsigned tier) {
    struct kvc_object o[sizeof ns->profile / sizeof ns->profile[0] + 2] = {
        kvc_namespace_object(ns)};
    size_t n = 1;
    pthread_mutex_lock(&ns->lock);
    if (ns->packs_with) o[n++] = profile_object(kvc_profile_sha256(ns->packs_with));
    for (unsigned i = 0; i < ns->n_profiles; i++)
        o[n++] = profile_object(kvc_profile_sha256(ns->profile[i]));
    pthread_mutex_unlock(&ns->lock);
    kvc_store_notify(ns->store, tier, KVC_OP_TOUCH, o, n, 0);
}

static struct kvc_profile *known_profile(const struct kvc_store_namespace *ns,
                                         const uint8_t *sha256) {
    struct kvc_profile *p = ns->packs_with;
    if (p && memcmp(kvc_profile_sha256(p), sha256, KVC_SHA256_BYTES) == 0) return p;
    for (unsigned i = 0; i < ns->n_profiles; i++)
        if (memcmp(kvc_profile_sha256(ns->profile[i]), sha256, KVC_SHA256_BYTES) == 0)
            return ns->profile[i];
    return NULL;
}

void kvc_namespace_copy_facts(struct kvc_store_namespace *ns, unsigned tier) {
    const struct kvc_object o = kvc_namespace_object(ns);
    size_t size = strlen(ns->facts);
    void *data = atomic_exchange(&ns->is_copied, 1) ? NULL : strdup(ns->facts);
    if (!data) return;
    struct kvc_bytes *bytes = NULL;
    if (kvc_chunk_sign(ns->store, &o, &data, &size, NULL)) free(data);
    else bytes = kvc_bytes_of(data, size);
    if (bytes) kvc_store_backfill(ns->store, tier, &o, NULL, bytes);
    kvc_bytes_release(bytes);
}

/* Reads a profile from the store. */
static struct kvc_profile *stored_profile(struct kvc_store *s, const uint8_t *sha256,
                                          struct kvc_error *e) {
    const struct kvc_object o = profile_object(sha256);
    size_t size;
    struct kvc_bytes *bytes = read_object(s, &o, &size, e);
    struct kvc_profile *p = bytes ? kvc_profile_open_memory(bytes->data, size, e) : NULL;
    kvc_bytes_release(bytes);
    if (!p || memcmp(kvc_profile_sha256(p), sha256, KVC_SHA256_BYTES) == 0) return p;
    kvc_profile_free(p);
    kvc_fail(e, KVC_ERR_DAMAGED, "a profile in the store is not the one that its name stands for");
    return NULL;
}

struct kvc_profile *kvc_namespace_profile(struct kvc_store_namespace *ns, const uint8_t *sha256,
                                          const char *model, struct kvc_error *e) {
    const struct kvc_profile_places folders = {.given = NULL};
    const unsigned room = sizeof ns->profile / sizeof ns->profile[0];
    struct kvc_error why = {.code = KVC_ERR_IO}, nowhere;
    pthread_mutex_lock(&ns->lock);
    struct kvc_profile *p = known_profile(ns, sha256);
    if (!p && ns->n_profiles == room) {
        kvc_fail(e, KVC_ERR_UNSUPPORTED,
                 "the chunks of a namespace were packed with more than %u profiles", room);
    } else if (!p) {
        p = stored_profile(ns->store, sha256, &why);
        if (!p && !(p = kvc_profile_find(sha256, model, &folders, &nowhere)))
            kvc_fail_need(e, why.code, KVC_NEED_PROFILE, "%.200s; %s", why.message,
                          nowhere.message);
        if (p) ns->profile[ns->n_profiles++] = p;
    }
    pthread_mutex_unlock(&ns->lock);
    return p;
}
