/* sink.c: the stage that keeps the first tokens of a sequence as they are. Spec: sink.md. */
#include "codecs/args.h"
#include "codecs/ends.h"
#include "codecs/program.h"

enum { N };

static const struct kvc_arg arguments[] = {
    [N] = {.min = 1, .max = 1 << 20, .required = 1, .fallback = 4},
};

static int parse(const char *text, struct kvc_stage_args *args, struct kvc_error *e) {
    return kvc_args_parse("sink", arguments, 1, text, args, e);
}

static void print(const struct kvc_stage_args *args, char *text, size_t size) {
    kvc_args_print(arguments, 1, args, text, size);
}

static int encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block, uint8_t stage,
                  struct kvc_sections *out, struct kvc_error *e) {
    uint64_t n = 0;
    (void)state;
    while (n < block->shape.tokens && kvc_block_position(block, n) < args->i[N]) n++;
    return kvc_ends_encode(block, n, KVC_SECTION_SINK, stage, out, e);
}

static int open(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                struct kvc_error *e) {
    (void)args;
    return kvc_ends_open(block, KVC_SECTION_SINK, stored, e);
}

static int decode(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                  struct kvc_error *e) {
    (void)args;
    return kvc_ends_decode(block, KVC_SECTION_SINK, stored, e);
}

static int lower(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                 struct kvc_program *program, struct kvc_error *e) {
    (void)args;
    return kvc_ends_lower(block, KVC_SECTION_SINK, stored, program, e);
}

const struct kvc_stage kvc_stage_sink = {
    .id = 6,
    .name = "sink",
    .summary = "the first N tokens as they are",
    .flags = KVC_STAGE_LOSSLESS | KVC_STAGE_TAKES,
    .parse = parse,
    .print = print,
    .encode = encode,
    .open = open,
    .decode = decode,
    .lower = lower,
};
