/* profile_fit.c: whether a profile fits a cache, by the metadata and by the values of the cache.
 * Not for reading profiles (profile.c).
 *
 * A format cannot tell the keys and values of two models of one shape apart. A profile can: the
 * coefficients of another model's rows, or of rows whose channels are paired in another way, are
 * several times as large as the variances of the profile. */
#include "formats/model/profile_fit.h"

#include "codecs/floats.h"
#include "codecs/median.h"
#include "codecs/memory.h"
#include "codecs/number.h"
#include "codecs/recipe.h"
#include "codecs/rope.h"
#include "codecs/stage.h"
#include "formats/cache/keys.h"
#include "formats/cache/layers.h"
#include "formats/cache/scales.h"
#include "formats/io/parallel.h"
#include "formats/model/layer_rope.h"
#include "formats/model/predictor.h"
#include "formats/model/profile_state.h"
#include "formats/cache/view.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- facts --- */

enum kvc_profile_weights kvc_profile_compare_weights(const struct kvc_safetensors *header,
                                                     const struct kvc_cache *c,
                                                     const char **differs) {
    enum kvc_profile_weights weights = KVC_WEIGHTS_UNKNOWN;
    for (size_t i = 0; i < c->meta.n; i++) {
        const struct kvc_meta_entry *m = &c->meta.entry[i];
        char hex[2 * KVC_SHA256_BYTES + 1];
        const char *mine = kvc_safetensors_text(header, m->key);
        if (strncmp(m->key, KVC_KEY_FINGERPRINT, strlen(KVC_KEY_FINGERPRINT)) != 0 ||
            m->size != KVC_SHA256_BYTES || !mine || !*mine)
            continue;
        kvc_hex(m->value, KVC_SHA256_BYTES, hex);
        weights = KVC_WEIGHTS_SAME;
        if (strcmp(hex, mine) == 0) continue;
        if (differs) *differs = m->key;
        return KVC_WEIGHTS_OTHER;
    }
    return weights;
}

enum kvc_profile_weights kvc_profile_weights(const struct kvc_profile *p,
                                             const struct kvc_cache *c) {
    return kvc_profile_compare_weights(&p->header, c, NULL);
}

static int other_fingerprint(const struct kvc_profile *p, const struct kvc_cache *c,
                             struct kvc_error *e) {
    const char *key;
    if (kvc_profile_compare_weights(&p->header, c, &key) != KVC_WEIGHTS_OTHER) return 0;
    return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                    "the cache is of other weights than the profile's (%s): %s",
                    kvc_profile_model(p), key);
}

/* Refuses a layer that RoPE rotated by other angles than those of the profile, where the cache
 * tells its angles. */
static int other_angles(const struct kvc_profile *p, const struct kvc_cache *c, uint32_t number,
                        struct kvc_error *e) {
    const uint32_t layer = c->layer[number].index;
    struct kvc_rope_facts facts;
    double *room;
    size_t half;
    const double *angle = kvc_profile_angles(p, layer, &half);
    int other = 0;
    if (!angle) return 0;
    if (kvc_rope_of_layer(c, number, NULL, &facts, &room, e)) return -1;
    if (facts.angle) other = facts.half != half;
    for (size_t i = 0; facts.angle && i < facts.half && !other; i++)
        other = fabs(facts.angle[i] - angle[i]) > 1e-5 * facts.angle[i];
    free(room);
    if (!other) return 0;
    return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                    "layer %" PRIu32
                    ": the angles of RoPE in the cache are not those of the profile (%s)",
                    layer, kvc_profile_model(p));
}

