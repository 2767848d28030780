/* predict_source.c: predictions of a cache's tensor. Spec: codecs/stages/cross/cross.md,
 * "Prediction". */
#include "formats/model/predict_source.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "formats/model/layer_rope.h"
#include "formats/model/predictor.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint32_t predict_source_layer_of(const struct kvc_cache *c, uint32_t tensor) {
    return kvc_tensor_layer(c, tensor)->index;
}

static const struct kvc_shape *shape_of(const struct kvc_predict_source *s, uint32_t tensor) {
    return s->shape ? &s->shape[tensor] : &s->cache->tensor[tensor].shape;
}

static size_t width_of(const struct kvc_predict_source *s, uint32_t tensor) {
    return (size_t)(shape_of(s, tensor)->heads * shape_of(s, tensor)->dim);
}

static int is_q8_0(const struct kvc_cache *c, uint32_t tensor) {
    return c->tensor[tensor].shape.dtype == KVC_Q8_0;
}

static int fail_tile(uint32_t tensor, struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_DAMAGED,
                    "section INPUTS needs the Hadamard rotation of tensor %" PRIu32
                    ", which the metadata do not have, or of which its rows are no multiple",
                    tensor);
}

/* Sets the Hadamard tile of a tensor's rows; 0: they are not rotated. Returns 0 where nothing can
 * be predicted from them. */
static int find_tile(const struct kvc_cache *c, uint32_t tensor, size_t *tile) {
    const struct kvc_tensor *t = &c->tensor[tensor];
    *tile = 0;
    if (kvc_is_float(t->shape.dtype)) return 1;
    if (!is_q8_0(c, tensor) || (t->role != KVC_ROLE_K && t->role != KVC_ROLE_V)) return 0;
    const struct kvc_facts *facts = &c->meta.facts;
    const int v = t->role == KVC_ROLE_V;
    const uint64_t n = facts->tile[v];
    *tile = (size_t)n;
    return facts->tile_known[v] && !(n & (n - 1)) && (!n || t->shape.heads * t->shape.dim % n == 0);
}

int kvc_predict_takes(const struct kvc_cache *c, uint32_t tensor) {
    size_t tile;
    return find_tile(c, tensor, &tile);
}

/* Returns 1 where a tensor can be input i of a predictor of s->tensor. */
static int fits(const struct kvc_predict_source *s, const struct kvc_predictor *p, unsigned i,
                uint32_t tensor) {
    const struct kvc_cache *c = s->cache;
    return tensor < s->tensor && kvc_tensor_part(c, tensor) == kvc_tensor_part(c, s->tensor) &&
           c->tensor[tensor].role == (p->input[i].is_v ? KVC_ROLE_V : KVC_ROLE_K) &&
           predict_source_layer_of(c, tensor) == p->input[i].layer &&
           width_of(s, tensor) == p->input[i].width && kvc_predict_takes(c, tensor) &&
           (!is_q8_0(c, tensor) || is_q8_0(c, s->tensor));
}

int kvc_predict_inputs(const struct kvc_predict_source *s, uint32_t from[KVC_AHEAD_MOST],
                       struct kvc_error *e) {
    const struct kvc_predictor *p;
    int any = 0;
    if (!s->profile) return 0;
    if (kvc_profile_predictor(s->profile, predict_source_layer_of(s->cache, s->tensor),
                              s->cache->tensor[s->tensor].role, s->pairing, &p, e))
        return -1;
    if (!p || p->matrix.outputs != width_of(s, s->tensor)) return 0;
    if (is_q8_0(s->cache, s->tensor) && !kvc_predict_takes(s->cache, s->tensor)) return 0;
    for (unsigned i = 0; i < p->n; i++) {
        from[i] = KVC_AHEAD_NONE;
        for (uint32_t t = 0; t < s->tensor && from[i] == KVC_AHEAD_NONE; t++)
            if (fits(s, p, i, t)) from[i] = t;
        any |= from[i] != KVC_AHEAD_NONE;
    }
    return any ? (int)p->n : 0;
}

