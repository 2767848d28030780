/* arrays_read.c: builds the cache model from named arrays: parts by token count. Not for finding
 * arrays in a file (safetensors.c, npz.c), for the meaning of names (arrays_names.c), for extents
 * and metadata (arrays_source.c) or for writing them (arrays_write.c). */
#include "formats/engines/arrays_read.h"

#include "codecs/memory.h"
#include "formats/io/bytes.h"
#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 7 };

/* A tensor that was recognised by its name. */
struct item {
    size_t array;
    struct kvc_name name;
    enum kvc_part_kind part;
    struct kvc_shape shape;
    struct kvc_strides strides;
    uint32_t layer;     /* number in the cache */
    uint64_t key[KEYS]; /* of the order that is sorted by */
};

static int arrays_read_is_attention(const struct item *item) {
    return item->name.role <= KVC_ROLE_LATENT;
}

/* Returns 1 for torch.tensor([]), which DynamicCache of transformers 4 has for a layer that has no
 * K and V (cache_utils.py, update()). */
static int is_skipped(const struct kvc_array *a) {
    return a->rank == 1 && !a->dim[0];
}

static int take_tensor(const struct kvc_array *a, struct item *item, struct kvc_error *e) {
    struct kvc_shape *shape = &item->shape;
    if (!a->info)
        return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED, "caches have no such element type");
    if (item->name.role == KVC_ROLE_HIDDEN) {
        if ((a->rank != 2 && a->rank != 3) || (a->rank == 3 && a->dim[0] != 1))
            return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED,
                                  "hidden states must be [1,T,d] or [T,d]");
        *shape = (struct kvc_shape){a->info->dtype, a->dim[a->rank - 2], 1, a->dim[a->rank - 1]};
    } else {
        if (a->rank != 4)
            return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED,
                                  "must be [1, heads, tokens, head dim]");
        if (a->dim[0] != 1) return kvc_array_fail_batch(a, a->dim[0], e);
        *shape = (struct kvc_shape){a->info->dtype, a->dim[2], a->dim[1], a->dim[3]};
    }
    if (!kvc_shape_check(shape))
        return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED,
                              "has no heads or channels, or is larger than kvc handles");
    if (shape->tokens > KVC_MAX_CELLS)
        return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED, "more tokens than kvc handles (2^31)");
    if (a->strided) {
        const uint64_t *last = &a->stride[a->rank - 1];
        item->strides = (struct kvc_strides){.token = last[-1],
                                             .head = a->rank == 4 ? last[-2] : 0,
                                             .block = *last};
        if (!kvc_strides_check(shape, &item->strides, a->size))
            return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED,
                                  "its strides put several values into the same bytes (an expanded "
                                  "view); save a copy of it");
        return 0;
    }
    if (shape->tokens * kvc_row_bytes(shape) != a->size)
        return kvc_array_fail(a, e, KVC_ERR_DAMAGED, "has %" PRIu64 " bytes of data", a->size);
    item->strides = kvc_strides_heads_first(shape);
    return 0;
}

static int count_integers(const struct kvc_array *a, const char *meaning, uint64_t *n,
                          struct kvc_error *e) {
    if (!a->int_size || !(a->rank == 1 || (a->rank == 2 && a->dim[0] == 1)))
        return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED,
                              "%s must be [T] or [1,T] signed 32- or 64-bit integers; if this "
                              "array holds something else, name another one: map=%s=NAME",
                              meaning, meaning);
    *n = a->dim[a->rank - 1];
    if (*n > KVC_MAX_CELLS || (!a->strided && *n * a->int_size != a->size))
        return kvc_array_fail(a, e, KVC_ERR_DAMAGED, "has %" PRIu64 " bytes of data", a->size);
    return 0;
}

/* Returns integer i of an array, whose bytes are pinned. */
static int64_t integer_at(const struct kvc_array *a, uint64_t i) {
    const uint8_t *p = a->in->data + a->at +
                       i * (a->strided ? a->stride[a->rank - 1] : a->int_size);
    return a->int_size == 8 ? (int64_t)get_u64(p) : (int32_t)get_u32(p);
}

