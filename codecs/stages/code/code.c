/* code.c: the stage that rounds coefficients to a uniform step and entropy-codes them with fixed
 * tables. Spec: code.md. Not for the tables (tables.h), the coder (rans.h) or decoding
 * (code_decode.c). */

#include "codecs/bits.h"
#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "codecs/number.h"
#include "codecs/program.h"
#include "codecs/rans.h"
#include "codecs/stage.h"
#include "codecs/stages/code/code_cost.h"
#include "codecs/stages/code/code_plan.h"
#include "codecs/stages/code/code_sections.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP = KVC_CODE_STEP, KLD = KVC_CODE_KLD, LANES = KVC_CODE_LANES, N_ARGS = KVC_CODE_ARGS };
enum { INDICES = KVC_CODE_INDICES, CLASSES = KVC_CODE_CLASSES, CLASS_ZERO = KVC_CODE_CLASS_ZERO };
enum { MOST_BITS = KVC_CODE_MOST_BITS };
enum { LENGTH_BITS = KVC_CODE_LENGTH_BITS };

static const struct kvc_arg arguments[N_ARGS] = {
    [STEP] = {.key = "step", .kind = KVC_ARG_REAL, .least = 0, .most = 1e6, .otherwise = 0},
    [KLD] = {.key = "kld", .kind = KVC_ARG_REAL, .least = 0, .most = 100, .encoder = 1},
    [LANES] = {.key = "lanes", .min = 1, .max = KVC_RANS_LANES, .fallback = KVC_RANS_LANES},
};

/* Lanes are a power of two, and the step is given or found, not both. */
static int code_check(const struct kvc_stage_args *args, struct kvc_error *e) {
    if (args->i[LANES] & (args->i[LANES] - 1))
        return kvc_fail(e, KVC_ERR_USAGE, "code: lanes are a power of two");
    if (args->f[STEP] > 0 && args->f[KLD] > 0)
        return kvc_fail(e, KVC_ERR_USAGE, "code: step= and kld= exclude each other");
    return 0;
}

static double step_of(const struct kvc_stage_args *args, double *kld) {
    *kld = args->f[KLD];
    return args->f[STEP];
}

/* A step out of the argument's range becomes the nearest one in it, since a file with another is
 * refused. */
static void set_step(struct kvc_stage_args *args, double step) {
    const struct kvc_arg *arg = &arguments[STEP];
    char digits[32];
    kvc_number_print(digits, sizeof digits, 5, fmin(fmax(step, arg->least), arg->most));
    kvc_number_read(digits, &args->f[STEP]);
    args->f[KLD] = 0;
}

static int class_at(const struct kvc_block *block, size_t i) {
    return block->step ? block->step[i] : 0;
}

/* --- encoding --- */

struct state {
    size_t heads, dim;
    /* [head][component]; NULL: no row of the class yet. Of 0 once settled */
    uint32_t (*count[CLASSES])[KVC_CODE_BINS];
    uint32_t *rows;         /* [class][head]: rows that were looked at */
    unsigned bins[CLASSES]; /* the class has no codes in bins from here on */
    uint8_t *index;         /* once settled */
    struct kvc_code_plan plan;
    int32_t *codes; /* of a row of one head */
    /* of a row of one head: components whose codes are not 0, or have no symbol */
    uint16_t *others;
    uint16_t *scratch; /* of a row of one head */
    uint8_t *ones;     /* as limits: of codes that are not 0 */
    uint16_t *symbols; /* of a block of `room` values */
    /* its section: `before` bytes that are filled from their end, and the string of bits */
    uint8_t *bytes;
    size_t room, before;
};

static void free_counts(struct state *s) {
    for (unsigned c = 0; c < CLASSES; c++) {
        free(s->count[c]);
        s->count[c] = NULL;
    }
}

static void code_end(void *state) {
    struct state *s = state;
    if (!s) return;
    kvc_code_plan_free(&s->plan);
    free_counts(s);
    free(s->index);
    free(s->rows);
    free(s->codes);
    free(s->symbols);
    free(s->bytes);
    free(s);
}

