/* weights.c: checking and converting one layer's projections. Not for finding their tensors
 * (weights_tensors.c), for facts about the model (model.c), or for the pairing that an engine uses
 * (rope_names.c). */
#include "formats/model/weights.h"

#include "codecs/dtype.h"
#include "codecs/memory.h"
#include "formats/cache/rope_names.h"
#include "formats/cache/view.h"
#include "formats/io/json_text.h"
#include "formats/io/printable.h"
#include "formats/model/model_files.h"
#include "formats/model/weights_names.h"
#include "formats/model/weights_tensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAG "kvc projection 0\n"
#define MAX_SHAPE (UINT64_C(1) << 31) /* of each number in a shape */
/* output channels that are transposed together: their floats fill a cache line */
#define GROUP 16

/* ---- opening ---- */

static int open_parts(struct kvc_weights *w, const struct kvc_model_files *files,
                      struct kvc_error *e) {
    for (size_t i = 0; i < files->n; i++)
        if (kvc_weights_add_part(w, files->path[i], e))
            return files->given ? -1 : kvc_error_prefix(e, kvc_base_name(files->path[i]));
    return 0;
}

static float sane_epsilon(double v) {
    return v > 0 && isfinite(v) ? (float)v : 0;
}

static int gguf_facts(struct kvc_weights *w, struct kvc_error *e) {
    const struct kvc_gguf *g = &w->part[0].gguf;
    uint64_t size;
    const char *arch = kvc_gguf_text(g, "general.architecture", &size);
    if (!arch || !size || size >= sizeof w->arch)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "GGUF header: general.architecture is missing or too long");
    memcpy(w->arch, arch, (size_t)size);
    w->pairing = kvc_pairing_of_gguf_arch(w->arch);
    char key[sizeof w->arch + 64];
    snprintf(key, sizeof key, "%s.rope.dimension_sections", w->arch);
    /* M-RoPE */
    if (kvc_gguf_find(g, key) && kvc_gguf_u64(g, key, 1, NULL)) w->pairing = KVC_PAIRING_UNKNOWN;
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", w->arch);
    w->epsilon = sane_epsilon(kvc_gguf_f64(g, key, 0));
    return 0;
}

static void set_arch(struct kvc_weights *w, const char *text) {
    if (text) snprintf(w->arch, sizeof w->arch, "%s", text);
}

/* Reads config.json. A model that takes pictures, too, has the settings of its language model in an
 * object of config.json. */
static int read_config(struct kvc_weights *w, const struct kvc_input *in, struct kvc_error *e) {
    json_t *root = kvc_json_load(in->data, (size_t)in->size, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return kvc_fail(e, KVC_ERR_DAMAGED, "no valid JSON object");
    }
    const json_t *text = json_object_get(root, "text_config");
    if (!text) text = json_object_get(root, "llm_config");
    set_arch(w, json_string_value(json_object_get(root, "model_type")));
    set_arch(w, json_string_value(json_object_get(text, "model_type")));
    const json_t *epsilon = json_object_get(text, "rms_norm_eps");
    if (!epsilon) epsilon = json_object_get(root, "rms_norm_eps");
    w->epsilon = sane_epsilon(json_number_value(epsilon));
    json_decref(root);
    return 0;
}

static int open_config(struct kvc_weights *w, const struct kvc_model_files *files,
                       struct kvc_error *e) {
    struct kvc_input in;
    int there = kvc_model_files_beside(files, "config.json", KVC_MAX_CONFIG_BYTES, &in, e);
    if (there <= 0) return there;
    int status = read_config(w, &in, e);
    kvc_input_close(&in);
    return status ? kvc_error_prefix(e, "config.json") : 0;
}

/* Reads the facts of config.json. A cache with weights of its own says itself how their channels
 * are paired. */
static int safetensors_facts(struct kvc_weights *w, const struct kvc_model_files *files,
                             struct kvc_error *e) {
    const struct kvc_safetensors *header = &w->part[0].safetensors;
    set_arch(w, kvc_safetensors_text(header, "architecture"));
    if (open_config(w, files, e)) return -1;
    w->pairing = kvc_pairing_of_transformers(w->arch);
    const char *pairing = kvc_safetensors_text(header, "rope_pairing");
    if (!pairing) return 0;
    w->pairing = kvc_pairing_parse_tensor(pairing);
    return 0;
}

