/* project.c: the stage that rebuilds K and V from hidden states. Spec: project.md. Not for reading
 * weights (formats/model/weights.h) or finding hidden states (formats/model/rebuild_source.c). */
#include "codecs/memory.h"
#include "codecs/little_endian.h"
#include "codecs/papers/lowrank/lowrank.h"
#include "codecs/rebuild.h"
#include "codecs/stage.h"

#include "kernels/float_bits.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WHAT, NORM, LAYERS, EVERY, RANK, N_ARGS };
enum { NORM_AUTO, NORM_NONE, NORM_RMS };
enum { HEADER = 48 };

static const char *const whats[] = {"hidden", NULL};
static const char *const norms[] = {"auto", "none", "rms", NULL};

static const struct kvc_arg arguments[N_ARGS] = {
    [WHAT] = {.kind = KVC_ARG_WORD, .words = whats, .required = 1},
    [NORM] = {.key = "norm", .kind = KVC_ARG_WORD, .words = norms, .fallback = NORM_AUTO},
    [LAYERS] = {.key = "layers", .min = 0, .max = 65536, .fallback = 65536},
    [EVERY] = {.key = "every", .min = 1, .max = 64, .fallback = 2},
    [RANK] = {.key = "rank", .min = 0, .max = 4096, .fallback = 0},
};

/* Layer-sparse substitution: the policy of the paper's program (get_cache_type). */
static int hidden(const struct kvc_stage_args *args, uint32_t layer, uint32_t layers,
                  const struct kvc_stage **by, struct kvc_stage_args *by_args) {
    const uint32_t first = (uint32_t)args->i[LAYERS], every = (uint32_t)args->i[EVERY];
    const unsigned rank = (unsigned)args->i[RANK];
    *by = rank ? &kvc_stage_lowrank : NULL;
    if (rank) *by_args = kvc_lowrank_args(rank);
    return layer < first || (layer - first) % every == every - 1 || layer + 1 == layers;
}

/* The HIDDEN section, read. */
struct plan {
    uint32_t from;
    size_t in;
    int norm;
    float epsilon;
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
};

/* --- encoding --- */

struct state {
    size_t size;
    struct kvc_stored stored; /* as a decoder will have it */
    struct kvc_section one;
    uint8_t section[];
};

/* Refuses tensors that cannot be rebuilt, or should not be. */
static int check_source(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                        const struct kvc_block *like, struct kvc_error *e) {
    const struct kvc_rebuild_source *s = x->source;
    const uint64_t both = x->key.heads * x->key.dim + x->value.heads * x->value.dim;
    if (!s || s->from == UINT32_MAX)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the layer has no hidden states at these positions to be rebuilt from");
    if (x->rows && x->position[0] < 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "there are positions below 0");
    if (s->is_hidden) return 0;
    if (both <= s->in)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "K and V have %llu values a token together, a hidden state %zu: storing "
                        "that instead saves nothing",
                        (unsigned long long)both, s->in);
    if (args->i[NORM] == NORM_AUTO && s->normed < 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the file does not say whether hidden states are stored before or after "
                        "the norm: give norm=none "
                        "or norm=rms");
    if (like->role != KVC_SELECT_K || !kvc_pairing_turns(s->rope.pairing) || like->turn) return 0;
    if (s->rope.type != KVC_ROPE_TYPE_DEFAULT && s->rope.type != KVC_ROPE_TYPE_LINEAR)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "RoPE of type '%s' cannot be rebuilt, only default and linear",
                        kvc_rope_type_name(s->rope.type));
    return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_MODEL,
                         "the base or the dimension of RoPE is unknown");
}

