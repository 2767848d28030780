/* queries.c: estimates queries from K, V and the weights. Spec: QUERIES.md, whose letters the
 * comments have. Not for loading the weights (weights.c). */
#include "formats/model/queries.h"

#include "codecs/eigen.h"
#include "codecs/floats.h"
#include "codecs/memory.h"
#include "codecs/random.h"
#include "formats/cache/keys.h"
#include "formats/cache/layers.h"
#include "formats/cache/rope_names.h"
#include "formats/cache/view.h"
#include "formats/io/parallel.h"
#include "formats/model/layer_rope.h"
#include "formats/model/weights_product.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RIDGE 1e-4       /* added to the diagonal, of its mean: K and V are rounded */
#define LEAST_NULL 0.01  /* share of the null space in the channels of u that can hold noise */
#define MOST_NOISE 4.0   /* energy of noise in a direction, of the mean energy of u' in its own */
#define MOST_ENERGY 1.25 /* of u', of d: more is no input of these weights */
/* threads at most: each holds the matrices of a layer */
enum { MOST_THREADS = 4, GRAM_ROWS = 256, COLUMNS = 32 };

/* A layer whose queries are estimated. */
struct estimated {
    uint32_t layer;                    /* its number in the cache */
    uint64_t n, row[KVC_QUERIES_ROWS]; /* sorted rows of its part, ascending */
    uint64_t heads, dim;               /* query heads */
    float length;                      /* of rotated channels after RoPE, before it 1 */
    float *query;                      /* [n][heads][dim] */
};

struct estimate {
    const struct kvc_cache *c; /* binary32 */
    const struct kvc_weights *weights;
    struct estimated *layer;
    uint32_t n;
};

/* --- one layer --- */

/* The equations A u = y of a layer, for m rows. */
struct equations {
    size_t d, rows;    /* channels of u; of K and V together */
    size_t m, n;       /* rows of the cache; right sides */
    size_t heads, dim; /* KV heads, channels of a head of K */
    int k_normed;      /* K is normed per head */
    float *a;          /* A transposed: [d][rows] */
    /* [rows][n]: y of each row; where K is normed, for each head its direction, m of them; then A z
     * of each row, z being the noise */
    double *y;
    double *u; /* [d][n] */
};

/* Sets to[rows][n] to the product of a[rows][k] and b[k][n], in binary32. */
static int multiply(double *to, const float *a, const double *b, size_t rows, size_t k, size_t n,
                    struct kvc_error *e) {
    float *right = kvc_alloc(k + 1, n * sizeof *right), *row = right ? right + k * n : NULL;
    if (!right) return kvc_fail_memory(e, "equations");
    for (size_t i = 0; i < k * n; i++) right[i] = (float)b[i];
    for (size_t i = 0; i < rows; i++) {
        kvc_kernels_get()->multiply_rows(row, a + i * k, right, k, n, n);
        for (size_t t = 0; t < n; t++) to[i * n + t] = (double)row[t];
    }
    free(right);
    return 0;
}

static float *transposed(const float *a, size_t rows, size_t columns, struct kvc_error *e) {
    float *to = kvc_alloc(rows * columns, sizeof *to);
    if (to) kvc_transpose(to, a, rows, columns);
    else kvc_fail_memory(e, "weights");
    return to;
}

/* Solves (X' X + ridge) x = b of x[rows][dim], b[dim][n] in place. */
static int solve_gram(const float *x, size_t rows, size_t dim, double *b, size_t n,
                      struct kvc_error *e) {
    double *gram = kvc_alloc_zeros(dim, dim * sizeof *gram), trace = 0;
    int status = gram ? 0 : kvc_fail_memory(e, "equations");
    for (size_t i = 0; i < rows && !status; i += GRAM_ROWS)
        status = kvc_gram_add(gram, x + i * dim, rows - i < GRAM_ROWS ? rows - i : GRAM_ROWS, dim,
                              dim, e);
    for (size_t i = 0; i < dim && !status; i++) trace += gram[i * dim + i];
    for (size_t i = 0; i < dim && !status; i++) gram[i * dim + i] += RIDGE * trace / (double)dim;
    if (!status) status = kvc_solve_symmetric(gram, dim, b, n, e);
    free(gram);
    return status;
}

/* Solves the equations: s->u becomes A' (A A' + ridge)^-1 y, s->y the inverse times y, or a
 * multiple of it. Of A A' and A' A, the smaller is factored. */
