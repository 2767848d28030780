/* batch.h: blocks made ready for one launch of the device decoder: their programs, tables and queue, laid out in memory that is
 * copied to the device. Not for reading blocks or for when launches run (load.h). */
#ifndef KVC_BATCH_H
#define KVC_BATCH_H

#include "codecs/program.h"
#include "formats/cache/cache.h"
#include "formats/device/kept_tables.h"
#include "kernels/device/launch.h"

/* --- tables that stay on the device for a whole load --- */

/* Adds what a block needs that other blocks share: a dry run of its program. *more becomes 1 when something was added whose key is
 * its content (other blocks of the tensor may have more of that), else 0. */
int kvc_kept_add_block(struct kvc_kept *k, const struct kvc_cache *c, uint32_t tensor, uint64_t block, int *more,
                       struct kvc_error *e);

/* --- batches --- */

struct kvc_list {
    void *at;
    size_t n, room;
};

/* Set what is above the line, then kvc_batch_begin(). */
struct kvc_batch {
    const struct kvc_cache *cache;
    const struct kvc_device_target *target; /* by tensor */
    const struct kvc_kept *kept;
    uint8_t *room; /* memory that is copied to the device at `address` */
    size_t size;
    uint64_t address;
    uint64_t scratch; /* memory of the device */
    size_t scratch_size;
    const uint8_t *bytes; /* stored bytes of the blocks, which go to the device at bytes_address */
    size_t n_bytes;
    uint64_t bytes_address;
    /* Where on the device another record's bytes are, which lie at p in the mapped file; 0: not there. */
    uint64_t (*locate)(const void *owner, const uint8_t *p);
    const void *owner;
    /* --- */
    struct kvc_program program;
    size_t used, scratch_used;
    int full;
    struct kvc_list prepare, stream, op, run, rows, digest;
};

void kvc_batch_begin(struct kvc_batch *b); /* empties it, keeps its lists */
void kvc_batch_free(struct kvc_batch *b);

/* One block: its record's bytes, which rows of it are wanted, which row of the target the first of those is, and how its faults
 * and its digest are numbered. */
struct kvc_batch_block {
    uint32_t tensor, record;
    uint64_t block;
    const uint8_t *bytes;
    uint64_t first, rows, row;
    int digest;
};
/* Adds a block: 0; 1 when the batch has no room for it (nothing was added); -1. *on_host: bytes that the CPU decoded. */
int kvc_batch_add(struct kvc_batch *b, const struct kvc_batch_block *block, uint64_t *on_host, struct kvc_error *e);

/* Lays out the queue behind the tables: `launch` gets all but target, status and digest; b->used is then what must be copied.
 * 0, or -1. */
int kvc_batch_finish(struct kvc_batch *b, struct kvc_device_launch *launch, struct kvc_error *e);

#endif
