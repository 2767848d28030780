/* profile.c: profile files read and checked. Layout: kvc-profile(5). Not for making one
 * (profile_learn.c), finding one (profile_find.c), or comparing one with a cache (profile_fit.c).
 */
#include "formats/model/profile.h"

#include "codecs/eigen.h"
#include "codecs/float_env.h"
#include "codecs/memory.h"
#include "codecs/rope.h"
#include "formats/io/bytes.h"
#include "formats/io/input.h"
#include "formats/model/predictor.h"
#include "formats/model/profile_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADS = 4096, MAX_DIM = 1024, MAX_QUERIES = 4096, MAX_BACK = 7, MAX_RECALL = 65536 };

/* --- tensors --- */

static double f64_at(const uint8_t *p, size_t i) {
    return get_f64(p + 8 * i);
}

/* A basis of one part. */
struct basis_arrays {
    struct kvc_profile_array basis, scale, variance;
    int has_variance;
};

/* The tensors of one part. */
struct arrays {
    struct kvc_profile_array mean, queries, queries_scale;
    struct basis_arrays own, residual; /* of the rows, of what is left of them after prediction */
    int has_queries, has_residual;
};

/* Returns 1 where rows and columns of a tensor are as many as these. */
static int has_shape(const struct kvc_profile_array *a, uint64_t rows, uint64_t columns) {
    return a->dim[0] == rows && a->dim[1] == columns;
}

/* Finds the queries of a layer, which must match K or V. Returns as find() does. */
static int profile_find_queries(const struct kvc_profile *p, uint32_t layer, int is_v,
                                struct arrays *a, struct kvc_error *e) {
    const uint64_t heads = a->own.basis.dim[0], dim = a->own.basis.dim[1];
    const struct kvc_profile_array *q = &a->queries;
    const int found = kvc_profile_array(p, layer, "queries", "I8", 3, &a->queries, e);
    if (found < 0 ||
        kvc_profile_array(p, layer, "queries.scale", "F32", 2, &a->queries_scale, e) < 0)
        return -1;
    if (!found) return 0;
    if (!a->queries_scale.data || !has_shape(&a->queries_scale, q->dim[0], q->dim[1]) ||
        q->dim[0] % heads || q->dim[1] > MAX_QUERIES || q->dim[2] > MAX_DIM ||
        q->dim[2] < 2 * p->half[layer] || (!is_v && q->dim[2] != dim))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "layer %" PRIu32 ": queries and K differ in heads or channels", layer);
    return kvc_profile_finite(&a->queries_scale, 0, "queries.scale", layer, e) ? -1 : 1;
}

/* Finds a basis of a part; `prefix` is "" or "residual.". Returns 1 when the file has it, whole and
 * consistent; 0 when it has not. */
static int find_basis(const struct kvc_profile *p, uint32_t layer, int is_v, const char *prefix,
                      struct basis_arrays *a, struct kvc_error *e) {
    char what[32];
    snprintf(what, sizeof what, "%c.%sbasis", is_v ? 'v' : 'k', prefix);
    const int found = kvc_profile_array(p, layer, what, "I8", 3, &a->basis, e);
    if (found <= 0) return found;
    snprintf(what, sizeof what, "%sscale", prefix);
    const int scale = kvc_profile_numbers(p, layer, is_v, what, 0, &a->scale, e);
    snprintf(what, sizeof what, "%svariance", prefix);
    a->has_variance = scale < 0 ? -1
                                : kvc_profile_numbers(p, layer, is_v, what, 0, &a->variance, e);
    if (a->has_variance < 0) return -1;
    const uint64_t heads = a->basis.dim[0], dim = a->basis.dim[1];
    if (a->has_variance && !has_shape(&a->variance, heads, dim))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "layer %" PRIu32 ": %svariance and basis of %s differ in shape", layer,
                        prefix, is_v ? "V" : "K");
    if (!scale || heads > MAX_HEADS || dim > MAX_DIM || a->basis.dim[2] != dim ||
        !has_shape(&a->scale, heads, dim))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "layer %" PRIu32
                        ": %sbasis and scale of %s differ in shape, or one of them is missing",
                        layer, prefix, is_v ? "V" : "K");
    return 1;
}

/* Finds the tensors of a part. Returns 1 when the file has them, whole and consistent; 0 when it
 * has no basis of the part. */
