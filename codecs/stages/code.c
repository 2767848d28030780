/* code.c: the stage that rounds coefficients to a uniform step and entropy-codes them with fixed tables. Spec: code.md. Not
 * for the tables (tables.h) or the coder (rans.h). */
#include "codecs/code.h"

#include "codecs/bits.h"
#include "codecs/memory.h"
#include "codecs/program.h"
#include "codecs/rans.h"
#include "codecs/stage.h"
#include "codecs/stages/code_cost.h"
#include "codecs/stages/code_plan.h"

#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP, KLD, LANES, N_ARGS };
enum { INDICES = KVC_CODE_INDICES, CLASSES = KVC_CODE_CLASSES, CLASS_ZERO = KVC_CODE_CLASS_ZERO };
enum { MOST_BITS = KVC_CODE_MOST_BITS };
enum { LENGTH_BITS = KVC_CODE_LENGTH_BITS };
enum { CODES_HEADER = 4 };
enum { TABLE_RICE = 1, INDEX_BITS = 6 };
enum { VALUES_A_LANE = 512 };

static const struct kvc_arg arguments[N_ARGS] = {
    [STEP] = {.key = "step", .kind = KVC_ARG_REAL, .least = 0, .most = 1e6, .otherwise = 0},
    [KLD] = {.key = "kld", .kind = KVC_ARG_REAL, .least = 0, .most = 100, .otherwise = 0},
    [LANES] = {.key = "lanes", .min = 1, .max = KVC_RANS_LANES, .fallback = KVC_RANS_LANES},
};

/* Lanes are a power of two, and the step is given or found, not both. */
static int check(const struct kvc_stage_args *args, struct kvc_error *e) {
    if (args->i[LANES] & (args->i[LANES] - 1)) return kvc_fail(e, KVC_ERR_USAGE, "code: lanes are a power of two");
    if (args->f[STEP] > 0 && args->f[KLD] > 0) return kvc_fail(e, KVC_ERR_USAGE, "code: a step and a kld: give one of them");
    return 0;
}

double kvc_code_step(const struct kvc_stage_args *args, double *kld) {
    *kld = args->f[KLD];
    return args->f[STEP];
}

void kvc_code_set_step(struct kvc_stage_args *args, double step) {
    char digits[32];
    snprintf(digits, sizeof digits, "%.4e", step);
    args->f[STEP] = strtod(digits, NULL);
    args->f[KLD] = 0;
}

static int class_at(const struct kvc_block *block, size_t i) {
    return block->step ? block->step[i] : 0;
}

static unsigned lanes_for(const struct kvc_stage_args *args, size_t values) {
    unsigned lanes = (unsigned)args->i[LANES];
    while (lanes > 1 && values < (size_t)lanes * VALUES_A_LANE) lanes /= 2;
    return lanes;
}

/* --- encoding --- */

struct state {
    size_t heads, dim;
    uint32_t (*count[CLASSES])[KVC_CODE_BINS]; /* [head][component]; NULL: no row of the class yet */
    unsigned bins[CLASSES];                    /* the class has no codes in bins from here on */
    uint8_t *index;                            /* once settled */
    struct kvc_code_plan plan;
    int32_t *codes;    /* of a row of one head, and after them the numbers of those without a symbol */
    uint16_t *symbols; /* of a block of `room` values */
    uint8_t *bytes;    /* its section: `before` bytes that are filled from their end, and the string of bits */
    size_t room, before;
};

static void free_counts(struct state *s) {
    for (unsigned c = 0; c < CLASSES; c++) {
        free(s->count[c]);
        s->count[c] = NULL;
    }
}

static void end(void *state) {
    struct state *s = state;
    if (!s) return;
    kvc_code_plan_free(&s->plan);
    free_counts(s);
    free(s->index);
    free(s->codes);
    free(s->symbols);
    free(s->bytes);
    free(s);
}

