/* derope.c: the stage that undoes RoPE. Spec: derope.md. Not for the tables (rope.c). */
#include "codecs/profile_part.h"
#include "codecs/program.h"
#include "codecs/rope.h"
#include "codecs/stage.h"
#include "codecs/stages/derope/derope_device.h"

#include <inttypes.h>
#include <stdlib.h>

static void derope_end(void *state) {
    struct kvc_rope *rope = state;
    if (rope) kvc_rope_free(rope);
    free(rope);
}

static int derope_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                        const struct kvc_block *like, void **state, struct kvc_error *e) {
    const struct kvc_rope_facts *f = like->turn;
    (void)args;
    if (!f) return 0;
    if (x->rows && (x->position[0] < 0 || x->position[x->rows - 1] >= KVC_ROPE_POSITIONS))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "there are positions below 0 or from 2^32 on");
    if (2 * f->half > like->shape.dim)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "RoPE rotates more channels than a head has");
    struct kvc_rope *rope = calloc(1, sizeof *rope);
    if (!rope) return kvc_fail_memory(e, "RoPE");
    *state = rope;
    return kvc_rope_init(rope, f->angle, f->half, f->pairing, e);
}

static int derope_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                         struct kvc_sections *side, struct kvc_error *e) {
    (void)args, (void)state, (void)stage, (void)side, (void)e;
    return 0; /* the container's table tells the rotation */
}

static int position_of(const struct kvc_block *block, uint64_t row, int64_t *position,
                       struct kvc_error *e) {
    *position = kvc_block_position(block, row);
    if (*position >= 0 && *position < KVC_ROPE_POSITIONS) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "position %" PRId64 " is below 0, or 2^32 or more",
                    *position);
}

/* Rotates n rows of a block from row `first` on, forwards or back. */
static int derope_turn(struct kvc_rope *r, const struct kvc_block *block, size_t first, size_t n,
                       float *row, size_t heads, size_t dim, int back, struct kvc_error *e) {
    for (size_t i = 0; i < n; i++, row += heads * dim) {
        int64_t position;
        if (position_of(block, first + i, &position, e)) return -1;
        kvc_rope_at(r, position);
        if (back) kvc_rope_backwards(r);
        kvc_rope_turn(r, row, heads, dim);
    }
    return 0;
}

static int derope_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                         uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    struct kvc_rope *rope = state;
    (void)args, (void)stage, (void)out;
    if (!rope) return 0;
    block->before_rope = 1;
    return derope_turn(rope, block, 0, (size_t)block->shape.tokens, (float *)(void *)block->rows,
                       (size_t)block->shape.heads, (size_t)block->shape.dim, 1, e);
}

/* Checks that a block has no sections of the stage, and that its angles are there. */
static int derope_check(const struct kvc_stored *stored, const struct kvc_block *block,
                        struct kvc_error *e) {
    const struct kvc_rope_facts *f = block->turn;
    if (kvc_stored_none(stored, e)) return -1;
    if (!f || f->angle) return 0;
    if (!block->profile)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PROFILE,
                             "the profile's RoPE is needed to decode this");
    return kvc_fail(e, KVC_ERR_OTHER_MODEL, "the profile rotates %zu pairs, not %zu",
                    block->profile->half, f->half);
}

static int derope_open(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_error *e) {
    (void)args, (void)stored, (void)e;
    if (block->turn) block->before_rope = 1;
    return 0;
}

struct row_turns {
    struct kvc_rope rope;
    const struct kvc_block *block;
    size_t heads, dim;
};

static int derope_rows_begin(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                             const struct kvc_block *block, void **state, struct kvc_error *e) {
    const struct kvc_rope_facts *f = block->turn;
    struct row_turns *t;
    (void)args;
    if (derope_check(stored, block, e)) return -1;
    if (!f) return 0;
    if (!(*state = t = calloc(1, sizeof *t))) return kvc_fail_memory(e, "RoPE");
    t->block = block;
    t->heads = (size_t)block->shape.heads;
    t->dim = (size_t)block->shape.dim;
    return kvc_rope_init(&t->rope, f->angle, f->half, f->pairing, e);
}

static int derope_rows_next(void *state, struct kvc_row_run *run, struct kvc_error *e) {
    struct row_turns *t = state;
    return t ? derope_turn(&t->rope, t->block, run->first, run->n, run->rows, t->heads, t->dim, 0,
                           e)
             : 0;
}

static int derope_rows_end(void *state, int done, struct kvc_error *e) {
    struct row_turns *t = state;
    (void)done, (void)e;
    if (t) kvc_rope_free(&t->rope);
    free(t);
    return 0;
}

/* Adds the operation of a block whose positions are in one run of 256. Returns 1 when they are not.
 */
static int lower_rows(const struct kvc_rope_facts *r, struct kvc_block *block,
                      struct kvc_program *program, struct kvc_error *e) {
    const size_t rows = (size_t)block->shape.tokens;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_TURN, &block->shape);
    int64_t position[KVC_MAX_BLOCK_ROWS];
    for (size_t i = 0; i < rows; i++)
        if (position_of(block, i, &position[i], e)) return -1;
    if (!rows) return 0;
    const int status = kvc_turn_lower(&op.turn, r->angle, r->half, r->pairing, position, rows,
                                      program, e);
    return status ? status : kvc_program_op(program, &op, e);
}

static int derope_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    (void)args;
    if (derope_check(stored, block, e)) return -1;
    if (!block->turn) return 0;
    return block->shape.dim > KVC_DEVICE_TILE ? 1 : lower_rows(block->turn, block, program, e);
}

static void derope_describe(const struct kvc_stored *stored, unsigned role,
                            struct kvc_description *d) {
    (void)stored, (void)role;
    if (d->turned) d->values = " before RoPE";
}

const struct kvc_stage kvc_stage_derope = {
    .id = 15,
    .name = "derope",
    .summary = "undoes RoPE, where it is known",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_LOOKS | KVC_STAGE_HEADS |
             KVC_STAGE_POSITIONS | KVC_STAGE_PROFILE,
    .begin = derope_begin,
    .settle = derope_settle,
    .end = derope_end,
    .encode = derope_encode,
    .describe = derope_describe,
    .open = derope_open,
    .rows_begin = derope_rows_begin,
    .rows_next = derope_rows_next,
    .rows_end = derope_rows_end,
    .lower = derope_lower,
};
