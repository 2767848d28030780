/* registry.c: the table of stages, which stages.def lists. */
#include "codecs/registry.h"

#include <string.h>

static const struct kvc_stage *const table[] = {
#define STAGE(name) &kvc_stage_##name,
#include "codecs/stages.def"
#undef STAGE
};

enum { STAGES = sizeof table / sizeof table[0] };

const struct kvc_stage *kvc_stage_find(const char *name) {
    for (size_t i = 0; i < STAGES; i++)
        if (strcmp(table[i]->name, name) == 0) return table[i];
    return NULL;
}

const struct kvc_stage *kvc_stage_by_id(unsigned id) {
    for (size_t i = 0; i < STAGES; i++)
        if (table[i]->id == id) return table[i];
    return NULL;
}

const struct kvc_stage *kvc_stage_at(size_t i) {
    return i < STAGES ? table[i] : NULL;
}

static const struct kvc_arg unknown_arguments[] = {
    {.kind = KVC_ARG_INTEGER, .min = 0, .max = UINT16_MAX, .required = 1}};

static int unknown_decode(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                          struct kvc_block *block, struct kvc_error *e) {
    const long long id = args->i[0];
    (void)stored, (void)block;
    /* IDS.md has the ranges */
    if (id < 0x8000)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "coded by stage %lld, which this kvc does not know: use a newer kvc", id);
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    "coded by stage %lld, %s, which this kvc does not know: the program that wrote "
                    "the file has it",
                    id, id < 0xc000 ? "an experiment" : "a private one");
}

const struct kvc_stage kvc_stage_unknown = {
    .name = "unknown",
    .summary = "a stage of a newer kvc",
    .flags = KVC_STAGE_TERMINAL | KVC_STAGE_UNKNOWN,
    .args = unknown_arguments,
    .n_args = 1,
    .decode = unknown_decode,
};
