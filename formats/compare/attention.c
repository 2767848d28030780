/* attention.c: logits, softmax and outputs of two caches side by side. Not for their values
 * (compare.c). */
#include "formats/compare/attention.h"

#include "codecs/memory.h"
#include "formats/api/sized.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* rows and channels are padded to a multiple, so that compilers make vectors of the inner loops */
enum { LANES = 8 };

/* A layer as arrays, of both sides. */
struct arrays {
    size_t heads, group, dim_k, dim_v; /* group: query heads that read one KV head */
    size_t rows, row_room, value_room; /* rows attended to; padded rows and dim_v */
    size_t n_queries;
    float *key[2];     /* [head][dim_k][row_room] */
    float *value[2];   /* [head][row][value_room] */
    float *query;      /* [n_queries][head * group][dim_k] */
    float *logit[2];   /* of one query, [row_room]; then its probabilities */
    float *gap;        /* the two logits' difference */
    float *output[2];  /* [value_room] */
    float *piece;      /* a block of rows as they are read */
    int64_t *position; /* of rows, ascending */
    float *memory;
};

static size_t padded(size_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

static const struct kvc_shape *shape_of(const struct kvc_cache *c, uint32_t tensor) {
    return &c->tensor[tensor].shape;
}

static int check_shapes(const struct kvc_attention_layer *l, struct kvc_error *e) {
    const struct kvc_shape *k = shape_of(l->cache[0], l->k[0]), *v = shape_of(l->cache[0], l->v[0]);
    const struct kvc_shape *q = shape_of(l->queries, l->q);
    for (int s = 0; s < 2; s++) {
        const struct kvc_shape *other_k = shape_of(l->cache[s], l->k[s]),
                               *other_v = shape_of(l->cache[s], l->v[s]);
        if (other_k->heads != k->heads || other_k->dim != k->dim || other_v->heads != k->heads ||
            other_v->dim != v->dim)
            return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_HEADS,
                                 "A and B differ in heads x channels: K %" PRIu64 " x %" PRIu64
                                 ", V %" PRIu64 " x %" PRIu64 " in A, K %" PRIu64 " x %" PRIu64
                                 ", V %" PRIu64 " x %" PRIu64 " in B",
                                 k->heads, k->dim, v->heads, v->dim, other_k->heads, other_k->dim,
                                 other_v->heads, other_v->dim);
    }
    if (q->dim != k->dim || q->heads % k->heads)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_HEADS,
                             "queries of %" PRIu64 " heads of %" PRIu64
                             " channels do not match K of %" PRIu64 " heads of %" PRIu64
                             " channels",
                             q->heads, q->dim, k->heads, k->dim);
    return 0;
}

/* Reads matched rows of K or V of one side into the layout of the loops below. */
static int load_rows(const struct kvc_attention_layer *l, struct arrays *x, int side, int is_value,
                     struct kvc_error *e) {
    const size_t dim = is_value ? x->dim_v : x->dim_k;
    size_t to = 0;
    for (uint64_t i = 0; i < l->rows->n_runs; i++) {
        const struct kvc_run *run = &l->rows->run[i];
        for (uint64_t done = 0; done < run->n;) {
            const uint64_t n = run->n - done < KVC_BLOCK ? run->n - done : KVC_BLOCK;
            const uint32_t tensor = is_value ? l->v[side] : l->k[side];
            if (l->cache[side]->read(l->cache[side], tensor, (side ? run->b : run->a) + done, n,
                                     (uint8_t *)x->piece, e))
                return -1;
            for (const float *from = x->piece; from < x->piece + n * x->heads * dim; to++)
                for (size_t h = 0; h < x->heads; h++, from += dim) {
                    if (is_value)
                        memcpy(x->value[side] + (h * x->rows + to) * x->value_room, from,
                               dim * sizeof *from);
                    else
                        for (size_t d = 0; d < dim; d++)
                            x->key[side][(h * dim + d) * x->row_room + to] = from[d];
                }
            done += n;
        }
    }
    return 0;
}

