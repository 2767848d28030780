/* weights.c: finding, checking and converting one layer's K and V projections. Not for facts about the model (model.c)
 * or which engine pairs K how (rope_pairing.c). */
#include "formats/model/weights.h"

#include "codecs/dtype.h"
#include "codecs/memory.h"
#include "formats/io/bytes.h"
#include "formats/model/gguf.h"
#include "formats/io/input.h"
#include "formats/model/model.h"
#include "formats/model/model_files.h"
#include "formats/io/printable.h"
#include "formats/cache/view.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAG "kvc projection 0\n"
#define MAX_HEADER UINT64_C(100000000) /* of safetensors, as the reference library bounds it */
#define MAX_SHAPE (UINT64_C(1) << 31) /* of each number in a shape */
#define MAX_RANK 4
#define GROUP 16 /* output channels that are transposed together: their floats fill a cache line */

/* One file of the model. */
struct part {
    struct kvc_input in;
    struct kvc_gguf gguf;
    json_t *header;   /* safetensors; NULL: a GGUF */
    uint64_t data_at; /* safetensors: where tensor data begins */
};

struct kvc_weights {
    struct part *part;
    size_t n;
    char arch[64]; /* general.architecture, or config.json's model_type; "" unknown */
    enum kvc_pairing pairing;
    float epsilon;
};

static int is_gguf(const struct kvc_weights *w) {
    return w->part[0].header == NULL;
}

/* ---- opening ---- */

static int read_header(struct part *part, struct kvc_error *e) {
    const uint8_t *data = part->in.data;
    uint64_t size = part->in.size;
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0) return kvc_gguf_open(&part->gguf, data, size, e);
    uint64_t n = size >= 8 ? get_u64(data) : 0;
    if (n < 2 || n > MAX_HEADER || n > size - 8 || data[8] != '{')
        return kvc_fail(e, KVC_ERR_UNKNOWN, "neither a GGUF nor a safetensors weights file");
    part->header = json_loadb((const char *)data + 8, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(part->header)) return kvc_fail(e, KVC_ERR_DAMAGED, "safetensors header: no valid JSON object");
    part->data_at = 8 + n;
    return 0;
}

static int add_part(struct kvc_weights *w, const char *path, struct kvc_error *e) {
    struct part *grown = kvc_realloc(w->part, w->n + 1, sizeof *grown);
    if (!grown) return kvc_fail_memory(e, "the weights files");
    w->part = grown;
    struct part *part = &w->part[w->n];
    memset(part, 0, sizeof *part);
    if (kvc_input_open(&part->in, path, e)) return -1;
    w->n++; /* from here on kvc_weights_close() sees it */
    if (read_header(part, e)) return -1;
    if ((part->header == NULL) != is_gguf(w))
        return kvc_fail(e, KVC_ERR_DAMAGED, "GGUF and safetensors files in one model");
    return 0;
}

static int open_parts(struct kvc_weights *w, const struct kvc_model_files *files, struct kvc_error *e) {
    for (size_t i = 0; i < files->n; i++)
        if (add_part(w, files->path[i], e))
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
        return kvc_fail(e, KVC_ERR_DAMAGED, "GGUF header: general.architecture is missing or too long");
    memcpy(w->arch, arch, (size_t)size);
    w->pairing = kvc_pairing_of_gguf_arch(w->arch);
    char key[sizeof w->arch + 64];
    snprintf(key, sizeof key, "%s.rope.dimension_sections", w->arch);
    if (kvc_gguf_find(g, key) && kvc_gguf_u64(g, key, 1, NULL)) w->pairing = KVC_PAIRING_UNKNOWN; /* M-RoPE */
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", w->arch);
    w->epsilon = sane_epsilon(kvc_gguf_f64(g, key, 0));
    return 0;
}

static void set_arch(struct kvc_weights *w, const json_t *text) {
    if (json_is_string(text)) snprintf(w->arch, sizeof w->arch, "%s", json_string_value(text));
}

