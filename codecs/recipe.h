/* recipe.h: the recipe language: which stages code which tensors. Not for the stages themselves.
 *
 *   recipe   = item *("," item)
 *   item     = stage *(":" arg) *("@" selector)
 *   arg      = value / key "=" value
 *   selector = "k" / "v" / "l" first ["-" last]        (layers by their index in the model)
 *
 * Selectors of one kind add up (@l0-3@l8), those of different kinds must all hold (@k@l0-3). */
#ifndef KVC_RECIPE_H
#define KVC_RECIPE_H

#include "codecs/stage.h"

#define KVC_MAX_STAGES 16
#define KVC_MAX_RANGES 16

enum kvc_select { KVC_SELECT_K = 1, KVC_SELECT_V = 2 };

struct kvc_item {
    const struct kvc_stage *stage;
    struct kvc_stage_args args;
    unsigned select; /* enum kvc_select bits; 0: all tensors */
    unsigned ranges; /* number of layer ranges; 0: all layers */
    struct { uint32_t first, last; } range[KVC_MAX_RANGES];
};

struct kvc_recipe {
    unsigned n;
    struct kvc_item item[KVC_MAX_STAGES];
};

/* What one tensor goes through: the stages that select it up to and including the first terminal one. */
struct kvc_pipeline {
    unsigned n;
    struct {
        const struct kvc_stage *stage;
        struct kvc_stage_args args;
        unsigned item; /* which item of the recipe it came from; its length for the default stage */
    } step[KVC_MAX_STAGES + 1];
};

/* Reads a recipe; refuses unknown stages, bad arguments and empty items by name. */
int kvc_recipe_parse(const char *text, struct kvc_recipe *recipe, struct kvc_error *e);
/* Canonical text; kvc_recipe_parse() of it gives the same recipe. -1 when `size` is too small. */
int kvc_recipe_print(const struct kvc_recipe *recipe, char *text, size_t size);

/* The pipeline of a tensor: `select` is KVC_SELECT_K or _V, or 0 for other roles, which only unselected
 * items take. When no terminal stage selects the tensor, the default lossless stage ends the pipeline. */
void kvc_recipe_pipeline(const struct kvc_recipe *recipe, unsigned select, uint32_t layer,
                         struct kvc_pipeline *pipeline);
/* "stage:args,stage:args" without selectors. */
int kvc_pipeline_print(const struct kvc_pipeline *pipeline, char *text, size_t size);
/* 1 when every stage is lossless. */
int kvc_pipeline_lossless(const struct kvc_pipeline *pipeline);

/* Runs a pipeline over one block. `block->rows` is scratch afterwards. */
int kvc_pipeline_encode(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                        struct kvc_sections *out, struct kvc_error *e);
/* Runs it backwards from the stage sections of one record; refuses sections that no stage claims. */
int kvc_pipeline_decode(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                        const struct kvc_section *sections, size_t n, struct kvc_error *e);

#endif
