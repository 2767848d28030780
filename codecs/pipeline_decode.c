/* pipeline_decode.c: decodes blocks by the stages of a pipeline, last stage first. Not for encoding
 * (pipeline_encode.c). */
#include "codecs/pipeline_steps.h"

#include "codecs/memory.h"
#include "codecs/row_runs.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds the sections of stage i, which end at *n: sections are in the order of the stages. */
static const struct kvc_section *take_back(const struct kvc_section *section, size_t *n, unsigned i,
                                           size_t *count) {
    static const struct kvc_section none;
    const size_t end = *n;
    if (!end) section = &none; /* `section` may be NULL, to which nothing may be added */
    while (*n && section[*n - 1].stage == i) --*n;
    *count = end - *n;
    return section + *n;
}

struct kvc_stored kvc_pipeline_side(const struct kvc_section *side, size_t n, unsigned step) {
    struct kvc_stored stored = {.side = side};
    while (stored.n_side < n && stored.side->stage < step) stored.side++, n--;
    while (stored.n_side < n && stored.side[stored.n_side].stage == step) stored.n_side++;
    return stored;
}

/* Shares the sections out among the stages. The record of a pair's second tensor has the stages up
 * to the pair's, the first tensor's record has the others. */
static int share_out(const struct kvc_pipeline *p, const struct kvc_coded *own,
                     const struct kvc_coded *first, struct kvc_stored *stored,
                     struct kvc_error *e) {
    const unsigned pair = first ? kvc_pipeline_first(p, KVC_STAGE_PAIR) : p->n;
    size_t left = own->n, left_side = own->n_side, of_first = first ? first->n : 0,
           of_side = first ? first->n_side : 0;
    memset(stored, 0, p->n * sizeof *stored);
    for (unsigned i = p->n; i-- > 0;) {
        struct kvc_stored *s = &stored[i];
        if (i > pair) {
            s->section = take_back(first->section, &of_first, i, &s->n);
            s->side = take_back(first->side, &of_side, i, &s->n_side);
            continue;
        }
        if (i == pair) s->first = take_back(first->section, &of_first, i, &s->n_first);
        s->section = take_back(own->section, &left, i, &s->n);
        s->side = take_back(own->side, &left_side, i, &s->n_side);
    }
    if (left || left_side)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%zu sections belong to no stage of the recipe",
                        left + left_side);
    return 0;
}

void kvc_pipeline_describe(const struct kvc_pipeline *pipeline, unsigned role, int turned,
                           const struct kvc_section *side, size_t n, char *text, size_t size) {
    struct kvc_description d = {.turned = turned,
                                .values = role == KVC_SELECT_K ? " as it is (RoPE unknown)" : ""};
    for (unsigned i = pipeline->n; i-- > 0;) {
        struct kvc_stored stored = {.n = 0};
        stored.side = take_back(side, &n, i, &stored.n_side);
        if (kvc_pipeline_stage(pipeline, i)->describe)
            kvc_pipeline_stage(pipeline, i)->describe(&stored, role, &d);
    }
    if (size) *text = '\0';
    if (d.coordinates)
        snprintf(text, size, "%s%s, %s", role == KVC_SELECT_K ? "K" : "V", d.values, d.coordinates);
}

/* Names the place of an error of a stage: the first of the stage's sections in `own`. */
static void place_error(const struct kvc_coded *own, const struct kvc_stored *stored,
                        struct kvc_error *e) {
    for (size_t i = 0; e && stored->n && e->section == KVC_NOWHERE && i < own->n; i++)
        if (&own->section[i] == stored->section) e->section = i;
}

struct level {
    struct kvc_shape taken, handed;
    const struct kvc_profile_part *profile; /* of the matrix that the stage took */
    /* 1: tokens were marked salient before the stage; they have steps after it */
    int marked, stepped;
};

