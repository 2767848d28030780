/* layer_rope.c: RoPE of a layer's K. Not for other facts about a model (model.c). */
#include "formats/model/layer_rope.h"

#include "codecs/memory.h"
#include "formats/model/rope_scaling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sets the base of a layer's angles; 0 where it is unknown. Layers with a window have another base
 * in Gemma 3, which its files do not carry: 10 000 (transformers, configuration_gemma3.py:
 * rope_local_base_freq; llama.cpp, llama-model.cpp: rope_freq_base_train_swa). Scaling applies to
 * the other layers only. */
static void find_base(const struct kvc_facts *known, const struct kvc_layer *layer,
                      struct kvc_rope_facts *rope) {
    const char *arch = known->architecture ? known->architecture : "";
    if (layer->kind == KVC_LAYER_WINDOW) {
        rope->factor = 1;
        if (strncmp(arch, "gemma3", 6) == 0) rope->theta = 10000;
        else if (strncmp(arch, "gemma", 5) != 0) rope->theta = 0;
    }
    if (!(rope->factor > 0) && rope->type != KVC_ROPE_TYPE_YARN &&
        rope->type != KVC_ROPE_TYPE_LLAMA3)
        rope->factor = 1;
}

/* Makes the angles of a layer, one for each pair. Returns 0 where they are not known. */
static int find_angles(const struct kvc_facts *known, const struct kvc_layer *layer,
                       struct kvc_rope_facts *rope, double *angle) {
    const struct kvc_rope_table *table = &known->rope_table;
    const int tabled = table->state != KVC_TABLE_NONE && table->type == rope->type &&
                       layer->kind != KVC_LAYER_WINDOW;
    if (tabled) {
        if (table->state != KVC_TABLE_READ || table->pairs != rope->half) return 0;
        for (size_t i = 0; i < rope->half; i++) angle[i] = (double)table->divisor[i];
        rope->length = (double)table->length;
    } else if (!kvc_rope_scaling(rope, rope->half, angle, &rope->length)) {
        return 0;
    }
    for (size_t i = 0; i < rope->half; i++) {
        angle[i] = pow(rope->theta, -(double)i / (double)rope->half) / angle[i];
        if (!kvc_rope_angle_is_sane(angle[i])) return 0;
    }
    return 1;
}

int kvc_rope_of_layer(const struct kvc_cache *c, uint32_t layer,
                      const struct kvc_profile_part *part, struct kvc_rope_facts *rope,
                      double **room, struct kvc_error *e) {
    const uint32_t k = c->layer[layer].tensor[0];
    *room = NULL;
    *rope = c->meta.facts.rope;
    if (!kvc_rope_stored(rope) || k == KVC_NONE || c->tensor[k].role != KVC_ROLE_K) return 0;
    if (part) { /* without angles it was made of K as it is stored */
        rope->half = part->angle ? part->half : 0;
        rope->angle = part->angle;
        rope->of_profile = part->angle != NULL;
        return 0;
    }
    find_base(&c->meta.facts, &c->layer[layer], rope);
    const uint64_t dim = c->tensor[k].shape.dim, rotated = kvc_rope_channels(rope, dim);
    const struct kvc_cells *cells = kvc_tensor_cells(c, k);
    if (cells->n && (kvc_cells_position(cells, 0) < 0 ||
                     kvc_cells_position(cells, cells->n - 1) >= KVC_ROPE_POSITIONS))
        return 0;
    if (!(rope->theta > 1) || rotated % 2 || !rotated || rotated > dim || rotated / 2 > UINT16_MAX)
        return 0;
    rope->half = (size_t)(rotated / 2);
    double *angle = kvc_alloc(rope->half, sizeof *angle);
    if (!angle) return kvc_fail_memory(e, "RoPE");
    if (find_angles(&c->meta.facts, &c->layer[layer], rope, angle)) {
        rope->angle = *room = angle;
        return 0;
    }
    free(angle);
    rope->half = 0;
    return 0;
}

void kvc_row_before_rope(struct kvc_rope *rope, float *row, size_t heads, size_t dim,
                         int64_t position) {
    kvc_rope_at(rope, position);
    kvc_rope_backwards(rope);
    kvc_rope_turn(rope, row, heads, dim);
}
