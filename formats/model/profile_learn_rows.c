/* profile_learn_rows.c: rows of caches as learners count them: before RoPE, channels paired as
 * halves. */
#include "formats/model/profile_learn_state.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/model/layer_rope.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int kvc_learn_takes(const struct kvc_cache *c, const struct kvc_layer *layer, int role) {
    const uint32_t t = layer->tensor[role];
    return t != KVC_NONE && c->tensor[t].role == (enum kvc_role)role &&
           kvc_is_float(c->tensor[t].shape.dtype);
}

void kvc_learn_to_halves(float *head, size_t half, float *room) {
    memcpy(room, head, 2 * half * sizeof *room);
    for (size_t i = 0; i < half; i++) {
        head[i] = room[2 * i];
        head[half + i] = room[2 * i + 1];
    }
}

void kvc_learn_normalise(struct kvc_rope *rope, float *row, size_t heads, size_t dim,
                         int64_t position, float *room) {
    if (!rope->half || position < 0) return;
    kvc_row_before_rope(rope, row, heads, dim, position);
    for (size_t h = 0; h < heads && rope->pairing == KVC_PAIRING_INTERLEAVED; h++)
        kvc_learn_to_halves(row + h * dim, rope->half, room);
}

int kvc_learn_rope(struct kvc_learner *l, const struct kvc_cache *c, uint32_t layer,
                   struct kvc_learnt_layer *to, struct kvc_rope *rope, struct kvc_error *e) {
    struct kvc_rope_facts facts;
    double *room;
    memset(rope, 0, sizeof *rope);
    const struct kvc_profile_part *key = NULL;
    if (l->base && kvc_profile_part(l->base, c->layer[layer].index, KVC_ROLE_K,
                                    c->meta.facts.rope.pairing, 0, &key, e))
        return -1;
    if (kvc_rope_of_layer(c, layer, key, &facts, &room, e)) return -1;
    if (!facts.angle) {
        l->rope_unknown = 1;
        return 0;
    }
    l->rope_known = 1;
    if (!room) { /* the angles are the profile's */
        if (!(room = kvc_alloc(facts.half, sizeof *room))) return kvc_fail_memory(e, "RoPE");
        memcpy(room, facts.angle, facts.half * sizeof *room);
    }
    if (kvc_rope_init(rope, facts.angle, facts.half, facts.pairing, e)) {
        free(room);
        return -1;
    }
    int other = to->angle && to->half != facts.half;
    for (size_t i = 0; to->angle && !other && i < to->half; i++) other = to->angle[i] != room[i];
    free(to->angle);
    to->angle = room;
    to->half = facts.half;
    if (!other) return 0;
    kvc_rope_free(rope);
    return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                    "layer %" PRIu32 ": the angles of RoPE are not those of the caches before",
                    c->layer[layer].index);
}