/* Finds, first stage first, the matrices that each stage took and handed on. */
static int open_levels(const struct kvc_pipeline *p, const struct kvc_coded *own,
                       const struct kvc_stored *stored, struct kvc_block *block,
                       struct level *level, struct kvc_error *e) {
    const enum kvc_dtype dtype = block->shape.dtype;
    for (unsigned i = 0; i < p->n; i++) {
        const struct kvc_stage *s = kvc_pipeline_stage(p, i);
        block->shape.dtype = kvc_pipeline_dtype(p, i, dtype);
        level[i].taken = block->shape;
        level[i].profile = block->profile;
        level[i].marked = block->salient != NULL;
        if ((!(s->flags & KVC_STAGE_SIDE) && kvc_stored_no_side(&stored[i], e)) ||
            (s->open && s->open(&p->step[i].args, &stored[i], block, e))) {
            place_error(own, &stored[i], e);
            return kvc_error_prefix(e, s->name);
        }
        level[i].handed = block->shape;
        level[i].stepped = block->step != NULL;
    }
    return 0;
}

/* Returns 1 where stage i, of a tensor of f32, works in binary32 and what is decoded after it does
 * not. */
static int settles(const struct kvc_pipeline *p, unsigned i, enum kvc_dtype own) {
    return own == KVC_F32 && kvc_pipeline_stage(p, i)->flags & KVC_STAGE_FLOAT &&
           (!i || !(kvc_pipeline_stage(p, i - 1)->flags & KVC_STAGE_FLOAT));
}

int kvc_pipeline_walk_back(const struct kvc_pipeline *p, struct kvc_block *block,
                           const struct kvc_coded *own, const struct kvc_coded *first,
                           kvc_pipeline_visit *visit, void *state, struct kvc_error *e) {
    struct kvc_stored stored[KVC_MAX_STEPS];
    struct level level[KVC_MAX_STEPS];
    const struct kvc_shape shape = block->shape;
    const unsigned floats = kvc_pipeline_first(p, KVC_STAGE_FLOAT | KVC_STAGE_FINITE);
    const struct kvc_stage *last = p->step[0].stage;
    if (last->flags & KVC_STAGE_UNKNOWN) {
        last->decode(&p->step[0].args, NULL, block, e);
        return kvc_error_prefix(e, last->name);
    }
    /* no encoder does that, and buffers would be too small */
    if (floats < p->n && !kvc_is_float(shape.dtype))
        return kvc_fail(e, KVC_ERR_DAMAGED, "%s cannot have coded a tensor of %s",
                        kvc_pipeline_stage(p, floats)->name, kvc_dtype_info(shape.dtype)->name);
    if (share_out(p, own, first, stored, e)) return -1;
    block->salient = NULL;
    block->step = NULL;
    block->before_rope = 0;
    block->own = shape.dtype;
    int status = open_levels(p, own, stored, block, level, e);
    uint8_t *const salient = block->salient;
    int8_t *const step = block->step;
    for (unsigned i = p->n; i-- > 0 && !status;) {
        block->salient = level[i].marked ? salient : NULL;
        block->step = level[i].stepped ? step : NULL;
        block->residual = i + 1 < p->n;
        block->handed = level[i].handed;
        block->stands = block->shape.dtype;
        block->settles = i + 1 < p->n && settles(p, i + 1, shape.dtype);
        block->shape = level[i].taken;
        block->profile = level[i].profile;
        if ((status = visit(state, kvc_pipeline_stage(p, i), &p->step[i].args, &stored[i], block,
                            e)) == -1) {
            place_error(own, &stored[i], e);
            kvc_error_prefix(e, kvc_pipeline_stage(p, i)->name);
        }
    }
    block->stands = block->shape.dtype;
    block->settles = settles(p, 0, shape.dtype);
    free(salient);
    free(step);
    block->salient = NULL;
    block->step = NULL;
    block->shape = shape;
    return status;
}

/* Decoding of a block. */
struct decoding {
    const struct kvc_pipeline *pipeline;
    const struct kvc_coded *coded;
    unsigned left;         /* stages that were not visited */
    uint8_t *rows[2];      /* buffers for the tensor's dtype and for binary32 */
    enum kvc_dtype own;    /* the tensor's dtype */
    enum kvc_dtype stands; /* dtype of the matrix that was decoded so far */
    int begun;             /* 1: that matrix is there, 0: no stage made one yet */
    const struct kvc_row_places *places;
    struct kvc_row_runs runs;
    struct kvc_block *block;
    /* Of two blocks whose first runs of rows are decoded at once: in the first block's decoding the
     * second's, and the reverse. NULL: none, or these runs are decoded. */
    struct decoding *second, *before;
};

static int decode_block(struct decoding *d, const struct kvc_coded *first, struct kvc_error *e);

