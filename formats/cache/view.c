/* view.c: caches derived from other caches. Rows are read and converted only on demand. Not for
 * whole files (exporters).
 *
 * Every view keeps its cells in sorted order, so row i of a view's part is row first[part] + i of
 * the parent's. */
#include "formats/cache/view.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix.h"
#include "formats/cache/rows.h"
#include "formats/cache/scales.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum transform { AS_IT_IS, REPAIR, TO_FLOAT, DEQUANTIZE };

struct view {
    const struct kvc_cache *parent;
    struct kvc_cache *owned; /* the parent, if the view owns it; else NULL */
    uint32_t *tensor;        /* parent's number of each tensor */
    uint64_t *first;         /* by part: first row of the parent's part */
    enum transform transform;
    struct kvc_rope_facts rope; /* REPAIR: of the parent, known or supposed */
    enum kvc_pairing to;
    uint64_t tile[2]; /* rotation of K and of V to undo; 0: none */
};

/* --- reading through --- */

/* Channel i of a head in halves is channel 2i (or 2i + 1 past the middle) in interleaved pairs. */
static void repair_rows(uint8_t *rows, const struct kvc_shape *shape, uint64_t n, uint64_t rotated,
                        enum kvc_pairing to, uint8_t *head) {
    uint64_t size = kvc_dtype_info(shape->dtype)->size, half = rotated / 2;
    for (uint64_t h = 0; h < n * shape->heads; h++) {
        uint8_t *p = rows + h * shape->dim * size;
        memcpy(head, p, (size_t)(rotated * size));
        for (uint64_t i = 0; i < half; i++)
            for (uint64_t odd = 0; odd < 2; odd++) {
                uint64_t in_halves = i + odd * half, in_pairs = 2 * i + odd;
                uint64_t from = to == KVC_PAIRING_INTERLEAVED ? in_halves : in_pairs;
                uint64_t where = to == KVC_PAIRING_INTERLEAVED ? in_pairs : in_halves;
                memcpy(p + where * size, head + from * size, (size_t)size);
            }
    }
}

static int carries_rope(enum kvc_role role) {
    return role == KVC_ROLE_K || role == KVC_ROLE_QUERIES;
}

static uint64_t rotated_channels(const struct kvc_rope_facts *rope, const struct kvc_shape *shape) {
    const uint64_t n = kvc_rope_channels(rope, shape->dim);
    return n <= shape->dim ? n : shape->dim;
}

/* A latent counts as K. */
static uint64_t tile_of(const uint64_t tile[2], enum kvc_role role) {
    return role == KVC_ROLE_K || role == KVC_ROLE_LATENT ? tile[0]
           : role == KVC_ROLE_V                          ? tile[1]
                                                         : 0;
}

static int is_block_type(enum kvc_dtype dtype) {
    return kvc_dtype_info(dtype)->block > 1;
}

/* Returns 1 for tensors that dequantising changes. Queries and hidden states have neither block
 * types nor scales. */
static int is_quantized(const struct kvc_tensor *t) {
    if (kvc_tensor_is_scaled(t)) return 1;
    return is_block_type(t->shape.dtype) &&
           (t->role == KVC_ROLE_K || t->role == KVC_ROLE_V || t->role == KVC_ROLE_LATENT);
}

/* Reads rows of the parent's tensor t as floats, rotated back, in the dtype `to`: f32 or f16. */
static int read_floats(const struct view *v, uint32_t t, enum kvc_dtype to, uint64_t first,
                       uint64_t n, uint8_t *dst, struct kvc_error *e) {
    const struct kvc_shape *shape = &v->parent->tensor[t].shape;
    const uint64_t tile = tile_of(v->tile, v->parent->tensor[t].role);
    const size_t values = (size_t)(n * shape->heads * shape->dim);
    float *floats = kvc_alloc(values, sizeof *floats);
    const int status = floats ? kvc_read_floats(v->parent, t, first, n, floats, 0, e)
                              : kvc_fail_memory(e, "rows");
    if (!status) {
        if (tile) kvc_hadamard(floats, values, (size_t)tile);
        if (to == KVC_F16) kvc_kernels_get()->f32_to_f16(dst, floats, values);
        else memcpy(dst, floats, values * sizeof *floats);
    }
    free(floats);
    return status;
}