static int begin(const struct kvc_stage_args *args, const struct kvc_encoding *x, const struct kvc_block *like, void **state,
                 struct kvc_error *e) {
    (void)x;
    if (!(args->f[STEP] > 0)) return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_STEP, "no step is given");
    struct state *s = calloc(1, sizeof *s);
    if (!s) return kvc_fail_memory(e, "codes");
    *state = s;
    s->heads = (size_t)like->shape.heads;
    s->dim = (size_t)like->shape.dim;
    s->index = kvc_alloc_zeros(s->heads, s->dim);
    s->codes = kvc_alloc(s->dim, sizeof *s->codes + sizeof(uint16_t));
    return s->index && s->codes ? 0 : kvc_fail_memory(e, "codes");
}

/* The largest code. */
#define MOST_CODE ((1 << MOST_BITS) - 1)

/* Counts the codes of one head of n rows; step: classes [row][head], or NULL. */
static int look_at_head(struct state *s, const float *x, size_t head, size_t n, const int8_t *step, float inverse,
                        struct kvc_error *e) {
    const struct kvc_kernels *kernels = kvc_kernels_get();
    for (size_t i = 0; i < n; i++) {
        const unsigned class = (unsigned)((step ? step[i * s->heads + head] : 0) + CLASS_ZERO);
        if (!s->count[class] && !(s->count[class] = kvc_alloc_zeros(s->heads, s->dim * sizeof *s->count[class])))
            return kvc_fail_memory(e, "codes");
        uint32_t(*count)[KVC_CODE_BINS] = s->count[class] + head * s->dim;
        unsigned bins = s->bins[class];
        kernels->round_codes(s->codes, x + (i * s->heads + head) * s->dim, s->dim, inverse, MOST_CODE);
        for (size_t c = 0; c < s->dim; c++) {
            const unsigned bin = kvc_code_bin((uint32_t)abs(s->codes[c]));
            count[c][bin]++;
            bins = bin < bins ? bins : bin + 1;
        }
        s->bins[class] = bins;
    }
    return 0;
}

static int look(const struct kvc_stage_args *args, void *state, struct kvc_block *block, struct kvc_error *e) {
    struct state *s = state;
    for (size_t h = 0; h < s->heads; h++) /* counts of one head are in the first cache */
        if (look_at_head(s, (const float *)(const void *)block->rows, h, (size_t)block->shape.tokens, block->step,
                         1 / (float)args->f[STEP], e))
            return -1;
    return 0;
}

/* Returns the bits of component i's values at an index; last[class] is the end of the bins that have values. */
static double bits_at(const struct state *s, size_t i, const unsigned *last, unsigned index) {
    double bits = 0;
    for (unsigned c = 0; c < CLASSES; c++) {
        const double *cost = kvc_code_costs(kvc_code_index_at(index, (int)c - CLASS_ZERO));
        for (unsigned b = 0; b < last[c]; b++) bits += s->count[c][i][b] * cost[b];
    }
    return bits;
}

/* Returns the index that codes a component's values in the fewest bits, searching from `start`. The cost is nearly convex in
 * the index: the search stops after three increases in a row. */
static unsigned choose_index(const struct state *s, size_t component, unsigned start) {
    unsigned last[CLASSES] = {0}, best = start;
    for (unsigned c = 0; c < CLASSES; c++)
        for (unsigned b = s->bins[c]; b-- > 0 && !last[c];)
            if (s->count[c][component][b]) last[c] = b + 1;
    double least = bits_at(s, component, last, start);
    for (int direction = -1; direction <= 1; direction += 2)
        for (int i = (int)start + direction, worse = 0; i >= 0 && i < INDICES && worse < 3; i += direction, worse++) {
            const double bits = bits_at(s, component, last, (unsigned)i);
            if (!(bits < least)) continue;
            least = bits;
            best = (unsigned)i;
            worse = -1;
        }
    return best;
}