int kvc_small_rows(const struct kvc_predict_source *s, uint32_t tensor, uint64_t first, uint64_t n,
                   const uint8_t *rows, int8_t *to, struct kvc_error *e) {
    const struct kvc_cache *c = s->cache;
    const struct kvc_shape *shape = shape_of(s, tensor);
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    const size_t width = width_of(s, tensor), bytes = (size_t)kvc_row_bytes(shape);
    const struct kvc_small *small;
    struct kvc_rope rope = {.half = 0};
    const struct kvc_rope_facts *turn = s->turn && s->turn[tensor].half ? &s->turn[tensor] : NULL;
    if (kvc_profile_small(s->profile, predict_source_layer_of(c, tensor), c->tensor[tensor].role,
                          s->pairing, &small, e))
        return -1;
    size_t tile;
    const int takes = find_tile(c, tensor, &tile);
    if (!takes && is_q8_0(c, tensor)) return fail_tile(tensor, e);
    if (!small || small->width != width || !takes ||
        (turn && (!turn->angle || 2 * turn->half > shape->dim)))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "section INPUTS names tensor %" PRIu32
                        ", but the profile does not predict from it",
                        tensor);
    if (turn && kvc_rope_init(&rope, turn->angle, turn->half, turn->pairing, e)) return -1;
    float *row = kvc_alloc(width, sizeof *row);
    int status = row ? 0 : kvc_fail_memory(e, "inputs");
    for (uint64_t i = 0; i < n && !status; i++) {
        const int64_t position = kvc_cells_position(cells, first + i);
        info->to_f32(row, rows + i * bytes, width / info->block);
        if (tile) kvc_hadamard(row, width, tile);
        if (turn && (position < 0 || position >= KVC_ROPE_POSITIONS))
            status = kvc_fail(e, KVC_ERR_DAMAGED, "position %" PRId64 " is below 0 or from 2^32 on",
                              position);
        else if (turn)
            kvc_row_before_rope(&rope, row, (size_t)shape->heads, (size_t)shape->dim, position);
        if (!status) kvc_small_row(small, to + i * width, row);
    }
    kvc_rope_free(&rope);
    free(row);
    return status;
}

void kvc_small_spread(const int8_t *small, size_t width, uint64_t first, const uint64_t *row,
                      size_t n, int8_t *to, size_t stride) {
    for (size_t i = 0; i < n; i++) memcpy(to + i * stride, small + (row[i] - first) * width, width);
}

/* Returns the predictor of the source's tensor from these tensors, or NULL. */
static const struct kvc_predictor *predict_source_find(const struct kvc_predict_source *s,
                                                       const uint32_t *from, size_t n,
                                                       struct kvc_error *e) {
    const struct kvc_predictor *p = NULL;
    if (is_q8_0(s->cache, s->tensor) && !kvc_predict_takes(s->cache, s->tensor)) {
        fail_tile(s->tensor, e);
        return NULL;
    }
    if (s->profile &&
        kvc_profile_predictor(s->profile, predict_source_layer_of(s->cache, s->tensor),
                              s->cache->tensor[s->tensor].role, s->pairing, &p, e))
        return NULL;
    int same = p && p->n == n && p->matrix.outputs == width_of(s, s->tensor);
    for (unsigned i = 0; same && i < n; i++)
        same = from[i] == KVC_AHEAD_NONE || fits(s, p, i, from[i]);
    if (same) return p;
    kvc_fail(e, KVC_ERR_DAMAGED,
             "the profile predicts from other tensors than section INPUTS names");
    return NULL;
}

static int find_matrix(const struct kvc_ahead *x, const uint32_t *from, size_t n,
                       struct kvc_ahead_matrix *to, struct kvc_error *e) {
    const struct kvc_predictor *p = predict_source_find(x->owner, from, n, e);
    if (!p) return -1;
    to->matrix = &p->matrix;
    for (unsigned i = 0; i < p->n; i++) {
        to->at[i] = p->input[i].at;
        to->width[i] = p->input[i].width;
    }
    return 0;
}

static void forget(struct kvc_predicted *p) {
    free(p->row);
    free(p->values);
    *p = (struct kvc_predicted){.n = 0};
}

