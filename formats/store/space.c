/* space.c: namespaces of a store, and the keys of their chunks. Spec: STORE.md, "Namespaces" and
 * "Keys". Not for the text of the facts (space_text.c). */
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
#include "formats/store/space_text.h"

#include <stdlib.h>
#include <string.h>

#define OBJECT_TAG "kvc object 1\n"
#define TENANT_TAG "kvc tenant 1"

/* --- keys --- */

static int name_object(const struct kvc_store_space *space, enum kvc_object_kind kind,
                       const uint8_t *key, struct kvc_object *o, struct kvc_error *e) {
    uint8_t text[sizeof OBJECT_TAG - 1 + KVC_KEY_BYTES + 1 + KVC_KEY_BYTES], *p = text;
    o->kind = kind;
    memcpy(o->space, space->ns, sizeof o->space);
    memcpy(p, OBJECT_TAG, sizeof OBJECT_TAG - 1);
    p += sizeof OBJECT_TAG - 1;
    memcpy(p, space->ns, KVC_KEY_BYTES);
    p += KVC_KEY_BYTES;
    *p++ = (uint8_t)kind;
    memcpy(p, key, KVC_KEY_BYTES);
    return kvc_sha256(text, sizeof text, o->key, e);
}

int kvc_chunk_object(const struct kvc_store_space *space, const uint8_t *keys, size_t i,
                     struct kvc_object *o, struct kvc_error *e) {
    const size_t per_chunk = (size_t)(space->chunk / KVC_PREFIX_TOKENS);
    return name_object(space, KVC_OBJECT_CHUNK, keys + ((i + 1) * per_chunk - 1) * KVC_KEY_BYTES, o,
                       e);
}

int kvc_whole_object(const struct kvc_store_space *space, const uint8_t *keys, size_t i,
                     struct kvc_object *o, struct kvc_error *e) {
    struct kvc_prefix p;
    if (!i && kvc_prefix_begin(&p, space->identity, e)) return -1;
    return name_object(space, KVC_OBJECT_STATE, i ? keys + (i - 1) * KVC_KEY_BYTES : p.start, o, e);
}

int kvc_named_object(const struct kvc_store_space *space, const struct kvc_store_name *name,
                     struct kvc_object *o, struct kvc_error *e) {
    uint8_t hash[KVC_KEY_BYTES];
    if (!name->size || name->size > KVC_STORE_MAX_NAME)
        return kvc_fail(e, KVC_ERR_USAGE, "the name of a cache has 1 to %d bytes",
                        KVC_STORE_MAX_NAME);
    if (kvc_sha256(name->bytes, name->size, hash, e)) return -1;
    if (name_object(space, KVC_OBJECT_NAMED, hash, o, e)) return -1;
    return 0;
}

int kvc_space_extras(struct kvc_meta *meta, const struct kvc_store_extra *extras, size_t n,
                     struct kvc_error *e) {
    struct kvc_extra *item = calloc(n, sizeof *item);
    if (!item) return kvc_fail_memory(e, "extras");
    int status = 0;
    for (size_t i = 0; i < n && !status; i++) {
        if (extras[i].tag < 1 || extras[i].tag > 255 || extras[i].size > UINT16_MAX)
            status = kvc_fail(e, KVC_ERR_USAGE,
                              "an extra has a tag of 1 to 255 and at most 65535 bytes");
        item[i] = (struct kvc_extra){.position = extras[i].position,
                                     .tag = (uint8_t)extras[i].tag,
                                     .size = (uint16_t)extras[i].size,
                                     .bytes = extras[i].bytes};
    }
    if (!status) status = kvc_extras_store(meta, item, n, e);
    free(item);
    return status;
}