static int code_begin(const struct kvc_stage_args *args, const struct kvc_encoding *x,
                      const struct kvc_block *like, void **state, struct kvc_error *e) {
    (void)x;
    if (!(args->f[STEP] > 0))
        return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_STEP, "no step is given");
    struct state *s = calloc(1, sizeof *s);
    if (!s) return kvc_fail_memory(e, "codes");
    *state = s;
    s->heads = (size_t)like->shape.heads;
    s->dim = (size_t)like->shape.dim;
    s->index = kvc_alloc_zeros(s->heads, s->dim);
    s->rows = kvc_alloc_zeros(s->heads, CLASSES * sizeof *s->rows);
    s->codes = kvc_alloc(s->dim, sizeof *s->codes + 3 * sizeof(uint16_t) + 1);
    if (!s->index || !s->rows || !s->codes) return kvc_fail_memory(e, "codes");
    s->others = (uint16_t *)(s->codes + s->dim);
    s->scratch = s->others + s->dim;
    s->ones = (uint8_t *)(s->scratch + 2 * s->dim);
    memset(s->scratch + s->dim, 0, s->dim * sizeof *s->scratch);
    memset(s->ones, 1, s->dim);
    return 0;
}

/* The largest code. */
#define MOST_CODE ((1 << MOST_BITS) - 1)

/* Refuses a coefficient whose code was clamped by more than a step: it would come back as another
 * number. */
static int check_size(float x, float inverse, int32_t code, struct kvc_error *e) {
    if (abs(code) < MOST_CODE || fabsf(x * inverse) <= MOST_CODE + 1) return 0;
    return kvc_fail_need(
        e, KVC_ERR_UNSUPPORTED, KVC_NEED_STEP,
        "a coefficient of %g is 2^%d steps of %g and more: a larger step is needed",
        (double)fabsf(x), MOST_BITS, 1 / (double)inverse);
}

/* Counts the codes other than 0 of one head of n rows; step: classes [row][head], or NULL. Most
 * codes are 0. */
static int look_at_head(struct state *s, const float *x, size_t head, size_t n, const int8_t *step,
                        float inverse, struct kvc_error *e) {
    const struct kvc_kernels *kernels = kvc_kernels_get();
    for (size_t i = 0; i < n; i++) {
        const unsigned class = (unsigned)((step ? step[i * s->heads + head] : 0) + CLASS_ZERO);
        if (!s->count[class] &&
            !(s->count[class] = kvc_alloc_zeros(s->heads, s->dim * sizeof *s->count[class])))
            return kvc_fail_memory(e, "codes");
        uint32_t(*count)[KVC_CODE_BINS] = s->count[class] + head * s->dim;
        unsigned bins = s->bins[class];
        const float *values = x + (i * s->heads + head) * s->dim;
        kernels->round_codes(s->codes, values, s->dim, inverse, MOST_CODE);
        const size_t others = kernels->codes_to_symbols(s->scratch, s->others, s->codes,
                                                        s->scratch + s->dim, s->ones, s->dim, 0);
        for (size_t k = 0; k < others; k++) {
            const size_t c = s->others[k];
            if (check_size(values[c], inverse, s->codes[c], e)) return -1;
            const unsigned bin = kvc_code_bin((uint32_t)abs(s->codes[c]));
            count[c][bin]++;
            bins = bin < bins ? bins : bin + 1;
        }
        s->rows[class * s->heads + head]++;
        s->bins[class] = bins ? bins : 1;
    }
    return 0;
}

static int code_look(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                     struct kvc_error *e) {
    struct state *s = state;
    for (size_t h = 0; h < s->heads; h++) /* counts of one head are in the first cache */
        if (look_at_head(s, (const float *)(const void *)block->rows, h,
                         (size_t)block->shape.tokens, block->step, 1 / (float)args->f[STEP], e))
            return -1;
    return 0;
}

/* Counts the codes that are 0: of each component all that look_at_head() did not count. */
static void count_zeros(struct state *s) {
    for (unsigned class = 0; class < CLASSES; class ++)
        for (size_t i = 0; s->count[class] && i < s->heads * s->dim; i++) {
            uint32_t *const count = s->count[class][i],
                            zeros = s->rows[class * s->heads + i / s->dim];
            for (unsigned b = 1; b < s->bins[class]; b++) zeros -= count[b];
            count[0] = zeros;
        }
}

