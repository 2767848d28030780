/* cross.c: the lossless stage that predicts values from earlier layers. Spec: cross.md. Not for
 * predicting (formats/model/predictor.c) or for coding the differences (split.c). */
#include "codecs/profile_part.h"
#include "codecs/stage.h"
#include "codecs/stages/predict/inputs_section.h"
#include "codecs/stages/split/split_coder.h"
#include "codecs/stages/split/split_device.h"
#include "kernels/kernels.h"

#include <stdlib.h>

enum { STREAM, EVERY, N_ARGS }; /* STREAM: of the coder */

static int cross_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                       const struct kvc_block *like, void **state, struct kvc_error *e) {
    return kvc_ahead_begin(x, like, (uint32_t)args->i[EVERY], state, e);
}

static void cross_describe(const struct kvc_stored *stored, unsigned role,
                           struct kvc_description *description) {
    (void)role;
    if (!stored->n_side) return;
    description->values = "";
    description->coordinates = "predicted from earlier layers";
}

/* --- predictions --- */

/* Rotates predicted rows of K to their positions. */
static int turn_rows(const struct kvc_block *block, float *rows, struct kvc_error *e) {
    const struct kvc_rope_facts *turn = block->turn;
    const size_t heads = (size_t)block->shape.heads, dim = (size_t)block->shape.dim;
    struct kvc_rope rope;
    if (!turn) return 0;
    if (!turn->angle)
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "the profile has not the angles of the tensor's RoPE");
    if (kvc_rope_init(&rope, turn->angle, turn->half, turn->pairing, e)) return -1;
    for (size_t i = 0; i < block->shape.tokens; i++) {
        kvc_rope_at(&rope, kvc_block_position(block, i));
        kvc_rope_turn(&rope, rows + i * heads * dim, heads, dim);
    }
    kvc_rope_free(&rope);
    return 0;
}

/* Returns predictions of all values of a block as they are stored, which the caller frees, or NULL.
 */
static float *predict(const struct kvc_ahead *ahead, const struct kvc_ahead_inputs *x,
                      const struct kvc_block *block, struct kvc_error *e) {
    float *values = kvc_ahead_predict(ahead, x, block, e);
    if (!values) return NULL;
    if (turn_rows(block, values, e)) {
        free(values);
        return NULL;
    }
    if (ahead->tile)
        kvc_hadamard(values, (size_t)(block->shape.tokens * block->shape.heads * block->shape.dim),
                     ahead->tile);
    return values;
}

static int cross_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                        uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct kvc_ahead_state *s = state;
    float *ahead = NULL;
    if (s && block->shape.tokens && !(ahead = predict(s->ahead, &s->inputs, block, e))) return -1;
    const int status = kvc_split_encode(args, block, ahead, stage, out, e);
    free(ahead);
    return status;
}

static int cross_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        struct kvc_block *block, struct kvc_error *e) {
    struct kvc_ahead_inputs inputs;
    float *ahead = NULL;
    (void)args;
    const int has = kvc_ahead_read(stored, &inputs, e);
    if (has < 0 ||
        (has && block->shape.tokens && !(ahead = predict(block->ahead, &inputs, block, e))))
        return -1;
    const int status = kvc_split_decode(stored, block, ahead, e);
    free(ahead);
    return status;
}

static int decode_two(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                      struct kvc_block *block) {
    float *ahead[2] = {NULL, NULL};
    int bad = !kvc_split_has_codes(&stored[0], &block[0]) ||
              !kvc_split_has_codes(&stored[1], &block[1]);
    (void)args;
    for (int i = 0; i < 2 && !bad; i++) {
        struct kvc_ahead_inputs inputs;
        const int has = kvc_ahead_read(&stored[i], &inputs, NULL);
        bad = has < 0 || (has && !(ahead[i] = predict(block[i].ahead, &inputs, &block[i], NULL)));
    }
    if (!bad) bad = kvc_split_decode_two(stored, block, (const float *[]){ahead[0], ahead[1]});
    free(ahead[0]);
    free(ahead[1]);
    return bad;
}

static int cross_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    struct kvc_ahead_inputs inputs;
    (void)args;
    const int has = kvc_ahead_read(stored, &inputs, e);
    return has < 0 ? -1 : kvc_split_lower_ahead(stored, block, has ? &inputs : NULL, program, e);
}

static const struct kvc_arg arguments[N_ARGS] = {
    [STREAM] = {.key = "stream",
                .min = KVC_SPLIT_STREAM_LEAST,
                .max = KVC_SPLIT_STREAM_MOST,
                .fallback = KVC_SPLIT_STREAM},
    [EVERY] = {.key = "every", .min = 0, .max = 4096, .fallback = 0},
};

const struct kvc_stage kvc_stage_cross = {
    .id = 20,
    .name = "cross",
    .summary = "as split, relative to what a profile predicts from earlier layers",
    .flags = KVC_STAGE_TERMINAL | KVC_STAGE_LOSSLESS | KVC_STAGE_LOOKS | KVC_STAGE_POSITIONS |
             KVC_STAGE_PROFILE | KVC_STAGE_AHEAD | KVC_STAGE_SIDE,
    .args = arguments,
    .n_args = N_ARGS,
    .begin = cross_begin,
    .settle = kvc_ahead_settle,
    .end = free,
    .inputs = kvc_ahead_read,
    .describe = cross_describe,
    .encode = cross_encode,
    .decode = cross_decode,
    .decode_two = decode_two,
    .lower = cross_lower,
};
