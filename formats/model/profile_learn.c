/* profile_learn.c: a profile from caches alone. The metric is that of basis.md's own basis: an error of K counts as one of a logit where
 * there are queries, against K's own energy where there are none, an error of V against the spread of its layer. */
#include "formats/model/profile_learn.h"

#include "codecs/eigen.h"
#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/io/bytes.h"
#include "formats/io/hash.h"
#include "formats/cache/keys.h"
#include "formats/cache/layers.h"
#include "formats/model/profile.h"
#include "formats/model/layer_rope.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUERIES = 20, MOST_QUERIES = 4096, MAX_LAYERS = 4096, MAX_DIM = 1024 };
/* How much coarser than V's errors those of K may be, in the metrics above: measured on SmolLM2 and Gemma 3. */
#define K_STEP 0.18
#define LEAST_WEIGHT 0.02

/* K or V of a layer. */
struct part {
    size_t heads, dim;
    double rows;
    double *sum, *gram; /* [head][channel], [head][channel][channel], its upper triangles */
};

struct layer {
    struct part part[2];
    size_t query_heads, n_queries, query_dim;
    float *query; /* [query][query head][channel], paired as halves, before RoPE where that is known */
    size_t half;
    double *angle;
    int sliding;
    uint32_t window; /* tokens; 0: none or unknown */
};

struct kvc_learner {
    struct layer *layer;
    uint32_t layers;
    unsigned caches;
    int rope_known, rope_unknown;
    enum kvc_pairing pairing; /* of the first cache */
    struct kvc_meta meta; /* of the first cache */
};

struct kvc_learner *kvc_learner_new(struct kvc_error *e) {
    struct kvc_learner *l = calloc(1, sizeof *l);
    if (!l) kvc_fail_memory(e, "a profile");
    return l;
}

void kvc_learner_free(struct kvc_learner *l) {
    if (!l) return;
    for (uint32_t i = 0; i < l->layers; i++) {
        for (int p = 0; p < 2; p++) {
            free(l->layer[i].part[p].sum);
            free(l->layer[i].part[p].gram);
        }
        free(l->layer[i].query);
        free(l->layer[i].angle);
    }
    free(l->layer);
    kvc_meta_free(&l->meta);
    free(l);
}

/* --- adding --- */

static struct layer *layer_at(struct kvc_learner *l, uint32_t index, struct kvc_error *e) {
    if (index >= MAX_LAYERS) {
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "a layer %" PRIu32 " is beyond what profiles know", index);
        return NULL;
    }
    if (index >= l->layers) {
        struct layer *grown = kvc_realloc(l->layer, index + 1, sizeof *grown);
        if (!grown) {
            kvc_fail_memory(e, "a profile");
            return NULL;
        }
        memset(grown + l->layers, 0, (index + 1 - l->layers) * sizeof *grown);
        l->layer = grown;
        l->layers = index + 1;
    }
    return &l->layer[index];
}

static int part_begin(struct part *p, const struct kvc_shape *shape, struct kvc_error *e) {
    const size_t heads = (size_t)shape->heads, dim = (size_t)shape->dim;
    if (p->sum) {
        if (p->heads == heads && p->dim == dim) return 0;
        return kvc_fail(e, KVC_ERR_MODEL, "%zu head%s of %zu channels, where another cache has %zu of %zu: not of one model", heads,
                        heads == 1 ? "" : "s", dim, p->heads, p->dim);
    }
    if (dim > MAX_DIM) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "heads of %zu channels are too large for a profile", dim);
    p->heads = heads;
    p->dim = dim;
    p->sum = kvc_alloc_zeros(heads, dim * sizeof *p->sum);
    p->gram = kvc_alloc_zeros(heads * dim, dim * sizeof *p->gram);
    return p->sum && p->gram ? 0 : kvc_fail_memory(e, "a profile");
}