enum { PLACED = -2 }; /* what a visit returns where an error has its place and its prefix */

static int row_error(struct decoding *d, struct kvc_error *e) {
    if (!d->runs.failed) return -1;
    place_error(d->coded, d->runs.failed->stored, e);
    kvc_error_prefix(e, d->runs.failed->stage->name);
    return PLACED;
}

/* Decodes by the stages of d->runs: into the tensor's dtype where no stage before them takes
 * binary32. Runs of two blocks are decoded when the stages of both have begun. */
static int decode_runs(struct decoding *d, const struct kvc_shape *shape, struct kvc_error *e) {
    const int more = d->left &&
                     kvc_pipeline_stage(d->pipeline, d->left - 1)->flags & KVC_STAGE_FLOAT;
    d->stands = more ? KVC_F32 : d->own;
    uint8_t *const to = d->rows[d->stands == KVC_F32];
    struct decoding *const second = d->second, *const before = d->before;
    d->second = d->before = NULL;
    if (second) return decode_block(second, NULL, e);
    if (before)
        return kvc_row_runs_decode_two((struct kvc_row_runs *[]){&before->runs, &d->runs},
                                       (const struct kvc_shape *[]){&before->block->shape, shape},
                                       (uint8_t *[]){before->rows[d->stands == KVC_F32], to},
                                       d->stands, e);
    return kvc_row_runs_decode(&d->runs, shape, d->begun ? (float *)(void *)d->rows[1] : NULL, to,
                               d->stands, e);
}

static int decode_stage(void *state, const struct kvc_stage *s, const struct kvc_stage_args *args,
                        const struct kvc_stored *stored, struct kvc_block *block,
                        struct kvc_error *e) {
    struct decoding *d = state;
    const struct kvc_shape taken = block->shape;
    d->left--;
    if (block->residual && !d->runs.n) {
        block->shape = block->handed;
        block->shape.dtype = d->stands;
        kvc_block_convert(block, d->rows, d->own, block->handed.dtype);
        block->shape = taken;
        d->begun = 1;
    }
    if (s->rows_begin) {
        if (kvc_row_runs_add(&d->runs, s, args, stored, block, e)) return row_error(d, e);
        if (d->left && kvc_pipeline_stage(d->pipeline, d->left - 1)->rows_begin) return 0;
        if (decode_runs(d, &taken, e) || kvc_row_runs_end(&d->runs, 1, e)) return row_error(d, e);
        return 0;
    }
    block->rows = d->rows[taken.dtype == KVC_F32];
    d->stands = taken.dtype;
    /* no stage changes the rows, nor are they converted */
    block->places = d->left || taken.dtype != d->own ? NULL : d->places;
    return s->decode(args, stored, block, e);
}

/* Returns 1 where binary32 of the whole block has a buffer of its own: unless all stages of
 * binary32 decode runs of rows, from nothing. */
static int decodes_in_work(const struct kvc_pipeline *p, enum kvc_dtype dtype) {
    unsigned i = p->n;
    while (i && kvc_pipeline_stage(p, i - 1)->rows_begin) i--;
    return kvc_pipeline_wants_floats(p, dtype) &&
           (i == p->n || kvc_pipeline_first(p, KVC_STAGE_FLOAT) < i);
}

static struct decoding decoding_of(const struct kvc_pipeline *p, struct kvc_block *block,
                                   const struct kvc_coded *own) {
    return (struct decoding){.pipeline = p,
                             .coded = own,
                             .left = p->n,
                             .rows = {block->rows, block->rows},
                             .own = block->shape.dtype,
                             .places = block->places,
                             .block = block};
}

static int decode_block(struct decoding *d, const struct kvc_coded *first, struct kvc_error *e) {
    struct kvc_block *const block = d->block;
    const struct kvc_shape shape = block->shape;
    float *work = NULL;
    if (decodes_in_work(d->pipeline, d->own)) {
        if (!(work = kvc_alloc_lines(kvc_shape_values(&shape), sizeof *work)))
            return kvc_fail_memory(e, "a block");
        d->rows[1] = (uint8_t *)work;
    }
    const int status = kvc_pipeline_walk_back(d->pipeline, block, d->coded, first, decode_stage, d,
                                              e);
    kvc_row_runs_end(&d->runs, 0, NULL);
    if (!status) {
        block->shape.dtype = d->stands;
        kvc_block_convert(block, d->rows, d->own, d->own);
    }
    block->settles = 0;
    free(work);
    block->rows = d->rows[0];
    block->shape = shape;
    return status ? -1 : 0;
}

