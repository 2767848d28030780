/* gradients_layer.c: one layer of a transformer, forward and back. Spec: GRADIENTS.md, whose
 * letters the comments have. Not for the order of layers, or what follows the last (gradients.c).
 */
#include "formats/model/gradients_layer.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/cache/layers.h"
#include "formats/io/parallel.h"
#include "formats/model/layer_rope.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- norms and activations --- */

void kvc_gradients_norm(float *to, const float *x, const float *factor, size_t n, size_t width,
                        float epsilon) {
    for (size_t r = 0; r < n; r++, x += width, to += width) {
        const float square = kvc_kernels_get()->dot(x, x, width) / (float)width,
                    by = 1 / sqrtf(square + epsilon);
        for (size_t i = 0; i < width; i++) to[i] = x[i] * by * factor[i];
    }
}

void kvc_gradients_norm_back(float *to, const float *of, const float *x, const float *factor,
                             size_t n, size_t width, float epsilon) {
    for (size_t r = 0; r < n; r++, x += width, to += width, of += width) {
        const float square = kvc_kernels_get()->dot(x, x, width) / (float)width,
                    by = 1 / sqrtf(square + epsilon);
        float along = 0;
        for (size_t i = 0; i < width; i++) along += of[i] * factor[i] * x[i];
        along *= by * by / (float)width;
        for (size_t i = 0; i < width; i++) to[i] += by * (of[i] * factor[i] - along * x[i]);
    }
}

/* Returns the activation of the gate, and its slope: SiLU, or GELU by tanh. */
static float activate(float x, int gelu, float *slope) {
    if (!gelu) {
        const float s = 1 / (1 + expf(-x));
        *slope = s * (1 + x * (1 - s));
        return x * s;
    }
    const float c = 0.7978845608f, cube = 0.044715f, t = tanhf(c * (x + cube * x * x * x));
    *slope = (1 + t + x * (1 - t * t) * c * (1 + 3 * cube * x * x)) / 2;
    return x * (1 + t) / 2;
}

/* --- loading --- */

static int load_matrices(struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                         uint32_t index, struct kvc_error *e) {
    struct kvc_weights_tensor k;
    const struct kvc_weights_naming *naming = kvc_weights_find_k(m->weights, index, &k, e);
    const size_t d = m->width, heads = x->heads * x->group;
    struct kvc_weights_matrix *const all[] = {&x->out, &x->gate, &x->up, &x->down};
    static const enum kvc_weight which[] = {KVC_WEIGHT_OUT, KVC_WEIGHT_GATE, KVC_WEIGHT_UP,
                                            KVC_WEIGHT_DOWN};
    if (!naming) return -1;
    for (size_t i = 0; i < 4; i++) {
        const size_t in = i == 0 ? heads * x->dim_v : i == 3 ? x->gate.out : d;
        const size_t out = i == 1 ? 0 : i == 2 ? x->gate.out : d;
        const int found = kvc_weights_matrix(m->weights, naming, which[i], index, in, out, all[i],
                                             e);
        if (!found)
            kvc_fail(e, KVC_ERR_UNSUPPORTED, "the weights have no '%s'", all[i]->tensor.name);
        if (found <= 0) return -1;
    }
    if (kvc_weights_norm(m->weights, naming, KVC_WEIGHT_FFN_NORM, index, d, &x->ffn_norm, e) < 0 ||
        kvc_weights_norm(m->weights, naming, KVC_WEIGHT_ATTENTION_AFTER, index, d,
                         &x->attention_after, e) < 0 ||
        kvc_weights_norm(m->weights, naming, KVC_WEIGHT_FFN_AFTER, index, d, &x->ffn_after, e) < 0)
        return -1;
    if (!x->ffn_norm) { /* transformers' name for it, where there is no other norm */
        x->ffn_norm = x->attention_after;
        x->attention_after = NULL;
    }
    if (x->ffn_norm && x->to_kv.norm && !x->to_kv.norm_bias) return 0;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the layer has not the norms of a LLaMA");
}

static int load_cached(struct kvc_gradients_layer *x, const struct kvc_cache *c,
                       struct kvc_error *e) {
    for (int r = 0; r < 2; r++) {
        const uint32_t t = c->layer[x->number].tensor[r];
        const struct kvc_shape *shape = &c->tensor[t].shape;
        const size_t n = (size_t)(shape->tokens * shape->heads * shape->dim);
        if (!(x->cached[r] = kvc_alloc(n + 1, sizeof(float)))) return kvc_fail_memory(e, "rows");
        if (c->read(c, t, 0, shape->tokens, (uint8_t *)x->cached[r], e)) return -1;
        if (!kvc_all_finite(x->cached[r], n))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "K or V has a value that is not finite");
    }
    return 0;
}