static int project_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                         const struct kvc_block *like, void **state, struct kvc_error *e) {
    if (check_source(args, x, like, e)) return -1;
    const struct kvc_rebuild_source *source = x->source;
    const int norm = !source->is_hidden &&
                     (args->i[NORM] == NORM_RMS || (args->i[NORM] == NORM_AUTO && !source->normed));
    struct kvc_matrix m = {.weight = NULL};
    struct state *s = kvc_alloc_after(sizeof *s, HEADER, 1);
    if (!s) return kvc_fail_memory(e, "a projection");
    *state = s;
    s->size = HEADER;
    if (!source->is_hidden) {
        if (source->rebuild->matrix(source->rebuild, source->in, &m, e)) return -1;
        memcpy(s->section + 8, m.fingerprint, KVC_FINGERPRINT_BYTES);
        const int missing = norm && (!m.norm || !(m.epsilon > 0));
        source->rebuild->release(source->rebuild, &m);
        if (missing)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "the weights have no RMSNorm, or do not say its epsilon");
    }
    put_u32(s->section, source->from);
    put_u32(s->section + 4, (uint32_t)source->in);
    s->section[40] = (uint8_t)norm;
    if (norm) put_u32(s->section + 44, kvc_float_to_bits(m.epsilon));
    s->one = (struct kvc_section){.type = KVC_SECTION_HIDDEN,
                                  .size = (uint32_t)s->size,
                                  .raw_size = s->size,
                                  .data = s->section};
    s->stored = (struct kvc_stored){.side = &s->one, .n_side = 1};
    return 0;
}

static int project_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                          struct kvc_sections *side, struct kvc_error *e) {
    const struct state *s = state;
    (void)args;
    return kvc_sections_add(side, KVC_SECTION_HIDDEN, stage, 0, s->section, s->size, 0, e);
}

/* --- rebuilding --- */

/* Without a fingerprint, rows are those of the hidden states. */
static int copies(const struct plan *p) {
    static const uint8_t none[KVC_FINGERPRINT_BYTES];
    return memcmp(p->fingerprint, none, sizeof none) == 0;
}

static int read_plan(struct plan *p, const struct kvc_stored *stored, unsigned role,
                     struct kvc_error *e) {
    const struct kvc_section *s;
    if (kvc_stored_none(stored, e)) return -1;
    if (!(s = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_HIDDEN, e))) return -1;
    if (s->size < HEADER) return kvc_fail(e, KVC_ERR_DAMAGED, "section HIDDEN is too short");
    const uint8_t *d = s->data;
    *p = (struct plan){.from = get_u32(d),
                       .in = get_u32(d + 4),
                       .norm = d[40],
                       .epsilon = kvc_bits_to_float(get_u32(d + 44))};
    memcpy(p->fingerprint, d + 8, KVC_FINGERPRINT_BYTES);
    if (s->size != HEADER || d[40] > 1 || d[41] || d[42] || d[43] || !p->in || p->in > 1 << 24 ||
        !isfinite(p->epsilon) || p->epsilon < 0)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section HIDDEN is out of range");
    /* hidden states out of others are copies; K and V never are */
    if (copies(p) != (role == 0) || (copies(p) && p->norm))
        return kvc_fail(e, KVC_ERR_DAMAGED, "section HIDDEN has the fingerprint of something else");
    return 0;
}

static void norm_row(const struct plan *p, const struct kvc_matrix *m, float *x) {
    const float mean = kvc_kernels_get()->dot(x, x, p->in) / (float)p->in;
    const float factor = 1 / sqrtf(mean + p->epsilon);
    kvc_kernels_get()->scale(x, x, factor, p->in);
    kvc_kernels_get()->multiply(x, m->norm, p->in);
}

/* Rebuilds a row out of its hidden state x into y, K before RoPE. */
static void rebuild_row(const struct plan *p, const struct kvc_matrix *m, size_t out, float *x,
                        float *y) {
    if (p->norm) norm_row(p, m, x);
    kvc_kernels_get()->multiply_rows(y, x, m->weight, p->in, out, out);
    if (m->bias) kvc_kernels_get()->add_scaled(y, m->bias, 1, out);
}

/* Rebuilds the block's rows, and adds them to the matrix (sign 1), subtracts them (-1), or puts
 * them there (0). */