struct kvc_weights *kvc_weights_open(const char *path, struct kvc_error *e) {
    struct kvc_model_files files;
    if (kvc_model_files_list(&files, path, e)) return NULL;
    struct kvc_weights *w = calloc(1, sizeof *w);
    int status = w ? open_parts(w, &files, e) : kvc_fail_memory(e, "the weights files");
    if (!status)
        status = kvc_weights_are_gguf(w) ? gguf_facts(w, e) : safetensors_facts(w, &files, e);
    kvc_model_files_free(&files);
    if (!status) return w;
    kvc_weights_close(w);
    return NULL;
}

void kvc_weights_close(struct kvc_weights *w) {
    if (!w) return;
    for (size_t i = 0; i < w->n; i++) kvc_weights_part_close(&w->part[i]);
    free(w->part);
    free(w);
}

/* Returns 1 if the name is of a layer's K in a cache that has its own weights. */
static int is_cache_name(const char *name) {
    return strncmp(name, "wk.", 3) == 0 && name[3] && !name[3 + strspn(name + 3, "0123456789")];
}

int kvc_weights_have_attention(const struct kvc_weights *w) {
    for (size_t i = 0; i < w->n; i++) {
        const struct kvc_weights_part *part = &w->part[i];
        if (part->is_gguf ? kvc_gguf_has_attention(&part->gguf)
                          : kvc_safetensors_has_attention(&part->safetensors))
            return 1;
        for (size_t t = 0; !part->is_gguf && t < part->safetensors.n; t++)
            if (is_cache_name(part->safetensors.tensor[t].name)) return 1;
    }
    return 0;
}

/* ---- loading ---- */

static int check_dims(const struct kvc_weights_tensor *t, uint64_t rank, const uint64_t *dim,
                      struct kvc_error *e) {
    if (t->rank == rank && memcmp(t->dim, dim, (size_t)rank * sizeof *dim) == 0) return 0;
    char have[KVC_WEIGHTS_RANK * 24] = "", want[KVC_WEIGHTS_RANK * 24] = "";
    size_t a = 0, b = 0;
    for (uint64_t i = 0; i < t->rank; i++)
        a += (size_t)snprintf(have + a, sizeof have - a, "[%" PRIu64 "]", t->dim[i]);
    for (uint64_t i = 0; i < rank; i++)
        b += (size_t)snprintf(want + b, sizeof want - b, "[%" PRIu64 "]", dim[i]);
    return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                    "%s: '%s' has shape %s, but the cache needs %s: is this the right model?",
                    t->file, t->name, t->rank ? have : "[]", want);
}

static float *new_floats(uint64_t n, const struct kvc_weights_tensor *t, struct kvc_error *e) {
    float *f = kvc_alloc(n, sizeof *f);
    if (!f) {
        kvc_fail_memory(e, "weights");
        kvc_error_prefix(e, t->name);
    }
    return f;
}

static int pin(const struct kvc_weights_tensor *t, struct kvc_error *e) {
    return kvc_input_pin(t->in, t->offset, t->bytes, e) ? kvc_error_prefix(e, t->file) : 0;
}

/* Loads a matrix [out][in] of the file as [in][out] floats, channels in the order asked for. The
 * count of values cannot overflow, as the file has bytes for all of them. */
static int load_matrix(const struct kvc_weights_tensor *t, uint64_t out, uint64_t in,
                       const struct kvc_weights_order *o, float **result, struct kvc_error *e) {
    if (check_dims(t, 2, (const uint64_t[]){out, in}, e)) return -1;
    float *w = new_floats(out * in, t, e),
          *rows = w ? new_floats((out < GROUP ? out : GROUP) * in, t, e) : NULL;
    *result = w;
    if (!rows || pin(t, e)) {
        free(rows);
        return -1;
    }
    const uint8_t *data = t->in->data + t->offset;
    uint64_t row_blocks = in / t->type.block, row_bytes = row_blocks * t->type.size;
    for (uint64_t first = 0; first < out; first += GROUP) {
        uint64_t n = out - first < GROUP ? out - first : GROUP;
        for (uint64_t c = 0; c < n; c++)
            t->type.to_f32(rows + c * in, data + kvc_weights_channel(o, first + c) * row_bytes,
                           (size_t)row_blocks);
        for (uint64_t i = 0; i < in; i++)
            for (uint64_t c = 0; c < n; c++) w[i * out + first + c] = rows[c * in + i];
    }
    kvc_input_unpin(t->in, t->offset, t->bytes);
    free(rows);
    return 0;
}

