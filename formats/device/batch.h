/* batch.h: blocks made ready for one launch of the device decoder: their programs, tables and
 * queue, laid out in memory that is copied to the device. Not for reading blocks or for when
 * launches run (load.h). */
#ifndef KVC_BATCH_H
#define KVC_BATCH_H

#include "codecs/program.h"
#include "formats/cache/cache.h"
#include "formats/device/kept_tables.h"
#include "kernels/device/launch.h"

/* --- tables that stay on the device for a whole load --- */

/* Adds the tables that a block shares with other blocks, by lowering the block without output.
 * *more becomes 1 when a table was added whose key is its content, because other blocks of the
 * tensor may have further ones; else 0. */
int kvc_kept_add_block(struct kvc_kept *k, const struct kvc_cache *c, uint32_t tensor,
                       uint64_t block, int *more, struct kvc_error *e);

/* --- batches --- */

struct kvc_list {
    void *at;
    size_t n, room;
};

/* The inputs of predictions of a block's rows in the device's memory. */
struct kvc_batch_inputs {
    uint64_t at;     /* of its row 0 */
    uint32_t stride; /* bytes of a row */
};

/* The caller sets the fields above the line, then calls kvc_batch_begin(). */
struct kvc_batch {
    const struct kvc_cache *cache;
    const struct kvc_device_target *target; /* by tensor */
    const struct kvc_kept *kept;
    uint8_t *room; /* memory that is copied to the device at `address` */
    size_t size;
    uint64_t address;
    uint64_t scratch; /* memory of the device */
    size_t scratch_size;
    /* stored bytes of the blocks, which are copied to the device at bytes_address */
    const uint8_t *bytes;
    size_t n_bytes;
    uint64_t bytes_address;
    /* Returns the address on the device of bytes of another record, which are at p in the input; 0:
     * they are not there. */
    uint64_t (*locate)(const void *owner, const uint8_t *p);
    /* Returns 1 where other tensors are predicted from rows of this one, on the device; NULL: from
     * none. Each tensor then has levels of the queue, and blocks are added in the order of their
     * tensors. */
    int (*inputs)(const void *owner, uint32_t tensor, uint64_t block, struct kvc_batch_inputs *to);
    const void *owner;
    /* --- */
    struct kvc_program program;
    size_t used, scratch_used;
    uint64_t block; /* number of the block that is added */
    int full;
    struct kvc_list prepare, stream, op, run, rows, digest;
    /* jobs that need inputs of predictions; their items: predictions, streams */
    struct kvc_list predicted, ahead, late;
};

void kvc_batch_begin(struct kvc_batch *b); /* empties the batch, keeps the memory of its lists */
void kvc_batch_free(struct kvc_batch *b);

/* A block to decode. */
struct kvc_batch_block {
    uint32_t tensor;
    uint32_t record; /* number of its fault and its digest */
    uint64_t block;
    const uint8_t *bytes; /* of its record */
    uint64_t first, rows; /* wanted rows of the block */
    uint64_t row;         /* of the target, for the first of them */
    int digest;           /* 1: the device computes the digest */
};
/* Adds a block. Returns 1 when the batch has no room for the block; nothing was added then.
 * *on_host gets the bytes that the CPU decoded. */
int kvc_batch_add(struct kvc_batch *b, const struct kvc_batch_block *block, uint64_t *on_host,
                  struct kvc_error *e);

/* Lays out the queue after the tables. `launch` gets everything but target, status and digest.
 * b->used is then the number of bytes to copy. */
int kvc_batch_finish(struct kvc_batch *b, struct kvc_device_launch *launch, struct kvc_error *e);

#endif