/* Compares the shape of a tensor, and RoPE of its layer. */
static int tensor_fits(const struct kvc_profile *p, const struct kvc_cache *c, uint32_t t,
                       struct kvc_error *e) {
    const struct kvc_tensor *tensor = &c->tensor[t];
    const uint32_t layer = c->layer[tensor->layer].index, layers = kvc_profile_layers(p);
    const enum kvc_pairing pairing = c->meta.facts.rope.pairing;
    const char *paired = kvc_profile_text(p, "rope.pairing");
    uint64_t heads, dim;
    size_t half;
    if (layer >= layers)
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "the cache has a layer %" PRIu32
                        ", the model of the profile (%s) has %" PRIu32 " layers",
                        layer, kvc_profile_model(p), layers);
    const int found = kvc_profile_shape(p, layer, tensor->role, &heads, &dim, e);
    if (found != 1) return found;
    if (heads != tensor->shape.heads || dim != tensor->shape.dim)
        return kvc_fail_need(e, KVC_ERR_OTHER_MODEL,
                             c->meta.facts.heads_unknown ? KVC_NEED_HEADS : KVC_NEED_NOTHING,
                             "layer %" PRIu32 " has %" PRIu64 " head%s of %" PRIu64
                             " channels, the profile (%s) has %" PRIu64 " of %" PRIu64,
                             layer, tensor->shape.heads, tensor->shape.heads == 1 ? "" : "s",
                             tensor->shape.dim, kvc_profile_model(p), heads, dim);
    if (tensor->role != KVC_ROLE_K) return 0;
    if (kvc_profile_angles(p, layer, &half) && pairing == KVC_PAIRING_UNKNOWN)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PAIRING,
                             "the RoPE pairing of K is unknown, and a profile needs it");
    if (*paired && pairing && strcmp(paired, kvc_pairing_name(pairing)) != 0)
        return kvc_fail(e, KVC_ERR_OTHER_MODEL, "K is paired as %s, in the profile as %s",
                        kvc_pairing_name(pairing), paired);
    return other_angles(p, c, tensor->layer, e);
}

int kvc_profile_fits(const struct kvc_profile *p, const struct kvc_cache *c, struct kvc_error *e) {
    const uint64_t layers = c->meta.facts.layers;
    int any = 0;
    if (layers && layers != kvc_profile_layers(p))
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "the cache is of a model of %" PRIu64
                        " layers, that of the profile (%s) has %" PRIu32,
                        layers, kvc_profile_model(p), kvc_profile_layers(p));
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        if (c->tensor[t].role != KVC_ROLE_K && c->tensor[t].role != KVC_ROLE_V) continue;
        any = 1;
        if (tensor_fits(p, c, t, e)) return -1;
    }
    if (!any)
        return kvc_fail(e, KVC_ERR_OTHER_MODEL,
                        "the cache has no K or V that a profile could serve");
    return other_fingerprint(p, c, e);
}

/* --- measuring --- */

enum { SAMPLE_RUNS = 8, RUN_ROWS = 8 };

/* The state that threads share, and their results. */
struct measurement {
    struct kvc_profile *profile;
    const struct kvc_cache *cache;
    enum kvc_pairing pairing;
    struct kvc_fit_layer *layer; /* of each of the cache's layers */
};

static int is_measured(const struct kvc_cache *c, uint32_t t) {
    const struct kvc_tensor *tensor = &c->tensor[t];
    return (tensor->role == KVC_ROLE_K || tensor->role == KVC_ROLE_V) &&
           kvc_is_float(tensor->shape.dtype) && kvc_part_is_attended(kvc_tensor_part(c, t));
}

/* Adds the squares of a row's coefficients to `sum`. `room` holds as many floats as a head has
 * channels. */
static void add_squares(const struct kvc_profile_part *part, float *row, double *sum, float *room) {
    const size_t dim = part->dim;
    for (size_t i = 0; i < part->heads * dim; i++) row[i] -= part->mean[i];
    for (size_t h = 0; h < part->heads; h++) {
        kvc_kernels_get()->multiply_rows(room, row + h * dim, part->inverse + h * dim * dim, dim,
                                         dim, dim);
        for (size_t j = 0; j < dim; j++) sum[h * dim + j] += (double)room[j] * (double)room[j];
    }
}

/* Adds up the squares of the coefficients of some rows: runs of RUN_ROWS, evenly over the cache,
 * without the first tokens. Returns the number of rows, or -1. */