static int load_vector(const struct kvc_weights_tensor *t, uint64_t n,
                       const struct kvc_weights_order *o, float **result, struct kvc_error *e) {
    if (check_dims(t, 1, &n, e)) return -1;
    float *values = new_floats(n, t, e), *ordered = values ? new_floats(n, t, e) : NULL;
    const int status = ordered ? pin(t, e) : -1;
    *result = ordered;
    if (!status) {
        t->type.to_f32(values, t->in->data + t->offset, (size_t)(n / t->type.block));
        for (uint64_t c = 0; c < n; c++) ordered[c] = values[kvc_weights_channel(o, c)];
        kvc_input_unpin(t->in, t->offset, t->bytes);
    }
    free(values);
    return status;
}

/* Returns 1 for models whose safetensors hold the weight of the norm less 1. The converter of
 * llama.cpp adds 1. */
static int norm_is_less_one(const struct kvc_weights *w) {
    static const char *const archs[] = {"gemma", "gemma2", "gemma3", "gemma3_text"};
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (!kvc_weights_are_gguf(w) && strcmp(w->arch, archs[i]) == 0) return 1;
    return 0;
}

/* Loads a norm, where the file has one, with as many channels as a head has by their order. Returns
 * as kvc_weights_find() does. */
static int load_ordered_norm(const struct kvc_weights *w, const struct kvc_weights_naming *naming,
                             enum kvc_weight which, uint32_t layer,
                             const struct kvc_weights_order *o, float **norm, struct kvc_error *e) {
    struct kvc_weights_tensor t;
    const int found = kvc_weights_find(w, naming, which, layer, &t, e);
    if (found <= 0) return found;
    if (load_vector(&t, o->dim, o, norm, e)) return -1;
    for (uint64_t i = 0; norm_is_less_one(w) && i < o->dim; i++) (*norm)[i] += 1;
    return 1;
}

int kvc_weights_norm(const struct kvc_weights *w, const struct kvc_weights_naming *naming,
                     enum kvc_weight which, uint32_t layer, uint64_t n, float **norm,
                     struct kvc_error *e) {
    const struct kvc_weights_order as_it_is = {n, 0, KVC_PAIRING_NONE, KVC_PAIRING_NONE};
    return load_ordered_norm(w, naming, which, layer, &as_it_is, norm, e);
}

static int load_norm(const struct kvc_weights *w, const struct kvc_weights_naming *naming,
                     uint32_t layer, struct kvc_projection *p, struct kvc_error *e) {
    struct kvc_weights_tensor t;
    if (kvc_weights_norm(w, naming, KVC_WEIGHT_NORM, layer, p->shape.in, &p->norm, e) < 0)
        return -1;
    p->norm_epsilon = w->epsilon;
    if ((p->norm_bias = kvc_weights_find(w, naming, KVC_WEIGHT_NORM_BIAS, layer, &t, e)) < 0)
        return -1;
    return (p->k_norm = kvc_weights_find(w, naming, KVC_WEIGHT_K_NORM, layer, &t, e)) < 0 ? -1 : 0;
}

/* Loads K or V: the matrix, which was found already, and the bias. */
static int load_one(const struct kvc_weights *w, const struct kvc_weights_naming *naming,
                    const struct kvc_weights_tensor *t, enum kvc_weight bias, uint32_t layer,
                    const struct kvc_projection_shape *s, const struct kvc_weights_order *o,
                    float **matrix, float **vector, struct kvc_error *e) {
    uint64_t out = s->heads * o->dim;
    struct kvc_weights_tensor b;
    if (load_matrix(t, out, s->in, o, matrix, e)) return -1;
    int found = kvc_weights_find(w, naming, bias, layer, &b, e);
    return found > 0 ? load_vector(&b, out, o, vector, e) : found;
}