/* A model that takes pictures too has its language model's settings in an object of config.json. */
static int read_config(struct kvc_weights *w, const struct kvc_input *in, struct kvc_error *e) {
    json_t *root = json_loadb((const char *)in->data, (size_t)in->size, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return kvc_fail(e, KVC_ERR_DAMAGED, "no valid JSON object");
    }
    const json_t *text = json_object_get(root, "text_config");
    if (!text) text = json_object_get(root, "llm_config");
    set_arch(w, json_object_get(root, "model_type"));
    set_arch(w, json_object_get(text, "model_type"));
    const json_t *epsilon = json_object_get(text, "rms_norm_eps");
    if (!epsilon) epsilon = json_object_get(root, "rms_norm_eps");
    w->epsilon = sane_epsilon(json_number_value(epsilon));
    json_decref(root);
    return 0;
}

static int open_config(struct kvc_weights *w, const struct kvc_model_files *files, struct kvc_error *e) {
    struct kvc_input in;
    int there = kvc_model_files_beside(files, "config.json", KVC_MAX_CONFIG_BYTES, &in, e);
    if (there <= 0) return there;
    int status = read_config(w, &in, e);
    kvc_input_close(&in);
    return status ? kvc_error_prefix(e, "config.json") : 0;
}

/* What config.json says; but a cache with its own weights says itself how they are paired. */
static int safetensors_facts(struct kvc_weights *w, const struct kvc_model_files *files, struct kvc_error *e) {
    const json_t *metadata = json_object_get(w->part[0].header, "__metadata__");
    set_arch(w, json_object_get(metadata, "architecture"));
    if (open_config(w, files, e)) return -1;
    w->pairing = kvc_pairing_of_transformers(w->arch);
    const char *pairing = json_string_value(json_object_get(metadata, "rope_pairing"));
    if (!pairing) return 0;
    w->pairing = KVC_PAIRING_UNKNOWN;
    kvc_pairing_parse(strcmp(pairing, "half") == 0 ? "halves" : pairing, &w->pairing);
    return 0;
}

struct kvc_weights *kvc_weights_open(const char *path, struct kvc_error *e) {
    struct kvc_model_files files;
    if (kvc_model_files_list(&files, path, e)) return NULL;
    struct kvc_weights *w = calloc(1, sizeof *w);
    int status = w ? open_parts(w, &files, e) : kvc_fail_memory(e, "the weights files");
    if (!status) status = is_gguf(w) ? gguf_facts(w, e) : safetensors_facts(w, &files, e);
    kvc_model_files_free(&files);
    if (!status) return w;
    kvc_weights_close(w);
    return NULL;
}

void kvc_weights_close(struct kvc_weights *w) {
    if (!w) return;
    for (size_t i = 0; i < w->n; i++) {
        json_decref(w->part[i].header);
        kvc_gguf_close(&w->part[i].gguf);
        kvc_input_close(&w->part[i].in);
    }
    free(w->part);
    free(w);
}

/* ---- finding a tensor ---- */

enum which { K, K_BIAS, V, V_BIAS, NORM, NORM_BIAS, K_NORM, TENSORS };

/* '#' stands for the layer's number; NULL: there is no such tensor. */
static const char *const gguf_names[TENSORS] = {
    "blk.#.attn_k.weight",    "blk.#.attn_k.bias",    "blk.#.attn_v.weight",     "blk.#.attn_v.bias",
    "blk.#.attn_norm.weight", "blk.#.attn_norm.bias", "blk.#.attn_k_norm.weight"};
static const char *const transformers_names[TENSORS] = {
    "layers.#.self_attn.k_proj.weight", "layers.#.self_attn.k_proj.bias",  "layers.#.self_attn.v_proj.weight",
    "layers.#.self_attn.v_proj.bias",   "layers.#.input_layernorm.weight", "layers.#.input_layernorm.bias",
    "layers.#.self_attn.k_norm.weight"};
static const char *const cache_names[TENSORS] = {[K] = "wk.#", [V] = "wv.#"};

static const struct naming {
    int gguf;
    const char *prefix;
    const char *const *name;
} namings[] = {
    {1, "", gguf_names},
    {0, "model.", transformers_names},
    {0, "language_model.model.", transformers_names},
    {0, "model.language_model.", transformers_names},
    {0, "", transformers_names},
    {0, "", cache_names},
};
#define NAMINGS (sizeof namings / sizeof namings[0])

/* A tensor as found: where its values are and what they are. All of its bytes lie inside the file. */
struct tensor {
    char name[128];
    const char *file;
    uint64_t rank, dim[MAX_RANK]; /* the last varies fastest */
    const struct kvc_dtype_info *info;
    const uint8_t *data;
};

