/* kept.h: rows that a stage takes out of the matrix and keeps as they are, coded by `split`. Spec: kept.md. Not for which
 * rows those are. */
#ifndef KVC_KEPT_H
#define KVC_KEPT_H

#include "codecs/program.h"
#include "codecs/stage.h"

#include <stdint.h>

/* Takes the rows with mask[row] != 0 out of a block in the tensor's dtype, adds their sections as the stage's own, and
 * closes the gaps. Nothing is added for no rows. */
int kvc_kept_encode(struct kvc_block *block, const uint8_t *mask, uint8_t stage, struct kvc_sections *out,
                    struct kvc_error *e);
/* Decoding: takes the rows out of block->shape, and what is known of them. */
void kvc_kept_open(struct kvc_block *block, const uint8_t *mask);
/* Decoding: spreads the block->handed.tokens rows that stand there and puts the kept ones between them. */
int kvc_kept_decode(struct kvc_block *block, const uint8_t *mask, const struct kvc_section *sections, size_t n,
                    struct kvc_error *e);

/* A device's program: puts rows between those at hand: of `rows` rows mask[i] != 0 says which come from a matrix of their own, one of canonical rows
 * that `split` coded; the others are those at hand. 0, 1 or -1 as kvc_pipeline_lower(). */
int kvc_kept_lower(struct kvc_program *p, const struct kvc_shape *shape, const uint8_t *mask, const struct kvc_section *sections,
                     size_t n, struct kvc_error *e);

#endif
