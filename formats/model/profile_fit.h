/* profile_fit.h: whether a profile fits a cache, by the metadata and by the values of the cache.
 * Not for reading profiles (profile.h). */
#ifndef KVC_PROFILE_FIT_H
#define KVC_PROFILE_FIT_H

#include "codecs/recipe.h"
#include "formats/io/safetensors_file.h"
#include "formats/model/profile.h"

enum kvc_fit_verdict {
    KVC_FIT_UNKNOWN, /* the profile has no variances, or the cache no rows to measure */
    KVC_FIT_GOOD,
    /* coefficients are larger or smaller than those of texts: quality cannot be predicted */
    KVC_FIT_DOUBTFUL,
    KVC_FIT_BAD /* the profile is another model's, or the cache is read in a wrong way */
};

/* The mean square of a cache's coefficients over their variance in the profile, of K and of V. 1:
 * they are equal; 0: not measured. */
struct kvc_fit_layer {
    uint32_t layer;  /* of the model */
    double ratio[2]; /* median over the layer's coefficients */
};
struct kvc_fit {
    enum kvc_fit_verdict verdict;
    double ratio[2]; /* median over layers */
    uint32_t n;
    struct kvc_fit_layer *layer; /* n of them, of the live cache; kvc_fit_free() frees them */
};
void kvc_fit_free(struct kvc_fit *fit);
/* "good", "doubtful", "bad", "unknown". */
const char *kvc_fit_name(enum kvc_fit_verdict verdict);

/* Whether cache and profile are of the same weights, by the fingerprints of one type that both
 * have. */
enum kvc_profile_weights { KVC_WEIGHTS_UNKNOWN, KVC_WEIGHTS_SAME, KVC_WEIGHTS_OTHER };
enum kvc_profile_weights kvc_profile_weights(const struct kvc_profile *p,
                                             const struct kvc_cache *c);
/* Does the same by the header of a profile's file. *differs (may be NULL) gets the key of a
 * fingerprint that differs. */
enum kvc_profile_weights kvc_profile_compare_weights(const struct kvc_safetensors *header,
                                                     const struct kvc_cache *c,
                                                     const char **differs);

/* Compares the facts of cache and profile: layers, heads, channels, angles and pairing of RoPE, and
 * fingerprints of one type that both have. Returns 0 when the cache can be of the profile's model.
 * KVC_ERR_OTHER_MODEL: a fact differs. KVC_ERR_UNSUPPORTED: the pairing of K is unknown. */
int kvc_profile_fits(const struct kvc_profile *p, const struct kvc_cache *c, struct kvc_error *e);

/* Measures the fit on some rows of each layer, K paired as `pairing`, with `threads` threads (0:
 * one per core). */
int kvc_fit_measure(struct kvc_fit *fit, struct kvc_profile *p, const struct kvc_cache *c,
                    enum kvc_pairing pairing, unsigned threads, struct kvc_error *e);

/* Gives a cache the facts that it lacks and the profile has: the number of heads, the layer numbers
 * of llama.cpp's two caches, windows. For caches as they were imported, before views of them are
 * made. Messages begin with "profile:". */
int kvc_profile_adopt(const struct kvc_profile *p, struct kvc_cache *c, struct kvc_error *e);

/* Prepares a cache, or a view of an adopted one, for packing with a profile. Where the cache does
 * not tell the pairing of K, chooses the pairing that fits and notes it in the metadata. Then
 * compares facts and numbers, and fills *fit. A misfit is refused (KVC_ERR_OTHER_MODEL) unless
 * `force`.
 */
int kvc_profile_settle(struct kvc_profile *p, struct kvc_cache *c, unsigned threads, int force,
                       struct kvc_fit *fit, struct kvc_error *e);

/* How a profile is used for packing. */
struct kvc_profile_use {
    const struct kvc_recipe *recipe; /* NULL: the default */
    unsigned threads;                /* 0: one per core */
    int force;                       /* take a profile that does not fit */
};
/* Settles the profile where a stage of the recipe takes a profile. Returns 1 then, 0 where no stage
 * does and *fit stays empty, -1 when the profile is refused; messages begin with "profile:". */
int kvc_profile_prepare(struct kvc_profile *p, struct kvc_cache *c,
                        const struct kvc_profile_use *use, struct kvc_fit *fit,
                        struct kvc_error *e);

#endif
