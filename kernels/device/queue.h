/* queue.h: warps that take items off a queue until it is empty (launch.h), for the decoder and for
 * the encoder. One source for GPU and host. Not for what items are: the file that includes this one
 * defines kvc_run_item(). */
#ifndef KVC_QUEUE_H
#define KVC_QUEUE_H

#include "kernels/device/decode_values.h"

/* Words of shared memory of a warp: two tiles, and its item, which takes no registers there. Their
 * number is a multiple of 4: the warps of a block lie next to each other, and tiles are loaded and
 * stored by 16 bytes. */
enum {
    KVC_WORK_ITEM = 2 * KVC_DEVICE_TILE,
    KVC_ITEM_WORDS = sizeof(struct kvc_device_item) / 4,
    KVC_DEVICE_WORK = (KVC_WORK_ITEM + KVC_ITEM_WORDS + 3) / 4 * 4
};
static_assert(KVC_DEVICE_WORK * 4 % sizeof(struct kvc_four) == 0,
              "the tiles of every warp of a block must be aligned");

/* Runs one item with a warp's shared memory. */
KVC_DEVICE void kvc_run_item(const struct kvc_device_launch *l, const struct kvc_device_item *item,
                             uint32_t *work);

/* Takes items until there are none. Every warp of a launch runs it, with a `work` of its own. An
 * item waits only for earlier items, which some warp has taken and finishes: so the wait always
 * ends.
 *
 * On a GPU, rows that one warp writes become visible to another as follows: __syncwarp() orders the
 * writes of all lanes before lane 0 counts the item, with release; lane 0 of the waiting warp reads
 * the count with acquire, and __syncwarp() orders this before the reads of its lanes. A shuffle
 * orders no memory. */
KVC_DEVICE void kvc_take_items(const struct kvc_device_launch *l, uint32_t *work) {
#ifdef __CUDACC__
    const struct kvc_device_item *const item = (const struct kvc_device_item *)(work +
                                                                                KVC_WORK_ITEM);
    const uint32_t lane = threadIdx.x % KVC_LANES;
    for (;;) {
        uint32_t i = 0;
        if (lane == 0) i = atomicAdd(&l->counter[0], 1u);
        i = kvc_from_lane(i, 0);
        if (i >= l->n_items) return;
        if (lane < KVC_ITEM_WORDS)
            work[KVC_WORK_ITEM + lane] = ((const uint32_t *)&l->item[i])[lane];
        if (lane == 0) {
            const uint32_t level = l->item[i].level, need = l->need[level];
            /* of the level before */
            while (kvc_load_acquire(&l->counter[level]) < need) __nanosleep(100);
        }
        __syncwarp();
        kvc_run_item(l, item, work);
        const uint32_t level = item->level; /* before other lanes write the next item there */
        __syncwarp();
        /* nothing waits for the last level, and making its rows visible would take long */
        if (lane == 0 && l->need[level + 1]) kvc_add_release(&l->counter[1 + level], 1);
    }
#else
    for (uint32_t i = l->counter[0]; i < l->n_items; i++) {
        const uint32_t level = l->item[i].level;
        /* a queue that would make a GPU wait for ever is wrong: nothing counts as decoded then */
        if (l->need[level] && l->counter[level] < l->need[level]) return;
        kvc_run_item(l, &l->item[i], work);
        l->counter[1 + level]++;
        l->counter[0] = i + 1;
    }
#endif
}

#endif