/* 0 when there is no such name. */
static int spell(const struct naming *naming, enum which which, uint32_t layer, char *text, size_t size) {
    const char *name = naming->name[which], *mark = name ? strchr(name, '#') : NULL;
    if (!mark) return 0;
    snprintf(text, size, "%s%.*s%" PRIu32 "%s", naming->prefix, (int)(mark - name), name, layer, mark + 1);
    return 1;
}

/* Sets t->data where its bytes, counted from `base` (which lies inside the file), lie inside the file. */
static int place(struct tensor *t, const struct kvc_input *in, uint64_t base, uint64_t offset, uint64_t bytes,
                 struct kvc_error *e) {
    uint64_t size = in->size - base;
    if (offset > size || bytes > size - offset)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "%s: '%s' needs %" PRIu64 " bytes from byte %" PRIu64 " of the data on, but there are %" PRIu64
                        " (file cut short or header damaged)",
                        t->file, t->name, bytes, offset, size);
    t->data = in->data + base + offset;
    return 0;
}

/* Bytes of the tensor's values: 0, or -1 when rows are no whole blocks or the bytes pass 64 bits. */
static int bytes_of(const struct tensor *t, uint64_t *bytes) {
    uint64_t inner = t->rank ? t->dim[t->rank - 1] : 1;
    if (inner % t->info->block) return -1;
    *bytes = inner / t->info->block;
    for (uint64_t i = 0; i + 1 < t->rank; i++)
        if (__builtin_mul_overflow(*bytes, t->dim[i], bytes)) return -1;
    return __builtin_mul_overflow(*bytes, t->info->size, bytes) ? -1 : 0;
}

static int take_gguf(struct tensor *t, const struct part *part, const struct kvc_gguf_tensor *found,
                     struct kvc_error *e) {
    t->info = kvc_dtype_by_ggml(found->type);
    if (!t->info) {
        const char *type = kvc_gguf_type_name(found->type);
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%s: '%s' has type %s (number %" PRIu32 "); kvc reads weights in f32, f16, bf16, q8_0, q4_0, "
                        "q4_1, q5_0, q5_1 and iq4_nl: take the model in one of these",
                        t->file, t->name, type ? type : "unknown", found->type);
    }
    t->rank = found->rank;
    for (uint32_t i = 0; i < found->rank; i++) t->dim[i] = found->dim[found->rank - 1 - i];
    uint64_t bytes;
    if (bytes_of(t, &bytes))
        return kvc_fail(e, KVC_ERR_DAMAGED, "%s: '%s' has dimensions that no tensor of %s can have", t->file, t->name,
                        t->info->name);
    return place(t, &part->in, part->gguf.data_offset, found->offset - part->gguf.data_offset, bytes, e);
}

/* An element type of safetensors that kvc reads weights in, or NULL. */
static const struct kvc_dtype_info *element(const char *name) {
    static const struct {
        const char *name;
        enum kvc_dtype dtype;
    } known[] = {{"F32", KVC_F32}, {"F16", KVC_F16}, {"BF16", KVC_BF16}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, known[i].name) == 0) return kvc_dtype_info(known[i].dtype);
    return NULL;
}

static int get_count(const json_t *v, uint64_t *count) {
    if (!json_is_integer(v) || json_integer_value(v) < 0) return -1;
    *count = (uint64_t)json_integer_value(v);
    return 0;
}

static int take_safetensors(struct tensor *t, const struct part *part, const json_t *entry, struct kvc_error *e) {
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end, bytes;
    if (!dtype || !json_is_array(shape) || json_array_size(offsets) != 2 ||
        get_count(json_array_get(offsets, 0), &begin) || get_count(json_array_get(offsets, 1), &end) || begin > end)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%s: '%s' lacks a dtype, a shape or two data_offsets in order", t->file,
                        t->name);
    t->info = element(dtype);
    char shown[32];
    if (!t->info)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: '%s' has dtype %s; kvc reads weights in F32, F16 and BF16",
                        t->file, t->name, kvc_name_show(dtype, shown, sizeof shown));
    t->rank = json_array_size(shape);
    if (t->rank > MAX_RANK)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: '%s' has %" PRIu64 " dimensions", t->file, t->name, t->rank);
    for (size_t i = 0; i < t->rank; i++)
        if (get_count(json_array_get(shape, i), &t->dim[i]))
            return kvc_fail(e, KVC_ERR_DAMAGED, "%s: the shape of '%s' holds something other than counts", t->file,
                            t->name);
    if (bytes_of(t, &bytes) || bytes != end - begin)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%s: shape and data_offsets of '%s' disagree", t->file, t->name);
    return place(t, &part->in, part->data_at, begin, bytes, e);
}