int kvc_space_keys_of(const struct kvc_store_space *space, const int32_t *tokens, uint64_t n,
                      const struct kvc_meta *meta, uint8_t **keys, struct kvc_error *e) {
    struct kvc_prefix p;
    *keys = NULL;
    if (n / KVC_PREFIX_TOKENS > SIZE_MAX / KVC_KEY_BYTES - 1) return kvc_fail_memory(e, "keys");
    if (!(*keys = malloc((size_t)(n / KVC_PREFIX_TOKENS) * KVC_KEY_BYTES + 1)))
        return kvc_fail_memory(e, "keys");
    int status = kvc_prefix_begin(&p, space->identity, e);
    if (!status) status = kvc_extras_of(meta, &p.extras, e);
    if (!status) status = kvc_prefix_keys(&p, tokens, n, *keys, e);
    if (!status) return 0;
    free(*keys);
    *keys = NULL;
    return -1;
}

int kvc_space_keys(const struct kvc_store_space *space, const int32_t *tokens, uint64_t n,
                   const struct kvc_store_extra *extras, size_t n_extras, uint8_t **keys,
                   struct kvc_error *e) {
    struct kvc_meta meta = {0};
    *keys = NULL;
    int status = n_extras ? kvc_space_extras(&meta, extras, n_extras, e) : 0;
    if (!status) status = kvc_space_keys_of(space, tokens, n, &meta, keys, e);
    kvc_meta_free(&meta);
    return status;
}

/* --- opening --- */

void kvc_space_hold(struct kvc_store_space *space) {
    atomic_fetch_add(&space->refs, 1);
}

void kvc_store_space_close(struct kvc_store_space *space) {
    if (!space || atomic_fetch_sub(&space->refs, 1) != 1) return;
    for (unsigned i = 0; i < space->n_profiles; i++) kvc_profile_free(space->profile[i]);
    kvc_profile_free(space->packs_with);
    pthread_mutex_destroy(&space->lock);
    free(space->recipe);
    free(space->facts);
    free(space);
}

const char *kvc_store_space_name(const struct kvc_store_space *space) {
    return space->name;
}

const char *kvc_store_space_facts(const struct kvc_store_space *space) {
    return space->facts;
}

uint64_t kvc_store_space_chunk(const struct kvc_store_space *space) {
    return space->chunk;
}

