/* merge.c: the stage that stores two layers' rows as one direction and a norm each. Spec: merge.md.
 */
#include "codecs/floats.h"
#include "codecs/little_endian.h"
#include "codecs/stages/ends/kept.h"
#include "codecs/memory.h"
#include "codecs/program.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HOW, WEIGHT, KEEP, GAMMA, FROM, HEADS, N_ARGS };
enum { SLERP, MEAN, MAXNORM };

static const char *const ways[] = {"slerp", "mean", "maxnorm", NULL};

static const struct kvc_arg arguments[N_ARGS] = {
    [HOW] = {.kind = KVC_ARG_WORD, .words = ways, .required = 1},
    [WEIGHT] = {.key = "t", .kind = KVC_ARG_REAL, .least = 0, .most = 1, .otherwise = 0.6},
    [KEEP] = {.key = "keep", .kind = KVC_ARG_REAL, .least = 0, .most = 1, .otherwise = 0.05},
    /* not given */
    [GAMMA] = {.key = "gamma", .kind = KVC_ARG_REAL, .least = 0, .most = 1, .otherwise = -1},
    [FROM] = {.key = "from", .kind = KVC_ARG_REAL, .least = 0, .most = 1, .otherwise = 0.5},
    [HEADS] = {.key = "heads", .kind = KVC_ARG_FLAG},
};

#define PI 3.14159265358979323846
#define NEARLY 1e-3 /* angles this close to 0 or pi define no plane of rotation */

static int merge_check(const struct kvc_stage_args *args, struct kvc_error *e) {
    if (args->f[GAMMA] >= 0 && args->f[KEEP] != arguments[KEEP].otherwise)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "merge: keep and gamma are two rules for the same: give one");
    return 0;
}

static int pairs(const struct kvc_stage_args *args, uint32_t layer, uint32_t layers) {
    return (double)layer >= args->f[FROM] * (double)layers;
}

struct state {
    uint32_t first_tensor;
    int second, deeper;
    uint64_t first, rows; /* of the segment */
    uint8_t *kept;        /* by row of the segment */
    /* angle / pi between the two layers' rows; below 0: the row does not come here */
    float distance[];
};

static int merge_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                       const struct kvc_block *like, void **state, struct kvc_error *e) {
    (void)args, (void)like;
    struct state *s = kvc_alloc_after(sizeof *s, x->segment_rows, sizeof *s->distance + 1);
    if (!s) return kvc_fail_memory(e, "pairs");
    *state = s;
    s->first_tensor = x->pair;
    s->second = x->second;
    s->deeper = x->deeper;
    s->first = x->first;
    s->rows = x->segment_rows;
    s->kept = (uint8_t *)(s->distance + s->rows);
    for (uint64_t t = 0; t < s->rows; t++) s->distance[t] = -1;
    return 0;
}

/* Two vectors of the pair, the lower layer's first. */
struct two {
    double norm[2], angle;
};

static struct two merge_compare(const float *u, const float *v, size_t n) {
    const struct kvc_kernels *k = kvc_kernels_get();
    struct two p = {.norm = {sqrt((double)k->dot(u, u, n)), sqrt((double)k->dot(v, v, n))}};
    if (!(p.norm[0] > 0) || !(p.norm[1] > 0)) return p; /* a zero vector has any direction */
    const double cosine = (double)k->dot(u, v, n) / (p.norm[0] * p.norm[1]);
    p.angle = acos(cosine < -1 ? -1 : cosine > 1 ? 1 : cosine);
    return p;
}

static size_t width_of(const struct kvc_block *block) {
    return (size_t)(block->shape.heads * block->shape.dim);
}

/* Row t of both layers as binary32, the lower layer's first: pair[0], pair[1] have room for a row
 * each. */
static void read_pair(const struct kvc_block *block, uint64_t t, int deeper, float *pair[2]) {
    const size_t width = width_of(block), at = (size_t)t * (size_t)kvc_row_bytes(&block->shape);
    kvc_to_floats(pair[deeper], block->rows + at, width, block->own);
    kvc_to_floats(pair[!deeper], block->partner->rows + at, width, block->own);
}

