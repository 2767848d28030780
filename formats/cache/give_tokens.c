/* give_tokens.c: finds the positions of given token ids, and compares them with what the cache
 * knows. */
#include "formats/cache/give_tokens.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
    const struct kvc_meta_entry *known = kvc_meta_find(&c->meta, KVC_KEY_PREFIX_PARENT);
    char identity[KVC_IDENTITY_BYTES];
    struct kvc_prefix p;
    if (!g->before || g->before % KVC_PREFIX_TOKENS) return 0;
    if (known) kvc_prefix_identity(&c->meta, identity, sizeof identity);
    else kvc_prefix_identity_of_model(&c->meta, identity, sizeof identity);
    uint8_t *keys = kvc_alloc(g->before / KVC_PREFIX_TOKENS, KVC_KEY_BYTES);
    const uint8_t *parent = keys + (g->before / KVC_PREFIX_TOKENS - 1) * KVC_KEY_BYTES;
    int status = keys ? 0 : kvc_fail_memory(e, "prefix keys");
    if (!status)
        status = kvc_prefix_begin(&p, identity, e) ||
                         kvc_prefix_keys(&p, g->id - g->before, g->before, keys, e)
                     ? -1
                     : 0;
    if (!status && known &&
        (known->size != KVC_KEY_BYTES || memcmp(known->value, parent, KVC_KEY_BYTES) != 0))
        status = kvc_fail(e, KVC_ERR_USAGE,
                          "the cache goes on from other token ids than those that are given "
                          "(" KVC_KEY_PREFIX_PARENT ")");
    if (!status && !known)
        status = kvc_meta_set_bytes(&c->meta, KVC_KEY_PREFIX_PARENT, parent, KVC_KEY_BYTES, e) ||
                         kvc_meta_set_text(&c->meta, KVC_KEY_PREFIX_IDENTITY, identity, e)
                     ? -1
                     : 0;
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
