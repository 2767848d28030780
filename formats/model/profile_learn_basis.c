/* profile_learn_basis.c: the basis of K or V of a layer, from what was counted of its rows. The
 * metric is that of kvc-profile make where there are gradients, else that of basis.md's own basis:
 * an error of K counts as an error of a logit where there are queries, and relative to the energy
 * of K where there are none; an error of V relative to the variance of its layer. */
#include "formats/model/profile_learn_basis.h"

#include "codecs/eigen.h"
#include "codecs/memory.h"

#include <math.h>
#include <string.h>

#define MIN_WEIGHT 0.02   /* of a channel, relative to the mean of its head */
#define SPREAD_SHARE 0.03 /* of weights by spread, beside those by attention */
#define UNIT 0.55         /* of their sum: presets then have their KLD on SmolLM2 */

void kvc_learnt_basis_free(struct kvc_learnt_basis *b) {
    free(b->mean);
    free(b->scale);
    free(b->variance);
    free(b->weight);
    free(b->basis);
}

float kvc_learn_round(const float *values, size_t n, int8_t *code) {
    float maximum = 0;
    for (size_t i = 0; i < n; i++) maximum = fmaxf(maximum, fabsf(values[i]));
    const float scale = maximum / 127;
    for (size_t i = 0; i < n; i++)
        code[i] = scale > 0 ? (int8_t)lrintf(fmaxf(-127, fminf(127, values[i] / scale))) : 0;
    return scale;
}

/* Computes the weights of a head's channels relative to spreads: of K by the energy of queries, or
 * of K itself where there are none. */
static void weigh_by_spread(const struct kvc_learnt_layer *l, int is_v, size_t head,
                            const double *variance, double layer_variance, double *weight) {
    const struct kvc_learnt_part *p = &l->part[is_v];
    double total = 0;
    for (size_t d = 0; d < p->dim; d++) weight[d] = is_v ? 1 / layer_variance : variance[d];
    if (is_v) return;
    if (l->n_queries) {
        const size_t group = l->query_heads / p->heads;
        memset(weight, 0, p->dim * sizeof *weight);
        for (size_t i = 0; i < l->n_queries * group; i++) {
            const float *q = l->query +
                             (i / group * l->query_heads + head * group + i % group) * p->dim;
            for (size_t d = 0; d < p->dim; d++)
                weight[d] += (double)q[d] * (double)q[d] / (double)(l->n_queries * group);
        }
    }
    for (size_t i = 0; i < l->half; i++)
        weight[i] = weight[l->half + i] = (weight[i] + weight[l->half + i]) / 2;
    for (size_t d = 0; d < p->dim; d++) total += weight[d] / (double)p->dim;
    for (size_t d = 0; d < p->dim; d++) {
        weight[d] += MIN_WEIGHT * total + 1e-30;
        weight[d] /= l->n_queries ? (double)p->dim : (total > 1e-30 ? total : 1) * layer_variance;
        weight[d] /= KVC_LEARN_K_STEP * KVC_LEARN_K_STEP;
    }
}

/* Computes the weights of a head's channels in the metric. Weights by attention may differ a
 * thousandfold between layers. A share of those by spread keeps the errors of all layers small. */
static void weigh(const struct kvc_learnt_layer *l, int is_v, size_t head, const double *variance,
                  double layer_variance, double *weight) {
    const size_t dim = l->part[is_v].dim;
    const double *k = l->attended[0] ? l->attended[0] + head * dim : NULL;
    double total = 0;
    weigh_by_spread(l, is_v, head, variance, layer_variance, weight);
    if (!(l->attention_scale > 0) || !k) return;
    for (size_t d = 0; d < dim && !is_v; d++) total += k[d] / (double)dim;
    for (size_t d = 0; d < dim; d++) {
        const double own = is_v ? l->attended[1][head]
                                : (k[d] + MIN_WEIGHT * total) /
                                      (KVC_LEARN_OUTPUT_STEP * KVC_LEARN_OUTPUT_STEP);
        weight[d] = UNIT * (own * l->attention_scale + SPREAD_SHARE * weight[d]);
    }
}

/* Sets to[dim][dim] to a b. */
static void multiply(double *to, const double *a, const double *b, size_t dim) {
    memset(to, 0, dim * dim * sizeof *to);
    for (size_t i = 0; i < dim; i++)
        for (size_t k = 0; k < dim; k++) {
            const double f = a[i * dim + k];
            for (size_t j = 0; j < dim; j++) to[i * dim + j] += f * b[k * dim + j];
        }
}

/* Sets root[dim][dim] to M^(1/2) and inverse to M^(-1/2). */
static int find_roots(const struct kvc_learnt_part *p, size_t h, double *root, double *inverse,
                      double *room, struct kvc_error *e) {
    const size_t dim = p->dim;
    double *value = kvc_alloc(dim, sizeof *value);
    float *vector = kvc_alloc(dim, dim * sizeof *vector);
    int status = value && vector ? 0 : kvc_fail_memory(e, "a profile");
    if (!status) kvc_learn_metric(p, h, room);
    if (!status) status = kvc_gram_eigen(vector, value, room, dim, dim, e);
    for (int which = 0; which < 2 && !status; which++) {
        double *to = which ? inverse : root;
        memset(to, 0, dim * dim * sizeof *to);
        for (size_t k = 0; k < dim; k++) {
            const float *v = vector + k * dim;
            const double own = pow(fmax(value[k], 1e-12 * value[0]), which ? -0.5 : 0.5);
            for (size_t i = 0; i < dim; i++)
                for (size_t j = 0; j < dim; j++)
                    to[i * dim + j] += own * (double)v[i] * (double)v[j];
        }
    }
    free(value);
    free(vector);
    return status;
}