static int merge_look(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                      struct kvc_error *e) {
    struct state *s = state;
    const size_t width = width_of(block);
    float *room = kvc_alloc(width, 2 * sizeof *room), *pair[2] = {room, room ? room + width : NULL};
    (void)args;
    if (!room) return kvc_fail_memory(e, "a pair of rows");
    for (uint64_t t = 0; t < block->shape.tokens; t++) {
        read_pair(block, t, s->deeper, pair);
        s->distance[kvc_block_row(block, t) - s->first] =
            (float)(merge_compare(pair[0], pair[1], width).angle / PI);
    }
    free(room);
    return 0;
}

struct far { /* a row and its distance */
    float distance;
    uint64_t row;
};

static int farthest_first(const void *a, const void *b) {
    const struct far *x = a, *y = b;
    if (x->distance != y->distance) return x->distance > y->distance ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

/* Chooses the kept rows: the share of largest distance, or (MiniCache, arXiv 2405.14366, equation
 * 4, in distances) those beyond d_max - gamma (d_max - d_min); rows that point apart in any case.
 */
static int choose_kept(const struct kvc_stage_args *args, struct state *s, struct kvc_error *e) {
    struct far *far = kvc_alloc(s->rows, sizeof *far);
    size_t n = 0, keep;
    if (!far) return kvc_fail_memory(e, "pairs");
    for (uint64_t t = 0; t < s->rows; t++)
        if (s->distance[t] >= 0) far[n++] = (struct far){s->distance[t], t};
    qsort(far, n, sizeof *far, farthest_first);
    if (args->f[GAMMA] >= 0) {
        const double most = n ? (double)far[0].distance : 0,
                     least = n ? (double)far[n - 1].distance : 0;
        for (keep = 0;
             keep < n && (double)far[keep].distance > most - args->f[GAMMA] * (most - least);)
            keep++;
    } else {
        keep = (size_t)floor(args->f[KEEP] * (double)n + 1e-9);
    }
    while (keep < n && (double)far[keep].distance > 1 - NEARLY / PI) keep++;
    for (size_t i = 0; i < keep; i++) s->kept[far[i].row] = 1;
    free(far);
    return 0;
}

static int merge_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                        struct kvc_sections *side, struct kvc_error *e) {
    struct state *s = state;
    uint8_t number[4];
    put_u32(number, s->first_tensor);
    if (choose_kept(args, s, e)) return -1;
    if (!s->second) return 0;
    return kvc_sections_add(side, KVC_SECTION_MERGED, stage, 0, number, sizeof number, 0, e);
}

/* The merged vector of u and v, into u. MiniCache, equations 2 and 3; appendix, F_max. */
static void merge_vectors(const struct kvc_stage_args *args, float *u, const float *v, size_t n) {
    const struct two p = merge_compare(u, v, n);
    double a = 0.5, b = 0.5, square = 0, scale = 1;
    if (args->i[HOW] == SLERP) {
        /* a zero row takes the other's direction */
        const double t = p.norm[0] > 0 ? p.norm[1] > 0 ? args->f[WEIGHT] : 0 : 1,
                     sine = sin(p.angle);
        a = p.norm[0] > 0 ? (p.angle < NEARLY ? 1 - t : sin((1 - t) * p.angle) / sine) / p.norm[0]
                          : 0;
        b = p.norm[1] > 0 ? (p.angle < NEARLY ? t : sin(t * p.angle) / sine) / p.norm[1] : 0;
    }
    for (size_t i = 0; i < n; i++) {
        const double x = a * (double)u[i] + b * (double)v[i];
        square += x * x;
        u[i] = (float)x;
    }
    if (args->i[HOW] == MEAN || !(square > 0)) return;
    if (args->i[HOW] == MAXNORM) scale = p.norm[0] > p.norm[1] ? p.norm[0] : p.norm[1];
    scale /= sqrt(square);
    for (size_t i = 0; i < n; i++) u[i] = (float)((double)u[i] * scale);
}

static size_t norms_in_row(const struct kvc_stage_args *args, const struct kvc_shape *shape) {
    if (args->i[HOW] != SLERP) return 0;
    return args->i[HEADS] ? (size_t)shape->heads : 1;
}

