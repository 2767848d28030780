/* profile_learn_write.c: a learnt profile as a file: kvc-profile(5). Not for counting
 * (profile_learn.c). */
#include "codecs/memory.h"
#include "codecs/number.h"
#include "formats/cache/keys.h"
#include "formats/cache/view.h"
#include "formats/io/hash.h"
#include "formats/io/safetensors_file.h"
#include "formats/model/profile_learn.h"
#include "formats/model/profile_learn_basis.h"
#include "formats/model/profile_learn_loop.h"
#include "formats/model/profile_learn_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUERIES = 20 }; /* of a layer that a profile keeps at most */

/* The file: a header that grows as tensors are added, and their bytes. */
struct file {
    struct kvc_safetensors_writer header;
    struct kvc_buffer data;
    struct kvc_sink sink;
};

/* Adds a tensor of a layer. Values are stored as they are in memory: dtype.c holds machines to
 * little-endian. */
static int add_array(struct file *f, uint32_t layer, const char *what, const char *type,
                     const void *values, const size_t *shape, unsigned rank, struct kvc_error *e) {
    uint64_t dim[3];
    char name[64];
    const uint64_t begin = f->header.data_size;
    for (unsigned i = 0; i < rank; i++) dim[i] = shape[i];
    snprintf(name, sizeof name, "layers.%" PRIu32 ".%s", layer, what);
    if (kvc_safetensors_add(&f->header, name, type, dim, rank, e)) return -1;
    return kvc_sink_write(&f->sink, values, (size_t)(f->header.data_size - begin), e);
}

/* Adds a tensor of K, or of V where is_v. */
static int add_of(struct file *f, uint32_t layer, int is_v, const char *what, const char *type,
                  const void *values, const size_t *shape, unsigned rank, struct kvc_error *e) {
    char name[32];
    snprintf(name, sizeof name, "%c.%s", is_v ? 'v' : 'k', what);
    return add_array(f, layer, name, type, values, shape, rank, e);
}

static int write_queries(struct file *f, uint32_t number, const struct kvc_learnt_layer *l,
                         struct kvc_error *e) {
    const size_t n = l->n_queries < QUERIES ? l->n_queries : QUERIES, dim = l->query_dim,
                 heads = l->query_heads;
    int8_t *code = kvc_alloc(heads * n, dim);
    float *scale = kvc_alloc(heads, n * sizeof *scale);
    int status = code && scale ? 0 : kvc_fail_memory(e, "queries");
    for (size_t h = 0; h < heads && !status; h++)
        for (size_t i = 0; i < n; i++) {
            const float *query = l->query + (i * l->n_queries / n * heads + h) * dim;
            scale[h * n + i] = kvc_learn_round(query, dim, code + (h * n + i) * dim);
        }
    const size_t shape[3] = {heads, n, dim};
    if (!status && n)
        status = add_array(f, number, "queries", "I8", code, shape, 3, e) ||
                 add_array(f, number, "queries.scale", "F32", scale, shape, 2, e);
    free(code);
    free(scale);
    return status ? -1 : 0;
}

static int write_part(struct file *f, uint32_t layer, const struct kvc_learnt_layer *l, int is_v,
                      struct kvc_error *e) {
    const struct kvc_learnt_part *p = &l->part[is_v];
    const size_t shape[3] = {p->heads, p->dim, p->dim};
    struct kvc_learnt_basis b;
    int status = kvc_learn_basis(&b, l, is_v, e);
    if (!status) status = add_of(f, layer, is_v, "mean", "F32", b.mean, shape, 2, e);
    if (!status) status = add_of(f, layer, is_v, "scale", "F32", b.scale, shape, 2, e);
    if (!status) status = add_of(f, layer, is_v, "variance", "F32", b.variance, shape, 2, e);
    if (!status) status = add_of(f, layer, is_v, "weight", "F32", b.weight, shape, 1, e);
    if (!status) status = add_of(f, layer, is_v, "basis", "I8", b.basis, shape, 3, e);
    kvc_learnt_basis_free(&b);
    return status;
}

/* Adds what makes inputs of K or V, their predictor, and the basis of what it leaves. */
static int put_predictor(void *state, uint32_t layer, int v, const struct kvc_learnt_predictor *p,
                         struct kvc_error *e) {
    const size_t by_head[3] = {p->heads, p->dim, p->dim},
                 matrix[2] = {p->heads * p->dim, p->inputs};
    struct file *f = state;
    if (add_of(f, layer, v, "gain", "F32", p->gain, by_head, 2, e)) return -1;
    if (!p->weight) return 0;
    if (add_of(f, layer, v, "predictor.scale", "F32", p->scale, by_head, 2, e) ||
        add_of(f, layer, v, "residual.scale", "F32", p->basis_scale, by_head, 2, e) ||
        add_of(f, layer, v, "residual.variance", "F32", p->variance, by_head, 2, e) ||
        add_of(f, layer, v, "predictor", "I8", p->weight, matrix, 2, e))
        return -1;
    return add_of(f, layer, v, "residual.basis", "I8", p->basis, by_head, 3, e);
}