static struct kvc_weights_order order_of_k(const struct kvc_weights *w,
                                           const struct kvc_projection_shape *s) {
    return (struct kvc_weights_order){s->dim, s->rotated, w->pairing, s->pairing};
}

static int weights_load(const struct kvc_weights *w, uint32_t layer, struct kvc_projection *p,
                        struct kvc_error *e) {
    struct kvc_projection_shape *s = &p->shape;
    const struct kvc_weights_order k_order = order_of_k(w, s);
    const struct kvc_weights_order v_order = {s->dim_v, 0, KVC_PAIRING_NONE, KVC_PAIRING_NONE};
    struct kvc_weights_tensor k, v;
    const struct kvc_weights_naming *naming = kvc_weights_find_k(w, layer, &k, e);
    if (naming && !s->in) s->in = k.rank == 2 && k.dim[1] ? k.dim[1] : 1;
    if (!naming ||
        load_one(w, naming, &k, KVC_WEIGHT_K_BIAS, layer, s, &k_order, &p->k, &p->k_bias, e))
        return -1;
    int found = kvc_weights_find(w, naming, KVC_WEIGHT_V, layer, &v, e);
    if (!found) return kvc_weights_missing(w, v.name, e);
    if (found < 0 ||
        load_one(w, naming, &v, KVC_WEIGHT_V_BIAS, layer, s, &v_order, &p->v, &p->v_bias, e))
        return -1;
    return load_norm(w, naming, layer, p, e);
}

static int check_shape(struct kvc_projection_shape *s, struct kvc_error *e) {
    if (!s->rotated && s->pairing != KVC_PAIRING_NONE) s->rotated = s->dim;
    if (!s->heads || !s->dim || !s->dim_v || s->in > MAX_SHAPE || s->heads > MAX_SHAPE ||
        s->dim > MAX_SHAPE || s->dim_v > MAX_SHAPE)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "no projection has %" PRIu64 " channels in and %" PRIu64
                        " heads of %" PRIu64 " (K) and %" PRIu64 " (V) channels out",
                        s->in, s->heads, s->dim, s->dim_v);
    if (s->rotated > s->dim || s->rotated % 2)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "RoPE cannot rotate %" PRIu64 " channels of a head of %" PRIu64, s->rotated,
                        s->dim);
    return 0;
}

/* Checks that K can be brought from the pairing of the file to that of the cache. */
static int check_pairing(const struct kvc_weights *w, const struct kvc_projection_shape *s,
                         struct kvc_error *e) {
    const char *file = kvc_base_name(w->part[0].in.name);
    char shown[sizeof w->arch];
    kvc_name_show(w->arch, shown, sizeof shown);
    if (s->pairing == KVC_PAIRING_UNKNOWN)
        return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_PAIRING,
                             "the RoPE pairing of the cache's K is unknown");
    if (w->pairing == KVC_PAIRING_UNKNOWN)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%s: it is not known which channels of K RoPE pairs in architecture '%s'",
                        file, shown);
    if (w->pairing != s->pairing &&
        (w->pairing == KVC_PAIRING_NONE || s->pairing == KVC_PAIRING_NONE))
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "%s: RoPE pairs K of architecture '%s' as '%s', the cache's K as '%s': is "
                        "it the right model?",
                        file, shown, kvc_pairing_name(w->pairing), kvc_pairing_name(s->pairing));
    return 0;
}

int kvc_weights_load(const struct kvc_weights *w, uint32_t layer,
                     const struct kvc_projection_shape *shape, struct kvc_projection *p,
                     struct kvc_error *e) {
    memset(p, 0, sizeof *p);
    p->shape = *shape;
    if (!check_shape(&p->shape, e) && !check_pairing(w, shape, e) && !weights_load(w, layer, p, e))
        return 0;
    kvc_projection_free(p);
    return -1;
}

void kvc_projection_free(struct kvc_projection *p) {
    free(p->k);
    free(p->v);
    free(p->k_bias);
    free(p->v_bias);
    free(p->norm);
    memset(p, 0, sizeof *p);
}