static int find_part(const struct kvc_profile *p, uint32_t layer, int is_v, struct arrays *a,
                     struct kvc_error *e) {
    memset(a, 0, sizeof *a);
    const int found = find_basis(p, layer, is_v, "", &a->own, e);
    if (found <= 0) return found;
    const int mean = kvc_profile_numbers(p, layer, is_v, "mean", -INFINITY, &a->mean, e);
    if (mean < 0) return -1;
    const uint64_t heads = a->own.basis.dim[0], dim = a->own.basis.dim[1];
    if (!mean || !has_shape(&a->mean, heads, dim))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "layer %" PRIu32
                        ": mean and basis of %s differ in shape, or the mean is missing",
                        layer, is_v ? "V" : "K");
    a->has_residual = p->back ? find_basis(p, layer, is_v, "residual.", &a->residual, e) : 0;
    if (a->has_residual < 0) return -1;
    if (a->has_residual && !has_shape(&a->residual.basis, heads, dim))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "layer %" PRIu32 ": residual.basis and basis of %s differ in shape", layer,
                        is_v ? "V" : "K");
    a->has_queries = profile_find_queries(p, layer, is_v, a, e);
    return a->has_queries < 0 ? -1 : 1;
}

/* --- opening --- */

static int read_angles(struct kvc_profile *p, uint32_t layer, struct kvc_error *e) {
    struct kvc_profile_array a;
    const int found = kvc_profile_array(p, layer, "rope", "F64", 1, &a, e);
    if (found <= 0) return found;
    if (!(p->angle[layer] = kvc_alloc(a.dim[0], sizeof(double)))) return kvc_fail_memory(e, "RoPE");
    p->half[layer] = (size_t)a.dim[0];
    for (size_t i = 0; i < p->half[layer]; i++) {
        p->angle[layer][i] = f64_at(a.data, i);
        if (!kvc_rope_angle_is_sane(p->angle[layer][i]))
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "layer %" PRIu32 ": an angle of RoPE is not from 0 to 1", layer);
    }
    return 0;
}

/* Returns a count from 1 to `most` in decimal, without a sign or zeros before it; 0 where the text
 * is none. */
static uint32_t read_count(const struct kvc_profile *p, const char *key, uint32_t most) {
    const char *text = kvc_profile_text(p, key);
    uint32_t n = 0;
    if (*text == '0') return 0;
    for (; *text >= '0' && *text <= '9' && n <= most; text++) n = 10 * n + (uint32_t)(*text - '0');
    return *text || n > most ? 0 : n;
}

/* Refuses what this reader must know and does not: a later version, a required feature. There are
 * no features yet. Version 0 was version 1 without predictors. */
static int read_version(struct kvc_profile *p, struct kvc_error *e) {
    const char *version = kvc_profile_text(p, "kvc.profile"),
               *features = kvc_profile_text(p, "requires");
    if (!*version)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "a safetensors file, but not a kvc profile");
    p->old = strcmp(version, "0") == 0;
    if (!p->old && strcmp(version, "1") != 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "a profile of version '%.16s', which this kvc does not read", version);
    if (!*features) return 0;
    const int length = (int)strcspn(features, ",");
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "the profile requires the feature '%.*s', which this kvc does not know",
                    length < 64 ? length : 64, features);
}

/* Reads the tokens of repeated text in the metric: as none, 0 is as good as no text. */
static int read_recall(struct kvc_profile *p, struct kvc_error *e) {
    const char *recall = kvc_safetensors_text(&p->header, "metric.recall");
    if (!recall || strcmp(recall, "0") == 0 ||
        (p->recall = read_count(p, "metric.recall", MAX_RECALL)))
        return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "metadata: metric.recall is not a number from 0 to %d",
                    MAX_RECALL);
}

static int read_metric(struct kvc_profile *p, struct kvc_error *e) {
    static const char *const names[] = {[KVC_METRIC_FISHER] = "fisher",
                                        [KVC_METRIC_QUERY] = "query",
                                        [KVC_METRIC_COVARIANCE] = "covariance"};
    const char *metric = kvc_safetensors_text(&p->header, "metric");
    p->metric = KVC_METRIC_COVARIANCE;
    if (!metric) return 0;
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(metric, names[i]) != 0) continue;
        p->metric = i;
        return 0;
    }
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "the profile has the metric '%.40s', which this kvc does not know", metric);
}

