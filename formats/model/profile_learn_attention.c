/* profile_learn_attention.c: how much attention minds errors of K and V, from the queries of a
 * cache: a metric without gradients.
 *
 * An error of V at a token moves the output of attention by the token's share A of it. An error of
 * K changes a logit by its product with the query over sqrt(D), and so moves the output by A (v -
 * o) times that, o being the output. Squares are averaged over queries. What counts is the text
 * that follows the cache, though, and the queries are of its last tokens: attention to near tokens
 * will be to tokens that the cache does not hold. So a token at a distance of d counts d / 512
 * times, at most once. Not for gradients (share/make_profile). */
#include "formats/model/profile_learn_state.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/cache/scales.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* queries of a cache that are taken; tokens of text that follows */
enum { QUERIES = 24, FAR = 512 };
#define LEAST 1e-4 /* weight of V in a head, of the mean over all heads, at least */

/* K and V of a layer, and room for one query. */
struct attended {
    size_t heads, dim, dim_v, group, n;
    const struct kvc_cells *cells;
    float *k, *v, *share, *output, *room;
    uint64_t window;
};

static float *read_all(const struct kvc_cache *c, uint32_t t, struct kvc_error *e) {
    const struct kvc_shape *shape = &c->tensor[t].shape;
    const size_t values = (size_t)(shape->tokens * shape->heads * shape->dim);
    float *rows = kvc_alloc(values + 1, sizeof *rows);
    if (!rows) kvc_fail_memory(e, "rows");
    else if (!kvc_read_floats(c, t, 0, shape->tokens, rows, 0, e)) return rows;
    free(rows);
    return NULL;
}

/* Sets x->share to the attention of a query over the rows that it sees. Returns their number. */
static size_t find_shares(const struct attended *x, size_t head, const float *query,
                          int64_t position) {
    const struct kvc_kernels *kernels = kvc_kernels_get();
    const float scale = 1 / sqrtf((float)x->dim);
    size_t n = 0;
    float most = -INFINITY;
    for (; n < x->n && kvc_cells_position(x->cells, n) <= position; n++) {
        const float logit = kernels->dot(query, x->k + (n * x->heads + head) * x->dim, x->dim) *
                            scale;
        const int hidden = x->window &&
                           position - kvc_cells_position(x->cells, n) >= (int64_t)x->window;
        x->share[n] = hidden || !(fabsf(logit) <= 0x1p100f) ? -INFINITY : logit;
        most = fmaxf(most, x->share[n]);
    }
    if (!n || most == -INFINITY) return 0;
    const float sum = kernels->exponentials(x->share, n, most);
    kernels->scale(x->share, x->share, 1 / sum, n);
    return n;
}

/* Adds what one query of the query heads says of its KV head. `energy`: squares of the query,
 * paired as halves. */
static void add_query(const struct attended *x, size_t head, const float *query, int64_t position,
                      const double *energy, struct kvc_learnt_layer *to) {
    const size_t n = find_shares(x, head, query, position);
    double of_v = 0, of_k = 0;
    memset(x->output, 0, x->dim_v * sizeof *x->output);
    for (size_t t = 0; t < n; t++)
        if (x->share[t] > 0)
            kvc_kernels_get()->add_scaled(x->output, x->v + (t * x->heads + head) * x->dim_v,
                                          x->share[t], x->dim_v);
    for (size_t t = 0; t < n; t++) {
        const int64_t at = kvc_cells_position(x->cells, t);
        const float *v = x->v + (t * x->heads + head) * x->dim_v;
        const double far = (double)(position - at) / FAR;
        const double weight = (double)x->share[t] * (double)x->share[t] * (far < 1 ? far : 1);
        double apart = 0;
        if (at < KVC_PROFILE_FIRST || weight < 1e-12) continue;
        for (size_t d = 0; d < x->dim_v; d++)
            apart += (double)(v[d] - x->output[d]) * (double)(v[d] - x->output[d]);
        if (!(apart < 1e30)) continue;
        of_v += weight;
        of_k += weight * apart;
    }
    to->attended[1][head] += of_v;
    for (size_t d = 0; d < x->dim; d++)
        to->attended[0][head * x->dim + d] += of_k * energy[d] / (double)x->dim;
}

/* Makes squares of a query's channels. Both channels of a pair get their mean: rotations keep the
 * sum. */
static void find_energy(double *to, const float *query, size_t dim, size_t half) {
    for (size_t d = 0; d < dim; d++) to[d] = (double)query[d] * (double)query[d];
    for (size_t i = 0; i < half; i++) to[i] = to[half + i] = (to[i] + to[half + i]) / 2;
}

/* Pairs the channels of n heads as halves, so that sums are the same in both pairings. */
static void pair_as_halves(float *row, size_t n, size_t dim, const struct kvc_learnt_layer *l,
                           enum kvc_pairing pairing, float *room) {
    for (size_t h = 0; h < n && pairing == KVC_PAIRING_INTERLEAVED; h++)
        kvc_learn_to_halves(row + h * dim, l->half, room);
}

