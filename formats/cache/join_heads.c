/* join_heads.c: a cache with the KV heads of several caches, and a cache with some heads of one.
 * Rows are read on demand. Not for blocks of tokens (join.c). */
#include "formats/cache/join.h"

#include "codecs/memory.h"
#include "formats/cache/facts.h"
#include "formats/cache/keys.h"
#include "formats/cache/scales.h"
#include "formats/cache/shards.h"
#include "formats/cache/values.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A row of a tensor consists of slices: bytes [at, at + size) of rows of other tensors. */
struct slice {
    uint32_t tensor;
    uint64_t at, size;
};

struct heads {
    size_t n; /* slices of a row: one from each operand */
    struct kvc_join_operand *from;
    struct slice *slice; /* [tensor][n] */
};

static int heads_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                      uint8_t *dst, struct kvc_error *e) {
    const struct heads *h = c->impl;
    const uint64_t row = kvc_row_bytes(&c->tensor[tensor].shape);
    int status = 0;
    for (size_t i = 0; i < h->n && !status; i++) {
        const struct slice *s = &h->slice[tensor * h->n + i];
        const struct kvc_cache *from = h->from[i].cache;
        const uint64_t whole = kvc_row_bytes(&from->tensor[s->tensor].shape);
        uint8_t *rows = kvc_alloc(n, whole);
        status = rows ? from->read(from, s->tensor, first, n, rows, e) : kvc_fail_memory(e, "rows");
        for (uint64_t r = 0; r < n && !status; r++)
            memcpy(dst + r * row, rows + r * whole + s->at, (size_t)s->size);
        free(rows);
        dst += s->size;
        if (status && h->n > 1) kvc_error_prefix(e, h->from[i].name);
    }
    return status;
}

static unsigned heads_threads(const struct kvc_cache *c, unsigned threads) {
    const struct heads *h = c->impl;
    for (size_t i = 0; i < h->n; i++) threads = kvc_cache_threads(h->from[i].cache, threads);
    return threads;
}

static void heads_close(struct kvc_cache *c) {
    struct heads *h = c->impl;
    free(h->from);
    free(h->slice);
    free(h);
}

static struct kvc_cache *new_view(const struct kvc_join_operand *from, size_t n,
                                  struct kvc_error *e) {
    struct kvc_cache *c = kvc_cache_derived(sizeof(struct heads), heads_close, e);
    if (!c) return NULL;
    struct heads *h = c->impl;
    c->read = heads_read;
    c->threads = heads_threads;
    *h = (struct heads){.n = n, .from = kvc_alloc(n, sizeof *from)};
    if (h->from) {
        memcpy(h->from, from, n * sizeof *from);
        return c;
    }
    kvc_fail_memory(e, "a cache");
    kvc_cache_free(c);
    return NULL;
}

/* Adds the attention parts of the first operand with their layers, and calls add_tensor() for each
 * tensor. */
typedef int add_tensor(struct kvc_cache *c, uint32_t layer, uint32_t tensor, void *state,
                       struct kvc_error *e);

static int add_parts(struct kvc_cache *c, add_tensor *add, void *state, int *left_out,
                     struct kvc_error *e) {
    const struct heads *h = c->impl;
    const struct kvc_cache *from = h->from[0].cache;
    *left_out = 0;
    for (uint32_t i = 0; i < from->n_parts; i++) {
        const struct kvc_part *part = &from->part[i];
        *left_out |= part->kind == KVC_PART_COMPANION;
        if (part->kind == KVC_PART_COMPANION) continue;
        const uint32_t number = kvc_cache_add_part(c, part->kind, part->cells.n, e);
        if (number == KVC_NONE ||
            kvc_cells_copy(&c->part[number].cells, 0, &part->cells, 0, part->cells.n, e))
            return -1;
        for (uint32_t l = 0; l < from->n_layers; l++) {
            if (from->layer[l].part != i) continue;
            const uint32_t layer = kvc_cache_copy_layer(c, number, &from->layer[l], e);
            if (layer == KVC_NONE) return -1;
            for (unsigned k = 0; k < 2; k++)
                if (from->layer[l].tensor[k] != KVC_NONE &&
                    add(c, layer, from->layer[l].tensor[k], state, e))
                    return -1;
        }
    }
    return 0;
}

