/* cache.c: builds and walks the cache model. Not for any format. */
#include "formats/cache/cache.h"

#include "codecs/memory.h"
#include "formats/cache/facts.h"
#include "formats/cache/keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *kvc_part_kind_name(unsigned kind) {
    static const char *const names[] = {"live", "window", "state", "snapshot", "companion"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : NULL;
}

const char *kvc_layer_kind_name(unsigned kind) {
    static const char *const names[] = {"full", "window", "latent", "state", "companion"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : NULL;
}

const char *kvc_role_name(unsigned role) {
    static const char *const names[] = {"K", "V", "latent", "R", "S", "queries", "hidden"};
    return role < sizeof names / sizeof names[0] ? names[role] : NULL;
}

static int no_source(const struct kvc_cache *c, uint64_t offset, uint64_t n, uint8_t *dst,
                     struct kvc_error *e) {
    (void)c, (void)offset, (void)n, (void)dst;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "a derived cache has no source file");
}

struct kvc_cache *kvc_cache_new(struct kvc_error *e) {
    struct kvc_cache *c = calloc(1, sizeof *c);
    if (c) c->read_literal = no_source;
    else kvc_fail_memory(e, "a cache");
    return c;
}

struct kvc_cache *kvc_cache_derived(size_t state, void (*close)(struct kvc_cache *cache),
                                    struct kvc_error *e) {
    struct kvc_cache *c = kvc_cache_new(e);
    if (!c) return NULL;
    if ((c->impl = calloc(1, state))) {
        c->close = close;
        return c;
    }
    kvc_fail_memory(e, "a cache");
    kvc_cache_free(c);
    return NULL;
}

static void cells_free(struct kvc_cells *cells) {
    free(cells->pos);
    free(cells->order);
    free(cells->words);
    free(cells->word_at);
    free(cells->block);
}

void *kvc_cache_impl(const struct kvc_cache *c, const char *kind) {
    const int same = c->kind == kind || (c->kind && strcmp(c->kind, kind) == 0);
    return same ? c->impl : NULL;
}

void kvc_cache_free(struct kvc_cache *c) {
    if (!c) return;
    if (c->close) c->close(c);
    for (uint32_t i = 0; i < c->n_parts; i++) cells_free(&c->part[i].cells);
    kvc_meta_free(&c->meta);
    free(c->tokens);
    free(c->prefix_keys);
    free(c->part);
    free(c->layer);
    free(c->tensor);
    for (uint32_t i = 0; i < c->n_members; i++) free(c->member[i]);
    free(c->member);
    free(c->extent);
    free(c->place);
    free(c);
}

int kvc_cache_own_facts(struct kvc_cache *own, const struct kvc_cache *of, struct kvc_error *e) {
    *own = *of;
    own->meta = (struct kvc_meta){.n = 0};
    own->layer = kvc_alloc(of->n_layers, sizeof *own->layer);
    own->tensor = kvc_alloc(of->n_tensors, sizeof *own->tensor);
    own->place = kvc_alloc(of->n_places, sizeof *own->place);
    if (!own->layer || !own->tensor || !own->place)
        return kvc_fail_memory(e, "the facts of a cache");
    if (of->n_layers) memcpy(own->layer, of->layer, of->n_layers * sizeof *own->layer);
    if (of->n_tensors) memcpy(own->tensor, of->tensor, of->n_tensors * sizeof *own->tensor);
    if (of->n_places) memcpy(own->place, of->place, (size_t)of->n_places * sizeof *own->place);
    return kvc_meta_copy(&own->meta, &of->meta, e);
}

void kvc_cache_disown(struct kvc_cache *own) {
    kvc_meta_free(&own->meta);
    free(own->layer);
    free(own->tensor);
    free(own->place);
}

