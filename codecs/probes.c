/* probes.c: attention of the available queries. Not for decoding. */
#include "codecs/probes.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = KVC_MAX_BLOCK_ROWS }; /* keys that are read together */
enum { BATCH = 12 };                /* probes that meet a tile of keys while it is in registers */
/* of the keys that are rotated at once, unless one head has more */
enum { TURNED_BYTES = 32 * 1048576 };

/* Queries from the last `window` on, against all keys of one KV head after the other. A *probe* is
 * one query of one of the query heads that read the KV head. */
struct probes {
    const struct kvc_encoding *x;
    size_t heads, group, dim; /* KV heads; query heads that read each; channels of K */
    size_t head, end;         /* KV heads that are wanted: from `head` to end - 1 */
    size_t first, n, rows;    /* queries that count; keys */
    int windowed;             /* a sliding window hides rows */
    size_t padded;            /* rows, up to a multiple of KVC_TILE */
    /* heads whose keys are transposed at once: reading K takes as long for one as for all */
    size_t together;
    float *piece;  /* as read, [ROWS][heads][channels] */
    float *turned; /* keys of some heads, [head][tile][dim][KVC_TILE] */
    float *query;  /* of a batch of probes, [BATCH][dim] */
    float *share;  /* of a batch of probes, [BATCH][padded] */
};

static int probes_init(struct probes *p, const struct kvc_encoding *x, uint64_t window, size_t head,
                       size_t end, struct kvc_error *e) {
    memset(p, 0, sizeof *p);
    p->head = head;
    p->end = end;
    p->x = x;
    p->heads = (size_t)x->key.heads;
    p->dim = (size_t)x->key.dim;
    p->group = (size_t)(x->query_heads / x->key.heads);
    p->first = window < x->n_queries ? (size_t)(x->n_queries - window) : 0;
    p->n = (size_t)x->n_queries - p->first;
    p->rows = (size_t)x->rows;
    p->padded = (p->rows + KVC_TILE - 1) / KVC_TILE * KVC_TILE;
    p->together = TURNED_BYTES / sizeof *p->turned / (p->padded * p->dim + 1);
    p->together = p->together < 1 ? 1 : p->together > end - head ? end - head : p->together;
    const size_t turned = p->together * p->padded * p->dim;
    p->piece = kvc_alloc(ROWS * p->heads * p->dim + turned + BATCH * (p->dim + p->padded),
                         sizeof *p->piece);
    if (!p->piece) return kvc_fail_memory(e, "probes");
    p->turned = p->piece + ROWS * p->heads * p->dim;
    p->query = p->turned + turned;
    p->share = p->query + BATCH * p->dim;
    memset(p->turned, 0, turned * sizeof *p->turned); /* tiles end in keys that nothing reads */
    return 0;
}

/* Transposes the keys of one head of a piece into tiles; n rows from row `first`, a multiple of
 * KVC_TILE, on. */
static void turn_piece(const struct probes *p, size_t head, size_t first, size_t n, float *turned) {
    for (size_t t = 0; t < n; t += KVC_TILE) {
        const float *from = p->piece + (t * p->heads + head) * p->dim;
        float *tile = turned + (first + t) * p->dim;
        const size_t rows = n - t < KVC_TILE ? n - t : KVC_TILE;
        for (size_t d = 0; d < p->dim; d++)
            for (size_t i = 0; i < rows; i++)
                tile[d * KVC_TILE + i] = from[i * p->heads * p->dim + d];
    }
}

/* Transposes the keys of heads head .. head + p->together - 1. */
static int probes_turn(struct probes *p, size_t head, struct kvc_error *e) {
    const size_t end = head + p->together < p->end ? head + p->together : p->end;
    for (size_t first = 0; first < p->rows; first += ROWS) {
        const size_t n = p->rows - first < ROWS ? p->rows - first : ROWS;
        if (p->x->read(p->x, KVC_SELECT_K, first, n, p->piece, e)) return -1;
        for (size_t h = head; h < end; h++)
            turn_piece(p, h, first, n, p->turned + (h - head) * p->padded * p->dim);
    }
    return 0;
}

