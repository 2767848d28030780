/* predict_device.c: operands of predictions on a device. Spec: cross.md. Not for predicting
 * (kernels/device/decode_ahead.h). */
#include "codecs/stages/predict/predict_device.h"

#include "codecs/profile_part.h"
#include "codecs/stages/derope/derope_device.h"

#include <string.h>

/* Keeps the matrix on the device. */
static int keep_matrix(struct kvc_predict_op *op, const struct kvc_dot_matrix *m,
                       struct kvc_program *program, struct kvc_error *e) {
    void *room;
    if (kvc_program_keep_copy(program, m->weights, 0, m->weights,
                              kvc_dot_bytes(m->outputs, m->inputs), &op->weights, e) ||
        kvc_program_keep(program, m->scale, 1, 2 * m->outputs * sizeof(float), &room, &op->numbers,
                         e))
        return -1;
    if (room) {
        memcpy(room, m->scale, m->outputs * sizeof(float));
        memcpy((float *)room + m->outputs, m->mean, m->outputs * sizeof(float));
    }
    op->outputs = (uint32_t)m->outputs;
    op->words = (uint32_t)(m->inputs / KVC_DOT_STEP);
    return 0;
}

/* Returns 1 where a device may predict a block: its rows follow each other, a tile holds whole
 * heads, and positions are in range. */
static int can_predict(const struct kvc_block *block) {
    const uint64_t rows = block->shape.tokens;
    return block->shape.dim <= KVC_DEVICE_TILE && block->row && block->ahead && block->profile &&
           block->row[rows - 1] - block->row[0] == rows - 1 && kvc_block_position(block, 0) >= 0 &&
           kvc_block_position(block, rows - 1) < KVC_ROPE_POSITIONS;
}

int kvc_predict_lower(struct kvc_predict_op *to, const struct kvc_ahead_inputs *inputs,
                      const struct kvc_block *block, struct kvc_program *program,
                      struct kvc_error *e) {
    struct kvc_ahead_matrix matrix;
    struct kvc_predict_input input[KVC_AHEAD_MOST] = {{0}}, present[KVC_AHEAD_MOST];
    if (!can_predict(block)) return 1;
    if (block->ahead->matrix(block->ahead, inputs->from, inputs->n, &matrix, e)) return -1;
    if (matrix.matrix->outputs != block->shape.heads * block->shape.dim) return 1;
    to->n = 0;
    for (size_t k = 0; k < inputs->n; k++) {
        input[k].words = (uint32_t)(kvc_dot_stride(matrix.width[k]) / KVC_DOT_STEP);
        input[k].first = (uint32_t)(matrix.at[k] / KVC_DOT_STEP);
        if (inputs->from[k] == KVC_AHEAD_NONE) continue;
        if (program->inputs(program->owner, inputs->from[k], &input[k].at)) return 1;
        input[k].at += (block->row[0] - block->first_row) * KVC_DOT_STEP * input[k].words;
        present[to->n++] = input[k];
    }
    if (keep_matrix(to, matrix.matrix, program, e)) return -1;
    to->inputs = kvc_program_copy(program, present, to->n * sizeof *present, e);
    return to->inputs ? 0 : -1;
}

int kvc_predict_lower_turn(struct kvc_turn_op *to, const struct kvc_block *block,
                           struct kvc_program *program, struct kvc_error *e) {
    const struct kvc_rope_facts *turn = block->turn;
    const uint64_t rows = block->shape.tokens;
    int64_t position[KVC_MAX_BLOCK_ROWS];
    if (!turn) return 0;
    if (!turn->angle || 2 * turn->half > block->shape.dim) return 1;
    for (uint64_t i = 0; i < rows; i++) position[i] = kvc_block_position(block, i);
    return kvc_turn_lower(to, turn->angle, turn->half, turn->pairing, position, (size_t)rows,
                          program, e);
}
