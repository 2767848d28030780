/* profile_choose.c: chooses the profile of a cache's model among those in the folders of profiles.
 * Not for the measure of a fit (profile_fit.c). */
#include "formats/model/profile_choose.h"

#include "formats/cache/view.h"
#include "formats/io/input.h"
#include "formats/io/safetensors_file.h"
#include "formats/model/predictor.h"
#include "formats/model/profile_folders.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A profile that fits, and its rank: smaller is better. */
struct candidate {
    struct kvc_profile *profile;
    int other_weights; /* 0: cache and profile have the same fingerprint */
    unsigned metric;
    int no_predictors;
    double distance; /* of the fit's medians from 1, as a factor's logarithm */
};

struct choosing {
    const struct kvc_cache *cache;
    const struct kvc_recipe *recipe;
    int dequantize;
    unsigned threads;
    struct candidate best;
};

static int is_better(const struct candidate *a, const struct candidate *b) {
    if (!b->profile) return 1;
    if (a->other_weights != b->other_weights) return a->other_weights < b->other_weights;
    if (a->metric != b->metric) return a->metric < b->metric;
    if (a->no_predictors != b->no_predictors) return a->no_predictors < b->no_predictors;
    if (a->distance < b->distance || a->distance > b->distance) return a->distance < b->distance;
    /* the order of files in a folder decides nothing */
    return memcmp(kvc_profile_sha256(a->profile), kvc_profile_sha256(b->profile),
                  KVC_SHA256_BYTES) < 0;
}

/* Returns 1 if the header of a file, a small part of it, does not rule out that the file is a
 * profile of the cache's model. */
static int may_fit(const struct kvc_cache *c, const struct kvc_input *in) {
    struct kvc_safetensors header;
    const uint64_t layers = c->meta.facts.layers;
    if (kvc_safetensors_read_input(&header, in, KVC_SAFETENSORS_ANY_DTYPE, NULL)) return 0;
    const char *text = kvc_safetensors_text(&header, "model.layers");
    const int fits = kvc_safetensors_text(&header, "kvc.profile") && text &&
                     (!layers || strtoull(text, NULL, 10) == layers) &&
                     kvc_profile_compare_weights(&header, c, NULL) != KVC_WEIGHTS_OTHER;
    kvc_safetensors_free(&header);
    return fits;
}

/* The fit is measured on a copy of the cache's facts, which gets those of the profile. */
enum kvc_fit_verdict kvc_profile_verdict(struct kvc_profile *p, const struct kvc_cache *c,
                                         int dequantize, unsigned threads, struct kvc_fit *fit) {
    struct kvc_cache own, *view = NULL;
    struct kvc_error e;
    int status = kvc_cache_own_facts(&own, c, &e) || kvc_profile_adopt(p, &own, &e);
    if (!status && dequantize && kvc_cache_is_quantized(&own))
        status = !(view = kvc_view_dequantize(&own, &e));
    if (!status) status = kvc_profile_settle(p, view ? view : &own, threads, 0, fit, &e);
    kvc_cache_free(view);
    kvc_cache_disown(&own);
    return status ? KVC_FIT_BAD : fit->verdict;
}

static double distance_of(const struct kvc_fit *fit) {
    double most = 0;
    for (int r = 0; r < 2; r++)
        if (fit->ratio[r] > 0) most = fmax(most, fabs(log(fit->ratio[r])));
    return most;
}

/* Takes a profile that fits and is better than the best so far. */
static int consider(void *state, const char *path) {
    struct choosing *x = state;
    struct kvc_fit fit = {.n = 0};
    struct kvc_input in;
    if (kvc_profile_open_input(&in, path, NULL)) return 0;
    const int open = in.size <= KVC_PROFILE_BYTES && may_fit(x->cache, &in);
    kvc_input_close(&in);
    struct candidate own = {.profile = open ? kvc_profile_open(path, NULL) : NULL};
    if (!own.profile) return 0;
    own.no_predictors = !kvc_profile_predicts(own.profile);
    if (kvc_recipe_profile_need(x->recipe, !own.no_predictors) &&
        kvc_profile_verdict(own.profile, x->cache, x->dequantize, x->threads, &fit) ==
            KVC_FIT_GOOD) {
        own.other_weights = kvc_profile_weights(own.profile, x->cache) != KVC_WEIGHTS_SAME;
        own.metric = kvc_profile_metric(own.profile);
        own.distance = distance_of(&fit);
        if (is_better(&own, &x->best)) {
            kvc_profile_free(x->best.profile);
            x->best = own;
            own.profile = NULL;
        }
    }
    kvc_fit_free(&fit);
    kvc_profile_free(own.profile);
    return 0;
}

static int consider_folder(void *state, const char *folder, const char *shown) {
    (void)shown;
    return kvc_profile_files(folder, consider, state);
}

struct kvc_profile *kvc_profile_choose(const struct kvc_cache *c, const struct kvc_recipe *recipe,
                                       int dequantize, unsigned threads) {
    const struct kvc_profile_places places = {.folders = NULL};
    struct choosing x = {.cache = c,
                         .recipe = recipe,
                         .dequantize = dequantize,
                         .threads = threads};
    kvc_profile_folders(&places, consider_folder, &x);
    return x.best.profile;
}