static int attention_load(const struct kvc_attention_layer *l, struct arrays *x,
                          struct kvc_error *e) {
    const struct kvc_shape *k = shape_of(l->cache[0], l->k[0]), *q = shape_of(l->queries, l->q);
    x->heads = (size_t)k->heads;
    x->group = (size_t)(q->heads / k->heads);
    x->dim_k = (size_t)k->dim;
    x->dim_v = (size_t)shape_of(l->cache[0], l->v[0])->dim;
    x->rows = (size_t)l->rows->rows;
    x->n_queries = (size_t)q->tokens;
    x->row_room = padded(x->rows);
    x->value_room = padded(x->dim_v);
    const size_t keys = x->heads * x->dim_k * x->row_room,
                 values = x->heads * x->rows * x->value_room;
    const size_t queries = x->n_queries * x->heads * x->group * x->dim_k;
    const size_t piece = x->heads * (x->dim_k > x->dim_v ? x->dim_k : x->dim_v) * KVC_BLOCK;
    float *p = x->memory = calloc(2 * (keys + values + x->value_room) + 3 * x->row_room + queries +
                                      piece,
                                  sizeof *p);
    x->position = kvc_alloc(x->rows + 1, sizeof *x->position);
    if (!p || !x->position) return kvc_fail_memory(e, "a layer's K and V");
    for (int s = 0; s < 2; s++) {
        x->key[s] = p, p += keys;
        x->value[s] = p, p += values;
        x->logit[s] = p, p += x->row_room;
        x->output[s] = p, p += x->value_room;
    }
    x->gap = p, p += x->row_room;
    x->query = p, p += queries;
    x->piece = p;
    const struct kvc_cells *cells = kvc_tensor_cells(l->cache[0], l->k[0]);
    for (uint64_t i = 0, to = 0; i < l->rows->n_runs; i++)
        for (uint64_t t = 0; t < l->rows->run[i].n; t++)
            x->position[to++] = kvc_cells_position(cells, l->rows->run[i].a + t);
    for (int s = 0; s < 2; s++)
        if (load_rows(l, x, s, 0, e) || load_rows(l, x, s, 1, e)) return -1;
    return l->queries->read(l->queries, l->q, 0, x->n_queries, (uint8_t *)x->query, e);
}

/* logit[t] = q . k[t] * scale for t < n, a multiple of LANES. */
static void make_logits(float *restrict logit, const float *restrict q, const float *restrict key,
                        size_t dim, size_t room, size_t n, float scale) {
    memset(logit, 0, n * sizeof *logit);
    for (size_t d = 0; d < dim; d++, key += room) {
        const float factor = q[d] * scale;
        for (size_t t = 0; t < n; t += LANES)
            for (size_t i = 0; i < LANES; i++) logit[t + i] += factor * key[t + i];
    }
}

/* Replaces n logits by probabilities. Returns the logarithm of the sum of their exponentials. */
static double softmax(float *p, size_t n) {
    float maximum = p[0];
    double sum = 0;
    for (size_t t = 1; t < n; t++)
        if (p[t] > maximum) maximum = p[t];
    for (size_t t = 0; t < n; t++) sum += (double)(p[t] = expf(p[t] - maximum));
    const float share = (float)(1 / sum);
    for (size_t t = 0; t < n; t++) p[t] *= share;
    return (double)maximum + log(sum);
}

/* output = sum of p[t] value[t] over n rows. */
static void make_output(float *restrict output, const float *restrict p,
                        const float *restrict value, size_t room, size_t n) {
    memset(output, 0, room * sizeof *output);
    for (size_t t = 0; t < n; t++, value += room)
        for (size_t d = 0; d < room; d += LANES)
            for (size_t i = 0; i < LANES; i++) output[d + i] += p[t] * value[d + i];
}

