/* cross.c: the lossless stage that predicts values from earlier layers. Spec: cross.md. Not for predicting
 * (formats/model/predictor.c) or for coding the differences (split.c). */
#include "codecs/ahead.h"
#include "codecs/memory.h"
#include "codecs/profile_part.h"
#include "codecs/stage.h"
#include "codecs/stages/split_coder.h"

#include <stdlib.h>
#include <string.h>

enum { STREAM, EVERY, N_ARGS }; /* STREAM: of the coder */
enum { HEADER = 4, ENTRY = 4 };

/* --- the segment's section INPUTS --- */

struct state {
    struct kvc_ahead_inputs inputs;
    const struct kvc_ahead *ahead;
};

static void end(void *state) {
    free(state);
}

/* Returns 1 where a profile describes rows of this shape: no stage before has taken channels out. */
static int has_shape(const struct kvc_profile_part *part, const struct kvc_shape *shape) {
    return part && part->heads * part->dim == shape->heads * shape->dim && 2 * part->half <= shape->dim;
}

static int begin(const struct kvc_stage_args *args, const struct kvc_encoding *x, const struct kvc_block *like, void **state,
                 struct kvc_error *e) {
    const struct kvc_rope_facts *rope = x->rope;
    const uint32_t every = (uint32_t)args->i[EVERY];
    if (!x->ahead || !x->ahead->n || !rope || !has_shape(like->profile, &like->shape)) return 0;
    if (x->rows && (x->position[0] < 0 || x->position[x->rows - 1] >= KVC_ROPE_POSITIONS)) return 0;
    struct state *s = calloc(1, sizeof *s);
    if (!s) return kvc_fail_memory(e, "inputs");
    s->ahead = x->ahead->ahead;
    s->inputs.rotation = rope->angle ? rope->pairing : KVC_PAIRING_UNKNOWN;
    s->inputs.n = x->ahead->n;
    *state = s;
    int any = 0;
    for (size_t i = 0; i < s->inputs.n; i++) {
        const int apart = every && x->ahead->layer_of[i] / every != x->ahead->layer / every;
        s->inputs.from[i] = apart ? KVC_AHEAD_NONE : x->ahead->from[i];
        any |= s->inputs.from[i] != KVC_AHEAD_NONE;
    }
    if (any) return 0;
    end(s);
    *state = NULL;
    return 0;
}

static int settle(const struct kvc_stage_args *args, void *state, uint8_t stage, struct kvc_sections *side, struct kvc_error *e) {
    const struct state *s = state;
    uint8_t bytes[HEADER + ENTRY * KVC_AHEAD_MOST] = {0};
    (void)args;
    if (!s) return 0;
    bytes[0] = (uint8_t)s->inputs.rotation;
    for (size_t i = 0; i < s->inputs.n; i++)
        for (unsigned b = 0; b < ENTRY; b++) bytes[HEADER + ENTRY * i + b] = (uint8_t)(s->inputs.from[i] >> 8 * b & 255);
    return kvc_sections_add(side, KVC_SECTION_INPUTS, stage, 0, bytes, HEADER + ENTRY * s->inputs.n, 0, e);
}

/* Reads the section. Returns 1, 0 where there is none, or -1. */
static int read_inputs(const struct kvc_stored *stored, struct kvc_ahead_inputs *to, struct kvc_error *e) {
    if (!stored->n_side) return 0;
    const struct kvc_section *s = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_INPUTS, e);
    if (!s) return -1;
    const uint8_t *p = s->data;
    to->n = (s->size - HEADER) / ENTRY;
    if (s->size <= HEADER || s->size % ENTRY || to->n > KVC_AHEAD_MOST || p[0] > KVC_PAIRING_INTERLEAVED || p[1] || p[2] || p[3])
        return kvc_fail(e, KVC_ERR_DAMAGED, "section INPUTS is out of range");
    to->rotation = (enum kvc_pairing)p[0];
    for (size_t i = 0; i < to->n; i++, p += ENTRY)
        to->from[i] = p[4] | (uint32_t)p[5] << 8 | (uint32_t)p[6] << 16 | (uint32_t)p[7] << 24;
    return 1;
}

