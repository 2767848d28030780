/* encode_items.h: the device encoder: the items of a launch that encodes blocks (encode_launch.h).
 * One source for GPU (encode.cu) and host (encode_host.c). Not for decoding (decode.h), which is a
 * kernel of its own, because it needs more registers. */
#ifndef KVC_ENCODE_ITEMS_H
#define KVC_ENCODE_ITEMS_H

#include "kernels/device/digest_rows.h"
#include "kernels/device/encode_fast.h"
#include "kernels/device/encode_quant.h"
#include "kernels/device/queue.h"

/* Copies rows to dense memory: rows that the host codes. */
KVC_DEVICE void kvc_encode_gather(const struct kvc_device_launch *l,
                                  const struct kvc_device_item *item) {
    const struct kvc_encode_block *b = &l->block[item->index];
    const struct kvc_device_target *g = &l->target[b->source];
    const uint32_t size = kvc_value_bytes(g->dtype);
    for (uint32_t r = item->first; r < item->first + item->rows; r++) {
        const uint64_t from = kvc_target_row(g, b->first + r),
                       to = b->gathered + (uint64_t)r * b->channels * size;
        KVC_EACH_LANE for (uint32_t c = lane; c < b->channels; c += KVC_LANES)
            kvc_store(to + (uint64_t)c * size,
                      kvc_source_load(from + kvc_source_offset(g, c), size), size);
    }
}

KVC_DEVICE void kvc_run_item(const struct kvc_device_launch *l, const struct kvc_device_item *item,
                             uint32_t *work) {
    switch (item->kind) {
    case KVC_ENCODE_EXPONENTS: kvc_encode_exponents(l, item, work); break;
    case KVC_ENCODE_FAST: kvc_encode_fast(l, item, work); break;
    case KVC_ENCODE_RANGES: kvc_encode_ranges(l, item); break;
    case KVC_ENCODE_QUANT: kvc_encode_quant(l, item, work); break;
    case KVC_ENCODE_GATHER: kvc_encode_gather(l, item); break;
    default: {
        const uint64_t digest = kvc_digest_item(l, item);
        KVC_EACH_LANE {
            if (lane == 0) kvc_add_shared64(&l->digest[item->index], digest);
        }
    }
    }
}

#endif