int kvc_pipeline_decode_record(const struct kvc_pipeline *p, struct kvc_block *block,
                               const struct kvc_coded *own, const struct kvc_coded *first,
                               struct kvc_error *e) {
    struct decoding d = decoding_of(p, block, own);
    return decode_block(&d, first, e);
}

/* --- the last stage alone --- */

void kvc_earlier_free(struct kvc_earlier_rows *rows) {
    free(rows->row);
    free(rows->values);
    free(rows->step);
    memset(rows, 0, sizeof *rows);
}

/* Decodes the rows of the last stage, which is visited first. Returns 1: no stage is visited then.
 */
static int decode_last(void *state, const struct kvc_stage *s, const struct kvc_stage_args *args,
                       const struct kvc_stored *stored, struct kvc_block *block,
                       struct kvc_error *e) {
    struct kvc_earlier_rows *to = state;
    struct kvc_row_runs runs = {.n = 0};
    const size_t n = to->n = (size_t)block->shape.tokens, heads = (size_t)block->shape.heads;
    to->row = kvc_alloc(n, sizeof *to->row);
    to->values = kvc_alloc(n * heads, (size_t)block->shape.dim * sizeof *to->values);
    if (block->step) to->step = kvc_alloc(n, heads);
    if (!to->row || !to->values || (block->step && !to->step)) return kvc_fail_memory(e, "rows");
    memcpy(to->row, block->row, n * sizeof *to->row);
    if (to->step) memcpy(to->step, block->step, n * heads);
    int status = kvc_row_runs_add(&runs, s, args, stored, block, e);
    if (!status)
        status = kvc_row_runs_decode(&runs, &block->shape, NULL, (uint8_t *)to->values, KVC_F32, e);
    if (kvc_row_runs_end(&runs, !status, e)) status = -1;
    return status ? -1 : 1;
}

int kvc_pipeline_decode_last(const struct kvc_pipeline *p, struct kvc_block *block,
                             const struct kvc_coded *own, struct kvc_earlier_rows *to,
                             struct kvc_error *e) {
    memset(to, 0, sizeof *to);
    return kvc_pipeline_walk_back(p, block, own, NULL, decode_last, to, e) < 0 ? -1 : 0;
}

/* Returns 1 where the last stage decodes runs of rows, of two blocks faster at once, and a block's
 * own record suffices. */
static int runs_two(const struct kvc_pipeline *p) {
    return p->n && kvc_pipeline_stage(p, p->n - 1)->rows_next_two &&
           kvc_pipeline_first(p, KVC_STAGE_PAIR | KVC_STAGE_REBUILDS) == p->n;
}

int kvc_pipeline_decodes_two(const struct kvc_pipeline *p) {
    return kvc_kernels_get()->rans_decode_two &&
           ((p->n == 1 && kvc_pipeline_stage(p, 0)->decode_two) || runs_two(p));
}

int kvc_pipeline_decode_two(const struct kvc_pipeline *p, struct kvc_block *block,
                            const struct kvc_coded *own) {
    struct kvc_stored stored[2];
    if (runs_two(p)) {
        struct decoding d[] = {decoding_of(p, &block[0], &own[0]),
                               decoding_of(p, &block[1], &own[1])};
        d[0].second = &d[1];
        d[1].before = &d[0];
        return decode_block(&d[0], NULL, NULL) != 0;
    }
    const int predicts = kvc_pipeline_stage(p, 0)->flags & KVC_STAGE_AHEAD;
    if ((!predicts && (own[0].n_side || own[1].n_side)) ||
        share_out(p, &own[0], NULL, &stored[0], NULL) ||
        share_out(p, &own[1], NULL, &stored[1], NULL))
        return 1;
    return kvc_pipeline_stage(p, 0)->decode_two(&p->step[0].args, stored, block);
}

int kvc_pipeline_decode(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                        const struct kvc_section *sections, size_t n, struct kvc_error *e) {
    const struct kvc_coded own = {.section = sections, .n = n};
    return kvc_pipeline_decode_record(pipeline, block, &own, NULL, e);
}