static struct kvc_store_space *
new_space(struct kvc_store *s, const struct kvc_store_space_options *o, struct kvc_error *e) {
    struct kvc_store_space *space = calloc(1, sizeof *space);
    if (!space) {
        kvc_fail_memory(e, "a namespace");
        return NULL;
    }
    space->store = s;
    atomic_init(&space->refs, 1);
    pthread_mutex_init(&space->lock, NULL);
    if (o->tenant_file && kvc_store_secret(o->tenant_file, TENANT_TAG, space->tenant, e)) {
        kvc_store_space_close(space);
        return NULL;
    }
    space->has_tenant = o->tenant_file != NULL;
    return space;
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
static int take_recipe(struct kvc_store_space *space, const struct kvc_file *f,
                       const struct kvc_store_space_options *o, struct kvc_meta *meta,
                       struct kvc_error *e) {
    static const struct kvc_rate rate = {.kld = 0};
    struct kvc_recipe recipe, settled;
    struct kvc_rate_report report;
    char text[KVC_MAX_RECIPE_TEXT];
    if (o->profile && !(space->packs_with = kvc_given_profile(o->profile, e))) return -1;
    space->lossless = 1;
    if (!o->recipe) return 0;
    if (kvc_recipe_parse(o->recipe, &recipe, e)) return -1;
    const struct kvc_pack_options pack = {.recipe = &recipe, .profile = space->packs_with};
    if (kvc_rate_settle(f->cache, &pack, &rate, &settled, &report, e)) return -1;
    if (kvc_recipe_print(&settled, text, sizeof text))
        return kvc_fail(e, KVC_ERR_USAGE, "the recipe is too long");
    if (!(space->recipe = strdup(text))) return kvc_fail_memory(e, "a recipe");
    space->lossless = !kvc_recipe_is_lossy(&settled);
    if (space->lossless) return 0;
    kvc_meta_remove(meta, KVC_KEY_PROFILE);
    if (kvc_meta_set_text(meta, KVC_KEY_RECIPE, text, e)) return -1;
    if (!space->packs_with) return 0;
    if (!(kvc_recipe_profile_need(&settled, kvc_profile_predicts(space->packs_with)) &
          KVC_PROFILE_DECODES))
        return 0;
    return kvc_meta_set_bytes(meta, KVC_KEY_PROFILE, kvc_profile_sha256(space->packs_with),
                              KVC_SHA256_BYTES, e);
}

static int name_space(struct kvc_store_space *space) {
    kvc_hex(space->ns, sizeof space->ns, space->name);
    return 0;
}

static int space_describe(struct kvc_store_space *space, const struct kvc_file *f,
                          const struct kvc_store_space_options *o, struct kvc_error *e) {
    struct kvc_meta meta = {0};
    /* as packing does */
    int status = kvc_meta_copy(&meta, &f->cache->meta, e) || kvc_values_pass(&meta, e) ? -1 : 0;
    if (!status) {
        kvc_meta_remove(&meta, KVC_KEY_PREFIX_IDENTITY);
        kvc_prefix_identity_of_model(&meta, space->identity, sizeof space->identity);
        status = take_recipe(space, f, o, &meta, e);
    }
    if (!status) {
        space->chunk = o->chunk ? o->chunk : choose_chunk(f->cache, space->lossless);
        const struct kvc_space facts = {.lossless = space->lossless,
                                        .chunk = space->chunk,
                                        .tenant = space->has_tenant ? space->tenant : NULL};
        space->facts = kvc_space_text_write(f->cache, &meta, &facts, space->ns, e);
        status = space->facts ? name_space(space) : -1;
    }
    kvc_meta_free(&meta);
    return status;
}

struct kvc_store_space *kvc_store_space_like(struct kvc_store *s, const struct kvc_file *f,
                                             const struct kvc_store_space_options *options,
                                             struct kvc_error *e) {
    struct kvc_store_space_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_space_options", e)) return NULL;
    if (o.chunk % KVC_PREFIX_TOKENS || o.chunk > (UINT64_C(1) << 32)) {
        kvc_fail(e, KVC_ERR_USAGE, "a chunk has a multiple of %d tokens", KVC_PREFIX_TOKENS);
        return NULL;
    }
    struct kvc_store_space *space = new_space(s, &o, e);
    if (!space || !space_describe(space, f, &o, e)) return space;
    kvc_store_space_close(space);
    return NULL;
}

/* --- namespaces that are in the store --- */

struct search {
    const char *name;
    struct kvc_object found;
    unsigned n;
};

static int see_space(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    struct search *s = state;
    char hex[2 * KVC_OBJECT_KEY + 1];
    (void)size, (void)used;
    if (o->kind != KVC_OBJECT_SPACE_FACTS) return 0;
    kvc_hex(o->key, sizeof o->key, hex);
    if (strncmp(hex, s->name, strlen(s->name)) != 0) return 0;
    s->n += !s->n || !kvc_object_equal(o, &s->found);
    s->found = *o;
    return 0;
}

static int take_facts(struct kvc_store_space *space, const struct kvc_store_space_options *o,
                      const struct kvc_object *object, struct kvc_error *e) {
    struct kvc_space_facts facts;
    struct kvc_recipe recipe;
    size_t size;
    if (!(space->facts = kvc_store_read_object(space->store, object, &size, e))) return -1;
    char *text = realloc(space->facts, size + 1); /* a signature followed, or nothing */
    if (!text) return kvc_fail_memory(e, "the facts of a namespace");
    space->facts = text;
    text[size] = '\0';
    if (strlen(text) + 1 < size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the facts of namespace %.16s are no text",
                        space->name);
    if (kvc_space_text_read(space->facts, size, &facts, e)) return -1;
    if (memcmp(facts.ns, object->key, sizeof facts.ns) != 0)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the facts of namespace %.16s are not those that its name stands for",
                        space->name);
    if (facts.has_tenant != space->has_tenant ||
        (facts.has_tenant && memcmp(facts.tenant, space->tenant, KVC_KEY_BYTES) != 0))
        return kvc_fail(e, KVC_ERR_USAGE, "namespace %.16s belongs to %s", space->name,
                        facts.has_tenant ? "a tenant, whose secret is needed" : "no tenant");
    memcpy(space->ns, facts.ns, sizeof space->ns);
    memcpy(space->identity, facts.identity, sizeof space->identity);
    space->chunk = facts.chunk;
    space->lossless = strcmp(facts.fidelity, "lossless") == 0;
    space->is_stored = 1;
    if (o->profile && !(space->packs_with = kvc_given_profile(o->profile, e))) return -1;
    if (!o->recipe && space->lossless) return 0;
    /* of values with a past; to be read */
    if (!o->recipe && kvc_recipe_parse(facts.fidelity, &recipe, NULL)) return 0;
    if (!(space->recipe = strdup(o->recipe ? o->recipe : facts.fidelity)))
        return kvc_fail_memory(e, "a recipe");
    if (kvc_recipe_parse(space->recipe, &recipe, e)) return -1;
    if (space->lossless ? !kvc_recipe_is_lossy(&recipe)
                        : !o->recipe || is_fidelity(o->recipe, facts.fidelity))
        return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "recipe '%s' is not of the fidelity of namespace %.16s, which is '%s'",
                    o->recipe, space->name, facts.fidelity);
}