/* Channels of a head from interleaved pairs to halves. */
static void to_halves(float *head, size_t half, float *room) {
    memcpy(room, head, 2 * half * sizeof *room);
    for (size_t i = 0; i < half; i++) {
        head[i] = room[2 * i];
        head[half + i] = room[2 * i + 1];
    }
}

/* Turns a row at a position back, and pairs its channels as halves. */
static void normalise(struct kvc_rope *rope, float *row, size_t heads, size_t dim, int64_t position, float *room) {
    if (!rope->half || position < 0) return;
    kvc_rope_at(rope, position);
    kvc_rope_backwards(rope);
    kvc_rope_turn(rope, row, heads, dim);
    for (size_t h = 0; h < heads && rope->pairing == KVC_PAIRING_INTERLEAVED; h++) to_halves(row + h * dim, rope->half, room);
}

static int add_tensor(const struct kvc_cache *c, uint32_t t, struct part *p, struct kvc_rope *rope, struct kvc_error *e) {
    const struct kvc_shape *shape = &c->tensor[t].shape;
    const struct kvc_cells *cells = &kvc_tensor_part(c, t)->cells;
    const size_t heads = p->heads, dim = p->dim, width = heads * dim;
    uint8_t *bytes = kvc_alloc(KVC_BLOCK, kvc_row_bytes(shape));
    float *rows = kvc_alloc(KVC_BLOCK * width + dim, sizeof *rows);
    int status = bytes && rows ? 0 : kvc_fail_memory(e, "rows");
    for (uint64_t b = 0; b < cells->n_blocks && !status; b++) {
        const uint64_t first = cells->block[b], n = cells->block[b + 1] - first;
        size_t kept = 0;
        if ((status = c->read(c, t, first, n, bytes, e))) break;
        kvc_to_floats(rows, bytes, (size_t)n * width, shape->dtype);
        for (uint64_t i = 0; i < n; i++) {
            float *row = rows + i * width;
            const int64_t position = kvc_cells_position(cells, first + i);
            if (position < KVC_PROFILE_FIRST || !kvc_all_finite(row, width)) continue;
            normalise(rope, row, heads, dim, position, rows + KVC_BLOCK * width);
            memmove(rows + kept++ * width, row, width * sizeof *row);
        }
        for (size_t i = 0; i < kept * width; i++) p->sum[i % width] += (double)rows[i];
        for (size_t h = 0; h < heads && !status; h++)
            status = kvc_gram_add(p->gram + h * dim * dim, rows + h * dim, kept, dim, width, e);
        p->rows += (double)kept;
    }
    free(bytes);
    free(rows);
    return status;
}

static int add_queries(const struct kvc_cache *q, uint32_t t, struct layer *l, struct kvc_rope *rope, struct kvc_error *e) {
    const struct kvc_shape *shape = &q->tensor[t].shape;
    const struct kvc_cells *cells = &kvc_tensor_part(q, t)->cells;
    const size_t width = (size_t)(shape->heads * shape->dim), dim = (size_t)shape->dim;
    const size_t n = (size_t)shape->tokens, have = l->n_queries;
    if (dim != l->part[0].dim || !l->part[0].heads || shape->heads % l->part[0].heads ||
        (have && (l->query_heads != shape->heads || l->query_dim != dim)))
        return kvc_fail(e, KVC_ERR_MODEL, "queries of %" PRIu64 " heads of %zu channels do not go with K", shape->heads, dim);
    if (!n || have + n > MOST_QUERIES) return 0;
    float *grown = kvc_realloc(l->query, (have + n) * width + dim, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "queries");
    l->query = grown;
    if (q->read(q, t, 0, n, (uint8_t *)(grown + have * width), e)) return -1;
    for (size_t i = 0; i < n; i++) {
        float *row = grown + (have + i) * width;
        if (!kvc_all_finite(row, width)) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "queries that are not finite");
        normalise(rope, row, (size_t)shape->heads, dim, kvc_cells_position(cells, i), grown + (have + n) * width);
    }
    l->query_heads = (size_t)shape->heads;
    l->query_dim = dim;
    l->n_queries = have + n;
    return 0;
}