/* Finds the directions of a head in the metric of gradients: U' M^(-1/2), U being the eigenvectors
 * of M^(1/2) C M^(1/2). */
static int find_by_gradients(const struct kvc_learnt_part *p, int is_v, size_t h,
                             const double *covariance, struct kvc_learnt_basis *b,
                             struct kvc_error *e) {
    const size_t dim = p->dim;
    double *root = kvc_alloc(4 * dim + 1, dim * sizeof *root);
    float *vector = kvc_alloc(dim, dim * sizeof *vector), *row = kvc_alloc(dim, sizeof *row);
    int status = root && vector && row ? 0 : kvc_fail_memory(e, "a profile");
    double *inverse = status ? NULL : root + dim * dim, *half = status ? NULL : inverse + dim * dim,
           *gram = status ? NULL : half + dim * dim, *value = status ? NULL : gram + dim * dim;
    if (!status) status = find_roots(p, h, root, inverse, gram, e);
    if (!status) {
        multiply(half, root, covariance, dim);
        multiply(gram, half, root, dim);
        status = kvc_gram_eigen(vector, value, gram, dim, dim, e);
    }
    const double step = is_v ? 1 : KVC_LEARN_GRADIENT_STEP;
    for (size_t j = 0; j < dim && !status; j++) {
        for (size_t d = 0; d < dim; d++) {
            double sum = 0;
            for (size_t k = 0; k < dim; k++)
                sum += (double)vector[j * dim + k] * inverse[k * dim + d];
            row[d] = (float)(sum * step);
        }
        b->scale[h * dim + j] = kvc_learn_round(row, dim, b->basis + (h * dim + j) * dim);
        b->variance[h * dim + j] = value[j] > 0 ? (float)(value[j] / (step * step)) : 0;
    }
    if (!status) b->weight[h] = (float)kvc_learn_weight(p, h);
    free(root);
    free(vector);
    free(row);
    return status;
}

/* Finds the directions of a head in the metric, as rows of bytes. */
static int find_head(const struct kvc_learnt_layer *l, int is_v, size_t h, const double *covariance,
                     double layer_variance, struct kvc_learnt_basis *b, struct kvc_error *e) {
    const struct kvc_learnt_part *p = &l->part[is_v];
    const size_t dim = p->dim;
    if (p->minimum > 0) return find_by_gradients(p, is_v, h, covariance, b, e);
    double *gram = kvc_alloc(dim + 3, dim * sizeof *gram),
           *variance = gram ? gram + dim * dim : NULL;
    double *weight = gram ? variance + dim : NULL, *value = gram ? weight + dim : NULL;
    float *vector = kvc_alloc(dim, dim * sizeof *vector);
    int status = gram && vector ? 0 : kvc_fail_memory(e, "a profile");
    for (size_t d = 0; d < dim && !status; d++) variance[d] = covariance[d * dim + d];
    if (!status) weigh(l, is_v, h, variance, layer_variance, weight);
    for (size_t i = 0; i < dim * dim && !status; i++)
        gram[i] = covariance[i] * sqrt(weight[i / dim] * weight[i % dim]);
    if (!status) status = kvc_gram_eigen(vector, value, gram, dim, dim, e);
    for (size_t j = 0; j < dim && !status; j++) {
        float *row = vector + j * dim;
        for (size_t d = 0; d < dim; d++) row[d] = (float)((double)row[d] / sqrt(weight[d]));
        b->scale[h * dim + j] = kvc_learn_round(row, dim, b->basis + (h * dim + j) * dim);
        b->variance[h * dim + j] = value[j] > 0 ? (float)value[j] : 0;
    }
    double sum = 0;
    for (size_t d = 0; d < dim && !status; d++) sum += weight[d] / (double)dim;
    if (!status) b->weight[h] = (float)sum;
    free(gram);
    free(vector);
    return status;
}

int kvc_learn_basis(struct kvc_learnt_basis *b, const struct kvc_learnt_layer *l, int is_v,
                    struct kvc_error *e) {
    const struct kvc_learnt_part *p = &l->part[is_v];
    const size_t heads = p->heads, dim = p->dim;
    *b = (struct kvc_learnt_basis){.mean = NULL};
    double *covariance = kvc_alloc(heads * dim, dim * sizeof *covariance), total = 0;
    b->mean = kvc_alloc(heads, dim * sizeof *b->mean);
    b->scale = kvc_alloc(heads, dim * sizeof *b->scale);
    b->variance = kvc_alloc(heads, dim * sizeof *b->variance);
    b->weight = kvc_alloc(heads, sizeof *b->weight);
    b->basis = kvc_alloc(heads * dim, dim);
    int status = covariance && b->mean && b->scale && b->variance && b->weight && b->basis
                     ? 0
                     : kvc_fail_memory(e, "a profile");
    for (size_t h = 0; h < heads && !status; h++)
        for (size_t i = 0; i < dim; i++) {
            const double mean = p->sum[h * dim + i] / p->rows;
            b->mean[h * dim + i] = (float)mean;
            for (size_t j = i; j < dim; j++) {
                const double v = p->gram[(h * dim + i) * dim + j] / p->rows -
                                 mean * (p->sum[h * dim + j] / p->rows);
                covariance[(h * dim + i) * dim + j] = covariance[(h * dim + j) * dim + i] = v;
            }
            const double own = covariance[(h * dim + i) * dim + i];
            total += own > 0 ? own / (double)(heads * dim) : 0;
        }
    for (size_t h = 0; h < heads && !status; h++)
        status = find_head(l, is_v, h, covariance + h * dim * dim, total > 1e-30 ? total : 1, b, e);
    free(covariance);
    return status;
}
