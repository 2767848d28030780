/* restore.c: puts the source of a cache together again. Not for other layouts (the formats' exports).
 *
 * The source is written front to back while several threads decode ahead, in runs of blocks. A tensor whose source is token-major
 * with cells in sorted order streams; any other order needs that one tensor in memory. A region of several places is put together
 * in memory, whole. */
#include "formats/file/restore.h"

#include "codecs/memory.h"
#include "formats/cache/block_cache.h"
#include "formats/cache/extents.h"
#include "formats/container/container.h"
#include "formats/io/parallel.h"

#include <stdlib.h>
#include <string.h>

enum { RUN_BLOCKS = 4, LITERAL_PIECE = 1 << 20 };

struct source {
    const struct kvc_cache *cache;
    const struct kvc_member_sink *out;
    struct kvc_block_cache *blocks;
    uint64_t *first;   /* by extent: number of its first item; n_extents + 1 entries */
    uint32_t **row_of; /* by part: the sorted row of each cell; NULL: cells are sorted */
    uint32_t n_begun;  /* members */
    uint8_t *region;   /* bytes of a tensor that cannot be streamed, until it is complete */
};

/* An item of work: bytes of a literal, sorted rows of one tensor, or a whole region. */
struct item {
    const struct kvc_extent *extent;
    enum { LITERAL, ROWS, REGION } kind;
    uint32_t tensor; /* of ROWS */
    uint64_t begin, n;
    int is_first, is_last; /* of its extent */
};

static const struct kvc_cells *cells_of(const struct kvc_cache *c, uint32_t tensor) {
    return &kvc_tensor_part(c, tensor)->cells;
}

/* Returns 1 if the sorted rows of a tensor are its bytes in the source, in their order. */
static int streams(const struct kvc_cache *c, uint32_t tensor) {
    const struct kvc_tensor *t = &c->tensor[tensor];
    const struct kvc_strides canonical = kvc_strides_canonical(&t->shape);
    return !cells_of(c, tensor)->order && t->source.token == canonical.token && t->source.block == canonical.block &&
           (t->shape.heads == 1 || t->source.head == canonical.head);
}

static uint64_t items_of(const struct kvc_cache *c, const struct kvc_extent *x) {
    uint32_t t;
    if (!x->n_places) return (x->size + LITERAL_PIECE - 1) / LITERAL_PIECE;
    return kvc_extent_is_tensor(c, x, &t) ? (cells_of(c, t)->n_blocks + RUN_BLOCKS - 1) / RUN_BLOCKS : 1;
}

static struct item find_item(const struct source *s, uint64_t number) {
    uint64_t low = 0, high = s->cache->n_extents;
    while (high - low > 1) {
        uint64_t mid = low + (high - low) / 2;
        if (s->first[mid] <= number) low = mid;
        else high = mid;
    }
    struct item item = {.extent = &s->cache->extent[low],
                        .kind = REGION,
                        .is_first = number == s->first[low],
                        .is_last = number + 1 == s->first[low + 1]};
    const uint64_t k = number - s->first[low];
    if (!item.extent->n_places) {
        item.kind = LITERAL;
        item.begin = k * LITERAL_PIECE;
        item.n = item.is_last ? item.extent->size - item.begin : LITERAL_PIECE;
    } else if (kvc_extent_is_tensor(s->cache, item.extent, &item.tensor)) {
        const struct kvc_cells *cells = cells_of(s->cache, item.tensor);
        item.kind = ROWS;
        item.begin = cells->block[k * RUN_BLOCKS];
        item.n = cells->block[item.is_last ? cells->n_blocks : (k + 1) * RUN_BLOCKS] - item.begin;
    }
    return item;
}

/* --- regions --- */

/* Reads the literal bytes of a region, between its tensors. */
static int fill_gaps(const struct kvc_cache *c, const struct kvc_extent *x, uint8_t *region, struct kvc_error *e) {
    struct kvc_gap *gap;
    uint64_t n, at = x->literal;
    if (kvc_region_gaps(c, x->size, &c->place[x->place], x->n_places, &gap, &n, e)) return -1;
    int status = 0;
    for (uint64_t i = 0; i < n && !status; i++) {
        status = c->read_literal(c, at, gap[i].size, region + gap[i].offset, e);
        at += gap[i].size;
    }
    free(gap);
    return status;
}

