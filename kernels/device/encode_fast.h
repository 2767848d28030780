/* encode_fast.h: the passes of the device encoder over blocks of `fast`
 * (codecs/stages/fast/fast.md). One source for GPU and host. */
#ifndef KVC_ENCODE_FAST_H
#define KVC_ENCODE_FAST_H

#include "kernels/device/encode_values.h"

/* The channels of a lane, four at most: how far they lie from the row's first byte. */
struct kvc_lane_channels {
    uint64_t at[4];
    uint32_t channel[4];
    uint32_t n, size, fours, half; /* half: bits of a value below its word */
};

KVC_DEVICE void kvc_lane_channels(struct kvc_lane_channels *to, const struct kvc_encode_block *b,
                                  const struct kvc_device_target *g,
                                  const struct kvc_device_item *item, uint32_t lane) {
    to->n = 0;
    to->size = kvc_value_bytes(g->dtype);
    to->half = to->size == 4 ? 16 : 0;
    to->fours = b->fours;
    KVC_UNROLL for (uint32_t k = 0; k < 4; k++) {
        const uint32_t c = b->fours ? 4 * lane + k : KVC_LANES * k + lane,
                       here = c < item->columns ? c : 0;
        to->n += c < item->columns;
        to->channel[k] = item->column + here;
        to->at[k] = kvc_source_offset(g, item->column + here);
    }
}

/* Returns the words of a lane's channels in a row. */
KVC_DEVICE struct kvc_four kvc_lane_words(const struct kvc_lane_channels *c, uint64_t row) {
    struct kvc_four four = {{0, 0, 0, 0}};
    if (c->fours) {
        if (c->n) four = kvc_source_four(row + c->at[0], c->size);
    } else {
        KVC_UNROLL for (uint32_t k = 0; k < 4; k++) if (k < c->n)
            four.at[k] = kvc_source_load(row + c->at[k], c->size);
    }
    KVC_UNROLL for (uint32_t k = 0; k < 4; k++) four.at[k] >>= c->half;
    return four;
}

/* Sets the mean exponent of each channel, and counts values by exponent less mean. Lanes count in
 * eight tables, so that few of them add to one number at once. */
KVC_DEVICE void kvc_encode_exponents(const struct kvc_device_launch *l,
                                     const struct kvc_device_item *item, uint32_t *work) {
    enum { TABLES = 8 };
    const struct kvc_encode_block *b = &l->block[item->index];
    const struct kvc_device_target *g = &l->target[b->source];
    const uint32_t mantissa = b->fast.mantissa, mask = (1u << (15 - mantissa)) - 1;
    KVC_EACH_LANE for (uint32_t i = lane; i < TABLES * 256; i += KVC_LANES) work[i] = 0;
    KVC_LANES_MEET();
    KVC_EACH_LANE {
        struct kvc_lane_channels c;
        uint32_t sum[4] = {0, 0, 0, 0}, *const table = work + lane % TABLES * 256;
        kvc_lane_channels(&c, b, g, item, lane);
        for (uint32_t r = 0; r < b->rows; r++) {
            const struct kvc_four w = kvc_lane_words(&c, kvc_target_row(g, b->first + r));
            KVC_UNROLL for (uint32_t k = 0; k < 4; k++) sum[k] += w.at[k] >> mantissa & mask;
        }
        KVC_UNROLL for (uint32_t k = 0; k < 4; k++) {
            sum[k] = (sum[k] + b->rows / 2) / b->rows;
            if (k < c.n) ((uint16_t *)(uintptr_t)b->fast.bias)[c.channel[k]] = (uint16_t)sum[k];
        }
        for (uint32_t r = 0; r < b->rows; r++) {
            const struct kvc_four w = kvc_lane_words(&c, kvc_target_row(g, b->first + r));
            KVC_UNROLL for (uint32_t k = 0; k < 4; k++) if (k < c.n)
                kvc_add_shared32(&table[((w.at[k] >> mantissa) - sum[k]) & mask], 1);
        }
    }
    KVC_LANES_MEET();
    KVC_EACH_LANE for (uint32_t i = lane; i < 256; i += KVC_LANES) {
        uint32_t sum = 0;
        for (uint32_t k = 0; k < TABLES; k++) sum += work[256 * k + i];
        if (sum) kvc_add_shared32((uint32_t *)(uintptr_t)b->fast.count + i, sum);
    }
}

