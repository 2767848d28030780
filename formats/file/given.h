/* given.h: opens what a caller gives beside a cache: the model's weights, a profile. Says of a
 * wrong file what it is. Not for caches (open.h). */
#ifndef KVC_GIVEN_H
#define KVC_GIVEN_H

#include "formats/model/model.h"
#include "formats/model/profile.h"
#include "formats/model/queries.h"
#include "formats/model/weights.h"

/* Open weights for their facts (kvc_model_read) or their values (kvc_weights_open), and a profile
 * (kvc_profile_open). A file without a matrix of attention is refused as weights. If the file is
 * known to be something else, the message says what it is, and the error what it would serve for.
 * Messages name `path`. */
int kvc_given_model(const char *path, int full, struct kvc_model *m, struct kvc_error *e);
struct kvc_weights *kvc_given_weights(const char *path, struct kvc_error *e);
struct kvc_profile *kvc_given_profile(const char *path, struct kvc_error *e);

/* Refuses a path that is to be searched as a profile, if the file is known to be something else. A
 * missing file is none. */
int kvc_given_profile_check(const char *path, struct kvc_error *e);
/* Estimates the queries of a cache (queries.h) with open weights or, where these are NULL, those at
 * a path. NULL and *e where there are neither, too (KVC_NEED_QUERIES). */
struct kvc_cache *kvc_given_queries(const struct kvc_cache *c, const struct kvc_weights *weights,
                                    const char *path, unsigned threads, struct kvc_error *e);
/* Says of a file that could not be read as weights what it is, if that is known. Returns -1. */
int kvc_given_no_weights(const char *path, struct kvc_error *e);

#endif