/* Copies the rows of a place to the positions of its cells in the region. */
static int fill_place(const struct source *s, const struct kvc_place *p, uint8_t *region, uint8_t *rows, struct kvc_error *e) {
    const struct kvc_cache *c = s->cache;
    const struct kvc_shape *shape = &c->tensor[p->tensor].shape;
    const uint32_t *row_of = s->row_of[c->layer[c->tensor[p->tensor].layer].part];
    for (uint64_t i = 0, run; i < p->n; i += run) {
        const uint64_t first = row_of ? row_of[p->cell + i] : p->cell + i;
        for (run = 1; run < KVC_BLOCK && i + run < p->n && (!row_of || row_of[p->cell + i + run] == first + run);) run++;
        if (kvc_block_cache_read(s->blocks, p->tensor, first, run, rows, e)) return -1;
        kvc_rows_scatter(region + p->offset, rows, shape, &p->strides, i, run);
    }
    return 0;
}

static int fill_region(const struct source *s, const struct kvc_extent *x, uint8_t *region, struct kvc_error *e) {
    const struct kvc_cache *c = s->cache;
    uint64_t longest = 0;
    for (uint64_t i = 0; i < x->n_places; i++) {
        const uint64_t row = kvc_row_bytes(&c->tensor[c->place[x->place + i].tensor].shape);
        if (row > longest) longest = row;
    }
    uint8_t *rows = kvc_alloc(KVC_BLOCK, longest);
    int status = rows ? fill_gaps(c, x, region, e) : kvc_fail_memory(e, "rows");
    for (uint64_t i = 0; i < x->n_places && !status; i++) status = fill_place(s, &c->place[x->place + i], region, rows, e);
    free(rows);
    return status;
}

/* --- items --- */

static int read_item(void *state, uint64_t number, void **result, struct kvc_error *e) {
    const struct source *s = state;
    const struct kvc_cache *c = s->cache;
    const struct item item = find_item(s, number);
    uint8_t *bytes = item.kind == LITERAL ? kvc_alloc(item.n, 1)
                     : item.kind == ROWS  ? kvc_alloc(item.n, kvc_row_bytes(&c->tensor[item.tensor].shape))
                                          : kvc_alloc(item.extent->size, 1);
    if (!bytes) return kvc_fail_memory(e, "rows");
    const int status = item.kind == LITERAL ? c->read_literal(c, item.extent->literal + item.begin, item.n, bytes, e)
                       : item.kind == ROWS  ? c->read(c, item.tensor, item.begin, item.n, bytes, e)
                                            : fill_region(s, item.extent, bytes, e);
    if (status) {
        free(bytes);
        return -1;
    }
    *result = bytes;
    return 0;
}

/* Begins the members before member n. Each begins after its predecessor is finished. */
static int begin_members(struct source *s, uint32_t n, struct kvc_error *e) {
    for (; s->n_begun < n; s->n_begun++) {
        if (s->n_begun && s->out->finish(s->out->state, e)) return -1;
        if (s->out->begin(s->out->state, s->cache->member[s->n_begun], kvc_source_size(s->cache, s->n_begun), e)) return -1;
    }
    return 0;
}

/* Copies rows into the region of their tensor, and writes the region when it is complete. */
static int place_rows(struct source *s, const struct item *item, const uint8_t *rows, struct kvc_error *e) {
    const struct kvc_tensor *t = &s->cache->tensor[item->tensor];
    const struct kvc_cells *cells = cells_of(s->cache, item->tensor);
    const uint64_t row = kvc_row_bytes(&t->shape);
    if (item->is_first && !(s->region = kvc_alloc(t->source_size, 1))) return kvc_fail_memory(e, "a tensor");
    for (uint64_t i = 0; i < item->n; i++)
        kvc_rows_scatter(s->region, rows + i * row, &t->shape, &t->source, kvc_cell_at(cells, item->begin + i), 1);
    if (!item->is_last) return 0;
    const int status = kvc_sink_write(s->out->out, s->region, (size_t)t->source_size, e);
    free(s->region);
    s->region = NULL;
    return status;
}