static int solve(struct equations *s, struct kvc_error *e) {
    if (s->rows <= s->d) {
        if (solve_gram(s->a, s->d, s->rows, s->y, s->n, e)) return -1;
        return multiply(s->u, s->a, s->y, s->d, s->rows, s->n, e);
    }
    float *rows = transposed(s->a, s->d, s->rows, e);
    double *left = kvc_alloc(s->rows, s->n * sizeof *left);
    int status = rows ? left ? 0 : kvc_fail_memory(e, "equations") : -1;
    if (!status) status = multiply(s->u, s->a, s->y, s->d, s->rows, s->n, e);
    if (!status) status = solve_gram(rows, s->rows, s->d, s->u, s->n, e);
    if (!status) status = multiply(left, rows, s->u, s->rows, s->d, s->n, e);
    for (size_t i = 0; i < s->rows * s->n && !status; i++) s->y[i] -= left[i];
    free(rows);
    free(left);
    return status;
}

/* Adds to the solution of row t that of the norms that its heads of K had: those of the smallest u
 * of all. */
static int add_norms(struct equations *s, const double *direction, size_t t, double *room,
                     struct kvc_error *e) {
    const size_t heads = s->heads;
    double *square = room, *norm = room + heads * heads, trace = 0;
    for (size_t h = 0; h < heads; h++) {
        norm[h] = 0;
        memset(square + h * heads, 0, heads * sizeof *square);
        for (size_t i = h * s->dim; i < (h + 1) * s->dim; i++) {
            const double own = direction[i * s->m + t], *y = s->y + i * s->n + t;
            norm[h] -= own * y[0];
            for (size_t g = 0; g < heads; g++) square[h * heads + g] += own * y[(g + 1) * s->m];
        }
        trace += square[h * heads + h];
    }
    for (size_t h = 0; h < heads; h++) square[h * heads + h] += 1e-9 * trace + 1e-30;
    if (kvc_solve_symmetric(square, heads, norm, 1, e)) return -1;
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < s->d && norm[h] > 0; i++)
            s->u[i * s->n + t] += norm[h] * s->u[i * s->n + (h + 1) * s->m + t];
    return 0;
}

/* Finds u for all rows: the smallest that gives their K and V. Only directions are known of K that
 * is normed. */
static int find_inputs(struct equations *s, struct kvc_error *e) {
    const size_t width = s->heads * s->dim;
    double *direction = NULL, *room = NULL;
    int status = 0;
    if (s->k_normed) {
        direction = kvc_alloc_zeros(width, s->m * sizeof *direction);
        room = kvc_alloc(s->heads + 1, s->heads * sizeof *room);
        if (!direction || !room) status = kvc_fail_memory(e, "equations");
    }
    for (size_t i = 0; i < width && direction && !status; i++)
        memcpy(direction + i * s->m, s->y + i * s->n + (i / s->dim + 1) * s->m,
               s->m * sizeof *direction);
    if (!status) status = solve(s, e);
    for (size_t t = 0; t < s->m && direction && !status; t++)
        status = add_norms(s, direction, t, room, e);
    free(direction);
    free(room);
    return status;
}

/* Sets z[d][m] to noise, which depends on the layer and the positions alone, and puts A z into the
 * right sides. z has room for [rows][m] after it. */
static int take_noise(struct equations *s, double *z, uint32_t layer, const int64_t *position,
                      struct kvc_error *e) {
    float *a = transposed(s->a, s->d, s->rows, e);
    double *az = z + s->d * s->m;
    if (!a) return -1;
    for (size_t t = 0; t < s->m; t++) {
        const uint64_t seed = kvc_random_mix(kvc_random_mix(layer) + (uint64_t)position[t]);
        for (size_t i = 0; i < s->d; i++)
            z[i * s->m + t] = 2 * kvc_random_unit(seed + i * KVC_RANDOM_STEP) - 1;
    }
    const int status = multiply(az, a, z, s->rows, s->d, s->m, e);
    for (size_t i = 0; i < s->rows && !status; i++)
        memcpy(s->y + (i + 1) * s->n - s->m, az + i * s->m, s->m * sizeof *az);
    free(a);
    return status;
}

/* Gives u the energy that it lacks, as noise in the null space of A. Fails where u has more than an
 * input of attention has. */
