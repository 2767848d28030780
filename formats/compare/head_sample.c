/* head_sample.c: takes a sample of the pairs of values of one head. Not for measures (compare.c).
 */
#include "formats/compare/head_sample.h"

#include "codecs/memory.h"
#include "formats/api/sized.h"
#include "formats/cache/divisor.h"
#include "formats/cache/scales.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct walk {
    const struct kvc_cache *const *cache;
    const struct kvc_tensor_pair *pair;
    float *value[2]; /* of rows of `values` each, `most_rows` at most */
    uint64_t values, most_rows;
    uint64_t first, dim; /* of the head in a row */
    uint64_t step;       /* each step-th value is taken */
    uint64_t at;         /* values of the head until now */
    size_t most, most_worst;
    struct kvc_head_sample *out;
};

/* Returns a distance of values of which at most `most` fit into n, and which has no divisor in
 * common with dim: then it takes all channels in turn. */
static uint64_t step_of(uint64_t n, uint64_t dim, size_t most) {
    uint64_t step = most ? n / most + (n % most != 0) : 1;
    while (step > 1 && kvc_common_divisor(step, dim) > 1) step++;
    return step ? step : 1;
}

static double error_of(const float pair[2]) {
    return fabs((double)pair[0] - (double)pair[1]);
}

/* Keeps a pair that is among the worst. */
static void rank(struct walk *w, float a, float b) {
    struct kvc_head_sample *s = w->out;
    const float pair[2] = {a, b};
    const double error = error_of(pair);
    size_t at = s->n_worst;
    if (!(error > 0) || (at == w->most_worst && !(error > error_of(s->worst[at - 1])))) return;
    while (at && error > error_of(s->worst[at - 1])) at--;
    if (s->n_worst < w->most_worst) s->n_worst++;
    memmove(&s->worst[at + 1], &s->worst[at], (s->n_worst - at - 1) * sizeof *s->worst);
    memcpy(s->worst[at], pair, sizeof pair);
}

static void take_row(struct walk *w, uint64_t row) {
    struct kvc_head_sample *s = w->out;
    const uint64_t first = row * w->values + w->first;
    for (uint64_t d = 0; d < w->dim; d++, w->at++) {
        const float a = w->value[0][first + d], b = w->value[1][first + d];
        if (!isfinite(a) || !isfinite(b)) continue;
        s->values++;
        if (w->most_worst) rank(w, a, b);
        if (w->at % w->step || s->n == w->most) continue;
        s->value[s->n][0] = a;
        s->value[s->n++][1] = b;
    }
}

/* Takes n rows from row a of one cache and row b of the other. */
static int take_rows(struct walk *w, uint64_t a, uint64_t b, uint64_t n, struct kvc_error *e) {
    const uint64_t from[2] = {a, b};
    for (int s = 0; s < 2; s++)
        if (kvc_read_floats(w->cache[s], w->pair->tensor[s], from[s], n, w->value[s], 1, e))
            return -1;
    for (uint64_t i = 0; i < n; i++) take_row(w, i);
    return 0;
}

static int take_runs(struct walk *w, struct kvc_error *e) {
    const struct kvc_matching *rows = &w->pair->parts->rows;
    const struct kvc_cells *cells = kvc_tensor_cells(w->cache[0], w->pair->tensor[0]);
    for (uint64_t r = 0; r < rows->n_runs; r++)
        for (uint64_t done = 0; done < rows->run[r].n;) {
            const uint64_t a = rows->run[r].a + done,
                           to_end = cells->block[kvc_cells_block_of(cells, a) + 1] - a;
            uint64_t n = rows->run[r].n - done;
            if (n > to_end) n = to_end; /* readers decode whole blocks */
            if (n > w->most_rows) n = w->most_rows;
            if (take_rows(w, a, rows->run[r].b + done, n, e)) return -1;
            done += n;
        }
    return 0;
}

int kvc_head_sample_take(const struct kvc_cache *const cache[2], const struct kvc_tensor_pair *pair,
                         uint64_t head, size_t most, size_t most_worst, struct kvc_head_sample *out,
                         struct kvc_error *e) {
    const struct kvc_shape *shape = &cache[0]->tensor[pair->tensor[0]].shape;
    struct walk w = {.cache = cache,
                     .pair = pair,
                     .values = shape->heads * shape->dim,
                     .most_rows = kvc_floats_at_once(shape),
                     .dim = shape->heads * shape->dim / pair->heads,
                     .most = most,
                     .most_worst = most_worst,
                     .out = out};
    *out = (struct kvc_head_sample){.size = sizeof *out};
    w.first = head * w.dim;
    w.step = step_of(pair->parts->rows.rows * w.dim, w.dim, most);
    out->value = kvc_alloc(most, sizeof *out->value);
    out->worst = kvc_alloc(most_worst, sizeof *out->worst);
    int missing = !out->value || !out->worst;
    for (int s = 0; s < 2; s++) {
        w.value[s] = kvc_alloc(w.most_rows, w.values * sizeof *w.value[s]);
        missing |= !w.value[s];
    }
    const int status = missing ? kvc_fail_memory(e, "a sample of values") : take_runs(&w, e);
    for (int s = 0; s < 2; s++) free(w.value[s]);
    return status;
}

void kvc_head_sample_free(struct kvc_head_sample *s) {
    if (!s) return;
    free(s->value);
    free(s->worst);
    kvc_sized_clear(s);
}
