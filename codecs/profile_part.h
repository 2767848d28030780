/* profile_part.h: what a profile knows of one layer's K or V, as stages see it. Not for profile files (formats/model/profile.h). */
#ifndef KVC_PROFILE_H
#define KVC_PROFILE_H

#include <stddef.h>
#include <stdint.h>

/* Channels are in the cache's own order. All of it lives as long as the profile. */
struct kvc_profile_part {
    size_t heads, dim;
    const float *mean;  /* [head][channel] */
    const float *basis; /* coefficients to channels: [head][component][channel] */
    const int8_t *code; /* the same before they are multiplied with the scale of their row */
    const float *scale; /* [head][component] */
    size_t half;         /* of K: pairs that RoPE turns, and the angle of each, radians a position; NULL: it turns none */
    const double *angle;
    /* encoders only */
    const float *inverse; /* [head][channel][component] */
    const float *variance; /* [head][component]: mean square of the coefficients in the caches it was made from; NULL: unknown */
    const float *query;   /* before RoPE: [query][query head][channel of K], n_queries of them; both of K and V */
    size_t query_heads, n_queries;
};

#endif
