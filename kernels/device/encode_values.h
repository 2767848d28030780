/* encode_values.h: values of a block as the device encoder meets them: where they lie in an
 * engine's memory, and codes packed into bits. One source for GPU and host (warp.h). Not for what
 * is computed from them (encode_fast.h, encode_quant.h). */
#ifndef KVC_ENCODE_VALUES_H
#define KVC_ENCODE_VALUES_H

#include "kernels/device/decode_target.h"
#include "kernels/device/encode_launch.h"

/* Returns the value at an address that is a multiple of its size. */
KVC_DEVICE uint32_t kvc_source_load(uint64_t address, uint32_t size) {
    return size == 2   ? kvc_aligned16(KVC_BYTES(address))
           : size == 4 ? kvc_aligned32(KVC_BYTES(address))
                       : *KVC_BYTES(address);
}

/* Returns how far channel c of a row lies from the row's first byte. */
KVC_DEVICE uint64_t kvc_source_offset(const struct kvc_device_target *g, uint32_t c) {
    return (uint64_t)((int64_t)(c / g->channels) * g->head) +
           (uint64_t)((int64_t)(c % g->channels) * g->dim);
}

/* Loads four adjacent values of 2 or 4 bytes at a multiple of their size together. */
KVC_DEVICE struct kvc_four kvc_source_four(uint64_t address, uint32_t size) {
    struct kvc_four four;
    uint32_t a, b;
    if (size == 4) return kvc_load_four(KVC_BYTES(address));
    kvc_load_two(KVC_BYTES(address), &a, &b);
    four.at[0] = a & 0xffffu;
    four.at[1] = a >> 16;
    four.at[2] = b & 0xffffu;
    four.at[3] = b >> 16;
    return four;
}

/* Loads values i to i + 3 of a block, row after row; i is a multiple of 4. Values from n on are 0.
 */
KVC_DEVICE struct kvc_four kvc_block_four(const struct kvc_encode_block *b,
                                          const struct kvc_device_target *g, uint32_t size,
                                          uint32_t i, uint32_t n) {
    uint32_t r = i / b->channels, c = i % b->channels;
    uint64_t row = kvc_target_row(g, b->first + r);
    struct kvc_four four = {{0, 0, 0, 0}};
    if (b->fours) return kvc_source_four(row + kvc_source_offset(g, c), size);
    for (uint32_t k = 0; k < 4 && i + k < n; k++) {
        four.at[k] = kvc_source_load(row + kvc_source_offset(g, c), size);
        if (++c == b->channels) {
            c = 0;
            if (i + k + 1 < n) row = kvc_target_row(g, b->first + ++r);
        }
    }
    return four;
}

/* Codes of a tile in shared memory, a byte each. The groups of 32 codes, which lanes pack, lie 9
 * words apart, so that lanes use different banks. */
enum { KVC_GROUP_WORDS = 9, KVC_TILE_GROUPS = KVC_ENCODE_TILE / 32 };
KVC_DEVICE uint32_t *kvc_group_word(uint32_t *work, uint32_t i) {
    return work + i / 32 * KVC_GROUP_WORDS + i % 32 / 4;
}

/* Packs the lowest `width` bits of 32 codes into 4 * width bytes (split.md, "PLANE"): adjacent
 * codes share a word at one shift. */
KVC_DEVICE void kvc_pack_group(uint32_t *to, const uint32_t *codes, uint32_t width) {
    uint32_t shift = 0;
    if (width == 8) {
        for (uint32_t j = 0; j < 8; j++) to[j] = codes[j];
        return;
    }
    if (width & 4) {
        for (uint32_t j = 0; j < 4; j++)
            *to++ = (codes[j] & 0x0f0f0f0fu) | (codes[j + 4] & 0x0f0f0f0fu) << 4;
        shift = 4;
    }
    if (width & 2) {
        for (uint32_t j = 0; j < 2; j++) {
            uint32_t word = 0;
            for (uint32_t k = 0; k < 4; k++)
                word |= (codes[j + 2 * k] >> shift & 0x03030303u) << 2 * k;
            *to++ = word;
        }
        shift += 2;
    }
    if (width & 1) {
        uint32_t word = 0;
        for (uint32_t k = 0; k < 8; k++) word |= (codes[k] >> shift & 0x01010101u) << k;
        *to = word;
    }
}

/* Packs a tile of n codes, of which the first is number `first`, a multiple of 32; codes from n on
 * up to a multiple of 32 are 0. */
KVC_DEVICE void kvc_pack_tile(uint64_t codes, const uint32_t *work, uint32_t first, uint32_t n,
                              uint32_t width) {
    KVC_EACH_LANE for (uint32_t j = lane; j < (n + 31) / 32; j += KVC_LANES)
        kvc_pack_group((uint32_t *)(uintptr_t)codes + (uint64_t)(first / 32 + j) * width,
                       work + j * KVC_GROUP_WORDS, width);
}

#endif
