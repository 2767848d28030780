/* steps.c: the stage that gives each token and head a step by how much later tokens look at it.
 * Spec: steps.md. Not for the step itself (code.c). */
#include "codecs/memory.h"
#include "codecs/probes.h"
#include "codecs/profile_part.h"
#include "codecs/program.h"
#include "codecs/rans.h"
#include "codecs/shared.h"
#include "codecs/stage.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POWER, FLOOR, TAIL, FINE, N_ARGS };
/* the coder wants an even number */
enum { LEAST = -6, MOST = 4, CLASSES = MOST - LEAST + 1, ALPHABET = 12 };
enum { SHARED_TAG = 0x5354, MOST_PARTS = 4 };
enum { RAMP_FLOOR = 1 };

static const struct kvc_arg arguments[N_ARGS] = {
    [POWER] = {.key = "p", .kind = KVC_ARG_REAL, .least = 0, .most = 2, .otherwise = 0.5},
    [FLOOR] = {.key = "c", .kind = KVC_ARG_REAL, .least = 0.001, .most = 1000, .otherwise = 0.3},
    [TAIL] = {.key = "tail", .min = 0, .max = 65536, .fallback = 16},
    [FINE] = {.key = "fine", .min = 0, .max = -LEAST, .fallback = 4},
};

static int steps_asks(const struct kvc_stage_args *args) {
    return args->f[POWER] > 0;
}

/* 2^(step / 2), rounded to binary32. */
static float factor(int step) {
    static const float table[CLASSES] = {0x1p-3f, 0x1.6a09e6p-3f, 0x1p-2f, 0x1.6a09e6p-2f,
                                         0x1p-1f, 0x1.6a09e6p-1f, 0x1p+0f, 0x1.6a09e6p+0f,
                                         0x1p+1f, 0x1.6a09e6p+1f, 0x1p+2f};
    return table[step - LEAST];
}

/* --- encoding --- */

struct state {
    size_t heads;
    uint64_t rows, first, in_segment;
    uint16_t frequency[ALPHABET];
    struct kvc_rans_symbol symbol[ALPHABET];
    int8_t step[]; /* [row of the segment][head] */
};

/* Parts of the scores, which K and V of a layer share: some heads each. */
static size_t parts_of(const struct kvc_encoding *x) {
    return x->key.heads < MOST_PARTS ? (size_t)x->key.heads : MOST_PARTS;
}

static int make_scores(const void *what, void *to, size_t part, struct kvc_error *e) {
    const struct kvc_encoding *x = what;
    const size_t heads = (size_t)x->key.heads, parts = parts_of(x);
    return kvc_probes_saliency(x, part * heads / parts, (part + 1) * heads / parts, to, e);
}

/* Rows that a token past the last may still see: all, or those of the window. */
static uint64_t first_seen(const struct kvc_encoding *x) {
    uint64_t i = 0;
    if (!x->window || !x->rows) return 0;
    while (i < x->rows && x->position[x->rows - 1] - x->position[i] + 1 >= (int64_t)x->window) i++;
    return i;
}

/* Returns the class of a row. Attention a, as a multiple of an even spread, makes a step of ((a +
 * c) / (1 + c))^-p. After a window's left edge it grows, as few later tokens will see the row; the
 * last rows get fine ones. Spec: steps.md, "Encoders". */
static int steps_class_of(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                          uint64_t row, uint64_t seen_from, const float *score) {
    const double c = args->f[FLOOR];
    double step = score ? pow(((double)*score + c) / (1 + c), -args->f[POWER]) : 1;
    if (x->window) {
        /* that still see it */
        const int64_t tokens = (int64_t)x->window - 1 -
                               (x->position[x->rows - 1] - x->position[row]);
        const double left = row < seen_from ? RAMP_FLOOR : fmax(RAMP_FLOOR, (double)tokens);
        step *= pow(2 * left / (double)x->window, -0.5);
    }
    int class = (int)lrint(2 * log2(step));
    class = class < LEAST ? LEAST : class > MOST ? MOST : class;
    if (x->position[x->rows - 1] - x->position[row] < args->i[TAIL] && class > -(int)args->i[FINE])
        class = -(int)args->i[FINE];
    return class;
}

