/* predictor.h: predicts K, before RoPE, or V of a layer from K and V of the layers before it at the
 * same token, by matrices of a profile. Spec: codecs/stages/cross/cross.md, "Prediction". Not for
 * the layout of profiles (profile.h), for learning matrices (profile_learn_loop.c) or for finding
 * rows to predict from (predict_source.h). */
#ifndef KVC_PREDICTOR_H
#define KVC_PREDICTOR_H

#include "formats/cache/cache.h"
#include "formats/model/predictor_part.h"

struct kvc_predictor_slot;
struct kvc_profile;

/* Returns 1 where a profile predicts anything. */
int kvc_profile_predicts(const struct kvc_profile *p);
/* Sets *predictor to that of K or V of a layer, the channels of K in `pairing`; NULL where the
 * profile has none. It lives as long as the profile. */
int kvc_profile_predictor(struct kvc_profile *p, uint32_t layer, enum kvc_role role,
                          enum kvc_pairing pairing, const struct kvc_predictor **predictor,
                          struct kvc_error *e);
/* Sets *small likewise; NULL where the profile has no gains for the part. */
int kvc_profile_small(struct kvc_profile *p, uint32_t layer, enum kvc_role role,
                      enum kvc_pairing pairing, const struct kvc_small **small,
                      struct kvc_error *e);

/* Checks the tensors of a layer's predictors: shapes and numbers. Called when a profile is opened.
 */
int kvc_predictor_check(const struct kvc_profile *p, uint32_t layer, int is_v, struct kvc_error *e);
/* Frees what kvc_profile_predictor() and kvc_profile_small() prepared. */
void kvc_predictor_slot_free(struct kvc_predictor_slot *s);

/* Makes inputs of a row. */
void kvc_small_row(const struct kvc_small *s, int8_t *to, const float *row);
/* Predicts rows: dst[rows][outputs] of x[rows][inputs]. */
void kvc_predict_rows(const struct kvc_predictor *p, float *dst, const int8_t *x, size_t rows);

#endif
