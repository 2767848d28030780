/* restore.c: puts an engine's own file together again from a cache. Not for other layouts (the formats' exports).
 *
 * The file is written front to back while several threads decode ahead. A tensor whose source is token-major with cells
 * in sorted order streams in runs of blocks; any other order needs that one tensor in memory. */
#include "formats/container/container.h"
#include "codecs/memory.h"
#include "formats/cache/format.h"
#include "formats/io/parallel.h"

#include <stdlib.h>
#include <string.h>

enum { RUN_BLOCKS = 4, LITERAL_PIECE = 1 << 20 };

struct source {
    const struct kvc_cache *cache;
    struct kvc_sink *out;
    uint64_t *first;  /* by extent: number of its first item; n_extents + 1 entries */
    uint8_t *region;  /* the tensor being put together, while it cannot stream */
};

static const struct kvc_cells *cells_of(const struct source *s, uint32_t tensor) {
    return &kvc_tensor_part(s->cache, tensor)->cells;
}

/* Pieces of literal bytes, or runs of a tensor's blocks. */
static uint64_t items_of(const struct source *s, const struct kvc_extent *x) {
    if (x->tensor == KVC_NONE) return (x->size + LITERAL_PIECE - 1) / LITERAL_PIECE;
    return (cells_of(s, x->tensor)->n_blocks + RUN_BLOCKS - 1) / RUN_BLOCKS;
}

/* What one item stands for: extent, and bytes of a literal or sorted rows of a tensor. */
struct item {
    const struct kvc_extent *extent;
    uint64_t begin, n;
    int is_first, is_last; /* of its extent */
};

static struct item find_item(const struct source *s, uint64_t number) {
    uint64_t low = 0, high = s->cache->n_extents;
    while (high - low > 1) {
        uint64_t mid = low + (high - low) / 2;
        if (s->first[mid] <= number) low = mid;
        else high = mid;
    }
    struct item item = {.extent = &s->cache->extent[low], .is_first = number == s->first[low],
                        .is_last = number + 1 == s->first[low + 1]};
    uint64_t k = number - s->first[low];
    if (item.extent->tensor == KVC_NONE) {
        item.begin = k * LITERAL_PIECE;
        item.n = item.is_last ? item.extent->size - item.begin : LITERAL_PIECE;
    } else {
        const struct kvc_cells *cells = cells_of(s, item.extent->tensor);
        item.begin = cells->block[k * RUN_BLOCKS];
        item.n = cells->block[item.is_last ? cells->n_blocks : (k + 1) * RUN_BLOCKS] - item.begin;
    }
    return item;
}

static int read_item(void *state, uint64_t number, void **result, struct kvc_error *e) {
    const struct source *s = state;
    struct item item = find_item(s, number);
    uint32_t t = item.extent->tensor;
    uint64_t unit = t == KVC_NONE ? 1 : kvc_row_bytes(&s->cache->tensor[t].shape);
    uint8_t *bytes = kvc_alloc(item.n, unit);
    if (!bytes) return kvc_fail_memory(e, "rows");
    int status = t == KVC_NONE ? s->cache->read_literal(s->cache, item.extent->literal + item.begin, item.n, bytes, e)
                               : s->cache->read(s->cache, t, item.begin, item.n, bytes, e);
    if (status) {
        free(bytes);
        return -1;
    }
    *result = bytes;
    return 0;
}

/* Whether a tensor's sorted rows are its source bytes as they come. */
static int streams(const struct source *s, uint32_t number) {
    const struct kvc_tensor *t = &s->cache->tensor[number];
    struct kvc_strides canonical = kvc_strides_canonical(&t->shape);
    return !cells_of(s, number)->order && t->source.token == canonical.token && t->source.block == canonical.block &&
           (t->shape.heads == 1 || t->source.head == canonical.head);
}

/* Puts rows into the region of their tensor, which goes out when it is complete. */
static int place_rows(struct source *s, const struct item *item, const uint8_t *rows, struct kvc_error *e) {
    const struct kvc_tensor *t = &s->cache->tensor[item->extent->tensor];
    const struct kvc_cells *cells = cells_of(s, item->extent->tensor);
    uint64_t row = kvc_row_bytes(&t->shape);
    if (item->is_first && !(s->region = malloc((size_t)t->source_size))) return kvc_fail_memory(e, "a tensor");
    for (uint64_t i = 0; i < item->n; i++)
        kvc_row_scatter(s->region, rows + i * row, &t->shape, &t->source, kvc_cell_at(cells, item->begin + i));
    if (!item->is_last) return 0;
    int status = kvc_sink_write(s->out, s->region, (size_t)t->source_size, e);
    free(s->region);
    s->region = NULL;
    return status;
}

static int write_item(void *state, uint64_t number, void *result, struct kvc_error *e) {
    struct source *s = state;
    struct item item = find_item(s, number);
    uint32_t t = item.extent->tensor;
    int status;
    if (t == KVC_NONE) status = kvc_sink_write(s->out, result, (size_t)item.n, e);
    else if (streams(s, t))
        status = kvc_sink_write(s->out, result, (size_t)(item.n * kvc_row_bytes(&s->cache->tensor[t].shape)), e);
    else status = place_rows(s, &item, result, e);
    free(result);
    return status;
}

int kvc_source_write(const struct kvc_cache *c, unsigned threads, struct kvc_sink *out, struct kvc_error *e) {
    struct source s = {.cache = c, .out = out};
    struct kvc_job job = {.work = read_item, .commit = write_item, .discard = free, .state = &s};
    if (!c->n_extents)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the source file's own layout is not recorded (compressed npz, or a selection): use --to FORMAT");
    s.first = kvc_alloc(c->n_extents + 1, sizeof *s.first);
    if (!s.first) return kvc_fail_memory(e, "extents");
    for (uint64_t i = 0; i < c->n_extents; i++) {
        s.first[i] = job.n;
        job.n += items_of(&s, &c->extent[i]);
    }
    s.first[c->n_extents] = job.n;
    int status = kvc_parallel(&job, threads, e);
    free(s.region);
    free(s.first);
    if (status) return -1;
    return kvc_cache_is_container(c) ? kvc_container_check_rest(c, e) : 0;
}
