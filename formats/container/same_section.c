/* same_section.c: reads section SAME. */
#include "formats/container/same_section.h"

#include "codecs/memory.h"
#include "formats/container/records.h"

#include <stdlib.h>

int kvc_same_read(const struct kvc_cache *c, uint32_t tensor, uint64_t rows,
                  const struct kvc_section *s, struct kvc_split *split, struct kvc_error *e) {
    uint8_t *bytes;
    size_t n;
    if (kvc_records_decode(s, &bytes, &n, e)) return -1;
    uint64_t next = 0;
    int status = 0;
    split->n_same = n / KVC_SAME_ENTRY;
    split->same = kvc_alloc(split->n_same, sizeof *split->same);
    if (!split->same) status = kvc_fail_memory(e, "references");
    else if (!n || n % KVC_SAME_ENTRY)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "SAME is not a whole number of entries");
    for (size_t i = 0; i < split->n_same && !status; i++) {
        const uint8_t *p = bytes + i * KVC_SAME_ENTRY;
        struct kvc_same x = {get_u32(p), get_u32(p + 4), get_u32(p + 8), get_u32(p + 12),
                             get_u32(p + 16)};
        if (x.row < next || !x.count || x.count > rows || x.row > rows - x.count ||
            x.tensor >= tensor) {
            status = kvc_fail(e, KVC_ERR_DAMAGED, "SAME entry %zu is out of range", i);
            break;
        }
        const struct kvc_shape *mine = &c->tensor[tensor].shape,
                               *other = &c->tensor[x.tensor].shape;
        const struct kvc_cells *cells = &kvc_tensor_part(c, x.tensor)->cells;
        uint64_t there = x.block < cells->n_blocks
                             ? cells->block[x.block + 1] - cells->block[x.block]
                             : 0;
        if (mine->dtype != other->dtype || mine->heads != other->heads || mine->dim != other->dim ||
            x.count > there || x.there > there - x.count)
            status = kvc_fail(e, KVC_ERR_DAMAGED,
                              "SAME entry %zu refers to rows that are not there", i);
        split->same[i] = x;
        split->own -= x.count;
        next = (uint64_t)x.row + x.count;
    }
    free(bytes);
    return status;
}