struct kvc_store_space *kvc_store_space_named(struct kvc_store *s, const char *name,
                                              const struct kvc_store_space_options *options,
                                              struct kvc_error *e) {
    struct kvc_store_space_options o;
    struct search search = {.name = name};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_store_space_options", e)) return NULL;
    for (unsigned i = 0; i < s->n_levels && !search.n; i++)
        if (s->level[i].ops->walk(s->level[i].level, NULL, see_space, &search, e)) return NULL;
    if (search.n != 1) {
        kvc_fail(e, KVC_ERR_USAGE,
                 search.n ? "there are several namespaces whose names begin with '%s'"
                          : "there is no namespace '%s'",
                 name);
        return NULL;
    }
    struct kvc_store_space *space = new_space(s, &o, e);
    if (!space) return NULL;
    memcpy(space->ns, search.found.key, sizeof space->ns);
    name_space(space);
    if (!take_facts(space, &o, &search.found, e)) return space;
    kvc_store_space_close(space);
    return NULL;
}

/* --- what a namespace needs in the store --- */

static struct kvc_object profile_object(const uint8_t *sha256) {
    struct kvc_object o = {.kind = KVC_OBJECT_PROFILE};
    memcpy(o.key, sha256, sizeof o.key);
    return o;
}

struct kvc_object kvc_space_object(const struct kvc_store_space *space) {
    struct kvc_object o = {.kind = KVC_OBJECT_SPACE_FACTS};
    memcpy(o.space, space->ns, sizeof o.space);
    memcpy(o.key, space->ns, sizeof o.key);
    return o;
}

int kvc_space_store(struct kvc_store_space *space, struct kvc_error *e) {
    const struct kvc_object o = kvc_space_object(space);
    size_t size;
    int status = 0;
    pthread_mutex_lock(&space->lock);
    if (!space->is_stored) {
        if (space->packs_with) {
            const struct kvc_object p = profile_object(kvc_profile_sha256(space->packs_with));
            const uint8_t *bytes = kvc_profile_bytes(space->packs_with, &size);
            status = kvc_store_write_object(space->store, &p, bytes, size, e);
        }
        if (!status)
            status = kvc_store_write_object(space->store, &o, space->facts, strlen(space->facts),
                                            e);
        space->is_stored = !status;
    }
    pthread_mutex_unlock(&space->lock);
    return status;
}