uint32_t kvc_cache_add_part(struct kvc_cache *c, enum kvc_part_kind kind, uint64_t cells,
                            struct kvc_error *e) {
    if (cells > KVC_MAX_CELLS) {
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "%llu cells in one part are more than kvc handles",
                 (unsigned long long)cells);
        return KVC_NONE;
    }
    struct kvc_part *grown = kvc_room_for_one(c->part, c->n_parts, sizeof *grown);
    int64_t *pos = kvc_alloc(cells, sizeof *pos);
    if (grown) c->part = grown;
    if (!grown || !pos) {
        free(pos);
        kvc_fail_memory(e, "cells");
        return KVC_NONE;
    }
    for (uint64_t i = 0; i < cells; i++) pos[i] = (int64_t)i;
    memset(&c->part[c->n_parts], 0, sizeof *c->part);
    c->part[c->n_parts].kind = kind;
    c->part[c->n_parts].cells.n = cells;
    c->part[c->n_parts].cells.pos = pos;
    return c->n_parts++;
}

uint32_t kvc_cache_add_layer(struct kvc_cache *c, uint32_t part, uint32_t index,
                             enum kvc_layer_kind kind, struct kvc_error *e) {
    struct kvc_layer *grown = kvc_room_for_one(c->layer, c->n_layers, sizeof *grown);
    if (!grown) {
        kvc_fail_memory(e, "layers");
        return KVC_NONE;
    }
    c->layer = grown;
    c->layer[c->n_layers] = (struct kvc_layer){.part = part,
                                               .index = index,
                                               .kind = kind,
                                               .tensor = {KVC_NONE, KVC_NONE}};
    return c->n_layers++;
}

uint32_t kvc_cache_copy_part(struct kvc_cache *c, const struct kvc_part *from, uint64_t first,
                             uint64_t end, struct kvc_error *e) {
    const uint32_t number = kvc_cache_add_part(c, from->kind, end - first, e);
    if (number == KVC_NONE) return KVC_NONE;
    struct kvc_part *part = &c->part[number];
    part->stream = from->stream;
    part->snapshot = from->snapshot;
    return kvc_cells_copy(&part->cells, 0, &from->cells, first, end, e) ? KVC_NONE : number;
}

uint32_t kvc_cache_copy_layer(struct kvc_cache *c, uint32_t part, const struct kvc_layer *from,
                              struct kvc_error *e) {
    const uint32_t number = kvc_cache_add_layer(c, part, from->index, from->kind, e);
    if (number != KVC_NONE) c->layer[number].window = from->window;
    return number;
}

/* Returns which of a layer's two places a role takes. */
static unsigned slot_of(enum kvc_role role) {
    return role == KVC_ROLE_V || role == KVC_ROLE_S;
}

/* Returns the role that a layer may have beside this one. */
static enum kvc_role partner_of(enum kvc_role role) {
    switch (role) {
    case KVC_ROLE_K: return KVC_ROLE_V;
    case KVC_ROLE_V: return KVC_ROLE_K;
    case KVC_ROLE_R: return KVC_ROLE_S;
    case KVC_ROLE_S: return KVC_ROLE_R;
    default: return role; /* none */
    }
}

uint32_t kvc_cache_add_tensor(struct kvc_cache *c, uint32_t layer, enum kvc_role role,
                              const struct kvc_shape *shape, struct kvc_error *e) {
    if (!kvc_shape_check(shape)) {
        const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
        kvc_fail(
            e, KVC_ERR_DAMAGED,
            "%s of layer %u: %llu tokens x %llu heads x %llu channels of %s make no tensor: "
            "no heads or channels, rows that end within a block, or more than the format allows",
            kvc_role_name(role), c->layer[layer].index, (unsigned long long)shape->tokens,
            (unsigned long long)shape->heads, (unsigned long long)shape->dim,
            info ? info->name : "no known type");
        return KVC_NONE;
    }
    struct kvc_tensor *grown = kvc_room_for_one(c->tensor, c->n_tensors, sizeof *grown);
    if (!grown) {
        kvc_fail_memory(e, "tensors");
        return KVC_NONE;
    }
    c->tensor = grown;
    uint32_t *place = &c->layer[layer].tensor[slot_of(role)];
    if (*place != KVC_NONE) {
        kvc_fail(e, KVC_ERR_DAMAGED, "layer %u has two tensors for %s", c->layer[layer].index,
                 kvc_role_name(role));
        return KVC_NONE;
    }
    const uint32_t other = c->layer[layer].tensor[!slot_of(role)];
    if (other != KVC_NONE && c->tensor[other].role != partner_of(role)) {
        kvc_fail(e, KVC_ERR_DAMAGED, "layer %u has %s beside %s", c->layer[layer].index,
                 kvc_role_name(role), kvc_role_name(c->tensor[other].role));
        return KVC_NONE;
    }
    c->tensor[c->n_tensors] = (struct kvc_tensor){.layer = layer,
                                                  .role = role,
                                                  .shape = *shape,
                                                  .source = kvc_strides_canonical(shape),
                                                  .source_size = shape->tokens *
                                                                 kvc_row_bytes(shape)};
    *place = c->n_tensors;
    return c->n_tensors++;
}