static int load_queries(const struct kvc_weights *w, uint32_t layer,
                        const struct kvc_projection_shape *s, struct kvc_query_projection *q,
                        struct kvc_error *e) {
    const struct kvc_weights_order o = order_of_k(w, s);
    struct kvc_weights_tensor k, t;
    const struct kvc_weights_naming *naming = kvc_weights_find_k(w, layer, &k, e);
    if (!naming) return -1;
    const int found = kvc_weights_find(w, naming, KVC_WEIGHT_Q, layer, &t, e);
    if (found <= 0) return found ? -1 : kvc_weights_missing(w, t.name, e);
    const uint64_t group = t.rank == 2 ? t.dim[0] / (s->heads * s->dim) : 0;
    struct kvc_projection_shape wide = *s;
    q->heads = wide.heads = s->heads * (group ? group : 1);
    if (load_one(w, naming, &t, KVC_WEIGHT_Q_BIAS, layer, &wide, &o, &q->q, &q->bias, e) ||
        load_ordered_norm(w, naming, KVC_WEIGHT_Q_NORM, layer, &o, &q->q_norm, e) < 0 ||
        load_ordered_norm(w, naming, KVC_WEIGHT_K_NORM, layer, &o, &q->k_norm, e) < 0)
        return -1;
    return 0;
}

int kvc_weights_load_queries(const struct kvc_weights *w, uint32_t layer,
                             const struct kvc_projection *p, struct kvc_query_projection *q,
                             struct kvc_error *e) {
    memset(q, 0, sizeof *q);
    if (!load_queries(w, layer, &p->shape, q, e)) return 0;
    kvc_query_projection_free(q);
    return -1;
}

void kvc_query_projection_free(struct kvc_query_projection *q) {
    free(q->q);
    free(q->bias);
    free(q->q_norm);
    free(q->k_norm);
    memset(q, 0, sizeof *q);
}

/* ---- identity ---- */

/* Hashes rows of `out` floats, channels in the order asked for. dtype.c holds machines to
 * little-endian floats. */
static void hash_rows(struct kvc_sha256 *h, const float *w, uint64_t rows, uint64_t out,
                      const struct kvc_weights_order *o, float *row) {
    for (uint64_t i = 0; i < rows; i++, w += out) {
        for (uint64_t c = 0; c < out; c++) row[c] = w[kvc_weights_channel(o, c)];
        kvc_sha256_update(h, row, (size_t)out * sizeof *row);
    }
}

static void hash_vector(struct kvc_sha256 *h, const float *values, uint64_t n,
                        const struct kvc_weights_order *o, float *row) {
    kvc_sha256_update(h, values ? "\1" : "\0", 1);
    if (values) hash_rows(h, values, 1, n, o, row);
}

int kvc_projection_fingerprint(const struct kvc_projection *p, uint8_t sha256[KVC_SHA256_BYTES],
                               struct kvc_error *e) {
    const struct kvc_projection_shape *s = &p->shape;
    const enum kvc_pairing to = s->pairing == KVC_PAIRING_NONE ? KVC_PAIRING_NONE
                                                               : KVC_PAIRING_HALVES;
    const struct kvc_weights_order k = {s->dim, s->rotated, s->pairing, to},
                                   v = {s->dim_v, 0, to, to};
    const struct kvc_weights_order norm = {s->in, 0, to, to};
    uint64_t out = s->heads * s->dim, out_v = s->heads * s->dim_v,
             widest = out > out_v ? out : out_v;
    if (widest < s->in) widest = s->in;
    float *row = kvc_alloc(widest, sizeof *row);
    if (!row) return kvc_fail_memory(e, "a SHA-256 hash");
    struct kvc_sha256 h;
    kvc_sha256_init(&h);
    kvc_sha256_update(&h, TAG, strlen(TAG));
    hash_rows(&h, p->k, s->in, out, &k, row);
    hash_vector(&h, p->k_bias, out, &k, row);
    hash_rows(&h, p->v, s->in, out_v, &v, row);
    hash_vector(&h, p->v_bias, out_v, &v, row);
    hash_vector(&h, p->norm, s->in, &norm, row);
    free(row);
    return kvc_sha256_final(&h, sha256, e);
}
