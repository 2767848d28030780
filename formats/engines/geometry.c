/* geometry.c: K and V of equal layers in one stretch of a file. Not for options or messages of
 * formats. */
#include "formats/engines/geometry.h"

#include "codecs/memory.h"
#include "formats/cache/extents.h"
#include "formats/cache/mapped.h"

#include <stdlib.h>
#include <string.h>

struct kvc_geometry kvc_geometry_of(const struct kvc_dtype_info *info, int latent, uint64_t layers,
                                    uint64_t tokens, uint64_t heads, uint64_t dim) {
    return (struct kvc_geometry){.info = info,
                                 .latent = latent,
                                 .count = {layers, latent ? 1 : 2, tokens, heads, dim}};
}

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
        if (__builtin_mul_overflow(g->bytes, g->count[letter - letters], &g->bytes))
            return KVC_ORDER_OVERFLOW;
    }
    if (g->info->block > 1 && order[KVC_AXES - 1] != letters[KVC_AXIS_DIM]) return KVC_ORDER_BLOCKS;
    g->caches_outside = strchr(order, letters[KVC_AXIS_CACHE]) <
                        strchr(order, letters[KVC_AXIS_LAYER]);
    g->tensors_are_runs = strspn(order, "lc") == 2;
    return KVC_ORDER_GOOD;
}

struct kvc_place kvc_geometry_place(const struct kvc_geometry *g, uint32_t layer, unsigned cache,
                                    uint64_t cell, uint32_t tensor) {
    return (struct kvc_place){
        .tensor = tensor,
        .cell = cell,
        .n = g->count[KVC_AXIS_TOKEN],
        .offset = layer * g->stride[KVC_AXIS_LAYER] + cache * g->stride[KVC_AXIS_CACHE],
        .strides = {g->stride[KVC_AXIS_TOKEN], g->stride[KVC_AXIS_HEAD], g->stride[KVC_AXIS_DIM]},
    };
}

static uint64_t tensors_of(const struct kvc_geometry *g) {
    return g->count[KVC_AXIS_LAYER] * g->count[KVC_AXIS_CACHE];
}

static uint32_t layer_of(const struct kvc_geometry *g, uint64_t i, unsigned *cache) {
    const uint64_t layers = g->count[KVC_AXIS_LAYER], caches = g->count[KVC_AXIS_CACHE];
    *cache = (unsigned)(g->caches_outside ? i / layers : i % caches);
    return (uint32_t)(g->caches_outside ? i % layers : i / caches);
}

static struct kvc_place place_of(const struct kvc_cache *c, const struct kvc_geometry *g,
                                 uint32_t layer, uint64_t cell, uint64_t i) {
    unsigned cache;
    const uint32_t own = layer_of(g, i, &cache);
    return kvc_geometry_place(g, own, cache, cell, c->layer[layer + own].tensor[cache]);
}

/* Returns 1 if every tensor is one run of bytes that holds all its cells. */
static int are_runs(const struct kvc_geometry *g, const struct kvc_tensor *t) {
    return g->tensors_are_runs && t->shape.tokens == g->count[KVC_AXIS_TOKEN];
}

/* Returns the bytes from the first byte of a tensor up to and with its last. */
static uint64_t span_of(const struct kvc_geometry *g) {
    uint64_t span = g->info->size;
    for (unsigned axis = KVC_AXIS_TOKEN; axis <= KVC_AXIS_DIM; axis++)
        span += g->stride[axis] * (g->count[axis] - 1);
    return span;
}

