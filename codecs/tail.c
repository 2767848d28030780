/* tail.c: the stage that keeps the most recent tokens as they are. Spec: tail.md. */
#include "codecs/args.h"
#include "codecs/ends.h"
#include "codecs/program.h"

enum { N, WHOLE };

static const struct kvc_arg arguments[] = {
    [N] = {.min = 1, .max = 1 << 20, .required = 1, .fallback = 64},
    [WHOLE] = {.key = "whole", .min = 1, .max = 65536, .fallback = 1},
};

static int parse(const char *text, struct kvc_stage_args *args, struct kvc_error *e) {
    return kvc_args_parse("tail", arguments, 2, text, args, e);
}

static void print(const struct kvc_stage_args *args, char *text, size_t size) {
    kvc_args_print(arguments, 2, args, text, size);
}

/* The first row of the tensor that is kept. */
static uint64_t first_kept(const struct kvc_stage_args *args, const struct kvc_block *block) {
    const struct kvc_encoding *x = block->encoding;
    uint64_t rows = x ? x->rows : block->shape.tokens;
    if (!rows) return 0;
    const int64_t last = x ? x->position[rows - 1] : (int64_t)rows - 1;
    while (rows && (x ? x->position[rows - 1] : (int64_t)rows - 1) > last - args->i[N]) rows--;
    return rows - rows % (uint64_t)args->i[WHOLE];
}

static int encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block, uint8_t stage,
                  struct kvc_sections *out, struct kvc_error *e) {
    const uint64_t first = first_kept(args, block);
    uint64_t n = 0;
    (void)state;
    while (n < block->shape.tokens && kvc_block_row(block, block->shape.tokens - 1 - n) >= first) n++;
    return kvc_ends_encode(block, n, KVC_SECTION_TAIL, stage, out, e);
}

static int open(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                struct kvc_error *e) {
    (void)args;
    return kvc_ends_open(block, KVC_SECTION_TAIL, stored, e);
}

static int decode(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                  struct kvc_error *e) {
    (void)args;
    return kvc_ends_decode(block, KVC_SECTION_TAIL, stored, e);
}

static int lower(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                 struct kvc_program *program, struct kvc_error *e) {
    (void)args;
    return kvc_ends_lower(block, KVC_SECTION_TAIL, stored, program, e);
}

const struct kvc_stage kvc_stage_tail = {
    .id = 7,
    .name = "tail",
    .summary = "the last N tokens as they are",
    .flags = KVC_STAGE_LOSSLESS | KVC_STAGE_TAKES,
    .parse = parse,
    .print = print,
    .encode = encode,
    .open = open,
    .decode = decode,
    .lower = lower,
};