/* KL(p_a || p_b) from p_a and the differences of the logits. log Z_b - log Z_a is log(sum p_a
 * exp(-gap)). Near 0, log1p and expm1 keep its digits. Far from 0 exp could overflow, and the
 * logarithms of both sums are precise enough. */
static double divergence(const float *p, const float *gap, size_t n, double log_sum_b_less_a) {
    double plain = 0, bent = 0, maximum = 0;
    for (size_t t = 0; t < n; t++) {
        maximum = fmax(maximum, fabs((double)gap[t]));
        plain += (double)p[t] * (double)gap[t];
    }
    for (size_t t = 0; t < n && maximum < 1; t++) bent += (double)p[t] * expm1(-(double)gap[t]);
    const double kl = plain + (maximum < 1 ? log1p(bent) : log_sum_b_less_a);
    return kl < 0 ? 0 : kl; /* only rounding makes it negative */
}

/* Measures a query that sees rows first to last - 1. */
static void attention_measure(struct arrays *x, size_t head, const float *q, size_t first,
                              size_t last, struct kvc_attention *out) {
    const float scale = 1.0f / sqrtf((float)x->dim_k);
    const size_t n = last - first;
    double log_sum[2], norm = 0, apart = 0;
    for (int s = 0; s < 2; s++)
        make_logits(x->logit[s], q, x->key[s] + head * x->dim_k * x->row_room, x->dim_k,
                    x->row_room, padded(last), scale);
    for (size_t t = 0; t < n; t++) {
        x->gap[t] = x->logit[0][first + t] - x->logit[1][first + t];
        out->logit_sum += (double)x->gap[t] * (double)x->gap[t];
    }
    for (int s = 0; s < 2; s++) {
        const float *value = x->value[s] + (head * x->rows + first) * x->value_room;
        log_sum[s] = softmax(x->logit[s] + first, n);
        make_output(x->output[s], x->logit[s] + first, value, x->value_room, n);
    }
    for (size_t d = 0; d < x->dim_v; d++) {
        const double o = (double)x->output[0][d], difference = o - (double)x->output[1][d];
        norm += o * o;
        apart += difference * difference;
    }
    out->logits += n;
    out->kl_sum += divergence(x->logit[0] + first, x->gap, n, log_sum[1] - log_sum[0]);
    out->output[out->queries++] = (float)(apart > 0 ? sqrt(apart / norm) : apart);
}

