/* profile.h: profile files (*.kvcp): what one model's caches have in common. Layout: kvc-profile(5). Not for what stages do
 * with it (codecs/profile.h), nor for making one (learn.h). */
#ifndef KVC_FORMATS_PROFILE_H
#define KVC_FORMATS_PROFILE_H

#include "codecs/profile.h"
#include "formats/cache.h"
#include "formats/format.h"
#include "formats/hash.h"

#define KVC_PROFILE_SUFFIX ".kvcp"

/* What a step of 1 means: an error in the model's own metric (Fisher), or what caches alone tell. */
enum kvc_profile_metric { KVC_METRIC_FISHER, KVC_METRIC_QUERY, KVC_METRIC_COVARIANCE };

struct kvc_profile; /* may be used by several threads */

/* Opens a file and checks all of it: refuses what is cut short, malformed, not finite, or of another layout version.
 * Messages name `path`. */
struct kvc_profile *kvc_profile_open(const char *path, struct kvc_error *e);
/* The same over bytes, which are copied. */
struct kvc_profile *kvc_profile_open_memory(const uint8_t *data, size_t size, struct kvc_error *e);
void kvc_profile_free(struct kvc_profile *p);

const uint8_t *kvc_profile_bytes(const struct kvc_profile *p, size_t *size);
const uint8_t *kvc_profile_sha256(const struct kvc_profile *p);
const char *kvc_profile_model(const struct kvc_profile *p); /* "" when the file does not say */
enum kvc_profile_metric kvc_profile_metric(const struct kvc_profile *p);
uint32_t kvc_profile_layers(const struct kvc_profile *p);

/* Looks for the profile of this hash: `given` (a path, or NULL), then *.kvcp in `folder` (or NULL: none) and in the folders
 * of $KVC_PROFILE_PATH, separated by colons. NULL with a message that names hash and model when it is nowhere. */
struct kvc_profile *kvc_profile_find(const uint8_t sha256[KVC_SHA256_BYTES], const char *model, const char *given,
                                     const char *folder, struct kvc_error *e);

/* 0 when a cache can be of the profile's model: layers, heads, channels, and fingerprints where both have one of a kind.
 * KVC_ERR_MODEL and what differs otherwise; also where K's pairing is unknown. */
int kvc_profile_fits(const struct kvc_profile *p, const struct kvc_cache *c, struct kvc_error *e);

/* What it knows of K (role KVC_ROLE_K) or V of a layer of the model, K's channels in that pairing; with inverse and queries
 * for an encoder. *part is NULL where it knows nothing of that; it lives as long as the profile. */
int kvc_profile_part(struct kvc_profile *p, uint32_t layer, enum kvc_role role, enum kvc_pairing pairing, int encoder,
                     const struct kvc_profile_part **part, struct kvc_error *e);

#endif