static int complete(struct equations *s, const double *z, struct kvc_error *e) {
    const size_t at = s->n - s->m; /* where the solutions of the noise are */
    double all = 0;
    for (size_t t = 0; t < s->m; t++) {
        double energy = 0, noise = 0, whole = 0;
        for (size_t i = 0; i < s->d; i++) {
            const double *u = s->u + i * s->n + t, own = z[i * s->m + t];
            energy += u[0] * u[0];
            whole += own * own;
            noise += (own - u[at]) * (own - u[at]);
        }
        all += energy / (double)s->d;
        if (!(energy < (double)s->d) || !(noise > LEAST_NULL * whole)) continue;
        const double known = 1 - fmin(noise / whole, 1),
                     most = MOST_NOISE * energy / fmax(known, 1e-9) * (1 - known),
                     factor = sqrt(fmin((double)s->d - energy, most) / noise);
        for (size_t i = 0; i < s->d; i++) {
            double *u = s->u + i * s->n + t;
            u[0] += factor * (z[i * s->m + t] - u[at]);
        }
    }
    if (all <= MOST_ENERGY * (double)s->m) return 0;
    return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                    "K and V are not those of these weights: the input that gives them has %.2g "
                    "times the energy of a normed one; is it the right model, and its RoPE?",
                    all / (double)s->m);
}

/* Makes A' of the projections to K and V and the factors of the norm. */
static int take_weights(struct equations *s, const struct kvc_projection *p, struct kvc_error *e) {
    const size_t k = s->heads * s->dim, v = s->rows - k;
    if (!(s->a = kvc_alloc(s->d, s->rows * sizeof *s->a))) return kvc_fail_memory(e, "weights");
    for (size_t i = 0; i < s->d; i++) {
        float *row = s->a + i * s->rows;
        kvc_kernels_get()->scale(row, p->k + i * k, p->norm[i], k);
        kvc_kernels_get()->scale(row + k, p->v + i * v, p->norm[i], v);
    }
    return kvc_all_finite(s->a, s->d * s->rows)
               ? 0
               : kvc_fail(e, KVC_ERR_DAMAGED, "the weights of K, V or the norm are not finite");
}

/* Multiplies the channels that RoPE rotates. */
static void scale_rotated(float *row, size_t heads, size_t dim, const struct kvc_rope *rope,
                          float factor) {
    for (size_t h = 0; h < heads && factor != 1; h++, row += dim)
        kvc_kernels_get()->scale(row, row, factor, 2 * rope->half);
}

/* Puts row t of K before RoPE and of V into the right sides. Values that are not finite count as
 * those of u = 0. */
static void take_row(struct equations *s, size_t t, const struct kvc_projection *p,
                     const struct kvc_query_projection *q, const float *k, const float *v) {
    const size_t width = s->heads * s->dim;
    const int finite = kvc_all_finite(k, width) && kvc_all_finite(v, s->rows - width);
    for (size_t i = 0; i < s->rows && finite; i++) {
        double *to = s->y + i * s->n + t;
        if (i < width) *to = p->k_bias ? -(double)p->k_bias[i] : 0;
        else *to = (double)v[i - width] - (p->v_bias ? (double)p->v_bias[i - width] : 0);
        if (i < width && !s->k_normed) *to += (double)k[i];
        if (i < width && s->k_normed && q->k_norm[i % s->dim] != 0)
            to[(i / s->dim + 1) * s->m] = (double)k[i] / (double)q->k_norm[i % s->dim];
    }
}

static int take_rows(struct equations *s, const struct estimate *x, const struct estimated *l,
                     const struct kvc_projection *p, const struct kvc_query_projection *q,
                     struct kvc_rope *rope, struct kvc_error *e) {
    const struct kvc_layer *layer = &x->c->layer[l->layer];
    const struct kvc_cells *cells = &x->c->part[layer->part].cells;
    const size_t width = s->heads * s->dim;
    float *k = kvc_alloc(s->rows, sizeof *k);
    if (!k) return kvc_fail_memory(e, "rows");
    int status = 0;
    for (size_t t = 0; t < s->m && !status; t++) {
        status = x->c->read(x->c, layer->tensor[0], l->row[t], 1, (uint8_t *)k, e) ||
                 x->c->read(x->c, layer->tensor[1], l->row[t], 1, (uint8_t *)(k + width), e);
        if (status) break;
        if (rope->half) {
            kvc_row_before_rope(rope, k, s->heads, s->dim, kvc_cells_position(cells, l->row[t]));
            scale_rotated(k, s->heads, s->dim, rope, 1 / l->length);
        }
        take_row(s, t, p, q, k, k + width);
    }
    free(k);
    return status ? -1 : 0;
}

