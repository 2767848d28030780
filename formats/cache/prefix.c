/* prefix.c: the hash chain over model identity and tokens. Spec: FORMAT.md, "Prefix keys". Not for choosing files by it (the
 * tools do). */
#include "formats/cache/prefix.h"

#include "formats/io/bytes.h"
#include "formats/io/hash.h"
#include "formats/cache/keys.h"

#include <stdio.h>
#include <string.h>

#define TAG "kvc prefix 0\n"

/* Strongest first: a hash of all bytes of the weights, then one of samples. */
static const char *const fingerprints[] = {
    KVC_KEY_FINGERPRINT "gguf.full",
    KVC_KEY_FINGERPRINT "safetensors.full",
    KVC_KEY_FINGERPRINT "gguf.sampled",
    KVC_KEY_FINGERPRINT "safetensors.sampled",
};

/* Writes "model.fingerprint.gguf.full:<hex>"; returns 0 if the metadata have no fingerprint. */
static int by_fingerprint(const struct kvc_meta *meta, char *text, size_t size) {
    for (size_t i = 0; i < sizeof fingerprints / sizeof fingerprints[0]; i++) {
        const struct kvc_meta_entry *entry = kvc_meta_find(meta, fingerprints[i]);
        if (!entry || entry->type != KVC_META_BYTES || entry->size != KVC_SHA256_BYTES) continue;
        char hex[2 * KVC_SHA256_BYTES + 1];
        kvc_hex(entry->value, KVC_SHA256_BYTES, hex);
        snprintf(text, size, "%s:%s", fingerprints[i], hex);
        return 1;
    }
    return 0;
}

/* Writes "model:<hex of the hash of its name and geometry>"; returns 0 if the metadata have no name. */
static int by_name(const struct kvc_meta *meta, char *text, size_t size) {
    const char *name = kvc_meta_text(meta, KVC_KEY_MODEL_NAME, "");
    const char *arch = kvc_meta_text(meta, KVC_KEY_MODEL_ARCH, "");
    if (!*name) return 0;
    uint8_t hash[KVC_SHA256_BYTES];
    char hex[2 * KVC_SHA256_BYTES + 1];
    struct kvc_sha256 h;
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, name, strlen(name) + 1); /* NULs between the texts */
    kvc_sha256_update(&h, arch, strlen(arch) + 1);
    kvc_sha256_u64(&h, kvc_meta_u64(meta, KVC_KEY_MODEL_LAYERS, 0));
    kvc_sha256_u64(&h, kvc_meta_u64(meta, KVC_KEY_MODEL_KV_HEADS, 0));
    kvc_sha256_u64(&h, kvc_meta_u64(meta, KVC_KEY_MODEL_HEAD_DIM, 0));
    if (kvc_sha256_final(&h, hash, NULL)) return 0;
    kvc_hex(hash, sizeof hash, hex);
    snprintf(text, size, "model:%s", hex);
    return 1;
}

void kvc_prefix_identity(const struct kvc_meta *meta, char *text, size_t size) {
    const char *named = kvc_meta_text(meta, KVC_KEY_PREFIX_IDENTITY, "");
    if (*named && strlen(named) < size) {
        snprintf(text, size, "%s", named);
        return;
    }
    if (!by_fingerprint(meta, text, size) && !by_name(meta, text, size)) snprintf(text, size, "unknown");
    const char *adapters = kvc_meta_text(meta, KVC_KEY_MODEL_ADAPTERS, "");
    if (!*adapters) return;
    /* Adapters change K and V of the same weights. */
    uint8_t hash[KVC_SHA256_BYTES];
    char hex[17];
    size_t used = strlen(text);
    if (kvc_sha256(adapters, strlen(adapters), hash, NULL)) {
        snprintf(text, size, "unknown");
        return;
    }
    kvc_hex(hash, 8, hex);
    snprintf(text + used, size - used, "+lora:%s", hex);
}

static int first_key(const char *identity, uint8_t *key, struct kvc_error *e) {
    struct kvc_sha256 h;
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, TAG, sizeof TAG - 1);
    kvc_sha256_update(&h, identity, strlen(identity));
    return kvc_sha256_final(&h, key, e);
}

static int next_key(const uint8_t *before, const int32_t *tokens, uint8_t *key, struct kvc_error *e) {
    uint8_t link[KVC_KEY_BYTES + 4 * KVC_PREFIX_TOKENS];
    memcpy(link, before, KVC_KEY_BYTES);
    for (size_t i = 0; i < KVC_PREFIX_TOKENS; i++) put_u32(link + KVC_KEY_BYTES + 4 * i, (uint32_t)tokens[i]);
    return kvc_sha256(link, sizeof link, key, e);
}

int kvc_prefix_keys(const char *identity, const int32_t *tokens, uint64_t n, uint8_t *keys, struct kvc_error *e) {
    uint8_t start[KVC_KEY_BYTES];
    const uint8_t *before = start;
    if (first_key(identity, start, e)) return -1;
    for (uint64_t i = 0; i < n / KVC_PREFIX_TOKENS; i++) {
        uint8_t *key = keys + i * KVC_KEY_BYTES;
        if (next_key(before, tokens + i * KVC_PREFIX_TOKENS, key, e)) return -1;
        before = key;
    }
    return 0;
}

int kvc_prefix_common(const char *identity, const uint8_t *keys, uint64_t n_keys, const int32_t *tokens, uint64_t n,
                      uint64_t *common, struct kvc_error *e) {
    uint8_t start[KVC_KEY_BYTES], key[KVC_KEY_BYTES];
    const uint8_t *before = start;
    *common = 0;
    if (first_key(identity, start, e)) return -1;
    for (uint64_t i = 0; i < n_keys && i < n / KVC_PREFIX_TOKENS; i++) {
        if (next_key(before, tokens + i * KVC_PREFIX_TOKENS, key, e)) return -1;
        before = keys + i * KVC_KEY_BYTES;
        if (memcmp(key, before, KVC_KEY_BYTES) != 0) break;
        *common += KVC_PREFIX_TOKENS;
    }
    return 0;
}

int kvc_prefix_match(const struct kvc_cache *c, const int32_t *tokens, uint64_t n, uint64_t *common, int *by_keys,
                     struct kvc_error *e) {
    *common = 0;
    *by_keys = 0;
    if (c->tokens) {
        uint64_t most = kvc_cache_prefix_tokens(c);
        while (*common < n && *common < most && tokens[*common] == c->tokens[*common]) ++*common;
        return 0;
    }
    if (!c->n_prefix_keys)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the file holds neither token ids nor prefix keys: its prefix cannot be matched");
    *by_keys = 1;
    char identity[KVC_IDENTITY_BYTES];
    kvc_prefix_identity(&c->meta, identity, sizeof identity);
    return kvc_prefix_common(identity, c->prefix_keys, c->n_prefix_keys, tokens, n, common, e);
}
