/* predict_device.h: predictions of a block's rows as a device makes them. Shared by the stages that
 * predict (predict.c, split_device.c for cross.c). */
#ifndef KVC_PREDICT_DEVICE_H
#define KVC_PREDICT_DEVICE_H

#include "codecs/ahead.h"
#include "codecs/block.h"
#include "codecs/program.h"

/* Fills in the operands that predict the block's rows, K before RoPE. Returns 0; 1 when a device
 * cannot predict them: it does not have the rows of earlier layers, rows between are kept by an
 * earlier stage, or the CPU refuses them; or -1. */
int kvc_predict_lower(struct kvc_predict_op *to, const struct kvc_ahead_inputs *inputs,
                      const struct kvc_block *block, struct kvc_program *program,
                      struct kvc_error *e);
/* Fills in the operands that rotate predictions to the rows' positions; leaves them 0 where RoPE
 * does not rotate the rows. Returns as kvc_turn_lower() does. */
int kvc_predict_lower_turn(struct kvc_turn_op *to, const struct kvc_block *block,
                           struct kvc_program *program, struct kvc_error *e);

#endif