static void describe(const struct kvc_stored *stored, unsigned role, struct kvc_description *description) {
    (void)role;
    if (!stored->n_side) return;
    description->values = "";
    description->coordinates = "predicted from earlier layers";
}

/* --- predictions --- */

/* Rotates predicted rows of K to their positions. */
static int turn_rows(const struct kvc_block *block, enum kvc_pairing rotation, float *rows, struct kvc_error *e) {
    const struct kvc_profile_part *part = block->profile;
    const size_t heads = (size_t)block->shape.heads, dim = (size_t)block->shape.dim;
    struct kvc_rope rope;
    if (block->role != KVC_SELECT_K || rotation == KVC_PAIRING_UNKNOWN || !part->angle) return 0;
    if (kvc_rope_init(&rope, part->angle, part->half, rotation, e)) return -1;
    for (size_t i = 0; i < block->shape.tokens; i++) {
        kvc_rope_at(&rope, kvc_block_position(block, i));
        kvc_rope_turn(&rope, rows + i * heads * dim, heads, dim);
    }
    kvc_rope_free(&rope);
    return 0;
}

/* Returns predictions of all values of a block, which the caller frees, or NULL. */
static float *predict(const struct kvc_ahead *ahead, const struct kvc_ahead_inputs *x, const struct kvc_block *block,
                      struct kvc_error *e) {
    const uint64_t rows = block->shape.tokens, width = block->shape.heads * block->shape.dim;
    if (!ahead || !block->row || !has_shape(block->profile, &block->shape)) {
        kvc_fail(e, KVC_ERR_DAMAGED, "section INPUTS names tensors, but there is no profile of this shape to predict with");
        return NULL;
    }
    for (uint64_t i = 0; i < rows; i++)
        if (kvc_block_position(block, i) < 0 || kvc_block_position(block, i) >= KVC_ROPE_POSITIONS) {
            kvc_fail(e, KVC_ERR_DAMAGED, "a position is below 0 or from 2^32 on");
            return NULL;
        }
    float *values = kvc_alloc(rows, width * sizeof *values);
    if (!values) kvc_fail_memory(e, "predictions");
    else if (ahead->rows(ahead, x->from, x->n, x->rotation, block->row, (size_t)rows, values, e) ||
             turn_rows(block, x->rotation, values, e)) {
        free(values);
        values = NULL;
    }
    return values;
}

static int encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block, uint8_t stage,
                  struct kvc_sections *out, struct kvc_error *e) {
    const struct state *s = state;
    float *ahead = NULL;
    if (s && block->shape.tokens && !(ahead = predict(s->ahead, &s->inputs, block, e))) return -1;
    const int status = kvc_split_encode(args, block, ahead, stage, out, e);
    free(ahead);
    return status;
}

static int decode(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                  struct kvc_error *e) {
    struct kvc_ahead_inputs inputs;
    float *ahead = NULL;
    (void)args;
    const int has = read_inputs(stored, &inputs, e);
    if (has < 0 || (has && block->shape.tokens && !(ahead = predict(block->ahead, &inputs, block, e)))) return -1;
    const int status = kvc_split_decode(stored, block, ahead, e);
    free(ahead);
    return status;
}

static const struct kvc_arg arguments[N_ARGS] = {
    [STREAM] = {.key = "stream", .min = KVC_SPLIT_STREAM_LEAST, .max = KVC_SPLIT_STREAM_MOST, .fallback = KVC_SPLIT_STREAM},
    [EVERY] = {.key = "every", .min = 0, .max = 4096, .fallback = 0},
};

const struct kvc_stage kvc_stage_cross = {
    .id = 20,
    .name = "cross",
    .summary = "as split, relative to what a profile predicts from earlier layers",
    .flags = KVC_STAGE_TERMINAL | KVC_STAGE_LOSSLESS | KVC_STAGE_LOOKS | KVC_STAGE_POSITIONS | KVC_STAGE_PROFILE |
             KVC_STAGE_AHEAD,
    .args = arguments,
    .n_args = N_ARGS,
    .begin = begin,
    .settle = settle,
    .end = end,
    .inputs = read_inputs,
    .describe = describe,
    .encode = encode,
    .decode = decode,
};
