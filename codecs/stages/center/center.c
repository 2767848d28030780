/* center.c: the stage that takes the mean out of each channel. Spec: center.md. */
#include "codecs/floats.h"
#include "codecs/memory.h"
#include "codecs/profile_part.h"
#include "codecs/program.h"
#include "codecs/stage.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where there is a profile, its means serve and there is no state. */
struct state {
    size_t width;
    uint64_t rows;
    float *mean; /* as it reads back */
    double sum[];
};

static int center_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                        const struct kvc_block *like, void **state, struct kvc_error *e) {
    (void)args, (void)x;
    if (like->profile) return 0;
    const size_t width = (size_t)(like->shape.heads * like->shape.dim);
    struct state *s = kvc_alloc_after(sizeof *s, width, sizeof *s->sum + sizeof *s->mean);
    if (!s) return kvc_fail_memory(e, "means");
    *state = s;
    s->width = width;
    s->mean = (float *)(s->sum + width);
    return 0;
}

static int center_look(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                       struct kvc_error *e) {
    struct state *s = state;
    const float *x = (const float *)(const void *)block->rows;
    (void)args, (void)e;
    for (uint64_t t = 0; t < block->shape.tokens; t++, x += s->width)
        for (size_t i = 0; i < s->width; i++) s->sum[i] += (double)x[i];
    s->rows += block->shape.tokens;
    return 0;
}

static int center_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                         struct kvc_sections *side, struct kvc_error *e) {
    struct state *s = state;
    (void)args;
    if (!s) return 0;
    for (size_t i = 0; i < s->width; i++) {
        const double mean = s->rows ? s->sum[i] / (double)s->rows : 0;
        s->mean[i] = fabs(mean) < 0x1p100 ? (float)mean : 0;
    }
    return kvc_halves_add(side, KVC_SECTION_MEAN, stage, s->mean, s->width, e);
}

static int center_adopt(const struct kvc_stage_args *args, void *state,
                        const struct kvc_stored *stored, struct kvc_error *e) {
    struct state *s = state;
    const struct kvc_section *mean = kvc_section_only(stored->side, stored->n_side,
                                                      KVC_SECTION_MEAN, e);
    (void)args;
    return mean ? kvc_halves_take(s->mean, mean, s->width, e) : -1;
}

static void shift(float *x, size_t rows, const float *mean, size_t width, float sign) {
    const struct kvc_kernels *k = kvc_kernels_get();
    for (size_t t = 0; t < rows; t++) k->add_scaled(x + t * width, mean, sign, width);
}

static int center_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                         uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct state *s = state;
    (void)args, (void)stage, (void)out, (void)e;
    shift((float *)(void *)block->rows, (size_t)block->shape.tokens,
          s ? s->mean : block->profile->mean, (size_t)(block->shape.heads * block->shape.dim), -1);
    return 0;
}

/* Finds the means: the section MEAN, or NULL for those of the profile. */
static int center_open_sections(const struct kvc_stored *stored, const struct kvc_block *block,
                                const struct kvc_section **s, struct kvc_error *e) {
    *s = NULL;
    if (kvc_stored_none(stored, e)) return -1;
    if (stored->n_side)
        return (*s = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_MEAN, e)) ? 0 : -1;
    if (block->profile) return 0;
    return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PROFILE,
                         "the profile's means are needed to decode this");
}

struct row_means {
    size_t width;
    const float *mean;
    float own[]; /* where the means are the file's own */
};

static int center_rows_begin(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                             const struct kvc_block *block, void **state, struct kvc_error *e) {
    const size_t width = (size_t)(block->shape.heads * block->shape.dim);
    const struct kvc_section *s;
    (void)args;
    if (center_open_sections(stored, block, &s, e)) return -1;
    struct row_means *m = malloc(sizeof *m + (s ? width * sizeof(float) : 0));
    if (!m) return kvc_fail_memory(e, "means");
    *state = m;
    m->width = width;
    m->mean = s ? m->own : block->profile->mean;
    return s ? kvc_halves_take(m->own, s, width, e) : 0;
}

static int center_rows_next(void *state, struct kvc_row_run *run, struct kvc_error *e) {
    const struct row_means *m = state;
    (void)e;
    shift(run->rows, run->n, m->mean, m->width, 1);
    return 0;
}

static int center_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    const size_t width = (size_t)(block->shape.heads * block->shape.dim);
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_MEAN, &block->shape);
    const struct kvc_section *s;
    (void)args;
    if (center_open_sections(stored, block, &s, e)) return -1;
    if (s ? kvc_program_keep_halves(program, s, width, &op.channels.number, e)
          : kvc_program_keep_copy(program, block->profile->mean, 0, block->profile->mean,
                                  width * sizeof(float), &op.channels.number, e))
        return -1;
    return kvc_program_op(program, &op, e);
}

const struct kvc_stage kvc_stage_center = {
    .id = 16,
    .name = "center",
    .summary = "takes the mean out of each channel, the profile's or its own",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_LOOKS | KVC_STAGE_PROFILE |
             KVC_STAGE_SIDE,
    .begin = center_begin,
    .look = center_look,
    .settle = center_settle,
    .adopt = center_adopt,
    .end = free,
    .encode = center_encode,
    .rows_begin = center_rows_begin,
    .rows_next = center_rows_next,
    .lower = center_lower,
};
