/* profile_learn_basis.h: the basis of K or V of a layer, from what was counted of its rows. Not for
 * counting (profile_learn.c) or for writing (profile_learn_write.c). */
#ifndef KVC_PROFILE_LEARN_BASIS_H
#define KVC_PROFILE_LEARN_BASIS_H

#include "formats/model/profile_learn_state.h"

/* The quantisation step of K over that of V, in the metrics of profile_learn_basis.c: measured on
 * SmolLM2 and Gemma 3. */
#define KVC_LEARN_K_STEP 0.18
/* The same in the metric of gradients: kvc-profile make. */
#define KVC_LEARN_GRADIENT_STEP 1.4
/* The same where both are errors of the output of attention (profile_learn_attention.c). */
#define KVC_LEARN_OUTPUT_STEP 0.8

/* The tensors of K or V of a layer, as kvc-profile(5) has them. */
struct kvc_learnt_basis {
    float *mean, *scale, *variance, *weight;
    int8_t *basis;
};

/* Computes the basis of K, or of V where is_v. On failure *b is still to be freed. */
int kvc_learn_basis(struct kvc_learnt_basis *b, const struct kvc_learnt_layer *l, int is_v,
                    struct kvc_error *e);
void kvc_learnt_basis_free(struct kvc_learnt_basis *b);

/* Rounds n values to multiples of a scale, -127 to 127 of them. Returns the scale. */
float kvc_learn_round(const float *values, size_t n, int8_t *code);

#endif
