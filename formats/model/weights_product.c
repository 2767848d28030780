/* weights_product.c: products of rows with the matrices of a weights file. */
#include "formats/model/weights_product.h"

#include "codecs/memory.h"
#include "formats/io/parallel.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* output channels of an item; columns of an item, a multiple of all blocks; rows that are converted
 * at a time */
enum { OUT = 4 * KVC_TILE, COLUMNS = 256, PIECE = 2048 };

int kvc_multiply(float *y, size_t y_stride, const float *a, size_t rows, size_t k, const float *b,
                 size_t b_stride, size_t n, int transposed, struct kvc_error *e) {
    float *tile = kvc_alloc_lines(k + rows, KVC_TILE * sizeof *tile);
    if (!tile) return kvc_fail_memory(e, "a product");
    float *own = tile + k * KVC_TILE;
    for (size_t first = 0; first < n; first += KVC_TILE) {
        const size_t here = n - first < KVC_TILE ? n - first : KVC_TILE;
        if (here < KVC_TILE) memset(tile, 0, k * KVC_TILE * sizeof *tile);
        for (size_t c = 0; c < here && transposed; c++)
            for (size_t i = 0; i < k; i++) tile[i * KVC_TILE + c] = b[(first + c) * b_stride + i];
        for (size_t i = 0; i < k && !transposed; i++)
            memcpy(tile + i * KVC_TILE, b + i * b_stride + first, here * sizeof *tile);
        const int whole = here == KVC_TILE;
        kvc_kernels_get()->multiply_tiles(whole ? y + first : own, whole ? y_stride : KVC_TILE, a,
                                          k, rows, tile, k, 1);
        for (size_t r = 0; r < rows && !whole; r++)
            memcpy(y + r * y_stride + first, own + r * KVC_TILE, here * sizeof *y);
    }
    free(tile);
    return 0;
}

/* Columns of a product, as items of a job. */
struct columns {
    float *y;
    const float *a, *b;
    size_t rows, k, n;
    int transposed;
};

static int multiply_columns(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct columns *p = state;
    const size_t first = (size_t)item * OUT, n = p->n - first < OUT ? p->n - first : OUT;
    *result = NULL;
    return kvc_multiply(p->y + first, p->n, p->a, p->rows, p->k,
                        p->b + (p->transposed ? first * p->k : first), p->transposed ? p->k : p->n,
                        n, p->transposed, e);
}

int kvc_multiply_wide(float *y, const float *a, size_t rows, size_t k, const float *b, size_t n,
                      int transposed, unsigned threads, struct kvc_error *e) {
    struct columns p = {y, a, b, rows, k, n, transposed};
    const struct kvc_job job = {.n = (n + OUT - 1) / OUT, .work = multiply_columns, .state = &p};
    return kvc_parallel(&job, threads, e);
}

void kvc_transpose(float *to, const float *from, size_t rows, size_t columns) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
}

/* --- matrices of a file --- */

int kvc_weights_matrix(const struct kvc_weights *w, const struct kvc_weights_naming *naming,
                       enum kvc_weight which, uint32_t layer, size_t in, size_t out,
                       struct kvc_weights_matrix *m, struct kvc_error *e) {
    *m = (struct kvc_weights_matrix){.in = 0};
    const int found = kvc_weights_find(w, naming, which, layer, &m->tensor, e);
    const struct kvc_weights_tensor *t = &m->tensor;
    if (found <= 0) return found;
    if (t->rank != 2 || t->dim[1] != in || !t->dim[0] || (out && t->dim[0] != out))
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "%s: '%s' has shape [%" PRIu64 "][%" PRIu64 "], not [%zu][%zu]", t->file,
                        t->name, t->dim[0], t->dim[1], out, in);
    m->in = in;
    m->out = (size_t)t->dim[0];
    m->order.dim = t->dim[0];
    return 1;
}

/* Converts columns [first, first + n), whole blocks, of the row of an output channel. */
static void convert(float *to, const struct kvc_weights_matrix *m, uint64_t channel, size_t first,
                    size_t n) {
    const struct kvc_weights_type *type = &m->tensor.type;
    const uint64_t row = kvc_weights_channel(&m->order, channel) * (m->in / type->block);
    type->to_f32(to,
                 m->tensor.in->data + m->tensor.offset + (row + first / type->block) * type->size,
                 n / type->block);
}

