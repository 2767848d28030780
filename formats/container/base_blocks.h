/* base_blocks.h: the blocks of a base (base.h). Blocks of rows that are all the base's are copied,
 * and rows after them are coded with what stages had found for the base's own, so that no row goes
 * through a lossy recipe twice. Not for finding the rows. */
#ifndef KVC_BASE_BLOCKS_H
#define KVC_BASE_BLOCKS_H

#include "formats/container/base.h"
#include "formats/container/coder.h"
#include "formats/io/sink.h"

/* Takes off rows that cannot stay as they are: those in segments whose stages cannot go on with
 * what they had found, those at the end that fill no block, of stages whose codes cannot be told,
 * and rows that reference others which are taken off. Fails where the base has coded lossy tensors
 * in another way. */
int kvc_base_settle(struct kvc_base *base, const struct kvc_encode *x, struct kvc_error *e);

/* Returns 1 if a sorted row of a lossy tensor is one of the base's. x->base may be NULL, here and
 * below. */
int kvc_base_has(const struct kvc_encode *x, uint32_t tensor, uint64_t row);
/* Returns the number after the last of the blocks [block, end) of a tensor whose records are copied
 * from the base: `block` where none is. */
uint64_t kvc_base_copied(const struct kvc_encode *x, uint32_t tensor, uint64_t block, uint64_t end);
/* Copies the record of a block, after a check of its hash. */
int kvc_base_copy_block(const struct kvc_cache *from, uint32_t tensor, uint64_t block,
                        struct kvc_buffer *out, struct kvc_error *e);

/* The side data of the base for a run of blocks. */
struct kvc_base_side {
    const struct kvc_cache *from; /* NULL: the run has side data of its own */
    struct kvc_section *section;
    unsigned n;
    uint64_t record; /* 0: there are none */
};
/* Finds the side data for the run of blocks that begins with `block`. To be freed after success. */
int kvc_base_side(const struct kvc_encode *x, uint32_t tensor, uint64_t block,
                  struct kvc_base_side *to, struct kvc_error *e);
void kvc_base_side_free(struct kvc_base_side *side);
/* Copies the record of the side data, if there is one. */
int kvc_base_copy_side(const struct kvc_base_side *side, struct kvc_buffer *out,
                       struct kvc_error *e);

/* Finds what the last stage took of block `number` of the base, of rows that are the base's: to->n
 * is 0 where none is. kvc_earlier_free() in any case. */
int kvc_base_earlier(const struct kvc_tensor_coder *r, uint64_t number, struct kvc_earlier_rows *to,
                     struct kvc_error *e);

#endif