static int view_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                     uint8_t *dst, struct kvc_error *e) {
    const struct view *v = c->impl;
    const struct kvc_cache *parent = v->parent;
    const struct kvc_tensor *t = &c->tensor[tensor];
    uint32_t original = v->tensor[tensor];
    const struct kvc_shape *shape = &parent->tensor[original].shape;
    first += v->first[c->layer[t->layer].part];
    if (v->transform == TO_FLOAT || t->shape.dtype != shape->dtype)
        return read_floats(v, original, t->shape.dtype, first, n, dst, e);
    if (parent->read(parent, original, first, n, dst, e)) return -1;
    if (v->transform == REPAIR && carries_rope(t->role)) {
        uint8_t *head = kvc_alloc(shape->dim, kvc_dtype_info(shape->dtype)->size);
        if (!head) return kvc_fail_memory(e, "a head");
        repair_rows(dst, shape, n, rotated_channels(&v->rope, shape), v->to, head);
        free(head);
    }
    return 0;
}

static unsigned view_threads(const struct kvc_cache *c, unsigned threads) {
    return kvc_cache_threads(((const struct view *)c->impl)->parent, threads);
}

static void view_close(struct kvc_cache *c) {
    struct view *v = c->impl;
    kvc_cache_free(v->owned);
    free(v->tensor);
    free(v->first);
    free(v);
}

/* --- building --- */

/* The rows, parts and layers of the parent that a view keeps. */
struct keep {
    uint64_t *first, *end; /* by part; first == end and !part[i]: dropped */
    uint8_t *part, *layer; /* by number */
};

static void keep_free(struct keep *k) {
    free(k->first);
    free(k->end);
    free(k->part);
    free(k->layer);
}

/* Keeps everything; callers narrow the selection. */
static int keep_all(const struct kvc_cache *c, struct keep *k, struct kvc_error *e) {
    k->first = calloc((size_t)c->n_parts + 1, sizeof *k->first);
    k->end = calloc((size_t)c->n_parts + 1, sizeof *k->end);
    k->part = malloc((size_t)c->n_parts + 1);
    k->layer = malloc((size_t)c->n_layers + 1);
    if (!k->first || !k->end || !k->part || !k->layer) {
        keep_free(k);
        return kvc_fail_memory(e, "a selection");
    }
    for (uint32_t i = 0; i < c->n_parts; i++) k->end[i] = c->part[i].cells.n;
    memset(k->part, 1, c->n_parts);
    memset(k->layer, 1, c->n_layers);
    return 0;
}

