/* pipeline.c: runs stages over blocks. Matrices are in the tensor's dtype, or in binary32 before and after stages that work on
 * binary32; this file converts between them. Not for recipes (recipe.c). */
#include "codecs/pipeline.h"

#include "codecs/floats.h"
#include "codecs/memory.h"
#include "codecs/row_runs.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kvc_stage *stage_at(const struct kvc_pipeline *p, unsigned i) {
    return p->step[i].stage;
}

int kvc_pipeline_print(const struct kvc_pipeline *pipeline, char *text, size_t size) {
    if (!size) return -1;
    *text = '\0';
    for (unsigned i = 0; i < pipeline->n; i++)
        if ((i && kvc_text_append(text, size, ",")) ||
            kvc_stage_append(text, size, stage_at(pipeline, i), &pipeline->step[i].args))
            return -1;
    return 0;
}

int kvc_pipeline_same(const struct kvc_pipeline *a, const struct kvc_pipeline *b) {
    if (a->n != b->n) return 0;
    for (unsigned i = 0; i < a->n; i++)
        if (a->step[i].stage != b->step[i].stage || !kvc_args_same(&a->step[i].args, &b->step[i].args)) return 0;
    return 1;
}

int kvc_pipeline_lossless(const struct kvc_pipeline *pipeline) {
    for (unsigned i = 0; i < pipeline->n; i++)
        if (!(stage_at(pipeline, i)->flags & KVC_STAGE_LOSSLESS)) return 0;
    return 1;
}

unsigned kvc_pipeline_first(const struct kvc_pipeline *pipeline, unsigned flags) {
    unsigned i = 0;
    while (i < pipeline->n && !(stage_at(pipeline, i)->flags & flags)) i++;
    return i;
}

int kvc_pipeline_check(const struct kvc_pipeline *pipeline, struct kvc_error *e) {
    const unsigned pair = kvc_pipeline_first(pipeline, KVC_STAGE_PAIR);
    for (unsigned i = 0; i < pipeline->n; i++) {
        const struct kvc_stage *s = stage_at(pipeline, i);
        const int last = i + 1 == pipeline->n, ends = (s->flags & KVC_STAGE_TERMINAL) != 0;
        if (ends != last && !(last && s->flags & KVC_STAGE_RESIDUAL))
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            ends ? "stage %s is terminal, and another follows it"
                                 : "stage %s is not terminal, and none follows it",
                            s->name);
        if (i < pair && pair < pipeline->n && s->flags & KVC_STAGE_LOOKS)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s cannot come before %s: put it after", s->name,
                            stage_at(pipeline, pair)->name);
        const unsigned asks = kvc_pipeline_first(pipeline, KVC_STAGE_REBUILDS | KVC_STAGE_POSITIONS);
        if (s->flags & KVC_STAGE_TAKES && asks < i)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s cannot come after %s: put it before", s->name,
                            stage_at(pipeline, asks)->name);
        for (unsigned k = 0; k < i; k++)
            if (s->flags & KVC_STAGE_POSITIONS && stage_at(pipeline, k) == s)
                return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s occurs twice in the recipe", s->name);
        const unsigned ahead = kvc_pipeline_first(pipeline, KVC_STAGE_AHEAD);
        if (i > ahead && s->flags & KVC_STAGE_AHEAD)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s and %s both predict: leave one of them out",
                            stage_at(pipeline, ahead)->name, s->name);
        if (i == ahead && !(s->flags & KVC_STAGE_TERMINAL) && pair < pipeline->n)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s does not predict layers that %s merges: leave one of them out", s->name,
                            stage_at(pipeline, pair)->name);
        if (i > pair && s->flags & KVC_STAGE_PAIR)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s occurs twice in the recipe", s->name);
    }
    return 0;
}

int kvc_pipeline_accepts(const struct kvc_pipeline *pipeline, const struct kvc_shape *shape, struct kvc_error *e) {
    for (unsigned i = 0; i < pipeline->n; i++) {
        const struct kvc_stage *s = stage_at(pipeline, i);
        if (s->flags & (KVC_STAGE_FLOAT | KVC_STAGE_FINITE) && !kvc_is_float(shape->dtype)) {
            kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s takes f32, f16 and bf16, not %s", s->name, kvc_dtype_info(shape->dtype)->name);
            return 0;
        }
        if (s->accepts && !s->accepts(&pipeline->step[i].args, shape, e)) {
            kvc_error_prefix(e, s->name);
            return 0;
        }
    }
    return 1;
}

static size_t values_of(const struct kvc_shape *s) {
    return (size_t)(s->tokens * s->heads * s->dim);
}

