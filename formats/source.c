/* source.c: puts an engine's own file together again from a cache. Not for other layouts (the formats' exports).
 *
 * The file is written front to back. A tensor whose source is token-major with cells in sorted order streams in runs
 * of blocks; any other order needs that one tensor in memory. */
#include "formats/container.h"
#include "formats/format.h"
#include "formats/parallel.h"

#include <stdlib.h>
#include <string.h>

enum { RUN_BLOCKS = 16, LITERAL_PIECE = 1 << 20 };

struct task {
    const struct kvc_cache *cache;
    uint32_t tensor;
    uint8_t *region;       /* the whole source region, or NULL when runs stream */
    struct kvc_sink *out;
};

static void run_range(const struct task *t, uint64_t item, uint64_t *first, uint64_t *n) {
    const struct kvc_cells *cells = &kvc_tensor_part(t->cache, t->tensor)->cells;
    uint64_t block = item * RUN_BLOCKS, end = block + RUN_BLOCKS < cells->n_blocks ? block + RUN_BLOCKS : cells->n_blocks;
    *first = cells->block[block];
    *n = cells->block[end] - *first;
}

static int read_run(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct task *t = state;
    const struct kvc_tensor *tensor = &t->cache->tensor[t->tensor];
    const struct kvc_cells *cells = &kvc_tensor_part(t->cache, t->tensor)->cells;
    uint64_t first, n, row = kvc_row_bytes(&tensor->shape);
    run_range(t, item, &first, &n);
    uint8_t *rows = malloc((size_t)(n * row));
    if (!rows) return kvc_fail_memory(e, "rows");
    if (t->cache->read(t->cache, t->tensor, first, n, rows, e)) {
        free(rows);
        return -1;
    }
    if (t->region) { /* rows of different runs never share bytes of the region */
        for (uint64_t i = 0; i < n; i++)
            kvc_row_scatter(t->region, rows + i * row, &tensor->shape, &tensor->source, kvc_cell_at(cells, first + i));
        free(rows);
        rows = NULL;
    }
    *result = rows;
    return 0;
}

static int write_run(void *state, uint64_t item, void *result, struct kvc_error *e) {
    struct task *t = state;
    uint64_t first, n;
    if (!result) return 0;
    run_range(t, item, &first, &n);
    int status = kvc_sink_write(t->out, result, (size_t)(n * kvc_row_bytes(&t->cache->tensor[t->tensor].shape)), e);
    free(result);
    return status;
}

static int write_tensor(const struct kvc_cache *c, uint32_t number, unsigned threads, struct kvc_sink *out,
                        struct kvc_error *e) {
    const struct kvc_tensor *t = &c->tensor[number];
    const struct kvc_cells *cells = &kvc_tensor_part(c, number)->cells;
    struct kvc_strides canonical = kvc_strides_canonical(&t->shape);
    struct task task = {.cache = c, .tensor = number, .out = out};
    struct kvc_job job = {.n = (cells->n_blocks + RUN_BLOCKS - 1) / RUN_BLOCKS, .work = read_run, .commit = write_run,
                          .discard = free, .state = &task};
    int streams = !cells->order && t->source.token == canonical.token && t->source.block == canonical.block &&
                  (t->shape.heads == 1 || t->source.head == canonical.head) && t->source_size == kvc_tensor_bytes(t);
    if (!streams && !(task.region = calloc(1, (size_t)(t->source_size ? t->source_size : 1))))
        return kvc_fail_memory(e, "a tensor");
    int status = kvc_parallel(&job, threads, e);
    if (!status && task.region) status = kvc_sink_write(out, task.region, (size_t)t->source_size, e);
    free(task.region);
    return status;
}

static int write_literal(const struct kvc_cache *c, const struct kvc_extent *x, struct kvc_sink *out,
                         struct kvc_error *e) {
    uint8_t *piece = malloc(LITERAL_PIECE);
    int status = piece ? 0 : kvc_fail_memory(e, "private bytes");
    for (uint64_t at = 0; at < x->size && !status;) {
        uint64_t n = x->size - at < LITERAL_PIECE ? x->size - at : LITERAL_PIECE;
        status = c->read_literal(c, x->literal + at, n, piece, e);
        if (!status) status = kvc_sink_write(out, piece, (size_t)n, e);
        at += n;
    }
    free(piece);
    return status;
}

int kvc_source_write(const struct kvc_cache *c, unsigned threads, struct kvc_sink *out, struct kvc_error *e) {
    if (!c->n_extents)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the source file's own layout is not recorded (compressed npz, or a selection): use --to FORMAT");
    for (uint64_t i = 0; i < c->n_extents; i++) {
        const struct kvc_extent *x = &c->extent[i];
        if (x->tensor == KVC_NONE ? write_literal(c, x, out, e) : write_tensor(c, x->tensor, threads, out, e)) return -1;
    }
    return kvc_cache_is_container(c) ? kvc_container_check_rest(c, e) : 0;
}