static struct kvc_cache *make_view(const struct kvc_cache *parent, const struct keep *k,
                                   enum transform transform, struct kvc_error *e) {
    struct kvc_cache *c = kvc_cache_derived(sizeof(struct view), view_close, e);
    if (!c) return NULL;
    uint32_t *part = kvc_alloc((size_t)parent->n_parts + 1, sizeof *part),
             *layer = kvc_alloc((size_t)parent->n_layers + 1, sizeof *layer);
    struct view *v = c->impl;
    c->read = view_read;
    c->threads = view_threads;
    v->parent = parent;
    v->transform = transform;
    v->tensor = kvc_alloc((size_t)parent->n_tensors + 1, sizeof *v->tensor);
    v->first = kvc_alloc((size_t)parent->n_parts + 1, sizeof *v->first);
    if (!part || !layer || !v->tensor || !v->first) {
        kvc_fail_memory(e, "a view");
        goto failed;
    }
    if (kvc_meta_copy(&c->meta, &parent->meta, e)) goto failed;
    if (parent->tokens && kvc_cache_set_tokens(c, parent->tokens, parent->n_tokens, e)) goto failed;
    for (uint32_t i = 0; i < parent->n_parts; i++) {
        part[i] = c->n_parts;
        if (!k->part[i]) continue;
        v->first[c->n_parts] = k->first[i];
        if (kvc_cache_copy_part(c, &parent->part[i], k->first[i], k->end[i], e) == KVC_NONE)
            goto failed;
    }
    for (uint32_t i = 0; i < parent->n_layers; i++) {
        const struct kvc_layer *from = &parent->layer[i];
        layer[i] = KVC_NONE;
        if (!k->layer[i] || !k->part[from->part]) continue;
        layer[i] = kvc_cache_copy_layer(c, part[from->part], from, e);
        if (layer[i] == KVC_NONE) goto failed;
    }
    for (uint32_t i = 0; i < parent->n_tensors; i++) {
        const struct kvc_tensor *from = &parent->tensor[i];
        struct kvc_shape shape = from->shape;
        if (layer[from->layer] == KVC_NONE) continue;
        shape.tokens = c->part[c->layer[layer[from->layer]].part].cells.n;
        if (transform == TO_FLOAT) shape.dtype = KVC_F32;
        if (transform == DEQUANTIZE && is_quantized(from)) shape.dtype = KVC_F16;
        uint32_t t = kvc_cache_add_tensor(c, layer[from->layer], from->role, &shape, e);
        if (t == KVC_NONE) goto failed;
        v->tensor[t] = i;
    }
    if (kvc_cache_finish(c, e)) goto failed;
    free(part);
    free(layer);
    return c;
failed:
    free(part);
    free(layer);
    kvc_cache_free(c);
    return NULL;
}

/* --- the views --- */

/* The rows of the live and window parts. */
struct held {
    int64_t first, last; /* positions; first is 0 if none is below, last -1 if all are */
    uint64_t rows;       /* in the range */
};

static struct held find_held(const struct kvc_cache *c, int64_t first, int64_t end) {
    struct held held = {.last = -1};
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct kvc_cells *cells = &c->part[i].cells;
        if (c->part[i].kind > KVC_PART_WINDOW || !cells->n) continue;
        const int64_t low = kvc_cells_position(cells, 0),
                      high = kvc_cells_position(cells, cells->n - 1);
        if (low < held.first) held.first = low;
        if (high > held.last) held.last = high;
        held.rows += kvc_cells_row_from(cells, end) - kvc_cells_row_from(cells, first);
    }
    return held;
}

/* Refuses a window part that no longer holds every position of the range. */
static int check_complete(const struct kvc_cells *cells, uint64_t first_row, uint64_t end_row,
                          int64_t first, int64_t end, struct kvc_error *e) {
    int64_t due = first;
    for (uint64_t i = first_row; i < end_row; i++) {
        int64_t pos = kvc_cells_position(cells, i);
        if (pos > due) break;
        due = pos + 1;
    }
    if (due >= end) return 0;
    return kvc_fail(e, KVC_ERR_NOT_SLICEABLE,
                    "the sliding-window layers no longer hold position %" PRId64
                    ": a token range of this cache cannot be taken out",
                    due);
}

