/* profile_learn_gradients.c: sums of gradients over caches, which make the metric of
 * kvc-profile make. Not for computing the gradients (gradients.c), or the basis in the metric
 * (profile_learn_basis.c). */
#include "codecs/eigen.h"
#include "codecs/memory.h"
#include "formats/model/gradients.h"
#include "formats/model/profile_learn.h"
#include "formats/model/profile_learn_state.h"
#include "formats/model/profile_step.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REGULAR 0.1 /* added to the metric's diagonal, of its mean */
/* weight of a head at least, of the mean of all: one that nothing depends on has no metric */
#define LEAST 1e-6
#define NOTHING 1e-100
/* Caches that are measured at most, the second of heads of WIDE channels and more, whose metric has
 * more to learn; caches that are measured in any case; weights that gradients go through before no
 * more than these are: minutes of a core. */
enum { CACHES_MOST = 6, CACHES_MOST_WIDE = 8, CACHES_LEAST = 4, WIDE = 128 };
#define WEIGHTS 1e10
enum { KNOWN = 6, KNOWN_DIM = 64 };

/* Adds M of a run to `metric`: products of the gradients of rows. The run's tokens stand for
 * `tokens`, of which most are farther from the rows: attention to near rows would be to tokens of
 * the text itself. So that rows count by their distance, up to that many tokens. */
static int add_run(const struct kvc_learnt_part *p, struct kvc_rope *rope,
                   const struct kvc_gradients *g, unsigned run, int is_v, double most,
                   double *metric, struct kvc_error *e) {
    const struct kvc_cells *cells = &g->c->part[g->c->layer[g->layer].part].cells;
    const size_t dim = p->dim, width = p->heads * dim;
    const uint64_t rows = g->run[run].rows;
    const double tokens = g->run[run].again ? KVC_LEARN_AGAIN : KVC_LEARN_TOKENS,
                 share = (double)g->run[run].tokens / tokens;
    float *some = kvc_alloc(KVC_BLOCK, width * sizeof *some), *room = kvc_alloc(dim, sizeof *room);
    int status = some && room ? 0 : kvc_fail_memory(e, "gradients");
    for (uint64_t at = 0, n = 0; at < rows && !status; at++) {
        const int64_t position = kvc_cells_position(cells, at);
        if (position >= KVC_PROFILE_FIRST) {
            float *row = some + n++ * width;
            const double far = (double)(g->run[run].position - position) / tokens,
                         factor = fmin(fmax(far, share), 1) / share / most;
            kvc_kernels_get()->scale(row, g->run[run].of[is_v] + at * width, (float)sqrt(factor),
                                     width);
            kvc_learn_normalise(rope, row, p->heads, dim, position, room);
        }
        if (n < KVC_BLOCK && at + 1 < rows) continue;
        for (size_t h = 0; h < p->heads && !status; h++)
            status = kvc_gram_add(metric + h * dim * dim, some + h * dim, (size_t)n, dim, width, e);
        n = 0;
    }
    free(some);
    free(room);
    return status;
}

/* Adds the metric of a cache to the sums: its form, at a weight of 1, and the logarithm of its
 * weight, so that no cache outweighs the others. */
static void add_cache(struct kvc_learnt_part *p, const double *metric) {
    const size_t dim = p->dim;
    for (size_t h = 0; h < p->heads; h++) {
        const double *own = metric + h * dim * dim;
        double weight = 0;
        for (size_t d = 0; d < dim; d++) weight += own[d * dim + d] / (double)dim;
        p->weight[h] += log(fmax(weight, NOTHING));
        for (size_t i = 0; i < dim * dim; i++)
            p->form[h * dim * dim + i] += own[i] / fmax(weight, NOTHING);
    }
    p->measured++;
}

static int take_part(const struct kvc_gradients *g, int is_v, struct kvc_rope *rope,
                     const struct kvc_learnt_layer *l, struct kvc_learnt_part *p,
                     struct kvc_error *e) {
    const size_t dim = p->dim;
    if (!p->form) {
        p->form = kvc_alloc_zeros(p->heads * dim, dim * sizeof *p->form);
        p->weight = kvc_alloc_zeros(p->heads, sizeof *p->weight);
    }
    double *metric = kvc_alloc_zeros(p->heads * dim, dim * sizeof *metric);
    int status = p->form && p->weight && metric ? 0 : kvc_fail_memory(e, "a metric");
    const double most = l->window && l->window < KVC_PROFILE_CONTEXT ? l->window
                                                                     : KVC_PROFILE_CONTEXT;
    for (unsigned i = 0; i < KVC_GRADIENTS_RUNS && !status; i++)
        status = add_run(p, rope, g, i, is_v, most, metric, e);
    if (!status) add_cache(p, metric);
    free(metric);
    return status;
}

/* Keeps the queries that the model made for the first run: those that were estimated count no more.
 */