static int settle(const struct kvc_stage_args *args, void *state, uint8_t stage, struct kvc_sections *side, struct kvc_error *e) {
    struct state *s = state;
    const size_t width = s->heads * s->dim;
    uint8_t *bytes = kvc_alloc(width + 4, 4);
    struct kvc_bits bits = {.bytes = bytes};
    (void)args;
    if (!bytes) return kvc_fail_memory(e, "tables");
    for (size_t i = 0; i < width; i++) {
        s->index[i] = (uint8_t)choose_index(s, i, i ? s->index[i - 1] : INDICES / 2);
        if (i % s->dim) kvc_bits_put_rice(&bits, kvc_zigzag((int)s->index[i - 1] - (int)s->index[i]), TABLE_RICE);
        else kvc_bits_put(&bits, s->index[i], INDEX_BITS);
    }
    s->plan = (struct kvc_code_plan){.heads = s->heads, .dim = s->dim, .index = s->index, .factor = KVC_CODE_SYMBOLS};
    const int status = kvc_sections_add(side, KVC_SECTION_TABLES, stage, 0, bytes, (bits.at + 7) / 8, 0, e);
    free(bytes);
    free_counts(s);
    return status;
}

/* The symbol of code q, whose escapes and low bits go to `bits`. */
static uint16_t cut(int32_t q, unsigned table, unsigned shift, struct kvc_bits *bits) {
    const int32_t moved = q + (shift ? 1 << (shift - 1) : 0), r = moved >> shift;
    const uint16_t *f = kvc_code_frequency[table];
    const int has = r > -KVC_CODE_MIDDLE && r < KVC_CODE_MIDDLE && f[KVC_CODE_MIDDLE + r];
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
static int make_room(struct state *s, size_t values, unsigned lanes, struct kvc_error *e) {
    if (values <= s->room) return 0;
    free(s->symbols);
    free(s->bytes);
    s->room = 0;
    s->before = CODES_HEADER + 4 * (size_t)lanes + KVC_RANS_BOUND(values);
    s->symbols = kvc_alloc(values, sizeof *s->symbols);
    s->bytes = malloc(s->before + 6 * values + 16);
    if (!s->symbols || !s->bytes) return kvc_fail_memory(e, "codes");
    s->room = values;
    return 0;
}

static int encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block, uint8_t stage,
                  struct kvc_sections *out, struct kvc_error *e) {
    struct state *s = state;
    const struct kvc_kernels *kernels = kvc_kernels_get();
    const size_t dim = s->dim, rows = (size_t)block->shape.tokens * s->heads, values = rows * dim;
    const unsigned lanes = lanes_for(args, values);
    const float inverse = 1 / (float)args->f[STEP], *x = (const float *)(const void *)block->rows;
    if (!values) return 0;
    if (make_room(s, values, (unsigned)args->i[LANES], e)) return -1;
    uint8_t *const end = s->bytes + s->before;
    int32_t *const codes = s->codes;
    uint16_t *const others = (uint16_t *)(codes + dim);
    struct kvc_bits bits = {.bytes = end};
    for (size_t i = 0; i < rows; i++) {
        const size_t head = i % s->heads * dim;
        const struct kvc_code_way *way = kvc_code_plan_at(&s->plan, class_at(block, i), e);
        if (!way) return -1;
        const uint16_t *base = way->base + head;
        const uint8_t *shift = way->shift + head, *limit = way->limit + head;
        uint16_t *const to = s->symbols + i * dim;
        kernels->round_codes(codes, x + i * dim, dim, inverse, MOST_CODE);
        const size_t n = kernels->codes_to_symbols(to, others, codes, base, limit, dim, KVC_CODE_MIDDLE);
        for (size_t k = 0; k < n; k++) {
            const size_t c = others[k];
            to[c] = (uint16_t)(base[c] + cut(codes[c], base[c] / KVC_CODE_SYMBOLS, shift[c], &bits));
        }
    }
    struct kvc_rans_encoder r;
    const size_t at_once = dim % lanes ? dim : values; /* each head begins with lane 0 */
    kvc_rans_encode_begin(&r, lanes, end);
    for (size_t i = values; i; i -= at_once)
        kernels->rans_encode(&r, s->symbols + i - at_once, at_once, kvc_code_rows(), KVC_CODE_BITS);
    const size_t words = (size_t)(end - r.next);
    uint8_t *start = r.next - 4 * lanes - CODES_HEADER;
    kvc_rans_encode_end(&r, start + CODES_HEADER);
    for (unsigned b = 0; b < CODES_HEADER; b++) start[b] = (uint8_t)(words >> 8 * b & 255);
    return kvc_sections_add(out, KVC_SECTION_CODES, stage, 0, start, (size_t)(end - start) + (bits.at + 7) / 8, 0, e);
}