/* Returns the dtype in which a step takes its matrix, of a tensor of `dtype`. */
static enum kvc_dtype taken_as(const struct kvc_pipeline *p, unsigned i, enum kvc_dtype dtype) {
    return stage_at(p, i)->flags & KVC_STAGE_FLOAT ? KVC_F32 : dtype;
}

/* Converts the matrix to another dtype; rows[] are the buffers for the tensor's dtype and for binary32. */
static void convert(struct kvc_block *block, uint8_t *const rows[2], enum kvc_dtype own, enum kvc_dtype to) {
    if (block->shape.dtype == to) return;
    if (to == KVC_F32) kvc_to_floats((float *)(void *)rows[1], rows[0], values_of(&block->shape), own);
    else kvc_from_floats(rows[0], (const float *)(const void *)rows[1], values_of(&block->shape), own);
    block->shape.dtype = to;
    block->rows = rows[to == KVC_F32];
}

static int wants_work(const struct kvc_pipeline *p, enum kvc_dtype dtype) {
    return dtype != KVC_F32 && kvc_pipeline_first(p, KVC_STAGE_FLOAT) < p->n;
}

/* --- encoding --- */

void kvc_encoder_init(struct kvc_encoder *x, const struct kvc_pipeline *pipeline, const struct kvc_encoding *encoding) {
    memset(x, 0, sizeof *x);
    x->pipeline = pipeline;
    x->encoding = encoding;
    kvc_sections_init(&x->side);
    kvc_sections_init(&x->dropped);
}

void kvc_encoder_free(struct kvc_encoder *x) {
    for (unsigned i = 0; i < x->pipeline->n; i++)
        if (stage_at(x->pipeline, i)->end) stage_at(x->pipeline, i)->end(x->state[i]);
    kvc_sections_free(&x->side);
    kvc_sections_free(&x->dropped);
    free(x->work[0]);
    free(x->work[1]);
}

static int work_room(struct kvc_encoder *x, unsigned which, const struct kvc_block *block, struct kvc_error *e) {
    const size_t n = values_of(&block->shape);
    if (!wants_work(x->pipeline, block->shape.dtype) || n <= x->room[which]) return 0;
    free(x->work[which]);
    x->room[which] = 0;
    if (!(x->work[which] = kvc_alloc_lines(n, sizeof(float)))) return kvc_fail_memory(e, "a block");
    x->room[which] = n;
    return 0;
}

/* Runs the first `n` steps, of a block that is kept those that did not run yet. Afterwards the block is the matrix that step n
 * takes, or that the last step handed on. */
static int run(struct kvc_encoder *x, unsigned n, struct kvc_block *block, unsigned which, struct kvc_sections *out,
               struct kvc_error *e) {
    const struct kvc_pipeline *p = x->pipeline;
    struct kvc_steps_done *const done = block->done;
    const enum kvc_dtype own = done ? block->own : block->shape.dtype;
    if (!done && work_room(x, which, block, e)) return -1;
    uint8_t *const fresh[2] = {block->rows, (uint8_t *)x->work[which]}, *const *rows = done ? done->rows : fresh;
    block->encoding = x->encoding;
    block->own = own;
    for (unsigned i = done ? done->steps : 0; i < n; i++) {
        const struct kvc_stage *s = stage_at(p, i);
        convert(block, rows, own, taken_as(p, i, own));
        if (s->flags & KVC_STAGE_PAIR && block->partner && run(x, i, block->partner, 1, &x->dropped, e)) return -1;
        block->residual = i + 1 < p->n;
        if (s->encode(&p->step[i].args, x->state[i], block, (uint8_t)i, out, e)) return kvc_error_prefix(e, s->name);
        /* a pair's second tensor has nothing left to code: the first tensor has the rows that both share */
        if (s->flags & KVC_STAGE_PAIR && x->encoding && x->encoding->second) return 0;
    }
    if (n < p->n) convert(block, rows, own, taken_as(p, n, own));
    if (done) done->steps = n;
    return 0;
}

static void drop_marks(struct kvc_block *block) {
    free(block->salient);
    free(block->step);
    block->salient = NULL;
    block->step = NULL;
    if (block->partner) drop_marks(block->partner);
}

/* Runs the first `n` steps for a look at what they hand on. */
static int run_to_look(struct kvc_encoder *x, unsigned n, struct kvc_block *block, struct kvc_error *e) {
    kvc_sections_clear(&x->dropped);
    if (block->done) return run(x, n, block, 0, &block->done->list, e);
    block->looked = 1;
    if (block->partner) block->partner->looked = 1;
    return run(x, n, block, 0, &x->dropped, e);
}

