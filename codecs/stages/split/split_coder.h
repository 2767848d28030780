/* split_coder.h: the coder of `split`, with predictions of the values or without. For split.c and
 * cross.c. */
#ifndef KVC_SPLIT_CODER_H
#define KVC_SPLIT_CODER_H

#include "codecs/stage.h"

/* Bounds of argument 0 of both stages: values in a stream. */
enum { KVC_SPLIT_STREAM = 65536, KVC_SPLIT_STREAM_LEAST = 1024, KVC_SPLIT_STREAM_MOST = 1 << 24 };

/* Encodes and decodes a block as split.md says. `ahead`: predictions of its values, [row][channel];
 * NULL: none. */
int kvc_split_encode(const struct kvc_stage_args *args, struct kvc_block *block, const float *ahead,
                     uint8_t stage, struct kvc_sections *out, struct kvc_error *e);
int kvc_split_decode(const struct kvc_stored *stored, struct kvc_block *block, const float *ahead,
                     struct kvc_error *e);
/* Returns 1 for a block that has rows, and not as they are. */
int kvc_split_has_codes(const struct kvc_stored *stored, const struct kvc_block *block);
/* Decodes two blocks of a tensor, stored[i] into block[i] with ahead[i], at once. Returns 0, or 1
 * where one is RAW, has no values or is damaged: each is then to be decoded alone. Kernels must
 * have rans_decode_two. */
int kvc_split_decode_two(const struct kvc_stored *stored, struct kvc_block *block,
                         const float *const ahead[2]);

#endif