static int add_all(struct attended *x, const struct kvc_cache *q, uint32_t t,
                   enum kvc_pairing pairing, struct kvc_learnt_layer *to, struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(q, t);
    const size_t n = (size_t)q->tensor[t].shape.tokens, step = (n + QUERIES - 1) / QUERIES,
                 width = x->heads * x->group * x->dim;
    float *row = kvc_alloc(width + x->dim, sizeof *row);
    double *energy = kvc_alloc(x->dim, sizeof *energy);
    int status = row && energy ? 0 : kvc_fail_memory(e, "queries");
    for (size_t i = 0; i < n && !status; i += step) {
        if ((status = q->read(q, t, i, 1, (uint8_t *)row, e))) break;
        if (!kvc_all_finite(row, width)) continue;
        pair_as_halves(row, x->heads * x->group, x->dim, to, pairing, row + width);
        for (size_t h = 0; h < x->heads * x->group; h++) {
            find_energy(energy, row + h * x->dim, x->dim, to->half);
            add_query(x, h / x->group, row + h * x->dim, kvc_cells_position(cells, i), energy, to);
        }
        to->attending += (double)x->group;
    }
    free(row);
    free(energy);
    return status;
}

/* Returns 1 if the layer's K (role 0) or V is taken, in the shape that it has in all caches. */
static int is_part(const struct kvc_cache *c, uint32_t layer, int role,
                   const struct kvc_learnt_layer *to) {
    if (!kvc_learn_takes(c, &c->layer[layer], role) || !to->part[role].sum) return 0;
    const struct kvc_shape *shape = &c->tensor[c->layer[layer].tensor[role]].shape;
    return shape->heads == to->part[role].heads && shape->dim == to->part[role].dim;
}

int kvc_learn_attention(const struct kvc_cache *c, uint32_t layer, const struct kvc_cache *queries,
                        uint32_t tensor, enum kvc_pairing pairing, struct kvc_learnt_layer *to,
                        struct kvc_error *e) {
    const uint32_t k = c->layer[layer].tensor[0], v = c->layer[layer].tensor[1];
    if (!is_part(c, layer, 0, to) || !is_part(c, layer, 1, to) ||
        to->part[0].heads != to->part[1].heads)
        return 0;
    struct attended x = {.heads = to->part[0].heads,
                         .dim = to->part[0].dim,
                         .dim_v = to->part[1].dim,
                         .group = (size_t)queries->tensor[tensor].shape.heads / to->part[0].heads,
                         .n = (size_t)c->tensor[k].shape.tokens,
                         .cells = kvc_tensor_cells(c, k),
                         .window = to->window};
    if (!to->attended[0]) {
        to->attended[0] = kvc_alloc_zeros(x.heads, x.dim * sizeof(double));
        to->attended[1] = kvc_alloc_zeros(x.heads, sizeof(double));
    }
    x.share = kvc_alloc(x.n + 1, sizeof *x.share);
    x.output = kvc_alloc(x.dim_v, sizeof *x.output);
    x.room = kvc_alloc(x.dim, sizeof *x.room);
    int status = to->attended[0] && to->attended[1] && x.share && x.output && x.room
                     ? 0
                     : kvc_fail_memory(e, "attention");
    if (!status && !((x.k = read_all(c, k, e)) && (x.v = read_all(c, v, e)))) status = -1;
    if (!status) pair_as_halves(x.k, x.n * x.heads, x.dim, to, pairing, x.room);
    if (!status) status = add_all(&x, queries, tensor, pairing, to, e);
    free(x.k);
    free(x.v);
    free(x.share);
    free(x.output);
    free(x.room);
    return status;
}

/* Scales weights so that the mean logarithm of V's weight times its variance is 0. */
void kvc_learn_attention_settle(struct kvc_learner *l) {
    double sum = 0, mean = 0, n = 0;
    for (uint32_t i = 0; i < l->layers; i++) {
        struct kvc_learnt_layer *x = &l->layer[i];
        x->attention_scale = 0;
        if (!x->part[0].sum && !x->part[1].sum) continue;
        if (!(x->attending > 0) || !(x->part[1].rows > 0)) return; /* of all layers, or of none */
        for (size_t h = 0; h < x->part[1].heads; h++, n++) mean += x->attended[1][h] / x->attending;
    }
    if (!(n > 0) || !(mean > 0)) return;
    mean /= n;
    for (uint32_t i = 0; i < l->layers; i++) {
        struct kvc_learnt_layer *x = &l->layer[i];
        const struct kvc_learnt_part *v = &x->part[1];
        for (size_t h = 0; v->sum && h < v->heads; h++) {
            double *own = &x->attended[1][h], variance = 0;
            if (*own < LEAST * mean * x->attending) *own = LEAST * mean * x->attending;
            for (size_t d = 0; d < v->dim; d++) {
                const double m = v->sum[h * v->dim + d] / v->rows;
                variance += (v->gram[(h * v->dim + d) * v->dim + d] / v->rows - m * m) /
                            (double)v->dim;
            }
            sum += log(fmax(variance, 1e-30) * *own / x->attending);
        }
    }
    /* errors of early layers go through more layers */
    for (uint32_t i = 0; i < l->layers; i++)
        if (l->layer[i].attending > 0)
            l->layer[i].attention_scale = exp(-sum / n) * (double)(l->layers - i) /
                                          (double)l->layers / l->layer[i].attending;
}