/* 1 when the file has the tensor, 0 when not, -1 when it cannot be used. */
static int find(const struct kvc_weights *w, const struct naming *naming, enum which which, uint32_t layer,
                struct tensor *t, struct kvc_error *e) {
    memset(t, 0, sizeof *t);
    if (naming->gguf != is_gguf(w) || !spell(naming, which, layer, t->name, sizeof t->name)) return 0;
    for (size_t i = 0; i < w->n; i++) {
        const struct part *part = &w->part[i];
        struct kvc_gguf_tensor found;
        const json_t *entry = json_object_get(part->header, t->name);
        t->file = kvc_base_name(part->in.name);
        if (entry) return take_safetensors(t, part, entry, e) ? -1 : 1;
        if (naming->gguf && kvc_gguf_tensor(&part->gguf, t->name, &found))
            return take_gguf(t, part, &found, e) ? -1 : 1;
    }
    return 0;
}

static int missing(const struct kvc_weights *w, const char *name, struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "%s%s: no tensor '%s' (one tensor of Q, K and V together, and latent attention, cannot be used)",
                    kvc_base_name(w->part[0].in.name), w->n > 1 ? " and the other shards" : "", name);
}

/* The naming under which the file has the layer's K. */
static const struct naming *naming_of(const struct kvc_weights *w, uint32_t layer, struct tensor *k,
                                      struct kvc_error *e) {
    const struct naming *usual = NULL;
    for (size_t i = 0; i < NAMINGS; i++) {
        if (namings[i].gguf != is_gguf(w)) continue;
        int found = find(w, &namings[i], K, layer, k, e);
        if (found) return found < 0 ? NULL : &namings[i];
        if (!usual) usual = &namings[i];
    }
    spell(usual, K, layer, k->name, sizeof k->name);
    missing(w, k->name, e);
    return NULL;
}

/* ---- loading ---- */

/* From one order of output channels to another: of each head of `dim`, the first `rotated` are in pairs. */
struct order {
    uint64_t dim, rotated;
    enum kvc_pairing from, to;
};

/* The channel of the old order that stands at `channel` in the new one. Pair i is channels 2i and 2i + 1 interleaved,
 * i and i + rotated / 2 in halves. */
static uint64_t channel_from(const struct order *o, uint64_t channel) {
    uint64_t i = channel % o->dim, head = channel - i, half = o->rotated / 2;
    if (o->from == o->to || i >= o->rotated) return channel;
    if (o->from == KVC_PAIRING_INTERLEAVED) return head + (i < half ? 2 * i : 2 * (i - half) + 1);
    return head + (i % 2 ? half + i / 2 : i / 2);
}

static int check_dims(const struct tensor *t, uint64_t rank, const uint64_t *dim, struct kvc_error *e) {
    if (t->rank == rank && memcmp(t->dim, dim, (size_t)rank * sizeof *dim) == 0) return 0;
    char have[MAX_RANK * 24] = "", want[MAX_RANK * 24] = "";
    size_t a = 0, b = 0;
    for (uint64_t i = 0; i < t->rank; i++)
        a += (size_t)snprintf(have + a, sizeof have - a, "[%" PRIu64 "]", t->dim[i]);
    for (uint64_t i = 0; i < rank; i++) b += (size_t)snprintf(want + b, sizeof want - b, "[%" PRIu64 "]", dim[i]);
    return kvc_fail(e, KVC_ERR_MODEL, "%s: '%s' has shape %s, but the cache needs %s: is this the right model?",
                    t->file, t->name, t->rank ? have : "[]", want);
}

static float *new_floats(uint64_t n, const struct tensor *t, struct kvc_error *e) {
    float *f = kvc_alloc(n, sizeof *f);
    if (!f) {
        kvc_fail_memory(e, "weights");
        kvc_error_prefix(e, t->name);
    }
    return f;
}