static int keep_tokens(const struct kvc_cache *c, const struct kvc_selection *s, struct keep *k,
                       struct kvc_error *e) {
    const int64_t first = s->first > INT64_MAX ? INT64_MAX : (int64_t)s->first;
    int64_t end = s->end > INT64_MAX ? INT64_MAX : (int64_t)s->end;
    const struct held held = find_held(c, first, end);
    if (first >= end || !held.rows)
        return kvc_fail(e, KVC_ERR_USAGE, "no token lies in the range: positions go up to %" PRId64,
                        held.last);
    if (end > held.last + 1) end = held.last + 1;
    /* padding before the tokens has positions below 0 */
    const int everything = first <= held.first && end == held.last + 1;
    for (uint32_t i = 0; i < c->n_parts && !everything; i++) {
        const struct kvc_part *part = &c->part[i];
        k->first[i] = kvc_cells_row_from(&part->cells, first);
        k->end[i] = kvc_cells_row_from(&part->cells, end);
        if (part->kind == KVC_PART_STATE)
            return kvc_fail(
                e, KVC_ERR_NOT_SLICEABLE,
                "recurrent states stand for all tokens so far: a token range cannot be taken out");
        if (part->kind == KVC_PART_WINDOW &&
            check_complete(&part->cells, k->first[i], k->end[i], first, end, e))
            return -1;
        /* a snapshot covers the whole slot */
        if (part->kind == KVC_PART_SNAPSHOT) k->part[i] = 0;
        if (part->kind == KVC_PART_COMPANION && k->first[i] == k->end[i]) k->part[i] = 0;
    }
    return 0;
}

/* Leaves out the ids from the first one on that the view would give to another position: where it
 * has as many rows as ids by chance, they count as those of the rows. */
static int drop_misread(struct kvc_cache *c, const int64_t *position, struct kvc_error *e) {
    int64_t *own = kvc_cache_token_positions(c, e);
    uint64_t n = 0;
    if (!own) return -1;
    while (n < c->n_tokens && own[n] == position[n]) n++;
    free(own);
    c->n_tokens = n;
    return 0;
}

/* Cuts the view's token ids to those whose positions (the parent's) lie in [first, end). */
static int cut_tokens(struct kvc_cache *c, const struct kvc_cache *parent,
                      const struct kvc_selection *s, struct kvc_error *e) {
    uint64_t first = 0, end = 0;
    if (!c->tokens) return 0;
    int64_t *pos = kvc_cache_token_positions(parent, e);
    if (!pos) return -1;
    while (first < c->n_tokens && (pos[first] < 0 || (uint64_t)pos[first] < s->first)) first++;
    for (end = first; end < c->n_tokens && (uint64_t)pos[end] < s->end;) end++;
    uint64_t begin = first < end ? (uint64_t)pos[first] : 0;
    memmove(c->tokens, c->tokens + first, (size_t)(end - first) * sizeof *c->tokens);
    c->n_tokens = end - first;
    int status = begin ? kvc_meta_set_u64(&c->meta, KVC_KEY_TOKENS_FIRST, begin, e) : 0;
    if (!status) status = drop_misread(c, pos + first, e);
    free(pos);
    return status;
}

static int is_left_out(const struct kvc_selection *s, enum kvc_part_kind kind) {
    return (s->no_companions && kind == KVC_PART_COMPANION) ||
           (s->no_snapshots && kind == KVC_PART_SNAPSHOT);
}

struct kvc_cache *kvc_view_select(const struct kvc_cache *c, const struct kvc_selection *s,
                                  struct kvc_error *e) {
    struct keep k;
    if (keep_all(c, &k, e)) return NULL;
    int status = s->end ? keep_tokens(c, s, &k, e) : 0;
    uint32_t layers = 0;
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (is_left_out(s, c->part[i].kind)) k.part[i] = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t index = c->layer[i].index;
        if (s->layers) k.layer[i] = index < s->n_layers && s->layers[index];
        if (is_left_out(s, c->part[c->layer[i].part].kind)) k.layer[i] = 0;
        layers += k.layer[i];
    }
    if (!status && !layers)
        status = kvc_fail(e, KVC_ERR_USAGE, "no layer of this cache is selected");
    struct kvc_cache *view = status ? NULL : make_view(c, &k, AS_IT_IS, e);
    keep_free(&k);
    if (view && s->end &&
        (cut_tokens(view, c, s, e) || kvc_prefix_select(view, c, s->first, s->end, e))) {
        kvc_cache_free(view);
        return NULL;
    }
    if (view && s->end) {
        kvc_rows_cut(&view->meta, s->first, s->end);
        kvc_meta_remove(&view->meta, KVC_KEY_SHARD_SET); /* other ranges have the same otherwise */
    }
    return view;
}

