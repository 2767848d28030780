/* model_match.c: a model's facts as metadata, and whether a cache's metadata fits. Not for reading
 * weights. */
#include "formats/model/model.h"

#include "codecs/number.h"
#include "formats/io/hash.h"
#include "formats/cache/keys.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The numbers of a model that metadata store; 0 is "unknown" in both. */
static const struct {
    const char *key;
    size_t at; /* in struct kvc_model */
} counts[] =
    {
        {KVC_KEY_MODEL_LAYERS, offsetof(struct kvc_model, layers)},
        {KVC_KEY_MODEL_HEADS, offsetof(struct kvc_model, heads)},
        {KVC_KEY_MODEL_KV_HEADS, offsetof(struct kvc_model, kv_heads)},
        {KVC_KEY_MODEL_HEAD_DIM, offsetof(struct kvc_model, head_dim)},
        {KVC_KEY_MODEL_HEAD_DIM_V, offsetof(struct kvc_model, head_dim_v)},
        {KVC_KEY_WINDOW, offsetof(struct kvc_model, window)},
        {KVC_KEY_ROPE_DIM, offsetof(struct kvc_model, rope_dim)},
        {KVC_KEY_ROPE_ORIGINAL, offsetof(struct kvc_model, rope_original)},
},
  numbers[] = {
      {KVC_KEY_ROPE_THETA, offsetof(struct kvc_model, rope_theta)},
      {KVC_KEY_ROPE_FACTOR, offsetof(struct kvc_model, rope_factor)},
};
enum { COUNTS = sizeof counts / sizeof counts[0], NUMBERS = sizeof numbers / sizeof numbers[0] };

static uint64_t count_at(const struct kvc_model *m, size_t i) {
    uint64_t v;
    memcpy(&v, (const char *)m + counts[i].at, sizeof v);
    return v;
}

static double number_at(const struct kvc_model *m, size_t i) {
    double v;
    memcpy(&v, (const char *)m + numbers[i].at, sizeof v);
    return v;
}

const char *kvc_model_kind_name(enum kvc_model_kind kind) {
    return kind == KVC_MODEL_GGUF ? "gguf" : "safetensors";
}

static enum kvc_model_kind other_kind(enum kvc_model_kind kind) {
    return kind == KVC_MODEL_GGUF ? KVC_MODEL_SAFETENSORS : KVC_MODEL_GGUF;
}

static void fingerprint_key(char *key, size_t size, enum kvc_model_kind kind, int full) {
    snprintf(key, size, "%s%s.%s", KVC_KEY_FINGERPRINT, kvc_model_kind_name(kind),
             full ? "pieces" : "sampled");
}

static int store_text(struct kvc_meta *meta, const char *key, const char *v, struct kvc_error *e) {
    return *v ? kvc_meta_set_text(meta, key, v, e) : 0;
}

static int store_pairing(const struct kvc_model *m, struct kvc_meta *meta, int engine,
                         struct kvc_error *e) {
    const int is_gguf = m->kind == KVC_MODEL_GGUF;
    enum kvc_pairing pairing = m->pairing;
    if (engine && !is_gguf) pairing = kvc_pairing_of_gguf_arch(m->arch);
    if (!engine && is_gguf) pairing = kvc_pairing_of_transformers(m->arch);
    /* the model knows better than a format's habit */
    if (pairing == KVC_PAIRING_UNKNOWN ||
        (kvc_meta_find(meta, KVC_KEY_ROPE_PAIRING) && !meta->facts.rope.assumed))
        return 0;
    return kvc_meta_set_pairing(meta, pairing, e);
}

