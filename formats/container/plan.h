/* plan.h: a recipe applied to one cache: the pipeline of each tensor, and the pairs of layers. Not
 * for running it (encode.h). */
#ifndef KVC_PLAN_H
#define KVC_PLAN_H

#include "codecs/recipe.h"
#include "formats/cache/cache.h"

struct kvc_plan {
    struct kvc_pipeline *pipeline; /* distinct ones */
    uint32_t n_pipelines;
    uint32_t *pipeline_of; /* by tensor */
    uint32_t *partner;     /* by tensor: the other tensor of its pair, or KVC_NONE */
    uint64_t tensor_bytes; /* of all tensors */
    int lossless;
};

/* Makes the plan. Tensors that a stage refuses get the default lossless stage. Fails if a stage of
 * the recipe applies to no tensor, with the reason of the first refusal. Call kvc_plan_free() also
 * after a failure. */
int kvc_plan_make(struct kvc_plan *plan, const struct kvc_cache *c, const struct kvc_recipe *recipe,
                  struct kvc_error *e);
void kvc_plan_free(struct kvc_plan *plan);

static inline const struct kvc_pipeline *kvc_plan_pipeline(const struct kvc_plan *plan,
                                                           uint32_t tensor) {
    return &plan->pipeline[plan->pipeline_of[tensor]];
}

/* Returns the tensor of hidden states from which a tensor with this pipeline is rebuilt, or
 * KVC_NONE: the states of the tensor's layer, or of the next layer that keeps its own. */
uint32_t kvc_plan_hidden(const struct kvc_cache *c, const struct kvc_pipeline *line,
                         uint32_t tensor);

/* Returns the selector bit of a tensor: K (also for a latent), V, or 0. */
unsigned kvc_plan_select(const struct kvc_tensor *t);

#endif
