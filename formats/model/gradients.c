/* gradients.c: runs of a cache's tokens through the model, and back from what it predicts. Spec:
 * GRADIENTS.md. Not for what happens in a layer (gradients_layer.c). */
#include "formats/model/gradients.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "codecs/random.h"
#include "formats/cache/layers.h"
#include "formats/cache/view.h"
#include "formats/model/gradients_layer.h"
#include "formats/model/weights_product.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tokens of the run that ends the cache; of those that say a place of it again; tokens of a cache
 * at least, times those of the first run; tokens of a vocabulary at most */
enum { LAST = 64, AGAIN = 32, LEAST = 4, VOCABULARY = 1 << 22 };
enum { COMPARED = 2 }; /* layers of a cache whose gradients are not measured */
_Static_assert((int)KVC_LAYER_RUNS == KVC_GRADIENTS_RUNS, "one number of runs");
static const double place[KVC_GRADIENTS_RUNS] = {1, 0.05,
                                                 0.5}; /* where runs begin, of the tokens */
/* Most of K or V of the weights from those of the cache, relative to these: for gradients, and of
 * one model. Those of two models differ by 1 and more, those of two quantisations by less. */
#define MOST_APART 0.2
#define SAME_MODEL 0.7

/* A model, and what went through it. */
struct kvc_gradients_pass {
    struct kvc_gradients_model m;
    const struct kvc_weights_naming *naming;
    struct kvc_weights_matrix embedding, logits;
    float *last_norm, scale;  /* of embeddings */
    uint32_t layers, *number; /* of each layer of the model in the cache */
    struct kvc_gradients_taker to;
    struct kvc_cache *view;
    float *h; /* [layers + 1][rows][width]: what enters each layer */
};

/* Architectures whose layers are a LLaMA's, but for what tensors tell. */
static int known_kind(struct kvc_gradients_pass *p, struct kvc_error *e) {
    static const char *const plain[] = {"llama", "mistral", "qwen2", "qwen3"}, *const gemma[] = {
                                                                                   "gemma3",
                                                                                   "gemma3_text"};
    const char *arch = p->m.weights->arch;
    p->scale = 1;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(arch, plain[i]) == 0) return 0;
    for (size_t i = 0; i < sizeof gemma / sizeof gemma[0]; i++) {
        if (strcmp(arch, gemma[i]) != 0) continue;
        p->m.gelu = 1;
        p->scale = 0; /* set when the width is known */
        return 0;
    }
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "gradients are known of LLaMA, Mistral, Qwen 2 and 3 and Gemma 3 alone");
}

/* Finds the layers of the cache, each once and all of them. */
static int list_layers(struct kvc_gradients_pass *p, struct kvc_error *e) {
    const struct kvc_cache *c = p->m.c;
    if (!(p->number = kvc_alloc(c->n_layers, sizeof *p->number)))
        return kvc_fail_memory(e, "layers");
    for (uint32_t i = 0; i < c->n_layers; i++) p->number[i] = KVC_NONE;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_layer *l = &c->layer[i];
        if (!kvc_part_is_attended(&c->part[l->part]) || l->tensor[0] == KVC_NONE ||
            l->tensor[1] == KVC_NONE || c->tensor[l->tensor[0]].role != KVC_ROLE_K ||
            c->tensor[l->tensor[1]].role != KVC_ROLE_V ||
            c->tensor[l->tensor[0]].shape.heads != c->tensor[l->tensor[1]].shape.heads)
            continue;
        if (l->index >= c->n_layers || p->number[l->index] != KVC_NONE)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the cache has not each layer once");
        p->number[l->index] = i;
        p->layers++;
    }
    for (uint32_t i = 0; i < p->layers; i++)
        if (p->number[i] == KVC_NONE)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the cache lacks layer %" PRIu32, i);
    return p->layers ? 0 : kvc_fail(e, KVC_ERR_UNSUPPORTED, "the cache has no K and V");
}

