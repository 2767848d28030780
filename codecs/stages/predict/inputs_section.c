/* inputs_section.c: the section INPUTS. */
#include "codecs/stages/predict/inputs_section.h"

#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "codecs/profile_part.h"
#include "codecs/rope.h"

#include <stdlib.h>

enum { ENTRY = 4 };

/* Returns 1 where a profile describes rows of this shape: no stage before has taken channels out.
 */
static int has_shape(const struct kvc_profile_part *part, const struct kvc_shape *shape) {
    return part && part->heads * part->dim == shape->heads * shape->dim &&
           2 * part->half <= shape->dim;
}

int kvc_ahead_begin(const struct kvc_encoding *x, const struct kvc_block *like, uint32_t every,
                    void **state, struct kvc_error *e) {
    if (!x->ahead || !x->ahead->n || !has_shape(like->profile, &like->shape)) return 0;
    if (x->rows && (x->position[0] < 0 || x->position[x->rows - 1] >= KVC_ROPE_POSITIONS)) return 0;
    struct kvc_ahead_state *s = calloc(1, sizeof *s);
    if (!s) return kvc_fail_memory(e, "inputs");
    s->ahead = x->ahead->ahead;
    s->inputs.n = x->ahead->n;
    int any = 0;
    for (size_t i = 0; i < s->inputs.n; i++) {
        const int apart = every && x->ahead->layer_of[i] / every != x->ahead->layer / every;
        s->inputs.from[i] = apart ? KVC_AHEAD_NONE : x->ahead->from[i];
        any |= s->inputs.from[i] != KVC_AHEAD_NONE;
    }
    if (any) *state = s;
    else free(s);
    return 0;
}

int kvc_ahead_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                     struct kvc_sections *side, struct kvc_error *e) {
    const struct kvc_ahead_state *s = state;
    uint8_t bytes[ENTRY * KVC_AHEAD_MOST];
    (void)args;
    if (!s) return 0;
    for (size_t i = 0; i < s->inputs.n; i++) put_u32(bytes + ENTRY * i, s->inputs.from[i]);
    return kvc_sections_add(side, KVC_SECTION_INPUTS, stage, 0, bytes, ENTRY * s->inputs.n, 0, e);
}

int kvc_ahead_read(const struct kvc_stored *stored, struct kvc_ahead_inputs *to,
                   struct kvc_error *e) {
    if (!stored->n_side) return 0;
    const struct kvc_section *s = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_INPUTS,
                                                   e);
    if (!s) return -1;
    const uint8_t *p = s->data;
    to->n = s->size / ENTRY;
    if (!to->n || s->size % ENTRY || to->n > KVC_AHEAD_MOST)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section INPUTS is out of range");
    for (size_t i = 0; i < to->n; i++, p += ENTRY) to->from[i] = get_u32(p);
    return 1;
}

float *kvc_ahead_predict(const struct kvc_ahead *ahead, const struct kvc_ahead_inputs *x,
                         const struct kvc_block *block, struct kvc_error *e) {
    const uint64_t rows = block->shape.tokens;
    if (!ahead || !block->row || !has_shape(block->profile, &block->shape)) {
        kvc_fail(
            e, KVC_ERR_DAMAGED,
            "section INPUTS names tensors, but there is no profile of this shape to predict with");
        return NULL;
    }
    for (uint64_t i = 0; i < rows; i++)
        if (kvc_block_position(block, i) < 0 ||
            kvc_block_position(block, i) >= KVC_ROPE_POSITIONS) {
            kvc_fail(e, KVC_ERR_DAMAGED, "a position is below 0 or from 2^32 on");
            return NULL;
        }
    return ahead->rows(ahead, x->from, x->n, block->row, (size_t)rows, e);
}
