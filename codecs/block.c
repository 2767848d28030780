/* block.c: rows that were stored as they are. */
#include "codecs/block.h"

int kvc_stored_raw(const struct kvc_stored *stored, struct kvc_block *block, struct kvc_error *e) {
    const struct kvc_section *s = stored->section, *next = s;
    const struct kvc_row_places *to = block->places;
    const uint64_t size = block->shape.tokens * kvc_row_bytes(&block->shape);
    if (stored->n != 1 || s->type != KVC_SECTION_RAW || s->index != 0) return 0;
    if (!kvc_section_take_stored(&next, s + 1, KVC_SECTION_RAW, 0, e)) return -1;
    if (!to) return kvc_section_decode(s, block->rows, (size_t)size, e) ? -1 : 1;
    if (s->size != size)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section RAW holds %llu bytes where %llu are due",
                        (unsigned long long)s->size, (unsigned long long)size);
    kvc_rows_scatter(to->base, s->data, &block->shape, &to->strides, to->first,
                     block->shape.tokens, to->past);
    block->placed = 1;
    return 1;
}