static int copy_base(struct file *f, const struct kvc_profile *base, struct kvc_error *e) {
    size_t size;
    const uint8_t *bytes = kvc_profile_bytes(base, &size);
    struct kvc_safetensors header;
    if (kvc_safetensors_read(&header, bytes, size, KVC_SAFETENSORS_ANY_DTYPE, e)) return -1;
    int status = kvc_safetensors_copy_texts(&f->header, &header, e);
    for (size_t i = 0; i < header.n && !status; i++) {
        const struct kvc_safetensors_tensor *t = &header.tensor[i];
        if (strstr(t->name, ".predictor") || strstr(t->name, ".gain") ||
            strstr(t->name, ".residual."))
            continue;
        status = kvc_safetensors_add(&f->header, t->name, t->dtype, t->dim, (unsigned)t->rank, e) ||
                 kvc_sink_write(&f->sink, bytes + header.data_at + t->begin,
                                (size_t)(t->end - t->begin), e);
    }
    kvc_safetensors_free(&header);
    return status ? -1 : 0;
}

/* Adds a text without control characters. */
static int put_text(struct file *f, const char *key, const char *text, struct kvc_error *e) {
    char *clean = kvc_alloc(strlen(text) + 1, 1);
    size_t n = 0;
    if (!clean) return kvc_fail_memory(e, "a profile");
    for (; *text; text++)
        if ((unsigned char)*text >= 32) clean[n++] = *text;
    clean[n] = '\0';
    const int status = kvc_safetensors_add_text(&f->header, key, clean, e);
    free(clean);
    return status;
}

static int put_count(struct file *f, const char *key, uint64_t n, struct kvc_error *e) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, n);
    return kvc_safetensors_add_text(&f->header, key, text, e);
}

/* Returns the layers of the model: caches may have some of them alone. */
static uint64_t layers_of(const struct kvc_learner *l) {
    return l->meta.facts.layers > l->layers ? l->meta.facts.layers : l->layers;
}

static int put_windows(struct file *f, const struct kvc_learner *l, struct kvc_error *e) {
    uint32_t window = 0, any = 0;
    char *sliding = kvc_alloc_zeros(layers_of(l) + 1, 1);
    if (!sliding) return kvc_fail_memory(e, "a profile");
    memset(sliding, '0', (size_t)layers_of(l));
    for (uint32_t i = 0; i < l->layers; i++) {
        sliding[i] = l->layer[i].sliding ? '1' : '0';
        any |= l->layer[i].sliding != 0;
        if (l->layer[i].window) window = l->layer[i].window;
    }
    int status = any ? kvc_safetensors_add_text(&f->header, "model.sliding-layers", sliding, e) : 0;
    if (any && window && !status) status = put_count(f, "model.sliding-window", window, e);
    free(sliding);
    return status;
}

/* Adds heads and channels of the first layer that has K. */
static int put_shape(struct file *f, const struct kvc_learner *l, struct kvc_error *e) {
    uint32_t first = 0;
    while (first < l->layers && !l->layer[first].part[0].sum) first++;
    if (first == l->layers) return 0;
    const struct kvc_learnt_layer *layer = &l->layer[first];
    if (put_count(f, "model.kv-heads", layer->part[0].heads, e) ||
        put_count(f, "model.head-dim", layer->part[0].dim, e))
        return -1;
    return layer->query_heads ? put_count(f, "model.heads", layer->query_heads, e) : 0;
}

static int put_fingerprints(struct file *f, const struct kvc_learner *l, struct kvc_error *e) {
    for (size_t i = 0; i < l->meta.n; i++) {
        const struct kvc_meta_entry *m = &l->meta.entry[i];
        char hex[2 * KVC_SHA256_BYTES + 1];
        if (strncmp(m->key, KVC_KEY_FINGERPRINT, strlen(KVC_KEY_FINGERPRINT)) != 0 ||
            m->size != KVC_SHA256_BYTES)
            continue;
        kvc_hex(m->value, KVC_SHA256_BYTES, hex);
        if (put_text(f, m->key, hex, e)) return -1;
    }
    return 0;
}

static int put_metric(struct file *f, const struct kvc_learner *l, struct kvc_error *e) {
    if (!kvc_learner_has_gradients(l))
        return put_text(f, "metric", kvc_learner_has_queries(l) ? "query" : "covariance", e);
    if (put_text(f, "metric", "fisher", e)) return -1;
    return put_count(f, "metric.recall", (uint64_t)2 * KVC_LEARN_AGAIN, e);
}

