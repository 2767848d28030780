/* prefix.c: the hash chain over model identity and tokens, and token ids that are given to a cache.
 * Spec: KEYS.md, "Prefix keys". Not for choosing files by it (the tools do). */
#include "formats/cache/prefix.h"

#include "codecs/memory.h"
#include "formats/io/bytes.h"
#include "formats/io/hash.h"
#include "formats/cache/keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAG "kvc prefix 1\n"

/* Hashes of all bytes first: two fine-tunes may agree in all samples. */
static const char *const fingerprints[] = {
    KVC_KEY_FINGERPRINT "gguf.pieces",
    KVC_KEY_FINGERPRINT "safetensors.pieces",
    KVC_KEY_FINGERPRINT "gguf.sampled",
    KVC_KEY_FINGERPRINT "safetensors.sampled",
};

/* Writes "model.fingerprint.gguf.pieces:<hex>"; returns 0 if the metadata have no fingerprint. */
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

/* Writes "model:<hex of the hash of its name and geometry>", or "unknown" if the metadata have no
 * name. */
static int prefix_by_name(const struct kvc_meta *meta, char *text, size_t size,
                          struct kvc_error *e) {
    const struct kvc_facts *facts = &meta->facts;
    const char *name = facts->model, *arch = facts->architecture ? facts->architecture : "";
    snprintf(text, size, "unknown");
    if (!name) return 0;
    uint8_t hash[KVC_SHA256_BYTES];
    char hex[2 * KVC_SHA256_BYTES + 1];
    struct kvc_sha256 h;
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, name, strlen(name) + 1); /* NULs between the texts */
    kvc_sha256_update(&h, arch, strlen(arch) + 1);
    kvc_sha256_u64(&h, facts->layers);
    kvc_sha256_u64(&h, facts->kv_heads);
    kvc_sha256_u64(&h, facts->head_dim);
    if (kvc_sha256_final(&h, hash, e)) return -1;
    kvc_hex(hash, sizeof hash, hex);
    snprintf(text, size, "model:%s", hex);
    return 0;
}

int kvc_prefix_identity_of_model(const struct kvc_meta *meta, char *text, size_t size,
                                 struct kvc_error *e) {
    if (!by_fingerprint(meta, text, size) && prefix_by_name(meta, text, size, e)) return -1;
    const char *adapters = meta->facts.adapters;
    if (!adapters) return 0;
    /* Adapters change K and V of the same weights. */
    uint8_t hash[KVC_SHA256_BYTES];
    char hex[17];
    size_t used = strlen(text);
    if (kvc_sha256(adapters, strlen(adapters), hash, e)) return -1;
    kvc_hex(hash, 8, hex);
    snprintf(text + used, size - used, "+lora:%s", hex);
    return 0;
}

int kvc_prefix_identity(const struct kvc_meta *meta, char *text, size_t size, struct kvc_error *e) {
    const char *named = meta->facts.identity;
    if (!named || strlen(named) >= size) return kvc_prefix_identity_of_model(meta, text, size, e);
    snprintf(text, size, "%s", named);
    return 0;
}

/* --- the chain --- */

int kvc_prefix_begin(struct kvc_prefix *p, const char *identity, struct kvc_error *e) {
    struct kvc_sha256 h;
    *p = (struct kvc_prefix){0};
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, TAG, sizeof TAG - 1);
    kvc_sha256_update(&h, identity, strlen(identity));
    return kvc_sha256_final(&h, p->start, e);
}

int kvc_prefix_of(struct kvc_prefix *p, const struct kvc_meta *meta, struct kvc_error *e) {
    const struct kvc_meta_entry *parent = kvc_meta_find(meta, KVC_KEY_PREFIX_PARENT);
    char identity[KVC_IDENTITY_BYTES];
    if (kvc_prefix_identity(meta, identity, sizeof identity, e)) return -1;
    if (kvc_prefix_begin(p, identity, e) || kvc_extras_of(meta, &p->extras, e)) return -1;
    if (!parent) return 0;
    const uint64_t first = meta->facts.tokens_first;
    if (parent->type != KVC_META_BYTES || parent->size != KVC_KEY_BYTES)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "metadata key '" KVC_KEY_PREFIX_PARENT "' is not %d bytes", KVC_KEY_BYTES);
    if (!first || first % KVC_PREFIX_TOKENS || first >= KVC_POSITION_LIMIT)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "metadata key '" KVC_KEY_PREFIX_PARENT "' needs a '" KVC_KEY_TOKENS_FIRST
                        "' that is a positive multiple of %d below 2^62, not %" PRIu64,
                        KVC_PREFIX_TOKENS, first);
    p->first = first;
    memcpy(p->start, parent->value, KVC_KEY_BYTES);
    return 0;
}

