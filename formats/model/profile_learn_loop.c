/* profile_learn_loop.c: learns predictors in closed loop, layer by layer. Inputs are rows of
 * earlier layers as a decoder has them: coded by the predictors and bases that were just made for
 * those layers, at steps as wide apart as presets use. Learnt from exact rows, a predictor would
 * trust what coarse steps have erased. Not for reading caches (profile_learn_samples.c). */
#include "formats/model/profile_learn_loop.h"

#include "codecs/eigen.h"
#include "codecs/memory.h"
#include "codecs/random.h"
#include "formats/model/predictor.h"
#include "formats/model/profile_learn_basis.h"
#include "formats/model/profile_step.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPAN 40.0 /* an input's standard deviation: 127 is 3.2 of it */
/* added to the diagonal, relative to it: measured on texts that were not learnt from */
#define RIDGE 0.003
/* tokens of caches that a profile is expected to serve */
#define SERVED 131072.0
#define ROUNDING (1 / 12.0) /* mean square of the error of rounding to integers */
/* a row's step is so much finer or coarser than that of a KLD of 0.01, at most */
#define OCTAVES 2.0
/* share of rows that are taken as they are: lossless stages predict from such rows */
#define EXACT 0.15
/* of all caches: of more rows, every second or third is taken */
enum { ROWS_MOST = 65536 };
enum { CLASS_LEAST = -2, CLASSES = 6 }; /* classes of the stage `steps`, in half octaves */

/* K and V of a layer as inputs: [row][channel], 0 where a cache has not got the layer. */
struct inputs {
    uint32_t layer;
    int made;
    size_t width[2];
    int8_t *small[2];
};

struct loop {
    const struct kvc_learner *l;
    struct kvc_profile *base;
    uint64_t rows, stride;
    uint64_t *first;      /* by sample: its first row */
    float *step;          /* by row; 0: exact */
    struct inputs *ring;  /* of l->back + 1 layers, by layer modulo that */
    struct kvc_small own; /* of the part that is learnt */
};

/* The part that is learnt: K or V of a layer. */
struct part {
    uint32_t layer;
    int is_v;
    const struct kvc_profile_part *known;
    struct inputs *input[KVC_AHEAD_MOST];
    int role[KVC_AHEAD_MOST];
    size_t n_inputs, inputs, width;
    unsigned *column; /* by sample; UINT_MAX: it has not got the layer */
    float *x;         /* [row][width]; then what prediction leaves */
    float *ahead;     /* predictions, likewise */
    /* that code the rows: the profile's, or those made for what prediction leaves */
    const float *basis, *inverse;
    float *made_basis, *made_inverse;
    struct kvc_learnt_predictor learnt;
};

/* --- rows --- */

static int profile_learn_loop_read_rows(const struct loop *p, struct part *x, struct kvc_error *e) {
    for (uint32_t s = 0; s < p->l->n_samples; s++) {
        const struct kvc_learnt_sample *sample = &p->l->sample[s];
        if (x->column[s] == KVC_NONE || !sample->rows) continue;
        float *all = kvc_alloc(sample->rows, x->width * sizeof *all),
              *to = x->x + p->first[s] * x->width;
        int status = all ? kvc_learnt_rows(p->l, sample, x->column[s], x->is_v, all, e)
                         : kvc_fail_memory(e, "rows");
        for (uint64_t i = 0; i < sample->rows && !status; i += p->stride, to += x->width)
            memcpy(to, all + i * x->width, x->width * sizeof *to);
        free(all);
        if (status) return -1;
    }
    return 0;
}

/* Calls visit() for runs of at most KVC_BLOCK rows of the samples that have the part. */
static int for_runs(const struct loop *p, struct part *x,
                    int (*visit)(const struct loop *p, struct part *x, uint64_t first, size_t n,
                                 void *state, struct kvc_error *e),
                    void *state, struct kvc_error *e) {
    int status = 0;
    for (uint32_t s = 0; s < p->l->n_samples; s++) {
        if (x->column[s] == KVC_NONE) continue;
        for (uint64_t i = p->first[s]; i < p->first[s + 1] && !status; i += KVC_BLOCK) {
            const uint64_t left = p->first[s + 1] - i;
            status = visit(p, x, i, left < KVC_BLOCK ? (size_t)left : KVC_BLOCK, state, e);
        }
    }
    return status;
}