/* Norms a head as RMSNorm does. */
static void norm_head(float *head, const float *factor, size_t dim, float epsilon) {
    const float square = kvc_kernels_get()->dot(head, head, dim) / (float)dim;
    kvc_kernels_get()->scale(head, head, 1 / sqrtf(square + epsilon + 1e-30f), dim);
    for (size_t i = 0; i < dim; i++) head[i] *= factor[i];
}

/* Makes the queries of all rows from their u. */
static int make_queries(const struct equations *s, const struct kvc_projection *p,
                        const struct kvc_query_projection *q, struct kvc_rope *rope,
                        const int64_t *position, struct estimated *l, struct kvc_error *e) {
    const size_t heads = (size_t)q->heads, width = heads * s->dim;
    float *u = kvc_alloc(s->m, s->d * sizeof *u);
    l->heads = heads;
    l->dim = s->dim;
    if (!u || !(l->query = kvc_alloc(s->m, width * sizeof *l->query))) {
        free(u);
        return kvc_fail_memory(e, "queries");
    }
    for (size_t i = 0; i < s->d; i++)
        for (size_t t = 0; t < s->m; t++) u[t * s->d + i] = (float)s->u[i * s->n + t] * p->norm[i];
    for (size_t at = 0; at < width; at += COLUMNS) /* which stay in the core's caches */
        for (size_t t = 0; t < s->m; t++)
            kvc_kernels_get()->multiply_rows(l->query + t * width + at, u + t * s->d, q->q + at,
                                             s->d, width,
                                             width - at < COLUMNS ? width - at : COLUMNS);
    for (size_t t = 0; t < s->m; t++) {
        float *query = l->query + t * width;
        for (size_t i = 0; i < width && q->bias; i++) query[i] += q->bias[i];
        for (size_t h = 0; h < heads && q->q_norm; h++)
            norm_head(query + h * s->dim, q->q_norm, s->dim, p->norm_epsilon);
        if (!rope->half) continue;
        kvc_rope_at(rope, position[t]);
        kvc_rope_turn(rope, query, heads, s->dim);
        scale_rotated(query, heads, s->dim, rope, l->length);
    }
    free(u);
    if (kvc_all_finite(l->query, s->m * width)) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "the weights of queries are not finite");
}

static int fill_layer(const struct estimate *x, struct estimated *l, const struct kvc_projection *p,
                      const struct kvc_query_projection *q, struct kvc_rope *rope,
                      struct kvc_error *e) {
    const struct kvc_projection_shape *shape = &p->shape;
    const struct kvc_layer *layer = &x->c->layer[l->layer];
    struct equations s = {.d = (size_t)shape->in,
                          .rows = (size_t)(shape->heads * (shape->dim + shape->dim_v)),
                          .m = (size_t)l->n,
                          .heads = (size_t)shape->heads,
                          .dim = (size_t)shape->dim,
                          .k_normed = q->k_norm != NULL};
    int64_t position[KVC_QUERIES_ROWS];
    for (uint64_t t = 0; t < l->n; t++)
        position[t] = kvc_cells_position(&x->c->part[layer->part].cells, l->row[t]);
    s.n = s.m * (2 + (s.k_normed ? s.heads : 0));
    double *z = kvc_alloc(s.d + s.rows, s.m * sizeof *z);
    s.y = kvc_alloc_zeros(s.rows, s.n * sizeof *s.y);
    s.u = kvc_alloc(s.d, s.n * sizeof *s.u);
    int status = z && s.y && s.u ? take_weights(&s, p, e) : kvc_fail_memory(e, "equations");
    if (!status) status = take_rows(&s, x, l, p, q, rope, e);
    if (!status) status = take_noise(&s, z, layer->index, position, e);
    if (!status) status = find_inputs(&s, e) || complete(&s, z, e);
    if (!status) status = make_queries(&s, p, q, rope, position, l, e);
    free(s.a);
    free(s.y);
    free(s.u);
    free(z);
    return status ? -1 : 0;
}

/* Refuses weights of models whose attention takes another input than A u. */
static int check_weights(const struct kvc_cache *c, const struct kvc_projection *p,
                         const struct kvc_query_projection *q, struct kvc_error *e) {
    const uint64_t heads = c->meta.facts.query_heads;
    if (!p->norm)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the weights have no norm before attention, whose output has a known "
                        "energy");
    if (p->norm_bias) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the model's norm has a bias");
    if (heads && heads != q->heads)
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "the weights make %" PRIu64 " query heads, but the model has %" PRIu64,
                        q->heads, heads);
    return 0;
}

