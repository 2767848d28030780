/* probes.c: attention of the queries at hand. Not for decoding. */
#include "codecs/probes.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = KVC_MAX_BLOCK_ROWS }; /* keys that are looked at together */

/* Queries from the last `window` on, against pieces of ROWS keys. */
struct probe {
    const struct kvc_encoding *x;
    size_t heads, group, dim; /* KV heads; query heads that read each; channels of K */
    size_t first, n;          /* queries that count */
    float *rows;              /* as read, [ROWS][heads][channels] */
    float *turned;            /* of one head, [dim][ROWS] */
    float *logit;             /* [ROWS] */
    float *most, *sum;        /* by query and query head: greatest logit, sum of exponentials */
};

static int probe_init(struct probe *p, const struct kvc_encoding *x, uint64_t window, struct kvc_error *e) {
    memset(p, 0, sizeof *p);
    p->x = x;
    p->heads = (size_t)x->key.heads;
    p->dim = (size_t)x->key.dim;
    p->group = (size_t)(x->query_heads / x->key.heads);
    p->first = window < x->n_queries ? (size_t)(x->n_queries - window) : 0;
    p->n = (size_t)x->n_queries - p->first;
    const size_t value = (size_t)(x->value.heads * x->value.dim), key = p->heads * p->dim;
    const size_t pairs = p->n * (size_t)x->query_heads;
    p->rows = malloc((ROWS * ((key > value ? key : value) + p->dim + 1) + 2 * pairs) * sizeof *p->rows);
    if (!p->rows) return kvc_fail_memory(e, "probes");
    p->turned = p->rows + ROWS * (key > value ? key : value);
    p->logit = p->turned + ROWS * p->dim;
    p->most = p->logit + ROWS;
    p->sum = p->most + pairs;
    for (size_t i = 0; i < pairs; i++) {
        p->most[i] = -INFINITY;
        p->sum[i] = 0;
    }
    return 0;
}

static void turn(struct probe *p, size_t head, size_t n) {
    for (size_t t = 0; t < n; t++)
        for (size_t d = 0; d < p->dim; d++) p->turned[d * ROWS + t] = p->rows[(t * p->heads + head) * p->dim + d];
}

/* Of n rows from `first` on, how many a query may see: those up to its position. */
static size_t visible(const struct probe *p, size_t q, uint64_t first, size_t n) {
    const int64_t at = p->x->query_position[p->first + q];
    while (n && p->x->position[first + n - 1] > at) n--;
    return n;
}

/* Logits of query q of query head `g` of the group of a head against n turned rows. A key that is not finite counts as one
 * that nothing looks at. */
static void logits(const struct probe *p, size_t q, size_t head, size_t g, size_t n) {
    const float *query = p->x->query + ((p->first + q) * p->x->query_heads + head * p->group + g) * p->dim;
    kvc_kernels_get()->multiply_rows(p->logit, query, p->turned, p->dim, ROWS, n);
    kvc_kernels_get()->scale(p->logit, p->logit, 1 / sqrtf((float)p->dim), n);
    for (size_t t = 0; t < n; t++)
        if (!(p->logit[t] <= 0x1p100f)) p->logit[t] = -INFINITY;
}

/* What is done with one query's logits of n rows from `first` on; pair: number of query and query head. */
typedef void logit_work(struct probe *p, void *state, size_t pair, size_t head, uint64_t first, size_t n);

/* All keys against all queries. */
static int each_piece(struct probe *p, logit_work *work, void *state, struct kvc_error *e) {
    for (uint64_t first = 0; first < p->x->rows; first += ROWS) {
        const size_t n = p->x->rows - first < ROWS ? (size_t)(p->x->rows - first) : ROWS;
        if (p->x->read(p->x, KVC_SELECT_K, first, n, p->rows, e)) return -1;
        for (size_t h = 0; h < p->heads; h++) {
            turn(p, h, n);
            for (size_t q = 0; q < p->n; q++) {
                const size_t seen = visible(p, q, first, n);
                if (!seen) continue;
                for (size_t g = 0; g < p->group; g++) {
                    logits(p, q, h, g, seen);
                    work(p, state, (q * p->heads + h) * p->group + g, h, first, seen);
                }
            }
        }
    }
    return 0;
}

/* First pass: sums of exponentials, scaled to the greatest logit so far. */
static void add_exponentials(struct probe *p, void *state, size_t pair, size_t head, uint64_t first, size_t n) {
    (void)state, (void)head, (void)first;
    float most = p->most[pair];
    for (size_t t = 0; t < n; t++) most = p->logit[t] > most ? p->logit[t] : most;
    if (most == -INFINITY) return;
    const float before = p->most[pair] == -INFINITY ? 0 : p->sum[pair] * expf(p->most[pair] - most);
    p->sum[pair] = before + kvc_kernels_get()->exponentials(p->logit, n, most);
    p->most[pair] = most;
}