static int put_metadata(struct file *f, const struct kvc_learner *l, struct kvc_error *e) {
    char made[160], step[32], gradients[32] = "";
    const int measured = kvc_learner_has_gradients(l);
    kvc_number_print(step, sizeof step, 6, measured ? KVC_LEARN_GRADIENT_STEP : KVC_LEARN_K_STEP);
    if (measured) snprintf(gradients, sizeof gradients, ", gradients of %u", l->measured);
    snprintf(made, sizeof made,
             "kvc-profile learn, kvc " KVC_VERSION ", from %u caches%s; K step %s", l->caches,
             gradients, step);
    const struct kvc_facts *facts = &l->meta.facts;
    int status = put_text(f, "kvc.profile", "1", e) ||
                 put_count(f, "model.layers", layers_of(l), e) || put_shape(f, l, e);
    if (!status && !l->rope_known && l->pairing)
        status = put_text(f, "rope.pairing", kvc_pairing_name(l->pairing), e);
    if (!status)
        status = put_text(f, "model.name", facts->model ? facts->model : "", e) ||
                 put_text(f, "model.architecture", facts->architecture ? facts->architecture : "",
                          e) ||
                 put_metric(f, l, e) ||
                 (l->estimated && !measured &&
                  put_count(f, "queries.estimated", l->estimated, e)) ||
                 put_text(f, "made", made, e) || put_fingerprints(f, l, e) || put_windows(f, l, e);
    return status ? -1 : 0;
}

static int put_predictor_source(struct file *f, const struct kvc_learner *l, struct kvc_error *e) {
    char made[96];
    snprintf(made, sizeof made, "kvc-profile learn, kvc " KVC_VERSION ", from %u caches",
             l->caches);
    return put_text(f, "predictor.made", made, e);
}

/* Adds the tensors: RoPE of all layers first, whose numbers are the largest, so that all are
 * aligned. */
static int put_tensors(struct file *f, const struct kvc_learner *l, struct kvc_error *e) {
    int any = 0;
    for (uint32_t i = 0; i < l->layers; i++) {
        const struct kvc_learnt_layer *layer = &l->layer[i];
        if (layer->angle && add_array(f, i, "rope", "F64", layer->angle, &layer->half, 1, e))
            return -1;
    }
    for (uint32_t i = 0; i < l->layers; i++) {
        const struct kvc_learnt_layer *layer = &l->layer[i];
        for (int r = 0; r < 2; r++) {
            if (!layer->part[r].sum || !(layer->part[r].rows > 0)) continue;
            any = 1;
            if (write_part(f, i, layer, r, e)) return -1;
        }
        if (layer->n_queries && write_queries(f, i, layer, e)) return -1;
    }
    return any ? 0
               : kvc_fail(e, KVC_ERR_UNSUPPORTED,
                          "the caches have no K or V in f32, f16 or bf16 to learn from");
}

static int put_predictors(struct file *f, const struct kvc_learner *l, struct kvc_profile *base,
                          struct kvc_error *e) {
    if (copy_base(f, base, e) || put_text(f, "kvc.profile", "1", e) ||
        put_count(f, "predictor.back", l->back, e) || put_predictor_source(f, l, e))
        return -1;
    return kvc_learn_loop(l, base, put_predictor, f, e);
}

/* Writes what was learnt but for predictors; or `base`, if there is one, with predictors added. */
static int write_profile(const struct kvc_learner *l, struct kvc_profile *base,
                         struct kvc_sink *out, struct kvc_error *e) {
    struct file f = {.data = {0}};
    if (kvc_safetensors_writer_init(&f.header, e)) return -1;
    f.sink = kvc_sink_buffer(&f.data);
    int status = base ? put_predictors(&f, l, base, e) : put_metadata(&f, l, e);
    if (!status && !base) status = put_tensors(&f, l, e);
    if (!status) status = kvc_safetensors_write(&f.header, out, e);
    if (!status) status = kvc_sink_write(out, f.data.data, f.data.n, e);
    kvc_safetensors_writer_free(&f.header);
    free(f.data.data);
    return status;
}

int kvc_learner_write(struct kvc_learner *l, struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_buffer plain = {0};
    kvc_learn_attention_settle(l);
    kvc_learn_gradients_settle(l);
    if (l->base || !l->back) return write_profile(l, l->base, out, e);
    struct kvc_sink memory = kvc_sink_buffer(&plain);
    struct kvc_profile *own = NULL;
    int status = write_profile(l, NULL, &memory, e);
    if (!status && !(own = kvc_profile_open_memory(plain.data, plain.n, e))) status = -1;
    if (!status) status = write_profile(l, own, out, e);
    kvc_profile_free(own);
    free(plain.data);
    return status;
}
