/* open.c: a file opened as a cache, with what is known of its model. Not for the formats (engines/, container/). */
#include "formats/file/open.h"

#include "formats/cache/keys.h"
#include "formats/container/container.h"

#include <inttypes.h>
#include <string.h>

/* Rows of K and V must be as long as the model's heads make them: all that an engine's file without a fingerprint
 * gives away about its model. */
static int check_rows(const struct kvc_model *m, const struct kvc_cache *c, struct kvc_error *e) {
    uint64_t dim[2] = {m->head_dim, m->head_dim_v ? m->head_dim_v : m->head_dim};
    for (uint32_t i = 0; i < c->n_tensors && m->kv_heads; i++) {
        const struct kvc_tensor *t = &c->tensor[i];
        if (t->role != KVC_ROLE_K && t->role != KVC_ROLE_V) continue;
        uint64_t have = t->shape.heads * t->shape.dim, due = m->kv_heads * dim[t->role == KVC_ROLE_V];
        char label[64];
        kvc_tensor_label(c, i, label, sizeof label);
        if (due && have != due)
            return kvc_fail(e, KVC_ERR_MODEL, "another model: %s has rows of %" PRIu64 " values, the weights make %" PRIu64,
                            label, have, due);
        if (m->layers && c->layer[t->layer].index >= m->layers)
            return kvc_fail(e, KVC_ERR_MODEL, "another model: %s, but the weights have %" PRIu64 " layers", label,
                            m->layers);
    }
    return 0;
}

/* The pattern of a model that says nothing of windows: no layer has one. */
static int settle_layers(const struct kvc_model *m, struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_layer_pattern plain;
    if (kvc_cache_is_container(c) && kvc_meta_find(&c->meta, KVC_KEY_PROFILE)) return 0; /* its parts are found by number */
    if (m->pattern.n) return kvc_layers_settle(c, &m->pattern, e) < 0 ? -1 : 0;
    kvc_pattern_repeat(&plain, m->layers <= KVC_MAX_PATTERN ? (uint32_t)m->layers : 0, 1, 0);
    return kvc_layers_settle(c, &plain, e) < 0 ? -1 : 0;
}

int kvc_model_apply(const struct kvc_model *m, struct kvc_cache *c, char *note, size_t size, struct kvc_error *e) {
    const char *source = kvc_meta_text(&c->meta, KVC_KEY_SOURCE_FORMAT, "");
    if (size) *note = '\0';
    if (check_rows(m, c, e)) return -1;
    if (kvc_cache_is_container(c) && kvc_model_match(&c->meta, m, note, size, e)) return -1;
    if (settle_layers(m, c, e)) return -1;
    return kvc_model_store(m, &c->meta, strncmp(source, "llama.cpp", 9) == 0, e);
}