/* Checks that two arrays of one meaning hold the same numbers: files of one cache, as of a layer
 * each, repeat its tokens and positions. */
static int check_same(const struct kvc_array *a, const struct kvc_array *b, const char *meaning,
                      struct kvc_error *e) {
    char one[320], other[320];
    uint64_t n, m;
    if (count_integers(a, meaning, &n, e) || count_integers(b, meaning, &m, e) ||
        kvc_input_pin(a->in, a->at, a->size, e))
        return -1;
    int status = kvc_input_pin(b->in, b->at, b->size, e), same = n == m;
    if (!status) {
        for (uint64_t i = 0; i < n && same; i++) same = integer_at(a, i) == integer_at(b, i);
        kvc_input_unpin(b->in, b->at, b->size);
    }
    kvc_input_unpin(a->in, a->at, a->size);
    if (status || same) return status;
    kvc_array_describe(a, one, sizeof one);
    kvc_array_describe(b, other, sizeof other);
    return kvc_fail(e, KVC_ERR_DAMAGED,
                    "%s of %s and %s of %s both are %s of the cache, but differ", one, a->in->name,
                    other, b->in->name, meaning);
}

static int take_tokens(struct kvc_cache *c, const struct kvc_array *a, struct kvc_error *e) {
    uint64_t n;
    if (count_integers(a, "tokens", &n, e)) return -1;
    int32_t *tokens = kvc_alloc(n, sizeof *tokens);
    if (!tokens) return kvc_fail_memory(e, "tokens");
    int status = kvc_input_pin(a->in, a->at, a->size, e);
    const int pinned = !status;
    for (uint64_t i = 0; i < n && !status; i++) {
        int64_t id = integer_at(a, i);
        if (id < 0 || id > INT32_MAX)
            status = kvc_array_fail(a, e, KVC_ERR_DAMAGED,
                                    "entry %" PRIu64 " is no token id (0 to 2^31-1)", i);
        tokens[i] = (int32_t)id;
    }
    if (pinned) kvc_input_unpin(a->in, a->at, a->size);
    if (!status) status = kvc_cache_set_tokens(c, tokens, n, e);
    free(tokens);
    return status;
}

/* BY_PART: parts by kind, the longest first; then layers by number; then the tensors of a layer.
 * Queries and hidden states of one length share a part but are layers of their own.
 * BY_MEANING: by role and layer, not by length: neighbours of one layer must fit together.
 * BY_LAYER: layer by layer, each layer's K and V before its queries and the like: predictions are
 * from lower numbers. */
enum order { BY_PART, BY_MEANING, BY_LAYER };

static int by_key(const void *pa, const void *pb) {
    const struct item *a = pa, *b = pb;
    for (unsigned i = 0; i < KEYS; i++)
        if (a->key[i] != b->key[i]) return a->key[i] < b->key[i] ? -1 : 1;
    return 0;
}

static void sort_items(struct item *item, size_t n, enum order order) {
    for (struct item *a = item; a < item + n; a++) {
        const uint64_t role = a->name.role, layer = a->name.layer, sliding = a->name.sliding != 0,
                       other = !arrays_read_is_attention(a);
        const uint64_t keys[][KEYS] = {[BY_PART] = {a->part, UINT64_MAX - a->shape.tokens,
                                                    a->part == KVC_PART_COMPANION ? role : 0, layer,
                                                    sliding, role, a->array},
                                       [BY_MEANING] = {other, sliding, other ? role : 0, layer,
                                                       role, a->array},
                                       [BY_LAYER] = {layer, other, role, a->array}};
        memcpy(a->key, keys[order], sizeof a->key);
    }
    if (n) qsort(item, n, sizeof *item, by_key);
}

static int same_layer(const struct item *a, const struct item *b) {
    return a->name.layer == b->name.layer && a->name.sliding == b->name.sliding &&
           (arrays_read_is_attention(a) ? arrays_read_is_attention(b)
                                        : a->name.role == b->name.role);
}

/* A layer may have K or V alone where patterns name them, and latents where the model has them.
 * ONLY_LATENTS: the caller says so. */
enum { MAPPED = 1, LATENTS = 2, ONLY_LATENTS = 4 };