int kvc_geometry_tensors(struct kvc_cache *c, const struct kvc_geometry *g, uint64_t dim,
                         uint32_t layer, uint64_t tokens, struct kvc_error *e) {
    const struct kvc_shape shape = {g->info->dtype, tokens, g->count[KVC_AXIS_HEAD], dim};
    for (uint32_t own = 0; own < g->count[KVC_AXIS_LAYER]; own++)
        for (unsigned cache = 0; cache < g->count[KVC_AXIS_CACHE]; cache++) {
            const enum kvc_role role = g->latent ? KVC_ROLE_LATENT
                                       : cache   ? KVC_ROLE_V
                                                 : KVC_ROLE_K;
            if (kvc_cache_add_tensor(c, layer + own, role, &shape, e) == KVC_NONE) return -1;
        }
    return 0;
}

int kvc_geometry_map(struct kvc_cache *c, const struct kvc_geometry *g, uint32_t layer,
                     uint64_t cell, const struct kvc_input *in, uint64_t offset,
                     struct kvc_error *e) {
    for (uint64_t i = 0; i < tensors_of(g); i++) {
        struct kvc_place place = place_of(c, g, layer, cell, i);
        struct kvc_tensor *t = &c->tensor[place.tensor];
        if (are_runs(g, t)) { /* else a region says where the tensor lies */
            t->source = place.strides;
            t->source_size = span_of(g);
        }
        place.offset += offset;
        if (kvc_cache_map_place(c, in, &place, e)) return -1;
    }
    return 0;
}

int kvc_geometry_extents(struct kvc_cache *c, const struct kvc_geometry *g, uint32_t layer,
                         uint64_t cell, const struct kvc_input *in, uint64_t offset,
                         struct kvc_error *e) {
    const uint64_t n = tensors_of(g);
    struct kvc_place *place = kvc_alloc(n, sizeof *place);
    int status = place ? 0 : kvc_fail_memory(e, "places"), runs = 0;
    for (uint64_t i = 0; i < n && !status; i++) {
        place[i] = place_of(c, g, layer, cell, i);
        runs = are_runs(g, &c->tensor[place[i].tensor]);
        if (runs) status = kvc_extents_tensor(c, place[i].tensor, e);
    }
    if (!status && !runs) status = kvc_cache_extent_region(c, in, offset, g->bytes, place, n, e);
    free(place);
    return status;
}

int kvc_geometry_add(struct kvc_cache *c, const struct kvc_geometry *g, uint64_t dim,
                     const struct kvc_input *in, uint64_t offset, struct kvc_error *e) {
    if (kvc_geometry_tensors(c, g, dim, 0, g->count[KVC_AXIS_TOKEN], e)) return -1;
    if (kvc_geometry_map(c, g, 0, 0, in, offset, e)) return -1;
    if (kvc_geometry_extents(c, g, 0, 0, in, offset, e)) return -1;
    return 0;
}

/* Returns the number of the i-th tensor in that order, or KVC_NONE. */
static uint32_t plain_tensor(const struct kvc_cache *c, uint64_t i, unsigned caches,
                             int caches_outside) {
    const uint64_t layer = caches_outside ? i % c->n_layers : i / caches,
                   cache = caches_outside ? i / c->n_layers : i % caches;
    return layer < c->n_layers && cache < caches ? c->layer[layer].tensor[cache] : KVC_NONE;
}

int kvc_geometry_is_plain(const struct kvc_cache *c, uint64_t head, int caches_outside) {
    const uint64_t literals = head != 0;
    const unsigned caches = c->n_tensors == c->n_layers ? 1 : 2; /* one of latents */
    if (c->n_members || c->n_extents != literals + c->n_tensors) return 0;
    if (head && (c->extent[0].n_places || c->extent[0].size != head)) return 0;
    for (uint64_t i = 0; i < c->n_tensors; i++) {
        uint32_t t;
        if (!kvc_extent_is_tensor(c, &c->extent[literals + i], &t) ||
            t != plain_tensor(c, i, caches, caches_outside))
            return 0;
        const struct kvc_strides rows = kvc_strides_canonical(&c->tensor[t].shape),
                                 *source = &c->tensor[t].source;
        if (source->token != rows.token || source->head != rows.head || source->block != rows.block)
            return 0;
    }
    return 1;
}
