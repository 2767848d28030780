/* layers.c: layer numbers and sliding windows, as the model counts them. Not for reading a model's
 * facts. */
#include "formats/cache/layers.h"

#include "formats/cache/keys.h"

#include <string.h>

void kvc_pattern_repeat(struct kvc_layer_pattern *p, uint32_t layers, uint32_t period,
                        uint32_t window) {
    memset(p, 0, sizeof *p);
    if (layers > KVC_MAX_PATTERN) return;
    p->n = layers;
    p->window = window;
    for (uint32_t i = 0; i < layers; i++) p->sliding[i] = !period || i % period < period - 1;
}

/* Counts the layers of the parts of one kind and stream. */
static uint32_t layers_count(const struct kvc_cache *c, enum kvc_part_kind kind, uint32_t stream) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_part *part = &c->part[c->layer[i].part];
        n += part->kind == kind && part->stream == stream;
    }
    return n;
}

static int has_part(const struct kvc_cache *c, enum kvc_part_kind kind) {
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind == kind) return 1;
    return 0;
}

static int are_known(const struct kvc_cache *c) {
    return !c->meta.facts.layers_unknown;
}

int kvc_layers_ambiguous(const struct kvc_cache *c) {
    return !are_known(c) && has_part(c, KVC_PART_WINDOW);
}

int kvc_layers_need_numbers(const struct kvc_cache *c, struct kvc_error *e) {
    if (!kvc_layers_ambiguous(c)) return 0;
    return kvc_fail_need(e, KVC_ERR_OTHER_MODEL, KVC_NEED_MODEL,
                         "llama.cpp numbers the layers of each of its two caches from 0, and "
                         "nothing tells which layers of the "
                         "model they are");
}

/* Returns the model's number of the i-th layer with (sliding 1) or without a window; KVC_NONE if
 * the model has fewer. */
static uint32_t layers_number_of(const struct kvc_layer_pattern *p, int sliding, uint32_t i) {
    for (uint32_t layer = 0; layer < p->n; layer++)
        if (p->sliding[layer] == sliding && !i--) return layer;
    return KVC_NONE;
}

/* Returns 1 if the caches of every stream hold as many layers as the pattern has. A stream without
 * cells has no layers. */
static int counts_agree(const struct kvc_cache *c, const struct kvc_layer_pattern *p) {
    uint32_t sliding = 0;
    for (uint32_t i = 0; i < p->n; i++) sliding += p->sliding[i];
    const int two = has_part(c, KVC_PART_WINDOW);
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct kvc_part *part = &c->part[i];
        if (!kvc_part_is_attended(part) || !part->cells.n) continue;
        const uint32_t due = !two ? p->n : part->kind == KVC_PART_WINDOW ? sliding : p->n - sliding;
        if (layers_count(c, part->kind, part->stream) != due) return 0;
    }
    return 1;
}

/* Gives the model's numbers to layers that each of two caches counts from 0. Snapshots are copies
 * of the cache of layers with a window. */
static void renumber(struct kvc_cache *c, const struct kvc_layer_pattern *p) {
    const int two = has_part(c, KVC_PART_WINDOW);
    for (uint32_t i = 0; i < c->n_layers && two; i++) {
        const enum kvc_part_kind kind = c->part[c->layer[i].part].kind;
        if (kind != KVC_PART_LIVE && kind != KVC_PART_WINDOW && kind != KVC_PART_SNAPSHOT) continue;
        const uint32_t number = layers_number_of(p, kind != KVC_PART_LIVE, c->layer[i].index);
        if (number != KVC_NONE) c->layer[i].index = number;
    }
}

static void set_windows(struct kvc_cache *c, const struct kvc_layer_pattern *p) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        struct kvc_layer *layer = &c->layer[i];
        if (layer->index >= p->n || !p->sliding[layer->index]) continue;
        if (layer->kind == KVC_LAYER_FULL) layer->kind = KVC_LAYER_WINDOW;
        if (layer->kind == KVC_LAYER_WINDOW && !layer->window) layer->window = p->window;
    }
}

int kvc_layers_settle(struct kvc_cache *c, const struct kvc_layer_pattern *p, struct kvc_error *e) {
    if (!p->n) return are_known(c);
    if (!are_known(c)) {
        if (has_part(c, KVC_PART_STATE) || !counts_agree(c, p)) return 0;
        renumber(c, p);
        if (kvc_meta_set_bool(&c->meta, KVC_KEY_LAYERS_KNOWN, 1, e)) return -1;
    }
    set_windows(c, p);
    return 1;
}

int kvc_layers_borrow(struct kvc_cache *c, const struct kvc_cache *from, struct kvc_error *e) {
    struct kvc_layer_pattern p = {.n = 0};
    if (!kvc_layers_ambiguous(c) || !are_known(from)) return 0;
    for (uint32_t i = 0; i < from->n_layers; i++) {
        const struct kvc_layer *layer = &from->layer[i];
        const struct kvc_part *part = &from->part[layer->part];
        if (!kvc_part_is_attended(part) || layer->index >= KVC_MAX_PATTERN) continue;
        if (layer->index >= p.n) p.n = layer->index + 1;
        p.sliding[layer->index] = part->kind == KVC_PART_WINDOW || layer->kind == KVC_LAYER_WINDOW;
    }
    return kvc_layers_settle(c, &p, e) < 0 ? -1 : 0;
}

uint64_t kvc_layer_window(const struct kvc_facts *facts, const struct kvc_layer *layer) {
    if (layer->kind != KVC_LAYER_WINDOW) return 0;
    return layer->window ? layer->window : facts->window;
}
