/* rope.h: rotary position embedding as decoding defines it (spec: derope.md, 3): exact on every machine, as nothing but
 * IEEE additions and products make its tables. Not for where angles come from. */
#ifndef KVC_ROPE_H
#define KVC_ROPE_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

/* Which channels of a head RoPE turns together: i and i + half (halves), or 2i and 2i + 1 (interleaved). The numbers stand in
 * .kvc files. Stages take UNKNOWN and NONE alike: such K is not turned. */
enum kvc_pairing { KVC_PAIRING_UNKNOWN = 0, KVC_PAIRING_HALVES = 1, KVC_PAIRING_INTERLEAVED = 2, KVC_PAIRING_NONE = 3 };

/* 1 where K is turned in pairs that are known. */
static inline int kvc_pairing_turns(enum kvc_pairing p) {
    return p == KVC_PAIRING_HALVES || p == KVC_PAIRING_INTERLEAVED;
}
/* The first and the second channel of pair i of `half` pairs. */
static inline size_t kvc_pair_first(enum kvc_pairing p, size_t i) {
    return p == KVC_PAIRING_INTERLEAVED ? 2 * i : i;
}
static inline size_t kvc_pair_second(enum kvc_pairing p, size_t i, size_t half) {
    return p == KVC_PAIRING_INTERLEAVED ? 2 * i + 1 : i + half;
}

/* How K was turned, for encoders. */
struct kvc_rope_facts {
    enum kvc_pairing pairing;
    size_t half;         /* pairs of a head */
    const double *angle; /* of each, radians a position, 0 to 1; NULL: unknown */
    int of_profile;      /* the angles are those of the profile at hand */
};

struct kvc_rope {
    enum kvc_pairing pairing; /* halves or interleaved */
    size_t half;
    double *low, *middle; /* of 0 to 15 positions, and of 16 times as many: [16][cosines, sines] */
    double *step;         /* of 256 positions */
    double *high, *both;  /* of the multiples of 256 and of 16 that were asked for last */
    int64_t high_of, both_of;
    float *cosine, *sine; /* of the position that was asked for last: what kvc_rope_turn() uses */
};

/* Angles out of bytes or memory are the caller's to check: kvc_rope_angle_is_sane(). */
int kvc_rope_init(struct kvc_rope *r, const double *angle, size_t half, enum kvc_pairing pairing, struct kvc_error *e);
void kvc_rope_free(struct kvc_rope *r);
int kvc_rope_angle_is_sane(double angle);
#define KVC_ROPE_POSITIONS (INT64_C(1) << 32) /* beyond these the tables lose precision: not for them */

/* Makes cosine and sine of a position, which is not below 0. Cheapest for ascending positions. */
void kvc_rope_at(struct kvc_rope *r, int64_t position);
/* Turns the first channels of `heads` heads of `dim` channels by that position; backwards: by as much the other way. */
void kvc_rope_turn(struct kvc_rope *r, float *row, size_t heads, size_t dim);
void kvc_rope_backwards(struct kvc_rope *r);

#endif
