/* prefix_space.c: computes the namespace of a cache. Spec: KEYS.md, "Namespace". Not for deciding
 * by it. */
#include "formats/cache/prefix_space.h"

#include "codecs/float_env.h"
#include "codecs/memory.h"
#include "formats/cache/facts.h"
#include "formats/cache/keys.h"
#include "formats/cache/scales.h"
#include "formats/io/bytes.h"
#include "formats/io/hash.h"
#include "formats/io/sink.h"

#include <stdlib.h>
#include <string.h>

#define TAG "kvc namespace 1\n"
/* Tags of facts that are no plain metadata. */
#define IDENTITY 1
#define LAYERS 5
#define SHARD 15
#define FIDELITY 16
#define PROFILE 17
#define CHUNK 18
#define TENANT 19
#define SCALES 20
#define ROPE_ORIGINAL 21 /* and the next: only where they are there */
#define ROPE_SECTIONS 22
#define ROPE_SOURCE 23
#define ROPE_SCALING 24

/* The facts of the tags 2 to 14. A f64 is hashed as binary32. */
static const char *const facts[] = {
    KVC_KEY_TOKENIZER, KVC_KEY_MODEL_ARCH,   KVC_KEY_MODEL_ADAPTERS_HASH, NULL /* LAYERS */,
    KVC_KEY_ROPE_K,    KVC_KEY_ROPE_PAIRING, KVC_KEY_ROPE_TYPE,           KVC_KEY_ROPE_THETA,
    KVC_KEY_ROPE_DIM,  KVC_KEY_ROPE_FACTOR,  KVC_KEY_HADAMARD_K,          KVC_KEY_HADAMARD_V,
    KVC_KEY_WINDOW,
};

/* Types of RoPE without a factor. */
static const char *const unscaled[] = {"default", "mrope", "imrope"};

void kvc_prefix_space_begin(struct kvc_sha256 *h) {
    kvc_sha256_init(h);
    kvc_sha256_update(h, TAG, sizeof TAG - 1);
}

void kvc_prefix_space_put(struct kvc_sha256 *h, uint8_t tag, const void *bytes, size_t n) {
    kvc_sha256_update(h, &tag, 1);
    kvc_sha256_u32(h, (uint32_t)n);
    kvc_sha256_update(h, bytes, n);
}

/* Where items go. */
struct items {
    struct kvc_sha256 hash;
    kvc_space_item *item; /* NULL: nowhere else */
    void *state;
};

static void prefix_space_put(struct items *out, uint8_t tag, const char *word, int text,
                             const void *bytes, size_t n) {
    kvc_prefix_space_put(&out->hash, tag, bytes, n);
    if (out->item) out->item(out->state, tag, word, text, bytes, n);
}

static void put_text(struct items *out, uint8_t tag, const char *word, const char *text) {
    prefix_space_put(out, tag, word, 1, text, strlen(text));
}

/* Returns the entry of a key; NULL: the key is absent, empty or of another type than it has. */
static const struct kvc_meta_entry *prefix_space_find(const struct kvc_meta *meta,
                                                      const char *key) {
    const struct kvc_meta_entry *entry = kvc_meta_find(meta, key);
    return entry && entry->type == kvc_fact_type(key) && entry->size ? entry : NULL;
}

/* Puts a fact of the metadata; one that is unknown is empty. */
static void put_fact(struct items *out, uint8_t tag, const struct kvc_meta *meta, const char *key) {
    const struct kvc_meta_entry *entry = prefix_space_find(meta, key);
    const int is_text = kvc_fact_type(key) == KVC_META_TEXT;
    uint8_t real[4];
    if (!entry) {
        prefix_space_put(out, tag, key, is_text, NULL, 0);
    } else if (entry->type == KVC_META_F64) {
        put_f32(real, (float)kvc_meta_f64(meta, key, 0));
        prefix_space_put(out, tag, key, 0, real, sizeof real);
    } else {
        prefix_space_put(out, tag, key, is_text, entry->value, (size_t)entry->size);
    }
}

/* --- layers --- */

/* A layer of the table with what it is sorted by. */
struct place {
    enum kvc_part_kind kind;
    uint32_t stream, index, layer;
};

static int compare(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->stream != y->stream) return x->stream < y->stream ? -1 : 1;
    if (x->index != y->index) return x->index < y->index ? -1 : 1;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