int kvc_model_store(const struct kvc_model *m, struct kvc_meta *meta, int engine,
                    struct kvc_error *e) {
    if (store_text(meta, KVC_KEY_MODEL_NAME, m->name, e) ||
        store_text(meta, KVC_KEY_MODEL_ARCH, m->arch, e) ||
        store_text(meta, KVC_KEY_ROPE_TYPE, m->rope_type, e) || store_pairing(m, meta, engine, e))
        return -1;
    if (store_text(meta, KVC_KEY_ROPE_SCALING, m->rope_more, e)) return -1;
    meta->facts.rope_table = m->rope_table;
    for (size_t i = 0; i < COUNTS; i++) {
        uint64_t v = count_at(m, i);
        if (counts[i].at == offsetof(struct kvc_model, head_dim_v) && v == m->head_dim) v = 0;
        if (v && kvc_meta_set_u64(meta, counts[i].key, v, e)) return -1;
    }
    for (size_t i = 0; i < NUMBERS; i++) {
        double v = number_at(m, i);
        if (v > 0 && kvc_meta_set_f64(meta, numbers[i].key, v, e)) return -1;
    }
    if (m->n_rope_sections &&
        kvc_meta_set_u64s(meta, KVC_KEY_ROPE_SECTIONS, m->rope_section, m->n_rope_sections, e))
        return -1;
    if (m->has_tokenizer &&
        kvc_meta_set_bytes(meta, KVC_KEY_TOKENIZER, m->tokenizer, sizeof m->tokenizer, e))
        return -1;
    char key[64];
    fingerprint_key(key, sizeof key, m->kind, 0);
    if (kvc_meta_set_bytes(meta, key, m->sampled, sizeof m->sampled, e)) return -1;
    fingerprint_key(key, sizeof key, m->kind, 1);
    return m->has_full ? kvc_meta_set_bytes(meta, key, m->full, sizeof m->full, e) : 0;
}

/* The state of a comparison. */
struct comparison {
    const struct kvc_meta *meta;
    const struct kvc_model *model;
    unsigned compared;
    char list[256];       /* names of what was compared */
    char difference[512]; /* the first one; "" when all agrees */
};

static void compared(struct comparison *c, const char *key, const char *cache,
                     const char *weights) {
    size_t used = strlen(c->list);
    snprintf(c->list + used, sizeof c->list - used, "%s%s", used ? ", " : "", key);
    c->compared++;
    if (strcmp(cache, weights) != 0 && !*c->difference)
        snprintf(c->difference, sizeof c->difference, "cache: %s %.200s, weights: %.200s", key,
                 cache, weights);
}

static void compare_counts(struct comparison *c) {
    for (size_t i = 0; i < COUNTS; i++) {
        uint64_t ours = kvc_meta_u64(c->meta, counts[i].key, 0), theirs = count_at(c->model, i);
        if (counts[i].at == offsetof(struct kvc_model, head_dim_v) && !ours)
            ours = kvc_meta_u64(c->meta, KVC_KEY_MODEL_HEAD_DIM,
                                0); /* only stored when it differs */
        if (!ours || !theirs) continue;
        char a[32], b[32];
        snprintf(a, sizeof a, "%" PRIu64, ours);
        snprintf(b, sizeof b, "%" PRIu64, theirs);
        compared(c, counts[i].key, a, b);
    }
}

static void compare_numbers(struct comparison *c) {
    for (size_t i = 0; i < NUMBERS; i++) {
        double ours = kvc_meta_f64(c->meta, numbers[i].key, 0), theirs = number_at(c->model, i);
        if (!(ours > 0) || !(theirs > 0)) continue;
        /* 9 digits tell all floats apart: GGUF stores these as f32, config.json in decimal */
        char a[32], b[32];
        kvc_number_print(a, sizeof a, 9, (double)(float)ours);
        kvc_number_print(b, sizeof b, 9, (double)(float)theirs);
        compared(c, numbers[i].key, a, b);
    }
}

/* Returns the 32 bytes of a key; NULL when the key is absent. No file that kvc wrote has a value of
 * another size. */
