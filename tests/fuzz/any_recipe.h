/* any_recipe.h: recipes out of bytes, of any stages that the registry has, so that a new stage is
 * fuzzed by its row in codecs/stages.def alone. Not for the recipes that targets list. */
#ifndef ANY_RECIPE_H
#define ANY_RECIPE_H

#include "tests/fuzz/fuzz.h"

#include "codecs/recipe.h"
#include "codecs/registry.h"

#include <math.h>

/* Returns byte `i` of bytes that go on with zeros. */
static inline uint8_t any_byte(const uint8_t *data, size_t size, size_t i) {
    return i < size ? data[i] : 0;
}

/* Gives argument `i` a value within its bounds: its fallback, where it has one, of 0. */
static inline void any_argument(const struct kvc_arg *arg, uint8_t byte,
                                struct kvc_stage_args *args, size_t i) {
    const uint64_t span = (uint64_t)arg->max - (uint64_t)arg->min;
    char text[32];
    int64_t words = 0;
    args->i[i] = arg->fallback;
    args->f[i] = arg->otherwise;
    if (!byte && !arg->required) return;
    switch (arg->kind) {
    case KVC_ARG_INTEGER: /* of a wide range small ones, and halves of it */
        args->i[i] = span < 256
                         ? arg->min + (int64_t)(byte % (span + 1))
                         : arg->min + (int64_t)(byte & 1 ? span >> byte / 2 % 64 : byte / 2u);
        break;
    case KVC_ARG_REAL: /* mostly small, of digits that a recipe may have */
        snprintf(text, sizeof text, "%.3g",
                 arg->least + (arg->most - arg->least) * pow(byte / 255.0, 3));
        args->f[i] = strtod(text, NULL);
        break;
    case KVC_ARG_WORD:
        while (arg->words[words]) words++;
        args->i[i] = byte % words;
        break;
    case KVC_ARG_FLAG: args->i[i] = byte & 1; break;
    }
}

/* Adds a stage with arguments by the bytes from *at on, and moves *at past them. */
static inline void any_stage(struct kvc_recipe *recipe, const struct kvc_stage *stage,
                             const uint8_t *data, size_t size, size_t *at) {
    struct kvc_item *item = &recipe->item[recipe->n++];
    *item = (struct kvc_item){.stage = stage};
    for (size_t i = 0; i < stage->n_args; i++)
        any_argument(&stage->args[i], any_byte(data, size, (*at)++), &item->args, i);
}

/* Reads the recipe's own text into `recipe`: as a user would give it. Returns -1 where its stages
 * refuse their arguments or one another. */
static inline int any_recipe_parse(struct kvc_recipe *recipe, struct kvc_error *e) {
    char text[KVC_MAX_RECIPE_TEXT];
    if (kvc_recipe_print(recipe, text, sizeof text)) fuzz_die("a recipe cannot be printed", NULL);
    return kvc_recipe_parse(text, recipe, e);
}

#endif