static uint8_t *put_tensor(uint8_t *p, const struct kvc_tensor *t, int heads_unknown) {
    const int unknown = heads_unknown && t->shape.heads == 1 &&
                        (t->role == KVC_ROLE_K || t->role == KVC_ROLE_V);
    p[0] = (uint8_t)t->role;
    p[1] = (uint8_t)t->shape.dtype;
    put_u64(p + 2, unknown ? 0 : t->shape.heads);
    put_u64(p + 10, t->shape.dim);
    return p + 18;
}

static uint8_t *put_layer(uint8_t *p, const struct kvc_cache *c, const struct place *place,
                          int heads_unknown) {
    const struct kvc_layer *layer = &c->layer[place->layer];
    p[0] = (uint8_t)place->kind;
    put_u32(p + 1, place->stream);
    put_u32(p + 5, place->index);
    p[9] = (uint8_t)layer->kind;
    put_u32(p + 10, layer->window);
    p += 14;
    for (int t = 0; t < 2; t++)
        if (layer->tensor[t] != KVC_NONE)
            p = put_tensor(p, &c->tensor[layer->tensor[t]], heads_unknown);
    return p;
}

/* Lists the layers that a namespace tells, in their order. The caller frees the list. NULL: there
 * is no memory. */
static struct place *list_layers(const struct kvc_cache *c, size_t *n) {
    struct place *place = kvc_alloc(c->n_layers, sizeof *place);
    *n = 0;
    for (uint32_t i = 0; place && i < c->n_layers; i++) {
        const struct kvc_part *part = &c->part[c->layer[i].part];
        if (part->kind <= KVC_PART_STATE)
            place[(*n)++] = (struct place){part->kind, part->stream, c->layer[i].index, i};
    }
    if (*n) qsort(place, *n, sizeof *place, compare);
    return place;
}

static int put_layers(struct items *out, const struct kvc_cache *c, const struct kvc_facts *known,
                      struct kvc_error *e) {
    size_t n;
    struct place *place = list_layers(c, &n);
    uint8_t *bytes = kvc_alloc((uint64_t)c->n_layers + 1, 14 + 2 * 18), *p = bytes;
    const int status = place && bytes ? 0 : kvc_fail_memory(e, "a namespace");
    if (!status) {
        *p++ = (uint8_t)!known->layers_unknown;
        for (size_t i = 0; i < n; i++) p = put_layer(p, c, &place[i], known->heads_unknown);
        prefix_space_put(out, LAYERS, "layers", 0, bytes, (size_t)(p - bytes));
    }
    free(bytes);
    free(place);
    return status;
}

/* --- all facts --- */

static void put_shard(struct items *out, const struct kvc_meta *meta) {
    const int known = prefix_space_find(meta, KVC_KEY_SHARD_RANK) &&
                      prefix_space_find(meta, KVC_KEY_SHARD_RANKS);
    uint8_t bytes[16];
    put_u64(bytes, meta->facts.shard_rank);
    put_u64(bytes + 8, meta->facts.shard_ranks);
    prefix_space_put(out, SHARD, "shard", 0, bytes, known ? sizeof bytes : 0);
}

/* Puts an item of two values of the metadata, of which either may be absent, with `between`. */
static int put_joined(struct items *out, uint8_t tag, const char *word,
                      const struct kvc_meta_entry *a, const char *between,
                      const struct kvc_meta_entry *b, struct kvc_error *e) {
    const size_t n_a = a ? (size_t)a->size : 0, n_b = b ? (size_t)b->size : 0,
                 n = a && b ? strlen(between) : 0;
    uint8_t *bytes = kvc_alloc((uint64_t)n_a + n + n_b + 1, 1);
    if (!bytes) return kvc_fail_memory(e, "a namespace");
    if (n_a) memcpy(bytes, a->value, n_a);
    memcpy(bytes + n_a, between, n);
    if (n_b) memcpy(bytes + n_a + n, b->value, n_b);
    prefix_space_put(out, tag, word, tag == FIDELITY, bytes, n_a + n + n_b);
    free(bytes);
    return 0;
}

/* Lossless rows are the same whatever coded them, and lossy ones are told by all recipes that their
 * values went through. */