/* --- decoding --- */

static int read_indices(const struct kvc_section *s, uint8_t *index, size_t heads, size_t dim, struct kvc_error *e) {
    struct kvc_bits bits = {.read = s->data, .limit = 8 * (size_t)s->size};
    for (size_t i = 0; i < heads * dim; i++) {
        const int v = i % dim ? (int)index[i - 1] - kvc_unzigzag(kvc_bits_get_rice(&bits, TABLE_RICE))
                              : (int)kvc_bits_get(&bits, INDEX_BITS);
        if (bits.bad || v < 0 || v >= INDICES) return kvc_fail(e, KVC_ERR_DAMAGED, "section TABLES is out of range");
        index[i] = (uint8_t)v;
    }
    return kvc_bits_ended(&bits) ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "section TABLES does not end where it should");
}

/* Lists the components of a head whose codes have bits beside their symbols: escapes and those that lose low bits. */
static size_t list_others(uint32_t *others, const uint16_t *symbols, const uint8_t *shift, size_t n) {
    size_t found = 0;
    for (size_t c = 0; c < n; c++) {
        others[found] = (uint32_t)c;
        found += (symbols[c] == KVC_CODE_ESCAPE) | (shift[c] != 0);
    }
    return found;
}

/* Reads escaped values and low bits of n components of a row of one head. */
static int join(float *y, const uint16_t *symbols, const uint8_t *shift, const uint32_t *others, size_t n, float step,
                struct kvc_bits *string, struct kvc_error *e) {
    struct kvc_bits bits = *string; /* a copy, which may stay in registers */
    int64_t most = 0;
    for (size_t k = 0; k < n; k++) {
        const size_t c = others[k];
        int64_t r = (int)symbols[c] - KVC_CODE_MIDDLE;
        if (symbols[c] == KVC_CODE_ESCAPE) {
            const unsigned length = kvc_bits_get(&bits, LENGTH_BITS);
            r = kvc_unzigzag(1u << length | kvc_bits_get(&bits, length));
        }
        if (shift[c]) r = r * (1 << shift[c]) + kvc_bits_get(&bits, shift[c]) - (1 << (shift[c] - 1));
        most |= r < 0 ? -r : r;
        y[c] = (float)r * step;
    }
    *string = bits;
    if (!bits.bad && most < 1 << MOST_BITS) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES has a code out of range");
}

/* The sections of a block, opened. */
struct sections {
    const struct kvc_section *tables, *codes; /* codes: NULL for a block without rows */
    unsigned lanes;
    const uint8_t *states, *words, *extra; /* extra: string of bits after the words */
    size_t size, extra_size;               /* bytes of words, of extra */
};

static int open_sections(const struct kvc_stage_args *args, const struct kvc_stored *stored, const struct kvc_shape *shape,
                         struct sections *s, struct kvc_error *e) {
    memset(s, 0, sizeof *s);
    if (!(args->f[STEP] > 0)) return kvc_fail(e, KVC_ERR_DAMAGED, "the stage has no step");
    if (!(s->tables = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_TABLES, e))) return -1;
    if (!shape->tokens) return kvc_section_none_left(stored->section, stored->section + stored->n, e);
    if (!(s->codes = kvc_section_only(stored->section, stored->n, KVC_SECTION_CODES, e))) return -1;
    s->lanes = lanes_for(args, (size_t)(shape->tokens * shape->heads * shape->dim));
    const uint8_t *p = s->codes->data;
    const size_t head = CODES_HEADER + 4 * (size_t)s->lanes;
    if (s->codes->size < head) return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too short");
    s->size = p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
    if (s->size > s->codes->size - head) return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is shorter than its words");
    if (s->size % 2) return kvc_fail(e, KVC_ERR_DAMAGED, "an rANS stream ends in half a word");
    s->states = p + CODES_HEADER;
    s->words = p + head;
    s->extra = s->words + s->size;
    s->extra_size = s->codes->size - head - s->size;
    return 0;
}