/* Says why the angles are not known. */
static int unknown_angles(const struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_facts *facts = &c->meta.facts;
    const enum kvc_rope_type type = facts->rope.type;
    if (type == KVC_ROPE_TYPE_LONGROPE || facts->rope_table.state == KVC_TABLE_OF_TWO)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "RoPE took one of two lists of angles by the length that the engine was "
                        "set to (longrope), and no cache tells that length");
    if (type == KVC_ROPE_TYPE_OTHER)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "kvc does not know RoPE of type '%s'",
                        kvc_meta_text(&c->meta, KVC_KEY_ROPE_TYPE, ""));
    return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_MODEL,
                         "the angles by which RoPE rotated K are not known");
}

/* Makes the tables of RoPE; none where the model has no RoPE. */
static int open_rope(const struct estimate *x, struct estimated *l, struct kvc_rope *rope,
                     struct kvc_error *e) {
    struct kvc_rope_facts facts;
    double *room;
    const enum kvc_pairing pairing = x->c->meta.facts.rope.pairing;
    *rope = (struct kvc_rope){.half = 0};
    if (pairing == KVC_PAIRING_NONE) return 0;
    if (kvc_rope_of_layer(x->c, l->layer, NULL, &facts, &room, e)) return -1;
    int status = 0;
    if (facts.angle) status = kvc_rope_init(rope, facts.angle, facts.half, facts.pairing, e);
    else status = unknown_angles(x->c, e);
    l->length = (float)facts.length;
    free(room);
    return status;
}

static int estimate_layer(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct estimate *x = state;
    struct estimated *l = &x->layer[item];
    const struct kvc_cache *c = x->c;
    const struct kvc_layer *layer = &c->layer[l->layer];
    const struct kvc_shape *k = &c->tensor[layer->tensor[0]].shape,
                           *v = &c->tensor[layer->tensor[1]].shape;
    const struct kvc_projection_shape shape = {.heads = k->heads,
                                               .dim = k->dim,
                                               .dim_v = v->dim,
                                               .rotated = c->meta.facts.rope.dim,
                                               .pairing = c->meta.facts.rope.pairing};
    struct kvc_projection p;
    struct kvc_query_projection q;
    struct kvc_rope rope;
    char label[32];
    *result = NULL;
    snprintf(label, sizeof label, "layer %" PRIu32, layer->index);
    int status = kvc_weights_load(x->weights, layer->index, &shape, &p, e);
    if (status) return kvc_error_prefix(e, label);
    status = kvc_weights_load_queries(x->weights, layer->index, &p, &q, e);
    if (!status) {
        status = check_weights(c, &p, &q, e) || open_rope(x, l, &rope, e);
        if (!status) {
            status = fill_layer(x, l, &p, &q, &rope, e);
            kvc_rope_free(&rope);
        }
        kvc_query_projection_free(&q);
    }
    kvc_projection_free(&p);
    return status ? kvc_error_prefix(e, label) : 0;
}

/* --- all layers --- */

/* Returns 1 for a layer whose queries can be estimated: the first of its number. */
static int takes(const struct kvc_cache *c, uint32_t number) {
    const struct kvc_layer *l = &c->layer[number];
    const struct kvc_part *part = &c->part[l->part];
    if (!kvc_part_is_attended(part) || l->tensor[0] == KVC_NONE || l->tensor[1] == KVC_NONE ||
        !part->cells.n)
        return 0;
    const struct kvc_tensor *k = &c->tensor[l->tensor[0]], *v = &c->tensor[l->tensor[1]];
    if (k->role != KVC_ROLE_K || v->role != KVC_ROLE_V || k->shape.heads != v->shape.heads)
        return 0;
    for (uint32_t i = 0; i < number; i++)
        if (c->layer[i].index == l->index && takes(c, i)) return 0;
    return 1;
}

/* Chooses the rows of a layer. */
static void choose_rows(const struct kvc_cells *cells, struct estimated *l) {
    const uint64_t reach = cells->n < KVC_QUERIES_REACH ? cells->n : KVC_QUERIES_REACH,
                   step = (reach + KVC_QUERIES_ROWS - 1) / KVC_QUERIES_ROWS;
    l->n = reach / step;
    for (uint64_t t = 0; t < l->n; t++) l->row[t] = cells->n - 1 - (l->n - 1 - t) * step;
}

