/* store.c: the stage that stores rows unchanged. Spec: store.md. */
#include "codecs/program.h"
#include "codecs/stage.h"

static int store_encode(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                        uint8_t stage, struct kvc_sections *out, struct kvc_error *e) {
    (void)args, (void)state;
    size_t n = (size_t)(block->shape.tokens * kvc_row_bytes(&block->shape));
    return kvc_sections_add(out, KVC_SECTION_RAW, stage, 0, block->rows, n, 0, e);
}

static int store_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                        struct kvc_block *block, struct kvc_error *e) {
    (void)args;
    const int raw = kvc_stored_raw(stored, block, e);
    if (!raw) return kvc_fail(e, KVC_ERR_DAMAGED, "needs exactly one RAW section");
    return raw < 0 ? -1 : 0;
}

static int store_lower(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                       struct kvc_block *block, struct kvc_program *program, struct kvc_error *e) {
    (void)args;
    const int raw = kvc_program_raw(program, stored->section, stored->n, &block->shape, e);
    if (!raw) return kvc_fail(e, KVC_ERR_DAMAGED, "needs exactly one RAW section");
    return raw < 0 ? -1 : 0;
}

const struct kvc_stage kvc_stage_store = {
    .id = 1,
    .name = "store",
    .summary = "rows unchanged",
    .flags = KVC_STAGE_TERMINAL | KVC_STAGE_LOSSLESS,
    .encode = store_encode,
    .decode = store_decode,
    .lower = store_lower,
};
