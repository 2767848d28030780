/* saliency.c: the stage that marks salient tokens, which get most attention. Spec: saliency.md. */
#include "codecs/memory.h"
#include "codecs/probes.h"
#include "codecs/program.h"
#include "codecs/select.h"
#include "codecs/shared.h"
#include "codecs/stage.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHARE, NORM, BY, N_ARGS };
enum { NORM_CODE, NORM_PAPER };
enum { BY_ATTENTION, BY_KNORM };

static const char *const norms[] = {"code", "paper", NULL};
static const char *const rules[] = {"attention", "knorm", NULL};

static const struct kvc_arg arguments[N_ARGS] = {
    [SHARE] = {.kind = KVC_ARG_REAL, .least = 0, .most = 1, .otherwise = 0.6, .required = 1},
    [NORM] = {.key = "norm", .kind = KVC_ARG_WORD, .words = norms, .fallback = NORM_CODE},
    [BY] = {.key = "by", .kind = KVC_ARG_WORD, .words = rules, .fallback = BY_ATTENTION},
};

static int saliency_asks(const struct kvc_stage_args *args) {
    return args->i[BY] == BY_ATTENTION;
}

struct state {
    size_t heads;
    uint64_t rows;
    const float *score; /* [head][row]: how much each is looked at; of x->shared */
    uint64_t *seen;     /* rows of the segment that reach this stage */
    size_t n_seen, room;
    uint8_t *salient; /* [head][row of the segment] */
    uint64_t first;   /* of the segment */
};

static void saliency_end(void *state) {
    struct state *s = state;
    if (!s) return;
    free(s->seen);
    free(s->salient);
    free(s);
}

/* ZipCache (arXiv 2405.14256), equations 8 and 9: attention that a token gets, over how many
 * queries could give it some. `paper` counts the available queries, `code` all tokens from this
 * token on, as the authors' program does. */
static int score_attention(const struct kvc_encoding *x, int paper, float *score,
                           struct kvc_error *e) {
    uint32_t *seen = kvc_alloc(x->rows, sizeof *seen);
    if (!seen) return kvc_fail_memory(e, "saliency");
    const int status = kvc_probes_attention(x, score, e);
    kvc_probes_seen(x, seen);
    for (size_t h = 0; h < x->key.heads && !status; h++)
        for (uint64_t t = 0; t < x->rows; t++) {
            const double n = paper ? (double)seen[t] : (double)(x->rows - t);
            float *s = &score[h * x->rows + t];
            /* nothing has looked there yet: keep it */
            *s = n > 0 ? (float)((double)*s / n) : INFINITY;
        }
    free(seen);
    return status;
}

/* Replaces attention when there are no queries: keys of small norm tend to get most of it. */
static int score_norms(const struct kvc_encoding *x, float *score, struct kvc_error *e) {
    const size_t heads = (size_t)x->key.heads, dim = (size_t)x->key.dim;
    float *rows = kvc_alloc(KVC_MAX_BLOCK_ROWS * heads, dim * sizeof *rows);
    int status = rows ? 0 : kvc_fail_memory(e, "saliency");
    for (uint64_t t = 0; t < x->rows && !status; t += KVC_MAX_BLOCK_ROWS) {
        const uint64_t n = x->rows - t < KVC_MAX_BLOCK_ROWS ? x->rows - t : KVC_MAX_BLOCK_ROWS;
        status = x->read(x, KVC_SELECT_K, t, n, rows, e);
        for (size_t i = 0; i < n * heads && !status; i++) {
            const float square = kvc_kernels_get()->dot(rows + i * dim, rows + i * dim, dim);
            score[i % heads * x->rows + t + i / heads] = isfinite(square) ? -square : INFINITY;
        }
    }
    free(rows);
    return status;
}

struct wanted {
    const struct kvc_encoding *x;
    int paper, by_norm;
};

static int make_scores(const void *wanted, void *to, size_t part, struct kvc_error *e) {
    (void)part;
    const struct wanted *w = wanted;
    return w->by_norm ? score_norms(w->x, to, e) : score_attention(w->x, w->paper, to, e);
}

static int saliency_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                          const struct kvc_block *like, void **state, struct kvc_error *e) {
    struct state *s = calloc(1, sizeof *s);
    if (!s) return kvc_fail_memory(e, "saliency");
    *state = s;
    const struct wanted w = {x, args->i[NORM] == NORM_PAPER, args->i[BY] == BY_KNORM};
    if (!w.by_norm && !x->n_queries)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_QUERIES,
                             "there are no queries to rank tokens by; by=knorm needs none");
    if (x->key.heads != like->shape.heads)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "K and V differ in heads");
    s->heads = (size_t)like->shape.heads;
    s->rows = x->rows;
    s->first = x->first;
    s->salient = calloc((size_t)x->segment_rows + 1, s->heads);
    if (!s->salient) return kvc_fail_memory(e, "saliency");
    s->score = kvc_shared_get(x->shared, (unsigned)(args->i[BY] * 2 + args->i[NORM]),
                              s->heads * (size_t)x->rows * sizeof(float), 1, make_scores, &w, e);
    return s->score ? 0 : -1;
}

