/* block.c: blocks whose rows are stored as they are. */
#include "codecs/block.h"

#include <string.h>

int kvc_stored_raw(const struct kvc_stored *stored, struct kvc_block *block, struct kvc_error *e) {
    const struct kvc_section *s = stored->section, *next = s;
    const size_t size = (size_t)(block->shape.tokens * kvc_row_bytes(&block->shape));
    if (stored->n != 1 || s->type != KVC_SECTION_RAW || s->index != 0) return 0;
    if (!kvc_section_take_stored(&next, s + 1, KVC_SECTION_RAW, 0, e)) return -1;
    const uint8_t *rows = kvc_section_bytes(s, block->rows, size, e);
    if (!rows) return -1;
    const struct kvc_row_places *to = block->places;
    if (to)
        kvc_rows_scatter(to->base, rows, &block->shape, &to->strides, to->first,
                         block->shape.tokens, to->past);
    else if (size) memcpy(block->rows, rows, size);
    block->placed = to != NULL;
    return 1;
}