static int list_layers(struct estimate *x, struct kvc_error *e) {
    const struct kvc_cache *c = x->c;
    if (!(x->layer = kvc_alloc_zeros(c->n_layers, sizeof *x->layer)))
        return kvc_fail_memory(e, "layers");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (!takes(c, i)) continue;
        x->layer[x->n].layer = i;
        choose_rows(&c->part[c->layer[i].part].cells, &x->layer[x->n++]);
    }
    return x->n ? 0
                : kvc_fail(e, KVC_ERR_UNSUPPORTED, "no layer has K and V of equally many heads");
}

/* --- the cache of queries --- */

/* The queries of each tensor. */
struct queries {
    uint32_t n;
    float **of;
};

static int queries_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                        uint8_t *dst, struct kvc_error *e) {
    const struct queries *q = c->impl;
    const size_t bytes = (size_t)kvc_row_bytes(&c->tensor[tensor].shape);
    (void)e;
    memcpy(dst, (const uint8_t *)q->of[tensor] + first * bytes, (size_t)n * bytes);
    return 0;
}

static void queries_close(struct kvc_cache *c) {
    struct queries *q = c->impl;
    for (uint32_t i = 0; i < q->n; i++) free(q->of[i]);
    free(q->of);
    free(q);
}

/* Adds the queries of a layer, in a part of their own where `part` is not of the same rows. */
static int add_layer(struct kvc_cache *c, const struct estimate *x, struct estimated *l,
                     uint32_t *part, struct kvc_error *e) {
    struct queries *q = c->impl;
    const struct kvc_layer *from = &x->c->layer[l->layer];
    const struct kvc_shape shape = {KVC_F32, l->n, l->heads, l->dim};
    if (*part == KVC_NONE) {
        if ((*part = kvc_cache_add_part(c, KVC_PART_COMPANION, l->n, e)) == KVC_NONE) return -1;
        for (uint64_t t = 0; t < l->n; t++)
            c->part[*part].cells.pos[t] = kvc_cells_position(&x->c->part[from->part].cells,
                                                             l->row[t]);
    }
    const uint32_t layer = kvc_cache_add_layer(c, *part, from->index, KVC_LAYER_COMPANION, e);
    if (layer == KVC_NONE ||
        kvc_cache_add_tensor(c, layer, KVC_ROLE_QUERIES, &shape, e) == KVC_NONE)
        return -1;
    q->of[q->n++] = l->query;
    l->query = NULL;
    return 0;
}

static struct kvc_cache *gather(struct estimate *x, struct kvc_error *e) {
    struct kvc_cache *c = kvc_cache_derived(sizeof(struct queries), queries_close, e);
    if (!c) return NULL;
    struct queries *q = c->impl;
    c->read = queries_read;
    q->of = kvc_alloc(x->n, sizeof *q->of);
    int status = q->of ? kvc_meta_copy(&c->meta, &x->c->meta, e) : kvc_fail_memory(e, "queries");
    uint32_t part = KVC_NONE;
    for (uint32_t i = 0; i < x->n && !status; i++) {
        if (i && x->c->layer[x->layer[i].layer].part != x->c->layer[x->layer[i - 1].layer].part)
            part = KVC_NONE;
        status = add_layer(c, x, &x->layer[i], &part, e);
    }
    if (!status) status = kvc_cache_finish(c, e);
    if (!status) return c;
    kvc_cache_free(c);
    return NULL;
}

struct kvc_cache *kvc_queries_estimate(const struct kvc_cache *c, const struct kvc_weights *w,
                                       unsigned threads, struct kvc_error *e) {
    struct estimate x = {.weights = w};
    struct kvc_cache *view = NULL, *queries = NULL;
    int status = 0;
    if (c->meta.facts.heads_unknown)
        status = kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_HEADS,
                               "nothing says how many KV heads there are");
    if (!status && c->meta.facts.rope.before)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "K is stored before RoPE");
    if (!status) status = kvc_layers_need_numbers(c, e);
    if (!status) x.c = view = kvc_view_float(c, e);
    if (view && !list_layers(&x, e)) {
        const struct kvc_job job = {.n = x.n, .work = estimate_layer, .discard = free, .state = &x};
        const unsigned most = kvc_parallel_threads(kvc_cache_threads(view, threads));
        if (!kvc_parallel(&job, most < MOST_THREADS ? most : MOST_THREADS, e))
            queries = gather(&x, e);
    }
    for (uint32_t i = 0; i < x.n; i++) free(x.layer[i].query);
    free(x.layer);
    kvc_cache_free(view);
    return queries;
}