static int lone_of(const struct kvc_import_options *o) {
    const int said = o && o->value && o->value[KVC_ARRAYS_LATENT].count;
    return (kvc_name_maps_attention(o) ? MAPPED : 0) | (said || (o && o->latent) ? LATENTS : 0) |
           (said ? ONLY_LATENTS : 0);
}

/* Checks that every layer has K and V once, or one of them where `lone` allows it, and that they
 * fit. */
static int check_layers(struct item *item, size_t n, const struct kvc_array *array, int lone,
                        struct kvc_error *e) {
    char one[320], other[320];
    sort_items(item, n, BY_MEANING);
    for (size_t i = 0; i < n; i++) {
        struct item *a = &item[i];
        const struct item *b = i + 1 < n && same_layer(a, &item[i + 1]) ? &item[i + 1] : NULL;
        kvc_array_describe(&array[a->array], one, sizeof one);
        if (b) kvc_array_describe(&array[b->array], other, sizeof other);
        if (b && a->name.role == b->name.role && array[a->array].member != array[b->array].member)
            return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_EACH,
                                 "%s of %s and %s of %s both are %s of layer %" PRIu32
                                 ": several caches, not one",
                                 one, array[a->array].in->name, other, array[b->array].in->name,
                                 kvc_role_name(a->name.role), a->name.layer);
        if (b && a->name.role == b->name.role)
            return kvc_fail(e, KVC_ERR_DAMAGED, "%s and %s both are %s of layer %" PRIu32, one,
                            other, kvc_role_name(a->name.role), a->name.layer);
        if (b && (a->shape.tokens != b->shape.tokens || a->shape.heads != b->shape.heads))
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "%s and %s are K and V of one layer but differ in heads or tokens", one,
                            other);
        int first = !i || !same_layer(a, &item[i - 1]);
        if (arrays_read_is_attention(a) && first && !b) {
            if (a->name.role == KVC_ROLE_K && a->shape.heads == 1 && lone & LATENTS)
                a->name.role = KVC_ROLE_LATENT;
            else if (!(lone & MAPPED))
                return kvc_names_lone(&array[a->array], a->name.layer, a->name.role == KVC_ROLE_K,
                                      e);
        }
        if (b && arrays_read_is_attention(b) && lone & ONLY_LATENTS)
            return kvc_fail(e, KVC_ERR_USAGE,
                            "%s is V, which caches of latent attention do not have", other);
    }
    return 0;
}

/* Adds parts and layers, and puts every item into its layer. */
static int arrays_read_add_layers(struct kvc_cache *c, struct item *item, size_t n,
                                  struct kvc_error *e) {
    sort_items(item, n, BY_PART);
    for (size_t i = 0; i < n; i++) {
        struct item *a = &item[i], *before = i ? &item[i - 1] : NULL;
        uint32_t part = before ? c->n_parts - 1 : KVC_NONE;
        if (!before || before->part != a->part || before->shape.tokens != a->shape.tokens) {
            part = kvc_cache_add_part(c, a->part, a->shape.tokens, e);
            if (part == KVC_NONE) return -1;
            before = NULL;
        }
        if (before && same_layer(before, a)) {
            a->layer = before->layer;
            continue;
        }
        enum kvc_layer_kind kind = a->part == KVC_PART_LIVE     ? KVC_LAYER_FULL
                                   : a->part == KVC_PART_WINDOW ? KVC_LAYER_WINDOW
                                                                : KVC_LAYER_COMPANION;
        a->layer = kvc_cache_add_layer(c, part, a->name.layer, kind, e);
        if (a->layer == KVC_NONE) return -1;
    }
    return 0;
}

/* Finds the part of each item. The live part is the longest cache whose names do not say that it is
 * another part. Returns its rows. */
static uint64_t choose_parts(struct item *item, size_t n) {
    uint64_t live = 0;
    for (size_t i = 0; i < n; i++)
        if (arrays_read_is_attention(&item[i]) && !item[i].name.sliding &&
            item[i].shape.tokens > live)
            live = item[i].shape.tokens;
    for (size_t i = 0; i < n; i++) {
        item[i].part = !item[i].name.sliding && item[i].shape.tokens == live ? KVC_PART_LIVE
                                                                             : KVC_PART_WINDOW;
        if (!arrays_read_is_attention(&item[i])) item[i].part = KVC_PART_COMPANION;
    }
    return live;
}