/* Writes the key of the block of tokens at `position`; `before` is the key there. */
static int next_key(struct kvc_extras *extras, uint64_t position, const uint8_t *before,
                    const int32_t *tokens, uint8_t *key, struct kvc_error *e) {
    uint8_t link[KVC_KEY_BYTES + 4 * KVC_PREFIX_TOKENS];
    size_t n = 0;
    const uint8_t *extra = kvc_extras_take(extras, position, &n);
    memcpy(link, before, KVC_KEY_BYTES);
    for (size_t i = 0; i < KVC_PREFIX_TOKENS; i++)
        put_u32(link + KVC_KEY_BYTES + 4 * i, (uint32_t)tokens[i]);
    if (!extra) return kvc_sha256(link, sizeof link, key, e);
    struct kvc_sha256 h;
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, link, sizeof link);
    kvc_sha256_update(&h, extra, n);
    return kvc_sha256_final(&h, key, e);
}

int kvc_prefix_keys(const struct kvc_prefix *p, const int32_t *tokens, uint64_t n, uint8_t *keys,
                    struct kvc_error *e) {
    const uint8_t *before = p->start;
    struct kvc_extras extras = p->extras;
    for (uint64_t i = 0; i < n / KVC_PREFIX_TOKENS; i++, before = keys, keys += KVC_KEY_BYTES)
        if (next_key(&extras, p->first + i * KVC_PREFIX_TOKENS, before,
                     tokens + i * KVC_PREFIX_TOKENS, keys, e))
            return -1;
    return 0;
}

int kvc_prefix_common(const struct kvc_prefix *p, const uint8_t *keys, uint64_t n_keys,
                      const int32_t *tokens, uint64_t n, uint64_t *common, struct kvc_error *e) {
    uint8_t key[KVC_KEY_BYTES];
    const uint8_t *before = p->start;
    struct kvc_extras extras = p->extras;
    *common = 0;
    for (uint64_t i = 0; i < n_keys && i < n / KVC_PREFIX_TOKENS; i++) {
        if (next_key(&extras, p->first + i * KVC_PREFIX_TOKENS, before,
                     tokens + i * KVC_PREFIX_TOKENS, key, e))
            return -1;
        before = keys + i * KVC_KEY_BYTES;
        if (memcmp(key, before, KVC_KEY_BYTES) != 0) break;
        *common += KVC_PREFIX_TOKENS;
    }
    return 0;
}

/* --- of a cache --- */

/* Refuses extras of tokens that are not among the n ids from p->first on. */
static int check_extras(const struct kvc_cache *c, const struct kvc_prefix *p, uint64_t n,
                        struct kvc_error *e) {
    struct kvc_extra *item;
    size_t items;
    if (kvc_extras_list(&c->meta, &item, &items, e)) return -1;
    const int beyond = items &&
                       (item[0].position < p->first || item[items - 1].position - p->first >= n);
    free(item);
    return beyond ? kvc_fail(e, KVC_ERR_DAMAGED,
                             "metadata key '" KVC_KEY_PREFIX_EXTRAS
                             "': an item is of no token of the file")
                  : 0;
}

int kvc_prefix_check(const struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_prefix p;
    const char *identity = c->meta.facts.identity;
    const int keyed = identity != NULL;
    if (keyed && strlen(identity) >= KVC_IDENTITY_BYTES)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "metadata key '" KVC_KEY_PREFIX_IDENTITY "' has more than %d bytes",
                        KVC_IDENTITY_BYTES - 1);
    if (kvc_prefix_of(&p, &c->meta, e)) return -1;
    if (c->meta.facts.tokens_first > KVC_POSITION_LIMIT - c->n_tokens)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "metadata key '" KVC_KEY_TOKENS_FIRST
                        "': token ids have positions of 2^62 or more");
    const uint64_t n = kvc_cache_tokens_from(c, p.first);
    if (!keyed && (c->n_prefix_keys || kvc_meta_find(&c->meta, KVC_KEY_PREFIX_PARENT)))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "prefix keys without the metadata key '" KVC_KEY_PREFIX_IDENTITY "'");
    if (keyed && c->tokens && c->n_prefix_keys != n / KVC_PREFIX_TOKENS)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%" PRIu64 " prefix keys for %" PRIu64 " tokens",
                        c->n_prefix_keys, c->n_tokens);
    return check_extras(c, &p, n, e);
}

