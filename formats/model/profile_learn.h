/* profile_learn.h: a profile from caches: means, covariances and queries, and with the model's
 * weights gradients.
 * Layout of what is written: kvc-profile(5). Not for reading profiles (profile.h). */
#ifndef KVC_PROFILE_LEARN_H
#define KVC_PROFILE_LEARN_H

#include "formats/cache/cache.h"
#include "formats/io/sink.h"
#include "formats/model/gradients.h"
#include "formats/model/profile.h"

struct kvc_learner;

struct kvc_learner *kvc_learner_new(struct kvc_error *e);
void kvc_learner_free(struct kvc_learner *l);
/* Says, before the first cache, that each layer is to be predicted from so many layers before it, 1
 * to 7 (predictor.h). With `base`, which must outlive the learner, the predictors are all that is
 * learnt: they are added to that profile. NULL: to what is learnt. */
void kvc_learner_predict(struct kvc_learner *l, unsigned back, struct kvc_profile *base);
/* Adds a cache: K and V in f32, f16 or bf16 of its live and sliding parts, and its queries; where
 * it has none, those of `estimated` (queries.h), which may be NULL. All caches must be of one
 * model: the same layers, heads and channels, and RoPE known of all or of none. */
int kvc_learner_add(struct kvc_learner *l, const struct kvc_cache *c,
                    const struct kvc_cache *estimated, struct kvc_error *e);
/* Compares a cache, before it is added, with what the weights make again of its tokens:
 * KVC_ERR_OTHER_MODEL where it is of another model. After another error nothing is known. Begins to
 * measure gradients if `measure` and too few caches were measured yet: sets *pass, to be ended or
 * freed (gradients.h), and else to NULL. stop(), which may be NULL, ends the work early by 1. */
int kvc_learner_look(struct kvc_learner *l, const struct kvc_cache *c, const struct kvc_weights *w,
                     unsigned threads, int (*stop)(void *state), void *state, int measure,
                     struct kvc_gradients_pass **pass, struct kvc_error *e);
/* Measures, after the cache was added, what the model's predictions say of errors in it. A profile
 * has the metric fisher if all layers were. On failure the learner stays as good as before. */
int kvc_learner_measure(struct kvc_learner *l, struct kvc_gradients_pass *pass,
                        struct kvc_error *e);
int kvc_learner_has_gradients(const struct kvc_learner *l);
/* Returns 1 when RoPE of K was known. */
int kvc_learner_knows_rope(const struct kvc_learner *l);
/* Returns 1 when every layer with K had queries. */
int kvc_learner_has_queries(const struct kvc_learner *l);
/* Writes the profile. */
int kvc_learner_write(struct kvc_learner *l, struct kvc_sink *out, struct kvc_error *e);

#endif
