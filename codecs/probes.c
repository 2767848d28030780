/* probes.c: attention of the queries at hand. Not for decoding. */
#include "codecs/probes.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = KVC_MAX_BLOCK_ROWS }; /* keys that are read together */

/* Queries from the last `window` on, against all keys of one KV head after the other. */
struct probe {
    const struct kvc_encoding *x;
    size_t heads, group, dim; /* KV heads; query heads that read each; channels of K */
    size_t first, n, rows;    /* queries that count; keys */
    float *piece;             /* as read, [ROWS][heads][channels] */
    float *turned;            /* keys of one head, [dim][rows] */
    float *share;             /* [rows] */
};

static int probe_init(struct probe *p, const struct kvc_encoding *x, uint64_t window, struct kvc_error *e) {
    memset(p, 0, sizeof *p);
    p->x = x;
    p->heads = (size_t)x->key.heads;
    p->dim = (size_t)x->key.dim;
    p->group = (size_t)(x->query_heads / x->key.heads);
    p->first = window < x->n_queries ? (size_t)(x->n_queries - window) : 0;
    p->n = (size_t)x->n_queries - p->first;
    p->rows = (size_t)x->rows;
    p->piece = malloc((ROWS * p->heads * p->dim + p->rows * (p->dim + 1)) * sizeof *p->piece);
    if (!p->piece) return kvc_fail_memory(e, "probes");
    p->turned = p->piece + ROWS * p->heads * p->dim;
    p->share = p->turned + p->rows * p->dim;
    return 0;
}

static int turn(struct probe *p, size_t head, struct kvc_error *e) {
    for (size_t first = 0; first < p->rows; first += ROWS) {
        const size_t n = p->rows - first < ROWS ? p->rows - first : ROWS;
        if (p->x->read(p->x, KVC_SELECT_K, first, n, p->piece, e)) return -1;
        for (size_t d = 0; d < p->dim; d++)
            for (size_t t = 0; t < n; t++)
                p->turned[d * p->rows + first + t] = p->piece[(t * p->heads + head) * p->dim + d];
    }
    return 0;
}

/* How many rows a query may see: those up to its position. */
static size_t visible(const struct probe *p, size_t q) {
    const int64_t at = p->x->query_position[p->first + q];
    size_t low = 0, high = p->rows;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (p->x->position[mid] <= at) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* p->share: softmax(q.k / sqrt(dim)) of query head g of the head's group over the n rows that it sees. A key that is not
 * finite counts as one that nothing looks at. */
static void find_shares(const struct probe *p, size_t q, size_t head, size_t g, size_t n) {
    const struct kvc_kernels *k = kvc_kernels_get();
    const float *query = p->x->query + ((p->first + q) * p->x->query_heads + head * p->group + g) * p->dim;
    float most = -INFINITY, least = INFINITY;
    k->multiply_rows(p->share, query, p->turned, p->dim, p->rows, n);
    k->scale(p->share, p->share, 1 / sqrtf((float)p->dim), n);
    for (size_t t = 0; t < n; t++)
        if (!(fabsf(p->share[t]) <= 0x1p100f)) p->share[t] = -INFINITY;
    k->range(p->share, n, &least, &most);
    if (most == -INFINITY) {
        memset(p->share, 0, n * sizeof *p->share);
        return;
    }
    const float sum = k->exponentials(p->share, n, most);
    k->scale(p->share, p->share, 1 / sum, n);
}

int kvc_probes_attention(const struct kvc_encoding *x, float *to, struct kvc_error *e) {
    struct probe p;
    int status = 0;
    if (probe_init(&p, x, x->n_queries, e)) return -1;
    memset(to, 0, p.heads * p.rows * sizeof *to);
    for (size_t h = 0; h < p.heads && !status; h++) {
        status = turn(&p, h, e);
        for (size_t q = 0; q < p.n && !status; q++) {
            const size_t n = visible(&p, q);
            for (size_t g = 0; g < p.group && n; g++) {
                find_shares(&p, q, h, g, n);
                kvc_kernels_get()->add_scaled(to + h * p.rows, p.share, 1, n);
            }
        }
    }
    free(p.piece);
    return status;
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

/* One head's values, [rows][channels]. */
static int read_values(const struct kvc_encoding *x, size_t head, float *piece, float *to, struct kvc_error *e) {
    const size_t heads = (size_t)x->value.heads, dim = (size_t)x->value.dim;
    for (uint64_t first = 0; first < x->rows; first += ROWS) {
        const size_t n = x->rows - first < ROWS ? (size_t)(x->rows - first) : ROWS;
        if (x->read(x, KVC_SELECT_V, first, n, piece, e)) return -1;
        for (size_t t = 0; t < n; t++)
            memcpy(to + ((size_t)first + t) * dim, piece + (t * heads + head) * dim, dim * sizeof *to);
    }
    return 0;
}

int kvc_probes_output_energy(const struct kvc_encoding *x, uint64_t window, double *to, struct kvc_error *e) {
    struct probe p;
    const size_t dim = (size_t)x->value.dim, heads = (size_t)x->value.heads;
    if (probe_init(&p, x, window, e)) return -1;
    float *values = malloc((p.rows * dim + ROWS * heads * dim + dim) * sizeof *values);
    int status = values ? 0 : kvc_fail_memory(e, "probes");
    float *piece = values + p.rows * dim, *output = piece + ROWS * heads * dim;
    memset(to, 0, heads * dim * sizeof *to);
    for (size_t h = 0; h < p.heads && !status; h++) {
        status = turn(&p, h, e) || read_values(x, h, piece, values, e);
        for (size_t i = 0; i < p.n * p.group && !status; i++) {
            const size_t n = visible(&p, i / p.group);
            if (!n) continue;
            find_shares(&p, i / p.group, h, i % p.group, n);
            kvc_kernels_get()->multiply_rows(output, p.share, values, n, dim, dim);
            for (size_t d = 0; d < dim; d++) to[h * dim + d] += (double)output[d] * (double)output[d];
        }
    }
    free(values);
    free(p.piece);
    return status ? -1 : 0;
}
