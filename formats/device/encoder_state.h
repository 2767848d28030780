/* encoder_state.h: the run of blocks that a device encodes, shared by the parts of the encoder:
 * encoder.c, encoder_launch.c, encoder_fast.c, encoder_quant.c. Not for users (encoder.h). */
#ifndef KVC_ENCODER_STATE_H
#define KVC_ENCODER_STATE_H

#include "formats/container/device_blocks.h"
#include "formats/device/encoder_room.h"

enum {
    KVC_ENCODE_BLOCKS = KVC_CODER_BLOCKS,
    KVC_ENCODE_TARGETS = 2 * KVC_ENCODE_BLOCKS,
    KVC_ENCODE_LEVELS = 2
};

/* The run of blocks in hand. Items are made in `item`, and copied with blocks and targets before a
 * launch. */
struct kvc_encode_job {
    struct kvc_encode_room *room;
    unsigned multiprocessors;
    const struct kvc_coder_work *work;
    struct kvc_coder_block *to;
    struct kvc_shape shape;            /* of the tensor */
    uint32_t n;                        /* blocks */
    uint64_t start[KVC_ENCODE_BLOCKS]; /* first row of each block, and its rows */
    uint32_t rows[KVC_ENCODE_BLOCKS];

    struct kvc_encode_block block[KVC_ENCODE_BLOCKS];
    struct kvc_device_target target[KVC_ENCODE_TARGETS]; /* target 0: the source */
    uint32_t n_targets;
    struct kvc_device_item *item;
    size_t n_items, item_room;
};

/* Adds items like this one, for `rows` rows (or groups, or tiles) from like.first on, of `each` of
 * them or fewer. */
int kvc_encode_items(struct kvc_encode_job *j, struct kvc_device_item like, uint32_t rows,
                     uint32_t each, struct kvc_error *e);
/* Adds items for the digests of rows [first, first + rows) of a target, of which the first has
 * number `seed` in its tensor. */
int kvc_encode_digests(struct kvc_encode_job *j, uint32_t index, uint32_t target, uint32_t first,
                       uint32_t rows, uint64_t seed, uint32_t level, struct kvc_error *e);
/* Adds items that gather rows [first, end) of a block. */
int kvc_encode_gathers(struct kvc_encode_job *j, uint32_t index, uint32_t first, uint32_t end,
                       struct kvc_error *e);
/* Returns the bytes that a launch takes of the room: of the device's memory and of KVC_ROOM_SMALL,
 * for so many items. */
size_t kvc_encode_launch_bytes(size_t items);
/* Queues a launch over the items, which are removed. `at`: offset in the device's memory of
 * kvc_encode_launch_bytes(), likewise in KVC_ROOM_SMALL; `digest`: offset of a sum for each block.
 */
int kvc_encode_launch(struct kvc_encode_job *j, size_t at, size_t digest, struct kvc_error *e);

/* Encode the run of blocks by `fast`, and by `quant` alone or after `tail`. The second function
 * adds to *raw the bytes of rows that it copies as they are. */
int kvc_encode_by_fast(struct kvc_encode_job *j, struct kvc_error *e);
int kvc_encode_by_quant(struct kvc_encode_job *j, uint64_t *raw, struct kvc_error *e);
/* Returns 1 if the second function takes a pipeline. */
int kvc_encode_takes_quant(const struct kvc_pipeline *p);

#endif
