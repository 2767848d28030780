/* recipe.h: the recipe language, which says which stages code which tensors. Not for the stages or
 * for running them (pipeline.h).
 *
 *   recipe   = item *("," item)
 *   item     = stage *(":" arg) *("@" selector) / preset      (presets.h: stands for its items)
 *   arg      = value / key "=" value
 *   selector = "k" / "v" / "l" first ["-" last]        (layers by their index in the model)
 *
 * Selectors of one kind add up (@l0-3@l8), those of different kinds must all hold (@k@l0-3). */
#ifndef KVC_RECIPE_H
#define KVC_RECIPE_H

#include "codecs/pipeline.h"

#define KVC_MAX_RANGES 16
#define KVC_MAX_RECIPE_TEXT 2048 /* bytes of a recipe's canonical text, with the NUL */
/* The lossless stage that ends a pipeline without a terminal stage; also the default recipe. */
#define KVC_DEFAULT_STAGE "split"
/* The same where a profile predicts. */
#define KVC_PREDICTING_STAGE "cross"

struct kvc_item {
    const struct kvc_stage *stage;
    struct kvc_stage_args args;
    unsigned select; /* enum kvc_select bits; 0: all tensors */
    unsigned ranges; /* number of layer ranges; 0: all layers */
    struct {
        uint32_t first, last;
    } range[KVC_MAX_RANGES];
};

struct kvc_recipe {
    unsigned n;
    struct kvc_item item[KVC_MAX_STAGES];
};

/* Reads a recipe. Refuses unknown stages, bad arguments and empty items by name. */
int kvc_recipe_parse(const char *text, struct kvc_recipe *recipe, struct kvc_error *e);
/* Prints the canonical text; parsing it gives the same recipe. Returns -1 when `size` is too small.
 */
int kvc_recipe_print(const struct kvc_recipe *recipe, char *text, size_t size);

/* Returns the recipe that stands for NULL wherever a recipe may be NULL: the default stage alone.
 */
const struct kvc_recipe *kvc_recipe_or_default(const struct kvc_recipe *recipe);
/* Returns what a recipe's stages need a profile for (enum kvc_profile_need bits), where the profile
 * does, or does not, predict. NULL: the default recipe. */
unsigned kvc_recipe_profile_need(const struct kvc_recipe *recipe, int predicts);
/* Returns 1 when a recipe has a stage with one of these flags (stage.h). NULL: the default. */
int kvc_recipe_has(const struct kvc_recipe *recipe, unsigned flags);
/* Returns 1 when some stage of a recipe is lossy. */
int kvc_recipe_is_lossy(const struct kvc_recipe *recipe);

/* Makes the pipeline of a tensor: the stages that select it, up to and including the first terminal
 * stage. `select` is KVC_SELECT_K or _V, or 0 for other roles, which only terminal, lossless and
 * unselected items take. `finite` is put before the first stage that needs it. Where no terminal
 * stage selects the tensor and the last residual may not be dropped, the default stage ends the
 * pipeline. */
void kvc_recipe_pipeline(const struct kvc_recipe *recipe, unsigned select, uint32_t layer,
                         struct kvc_pipeline *pipeline);
/* Removes a step from a pipeline, and `finite` where no other stage asks for it. */
void kvc_pipeline_remove(struct kvc_pipeline *pipeline, unsigned step);

#endif
