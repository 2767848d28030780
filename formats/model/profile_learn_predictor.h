/* profile_learn_predictor.h: the predictors of a learnt profile. Only for the files profile_learn*.c. */
#ifndef KVC_PROFILE_LEARN_PREDICTOR_H
#define KVC_PROFILE_LEARN_PREDICTOR_H

#include "formats/model/profile_learn_state.h"

/* K or V of a layer: what makes inputs of it, and its own predictor. */
struct kvc_learnt_predictor {
    size_t width, inputs;
    float *gain;    /* [width] */
    int8_t *weight; /* [width][inputs], inputs in the order of predictor.h; NULL: the layer is not predicted */
    float *scale;   /* [width] */
};

/* Makes the predictor of K (is_v 0) or V. Memory: the relation of the layer once more. *to must be freed in any case. */
int kvc_learn_predictor(const struct kvc_learner *l, uint32_t layer, int is_v, struct kvc_learnt_predictor *to,
                        struct kvc_error *e);
void kvc_learnt_predictor_free(struct kvc_learnt_predictor *p);

#endif