static int64_t sum_squares(const struct measurement *m, uint32_t t,
                           const struct kvc_profile_part *part, struct kvc_rope *rope, double *sum,
                           struct kvc_error *e) {
    const struct kvc_cells *cells = kvc_tensor_cells(m->cache, t);
    const size_t width = part->heads * part->dim;
    float *rows = kvc_alloc(RUN_ROWS * width + part->dim, sizeof *rows);
    int64_t measured = rows ? 0 : kvc_fail_memory(e, "rows");
    for (uint64_t run = 0, next = 0; run < SAMPLE_RUNS && measured >= 0 && next < cells->n; run++) {
        uint64_t first = cells->n > RUN_ROWS ? (cells->n - RUN_ROWS) * run / (SAMPLE_RUNS - 1) : 0;
        if (first < next) first = next;
        const uint64_t n = cells->n - first < RUN_ROWS ? cells->n - first : RUN_ROWS;
        next = first + n;
        if (kvc_read_floats(m->cache, t, first, n, rows, 0, e)) measured = -1;
        for (uint64_t i = 0; i < n && measured >= 0; i++) {
            const int64_t position = kvc_cells_position(cells, first + i);
            float *row = rows + i * width;
            if (position < KVC_PROFILE_FIRST || position >= KVC_ROPE_POSITIONS ||
                !kvc_all_finite(row, width))
                continue;
            if (rope->half) kvc_row_before_rope(rope, row, part->heads, part->dim, position);
            add_squares(part, row, sum, rows + RUN_ROWS * width);
            measured++;
        }
    }
    free(rows);
    return measured;
}

/* Measures the ratio of a tensor; 0 where it cannot be measured. */
static int measure_tensor(const struct measurement *m, uint32_t t, double *ratio,
                          struct kvc_error *e) {
    const struct kvc_cache *c = m->cache;
    const enum kvc_role role = c->tensor[t].role;
    const struct kvc_profile_part *part;
    struct kvc_rope rope = {.half = 0};
    *ratio = 0;
    if (kvc_profile_part(m->profile, kvc_tensor_layer(c, t)->index, role, m->pairing, 1, &part, e))
        return -1;
    if (!part || !part->variance || part->heads != c->tensor[t].shape.heads ||
        part->dim != c->tensor[t].shape.dim)
        return 0;
    const size_t width = part->heads * part->dim;
    double *sum = kvc_alloc_zeros(width, sizeof *sum);
    if (!sum) return kvc_fail_memory(e, "coefficients");
    const int rotated = role == KVC_ROLE_K && part->angle && !c->meta.facts.rope.before &&
                        kvc_pairing_turns(m->pairing);
    int64_t rows = 0;
    if (rotated && kvc_rope_init(&rope, part->angle, part->half, m->pairing, e)) rows = -1;
    if (!rows) rows = sum_squares(m, t, part, &rope, sum, e);
    kvc_rope_free(&rope);
    size_t n = 0;
    for (size_t i = 0; i < width && rows > 0; i++)
        if (part->variance[i] > 0) sum[n++] = sum[i] / (double)rows / (double)part->variance[i];
    *ratio = kvc_median(sum, n);
    free(sum);
    return rows < 0 ? -1 : 0;
}

static int measure_layer(void *state, uint64_t item, void **result, struct kvc_error *e) {
    const struct measurement *m = state;
    const struct kvc_layer *layer = &m->cache->layer[item];
    *result = NULL;
    m->layer[item].layer = layer->index;
    for (int r = 0; r < 2; r++) {
        const uint32_t t = layer->tensor[r];
        if (t == KVC_NONE || !is_measured(m->cache, t)) continue;
        if (measure_tensor(m, t, &m->layer[item].ratio[m->cache->tensor[t].role == KVC_ROLE_V],
                           e)) {
            char label[64];
            kvc_tensor_label(m->cache, t, label, sizeof label);
            return kvc_error_prefix(e, label);
        }
    }
    return 0;
}