/* Returns the bits of component i's values at an index; last[class] is the end of the bins that
 * have values. */
static double bits_at(const struct state *s, size_t i, const unsigned *last, unsigned index) {
    double bits = 0;
    for (unsigned c = 0; c < CLASSES; c++) {
        if (!last[c]) continue;
        const double *cost = kvc_code_costs(kvc_code_index_at(index, (int)c - CLASS_ZERO));
        for (unsigned b = 0; b < last[c]; b++) bits += s->count[c][i][b] * cost[b];
    }
    return bits;
}

/* Returns the index that codes a component's values in the fewest bits, searching from `start`. The
 * cost is nearly convex in the index: the search stops after three increases in a row. */
static unsigned choose_index(const struct state *s, size_t component, unsigned start) {
    unsigned last[CLASSES] = {0}, best = start;
    for (unsigned c = 0; c < CLASSES; c++)
        for (unsigned b = s->bins[c]; b-- > 0 && !last[c];)
            if (s->count[c][component][b]) last[c] = b + 1;
    double least = bits_at(s, component, last, start);
    for (int direction = -1; direction <= 1; direction += 2)
        for (int i = (int)start + direction, worse = 0; i >= 0 && i < INDICES && worse < 3;
             i += direction, worse++) {
            const double bits = bits_at(s, component, last, (unsigned)i);
            if (!(bits < least)) continue;
            least = bits;
            best = (unsigned)i;
            worse = -1;
        }
    return best;
}

/* Makes the plan of the indices, and frees what they were found from. */
static void make_plan(struct state *s) {
    s->plan = (struct kvc_code_plan){.heads = s->heads,
                                     .dim = s->dim,
                                     .index = s->index,
                                     .factor = KVC_CODE_SYMBOLS};
    free_counts(s);
}

static int code_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                       struct kvc_sections *side, struct kvc_error *e) {
    struct state *s = state;
    const size_t width = s->heads * s->dim;
    uint8_t *bytes = kvc_alloc(width + 4, 4);
    struct kvc_bits bits = {.bytes = bytes};
    (void)args;
    if (!bytes) return kvc_fail_memory(e, "tables");
    count_zeros(s);
    for (size_t i = 0; i < width; i++) {
        s->index[i] = (uint8_t)choose_index(s, i, i ? s->index[i - 1] : INDICES / 2);
        if (i % s->dim)
            kvc_bits_put_rice(&bits, kvc_zigzag((int)s->index[i - 1] - (int)s->index[i]),
                              KVC_CODE_TABLE_RICE);
        else kvc_bits_put(&bits, s->index[i], KVC_CODE_INDEX_BITS);
    }
    make_plan(s);
    const int status = kvc_sections_add(side, KVC_SECTION_TABLES, stage, 0, bytes,
                                        (bits.at + 7) / 8, 0, e);
    free(bytes);
    return status;
}

static int code_adopt(const struct kvc_stage_args *args, void *state,
                      const struct kvc_stored *stored, struct kvc_error *e) {
    struct state *s = state;
    const struct kvc_section *tables = kvc_section_only(stored->side, stored->n_side,
                                                        KVC_SECTION_TABLES, e);
    (void)args;
    if (!tables || kvc_code_read_indices(tables, s->index, s->heads, s->dim, e)) return -1;
    make_plan(s);
    return 0;
}

/* The symbol of code q, whose escapes and low bits go to `bits`. */
static uint16_t code_cut(int32_t q, unsigned table, unsigned shift, struct kvc_bits *bits) {
    const int32_t moved = q + (shift ? 1 << (shift - 1) : 0), r = moved >> shift;
    const int has = abs(r) < KVC_CODE_MIDDLE && kvc_code_half[table][abs(r)];
    if (!has) {
        const uint32_t z = kvc_zigzag(r); /* not 0: that has a symbol */
        const unsigned length = 31 - (unsigned)__builtin_clz(z);
        kvc_bits_put(bits, length, LENGTH_BITS);
        kvc_bits_put(bits, z & ((1u << length) - 1), length);
    }
    if (shift) kvc_bits_put(bits, (uint32_t)moved & ((1u << shift) - 1), shift);
    return (uint16_t)(has ? KVC_CODE_MIDDLE + r : KVC_CODE_ESCAPE);
}

