/* pipeline_encode.c: encodes blocks by the stages of a pipeline, each of which may look at a
 * segment first. Not for decoding (pipeline_decode.c). */
#include "codecs/pipeline_steps.h"

#include "codecs/memory.h"

#include <stdlib.h>
#include <string.h>

void kvc_encoder_init(struct kvc_encoder *x, const struct kvc_pipeline *pipeline,
                      const struct kvc_encoding *encoding) {
    memset(x, 0, sizeof *x);
    x->pipeline = pipeline;
    x->encoding = encoding;
    kvc_sections_init(&x->side);
    kvc_sections_init(&x->dropped);
}

void kvc_encoder_free(struct kvc_encoder *x) {
    for (unsigned i = 0; i < x->pipeline->n; i++)
        if (kvc_pipeline_stage(x->pipeline, i)->end)
            kvc_pipeline_stage(x->pipeline, i)->end(x->state[i]);
    kvc_sections_free(&x->side);
    kvc_sections_free(&x->dropped);
    free(x->work[0]);
    free(x->work[1]);
}

static int work_room(struct kvc_encoder *x, unsigned which, const struct kvc_block *block,
                     struct kvc_error *e) {
    const size_t n = kvc_shape_values(&block->shape);
    if (!kvc_pipeline_wants_floats(x->pipeline, block->shape.dtype) || n <= x->room[which])
        return 0;
    free(x->work[which]);
    x->room[which] = 0;
    if (!(x->work[which] = kvc_alloc_lines(n, sizeof(float)))) return kvc_fail_memory(e, "a block");
    x->room[which] = n;
    return 0;
}

/* Gives the rows that keep their codes the values that these codes are decoded to. */
static void take_earlier(struct kvc_block *block) {
    const size_t width = (size_t)(block->shape.heads * block->shape.dim);
    float *rows = (float *)(void *)block->rows;
    for (uint64_t i = 0; i < block->shape.tokens; i++) {
        const ptrdiff_t k = kvc_block_earlier(block, i);
        if (k >= 0)
            memcpy(rows + i * width, block->earlier->values + (size_t)k * width,
                   width * sizeof *rows);
    }
}

/* Runs the first `n` steps, of a block that is kept those that did not run yet. Afterwards the
 * block is the matrix that step n takes, or that the last step handed on. */
