/* load_plan.c: the plan of a load: blocks in the order of the file, pieces that are read and
 * launched together, and the room that they need. Not for allocating the room (load_run.c). */
#include "formats/device/load_state.h"

#include "codecs/memory.h"
#include "formats/container/device_blocks.h"

#include <inttypes.h>
#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)
enum { SLOTS = 8, GAP = 1 << 16, THREADS = 8 };

void kvc_load_rows(const struct kvc_cache *c, uint32_t tensor,
                   const struct kvc_load_options *options, uint64_t *first, uint64_t *n) {
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    const int all = !options->first && !options->end;
    *first = all ? 0 : kvc_cells_row_from(cells, options->first);
    const uint64_t end = all ? cells->n : kvc_cells_row_from(cells, options->end);
    *n = end > *first ? end - *first : 0;
}

static int by_offset(const void *a, const void *b) {
    const struct kvc_load_wanted *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Adds a block, of whose rows those among [first, first + n) of the tensor are wanted. */
static void add_block(struct kvc_load *l, uint32_t t, uint64_t block, uint64_t first, uint64_t n) {
    const struct kvc_cells *cells = kvc_tensor_cells(l->cache, t);
    const struct kvc_container_block r = kvc_container_block(l->cache, t, block);
    const uint64_t start = cells->block[block], end = cells->block[block + 1];
    const uint64_t from = start > first ? start : first, to = end < first + n ? end : first + n;
    const int whole = l->options.verify && to - from == end - start &&
                      l->target[t].dtype == l->target[t].from;
    l->block[l->n_blocks++] = (struct kvc_load_wanted){.tensor = t,
                                                       .block = block,
                                                       .offset = r.offset,
                                                       .size = r.size,
                                                       .first = from - start,
                                                       .rows = to - from,
                                                       .row = from - first,
                                                       .whole = whole};
    l->info.decoded += (to - from) * kvc_row_bytes(&l->cache->tensor[t].shape);
}

/* Lists the blocks that have wanted rows, in the order of the file. */
static int list_blocks(struct kvc_load *l, struct kvc_error *e) {
    if (!(l->block = kvc_alloc(kvc_container_blocks(l->cache), sizeof *l->block)))
        return kvc_fail_memory(e, "a plan");
    for (uint32_t t = 0; t < l->cache->n_tensors; t++) {
        const struct kvc_cells *cells = kvc_tensor_cells(l->cache, t);
        uint64_t first, n;
        if (!l->target[t].base) continue;
        kvc_load_rows(l->cache, t, &l->options, &first, &n);
        if (n > UINT32_MAX - l->target[t].first)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "%" PRIu64 " tokens: a device takes at most 2^32 - 1 at once", n);
        for (uint64_t b = n ? kvc_cells_block_of(cells, first) : 0;
             n && b < cells->n_blocks && cells->block[b] < first + n; b++)
            add_block(l, t, b, first, n);
    }
    qsort(l->block, l->n_blocks, sizeof *l->block, by_offset);
    return 0;
}

/* Returns the usual size of a slot: 8 MiB, and up to four times as much where blocks are compressed
 * further, so that a launch has enough blocks to keep a device busy. */
static uint64_t usual_slot(const struct kvc_load *l) {
    uint64_t stored = 1;
    for (size_t i = 0; i < l->n_blocks; i++) stored += l->block[i].size;
    const uint64_t times = l->info.decoded / stored / 3;
    return 8 * MIB * (times < 1 ? 1 : times < 4 ? times : 4);
}

/* Cuts the list into pieces of at most slot_bytes, which grows to the size of the largest record.
 */
