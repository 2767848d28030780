/* profile_learn.c: means, covariances and queries counted over caches. Not for the basis that they
 * make (profile_learn_basis.c) or for writing it (profile_learn_write.c). */
#include "formats/model/profile_learn.h"

#include "codecs/eigen.h"
#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/cache/layers.h"
#include "formats/cache/scales.h"
#include "formats/cache/view.h"
#include "formats/model/layer_rope.h"
#include "formats/model/profile.h"
#include "formats/model/profile_learn_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_QUERIES = 4096, MAX_LAYERS = 4096, MAX_DIM = 1024 };

struct kvc_learner *kvc_learner_new(struct kvc_error *e) {
    struct kvc_learner *l = calloc(1, sizeof *l);
    if (l) l->rows.fd = -1;
    else kvc_fail_memory(e, "a profile");
    return l;
}

void kvc_learner_free(struct kvc_learner *l) {
    if (!l) return;
    for (uint32_t i = 0; i < l->layers; i++) {
        for (int p = 0; p < 2; p++) {
            free(l->layer[i].part[p].sum);
            free(l->layer[i].part[p].gram);
            free(l->layer[i].part[p].form);
            free(l->layer[i].part[p].weight);
        }
        free(l->layer[i].query);
        free(l->layer[i].attended[0]);
        free(l->layer[i].attended[1]);
        free(l->layer[i].angle);
    }
    for (uint32_t i = 0; i < l->n_samples; i++) kvc_learnt_sample_free(&l->sample[i]);
    free(l->sample);
    kvc_temporary_close(&l->rows);
    free(l->layer);
    kvc_meta_free(&l->meta);
    free(l);
}

void kvc_learner_predict(struct kvc_learner *l, unsigned back, struct kvc_profile *base) {
    l->back = back;
    l->base = base;
}

/* --- adding --- */

static struct kvc_learnt_layer *layer_at(struct kvc_learner *l, uint32_t index,
                                         struct kvc_error *e) {
    if (index >= MAX_LAYERS) {
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "layer %" PRIu32 ": a profile has at most %d layers",
                 index, MAX_LAYERS);
        return NULL;
    }
    if (index >= l->layers) {
        struct kvc_learnt_layer *grown = kvc_realloc(l->layer, index + 1, sizeof *grown);
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

static int part_begin(struct kvc_learnt_part *p, const struct kvc_shape *shape,
                      struct kvc_error *e) {
    const size_t heads = (size_t)shape->heads, dim = (size_t)shape->dim;
    if (p->sum) {
        if (p->heads == heads && p->dim == dim) return 0;
        return kvc_fail(
            e, KVC_ERR_OTHER_MODEL,
            "%zu head%s of %zu channels, where another cache has %zu of %zu: not of one model",
            heads, heads == 1 ? "" : "s", dim, p->heads, p->dim);
    }
    if (dim > MAX_DIM)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "heads of %zu channels are too large for a profile",
                        dim);
    p->heads = heads;
    p->dim = dim;
    p->sum = kvc_alloc_zeros(heads, dim * sizeof *p->sum);
    p->gram = kvc_alloc_zeros(heads * dim, dim * sizeof *p->gram);
    return p->sum && p->gram ? 0 : kvc_fail_memory(e, "a profile");
}