/* Makes room for what goes through the layer. */
static int make_room(struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                     struct kvc_error *e) {
    const size_t d = m->width, q = x->heads * x->group * x->dim, k = x->heads * x->dim,
                 v = x->heads * x->dim_v, o = x->group * v, ffn = x->gate.out;
    const struct {
        float **to;
        size_t width;
    } all[] = {{&x->in, d},         {&x->q, q},      {&x->k, k},        {&x->v, v},
               {&x->q_raw, q},      {&x->k_raw, k},  {&x->attended, o}, {&x->added, d},
               {&x->middle, d},     {&x->ffn_in, d}, {&x->gated, ffn},  {&x->upped, ffn},
               {&x->ffn_out, d},    {&x->of_q, q},   {&x->of_k, k},     {&x->of_v, v},
               {&x->of_attended, o}};
    size_t width = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) width += all[i].width;
    if (!(x->values = kvc_alloc(m->rows, width * sizeof *x->values)))
        return kvc_fail_memory(e, "a layer");
    width = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; width += all[i++].width)
        *all[i].to = x->values + m->rows * width;
    return 0;
}

static int load_rope(struct kvc_gradients_layer *x, const struct kvc_cache *c,
                     struct kvc_error *e) {
    struct kvc_rope_facts facts;
    double *room;
    if (kvc_rope_of_layer(c, x->number, NULL, &facts, &room, e)) return -1;
    int status = facts.angle ? kvc_rope_init(&x->rope, facts.angle, facts.half, facts.pairing, e)
                             : kvc_fail(e, KVC_ERR_UNSUPPORTED, "RoPE's angles are not known");
    x->length = facts.angle ? (float)facts.length : 1;
    free(room);
    return status;
}

int kvc_gradients_layer_load(struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                             uint32_t number, struct kvc_error *e) {
    const struct kvc_layer *layer = &m->c->layer[number];
    const struct kvc_shape *k = &m->c->tensor[layer->tensor[0]].shape,
                           *v = &m->c->tensor[layer->tensor[1]].shape;
    const struct kvc_projection_shape shape = {.in = m->width,
                                               .heads = k->heads,
                                               .dim = k->dim,
                                               .dim_v = v->dim,
                                               .rotated = m->c->meta.facts.rope.dim,
                                               .pairing = m->c->meta.facts.rope.pairing};
    *x = (struct kvc_gradients_layer){.number = number,
                                      .heads = (size_t)k->heads,
                                      .dim = (size_t)k->dim,
                                      .dim_v = (size_t)v->dim,
                                      .window = kvc_layer_window(&m->c->meta.facts, layer)};
    if (layer->kind != KVC_LAYER_WINDOW) x->window = 0;
    if (kvc_weights_load(m->weights, layer->index, &shape, &x->to_kv, e) ||
        kvc_weights_load_queries(m->weights, layer->index, &x->to_kv, &x->to_q, e))
        return -1;
    x->group = (size_t)x->to_q.heads / x->heads;
    if (load_matrices(x, m, layer->index, e) || load_rope(x, m->c, e) || load_cached(x, m->c, e))
        return -1;
    return make_room(x, m, e);
}

void kvc_gradients_layer_free(struct kvc_gradients_layer *x) {
    kvc_projection_free(&x->to_kv);
    kvc_query_projection_free(&x->to_q);
    kvc_rope_free(&x->rope);
    free(x->ffn_norm);
    free(x->attention_after);
    free(x->ffn_after);
    free(x->cached[0]);
    free(x->cached[1]);
    free(x->values);
    for (int r = 0; r < 2; r++)
        for (unsigned i = 0; i < KVC_LAYER_RUNS; i++) free(x->gradient[r][i]);
}

uint64_t kvc_gradients_layer_weights(const struct kvc_gradients_layer *x,
                                     const struct kvc_gradients_model *m) {
    const size_t heads = (x->group + 1) * x->heads; /* of queries and K; of attention's output, V */
    return (uint64_t)m->width * (heads * (x->dim + x->dim_v) + 3 * x->gate.out);
}

/* --- attention --- */