/* Second pass: p->logit becomes the share of each row. */
static void shares(struct probe *p, size_t pair, size_t n) {
    if (!(p->sum[pair] > 0)) {
        memset(p->logit, 0, n * sizeof *p->logit);
        return;
    }
    kvc_kernels_get()->exponentials(p->logit, n, p->most[pair]);
    kvc_kernels_get()->scale(p->logit, p->logit, 1 / p->sum[pair], n);
}

static void add_shares(struct probe *p, void *state, size_t pair, size_t head, uint64_t first, size_t n) {
    float *to = state;
    shares(p, pair, n);
    kvc_kernels_get()->add_scaled(to + head * p->x->rows + first, p->logit, 1, n);
}

int kvc_probes_attention(const struct kvc_encoding *x, float *to, struct kvc_error *e) {
    struct probe p;
    if (probe_init(&p, x, x->n_queries, e)) return -1;
    memset(to, 0, (size_t)(x->key.heads * x->rows) * sizeof *to);
    const int status = each_piece(&p, add_exponentials, NULL, e) || each_piece(&p, add_shares, to, e);
    free(p.rows);
    return status ? -1 : 0;
}

void kvc_probes_seen(const struct kvc_encoding *x, uint32_t *to) {
    uint64_t q = 0;
    for (uint64_t t = 0; t < x->rows; t++) {
        while (q < x->n_queries && x->query_position[q] < x->position[t]) q++;
        to[t] = (uint32_t)(x->n_queries - q);
    }
}

void kvc_probes_query_energy(const struct kvc_encoding *x, uint64_t window, double *to) {
    const size_t heads = (size_t)x->key.heads, dim = (size_t)x->key.dim, group = (size_t)(x->query_heads / x->key.heads);
    const uint64_t first = window < x->n_queries ? x->n_queries - window : 0;
    memset(to, 0, heads * dim * sizeof *to);
    for (uint64_t q = first; q < x->n_queries; q++)
        for (size_t i = 0; i < heads * group; i++)
            for (size_t d = 0; d < dim; d++) {
                const double v = (double)x->query[((size_t)q * heads * group + i) * dim + d];
                to[i / group * dim + d] += v * v;
            }
    for (size_t i = 0; i < heads * dim; i++) to[i] /= (double)(x->n_queries - first) * (double)group;
}

/* Outputs of all pairs, [pair][channels of V]. */
struct outputs {
    float *output, *piece; /* piece: V of the rows at hand, [ROWS][heads][channels] */
    size_t dim;
    uint64_t have;         /* first row of the piece + 1; 0: none */
    struct kvc_error *e;
    int failed;
};

static void add_outputs(struct probe *p, void *state, size_t pair, size_t head, uint64_t first, size_t n) {
    struct outputs *o = state;
    if (o->failed) return;
    if (o->have != first + 1) {
        const uint64_t rows = p->x->rows - first < ROWS ? p->x->rows - first : ROWS;
        o->failed = p->x->read(p->x, KVC_SELECT_V, first, rows, o->piece, o->e) != 0;
        o->have = first + 1;
        if (o->failed) return;
    }
    shares(p, pair, n);
    float *part = o->output + p->n * (size_t)p->x->query_heads * o->dim;
    kvc_kernels_get()->multiply_rows(part, p->logit, o->piece + head * o->dim, n, p->heads * o->dim, o->dim);
    kvc_kernels_get()->add_scaled(o->output + pair * o->dim, part, 1, o->dim);
}

int kvc_probes_output_energy(const struct kvc_encoding *x, uint64_t window, double *to, struct kvc_error *e) {
    struct probe p;
    struct outputs o = {.dim = (size_t)x->value.dim, .e = e};
    if (probe_init(&p, x, window, e)) return -1;
    const size_t pairs = p.n * (size_t)x->query_heads;
    o.output = calloc((pairs + 1) * o.dim, sizeof *o.output);
    o.piece = malloc(ROWS * p.heads * o.dim * sizeof *o.piece);
    int status = o.output && o.piece ? 0 : kvc_fail_memory(e, "probes");
    if (!status) status = each_piece(&p, add_exponentials, NULL, e) || each_piece(&p, add_outputs, &o, e) || o.failed;
    memset(to, 0, p.heads * o.dim * sizeof *to);
    for (size_t i = 0; i < pairs && !status; i++)
        for (size_t d = 0; d < o.dim; d++) {
            const double v = (double)o.output[i * o.dim + d];
            to[i / p.group % p.heads * o.dim + d] += v * v;
        }
    free(o.output);
    free(o.piece);
    free(p.rows);
    return status ? -1 : 0;
}
