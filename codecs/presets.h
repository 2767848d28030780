/* presets.h: names of whole recipes, such as the papers'. Not for the grammar (recipe.h). */
#ifndef KVC_PRESETS_H
#define KVC_PRESETS_H

#include <stddef.h>

struct kvc_preset {
    const char *name;    /* as a recipe spells it */
    const char *recipe;  /* the recipe that it stands for */
    const char *summary; /* one line: the paper, the setting */
};

/* Return preset i, or a preset by its name of `length` bytes; NULL when there is none. */
const struct kvc_preset *kvc_preset_at(size_t i);
const struct kvc_preset *kvc_preset_find(const char *name, size_t length);

#endif