static int profile_read_header(struct kvc_profile *p, struct kvc_error *e) {
    char why[64];
    const uint64_t header = kvc_safetensors_begins(p->data, p->size, why, sizeof why);
    if (!header || header > p->size)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "not a safetensors file");
    if (kvc_safetensors_read(&p->header, p->data, p->size,
                             KVC_SAFETENSORS_NO_REST | KVC_SAFETENSORS_ANY_DTYPE, e))
        return -1;
    if (read_version(p, e) || read_metric(p, e) || read_recall(p, e)) return -1;
    p->model = kvc_profile_text(p, "model.name");
    if (!(p->layers = read_count(p, "model.layers", KVC_PROFILE_LAYERS)))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "metadata: model.layers is missing or not a number from 1 to %d",
                        KVC_PROFILE_LAYERS);
    if (!p->old && kvc_safetensors_text(&p->header, "predictor.back") &&
        !(p->back = read_count(p, "predictor.back", MAX_BACK)))
        return kvc_fail(e, KVC_ERR_DAMAGED, "metadata: predictor.back is not a number from 1 to %d",
                        MAX_BACK);
    return 0;
}

/* Refuses a layer whose RoPE rotates more channels than K has. All tensors of K that are put into
 * the order of a cache, with a basis or without, are as wide as its mean, which they need. */
static int check_pairs(const struct kvc_profile *p, uint32_t layer, struct kvc_error *e) {
    struct kvc_profile_array mean;
    if (kvc_profile_array(p, layer, "k.mean", "F32", 2, &mean, NULL) != 1) return 0;
    if (2 * p->half[layer] <= mean.dim[1]) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "layer %" PRIu32 ": RoPE rotates more channels than K has",
                    layer);
}

static int check_all(struct kvc_profile *p, struct kvc_error *e) {
    struct arrays a;
    int any = 0;
    p->angle = calloc(p->layers, sizeof *p->angle);
    p->half = calloc(p->layers, sizeof *p->half);
    p->slot = kvc_alloc_zeros((size_t)p->layers * 2, KVC_PROFILE_VARIANTS * sizeof *p->slot);
    p->predictor = kvc_alloc_zeros((size_t)p->layers * 2,
                                   KVC_PROFILE_VARIANTS * sizeof *p->predictor);
    if (!p->angle || !p->half || !p->slot || !p->predictor) return kvc_fail_memory(e, "a profile");
    for (uint32_t l = 0; l < p->layers; l++) {
        if (read_angles(p, l, e)) return -1;
        for (int v = 0; v < 2; v++) {
            const int found = find_part(p, l, v, &a, e);
            if (found < 0 || (p->back && kvc_predictor_check(p, l, v, e))) return -1;
            any |= found;
        }
        if (check_pairs(p, l, e)) return -1;
    }
    return any ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "the profile has no basis of any layer");
}

struct kvc_profile *kvc_profile_open_memory(const uint8_t *data, size_t size, struct kvc_error *e) {
    struct kvc_profile *p = calloc(1, sizeof *p);
    if (!p || pthread_mutex_init(&p->lock, NULL)) {
        kvc_fail_memory(e, "a profile");
        free(p);
        return NULL;
    }
    p->holders = 1;
    p->data = malloc(size + 1);
    int status = p->data ? 0 : kvc_fail_memory(e, "a profile");
    if (!status) {
        if (size) memcpy(p->data, data, size);
        p->size = size;
        status = kvc_sha256(data, size, p->sha256, e) || profile_read_header(p, e) ||
                 check_all(p, e);
    }
    if (!status) return p;
    kvc_profile_free(p);
    return NULL;
}

int kvc_profile_open_input(struct kvc_input *in, const char *path, struct kvc_error *e) {
    const struct kvc_input_how how = {.read = 1, .most = KVC_PROFILE_BYTES};
    return kvc_input_open_how(in, path, &how, e);
}

struct kvc_profile *kvc_profile_open(const char *path, struct kvc_error *e) {
    struct kvc_input in;
    if (kvc_profile_open_input(&in, path, e)) return NULL;
    struct kvc_profile *p = NULL;
    if (in.size > KVC_PROFILE_BYTES) kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "too large for a profile");
    else if (!kvc_input_pin(&in, 0, in.size, e))
        p = kvc_profile_open_memory(in.data, (size_t)in.size, e);
    if (p) p->path = strdup(path); /* NULL is as good: it is for messages */
    kvc_input_close(&in);
    if (!p) kvc_error_prefix(e, path);
    return p;
}