/* --- the predictor --- */

/* Sums of products of inputs and rows, both about their means. */
struct relation {
    double *gram; /* [inputs + width][inputs + width]: the upper triangle */
    float *room;
    int8_t *inputs; /* of a row */
    double rows;
};

static void profile_learn_loop_gather(const struct part *x, uint64_t row, int8_t *to) {
    for (size_t t = 0; t < x->n_inputs; t++) {
        const size_t width = x->input[t]->width[x->role[t]];
        memcpy(to, x->input[t]->small[x->role[t]] + row * width, width);
        to += width;
    }
}

static int relate(const struct loop *p, struct part *x, uint64_t first, size_t n, void *state,
                  struct kvc_error *e) {
    struct relation *r = state;
    const size_t size = x->inputs + x->width;
    (void)p;
    for (size_t i = 0; i < n; i++) {
        float *to = r->room + i * size;
        profile_learn_loop_gather(x, first + i, r->inputs);
        for (size_t k = 0; k < x->inputs; k++) *to++ = (float)r->inputs[k];
        for (size_t k = 0; k < x->width; k++)
            to[k] = x->x[(first + i) * x->width + k] - p->own.mean[k];
    }
    r->rows += (double)n;
    return kvc_gram_add(r->gram, r->room, n, size, size, e);
}

/* Chooses the unit of each output's weights, but not so fine that the largest takes more than 127.
 * The error of a weight counts as the square of U's diagonal, since later weights make up for the
 * rest. Errors that add a share s to what prediction leaves cost n weights -n/2 log2(s) bits, but
 * for a constant, and each of SERVED tokens 1/2 log2(1 + s): the sum is smallest at an s of about
 * n / SERVED. Weights so rounded have 3.5 to 5 bits of entropy, which compression of the file
 * finds.
 */
static void choose_units(const struct part *x, const struct relation *r, const double *u,
                         const double *y, const double *weight, double *unit) {
    const size_t n = x->inputs, m = x->width, size = n + m;
    const double share = (double)n / SERVED;
    double diagonal = 0;
    for (size_t k = 0; k < n; k++) diagonal += u[k * n + k] * u[k * n + k];
    for (size_t j = 0; j < m; j++) {
        double left = r->gram[(n + j) * size + n + j] / r->rows, largest = 0;
        for (size_t k = 0; k < n; k++) {
            left -= y[k * m + j] * y[k * m + j];
            largest = fmax(largest, fabs(weight[k * m + j]));
        }
        unit[j] = fmax(largest / 127, sqrt(fmax(left, 0) * share / (ROUNDING * diagonal)));
    }
}

/* Solves for the weights, and rounds them one after the other, each for the errors of those before.
 */
static int solve(struct part *x, const struct relation *r, struct kvc_error *e) {
    const size_t n = x->inputs, m = x->width, size = n + m;
    double *a = kvc_alloc(n, n * sizeof *a), *b = kvc_alloc(n, m * sizeof *b);
    double *weight = kvc_alloc(n, m * sizeof *weight), *unit = kvc_alloc(m, sizeof *unit);
    int status = a && b && weight && unit ? 0 : kvc_fail_memory(e, "a profile");
    for (size_t i = 0; i < n && !status; i++) {
        for (size_t j = i; j < n; j++) a[i * n + j] = r->gram[i * size + j] / r->rows;
        for (size_t j = 0; j < m; j++) b[i * m + j] = r->gram[i * size + n + j] / r->rows;
        a[i * n + i] = a[i * n + i] * (1 + RIDGE) + ROUNDING;
    }
    if (!status) status = kvc_factorise(a, n, b, m, e);
    if (!status) status = kvc_substitute(a, n, b, weight, m, NULL, e);
    if (!status) choose_units(x, r, a, b, weight, unit);
    if (!status) status = kvc_substitute(a, n, b, weight, m, unit, e);
    for (size_t j = 0; j < m && !status; j++) {
        x->learnt.scale[j] = (float)unit[j];
        for (size_t i = 0; i < n; i++)
            x->learnt.weight[j * n + i] = unit[j] > 0 ? (int8_t)lrint(weight[i * m + j] / unit[j])
                                                      : 0;
    }
    free(a);
    free(b);
    free(weight);
    free(unit);
    return status;
}