static int list_pieces(struct kvc_load *l, struct kvc_error *e) {
    uint64_t at = 0;
    if (!l->options.slot_bytes) l->options.slot_bytes = usual_slot(l);
    for (size_t i = 0; i < l->n_blocks; i++)
        if (l->block[i].size > l->options.slot_bytes) l->options.slot_bytes = l->block[i].size;
    l->piece = kvc_alloc(l->n_blocks, sizeof *l->piece);
    l->range = kvc_alloc(l->n_blocks, sizeof *l->range);
    if (!l->piece || !l->range) return kvc_fail_memory(e, "a plan");
    for (size_t i = 0; i < l->n_blocks; i++) {
        const struct kvc_load_wanted *b = &l->block[i];
        struct kvc_ring_piece *r = l->n_pieces ? &l->range[l->n_pieces - 1] : NULL;
        if (r && b->offset - (r->offset + r->size) <= GAP &&
            b->offset + b->size - r->offset <= l->options.slot_bytes) {
            r->size = b->offset + b->size - r->offset;
            l->piece[l->n_pieces - 1].n++;
            continue;
        }
        l->range[l->n_pieces] = (struct kvc_ring_piece){b->offset, b->size};
        l->piece[l->n_pieces++] = (struct kvc_load_piece){.first = i, .n = 1};
    }
    for (size_t i = 0; i < l->n_pieces; i++) {
        l->piece[i].at = at;
        at += (l->range[i].size + KVC_RING_ALIGN - 1) / KVC_RING_ALIGN * KVC_RING_ALIGN;
        l->info.stored += l->range[i].size;
    }
    return 0;
}

/* Finds shared tables by lowering blocks without output: the first block of every segment, then
 * further blocks while they still add tables. In the first K, every block adds its positions. */
static int find_kept(struct kvc_load *l, struct kvc_error *e) {
    uint32_t tensor = KVC_NONE;
    uint64_t segment = 0;
    int more = 0;
    for (size_t i = 0; i < l->n_blocks; i++) {
        const struct kvc_load_wanted *b = &l->block[i];
        const int new_segment = b->tensor != tensor || b->block / KVC_SEGMENT_BLOCKS != segment;
        if (!new_segment && !more) continue;
        tensor = b->tensor;
        segment = b->block / KVC_SEGMENT_BLOCKS;
        if (kvc_kept_add_block(&l->kept, l->cache, b->tensor, b->block, &more, e)) return -1;
    }
    return 0;
}

/* Sets the bytes of tables and of scratch memory to at least the need of the largest block. */
static void measure_room(struct kvc_load *l) {
    struct kvc_load_options *o = &l->options;
    uint64_t block = 0, piece = 0;
    for (size_t i = 0; i < l->n_pieces; i++) {
        uint64_t decoded = 0;
        for (size_t k = 0; k < l->piece[i].n; k++) {
            const struct kvc_load_wanted *b = &l->block[l->piece[i].first + k];
            const uint64_t bytes = KVC_BLOCK * kvc_row_bytes(&l->cache->tensor[b->tensor].shape);
            block = bytes > block ? bytes : block;
            decoded += bytes;
        }
        piece = decoded > piece ? decoded : piece;
    }
    const uint64_t tables = 4 * block + 4 * MIB, minimum = 8 * block + 4 * MIB,
                   maximum = 3 * piece + minimum;
    if (!o->table_bytes) o->table_bytes = o->slot_bytes / 2;
    if (o->table_bytes < tables) o->table_bytes = tables;
    if (!o->scratch_bytes)
        o->scratch_bytes = maximum < KVC_LOAD_SCRATCH ? maximum : KVC_LOAD_SCRATCH;
    if (o->scratch_bytes < minimum) o->scratch_bytes = minimum;
}

int kvc_load_plan(struct kvc_load *l, struct kvc_error *e) {
    struct kvc_load_options *o = &l->options;
    if (!o->threads) o->threads = THREADS;
    if (!o->slots) o->slots = SLOTS;
    if (o->slots < KVC_LOAD_MIN_SLOTS) o->slots = KVC_LOAD_MIN_SLOTS;
    if (o->slots > KVC_LOAD_MAX_SLOTS) o->slots = KVC_LOAD_MAX_SLOTS;
    if (list_blocks(l, e) || list_pieces(l, e) || find_kept(l, e)) return -1;
    if (o->slots > l->n_pieces)
        o->slots = l->n_pieces > KVC_LOAD_MIN_SLOTS ? (unsigned)l->n_pieces : KVC_LOAD_MIN_SLOTS;
    measure_room(l);
    return 0;
}
