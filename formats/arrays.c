/* arrays.c: a cache's tensors listed and read as named arrays, for exports. Not for writing any format. */
#include "formats/arrays.h"

#include "formats/bytes.h"
#include "formats/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvc_arrays_pairing(const struct kvc_cache *c, enum kvc_pairing to, struct kvc_cache **view,
                       struct kvc_error *e) {
    enum kvc_pairing have = kvc_cache_pairing(c);
    *view = NULL;
    if (!to || !have || have == KVC_PAIRING_NONE || have == to) return 0;
    *view = kvc_view_pairing(c, to, e);
    return *view ? 0 : -1;
}

static int is_exported(const struct kvc_part *part) {
    return part->stream == 0 && (part->kind == KVC_PART_LIVE || part->kind == KVC_PART_SLIDING ||
                                 part->kind == KVC_PART_COMPANION);
}

static int describe(struct kvc_arrays_item *item, const struct kvc_cache *c, uint32_t t,
                    int (*keeps)(enum kvc_dtype), struct kvc_error *e) {
    const struct kvc_tensor *tensor = &c->tensor[t];
    const struct kvc_shape *shape = &tensor->shape;
    char label[64];
    kvc_tensor_label(c, t, label, sizeof label);
    if (tensor->role == KVC_ROLE_LATENT || tensor->role == KVC_ROLE_R || tensor->role == KVC_ROLE_S)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s has no place in arrays of K and V", label);
    item->tensor = t;
    item->dtype = keeps(shape->dtype) ? shape->dtype : KVC_F32;
    item->size = kvc_dtype_info(item->dtype)->size;
    item->bytes = item->size;
    if (tensor->role == KVC_ROLE_HIDDEN && shape->heads == 1) {
        item->rank = 3;
        memcpy(item->dim, (uint64_t[4]){1, shape->tokens, shape->dim}, sizeof item->dim);
    } else {
        item->rank = 4;
        memcpy(item->dim, (uint64_t[4]){1, shape->heads, shape->tokens, shape->dim}, sizeof item->dim);
    }
    for (unsigned i = 0; i < item->rank; i++)
        if (__builtin_mul_overflow(item->bytes, item->dim[i], &item->bytes) || item->bytes > SIZE_MAX / 2)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s is too large to export", label);
    return 0;
}

static int compare_items(const void *pa, const void *pb, void *state) {
    const struct kvc_arrays_item *a = pa, *b = pb;
    const struct kvc_cache *c = state;
    if (a->size != b->size) return a->size > b->size ? -1 : 1;
    if ((a->tensor == KVC_NONE) != (b->tensor == KVC_NONE)) return a->tensor == KVC_NONE ? -1 : 1;
    if (a->tensor == KVC_NONE) return 0;
    const struct kvc_tensor *x = &c->tensor[a->tensor], *y = &c->tensor[b->tensor];
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return x->role < y->role ? -1 : x->role > y->role;
}

static int compare_names(const void *pa, const void *pb) {
    const struct kvc_arrays_item *const *a = pa, *const *b = pb;
    return strcmp((*a)->name, (*b)->name);
}

static void print_name(struct kvc_arrays_item *item, const struct kvc_cache *c, int mark_sliding) {
    struct kvc_name name = {.kind = KVC_NAME_TOKENS};
    if (item->tensor != KVC_NONE) {
        const struct kvc_tensor *tensor = &c->tensor[item->tensor];
        const struct kvc_layer *layer = &c->layer[tensor->layer];
        int sliding = c->part[layer->part].kind == KVC_PART_SLIDING;
        name = (struct kvc_name){KVC_NAME_TENSOR, tensor->role, layer->index, sliding && mark_sliding};
    }
    kvc_name_print(&name, item->name, sizeof item->name);
}

/* Names every item. When the sliding-window cache numbers its layers from 0 as the live one does (llama.cpp),
 * its names say so; two parts of one kind that do the same cannot be told apart. */
static int name_items(struct kvc_arrays *list, struct kvc_error *e) {
    const struct kvc_arrays_item **sorted = malloc(list->n * sizeof *sorted), *twice = NULL;
    if (!sorted) return kvc_fail_memory(e, "names");
    for (int mark_sliding = 0; mark_sliding < 2; mark_sliding++) {
        twice = NULL;
        for (size_t i = 0; i < list->n; i++) {
            print_name(&list->item[i], list->cache, mark_sliding);
            sorted[i] = &list->item[i];
        }
        qsort(sorted, list->n, sizeof *sorted, compare_names);
        for (size_t i = 1; i < list->n && !twice; i++)
            if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) twice = sorted[i];
        if (!twice) break;
    }
    free(sorted);
    if (!twice) return 0;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "two arrays would be named %s: the cache numbers layers twice",
                    twice->name);
}

