/* ends.h: what `sink` and `tail` share: a number of rows at one end of a block that are kept as they are. Spec: sink.md,
 * tail.md. Not for which rows of a tensor those are. */
#ifndef KVC_ENDS_H
#define KVC_ENDS_H

#include "codecs/stage.h"

#include <stdint.h>

/* Keeps `rows` rows at the beginning (`type` KVC_SECTION_SINK) or the end (KVC_SECTION_TAIL) of a block. */
int kvc_ends_encode(struct kvc_block *block, uint64_t rows, unsigned type, uint8_t stage, struct kvc_sections *out,
                    struct kvc_error *e);
int kvc_ends_open(struct kvc_block *block, unsigned type, const struct kvc_stored *stored, struct kvc_error *e);
int kvc_ends_lower(const struct kvc_block *block, unsigned type, const struct kvc_stored *stored, struct kvc_program *program,
                   struct kvc_error *e);
int kvc_ends_decode(struct kvc_block *block, unsigned type, const struct kvc_stored *stored, struct kvc_error *e);

#endif
