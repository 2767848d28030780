/* decode.h: the device decoder: warps that take items off a queue until it is empty (launch.h). One source for GPU (decode.cu)
 * and host (decode_host.c). Not for what jobs and operations compute (decode_streams.h, decode_rows.h, decode_digest.h). */
#ifndef KVC_DECODE_H
#define KVC_DECODE_H

#include "kernels/device/decode_digest.h"
#include "kernels/device/decode_rows.h"
#include "kernels/device/decode_streams.h"
#include "kernels/device/decode_target.h"

/* Words of shared memory of a warp: two tiles, and its item, which takes no registers there. Their number is a multiple of 4: the
 * warps of a block lie next to each other, and tiles are loaded and stored by 16 bytes. */
enum {
    KVC_WORK_ITEM = 2 * KVC_DEVICE_TILE,
    KVC_ITEM_WORDS = sizeof(struct kvc_device_item) / 4,
    KVC_DEVICE_WORK = (KVC_WORK_ITEM + KVC_ITEM_WORDS + 3) / 4 * 4
};
static_assert(KVC_DEVICE_WORK * 4 % sizeof(struct kvc_four) == 0, "the tiles of every warp of a block must be aligned");

KVC_DEVICE uint32_t kvc_run_job(const struct kvc_device_job *job, uint32_t *work) {
    switch (job->kind) {
    case KVC_JOB_HALVES: return kvc_job_halves(job);
    case KVC_JOB_SLOTS: return kvc_job_slots(job);
    case KVC_JOB_MODEL: return kvc_job_model(job);
    case KVC_JOB_SPLIT: return kvc_job_split(job, work, work + KVC_DEVICE_TILE);
    case KVC_JOB_CODE: return kvc_job_code(job);
    case KVC_JOB_AHEAD: return kvc_job_ahead(job, work);
    default: return KVC_FAULT_NUMBER;
    }
}

/* Makes rows of a head, as many at a time as a tile holds of the widest matrix of the run. */
KVC_DEVICE uint32_t kvc_run_rows(const struct kvc_device_launch *l, const struct kvc_device_item *item, uint32_t *work) {
    const struct kvc_device_run *run = &l->run[item->index];
    const struct kvc_device_op *op = (const struct kvc_device_op *)(uintptr_t)run->ops;
    struct kvc_tile t;
    t.fault = 0;
    for (t.row = item->first; t.row < item->first + item->rows; t.row += t.rows) {
        const uint32_t together = KVC_DEVICE_TILE / item->columns, left = item->first + item->rows - t.row;
        t.word = work;
        t.other = work + KVC_DEVICE_TILE;
        t.rows = left < together ? left : together;
        t.head = item->head;
        t.column = item->column;
        /* whole heads begin with the width of the first operation's matrix, which may be narrower than the head */
        t.width = item->columns == run->dim ? op[0].dim : item->columns;
        /* the store does a final rounding, which saves a pass over shared memory */
        const uint32_t floats = run->n_ops && op[run->n_ops - 1].kind == KVC_OP_ROUND;
        for (uint32_t i = 0; i + floats < run->n_ops; i++) {
            kvc_op_run(&op[i], &t);
            KVC_LANES_MEET();
        }
        kvc_tile_store(&t, &l->target[run->target], (uint32_t)run->row + t.row, floats);
    }
    return t.fault;
}

KVC_DEVICE uint64_t kvc_run_digest(const struct kvc_device_launch *l, const struct kvc_device_item *item) {
    const struct kvc_device_target *g = &l->target[item->head];
    const uint32_t bytes = kvc_value_bytes(g->dtype);
    KVC_LANE_VAR(uint64_t, sum);
    KVC_EACH_LANE {
        KVC_AT(sum) = 0;
        for (uint32_t i = lane; i < item->rows; i += KVC_LANES) {
            const uint64_t start = kvc_target_row(g, item->first + i);
            const struct kvc_digest_row row = {KVC_BYTES(start), g->head, g->dim,
                                               g->channels,      bytes,   g->heads * g->channels * bytes};
            if (start) KVC_AT(sum) += kvc_digest_row_hash(&row, (uint64_t)item->seed + i);
        }
    }
#ifdef __CUDACC__
    for (unsigned step = KVC_LANES / 2; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, (int)step);
    return sum;
#else
    uint64_t total = 0;
    for (unsigned lane = 0; lane < KVC_LANES; lane++) total += sum[lane];
    return total;
#endif
}

KVC_DEVICE void kvc_run_item(const struct kvc_device_launch *l, const struct kvc_device_item *item, uint32_t *work) {
    if (item->kind == KVC_ITEM_DIGEST) {
        const uint64_t digest = kvc_run_digest(l, item);
        KVC_EACH_LANE {
            if (lane == 0) kvc_add_shared64(&l->digest[item->index], digest);
        }
        return;
    }
    const uint32_t fault = item->kind == KVC_ITEM_JOB ? kvc_run_job(&l->job[item->index], work) : kvc_run_rows(l, item, work);
    const uint32_t record = item->kind == KVC_ITEM_JOB ? l->job[item->index].record : l->run[item->index].record;
    KVC_EACH_LANE {
        if (lane == 0 && fault) kvc_or_shared32(&l->status[record], fault);
    }
}

/* Takes items until there are none. Every warp of a launch runs it, with a `work` of its own. An item waits only for earlier
 * items, which some warp has taken and finishes: so the wait always ends.
 *
 * On a GPU, rows that one warp writes become visible to another as follows: __syncwarp() orders the writes of all lanes before lane 0
 * counts the item, with release; lane 0 of the waiting warp reads the count with acquire, and __syncwarp() orders this before the reads
 * of its lanes. A shuffle orders no memory. */
KVC_DEVICE void kvc_take_items(const struct kvc_device_launch *l, uint32_t *work) {
#ifdef __CUDACC__
    const struct kvc_device_item *const item = (const struct kvc_device_item *)(work + KVC_WORK_ITEM);
    const uint32_t lane = threadIdx.x % KVC_LANES;
    for (;;) {
        uint32_t i = 0;
        if (lane == 0) i = atomicAdd(&l->counter[0], 1u);
        i = kvc_from_lane(i, 0);
        if (i >= l->n_items) return;
        if (lane < KVC_ITEM_WORDS) work[KVC_WORK_ITEM + lane] = ((const uint32_t *)&l->item[i])[lane];
        if (lane == 0) {
            const uint32_t level = l->item[i].level, need = l->need[level];
            while (kvc_load_acquire(&l->counter[level]) < need) __nanosleep(100); /* of the level before */
        }
        __syncwarp();
        kvc_run_item(l, item, work);
        const uint32_t level = item->level; /* before other lanes write the next item there */
        __syncwarp();
        if (lane == 0) kvc_add_release(&l->counter[1 + level], 1);
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