static double over_layers(const struct kvc_fit *fit, int role, double *room) {
    size_t n = 0;
    for (uint32_t i = 0; i < fit->n; i++)
        if (fit->layer[i].ratio[role] > 0) room[n++] = fit->layer[i].ratio[role];
    return kvc_median(room, n);
}

void kvc_fit_free(struct kvc_fit *fit) {
    free(fit->layer);
    memset(fit, 0, sizeof *fit);
}

const char *kvc_fit_name(enum kvc_fit_verdict verdict) {
    static const char *const names[] = {"unknown", "good", "doubtful", "bad"};
    return names[verdict];
}

/* Limits of the ratios, from measurements with SmolLM2. Texts of all kinds have medians from 0.54
 * to 1.42 and layers up to 2.4, from 6 tokens on. One token repeated, whose rows are nearly equal,
 * has medians from 0.14 to 2.3 and layers up to 5.1. K in the other pairing has medians of 10 to
 * 16; layers of another model, 7 to 300. */
#define DOUBT 2.0
#define MISFIT 3.0
#define LAYER_DOUBT 4.0
#define LAYER_MISFIT 8.0

static double largest(const struct kvc_fit *fit, int role) {
    double maximum = 0;
    for (uint32_t i = 0; i < fit->n; i++) maximum = fmax(maximum, fit->layer[i].ratio[role]);
    return maximum;
}

static enum kvc_fit_verdict judge(const struct kvc_fit *fit) {
    enum kvc_fit_verdict verdict = KVC_FIT_UNKNOWN;
    for (int r = 0; r < 2; r++) {
        const double ratio = fit->ratio[r], worst = largest(fit, r);
        if (!(ratio > 0)) continue;
        const enum kvc_fit_verdict own = ratio > MISFIT || worst > LAYER_MISFIT ? KVC_FIT_BAD
                                         : ratio > DOUBT || ratio < 1 / DOUBT || worst > LAYER_DOUBT
                                             ? KVC_FIT_DOUBTFUL
                                             : KVC_FIT_GOOD;
        if (own > verdict) verdict = own;
    }
    return verdict;
}

int kvc_fit_measure(struct kvc_fit *fit, struct kvc_profile *p, const struct kvc_cache *c,
                    enum kvc_pairing pairing, unsigned threads, struct kvc_error *e) {
    struct measurement m = {.profile = p, .cache = c, .pairing = pairing};
    struct kvc_job job = {.n = c->n_layers, .work = measure_layer, .state = &m};
    double *room = kvc_alloc_zeros((size_t)c->n_layers + 1, sizeof *room);
    memset(fit, 0, sizeof *fit);
    m.layer = kvc_alloc_zeros((size_t)c->n_layers + 1, sizeof *m.layer);
    int status = m.layer && room ? kvc_parallel(&job, kvc_cache_threads(c, threads), e)
                                 : kvc_fail_memory(e, "the fit of a profile");
    if (!status) {
        fit->layer = m.layer;
        for (uint32_t i = 0; i < c->n_layers; i++)
            if (m.layer[i].ratio[0] > 0 || m.layer[i].ratio[1] > 0)
                fit->layer[fit->n++] = m.layer[i];
        for (int r = 0; r < 2; r++) fit->ratio[r] = over_layers(fit, r, room);
        fit->verdict = judge(fit);
    } else {
        free(m.layer);
    }
    free(room);
    return status;
}

/* --- facts that the profile has and the cache lacks --- */

/* Finds the layers that have a window. Returns 0 where neither the profile tells them nor RoPE.
 * RoPE tells them where the layers have two kinds of angles and one kind has as many layers as the
 * cache has layers with a window. */