static int steps_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                       const struct kvc_block *like, void **state, struct kvc_error *e) {
    struct state *s = kvc_alloc_after(sizeof *s, x->segment_rows, like->shape.heads);
    if (!s) return kvc_fail_memory(e, "steps");
    *state = s;
    const int asks = steps_asks(args) && x->key.heads == like->shape.heads &&
                     (x->n_queries || x->profile_queries);
    uint32_t count[ALPHABET] = {0};
    s->heads = (size_t)like->shape.heads;
    s->rows = x->rows;
    s->first = x->first;
    s->in_segment = x->segment_rows;
    const float *score = NULL;
    if (asks &&
        !(score = kvc_shared_get(x->shared, SHARED_TAG, s->heads * (size_t)x->rows * sizeof *score,
                                 parts_of(x), make_scores, x, e)))
        return -1;
    const uint64_t seen_from = first_seen(x);
    for (uint64_t t = 0; t < x->segment_rows; t++)
        for (size_t h = 0; h < s->heads; h++) {
            const int class = steps_class_of(args, x, x->first + t, seen_from,
                                             score ? &score[h * x->rows + x->first + t] : NULL);
            s->step[t * s->heads + h] = (int8_t) class;
            count[class - LEAST]++;
        }
    unsigned used = 0;
    for (unsigned i = 0; i < CLASSES; i++) used += count[i] != 0;
    if (used < 2) count[count[0] != 0]++; /* a table has two symbols or more */
    kvc_rans_normalise(s->frequency, count, ALPHABET, KVC_RANS_MIN_BITS);
    kvc_rans_encoding_table(s->symbol, s->frequency, ALPHABET);
    return 0;
}

static int steps_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                        struct kvc_sections *side, struct kvc_error *e) {
    const struct state *s = state;
    uint8_t bytes[KVC_RANS_TABLE_BOUND];
    struct kvc_bits bits = {.bytes = bytes};
    (void)args;
    kvc_rans_table_write(&bits, s->frequency, ALPHABET);
    return kvc_sections_add(side, KVC_SECTION_STEPS, stage, 0, bytes, (bits.at + 7) / 8, 0, e);
}

static int read_table(const struct kvc_section *table, uint16_t *frequency, struct kvc_error *e) {
    struct kvc_bits bits = {.read = table->data, .limit = 8 * (size_t)table->size};
    if (kvc_rans_table_read(&bits, frequency, ALPHABET, KVC_RANS_MIN_BITS, e))
        return kvc_error_prefix(e, "STEPS");
    if (!kvc_bits_ended(&bits) || frequency[CLASSES])
        return kvc_fail(e, KVC_ERR_DAMAGED, "the table of STEPS is malformed");
    return 0;
}

/* Returns the class nearest to one that the table lacks: finer ones first. A table has a symbol. */
static int8_t class_in(const uint16_t *frequency, int class) {
    int found = class - LEAST;
    while (found >= 0 && !frequency[found]) found--;
    for (found = found < 0 ? class - LEAST : found; !frequency[found];) found++;
    return (int8_t)(found + LEAST);
}

static int steps_adopt(const struct kvc_stage_args *args, void *state,
                       const struct kvc_stored *stored, struct kvc_error *e) {
    struct state *s = state;
    const struct kvc_section *table = kvc_section_only(stored->side, stored->n_side,
                                                       KVC_SECTION_STEPS, e);
    (void)args;
    if (!table || read_table(table, s->frequency, e)) return -1;
    for (size_t i = 0; i < s->in_segment * s->heads; i++)
        s->step[i] = class_in(s->frequency, s->step[i]);
    kvc_rans_encoding_table(s->symbol, s->frequency, ALPHABET);
    return 0;
}

/* Multiplies n vectors of a row and head by their steps, or divides them. */
static void scale(float *x, const int8_t *step, size_t n, size_t dim, int invert) {
    const struct kvc_kernels *k = kvc_kernels_get();
    for (size_t i = 0; i < n; i++, x += dim)
        if (step[i]) k->scale(x, x, invert ? 1 / factor(step[i]) : factor(step[i]), dim);
}

static int steps_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                        uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct state *s = state;
    const size_t n = (size_t)block->shape.tokens * s->heads;
    (void)args;
    if (!n) return 0;
    uint8_t *bytes = malloc(4 + KVC_RANS_BOUND(n));
    uint16_t *symbols = kvc_alloc(n, sizeof *symbols);
    block->step = malloc(n);
    int status = bytes && symbols && block->step ? 0 : kvc_fail_memory(e, "steps");
    if (!status) {
        uint8_t *end = bytes + 4 + KVC_RANS_BOUND(n);
        struct kvc_rans_encoder r;
        for (size_t i = 0; i < n; i++) {
            const uint64_t row = kvc_block_row(block, i / s->heads) - s->first;
            const ptrdiff_t k = kvc_block_earlier(block, i / s->heads);
            block->step[i] = k >= 0 && block->earlier->step
                                 ? block->earlier->step[(size_t)k * s->heads + i % s->heads]
                                 : s->step[row * s->heads + i % s->heads];
            symbols[i] = (uint16_t)(block->step[i] - LEAST);
        }
        kvc_rans_encode_begin(&r, 1, end);
        kvc_kernels_get()->rans_encode(&r, symbols, n, s->symbol, KVC_RANS_MIN_BITS);
        kvc_rans_encode_end(&r, r.next - 4);
        status = kvc_sections_add(out, KVC_SECTION_STEPS, stage, 0, r.next - 4,
                                  (size_t)(end - r.next) + 4, 0, e);
        scale((float *)(void *)block->rows, block->step, n, (size_t)block->shape.dim, 1);
    }
    free(bytes);
    free(symbols);
    return status;
}