/* RoPE of a layer, with tables; none where it is not known. */
static int find_rope(struct kvc_learner *l, const struct kvc_cache *c, uint32_t layer, struct layer *to, struct kvc_rope *rope,
                     struct kvc_error *e) {
    struct kvc_rope_facts facts;
    double *room;
    memset(rope, 0, sizeof *rope);
    if (kvc_rope_of_layer(c, layer, NULL, &facts, &room, e)) return -1;
    if (!facts.angle) {
        l->rope_unknown = 1;
        return 0;
    }
    l->rope_known = 1;
    if (kvc_rope_init(rope, facts.angle, facts.half, facts.pairing, e)) {
        free(room);
        return -1;
    }
    int other = to->angle && to->half != facts.half;
    for (size_t i = 0; to->angle && !other && i < to->half; i++) other = to->angle[i] != room[i];
    free(to->angle);
    to->angle = room;
    to->half = facts.half;
    if (!other) return 0;
    kvc_rope_free(rope);
    return kvc_fail(e, KVC_ERR_MODEL, "layer %" PRIu32 " was turned by another RoPE than in the caches before", c->layer[layer].index);
}

/* Caches of one model: fingerprints of one kind must agree, and the pairing of K. */
static int check_model(const struct kvc_learner *l, const struct kvc_cache *c, struct kvc_error *e) {
    for (size_t i = 0; i < c->meta.n; i++) {
        const struct kvc_meta_entry *m = &c->meta.entry[i], *first = kvc_meta_find(&l->meta, m->key);
        const int says = strncmp(m->key, KVC_KEY_FINGERPRINT, strlen(KVC_KEY_FINGERPRINT)) == 0;
        if (says && first && (first->size != m->size || memcmp(first->value, m->value, (size_t)m->size) != 0))
            return kvc_fail(e, KVC_ERR_MODEL, "of other weights than the caches before: %s", m->key);
    }
    if (kvc_cache_pairing(c) != l->pairing && !l->rope_known)
        return kvc_fail(e, KVC_ERR_MODEL, "its K is paired otherwise than in the caches before");
    return 0;
}

/* K, V and queries of one layer of a cache. */
static int add_layer(struct kvc_learner *l, const struct kvc_cache *c, const struct kvc_cache *queries, uint32_t number,
                     struct kvc_error *e) {
    const struct kvc_layer *layer = &c->layer[number];
    const enum kvc_part_kind kind = c->part[layer->part].kind;
    struct kvc_rope rope;
    int any = 0;
    if (kind != KVC_PART_LIVE && kind != KVC_PART_SLIDING) return 0;
    for (int r = 0; r < 2; r++) {
        const uint32_t t = layer->tensor[r];
        any |= t != KVC_NONE && c->tensor[t].role == (enum kvc_role)r && kvc_is_float(c->tensor[t].shape.dtype);
    }
    if (!any) return 0;
    struct layer *to = layer_at(l, layer->index, e);
    if (!to || find_rope(l, c, number, to, &rope, e)) return -1;
    to->sliding = layer->kind == KVC_LAYER_SLIDING;
    to->window = (uint32_t)kvc_layer_window(c, layer);
    int status = 0;
    for (int r = 0; r < 2 && !status; r++) {
        struct kvc_rope none = {.half = 0};
        const uint32_t t = layer->tensor[r];
        if (t == KVC_NONE || c->tensor[t].role != (enum kvc_role)r || !kvc_is_float(c->tensor[t].shape.dtype)) continue;
        status = part_begin(&to->part[r], &c->tensor[t].shape, e) || add_tensor(c, t, &to->part[r], r ? &none : &rope, e);
    }
    for (uint32_t t = 0; queries && t < queries->n_tensors && !status; t++)
        if (queries->tensor[t].role == KVC_ROLE_QUERIES && queries->layer[queries->tensor[t].layer].index == layer->index)
            status = add_queries(queries, t, to, &rope, e);
    kvc_rope_free(&rope);
    return status;
}