static int list_items(struct kvc_arrays *list, const struct kvc_cache *c, int (*keeps)(enum kvc_dtype),
                      struct kvc_error *e) {
    int attention = 0;
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind == KVC_PART_RECURRENT)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "the cache has recurrent state, for which arrays of K and V have no place");
    list->item = calloc((size_t)c->n_tensors + 1, sizeof *list->item);
    if (!list->item) return kvc_fail_memory(e, "names");
    if (c->tokens) {
        struct kvc_arrays_item *tokens = &list->item[list->n++];
        tokens->tensor = KVC_NONE;
        tokens->size = 4;
        tokens->rank = 1;
        tokens->dim[0] = c->n_tokens;
        tokens->bytes = 4 * c->n_tokens;
    }
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        if (!is_exported(kvc_tensor_part(c, t))) continue;
        if (describe(&list->item[list->n], c, t, keeps, e)) return -1;
        list->n++;
        attention |= c->tensor[t].role == KVC_ROLE_K || c->tensor[t].role == KVC_ROLE_V;
    }
    if (!attention) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the cache has no K or V to export");
    qsort_r(list->item, list->n, sizeof *list->item, compare_items, (void *)(uintptr_t)c);
    return name_items(list, e);
}

int kvc_arrays_list(struct kvc_arrays *list, const struct kvc_cache *c, const struct kvc_export_options *o,
                    int (*keeps)(enum kvc_dtype dtype), struct kvc_error *e) {
    memset(list, 0, sizeof *list);
    if (kvc_arrays_pairing(c, o && o->pairing ? o->pairing : KVC_PAIRING_HALVES, &list->view, e)) return -1;
    list->cache = list->view ? list->view : c;
    if (list_items(list, list->cache, keeps, e)) {
        kvc_arrays_free(list);
        return -1;
    }
    return 0;
}

void kvc_arrays_free(struct kvc_arrays *list) {
    free(list->item);
    kvc_cache_free(list->view);
    memset(list, 0, sizeof *list);
}

/* Puts n rows, [n][H][D] of `value` bytes, into dst, [H][T][D], from token `first` on. */
static void transpose(uint8_t *dst, const uint8_t *rows, const struct kvc_shape *shape, uint64_t first,
                      uint64_t n, size_t value) {
    size_t head = (size_t)shape->dim * value;
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t h = 0; h < shape->heads; h++)
            memcpy(dst + (h * shape->tokens + first + i) * head, rows + (i * shape->heads + h) * head, head);
}

static int read_tensor(const struct kvc_arrays *list, const struct kvc_arrays_item *item, uint8_t *dst,
                       struct kvc_error *e) {
    const struct kvc_cache *c = list->cache;
    const struct kvc_shape *shape = &c->tensor[item->tensor].shape;
    const struct kvc_cells *cells = &kvc_tensor_part(c, item->tensor)->cells;
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    size_t row = (size_t)kvc_row_bytes(shape), values = (size_t)(shape->heads * shape->dim);
    int convert = item->dtype != shape->dtype, status = 0;
    size_t block = cells->n < KVC_BLOCK ? (size_t)cells->n : KVC_BLOCK;
    uint8_t *rows = malloc(block * row + 1);
    float *floats = convert ? malloc(block * values * sizeof *floats + 1) : NULL;
    if (!rows || (convert && !floats)) status = kvc_fail_memory(e, "rows");
    for (uint64_t b = 0; b < cells->n_blocks && !status; b++) {
        uint64_t first = cells->block[b], n = cells->block[b + 1] - first;
        status = c->read(c, item->tensor, first, n, rows, e);
        if (status) break;
        if (convert) info->to_f32(floats, rows, (size_t)(n * kvc_row_blocks(shape)));
        transpose(dst, convert ? (const uint8_t *)floats : rows, shape, first, n, item->size);
    }
    free(rows);
    free(floats);
    return status;
}

int kvc_arrays_read(const struct kvc_arrays *list, size_t i, uint8_t **bytes, struct kvc_error *e) {
    const struct kvc_arrays_item *item = &list->item[i];
    *bytes = malloc(item->bytes ? (size_t)item->bytes : 1);
    if (!*bytes) return kvc_fail_memory(e, item->name);
    if (item->tensor == KVC_NONE) {
        for (uint64_t k = 0; k < list->cache->n_tokens; k++)
            put_u32(*bytes + 4 * k, (uint32_t)list->cache->tokens[k]);
    } else if (read_tensor(list, item, *bytes, e)) {
        free(*bytes);
        *bytes = NULL;
        return -1;
    }
    return 0;
}
