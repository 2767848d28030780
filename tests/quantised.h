/* quantised.h: caches in q8_0, for tests of predictions between them. */
#ifndef KVC_TESTS_QUANTISED_H
#define KVC_TESTS_QUANTISED_H

#include "formats/cache/keys.h"
#include "formats/cache/mapped.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILE_UNKNOWN UINT64_MAX

/* Quantises n floats, a multiple of 32, as ggml does: a scale of the maximum size / 127, codes
 * rounded to nearest. */
static inline void quantise_q8_0(uint8_t *to, const float *x, size_t n) {
    for (; n; n -= 32, x += 32, to += 34) {
        float most = 0;
        for (int j = 0; j < 32; j++) most = fabsf(x[j]) > most ? fabsf(x[j]) : most;
        const float d = most / 127;
        const uint16_t half = kvc_float_to_half(d);
        memcpy(to, &half, 2);
        for (int j = 0; j < 32; j++) to[2 + j] = (uint8_t)(int8_t)(d > 0 ? roundf(x[j] / d) : 0);
    }
}

/* Makes a copy of a cache of one part, whose rows are in the order of its cells, with all tensors
 * in q8_0; K and V are first rotated by these Hadamard tiles (0: not). TILE_UNKNOWN: not rotated,
 * and the metadata do not say so. *bytes, which the caller frees, has the rows. */
static inline struct kvc_cache *quantised_cache(const struct kvc_cache *c, const uint64_t tile[2],
                                                uint8_t **bytes) {
    static const char *const copied[] = {KVC_KEY_ROPE_PAIRING, KVC_KEY_ROPE_TYPE};
    static const char *const tile_key[2] = {KVC_KEY_HADAMARD_K, KVC_KEY_HADAMARD_V};
    struct kvc_error e = {.message = "no memory"};
    struct kvc_cache *to = kvc_cache_new(&e);
    const uint64_t cells = c->part[0].cells.n;
    uint64_t all = 0, most = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const uint64_t n = c->tensor[t].shape.heads * c->tensor[t].shape.dim;
        all += cells * n;
        most = n > most ? n : most;
    }
    uint8_t *at = *bytes = malloc((size_t)(all / 32 * 34)),
            *rows = malloc((size_t)(cells * most * 4));
    float *x = malloc((size_t)most * sizeof *x);
    int bad = !to || !at || !rows || !x ||
              kvc_cache_add_part(to, KVC_PART_LIVE, cells, &e) == KVC_NONE ||
              kvc_cache_map(to, NULL, NULL, &e);
    if (!bad)
        memcpy(to->part[0].cells.pos, c->part[0].cells.pos,
               (size_t)cells * sizeof *to->part[0].cells.pos);
    for (int i = 0; i < 2 && !bad; i++) {
        const char *text = kvc_meta_text(&c->meta, copied[i], NULL);
        bad = text && kvc_meta_set_text(&to->meta, copied[i], text, &e);
        if (!bad && tile[i] != TILE_UNKNOWN)
            bad = kvc_meta_set_u64(&to->meta, tile_key[i], tile[i], &e);
    }
    for (uint32_t t = 0; t < c->n_tensors && !bad; t++) {
        const struct kvc_tensor *from = &c->tensor[t];
        const struct kvc_layer *layer = &c->layer[from->layer];
        const struct kvc_dtype_info *info = kvc_dtype_info(from->shape.dtype);
        const size_t n = (size_t)(from->shape.heads * from->shape.dim);
        const uint64_t turned = tile[from->role == KVC_ROLE_V];
        struct kvc_shape shape = from->shape;
        shape.dtype = KVC_Q8_0;
        const uint32_t own = t && c->tensor[t - 1].layer == from->layer
                                 ? to->n_layers - 1
                                 : kvc_cache_add_layer(to, 0, layer->index, layer->kind, &e);
        const uint32_t made = own == KVC_NONE
                                  ? KVC_NONE
                                  : kvc_cache_add_tensor(to, own, from->role, &shape, &e);
        bad = made == KVC_NONE || kvc_cache_map_memory(to, made, at, &e) ||
              c->read(c, t, 0, cells, rows, &e);
        for (uint64_t i = 0; i < cells && !bad; i++, at += n / 32 * 34) {
            info->to_f32(x, rows + i * n * info->size, n);
            if (turned && turned != TILE_UNKNOWN) kvc_hadamard(x, n, (size_t)turned);
            quantise_q8_0(at, x, n);
        }
    }
    if (bad || kvc_cache_finish(to, &e)) {
        fprintf(stderr, "a cache in q8_0: %s\n", e.message);
        abort();
    }
    free(rows);
    free(x);
    return to;
}

#endif
