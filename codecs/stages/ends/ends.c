/* ends.c: the stages `sink` and `tail`, which keep the first or the last tokens of a sequence
 * unchanged. Spec: sink.md, tail.md. Not for coding the kept rows (kept.c). */
#include "codecs/stages/ends/ends.h"

#include "codecs/little_endian.h"
#include "codecs/stages/ends/kept.h"

#include <string.h>

/* Arguments of both stages; `whole` is tail's alone. */
enum { N, WHOLE };

static void ends_mark(uint8_t *mask, uint64_t rows, uint64_t n, unsigned type) {
    memset(mask, 0, (size_t)rows);
    memset(mask + (type == KVC_SECTION_SINK ? 0 : rows - n), 1, (size_t)n);
}

/* Keeps `rows` rows at the beginning (`type` KVC_SECTION_SINK) or the end (KVC_SECTION_TAIL) of a
 * block. */
static int ends_keep(struct kvc_block *block, uint64_t rows, unsigned type, uint8_t stage,
                     struct kvc_sections *out, struct kvc_error *e) {
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    uint8_t bytes[2];
    if (!rows) return 0;
    put_u16(bytes, (uint16_t)rows);
    ends_mark(mask, block->shape.tokens, rows, type);
    if (kvc_sections_add(out, (uint8_t)type, stage, 0, bytes, sizeof bytes, 0, e)) return -1;
    return kvc_kept_encode(block, mask, stage, out, e);
}

/* Reads the number of kept rows from the first section; 0 without sections. */
static int read_count(const struct kvc_stored *stored, uint64_t rows, unsigned type, uint64_t *n,
                      struct kvc_error *e) {
    *n = 0;
    if (!stored->n) return 0;
    const struct kvc_section *next = stored->section, *s;
    if (!(s = kvc_section_take_stored(&next, next + stored->n, type, 0, e))) return -1;
    if (s->size != 2)
        return kvc_fail(e, KVC_ERR_DAMAGED, "%s is not a number of two bytes",
                        kvc_section_name(type));
    *n = get_u16(s->data);
    if (*n && *n <= rows) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "%s keeps %llu of %llu rows", kvc_section_name(type),
                    (unsigned long long)*n, (unsigned long long)rows);
}

/* Makes the mask of the rows that a block keeps, and their number. Returns -1 when its sections are
 * damaged. */
static int read_mask(const struct kvc_stored *stored, uint64_t rows, unsigned type, uint8_t *mask,
                     uint64_t *n, struct kvc_error *e) {
    if (read_count(stored, rows, type, n, e)) return -1;
    ends_mark(mask, rows, *n, type);
    return 0;
}

static int open_end(struct kvc_block *block, unsigned type, const struct kvc_stored *stored,
                    struct kvc_error *e) {
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    uint64_t n;
    if (read_mask(stored, block->shape.tokens, type, mask, &n, e)) return -1;
    kvc_kept_open(block, mask);
    return 0;
}

static int decode_end(struct kvc_block *block, unsigned type, const struct kvc_stored *stored,
                      struct kvc_error *e) {
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    uint64_t n;
    if (read_mask(stored, block->shape.tokens, type, mask, &n, e)) return -1;
    return n ? kvc_kept_decode(block, mask, stored->section + 1, stored->n - 1, e) : 0;
}

static int lower_end(const struct kvc_block *block, unsigned type, const struct kvc_stored *stored,
                     struct kvc_program *program, struct kvc_error *e) {
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    uint64_t n;
    if (read_mask(stored, block->shape.tokens, type, mask, &n, e)) return -1;
    return n ? kvc_kept_lower(program, &block->shape, mask, stored->section + 1, stored->n - 1, e)
             : 0;
}

/* --- sink --- */

static const struct kvc_arg sink_arguments[] = {
    [N] = {.min = 1, .max = 1 << 20, .required = 1, .fallback = 4},
};

static int encode_sink(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                       uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    uint64_t n = 0;
    (void)state;
    while (n < block->shape.tokens && kvc_block_position(block, n) < args->i[N]) n++;
    return ends_keep(block, n, KVC_SECTION_SINK, stage, out, e);
}

static int open_sink(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                     struct kvc_block *block, struct kvc_error *e) {
    (void)args;
    return open_end(block, KVC_SECTION_SINK, stored, e);
}

static int decode_sink(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_error *e) {
    (void)args;
    return decode_end(block, KVC_SECTION_SINK, stored, e);
}

static int lower_sink(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                      struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    (void)args;
    return lower_end(block, KVC_SECTION_SINK, stored, program, e);
}

const struct kvc_stage kvc_stage_sink = {
    .id = 6,
    .name = "sink",
    .summary = "the first N tokens, exactly",
    .flags = KVC_STAGE_LOSSLESS | KVC_STAGE_TAKES,
    .args = sink_arguments,
    .n_args = 1,
    .encode = encode_sink,
    .open = open_sink,
    .decode = decode_sink,
    .lower = lower_sink,
};

/* --- tail --- */

static const struct kvc_arg tail_arguments[] = {
    [N] = {.min = 1, .max = 1 << 20, .required = 1, .fallback = 64},
    [WHOLE] = {.key = "whole", .min = 1, .max = 65536, .fallback = 1},
};

uint64_t kvc_tail_first(const struct kvc_stage_args *args, uint64_t rows, const int64_t *position) {
    if (!rows) return 0;
    const int64_t last = position ? position[rows - 1] : (int64_t)rows - 1;
    while (rows && (position ? position[rows - 1] : (int64_t)rows - 1) > last - args->i[N]) rows--;
    return rows - rows % (uint64_t)args->i[WHOLE];
}

static int encode_tail(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                       uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    const struct kvc_encoding *x = block->encoding;
    const uint64_t first = kvc_tail_first(args, x ? x->rows : block->shape.tokens,
                                          x ? x->position : NULL);
    uint64_t n = 0;
    (void)state;
    while (n < block->shape.tokens && kvc_block_row(block, block->shape.tokens - 1 - n) >= first)
        n++;
    return ends_keep(block, n, KVC_SECTION_TAIL, stage, out, e);
}

static int open_tail(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                     struct kvc_block *block, struct kvc_error *e) {
    (void)args;
    return open_end(block, KVC_SECTION_TAIL, stored, e);
}

static int decode_tail(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_error *e) {
    (void)args;
    return decode_end(block, KVC_SECTION_TAIL, stored, e);
}

static int lower_tail(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                      struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    (void)args;
    return lower_end(block, KVC_SECTION_TAIL, stored, program, e);
}

const struct kvc_stage kvc_stage_tail = {
    .id = 7,
    .name = "tail",
    .summary = "the last N tokens, exactly",
    .flags = KVC_STAGE_LOSSLESS | KVC_STAGE_TAKES | KVC_STAGE_LAST,
    .args = tail_arguments,
    .n_args = 2,
    .encode = encode_tail,
    .open = open_tail,
    .decode = decode_tail,
    .lower = lower_tail,
};
