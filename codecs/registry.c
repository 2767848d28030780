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