static int take_queries(const struct kvc_gradients *g, struct kvc_rope *rope,
                        struct kvc_learnt_layer *to, struct kvc_error *e) {
    const size_t dim = to->part[0].dim, width = g->query_heads * dim, n = (size_t)g->run[0].tokens;
    if (!to->exact) to->n_queries = 0;
    float *grown = kvc_realloc(to->query, (to->n_queries + n) * width + dim, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "queries");
    to->query = grown;
    for (size_t i = 0; i < n; i++) {
        float *row = grown + (to->n_queries + i) * width;
        memcpy(row, g->queries + i * width, width * sizeof *row);
        kvc_learn_normalise(rope, row, g->query_heads, dim, g->run[0].position + (int64_t)i,
                            grown + (to->n_queries + n) * width);
    }
    to->query_heads = g->query_heads;
    to->query_dim = dim;
    to->n_queries += n;
    to->exact = 1;
    return 0;
}

static int take(void *state, const struct kvc_gradients *g, struct kvc_error *e) {
    struct kvc_learner *l = state;
    const struct kvc_layer *layer = &g->c->layer[g->layer];
    /* values of other types than floats have gradients, too, and are not learnt from */
    struct kvc_learnt_layer *to = layer->index < l->layers ? &l->layer[layer->index] : NULL;
    struct kvc_rope rope, none = {.half = 0};
    for (int r = 0; r < 2; r++) {
        const struct kvc_shape *shape = &g->c->tensor[layer->tensor[r]].shape;
        if (!to || !to->part[r].sum || to->part[r].heads != shape->heads ||
            to->part[r].dim != shape->dim)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "not all layers are learnt from");
    }
    l->weights += (double)g->weights;
    if (kvc_learn_rope(l, g->c, g->layer, to, &rope, e)) return -1;
    int status = take_queries(g, &rope, to, e);
    if (!status) status = take_part(g, 0, &rope, to, &to->part[0], e);
    if (!status) status = take_part(g, 1, &none, to, &to->part[1], e);
    kvc_rope_free(&rope);
    return status;
}

int kvc_learner_look(struct kvc_learner *l, const struct kvc_cache *c, const struct kvc_weights *w,
                     unsigned threads, int (*stop)(void *state), void *state, int measure,
                     struct kvc_gradients_pass **pass, struct kvc_error *e) {
    const struct kvc_gradients_taker to = {take, stop, l, state};
    const int wide = l->layers && l->layer[0].part[0].dim >= WIDE,
              enough = l->measured >= (wide ? CACHES_MOST_WIDE : CACHES_MOST) ||
                       (l->measured >= CACHES_LEAST && l->weights > WEIGHTS);
    *pass = NULL;
    if (enough || !measure) return kvc_gradients_compare(c, w, threads, e);
    return (*pass = kvc_gradients_begin(c, w, threads, &to, e)) ? 0 : -1;
}

int kvc_learner_measure(struct kvc_learner *l, struct kvc_gradients_pass *pass,
                        struct kvc_error *e) {
    if (kvc_gradients_end(pass, e)) return -1;
    l->measured++;
    return 0;
}

int kvc_learner_has_gradients(const struct kvc_learner *l) {
    for (uint32_t i = 0; i < l->layers; i++)
        for (int r = 0; r < 2; r++)
            if (l->layer[i].part[r].sum && !(l->layer[i].part[r].measured > 0)) return 0;
    return l->layers != 0;
}

/* Returns how many times larger the metric is taken than it was measured. It fits the caches that
 * it is of: errors in others cost more, the more so the more channels a head has, and the fewer
 * caches there are. With KNOWN caches of heads of 64 channels they do not (GRADIENTS.md). */
static double margin(const struct kvc_learner *l) {
    size_t widest = 0;
    for (uint32_t i = 0; i < l->layers; i++)
        for (int r = 0; r < 2; r++)
            if (l->layer[i].part[r].dim > widest) widest = l->layer[i].part[r].dim;
    return fmax(1, sqrt((double)widest / KNOWN_DIM * KNOWN / fmax(l->measured, 1)));
}

double kvc_learn_weight(const struct kvc_learnt_part *p, size_t head) {
    return exp(p->weight[head] / p->measured) * p->margin;
}

void kvc_learn_gradients_settle(struct kvc_learner *l) {
    const int known = kvc_learner_has_gradients(l);
    const double more = margin(l);
    for (int r = 0; r < 2; r++) {
        double mean = 0, heads = 0;
        for (uint32_t i = 0; i < l->layers; i++) {
            struct kvc_learnt_part *p = &l->layer[i].part[r];
            p->margin = more;
            for (size_t h = 0; known && p->sum && h < p->heads; h++, heads++)
                mean += kvc_learn_weight(p, h);
        }
        for (uint32_t i = 0; i < l->layers; i++)
            l->layer[i].part[r].minimum = heads > 0 ? fmax(LEAST * mean / heads, NOTHING) : 0;
    }
}

void kvc_learn_metric(const struct kvc_learnt_part *p, size_t head, double *metric) {
    const size_t dim = p->dim;
    const double weight = kvc_learn_weight(p, head), more = fmax(REGULAR * weight, p->minimum);
    for (size_t a = 0; a < dim; a++)
        for (size_t b = a; b < dim; b++)
            metric[a * dim + b] = metric[b * dim + a] = p->form[(head * dim + a) * dim + b] *
                                                            weight / p->measured +
                                                        (a == b ? more : 0);
}
