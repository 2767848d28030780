/* presets.h: names for recipes that are used as they stand: the papers'. Not for the grammar (recipe.h). */
#ifndef KVC_PRESETS_H
#define KVC_PRESETS_H

#include <stddef.h>

struct kvc_preset {
    const char *name;    /* as a recipe spells it */
    const char *recipe;  /* what it stands for */
    const char *summary; /* one line: which paper, which setting */
};

/* NULL past the end, or when unknown. */
const struct kvc_preset *kvc_preset_at(size_t i);
const struct kvc_preset *kvc_preset_find(const char *name, size_t length);

#endif