static int pattern_of(const struct kvc_profile *p, const struct kvc_cache *c,
                      struct kvc_layer_pattern *pattern) {
    const char *text = kvc_profile_text(p, "model.sliding-layers");
    const unsigned long window = strtoul(kvc_profile_text(p, "model.sliding-window"), NULL, 10);
    const uint32_t layers = kvc_profile_layers(p);
    uint32_t sliding = 0, same = 0;
    size_t half, first_half;
    kvc_pattern_repeat(pattern, layers, 1, window <= UINT32_MAX ? (uint32_t)window : 0);
    if (strlen(text) == layers && strspn(text, "01") == layers) {
        for (uint32_t i = 0; i < layers; i++) pattern->sliding[i] = text[i] == '1';
        return 1;
    }
    if (!kvc_layers_ambiguous(c)) return 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct kvc_part *part = &c->part[c->layer[i].part];
        sliding += part->kind == KVC_PART_WINDOW && !part->stream;
    }
    const double *first = kvc_profile_angles(p, 0, &first_half);
    for (uint32_t i = 0; i < layers; i++) {
        const double *angle = kvc_profile_angles(p, i, &half);
        if (!first || !angle) return 0;
        pattern->sliding[i] = half == first_half && memcmp(angle, first, half * sizeof *angle) == 0;
        same += pattern->sliding[i];
    }
    if (2 * sliding == layers || (same != sliding && same != layers - sliding)) return 0;
    for (uint32_t i = 0; i < layers && same != sliding; i++)
        pattern->sliding[i] = !pattern->sliding[i];
    return 1;
}

/* Takes the number of heads from the profile, where the cache does not tell it and rows of the
 * profile have the same length. */
static int adopt_heads(const struct kvc_profile *p, struct kvc_cache *c, struct kvc_error *e) {
    uint64_t heads = 0, dim = 0, all = 0;
    if (!c->meta.facts.heads_unknown) return 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_tensor *tensor = &c->tensor[t];
        if (tensor->role != KVC_ROLE_K && tensor->role != KVC_ROLE_V) continue;
        const int found = kvc_profile_shape(p, c->layer[tensor->layer].index, tensor->role, &heads,
                                            &dim, e);
        if (found < 0) return -1;
        if (!found) continue;
        if (heads * dim != tensor->shape.heads * tensor->shape.dim || (all && all != heads))
            return 0;
        all = heads;
    }
    return all && all <= UINT32_MAX ? kvc_cache_set_heads(c, (uint32_t)all, e) : 0;
}

int kvc_profile_adopt(const struct kvc_profile *p, struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_layer_pattern pattern;
    /* a container whose parts are found by number */
    const int placed = c->meta.facts.profile != NULL;
    const int settled = placed || !pattern_of(p, c, &pattern) ? 0
                                                              : kvc_layers_settle(c, &pattern, e);
    return settled < 0 || adopt_heads(p, c, e) ? kvc_error_prefix(e, "profile") : 0;
}

/* --- settling --- */

/* Writes the layers whose coefficients are largest: "3 (33), 7 (29)". */
static void worst_layers(const struct kvc_fit *fit, int role, char *text, size_t size) {
    size_t used = 0;
    double below = (double)INFINITY;
    *text = '\0';
    for (int i = 0; i < 3; i++) {
        const struct kvc_fit_layer *next = NULL;
        for (uint32_t l = 0; l < fit->n; l++)
            if (fit->layer[l].ratio[role] < below &&
                (!next || fit->layer[l].ratio[role] > next->ratio[role]))
                next = &fit->layer[l];
        if (!next || !(next->ratio[role] > 0) || used >= size) return;
        below = next->ratio[role];
        char ratio[32];
        kvc_number_print(ratio, sizeof ratio, 3, next->ratio[role]);
        const int n = snprintf(text + used, size - used, "%s%" PRIu32 " (%s)", i ? ", " : "",
                               next->layer, ratio);
        used += n > 0 ? (size_t)n : 0;
    }
}

static int profile_fit_refuse(const struct kvc_profile *p, const struct kvc_fit *fit,
                              enum kvc_pairing better, struct kvc_error *e) {
    const int role = fit->ratio[0] > MISFIT || largest(fit, 0) > LAYER_MISFIT ? 0 : 1;
    char worst[128], check[160];
    worst_layers(fit, role, worst, sizeof worst);
    if (better)
        snprintf(check, sizeof check, "with K paired in %s it fits", kvc_pairing_name(better));
    else
        snprintf(check, sizeof check,
                 "check that the cache is of this model, its layers in order, the pairing and the "
                 "number of heads");
    return kvc_fail_need(e, KVC_ERR_OTHER_MODEL, better ? KVC_NEED_PAIRING : KVC_NEED_CONSENT,
                         "does not fit the cache: the mean square of the coefficients of %s is "
                         "%.3g times that of the profile (%.100s) in the median of layers, where "
                         "about 1 is expected; largest in layers %s; %s",
                         role ? "V" : "K", fit->ratio[role], kvc_profile_model(p), worst, check);
}