static int profile_learn_add_tensor(const struct kvc_cache *c, uint32_t t,
                                    struct kvc_learnt_part *p, struct kvc_rope *rope,
                                    struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(c, t);
    const size_t heads = p->heads, dim = p->dim, width = heads * dim;
    float *rows = kvc_alloc(KVC_BLOCK * width + dim, sizeof *rows);
    int status = rows ? 0 : kvc_fail_memory(e, "rows");
    for (uint64_t b = 0; b < cells->n_blocks && !status; b++) {
        const uint64_t first = cells->block[b], n = cells->block[b + 1] - first;
        size_t kept = 0;
        if ((status = kvc_read_floats(c, t, first, n, rows, 0, e))) break;
        for (uint64_t i = 0; i < n; i++) {
            float *row = rows + i * width;
            const int64_t position = kvc_cells_position(cells, first + i);
            if (position < KVC_PROFILE_FIRST || !kvc_all_finite(row, width)) continue;
            kvc_learn_normalise(rope, row, heads, dim, position, rows + KVC_BLOCK * width);
            memmove(rows + kept++ * width, row, width * sizeof *row);
        }
        for (size_t i = 0; i < kept * width; i++) p->sum[i % width] += (double)rows[i];
        for (size_t h = 0; h < heads && !status; h++)
            status = kvc_gram_add(p->gram + h * dim * dim, rows + h * dim, kept, dim, width, e);
        p->rows += (double)kept;
    }
    free(rows);
    return status;
}

static int add_queries(const struct kvc_cache *q, uint32_t t, struct kvc_learnt_layer *l,
                       struct kvc_rope *rope, struct kvc_error *e) {
    const struct kvc_shape *shape = &q->tensor[t].shape;
    const struct kvc_cells *cells = kvc_tensor_cells(q, t);
    const size_t width = (size_t)(shape->heads * shape->dim), dim = (size_t)shape->dim;
    const size_t n = (size_t)shape->tokens, have = l->n_queries;
    if (dim != l->part[0].dim || !l->part[0].heads || shape->heads % l->part[0].heads ||
        (have && (l->query_heads != shape->heads || l->query_dim != dim)))
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "queries of %" PRIu64 " heads of %zu channels do not match K", shape->heads,
                        dim);
    if (!n || have + n > MAX_QUERIES || l->exact) return 0;
    float *grown = kvc_realloc(l->query, (have + n) * width + dim, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "queries");
    l->query = grown;
    if (q->read(q, t, 0, n, (uint8_t *)(grown + have * width), e)) return -1;
    for (size_t i = 0; i < n; i++) {
        float *row = grown + (have + i) * width;
        if (!kvc_all_finite(row, width))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "queries hold a value that is not finite");
        kvc_learn_normalise(rope, row, (size_t)shape->heads, dim, kvc_cells_position(cells, i),
                            grown + (have + n) * width);
    }
    l->query_heads = (size_t)shape->heads;
    l->query_dim = dim;
    l->n_queries = have + n;
    return 0;
}

/* Checks that a cache can be of the model of the caches before: fingerprints of one kind must
 * agree, the number of layers, and the pairing of K. */
static int check_model(const struct kvc_learner *l, const struct kvc_cache *c,
                       struct kvc_error *e) {
    for (size_t i = 0; i < c->meta.n; i++) {
        const struct kvc_meta_entry *m = &c->meta.entry[i],
                                    *first = kvc_meta_find(&l->meta, m->key);
        const int says = strncmp(m->key, KVC_KEY_FINGERPRINT, strlen(KVC_KEY_FINGERPRINT)) == 0;
        if (says && first &&
            (first->size != m->size || memcmp(first->value, m->value, (size_t)m->size) != 0))
            return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                            "the cache is of other weights than the caches before: %s", m->key);
    }
    const uint64_t layers = c->meta.facts.layers, before = l->meta.facts.layers;
    if (layers && before && layers != before)
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "the cache is of a model of %" PRIu64
                        " layers, where another is of one of %" PRIu64,
                        layers, before);
    if (c->meta.facts.rope.pairing != l->pairing && !l->rope_known)
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "K is paired in another way than in the caches before");
    return 0;
}

/* Notes the fingerprints and the number of layers that no cache before had. */
static int note_model(struct kvc_learner *l, const struct kvc_cache *c, struct kvc_error *e) {
    for (size_t i = 0; i < c->meta.n; i++) {
        const struct kvc_meta_entry *m = &c->meta.entry[i];
        if (strncmp(m->key, KVC_KEY_FINGERPRINT, strlen(KVC_KEY_FINGERPRINT)) == 0 &&
            !kvc_meta_find(&l->meta, m->key) &&
            kvc_meta_set_bytes(&l->meta, m->key, m->value, (size_t)m->size, e))
            return -1;
    }
    if (l->meta.facts.layers || !c->meta.facts.layers) return 0;
    return kvc_meta_set_u64(&l->meta, KVC_KEY_MODEL_LAYERS, c->meta.facts.layers, e);
}

