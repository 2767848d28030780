/* profile_learn_predictor.c: matrices that predict a layer from the layers before it, by ridge regression on what was counted. Not
 * for counting (profile_learn_relation.c). */
#include "formats/model/profile_learn_predictor.h"

#include "codecs/eigen.h"
#include "codecs/memory.h"
#include "formats/model/profile_learn_basis.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPAN 40.0           /* an input's standard deviation: 127 is 3.2 of it */
#define RIDGE 0.003         /* added to the diagonal, relative to it: measured on texts that were not learnt from */
#define ROUNDING (1 / 12.0) /* mean square of the error of rounding an input */

void kvc_learnt_predictor_free(struct kvc_learnt_predictor *p) {
    free(p->gain);
    free(p->weight);
    free(p->scale);
}

/* Fills mean[r->size]: those of the profile that gets the predictors, or those that were learnt. */
static int find_means(const struct kvc_learner *l, const struct kvc_learnt_relation *r, double *mean, struct kvc_error *e) {
    size_t at = 0;
    for (unsigned k = 0; k < r->n; k++)
        for (int v = 0; v < 2; v++) {
            const struct kvc_profile_part *part = NULL;
            const size_t width = r->width[k][v];
            if (l->base && kvc_profile_part(l->base, r->layers[k], v ? KVC_ROLE_V : KVC_ROLE_K, KVC_PAIRING_HALVES, 0, &part, e))
                return -1;
            if (l->base && (!part || part->heads * part->dim != width))
                return kvc_fail(e, KVC_ERR_MODEL, "the profile and the caches differ in layers, heads or channels");
            for (size_t i = 0; i < width; i++, at++)
                mean[at] = part ? (double)part->mean[i] : (double)(float)(r->sum[at] / r->rows);
        }
    return 0;
}

/* Returns the mean of (x_i - mean_i) (x_j - mean_j). */
static double moment(const struct kvc_learnt_relation *r, const double *mean, size_t i, size_t j) {
    const double product = i < j ? r->gram[i * r->size + j] : r->gram[j * r->size + i];
    return (product - mean[i] * r->sum[j] - mean[j] * r->sum[i]) / r->rows + mean[i] * mean[j];
}

static double gain_of(double variance) {
    return variance > 1e-20 ? (double)(float)(SPAN / sqrt(variance)) : 0;
}

enum { NOT_COUNTED = -1 }; /* a column: the layer is in another part of the cache, and its weights are 0 */

/* Lists the columns of the inputs in the order of a profile: the nearest layer first, then for V the layer's own K. Returns how
 * many. */
static size_t list_inputs(const struct kvc_learner *l, const struct kvc_learnt_relation *r, int is_v, int64_t *column) {
    const uint32_t own = r->layers[r->n - 1];
    size_t n = 0;
    for (unsigned b = 1; b <= l->back && b <= own; b++) {
        const struct kvc_learnt_relation *there = &l->relation[own - b];
        size_t at = 0;
        unsigned k = 0;
        if (!there->n || !(there->rows > 0)) continue; /* has no gains */
        for (; k < r->n && r->layers[k] != own - b; k++) at += r->width[k][0] + r->width[k][1];
        const size_t width = there->width[there->n - 1][0] + there->width[there->n - 1][1];
        for (size_t i = 0; i < width; i++) column[n++] = k < r->n ? (int64_t)(at + i) : NOT_COUNTED;
    }
    const size_t k_at = r->size - r->width[r->n - 1][0] - r->width[r->n - 1][1];
    for (size_t i = 0; is_v && i < r->width[r->n - 1][0]; i++) column[n++] = (int64_t)(k_at + i);
    return n;
}

/* Returns the most inputs that a layer can have. */
static size_t most_inputs(const struct kvc_learner *l, const struct kvc_learnt_relation *r) {
    size_t n = r->size;
    for (unsigned b = 1; b <= l->back && b <= r->layers[r->n - 1]; b++) {
        const struct kvc_learnt_relation *there = &l->relation[r->layers[r->n - 1] - b];
        if (there->n) n += there->width[there->n - 1][0] + there->width[there->n - 1][1];
    }
    return n;
}

static int solve(const struct kvc_learnt_relation *r, const double *mean, const int64_t *column, size_t target,
                 struct kvc_learnt_predictor *to, struct kvc_error *e) {
    const size_t n = to->inputs, m = to->width;
    double *a = kvc_alloc(n, n * sizeof *a), *b = kvc_alloc(n, m * sizeof *b), *gain = kvc_alloc(n, sizeof *gain);
    float *row = kvc_alloc(n, sizeof *row);
    int status = a && b && gain && row ? 0 : kvc_fail_memory(e, "a profile");
    for (size_t i = 0; i < n && !status; i++)
        gain[i] = column[i] == NOT_COUNTED ? 0 : gain_of(moment(r, mean, (size_t)column[i], (size_t)column[i]));
    for (size_t i = 0; i < n && !status; i++) {
        const int counts = gain[i] > 0;
        for (size_t j = i; j < n; j++)
            a[i * n + j] = counts && gain[j] > 0 ? moment(r, mean, (size_t)column[i], (size_t)column[j]) * gain[i] * gain[j] : 0;
        for (size_t j = 0; j < m; j++) b[i * m + j] = counts ? moment(r, mean, (size_t)column[i], target + j) * gain[i] : 0;
        a[i * n + i] = a[i * n + i] * (1 + RIDGE) + ROUNDING;
    }
    if (!status) status = kvc_solve_symmetric(a, n, b, m, e);
    for (size_t j = 0; j < m && !status; j++) {
        for (size_t i = 0; i < n; i++) row[i] = (float)b[i * m + j];
        to->scale[j] = kvc_learn_round(row, n, to->weight + j * n);
    }
    free(a);
    free(b);
    free(gain);
    free(row);
    return status;
}

int kvc_learn_predictor(const struct kvc_learner *l, uint32_t layer, int is_v, struct kvc_learnt_predictor *to,
                        struct kvc_error *e) {
    const struct kvc_learnt_relation *r = &l->relation[layer];
    *to = (struct kvc_learnt_predictor){.width = 0};
    if (layer >= l->n_relations || !r->n || !(r->rows > 0)) return 0;
    const size_t target = r->size - r->width[r->n - 1][1] - (is_v ? 0 : r->width[r->n - 1][0]);
    double *mean = kvc_alloc(r->size, sizeof *mean);
    int64_t *column = kvc_alloc(most_inputs(l, r), sizeof *column);
    to->width = r->width[r->n - 1][is_v];
    to->gain = kvc_alloc(to->width, sizeof *to->gain);
    int status = mean && column && to->gain ? find_means(l, r, mean, e) : kvc_fail_memory(e, "a profile");
    for (size_t i = 0; i < to->width && !status; i++) to->gain[i] = (float)gain_of(moment(r, mean, target + i, target + i));
    if (!status && (to->inputs = list_inputs(l, r, is_v, column))) {
        to->weight = kvc_alloc(to->width, to->inputs);
        to->scale = kvc_alloc(to->width, sizeof *to->scale);
        status = to->weight && to->scale ? solve(r, mean, column, target, to, e) : kvc_fail_memory(e, "a profile");
    }
    free(mean);
    free(column);
    return status;
}