static int check_repair(const struct kvc_cache *c, const struct kvc_facts *facts,
                        enum kvc_pairing to, struct kvc_error *e) {
    const enum kvc_pairing have = facts->rope.pairing;
    if (have == KVC_PAIRING_UNKNOWN)
        return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_PAIRING,
                             "the RoPE pairing of K is unknown");
    if (have == to) return 0;
    if (have == KVC_PAIRING_NONE || to == KVC_PAIRING_NONE || to == KVC_PAIRING_UNKNOWN)
        return kvc_fail(e, KVC_ERR_USAGE, "K in %s pairs cannot become %s", kvc_pairing_name(have),
                        kvc_pairing_name(to));
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_tensor *x = &c->tensor[t];
        if (x->role == KVC_ROLE_LATENT)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "the RoPE pairing of latent attention cannot be changed");
        if (!carries_rope(x->role)) continue;
        if (is_block_type(x->shape.dtype))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "K is %s, whose 32 values share a scale: its RoPE pairing cannot be "
                            "changed without dequantising",
                            kvc_dtype_info(x->shape.dtype)->name);
        if (rotated_channels(&facts->rope, &x->shape) % 2)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "an odd number of rotated channels");
    }
    if (facts->tile[0])
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "K is Hadamard-rotated: its RoPE pairing cannot be changed as it is");
    if (facts->heads_unknown) /* comes last: the number must help who gives it */
        return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_HEADS,
                             "changing K from %s to %s pairs needs the number of KV heads",
                             kvc_pairing_name(have), kvc_pairing_name(to));
    return 0;
}

struct kvc_cache *kvc_view_pairing(const struct kvc_cache *c, enum kvc_pairing to,
                                   struct kvc_error *e) {
    return kvc_view_pairing_as(c, &c->meta.facts, to, e);
}

struct kvc_cache *kvc_view_pairing_as(const struct kvc_cache *c, const struct kvc_facts *facts,
                                      enum kvc_pairing to, struct kvc_error *e) {
    struct keep k;
    if (check_repair(c, facts, to, e) || keep_all(c, &k, e)) return NULL;
    struct kvc_cache *view = make_view(c, &k, facts->rope.pairing == to ? AS_IT_IS : REPAIR, e);
    keep_free(&k);
    if (!view) return NULL;
    ((struct view *)view->impl)->to = to;
    ((struct view *)view->impl)->rope = facts->rope;
    if (kvc_meta_set_text(&view->meta, KVC_KEY_ROPE_PAIRING, kvc_pairing_name(to), e)) {
        kvc_cache_free(view);
        return NULL;
    }
    return view;
}

/* Refuses a tile of K or V that does not divide the rows of its tensors. */
static int check_tiles(const struct kvc_cache *c, const uint64_t tile[2], struct kvc_error *e) {
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_tensor *x = &c->tensor[t];
        uint64_t n = tile_of(tile, x->role);
        if (n && (n & (n - 1) || x->shape.heads * x->shape.dim % n))
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "Hadamard tile %" PRIu64 " does not divide rows of %" PRIu64 " values",
                            n, x->shape.heads * x->shape.dim);
    }
    return 0;
}

/* Facts of the numbers that are stored, which a view of values does not have. */
static const char *const of_stored[] = {KVC_KEY_SCALE_K, KVC_KEY_SCALE_V, KVC_KEY_SCALE_SOURCE};

/* Makes a view of all of a cache that undoes the rotations by these tiles, and has values that are
 * multiplied by their scales. */
