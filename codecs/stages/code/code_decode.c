/* code_decode.c: decodes what the stage `code` coded, run of rows after run, and lowers it for
 * devices. Spec: code.md. Not for encoding (code.c). */
#include "codecs/stages/code/code_sections.h"

#include "codecs/bits.h"
#include "codecs/little_endian.h"
#include "codecs/memory.h"
#include "codecs/program.h"
#include "codecs/rans.h"
#include "codecs/stages/code/code_cost.h"
#include "codecs/stages/code/code_plan.h"

#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

int kvc_code_read_indices(const struct kvc_section *s, uint8_t *index, size_t heads, size_t dim,
                          struct kvc_error *e) {
    struct kvc_bits bits = {.read = s->data, .limit = 8 * (size_t)s->size};
    for (size_t i = 0; i < heads * dim; i++) {
        const int v = i % dim ? (int)index[i - 1] -
                                    kvc_unzigzag(kvc_bits_get_rice(&bits, KVC_CODE_TABLE_RICE))
                              : (int)kvc_bits_get(&bits, KVC_CODE_INDEX_BITS);
        if (bits.bad || v < 0 || v >= KVC_CODE_INDICES)
            return kvc_fail(e, KVC_ERR_DAMAGED, "section TABLES is out of range");
        index[i] = (uint8_t)v;
    }
    return kvc_bits_ended(&bits)
               ? 0
               : kvc_fail(e, KVC_ERR_DAMAGED, "section TABLES does not end where it should");
}

/* Lists the components of a head whose codes have bits beside their symbols: escapes and those that
 * lose low bits. */
static size_t list_others(uint32_t *others, const uint16_t *symbols, const uint8_t *shift,
                          size_t n) {
    size_t found = 0;
    for (size_t c = 0; c < n; c++) {
        others[found] = (uint32_t)c;
        found += (size_t)((symbols[c] == KVC_CODE_ESCAPE) | (shift[c] != 0));
    }
    return found;
}

/* Reads escaped values and low bits of n components of a row of one head. */
static int code_decode_join(float *y, const uint16_t *symbols, const uint8_t *shift,
                            const uint32_t *others, size_t n, float step, struct kvc_bits *string,
                            struct kvc_error *e) {
    struct kvc_bits bits = *string; /* a copy, which may stay in registers */
    int64_t most = 0;
    for (size_t k = 0; k < n; k++) {
        const size_t c = others[k];
        int64_t r = (int)symbols[c] - KVC_CODE_MIDDLE;
        if (symbols[c] == KVC_CODE_ESCAPE) {
            const unsigned length = kvc_bits_get(&bits, KVC_CODE_LENGTH_BITS);
            r = kvc_unzigzag(1u << length | kvc_bits_get(&bits, length));
        }
        if (shift[c])
            r = r * (1 << shift[c]) + kvc_bits_get(&bits, shift[c]) - (1 << (shift[c] - 1));
        most |= r < 0 ? -r : r;
        y[c] = (float)r * step;
    }
    *string = bits;
    if (!bits.bad && most < 1 << KVC_CODE_MOST_BITS) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES has a code out of range");
}

/* The sections of a block, opened. */
struct sections {
    const struct kvc_section *tables, *codes; /* codes: NULL for a block without rows */
    unsigned lanes;
    const uint8_t *states, *words, *extra; /* extra: string of bits after the words */
    size_t size, extra_size;               /* bytes of words, of extra */
};

