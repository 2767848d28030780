/* lowrank.c: the stage that keeps the strongest directions of a matrix, or of what a quantiser
 * missed. Spec: lowrank.md. */
#include "codecs/eigen.h"
#include "codecs/floats.h"
#include "codecs/papers/lowrank/lowrank.h"
#include "codecs/memory.h"
#include "codecs/program.h"
#include "codecs/stage.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

enum { RANK, LAYER, POWER, EXACT, N_ARGS };
/* a rank of more than one in SHARE channels: eigenvectors take no longer than the search for a
 * subspace */
enum { SHARE = 8 };

static const struct kvc_arg arguments[N_ARGS] = {
    [RANK] = {.key = "r", .min = 1, .max = 256, .required = 1},
    [LAYER] = {.key = "layer", .kind = KVC_ARG_FLAG},
    [POWER] = {.key = "power", .min = 0, .max = 64, .fallback = 0},
    [EXACT] = {.key = "exact", .kind = KVC_ARG_FLAG, .encoder = 1},
};

struct kvc_stage_args kvc_lowrank_args(unsigned rank) {
    return (struct kvc_stage_args){.i = {[RANK] = rank, [LAYER] = 1}};
}

/* The matrices that are approximated: one a head, or one of whole rows. */
struct parts {
    size_t n, dim, rank;
};

static struct parts parts_of(const struct kvc_stage_args *args, const struct kvc_shape *shape) {
    struct parts p = {(size_t)shape->heads, (size_t)shape->dim, (size_t)args->i[RANK]};
    if (args->i[LAYER]) {
        p.dim *= p.n;
        p.n = 1;
    }
    if (p.rank > p.dim) p.rank = p.dim;
    return p;
}

static int lowrank_check(const struct kvc_stage_args *args, struct kvc_error *e) {
    if (!args->i[EXACT] || !args->i[POWER]) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "lowrank: 'exact' and 'power' exclude each other");
}

static int lowrank_accepts(const struct kvc_stage_args *args, const struct kvc_shape *shape,
                           struct kvc_error *e) {
    if (parts_of(args, shape).dim <= 4096) return 1;
    kvc_fail(e, KVC_ERR_UNSUPPORTED,
             "directions of more than 4 096 channels are not looked for: leave out 'layer'");
    return 0;
}

struct state {
    struct parts parts;
    float *directions; /* [part][rank][dim], as they will be read */
    double gram[];     /* [part][dim][dim], upper triangles: sums of x xT over the segment */
};

static int lowrank_begin(const struct kvc_stage_args *args, const struct kvc_encoding *encoding,
                         const struct kvc_block *like, void **state, struct kvc_error *e) {
    (void)encoding;
    const struct parts p = parts_of(args, &like->shape);
    struct state *s = kvc_alloc_after(sizeof *s, p.n * p.dim,
                                      p.dim * sizeof *s->gram + p.rank * sizeof *s->directions);
    if (!s) return kvc_fail_memory(e, "directions");
    s->parts = p;
    s->directions = (float *)(s->gram + p.n * p.dim * p.dim);
    *state = s;
    return 0;
}

static int lowrank_look(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                        struct kvc_error *e) {
    struct state *s = state;
    const struct parts *p = &s->parts;
    const float *x = (const float *)(const void *)block->rows;
    (void)args;
    for (size_t i = 0; i < p->n; i++)
        if (kvc_gram_add(s->gram + i * p->dim * p->dim, x + i * p->dim, (size_t)block->shape.tokens,
                         p->dim, p->n * p->dim, e))
            return -1;
    return 0;
}

static int find_directions(const struct kvc_stage_args *args, const struct parts *p, float *to,
                           double *gram, struct kvc_error *e) {
    if (args->i[POWER])
        return kvc_gram_power(to, gram, p->dim, p->rank, (unsigned)args->i[POWER], e);
    if (args->i[EXACT] || SHARE * p->rank > p->dim)
        return kvc_gram_directions(to, gram, p->dim, p->rank, e);
    return kvc_gram_subspace(to, gram, p->dim, p->rank, e);
}

static int lowrank_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                          struct kvc_sections *side, struct kvc_error *e) {
    struct state *s = state;
    const struct parts *p = &s->parts;
    const size_t n = p->n * p->rank * p->dim;
    int status = 0;
    for (size_t i = 0; i < p->n && !status; i++)
        status = find_directions(args, p, s->directions + i * p->rank * p->dim,
                                 s->gram + i * p->dim * p->dim, e);
    return status ? -1 : kvc_halves_add(side, KVC_SECTION_FACTOR_B, stage, s->directions, n, e);
}

/* Coefficients of row x of a part: with directions that are nearly orthonormal, its products with
 * them. */
static void project(const struct kvc_kernels *f, const struct parts *p, const float *directions,
                    const float *x, float *coefficient) {
    for (size_t k = 0; k < p->rank; k++)
        coefficient[k] = f->dot(x, directions + k * p->dim, p->dim);
}

