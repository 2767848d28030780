/* decode_rows.h: rows of one head, tile by tile: a warp has rows x channels as words in shared
 * memory and runs a run's operations over them, the last stage of the recipe first. Their
 * arithmetic is that of the stages' specs (the stages' pages), operation by operation; launch.h
 * has their operands. Operations check the indices that they decode; everything else was checked by
 * the code that made the operations. One source for GPU and host. */
#ifndef KVC_DECODE_ROWS_H
#define KVC_DECODE_ROWS_H

#include "kernels/device/decode_ahead.h"
#include "kernels/device/decode_changes.h"
#include "kernels/device/decode_products.h"
#include "kernels/device/decode_quant.h"
#include "kernels/device/decode_stored.h"

/* Runs one operation over a tile. */
KVC_DEVICE void kvc_op_run(const struct kvc_device_op *op, struct kvc_tile *t) {
    switch (op->kind) {
    case KVC_OP_WORDS: kvc_op_words(op, t); break;
    case KVC_OP_UPPER: kvc_op_upper(op, t); break;
    case KVC_OP_FAST: kvc_op_fast(op, t); break;
    case KVC_OP_QUANT: kvc_op_quant(op, t); break;
    case KVC_OP_FACTORS: kvc_op_factors(op, t); break;
    case KVC_OP_OUTLIERS: kvc_op_outliers(op, t); break;
    case KVC_OP_PATCH: kvc_op_patch(op, t); break;
    case KVC_OP_SPREAD: kvc_op_spread(op, t); break;
    case KVC_OP_NORMS: kvc_op_norms(op, t); break;
    case KVC_OP_STEPS: kvc_op_steps(op, t); break;
    case KVC_OP_BASIS: kvc_op_basis(op, t); break;
    case KVC_OP_SCALE: kvc_op_scale(op, t); break;
    case KVC_OP_MEAN: kvc_op_mean(op, t); break;
    case KVC_OP_TURN: kvc_op_turn(op, t); break;
    case KVC_OP_WIDEN: kvc_op_widen(op, t); break;
    case KVC_OP_ROUND: kvc_op_round(op, t); break;
    case KVC_OP_PREDICT: kvc_op_predict(op, t); break;
    case KVC_OP_SMALL: kvc_op_small(op, t); break;
    default: t->fault |= KVC_FAULT_NUMBER;
    }
}

#endif