/* The predictor as it is applied, with room for a run. */
struct applied {
    struct kvc_predictor predictor;
    int8_t *weight, *inputs;
    double *gram; /* of what is left: [head][channel][channel], upper triangles */
    double rows;
};

static int apply(const struct loop *p, struct part *x, uint64_t first, size_t n, void *state,
                 struct kvc_error *e) {
    struct applied *a = state;
    const size_t stride = a->predictor.matrix.inputs, dim = x->known->dim;
    float *row = x->x + first * x->width, *ahead = x->ahead + first * x->width;
    int status = 0;
    (void)p;
    for (size_t i = 0; i < n; i++) profile_learn_loop_gather(x, first + i, a->inputs + i * stride);
    kvc_predict_rows(&a->predictor, ahead, a->inputs, n);
    for (size_t i = 0; i < n * x->width; i++) row[i] -= ahead[i];
    for (size_t h = 0; h < x->known->heads && !status; h++)
        status = kvc_gram_add(a->gram + h * dim * dim, row + h * dim, n, dim, x->width, e);
    a->rows += (double)n;
    return status;
}

/* Makes a basis of the same metric for what is left. Coefficients of the known basis have a metric
 * of 1, so the new basis is the known one, multiplied by the eigenvectors of their covariance. */
static int find_basis(struct part *x, const struct applied *a, struct kvc_error *e) {
    const size_t dim = x->known->dim;
    double *both = kvc_alloc(3 * dim + 1, dim * sizeof *both), *full = both,
           *half = both ? both + dim * dim : NULL;
    double *square = both ? half + dim * dim : NULL, *value = both ? square + dim * dim : NULL;
    float *vector = kvc_alloc(dim + 1, dim * sizeof *vector),
          *row = vector ? vector + dim * dim : NULL;
    int status = both && vector ? 0 : kvc_fail_memory(e, "a profile");
    for (size_t h = 0; h < x->known->heads && !status; h++) {
        const double *gram = a->gram + h * dim * dim;
        const float *inverse = x->known->inverse + h * dim * dim,
                    *basis = x->known->basis + h * dim * dim;
        for (size_t i = 0; i < dim; i++)
            for (size_t j = i; j < dim; j++)
                full[i * dim + j] = full[j * dim + i] = gram[i * dim + j] / a->rows;
        /* half = full inverse; square = inverse' half */
        for (size_t second = 0; second < 2; second++) {
            const double *from = second ? half : full;
            double *to = second ? square : half;
            memset(to, 0, dim * dim * sizeof *to);
            for (size_t i = 0; i < dim; i++)
                for (size_t k = 0; k < dim; k++) {
                    const double f = second ? (double)inverse[k * dim + i] : from[i * dim + k];
                    for (size_t j = 0; j < dim; j++)
                        to[i * dim + j] += f * (second ? from[k * dim + j]
                                                       : (double)inverse[k * dim + j]);
                }
        }
        if ((status = kvc_gram_eigen(vector, value, square, dim, dim, e))) break;
        for (size_t j = 0; j < dim; j++) {
            const size_t at = h * dim + j;
            memset(row, 0, dim * sizeof *row);
            for (size_t i = 0; i < dim; i++)
                for (size_t d = 0; d < dim; d++) row[d] += vector[j * dim + i] * basis[i * dim + d];
            x->learnt.basis_scale[at] = kvc_learn_round(row, dim, x->learnt.basis + at * dim);
            x->learnt.variance[at] = value[j] > 0 ? (float)value[j] : 0;
            for (size_t d = 0; d < dim; d++)
                x->made_basis[at * dim + d] = (float)x->learnt.basis[at * dim + d] *
                                              x->learnt.basis_scale[at];
        }
        for (size_t i = 0; i < dim * dim; i++) full[i] = (double)x->made_basis[h * dim * dim + i];
        status = kvc_invert(full, dim, e);
        for (size_t i = 0; i < dim * dim && !status; i++)
            x->made_inverse[h * dim * dim + i] = (float)full[i];
    }
    x->basis = x->made_basis;
    x->inverse = x->made_inverse;
    free(both);
    free(vector);
    return status;
}