/* Returns the first row at position p or after it. */
static size_t row_from(const struct arrays *x, int64_t p) {
    size_t low = 0, high = x->rows;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (x->position[mid] < p) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* Finds the rows [*first, *last) that query i sees. Returns 0 if it sees none. */
static int sees(const struct kvc_attention_layer *l, const struct arrays *x, size_t i,
                size_t *first, size_t *last) {
    const int64_t position = kvc_cells_position(kvc_tensor_cells(l->queries, l->q), i);
    const int bounded = l->window && position >= INT64_MIN + (int64_t)l->window;
    *last = row_from(x, position + 1);
    *first = bounded ? row_from(x, position - (int64_t)l->window + 1) : 0;
    return *first < *last;
}

int kvc_attention_compare(const struct kvc_attention_layer *l, struct kvc_attention *out,
                          struct kvc_error *e) {
    struct arrays x = {0};
    if (check_shapes(l, e)) return -1;
    int status = attention_load(l, &x, e);
    for (size_t h = 0; h < x.heads && !status; h++)
        if (!(out[h].output = kvc_alloc(x.n_queries * x.group + 1, sizeof *out[h].output)))
            status = kvc_fail_memory(e, "measures");
    for (size_t i = 0; i < x.n_queries && !status; i++) {
        size_t first, last;
        if (!sees(l, &x, i, &first, &last)) continue;
        for (size_t h = 0; h < x.heads; h++)
            for (size_t g = 0; g < x.group; g++)
                attention_measure(&x, h, x.query + ((i * x.heads + h) * x.group + g) * x.dim_k,
                                  first, last, &out[h]);
    }
    free(x.memory);
    free(x.position);
    return status;
}

/* Keeps the probabilities of the query that was measured last. */
static int attention_keep(const struct arrays *x, size_t first, size_t last,
                          struct kvc_attention_weights *out, struct kvc_error *e) {
    const size_t n = last - first;
    out->n = n;
    for (int s = 0; s < 2; s++) {
        float *p = kvc_realloc(out->p[s], n, sizeof *p);
        if (!p) return kvc_fail_memory(e, "probabilities");
        memcpy(p, x->logit[s] + first, n * sizeof *p);
        out->p[s] = p;
    }
    int64_t *at = kvc_realloc(out->at, n, sizeof *at);
    if (!at) return kvc_fail_memory(e, "probabilities");
    memcpy(at, x->position + first, n * sizeof *at);
    out->at = at;
    return 0;
}

int kvc_attention_find(const struct kvc_attention_layer *l, uint64_t head, int last_only,
                       struct kvc_attention_weights *out, struct kvc_error *e) {
    struct arrays x = {0};
    *out = (struct kvc_attention_weights){.size = sizeof *out};
    if (check_shapes(l, e)) return -1;
    int status = attention_load(l, &x, e);
    const struct kvc_cells *cells = kvc_tensor_cells(l->queries, l->q);
    for (size_t i = x.n_queries; i-- > 0 && !status && !(last_only && out->n);) {
        size_t first, last;
        if (!sees(l, &x, i, &first, &last)) continue;
        for (size_t g = 0; g < x.group && !status; g++) {
            float output;
            struct kvc_attention one = {.output = &output};
            const size_t query_head = head * x.group + g;
            attention_measure(&x, head, x.query + (i * x.heads * x.group + query_head) * x.dim_k,
                              first, last, &one);
            if (out->n && !(one.kl_sum > out->kl)) continue;
            out->head = query_head;
            out->position = kvc_cells_position(cells, i);
            out->kl = one.kl_sum;
            status = attention_keep(&x, first, last, out, e);
        }
    }
    free(x.memory);
    free(x.position);
    return status;
}

void kvc_attention_weights_free(struct kvc_attention_weights *w) {
    if (!w) return;
    free(w->at);
    free(w->p[0]);
    free(w->p[1]);
    kvc_sized_clear(w);
}

int kvc_attention_add(struct kvc_attention *total, const struct kvc_attention *part,
                      struct kvc_error *e) {
    float *output = kvc_realloc(total->output, total->queries + part->queries + 1, sizeof *output);
    if (!output) return kvc_fail_memory(e, "measures");
    if (part->queries)
        memcpy(output + total->queries, part->output, (size_t)part->queries * sizeof *output);
    total->output = output;
    total->queries += part->queries;
    total->logits += part->logits;
    total->logit_sum += part->logit_sum;
    total->kl_sum += part->kl_sum;
    return 0;
}

void kvc_attention_free(struct kvc_attention *a) {
    free(a->output);
    memset(a, 0, sizeof *a);
}

double kvc_attention_logit_rms(const struct kvc_attention *a) {
    return a->logits ? sqrt(a->logit_sum / (double)a->logits) : 0;
}

double kvc_attention_kl(const struct kvc_attention *a) {
    return a->queries ? a->kl_sum / (double)a->queries : 0;
}

/* Compares for ascending order, NaN last. */
static int compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    if (isnan(x) || isnan(y)) return isnan(x) - isnan(y);
    return (x > y) - (x < y);
}

double kvc_attention_output(struct kvc_attention *a, double share) {
    if (!a->queries) return 0;
    qsort(a->output, (size_t)a->queries, sizeof *a->output, compare_floats);
    const double rank = ceil(share * (double)a->queries);
    return (double)a->output[rank < 1                      ? 0
                             : (uint64_t)rank > a->queries ? a->queries - 1
                                                           : (uint64_t)rank - 1];
}