int kvc_weights_row(float *to, const struct kvc_weights_matrix *m, uint64_t row,
                    struct kvc_error *e) {
    const uint64_t bytes = m->in / m->tensor.type.block * m->tensor.type.size,
                   offset = m->tensor.offset + row * bytes;
    if (kvc_input_pin(m->tensor.in, offset, bytes, e)) return -1;
    convert(to, m, row, 0, m->in);
    kvc_input_unpin(m->tensor.in, offset, bytes);
    return 0;
}

struct product {
    const struct kvc_weights_matrix *m;
    const float *from;
    float *to;
    size_t rows;
};

static int multiply_some(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct product *p = state;
    const size_t first = (size_t)item * OUT, n = p->m->out - first < OUT ? p->m->out - first : OUT;
    float *b = kvc_alloc(n, p->m->in * sizeof *b);
    *result = NULL;
    if (!b) return kvc_fail_memory(e, "weights");
    for (size_t i = 0; i < n; i++) convert(b + i * p->m->in, p->m, first + i, 0, p->m->in);
    const int status = kvc_multiply(p->to + first, p->m->out, p->from, p->rows, p->m->in, b,
                                    p->m->in, n, 1, e);
    free(b);
    return status;
}

static int multiply_back_some(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct product *p = state;
    const size_t in = p->m->in, out = p->m->out, first = (size_t)item * COLUMNS,
                 n = in - first < COLUMNS ? in - first : COLUMNS, most = out < PIECE ? out : PIECE;
    float *b = kvc_alloc(most, n * sizeof *b), *sum = kvc_alloc(p->rows, n * sizeof *sum),
          *y = kvc_alloc(p->rows, most * sizeof *y);
    int status = b && sum && y ? 0 : kvc_fail_memory(e, "weights");
    *result = NULL;
    for (size_t r = 0; r < p->rows && !status; r++)
        memset(p->to + r * in + first, 0, n * sizeof *y);
    for (size_t at = 0; at < out && !status; at += PIECE) {
        const size_t k = out - at < PIECE ? out - at : PIECE;
        for (size_t i = 0; i < k; i++) convert(b + i * n, p->m, at + i, first, n);
        for (size_t r = 0; r < p->rows; r++)
            memcpy(y + r * k, p->from + r * out + at, k * sizeof *y);
        status = kvc_multiply(sum, n, y, p->rows, k, b, n, n, 0, e);
        for (size_t r = 0; r < p->rows && !status; r++)
            kvc_kernels_get()->add_scaled(p->to + r * in + first, sum + r * n, 1, n);
    }
    free(b);
    free(sum);
    free(y);
    return status;
}

static int run(struct product *p, uint64_t items,
               int (*work)(void *state, uint64_t item, void **result, struct kvc_error *e),
               unsigned threads, struct kvc_error *e) {
    const struct kvc_weights_tensor *t = &p->m->tensor;
    const struct kvc_job job = {.n = items, .work = work, .state = p};
    if (kvc_input_pin(t->in, t->offset, t->bytes, e)) return kvc_error_prefix(e, t->file);
    const int status = kvc_parallel(&job, threads, e);
    kvc_input_unpin(t->in, t->offset, t->bytes);
    return status;
}

int kvc_weights_multiply(float *y, const float *x, size_t rows, const struct kvc_weights_matrix *m,
                         unsigned threads, struct kvc_error *e) {
    struct product p = {.m = m, .from = x, .to = y, .rows = rows};
    return run(&p, (m->out + OUT - 1) / OUT, multiply_some, threads, e);
}

int kvc_weights_multiply_back(float *x, const float *y, size_t rows,
                              const struct kvc_weights_matrix *m, unsigned threads,
                              struct kvc_error *e) {
    struct product p = {.m = m, .from = y, .to = x, .rows = rows};
    return run(&p, (m->in + COLUMNS - 1) / COLUMNS, multiply_back_some, threads, e);
}
