/* decode_target.h: writes a tile where an engine keeps its rows. */
#ifndef KVC_DECODE_TARGET_H
#define KVC_DECODE_TARGET_H

#include "kernels/device/decode_tile.h"

/* Returns the address of channel 0 of head 0 of row `row`, or 0 when the row has no page. */
KVC_DEVICE uint64_t kvc_target_row(const struct kvc_device_target *g, uint32_t row) {
    const uint32_t number = (g->first + row) / g->page_size,
                   token = (g->first + row) % g->page_size;
    if (number >= g->pages) return 0;
    const uint32_t page = g->table ? KVC_WORDS(g->table)[number] : number;
    return g->base + (uint64_t)((int64_t)page * g->page) + (uint64_t)((int64_t)token * g->token);
}

KVC_DEVICE void kvc_store(uint64_t address, uint32_t word, uint32_t size) {
    if (size == 2) *(uint16_t *)(uintptr_t)address = (uint16_t)word;
    else if (size == 1) *(uint8_t *)(uintptr_t)address = (uint8_t)word;
    else *(uint32_t *)(uintptr_t)address = word;
}

/* Stores four adjacent values at a multiple of their size. */
KVC_DEVICE void kvc_store_values(uint64_t address, struct kvc_four v, uint32_t size) {
    void *to = (void *)(uintptr_t)address;
    if (size == 2)
        kvc_store_two(to, (v.at[0] & 0xffffu) | v.at[1] << 16, (v.at[2] & 0xffffu) | v.at[3] << 16);
    else if (size == 4) kvc_store_four(to, v);
    else
        kvc_store_one(to, (v.at[0] & 255u) | (v.at[1] & 255u) << 8 | (v.at[2] & 255u) << 16 |
                              v.at[3] << 24);
}

/* Changes from a tile's word to a target's. */
enum kvc_word_change {
    KVC_WORD_AS_IT_IS,
    KVC_WORD_TO_F16,
    KVC_WORD_TO_BF16, /* binary32 to this dtype */
    KVC_WORD_FLOAT,   /* binary32, rounded to the tensor's dtype, to any dtype */
    KVC_WORD_OTHER    /* the tensor's dtype to any dtype */
};
/* Returns a tile's word as the target has it. `change` is a constant. */
KVC_DEVICE uint32_t kvc_target_word(const struct kvc_device_target *g, uint32_t word,
                                    const enum kvc_word_change change) {
    if (change == KVC_WORD_AS_IT_IS) return word;
    if (change == KVC_WORD_TO_F16) return kvc_round(kvc_as_float(word), KVC_DEVICE_F16);
    if (change == KVC_WORD_TO_BF16) return kvc_round(kvc_as_float(word), KVC_DEVICE_BF16);
    if (change == KVC_WORD_FLOAT) word = kvc_round(kvc_as_float(word), g->from);
    return g->dtype == g->from ? word : kvc_round(kvc_widen(word, g->from), g->dtype);
}

/* Rows that are written at a time. Their addresses, 0 for rows without a page, are two words each
 * in the tile that is not in use. */
enum { KVC_ROWS_TOGETHER = KVC_DEVICE_TILE / 2 };
KVC_DEVICE uint64_t kvc_row_start(const struct kvc_tile *t, uint32_t r) {
    uint32_t low, high;
    kvc_load_two(t->other + 2 * r, &low, &high);
    return (uint64_t)high << 32 | low;
}

KVC_DEVICE void kvc_tile_write(struct kvc_tile *t, const struct kvc_device_target *g,
                               uint32_t first, uint32_t rows, uint32_t fours,
                               const enum kvc_word_change change) {
    const uint32_t size = kvc_value_bytes(g->dtype), end = first + rows;
    if (fours) {
        KVC_EACH_LANE for (uint32_t r = first + kvc_row_of(t, 4 * lane),
                           c = kvc_column_of(t, 4 * lane);
                           r < end; kvc_walk(t, 4 * KVC_LANES, &r, &c)) {
            const uint64_t to = kvc_row_start(t, r - first);
            struct kvc_four four = kvc_load_four(KVC_FOUR(t));
            KVC_UNROLL for (uint32_t k = 0; k < 4; k++)
                four.at[k] = kvc_target_word(g, four.at[k], change);
            if (to) kvc_store_values(to + (uint64_t)c * size, four, size);
        }
    } else {
        KVC_EACH_LANE for (uint32_t r = first + kvc_row_of(t, lane), c = kvc_column_of(t, lane);
                           r < end; kvc_walk(t, KVC_LANES, &r, &c)) {
            const uint64_t to = kvc_row_start(t, r - first);
            if (to)
                kvc_store(to + (uint64_t)((int64_t)c * g->dim),
                          kvc_target_word(g, KVC_VALUE(t), change), size);
        }
    }
}

/* Writes the tile, of at least one row, to rows `row` and following; the lanes meet at the end.
 * floats, 1: words are binary32 that round to the tensor's dtype. */
KVC_DEVICE void kvc_tile_store(struct kvc_tile *t, const struct kvc_device_target *g, uint32_t row,
                               uint32_t floats) {
    const uint32_t size = kvc_value_bytes(g->dtype), same = g->dtype == g->from;
    for (uint32_t first = 0; first < t->rows; first += KVC_ROWS_TOGETHER) {
        const uint32_t rows = t->rows - first < KVC_ROWS_TOGETHER ? t->rows - first
                                                                  : KVC_ROWS_TOGETHER;
        KVC_LANE_VAR(uint32_t, missing);
        KVC_LANE_VAR(uint32_t, odd);
        KVC_EACH_LANE {
            KVC_AT(missing) = KVC_AT(odd) = 0;
            for (uint32_t r = lane; r < rows; r += KVC_LANES) {
                uint64_t to = kvc_target_row(g, row + first + r);
                if (to)
                    to += (uint64_t)((int64_t)t->head * g->head) +
                          (uint64_t)((int64_t)t->column * g->dim);
                else KVC_AT(missing) = 1;
                KVC_AT(odd) |= to % (4 * size) != 0;
                kvc_store_two(t->other + 2 * r, (uint32_t)to, (uint32_t)(to >> 32));
            }
        }
        if (kvc_ballot(missing)) t->fault |= KVC_FAULT_INDEX;
        const uint32_t fours = !kvc_ballot(odd) && g->dim == (int64_t)size && t->width % 4 == 0;
        KVC_LANES_MEET();
        if (!floats && same) kvc_tile_write(t, g, first, rows, fours, KVC_WORD_AS_IT_IS);
        else if (floats && same && g->from == KVC_DEVICE_F16)
            kvc_tile_write(t, g, first, rows, fours, KVC_WORD_TO_F16);
        else if (floats && same && g->from == KVC_DEVICE_BF16)
            kvc_tile_write(t, g, first, rows, fours, KVC_WORD_TO_BF16);
        else if (floats) kvc_tile_write(t, g, first, rows, fours, KVC_WORD_FLOAT);
        else kvc_tile_write(t, g, first, rows, fours, KVC_WORD_OTHER);
        KVC_LANES_MEET();
    }
}

#endif
