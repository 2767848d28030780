/* same.c: rows of a cache that equal rows of its earlier tensors: snapshots repeat
 * most of the live cache, streams share prefixes. Finds them, and writes and reads the section SAME
 * that refers to them. Not for decoding them (blocks.c). */
#include "formats/container/same.h"

#include "codecs/memory.h"
#include "formats/container/record_write.h"
#include "formats/container/records.h"

#include <stdlib.h>
#include <string.h>

/* --- for encoders --- */

/* llama.cpp numbers the layers of each of its two caches from 0; a snapshot copies the second
 * cache. */
static int of_second_cache(const struct kvc_cache *c, uint32_t tensor) {
    const enum kvc_part_kind kind = kvc_tensor_part(c, tensor)->kind;
    return kind == KVC_PART_WINDOW || kind == KVC_PART_SNAPSHOT;
}

static int compare_u64(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b;
}

/* Compares what two tensors have in common that may hold the same rows: role, layer index and row
 * shape. This is an equivalence relation, and a row refers to the first equal row of lower-numbered
 * tensors. So the row referred to is never a reference itself. */
static int compare_kinds(const struct kvc_cache *c, uint32_t tensor, uint32_t other) {
    const struct kvc_tensor *t = &c->tensor[tensor], *o = &c->tensor[other];
    int order = compare_u64(c->layer[t->layer].index, c->layer[o->layer].index);
    if (!order) order = compare_u64(t->role, o->role);
    if (!order) order = compare_u64(t->shape.dtype, o->shape.dtype);
    if (!order) order = compare_u64(t->shape.heads, o->shape.heads);
    if (!order) order = compare_u64(t->shape.dim, o->shape.dim);
    return order ? order : of_second_cache(c, tensor) - of_second_cache(c, other);
}

static int by_kind(const void *pa, const void *pb, void *cache) {
    const uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    const int order = compare_kinds(cache, a, b);
    return order ? order : compare_u64(a, b);
}

int kvc_repeats_find(struct kvc_repeats *r, const struct kvc_cache *c, struct kvc_error *e) {
    uint32_t *sorted = kvc_alloc(c->n_tensors, sizeof *sorted), n = 0;
    r->first = kvc_alloc(c->n_tensors, sizeof *r->first);
    r->next = kvc_alloc(c->n_tensors, sizeof *r->next);
    if (!sorted || !r->first || !r->next) {
        free(sorted);
        return kvc_fail_memory(e, "references");
    }
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        r->first[t] = t;
        r->next[t] = KVC_NONE;
        if (!kvc_tensor_is_companion(c, t)) sorted[n++] = t;
    }
    qsort_r(sorted, n, sizeof *sorted, by_kind, (void *)(uintptr_t)c);
    for (uint32_t i = 1; i < n; i++) {
        if (compare_kinds(c, sorted[i - 1], sorted[i])) continue;
        r->first[sorted[i]] = r->first[sorted[i - 1]];
        r->next[sorted[i - 1]] = sorted[i];
    }
    free(sorted);
    return 0;
}

void kvc_repeats_free(struct kvc_repeats *r) {
    free(r->first);
    free(r->next);
    *r = (struct kvc_repeats){.first = NULL};
}

int kvc_same_find(const struct kvc_cache *c, const struct kvc_repeats *r, uint32_t tensor,
                  uint64_t first, uint64_t n, const uint8_t *rows, struct kvc_same *from,
                  struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    uint64_t row_bytes = kvc_row_bytes(&c->tensor[tensor].shape);
    for (uint32_t other = r->first[tensor]; other < tensor; other = r->next[other]) {
        const struct kvc_cells *theirs = kvc_tensor_cells(c, other);
        uint64_t begin = kvc_cells_row_from(theirs, kvc_cells_position(cells, first)),
                 end = kvc_cells_row_from(theirs, kvc_cells_position(cells, first + n - 1) + 1);
        /* in pieces, so that memory is bounded for any number of rows with these positions */
        while (begin < end) {
            uint64_t part = end - begin < KVC_BLOCK ? end - begin : KVC_BLOCK, i = 0;
            uint8_t *there = kvc_alloc(part, row_bytes);
            if (!there) return kvc_fail_memory(e, "rows");
            if (c->read(c, other, begin, part, there, e)) {
                free(there);
                return -1;
            }
            for (uint64_t j = 0; j < part; j++) {
                int64_t pos = kvc_cells_position(theirs, begin + j);
                while (i < n && kvc_cells_position(cells, first + i) < pos) i++;
                for (uint64_t k = i; k < n && kvc_cells_position(cells, first + k) == pos; k++) {
                    if (from[k].tensor != KVC_NONE ||
                        memcmp(rows + k * row_bytes, there + j * row_bytes, (size_t)row_bytes) != 0)
                        continue;
                    uint64_t block = kvc_cells_block_of(theirs, begin + j);
                    from[k] = (struct kvc_same){.row = (uint32_t)k,
                                                .count = 1,
                                                .tensor = other,
                                                .block = (uint32_t)block,
                                                .there = (uint32_t)(begin + j -
                                                                    theirs->block[block])};
                }
            }
            free(there);
            begin += part;
        }
    }
    return 0;
}

int kvc_same_add(struct kvc_sections *list, const struct kvc_same *from, uint64_t n,
                 struct kvc_error *e) {
    uint8_t bytes[KVC_BLOCK * KVC_SAME_ENTRY];
    size_t used = 0;
    for (uint64_t i = 0; i < n;) {
        if (from[i].tensor == KVC_NONE) {
            i++;
            continue;
        }
        struct kvc_same run = from[i];
        for (i++; i < n && from[i].tensor == run.tensor && from[i].block == run.block &&
                  from[i].there == run.there + run.count;
             i++)
            run.count++;
        uint8_t *p = bytes + used;
        put_u32(p, run.row);
        put_u32(p + 4, run.count);
        put_u32(p + 8, run.tensor);
        put_u32(p + 12, run.block);
        put_u32(p + 16, run.there);
        used += KVC_SAME_ENTRY;
    }
    return used ? kvc_record_add(list, KVC_SECTION_SAME, bytes, used, e) : 0;
}

/* --- for readers --- */

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
        const struct kvc_cells *cells = kvc_tensor_cells(c, x.tensor);
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