int kvc_prefix_verify(const struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_prefix p;
    uint64_t common;
    if (!c->tokens || !c->n_prefix_keys) return 0;
    if (kvc_prefix_of(&p, &c->meta, e) ||
        kvc_prefix_common(&p, c->prefix_keys, c->n_prefix_keys, c->tokens,
                          c->n_prefix_keys * KVC_PREFIX_TOKENS, &common, e))
        return -1;
    if (common / KVC_PREFIX_TOKENS == c->n_prefix_keys) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED,
                    "the prefix key at position %" PRIu64
                    " does not follow from the tokens before it",
                    p.first + common + KVC_PREFIX_TOKENS);
}

/* Keeps the extras of positions [first, end). */
static int select_extras(struct kvc_meta *meta, uint64_t first, uint64_t end, struct kvc_error *e) {
    struct kvc_extra *item;
    size_t items, begin = 0;
    if (kvc_extras_list(meta, &item, &items, e)) return -1;
    while (begin < items && item[begin].position < first) begin++;
    while (items > begin && item[items - 1].position >= end) items--;
    const int status = kvc_extras_store(meta, item + begin, items - begin, e);
    free(item);
    return status;
}

/* Moves the chain to position `first`, a multiple of KVC_PREFIX_TOKENS, over the ids from p->first
 * on. */
static int move(struct kvc_prefix *p, const int32_t *tokens, uint64_t first, struct kvc_error *e) {
    for (; p->first < first; p->first += KVC_PREFIX_TOKENS, tokens += KVC_PREFIX_TOKENS)
        if (next_key(&p->extras, p->first, p->start, tokens, p->start, e)) return -1;
    return 0;
}

/* Lets a view without token ids keep the keys of its positions [first, end). */
static int select_keys(struct kvc_cache *view, const struct kvc_cache *c,
                       const struct kvc_prefix *p, uint64_t first, uint64_t end,
                       struct kvc_error *e) {
    const uint64_t skipped = (first - p->first) / KVC_PREFIX_TOKENS,
                   last = (end - p->first) / KVC_PREFIX_TOKENS;
    const uint64_t n = (last < c->n_prefix_keys ? last : c->n_prefix_keys) - skipped;
    if (c->tokens || !n) return 0;
    if (!(view->prefix_keys = kvc_alloc(n, KVC_KEY_BYTES)))
        return kvc_fail_memory(e, "prefix keys");
    memcpy(view->prefix_keys, c->prefix_keys + skipped * KVC_KEY_BYTES, (size_t)n * KVC_KEY_BYTES);
    view->n_prefix_keys = n;
    return 0;
}

/* Begins the chain of a cache with the identity that its writer takes. With ids from position 0 on
 * the writer computes all keys anew, so the identity is that of the facts. */
static int begin_as_written(struct kvc_prefix *p, const struct kvc_cache *c, char *identity,
                            struct kvc_error *e) {
    if (kvc_prefix_of(p, &c->meta, e)) return -1;
    if (kvc_prefix_identity(&c->meta, identity, KVC_IDENTITY_BYTES, e)) return -1;
    if (!c->tokens || p->first) return 0;
    const struct kvc_extras extras = p->extras;
    if (kvc_prefix_identity_of_model(&c->meta, identity, KVC_IDENTITY_BYTES, e) ||
        kvc_prefix_begin(p, identity, e))
        return -1;
    p->extras = extras;
    return 0;
}

/* Stores the parent key of a view that begins at `first`. */
static int set_parent(struct kvc_meta *meta, const struct kvc_cache *c,
                      const struct kvc_prefix *whole, uint64_t first, const char *identity,
                      struct kvc_error *e) {
    struct kvc_prefix p = *whole;
    const uint8_t *key = p.start;
    if (!c->tokens)
        key = c->prefix_keys + ((first - p.first) / KVC_PREFIX_TOKENS - 1) * KVC_KEY_BYTES;
    else if (move(&p, c->tokens, first, e)) return -1;
    if (kvc_meta_set_bytes(meta, KVC_KEY_PREFIX_PARENT, key, KVC_KEY_BYTES, e)) return -1;
    if (kvc_meta_set_text(meta, KVC_KEY_PREFIX_IDENTITY, identity, e)) return -1;
    return kvc_meta_set_u64(meta, KVC_KEY_TOKENS_FIRST, first, e);
}