int kvc_cache_set_tokens(struct kvc_cache *c, const int32_t *tokens, uint64_t n,
                         struct kvc_error *e) {
    free(c->tokens);
    c->n_tokens = 0;
    c->tokens = kvc_alloc(n, sizeof *tokens);
    if (!c->tokens) return kvc_fail_memory(e, "tokens");
    if (n) memcpy(c->tokens, tokens, (size_t)n * sizeof *tokens);
    c->n_tokens = n;
    return 0;
}

/* Returns the number of the window of 256 positions that contains pos; rounds towards minus
 * infinity. */
static int64_t window_of(int64_t pos) {
    return pos >> 8;
}

static int by_position(const void *a, const void *b, void *pos) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    int64_t x = ((const int64_t *)pos)[i], y = ((const int64_t *)pos)[j];
    if (x != y) return x < y ? -1 : 1;
    return i < j ? -1 : 1;
}

/* Refuses positions with which sums and differences could leave 64 bits. */
static int check_positions(const struct kvc_cells *cells, struct kvc_error *e) {
    for (uint64_t i = 0; i < cells->n; i++)
        if (cells->pos[i] <= -KVC_POSITION_LIMIT || cells->pos[i] >= KVC_POSITION_LIMIT)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "cell %" PRIu64 " has position %" PRId64
                            ", which is not between -2^62 and 2^62",
                            i, cells->pos[i]);
    return 0;
}

int kvc_cells_arrange(struct kvc_cells *cells, struct kvc_error *e) {
    int sorted = 1;
    if (check_positions(cells, e)) return -1;
    free(cells->order);
    free(cells->block);
    cells->order = NULL;
    cells->block = NULL;
    cells->n_blocks = 0;
    for (uint64_t i = 1; i < cells->n && sorted; i++) sorted = cells->pos[i - 1] <= cells->pos[i];
    if (!sorted) {
        cells->order = kvc_alloc(cells->n, sizeof *cells->order);
        if (!cells->order) return kvc_fail_memory(e, "the order of cells");
        for (uint64_t i = 0; i < cells->n; i++) cells->order[i] = (uint32_t)i;
        qsort_r(cells->order, (size_t)cells->n, sizeof *cells->order, by_position, cells->pos);
    }
    uint64_t blocks = 0, start = 0;
    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        blocks = 0;
        for (uint64_t i = 0; i < cells->n; i++) {
            if (i && i - start < KVC_BLOCK &&
                window_of(kvc_cells_position(cells, i)) ==
                    window_of(kvc_cells_position(cells, i - 1)))
                continue;
            if (pass) cells->block[blocks] = i;
            blocks++;
            start = i;
        }
        if (!pass) {
            cells->block = kvc_alloc((size_t)blocks + 1, sizeof *cells->block);
            if (!cells->block) return kvc_fail_memory(e, "blocks");
        }
    }
    cells->block[blocks] = cells->n;
    cells->n_blocks = blocks;
    return 0;
}