static int pipeline_encode_run(struct kvc_encoder *x, unsigned n, struct kvc_block *block,
                               unsigned which, struct kvc_sections *out, struct kvc_error *e) {
    const struct kvc_pipeline *p = x->pipeline;
    struct kvc_steps_done *const done = block->done;
    const enum kvc_dtype own = done ? block->own : block->shape.dtype;
    if (!done && work_room(x, which, block, e)) return -1;
    uint8_t *const fresh[2] = {block->rows, (uint8_t *)x->work[which]}, *const *rows =
                                                                            done ? done->rows
                                                                                 : fresh;
    block->encoding = x->encoding;
    block->own = own;
    for (unsigned i = done ? done->steps : 0; i < n; i++) {
        const struct kvc_stage *s = kvc_pipeline_stage(p, i);
        kvc_block_convert(block, rows, own, kvc_pipeline_dtype(p, i, own));
        if (s->flags & KVC_STAGE_PAIR && block->partner &&
            pipeline_encode_run(x, i, block->partner, 1, &x->dropped, e))
            return -1;
        block->residual = i + 1 < p->n;
        if (block->earlier && !block->residual) take_earlier(block);
        if (s->encode(&p->step[i].args, x->state[i], block, (uint8_t)i, out, e))
            return kvc_error_prefix(e, s->name);
        /* a pair's second tensor has nothing left to code: the first tensor has the rows that both
         * share */
        if (s->flags & KVC_STAGE_PAIR && x->encoding && x->encoding->second) return 0;
    }
    if (n < p->n) kvc_block_convert(block, rows, own, kvc_pipeline_dtype(p, n, own));
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
static int run_to_look(struct kvc_encoder *x, unsigned n, struct kvc_block *block,
                       struct kvc_error *e) {
    kvc_sections_clear(&x->dropped);
    if (block->done) return pipeline_encode_run(x, n, block, 0, &block->done->list, e);
    block->looked = 1;
    if (block->partner) block->partner->looked = 1;
    return pipeline_encode_run(x, n, block, 0, &x->dropped, e);
}

int kvc_encoder_keep(struct kvc_encoder *x, struct kvc_block *block, struct kvc_steps_done *done,
                     struct kvc_error *e) {
    const size_t bytes = (size_t)(block->shape.tokens * kvc_row_bytes(&block->shape)),
                 n = kvc_shape_values(&block->shape);
    const int floats = kvc_pipeline_wants_floats(x->pipeline, block->shape.dtype);
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

/* Returns 1 for a stage that hands on a matrix of the shape that it takes: one that changes rows
 * alone, or `finite`. */
static int hands_on_shape(const struct kvc_stage *s) {
    return s->rows_begin || s->flags == KVC_STAGE_LOSSLESS;
}

int kvc_encoder_shape(struct kvc_encoder *x, unsigned i, struct kvc_block *block,
                      struct kvc_error *e) {
    unsigned same = 0;
    while (same < i && hands_on_shape(kvc_pipeline_stage(x->pipeline, same))) same++;
    const uint64_t rows = block->shape.tokens;
    const int without_rows = same == i && !block->done;
    if (without_rows) block->shape.tokens = 0;
    const int status = run_to_look(x, i, block, e);
    if (without_rows) block->shape.tokens = rows;
    if (!block->done) drop_marks(block);
    return status;
}

int kvc_encoder_begin(struct kvc_encoder *x, unsigned i, const struct kvc_block *like,
                      struct kvc_error *e) {
    const struct kvc_stage *s = kvc_pipeline_stage(x->pipeline, i);
    if (s->end) s->end(x->state[i]);
    x->state[i] = NULL;
    for (unsigned k = 0; k < i; k++)
        if (s->flags & KVC_STAGE_MARKS && kvc_pipeline_stage(x->pipeline, k) == s)
            return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s occurs twice in the recipe", s->name);
    if (i == kvc_pipeline_first(x->pipeline, KVC_STAGE_LOOKS)) kvc_sections_clear(&x->side);
    return s->begin(&x->pipeline->step[i].args, x->encoding, like, &x->state[i], e)
               ? kvc_error_prefix(e, s->name)
               : 0;
}

int kvc_encoder_look(struct kvc_encoder *x, unsigned i, struct kvc_block *block,
                     struct kvc_error *e) {
    const struct kvc_stage *s = kvc_pipeline_stage(x->pipeline, i);
    int status = run_to_look(x, i, block, e);
    if (!status && s->flags & KVC_STAGE_PAIR && block->partner)
        status = pipeline_encode_run(x, i, block->partner, 1, &x->dropped, e);
    if (!status && s->look && x->state[i] &&
        s->look(&x->pipeline->step[i].args, x->state[i], block, e))
        status = kvc_error_prefix(e, s->name);
    if (!block->done) drop_marks(block);
    return status;
}

int kvc_encoder_settle(struct kvc_encoder *x, unsigned i, struct kvc_error *e) {
    const struct kvc_stage *s = kvc_pipeline_stage(x->pipeline, i);
    if (s->settle && s->settle(&x->pipeline->step[i].args, x->state[i], (uint8_t)i, &x->side, e))
        return kvc_error_prefix(e, s->name);
    kvc_sections_seal(&x->side);
    return 0;
}

int kvc_pipeline_adopts(const struct kvc_pipeline *pipeline) {
    for (unsigned i = 0; i < pipeline->n; i++) {
        const struct kvc_stage *s = kvc_pipeline_stage(pipeline, i);
        if (s->flags & KVC_STAGE_LOOKS && s->look && !s->adopt) return 0;
    }
    return 1;
}

int kvc_pipeline_keeps_codes(const struct kvc_pipeline *pipeline) {
    const struct kvc_stage *last = kvc_pipeline_stage(pipeline, pipeline->n - 1);
    return last->step && last->rows_begin && !kvc_pipeline_has(pipeline, KVC_STAGE_LAST);
}

static int same_sections(const struct kvc_section *a, size_t n, const struct kvc_sections *b) {
    int same = n == b->count;
    for (size_t i = 0; i < n && same; i++) {
        const struct kvc_section *x = &a[i], *y = &b->section[i];
        same = x->type == y->type && x->index == y->index && x->coder == y->coder &&
               x->size == y->size && memcmp(x->data, y->data, x->size) == 0;
    }
    return same;
}

/* Settles a step, and compares what it stores. */
static int settle_alike(struct kvc_encoder *x, unsigned i, const struct kvc_stored *stored,
                        struct kvc_error *e) {
    const struct kvc_stage *s = kvc_pipeline_stage(x->pipeline, i);
    struct kvc_sections own;
    kvc_sections_init(&own);
    int status = s->settle ? s->settle(&x->pipeline->step[i].args, x->state[i], (uint8_t)i, &own, e)
                           : 0;
    kvc_sections_seal(&own);
    if (!status && !same_sections(stored->side, stored->n_side, &own))
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED,
                          "its side data are not those of this cache: no blocks can be added to "
                          "the segment");
    kvc_sections_free(&own);
    return status;
}

int kvc_encoder_adopt(struct kvc_encoder *x, unsigned i, const struct kvc_section *side, size_t n,
                      struct kvc_error *e) {
    const struct kvc_stage *s = kvc_pipeline_stage(x->pipeline, i);
    const struct kvc_stored stored = kvc_pipeline_side(side, n, i);
    int status = s->adopt && x->state[i]
                     ? s->adopt(&x->pipeline->step[i].args, x->state[i], &stored, e)
                     : settle_alike(x, i, &stored, e);
    for (size_t k = 0; k < stored.n_side && !status; k++)
        status = kvc_sections_add(&x->side, stored.side[k].type, (uint8_t)i, stored.side[k].index,
                                  stored.side[k].data, stored.side[k].size, 0, e);
    kvc_sections_seal(&x->side);
    return status ? kvc_error_prefix(e, s->name) : 0;
}

int kvc_encoder_block(struct kvc_encoder *x, struct kvc_block *block, struct kvc_sections *out,
                      struct kvc_error *e) {
    kvc_sections_clear(&x->dropped);
    const int status = pipeline_encode_run(x, x->pipeline->n, block, 0, out, e);
    drop_marks(block);
    return status;
}

int kvc_pipeline_encode(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                        struct kvc_sections *out, struct kvc_error *e) {
    struct kvc_encoder x;
    kvc_encoder_init(&x, pipeline, NULL);
    const int status = kvc_encoder_block(&x, block, out, e);
    kvc_encoder_free(&x);
    return status;
}