int kvc_encoder_keep(struct kvc_encoder *x, struct kvc_block *block, struct kvc_steps_done *done, struct kvc_error *e) {
    const size_t bytes = (size_t)(block->shape.tokens * kvc_row_bytes(&block->shape)), n = values_of(&block->shape);
    const int floats = wants_work(x->pipeline, block->shape.dtype);
    uint64_t *row = kvc_alloc(block->shape.tokens, sizeof *row);
    done->steps = 0;
    done->rows[0] = kvc_alloc_lines(bytes, 1);
    done->rows[1] = floats ? kvc_alloc_lines(n, sizeof(float)) : done->rows[0];
    if (!row || !done->rows[0] || !done->rows[1]) {
        if (floats) free(done->rows[1]);
        free(done->rows[0]);
        free(row);
        return kvc_fail_memory(e, "a block");
    }
    memcpy(done->rows[0], block->rows, bytes);
    memcpy(row, block->row, (size_t)block->shape.tokens * sizeof *row);
    block->rows = done->rows[0];
    block->row = row;
    block->own = block->shape.dtype;
    block->done = done;
    return 0;
}

void kvc_encoder_drop(struct kvc_block *block) {
    if (!block->done) return;
    drop_marks(block);
    if (block->done->rows[1] != block->done->rows[0]) free(block->done->rows[1]);
    free(block->done->rows[0]);
    free(block->row);
    kvc_sections_free(&block->done->list);
    block->done = NULL;
}

/* Returns 1 for a stage that hands on a matrix of the shape that it takes: one that changes rows alone, or `finite`. */
static int hands_on_shape(const struct kvc_stage *s) {
    return s->rows_begin || s->flags == KVC_STAGE_LOSSLESS;
}

int kvc_encoder_shape(struct kvc_encoder *x, unsigned i, struct kvc_block *block, struct kvc_error *e) {
    unsigned same = 0;
    while (same < i && hands_on_shape(stage_at(x->pipeline, same))) same++;
    const uint64_t rows = block->shape.tokens;
    const int without_rows = same == i && !block->done;
    if (without_rows) block->shape.tokens = 0;
    const int status = run_to_look(x, i, block, e);
    if (without_rows) block->shape.tokens = rows;
    if (!block->done) drop_marks(block);
    return status;
}

int kvc_encoder_begin(struct kvc_encoder *x, unsigned i, const struct kvc_block *like, struct kvc_error *e) {
    const struct kvc_stage *s = stage_at(x->pipeline, i);
    if (s->end) s->end(x->state[i]);
    x->state[i] = NULL;
    if (i == kvc_pipeline_first(x->pipeline, KVC_STAGE_LOOKS)) kvc_sections_clear(&x->side);
    return s->begin(&x->pipeline->step[i].args, x->encoding, like, &x->state[i], e) ? kvc_error_prefix(e, s->name) : 0;
}

int kvc_encoder_look(struct kvc_encoder *x, unsigned i, struct kvc_block *block, struct kvc_error *e) {
    const struct kvc_stage *s = stage_at(x->pipeline, i);
    int status = run_to_look(x, i, block, e);
    if (!status && s->flags & KVC_STAGE_PAIR && block->partner) status = run(x, i, block->partner, 1, &x->dropped, e);
    if (!status && s->look && x->state[i] && s->look(&x->pipeline->step[i].args, x->state[i], block, e))
        status = kvc_error_prefix(e, s->name);
    if (!block->done) drop_marks(block);
    return status;
}

int kvc_encoder_settle(struct kvc_encoder *x, unsigned i, struct kvc_error *e) {
    const struct kvc_stage *s = stage_at(x->pipeline, i);
    if (s->settle && s->settle(&x->pipeline->step[i].args, x->state[i], (uint8_t)i, &x->side, e))
        return kvc_error_prefix(e, s->name);
    kvc_sections_seal(&x->side);
    return 0;
}

int kvc_encoder_block(struct kvc_encoder *x, struct kvc_block *block, struct kvc_sections *out, struct kvc_error *e) {
    kvc_sections_clear(&x->dropped);
    const int status = run(x, x->pipeline->n, block, 0, out, e);
    drop_marks(block);
    return status;
}

int kvc_pipeline_encode(const struct kvc_pipeline *pipeline, struct kvc_block *block, struct kvc_sections *out,
                        struct kvc_error *e) {
    struct kvc_encoder x;
    kvc_encoder_init(&x, pipeline, NULL);
    const int status = kvc_encoder_block(&x, block, out, e);
    kvc_encoder_free(&x);
    return status;
}

/* --- decoding --- */

