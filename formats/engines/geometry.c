/* geometry.c: K and V of equal layers in one stretch of a file. Not for options or messages of formats. */
#include "formats/engines/geometry.h"

#include "codecs/memory.h"
#include "formats/cache/mapped.h"

#include <stdlib.h>
#include <string.h>

enum kvc_order_fault kvc_geometry_order(struct kvc_geometry *g, const char *order) {
    static const char letters[] = KVC_AXIS_LETTERS;
    unsigned seen = 0;
    g->bytes = g->info->size;
    if (strlen(order) != KVC_AXES) return KVC_ORDER_LENGTH;
    for (size_t i = KVC_AXES; i-- > 0;) {
        const char *letter = strchr(letters, order[i]);
        if (!letter || seen & 1u << (letter - letters)) return KVC_ORDER_LETTERS;
        seen |= 1u << (letter - letters);
        g->stride[letter - letters] = g->bytes;
        if (__builtin_mul_overflow(g->bytes, g->count[letter - letters], &g->bytes)) return KVC_ORDER_OVERFLOW;
    }
    if (g->info->block > 1 && order[KVC_AXES - 1] != letters[KVC_AXIS_DIM]) return KVC_ORDER_BLOCKS;
    g->caches_outside = strchr(order, letters[KVC_AXIS_CACHE]) < strchr(order, letters[KVC_AXIS_LAYER]);
    g->tensors_are_runs = strspn(order, "lc") == 2;
    return KVC_ORDER_GOOD;
}

struct kvc_place kvc_geometry_place(const struct kvc_geometry *g, uint32_t layer, unsigned cache, uint32_t tensor) {
    return (struct kvc_place){
        .tensor = tensor,
        .n = g->count[KVC_AXIS_TOKEN],
        .offset = layer * g->stride[KVC_AXIS_LAYER] + cache * g->stride[KVC_AXIS_CACHE],
        .strides = {g->stride[KVC_AXIS_TOKEN], g->stride[KVC_AXIS_HEAD], g->stride[KVC_AXIS_DIM]},
    };
}

/* Returns the bytes from the first byte of a tensor up to and with its last. */
static uint64_t span_of(const struct kvc_geometry *g) {
    uint64_t span = g->info->size;
    for (unsigned axis = KVC_AXIS_TOKEN; axis <= KVC_AXIS_DIM; axis++) span += g->stride[axis] * (g->count[axis] - 1);
    return span;
}

/* Adds the extent of interleaved tensors: all bytes are one region, in which each tensor lies by its strides. */
static int add_region(struct kvc_cache *c, const struct kvc_geometry *g, struct kvc_place *place, uint64_t n,
                      const struct kvc_input *in, uint64_t offset, struct kvc_error *e) {
    for (uint64_t i = 0; i < n; i++) {
        struct kvc_tensor *tensor = &c->tensor[place[i].tensor];
        tensor->source = kvc_strides_canonical(&tensor->shape); /* the region says where the tensor lies */
        tensor->source_size = kvc_tensor_bytes(tensor);
    }
    return kvc_cache_extent_region(c, in, offset, g->bytes, place, n, e);
}

/* Adds K or V of a layer, and its extent where that is a run of bytes. */
static int add_tensor(struct kvc_cache *c, const struct kvc_geometry *g, const struct kvc_shape *shape, uint32_t layer,
                      unsigned cache, const struct kvc_input *in, uint64_t offset, struct kvc_place *place, struct kvc_error *e) {
    const uint32_t t = kvc_cache_add_tensor(c, layer, cache ? KVC_ROLE_V : KVC_ROLE_K, shape, e);
    if (t == KVC_NONE) return -1;
    *place = kvc_geometry_place(g, layer, cache, t);
    c->tensor[t].source = place->strides;
    c->tensor[t].source_size = span_of(g);
    if (kvc_cache_map_tensor(c, t, in, offset + place->offset, e)) return -1;
    return g->tensors_are_runs ? kvc_cache_extent_tensor(c, t, e) : 0;
}

int kvc_geometry_add(struct kvc_cache *c, const struct kvc_geometry *g, uint64_t dim, const struct kvc_input *in, uint64_t offset,
                     struct kvc_error *e) {
    const struct kvc_shape shape = {g->info->dtype, g->count[KVC_AXIS_TOKEN], g->count[KVC_AXIS_HEAD], dim};
    const uint64_t layers = g->count[KVC_AXIS_LAYER], n = layers * g->count[KVC_AXIS_CACHE];
    struct kvc_place *place = kvc_alloc(n, sizeof *place);
    int status = place ? 0 : kvc_fail_memory(e, "places");
    for (uint64_t i = 0; i < n && !status; i++) { /* in the order of the file */
        const uint64_t layer = g->caches_outside ? i % layers : i / g->count[KVC_AXIS_CACHE];
        const uint64_t cache = g->caches_outside ? i / layers : i % g->count[KVC_AXIS_CACHE];
        status = add_tensor(c, g, &shape, (uint32_t)layer, (unsigned)cache, in, offset, &place[i], e);
    }
    if (!status && !g->tensors_are_runs) status = add_region(c, g, place, n, in, offset, e);
    free(place);
    return status;
}
