/* made.h: caches made up for the programs of this folder, of any size, and files packed of them.
 * Their values are normally distributed with another spread for each channel, and K is rotated by
 * RoPE, so stages behave as with real caches. Not for judging ratios or quality. */
#ifndef KVC_TEST_MADE_H
#define KVC_TEST_MADE_H

#include "formats/cache/cache.h"
#include "formats/model/profile.h"

struct made_shape {
    uint64_t tokens, layers, heads, dim_k, dim_v; /* dim_v 0: a latent, no V */
    enum kvc_dtype dtype;                         /* f32, f16 or bf16 */
    float mean;                                   /* of K's channels before RoPE, in deviations */
};

struct made {
    struct kvc_cache *cache;
    struct kvc_profile *profile; /* learned from a cache of the same kind, where asked for */
    uint8_t *values;
    uint64_t bytes; /* of the values */
};

/* made_free() also after a failure. */
int made_new(struct made *m, const struct made_shape *shape, int with_profile, struct kvc_error *e);
void made_free(struct made *m);

/* Writes a cache as a .kvc, the profile inside. `profile` may be NULL. */
int made_pack(const struct kvc_cache *cache, const char *recipe, struct kvc_profile *profile,
              const char *path, struct kvc_error *e);

#endif
