/* kept.h: rows that a stage takes out of the matrix and keeps exactly, coded by `split`. Spec:
 * kept.md. Not for choosing the rows. */
#ifndef KVC_KEPT_H
#define KVC_KEPT_H

#include "codecs/program.h"
#include "codecs/stage.h"

#include <stdint.h>

/* Takes the rows with mask[row] != 0 out of a block in the tensor's dtype, adds their sections as
 * the stage's own, and closes the gaps. Nothing is added for no rows. */
int kvc_kept_encode(struct kvc_block *block, const uint8_t *mask, uint8_t stage,
                    struct kvc_sections *out, struct kvc_error *e);
/* Decoding: takes the rows out of block->shape, and out of the block's marks and row numbers. */
void kvc_kept_open(struct kvc_block *block, const uint8_t *mask);
/* Decoding: spreads the block->handed.tokens rows of the matrix and puts the kept rows between
 * them. */
int kvc_kept_decode(struct kvc_block *block, const uint8_t *mask,
                    const struct kvc_section *sections, size_t n, struct kvc_error *e);

/* Does the same in a device's program: rows with mask[i] != 0 come from a matrix of canonical rows
 * that `split` coded, the others are the rows of the program. Returns as kvc_pipeline_lower(). */
int kvc_kept_lower(struct kvc_program *p, const struct kvc_shape *shape, const uint8_t *mask,
                   const struct kvc_section *sections, size_t n, struct kvc_error *e);

#endif