static struct kvc_cache *view_unrotated(const struct kvc_cache *c, enum transform transform,
                                        const uint64_t tile[2], struct kvc_error *e) {
    struct keep k;
    if (keep_all(c, &k, e)) return NULL;
    struct kvc_cache *view = make_view(c, &k, transform, e);
    keep_free(&k);
    if (!view) return NULL;
    memcpy(((struct view *)view->impl)->tile, tile, sizeof((struct view *)view->impl)->tile);
    for (size_t i = 0; i < sizeof of_stored / sizeof of_stored[0]; i++)
        kvc_meta_remove(&view->meta, of_stored[i]);
    if ((tile[0] && kvc_meta_set_u64(&view->meta, KVC_KEY_HADAMARD_K, 0, e)) ||
        (tile[1] && kvc_meta_set_u64(&view->meta, KVC_KEY_HADAMARD_V, 0, e))) {
        kvc_cache_free(view);
        return NULL;
    }
    return view;
}

struct kvc_cache *kvc_view_float(const struct kvc_cache *c, struct kvc_error *e) {
    return kvc_view_float_as(c, &c->meta.facts, e);
}

struct kvc_cache *kvc_view_float_as(const struct kvc_cache *c, const struct kvc_facts *facts,
                                    struct kvc_error *e) {
    return check_tiles(c, facts->tile, e) ? NULL : view_unrotated(c, TO_FLOAT, facts->tile, e);
}

int kvc_cache_is_quantized(const struct kvc_cache *c) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (is_quantized(&c->tensor[t])) return 1;
    return 0;
}

struct kvc_cache *kvc_view_dequantize(const struct kvc_cache *c, struct kvc_error *e) {
    uint64_t tile[2] = {c->meta.facts.tile[0], c->meta.facts.tile[1]};
    if (check_tiles(c, tile, e)) return NULL;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_scales_need(c, t, e)) return NULL;
    /* The metadata have one tile for all of K and one for all of V, so the rotation is undone for
     * all tensors or for none. */
    for (int i = 0; i < 2; i++) {
        int quantized = 0, plain = 0;
        for (uint32_t t = 0; t < c->n_tensors; t++) {
            const enum kvc_role role = c->tensor[t].role;
            if (i ? role != KVC_ROLE_V : role != KVC_ROLE_K && role != KVC_ROLE_LATENT) continue;
            if (is_quantized(&c->tensor[t])) quantized = 1;
            else plain = 1;
        }
        if (tile[i] && quantized && plain) {
            kvc_fail(e, KVC_ERR_UNSUPPORTED,
                     "%s is Hadamard-rotated and only in part of a block type: it cannot be "
                     "dequantised",
                     i ? "V" : "K");
            return NULL;
        }
        if (!quantized) tile[i] = 0;
    }
    return view_unrotated(c, DEQUANTIZE, tile, e);
}

int kvc_cache_has_queries(const struct kvc_cache *c) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (c->tensor[t].role == KVC_ROLE_QUERIES) return 1;
    return 0;
}

struct kvc_cache *kvc_view_queries(const struct kvc_cache *c, enum kvc_pairing of_k,
                                   struct kvc_error *e) {
    const enum kvc_pairing of_q = c->meta.facts.rope.pairing;
    if ((of_k == KVC_PAIRING_UNKNOWN) != (of_q == KVC_PAIRING_UNKNOWN)) {
        kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PAIRING, "the RoPE pairing of %s is unknown",
                      of_k == KVC_PAIRING_UNKNOWN ? "K" : "the queries");
        return NULL;
    }
    struct kvc_cache *turned = of_k == of_q ? NULL : kvc_view_pairing(c, of_k, e);
    struct kvc_cache *view = of_k == of_q || turned ? kvc_view_float(turned ? turned : c, e) : NULL;
    if (!view) {
        kvc_cache_free(turned);
        kvc_error_prefix(e, "queries");
        return NULL;
    }
    ((struct view *)view->impl)->owned = turned;
    return view;
}
