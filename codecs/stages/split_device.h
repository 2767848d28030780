/* split_device.h: blocks of `split` on the device decoder. */
#ifndef KVC_SPLIT_DEVICE_H
#define KVC_SPLIT_DEVICE_H

#include "codecs/stage.h"

/* The stage's lower(). */
int kvc_split_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                    struct kvc_program *program, struct kvc_error *e);

#endif