int kvc_cells_copy(struct kvc_cells *to, uint64_t at, const struct kvc_cells *from, uint64_t first,
                   uint64_t end, struct kvc_error *e) {
    for (uint64_t i = first; i < end; i++) to->pos[at + i - first] = kvc_cells_position(from, i);
    if (!from->words) return 0;
    uint64_t used = at ? to->word_at[at] : 0;
    uint32_t *words = kvc_realloc(to->words, used + from->word_at[from->n], sizeof *words);
    if (words) to->words = words;
    if (words && !to->word_at) to->word_at = kvc_alloc_zeros(to->n + 1, sizeof *to->word_at);
    if (!words || !to->word_at) return kvc_fail_memory(e, "cells");
    for (uint64_t i = first; i < end; i++) {
        const uint32_t cell = kvc_cell_at(from, i);
        for (uint64_t w = from->word_at[cell]; w < from->word_at[cell + 1]; w++)
            to->words[used++] = from->words[w];
        to->word_at[at + i - first + 1] = used;
    }
    return 0;
}

uint32_t kvc_cell_at(const struct kvc_cells *cells, uint64_t sorted) {
    return cells->order ? cells->order[sorted] : (uint32_t)sorted;
}

int64_t kvc_cells_position(const struct kvc_cells *cells, uint64_t sorted) {
    return cells->pos[kvc_cell_at(cells, sorted)];
}

uint64_t kvc_cells_row_from(const struct kvc_cells *cells, int64_t pos) {
    uint64_t low = 0, high = cells->n;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        if (kvc_cells_position(cells, mid) < pos) low = mid + 1;
        else high = mid;
    }
    return low;
}

unsigned kvc_cache_threads(const struct kvc_cache *c, unsigned threads) {
    return c->threads ? c->threads(c, threads) : threads;
}

uint64_t kvc_cells_run_end(const struct kvc_cells *cells, uint64_t block) {
    const uint64_t left = cells->n_blocks - block;
    return block + (left < KVC_RUN_BLOCKS ? left : KVC_RUN_BLOCKS);
}

uint64_t kvc_cells_run_rows(const struct kvc_cells *cells) {
    const uint64_t most = KVC_RUN_BLOCKS * KVC_BLOCK;
    return cells->n < most ? cells->n : most;
}

uint64_t kvc_cells_block_of(const struct kvc_cells *cells, uint64_t row) {
    uint64_t low = 0, high = cells->n_blocks;
    while (high - low > 1) {
        uint64_t mid = low + (high - low) / 2;
        if (cells->block[mid] <= row) low = mid;
        else high = mid;
    }
    return low;
}

int kvc_cache_finish(struct kvc_cache *c, struct kvc_error *e) {
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (kvc_cells_arrange(&c->part[i].cells, e)) return -1;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (i && c->layer[i].part < c->layer[i - 1].part)
            return kvc_fail(e, KVC_ERR_DAMAGED, "layers are not ordered by part");
        if (c->layer[i].tensor[0] == KVC_NONE && c->layer[i].tensor[1] == KVC_NONE)
            return kvc_fail(e, KVC_ERR_DAMAGED, "layer %" PRIu32 " has no tensor",
                            c->layer[i].index);
    }
    for (uint32_t i = 0; i < c->n_tensors; i++) {
        char label[64];
        kvc_tensor_label(c, i, label, sizeof label);
        if (c->tensor[i].shape.tokens != kvc_tensor_cells(c, i)->n)
            return kvc_fail(e, KVC_ERR_DAMAGED, "%s has %llu rows for %llu cells", label,
                            (unsigned long long)c->tensor[i].shape.tokens,
                            (unsigned long long)kvc_tensor_cells(c, i)->n);
    }
    return 0;
}

uint64_t kvc_tensor_bytes(const struct kvc_tensor *t) {
    return t->shape.tokens * kvc_row_bytes(&t->shape);
}