static int code_decode_open_sections(const struct kvc_stage_args *args,
                                     const struct kvc_stored *stored, const struct kvc_shape *shape,
                                     struct sections *s, struct kvc_error *e) {
    memset(s, 0, sizeof *s);
    if (!(args->f[KVC_CODE_STEP] > 0)) return kvc_fail(e, KVC_ERR_DAMAGED, "the stage has no step");
    if (!(s->tables = kvc_section_only(stored->side, stored->n_side, KVC_SECTION_TABLES, e)))
        return -1;
    if (!shape->tokens) return kvc_stored_none(stored, e);
    if (!(s->codes = kvc_section_only(stored->section, stored->n, KVC_SECTION_CODES, e))) return -1;
    s->lanes = kvc_code_lanes(args, (size_t)(shape->tokens * shape->heads * shape->dim));
    const uint8_t *p = s->codes->data;
    const size_t head = KVC_CODE_HEADER + 4 * (size_t)s->lanes;
    if (s->codes->size < head) return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is too short");
    s->size = get_u32(p);
    if (s->size > s->codes->size - head)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section CODES is shorter than its words");
    if (s->size % 2) return kvc_fail(e, KVC_ERR_DAMAGED, "an rANS stream ends in half a word");
    s->states = p + KVC_CODE_HEADER;
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
    uint32_t *others;         /* of one head */
    uint16_t *symbols, *base; /* of ROWS rows */
    /* of each of their heads, the first `filled` of which are set */
    const struct kvc_code_way **way;
    size_t filled;
};

enum { ROWS = 16 }; /* rows whose symbols are decoded at once */

