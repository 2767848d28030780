/* predict.c: the stage that takes away from rows what a profile predicts from earlier layers. Spec:
 * predict.md. Not for predicting (formats/model/predictor.c, on a device predict_device.c) or for
 * lossless values (cross.c). */
#include "codecs/profile_part.h"
#include "codecs/program.h"
#include "codecs/stage.h"
#include "codecs/stages/predict/inputs_section.h"
#include "codecs/stages/predict/predict_device.h"

#include "kernels/kernels.h"

#include <stdlib.h>

enum { EVERY, N_ARGS };

static const struct kvc_arg arguments[N_ARGS] = {
    [EVERY] = {.key = "every", .min = 0, .max = 4096, .fallback = 0},
};

/* Returns 1 where rows of a block stand as predictions do: K before RoPE. */
static int stands_before_rope(const struct kvc_block *block) {
    return !block->turn || block->before_rope;
}

static int predict_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                         const struct kvc_block *like, void **state, struct kvc_error *e) {
    if (!like->profile || !like->profile->residual || !x->ahead || !stands_before_rope(like))
        return 0;
    return kvc_ahead_begin(x, like, (uint32_t)args->i[EVERY], state, e);
}

static int predict_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                          uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct kvc_ahead_state *s = state;
    const size_t n = (size_t)(block->shape.tokens * block->shape.heads * block->shape.dim);
    float *x = (float *)(void *)block->rows;
    (void)args, (void)stage, (void)out;
    if (!s) return 0;
    if (n) {
        float *ahead = kvc_ahead_predict(s->ahead, &s->inputs, block, e);
        if (!ahead) return -1;
        kvc_kernels_get()->add_scaled(x, ahead, -1, n);
        free(ahead);
    }
    block->profile = block->profile->residual;
    return 0;
}

static int predict_open(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        struct kvc_block *block, struct kvc_error *e) {
    struct kvc_ahead_inputs inputs;
    (void)args;
    const int has = kvc_ahead_read(stored, &inputs, e);
    if (has <= 0) return has;
    if (!block->profile || !block->profile->residual)
        return kvc_fail(
            e, KVC_ERR_DAMAGED,
            "section INPUTS names tensors, but the profile has no basis for what is predicted");
    if (!stands_before_rope(block))
        return kvc_fail(e, KVC_ERR_DAMAGED, "K is predicted before RoPE is undone");
    block->profile = block->profile->residual;
    return 0;
}

struct row_predictions {
    size_t width;
    float *ahead; /* of all rows */
};

static int predict_rows_begin(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                              const struct kvc_block *block, void **state, struct kvc_error *e) {
    struct kvc_ahead_inputs inputs;
    struct row_predictions *p;
    (void)args;
    if (kvc_stored_none(stored, e)) return -1;
    const int has = kvc_ahead_read(stored, &inputs, e);
    if (has < 0) return -1;
    if (!has || !block->shape.tokens) return 0;
    if (!(*state = p = calloc(1, sizeof *p))) return kvc_fail_memory(e, "predictions");
    p->width = (size_t)(block->shape.heads * block->shape.dim);
    p->ahead = kvc_ahead_predict(block->ahead, &inputs, block, e);
    return p->ahead ? 0 : -1;
}

static int predict_rows_next(void *state, struct kvc_row_run *run, struct kvc_error *e) {
    const struct row_predictions *p = state;
    (void)e;
    if (p)
        kvc_kernels_get()->add_scaled(run->rows, p->ahead + run->first * p->width, 1,
                                      run->n * p->width);
    return 0;
}

static int predict_rows_end(void *state, int done, struct kvc_error *e) {
    struct row_predictions *p = state;
    (void)done, (void)e;
    if (p) free(p->ahead);
    free(p);
    return 0;
}

/* Returns 1 when a device cannot predict the rows. */
static int predict_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                         struct kvc_block *block, struct kvc_program *program,
                         struct kvc_error *e) {
    struct kvc_ahead_inputs inputs;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_PREDICT, &block->shape);
    (void)args;
    if (kvc_stored_none(stored, e)) return -1;
    const int has = kvc_ahead_read(stored, &inputs, e);
    if (has < 0) return -1;
    if (!has || !block->shape.tokens) return 0;
    const int status = kvc_predict_lower(&op.predict, &inputs, block, program, e);
    return status ? status : kvc_program_op(program, &op, e);
}

static void predict_describe(const struct kvc_stored *stored, unsigned role,
                             struct kvc_description *d) {
    (void)role;
    if (stored->n_side)
        d->coordinates = "predicted from earlier layers, the rest in the profile's basis";
}

const struct kvc_stage kvc_stage_predict = {
    .id = 21,
    .name = "predict",
    .summary = "takes away what a profile predicts from earlier layers",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_LOOKS | KVC_STAGE_HEADS |
             KVC_STAGE_POSITIONS | KVC_STAGE_PROFILE | KVC_STAGE_AHEAD | KVC_STAGE_SIDE,
    .args = arguments,
    .n_args = N_ARGS,
    .begin = predict_begin,
    .settle = kvc_ahead_settle,
    .end = free,
    .inputs = kvc_ahead_read,
    .encode = predict_encode,
    .describe = predict_describe,
    .open = predict_open,
    .rows_begin = predict_rows_begin,
    .rows_next = predict_rows_next,
    .rows_end = predict_rows_end,
    .lower = predict_lower,
};
