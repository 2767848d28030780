/* profile_part.h: the part of a profile that describes one layer's K or V, for stages. Not for
 * profile files (formats/model/profile.h). */
#ifndef KVC_PROFILE_H
#define KVC_PROFILE_H

#include <stddef.h>
#include <stdint.h>

/* Channels are in the cache's order. All pointers are valid as long as the profile. */
struct kvc_profile_part {
    size_t heads, dim;
    const float *mean;   /* [head][channel] */
    const float *basis;  /* coefficients to channels: [head][component][channel] */
    const int8_t *code;  /* the same, before multiplication by the scale of their row */
    const float *scale;  /* [head][component] */
    size_t half;         /* of K: pairs that RoPE rotates */
    const double *angle; /* of each pair, radians a position; NULL: RoPE rotates none */
    /* The part for what the profile's predictor leaves of rows: means of 0, another basis, no
     * queries. NULL: there is none. */
    const struct kvc_profile_part *residual;
    /* encoders only */
    const float *inverse; /* [head][channel][component] */
    /* [head][component]: mean square of the coefficients in the learning caches; NULL: unknown */
    const float *variance;
    /* before RoPE: [query][query head][channel of K], n_queries of them; both of K and V */
    const float *query;
    size_t query_heads, n_queries;
};

#endif
