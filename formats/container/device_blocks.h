/* device_blocks.h: single blocks of a container, for code that decodes them on a device or encodes
 * them there. Not for reading rows (container.h). */
#ifndef KVC_DEVICE_BLOCKS_H
#define KVC_DEVICE_BLOCKS_H

#include "codecs/ahead.h"
#include "codecs/program.h"
#include "formats/container/container.h"
#include "formats/model/predictor_part.h"

/* --- encoding --- */

/* Blocks [block, end) of a tensor, KVC_CODER_BLOCKS at most, that another coder than the CPU's is
 * asked to encode. */
#define KVC_CODER_BLOCKS 16
struct kvc_coder_work {
    const struct kvc_cache *cache;
    uint32_t tensor;
    const struct kvc_pipeline *pipeline;
    const struct kvc_encoding *encoding; /* of the tensor */
    uint64_t block, end;
};

/* A block that was encoded. */
struct kvc_coder_block {
    /* begun by the caller, who frees it; its sections are those of the pipeline's stages */
    struct kvc_sections list;
    uint64_t digest; /* of the rows as they are decoded */
    int done;        /* 0: the CPU encodes this block, which it reads by cache->read() */
};

/* Encodes blocks in the place of the CPU, for example on a device that has the rows in its memory.
 * The sections must be those that the pipeline's stages make. Several threads call encode() at a
 * time. */
struct kvc_block_coder {
    void *state;
    /* Refuses a tensor that the coder cannot encode by this pipeline: returns -1 and *e. Called
     * before anything is encoded. */
    int (*accept)(void *state, const struct kvc_cache *c, uint32_t tensor,
                  const struct kvc_pipeline *pipeline, struct kvc_error *e);
    /* Fills to[0] to to[end - block - 1]. */
    int (*encode)(void *state, const struct kvc_coder_work *work, struct kvc_coder_block *to,
                  struct kvc_error *e);
};

/* --- decoding --- */

/* Where a block is stored. */
struct kvc_container_block {
    uint64_t record;       /* its number */
    uint64_t offset, size; /* bytes of the record in the file, header included */
};
/* Returns the number of blocks of all tensors. */
uint64_t kvc_container_blocks(const struct kvc_cache *c);
struct kvc_container_block kvc_container_block(const struct kvc_cache *c, uint32_t tensor,
                                               uint64_t block);
/* Takes the digest of decoded values from the header of a BLOCK record, of which these are the
 * bytes. Returns 0 if the block has none. */
int kvc_container_block_digest(const uint8_t *record, uint64_t *digest);
/* Returns a tensor's shape as it was coded. The cache's own may since have got another number of
 * heads. */
const struct kvc_shape *kvc_container_coded_shape(const struct kvc_cache *c, uint32_t tensor);
/* Makes the program by which a device decodes a block (program.h). `bytes` is the block's record,
 * which is checked. Returns 0. Returns 1 if a device cannot decode the block: a stage does not
 * support it, or rows are references. Returns -1 and *e if the record is damaged or needs a profile
 * or weights that are missing. */
int kvc_container_lower(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                        const uint8_t *bytes, struct kvc_program *p, struct kvc_error *e);
/* Fails with KVC_ERR_DAMAGED: `what` is wrong in a block. The message names its record, tensor and
 * byte offset. */
int kvc_container_block_failed(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                               const char *what, struct kvc_error *e);

/* Reads which tensors the segment of a block is predicted from by a device. Returns 1, 0 where it
 * is from none or the CPU predicts it, or -1. */
int kvc_inputs_for_device(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                          struct kvc_ahead_inputs *to, struct kvc_error *e);
/* Finds what makes inputs of a tensor's rows, for devices: *turn is the rotation to undo first,
 * NULL where there is none. */
int kvc_inputs_made_by(const struct kvc_cache *c, uint32_t tensor, const struct kvc_small **small,
                       const struct kvc_rope_facts **turn, struct kvc_error *e);

#endif
