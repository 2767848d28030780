/* split_device.h: blocks of `split`, and of `cross`, on the device decoder. */
#ifndef KVC_SPLIT_DEVICE_H
#define KVC_SPLIT_DEVICE_H

#include "codecs/ahead.h"
#include "codecs/stage.h"

/* The stage's lower(). */
int kvc_split_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                    struct kvc_block *block, struct kvc_program *program, struct kvc_error *e);

/* The same for a block whose values may be predicted from `inputs`; NULL: from none. Returns 1 also
 * when the device cannot predict them. */
int kvc_split_lower_ahead(const struct kvc_stored *stored, struct kvc_block *block,
                          const struct kvc_ahead_inputs *inputs, struct kvc_program *program,
                          struct kvc_error *e);

#endif
