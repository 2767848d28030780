/* uniform.c: checks that the layers of a cache have one type and shape, and reads their rows into
 * pages. */
#include "formats/engines/uniform.h"

#include "codecs/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int kvc_uniform_has(const struct kvc_uniform *u, const struct kvc_layer *layer) {
    const struct kvc_part *part = &u->arrays.cache->part[layer->part];
    return part->kind == KVC_PART_LIVE && part->stream == u->stream &&
           (layer->tensor[0] != KVC_NONE || layer->tensor[1] != KVC_NONE);
}

/* Checks that a layer has the shape of the first, which is taken. */
static int take_layer(struct kvc_uniform *u, const struct kvc_layer *layer, const char *format,
                      struct kvc_error *e) {
    const struct kvc_cache *c = u->arrays.cache;
    if (layer->tensor[0] == KVC_NONE)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: layer %" PRIu32 " lacks K", format,
                        layer->index);
    const struct kvc_tensor *first = &c->tensor[layer->tensor[0]];
    const int latent = first->role == KVC_ROLE_LATENT;
    if (!u->layers++) {
        u->part = layer->part;
        u->info = kvc_dtype_info(first->shape.dtype);
        u->tokens = first->shape.tokens;
        u->heads = first->shape.heads;
        u->dim = first->shape.dim;
        u->latent = latent;
    }
    for (unsigned i = 0; i < (latent ? 1 : 2); i++) {
        const struct kvc_tensor *t = layer->tensor[i] == KVC_NONE ? NULL
                                                                  : &c->tensor[layer->tensor[i]];
        if (!t || layer->part != u->part || t->shape.dtype != u->info->dtype ||
            t->shape.heads != u->heads || t->shape.dim != u->dim || latent != u->latent)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "%s: layer %" PRIu32 " lacks V, or has another type or size than the "
                            "layer before it; all layers must have one shape",
                            format, layer->index);
    }
    return 0;
}

static int uniform_take_shape(struct kvc_uniform *u, int (*keeps)(enum kvc_dtype),
                              const char *format, struct kvc_error *e) {
    const struct kvc_cache *c = u->arrays.cache;
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind == KVC_PART_WINDOW || c->part[i].kind == KVC_PART_STATE)
            return kvc_fail(
                e, KVC_ERR_UNSUPPORTED,
                "%s: the cache has %s layers of another length; all layers must have one shape",
                format, kvc_part_kind_name(c->part[i].kind));
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (kvc_uniform_has(u, &c->layer[i]) && take_layer(u, &c->layer[i], format, e)) return -1;
    if (!u->layers || !u->tokens)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: the cache has no K or V to write", format);
    if (!keeps(u->info->dtype))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: the format has no dtype %s", format,
                        u->info->name);
    u->heads_known = !c->meta.facts.heads_unknown;
    return 0;
}

int kvc_uniform_open(struct kvc_uniform *u, const struct kvc_cache *c,
                     const struct kvc_export_options *o, int (*keeps)(enum kvc_dtype),
                     const char *format, struct kvc_error *e) {
    memset(u, 0, sizeof *u);
    u->arrays.cache = c;
    if (!kvc_arrays_stream(c, &u->stream, e) && !kvc_arrays_views(&u->arrays, u->stream, o, e) &&
        !uniform_take_shape(u, keeps, format, e))
        return 0;
    kvc_uniform_close(u);
    return -1;
}

void kvc_uniform_close(struct kvc_uniform *u) {
    free(u->rows);
    kvc_arrays_free(&u->arrays);
}

int kvc_uniform_place(struct kvc_uniform *u, const struct kvc_place *place, uint8_t *base,
                      struct kvc_error *e) {
    const struct kvc_cache *c = u->arrays.cache;
    const struct kvc_shape *shape = &c->tensor[place->tensor].shape;
    if (!u->rows && !(u->rows = kvc_alloc(KVC_BLOCK, kvc_row_bytes(shape))))
        return kvc_fail_memory(e, "rows");
    for (uint64_t i = 0, run; i < place->n; i += run) {
        run = place->n - i < KVC_BLOCK ? place->n - i : KVC_BLOCK;
        if (c->read(c, place->tensor, place->cell + i, run, u->rows, e)) return -1;
        kvc_rows_scatter(base + place->offset, u->rows, shape, &place->strides, i, run, 0);
    }
    return 0;
}
