/* encode_quant.h: the passes of the device encoder over blocks of `quant`
 * (codecs/stages/quant/quant.md), of one class and without norms. Rounding is that of
 * kvc_range_ref(), kvc_quantise_ref() and kvc_dequantise_ref(). One source for GPU and host. */
#ifndef KVC_ENCODE_QUANT_H
#define KVC_ENCODE_QUANT_H

#include "kernels/device/encode_values.h"

/* The span that a code lies in, and its first code and parameter. */
struct kvc_encode_span {
    uint32_t width, groups; /* channels; groups of a row, or of a channel's rows */
    uint32_t codes, params; /* of a span */
};

KVC_DEVICE struct kvc_encode_span kvc_encode_span(const struct kvc_encode_block *b,
                                                  const struct kvc_device_target *g) {
    const struct kvc_encode_quant *q = &b->quant;
    struct kvc_encode_span s;
    s.width = q->by_head ? g->channels : b->channels;
    s.groups = ((q->axis == KVC_QUANT_ROWS ? b->rows : s.width) + q->group - 1) / q->group;
    s.codes = b->rows * s.width;
    s.params = q->axis == KVC_QUANT_ROWS       ? s.groups * s.width
               : q->axis == KVC_QUANT_CHANNELS ? b->rows * s.groups
                                               : b->rows;
    return s;
}

/* Finds the ranges of groups, one lane a group. */
KVC_DEVICE void kvc_encode_ranges(const struct kvc_device_launch *l,
                                  const struct kvc_device_item *item) {
    const struct kvc_encode_block *b = &l->block[item->index];
    const struct kvc_device_target *g = &l->target[b->source];
    const struct kvc_encode_quant *q = &b->quant;
    const struct kvc_encode_span s = kvc_encode_span(b, g);
    const uint32_t size = kvc_value_bytes(g->dtype);
    KVC_EACH_LANE for (uint32_t p = item->first + lane; p < item->first + item->rows;
                       p += KVC_LANES) {
        const uint32_t in = p % s.params, base = p / s.params * s.width;
        uint32_t r = in, rows = 1, c = base, columns = s.width;
        if (q->axis == KVC_QUANT_ROWS) {
            r = in / s.width * q->group;
            rows = b->rows - r < q->group ? b->rows - r : q->group;
            c = base + in % s.width;
            columns = 1;
        } else if (q->axis == KVC_QUANT_CHANNELS) {
            const uint32_t at = in % s.groups * q->group;
            r = in / s.groups;
            c = base + at;
            columns = s.width - at < q->group ? s.width - at : q->group;
        }
        float low = 0, high = 0;
        uint32_t beyond = 0;
        for (uint32_t i = 0; i < rows; i++) {
            const uint64_t row = kvc_target_row(g, b->first + r + i);
            for (uint32_t k = 0; k < columns; k++) {
                const float x = kvc_widen(kvc_source_load(row + kvc_source_offset(g, c + k), size),
                                          g->dtype);
                beyond |= (kvc_as_bits(x) & 0x7fffffffu) >= 0x58800000u; /* 2^50 */
                if (i + k == 0) low = high = x;
                low = x < low ? x : low;
                high = x > high ? x : high;
            }
        }
        if (q->axis != KVC_QUANT_ROWS) { /* zeros become +0, as kvc_range_ref() has them */
            low = kvc_add(low, 0.0f);
            high = kvc_add(high, 0.0f);
        }
        ((float *)(uintptr_t)q->low)[p] = low;
        ((float *)(uintptr_t)q->high)[p] = high;
        if (beyond) kvc_or_shared32((uint32_t *)(uintptr_t)q->beyond, 1);
    }
}

/* Quantises one value, and writes the value that it decodes to. Returns the code. */
KVC_DEVICE uint32_t kvc_quantise_one(const struct kvc_encode_block *b,
                                     const struct kvc_device_target *g, uint32_t size,
                                     const struct kvc_encode_span *s, uint32_t i) {
    const struct kvc_encode_quant *q = &b->quant;
    const uint32_t span = i / s->codes, in = i % s->codes, r = in / s->width,
                   column = in % s->width, c = span * s->width + column;
    const uint32_t p = span * s->params +
                       (q->axis == KVC_QUANT_ROWS       ? r / q->group * s->width + column
                        : q->axis == KVC_QUANT_CHANNELS ? r * s->groups + column / q->group
                                                        : r);
    const uint64_t row = kvc_target_row(g, b->first + r);
    const float x = kvc_widen(kvc_source_load(row + kvc_source_offset(g, c), size), g->dtype),
                low = KVC_FLOATS(q->low)[p];
    const float most = (float)((1u << q->bits) - 1);
    float v = kvc_times(kvc_add(x, -low), KVC_FLOATS(q->inverse)[p]);
    v = v > 0 ? v : 0;
    const uint32_t code = (uint32_t)kvc_nearest(v < most ? v : most);
    const float back = kvc_add(kvc_times((float)code, KVC_FLOATS(q->step)[p]), low);
    kvc_store(q->decoded + ((uint64_t)r * b->channels + c) * size, kvc_round(back, g->dtype), size);
    return code;
}

/* Encodes the values of one tile. */
KVC_DEVICE void kvc_encode_quant(const struct kvc_device_launch *l,
                                 const struct kvc_device_item *item, uint32_t *work) {
    const struct kvc_encode_block *b = &l->block[item->index];
    const struct kvc_device_target *g = &l->target[b->source];
    const struct kvc_encode_span s = kvc_encode_span(b, g);
    const uint32_t all = b->rows * b->channels, first = item->first * KVC_ENCODE_TILE,
                   size = kvc_value_bytes(g->dtype);
    const uint32_t n = all - first < KVC_ENCODE_TILE ? all - first : KVC_ENCODE_TILE;
    uint8_t *const bytes = (uint8_t *)work;
    KVC_EACH_LANE for (uint32_t i = lane; i < (n + 31) / 32 * 32; i += KVC_LANES) {
        const uint32_t code = i < n ? kvc_quantise_one(b, g, size, &s, first + i) : 0;
        bytes[4 * (i / 32 * KVC_GROUP_WORDS) + i % 32] = (uint8_t)code;
    }
    KVC_LANES_MEET();
    kvc_pack_tile(b->quant.codes, work, first, n, b->quant.bits);
    KVC_LANES_MEET();
}

#endif
