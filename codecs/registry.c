/* registry.c: the table of stages: one line each, sorted by id. Adding a codec is one file, one spec, one line. */
#include "codecs/stage.h"

#include <string.h>

static const struct kvc_stage *const table[] = {
    &kvc_stage_store,     /* 1: store.md */
    &kvc_stage_zstd,      /* 2: zstd.md */
    &kvc_stage_split,     /* 3: split.md */
    &kvc_stage_fast,      /* 4: fast.md */
    &kvc_stage_finite,    /* 5: finite.md */
    &kvc_stage_sink,      /* 6: sink.md */
    &kvc_stage_tail,      /* 7: tail.md */
    &kvc_stage_quant,     /* 8: quant.md */
    &kvc_stage_outlier,   /* 9: outlier.md */
    &kvc_stage_lowrank,   /* 10: lowrank.md */
    &kvc_stage_prune,     /* 11: prune.md */
    &kvc_stage_saliency,  /* 12: saliency.md */
    &kvc_stage_merge,     /* 13: merge.md */
    &kvc_stage_project,   /* 14: project.md */
    &kvc_stage_derope,    /* 15: derope.md */
    &kvc_stage_center,    /* 16: center.md */
    &kvc_stage_basis,     /* 17: basis.md */
    &kvc_stage_steps,     /* 18: steps.md */
    &kvc_stage_code,      /* 19: code.md */
};

#define N (sizeof table / sizeof table[0])

const struct kvc_stage *kvc_stage_find(const char *name) {
    for (size_t i = 0; i < N; i++)
        if (strcmp(table[i]->name, name) == 0) return table[i];
    return NULL;
}

const struct kvc_stage *kvc_stage_by_id(unsigned id) {
    for (size_t i = 0; i < N; i++)
        if (table[i]->id == id) return table[i];
    return NULL;
}

const struct kvc_stage *kvc_stage_at(size_t i) {
    return i < N ? table[i] : NULL;
}