int kvc_learner_add(struct kvc_learner *l, const struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_cache *queries = NULL;
    if (!kvc_cache_heads_known(c))
        return kvc_fail(e, KVC_ERR_USAGE, "nothing says how many KV heads there are: give --kv-heads or --model");
    if (kvc_layers_need_numbers(c, e)) return -1;
    if (!l->caches && kvc_meta_copy(&l->meta, &c->meta, e)) return -1;
    if (!l->caches) l->pairing = kvc_cache_pairing(c);
    if (check_model(l, c, e)) return -1;
    const uint32_t layers = l->layers;
    if (kvc_cache_has_queries(c) && !(queries = kvc_view_queries(c, kvc_cache_pairing(c), e))) return -1;
    int status = 0;
    for (uint32_t i = 0; i < c->n_layers && !status; i++) status = add_layer(l, c, queries, i, e);
    kvc_cache_free(queries);
    if (!status && l->caches && l->layers != layers)
        status = kvc_fail(e, KVC_ERR_MODEL, "it has more layers than the caches before");
    uint32_t own = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layer[i].index + 1 > own && c->part[c->layer[i].part].kind != KVC_PART_COMPANION) own = c->layer[i].index + 1;
    if (!status && own < l->layers) status = kvc_fail(e, KVC_ERR_MODEL, "it has fewer layers than the caches before");
    l->caches++;
    if (!status && l->rope_known && l->rope_unknown)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "RoPE is known of some K and not of other: give --model, or --pairing");
    return status;
}

int kvc_learner_knows_rope(const struct kvc_learner *l) {
    return l->rope_known;
}

int kvc_learner_has_queries(const struct kvc_learner *l) {
    for (uint32_t i = 0; i < l->layers; i++)
        if (l->layer[i].part[0].sum && !l->layer[i].n_queries) return 0;
    return l->layers != 0;
}

/* --- writing --- */

/* One part's tensors. */
struct result {
    float *mean, *scale, *variance, *weight;
    int8_t *basis;
};

static void result_free(struct result *r) {
    free(r->mean);
    free(r->scale);
    free(r->variance);
    free(r->weight);
    free(r->basis);
}

/* The weights of a head's channels. */
static void weigh(const struct layer *l, int is_v, size_t head, const double *variance, double layer_variance, double *weight) {
    const struct part *p = &l->part[is_v];
    double total = 0;
    for (size_t d = 0; d < p->dim; d++) weight[d] = is_v ? 1 / layer_variance : variance[d];
    if (is_v) return;
    if (l->n_queries) {
        const size_t group = l->query_heads / p->heads;
        memset(weight, 0, p->dim * sizeof *weight);
        for (size_t i = 0; i < l->n_queries * group; i++) {
            const float *q = l->query + (i / group * l->query_heads + head * group + i % group) * p->dim;
            for (size_t d = 0; d < p->dim; d++) weight[d] += (double)q[d] * (double)q[d] / (double)(l->n_queries * group);
        }
    }
    for (size_t i = 0; i < l->half; i++) weight[i] = weight[l->half + i] = (weight[i] + weight[l->half + i]) / 2;
    for (size_t d = 0; d < p->dim; d++) total += weight[d] / (double)p->dim;
    for (size_t d = 0; d < p->dim; d++) {
        weight[d] += LEAST_WEIGHT * total + 1e-30;
        weight[d] /= l->n_queries ? (double)p->dim : (total > 1e-30 ? total : 1) * layer_variance;
        weight[d] /= K_STEP * K_STEP;
    }
}

static int8_t round_element(float x, float scale) {
    return scale > 0 ? (int8_t)lrintf(fmaxf(-127, fminf(127, x / scale))) : 0;
}

