/* value_sums.c: sums of the values of one tensor by channel and by size. Not for drawing them
 * (cli/html). */
#include "formats/compare/value_sums.h"

#include "codecs/memory.h"
#include "formats/cache/scales.h"

#include <math.h>
#include <stdlib.h>

/* Bytes of rows, and of floats, that are read at once, unless one row is more. */
#define BATCH_BYTES (UINT64_C(1) << 25)

struct batch {
    uint64_t most; /* rows */
    uint8_t *rows;
    float *value;
};

static int open_batch(struct batch *b, const struct kvc_shape *shape) {
    const uint64_t bytes = kvc_row_bytes(shape), floats = shape->heads * shape->dim * sizeof(float);
    const uint64_t most = BATCH_BYTES / (bytes > floats ? bytes : floats);
    b->most = most > KVC_BLOCK ? KVC_BLOCK : most ? most : 1;
    b->rows = kvc_alloc(b->most, bytes);
    b->value = kvc_alloc(b->most, floats);
    return b->rows && b->value ? 0 : -1;
}

static void add_row(struct kvc_value_sums *s, const float *value) {
    for (uint64_t i = 0; i < s->channels; i++) {
        const double v = (double)value[i];
        if (!isfinite(v)) {
            s->other++;
            continue;
        }
        s->square[i] += v * v;
        s->finite[i]++;
        if (v < 0 || v > 0) s->octave[kvc_error_octave(fabs(v))]++;
        else s->zero++;
    }
    s->rows++;
}

static int add_rows(const struct kvc_cache *c, uint32_t tensor, uint64_t row, uint64_t end,
                    const struct batch *b, struct kvc_value_sums *s, struct kvc_error *e) {
    while (row < end) {
        const uint64_t n = end - row < b->most ? end - row : b->most;
        if (c->read(c, tensor, row, n, b->rows, e)) return -1;
        if (kvc_rows_to_floats(c, tensor, b->value, b->rows, n, 1, e)) return -1;
        for (uint64_t i = 0; i < n; i++) add_row(s, b->value + i * s->channels);
        row += n;
    }
    return 0;
}

int kvc_value_sums_take(const struct kvc_cache *c, uint32_t tensor, uint64_t most_rows,
                        struct kvc_value_sums *out, struct kvc_error *e) {
    const struct kvc_shape *shape = &c->tensor[tensor].shape;
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    struct batch b = {.most = 0};
    *out = (struct kvc_value_sums){.channels = shape->heads * shape->dim};
    out->square = kvc_alloc_zeros(out->channels, sizeof *out->square);
    out->finite = kvc_alloc_zeros(out->channels, sizeof *out->finite);
    int status = open_batch(&b, shape);
    if (status || !out->square || !out->finite) status = kvc_fail_memory(e, "sums of values");
    uint64_t blocks = cells->n_blocks;
    if (cells->n > most_rows)
        blocks = (uint64_t)((double)blocks * ((double)most_rows / (double)cells->n));
    if (!blocks) blocks = 1;
    for (uint64_t i = 0; i < blocks && i < cells->n_blocks && !status; i++) {
        const uint64_t block = (uint64_t)((double)i / (double)blocks * (double)cells->n_blocks);
        status = add_rows(c, tensor, cells->block[block], cells->block[block + 1], &b, out, e);
    }
    free(b.rows);
    free(b.value);
    return status;
}

void kvc_value_sums_free(struct kvc_value_sums *s) {
    free(s->square);
    free(s->finite);
    *s = (struct kvc_value_sums){.rows = 0};
}

double kvc_value_sums_rms(const struct kvc_value_sums *s, uint64_t channel) {
    return s->finite[channel] ? sqrt(s->square[channel] / (double)s->finite[channel]) : (double)NAN;
}
