/* scales.c: reads the scales of values of 8 bits out of the metadata, and multiplies by them. */
#include "formats/cache/scales.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int has_scale(enum kvc_dtype dtype) {
    return dtype == KVC_F8E4M3 || dtype == KVC_F8E5M2 || dtype == KVC_U8 || dtype == KVC_I8;
}

int kvc_tensor_is_scaled(const struct kvc_tensor *t) {
    return has_scale(t->shape.dtype) &&
           (t->role == KVC_ROLE_K || t->role == KVC_ROLE_V || t->role == KVC_ROLE_LATENT);
}

int kvc_cache_is_scaled(const struct kvc_cache *c) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_tensor_is_scaled(&c->tensor[t])) return 1;
    return 0;
}

int kvc_scales_of(const struct kvc_cache *c, const struct kvc_meta *meta, uint32_t tensor,
                  float *scale, struct kvc_error *e) {
    const struct kvc_tensor *t = &c->tensor[tensor];
    const int v = t->role == KVC_ROLE_V;
    const char *key = v ? KVC_KEY_SCALE_V : KVC_KEY_SCALE_K, *text = meta->facts.scale[v];
    const uint32_t layer = c->layer[t->layer].index;
    uint64_t n = 0;
    if (!text) return 0;
    if (kvc_scales_check(text))
        return kvc_fail(e, KVC_ERR_USAGE, "%s is no list of scales: %.60s", key, text);
    for (uint32_t skip = strchr(text, ',') ? layer : 0; skip; skip--) {
        if (!(text = strchr(text, ','))) return 0;
        text++;
    }
    kvc_scales_layer(text, scale, t->shape.heads, &n);
    if (n == 1)
        for (uint64_t h = 1; h < t->shape.heads; h++) scale[h] = scale[0];
    if (n <= 1 || n == t->shape.heads) return n > 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "%s has %" PRIu64 " scales for the %" PRIu64 " heads of layer %" PRIu32, key, n,
                    t->shape.heads, layer);
}

/* --- values --- */

static int unknown(const struct kvc_cache *c, uint32_t tensor, struct kvc_error *e) {
    char label[64];
    kvc_tensor_label(c, tensor, label, sizeof label);
    return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_SCALES,
                         "%s is %s, whose values have a scale that nothing tells", label,
                         kvc_dtype_info(c->tensor[tensor].shape.dtype)->name);
}

/* Makes the list of scales of a scaled tensor, which the caller frees. Returns 1, 0 if they are
 * unknown, or -1. */
static int take_scales(const struct kvc_cache *c, uint32_t tensor, float **scale,
                       struct kvc_error *e) {
    *scale = kvc_alloc(c->tensor[tensor].shape.heads, sizeof **scale);
    return *scale ? kvc_scales_of(c, &c->meta, tensor, *scale, e) : kvc_fail_memory(e, "scales");
}

int kvc_scales_need(const struct kvc_cache *c, uint32_t tensor, struct kvc_error *e) {
    float *scale;
    if (!kvc_tensor_is_scaled(&c->tensor[tensor])) return 0;
    const int known = take_scales(c, tensor, &scale, e);
    free(scale);
    if (known) return known < 0 ? -1 : 0;
    return unknown(c, tensor, e);
}

int kvc_scales_plain(const struct kvc_cache *c, uint32_t tensor) {
    float *scale;
    if (!kvc_tensor_is_scaled(&c->tensor[tensor])) return 1;
    int plain = take_scales(c, tensor, &scale, NULL) == 1;
    for (uint64_t h = 0; plain && h < c->tensor[tensor].shape.heads; h++)
        plain = !(scale[h] < 1 || scale[h] > 1);
    free(scale);
    return plain;
}

static void multiply(float *rows, const struct kvc_shape *shape, uint64_t n, const float *scale) {
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t h = 0; h < shape->heads; h++, rows += shape->dim)
            for (uint64_t k = 0; k < shape->dim; k++) rows[k] *= scale[h];
}

int kvc_rows_to_floats(const struct kvc_cache *c, uint32_t tensor, float *dst, const uint8_t *rows,
                       uint64_t n, int stored, struct kvc_error *e) {
    const struct kvc_tensor *t = &c->tensor[tensor];
    float *scale = NULL;
    const int scaled = kvc_tensor_is_scaled(t),
              known = scaled ? take_scales(c, tensor, &scale, e) : 0;
    int status = known < 0 ? -1 : 0;
    if (scaled && !known && !stored) status = unknown(c, tensor, e);
    if (!status)
        kvc_dtype_info(t->shape.dtype)->to_f32(dst, rows, (size_t)(n * kvc_row_blocks(&t->shape)));
    if (!status && known) multiply(dst, &t->shape, n, scale);
    free(scale);
    return status;
}

int kvc_read_floats(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                    float *dst, int stored, struct kvc_error *e) {
    uint8_t *rows = kvc_alloc(n, kvc_row_bytes(&c->tensor[tensor].shape));
    int status = rows ? c->read(c, tensor, first, n, rows, e) : kvc_fail_memory(e, "rows");
    if (!status) status = kvc_rows_to_floats(c, tensor, dst, rows, n, stored, e);
    free(rows);
    return status;
}

uint64_t kvc_floats_at_once(const struct kvc_shape *shape) {
    const uint64_t rows = (UINT64_C(32) << 20) / (shape->heads * shape->dim * sizeof(float));
    return rows > KVC_BLOCK ? KVC_BLOCK : rows ? rows : 1;
}