static int find_once(struct kvc_gradients_pass *p, struct kvc_error *e) {
    struct kvc_weights_tensor k;
    const struct kvc_weights *w = p->m.weights;
    if (!(p->naming = kvc_weights_find_k(w, 0, &k, e))) return -1;
    p->m.width = k.rank == 2 ? (size_t)k.dim[1] : 0;
    p->m.epsilon = w->epsilon;
    if (p->scale == 0) p->scale = sqrtf((float)p->m.width);
    int found = kvc_weights_matrix(w, p->naming, KVC_WEIGHT_EMBEDDING, 0, p->m.width, 0,
                                   &p->embedding, e);
    if (!found)
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "the weights have no '%s'", p->embedding.tensor.name);
    if (found <= 0) return -1;
    found = kvc_weights_matrix(w, p->naming, KVC_WEIGHT_LOGITS, 0, p->m.width, 0, &p->logits, e);
    if (found < 0) return -1;
    if (!found) p->logits = p->embedding;
    if (kvc_weights_norm(w, p->naming, KVC_WEIGHT_LAST_NORM, 0, p->m.width, &p->last_norm, e) < 0)
        return -1;
    if (!p->last_norm || !(p->m.epsilon > 0) || p->logits.out > VOCABULARY)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the weights have no last norm that is known");
    if (!kvc_weights_find_k(w, p->layers, &k, NULL)) return 0;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the model has more layers than the cache");
}

/* Chooses the tokens of the runs. */
static int choose_runs(struct kvc_gradients_pass *p, struct kvc_error *e) {
    const struct kvc_cache *c = p->m.c;
    const struct kvc_cells *cells = &c->part[c->layer[p->number[0]].part].cells;
    int64_t *position = c->n_tokens ? kvc_cache_token_positions(c, e) : NULL;
    if (c->n_tokens && !position) return -1;
    size_t n = (size_t)c->n_tokens;
    const int64_t end = cells->n ? kvc_cells_position(cells, cells->n - 1) + 1 : 0;
    while (n && position[n - 1] >= end) n--; /* ids of tokens that have no rows yet */
    int whole = n >= LEAST * LAST && position[n - 1] == end - 1 && position[0] == 0;
    for (size_t i = 1; i < n && whole; i++) whole = position[i] == position[i - 1] + 1;
    free(position);
    if (!whole)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the cache has not the ids of %d tokens at least, of all rows from "
                        "position 0 on",
                        LEAST * LAST);
    for (unsigned i = 0; i < KVC_GRADIENTS_RUNS; i++) {
        const size_t tokens = i ? AGAIN : LAST,
                     from = i ? (size_t)(place[i] * (double)n) : n - LAST;
        p->m.run[i] = (struct kvc_gradients_run){.first = p->m.rows,
                                                 .n = tokens,
                                                 .position = i ? end : end - LAST,
                                                 .token = c->tokens + from,
                                                 .again = i > 0};
        p->m.rows += tokens;
    }
    return 0;
}

static int embed(struct kvc_gradients_pass *p, struct kvc_error *e) {
    const size_t d = p->m.width;
    if (!(p->h = kvc_alloc((uint64_t)p->layers + 1, p->m.rows * d * sizeof *p->h)))
        return kvc_fail_memory(e, "hidden states");
    for (unsigned i = 0; i < KVC_GRADIENTS_RUNS; i++)
        for (size_t t = 0; t < p->m.run[i].n; t++) {
            const int32_t token = p->m.run[i].token[t];
            float *row = p->h + (p->m.run[i].first + t) * d;
            if (token < 0 || (uint64_t)token >= p->embedding.out)
                return kvc_fail(e, KVC_ERR_OTHER_MODEL, "the model has no token %" PRId32, token);
            if (kvc_weights_row(row, &p->embedding, (uint64_t)token, e)) return -1;
            kvc_kernels_get()->scale(row, row, p->scale, d);
        }
    return 0;
}

/* Refuses a layer without all rows that the first run sees, but for the oldest of a window, which
 * engines drop early: what the weights make then says nothing of the model. */
static int lacks_rows(const struct kvc_gradients_pass *p, const struct kvc_gradients_layer *x,
                      struct kvc_error *e) {
    const struct kvc_cells *cells = &p->m.c->part[p->m.c->layer[x->number].part].cells;
    const int64_t end = p->m.run[0].position + LAST,
                  since = x->window && (int64_t)x->window < end ? end + 1 - (int64_t)x->window : 0;
    uint64_t there = 0;
    for (uint64_t i = 0; i < cells->n; i++) there += kvc_cells_position(cells, i) >= since;
    return there >= (uint64_t)(end - since)
               ? 0
               : kvc_fail(e, KVC_ERR_UNSUPPORTED, "the cache lacks rows that its last tokens see");
}