static int learn_predictor(const struct loop *p, struct part *x, const struct relation *r,
                           struct kvc_error *e) {
    struct kvc_learnt_predictor *to = &x->learnt;
    const size_t width = x->width, dim = x->known->dim, inputs = kvc_dot_stride(x->inputs);
    struct applied a = {.rows = 0};
    to->weight = kvc_alloc(width, x->inputs);
    to->scale = kvc_alloc(width, sizeof *to->scale);
    to->basis = kvc_alloc(width, dim);
    to->basis_scale = kvc_alloc(width, sizeof *to->basis_scale);
    to->variance = kvc_alloc(width, sizeof *to->variance);
    x->made_basis = kvc_alloc(width, dim * sizeof *x->made_basis);
    x->made_inverse = kvc_alloc(width, dim * sizeof *x->made_inverse);
    a.weight = kvc_alloc_zero_lines(kvc_dot_bytes(width, inputs), 1);
    a.inputs = kvc_alloc_zero_lines(KVC_BLOCK, inputs);
    a.gram = kvc_alloc_zeros(width, dim * sizeof *a.gram);
    int status = to->weight && to->scale && to->basis && to->basis_scale && to->variance &&
                         x->made_basis && x->made_inverse && a.weight && a.inputs && a.gram
                     ? solve(x, r, e)
                     : kvc_fail_memory(e, "a profile");
    if (!status) {
        for (size_t i = 0; i < width; i++)
            for (size_t j = 0; j < x->inputs; j++)
                a.weight[kvc_dot_place(inputs, i, j)] = to->weight[i * x->inputs + j];
        a.predictor.matrix = (struct kvc_dot_matrix){width, inputs, a.weight, to->scale,
                                                     p->own.mean};
        status = for_runs(p, x, apply, &a, e) || find_basis(x, &a, e);
    }
    free(a.weight);
    free(a.inputs);
    free(a.gram);
    return status ? -1 : 0;
}

/* --- what a decoder has --- */

/* Replaces rows, of which predictions are taken away, by what they decode to, and makes inputs of
 * these. */
static int profile_learn_loop_decode(const struct loop *p, struct part *x, uint64_t first, size_t n,
                                     void *state, struct kvc_error *e) {
    const size_t heads = x->known->heads, dim = x->known->dim;
    struct inputs *to = &p->ring[x->layer % (p->l->back + 1)];
    float *room = state, *code = room + 2 * x->width, *back = code + dim;
    (void)e;
    for (uint64_t i = first; i < first + n; i++) {
        float *row = x->x + i * x->width;
        const float *ahead = x->ahead + i * x->width;
        for (size_t h = 0; h < heads; h++) {
            const uint64_t key = ((i * 4096 + x->layer) * 2 + (uint64_t)x->is_v) * 4096 + h;
            const float step = p->step[i] *
                               (float)exp2((CLASS_LEAST + (double)(kvc_random_mix(key) % CLASSES)) /
                                           2);
            const float *inverse = x->inverse + h * dim * dim, *basis = x->basis + h * dim * dim;
            float *v = row + h * dim;
            if (!(step > 0)) continue;
            memset(code, 0, dim * sizeof *code);
            memset(back, 0, dim * sizeof *back);
            for (size_t d = 0; d < dim; d++)
                for (size_t j = 0; j < dim; j++) code[j] += v[d] * inverse[d * dim + j];
            for (size_t j = 0; j < dim; j++) {
                const float c = rintf(code[j] / step) * step;
                for (size_t d = 0; d < dim && c != 0; d++) back[d] += c * basis[j * dim + d];
            }
            memcpy(v, back, dim * sizeof *v);
        }
        for (size_t k = 0; k < x->width; k++) row[k] += ahead[k];
        kvc_small_row(&p->own, to->small[x->is_v] + i * x->width, row);
    }
    return 0;
}

