/* profile_learn_loop.h: predictors of a profile, and bases of what they leave. Only for the files
 * profile_learn*.c. */
#ifndef KVC_PROFILE_LEARN_LOOP_H
#define KVC_PROFILE_LEARN_LOOP_H

#include "formats/model/profile_learn_state.h"

/* K or V of a layer, channels paired as halves. */
struct kvc_learnt_predictor {
    size_t heads, dim, inputs;
    float *gain; /* [head][channel]: what makes inputs of it */
    /* [head][channel][inputs], inputs in the order of predictor.h; NULL: the layer is not predicted
     */
    int8_t *weight;
    float *scale;                  /* [head][channel] */
    int8_t *basis;                 /* [head][component][channel], of what the predictor leaves */
    float *basis_scale, *variance; /* [head][component] */
};

/* Makes the predictors of all layers from what l keeps of caches, in ascending order, K of a layer
 * before V, and hands them to put(). `base`: the profile with means and bases of the rows. Memory:
 * a few numbers for each value of the rows of one tensor, the inputs of l->back + 1 layers, and two
 * matrices of all inputs and outputs of a layer. */
int kvc_learn_loop(const struct kvc_learner *l, struct kvc_profile *base,
                   int (*put)(void *state, uint32_t layer, int is_v,
                              const struct kvc_learnt_predictor *p, struct kvc_error *e),
                   void *state, struct kvc_error *e);

#endif