int kvc_prefix_select(struct kvc_cache *view, const struct kvc_cache *c, uint64_t first,
                      uint64_t end, struct kvc_error *e) {
    struct kvc_prefix p;
    char identity[KVC_IDENTITY_BYTES];
    if (begin_as_written(&p, c, identity, e)) return -1;
    if (first < p.first) first = p.first;
    const uint64_t ids = kvc_cache_tokens_from(c, p.first);
    const int known = c->tokens ? first - p.first < ids
                                : (first - p.first) / KVC_PREFIX_TOKENS <= c->n_prefix_keys;
    if (!known || first % KVC_PREFIX_TOKENS || end <= first) {
        kvc_meta_remove(&view->meta, KVC_KEY_PREFIX_PARENT);
        kvc_meta_remove(&view->meta, KVC_KEY_PREFIX_EXTRAS);
        return 0;
    }
    if (first > p.first && set_parent(&view->meta, c, &p, first, identity, e)) return -1;
    if (select_extras(&view->meta, first, end, e)) return -1;
    if (select_keys(view, c, &p, first, end, e)) return -1;
    return 0;
}

/* --- matching --- */

/* Sets *same to 1 if the chain of a list, which has ids up to p->first, goes through the start of
 * p. */
static int starts_alike(const struct kvc_cache *c, const struct kvc_prefix *p,
                        const int32_t *tokens, int *same, struct kvc_error *e) {
    struct kvc_prefix list;
    char identity[KVC_IDENTITY_BYTES];
    if (kvc_prefix_identity(&c->meta, identity, sizeof identity, e)) return -1;
    if (kvc_prefix_begin(&list, identity, e) || move(&list, tokens, p->first, e)) return -1;
    *same = memcmp(list.start, p->start, KVC_KEY_BYTES) == 0;
    return 0;
}

/* Counts the equal ids of a cache and of a list, both from p->first on, up to the first token that
 * has extras. */
static uint64_t common_ids(const struct kvc_cache *c, const struct kvc_prefix *p,
                           const int32_t *tokens, uint64_t n) {
    uint64_t most = kvc_cache_tokens_from(c, p->first), common = 0;
    const uint64_t extra = kvc_extras_first(&p->extras);
    if (extra - p->first < most) most = extra - p->first;
    if (n < most) most = n;
    while (common < most && tokens[common] == c->tokens[common]) common++;
    return common;
}

int kvc_prefix_match(const struct kvc_cache *c, const int32_t *tokens, uint64_t n,
                     struct kvc_prefix_matched *m, struct kvc_error *e) {
    struct kvc_prefix p;
    int same = 1;
    *m = (struct kvc_prefix_matched){.by_keys = !c->tokens};
    if (!c->tokens && !c->n_prefix_keys)
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "the file holds neither token ids nor prefix keys: its prefix cannot be matched");
    if (kvc_prefix_of(&p, &c->meta, e)) return -1;
    m->first = p.first;
    if (n < p.first) return 0;
    if (p.first && starts_alike(c, &p, tokens, &same, e)) return -1;
    if (!same) return 0;
    tokens += p.first;
    n -= p.first;
    if (c->tokens) m->common = common_ids(c, &p, tokens, n);
    else if (kvc_prefix_common(&p, c->prefix_keys, c->n_prefix_keys, tokens, n, &m->common, e))
        return -1;
    if (m->common) m->common += p.first;
    return 0;
}

/* --- token ids that the caller knows --- */

/* The ids of a list that a cache keeps. */
struct given {
    const int32_t *id;
    uint64_t n;
    uint64_t first;  /* position of the first; 0 where ids follow rows that leave positions out */
    uint64_t before; /* ids of the list before them: all positions before `first`, or none */
};

/* Returns 1 if the positions follow each other from one that is not negative on. */
static int is_run(const struct kvc_cells *cells) {
    const int64_t first = kvc_cells_position(cells, 0);
    for (uint64_t i = 1; i < cells->n; i++)
        if (kvc_cells_position(cells, i) - first != (int64_t)i) return 0;
    return first >= 0;
}