void kvc_profile_free(struct kvc_profile *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    const unsigned others = --p->holders;
    pthread_mutex_unlock(&p->lock);
    if (others) return;
    for (uint32_t l = 0; p->angle && l < p->layers; l++) free(p->angle[l]);
    for (size_t i = 0; p->slot && i < (size_t)p->layers * 2 * KVC_PROFILE_VARIANTS; i++) {
        free(p->slot[i].memory);
        free(p->slot[i].inverse);
        free(p->slot[i].query);
        free(p->slot[i].residual_memory);
        free(p->slot[i].residual_inverse);
    }
    for (size_t i = 0; p->predictor && i < (size_t)p->layers * 2 * KVC_PROFILE_VARIANTS; i++)
        kvc_predictor_slot_free(&p->predictor[i]);
    free(p->angle);
    free(p->half);
    free(p->slot);
    free(p->predictor);
    kvc_safetensors_free(&p->header);
    free(p->data);
    free(p->path);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

struct kvc_profile *kvc_profile_hold(struct kvc_profile *p) {
    pthread_mutex_lock(&p->lock);
    p->holders++;
    pthread_mutex_unlock(&p->lock);
    return p;
}

const uint8_t *kvc_profile_bytes(const struct kvc_profile *p, size_t *size) {
    *size = p->size;
    return p->data;
}

const uint8_t *kvc_profile_sha256(const struct kvc_profile *p) {
    return p->sha256;
}

const char *kvc_profile_path(const struct kvc_profile *p) {
    return p->path ? p->path : "";
}

const char *kvc_profile_model(const struct kvc_profile *p) {
    return p->model;
}

enum kvc_profile_metric kvc_profile_metric(const struct kvc_profile *p) {
    return p->metric;
}

uint32_t kvc_profile_recall(const struct kvc_profile *p) {
    return p->recall;
}

uint32_t kvc_profile_layers(const struct kvc_profile *p) {
    return p->layers;
}

const char *kvc_profile_text(const struct kvc_profile *p, const char *key) {
    const char *text = kvc_safetensors_text(&p->header, key);
    return text ? text : "";
}

const double *kvc_profile_angles(const struct kvc_profile *p, uint32_t layer, size_t *half) {
    if (layer >= p->layers) return NULL;
    *half = p->half[layer];
    return p->angle[layer];
}

int kvc_profile_shape(const struct kvc_profile *p, uint32_t layer, enum kvc_role role,
                      uint64_t *heads, uint64_t *dim, struct kvc_error *e) {
    struct arrays a;
    const int found = layer < p->layers ? find_part(p, layer, role == KVC_ROLE_V, &a, e) : 0;
    if (found != 1) return found;
    *heads = a.own.basis.dim[0];
    *dim = a.own.basis.dim[1];
    return 1;
}

/* --- parts --- */

/* Prepares a basis of a part, and means: those of the file, or 0. *memory holds all that the part
 * points to. */
static int make_basis(const struct kvc_profile *p, uint32_t layer, const struct basis_arrays *a,
                      const uint8_t *file_mean, int is_v, int interleaved,
                      struct kvc_profile_part *part, float **memory, struct kvc_error *e) {
    const size_t heads = (size_t)a->basis.dim[0], dim = (size_t)a->basis.dim[1],
                 half = is_v ? 0 : p->half[layer];
    const size_t width = heads * dim;
    const size_t size = (dim + 3) * sizeof **memory + dim; /* of a channel */
    if (!(*memory = kvc_alloc_lines(width, size))) return kvc_fail_memory(e, "a profile");
    memset(*memory, 0, width * size);
    float *basis = *memory, *mean = basis + width * dim, *scale = mean + width,
          *variance = scale + width;
    int8_t *code = (int8_t *)(variance + width);
    for (size_t i = 0; i < width && file_mean; i++)
        mean[i / dim * dim + kvc_profile_place(i % dim, half, interleaved)] = get_f32(file_mean +
                                                                                      4 * i);
    for (size_t i = 0; i < width; i++) {
        scale[i] = get_f32(a->scale.data + 4 * i);
        if (a->has_variance) variance[i] = get_f32(a->variance.data + 4 * i);
        for (size_t d = 0; d < dim; d++)
            code[i * dim + kvc_profile_place(d, half, interleaved)] =
                (int8_t)a->basis.data[i * dim + d];
    }
    for (size_t i = 0; i < width * dim; i++) basis[i] = (float)code[i] * scale[i / dim];
    *part = (struct kvc_profile_part){.heads = heads,
                                      .dim = dim,
                                      .mean = mean,
                                      .basis = basis,
                                      .code = code,
                                      .scale = scale,
                                      .variance = a->has_variance ? variance : NULL,
                                      .half = half,
                                      .angle = is_v ? NULL : p->angle[layer]};
    return 0;
}

static int make_part(const struct kvc_profile *p, uint32_t layer, const struct arrays *a, int is_v,
                     int interleaved, struct kvc_profile_slot *s, struct kvc_error *e) {
    if (make_basis(p, layer, &a->own, a->mean.data, is_v, interleaved, &s->part, &s->memory, e))
        return -1;
    if (a->has_residual) {
        if (make_basis(p, layer, &a->residual, NULL, is_v, interleaved, &s->residual,
                       &s->residual_memory, e)) {
            free(s->memory);
            s->memory = NULL;
            return -1;
        }
        s->part.residual = &s->residual;
    }
    s->made = 1;
    return 0;
}

static int make_inverse(struct kvc_profile_part *part, float **inverse, struct kvc_error *e) {
    const size_t heads = part->heads, dim = part->dim;
    double *a = kvc_alloc(dim, dim * sizeof *a);
    float *made = kvc_alloc(heads * dim, dim * sizeof *made);
    int status = a && made ? 0 : kvc_fail_memory(e, "a profile");
    for (size_t h = 0; h < heads && !status; h++) {
        for (size_t i = 0; i < dim * dim; i++) a[i] = (double)part->basis[h * dim * dim + i];
        status = kvc_invert(a, dim, e);
        for (size_t i = 0; i < dim * dim && !status; i++) made[h * dim * dim + i] = (float)a[i];
    }
    free(a);
    if (!status) {
        part->inverse = *inverse = made;
        return 0;
    }
    free(made);
    return -1;
}

/* Makes the inverses of both bases, that of the rows last: it says that an encoder can use the
 * part. */
static int make_inverses(struct kvc_profile_slot *s, struct kvc_error *e) {
    if (s->part.residual && !s->residual.inverse &&
        make_inverse(&s->residual, &s->residual_inverse, e))
        return -1;
    return make_inverse(&s->part, &s->inverse, e);
}

/* Prepares the queries, whose channels are those of K. */
static int make_queries(const struct kvc_profile *p, uint32_t layer, const struct arrays *a,
                        int interleaved, struct kvc_profile_slot *s, struct kvc_error *e) {
    if (!a->has_queries || s->query) return 0;
    const size_t heads = (size_t)a->queries.dim[0], n = (size_t)a->queries.dim[1],
                 dim = (size_t)a->queries.dim[2];
    if (!(s->query = kvc_alloc(heads * n, dim * sizeof *s->query)))
        return kvc_fail_memory(e, "a profile");
    for (size_t h = 0; h < heads; h++)
        for (size_t q = 0; q < n; q++)
            for (size_t d = 0; d < dim; d++)
                s->query[(q * heads + h) * dim +
                         kvc_profile_place(d, p->half[layer], interleaved)] =
                    (float)(int8_t)a->queries.data[(h * n + q) * dim + d] *
                    get_f32(a->queries_scale.data + 4 * (h * n + q));
    s->part.query = s->query;
    s->part.query_heads = heads;
    s->part.n_queries = n;
    return 0;
}

int kvc_profile_part(struct kvc_profile *p, uint32_t layer, enum kvc_role role,
                     enum kvc_pairing pairing, int encoder, const struct kvc_profile_part **part,
                     struct kvc_error *e) {
    const int is_v = role == KVC_ROLE_V, interleaved = pairing == KVC_PAIRING_INTERLEAVED;
    struct arrays a;
    *part = NULL;
    if (layer >= p->layers || (role != KVC_ROLE_K && role != KVC_ROLE_V)) return 0;
    struct kvc_profile_slot *s =
        &p->slot[(layer * 2 + (uint32_t)is_v) * KVC_PROFILE_VARIANTS + (uint32_t)interleaved];
    pthread_mutex_lock(&p->lock);
    const fenv_t env = kvc_float_env_enter(); /* what is made here is kept */
    int found = 1;
    if (!s->made || (encoder && !s->part.inverse)) {
        found = find_part(p, layer, is_v, &a, e);
        if (found == 1 && !s->made && make_part(p, layer, &a, is_v, interleaved, s, e)) found = -1;
        if (found == 1 && encoder &&
            (make_queries(p, layer, &a, interleaved, s, e) || make_inverses(s, e)))
            found = -1;
    }
    kvc_float_env_leave(&env);
    pthread_mutex_unlock(&p->lock);
    if (found == 1) *part = &s->part;
    return found < 0 ? -1 : 0;
}