size_t kvc_gradients_seen(const struct kvc_gradients_model *m, uint32_t number, unsigned run) {
    const struct kvc_cells *cells = &m->c->part[m->c->layer[number].part].cells;
    size_t n = (size_t)cells->n;
    while (n && kvc_cells_position(cells, n - 1) >= m->run[run].position) n--;
    return n;
}

/* One run of a KV head: S = Q K' / sqrt(D), P = softmax(S), O = P V, with the rows of all query
 * heads of the KV head, token by token. */
struct head {
    const struct kvc_gradients_run *run;
    size_t seen, rows, columns; /* cached rows; rows of Q; of K and V */
    float *q, *k, *v, *p, *o;
    float *of_p, *of_o, *transposed; /* transposed: [columns][rows] */
};

static void head_free(struct head *h) {
    free(h->q);
    free(h->k);
    free(h->v);
    free(h->p);
    free(h->o);
    free(h->of_p);
    free(h->of_o);
    free(h->transposed);
}

/* Copies the rows of a head between [row][heads][dim] and [row][dim]. */
static void copy_head(float *to, size_t to_stride, const float *from, size_t from_stride, size_t n,
                      size_t dim) {
    for (size_t i = 0; i < n; i++)
        memcpy(to + i * to_stride, from + i * from_stride, dim * sizeof *to);
}

/* Hides what a row does not see, and makes shares of logits. */
static void find_shares(const struct kvc_gradients_layer *x, const struct kvc_cells *cells,
                        const struct head *h, size_t row) {
    const size_t own = row / x->group, n = h->seen + own + 1;
    const int64_t position = h->run->position + (int64_t)own;
    float *p = h->p + row * h->columns, most = -INFINITY;
    for (size_t t = 0; t < n; t++) {
        const int64_t at = t < h->seen ? kvc_cells_position(cells, t)
                                       : h->run->position + (int64_t)(t - h->seen);
        if (x->window && position - at >= (int64_t)x->window) p[t] = -INFINITY;
        most = fmaxf(most, p[t]);
    }
    memset(p + n, 0, (h->columns - n) * sizeof *p);
    const float sum = kvc_kernels_get()->exponentials(p, n, most); /* its own row is seen */
    kvc_kernels_get()->scale(p, p, 1 / sum, n);
}

static int head_forward(const struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                        size_t g, unsigned run, struct head *h, struct kvc_error *e) {
    const struct kvc_gradients_run *r = &m->run[run];
    const size_t dim = x->dim, dim_v = x->dim_v, width = x->heads * dim, width_v = x->heads * dim_v;
    *h = (struct head){.run = r,
                       .seen = kvc_gradients_seen(m, x->number, run),
                       .rows = r->n * x->group};
    h->columns = h->seen + r->n;
    h->q = kvc_alloc(h->rows, dim * sizeof *h->q);
    h->k = kvc_alloc(h->columns, dim * sizeof *h->k);
    h->v = kvc_alloc(h->columns, dim_v * sizeof *h->v);
    h->p = kvc_alloc(h->rows, h->columns * sizeof *h->p);
    h->o = kvc_alloc(h->rows, dim_v * sizeof *h->o);
    if (!h->q || !h->k || !h->v || !h->p || !h->o) return kvc_fail_memory(e, "attention");
    for (size_t i = 0; i < r->n; i++)
        memcpy(h->q + i * x->group * dim, x->q + ((r->first + i) * x->heads + g) * x->group * dim,
               x->group * dim * sizeof *h->q);
    kvc_kernels_get()->scale(h->q, h->q, 1 / sqrtf((float)dim), h->rows * dim);
    copy_head(h->k, dim, x->cached[0] + g * dim, width, h->seen, dim);
    copy_head(h->v, dim_v, x->cached[1] + g * dim_v, width_v, h->seen, dim_v);
    copy_head(h->k + h->seen * dim, dim, x->k + r->first * width + g * dim, width, r->n, dim);
    copy_head(h->v + h->seen * dim_v, dim_v, x->v + r->first * width_v + g * dim_v, width_v, r->n,
              dim_v);
    if (kvc_multiply(h->p, h->columns, h->q, h->rows, dim, h->k, dim, h->columns, 1, e)) return -1;
    const struct kvc_cells *cells = &m->c->part[m->c->layer[x->number].part].cells;
    for (size_t i = 0; i < h->rows; i++) find_shares(x, cells, h, i);
    return kvc_multiply(h->o, dim_v, h->p, h->rows, h->columns, h->v, dim_v, dim_v, 0, e);
}