static int lowrank_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                          uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct state *s = state;
    const struct parts *p = &s->parts;
    const struct kvc_kernels *f = kvc_kernels_get();
    const size_t rows = (size_t)block->shape.tokens, n = rows * p->n * p->rank;
    float *x = (float *)(void *)block->rows;
    (void)args;
    if (!rows) return 0;
    float *coefficients = kvc_alloc(n + p->dim, sizeof *coefficients),
          *row = coefficients ? coefficients + n : NULL;
    int status = coefficients ? 0 : kvc_fail_memory(e, "coefficients");
    if (!status) {
        for (size_t t = 0; t < rows; t++)
            for (size_t i = 0; i < p->n; i++)
                project(f, p, s->directions + i * p->rank * p->dim, x + (t * p->n + i) * p->dim,
                        coefficients + (t * p->n + i) * p->rank);
        status = kvc_halves_add(out, KVC_SECTION_FACTOR_A, stage, coefficients, n, e);
    }
    if (!status && block->residual)
        for (size_t t = 0; t < rows * p->n; t++) {
            f->multiply_rows(row, coefficients + t * p->rank,
                             s->directions + t % p->n * p->rank * p->dim, p->rank, p->dim, p->dim);
            f->add_scaled(x + t * p->dim, row, -1, p->dim);
        }
    free(coefficients);
    return status;
}

/* The sections of a block, opened. */
struct sections {
    struct parts parts;
    size_t rows, coefficients, directions;
    const struct kvc_section *a, *b; /* coefficients, directions; NULL for a block without rows */
};

static int lowrank_open_sections(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                                 const struct kvc_shape *shape, struct sections *s,
                                 struct kvc_error *e) {
    *s = (struct sections){.parts = parts_of(args, shape), .rows = (size_t)shape->tokens};
    s->directions = s->parts.n * s->parts.rank * s->parts.dim;
    s->coefficients = s->rows * s->parts.n * s->parts.rank;
    if (!s->rows) return kvc_stored_none(stored, e);
    if (!(s->b = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_FACTOR_B, e)))
        return -1;
    return (s->a = kvc_section_only(stored->section, stored->n, KVC_SECTION_FACTOR_A, e)) ? 0 : -1;
}

static int lowrank_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                          struct kvc_block *block, struct kvc_error *e) {
    struct sections s;
    float *x = (float *)(void *)block->rows;
    if (lowrank_open_sections(args, stored, &block->shape, &s, e)) return -1;
    if (!s.rows) return 0;
    const struct parts p = s.parts;
    const struct kvc_kernels *f = kvc_kernels_get();
    float *coefficient = kvc_alloc(s.coefficients + s.directions + p.dim, sizeof *coefficient);
    if (!coefficient) return kvc_fail_memory(e, "coefficients");
    float *direction = coefficient + s.coefficients, *row = direction + s.directions;
    int status = kvc_halves_take(coefficient, s.a, s.coefficients, e) ||
                 kvc_halves_take(direction, s.b, s.directions, e);
    for (size_t t = 0; t < s.rows * p.n && !status; t++) {
        float *to = block->residual ? row : x + t * p.dim;
        f->multiply_rows(to, coefficient + t * p.rank, direction + t % p.n * p.rank * p.dim, p.rank,
                         p.dim, p.dim);
        if (block->residual) f->add_scaled(x + t * p.dim, row, 1, p.dim);
    }
    free(coefficient);
    return status ? -1 : 0;
}

static int lowrank_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                         struct kvc_block *block, struct kvc_program *program,
                         struct kvc_error *e) {
    struct sections s;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_FACTORS, &block->shape);
    if (lowrank_open_sections(args, stored, &block->shape, &s, e)) return -1;
    if (!s.rows) return 0;
    if (!(op.factors.coefficients = kvc_program_halves_to_end(program, s.a, s.a->data,
                                                              s.coefficients, e)) ||
        kvc_program_keep_halves(program, s.b, s.directions, &op.factors.directions, e))
        return -1;
    op.factors.rank = (uint32_t)s.parts.rank;
    op.factors.whole = s.parts.n == 1 && block->shape.heads != 1;
    op.factors.add = (uint32_t)block->residual;
    return block->residual ? kvc_program_op(program, &op, e)
                           : kvc_program_first(program, s.rows, &op, e);
}

const struct kvc_stage kvc_stage_lowrank = {
    .id = 10,
    .name = "lowrank",
    .summary = "the strongest directions of each head",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_RESIDUAL | KVC_STAGE_LOOKS |
             KVC_STAGE_HEADS | KVC_STAGE_SIDE,
    .args = arguments,
    .n_args = N_ARGS,
    .check = lowrank_check,
    .accepts = lowrank_accepts,
    .begin = lowrank_begin,
    .look = lowrank_look,
    .settle = lowrank_settle,
    .end = free,
    .encode = lowrank_encode,
    .decode = lowrank_decode,
    .lower = lowrank_lower,
};
