/* arrays_split.c: what the user says of K and V beside their names: the type of integers that are
 * bits, and the axes, by which an array is taken apart into one of each layer. Not for names
 * (arrays_names.c). */
#include "formats/engines/arrays_list.h"

#include "formats/cache/mapped.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LAYERS = 4096, LAYER = 0, PLANE, BATCH, HEAD, TOKEN, CHANNEL, AXES };

/* Sizes and strides of an array by the meaning of its axes; 1 and 0 of axes that it does not have.
 */
struct axes {
    uint64_t n[AXES], stride[AXES];
};

static int find_axes(struct axes *axes, const struct kvc_array *a, const char *order,
                     struct kvc_error *e) {
    static const char letters[] = "lcbhtd";
    uint64_t step = a->info->size;
    *axes = (struct axes){.n = {1, 1, 1, 1, 1, 1}};
    if (a->rank != strlen(order))
        return kvc_array_fail(a, e, KVC_ERR_USAGE,
                              "has %" PRIu64 " dimensions, and map=axes=%s says %zu", a->rank,
                              order, strlen(order));
    for (size_t i = a->rank; i-- > 0;) {
        const size_t axis = (size_t)(strchr(letters, order[i]) - letters);
        axes->n[axis] = a->dim[i];
        axes->stride[axis] = a->strided ? a->stride[i] : step;
        if (__builtin_mul_overflow(step, a->dim[i], &step))
            return kvc_array_fail(a, e, KVC_ERR_DAMAGED, "is larger than kvc handles");
    }
    return 0;
}

static int check_axes(const struct axes *axes, const struct kvc_array *a, const char *order,
                      int both, struct kvc_error *e) {
    if (axes->n[BATCH] != 1) return kvc_array_fail_batch(a, axes->n[BATCH], e);
    if (both && axes->n[PLANE] != 2)
        return kvc_array_fail(
            a, e, KVC_ERR_USAGE,
            "the axis of K and V (c of map=axes=%s) must be of 2, and is of %" PRIu64, order,
            axes->n[PLANE]);
    if (!axes->n[LAYER] || axes->n[LAYER] > MOST_LAYERS)
        return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED,
                              "has %" PRIu64 " layers by map=axes=%s, and kvc handles 1 to %d",
                              axes->n[LAYER], order, MOST_LAYERS);
    return 0;
}

/* Makes the array of a layer. Its rows are [1, heads, tokens, head dim] by their strides. */
static struct kvc_array piece_of(const struct axes *axes, const struct kvc_array *a, uint64_t layer,
                                 uint64_t plane, const struct kvc_name *name) {
    static const int order[] = {BATCH, HEAD, TOKEN, CHANNEL};
    struct kvc_array piece = *a;
    uint64_t step = a->info->size, reach = a->info->size;
    piece.known = *name;
    piece.known.both = 0;
    piece.known.layer = name->layer + (uint32_t)layer;
    if (plane) piece.known.role = KVC_ROLE_V;
    piece.rank = 4;
    piece.strided = 0;
    piece.at += layer * axes->stride[LAYER] + plane * axes->stride[PLANE];
    for (int i = 3; i >= 0; i--) {
        const uint64_t n = axes->n[order[i]], stride = n > 1 ? axes->stride[order[i]] : step;
        piece.dim[i] = n;
        piece.stride[i] = stride;
        piece.strided |= stride != step;
        step *= n;
        reach += n ? (n - 1) * stride : 0;
    }
    piece.size = step ? reach : 0;
    if (!step) piece.at = a->at; /* strides of nothing lead anywhere */
    return piece;
}

static int arrays_split_by_place(const void *pa, const void *pb) {
    const struct kvc_array *a = pa, *b = pb;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return a->known.role != b->known.role ? (a->known.role < b->known.role ? -1 : 1) : 0;
}

/* Appends the pieces of an array to a list, in the order of their bytes. */
static int split(struct kvc_array_list *to, const struct kvc_array *a, const char *order,
                 const struct kvc_name *name, struct kvc_error *e) {
    struct axes axes;
    const size_t first = to->n;
    if (!a->info)
        return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED, "caches have no such element type");
    if (find_axes(&axes, a, order, e)) return -1;
    if (check_axes(&axes, a, order, name->both, e)) return -1;
    for (uint64_t layer = 0; layer < axes.n[LAYER]; layer++)
        for (uint64_t plane = 0; plane < axes.n[PLANE]; plane++) {
            const struct kvc_array piece = piece_of(&axes, a, layer, plane, name);
            if (kvc_arrays_add(to, &piece, e)) return -1;
        }
    qsort(to->array + first, to->n - first, sizeof *to->array, arrays_split_by_place);
    return 0;
}

static struct kvc_name arrays_split_name_of(const struct kvc_array *a,
                                            const struct kvc_import_options *o) {
    return a->known.kind ? a->known : kvc_name_of(a->name, o);
}

static int arrays_split_is_attention(const struct kvc_name *name) {
    return name->kind == KVC_NAME_TENSOR && (name->role == KVC_ROLE_K || name->role == KVC_ROLE_V);
}

static int take_dtype(struct kvc_array *a, const struct kvc_dtype_info *info, struct kvc_error *e) {
    if (!a->raw_size || (!info && a->info)) return 0;
    if (!info)
        return kvc_array_fail(a, e, KVC_ERR_UNSUPPORTED,
                              "integers of 16 bits; if they are the bits of bf16, which numpy does "
                              "not have, --map=dtype=bf16 reads them (of f16: dtype=f16)");
    if (info->size != a->raw_size)
        return kvc_array_fail(a, e, KVC_ERR_USAGE,
                              "has elements of %u bytes, and map=dtype=%s has %u", a->raw_size,
                              info->name, (unsigned)info->size);
    a->info = info;
    return 0;
}

int kvc_arrays_split(struct kvc_array_list *list, const struct kvc_import_options *o,
                     struct kvc_error *e) {
    const char *order = kvc_name_axes(o);
    for (size_t i = 0; i < list->n; i++) {
        const struct kvc_name name = arrays_split_name_of(&list->array[i], o);
        if (arrays_split_is_attention(&name) && take_dtype(&list->array[i], kvc_name_dtype(o), e))
            return -1;
    }
    struct kvc_array_list to = {.n = 0};
    int status = 0;
    for (size_t i = 0; i < list->n && order && !status; i++) {
        const struct kvc_array *a = &list->array[i];
        const struct kvc_name name = arrays_split_name_of(a, o);
        status = arrays_split_is_attention(&name) ? split(&to, a, order, &name, e)
                                                  : kvc_arrays_add(&to, a, e);
    }
    if (status || !order) {
        kvc_arrays_clear(&to);
        return status;
    }
    kvc_arrays_clear(list);
    *list = to;
    return 0;
}
