/* store.c: the stage that keeps rows as they are. Spec: store.md. */
#include "codecs/stage.h"

#include <string.h>

static int parse(const char *text, struct kvc_stage_args *args, struct kvc_error *e) {
    memset(args, 0, sizeof *args);
    if (*text) return kvc_fail(e, KVC_ERR_USAGE, "store takes no arguments, not '%s'", text);
    return 0;
}

static void print(const struct kvc_stage_args *args, char *text, size_t size) {
    (void)args;
    if (size) *text = '\0';
}

static int accepts(const struct kvc_stage_args *args, const struct kvc_shape *shape, struct kvc_error *e) {
    (void)args, (void)shape, (void)e;
    return 1;
}

static int encode(const struct kvc_stage_args *args, struct kvc_block *block, uint8_t stage, struct kvc_sections *out,
                  struct kvc_error *e) {
    (void)args;
    size_t n = (size_t)(block->shape.tokens * kvc_row_bytes(&block->shape));
    return kvc_sections_add(out, KVC_SECTION_RAW, stage, 0, block->rows, n, 0, e);
}

static int decode(const struct kvc_stage_args *args, struct kvc_block *block, const struct kvc_section *sections,
                  size_t n, struct kvc_error *e) {
    (void)args;
    const size_t size = (size_t)(block->shape.tokens * kvc_row_bytes(&block->shape));
    int raw = kvc_section_raw(sections, n, block->rows, size, e);
    if (!raw) return kvc_fail(e, KVC_ERR_DAMAGED, "needs exactly one RAW section");
    return raw < 0 ? -1 : 0;
}

const struct kvc_stage kvc_stage_store = {
    .id = 1,
    .name = "store",
    .summary = "rows as they are",
    .flags = KVC_STAGE_TERMINAL | KVC_STAGE_LOSSLESS,
    .parse = parse,
    .print = print,
    .accepts = accepts,
    .encode = encode,
    .decode = decode,
};