/* Prepares the coding of rows that are not predicted: by the profile's own basis, about its means.
 */
static void code_as_known(const struct loop *p, struct part *x) {
    for (uint64_t i = 0; i < p->rows * x->width; i++) {
        x->ahead[i] = p->own.mean[i % x->width];
        x->x[i] -= x->ahead[i];
    }
    x->basis = x->known->basis;
    x->inverse = x->known->inverse;
}

/* --- one part after the other --- */

static void part_free(struct part *x) {
    free(x->column);
    free(x->x);
    free(x->ahead);
    free(x->made_basis);
    free(x->made_inverse);
    free(x->learnt.gain);
    free(x->learnt.weight);
    free(x->learnt.scale);
    free(x->learnt.basis);
    free(x->learnt.basis_scale);
    free(x->learnt.variance);
}

/* Lists the inputs in the order of a profile: K and V of the nearest layer first, for V its own
 * layer's K last. */
static void list_inputs(const struct loop *p, struct part *x) {
    for (unsigned b = 1; b <= p->l->back + 1; b++) {
        const int own = b == p->l->back + 1;
        if (!own && b > x->layer) continue;
        const uint32_t layer = own ? x->layer : x->layer - b;
        struct inputs *from = &p->ring[layer % (p->l->back + 1)];
        for (int v = 0; v < (own ? x->is_v : 2); v++) {
            if (!from->made || from->layer != layer) continue;
            x->input[x->n_inputs] = from;
            x->role[x->n_inputs++] = v;
            x->inputs += from->width[v];
        }
    }
}

/* Finds the part in the samples. Returns 1; 0 when no sample has it; -1 */
static int find_part(const struct loop *p, struct part *x, struct kvc_error *e) {
    uint64_t rows = 0;
    if (!(x->column = kvc_alloc((uint64_t)p->l->n_samples + 1, sizeof *x->column)))
        return kvc_fail_memory(e, "a profile");
    for (uint32_t s = 0; s < p->l->n_samples; s++) {
        const struct kvc_learnt_sample *sample = &p->l->sample[s];
        x->column[s] = KVC_NONE;
        for (unsigned k = 0; k < sample->n; k++) {
            if (sample->column[k].layer != x->layer) continue;
            const size_t width = sample->column[k].width[x->is_v];
            if (x->width && x->width != width)
                return kvc_fail(e, KVC_ERR_OTHER_MODEL, "layer %u: the caches differ in channels",
                                (unsigned)x->layer);
            x->column[s] = k;
            x->width = width;
            rows += sample->rows;
        }
    }
    if (!rows) return 0;
    if (kvc_profile_part(p->base, x->layer, x->is_v ? KVC_ROLE_V : KVC_ROLE_K, KVC_PAIRING_HALVES,
                         1, &x->known, e))
        return -1;
    if (!x->known || x->known->heads * x->known->dim != x->width)
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "the profile and the caches differ in layers, heads or channels");
    return 1;
}

