/* decode.h: the device decoder: warps that take items off a queue until it is empty (launch.h). One
 * source for GPU (decode.cu) and host (decode_host.c). Not for what jobs and operations compute
 * (decode_streams.h, decode_rows.h, decode_digest.h). */
#ifndef KVC_DECODE_H
#define KVC_DECODE_H

#include "kernels/device/decode_rows.h"
#include "kernels/device/decode_streams.h"
#include "kernels/device/digest_rows.h"
#include "kernels/device/queue.h"

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
KVC_DEVICE uint32_t kvc_run_rows(const struct kvc_device_launch *l,
                                 const struct kvc_device_item *item, uint32_t *work) {
    const struct kvc_device_run *run = &l->run[item->index];
    const struct kvc_device_op *op = (const struct kvc_device_op *)(uintptr_t)run->ops;
    struct kvc_tile t;
    t.fault = 0;
    for (t.row = item->first; t.row < item->first + item->rows; t.row += t.rows) {
        const uint32_t together = KVC_DEVICE_TILE / item->columns,
                       left = item->first + item->rows - t.row;
        t.word = work;
        t.other = work + KVC_DEVICE_TILE;
        t.rows = left < together ? left : together;
        t.head = item->head;
        t.column = item->column;
        /* whole heads begin with the width of the first operation's matrix, which may be narrower
         * than the head */
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

KVC_DEVICE void kvc_run_item(const struct kvc_device_launch *l, const struct kvc_device_item *item,
                             uint32_t *work) {
    if (item->kind == KVC_ITEM_DIGEST) {
        const uint64_t digest = kvc_digest_item(l, item);
        KVC_EACH_LANE {
            if (lane == 0) kvc_add_shared64(&l->digest[item->index], digest);
        }
        return;
    }
    const uint32_t fault = item->kind == KVC_ITEM_JOB ? kvc_run_job(&l->job[item->index], work)
                                                      : kvc_run_rows(l, item, work);
    const uint32_t record = item->kind == KVC_ITEM_JOB ? l->job[item->index].record
                                                       : l->run[item->index].record;
    KVC_EACH_LANE {
        if (lane == 0 && fault) kvc_or_shared32(&l->status[record], fault);
    }
}

#endif