static int saliency_look(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                         struct kvc_error *e) {
    struct state *s = state;
    (void)args;
    if (s->room - s->n_seen < block->shape.tokens) {
        const size_t room = 2 * s->room + KVC_MAX_BLOCK_ROWS;
        uint64_t *grown = kvc_realloc(s->seen, room, sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "saliency");
        s->seen = grown;
        s->room = room;
    }
    for (uint64_t i = 0; i < block->shape.tokens; i++)
        s->seen[s->n_seen++] = kvc_block_row(block, i);
    return 0;
}

/* All but the lowest floor((1 - share) n) of the tokens that come here are salient, head by head;
 * of equal ones the earlier token is lower. */
static int saliency_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                           struct kvc_sections *side, struct kvc_error *e) {
    struct state *s = state;
    const size_t regular = (size_t)floor((1 - args->f[SHARE]) * (double)s->n_seen + 1e-9);
    uint64_t *order = kvc_alloc(s->n_seen, sizeof *order);
    (void)stage, (void)side;
    if (!order) return kvc_fail_memory(e, "saliency");
    for (size_t h = 0; h < s->heads && regular < s->n_seen; h++) {
        const float *score = s->score + h * s->rows;
        for (size_t i = 0; i < s->n_seen; i++)
            order[i] = kvc_select_key(score[s->seen[i]], (uint32_t)i);
        kvc_select(order, s->n_seen, regular);
        for (size_t i = regular; i < s->n_seen; i++)
            s->salient[(s->seen[order[i] & UINT32_MAX] - s->first) * s->heads + h] = 1;
    }
    free(order);
    return 0;
}

static size_t mask_bytes(const struct kvc_block *block) {
    return (size_t)(block->shape.tokens * block->shape.heads + 7) / 8;
}

static int saliency_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                           uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct state *s = state;
    const size_t n = (size_t)block->shape.tokens * s->heads;
    (void)args;
    if (!n) return 0;
    uint8_t *bits = calloc(1, mask_bytes(block));
    block->salient = malloc(n);
    int status = bits && block->salient ? 0 : kvc_fail_memory(e, "saliency");
    for (size_t i = 0; i < n && !status; i++) {
        const uint64_t row = kvc_block_row(block, i / s->heads) - s->first;
        block->salient[i] = s->salient[row * s->heads + i % s->heads];
        bits[i / 8] |= (uint8_t)(block->salient[i] << i % 8);
    }
    if (!status)
        status = kvc_sections_add(out, KVC_SECTION_MASK, stage, 0, bits, mask_bytes(block), 0, e);
    free(bits);
    return status;
}

static int saliency_open(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                         struct kvc_block *block, struct kvc_error *e) {
    const struct kvc_section *s;
    const size_t n = (size_t)(block->shape.tokens * block->shape.heads);
    (void)args;
    if (!n) return kvc_stored_none(stored, e);
    if (block->salient) return kvc_fail(e, KVC_ERR_DAMAGED, "salient tokens were marked before");
    if (!(s = kvc_section_only(stored->section, stored->n, KVC_SECTION_MASK, e))) return -1;
    if (s->size != mask_bytes(block) || (n % 8 && s->data[s->size - 1] >> n % 8))
        return kvc_fail(e, KVC_ERR_DAMAGED, "section MASK is not a bit a token and head");
    if (!(block->salient = malloc(n))) return kvc_fail_memory(e, "saliency");
    for (size_t i = 0; i < n; i++) block->salient[i] = s->data[i / 8] >> i % 8 & 1;
    return 0;
}

static int saliency_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                           struct kvc_block *block, struct kvc_error *e) {
    (void)args, (void)stored, (void)block, (void)e; /* the stage hands its matrix on unchanged */
    return 0;
}

static int saliency_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                          struct kvc_block *block, struct kvc_program *program,
                          struct kvc_error *e) {
    (void)args, (void)stored, (void)block, (void)program, (void)e; /* as decode */
    return 0;
}

const struct kvc_stage kvc_stage_saliency = {
    .id = 12,
    .name = "saliency",
    .summary = "marks the tokens that get most attention: quant gives them more bits",
    .flags = KVC_STAGE_LOSSLESS | KVC_STAGE_LOOKS | KVC_STAGE_HEADS | KVC_STAGE_MARKS,
    .asks = saliency_asks,
    .args = arguments,
    .n_args = N_ARGS,
    .begin = saliency_begin,
    .look = saliency_look,
    .settle = saliency_settle,
    .end = saliency_end,
    .encode = saliency_encode,
    .open = saliency_open,
    .decode = saliency_decode,
    .lower = saliency_lower,
};