static int add_layer(struct kvc_learner *l, const struct kvc_cache *c,
                     const struct kvc_cache *queries, uint32_t number, struct kvc_error *e) {
    const struct kvc_layer *layer = &c->layer[number];
    struct kvc_rope rope = {.half = 0};
    if (!kvc_part_is_attended(&c->part[layer->part])) return 0;
    if (!kvc_learn_takes(c, layer, 0) && !kvc_learn_takes(c, layer, 1)) return 0;
    struct kvc_learnt_layer *to = layer_at(l, layer->index, e);
    /* the pairs of K that is not taken say nothing of the layer's other caches */
    if (!to || (kvc_learn_takes(c, layer, 0) && kvc_learn_rope(l, c, number, to, &rope, e)))
        return -1;
    to->sliding = layer->kind == KVC_LAYER_WINDOW;
    to->window = (uint32_t)kvc_layer_window(&c->meta.facts, layer);
    int status = 0;
    for (int r = 0; r < 2 && !status; r++) {
        struct kvc_rope none = {.half = 0};
        const uint32_t t = layer->tensor[r];
        if (!kvc_learn_takes(c, layer, r)) continue;
        status = part_begin(&to->part[r], &c->tensor[t].shape, e);
        if (!status) status = profile_learn_add_tensor(c, t, &to->part[r], r ? &none : &rope, e);
    }
    for (uint32_t t = 0; queries && t < queries->n_tensors && !status; t++) {
        if (queries->tensor[t].role != KVC_ROLE_QUERIES ||
            kvc_tensor_layer(queries, t)->index != layer->index)
            continue;
        status = add_queries(queries, t, to, &rope, e);
        if (!status)
            status = kvc_learn_attention(c, number, queries, t, c->meta.facts.rope.pairing, to, e);
    }
    kvc_rope_free(&rope);
    return status;
}

int kvc_learner_add(struct kvc_learner *l, const struct kvc_cache *c,
                    const struct kvc_cache *estimated, struct kvc_error *e) {
    struct kvc_cache *stored = NULL;
    if (c->meta.facts.heads_unknown)
        return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_HEADS,
                             "nothing says how many KV heads there are");
    if (kvc_layers_need_numbers(c, e)) return -1;
    if (!l->caches && kvc_meta_copy(&l->meta, &c->meta, e)) return -1;
    if (!l->caches) l->pairing = c->meta.facts.rope.pairing;
    if (check_model(l, c, e) || note_model(l, c, e)) return -1;
    const uint32_t layers = l->layers;
    if (kvc_cache_has_queries(c) && !(stored = kvc_view_queries(c, c->meta.facts.rope.pairing, e)))
        return -1;
    if (!stored && estimated) l->estimated++;
    int status = 0;
    for (uint32_t i = 0; i < c->n_layers && !status; i++)
        status = add_layer(l, c, stored ? stored : estimated, i, e);
    kvc_cache_free(stored);
    if (!status && l->caches && l->layers != layers)
        status = kvc_fail(e, KVC_ERR_OTHER_MODEL,
                          "the cache has more layers than the caches before");
    uint32_t own = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layer[i].index + 1 > own && c->part[c->layer[i].part].kind != KVC_PART_COMPANION)
            own = c->layer[i].index + 1;
    if (!status && own < l->layers)
        status = kvc_fail(e, KVC_ERR_OTHER_MODEL,
                          "the cache has fewer layers than the caches before");
    if (!status && l->back) status = kvc_learn_keep(l, c, e);
    l->caches++;
    if (!status && l->rope_known && l->rope_unknown)
        status = kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PAIRING,
                               "RoPE is known for K of some layers only");
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
