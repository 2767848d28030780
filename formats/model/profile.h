/* profile.h: profile files (*.kvcp): what one model's caches have in common. Layout:
 * kvc-profile(5). Not for what stages do with it (codecs/profile_part.h), for making one
 * (profile_learn.h), or for comparing one with a cache (profile_fit.h). */
#ifndef KVC_PROFILE_FILE_H
#define KVC_PROFILE_FILE_H

#include "codecs/profile_part.h"
#include "formats/cache/cache.h"
#include "formats/cache/format.h"
#include "formats/io/hash.h"

#define KVC_PROFILE_SUFFIX ".kvcp"
/* tokens at the start, which no statistic counts: attention makes their rows unlike all others */
#define KVC_PROFILE_FIRST 4
#define KVC_PROFILE_BYTES (UINT64_C(1) << 32) /* the largest profile */

/* The metric of the quantisation step: of the model's gradients (Fisher), or of caches alone, with
 * queries or without. */
enum kvc_profile_metric { KVC_METRIC_FISHER, KVC_METRIC_QUERY, KVC_METRIC_COVARIANCE };

struct kvc_input;
struct kvc_profile; /* may be used by several threads */

/* Opens the bytes of a file, no more than a profile may have. */
int kvc_profile_open_input(struct kvc_input *in, const char *path, struct kvc_error *e);
/* Opens a file and checks all of it. Refuses a file that is cut short, malformed, not finite, or of
 * another layout version. Messages name `path`. */
struct kvc_profile *kvc_profile_open(const char *path, struct kvc_error *e);
/* The same over bytes, which are copied. */
struct kvc_profile *kvc_profile_open_memory(const uint8_t *data, size_t size, struct kvc_error *e);
/* Has the profile freed once more often before it goes. Returns it. */
struct kvc_profile *kvc_profile_hold(struct kvc_profile *p);
void kvc_profile_free(struct kvc_profile *p);

const uint8_t *kvc_profile_bytes(const struct kvc_profile *p, size_t *size);
const uint8_t *kvc_profile_sha256(const struct kvc_profile *p);
const char *kvc_profile_path(const struct kvc_profile *p);  /* "" when opened from bytes */
const char *kvc_profile_model(const struct kvc_profile *p); /* "" when the file does not say */
enum kvc_profile_metric kvc_profile_metric(const struct kvc_profile *p);
/* Returns the tokens of repeated text that are in the metric beside those of continuation. */
uint32_t kvc_profile_recall(const struct kvc_profile *p);
uint32_t kvc_profile_layers(const struct kvc_profile *p);

/* Where profiles are looked for, in this order. NULL: not there. */
struct kvc_profile_places {
    const char *given;  /* path of a profile */
    const char *folder; /* folder of *.kvcp: that of the file to be read */
    /* More of them, separated by colons; a "none" ends them. NULL: those where profiles stay to be
     * had: of $KVC_PROFILE_PATH, unless it ends in none also the user's,
     * $XDG_DATA_HOME/kvc/profiles
     * (~/.local/share), and share/kvc/profiles of the installation (profile_folders.h). */
    const char *folders;
    /* one that is open, and comes before all these; it is held, not opened again */
    struct kvc_profile *open;
};
/* Looks for the profile of this hash: first for a file that is called by it, HASH.kvcp. NULL with a
 * message that names hash, model and folders when it is nowhere. */
struct kvc_profile *kvc_profile_find(const uint8_t sha256[KVC_SHA256_BYTES], const char *model,
                                     const struct kvc_profile_places *places, struct kvc_error *e);

/* Returns a text of the metadata, kvc-profile(5); "" where there is none. The text lives as long as
 * the profile. */
const char *kvc_profile_text(const struct kvc_profile *p, const char *key);
/* Returns the radians by which one position rotates each pair of K in a layer; *half gets the
 * number of pairs. NULL where the layer has no RoPE. */
const double *kvc_profile_angles(const struct kvc_profile *p, uint32_t layer, size_t *half);
/* Returns 1 and the number of heads and of channels in a head of K or V where the profile knows
 * that part, 0 where not. */
int kvc_profile_shape(const struct kvc_profile *p, uint32_t layer, enum kvc_role role,
                      uint64_t *heads, uint64_t *dim, struct kvc_error *e);

/* Sets *part to what the profile has of K or V of a layer of the model, the channels of K in
 * `pairing`; for an encoder also with inverse and queries. *part is NULL where the profile has
 * nothing, and lives as long as the profile. */
int kvc_profile_part(struct kvc_profile *p, uint32_t layer, enum kvc_role role,
                     enum kvc_pairing pairing, int encoder, const struct kvc_profile_part **part,
                     struct kvc_error *e);

#endif