static int put_fidelity(struct items *out, const struct kvc_meta *meta, int lossless,
                        struct kvc_error *e) {
    const struct kvc_meta_entry *past = prefix_space_find(meta, KVC_KEY_VALUES_RECIPE),
                                *own = lossless ? NULL : prefix_space_find(meta, KVC_KEY_RECIPE);
    if (!lossless && !own)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "it lost values, and does not say by which recipe: such a cache has no "
                        "namespace");
    if (lossless && !past) put_text(out, FIDELITY, "fidelity", "lossless");
    else if (put_joined(out, FIDELITY, "fidelity", past, " then ", own, e)) return -1;
    return put_joined(out, PROFILE, KVC_KEY_PROFILE,
                      prefix_space_find(meta, KVC_KEY_VALUES_PROFILE), "",
                      lossless ? NULL : prefix_space_find(meta, KVC_KEY_PROFILE), e);
}

/* --- scales of values of 8 bits --- */

/* Adds the scale of each head of a tensor. Returns 1, 0 if they are unknown, or -1. */
static int add_scales(struct kvc_sink *to, const struct kvc_cache *c, const struct kvc_meta *meta,
                      uint32_t tensor, struct kvc_error *e) {
    const uint64_t heads = c->tensor[tensor].shape.heads;
    float *scale = kvc_alloc(heads, sizeof *scale);
    int known = scale ? kvc_scales_of(c, meta, tensor, scale, e) : kvc_fail_memory(e, "scales");
    for (uint64_t h = 0; known > 0 && h < heads; h++) {
        uint8_t bytes[4];
        put_f32(bytes, scale[h]);
        if (kvc_sink_write(to, bytes, sizeof bytes, e)) known = -1;
    }
    free(scale);
    return known;
}

/* Adds the scales of all tensors of 8 bits. As add_scales(). */
static int add_all_scales(struct kvc_sink *to, const struct kvc_cache *c,
                          const struct kvc_meta *meta, struct kvc_error *e) {
    size_t n;
    struct place *place = list_layers(c, &n);
    int known = place ? 1 : kvc_fail_memory(e, "a namespace");
    for (size_t i = 0; i < 2 * n && known > 0; i++) {
        const uint32_t t = c->layer[place[i / 2].layer].tensor[i % 2];
        if (t != KVC_NONE && kvc_tensor_is_scaled(&c->tensor[t]))
            known = add_scales(to, c, meta, t, e);
    }
    free(place);
    return known;
}

/* Puts known scales, or whose they are: caches of unknown scales stand for each other only where
 * somebody answers for it. */
static int put_scales(struct items *out, const struct kvc_cache *c, const struct kvc_meta *meta,
                      struct kvc_error *e) {
    const struct kvc_meta_entry *source = prefix_space_find(meta, KVC_KEY_SCALE_SOURCE);
    struct kvc_buffer buffer = {0};
    struct kvc_sink sink = kvc_sink_buffer(&buffer);
    int status = kvc_sink_write(&sink, "\1", 1, e) ? -1 : 0;
    const int known = status ? -1 : add_all_scales(&sink, c, meta, e);
    if (known < 0) status = -1;
    else if (!known && !source)
        status = kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_SCALES,
                               "K or V is of 8 bits, and neither its scales (scale.k, scale.v) are "
                               "known nor whose they are "
                               "(scale.source): such a cache has no namespace");
    if (!status && !known) {
        buffer.n = 0;
        status = kvc_sink_write(&sink, "", 1, e);
        if (!status) status = kvc_sink_write(&sink, source->value, (size_t)source->size, e);
    }
    if (!status && buffer.n > 1)
        prefix_space_put(out, SCALES, "scales", 0, buffer.data,
                         buffer.n); /* of one byte: no tensor is of 8 bits */
    free(buffer.data);
    return status;
}

/* --- RoPE --- */

/* Returns 1 if the facts tell by which angles K was rotated, or that K was not rotated. */
static int rope_is_known(const struct kvc_meta *meta) {
    const struct kvc_rope_facts *rope = &meta->facts.rope;
    const struct kvc_meta_entry *type = prefix_space_find(meta, KVC_KEY_ROPE_TYPE);
    if (rope->before || rope->pairing == KVC_PAIRING_NONE) return 1;
    if (!type || !(rope->theta > 0)) return 0;
    for (size_t i = 0; i < sizeof unscaled / sizeof unscaled[0]; i++)
        if (strcmp((const char *)type->value, unscaled[i]) == 0) return 1;
    return rope->factor > 0 || prefix_space_find(meta, KVC_KEY_ROPE_SCALING);
}

/* Returns 1 if the angles of K depend on a length that the engine was set to or had reached, too:
 * longrope has two lists of divisors, dynamic another base at each length. */