/* A head: its directions in the metric, as rows of bytes. */
static int find_head(const struct layer *l, int is_v, size_t h, const double *covariance, double layer_variance,
                     struct result *r, struct kvc_error *e) {
    const struct part *p = &l->part[is_v];
    const size_t dim = p->dim;
    double *gram = kvc_alloc(dim + 3, dim * sizeof *gram), *variance = gram ? gram + dim * dim : NULL;
    double *weight = gram ? variance + dim : NULL, *value = gram ? weight + dim : NULL;
    float *vector = kvc_alloc(dim, dim * sizeof *vector);
    int status = gram && vector ? 0 : kvc_fail_memory(e, "a profile");
    for (size_t d = 0; d < dim && !status; d++) variance[d] = covariance[d * dim + d];
    if (!status) weigh(l, is_v, h, variance, layer_variance, weight);
    for (size_t i = 0; i < dim * dim && !status; i++) gram[i] = covariance[i] * sqrt(weight[i / dim] * weight[i % dim]);
    if (!status) status = kvc_gram_eigen(vector, value, gram, dim, dim, e);
    for (size_t j = 0; j < dim && !status; j++) {
        float most = 0, *row = vector + j * dim;
        for (size_t d = 0; d < dim; d++) {
            row[d] = (float)((double)row[d] / sqrt(weight[d]));
            if (fabsf(row[d]) > most) most = fabsf(row[d]);
        }
        r->scale[h * dim + j] = most / 127;
        for (size_t d = 0; d < dim; d++) r->basis[(h * dim + j) * dim + d] = round_element(row[d], most / 127);
        r->variance[h * dim + j] = value[j] > 0 ? (float)value[j] : 0;
    }
    double sum = 0;
    for (size_t d = 0; d < dim && !status; d++) sum += weight[d] / (double)dim;
    r->weight[h] = (float)sum;
    free(gram);
    free(vector);
    return status;
}

static int find_part(const struct layer *l, int is_v, struct result *r, struct kvc_error *e) {
    const struct part *p = &l->part[is_v];
    const size_t heads = p->heads, dim = p->dim;
    double *covariance = kvc_alloc(heads * dim, dim * sizeof *covariance), total = 0;
    r->mean = kvc_alloc(heads, dim * sizeof *r->mean);
    r->scale = kvc_alloc(heads, dim * sizeof *r->scale);
    r->variance = kvc_alloc(heads, dim * sizeof *r->variance);
    r->weight = kvc_alloc(heads, sizeof *r->weight);
    r->basis = kvc_alloc(heads * dim, dim);
    int status = covariance && r->mean && r->scale && r->variance && r->weight && r->basis ? 0 : kvc_fail_memory(e, "a profile");
    for (size_t h = 0; h < heads && !status; h++)
        for (size_t i = 0; i < dim; i++) {
            const double mean = p->sum[h * dim + i] / p->rows;
            r->mean[h * dim + i] = (float)mean;
            for (size_t j = i; j < dim; j++) {
                const double v = p->gram[(h * dim + i) * dim + j] / p->rows - mean * (p->sum[h * dim + j] / p->rows);
                covariance[(h * dim + i) * dim + j] = covariance[(h * dim + j) * dim + i] = v;
            }
            const double own = covariance[(h * dim + i) * dim + i];
            total += own > 0 ? own / (double)(heads * dim) : 0;
        }
    for (size_t h = 0; h < heads && !status; h++)
        status = find_head(l, is_v, h, covariance + h * dim * dim, total > 1e-30 ? total : 1, r, e);
    free(covariance);
    return status;
}

/* The file: a header that grows as tensors are added, and their bytes. */
struct file {
    FILE *header;
    struct kvc_buffer data;
    struct kvc_sink sink;
};

