/* derope_device.h: rotations of a block's rows as a device makes them. Shared by the stage derope
 * and by inputs of predictions (formats/device/batch.c). */
#ifndef KVC_DEROPE_DEVICE_H
#define KVC_DEROPE_DEVICE_H

#include "codecs/program.h"
#include "codecs/rope.h"

/* Fills in the operands of rotations forwards, with tables that stay on the device. `position`: of
 * each row, 0 to 2^32 - 1, at most KVC_MAX_BLOCK_ROWS of them. Returns 0, 1 when they are not in
 * one run of 256, or -1. */
int kvc_turn_lower(struct kvc_turn_op *to, const double *angle, size_t half,
                   enum kvc_pairing pairing, const int64_t *position, size_t rows,
                   struct kvc_program *program, struct kvc_error *e);

#endif
