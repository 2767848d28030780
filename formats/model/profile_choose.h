/* profile_choose.h: the profile of a cache's model among those in the folders of profiles. Not for
 * finding a profile by its hash (profile.h). */
#ifndef KVC_PROFILE_CHOOSE_H
#define KVC_PROFILE_CHOOSE_H

#include "formats/model/profile_fit.h"

/* Returns the best profile that the recipe takes, whose facts are those of the cache and whose fit
 * is measured as good: first one of the same fingerprint of weights, then by metric (fisher, query,
 * covariance), one that predicts, then by the fit. NULL: there is none. Profiles that cannot be
 * read or do not fit are left out, without an error. `dequantize`: K and V of block types are
 * compared as f16. `threads` (0: one per core) measure. */
struct kvc_profile *kvc_profile_choose(const struct kvc_cache *c, const struct kvc_recipe *recipe,
                                       int dequantize, unsigned threads);

/* Returns how a profile fits a cache, by facts and by values: KVC_FIT_BAD also where facts differ.
 * Fills *fit, which the caller frees. The cache stays as it is. */
enum kvc_fit_verdict kvc_profile_verdict(struct kvc_profile *p, const struct kvc_cache *c,
                                         int dequantize, unsigned threads, struct kvc_fit *fit);

#endif