/* Makes merged directions of the rows that are not kept, and lists their own norms. */
static size_t merge_rows(const struct kvc_stage_args *args, const struct state *s,
                         struct kvc_block *block, const uint8_t *mask, float *room, float *norms) {
    const size_t width = width_of(block), each = args->i[HEADS] ? (size_t)block->shape.dim : width;
    float *pair[2] = {room, room + width};
    size_t n = 0;
    for (uint64_t t = 0; t < block->shape.tokens; t++) {
        if (mask[t]) continue;
        read_pair(block, t, s->deeper, pair);
        for (size_t at = 0; at < width; at += each) {
            const float *own = pair[s->deeper] + at;
            if (args->i[HOW] == SLERP) norms[n++] = sqrtf(kvc_kernels_get()->dot(own, own, each));
            merge_vectors(args, pair[0] + at, pair[1] + at, each);
        }
        kvc_from_floats(block->rows + t * kvc_row_bytes(&block->shape), pair[0], width, block->own);
    }
    return n;
}

static int add_kept(const uint8_t *mask, uint64_t rows, uint8_t stage, struct kvc_sections *out,
                    struct kvc_error *e) {
    uint8_t bits[KVC_MAX_BLOCK_ROWS / 8] = {0};
    int any = 0;
    for (uint64_t t = 0; t < rows; t++) {
        bits[t / 8] |= (uint8_t)(mask[t] << t % 8);
        any |= mask[t];
    }
    return any ? kvc_sections_add(out, KVC_SECTION_KEPT, stage, 0, bits, (size_t)(rows + 7) / 8, 0,
                                  e)
               : 0;
}

static int merge_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                        uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct state *s = state;
    const size_t width = width_of(block),
                 most = (size_t)block->shape.tokens * norms_in_row(args, &block->shape);
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    if (!block->shape.tokens) return 0;
    for (uint64_t t = 0; t < block->shape.tokens; t++)
        mask[t] = s->kept[kvc_block_row(block, t) - s->first];
    float *room = kvc_alloc(2 * width + most, sizeof *room);
    int status = room ? 0 : kvc_fail_memory(e, "a pair of rows");
    if (!status && !s->second) status = add_kept(mask, block->shape.tokens, stage, out, e);
    if (!status) {
        float *norms = room + 2 * width;
        const size_t n = merge_rows(args, s, block, mask, room, norms);
        if (n) status = kvc_halves_add(out, KVC_SECTION_NORMS, stage, norms, n, e);
    }
    if (!status) status = kvc_kept_encode(block, mask, stage, out, e);
    free(room);
    return status;
}

/* Reads the mask of kept rows from the pair's first record, and moves *sections past it. */
static int read_kept(const struct kvc_section **sections, size_t *n, uint64_t rows, uint8_t *mask,
                     struct kvc_error *e) {
    const struct kvc_section *next = *sections, *s;
    memset(mask, 0, KVC_MAX_BLOCK_ROWS);
    if (!*n || next->type != KVC_SECTION_KEPT) return 0;
    if (!(s = kvc_section_take_stored(&next, next + *n, KVC_SECTION_KEPT, 0, e))) return -1;
    if (s->size != (rows + 7) / 8 || (rows % 8 && s->data[s->size - 1] >> rows % 8))
        return kvc_fail(e, KVC_ERR_DAMAGED, "section KEPT is not a bit a row");
    int any = 0;
    for (uint64_t t = 0; t < rows; t++) any |= mask[t] = s->data[t / 8] >> t % 8 & 1;
    if (!any) return kvc_fail(e, KVC_ERR_DAMAGED, "section KEPT keeps no row");
    *n -= 1;
    *sections = next;
    return 0;
}

/* The mask; and the stage's own sections after KEPT. */
static int read_mask(const struct kvc_stored *stored, uint64_t rows, uint8_t *mask,
                     const struct kvc_section **own, size_t *n, struct kvc_error *e) {
    *own = stored->section;
    *n = stored->n;
    if (!stored->first) return read_kept(own, n, rows, mask, e);
    const struct kvc_section *first = stored->first;
    size_t n_first = stored->n_first;
    return read_kept(&first, &n_first, rows, mask, e);
}

static int merge_open(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                      struct kvc_block *block, struct kvc_error *e) {
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    const struct kvc_section *own, *side = stored->side;
    size_t n;
    (void)args;
    if (stored->first &&
        !kvc_section_take_stored(&side, side + stored->n_side, KVC_SECTION_MERGED, 0, e))
        return -1;
    if (kvc_section_none_left(side, stored->side + stored->n_side, e)) return -1;
    if (read_mask(stored, block->shape.tokens, mask, &own, &n, e)) return -1;
    kvc_kept_open(block, mask);
    return 0;
}