void kvc_predict_memo_free(struct kvc_predict_memo *memo) {
    for (unsigned i = 0; i < KVC_PREDICT_KEPT; i++) forget(&memo->block[i]);
}

/* Returns what is remembered of n rows, which the caller frees and the memo then lacks, or NULL. */
static float *take_remembered(struct kvc_predict_memo *memo, const uint64_t *row, size_t n) {
    for (unsigned i = 0; i < KVC_PREDICT_KEPT; i++) {
        struct kvc_predicted *const p = &memo->block[i];
        if (p->n != n || memcmp(p->row, row, n * sizeof *row) != 0) continue;
        float *const values = p->values;
        p->values = NULL;
        forget(p);
        return values;
    }
    return NULL;
}

/* Remembers predictions of n rows, without memory none. */
static void remember(struct kvc_predict_memo *memo, const uint64_t *row, size_t n,
                     const float *values, size_t width) {
    unsigned i = 0;
    while (i < KVC_PREDICT_KEPT && memo->block[i].n) i++;
    if (i == KVC_PREDICT_KEPT) {
        i = memo->oldest;
        memo->oldest = (memo->oldest + 1) % KVC_PREDICT_KEPT;
        forget(&memo->block[i]);
    }
    struct kvc_predicted *const to = &memo->block[i];
    to->row = kvc_alloc(n, sizeof *row);
    to->values = kvc_alloc(n, width * sizeof *values);
    if (!to->row || !to->values) {
        forget(to);
        return;
    }
    memcpy(to->values, values, n * width * sizeof *values);
    memcpy(to->row, row, n * sizeof *row);
    to->n = n;
}

/* Predicts rows anew. */
static float *predict_rows(const struct kvc_predict_source *s, const struct kvc_predictor *p,
                           const uint32_t *from, const uint64_t *row, size_t n_rows,
                           struct kvc_error *e) {
    const size_t stride = p->matrix.inputs;
    size_t whole = 0; /* inputs that tensors fill; the others stay 0 */
    for (unsigned i = 0; i < p->n; i++) whole += from[i] != KVC_AHEAD_NONE ? p->input[i].width : 0;
    int8_t *inputs = whole == stride ? kvc_alloc_lines(n_rows, stride)
                                     : kvc_alloc_zero_lines(n_rows, stride);
    float *values = kvc_alloc_lines(n_rows, p->matrix.outputs * sizeof *values);
    int status = inputs && values ? 0 : kvc_fail_memory(e, "predictions");
    for (unsigned i = 0; i < p->n && !status; i++)
        if (from[i] != KVC_AHEAD_NONE)
            status = s->small(s->owner, from[i], row, n_rows, inputs + p->input[i].at, stride, e);
    if (!status) kvc_predict_rows(p, values, inputs, n_rows);
    free(inputs);
    if (!status) return values;
    free(values);
    return NULL;
}

static float *predict(const struct kvc_ahead *x, const uint32_t *from, size_t n,
                      const uint64_t *row, size_t n_rows, struct kvc_error *e) {
    const struct kvc_predict_source *s = x->owner;
    struct kvc_predict_memo *memo = n_rows <= KVC_BLOCK ? s->memo : NULL;
    const struct kvc_predictor *p = predict_source_find(s, from, n, e);
    if (!p) return NULL;
    float *values = memo ? take_remembered(memo, row, n_rows) : NULL;
    if (values) return values;
    values = predict_rows(s, p, from, row, n_rows, e);
    if (values && memo) remember(memo, row, n_rows, values, p->matrix.outputs);
    return values;
}

void kvc_predict_source_init(struct kvc_predict_source *s, const struct kvc_cache *c,
                             uint32_t tensor, struct kvc_profile *profile, enum kvc_pairing pairing,
                             kvc_small_fn *small, const void *owner) {
    *s = (struct kvc_predict_source){.ahead = {.owner = s, .rows = predict, .matrix = find_matrix},
                                     .cache = c,
                                     .tensor = tensor,
                                     .profile = profile,
                                     .pairing = pairing,
                                     .small = small,
                                     .owner = owner};
    find_tile(c, tensor, &s->ahead.tile);
}