static int rope_is_by_length(const struct kvc_meta *meta) {
    const struct kvc_rope_facts *rope = &meta->facts.rope;
    const char *type = kvc_meta_text(meta, KVC_KEY_ROPE_TYPE, "");
    return !rope->before && rope->pairing != KVC_PAIRING_NONE &&
           (rope->type == KVC_ROPE_TYPE_LONGROPE || strcmp(type, "dynamic") == 0);
}

int kvc_prefix_space_check_rope(const struct kvc_meta *meta, struct kvc_error *e) {
    if (!rope_is_by_length(meta) || *kvc_meta_text(meta, KVC_KEY_ROPE_SOURCE, "")) return 0;
    return kvc_fail(
        e, KVC_ERR_UNSUPPORTED,
        "RoPE of type %s has other angles by a length that the engine was set to, or had "
        "reached, which the cache does not tell: give the fact rope.source, a name for "
        "the caches of one such length",
        kvc_meta_text(meta, KVC_KEY_ROPE_TYPE, ""));
}

/* Puts whose RoPE it is, where its parameters are unknown: engines let their users set others than
 * the model's. In a store also where they do not tell the angles. */
static void put_rope_source(struct items *out, const struct kvc_meta *meta, int of_store) {
    const char *source = kvc_meta_text(meta, KVC_KEY_ROPE_SOURCE, "");
    const char *format = kvc_meta_text(meta, KVC_KEY_SOURCE_FORMAT, "");
    if (rope_is_known(meta) && !(of_store && rope_is_by_length(meta))) return;
    if (*source) put_text(out, ROPE_SOURCE, KVC_KEY_ROPE_SOURCE, source);
    else prefix_space_put(out, ROPE_SOURCE, KVC_KEY_ROPE_SOURCE, 1, format, strcspn(format, " "));
}

int kvc_prefix_space_items(const struct kvc_cache *c, const struct kvc_meta *meta,
                           const struct kvc_space *space, uint8_t *out, kvc_space_item *item,
                           void *state, struct kvc_error *e) {
    char identity[KVC_IDENTITY_BYTES];
    struct items to = {.item = item, .state = state};
    uint8_t chunk[8];
    if (kvc_prefix_identity(meta, identity, sizeof identity, e)) return -1;
    int status = 0;
    const fenv_t env = kvc_float_env_enter();
    kvc_prefix_space_begin(&to.hash);
    put_text(&to, IDENTITY, KVC_KEY_PREFIX_IDENTITY, identity);
    for (uint8_t i = 0; i < sizeof facts / sizeof facts[0] && !status; i++)
        if (facts[i]) put_fact(&to, (uint8_t)(IDENTITY + 1 + i), meta, facts[i]);
        else status = put_layers(&to, c, &meta->facts, e);
    put_shard(&to, meta);
    if (!status) status = put_fidelity(&to, meta, space->lossless, e);
    put_u64(chunk, space->chunk);
    if (space->chunk) prefix_space_put(&to, CHUNK, "chunk", 0, chunk, sizeof chunk);
    if (space->tenant) prefix_space_put(&to, TENANT, "tenant", 0, space->tenant, KVC_KEY_BYTES);
    if (!status) status = put_scales(&to, c, meta, e);
    if (prefix_space_find(meta, KVC_KEY_ROPE_ORIGINAL))
        put_fact(&to, ROPE_ORIGINAL, meta, KVC_KEY_ROPE_ORIGINAL);
    if (prefix_space_find(meta, KVC_KEY_ROPE_SECTIONS))
        put_fact(&to, ROPE_SECTIONS, meta, KVC_KEY_ROPE_SECTIONS);
    put_rope_source(&to, meta, space->chunk != 0);
    if (prefix_space_find(meta, KVC_KEY_ROPE_SCALING))
        put_fact(&to, ROPE_SCALING, meta, KVC_KEY_ROPE_SCALING);
    if (!status) status = kvc_sha256_final(&to.hash, out, e);
    else kvc_sha256_drop(&to.hash);
    kvc_float_env_leave(&env);
    return status ? -1 : 0;
}

int kvc_prefix_space(const struct kvc_cache *c, const struct kvc_meta *meta,
                     const struct kvc_space *space, uint8_t *out, struct kvc_error *e) {
    return kvc_prefix_space_items(c, meta, space, out, NULL, NULL, e);
}