/* Puts the gradients of K, or of V, into those of the cache and of the run itself. */
static void give(const struct kvc_gradients_layer *x, const struct head *h, size_t g, unsigned run,
                 int is_v, const float *of) {
    const size_t dim = is_v ? x->dim_v : x->dim, width = x->heads * dim;
    float *own = (is_v ? x->of_v : x->of_k) + h->run->first * width;
    copy_head(x->gradient[is_v][run] + g * dim, width, of, dim, h->seen, dim);
    copy_head(own + g * dim, width, of + h->seen * dim, dim, h->run->n, dim);
}

static int head_back(const struct kvc_gradients_layer *x, size_t g, unsigned run, struct head *h,
                     struct kvc_error *e) {
    const size_t dim = x->dim, dim_v = x->dim_v, wide = dim > dim_v ? dim : dim_v;
    h->of_o = kvc_alloc(h->rows, dim_v * sizeof *h->of_o);
    h->of_p = kvc_alloc(h->rows, h->columns * sizeof *h->of_p);
    h->transposed = kvc_alloc(h->columns, h->rows * sizeof *h->transposed);
    float *of = kvc_alloc(h->columns + h->rows, wide * sizeof *of);
    int status = h->of_o && h->of_p && h->transposed && of ? 0 : kvc_fail_memory(e, "attention");
    for (size_t i = 0; i < h->run->n && !status; i++)
        memcpy(h->of_o + i * x->group * dim_v,
               x->of_attended + ((h->run->first + i) * x->heads + g) * x->group * dim_v,
               x->group * dim_v * sizeof *h->of_o);
    if (!status) { /* V: P' of O */
        kvc_transpose(h->transposed, h->p, h->rows, h->columns);
        status = kvc_multiply(of, dim_v, h->transposed, h->columns, h->rows, h->of_o, dim_v, dim_v,
                              0, e);
    }
    if (!status) give(x, h, g, run, 1, of);
    if (!status)
        status = kvc_multiply(h->of_p, h->columns, h->of_o, h->rows, dim_v, h->v, dim_v, h->columns,
                              1, e);
    for (size_t i = 0; i < h->rows && !status; i++) { /* of P becomes of S */
        const float mean = kvc_kernels_get()->dot(h->of_o + i * dim_v, h->o + i * dim_v, dim_v);
        float *s = h->of_p + i * h->columns;
        const float *p = h->p + i * h->columns;
        for (size_t t = 0; t < h->columns; t++) s[t] = p[t] * (s[t] - mean);
    }
    if (!status) { /* K: S' Q, which is scaled */
        kvc_transpose(h->transposed, h->of_p, h->rows, h->columns);
        status = kvc_multiply(of, dim, h->transposed, h->columns, h->rows, h->q, dim, dim, 0, e);
    }
    if (!status) give(x, h, g, run, 0, of);
    if (!status) status = kvc_multiply(of, dim, h->of_p, h->rows, h->columns, h->k, dim, dim, 0, e);
    if (!status) kvc_kernels_get()->scale(of, of, 1 / sqrtf((float)dim), h->rows * dim);
    for (size_t i = 0; i < h->run->n && !status; i++)
        memcpy(x->of_q + ((h->run->first + i) * x->heads + g) * x->group * dim,
               of + i * x->group * dim, x->group * dim * sizeof *of);
    free(of);
    return status;
}

/* The heads and runs of a layer, as items of a job. */
struct attention {
    const struct kvc_gradients_layer *x;
    const struct kvc_gradients_model *m;
    int back;
};

static int attend_some(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct attention *a = state;
    const size_t g = (size_t)(item / KVC_LAYER_RUNS), dim_v = a->x->dim_v;
    const unsigned run = (unsigned)(item % KVC_LAYER_RUNS);
    struct head h;
    *result = NULL;
    int status = head_forward(a->x, a->m, g, run, &h, e);
    if (!status && a->back) status = head_back(a->x, g, run, &h, e);
    for (size_t i = 0; i < h.run->n && !status && !a->back; i++)
        memcpy(a->x->attended + ((h.run->first + i) * a->x->heads + g) * a->x->group * dim_v,
               h.o + i * a->x->group * dim_v, a->x->group * dim_v * sizeof *h.o);
    head_free(&h);
    return status;
}

static int attend(const struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                  int back, struct kvc_error *e) {
    struct attention a = {x, m, back};
    const struct kvc_job job = {.n = x->heads * KVC_LAYER_RUNS, .work = attend_some, .state = &a};
    return kvc_parallel(&job, m->threads, e);
}

/* --- the layer --- */