/* --- decoding --- */

static int read_steps(const struct kvc_section *table, const struct kvc_section *s, int8_t *step,
                      size_t n, struct kvc_error *e) {
    uint32_t slots[(1 << KVC_RANS_MIN_BITS) + KVC_RANS_SLACK];
    uint16_t frequency[ALPHABET];
    struct kvc_rans_decoder r;
    if (read_table(table, frequency, e)) return -1;
    kvc_rans_decoding_table(slots, frequency, ALPHABET);
    if (s->size < 4) return kvc_fail(e, KVC_ERR_DAMAGED, "section STEPS is too short");
    if (kvc_rans_decode_begin(&r, 1, s->data, s->data + 4, s->size - 4, e))
        return kvc_error_prefix(e, "STEPS");
    uint16_t *room = calloc(2 * n + 1, sizeof *room);
    if (!room) return kvc_fail_memory(e, "steps");
    kvc_kernels_get()->rans_decode(&r, room, room + n, n, slots, KVC_RANS_MIN_BITS);
    for (size_t i = 0; i < n; i++) step[i] = (int8_t)((int)room[i] + LEAST);
    free(room);
    return kvc_rans_decode_end(&r, e) ? kvc_error_prefix(e, "STEPS") : 0;
}

static int steps_open(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                      struct kvc_block *block, struct kvc_error *e) {
    const size_t n = (size_t)(block->shape.tokens * block->shape.heads);
    const struct kvc_section *table, *s;
    (void)args;
    if (!(table = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_STEPS, e))) return -1;
    if (!n) return kvc_stored_none(stored, e);
    if (block->step) return kvc_fail(e, KVC_ERR_DAMAGED, "steps of tokens were set before");
    if (!(s = kvc_section_only(stored->section, stored->n, KVC_SECTION_STEPS, e))) return -1;
    if (!(block->step = malloc(n))) return kvc_fail_memory(e, "steps");
    return read_steps(table, s, block->step, n, e);
}

/* The steps of a block's rows. */
struct row_steps {
    size_t heads, dim;
    const int8_t *step;
};

static int steps_rows_begin(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                            const struct kvc_block *block, void **state, struct kvc_error *e) {
    struct row_steps *s = malloc(sizeof *s);
    (void)args, (void)stored;
    if (!s) return kvc_fail_memory(e, "steps");
    *s = (struct row_steps){(size_t)block->shape.heads, (size_t)block->shape.dim, block->step};
    *state = s;
    return 0;
}

static int steps_rows_next(void *state, struct kvc_row_run *run, struct kvc_error *e) {
    const struct row_steps *s = state;
    (void)e;
    scale(run->rows, s->step + run->first * s->heads, run->n * s->heads, s->dim, 0);
    return 0;
}

static int steps_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    (void)args, (void)stored;
    if (!block->shape.tokens) return 0;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_STEPS, &block->shape);
    op.steps.step_class = kvc_program_copy(program, block->step,
                                           (size_t)(block->shape.tokens * block->shape.heads), e);
    return op.steps.step_class ? kvc_program_op(program, &op, e) : -1;
}

const struct kvc_stage kvc_stage_steps = {
    .id = 18,
    .name = "steps",
    .summary = "finer steps for tokens that get attention",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_LOOKS | KVC_STAGE_HEADS |
             KVC_STAGE_POSITIONS | KVC_STAGE_QUERIES | KVC_STAGE_SIDE,
    .asks = steps_asks,
    .args = arguments,
    .n_args = N_ARGS,
    .begin = steps_begin,
    .settle = steps_settle,
    .adopt = steps_adopt,
    .end = free,
    .encode = steps_encode,
    .open = steps_open,
    .rows_begin = steps_rows_begin,
    .rows_next = steps_rows_next,
    .lower = steps_lower,
};