static const uint8_t *hash_of(const struct kvc_meta *meta, const char *key) {
    const struct kvc_meta_entry *entry = kvc_meta_find(meta, key);
    return entry && entry->type == KVC_META_BYTES && entry->size == KVC_SHA256_BYTES ? entry->value
                                                                                     : NULL;
}

static void compare_hash(struct comparison *c, const char *key, const uint8_t *ours,
                         const uint8_t *theirs) {
    char a[2 * KVC_SHA256_BYTES + 1], b[2 * KVC_SHA256_BYTES + 1];
    kvc_hex(ours, KVC_SHA256_BYTES, a);
    kvc_hex(theirs, KVC_SHA256_BYTES, b);
    compared(c, key, a, b);
}

static int has_kind(const struct kvc_meta *meta, enum kvc_model_kind kind) {
    char key[64];
    for (int full = 0; full <= 1; full++) {
        fingerprint_key(key, sizeof key, kind, full);
        if (hash_of(meta, key)) return 1;
    }
    return 0;
}

static void compare_facts(struct comparison *c) {
    const struct kvc_model *m = c->model;
    const char *arch = c->meta->facts.architecture;
    /* GGUF and config.json name the same architecture differently. An engine's own file that names
     * one (llama.cpp's) names it as GGUF does. */
    int same_words = has_kind(c->meta, m->kind) ||
                     (m->kind == KVC_MODEL_GGUF && !has_kind(c->meta, other_kind(m->kind)));
    if (arch && *m->arch && same_words) compared(c, KVC_KEY_MODEL_ARCH, arch, m->arch);
    compare_counts(c);
    compare_numbers(c);
    const char *type = kvc_meta_text(c->meta, KVC_KEY_ROPE_TYPE, "");
    if (*type && *m->rope_type) compared(c, KVC_KEY_ROPE_TYPE, type, m->rope_type);
    const uint8_t *tokenizer = hash_of(c->meta, KVC_KEY_TOKENIZER);
    if (tokenizer && m->has_tokenizer) compare_hash(c, KVC_KEY_TOKENIZER, tokenizer, m->tokenizer);
}

/* Compares the strongest fingerprint that both have. Returns 0 when they have none in common. */
static int compare_fingerprint(struct comparison *c) {
    char key[64];
    for (int full = c->model->has_full; full >= 0; full--) {
        fingerprint_key(key, sizeof key, c->model->kind, full);
        const uint8_t *ours = hash_of(c->meta, key);
        if (!ours) continue;
        compare_hash(c, key, ours, full ? c->model->full : c->model->sampled);
        return 1;
    }
    return 0;
}

int kvc_model_match(const struct kvc_meta *meta, const struct kvc_model *m, char *note, size_t size,
                    struct kvc_error *e) {
    struct comparison prints = {meta, m, 0, "", ""}, facts = prints;
    snprintf(note, size, "%s", "");
    int by_print = compare_fingerprint(&prints);
    if (by_print && !*prints.difference) return 0;
    compare_facts(&facts);
    if (by_print || *facts.difference) {
        /* A fact that a person can read says more than two hashes. */
        const char *what = *facts.difference ? facts.difference : prints.difference;
        const char *name = kvc_meta_text(meta, KVC_KEY_MODEL_NAME, "an unnamed model");
        return kvc_fail(
            e, KVC_ERR_OTHER_MODEL,
            "the cache was made by another model (%.200s; these weights are %.200s): %s", name,
            *m->name ? m->name : "an unnamed model", what);
    }
    if (!facts.compared) {
        snprintf(note, size, "the cache does not say which model made it");
        return 0;
    }
    snprintf(note, size, "%s, so the fingerprint is not compared; equal are %s",
             has_kind(meta, m->kind) ? "the cache has only a full fingerprint of its weights"
             : has_kind(meta, other_kind(m->kind))
                 ? "the cache was packed with weights of another kind of file"
                 : "the cache has no fingerprint of its weights",
             facts.list);
    return 0;
}