/* The arrays of positions of the live part, and of a sliding part. */
struct positions {
    const struct kvc_array *array[2]; /* NULL: the file has none */
    uint32_t part[2];                 /* set by give_positions() */
    int ids;                          /* 1: those of the live part are position_ids */
};

static int give_positions(struct kvc_cache *c, const struct kvc_array *a, enum kvc_part_kind kind,
                          uint32_t *part, struct kvc_error *e) {
    uint64_t n;
    if (count_integers(a, "positions", &n, e)) return -1;
    for (*part = 0; *part < c->n_parts; ++*part)
        if (c->part[*part].kind == kind && c->part[*part].cells.n == n) break;
    if (*part == c->n_parts)
        return kvc_array_fail(a, e, KVC_ERR_DAMAGED,
                              "no %s layers have as many tokens; if this array does not hold "
                              "positions, name another one: map=positions=NAME",
                              kvc_part_kind_name(kind));
    if (kvc_input_pin(a->in, a->at, a->size, e)) return -1;
    int status = 0;
    for (uint64_t i = 0; i < n && !status; i++) {
        int64_t pos = integer_at(a, i);
        if (pos <= -KVC_POSITION_LIMIT || pos >= KVC_POSITION_LIMIT)
            status = kvc_array_fail(a, e, KVC_ERR_DAMAGED, "entry %" PRIu64 " is no position", i);
        c->part[*part].cells.pos[i] = pos;
    }
    kvc_input_unpin(a->in, a->at, a->size);
    return status;
}

/* Notes where layers are shorter than others, and neither their names nor positions say that they
 * have a window. */
static int note_short(struct kvc_cache *c, const struct item *item, size_t n,
                      const struct positions *given, struct kvc_error *e) {
    for (size_t i = 0; i < n; i++)
        if (item[i].part == KVC_PART_WINDOW && !item[i].name.sliding && !given->array[1])
            return kvc_meta_set_bool(&c->meta, KVC_KEY_WINDOW_ASSUMED, 1, e);
    return 0;
}

/* Sets the positions of all parts but the first, which has 0, 1, ..., where no array has them. */
static int set_positions(struct kvc_cache *c, struct kvc_array *array, size_t n,
                         struct positions *given, struct kvc_error *e) {
    for (unsigned k = 0; k < 2; k++) {
        given->part[k] = KVC_NONE;
        if (given->array[k] &&
            give_positions(c, given->array[k], k ? KVC_PART_WINDOW : KVC_PART_LIVE, &given->part[k],
                           e))
            return -1;
    }
    const struct kvc_cells *first = &c->part[0].cells;
    if (given->ids && !given->part[0] && kvc_names_pad_positions(&c->part[0].cells, array, n, e))
        return -1;
    if (kvc_cells_arrange(&c->part[0].cells, e)) return -1;
    for (uint32_t i = 1; i < c->n_parts; i++) {
        struct kvc_cells *cells = &c->part[i].cells;
        if (i == given->part[0] || i == given->part[1]) continue;
        if (cells->n > first->n)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "the arrays of the %s part cover %" PRIu64
                            " tokens, more than the cache has (%" PRIu64 ")",
                            kvc_part_kind_name(c->part[i].kind), cells->n, first->n);
        /* rows that are as many lie in the same order */
        const uint64_t left = first->n - cells->n;
        for (uint64_t k = 0; k < cells->n; k++)
            cells->pos[k] = first->pos[left ? kvc_cell_at(first, left + k) : k];
    }
    return 0;
}

/* Puts ids of the first part's rows, which are in the order of the file, into sorted order. After
 * those of input_ids (`sampled`) there may be one that has no row. It is left out where the rows
 * are not at 0, 1, ...: then only ids that are as many as the rows are theirs. */