/* Finds the sections of stage i, which end at *n: sections are in the order of the stages. */
static const struct kvc_section *take_back(const struct kvc_section *section, size_t *n, unsigned i, size_t *count) {
    static const struct kvc_section none;
    const size_t end = *n;
    if (!end) section = &none; /* `section` may be NULL, to which nothing may be added */
    while (*n && section[*n - 1].stage == i) --*n;
    *count = end - *n;
    return section + *n;
}

/* Shares the sections out among the stages. The record of a pair's second tensor has the stages up to the pair's, the first
 * tensor's record has the others. */
static int share_out(const struct kvc_pipeline *p, const struct kvc_coded *own, const struct kvc_coded *first,
                     struct kvc_stored *stored, struct kvc_error *e) {
    const unsigned pair = first ? kvc_pipeline_first(p, KVC_STAGE_PAIR) : p->n;
    size_t left = own->n, left_side = own->n_side, of_first = first ? first->n : 0, of_side = first ? first->n_side : 0;
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
    if (left || left_side) return kvc_fail(e, KVC_ERR_DAMAGED, "%zu sections belong to no stage of the recipe", left + left_side);
    return 0;
}

void kvc_pipeline_describe(const struct kvc_pipeline *pipeline, unsigned role, const struct kvc_section *side, size_t n,
                           char *text, size_t size) {
    struct kvc_description d = {.values = role == KVC_SELECT_K ? " as it is (RoPE unknown)" : ""};
    for (unsigned i = pipeline->n; i-- > 0;) {
        struct kvc_stored stored = {.n = 0};
        stored.side = take_back(side, &n, i, &stored.n_side);
        if (stage_at(pipeline, i)->describe) stage_at(pipeline, i)->describe(&stored, role, &d);
    }
    if (size) *text = '\0';
    if (d.coordinates) snprintf(text, size, "%s%s, %s", role == KVC_SELECT_K ? "K" : "V", d.values, d.coordinates);
}

/* Names the place of an error of a stage: the first of the stage's sections in `own`. */
static void place_error(const struct kvc_coded *own, const struct kvc_stored *stored, struct kvc_error *e) {
    for (size_t i = 0; e && stored->n && e->section == KVC_NOWHERE && i < own->n; i++)
        if (&own->section[i] == stored->section) e->section = i;
}

struct level {
    struct kvc_shape taken, handed;
    const struct kvc_profile_part *profile; /* of the matrix that the stage took */
    int marked, stepped;                    /* 1: tokens were marked salient before the stage; they have steps after it */
};

/* Finds, first stage first, the matrices that each stage took and handed on. */
static int open_levels(const struct kvc_pipeline *p, const struct kvc_coded *own, const struct kvc_stored *stored,
                       struct kvc_block *block, struct level *level, struct kvc_error *e) {
    const enum kvc_dtype dtype = block->shape.dtype;
    for (unsigned i = 0; i < p->n; i++) {
        const struct kvc_stage *s = stage_at(p, i);
        block->shape.dtype = taken_as(p, i, dtype);
        level[i].taken = block->shape;
        level[i].profile = block->profile;
        level[i].marked = block->salient != NULL;
        if (s->open && s->open(&p->step[i].args, &stored[i], block, e)) {
            place_error(own, &stored[i], e);
            return kvc_error_prefix(e, s->name);
        }
        level[i].handed = block->shape;
        level[i].stepped = block->step != NULL;
    }
    return 0;
}

int kvc_pipeline_walk_back(const struct kvc_pipeline *p, struct kvc_block *block, const struct kvc_coded *own,
                           const struct kvc_coded *first, kvc_pipeline_visit *visit, void *state, struct kvc_error *e) {
    struct kvc_stored stored[KVC_MAX_STEPS];
    struct level level[KVC_MAX_STEPS];
    const struct kvc_shape shape = block->shape;
    const unsigned floats = kvc_pipeline_first(p, KVC_STAGE_FLOAT | KVC_STAGE_FINITE);
    if (floats < p->n && !kvc_is_float(shape.dtype)) /* no encoder does that, and buffers would be too small */
        return kvc_fail(e, KVC_ERR_DAMAGED, "%s cannot have coded a tensor of %s", stage_at(p, floats)->name,
                        kvc_dtype_info(shape.dtype)->name);
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
        block->shape = level[i].taken;
        block->profile = level[i].profile;
        if ((status = visit(state, stage_at(p, i), &p->step[i].args, &stored[i], block, e)) == -1) {
            place_error(own, &stored[i], e);
            kvc_error_prefix(e, stage_at(p, i)->name);
        }
    }
    block->stands = block->shape.dtype;
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
};

