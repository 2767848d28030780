/* profile_step.h: the KL divergence that a quantisation step costs, by the metric of a profile.
 * Figures: kvc-profile(5). Not for finding the step of a file (formats/file/rate.h). */
#ifndef KVC_PROFILE_STEP_H
#define KVC_PROFILE_STEP_H

#include "formats/model/profile.h"

/* Tokens that a profile is made of at least: with more, attention to each of them is weaker. */
#define KVC_PROFILE_CONTEXT 2048.0
/* The KLD of the default step. */
#define KVC_PROFILE_KLD 0.01

/* Return estimates, in nats a token, for coefficients of KVC_PROFILE_CONTEXT tokens at a step of 1;
 * the KLD grows with the step's square. kvc_profile_drift(): in the text that follows a cache;
 * kvc_profile_drift_worst(): in that or in a text that repeats it, whichever is larger. 0: the
 * metric is not one of gradients, and says nothing of a KLD. */
double kvc_profile_drift(const struct kvc_profile *p, double coefficients);
double kvc_profile_drift_worst(const struct kvc_profile *p, double coefficients);
/* Returns the step for a KLD. Without gradients in the metric the step is relative to spreads. `p`
 * may be NULL: no profile. */
double kvc_profile_step(const struct kvc_profile *p, double coefficients, double kld);

#endif
