/* base.c: compares the rows of a cache with those of a container. */
#include "formats/container/base.h"

#include "codecs/memory.h"
#include "formats/io/parallel.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Returns how many first rows of part a have the positions of rows of part b, and sets *skip to the
 * rows of b before them. */
static uint64_t same_positions(const struct kvc_part *a, const struct kvc_part *b, uint64_t *skip) {
    uint64_t n = 0;
    if (!a->cells.n || a->kind != b->kind || a->stream != b->stream || a->snapshot != b->snapshot)
        return 0;
    *skip = kvc_cells_row_from(&b->cells, kvc_cells_position(&a->cells, 0));
    while (n < a->cells.n && *skip + n < b->cells.n &&
           kvc_cells_position(&a->cells, n) == kvc_cells_position(&b->cells, *skip + n))
        n++;
    return n;
}

/* Checks that a tensor is the one of this number of the base. Heads may be unknown. */
static int check_alike(const struct kvc_cache *from, const struct kvc_cache *c, uint32_t tensor,
                       struct kvc_error *e) {
    const struct kvc_tensor *t = &c->tensor[tensor];
    const struct kvc_layer *layer = &c->layer[t->layer];
    char label[64];
    if (tensor < from->n_tensors) {
        const struct kvc_tensor *o = &from->tensor[tensor];
        const struct kvc_layer *other = &from->layer[o->layer];
        if (o->role == t->role && other->part == layer->part && other->index == layer->index &&
            o->shape.dtype == t->shape.dtype &&
            kvc_row_bytes(&o->shape) == kvc_row_bytes(&t->shape))
            return 0;
        if (o->role == t->role && other->index == layer->index &&
            o->shape.heads * o->shape.dim == t->shape.heads * t->shape.dim) {
            kvc_tensor_label(c, tensor, label, sizeof label);
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s is %s here and %s there", label,
                            kvc_dtype_info(t->shape.dtype)->name,
                            kvc_dtype_info(o->shape.dtype)->name);
        }
    }
    kvc_tensor_label(c, tensor, label, sizeof label);
    return kvc_fail(e, KVC_ERR_OTHER_MODEL, "it has no %s of this size", label);
}

struct comparison {
    const struct kvc_cache *from, *c;
    /* by part: rows of the same positions, rows of `from` before them */
    const uint64_t *most, *skip;
    uint64_t *rows; /* by part: rows that are equal in all tensors that were taken */
};

/* Returns the number of first rows that are equal. */
static uint64_t equal_rows(const uint8_t *a, const uint8_t *b, uint64_t n, size_t row) {
    uint64_t i = 0;
    while (i < n && memcmp(a + i * row, b + i * row, row) == 0) i++;
    return i;
}

/* Counts the first rows of a tensor that are equal, run after run. */
static int compare_tensor(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct comparison *x = state;
    const uint32_t tensor = (uint32_t)item;
    const struct kvc_cells *cells = kvc_tensor_cells(x->c, tensor);
    const uint64_t most = x->most[kvc_tensor_layer(x->c, tensor)->part],
                   skip = x->skip[kvc_tensor_layer(x->c, tensor)->part];
    const size_t row = (size_t)kvc_row_bytes(&x->c->tensor[tensor].shape);
    uint64_t *const equal = malloc(sizeof *equal), run = kvc_cells_run_rows(cells);
    uint8_t *a = kvc_alloc(run, row), *b = kvc_alloc(run, row);
    int status = equal && a && b ? 0 : kvc_fail_memory(e, "rows");
    uint64_t done = 0, same = 0;
    for (uint64_t block = 0, n; done < most && same == done && !status; done += n) {
        const uint64_t next = kvc_cells_run_end(cells, block);
        n = (cells->block[next] < most ? cells->block[next] : most) - done;
        block = next;
        status = x->from->read(x->from, tensor, skip + done, n, a, e) ||
                 x->c->read(x->c, tensor, done, n, b, e);
        if (!status) same += equal_rows(a, b, n, row);
    }
    free(a);
    free(b);
    if (status) free(equal);
    else *equal = same;
    *result = status ? NULL : equal;
    return status ? -1 : 0;
}

static int take_comparison(void *state, uint64_t item, void *result, struct kvc_error *e) {
    struct comparison *x = state;
    uint64_t *const rows = &x->rows[kvc_tensor_layer(x->c, (uint32_t)item)->part];
    (void)e;
    if (*(uint64_t *)result < *rows) *rows = *(uint64_t *)result;
    free(result);
    return 0;
}

uint32_t kvc_base_tensors(const struct kvc_cache *c) {
    uint32_t n = c->n_tensors;
    while (n && kvc_tensor_is_companion(c, n - 1)) n--;
    return n;
}

void kvc_base_free(struct kvc_base *base) {
    if (!base) return;
    free(base->rows);
    free(base->skip);
    free(base);
}

int kvc_base_compare(struct kvc_base **base, const struct kvc_cache *from,
                     const struct kvc_cache *c, unsigned threads, struct kvc_error *e) {
    struct kvc_base *b = *base = calloc(1, sizeof *b);
    uint64_t *most = kvc_alloc_zeros((uint64_t)c->n_parts + 1, sizeof *most);
    if (b) b->from = from;
    if (b) b->rows = kvc_alloc_zeros((uint64_t)c->n_parts + 1, sizeof *b->rows);
    if (b) b->skip = kvc_alloc_zeros((uint64_t)c->n_parts + 1, sizeof *b->skip);
    int status = b && b->rows && b->skip && most ? 0 : kvc_fail_memory(e, "rows");
    for (uint32_t p = 0; p < c->n_parts && p < from->n_parts && !status; p++)
        most[p] = b->rows[p] = same_positions(&c->part[p], &from->part[p], &b->skip[p]);
    if (!status && kvc_base_tensors(from) != kvc_base_tensors(c))
        status = kvc_fail(e, KVC_ERR_OTHER_MODEL,
                          "it has %" PRIu32 " tensors, and the cache %" PRIu32,
                          kvc_base_tensors(from), kvc_base_tensors(c));
    for (uint32_t t = 0; t < kvc_base_tensors(c) && !status; t++)
        status = check_alike(from, c, t, e);
    if (!status) {
        struct comparison x = {from, c, most, b->skip, b->rows};
        const struct kvc_job job = {.n = kvc_base_tensors(c),
                                    .work = compare_tensor,
                                    .commit = take_comparison,
                                    .discard = free,
                                    .state = &x};
        status = kvc_parallel(&job, kvc_cache_threads(from, threads), e);
    }
    free(most);
    if (!status) return 0;
    kvc_base_free(b);
    *base = NULL;
    return -1;
}

uint64_t kvc_base_count(const struct kvc_base *base, const struct kvc_cache *c, uint64_t *all) {
    uint64_t n = *all = 0;
    for (uint32_t t = 0; t < kvc_base_tensors(c); t++) {
        n += base->rows[kvc_tensor_layer(c, t)->part];
        *all += kvc_tensor_cells(c, t)->n;
    }
    return n;
}
