/* stats.c: statistics of one tensor's values per head. Not for comparing two tensors (compare.c).
 */
#include "formats/compare/stats.h"

#include "codecs/median.h"
#include "codecs/memory.h"
#include "formats/cache/scales.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A channel is an outlier when its rms is above this multiple of its head's median. */
#define OUTLIER_RATIO 4

/* Sums over the finite values of one channel. */
struct channel {
    uint64_t n;
    double sum, squares, max_abs;
};

struct work {
    float *values;
    struct channel *channel; /* heads * dim */
    double *rms;             /* dim, to sort */
};

static void work_free(struct work *w) {
    free(w->values);
    free(w->channel);
    free(w->rms);
}

static void add_row(const struct kvc_shape *shape, const float *value, struct channel *channel,
                    struct kvc_stats *out) {
    for (uint64_t h = 0; h < shape->heads; h++) {
        for (uint64_t d = 0; d < shape->dim; d++, value++, channel++) {
            double v = (double)*value;
            if (isfinite(v)) {
                channel->n++;
                channel->sum += v;
                channel->squares += v * v;
                channel->max_abs = fmax(channel->max_abs, fabs(v));
            } else if (isnan(v)) {
                out[h].nan++;
            } else {
                out[h].inf++;
            }
        }
    }
}

static double channel_rms(const struct channel *c) {
    return c->n ? sqrt(c->squares / (double)c->n) : 0;
}

static void finish_head(const struct channel *channel, uint64_t dim, double *rms,
                        struct kvc_stats *s) {
    double sum = 0, squares = 0;
    uint64_t n = 0;
    for (uint64_t d = 0; d < dim; d++) {
        n += channel[d].n;
        sum += channel[d].sum;
        squares += channel[d].squares;
        s->max_abs = fmax(s->max_abs, channel[d].max_abs);
        rms[d] = channel_rms(&channel[d]);
        if (rms[d] > s->worst_rms) {
            s->worst_rms = rms[d];
            s->worst_channel = d;
        }
    }
    if (n) {
        s->mean = sum / (double)n;
        s->rms = sqrt(squares / (double)n);
    }
    double limit = OUTLIER_RATIO * kvc_median(rms, dim);
    for (uint64_t d = 0; d < dim; d++) s->outlier_channels += channel_rms(&channel[d]) > limit;
}

static int add_rows(const struct kvc_cache *c, uint32_t tensor, struct work *w,
                    struct kvc_stats *out, struct kvc_error *e) {
    const struct kvc_shape *shape = &c->tensor[tensor].shape;
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    uint64_t width = shape->heads * shape->dim, maximum = kvc_floats_at_once(shape);
    for (uint64_t b = 0; b < cells->n_blocks; b++) {
        uint64_t row = cells->block[b], end = cells->block[b + 1];
        while (row < end) {
            uint64_t n = end - row < maximum ? end - row : maximum;
            if (kvc_read_floats(c, tensor, row, n, w->values, 1, e)) return -1;
            for (uint64_t i = 0; i < n; i++) add_row(shape, w->values + i * width, w->channel, out);
            row += n;
        }
    }
    return 0;
}

int kvc_tensor_stats(const struct kvc_cache *c, uint32_t tensor, struct kvc_stats *out,
                     struct kvc_error *e) {
    const struct kvc_shape *shape = &c->tensor[tensor].shape;
    uint64_t width = shape->heads * shape->dim;
    struct work w = {.values = kvc_alloc(kvc_floats_at_once(shape), width * sizeof *w.values),
                     .channel = calloc((size_t)width, sizeof *w.channel),
                     .rms = kvc_alloc(shape->dim, sizeof *w.rms)};
    int status = -1;
    memset(out, 0, (size_t)shape->heads * sizeof *out);
    if (!w.values || !w.channel || !w.rms) {
        kvc_fail_memory(e, "statistics");
    } else if (!add_rows(c, tensor, &w, out, e)) {
        for (uint64_t h = 0; h < shape->heads; h++) {
            out[h].values = shape->tokens * shape->dim;
            finish_head(w.channel + h * shape->dim, shape->dim, w.rms, &out[h]);
        }
        status = 0;
    }
    work_free(&w);
    return status;
}
