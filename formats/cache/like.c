/* like.c: a cache as another cache would have kept it. */
#include "formats/cache/like.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/rope_names.h"
#include "formats/cache/scales.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct like {
    const struct kvc_cache *c, *from;
    /* the two in the pairing of the other; NULL: the same as they are */
    struct kvc_cache *here, *there;
    uint32_t *tensor; /* by tensor: its number in `c` */
};

/* Returns the number of tensors of attention. */
static uint32_t count_tensors(const struct kvc_cache *c) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) n += !kvc_tensor_is_companion(c, t);
    return n;
}

/* Returns the tensor of `c` that is tensor t of `from`, or KVC_NONE. */
static uint32_t find_like(const struct kvc_cache *c, const struct kvc_cache *from, uint32_t t) {
    const struct kvc_layer *layer = kvc_tensor_layer(from, t);
    if (layer->part >= c->n_parts || c->part[layer->part].kind != from->part[layer->part].kind)
        return KVC_NONE;
    return kvc_cache_find_tensor(c, layer->part, layer->index, from->tensor[t].role);
}

static int pairs_otherwise(const struct kvc_cache *c, const struct kvc_cache *from) {
    const enum kvc_pairing a = c->meta.facts.rope.pairing, b = from->meta.facts.rope.pairing;
    return kvc_pairing_turns(a) && kvc_pairing_turns(b) && a != b;
}

int kvc_like_differs(const struct kvc_cache *c, const struct kvc_cache *from) {
    if (pairs_otherwise(c, from)) return 1;
    for (uint32_t t = 0; t < from->n_tensors && !kvc_tensor_is_companion(from, t); t++) {
        const uint32_t other = find_like(c, from, t);
        if (other != t || c->tensor[t].shape.dtype != from->tensor[t].shape.dtype) return 1;
    }
    return 0;
}

/* --- reading --- */

/* Reads rows of a tensor of a cache in another dtype of numbers. */
static int read_as(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                   enum kvc_dtype to, uint8_t *dst, struct kvc_error *e) {
    const struct kvc_shape *shape = &c->tensor[tensor].shape;
    const size_t values = (size_t)(n * shape->heads * shape->dim);
    if (shape->dtype == to) return c->read(c, tensor, first, n, dst, e);
    float *floats = kvc_alloc(values, sizeof *floats);
    const int status = floats ? kvc_read_floats(c, tensor, first, n, floats, 0, e)
                              : kvc_fail_memory(e, "rows");
    if (!status) kvc_from_floats(dst, floats, values, to);
    free(floats);
    return status;
}

/* Replaces n converted rows, from row `first` on, by those of x->from, from row `start` on, of
 * which they were made. */
static int restore_rows(const struct like *x, uint32_t tensor, uint64_t first, uint64_t start,
                        uint64_t n, uint8_t *dst, struct kvc_error *e) {
    const uint32_t own = x->tensor[tensor];
    const struct kvc_shape *shape = &x->c->tensor[own].shape,
                           *other = &x->from->tensor[tensor].shape;
    const size_t row = (size_t)kvc_row_bytes(shape), to = (size_t)kvc_row_bytes(other);
    const struct kvc_cache *there = x->there ? x->there : x->from;
    uint8_t *a = kvc_alloc(n, row), *b = kvc_alloc(n, row), *rows = kvc_alloc(n, to);
    int status = a && b && rows ? 0 : kvc_fail_memory(e, "rows");
    if (!status) status = x->c->read(x->c, own, first, n, a, e);
    if (!status) status = read_as(there, tensor, start, n, shape->dtype, b, e);
    if (!status) status = x->from->read(x->from, tensor, start, n, rows, e);
    for (uint64_t i = 0; i < n && !status; i++)
        if (memcmp(a + i * row, b + i * row, row) == 0) memcpy(dst + i * to, rows + i * to, to);
    free(a);
    free(b);
    free(rows);
    return status;
}

static int like_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                     uint8_t *dst, struct kvc_error *e) {
    const struct like *x = c->impl;
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor),
                           *other = kvc_tensor_cells(x->from, tensor);
    if (!n) return 0;
    /* rows of a window that moved on have gone */
    const uint64_t there = first + kvc_cells_row_from(other, kvc_cells_position(cells, 0));
    uint64_t both = 0;
    while (both < n && there + both < other->n &&
           kvc_cells_position(cells, first + both) == kvc_cells_position(other, there + both))
        both++;
    if (read_as(x->here ? x->here : x->c, x->tensor[tensor], first, n,
                c->tensor[tensor].shape.dtype, dst, e))
        return -1;
    return both ? restore_rows(x, tensor, first, there, both, dst, e) : 0;
}

