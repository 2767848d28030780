/* derope.c: the stage that undoes RoPE. Spec: derope.md. Not for the tables (rope.c). */
#include "codecs/memory.h"
#include "codecs/little_endian.h"
#include "codecs/profile_part.h"
#include "codecs/program.h"
#include "codecs/rope.h"
#include "codecs/stage.h"
#include "codecs/stages/derope/derope_device.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER = 4 };

struct state {
    const struct kvc_rope_facts *facts;
    struct kvc_rope rope;
};

static void derope_end(void *state) {
    struct state *s = state;
    if (!s) return;
    kvc_rope_free(&s->rope);
    free(s);
}

static int derope_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                        const struct kvc_block *like, void **state, struct kvc_error *e) {
    const struct kvc_rope_facts *f = x->rope;
    (void)args;
    if (like->role != KVC_SELECT_K || !f || !kvc_pairing_turns(f->pairing) || !f->angle || !f->half)
        return 0;
    if (x->rows && (x->position[0] < 0 || x->position[x->rows - 1] >= KVC_ROPE_POSITIONS))
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "there are positions below 0 or from 2^32 on");
    if (2 * f->half > like->shape.dim)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "RoPE rotates more channels than a head has");
    struct state *s = calloc(1, sizeof *s);
    if (!s) return kvc_fail_memory(e, "RoPE");
    *state = s;
    s->facts = f;
    return kvc_rope_init(&s->rope, f->angle, f->half, f->pairing, e);
}

static int derope_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                         struct kvc_sections *side, struct kvc_error *e) {
    const struct state *s = state;
    (void)args;
    if (!s) return 0;
    const struct kvc_rope_facts *f = s->facts;
    const size_t size = HEADER + (f->of_profile ? 0 : 8 * f->half);
    uint8_t *bytes = malloc(size);
    if (!bytes) return kvc_fail_memory(e, "RoPE");
    bytes[0] = (uint8_t)f->pairing;
    bytes[1] = (uint8_t)f->of_profile;
    put_u16(bytes + 2, (uint16_t)f->half);
    for (size_t i = 0; i < f->half && !f->of_profile; i++)
        put_f64(bytes + HEADER + 8 * i, f->angle[i]);
    const int status = kvc_sections_add(side, KVC_SECTION_ROPE, stage, 0, bytes, size, 0, e);
    free(bytes);
    return status;
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
    struct state *s = state;
    (void)args, (void)stage, (void)out;
    if (!s) return 0;
    block->before_rope = 1;
    return derope_turn(&s->rope, block, 0, (size_t)block->shape.tokens,
                       (float *)(void *)block->rows, (size_t)block->shape.heads,
                       (size_t)block->shape.dim, 1, e);
}

/* The ROPE section, opened; half is 0 where nothing was known of RoPE. */
struct rotation {
    enum kvc_pairing pairing;
    size_t half;   /* pairs */
    double *angle; /* of each; to be freed in any case */
};

static int read_section(struct rotation *r, const struct kvc_section *s,
                        const struct kvc_block *block, struct kvc_error *e) {
    if (s->size < HEADER) return kvc_fail(e, KVC_ERR_DAMAGED, "section ROPE is too short");
    const uint8_t *p = s->data;
    const int of_profile = p[1];
    const size_t half = get_u16(p + 2);
    r->pairing = (enum kvc_pairing)p[0];
    if (!kvc_pairing_turns(r->pairing) || of_profile > 1 || !half || 2 * half > block->shape.dim ||
        s->size != HEADER + (of_profile ? 0 : 8 * half))
        return kvc_fail(e, KVC_ERR_DAMAGED, "section ROPE is out of range");
    const struct kvc_profile_part *known = of_profile ? block->profile : NULL;
    if (of_profile && !known)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PROFILE,
                             "the profile's RoPE is needed to decode this");
    if (of_profile && (known->half != half || !known->angle))
        return kvc_fail(e, KVC_ERR_MODEL, "the profile rotates %zu pairs, not %zu", known->half,
                        half);
    if (!(r->angle = kvc_alloc(half, sizeof *r->angle))) return kvc_fail_memory(e, "RoPE");
    p += HEADER;
    for (size_t i = 0; i < half; i++) {
        r->angle[i] = of_profile ? known->angle[i] : get_f64(p + 8 * i);
        if (!kvc_rope_angle_is_sane(r->angle[i]))
            return kvc_fail(e, KVC_ERR_DAMAGED, "section ROPE: an angle is not between 0 and 1");
    }
    r->half = half;
    return 0;
}

static int derope_open_sections(struct rotation *r, const struct kvc_stored *stored,
                                const struct kvc_block *block, struct kvc_error *e) {
    *r = (struct rotation){.half = 0};
    if (kvc_stored_none(stored, e)) return -1;
    if (!stored->n_side) return 0;
    const struct kvc_section *s = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_ROPE,
                                                   e);
    return s ? read_section(r, s, block, e) : -1;
}

static int derope_open(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_error *e) {
    (void)args, (void)e;
    if (stored->n_side) block->before_rope = 1;
    return 0;
}

struct row_turns {
    struct kvc_rope rope;
    const struct kvc_block *block;
    size_t heads, dim;
};

static int derope_rows_begin(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                             const struct kvc_block *block, void **state, struct kvc_error *e) {
    struct rotation r;
    struct row_turns *t = NULL;
    (void)args;
    int status = derope_open_sections(&r, stored, block, e);
    if (!status && r.half) {
        *state = t = calloc(1, sizeof *t);
        status = t ? kvc_rope_init(&t->rope, r.angle, r.half, r.pairing, e)
                   : kvc_fail_memory(e, "RoPE");
    }
    if (!status && t) {
        t->block = block;
        t->heads = (size_t)block->shape.heads;
        t->dim = (size_t)block->shape.dim;
    }
    free(r.angle);
    return status;
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
static int lower_rows(const struct rotation *r, struct kvc_block *block,
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
    struct rotation r;
    (void)args;
    int status = derope_open_sections(&r, stored, block, e);
    if (!status && r.half)
        status = block->shape.dim > KVC_DEVICE_TILE ? 1 : lower_rows(&r, block, program, e);
    free(r.angle);
    return status;
}

static void derope_describe(const struct kvc_stored *stored, unsigned role,
                            struct kvc_description *d) {
    if (role == KVC_SELECT_K && stored->n_side) d->values = " before RoPE";
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