/* A matrix [out][in] of the file as [in][out] floats, channels in the order asked for. The file has bytes for all
 * values: their count overflows nothing. */
static int load_matrix(const struct tensor *t, uint64_t out, uint64_t in, const struct order *o, float **result,
                       struct kvc_error *e) {
    if (check_dims(t, 2, (const uint64_t[]){out, in}, e)) return -1;
    float *w = new_floats(out * in, t, e), *rows = w ? new_floats((out < GROUP ? out : GROUP) * in, t, e) : NULL;
    *result = w;
    if (!rows) return -1;
    uint64_t row_blocks = in / t->info->block, row_bytes = row_blocks * t->info->size;
    for (uint64_t first = 0; first < out; first += GROUP) {
        uint64_t n = out - first < GROUP ? out - first : GROUP;
        for (uint64_t c = 0; c < n; c++)
            t->info->to_f32(rows + c * in, t->data + channel_from(o, first + c) * row_bytes, (size_t)row_blocks);
        for (uint64_t i = 0; i < in; i++)
            for (uint64_t c = 0; c < n; c++) w[i * out + first + c] = rows[c * in + i];
    }
    free(rows);
    return 0;
}

/* A vector of the file, one value an output channel. */
static int load_vector(const struct tensor *t, uint64_t n, const struct order *o, float **result, struct kvc_error *e) {
    if (check_dims(t, 1, &n, e)) return -1;
    float *values = new_floats(n, t, e), *ordered = values ? new_floats(n, t, e) : NULL;
    *result = ordered;
    if (ordered) {
        t->info->to_f32(values, t->data, (size_t)(n / t->info->block));
        for (uint64_t c = 0; c < n; c++) ordered[c] = values[channel_from(o, c)];
    }
    free(values);
    return ordered ? 0 : -1;
}

/* Models whose safetensors hold the norm's weight less 1; llama.cpp's converter adds it. */
static int norm_is_less_one(const struct kvc_weights *w) {
    static const char *const archs[] = {"gemma", "gemma2", "gemma3", "gemma3_text"};
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (!is_gguf(w) && strcmp(w->arch, archs[i]) == 0) return 1;
    return 0;
}

static int load_norm(const struct kvc_weights *w, const struct naming *naming, uint32_t layer,
                     struct kvc_projection *p, struct kvc_error *e) {
    struct tensor t;
    const struct order as_it_is = {p->shape.in, 0, KVC_PAIRING_NONE, KVC_PAIRING_NONE};
    int found = find(w, naming, NORM, layer, &t, e);
    if (found < 0 || (found && load_vector(&t, p->shape.in, &as_it_is, &p->norm, e))) return -1;
    for (uint64_t i = 0; found && norm_is_less_one(w) && i < p->shape.in; i++) p->norm[i] += 1;
    p->norm_epsilon = w->epsilon;
    if ((p->norm_bias = find(w, naming, NORM_BIAS, layer, &t, e)) < 0) return -1;
    return (p->k_norm = find(w, naming, K_NORM, layer, &t, e)) < 0 ? -1 : 0;
}

/* K or V: its matrix, found already, and its bias. */
static int load_one(const struct kvc_weights *w, const struct naming *naming, const struct tensor *t, enum which bias,
                    uint32_t layer, const struct kvc_projection_shape *s, const struct order *o, float **matrix,
                    float **vector, struct kvc_error *e) {
    uint64_t out = s->heads * o->dim;
    struct tensor b;
    if (load_matrix(t, out, s->in, o, matrix, e)) return -1;
    int found = find(w, naming, bias, layer, &b, e);
    return found > 0 ? load_vector(&b, out, o, vector, e) : found;
}

static int load(const struct kvc_weights *w, uint32_t layer, struct kvc_projection *p, struct kvc_error *e) {
    const struct kvc_projection_shape *s = &p->shape;
    const struct order k_order = {s->dim, s->rotated, w->pairing, s->pairing};
    const struct order v_order = {s->dim_v, 0, KVC_PAIRING_NONE, KVC_PAIRING_NONE};
    struct tensor k, v;
    const struct naming *naming = naming_of(w, layer, &k, e);
    if (!naming || load_one(w, naming, &k, K_BIAS, layer, s, &k_order, &p->k, &p->k_bias, e)) return -1;
    int found = find(w, naming, V, layer, &v, e);
    if (!found) return missing(w, v.name, e);
    if (found < 0 || load_one(w, naming, &v, V_BIAS, layer, s, &v_order, &p->v, &p->v_bias, e)) return -1;
    return load_norm(w, naming, layer, p, e);
}