static int write_item(void *state, uint64_t number, void *result, struct kvc_error *e) {
    struct source *s = state;
    const struct item item = find_item(s, number);
    const uint64_t n = item.kind == LITERAL ? item.n
                       : item.kind == ROWS  ? item.n * kvc_row_bytes(&s->cache->tensor[item.tensor].shape)
                                            : item.extent->size;
    int status = s->cache->n_members ? begin_members(s, item.extent->member + 1, e) : 0;
    if (!status && item.kind == ROWS && !streams(s->cache, item.tensor)) status = place_rows(s, &item, result, e);
    else if (!status) status = kvc_sink_write(s->out->out, result, (size_t)n, e);
    free(result);
    return status;
}

/* Fills row_of for the parts whose cells are not sorted and that lie in regions. */
static int invert_orders(struct source *s, struct kvc_error *e) {
    const struct kvc_cache *c = s->cache;
    if (!(s->row_of = kvc_alloc_zeros(c->n_parts, sizeof *s->row_of))) return kvc_fail_memory(e, "cells");
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct kvc_cells *cells = &c->part[i].cells;
        if (!cells->order) continue;
        if (!(s->row_of[i] = kvc_alloc(cells->n, sizeof **s->row_of))) return kvc_fail_memory(e, "cells");
        for (uint64_t row = 0; row < cells->n; row++) s->row_of[i][cells->order[row]] = (uint32_t)row;
    }
    return 0;
}

uint64_t kvc_source_size(const struct kvc_cache *c, uint32_t i) {
    uint64_t n = 0;
    for (uint64_t x = 0; x < c->n_extents; x++) n += c->extent[x].member == i ? c->extent[x].size : 0;
    return n;
}

int kvc_source_write_members(const struct kvc_cache *c, unsigned threads, const struct kvc_member_sink *out,
                             struct kvc_error *e) {
    struct source s = {.cache = c, .out = out};
    struct kvc_job job = {.work = read_item, .commit = write_item, .discard = free, .state = &s};
    if (!c->n_extents)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_FORMAT,
                             "the source file's own layout is not recorded (compressed npz, or a selection)");
    if (c->n_members && !out->begin)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the source is %u files: they need a folder or an archive", c->n_members);
    int status = invert_orders(&s, e) || !(s.blocks = kvc_block_cache_new(c, e)) ? -1 : 0;
    if (!status && !(s.first = kvc_alloc(c->n_extents + 1, sizeof *s.first))) status = kvc_fail_memory(e, "extents");
    for (uint64_t i = 0; i < c->n_extents && !status; i++) {
        s.first[i] = job.n;
        job.n += items_of(c, &c->extent[i]);
    }
    if (!status) {
        s.first[c->n_extents] = job.n;
        status = kvc_parallel(&job, threads, e);
    }
    if (!status && c->n_members) status = begin_members(&s, c->n_members, e) || out->finish(out->state, e) ? -1 : 0;
    for (uint32_t i = 0; s.row_of && i < c->n_parts; i++) free(s.row_of[i]);
    free(s.row_of);
    free(s.region);
    free(s.first);
    kvc_block_cache_free(s.blocks);
    if (status) return -1;
    return kvc_cache_is_container(c) ? kvc_container_check_rest(c, e) : 0;
}

int kvc_source_write(const struct kvc_cache *c, unsigned threads, struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_member_sink members = {.out = out};
    if (!c->n_members) return kvc_source_write_members(c, threads, &members, e);
    struct kvc_tar *tar = kvc_tar_open(out, &members, e);
    return tar ? kvc_tar_close(tar, kvc_source_write_members(c, threads, &members, e), e) : -1;
}