static int rebuild(const struct plan *p, struct kvc_block *block, float sign, struct kvc_error *e) {
    const struct kvc_rebuild *r = block->rebuild;
    const size_t rows = (size_t)block->shape.tokens,
                 out = (size_t)(block->shape.heads * block->shape.dim);
    const int copied = copies(p);
    const struct kvc_rope_facts *turn = copied ? NULL : block->turn;
    struct kvc_matrix m = {.weight = NULL};
    struct kvc_rope rope = {.half = 0};
    float *x = (float *)(void *)block->rows;
    if (!r)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "hidden states and weights are needed to rebuild this");
    if (copied && p->in != out)
        return kvc_fail(e, KVC_ERR_DAMAGED, "hidden states of other layers have other sizes");
    if (turn && (!turn->angle || 2 * turn->half > block->shape.dim))
        return kvc_fail(e, KVC_ERR_OTHER_MODEL, "the angles of the tensor's RoPE are missing");
    if (!copied && r->matrix(r, p->in, &m, e)) return -1;
    int status = 0;
    if (!copied && memcmp(m.fingerprint, p->fingerprint, sizeof p->fingerprint) != 0)
        status =
            kvc_fail(e, KVC_ERR_OTHER_MODEL,
                     "these are not the weights that the file was packed with (other fingerprint)");
    if (!status && p->norm && !m.norm)
        status = kvc_fail(e, KVC_ERR_OTHER_MODEL, "the weights have no norm");
    float *hidden = kvc_alloc(rows * p->in + out, sizeof *hidden);
    if (!status && !hidden) status = kvc_fail_memory(e, "hidden states");
    if (!status) status = r->hidden(r, p->from, block->row, rows, p->in, hidden, e);
    if (!status && turn) status = kvc_rope_init(&rope, turn->angle, turn->half, turn->pairing, e);
    float *y = hidden ? hidden + rows * p->in : NULL;
    for (size_t t = 0; t < rows && !status; t++) {
        const int64_t position = r->position[block->row[t]];
        float *to = x + t * out, *from = hidden + t * p->in;
        if (position < 0 || (turn && position >= KVC_ROPE_POSITIONS)) {
            status = kvc_fail(e, KVC_ERR_DAMAGED, "position %lld is below 0 or from 2^32 on",
                              (long long)position);
            break;
        }
        if (copied) memcpy(y, from, out * sizeof *y);
        else rebuild_row(p, &m, out, from, y);
        if (turn) {
            kvc_rope_at(&rope, position);
            kvc_rope_turn(&rope, y, (size_t)block->shape.heads, (size_t)block->shape.dim);
        }
        /* of states that are not finite */
        for (size_t i = 0; i < out; i++) y[i] = isfinite(y[i]) ? y[i] : 0;
        if (sign == 0) memcpy(to, y, out * sizeof *to);
        else kvc_kernels_get()->add_scaled(to, y, sign, out);
    }
    kvc_rope_free(&rope);
    free(hidden);
    if (m.weight) r->release(r, &m);
    return status;
}

static int project_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                          uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct state *s = state;
    struct plan p = {.in = 0};
    (void)args, (void)stage, (void)out;
    if (!block->residual || !block->shape.tokens) return 0;
    block->rebuild = block->encoding->source->rebuild;
    if (read_plan(&p, &s->stored, block->role, e)) return -1;
    return rebuild(&p, block, -1, e);
}

static int project_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                          struct kvc_block *block, struct kvc_error *e) {
    struct plan p = {.in = 0};
    (void)args;
    if (!block->shape.tokens) return kvc_stored_none(stored, e);
    if (read_plan(&p, stored, block->role, e)) return -1;
    return rebuild(&p, block, block->residual ? 1 : 0, e);
}

const struct kvc_stage kvc_stage_project = {
    .id = 14,
    .name = "project",
    .summary = "K and V rebuilt from hidden states and weights",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_RESIDUAL | KVC_STAGE_LOOKS |
             KVC_STAGE_REBUILDS | KVC_STAGE_SIDE,
    .args = arguments,
    .n_args = N_ARGS,
    .hidden = hidden,
    .begin = project_begin,
    .settle = project_settle,
    .end = free,
    .encode = project_encode,
    .decode = project_decode,
};
