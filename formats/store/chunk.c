/* chunk.c: proves that bytes are the chunk that was asked for. Spec: STORE.md, "Proof". Not for
 * signatures (keys.c), nor for reading or writing objects. */
#include "formats/store/store.h"

#include "formats/cache/keys.h"
#include "formats/cache/prefix_space.h"
#include "formats/container/container.h"
#include "formats/model/profile.h"

#include <stdlib.h>
#include <string.h>

static int check_tokens(const struct kvc_chunk *x, const struct kvc_cache *c, struct kvc_error *e) {
    const uint64_t tokens = x->ns->chunk, first = x->i * tokens;
    const size_t per_chunk = (size_t)(tokens / KVC_PREFIX_TOKENS);
    const uint8_t *keys = x->keys + x->i * per_chunk * KVC_KEY_BYTES;
    const uint8_t *parent = c->meta.facts.parent;
    if (c->meta.facts.tokens_first != first || c->n_tokens != tokens || !c->n_parts ||
        c->part[0].cells.n != tokens)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the object holds other positions than its name stands for");
    if (memcmp(c->tokens, x->tokens + first, (size_t)tokens * sizeof *c->tokens) != 0)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the object holds other tokens than its name stands for");
    if (!first != !parent || (parent && memcmp(parent, keys - KVC_KEY_BYTES, KVC_KEY_BYTES) != 0))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the object continues other tokens than its name stands for");
    if (c->n_prefix_keys != per_chunk ||
        memcmp(c->prefix_keys, keys, per_chunk * KVC_KEY_BYTES) != 0)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the object has other prefix keys than its name stands for");
    for (uint32_t p = 0; p < c->n_parts; p++)
        if (c->part[p].kind <= KVC_PART_STATE &&
            (c->part[p].kind != KVC_PART_LIVE || c->part[p].cells.n != tokens ||
             kvc_cells_position(&c->part[p].cells, 0) != (int64_t)first ||
             kvc_cells_position(&c->part[p].cells, tokens - 1) != (int64_t)(first + tokens - 1)))
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "the object holds other positions than its name stands for");
    return kvc_prefix_verify(c, e);
}

/* The same of a cache that cannot be cut: it may be longer than its last key, but not than what was
 * asked for. */
static int check_whole(const struct kvc_chunk *x, const struct kvc_cache *c, struct kvc_error *e) {
    if (c->meta.facts.parent || c->meta.facts.tokens_first || !c->n_parts ||
        c->n_tokens / KVC_PREFIX_TOKENS != x->i || c->n_prefix_keys != x->i)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the object holds other positions than its name stands for");
    if (x->i && memcmp(c->prefix_keys, x->keys, x->i * KVC_KEY_BYTES) != 0)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the object has other prefix keys than its name stands for");
    if (c->n_tokens > x->whole ||
        memcmp(c->tokens, x->tokens, (size_t)c->n_tokens * sizeof *c->tokens) != 0)
        return kvc_fail(
            e, KVC_ERR_MODEL,
            "the tokens differ from those of the request"); /* of another prompt, and sound */
    return kvc_prefix_verify(c, e);
}

static int check_name(const struct kvc_chunk *x, const struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_meta_entry *name = kvc_meta_find(&c->meta, KVC_KEY_STORE_NAME);
    if (!name || name->size != x->name->size ||
        memcmp(name->value, x->name->bytes, x->name->size) != 0)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the object is of another name than the one it is kept under");
    return kvc_prefix_verify(c, e);
}

static int check_namespace(const struct kvc_chunk *x, const struct kvc_cache *c,
                           struct kvc_error *e) {
    const struct kvc_space facts = {.lossless = kvc_container_lossless(c),
                                    .chunk = x->ns->chunk,
                                    .tenant = x->ns->has_tenant ? x->ns->tenant : NULL};
    uint8_t ns[KVC_KEY_BYTES];
    if (kvc_prefix_space(c, &c->meta, &facts, ns, e)) return -1;
    if (memcmp(ns, x->ns->hash, sizeof ns) == 0) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED,
                    "the object is of another namespace than its name stands for");
}

/* Finds the profile that rows need, once for all chunks of the namespace. */
static int find_profile(const struct kvc_chunk *x, struct kvc_cache *c, struct kvc_error *e) {
    const uint8_t *hash = c->meta.facts.profile;
    const char *model = kvc_meta_text(&c->meta, KVC_KEY_PROFILE_MODEL, "");
    int embedded;
    if (!hash || kvc_container_profile(c, &embedded)) return 0;
    struct kvc_profile *p = kvc_namespace_profile(x->ns, hash, model, e);
    if (!p) return -1;
    kvc_container_set_profile(c, &(struct kvc_profile_places){.open = p});
    return 0;
}

static int chunk_name_of(const struct kvc_chunk *x, struct kvc_object *o, struct kvc_error *e) {
    if (x->name) return kvc_named_object(x->ns, x->name, o, e);
    return x->whole ? kvc_whole_object(x->ns, x->keys, x->i, o, e)
                    : kvc_chunk_object(x->ns, x->keys, x->i, o, e);
}

void kvc_chunk_blame(const struct kvc_object *o, struct kvc_error *e) {
    static const char nameless[] = "(memory): "; /* as bytes in memory are called */
    const size_t n = sizeof nameless - 1;
    char name[KVC_OBJECT_NAME];
    if (!e) return;
    if (strncmp(e->message, nameless, n) == 0)
        memmove(e->message, e->message + n, strlen(e->message + n) + 1);
    kvc_object_name(o, name);
    kvc_error_prefix(e, name);
}

/* Proves what is open. */
static int prove(const struct kvc_chunk *chunk, const struct kvc_file *f, int hashes,
                 struct kvc_error *e) {
    const struct kvc_cache *c = f->cache;
    const int failed = chunk->name    ? check_name(chunk, c, e)
                       : chunk->whole ? check_whole(chunk, c, e)
                                      : check_tokens(chunk, c, e);
    if (failed || check_namespace(chunk, c, e) || find_profile(chunk, f->opened.cache, e))
        return -1;
    return hashes ? kvc_container_check_hashes(c, e) : 0;
}

struct kvc_file *kvc_chunk_open(const struct kvc_chunk *chunk, const void *data, size_t *size,
                                int hashes, struct kvc_error *e) {
    struct kvc_object o;
    const struct kvc_open_options options = {.size = sizeof options,
                                             .format = "kvc",
                                             .profile_folders = "", /* find_profile() */
                                             .no_verify = 1};
    if (chunk_name_of(chunk, &o, e)) return NULL;
    struct kvc_file *f = NULL;
    if (!kvc_chunk_signature(chunk->ns->store, &o, data, size, e))
        f = kvc_file_open_memory(data, *size, &options, e);
    if (f && !prove(chunk, f, hashes, e)) return f;
    kvc_file_close(f);
    kvc_chunk_blame(&o, e);
    return NULL;
}