/* A block that is being decoded. */
struct row_codes {
    const struct kvc_kernels *kernels;
    const uint32_t *slots;
    struct sections sections;
    const int8_t *step; /* class [row][head], or NULL */
    float factor;       /* the step */
    size_t heads, dim;
    uint8_t *index;
    struct kvc_code_plan plan;
    struct kvc_rans_decoder rans;
    struct kvc_bits bits;
    uint32_t *others;                /* of one head */
    uint16_t *symbols, *base;        /* of ROWS rows */
    const struct kvc_code_way **way; /* of each of their heads, the first `filled` of which are set */
    size_t filled;
};

enum { ROWS = 16 }; /* rows whose symbols are decoded at once */

static int rows_end(void *state, int done, struct kvc_error *e) {
    struct row_codes *r = state;
    int status = 0;
    if (!r) return 0;
    if (done && r->sections.codes) {
        status = kvc_rans_decode_end(&r->rans, e);
        if (!status && !kvc_bits_ended(&r->bits))
            status = kvc_fail(e, KVC_ERR_DAMAGED, "section CODES does not end where it should");
    }
    kvc_code_plan_free(&r->plan);
    free(r->index);
    free(r->way);
    free(r);
    return status;
}

static int rows_begin(const struct kvc_stage_args *args, const struct kvc_stored *stored, const struct kvc_block *block,
                      void **state, struct kvc_error *e) {
    struct row_codes *r = calloc(1, sizeof *r);
    if (!r) return kvc_fail_memory(e, "codes");
    *state = r;
    if (open_sections(args, stored, &block->shape, &r->sections, e)) return -1;
    if (!r->sections.codes) return 0;
    const size_t heads = r->heads = (size_t)block->shape.heads, dim = r->dim = (size_t)block->shape.dim;
    r->kernels = kvc_kernels_get();
    r->slots = kvc_code_slots();
    r->step = block->step;
    r->factor = (float)args->f[STEP];
    r->bits = (struct kvc_bits){.read = r->sections.extra, .limit = 8 * r->sections.extra_size};
    r->index = kvc_alloc(heads, dim);
    r->way = kvc_alloc(heads, ROWS * (sizeof *r->way + dim * 2 * sizeof(uint16_t)) + dim * sizeof *r->others);
    if (!r->index || !r->way) return kvc_fail_memory(e, "codes");
    r->others = (uint32_t *)(r->way + ROWS * heads);
    r->symbols = (uint16_t *)(r->others + heads * dim);
    r->base = r->symbols + ROWS * heads * dim;
    r->plan = (struct kvc_code_plan){.heads = heads, .dim = dim, .index = r->index, .factor = 1 << KVC_CODE_BITS};
    if (read_indices(r->sections.tables, r->index, heads, dim, e)) return -1;
    return kvc_rans_decode_begin(&r->rans, r->sections.lanes, r->sections.states, r->sections.words, r->sections.size, e);
}

/* Decodes the symbols of n rows, of which row `first` is the first. Heads are decoded as one where each then begins with lane 0, as it
 * should. */
static int decode_symbols(struct row_codes *r, size_t first, size_t n, struct kvc_error *e) {
    const size_t heads = r->heads, dim = r->dim, all = n * heads * dim, at_once = dim % r->rans.lanes ? dim : all;
    for (size_t i = 0; i < n * heads; i++) {
        const size_t h = i % heads;
        const int class = r->step ? r->step[first * heads + i] : 0;
        const struct kvc_code_way *way = kvc_code_plan_at(&r->plan, class, e);
        if (!way) return -1;
        if (r->way[i] == way && r->filled > i) continue;
        r->way[i] = way;
        memcpy(r->base + i * dim, way->base + h * dim, dim * sizeof *r->base);
    }
    if (r->filled < n * heads) r->filled = n * heads;
    for (size_t c = 0; c < all; c += at_once)
        r->kernels->rans_decode(&r->rans, r->symbols + c, r->base + c, at_once, r->slots, KVC_CODE_BITS);
    return 0;
}

