/* chunk.c: proves that bytes are the chunk that was asked for. Spec: STORE.md, "Proof". Not for
 * signatures (keys.c), nor for reading or writing objects. */
#include "formats/store/store.h"

#include <stdlib.h>
#include <string.h>

/* What a file says of itself. */
struct claim {
    struct kvc_prefix_info prefix;
    const int32_t *tokens;
    uint64_t n; /* tokens */
};

static int refuse(const char *what, struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_DAMAGED, "the object %s than its name stands for", what);
}

static int has_keys(const struct claim *c, const uint8_t *keys, size_t n) {
    return c->prefix.n_keys == n && (!n || !memcmp(c->prefix.keys, keys, n * KVC_KEY_BYTES));
}

static int check_tokens(const struct kvc_chunk *x, const struct claim *c, struct kvc_error *e) {
    const uint64_t tokens = x->ns->chunk, first = x->i * tokens;
    const size_t per_chunk = (size_t)(tokens / KVC_PREFIX_TOKENS);
    const uint8_t *keys = x->keys + x->i * per_chunk * KVC_KEY_BYTES, *parent = c->prefix.parent;
    if (c->prefix.first != first || c->n != tokens || !c->prefix.is_complete)
        return refuse("holds other positions", e);
    if (memcmp(c->tokens, x->tokens + first, (size_t)tokens * sizeof *c->tokens) != 0)
        return refuse("holds other tokens", e);
    if (!first != !parent || (parent && memcmp(parent, keys - KVC_KEY_BYTES, KVC_KEY_BYTES) != 0))
        return refuse("continues other tokens", e);
    return has_keys(c, keys, per_chunk) ? 0 : refuse("has other prefix keys", e);
}

/* The same of a cache that cannot be cut: it may be longer than its last key, but not than what was
 * asked for. */
static int check_whole(const struct kvc_chunk *x, const struct claim *c, struct kvc_error *e) {
    if (c->prefix.parent || c->prefix.first || !c->prefix.end || !c->n ||
        c->n / KVC_PREFIX_TOKENS != x->i || c->prefix.n_keys != x->i)
        return refuse("holds other positions", e);
    if (!has_keys(c, x->keys, x->i)) return refuse("has other prefix keys", e);
    if (c->n <= x->whole && !memcmp(c->tokens, x->tokens, (size_t)c->n * sizeof *c->tokens))
        return 0;
    /* of another prompt, and sound */
    return kvc_fail(e, KVC_ERR_OTHER_MODEL, "the tokens differ from those of the request");
}

static int check_name(const struct kvc_chunk *x, const struct claim *c, struct kvc_error *e) {
    if (c->prefix.name && c->prefix.name_bytes == x->name->size &&
        memcmp(c->prefix.name, x->name->bytes, x->name->size) == 0)
        return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED,
                    "the object is of another name than the one it is kept under");
}

/* Returns 1 if a cache would be of the namespace, once its recipe packed it. One that lost values
 * already would not. */
static int would_be_of(const struct kvc_store_namespace *ns, const struct kvc_file *f,
                       struct kvc_error *e) {
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    const struct kvc_namespace_options how = {.size = sizeof how,
                                              .recipe = ns->recipe,
                                              .chunk = ns->chunk,
                                              .tenant = ns->has_tenant ? ns->tenant : NULL};
    char *text = ns->recipe ? kvc_namespace_of(f, &how, &facts, e) : NULL;
    free(text);
    return text && memcmp(facts.ns, ns->hash, sizeof facts.ns) == 0;
}

int kvc_chunk_check_namespace(const struct kvc_store_namespace *ns, const struct kvc_file *f,
                              struct kvc_error *e) {
    uint8_t hash[KVC_KEY_BYTES];
    struct kvc_error why = {.code = KVC_OK};
    if (kvc_file_namespace(f, ns->chunk, ns->has_tenant ? ns->tenant : NULL, hash, e)) return -1;
    if (memcmp(hash, ns->hash, sizeof hash) == 0 || would_be_of(ns, f, &why)) return 0;
    if (why.code != KVC_ERR_MEMORY) return refuse("is of another namespace", e);
    if (e) *e = why; /* it may be of this one */
    return -1;
}

/* Gives the file the profile that its rows need, found once for all chunks of the namespace. */
static int find_profile(const struct kvc_chunk *x, struct kvc_file *f, const uint8_t *sha256,
                        struct kvc_error *e) {
    char model[128];
    if (!sha256) return 0;
    const char *name = kvc_file_meta(f, "profile.model", model, sizeof model);
    struct kvc_profile *p = kvc_namespace_profile(x->ns, sha256, name ? name : "", e);
    if (!p) return -1;
    kvc_file_give_profile(f, p);
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

static int prove(const struct kvc_chunk *chunk, struct kvc_file *f, int hashes,
                 struct kvc_error *e) {
    struct claim c = {.prefix.size = sizeof c.prefix};
    kvc_file_prefix(f, &c.prefix);
    c.tokens = kvc_file_tokens(f, &c.n);
    const int failed = chunk->name    ? check_name(chunk, &c, e)
                       : chunk->whole ? check_whole(chunk, &c, e)
                                      : check_tokens(chunk, &c, e);
    if (failed || kvc_file_check_prefix(f, e) || kvc_chunk_check_namespace(chunk->ns, f, e))
        return -1;
    if (find_profile(chunk, f, c.prefix.profile, e)) return -1;
    return hashes ? kvc_file_check_hashes(f, e) : 0;
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