/* How many rows a probe may see: those up to its query's position. */
static size_t visible(const struct probes *p, size_t probe) {
    const int64_t at = p->x->query_position[p->first + probe / p->group];
    size_t low = 0, high = p->rows;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (p->x->position[mid] <= at) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* How many rows a sliding window hides from a probe, where probes heed it. */
static size_t hidden(const struct probes *p, size_t probe) {
    const int64_t at = p->x->query_position[p->first + probe / p->group];
    size_t n = 0;
    while (p->windowed && p->x->window && n < p->rows &&
           at - p->x->position[n] >= (int64_t)p->x->window)
        n++;
    return n;
}

/* Logits to softmax over rows `from` to n. A key that is not finite counts as one that nothing
 * looks at. */
static void normalise(float *share, size_t from, size_t n, float scale) {
    const struct kvc_kernels *k = kvc_kernels_get();
    float most = -INFINITY, least = INFINITY;
    k->scale(share, share, scale, n);
    for (size_t t = 0; t < from; t++) share[t] = -INFINITY;
    if (!(k->dot(share + from, share + from, n - from) <= 0x1p100f)) /* else none is as large */
        for (size_t t = from; t < n; t++)
            if (!(fabsf(share[t]) <= 0x1p100f)) share[t] = -INFINITY;
    k->range(share, n, &least, &most);
    if (most == -INFINITY) {
        memset(share, 0, n * sizeof *share);
        return;
    }
    const float sum = k->exponentials(share, n, most);
    k->scale(share, share, 1 / sum, n);
}

/* p->share: softmax(q.k / sqrt(dim)) of probes first .. first + count - 1 of a head over the rows
 * seen[i] that each sees. */
static void find_shares(const struct probes *p, size_t head, const float *keys, size_t first,
                        size_t count, const size_t *seen) {
    size_t most = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t probe = first + i,
                     query = (p->first + probe / p->group) * (size_t)p->x->query_heads;
        memcpy(p->query + i * p->dim,
               p->x->query + (query + head * p->group + probe % p->group) * p->dim,
               p->dim * sizeof *p->query);
        most = seen[i] > most ? seen[i] : most;
    }
    kvc_kernels_get()->multiply_tiles(p->share, p->padded, p->query, p->dim, count, keys, p->dim,
                                      (most + KVC_TILE - 1) / KVC_TILE);
    for (size_t i = 0; i < count; i++)
        if (seen[i])
            normalise(p->share + i * p->padded, hidden(p, first + i), seen[i],
                      1 / sqrtf((float)p->dim));
}

/* Takes one query's shares of the n rows that it sees. */
typedef void probe_work(const struct probes *p, void *state, size_t head, const float *share,
                        size_t n);

/* All probes of a head, whose transposed keys are given. */
static void each_probe(const struct probes *p, size_t head, const float *keys, probe_work *work,
                       void *state) {
    size_t seen[BATCH];
    const size_t probes = p->n * p->group;
    for (size_t first = 0; first < probes; first += BATCH) {
        const size_t count = probes - first < BATCH ? probes - first : BATCH;
        for (size_t i = 0; i < count; i++) seen[i] = visible(p, first + i);
        find_shares(p, head, keys, first, count, seen);
        for (size_t i = 0; i < count; i++)
            if (seen[i]) work(p, state, head, p->share + i * p->padded, seen[i]);
    }
}

/* All probes of the heads. begin() is called before those of a head, unless it is NULL. */
static int each_head(struct probes *p, int (*begin)(void *state, size_t head, struct kvc_error *e),
                     probe_work *work, void *state, struct kvc_error *e) {
    for (size_t h = p->head; h < p->end; h++) {
        const size_t place = (h - p->head) % p->together;
        if ((!place && probes_turn(p, h, e)) || (begin && begin(state, h, e))) return -1;
        each_probe(p, h, p->turned + place * p->padded * p->dim, work, state);
    }
    return 0;
}

static void add_shares(const struct probes *p, void *state, size_t head, const float *share,
                       size_t n) {
    kvc_kernels_get()->add_scaled((float *)state + head * p->rows, share, 1, n);
}

int kvc_probes_attention(const struct kvc_encoding *x, float *to, struct kvc_error *e) {
    struct probes p;
    if (probes_init(&p, x, x->n_queries, 0, (size_t)x->key.heads, e)) return -1;
    memset(to, 0, p.heads * p.rows * sizeof *to);
    const int status = each_head(&p, NULL, add_shares, to, e);
    free(p.piece);
    return status;
}

static void add_squares(const struct probes *p, void *state, size_t head, const float *share,
                        size_t n) {
    kvc_kernels_get()->add_squares((float *)state + head * p->rows, share, n);
}