/* Adds a tensor of `size`-byte numbers, little-endian. */
static int add_array(struct file *f, uint32_t layer, const char *name, const char *dtype, unsigned size, const void *values,
                     const size_t *shape, unsigned rank, struct kvc_error *e) {
    size_t n = 1;
    const uint64_t begin = f->sink.offset;
    fprintf(f->header, ",\"layers.%" PRIu32 ".%s\":{\"dtype\":\"%s\",\"shape\":[", layer, name, dtype);
    for (unsigned i = 0; i < rank; i++) {
        fprintf(f->header, "%s%zu", i ? "," : "", shape[i]);
        n *= shape[i];
    }
    fprintf(f->header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + n * size);
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[8];
        const uint8_t *at = (const uint8_t *)values + i * size;
        uint32_t word;
        uint64_t words;
        if (size == 4) memcpy(&word, at, 4), put_u32(bytes, word);
        else if (size == 8) memcpy(&words, at, 8), put_u64(bytes, words);
        else bytes[0] = *at;
        if (kvc_sink_write(&f->sink, bytes, size, e)) return -1;
    }
    return 0;
}

static int write_queries(struct file *f, uint32_t number, const struct layer *l, struct kvc_error *e) {
    const size_t n = l->n_queries < QUERIES ? l->n_queries : QUERIES, dim = l->query_dim, heads = l->query_heads;
    int8_t *code = kvc_alloc(heads * n, dim);
    float *scale = kvc_alloc(heads, n * sizeof *scale);
    int status = code && scale ? 0 : kvc_fail_memory(e, "queries");
    for (size_t h = 0; h < heads && !status; h++)
        for (size_t i = 0; i < n; i++) {
            const float *q = l->query + (i * l->n_queries / n * heads + h) * dim;
            float most = 0;
            for (size_t d = 0; d < dim; d++) most = fmaxf(most, fabsf(q[d]));
            scale[h * n + i] = most / 127;
            for (size_t d = 0; d < dim; d++) code[(h * n + i) * dim + d] = round_element(q[d], most / 127);
        }
    const size_t shape[3] = {heads, n, dim};
    if (!status && n)
        status = add_array(f, number, "queries", "I8", 1, code, shape, 3, e) ||
                 add_array(f, number, "queries.scale", "F32", 4, scale, shape, 2, e);
    free(code);
    free(scale);
    return status ? -1 : 0;
}

static int write_part(struct file *f, uint32_t number, const struct layer *l, int is_v, struct kvc_error *e) {
    const struct part *p = &l->part[is_v];
    const size_t shape[3] = {p->heads, p->dim, p->dim};
    struct result r = {.mean = NULL};
    static const char *const names[2][5] = {{"k.basis", "k.mean", "k.scale", "k.variance", "k.weight"},
                                            {"v.basis", "v.mean", "v.scale", "v.variance", "v.weight"}};
    int status = find_part(l, is_v, &r, e);
    if (!status)
        status = add_array(f, number, names[is_v][1], "F32", 4, r.mean, shape, 2, e) ||
                 add_array(f, number, names[is_v][2], "F32", 4, r.scale, shape, 2, e) ||
                 add_array(f, number, names[is_v][3], "F32", 4, r.variance, shape, 2, e) ||
                 add_array(f, number, names[is_v][4], "F32", 4, r.weight, shape, 1, e) ||
                 add_array(f, number, names[is_v][0], "I8", 1, r.basis, shape, 3, e);
    result_free(&r);
    return status ? -1 : 0;
}

/* A text as JSON has it. */
static void put_text(FILE *out, const char *key, const char *text) {
    fprintf(out, ",\"%s\":\"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        if ((unsigned char)*text >= 32) fputc(*text, out);
    }
    fputc('"', out);
}

/* Which layers have a window, where any has. */
static void put_windows(FILE *out, const struct kvc_learner *l) {
    uint32_t window = 0, any = 0;
    for (uint32_t i = 0; i < l->layers; i++) {
        any |= l->layer[i].sliding != 0;
        if (l->layer[i].window) window = l->layer[i].window;
    }
    if (!any) return;
    fputs(",\"model.sliding-layers\":\"", out);
    for (uint32_t i = 0; i < l->layers; i++) fputc('0' + l->layer[i].sliding, out);
    fputc('"', out);
    if (window) fprintf(out, ",\"model.sliding-window\":\"%" PRIu32 "\"", window);
}

