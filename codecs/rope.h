/* rope.h: rotary position embedding as decoding defines it (spec: derope.md, 3): exact on every machine, as nothing but
 * IEEE additions and products make its tables. Not for where angles come from. */
#ifndef KVC_ROPE_H
#define KVC_ROPE_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

/* How K was turned, for encoders. */
struct kvc_rope_facts {
    unsigned pairing;    /* 0: K is not turned, 1 halves, 2 interleaved */
    size_t half;         /* pairs of a head */
    const double *angle; /* of each, radians a position, 0 to 1; NULL: unknown */
    int of_profile;      /* the angles are those of the profile at hand */
};

struct kvc_rope {
    unsigned pairing;
    size_t half;
    double *low, *middle; /* of 0 to 15 positions, and of 16 times as many: [16][cosines, sines] */
    double *step;         /* of 256 positions */
    double *high, *both;  /* of the multiples of 256 and of 16 that were asked for last */
    int64_t high_of, both_of;
    float *cosine, *sine; /* of the position that was asked for last: what kvc_rope_turn() uses */
};

/* Angles out of bytes or memory are the caller's to check: kvc_rope_angle_is_sane(). */
int kvc_rope_init(struct kvc_rope *r, const double *angle, size_t half, unsigned pairing, struct kvc_error *e);
void kvc_rope_free(struct kvc_rope *r);
int kvc_rope_angle_is_sane(double angle);
#define KVC_ROPE_POSITIONS (INT64_C(1) << 32) /* beyond these the tables lose precision: not for them */

/* Makes cosine and sine of a position, which is not below 0. Cheapest for ascending positions. */
void kvc_rope_at(struct kvc_rope *r, int64_t position);
/* Turns the first channels of `heads` heads of `dim` channels by that position; backwards: by as much the other way. */
void kvc_rope_turn(struct kvc_rope *r, float *row, size_t heads, size_t dim);
void kvc_rope_backwards(struct kvc_rope *r);

#endif