/* Checks that K and V of the first run are the cache's. */
static int check_rows(const struct kvc_gradients_pass *p, const struct kvc_gradients_layer *x,
                      struct kvc_error *e) {
    const struct kvc_gradients_run *run = &p->m.run[0];
    const struct kvc_cells *cells = &p->m.c->part[p->m.c->layer[x->number].part].cells;
    const size_t seen = kvc_gradients_seen(&p->m, x->number, 0);
    for (int r = 0; r < 2; r++) {
        const size_t width = x->heads * (r ? x->dim_v : x->dim);
        const float *own = (r ? x->v : x->k) + run->first * width;
        double apart = 0, all = 0;
        for (size_t t = 0; t < run->n && seen + t < cells->n; t++) {
            const float *cached = x->cached[r] + (seen + t) * width;
            if (kvc_cells_position(cells, seen + t) != run->position + (int64_t)t) continue;
            for (size_t i = 0; i < width; i++) {
                const double difference = (double)own[t * width + i] - (double)cached[i];
                apart += difference * difference;
                all += (double)cached[i] * (double)cached[i];
            }
        }
        if (apart <= MOST_APART * MOST_APART * all && all > 0) continue;
        const int same = apart <= SAME_MODEL * SAME_MODEL * all && all > 0;
        return kvc_fail(e, same ? KVC_ERR_UNSUPPORTED : KVC_ERR_OTHER_MODEL,
                        "%c by the weights differs from the cache's by %.2g of it: %s?", "KV"[r],
                        sqrt(apart / fmax(all, 1e-30)),
                        same ? "are they a fine-tune, or another quantisation, of those that "
                               "made it"
                             : "is it the right model, and its RoPE");
    }
    return 0;
}

static int check_stop(const struct kvc_gradients_pass *p, struct kvc_error *e) {
    if (!p->to.stop || !p->to.stop(p->to.stop_state)) return 0;
    return kvc_fail(e, KVC_ERR_IO, "there was no time for it");
}

/* Takes the runs through layers, at most as many. */
static int forward(struct kvc_gradients_pass *p, uint32_t most, struct kvc_error *e) {
    const size_t n = p->m.rows * p->m.width;
    for (uint32_t i = 0; i < p->layers && i < most; i++) {
        struct kvc_gradients_layer x;
        if (check_stop(p, e)) return -1;
        int status = kvc_gradients_layer_load(&x, &p->m, p->number[i], e);
        if (!status) status = lacks_rows(p, &x, e);
        if (!status)
            status = kvc_gradients_layer_forward(&x, &p->m, p->h + i * n, p->h + (i + 1) * n, e);
        if (!status) status = check_rows(p, &x, e);
        kvc_gradients_layer_free(&x);
        if (status) {
            char label[32];
            snprintf(label, sizeof label, "layer %" PRIu32, i);
            return kvc_error_prefix(e, label);
        }
    }
    return 0;
}

/* Turns the logits of a row into the gradient, with respect to them, of the log-probability of a
 * token that is drawn from them. */
static void draw(float *logits, size_t n, uint64_t seed) {
    float most = -INFINITY;
    for (size_t i = 0; i < n; i++) most = fmaxf(most, logits[i]);
    const float sum = kvc_kernels_get()->exponentials(logits, n, most);
    kvc_kernels_get()->scale(logits, logits, -1 / sum, n);
    double left = kvc_random_unit(seed);
    size_t token = 0;
    for (size_t i = 0; i < n; i++) {
        if (logits[i] < 0) token = i;
        if ((left += (double)logits[i]) < 0) break;
    }
    logits[token] += 1;
}