/* Makes room for what encoding a block needs; the room of a larger block before it serves. */
static int code_make_room(struct state *s, size_t values, unsigned lanes, struct kvc_error *e) {
    if (values <= s->room) return 0;
    free(s->symbols);
    free(s->bytes);
    s->room = 0;
    s->before = KVC_CODE_HEADER + 4 * (size_t)lanes + KVC_RANS_BOUND(values);
    s->symbols = kvc_alloc(values, sizeof *s->symbols);
    s->bytes = malloc(s->before + 6 * values + 16);
    if (!s->symbols || !s->bytes) return kvc_fail_memory(e, "codes");
    s->room = values;
    return 0;
}

static int code_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                       uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    struct state *s = state;
    const struct kvc_kernels *kernels = kvc_kernels_get();
    const size_t dim = s->dim, rows = (size_t)block->shape.tokens * s->heads, values = rows * dim;
    const unsigned lanes = kvc_code_lanes(args, values);
    const float inverse = 1 / (float)args->f[STEP], *x = (const float *)(const void *)block->rows;
    if (!values) return 0;
    if (code_make_room(s, values, (unsigned)args->i[LANES], e)) return -1;
    uint8_t *const end = s->bytes + s->before;
    int32_t *const codes = s->codes;
    uint16_t *const others = s->others;
    struct kvc_bits bits = {.bytes = end};
    for (size_t i = 0; i < rows; i++) {
        const size_t head = i % s->heads * dim;
        const struct kvc_code_way *way = kvc_code_plan_at(&s->plan, class_at(block, i), e);
        if (!way) return -1;
        const uint16_t *base = way->base + head;
        const uint8_t *shift = way->shift + head, *limit = way->limit + head;
        uint16_t *const to = s->symbols + i * dim;
        kernels->round_codes(codes, x + i * dim, dim, inverse, MOST_CODE);
        const size_t n = kernels->codes_to_symbols(to, others, codes, base, limit, dim,
                                                   KVC_CODE_MIDDLE);
        for (size_t k = 0; k < n; k++) {
            const size_t c = others[k];
            if (check_size(x[i * dim + c], inverse, codes[c], e)) return -1;
            to[c] = (uint16_t)(base[c] +
                               code_cut(codes[c], base[c] / KVC_CODE_SYMBOLS, shift[c], &bits));
        }
    }
    struct kvc_rans_encoder r;
    const size_t at_once = dim % lanes ? dim : values; /* each head begins with lane 0 */
    kvc_rans_encode_begin(&r, lanes, end);
    for (size_t i = values; i; i -= at_once)
        kernels->rans_encode(&r, s->symbols + i - at_once, at_once, kvc_code_rows(), KVC_CODE_BITS);
    const size_t words = (size_t)(end - r.next);
    uint8_t *start = r.next - 4 * lanes - KVC_CODE_HEADER;
    kvc_rans_encode_end(&r, start + KVC_CODE_HEADER);
    put_u32(start, (uint32_t)words);
    return kvc_sections_add(out, KVC_SECTION_CODES, stage, 0, start,
                            (size_t)(end - start) + (bits.at + 7) / 8, 0, e);
}

const struct kvc_stage kvc_stage_code = {
    .id = 19,
    .name = "code",
    .summary = "rounds to one step and codes with fixed tables",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_LOOKS | KVC_STAGE_TERMINAL |
             KVC_STAGE_SAMPLES | KVC_STAGE_SIDE,
    .args = arguments,
    .n_args = N_ARGS,
    .check = code_check,
    .step = step_of,
    .set_step = set_step,
    .begin = code_begin,
    .look = code_look,
    .settle = code_settle,
    .adopt = code_adopt,
    .end = code_end,
    .encode = code_encode,
    .rows_begin = kvc_code_rows_begin,
    .rows_next = kvc_code_rows_next,
    .rows_next_two = kvc_code_rows_next_two,
    .rows_end = kvc_code_rows_end,
    .lower = kvc_code_lower,
};
