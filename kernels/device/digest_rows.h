/* digest_rows.h: sums of the digests of rows where they lie in an engine's memory, one lane a row:
 * an item of the decoder and of the encoder. Not for the hash of one row (decode_digest.h). */
#ifndef KVC_DIGEST_ROWS_H
#define KVC_DIGEST_ROWS_H

#include "kernels/device/decode_digest.h"
#include "kernels/device/decode_target.h"

KVC_DEVICE uint64_t kvc_digest_item(const struct kvc_device_launch *l,
                                    const struct kvc_device_item *item) {
    const struct kvc_device_target *g = &l->target[item->head];
    const uint32_t bytes = kvc_value_bytes(g->dtype);
    KVC_LANE_VAR(uint64_t, sum);
    KVC_EACH_LANE {
        KVC_AT(sum) = 0;
        for (uint32_t i = lane; i < item->rows; i += KVC_LANES) {
            const uint64_t start = kvc_target_row(g, item->first + i);
            const struct kvc_digest_row row = {
                KVC_BYTES(start), g->head, g->dim,
                g->channels,      bytes,   g->heads * g->channels * bytes};
            if (start) KVC_AT(sum) += kvc_digest_row_hash(&row, (uint64_t)item->seed + i);
        }
    }
#ifdef __CUDACC__
    for (unsigned step = KVC_LANES / 2; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, (int)step);
    return sum;
#else
    uint64_t total = 0;
    for (unsigned lane = 0; lane < KVC_LANES; lane++) total += sum[lane];
    return total;
#endif
}

#endif
