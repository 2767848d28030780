/* kvc_prefix.c: implements the part of kvc.h on prefix keys. Spec: formats/cache/KEYS.md. Not for
 * namespaces (kvc_namespace.c). */
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/api/prefix_extras_given.h"
#include "formats/api/sized.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix.h"
#include "formats/container/container.h"

#include <stdlib.h>
#include <string.h>

/* Returns the position after the last row of any part. */
static uint64_t end_of(const struct kvc_cache *c) {
    uint64_t end = 0;
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const struct kvc_cells *cells = &c->part[p].cells;
        if (c->part[p].kind > KVC_PART_STATE || !cells->n) continue;
        const uint64_t own = (uint64_t)kvc_cells_position(cells, cells->n - 1) + 1;
        if (own > end) end = own;
    }
    return end;
}

/* Returns 1 if no part keeps a window or a state. */
static int can_be_cut(const struct kvc_cache *c) {
    for (uint32_t p = 0; p < c->n_parts; p++)
        if (c->part[p].kind == KVC_PART_WINDOW || c->part[p].kind == KVC_PART_STATE) return 0;
    return 1;
}

/* Returns 1 if every part of layers has rows of the tokens, and of no others. */
static int is_complete(const struct kvc_cache *c) {
    const uint64_t first = c->meta.facts.tokens_first, n = c->n_tokens;
    if (!c->n_parts || !n || c->part[0].cells.n != n || !can_be_cut(c)) return 0;
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const struct kvc_cells *cells = &c->part[p].cells;
        if (c->part[p].kind > KVC_PART_STATE) continue;
        if (cells->n != n || kvc_cells_position(cells, 0) != (int64_t)first ||
            kvc_cells_position(cells, n - 1) != (int64_t)(first + n - 1))
            return 0;
    }
    return 1;
}

int kvc_file_prefix(const struct kvc_file *f, struct kvc_prefix_info *info) {
    const struct kvc_cache *c = f->cache;
    const struct kvc_meta_entry *name = kvc_meta_find(&c->meta, KVC_KEY_STORE_NAME);
    struct kvc_prefix_info own = {.first = c->meta.facts.tokens_first,
                                  .end = end_of(c),
                                  .parent = c->meta.facts.parent,
                                  .keys = c->prefix_keys,
                                  .n_keys = c->n_prefix_keys,
                                  .can_be_cut = can_be_cut(c),
                                  .is_complete = is_complete(c),
                                  .name = name ? name->value : NULL,
                                  .name_bytes = name ? name->size : 0,
                                  .profile = c->meta.facts.profile};
    int embedded;
    if (kvc_cache_is_container(c) && kvc_container_profile(c, &embedded)) own.profile = NULL;
    return kvc_sized_give(info, &own, sizeof own, "kvc_prefix_info", NULL);
}

int kvc_file_check_prefix(const struct kvc_file *f, struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    return kvc_prefix_verify(f->cache, e);
}

/* --- keys --- */

int kvc_extras_given(struct kvc_meta *meta, const struct kvc_prefix_extra *extras, size_t n,
                     struct kvc_error *e) {
    struct kvc_extra *item = calloc(n, sizeof *item);
    if (!item) return kvc_fail_memory(e, "extras");
    int status = extras ? 0 : kvc_fail(e, KVC_ERR_USAGE, "extras is NULL, and n_extras %zu", n);
    for (size_t i = 0; i < n && !status; i++) {
        if (extras[i].size && !extras[i].bytes)
            status = kvc_fail(e, KVC_ERR_USAGE, "the bytes of extra %zu are NULL", i);
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

/* Computes keys with the extras of metadata. */
static int chain(const char *identity, const struct kvc_meta *meta, const int32_t *tokens,
                 uint64_t n, uint8_t *start, uint8_t *keys, struct kvc_error *e) {
    struct kvc_prefix p;
    if (kvc_prefix_begin(&p, identity, e) || kvc_extras_of(meta, &p.extras, e)) return -1;
    if (start) memcpy(start, p.start, sizeof p.start);
    return kvc_prefix_keys(&p, tokens, n, keys, e);
}

int kvc_prefix_chain(const char *identity, const int32_t *tokens, uint64_t n,
                     const struct kvc_prefix_extra *extras, size_t n_extras,
                     uint8_t start[KVC_KEY_BYTES], uint8_t *keys, size_t size,
                     struct kvc_error *e) {
    if (KVC_NULL(e, identity)) return -1;
    if (n && KVC_NULL(e, tokens, keys)) return -1;
    if (n_extras && KVC_NULL(e, extras)) return -1;
    if (KVC_SHORT(e, keys, size, n / KVC_PREFIX_TOKENS, KVC_KEY_BYTES)) return -1;
    struct kvc_meta meta = {0};
    int status = n_extras ? kvc_extras_given(&meta, extras, n_extras, e) : 0;
    if (!status) status = chain(identity, &meta, tokens, n, start, keys, e);
    kvc_meta_free(&meta);
    return status;
}

int kvc_file_prefix_chain(const struct kvc_file *f, const char *identity, uint64_t n, uint8_t *keys,
                          size_t size, struct kvc_error *e) {
    if (KVC_NULL(e, f, identity)) return -1;
    if (n && KVC_NULL(e, keys)) return -1;
    if (n > f->cache->n_tokens)
        return kvc_fail(e, KVC_ERR_USAGE, "%s: has no such tokens", f->name);
    if (KVC_SHORT(e, keys, size, n / KVC_PREFIX_TOKENS, KVC_KEY_BYTES)) return -1;
    return chain(identity, &f->cache->meta, f->cache->tokens, n, NULL, keys, e);
}
