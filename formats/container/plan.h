/* plan.h: what a recipe means for one cache: which pipeline codes which tensor, which layers pair. Not for running it
 * (encode.h). */
#ifndef KVC_PLAN_H
#define KVC_PLAN_H

#include "codecs/recipe.h"
#include "formats/cache/cache.h"

struct kvc_plan {
    struct kvc_pipeline *pipeline; /* distinct ones */
    uint32_t n_pipelines;
    uint32_t *pipeline_of; /* by tensor */
    uint32_t *partner;     /* by tensor: the other one of its pair, or KVC_NONE */
    uint64_t tensor_bytes; /* of all tensors */
    int lossless;
};

/* Tensors that a stage cannot take are left to the default lossless stage. Refuses a recipe of which a stage applies to no
 * tensor, with the reason of the first refusal. kvc_plan_free() also after a failure. */
int kvc_plan_make(struct kvc_plan *plan, const struct kvc_cache *c, const struct kvc_recipe *recipe, struct kvc_error *e);
void kvc_plan_free(struct kvc_plan *plan);

/* The tensor of hidden states that a tensor with this pipeline is rebuilt from, or KVC_NONE. */
uint32_t kvc_plan_hidden(const struct kvc_cache *c, const struct kvc_pipeline *line, uint32_t tensor);

/* The selector bits of a tensor: K, V, or 0 for what is neither. */
unsigned kvc_plan_select(const struct kvc_tensor *t);

#endif