int kvc_code_rows_end(void *state, int done, struct kvc_error *e) {
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

int kvc_code_rows_begin(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        const struct kvc_block *block, void **state, struct kvc_error *e) {
    struct row_codes *r = calloc(1, sizeof *r);
    if (!r) return kvc_fail_memory(e, "codes");
    *state = r;
    if (code_decode_open_sections(args, stored, &block->shape, &r->sections, e)) return -1;
    if (!r->sections.codes) return 0;
    const size_t heads = r->heads = (size_t)block->shape.heads,
                 dim = r->dim = (size_t)block->shape.dim;
    r->kernels = kvc_kernels_get();
    r->slots = kvc_code_slots();
    r->step = block->step;
    r->factor = (float)args->f[KVC_CODE_STEP];
    r->bits = (struct kvc_bits){.read = r->sections.extra, .limit = 8 * r->sections.extra_size};
    r->index = kvc_alloc(heads, dim);
    r->way = kvc_alloc(heads, ROWS * (sizeof *r->way + dim * 2 * sizeof(uint16_t)) +
                                  dim * sizeof *r->others);
    if (!r->index || !r->way) return kvc_fail_memory(e, "codes");
    r->others = (uint32_t *)(r->way + ROWS * heads);
    r->symbols = (uint16_t *)(r->others + heads * dim);
    r->base = r->symbols + ROWS * heads * dim;
    r->plan = (struct kvc_code_plan){.heads = heads,
                                     .dim = dim,
                                     .index = r->index,
                                     .factor = 1 << KVC_CODE_BITS};
    if (kvc_code_read_indices(r->sections.tables, r->index, heads, dim, e)) return -1;
    return kvc_rans_decode_begin(&r->rans, r->sections.lanes, r->sections.states, r->sections.words,
                                 r->sections.size, e);
}

/* Sets the tables of n rows, of which row `first` is the first. */
static int set_tables(struct row_codes *r, size_t first, size_t n, struct kvc_error *e) {
    const size_t heads = r->heads, dim = r->dim;
    for (size_t i = 0; i < n * heads; i++) {
        const size_t h = i % heads;
        const int class = r->step ? r->step[first * heads + i] : 0;
        const struct kvc_code_way *way = kvc_code_plan_at(&r->plan, class, e);
        if (!way) return -1;
        if (r->filled > i && r->way[i] == way) continue;
        r->way[i] = way;
        memcpy(r->base + i * dim, way->base + h * dim, dim * sizeof *r->base);
    }
    if (r->filled < n * heads) r->filled = n * heads;
    return 0;
}

/* Returns the symbols that are decoded at once of n rows. Heads are decoded as one where each then
 * begins with lane 0, as it should. */
static size_t at_once(const struct row_codes *r, size_t n) {
    return r->dim % r->rans.lanes ? r->dim : n * r->heads * r->dim;
}

/* Decodes the symbols of n rows of each of one or two blocks. */
static void decode_symbols(struct row_codes *const r[], unsigned blocks, size_t n) {
    const size_t once = at_once(r[0], n);
    if (blocks == 2 && once == at_once(r[1], n) && once > r[0]->dim) {
        struct row_codes *const x = r[0], *const y = r[1];
        x->kernels->rans_decode_two(
            &(struct kvc_rans_row){&x->rans, x->symbols, x->base, x->slots, KVC_CODE_BITS},
            &(struct kvc_rans_row){&y->rans, y->symbols, y->base, y->slots, KVC_CODE_BITS}, once);
        return;
    }
    for (unsigned b = 0; b < blocks; b++) {
        const size_t all = n * r[b]->heads * r[b]->dim, part = at_once(r[b], n);
        for (size_t c = 0; c < all; c += part)
            r[b]->kernels->rans_decode(&r[b]->rans, r[b]->symbols + c, r[b]->base + c, part,
                                       r[b]->slots, KVC_CODE_BITS);
    }
}

/* Makes coefficients of the symbols of n rows. */
static int join_rows(struct row_codes *r, size_t n, float *y, struct kvc_error *e) {
    const size_t dim = r->dim;
    for (size_t i = 0; i < n * r->heads; i++, y += dim) {
        const size_t h = i % r->heads;
        const uint16_t *symbols = r->symbols + i * dim;
        const uint8_t *shift = r->way[i]->shift + h * dim;
        const uint32_t *others = r->way[i]->shifted + h * dim;
        size_t left = r->way[i]->n_shifted[h];
        if (r->kernels->symbols_to_floats(y, symbols, dim, KVC_CODE_MIDDLE, r->factor) ==
            KVC_CODE_ESCAPE) {
            left = list_others(r->others, symbols, shift, dim);
            others = r->others;
        }
        if (left && code_decode_join(y, symbols, shift, others, left, r->factor, &r->bits, e))
            return -1;
    }
    return 0;
}

static int next_rows(void *const state[], unsigned blocks, struct kvc_row_run *run,
                     struct kvc_error *e) {
    struct row_codes *const r[] = {state[0], state[blocks - 1]};
    for (size_t i = 0, n; i < run->n; i += n) {
        n = run->n - i < ROWS ? run->n - i : ROWS;
        for (unsigned b = 0; b < blocks; b++)
            if (set_tables(r[b], run[b].first + i, n, e)) return -1;
        decode_symbols(r, blocks, n);
        for (unsigned b = 0; b < blocks; b++)
            if (join_rows(r[b], n, run[b].rows + i * r[b]->heads * r[b]->dim, e)) return -1;
    }
    return 0;
}

int kvc_code_rows_next(void *state, struct kvc_row_run *run, struct kvc_error *e) {
    return next_rows(&state, 1, run, e);
}

int kvc_code_rows_next_two(void *const state[2], struct kvc_row_run run[2], struct kvc_error *e) {
    return next_rows(state, 2, run, e);
}

int kvc_code_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                   struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    const size_t heads = (size_t)block->shape.heads, dim = (size_t)block->shape.dim,
                 rows = (size_t)block->shape.tokens;
    struct sections s;
    struct kvc_device_op op = kvc_program_op_of(KVC_OP_WORDS, &block->shape);
    struct kvc_code_job code = {.rows = (uint32_t)rows,
                                .heads = (uint32_t)heads,
                                .dim = (uint32_t)dim,
                                .step = (float)args->f[KVC_CODE_STEP]};
    void *room;
    if (code_decode_open_sections(args, stored, &block->shape, &s, e)) return -1;
    if (!s.codes) return 0;
    const uint32_t *slots = kvc_code_slots();
    if (kvc_program_keep_copy(program, slots, 0, slots, KVC_CODE_SLOTS * sizeof *slots, &code.slots,
                              e))
        return -1;
    if (kvc_program_keep(program, s.tables->data, 0, heads * dim, &room, &code.index, e)) return -1;
    if (room && kvc_code_read_indices(s.tables, room, heads, dim, e)) return -1;
    if (block->step && !(code.step_class = kvc_program_copy(program, block->step, rows * heads, e)))
        return -1;
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
    return kvc_program_first(program, rows, &op, e);
}