static int first_of(const struct kvc_stored *stored, uint32_t *tensor, struct kvc_error *e) {
    if (!stored->n_side) return 0;
    const struct kvc_section *const s = kvc_section_only(stored->side, stored->n_side,
                                                         KVC_SECTION_MERGED, e);
    if (!s || s->size != 4)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section MERGED must be the number of one tensor");
    *tensor = get_u32(s->data);
    return 1;
}

/* Directions become rows. */
static int apply_norms(const struct kvc_stage_args *args, struct kvc_block *block,
                       const struct kvc_section *s, struct kvc_error *e) {
    const size_t per = norms_in_row(args, &block->shape), rows = (size_t)block->handed.tokens,
                 n = rows * per;
    const size_t width = width_of(block), each = width / per,
                 bytes = (size_t)kvc_row_bytes(&block->shape);
    float *norms = kvc_alloc(n + width, sizeof *norms);
    if (!norms) return kvc_fail_memory(e, "norms");
    float *row = norms + n;
    int status = kvc_halves_take(norms, s, n, e);
    for (size_t t = 0; t < rows && !status; t++) {
        kvc_to_floats(row, block->rows + t * bytes, width, block->own);
        for (size_t i = 0; i < per; i++)
            kvc_kernels_get()->scale(row + i * each, row + i * each, norms[t * per + i], each);
        kvc_from_floats(block->rows + t * bytes, row, width, block->own);
    }
    free(norms);
    return status;
}

/* The sections of a block after merge_open(). */
struct sections {
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    const struct kvc_section *norms; /* NULL where rows are their directions */
    const struct kvc_section *kept;  /* n_kept of them */
    size_t n_kept;
};

static int merge_open_sections(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                               const struct kvc_block *block, struct sections *s,
                               struct kvc_error *e) {
    const struct kvc_section *own;
    s->norms = NULL;
    if (read_mask(stored, block->shape.tokens, s->mask, &own, &s->n_kept, e)) return -1;
    const struct kvc_section *last = own + s->n_kept;
    if (block->handed.tokens && norms_in_row(args, &block->shape) &&
        !(s->norms = kvc_section_take_stored(&own, last, KVC_SECTION_NORMS, 0, e)))
        return -1;
    s->kept = own;
    s->n_kept = (size_t)(last - own);
    return 0;
}

static int merge_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        struct kvc_block *block, struct kvc_error *e) {
    struct sections s;
    if (merge_open_sections(args, stored, block, &s, e)) return -1;
    if (s.norms && apply_norms(args, block, s.norms, e)) return -1;
    return kvc_kept_decode(block, s.mask, s.kept, s.n_kept, e);
}

static int merge_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    struct sections s;
    if (merge_open_sections(args, stored, block, &s, e)) return -1;
    if (s.norms) {
        const size_t per = norms_in_row(args, &block->shape);
        struct kvc_device_op op = kvc_program_op_of(KVC_OP_NORMS, &block->shape);
        struct kvc_device_op widen = kvc_program_op_of(KVC_OP_WIDEN, &block->shape);
        struct kvc_device_op round = kvc_program_op_of(KVC_OP_ROUND, &block->shape);
        op.norms.norms = kvc_program_halves_to_end(program, s.norms, s.norms->data,
                                                   (size_t)block->handed.tokens * per, e);
        if (!op.norms.norms) return -1;
        op.norms.each = (uint32_t)per;
        widen.convert.dtype = round.convert.dtype = (uint32_t)block->own;
        if (kvc_program_op(program, &widen, e) || kvc_program_op(program, &op, e) ||
            kvc_program_op(program, &round, e))
            return -1;
    }
    return kvc_kept_lower(program, &block->shape, s.mask, s.kept, s.n_kept, e);
}

const struct kvc_stage kvc_stage_merge = {
    .id = 13,
    .name = "merge",
    .summary = "two layers' rows as one direction and a norm each",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_LOOKS | KVC_STAGE_PAIR | KVC_STAGE_TAKES | KVC_STAGE_SIDE,
    .args = arguments,
    .n_args = N_ARGS,
    .check = merge_check,
    .first_of = first_of,
    .pairs = pairs,
    .begin = merge_begin,
    .look = merge_look,
    .settle = merge_settle,
    .end = free,
    .encode = merge_encode,
    .open = merge_open,
    .decode = merge_decode,
    .lower = merge_lower,
};
