/* predictor.c: predictors of a profile, checked, prepared and applied. */
#include "formats/model/predictor.h"

#include "codecs/float_env.h"
#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "formats/model/profile_state.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int kvc_profile_predicts(const struct kvc_profile *p) {
    return p->back != 0;
}

/* --- the tensors --- */

/* Lists the inputs of a part: K and V of each layer before it, the nearest first, then for V its
 * own layer's K. Layers without gains are left out. */
static int list_inputs(const struct kvc_profile *p, uint32_t layer, int is_v,
                       struct kvc_predictor *to, struct kvc_error *e) {
    to->n = 0;
    to->matrix.inputs = 0;
    for (unsigned b = 1; b <= p->back + 1; b++) {
        const int own = b == p->back + 1; /* last: the layer itself */
        if (!own && b > layer) continue;
        for (int v = 0; v < (own ? is_v : 2); v++) {
            const uint32_t from = own ? layer : layer - b;
            struct kvc_profile_array gain;
            const int found = kvc_profile_numbers(p, from, v, "gain", 0, &gain, e);
            if (found < 0) return -1;
            if (!found) continue;
            to->input[to->n].layer = from;
            to->input[to->n].is_v = v;
            to->input[to->n].at = to->matrix.inputs;
            to->input[to->n].width = (size_t)(gain.dim[0] * gain.dim[1]);
            to->matrix.inputs += kvc_dot_stride(to->input[to->n++].width);
        }
    }
    return 0;
}

/* Returns 1 where all numbers are small enough that a prediction is finite. */
static int is_small(const struct kvc_profile_array *a) {
    const uint64_t n = a->dim[0] * a->dim[1];
    for (uint64_t i = 0; i < n; i++)
        if (!(fabsf(get_f32(a->data + 4 * i)) < 0x1p40f)) return 0;
    return 1;
}

static size_t channels(const struct kvc_predictor *x) {
    size_t n = 0;
    for (unsigned t = 0; t < x->n; t++) n += x->input[t].width;
    return n;
}

/* Finds the tensors of a predictor. Returns 1, 0 where there is none, or -1. */
static int predictor_find(const struct kvc_profile *p, uint32_t layer, int is_v,
                          struct kvc_predictor *list, struct kvc_profile_array *weight,
                          struct kvc_profile_array *scale, struct kvc_profile_array *mean,
                          struct kvc_error *e) {
    const int found = p->back ? kvc_profile_array(p, layer, is_v ? "v.predictor" : "k.predictor",
                                                  "I8", 2, weight, e)
                              : 0;
    if (found <= 0) return found;
    const int has_mean = kvc_profile_numbers(p, layer, is_v, "mean", -INFINITY, mean, e);
    const int has_scale = has_mean < 0
                              ? -1
                              : kvc_profile_numbers(p, layer, is_v, "predictor.scale", 0, scale, e);
    if (has_scale < 0 || list_inputs(p, layer, is_v, list, e)) return -1;
    if (!has_mean || !has_scale || scale->dim[0] != mean->dim[0] || scale->dim[1] != mean->dim[1] ||
        !is_small(mean) || !is_small(scale) || weight->dim[0] != mean->dim[0] * mean->dim[1] ||
        weight->dim[1] != channels(list) || list->matrix.inputs > KVC_DOT_INPUTS)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "layer %" PRIu32
                        ": the predictor of %s does not fit the layers that it is made from",
                        layer, is_v ? "V" : "K");
    return 1;
}

int kvc_predictor_check(const struct kvc_profile *p, uint32_t layer, int is_v,
                        struct kvc_error *e) {
    struct kvc_profile_array weight, scale, mean, gain;
    struct kvc_predictor list;
    const int found = kvc_profile_numbers(p, layer, is_v, "gain", 0, &gain, e);
    if (found < 0) return -1;
    if (found && (kvc_profile_numbers(p, layer, is_v, "mean", -INFINITY, &mean, e) != 1 ||
                  mean.dim[0] != gain.dim[0] || mean.dim[1] != gain.dim[1] || !is_small(&mean) ||
                  !is_small(&gain)))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "layer %" PRIu32
                        ": gain and mean of %s differ in shape or are out of range",
                        layer, is_v ? "V" : "K");
    return predictor_find(p, layer, is_v, &list, &weight, &scale, &mean, e) < 0 ? -1 : 0;
}

/* --- preparing --- */

/* Returns the channel of a cache's row for channel i of a row in the file, whose heads have `dim`
 * channels. */
static size_t predictor_place(size_t i, size_t dim, size_t half, int interleaved) {
    return i / dim * dim + kvc_profile_place(i % dim, half, interleaved);
}

static int make_small(const struct kvc_profile *p, uint32_t layer, int is_v, int interleaved,
                      struct kvc_predictor_slot *s, struct kvc_error *e) {
    struct kvc_profile_array gain, mean;
    const int found = p->back ? kvc_profile_numbers(p, layer, is_v, "gain", 0, &gain, e) : 0;
    if (found <= 0) return found;
    if (kvc_profile_numbers(p, layer, is_v, "mean", -INFINITY, &mean, e) != 1) return -1;
    const size_t dim = (size_t)gain.dim[1], width = (size_t)gain.dim[0] * dim,
                 half = is_v ? 0 : p->half[layer];
    if (!(s->small_numbers = kvc_alloc(2 * width, sizeof(float))))
        return kvc_fail_memory(e, "a profile");
    float *means = s->small_numbers, *gains = means + width;
    for (size_t i = 0; i < width; i++) {
        means[predictor_place(i, dim, half, interleaved)] = get_f32(mean.data + 4 * i);
        gains[predictor_place(i, dim, half, interleaved)] = get_f32(gain.data + 4 * i);
    }
    s->small = (struct kvc_small){width, means, gains};
    s->small_made = 1;
    return 1;
}