static int learn_part(struct loop *p, struct part *x, struct kvc_error *e) {
    struct inputs *to = &p->ring[x->layer % (p->l->back + 1)];
    const size_t size = x->inputs + x->width, dim = x->known->dim;
    struct relation r = {.gram = kvc_alloc_zeros(size, size * sizeof *r.gram),
                         .room = kvc_alloc(KVC_BLOCK, size * sizeof *r.room),
                         .inputs = kvc_alloc(x->inputs + 1, sizeof *r.inputs)};
    float *room = kvc_alloc(2 * x->width + 2 * dim, sizeof *room);
    x->x = kvc_alloc_zeros(p->rows, x->width * sizeof *x->x);
    x->ahead = kvc_alloc_zeros(p->rows, x->width * sizeof *x->ahead);
    x->learnt.heads = x->known->heads;
    x->learnt.dim = dim;
    x->learnt.inputs = x->inputs;
    x->learnt.gain = kvc_alloc(x->width, sizeof *x->learnt.gain);
    free(to->small[x->is_v]);
    to->small[x->is_v] = kvc_alloc_zeros(p->rows, x->width);
    to->width[x->is_v] = x->width;
    p->own = (struct kvc_small){.width = x->width, .mean = x->known->mean, .gain = x->learnt.gain};
    int status = r.gram && r.room && r.inputs && room && x->x && x->ahead && x->learnt.gain &&
                         to->small[x->is_v]
                     ? profile_learn_loop_read_rows(p, x, e) || for_runs(p, x, relate, &r, e)
                     : kvc_fail_memory(e, "a profile");
    for (size_t i = 0; i < x->width && !status; i++) {
        const double variance = r.gram[(x->inputs + i) * size + x->inputs + i] / r.rows;
        x->learnt.gain[i] = variance > 1e-20 ? (float)(SPAN / sqrt(variance)) : 0;
    }
    if (!status && x->inputs) status = learn_predictor(p, x, &r, e);
    else if (!status) code_as_known(p, x);
    if (!status) status = for_runs(p, x, profile_learn_loop_decode, room, e);
    free(r.gram);
    free(r.room);
    free(r.inputs);
    free(room);
    return status ? -1 : 0;
}

/* Lays out the rows of all samples, and gives each row a step. */
static int loop_begin(struct loop *p, double step, struct kvc_error *e) {
    uint64_t total = 0;
    for (uint32_t s = 0; s < p->l->n_samples; s++) total += p->l->sample[s].rows;
    p->stride = total / ROWS_MOST + 1;
    p->first = kvc_alloc_zeros((uint64_t)p->l->n_samples + 1, sizeof *p->first);
    p->ring = kvc_alloc_zeros(p->l->back + 1, sizeof *p->ring);
    if (!p->first || !p->ring) return kvc_fail_memory(e, "a profile");
    for (uint32_t s = 0; s < p->l->n_samples; s++)
        p->first[s + 1] = p->first[s] + (p->l->sample[s].rows + p->stride - 1) / p->stride;
    p->rows = p->first[p->l->n_samples];
    if (!(p->step = kvc_alloc(p->rows + 1, sizeof *p->step)))
        return kvc_fail_memory(e, "a profile");
    for (uint64_t i = 0; i < p->rows; i++)
        p->step[i] = kvc_random_unit(2 * i) < EXACT
                         ? 0
                         : (float)(step * exp2(OCTAVES * (2 * kvc_random_unit(2 * i + 1) - 1)));
    return 0;
}

int kvc_learn_loop(const struct kvc_learner *l, struct kvc_profile *base,
                   int (*put)(void *state, uint32_t layer, int is_v,
                              const struct kvc_learnt_predictor *p, struct kvc_error *e),
                   void *state, struct kvc_error *e) {
    struct loop p = {.l = l, .base = base};
    double values = 0;
    for (uint32_t i = 0; i < l->layers; i++)
        for (int v = 0; v < 2; v++)
            values += (double)(l->layer[i].part[v].heads * l->layer[i].part[v].dim);
    int status = loop_begin(&p,
                            kvc_profile_step(base, values * KVC_PROFILE_CONTEXT, KVC_PROFILE_KLD),
                            e);
    for (uint32_t i = 0; i < l->layers && !status; i++)
        for (int v = 0; v < 2 && !status; v++) {
            struct part x = {.layer = i, .is_v = v};
            struct inputs *own = &p.ring[i % (l->back + 1)];
            if (!v) own->made = 0;
            const int found = find_part(&p, &x, e);
            if (found > 0) {
                own->layer = i;
                own->made = v;
                list_inputs(&p, &x);
                status = learn_part(&p, &x, e);
                if (!status) status = put(state, i, v, &x.learnt, e);
                own->made = 1;
            }
            if (found < 0) status = -1;
            part_free(&x);
        }
    for (unsigned b = 0; p.ring && b <= l->back; b++)
        for (int v = 0; v < 2; v++) free(p.ring[b].small[v]);
    free(p.ring);
    free(p.first);
    free(p.step);
    return status;
}