static int give_tokens_take(struct given *g, const struct kvc_cache *c, const int32_t *tokens,
                            uint64_t n, struct kvc_error *e) {
    const struct kvc_cells *cells = c->n_parts ? &c->part[0].cells : NULL;
    if (!tokens)
        return kvc_fail(e, KVC_ERR_USAGE, "token_ids is NULL, and n_token_ids %" PRIu64, n);
    if (!cells || !cells->n)
        return kvc_fail(e, KVC_ERR_USAGE, "token ids are given, and the cache has no tokens");
    for (uint32_t i = 1; i < c->n_parts; i++)
        if (c->part[i].stream && c->part[i].cells.n)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "token ids are given, and the cache holds several streams");
    const int64_t first = kvc_cells_position(cells, 0),
                  last = kvc_cells_position(cells, cells->n - 1);
    const uint64_t begin = is_run(cells) ? (uint64_t)first : 0;
    *g = (struct given){.id = tokens, .n = n};
    if (n == cells->n) {
        g->first = begin;
        return 0;
    }
    if (last < 0 || n != (uint64_t)last + 1)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%" PRIu64 " token ids are given, and the cache has %" PRIu64
                        " tokens at positions %" PRId64 " to %" PRId64
                        ": give one for each, or one for each position from 0 on",
                        n, cells->n, first, last);
    *g = (struct given){.id = tokens + begin, .n = n - begin, .first = begin, .before = begin};
    return 0;
}

/* Compares the prefix keys of a cache without token ids. */
static int check_keys(const struct kvc_cache *c, const struct given *g, struct kvc_error *e) {
    struct kvc_prefix p;
    uint64_t common = 0;
    if (!c->n_prefix_keys) return 0;
    if (kvc_prefix_of(&p, &c->meta, e)) return -1;
    if (p.first >= g->first && p.first - g->first <= g->n &&
        kvc_prefix_common(&p, c->prefix_keys, c->n_prefix_keys, g->id + (p.first - g->first),
                          g->n - (p.first - g->first), &common, e))
        return -1;
    return common == c->n_prefix_keys * KVC_PREFIX_TOKENS
               ? 0
               : kvc_fail(e, KVC_ERR_USAGE,
                          "the cache has prefix keys of other token ids than those that are given");
}

/* Records the prefix key at the begin of a cache, or compares it. */
static int chain(struct kvc_cache *c, const struct given *g, struct kvc_error *e) {
    const uint8_t *known = c->meta.facts.parent;
    char identity[KVC_IDENTITY_BYTES];
    struct kvc_prefix p;
    if (!g->before || g->before % KVC_PREFIX_TOKENS) return 0;
    if (known ? kvc_prefix_identity(&c->meta, identity, sizeof identity, e)
              : kvc_prefix_identity_of_model(&c->meta, identity, sizeof identity, e))
        return -1;
    uint8_t *keys = kvc_alloc(g->before / KVC_PREFIX_TOKENS, KVC_KEY_BYTES);
    const uint8_t *parent = keys + (g->before / KVC_PREFIX_TOKENS - 1) * KVC_KEY_BYTES;
    int status = keys ? 0 : kvc_fail_memory(e, "prefix keys");
    if (!status) status = kvc_prefix_begin(&p, identity, e);
    if (!status) status = kvc_prefix_keys(&p, g->id - g->before, g->before, keys, e);
    if (!status && known && memcmp(known, parent, KVC_KEY_BYTES) != 0)
        status = kvc_fail(e, KVC_ERR_USAGE,
                          "the cache goes on from other token ids than those that are given "
                          "(" KVC_KEY_PREFIX_PARENT ")");
    if (!status && !known)
        status = kvc_meta_set_bytes(&c->meta, KVC_KEY_PREFIX_PARENT, parent, KVC_KEY_BYTES, e);
    if (!status && !known)
        status = kvc_meta_set_text(&c->meta, KVC_KEY_PREFIX_IDENTITY, identity, e);
    free(keys);
    return status;
}

int kvc_cache_give_tokens(struct kvc_cache *c, const int32_t *tokens, uint64_t n,
                          struct kvc_error *e) {
    struct given g;
    if (give_tokens_take(&g, c, tokens, n, e)) return -1;
    if (c->tokens && c->n_tokens) {
        if (c->n_tokens == g.n && memcmp(c->tokens, g.id, (size_t)g.n * sizeof *g.id) == 0)
            return 0;
        return kvc_fail(e, KVC_ERR_USAGE, "has other token ids than those that are given");
    }
    if (check_keys(c, &g, e) || chain(c, &g, e) || kvc_cache_set_tokens(c, g.id, g.n, e)) return -1;
    free(c->prefix_keys); /* the writer makes them of the ids */
    c->prefix_keys = NULL;
    c->n_prefix_keys = 0;
    return g.first ? kvc_meta_set_u64(&c->meta, KVC_KEY_TOKENS_FIRST, g.first, e) : 0;
}