static int has_rope(const struct kvc_profile *p, const struct kvc_cache *c) {
    size_t half;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (kvc_profile_angles(p, c->layer[i].index, &half)) return 1;
    return 0;
}

static int k_fits(const struct kvc_fit *fit) {
    return fit->ratio[0] > 0 && fit->ratio[0] <= MISFIT;
}

/* Measures the fit with K paired as the cache says, and where K does not fit so, the other way too.
 * Where the cache only assumes or does not know its pairing, the pairing that fits is noted.
 * *better gets the other pairing where a cache that tells its pairing would fit with it, else
 * KVC_PAIRING_UNKNOWN. */
static int settle_pairing(struct kvc_profile *p, struct kvc_cache *c, unsigned threads,
                          struct kvc_fit *fit, enum kvc_pairing *better, struct kvc_error *e) {
    const enum kvc_pairing said = c->meta.facts.rope.pairing;
    const int told = said != KVC_PAIRING_UNKNOWN && !c->meta.facts.rope.assumed;
    const enum kvc_pairing first = said != KVC_PAIRING_UNKNOWN ? said : KVC_PAIRING_HALVES;
    const enum kvc_pairing second = first == KVC_PAIRING_HALVES ? KVC_PAIRING_INTERLEAVED
                                                                : KVC_PAIRING_HALVES;
    struct kvc_fit other = {.n = 0};
    *better = KVC_PAIRING_UNKNOWN;
    if (kvc_fit_measure(fit, p, c, first, threads, e)) return -1;
    if (!has_rope(p, c)) return 0;
    if (!k_fits(fit) && fit->ratio[0] > 0 && kvc_fit_measure(&other, p, c, second, threads, e))
        return -1;
    int status = 0;
    if (told) {
        if (k_fits(&other)) *better = second;
    } else if (k_fits(&other)) {
        const struct kvc_fit misfit = *fit;
        *fit = other;
        other = misfit;
        status = kvc_meta_set_pairing(&c->meta, second, e);
    } else if (k_fits(fit)) {
        status = kvc_meta_set_pairing(&c->meta, first, e);
    }
    kvc_fit_free(&other);
    return status;
}

int kvc_profile_settle(struct kvc_profile *p, struct kvc_cache *c, unsigned threads, int force,
                       struct kvc_fit *fit, struct kvc_error *e) {
    enum kvc_pairing better;
    memset(fit, 0, sizeof *fit);
    if (kvc_layers_need_numbers(c, e)) return -1;
    int status = settle_pairing(p, c, threads, fit, &better, e);
    const int misfit = !status && fit->verdict == KVC_FIT_BAD && !force,
              unknown = c->meta.facts.rope.pairing == KVC_PAIRING_UNKNOWN;
    if (misfit && unknown) status = profile_fit_refuse(p, fit, better, e);
    if (!status)
        status = kvc_profile_fits(p, c, e) || (misfit && profile_fit_refuse(p, fit, better, e));
    if (status) kvc_fit_free(fit);
    return status ? -1 : 0;
}

int kvc_profile_prepare(struct kvc_profile *p, struct kvc_cache *c,
                        const struct kvc_profile_use *use, struct kvc_fit *fit,
                        struct kvc_error *e) {
    memset(fit, 0, sizeof *fit);
    if (!kvc_recipe_profile_need(use->recipe, kvc_profile_predicts(p))) return 0;
    return kvc_profile_settle(p, c, use->threads, use->force, fit, e)
               ? kvc_error_prefix(e, "profile")
               : 1;
}