static int decode_rows(struct row_codes *r, size_t first, size_t n, float *y, struct kvc_error *e) {
    const size_t dim = r->dim;
    if (decode_symbols(r, first, n, e)) return -1;
    for (size_t i = 0; i < n * r->heads; i++, y += dim) {
        const size_t h = i % r->heads;
        const uint16_t *symbols = r->symbols + i * dim;
        const uint8_t *shift = r->way[i]->shift + h * dim;
        const uint32_t *others = r->way[i]->shifted + h * dim;
        size_t left = r->way[i]->n_shifted[h];
        if (r->kernels->symbols_to_floats(y, symbols, dim, KVC_CODE_MIDDLE, r->factor) == KVC_CODE_ESCAPE) {
            left = list_others(r->others, symbols, shift, dim);
            others = r->others;
        }
        if (left && join(y, symbols, shift, others, left, r->factor, &r->bits, e)) return -1;
    }
    return 0;
}

static int rows_next(void *state, struct kvc_row_run *run, struct kvc_error *e) {
    struct row_codes *r = state;
    for (size_t i = 0, n; i < run->n; i += n) {
        n = run->n - i < ROWS ? run->n - i : ROWS;
        if (decode_rows(r, run->first + i, n, run->rows + i * r->heads * r->dim, e)) return -1;
    }
    return 0;
}

static int lower(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                 struct kvc_program *program, struct kvc_error *e) {
    const size_t heads = (size_t)block->shape.heads, dim = (size_t)block->shape.dim, rows = (size_t)block->shape.tokens;
    struct sections s;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_WORDS, &block->shape);
    struct kvc_code_job code = {.rows = (uint32_t)rows,
                                .heads = (uint32_t)heads,
                                .dim = (uint32_t)dim,
                                .step = (float)args->f[STEP]};
    void *room;
    if (open_sections(args, stored, &block->shape, &s, e)) return -1;
    if (!s.codes) return 0;
    const uint32_t *slots = kvc_code_slots();
    const size_t slot_bytes = KVC_CODE_SLOTS * sizeof *slots;
    const struct kvc_program_key key[2] = {{slots, 0, 0}, {s.tables->data, 0, 0}};
    if (program->keep(program->owner, &key[0], slot_bytes, &room, &code.slots, e)) return -1;
    if (room) memcpy(room, slots, slot_bytes);
    if (program->keep(program->owner, &key[1], heads * dim, &room, &code.index, e)) return -1;
    if (room && read_indices(s.tables, room, heads, dim, e)) return -1;
    if (block->step && !(code.step_class = kvc_program_copy(program, block->step, rows * heads, e))) return -1;
    if (!(code.to = kvc_program_scratch(program, rows * heads * dim * sizeof(float), e))) return -1;
    const uint64_t base = kvc_program_bytes(program, s.codes, s.codes->size, NULL, e);
    struct kvc_device_job *job = base ? kvc_program_job(program, KVC_JOB_CODE, e) : NULL;
    if (!job) return -1;
    code.states = base + (uint64_t)(s.states - s.codes->data);
    code.words = base + (uint64_t)(s.words - s.codes->data);
    code.extra = base + (uint64_t)(s.extra - s.codes->data);
    code.size = (uint32_t)s.size;
    code.lanes = s.lanes;
    code.extra_size = (uint32_t)s.extra_size;
    job->code = code;
    op.words.from = code.to;
    op.words.size = sizeof(float);
    return kvc_program_begin(program, rows, e) || kvc_program_op(program, &op, e) ? -1 : 0;
}

const struct kvc_stage kvc_stage_code = {
    .id = 19,
    .name = "code",
    .summary = "rounds to one step and codes with fixed tables",
    .flags = KVC_STAGE_FINITE | KVC_STAGE_FLOAT | KVC_STAGE_LOOKS | KVC_STAGE_TERMINAL | KVC_STAGE_SAMPLES,
    .args = arguments,
    .n_args = N_ARGS,
    .check = check,
    .begin = begin,
    .look = look,
    .settle = settle,
    .end = end,
    .encode = encode,
    .rows_begin = rows_begin,
    .rows_next = rows_next,
    .rows_end = rows_end,
    .lower = lower,
};