void kvc_tensor_label(const struct kvc_cache *c, uint32_t tensor, char *text, size_t size) {
    const struct kvc_layer *layer = kvc_tensor_layer(c, tensor);
    const struct kvc_part *part = &c->part[layer->part];
    char where[48] = "";
    if (part->kind == KVC_PART_SNAPSHOT)
        snprintf(where, sizeof where, "snapshot %u ", part->snapshot);
    else if (part->kind == KVC_PART_WINDOW) snprintf(where, sizeof where, "window ");
    if (part->stream)
        snprintf(where + strlen(where), sizeof where - strlen(where), "stream %u ", part->stream);
    snprintf(text, size, "%slayer %u %s", where, layer->index,
             kvc_role_name(c->tensor[tensor].role));
}

uint32_t kvc_cache_find_tensor(const struct kvc_cache *c, uint32_t part, uint32_t layer_index,
                               enum kvc_role role) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t t = c->layer[i].tensor[slot_of(role)];
        if (c->layer[i].part == part && c->layer[i].index == layer_index && t != KVC_NONE &&
            c->tensor[t].role == role)
            return t;
    }
    return KVC_NONE;
}

uint32_t kvc_cache_find_queries(const struct kvc_cache *c, uint32_t layer_index) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (c->tensor[t].role == KVC_ROLE_QUERIES && kvc_tensor_layer(c, t)->index == layer_index)
            return t;
    return KVC_NONE;
}

/* Returns 1 if ids belong to the rows of part 0, 0 if to positions from tokens.first on. */
static int tokens_follow_rows(const struct kvc_cache *c) {
    return c->n_parts && c->part[0].kind == KVC_PART_LIVE && c->part[0].cells.n == c->n_tokens;
}

static int64_t token_position(const struct kvc_cache *c, int by_row, uint64_t first, uint64_t i) {
    return by_row ? c->part[0].cells.pos[kvc_cell_at(&c->part[0].cells, i)] : (int64_t)(first + i);
}

static uint64_t first_token(const struct kvc_cache *c) {
    uint64_t first = c->meta.facts.tokens_first;
    /* a position that no token can have counts as unknown */
    return first <= INT64_MAX - c->n_tokens ? first : 0;
}

int64_t *kvc_cache_token_positions(const struct kvc_cache *c, struct kvc_error *e) {
    int by_row = tokens_follow_rows(c);
    uint64_t first = first_token(c);
    int64_t *pos = kvc_alloc(c->n_tokens, sizeof *pos);
    if (!pos) kvc_fail_memory(e, "positions");
    for (uint64_t i = 0; pos && i < c->n_tokens; i++) pos[i] = token_position(c, by_row, first, i);
    return pos;
}

uint64_t kvc_cache_tokens_from(const struct kvc_cache *c, uint64_t first) {
    int by_row = tokens_follow_rows(c);
    uint64_t n = 0, begin = first_token(c);
    while (n < c->n_tokens && (uint64_t)token_position(c, by_row, begin, n) == first + n) n++;
    return n;
}

int kvc_cache_set_heads(struct kvc_cache *c, uint32_t heads, struct kvc_error *e) {
    for (uint32_t i = 0; i < c->n_tensors; i++) {
        struct kvc_tensor *t = &c->tensor[i];
        if ((t->role != KVC_ROLE_K && t->role != KVC_ROLE_V) || t->shape.heads != 1) continue;
        uint32_t block = kvc_dtype_info(t->shape.dtype)->block;
        if (t->shape.dim % heads)
            return kvc_fail(e, KVC_ERR_USAGE,
                            "rows of %llu values are not %u heads: the number of KV heads is "
                            "wrong, or the model is another",
                            (unsigned long long)t->shape.dim, heads);
        t->shape.heads = heads;
        t->shape.dim /= heads;
        t->source.head = t->shape.dim % block ? 0 : t->shape.dim / block * t->source.block;
        for (uint64_t p = 0; p < c->n_places; p++)
            if (c->place[p].tensor == i)
                c->place[p].strides.head = t->shape.dim % block
                                               ? 0
                                               : t->shape.dim / block * c->place[p].strides.block;
    }
    return kvc_meta_set_bool(&c->meta, KVC_KEY_HEADS_KNOWN, 1, e);
}