/* Makes room for the slices of one more tensor. */
static struct slice *more_slices(struct kvc_cache *c, struct kvc_error *e) {
    struct heads *h = c->impl;
    struct slice *slice = kvc_realloc(h->slice, (c->n_tensors + UINT64_C(1)) * h->n, sizeof *slice);
    if (!slice) {
        kvc_fail_memory(e, "tensors");
        return NULL;
    }
    h->slice = slice;
    return slice + c->n_tensors * h->n;
}

static int refuse_latent(const struct kvc_join_operand *x, struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "latent attention of %s has no KV heads: every rank keeps all of it", x->name);
}

static int share_tokens(struct kvc_cache *c, const struct kvc_cache *from, struct kvc_error *e) {
    const uint64_t first = from->meta.facts.tokens_first;
    if (!from->n_tokens) return 0;
    if (kvc_cache_set_tokens(c, from->tokens, from->n_tokens, e)) return -1;
    return first ? kvc_meta_set_u64(&c->meta, KVC_KEY_TOKENS_FIRST, first, e) : 0;
}

/* --- joining --- */

static int join_tensor(struct kvc_cache *c, uint32_t layer, uint32_t tensor, void *state,
                       struct kvc_error *e) {
    const struct heads *h = c->impl;
    const struct kvc_cache *like = h->from[0].cache;
    const struct kvc_part *part = kvc_tensor_part(like, tensor);
    struct kvc_shape shape = like->tensor[tensor].shape;
    struct slice *slice = more_slices(c, e);
    const int *heads_known = state;
    uint64_t heads = 0;
    if (!slice) return -1;
    if (like->tensor[tensor].role == KVC_ROLE_LATENT) return refuse_latent(&h->from[0], e);
    for (size_t i = 0; i < h->n; i++) {
        const struct kvc_cache *from = h->from[i].cache;
        const uint32_t its_part = kvc_join_find_part(from, part->kind, KVC_ROLE_K);
        const uint32_t t = kvc_cache_find_tensor(from, its_part, c->layer[layer].index,
                                                 like->tensor[tensor].role);
        slice[i] = (struct slice){.tensor = t, .size = kvc_row_bytes(&from->tensor[t].shape)};
        /* kvc_cache_add_tensor() checks the sum: each has a row of bounded size */
        heads += from->tensor[t].shape.heads;
    }
    shape.heads = *heads_known ? heads : 1;
    if (!*heads_known) shape.dim *= heads;
    return kvc_cache_add_tensor(c, layer, like->tensor[tensor].role, &shape, e) == KVC_NONE ? -1
                                                                                            : 0;
}

static int check_positions(const struct kvc_join_operand *a, uint32_t part_a,
                           const struct kvc_join_operand *b, uint32_t part_b, struct kvc_error *e) {
    const struct kvc_cells *x = &a->cache->part[part_a].cells, *y = &b->cache->part[part_b].cells;
    if (x->n != y->n)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s and %s cannot be joined by heads: the first has %" PRIu64
                        " tokens and the second %" PRIu64,
                        a->name, b->name, x->n, y->n);
    for (uint64_t i = 0; i < x->n; i++)
        if (kvc_cells_position(x, i) != kvc_cells_position(y, i))
            return kvc_fail(e, KVC_ERR_USAGE,
                            "%s and %s cannot be joined by heads: row %" PRIu64
                            " is position %" PRId64 " in the first and %" PRId64 " in the second",
                            a->name, b->name, i, kvc_cells_position(x, i),
                            kvc_cells_position(y, i));
    return 0;
}