/* Puts an object to a level as kvc_store_write_object() does. */
static void space_keep(struct kvc_store *s, unsigned level, const struct kvc_object *o,
                       const void *data, size_t size) {
    const struct kvc_level_put how = {.pin = o->kind == KVC_OBJECT_PROFILE};
    void *bytes = malloc(size + 1);
    int there;
    if (!bytes) return;
    memcpy(bytes, data, size);
    if (!kvc_chunk_sign(s, o, &bytes, &size, NULL))
        kvc_store_put_level(s, level, o, bytes, size, &how, kvc_now() + KVC_OBJECT_TIME, &there,
                            NULL);
    free(bytes);
}

void kvc_space_keep(struct kvc_store_space *space, unsigned level) {
    const struct kvc_object o = kvc_space_object(space);
    size_t size;
    if (space->packs_with) {
        const struct kvc_object p = profile_object(kvc_profile_sha256(space->packs_with));
        const uint8_t *bytes = kvc_profile_bytes(space->packs_with, &size);
        space_keep(space->store, level, &p, bytes, size);
    }
    space_keep(space->store, level, &o, space->facts, strlen(space->facts));
}

void kvc_space_touch(struct kvc_store_space *space, unsigned level) {
    struct kvc_object o[sizeof space->profile / sizeof space->profile[0] + 2] = {
        kvc_space_object(space)};
    size_t n = 1;
    pthread_mutex_lock(&space->lock);
    if (space->packs_with) o[n++] = profile_object(kvc_profile_sha256(space->packs_with));
    for (unsigned i = 0; i < space->n_profiles; i++)
        o[n++] = profile_object(kvc_profile_sha256(space->profile[i]));
    pthread_mutex_unlock(&space->lock);
    kvc_store_tell(space->store, level, KVC_TOUCH, o, n, 0);
}

static struct kvc_profile *known_profile(const struct kvc_store_space *space,
                                         const uint8_t *sha256) {
    struct kvc_profile *p = space->packs_with;
    if (p && memcmp(kvc_profile_sha256(p), sha256, KVC_SHA256_BYTES) == 0) return p;
    for (unsigned i = 0; i < space->n_profiles; i++)
        if (memcmp(kvc_profile_sha256(space->profile[i]), sha256, KVC_SHA256_BYTES) == 0)
            return space->profile[i];
    return NULL;
}

void kvc_space_copy_facts(struct kvc_store_space *space, unsigned level) {
    const struct kvc_object o = kvc_space_object(space);
    size_t size = strlen(space->facts);
    void *data = atomic_exchange(&space->is_copied, 1) ? NULL : strdup(space->facts);
    if (data && !kvc_chunk_sign(space->store, &o, &data, &size, NULL))
        kvc_store_backfill(space->store, level, &o, NULL, data, size);
    else free(data);
}

struct kvc_profile *kvc_space_profile(struct kvc_store_space *space, const uint8_t *sha256,
                                      struct kvc_error *e) {
    const struct kvc_object o = profile_object(sha256);
    const unsigned room = sizeof space->profile / sizeof space->profile[0];
    size_t size;
    pthread_mutex_lock(&space->lock);
    struct kvc_profile *p = known_profile(space, sha256);
    if (!p && space->n_profiles == room) {
        kvc_fail(e, KVC_ERR_UNSUPPORTED,
                 "the chunks of a namespace were packed with more than %u profiles", room);
    } else if (!p) {
        void *bytes = kvc_store_read_object(space->store, &o, &size, e);
        if (bytes) p = kvc_profile_open_memory(bytes, size, e);
        free(bytes);
        if (p && memcmp(kvc_profile_sha256(p), sha256, KVC_SHA256_BYTES) != 0) {
            kvc_profile_free(p);
            p = NULL;
            kvc_fail(e, KVC_ERR_DAMAGED,
                     "a profile in the store is not the one that its name stands for");
        }
        if (p) space->profile[space->n_profiles++] = p;
    }
    pthread_mutex_unlock(&space->lock);
    return p;
}