static int64_t position_of(const struct kvc_gradients_model *m, size_t row) {
    unsigned r = 0;
    while (row >= m->run[r].first + m->run[r].n) r++;
    return m->run[r].position + (int64_t)(row - m->run[r].first);
}

/* Multiplies the channels that RoPE rotates by the length that it gives them. */
static void lengthen(const struct kvc_gradients_layer *x, float *row, size_t heads) {
    for (size_t h = 0; h < heads && x->length != 1; h++)
        kvc_kernels_get()->scale(row + h * x->dim, row + h * x->dim, x->length, 2 * x->rope.half);
}

/* Makes queries, or K, of the normed input: bias, norm of heads, RoPE. */
static int project(struct kvc_gradients_layer *x, const struct kvc_gradients_model *m, float *to,
                   float *raw, const float *matrix, const float *bias, const float *norm,
                   size_t heads, struct kvc_error *e) {
    const size_t width = heads * x->dim;
    if (kvc_multiply_wide(raw, x->in, m->rows, m->width, matrix, width, 0, m->threads, e))
        return -1;
    for (size_t i = 0; i < m->rows && bias; i++)
        kvc_kernels_get()->add_scaled(raw + i * width, bias, 1, width);
    for (size_t i = 0; i < m->rows * heads; i++) {
        float *head = to + i * x->dim;
        if (norm) kvc_gradients_norm(head, raw + i * x->dim, norm, 1, x->dim, m->epsilon);
        else memcpy(head, raw + i * x->dim, x->dim * sizeof *head);
    }
    for (size_t i = 0; i < m->rows; i++) {
        kvc_rope_at(&x->rope, position_of(m, i));
        kvc_rope_turn(&x->rope, to + i * width, heads, x->dim);
        lengthen(x, to + i * width, heads);
    }
    return 0;
}

/* The other way: `of` becomes the gradient before RoPE and the norm, and what it says of the normed
 * input is added to `in`. */
static int project_back(struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                        float *of, const float *raw, const float *matrix, const float *norm,
                        size_t heads, float *in, struct kvc_error *e) {
    const size_t width = heads * x->dim, n = m->rows * m->width;
    float *room = kvc_alloc(n + x->dim, sizeof *room);
    if (!room) return kvc_fail_memory(e, "a layer");
    float *head = room + n;
    for (size_t i = 0; i < m->rows; i++) {
        kvc_row_before_rope(&x->rope, of + i * width, heads, x->dim, position_of(m, i));
        lengthen(x, of + i * width, heads);
    }
    for (size_t i = 0; i < m->rows * heads && norm; i++) {
        memset(head, 0, x->dim * sizeof *head);
        kvc_gradients_norm_back(head, of + i * x->dim, raw + i * x->dim, norm, 1, x->dim,
                                m->epsilon);
        memcpy(of + i * x->dim, head, x->dim * sizeof *head);
    }
    const int status = kvc_multiply_wide(room, of, m->rows, width, matrix, m->width, 1, m->threads,
                                         e);
    if (!status) kvc_kernels_get()->add_scaled(in, room, 1, n);
    free(room);
    return status;
}

int kvc_gradients_layer_forward(struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                                const float *h, float *to, struct kvc_error *e) {
    const size_t n = m->rows, d = m->width, width_v = x->heads * x->dim_v, all = n * d;
    const struct kvc_projection *kv = &x->to_kv;
    float slope;
    kvc_gradients_norm(x->in, h, kv->norm, n, d, m->epsilon);
    if (project(x, m, x->q, x->q_raw, x->to_q.q, x->to_q.bias, x->to_q.q_norm, x->heads * x->group,
                e) ||
        project(x, m, x->k, x->k_raw, kv->k, kv->k_bias, x->to_q.k_norm, x->heads, e) ||
        kvc_multiply_wide(x->v, x->in, n, d, kv->v, width_v, 0, m->threads, e))
        return -1;
    for (size_t i = 0; i < n && kv->v_bias; i++)
        kvc_kernels_get()->add_scaled(x->v + i * width_v, kv->v_bias, 1, width_v);
    if (attend(x, m, 0, e) ||
        kvc_weights_multiply(x->added, x->attended, n, &x->out, m->threads, e))
        return -1;
    memcpy(x->middle, x->added, all * sizeof *to);
    if (x->attention_after)
        kvc_gradients_norm(x->middle, x->added, x->attention_after, n, d, m->epsilon);
    kvc_kernels_get()->add_scaled(x->middle, h, 1, all);
    kvc_gradients_norm(x->ffn_in, x->middle, x->ffn_norm, n, d, m->epsilon);
    if (kvc_weights_multiply(x->gated, x->ffn_in, n, &x->gate, m->threads, e) ||
        kvc_weights_multiply(x->upped, x->ffn_in, n, &x->up, m->threads, e))
        return -1;
    float *both = kvc_alloc(n, x->gate.out * sizeof *both);
    if (!both) return kvc_fail_memory(e, "a layer");
    for (size_t i = 0; i < n * x->gate.out; i++)
        both[i] = activate(x->gated[i], m->gelu, &slope) * x->upped[i];
    const int status = kvc_weights_multiply(x->ffn_out, both, n, &x->down, m->threads, e);
    free(both);
    memcpy(to, x->ffn_out, all * sizeof *to);
    if (x->ffn_after) kvc_gradients_norm(to, x->ffn_out, x->ffn_after, n, d, m->epsilon);
    kvc_kernels_get()->add_scaled(to, x->middle, 1, all);
    return status;
}