static int sort_ids(struct kvc_cache *c, int sampled, struct kvc_error *e) {
    const struct kvc_cells *cells = &c->part[0].cells;
    const uint64_t n = cells->n;
    if (c->n_tokens != n && (!sampled || c->n_tokens != n + 1)) return 0;
    for (uint64_t i = 0; i < n && c->n_tokens > n; i++)
        if (kvc_cells_position(cells, i) != (int64_t)i) c->n_tokens = n;
    if (!cells->order) return 0;
    int32_t *ids = kvc_alloc(n, sizeof *ids);
    if (!ids) return kvc_fail_memory(e, "tokens");
    for (uint64_t i = 0; i < n; i++) ids[i] = c->tokens[kvc_cell_at(cells, i)];
    memcpy(c->tokens, ids, (size_t)n * sizeof *ids);
    free(ids);
    return 0;
}

static int arrays_read_build(struct kvc_cache *c, struct item *item, size_t n,
                             struct kvc_array *array, size_t arrays, int lone,
                             struct positions *given, struct kvc_error *e) {
    const uint64_t live = choose_parts(item, n);
    if (!given->array[0])
        given->ids = (given->array[0] = kvc_names_position_ids(array, arrays, live)) != NULL;
    if (check_layers(item, n, array, lone, e) || arrays_read_add_layers(c, item, n, e)) return -1;
    if (set_positions(c, array, arrays, given, e) || note_short(c, item, n, given, e)) return -1;
    sort_items(item, n, BY_LAYER);
    for (size_t i = 0; i < n; i++) {
        struct kvc_array *a = &array[item[i].array];
        a->tensor = kvc_cache_add_tensor(c, item[i].layer, item[i].name.role, &item[i].shape, e);
        if (a->tensor == KVC_NONE) return -1;
        c->tensor[a->tensor].source = item[i].strides;
        c->tensor[a->tensor].source_size = a->size;
        if (kvc_cache_map_tensor(c, a->tensor, a->in, a->at, e)) return -1;
    }
    return 0;
}

int kvc_names_build(struct kvc_cache *c, struct kvc_array *array, size_t n,
                    const struct kvc_import_options *o, struct kvc_error *e) {
    const int lone = lone_of(o);
    int status = 0, attention = 0;
    size_t items = 0;
    struct positions given = {.array = {NULL, NULL}};
    const struct kvc_array *tokens = NULL;
    struct item *item = kvc_alloc_zeros(n, sizeof *item);
    if (!item) return kvc_fail_memory(e, "arrays");
    for (size_t i = 0; i < n && !status; i++) {
        array[i].tensor = KVC_NONE;
        struct item *a = &item[items];
        *a = (struct item){.array = i,
                           .name = array[i].known.kind ? array[i].known
                                                       : kvc_name_of(array[i].name, o)};
        array[i].meaning = a->name.kind;
        if (a->name.kind == KVC_NAME_TOKENS) {
            status = tokens ? check_same(tokens, &array[i], "tokens", e)
                            : take_tokens(c, &array[i], e);
            tokens = &array[i];
        }
        if (a->name.kind == KVC_NAME_POSITIONS) {
            const struct kvc_array **place = &given.array[a->name.sliding];
            if (*place) status = check_same(*place, &array[i], "positions", e);
            *place = &array[i];
        }
        if (a->name.kind != KVC_NAME_TENSOR || is_skipped(&array[i])) continue;
        status = take_tensor(&array[i], a, e);
        attention |= arrays_read_is_attention(a);
        items++;
    }
    if (!status && !attention) status = kvc_names_unknown(array, n, lone & MAPPED, e);
    if (!status) status = arrays_read_build(c, item, items, array, n, lone, &given, e);
    free(item);
    const struct kvc_array *ids = status ? NULL : kvc_names_ids(c, array, n);
    if (ids) status = take_tokens(c, ids, e);
    if (!status && c->tokens) status = sort_ids(c, ids != NULL, e);
    if (!status) status = kvc_names_beside(c, array, n, e);
    if (!status && given.array[0] && c->n_tokens > c->part[0].cells.n)
        status = kvc_meta_set_bool(&c->meta, KVC_KEY_POSITIONS_GIVEN, 1, e);
    return status;
}