static void put_metadata(FILE *out, const struct kvc_learner *l) {
    fprintf(out, "{\"__metadata__\":{\"kvc.profile\":\"0\",\"model.layers\":\"%" PRIu32 "\"", l->layers);
    uint32_t first = 0;
    while (first < l->layers && !l->layer[first].part[0].sum) first++;
    if (first < l->layers) {
        const struct layer *x = &l->layer[first];
        fprintf(out, ",\"model.kv-heads\":\"%zu\",\"model.head-dim\":\"%zu\"", x->part[0].heads, x->part[0].dim);
        if (x->query_heads) fprintf(out, ",\"model.heads\":\"%zu\"", x->query_heads);
    }
    if (!l->rope_known && l->pairing) put_text(out, "rope.pairing", kvc_pairing_name(l->pairing));
    put_text(out, "model.name", kvc_meta_text(&l->meta, KVC_KEY_MODEL_NAME, ""));
    put_text(out, "model.architecture", kvc_meta_text(&l->meta, KVC_KEY_MODEL_ARCH, ""));
    put_text(out, "metric", kvc_learner_has_queries(l) ? "query" : "covariance");
    fprintf(out, ",\"made\":\"kvc-pack --learn-profile, kvc " KVC_VERSION ", from %u caches; K step %g\"", l->caches, K_STEP);
    for (size_t i = 0; i < l->meta.n; i++) {
        const struct kvc_meta_entry *m = &l->meta.entry[i];
        char hex[2 * KVC_SHA256_BYTES + 1];
        if (strncmp(m->key, KVC_KEY_FINGERPRINT, strlen(KVC_KEY_FINGERPRINT)) != 0 || m->size != KVC_SHA256_BYTES) continue;
        kvc_hex(m->value, KVC_SHA256_BYTES, hex);
        put_text(out, m->key, hex);
    }
    put_windows(out, l);
    fputc('}', out);
}

int kvc_learner_write(const struct kvc_learner *l, struct kvc_sink *out, struct kvc_error *e) {
    struct file f = {.data = {0}};
    char *text = NULL;
    size_t size = 0;
    int any = 0;
    if (!(f.header = open_memstream(&text, &size))) return kvc_fail_memory(e, "a profile");
    f.sink = kvc_sink_buffer(&f.data);
    put_metadata(f.header, l);
    int status = 0;
    for (int bytes = 0; bytes < 2; bytes++) /* RoPE first, whose numbers are the largest: so all stand aligned */
        for (uint32_t i = 0; i < l->layers && !status; i++) {
            const struct layer *layer = &l->layer[i];
            if (!bytes && layer->angle) status = add_array(&f, i, "rope", "F64", 8, layer->angle, &layer->half, 1, e);
            for (int r = 0; r < 2 && bytes && !status; r++) {
                if (!layer->part[r].sum || !(layer->part[r].rows > 0)) continue;
                any = 1;
                status = write_part(&f, i, layer, r, e);
            }
            if (bytes && !status && layer->n_queries) status = write_queries(&f, i, layer, e);
        }
    fputc('}', f.header);
    if (!status && !any) status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "the caches have no K or V in f32, f16 or bf16 to learn from");
    while (!status && (size_t)ftell(f.header) % 8) fputc(' ', f.header);
    if (fclose(f.header) && !status) status = kvc_fail_memory(e, "a profile");
    uint8_t length[8];
    put_u64(length, size);
    if (!status)
        status = kvc_sink_write(out, length, sizeof length, e) || kvc_sink_write(out, text, size, e) ||
                 kvc_sink_write(out, f.data.data, f.data.n, e);
    free(text);
    free(f.data.data);
    return status ? -1 : 0;
}