/* Takes the gradient `of` of the output back to that of `middle`. */
static int ffn_back(const struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                    float *of, float *room, struct kvc_error *e) {
    const size_t n = m->rows, d = m->width, ffn = x->gate.out;
    float *both = kvc_alloc(2 * n, ffn * sizeof *both);
    if (!both) return kvc_fail_memory(e, "a layer");
    float *up = both + n * ffn;
    memcpy(room, of, n * d * sizeof *room);
    if (x->ffn_after) {
        memset(room, 0, n * d * sizeof *room);
        kvc_gradients_norm_back(room, of, x->ffn_out, x->ffn_after, n, d, m->epsilon);
    }
    int status = kvc_weights_multiply_back(both, room, n, &x->down, m->threads, e);
    for (size_t i = 0; i < n * ffn && !status; i++) {
        float slope;
        up[i] = both[i] * activate(x->gated[i], m->gelu, &slope);
        both[i] *= slope * x->upped[i];
    }
    if (!status) status = kvc_weights_multiply_back(room, both, n, &x->gate, m->threads, e);
    if (!status) kvc_gradients_norm_back(of, room, x->middle, x->ffn_norm, n, d, m->epsilon);
    if (!status) status = kvc_weights_multiply_back(room, up, n, &x->up, m->threads, e);
    if (!status) kvc_gradients_norm_back(of, room, x->middle, x->ffn_norm, n, d, m->epsilon);
    free(both);
    return status;
}

int kvc_gradients_layer_back(struct kvc_gradients_layer *x, const struct kvc_gradients_model *m,
                             const float *h, float *of, struct kvc_error *e) {
    const size_t n = m->rows, d = m->width, width_v = x->heads * x->dim_v;
    float *room = kvc_alloc(n, d * sizeof *room), *in = kvc_alloc(n, d * sizeof *in);
    int status = room && in ? 0 : kvc_fail_memory(e, "a layer");
    for (int r = 0; r < 2; r++)
        for (unsigned i = 0; i < KVC_LAYER_RUNS && !status; i++) {
            const size_t width = x->heads * (r ? x->dim_v : x->dim);
            x->gradient[r][i] = kvc_alloc(kvc_gradients_seen(m, x->number, i) + 1,
                                          width * sizeof *room);
            if (!x->gradient[r][i]) status = kvc_fail_memory(e, "gradients");
        }
    if (!status) status = ffn_back(x, m, of, room, e);
    if (!status) {
        memcpy(room, of, n * d * sizeof *room);
        if (x->attention_after) {
            memset(room, 0, n * d * sizeof *room);
            kvc_gradients_norm_back(room, of, x->added, x->attention_after, n, d, m->epsilon);
        }
        status = kvc_weights_multiply_back(x->of_attended, room, n, &x->out, m->threads, e);
    }
    if (!status) status = attend(x, m, 1, e);
    if (!status)
        status = kvc_multiply_wide(in, x->of_v, n, width_v, x->to_kv.v, d, 1, m->threads, e);
    if (!status)
        status = project_back(x, m, x->of_k, x->k_raw, x->to_kv.k, x->to_q.k_norm, x->heads, in,
                              e) ||
                 project_back(x, m, x->of_q, x->q_raw, x->to_q.q, x->to_q.q_norm,
                              x->heads * x->group, in, e);
    if (!status) kvc_gradients_norm_back(of, in, h, x->to_kv.norm, n, d, m->epsilon);
    free(room);
    free(in);
    return status ? -1 : 0;
}