static unsigned like_threads(const struct kvc_cache *c, unsigned threads) {
    const struct like *x = c->impl;
    return kvc_cache_threads(x->c, kvc_cache_threads(x->from, threads));
}

static void like_close(struct kvc_cache *c) {
    struct like *x = c->impl;
    kvc_cache_free(x->here);
    kvc_cache_free(x->there);
    free(x->tensor);
    free(x);
}

/* --- building --- */

/* Adds a tensor of `from` with the rows of `c`, in a new layer if it begins one. */
static int add_like(struct kvc_cache *view, struct like *x, uint32_t t, uint32_t *layer,
                    struct kvc_error *e) {
    const struct kvc_tensor *like = &x->from->tensor[t];
    const struct kvc_layer *of = &x->from->layer[like->layer];
    const uint32_t own = find_like(x->c, x->from, t);
    char label[64];
    kvc_tensor_label(x->from, t, label, sizeof label);
    if (own == KVC_NONE) return kvc_fail(e, KVC_ERR_OTHER_MODEL, "the cache has no %s", label);
    struct kvc_shape shape = x->c->tensor[own].shape;
    if (shape.heads * shape.dim != like->shape.heads * like->shape.dim)
        return kvc_fail(e, KVC_ERR_OTHER_MODEL, "%s is of another size", label);
    if (shape.dtype != like->shape.dtype &&
        !(kvc_is_float(shape.dtype) && kvc_is_float(like->shape.dtype)))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s is %s and not %s", label,
                        kvc_dtype_info(shape.dtype)->name, kvc_dtype_info(like->shape.dtype)->name);
    shape.dtype = like->shape.dtype;
    if (layer[like->layer] == KVC_NONE) {
        layer[like->layer] = kvc_cache_copy_layer(view, of->part, of, e);
        if (layer[like->layer] == KVC_NONE) return -1;
    }
    x->tensor[t] = own;
    return kvc_cache_add_tensor(view, layer[like->layer], like->role, &shape, e) == KVC_NONE ? -1
                                                                                             : 0;
}

static int fill_like(struct kvc_cache *view, struct like *x, uint32_t *layer, struct kvc_error *e) {
    const struct kvc_cache *c = x->c, *from = x->from;
    if (count_tensors(c) != count_tensors(from))
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "the cache has %" PRIu32 " tensors and not %" PRIu32, count_tensors(c),
                        count_tensors(from));
    if (kvc_meta_copy(&view->meta, &c->meta, e)) return -1;
    if (c->tokens && kvc_cache_set_tokens(view, c->tokens, c->n_tokens, e)) return -1;
    for (uint32_t p = 0; p < c->n_parts && c->part[p].kind != KVC_PART_COMPANION; p++)
        if (kvc_cache_copy_part(view, &c->part[p], 0, c->part[p].cells.n, e) == KVC_NONE) return -1;
    for (uint32_t l = 0; l < from->n_layers; l++) layer[l] = KVC_NONE;
    for (uint32_t t = 0; t < from->n_tensors && !kvc_tensor_is_companion(from, t); t++)
        if (add_like(view, x, t, layer, e)) return -1;
    if (pairs_otherwise(c, from)) {
        const enum kvc_pairing to = from->meta.facts.rope.pairing;
        x->here = kvc_view_pairing(c, to, e);
        x->there = x->here ? kvc_view_pairing(from, c->meta.facts.rope.pairing, e) : NULL;
        if (!x->there || kvc_meta_set_pairing(&view->meta, to, e)) return -1;
    }
    return kvc_cache_finish(view, e);
}

struct kvc_cache *kvc_like_view(const struct kvc_cache *c, const struct kvc_cache *from,
                                struct kvc_error *e) {
    struct kvc_cache *view = kvc_cache_derived(sizeof(struct like), like_close, e);
    if (!view) return NULL;
    struct like *x = view->impl;
    uint32_t *layer = kvc_alloc((uint64_t)from->n_layers + 1, sizeof *layer);
    *x = (struct like){c, from,
                       .tensor = kvc_alloc_zeros((uint64_t)from->n_tensors + 1, sizeof *x->tensor)};
    view->read = like_read;
    view->threads = like_threads;
    const int status = x->tensor && layer ? fill_like(view, x, layer, e)
                                          : kvc_fail_memory(e, "a view");
    free(layer);
    if (!status) return view;
    kvc_cache_free(view);
    return NULL;
}
