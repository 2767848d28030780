/* layer_rope.c: RoPE of a layer's K. Not for other facts about a model (model.c). */
#include "formats/model/layer_rope.h"

#include "codecs/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the base of a layer's angles; 0 where the base is unknown. Layers with a window have
 * another base in Gemma 3, which its files do not carry: 10 000 (transformers,
 * configuration_gemma3.py: rope_local_base_freq; llama.cpp, llama-model.cpp:
 * rope_freq_base_train_swa). Scaling applies to the other layers only. */
static double base_of(const struct kvc_facts *known, const struct kvc_layer *layer,
                      double *factor) {
    const int local = layer->kind == KVC_LAYER_SLIDING;
    *factor = local ? 1 : known->factor;
    if (!local) return known->theta;
    if (strncmp(known->architecture, "gemma3", 6) == 0) return 10000;
    return strncmp(known->architecture, "gemma", 5) == 0 ? known->theta : 0;
}

int kvc_rope_of_layer(const struct kvc_cache *c, const struct kvc_facts *known, uint32_t layer,
                      const struct kvc_profile_part *part, struct kvc_rope_facts *facts,
                      double **room, struct kvc_error *e) {
    const uint32_t k = c->layer[layer].tensor[0];
    *room = NULL;
    *facts = (struct kvc_rope_facts){.pairing = known->pairing};
    if (!kvc_pairing_turns(known->pairing) || k == KVC_NONE || c->tensor[k].role != KVC_ROLE_K ||
        !known->after_rope)
        return 0;
    if (part && part->angle) {
        facts->half = part->half;
        facts->angle = part->angle;
        facts->of_profile = 1;
        return 0;
    }
    if (part) return 0; /* the part was made of K as it is stored */
    double factor;
    const double base = base_of(known, &c->layer[layer], &factor);
    const uint64_t dim = c->tensor[k].shape.dim, rotated = kvc_facts_rotated(known, dim);
    const struct kvc_cells *cells = &kvc_tensor_part(c, k)->cells;
    const enum kvc_rope_type type = known->rope_type;
    const int plain = type == KVC_ROPE_TYPE_DEFAULT || type == KVC_ROPE_TYPE_LINEAR ||
                      type == KVC_ROPE_TYPE_MROPE || type == KVC_ROPE_TYPE_IMROPE;
    if (cells->n && (kvc_cells_position(cells, 0) < 0 ||
                     kvc_cells_position(cells, cells->n - 1) >= KVC_ROPE_POSITIONS))
        return 0;
    if (!plain || !(base > 1) || !(factor >= 1) || rotated % 2 || !rotated || rotated > dim ||
        rotated / 2 > UINT16_MAX)
        return 0;
    facts->half = (size_t)(rotated / 2);
    if (!(*room = kvc_alloc(facts->half, sizeof **room))) return kvc_fail_memory(e, "RoPE");
    for (size_t i = 0; i < facts->half; i++)
        (*room)[i] = pow(base, -2.0 * (double)i / (double)rotated) / factor;
    facts->angle = *room;
    return 0;
}

void kvc_row_before_rope(struct kvc_rope *rope, float *row, size_t heads, size_t dim,
                         int64_t position) {
    kvc_rope_at(rope, position);
    kvc_rope_backwards(rope);
    kvc_rope_turn(rope, row, heads, dim);
}