/* Cuts four values less their biases, rotated by one bit, into low and high bytes. */
KVC_DEVICE void kvc_cut_four(const struct kvc_encode_block *b, struct kvc_four v, uint32_t i,
                             uint32_t n, uint32_t half, uint32_t *low, uint32_t *high) {
    uint32_t c = i % b->channels;
    *low = *high = 0;
    KVC_UNROLL for (uint32_t k = 0; k < 4; k++) {
        if (i + k < n) {
            const uint32_t bias = kvc_aligned16(KVC_BYTES(b->fast.bias) + 2 * (uint64_t)c)
                                  << b->fast.mantissa;
            const uint32_t word = ((v.at[k] >> half) - bias) & 0xffffu;
            *low |= ((word << 1 | word >> 15) & 255u) << 8 * k;
            *high |= (word >> 7 & 255u) << 8 * k;
        }
        if (++c == b->channels) c = 0;
    }
}

/* Lists the high bytes of a tile that `width` bits do not hold: each lane those of one group. */
KVC_DEVICE void kvc_list_escapes(const struct kvc_encode_block *b, uint32_t tile, uint32_t groups,
                                 const uint32_t *work) {
    const uint32_t above = (0xffu << b->fast.width & 0xffu) * 0x01010101u;
    KVC_LANE_VAR(uint32_t, own);
    KVC_LANE_VAR(uint32_t, end);
    KVC_LANE_VAR(uint32_t, first);
    KVC_EACH_LANE {
        KVC_AT(own) = 0;
        for (uint32_t i = 0; i < 32 && lane < groups; i++)
            KVC_AT(own) += (work[lane * KVC_GROUP_WORDS + i / 4] & above & 0xffu << i % 4 * 8) != 0;
        KVC_AT(end) = KVC_AT(own);
    }
    const uint32_t n = KVC_PREFIX_SUM(end);
    KVC_EACH_LANE {
        KVC_AT(first) = 0;
        if (lane == 0) {
            struct kvc_encode_escapes *to =
                (struct kvc_encode_escapes *)(uintptr_t)b->fast.escapes + tile;
            if (n) KVC_AT(first) = kvc_take_shared32((uint32_t *)(uintptr_t)b->fast.list_used, n);
            to->first = KVC_AT(first);
            to->n = n;
        }
    }
    if (!n) return;
    const uint32_t begin = kvc_from_lane(first, 0);
    KVC_EACH_LANE {
        uint32_t *to = (uint32_t *)(uintptr_t)b->fast.list + begin + (KVC_AT(end) - KVC_AT(own));
        for (uint32_t i = 0; i < 32 && KVC_AT(own); i++) {
            const uint32_t word = work[lane * KVC_GROUP_WORDS + i / 4];
            if (word & above & 0xffu << i % 4 * 8)
                *to++ = (32 * lane + i) << 8 | kvc_byte_of(word, i % 4);
        }
    }
}

/* Encodes the values of one tile. */
KVC_DEVICE void kvc_encode_fast(const struct kvc_device_launch *l,
                                const struct kvc_device_item *item, uint32_t *work) {
    const struct kvc_encode_block *b = &l->block[item->index];
    const struct kvc_device_target *g = &l->target[b->source];
    const uint32_t size = kvc_value_bytes(g->dtype), half = size == 4 ? 16 : 0;
    const uint32_t all = b->rows * b->channels, first = item->first * KVC_ENCODE_TILE;
    const uint32_t n = all - first < KVC_ENCODE_TILE ? all - first : KVC_ENCODE_TILE;
    KVC_EACH_LANE for (uint32_t i = 4 * lane; i < (n + 31) / 32 * 32; i += 4 * KVC_LANES) {
        uint32_t low = 0, high = 0;
        if (i < n) {
            const struct kvc_four v = kvc_block_four(b, g, size, first + i, all);
            kvc_cut_four(b, v, first + i, all, half, &low, &high);
            kvc_store_one((uint8_t *)(uintptr_t)b->fast.low + first + i, low);
            for (uint32_t p = 0; p < half / 8; p++) {
                uint32_t bytes = 0;
                KVC_UNROLL for (uint32_t k = 0; k < 4; k++) bytes |= kvc_byte_of(v.at[k], p)
                                                                     << 8 * k;
                kvc_store_one((uint8_t *)(uintptr_t)b->fast.plane[p] + first + i, bytes);
            }
        }
        *kvc_group_word(work, i) = high;
    }
    KVC_LANES_MEET();
    kvc_list_escapes(b, item->first, (n + 31) / 32, work);
    kvc_pack_tile(b->fast.codes, work, first, n, b->fast.width);
    KVC_LANES_MEET();
}

#endif