enum { PLACED = -2 }; /* what a visit returns where an error has its place and its prefix */

static int row_error(struct decoding *d, struct kvc_error *e) {
    if (!d->runs.failed) return -1;
    place_error(d->coded, d->runs.failed->stored, e);
    kvc_error_prefix(e, d->runs.failed->stage->name);
    return PLACED;
}

/* Decodes by the stages of d->runs: into the tensor's dtype where no stage before them takes binary32. */
static int decode_runs(struct decoding *d, const struct kvc_shape *shape, struct kvc_error *e) {
    const int more = d->left && stage_at(d->pipeline, d->left - 1)->flags & KVC_STAGE_FLOAT;
    d->stands = more ? KVC_F32 : d->own;
    return kvc_row_runs_decode(&d->runs, shape, d->begun ? (float *)(void *)d->rows[1] : NULL, d->rows[d->stands == KVC_F32],
                               d->stands, e);
}

static int decode_stage(void *state, const struct kvc_stage *s, const struct kvc_stage_args *args,
                        const struct kvc_stored *stored, struct kvc_block *block, struct kvc_error *e) {
    struct decoding *d = state;
    const struct kvc_shape taken = block->shape;
    d->left--;
    if (block->residual && !d->runs.n) {
        block->shape = block->handed;
        block->shape.dtype = d->stands;
        convert(block, d->rows, d->own, block->handed.dtype);
        block->shape = taken;
        d->begun = 1;
    }
    if (s->rows_begin) {
        if (kvc_row_runs_add(&d->runs, s, args, stored, block, e)) return row_error(d, e);
        if (d->left && stage_at(d->pipeline, d->left - 1)->rows_begin) return 0;
        if (decode_runs(d, &taken, e) || kvc_row_runs_end(&d->runs, 1, e)) return row_error(d, e);
        return 0;
    }
    block->rows = d->rows[taken.dtype == KVC_F32];
    d->stands = taken.dtype;
    block->places = d->left || taken.dtype != d->own ? NULL : d->places; /* no stage changes the rows, nor are they converted */
    return s->decode(args, stored, block, e);
}

/* Returns 1 where binary32 of the whole block has a buffer of its own: unless all stages of binary32 decode runs of rows, from nothing. */
static int decodes_in_work(const struct kvc_pipeline *p, enum kvc_dtype dtype) {
    unsigned i = p->n;
    while (i && stage_at(p, i - 1)->rows_begin) i--;
    return wants_work(p, dtype) && (i == p->n || kvc_pipeline_first(p, KVC_STAGE_FLOAT) < i);
}

int kvc_pipeline_decode_record(const struct kvc_pipeline *p, struct kvc_block *block, const struct kvc_coded *own,
                               const struct kvc_coded *first, struct kvc_error *e) {
    const struct kvc_shape shape = block->shape;
    struct decoding d = {.pipeline = p,
                         .coded = own,
                         .left = p->n,
                         .rows = {block->rows, block->rows},
                         .own = shape.dtype,
                         .places = block->places};
    float *work = NULL;
    if (decodes_in_work(p, d.own)) {
        if (!(work = kvc_alloc_lines(values_of(&shape), sizeof *work))) return kvc_fail_memory(e, "a block");
        d.rows[1] = (uint8_t *)work;
    }
    const int status = kvc_pipeline_walk_back(p, block, own, first, decode_stage, &d, e);
    kvc_row_runs_end(&d.runs, 0, NULL);
    if (!status) {
        block->shape.dtype = d.stands;
        convert(block, d.rows, d.own, d.own);
    }
    free(work);
    block->rows = d.rows[0];
    block->shape = shape;
    return status ? -1 : 0;
}

int kvc_pipeline_decodes_two(const struct kvc_pipeline *p) {
    return p->n == 1 && stage_at(p, 0)->decode_two && kvc_kernels_get()->rans_decode_two;
}

int kvc_pipeline_decode_two(const struct kvc_pipeline *p, struct kvc_block *block, const struct kvc_coded *own) {
    struct kvc_stored stored[2];
    if (share_out(p, &own[0], NULL, &stored[0], NULL) || share_out(p, &own[1], NULL, &stored[1], NULL)) return 1;
    return stage_at(p, 0)->decode_two(&p->step[0].args, stored, block);
}

int kvc_pipeline_decode(const struct kvc_pipeline *pipeline, struct kvc_block *block, const struct kvc_section *sections,
                        size_t n, struct kvc_error *e) {
    const struct kvc_coded own = {.section = sections, .n = n};
    return kvc_pipeline_decode_record(pipeline, block, &own, NULL, e);
}
