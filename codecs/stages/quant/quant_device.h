/* quant_device.h: blocks of `quant` on the device decoder. */
#ifndef KVC_QUANT_DEVICE_H
#define KVC_QUANT_DEVICE_H

#include "codecs/stage.h"

/* The stage's lower(). */
int kvc_quant_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                    struct kvc_block *block, struct kvc_program *program, struct kvc_error *e);

#endif