/* Checks that two operands hold the same tokens of the same layers. */
static int check_same(const struct kvc_join_operand *a, const struct kvc_join_operand *b,
                      struct kvc_error *e) {
    const struct kvc_cache *x = a->cache, *y = b->cache;
    for (uint32_t i = 0; i < x->n_parts; i++) {
        if (x->part[i].kind == KVC_PART_COMPANION) continue;
        if (kvc_join_check_part(a, i, b, e)) return -1;
        const uint32_t other = kvc_join_find_part(y, x->part[i].kind, KVC_ROLE_K);
        if (kvc_join_check_layers(a, i, b, other, 1, e) || check_positions(a, i, b, other, e))
            return -1;
    }
    if (x->n_tokens && y->n_tokens &&
        (x->n_tokens != y->n_tokens ||
         memcmp(x->tokens, y->tokens, (size_t)x->n_tokens * sizeof *x->tokens) != 0))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s and %s cannot be joined by heads: their token ids differ", a->name,
                        b->name);
    return 0;
}

/* Refuses an operand whose metadata say that it is another rank. */
static int check_rank(const struct kvc_join_operand *x, size_t rank, size_t ranks,
                      struct kvc_error *e) {
    const struct kvc_facts *facts = &x->cache->meta.facts;
    if (!facts->shard_ranks || (facts->shard_rank == rank && facts->shard_ranks == ranks)) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "%s: is shard %" PRIu64 "/%" PRIu64
                    ", and is given as %zu/%zu: all ranks must be given, in their order",
                    x->name, facts->shard_rank, facts->shard_ranks, rank, ranks);
}

/* Refuses shards of two caches, where both say of which they are. */
static int check_set(const struct kvc_join_operand *a, const struct kvc_join_operand *b,
                     struct kvc_error *e) {
    const uint8_t *x = a->cache->meta.facts.shard_set, *y = b->cache->meta.facts.shard_set;
    if (!x || !y || memcmp(x, y, KVC_SHARD_SET_BYTES) == 0) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "%s and %s are shards of two caches (" KVC_KEY_SHARD_SET " differs)", a->name,
                    b->name);
}

/* Refuses scales of single heads: the cache that is made has other heads. */
static int check_scales(const struct kvc_join_operand *x, struct kvc_error *e) {
    static const char *const keys[] = {KVC_KEY_SCALE_K, KVC_KEY_SCALE_V};
    const char *const *scale = x->cache->meta.facts.scale;
    for (int i = 0; i < 2; i++)
        if (scale[i] && strchr(scale[i], ':') && kvc_cache_is_scaled(x->cache))
            return kvc_fail(
                e, KVC_ERR_UNSUPPORTED,
                "%s has scales of single heads (%s), which are neither joined nor divided", x->name,
                keys[i]);
    return 0;
}