/* Fills place_of[] with the place of each input of the file among the matrix's inputs. */
static int place_inputs(const struct kvc_profile *p, const struct kvc_predictor *x, int interleaved,
                        size_t *place_of, struct kvc_error *e) {
    for (unsigned t = 0; t < x->n; t++) {
        struct kvc_profile_array gain;
        const int is_v = x->input[t].is_v;
        if (kvc_profile_numbers(p, x->input[t].layer, is_v, "gain", 0, &gain, e) != 1) return -1;
        const size_t half = is_v ? 0 : p->half[x->input[t].layer], at = x->input[t].at;
        for (size_t i = 0; i < x->input[t].width; i++)
            *place_of++ = at + predictor_place(i, (size_t)gain.dim[1], half, interleaved);
    }
    return 0;
}

static int make(const struct kvc_profile *p, uint32_t layer, int is_v, int interleaved,
                struct kvc_predictor_slot *s, struct kvc_error *e) {
    struct kvc_profile_array weight, scale, mean;
    struct kvc_predictor *x = &s->predictor;
    const int found = predictor_find(p, layer, is_v, x, &weight, &scale, &mean, e);
    if (found <= 0) return found;
    const size_t n = channels(x), inputs = x->matrix.inputs, dim = (size_t)mean.dim[1],
                 outputs = (size_t)mean.dim[0] * dim;
    const size_t half = is_v ? 0 : p->half[layer];
    s->weight = kvc_alloc_zero_lines(kvc_dot_bytes(outputs, inputs), 1);
    s->numbers = kvc_alloc(2 * outputs, sizeof *s->numbers);
    size_t *place_of = kvc_alloc(n, sizeof *place_of);
    int status = s->weight && s->numbers && place_of ? 0 : kvc_fail_memory(e, "a profile");
    if (!status) status = place_inputs(p, x, interleaved, place_of, e);
    for (size_t i = 0; i < outputs && !status; i++) {
        const size_t to = predictor_place(i, dim, half, interleaved);
        int8_t *weights = s->weight + kvc_dot_place(inputs, to, 0);
        for (size_t j = 0; j < n; j++)
            weights[kvc_dot_place(inputs, 0, place_of[j])] = (int8_t)weight.data[i * n + j];
        s->numbers[to] = get_f32(scale.data + 4 * i);
        s->numbers[outputs + to] = get_f32(mean.data + 4 * i);
    }
    free(place_of);
    if (status) return -1;
    x->matrix = (struct kvc_dot_matrix){outputs, inputs, s->weight, s->numbers,
                                        s->numbers + outputs};
    s->made = 1;
    return 1;
}

void kvc_predictor_slot_free(struct kvc_predictor_slot *s) {
    free(s->weight);
    free(s->numbers);
    free(s->small_numbers);
}

/* Makes the predictor, or the inputs, of a part once. Sets *slot to NULL where the profile has
 * none. */
static int prepare(struct kvc_profile *p, uint32_t layer, enum kvc_role role,
                   enum kvc_pairing pairing, int inputs, struct kvc_predictor_slot **slot,
                   struct kvc_error *e) {
    const int is_v = role == KVC_ROLE_V, interleaved = pairing == KVC_PAIRING_INTERLEAVED;
    *slot = NULL;
    if (layer >= p->layers || (role != KVC_ROLE_K && role != KVC_ROLE_V)) return 0;
    struct kvc_predictor_slot *s =
        &p->predictor[(layer * 2 + (uint32_t)is_v) * KVC_PROFILE_VARIANTS + (uint32_t)interleaved];
    pthread_mutex_lock(&p->lock);
    const fenv_t env = kvc_float_env_enter(); /* what is made here is kept */
    const int found = (inputs ? s->small_made : s->made) ? 1
                      : inputs ? make_small(p, layer, is_v, interleaved, s, e)
                               : make(p, layer, is_v, interleaved, s, e);
    if (found < 0 && !inputs) {
        kvc_predictor_slot_free(s);
        memset(s, 0, sizeof *s);
    }
    kvc_float_env_leave(&env);
    pthread_mutex_unlock(&p->lock);
    if (found == 1) *slot = s;
    return found < 0 ? -1 : 0;
}

int kvc_profile_predictor(struct kvc_profile *p, uint32_t layer, enum kvc_role role,
                          enum kvc_pairing pairing, const struct kvc_predictor **predictor,
                          struct kvc_error *e) {
    struct kvc_predictor_slot *s;
    const int status = prepare(p, layer, role, pairing, 0, &s, e);
    *predictor = s ? &s->predictor : NULL;
    return status;
}

int kvc_profile_small(struct kvc_profile *p, uint32_t layer, enum kvc_role role,
                      enum kvc_pairing pairing, const struct kvc_small **small,
                      struct kvc_error *e) {
    struct kvc_predictor_slot *s;
    const int status = prepare(p, layer, role, pairing, 1, &s, e);
    *small = s ? &s->small : NULL;
    return status;
}

/* --- arithmetic --- */

void kvc_small_row(const struct kvc_small *s, int8_t *to, const float *row) {
    kvc_kernels_get()->small_codes(to, row, s->mean, s->gain, s->width);
}

void kvc_predict_rows(const struct kvc_predictor *p, float *dst, const int8_t *x, size_t rows) {
    kvc_kernels_get()->dot_rows(dst, x, rows, &p->matrix);
}
