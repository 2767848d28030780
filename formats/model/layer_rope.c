/* layer_rope.c: RoPE of a layer's K. Not for other facts about a model (model.c). */
#include "formats/model/layer_rope.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the base of a layer's angles; 0 where the base is unknown. Layers with a window have another base in Gemma 3, which its
 * files do not carry: 10 000 (transformers, configuration_gemma3.py: rope_local_base_freq; llama.cpp, llama-model.cpp:
 * rope_freq_base_train_swa). Scaling applies to the other layers only. */
static double base_of(const struct kvc_cache *c, const struct kvc_layer *layer, double *factor) {
    const int local = layer->kind == KVC_LAYER_SLIDING;
    const char *arch = kvc_meta_text(&c->meta, KVC_KEY_MODEL_ARCH, "");
    *factor = kvc_meta_f64(&c->meta, KVC_KEY_ROPE_FACTOR, 1);
    if (!local) return kvc_meta_f64(&c->meta, KVC_KEY_ROPE_THETA, 0);
    *factor = 1;
    if (strncmp(arch, "gemma3", 6) == 0) return 10000;
    return strncmp(arch, "gemma", 5) == 0 ? kvc_meta_f64(&c->meta, KVC_KEY_ROPE_THETA, 0) : 0;
}

int kvc_rope_of_layer(const struct kvc_cache *c, uint32_t layer, const struct kvc_profile_part *part,
                      struct kvc_rope_facts *facts, double **room, struct kvc_error *e) {
    const enum kvc_pairing pairing = kvc_cache_pairing(c);
    const uint32_t k = c->layer[layer].tensor[0];
    const char *type = kvc_meta_text(&c->meta, KVC_KEY_ROPE_TYPE, "");
    *room = NULL;
    *facts = (struct kvc_rope_facts){.pairing = pairing};
    if (!kvc_pairing_turns(pairing) || k == KVC_NONE || c->tensor[k].role != KVC_ROLE_K ||
        strcmp(kvc_meta_text(&c->meta, KVC_KEY_ROPE_K, "post"), "post") != 0)
        return 0;
    if (part && part->angle) {
        facts->half = part->half;
        facts->angle = part->angle;
        facts->of_profile = 1;
        return 0;
    }
    if (part) return 0; /* the part was made of K as it is stored */
    double factor;
    const double base = base_of(c, &c->layer[layer], &factor);
    const uint64_t dim = c->tensor[k].shape.dim, rotated = kvc_meta_u64(&c->meta, KVC_KEY_ROPE_DIM, dim);
    const struct kvc_cells *cells = &kvc_tensor_part(c, k)->cells;
    const int plain = strcmp(type, "default") == 0 || strcmp(type, "linear") == 0;
    if (cells->n && (kvc_cells_position(cells, 0) < 0 || kvc_cells_position(cells, cells->n - 1) >= KVC_ROPE_POSITIONS)) return 0;
    if (!plain || !(base > 1) || !(factor >= 1) || rotated % 2 || !rotated || rotated > dim || rotated / 2 > UINT16_MAX) return 0;
    facts->half = (size_t)(rotated / 2);
    if (!(*room = kvc_alloc(facts->half, sizeof **room))) return kvc_fail_memory(e, "RoPE");
    for (size_t i = 0; i < facts->half; i++) (*room)[i] = pow(base, -2.0 * (double)i / (double)rotated) / factor;
    facts->angle = *room;
    return 0;
}

void kvc_row_before_rope(struct kvc_rope *rope, float *row, size_t heads, size_t dim, int64_t position) {
    kvc_rope_at(rope, position);
    kvc_rope_backwards(rope);
    kvc_rope_turn(rope, row, heads, dim);
}