/* Merges the metadata but for the ranks. */
static int join_meta(struct kvc_cache *c, const struct kvc_join_operand *from, size_t n,
                     struct kvc_error *e) {
    if (kvc_join_meta(&c->meta, from, n, "shard.", e) || kvc_values_join(&c->meta, from, n, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (from[i].cache->n_tokens) return share_tokens(c, from[i].cache, e);
    return 0;
}

static int join_heads_build(struct kvc_cache *c, const struct kvc_join_operand *from, size_t n,
                            struct kvc_join_report *report, struct kvc_error *e) {
    int heads_known = 1;
    for (size_t i = 0; i < n; i++) {
        if (kvc_join_check_operand(&from[i], e) || kvc_join_check_alone(&from[i], e) ||
            check_scales(&from[i], e) || check_rank(&from[i], i, n, e))
            return -1;
        for (size_t k = 0; k < i; k++)
            if (check_set(&from[k], &from[i], e)) return -1;
        if (i && (check_same(&from[0], &from[i], e) || check_same(&from[i], &from[0], e)))
            return -1;
        heads_known &= !from[i].cache->meta.facts.heads_unknown;
    }
    if (add_parts(c, join_tensor, &heads_known, &report->left_out, e) || join_meta(c, from, n, e))
        return -1;
    if (!heads_known && kvc_meta_set_bool(&c->meta, KVC_KEY_HEADS_KNOWN, 0, e)) return -1;
    return kvc_cache_finish(c, e);
}

struct kvc_cache *kvc_view_join_heads(const struct kvc_join_operand *from, size_t n,
                                      struct kvc_join_report *report, struct kvc_error *e) {
    memset(report, 0, sizeof *report);
    if (!n) {
        kvc_fail(e, KVC_ERR_USAGE, "there are no caches to join");
        return NULL;
    }
    struct kvc_cache *c = new_view(from, n, e);
    if (!c || !join_heads_build(c, from, n, report, e)) return c;
    kvc_cache_free(c);
    return NULL;
}

/* --- dividing --- */

struct rank {
    uint32_t rank, ranks;
    uint64_t tile[2]; /* Hadamard rotation of K and V, which must not cross heads of two ranks */
};

static int shard_tensor(struct kvc_cache *c, uint32_t layer, uint32_t tensor, void *state,
                        struct kvc_error *e) {
    const struct heads *h = c->impl;
    const struct kvc_tensor *x = &h->from[0].cache->tensor[tensor];
    const struct rank *r = state;
    struct kvc_shape shape = x->shape;
    struct slice *slice = more_slices(c, e);
    char label[64];
    if (!slice) return -1;
    kvc_tensor_label(h->from[0].cache, tensor, label, sizeof label);
    if (x->role == KVC_ROLE_LATENT) return refuse_latent(&h->from[0], e);
    if (shape.heads % r->ranks)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s of %" PRIu64 " heads cannot be divided by %" PRIu32 " ranks", label,
                        shape.heads, r->ranks);
    shape.heads /= r->ranks;
    const uint64_t values = shape.heads * shape.dim, tile = r->tile[x->role == KVC_ROLE_V];
    if (values % kvc_dtype_info(shape.dtype)->block || (tile && values % tile))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s is %s%s, of which values of two ranks share %s",
                        label, kvc_dtype_info(shape.dtype)->name,
                        tile ? " and Hadamard-rotated" : "",
                        tile && values % tile ? "a rotation" : "a block");
    const uint64_t size = kvc_row_bytes(&shape);
    *slice = (struct slice){.tensor = tensor, .at = r->rank * size, .size = size};
    return kvc_cache_add_tensor(c, layer, x->role, &shape, e) == KVC_NONE ? -1 : 0;
}

static int build_shard(struct kvc_cache *c, const struct kvc_join_operand *from, struct rank *r,
                       int *left_out, struct kvc_error *e) {
    const struct kvc_facts *facts = &from->cache->meta.facts;
    memcpy(r->tile, facts->tile, sizeof r->tile);
    if (facts->shard_ranks)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "is shard %" PRIu64 "/%" PRIu64 " already: it cannot be divided again",
                        facts->shard_rank, facts->shard_ranks);
    if (facts->heads_unknown)
        return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_HEADS,
                             "dividing heads among ranks needs the number of KV heads");
    if (kvc_join_check_operand(from, e) || check_scales(from, e) ||
        add_parts(c, shard_tensor, r, left_out, e))
        return -1;
    if (kvc_meta_copy(&c->meta, &from->cache->meta, e) || share_tokens(c, from->cache, e))
        return -1;
    if (kvc_shard_set_rank(&c->meta, r->rank, r->ranks, e) || kvc_cache_finish(c, e)) return -1;
    return kvc_shard_name_set(&c->meta, c, e);
}

struct kvc_cache *kvc_view_shard(const struct kvc_cache *cache, uint32_t rank, uint32_t ranks,
                                 int *left_out, struct kvc_error *e) {
    const struct kvc_join_operand from = {.cache = cache, .name = "this cache"};
    struct rank r = {.rank = rank, .ranks = ranks};
    *left_out = 0;
    if (rank >= ranks) {
        kvc_fail(e, KVC_ERR_USAGE, "there is no rank %" PRIu32 " of %" PRIu32, rank, ranks);
        return NULL;
    }
    struct kvc_cache *c = new_view(&from, 1, e);
    if (!c || !build_shard(c, &from, &r, left_out, e)) return c;
    kvc_cache_free(c);
    return NULL;
}
