/* blocks_digest.c: names blocks in messages, and compares the decoded rows of blocks with their
 * digests. Not for decoding (blocks.c). */
#include "formats/container/records.h"

#include "formats/container/offsets.h"

#include <inttypes.h>
#include <stdio.h>

void kvc_blocks_label(const struct kvc_cache *c, uint32_t tensor, uint64_t block, uint64_t end,
                      char *text, size_t size) {
    const struct kvc_cells *cells = &kvc_tensor_part(c, tensor)->cells;
    char label[64];
    kvc_tensor_label(c, tensor, label, sizeof label);
    snprintf(text, size, "%s, tokens %" PRId64 ":%" PRId64, label,
             kvc_cells_position(cells, cells->block[block]),
             kvc_cells_position(cells, cells->block[end] - 1) + 1);
}

int(kvc_blocks_context)(const struct kvc_cache *c, struct kvc_error *e, uint32_t tensor,
                        uint64_t block) {
    const struct kvc_records *k = kvc_records_of(c);
    const uint64_t record = k->block_record[k->first_block[tensor] + block];
    char where[128];
    kvc_blocks_label(c, tensor, block, block + 1, where, sizeof where);
    return record == KVC_NOWHERE ? kvc_error_prefix(e, where)
                                 : kvc_record_context(e, record, where);
}

int kvc_blocks_check_digest(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                            const uint8_t *dst, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_record *r = &k->record[k->block_record[k->first_block[tensor] + block]];
    const struct kvc_cells *cells = &kvc_tensor_part(c, tensor)->cells;
    const uint64_t first = cells->block[block], rows = cells->block[block + 1] - first;
    const uint64_t digest = kvc_digest_rows(dst, kvc_row_bytes(&c->tensor[tensor].shape), first,
                                            rows);
    uint8_t head[24];
    if (kvc_input_copy(k->in, r->offset, head, sizeof head, e))
        return kvc_blocks_context(c, e, tensor, block);
    if (head[1] & KVC_RECORD_NO_DIGEST || digest == get_u64(head + 16)) return 0;
    kvc_record_damaged(e, r->offset, "decoded values do not match the digest");
    return kvc_blocks_context(c, e, tensor, block);
}

int kvc_blocks_check_digests(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                             const uint8_t *dst, struct kvc_error *e) {
    const uint64_t *const start = kvc_tensor_part(c, tensor)->cells.block + block;
    const uint8_t *second = dst + (start[1] - start[0]) * kvc_row_bytes(&c->tensor[tensor].shape);
    if (kvc_blocks_check_digest(c, tensor, block, dst, e)) return -1;
    if (kvc_blocks_check_digest(c, tensor, block + 1, second, e)) return -1;
    return 0;
}
