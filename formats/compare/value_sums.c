/* value_sums.c: sums of the values of one tensor by channel and by size. Not for drawing them
 * (cli/html). */
#include "formats/compare/value_sums.h"

#include "codecs/memory.h"
#include "formats/cache/scales.h"

#include <math.h>
#include <stdlib.h>

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

/* Adds rows [row, end). `value` has room for `most` rows. */
static int add_rows(const struct kvc_cache *c, uint32_t tensor, uint64_t row, uint64_t end,
                    float *value, uint64_t most, struct kvc_value_sums *s, struct kvc_error *e) {
    for (uint64_t n; row < end; row += n) {
        n = end - row < most ? end - row : most;
        if (kvc_read_floats(c, tensor, row, n, value, 1, e)) return -1;
        for (uint64_t i = 0; i < n; i++) add_row(s, value + i * s->channels);
    }
    return 0;
}

int kvc_value_sums_take(const struct kvc_cache *c, uint32_t tensor, uint64_t most_rows,
                        struct kvc_value_sums *out, struct kvc_error *e) {
    const struct kvc_shape *shape = &c->tensor[tensor].shape;
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    const uint64_t most = kvc_floats_at_once(shape);
    *out = (struct kvc_value_sums){.channels = shape->heads * shape->dim};
    out->square = kvc_alloc_zeros(out->channels, sizeof *out->square);
    out->finite = kvc_alloc_zeros(out->channels, sizeof *out->finite);
    float *value = kvc_alloc(most, out->channels * sizeof *value);
    int status = value && out->square && out->finite ? 0 : kvc_fail_memory(e, "sums of values");
    uint64_t blocks = cells->n_blocks;
    if (cells->n > most_rows)
        blocks = (uint64_t)((double)blocks * ((double)most_rows / (double)cells->n));
    if (!blocks) blocks = 1;
    for (uint64_t i = 0; i < blocks && i < cells->n_blocks && !status; i++) {
        const uint64_t block = (uint64_t)((double)i / (double)blocks * (double)cells->n_blocks);
        status = add_rows(c, tensor, cells->block[block], cells->block[block + 1], value, most, out,
                          e);
    }
    free(value);
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