/* A stand-in for x whose queries are the profile's, all at the last row. */
static int ask_profile(const struct kvc_encoding *x, struct kvc_encoding *like, int64_t **position,
                       struct kvc_error *e) {
    *like = *x;
    *position = NULL;
    if (!x->profile_queries) return 0;
    if (!(*position = kvc_alloc(x->profile_queries, sizeof **position)))
        return kvc_fail_memory(e, "probes");
    for (uint64_t i = 0; i < x->profile_queries; i++) (*position)[i] = x->position[x->rows - 1];
    like->query = x->profile_query;
    like->query_position = *position;
    like->n_queries = x->profile_queries;
    like->query_heads = x->profile_query_heads;
    return 0;
}

int kvc_probes_saliency(const struct kvc_encoding *x, size_t first, size_t end, float *to,
                        struct kvc_error *e) {
    struct kvc_encoding like;
    struct probes p;
    int64_t *position;
    if (ask_profile(x, &like, &position, e)) return -1;
    int status = probes_init(&p, &like, like.n_queries, first, end, e);
    if (status) p.piece = NULL;
    p.windowed = 1;
    memset(to + first * x->rows, 0, (end - first) * (size_t)x->rows * sizeof *to);
    if (!status) status = each_head(&p, NULL, add_squares, to, e);
    const size_t probes = p.n * p.group, seen = p.rows - (p.n ? hidden(&p, probes - 1) : 0);
    for (size_t i = first * p.rows; i < end * p.rows && !status; i++)
        to[i] = (float)seen * sqrtf(to[i] / (float)(probes ? probes : 1));
    free(p.piece);
    free(position);
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
    const size_t heads = (size_t)x->key.heads, dim = (size_t)x->key.dim,
                 group = (size_t)(x->query_heads / x->key.heads);
    const uint64_t first = window < x->n_queries ? x->n_queries - window : 0;
    memset(to, 0, heads * dim * sizeof *to);
    for (uint64_t q = first; q < x->n_queries; q++)
        for (size_t i = 0; i < heads * group; i++)
            for (size_t d = 0; d < dim; d++) {
                const float v = x->query[((size_t)q * heads * group + i) * dim + d];
                if (kvc_is_tame(v)) to[i / group * dim + d] += (double)v * (double)v;
            }
    for (size_t i = 0; i < heads * dim; i++)
        to[i] /= (double)(x->n_queries - first) * (double)group;
}

/* One head's values [rows][channels], room for reading them and for an output, and the sums of
 * squares of outputs. */
struct outputs {
    const struct kvc_encoding *x;
    float *value, *piece, *output;
    double *energy; /* [head][channel] */
    size_t dim;
};

static int read_values(void *state, size_t head, struct kvc_error *e) {
    const struct outputs *o = state;
    const size_t heads = (size_t)o->x->value.heads;
    for (uint64_t first = 0; first < o->x->rows; first += ROWS) {
        const size_t n = o->x->rows - first < ROWS ? (size_t)(o->x->rows - first) : ROWS;
        if (o->x->read(o->x, KVC_SELECT_V, first, n, o->piece, e)) return -1;
        for (size_t t = 0; t < n; t++)
            for (size_t d = 0; d < o->dim; d++) {
                const float v = o->piece[(t * heads + head) * o->dim + d];
                o->value[(first + t) * o->dim + d] = kvc_is_tame(v) ? v : 0;
            }
    }
    return 0;
}

static void add_output(const struct probes *p, void *state, size_t head, const float *share,
                       size_t n) {
    const struct outputs *o = state;
    (void)p;
    kvc_kernels_get()->multiply_rows(o->output, share, o->value, n, o->dim, o->dim);
    for (size_t d = 0; d < o->dim; d++)
        o->energy[head * o->dim + d] += (double)o->output[d] * (double)o->output[d];
}

int kvc_probes_output_energy(const struct kvc_encoding *x, uint64_t window, double *to,
                             struct kvc_error *e) {
    struct probes p;
    struct outputs o = {.x = x, .dim = (size_t)x->value.dim, .energy = to};
    const size_t heads = (size_t)x->value.heads;
    if (probes_init(&p, x, window, 0, (size_t)x->key.heads, e)) return -1;
    o.value = kvc_alloc(p.rows * o.dim + ROWS * heads * o.dim + o.dim, sizeof *o.value);
    int status = o.value ? 0 : kvc_fail_memory(e, "probes");
    if (!status) {
        o.piece = o.value + p.rows * o.dim;
        o.output = o.piece + ROWS * heads * o.dim;
        memset(to, 0, heads * o.dim * sizeof *to);
        status = each_head(&p, read_values, add_output, &o, e);
    }
    free(o.value);
    free(p.piece);
    return status;
}