static int check_shape(struct kvc_projection_shape *s, struct kvc_error *e) {
    if (!s->rotated && s->pairing != KVC_PAIRING_NONE) s->rotated = s->dim;
    if (!s->in || !s->heads || !s->dim || !s->dim_v || s->in > MAX_SHAPE || s->heads > MAX_SHAPE ||
        s->dim > MAX_SHAPE || s->dim_v > MAX_SHAPE)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "no projection has %" PRIu64 " channels in and %" PRIu64 " heads of %" PRIu64 " (K) and "
                        "%" PRIu64 " (V) channels out",
                        s->in, s->heads, s->dim, s->dim_v);
    if (s->rotated > s->dim || s->rotated % 2)
        return kvc_fail(e, KVC_ERR_USAGE, "RoPE cannot turn %" PRIu64 " channels of a head of %" PRIu64, s->rotated,
                        s->dim);
    return 0;
}

/* K can be brought from the file's pairing to the cache's. */
static int check_pairing(const struct kvc_weights *w, const struct kvc_projection_shape *s, struct kvc_error *e) {
    const char *file = kvc_base_name(w->part[0].in.name);
    char shown[sizeof w->arch];
    kvc_name_show(w->arch, shown, sizeof shown);
    if (s->pairing == KVC_PAIRING_UNKNOWN)
        return kvc_fail(e, KVC_ERR_USAGE, "the RoPE pairing of the cache's K is unknown; give --model or --pairing");
    if (w->pairing == KVC_PAIRING_UNKNOWN)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%s: it is not known which channels of K RoPE pairs in architecture '%s'", file, shown);
    if (w->pairing != s->pairing && (w->pairing == KVC_PAIRING_NONE || s->pairing == KVC_PAIRING_NONE))
        return kvc_fail(e, KVC_ERR_MODEL,
                        "%s: RoPE pairs K of architecture '%s' as '%s', the cache's K as '%s': is it the right model?",
                        file, shown, kvc_pairing_name(w->pairing), kvc_pairing_name(s->pairing));
    return 0;
}

int kvc_weights_load(const struct kvc_weights *w, uint32_t layer, const struct kvc_projection_shape *shape,
                     struct kvc_projection *p, struct kvc_error *e) {
    memset(p, 0, sizeof *p);
    p->shape = *shape;
    if (!check_shape(&p->shape, e) && !check_pairing(w, shape, e) && !load(w, layer, p, e)) return 0;
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

/* ---- identity ---- */

/* Rows of `out` floats, channels in the order asked for; dtype.c holds machines to little-endian floats. */
static void hash_rows(struct kvc_sha256 *h, const float *w, uint64_t rows, uint64_t out, const struct order *o,
                      float *row) {
    for (uint64_t i = 0; i < rows; i++, w += out) {
        for (uint64_t c = 0; c < out; c++) row[c] = w[channel_from(o, c)];
        kvc_sha256_update(h, row, (size_t)out * sizeof *row);
    }
}

static void hash_vector(struct kvc_sha256 *h, const float *values, uint64_t n, const struct order *o, float *row) {
    kvc_sha256_update(h, values ? "\1" : "\0", 1);
    if (values) hash_rows(h, values, 1, n, o, row);
}

int kvc_projection_fingerprint(const struct kvc_projection *p, uint8_t sha256[KVC_SHA256_BYTES], struct kvc_error *e) {
    const struct kvc_projection_shape *s = &p->shape;
    const enum kvc_pairing to = s->pairing == KVC_PAIRING_NONE ? KVC_PAIRING_NONE : KVC_PAIRING_HALVES;
    const struct order k = {s->dim, s->rotated, s->pairing, to}, v = {s->dim_v, 0, to, to};
    const struct order norm = {s->in, 0, to, to};
    uint64_t out = s->heads * s->dim, out_v = s->heads * s->dim_v, widest = out > out_v ? out : out_v;
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
