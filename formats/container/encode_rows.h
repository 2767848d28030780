/* encode_rows.h: reads the blocks of a tensor for the stages that encode them, and keeps them
 * between the looks of stages. Not for records (encode.c). */
#ifndef KVC_ENCODE_ROWS_H
#define KVC_ENCODE_ROWS_H

#include "formats/container/encode_facts.h"

/* Reads block `number`: all rows into r->rows, rows that repeat no earlier row into *block, the
 * partner's rows into *partner. */
int kvc_coder_load(struct kvc_tensor_coder *r, uint64_t number, struct kvc_block *block,
                   struct kvc_block *partner, struct kvc_error *e);
/* Makes room for the blocks that a coder may keep: none where no stage runs before a look, and none
 * of a pair. */
int kvc_coder_keeps(struct kvc_tensor_coder *r, struct kvc_error *e);
/* Returns block `number` for a stage to look at: the one that is kept, or *block; NULL after a
 * failure. *own: its rows before the first stage. */
struct kvc_block *kvc_coder_look_at(struct kvc_tensor_coder *r, uint64_t number,
                                    struct kvc_block *block, struct kvc_block *partner,
                                    uint64_t *own, struct kvc_error *e);
/* Encodes block `number` into r->list: *container_sections of the container, then those of the
 * stages. *own: rows that are encoded. A block that was kept is not kept any longer. */
int kvc_coder_sections(struct kvc_tensor_coder *r, uint64_t number, uint64_t *own,
                       size_t *container_sections, struct kvc_error *e);
/* Frees the blocks that are kept, and their room. */
void kvc_coder_drop(struct kvc_tensor_coder *r);

#endif