/* Sets of[rows][width] to the gradients with respect to what leaves the last layer. */
static int predict(const struct kvc_gradients_pass *p, float *of, struct kvc_error *e) {
    const size_t n = p->m.rows, d = p->m.width, vocabulary = p->logits.out;
    const float *last = p->h + p->layers * n * d;
    float *normed = kvc_alloc(n, d * sizeof *normed),
          *logits = kvc_alloc(n, vocabulary * sizeof *logits);
    int status = normed && logits ? 0 : kvc_fail_memory(e, "logits");
    if (!status) {
        kvc_gradients_norm(normed, last, p->last_norm, n, d, p->m.epsilon);
        status = kvc_weights_multiply(logits, normed, n, &p->logits, p->m.threads, e);
    }
    if (!status && !kvc_all_finite(logits, n * vocabulary))
        status = kvc_fail(e, KVC_ERR_DAMAGED, "the weights make logits that are not finite");
    for (size_t i = 0; i < n && !status; i++) draw(logits + i * vocabulary, vocabulary, i);
    if (!status) status = kvc_weights_multiply_back(normed, logits, n, &p->logits, p->m.threads, e);
    if (!status) {
        memset(of, 0, n * d * sizeof *of);
        kvc_gradients_norm_back(of, normed, last, p->last_norm, n, d, p->m.epsilon);
    }
    free(normed);
    free(logits);
    return status;
}

int kvc_gradients_end(struct kvc_gradients_pass *p, struct kvc_error *e) {
    const size_t n = p->m.rows * p->m.width;
    float *of = kvc_alloc(2 * n, sizeof *of);
    if (!of) return kvc_fail_memory(e, "gradients");
    int status = predict(p, of, e);
    for (uint32_t i = p->layers; i-- && !status && !(status = check_stop(p, e));) {
        struct kvc_gradients_layer x;
        struct kvc_gradients g = {.c = p->m.c, .layer = p->number[i]};
        status = kvc_gradients_layer_load(&x, &p->m, p->number[i], e);
        if (!status) status = kvc_gradients_layer_forward(&x, &p->m, p->h + i * n, of + n, e);
        if (!status) status = kvc_gradients_layer_back(&x, &p->m, p->h + i * n, of, e);
        g.weights = kvc_gradients_layer_weights(&x, &p->m);
        g.query_heads = x.heads * x.group;
        g.queries = x.q;
        for (unsigned r = 0; r < KVC_GRADIENTS_RUNS; r++) {
            g.run[r].tokens = p->m.run[r].n;
            g.run[r].position = p->m.run[r].position;
            g.run[r].again = p->m.run[r].again;
            g.run[r].rows = kvc_gradients_seen(&p->m, p->number[i], r);
            for (int v = 0; v < 2; v++) g.run[r].of[v] = x.gradient[v][r];
        }
        if (!status) status = p->to.take(p->to.state, &g, e);
        kvc_gradients_layer_free(&x);
    }
    free(of);
    return status;
}

void kvc_gradients_free(struct kvc_gradients_pass *p) {
    if (!p) return;
    free(p->number);
    free(p->last_norm);
    free(p->h);
    kvc_cache_free(p->view);
    free(p);
}

static struct kvc_gradients_pass *begin(const struct kvc_cache *c, const struct kvc_weights *w,
                                        unsigned threads, const struct kvc_gradients_taker *to,
                                        uint32_t layers, struct kvc_error *e) {
    struct kvc_gradients_pass *p = calloc(1, sizeof *p);
    int status = p ? kvc_layers_need_numbers(c, e) : kvc_fail_memory(e, "gradients");
    if (!status && !(p->view = kvc_view_float(c, e))) status = -1;
    if (!status) {
        p->m = (struct kvc_gradients_model){.c = p->view, .weights = w, .threads = threads};
        p->to = *to;
        status = known_kind(p, e) || list_layers(p, e) || find_once(p, e) || choose_runs(p, e) ||
                 embed(p, e) || forward(p, layers, e);
    }
    if (!status) return p;
    kvc_gradients_free(p);
    return NULL;
}

struct kvc_gradients_pass *kvc_gradients_begin(const struct kvc_cache *c,
                                               const struct kvc_weights *w, unsigned threads,
                                               const struct kvc_gradients_taker *to,
                                               struct kvc_error *e) {
    return begin(c, w, threads, to, UINT32_MAX, e);
}

int kvc_gradients_compare(const struct kvc_cache *c, const struct kvc_weights *w, unsigned threads,
                          struct kvc_error *e) {
    const struct kvc_gradients_taker none = {.take = NULL};
    struct kvc_gradients_pass *p = begin(c, w, threads, &none, COMPARED, e);
    kvc_gradients_free(p);
    return p ? 0 : -1;
}
