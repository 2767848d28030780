/* rope.h: rotary position embedding as decoding defines it (spec: derope.md, 3). Results are the
 * same on every machine: only IEEE additions and products make the tables. Not for finding the
 * angles. */
#ifndef KVC_ROPE_H
#define KVC_ROPE_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

/* Channels of a head that RoPE rotates together: i and i + half (halves), or 2i and 2i + 1
 * (interleaved). The numbers are stored in .kvc files. Stages do not rotate K of UNKNOWN and of
 * NONE. */
enum kvc_pairing {
    KVC_PAIRING_UNKNOWN = 0,
    KVC_PAIRING_HALVES = 1,
    KVC_PAIRING_INTERLEAVED = 2,
    KVC_PAIRING_NONE = 3
};

/* Returns 1 when K is rotated in known pairs. */
static inline int kvc_pairing_turns(enum kvc_pairing p) {
    return p == KVC_PAIRING_HALVES || p == KVC_PAIRING_INTERLEAVED;
}
/* Return the first and the second channel of pair i of `half` pairs. */
static inline size_t kvc_pair_first(enum kvc_pairing p, size_t i) {
    return p == KVC_PAIRING_INTERLEAVED ? 2 * i : i;
}
static inline size_t kvc_pair_second(enum kvc_pairing p, size_t i, size_t half) {
    return p == KVC_PAIRING_INTERLEAVED ? 2 * i + 1 : i + half;
}

/* How the angles of a position were made. */
enum kvc_rope_type {
    KVC_ROPE_TYPE_UNKNOWN,
    KVC_ROPE_TYPE_DEFAULT,
    KVC_ROPE_TYPE_LINEAR, /* as the default, of positions divided by a factor */
    KVC_ROPE_TYPE_YARN,
    KVC_ROPE_TYPE_LLAMA3,
    KVC_ROPE_TYPE_LONGROPE,
    /* as the default, of positions with several coordinates, which are equal in text */
    KVC_ROPE_TYPE_MROPE,
    KVC_ROPE_TYPE_IMROPE, /* the same; the coordinates take turns among the pairs */
    KVC_ROPE_TYPE_OTHER
};
const char *kvc_rope_type_name(enum kvc_rope_type type);
/* Returns UNKNOWN for the empty text, OTHER for a name that kvc does not know. */
enum kvc_rope_type kvc_rope_type_parse(const char *name);

/* How K was rotated: as the metadata of its cache tell, and for encoders with the angles of one
 * layer. A zeroed struct knows nothing. */
struct kvc_rope_facts {
    enum kvc_pairing pairing;
    int assumed; /* 1: the pairing is a habit of the source format, not recorded */
    int before;  /* 1: K is stored before RoPE */
    enum kvc_rope_type type;
    double theta;  /* base of the angles; 0: unknown */
    double factor; /* scaling; 0: none, or unknown */
    uint64_t dim;  /* rotated channels of a head */
    int dim_known; /* 0: `dim` is 0 and means nothing */
    /* positions that the model was trained with before scaling; 0: unknown */
    uint64_t original;
    const char *scaling; /* JSON: other numbers of the scaling; NULL: there are none */
    /* Of a layer: */
    size_t half;         /* pairs of a head */
    const double *angle; /* of each, radians a position, 0 to 1; NULL: unknown */
    double length;       /* rotated channels are so much longer (YaRN); 0: unknown, as `angle` */
    int of_profile;      /* 1: the angles are the profile's */
};

/* Returns the rotated channels of a head of `dim` channels: all of them where the number is
 * unknown. */
static inline uint64_t kvc_rope_channels(const struct kvc_rope_facts *rope, uint64_t dim) {
    return rope->dim_known ? rope->dim : dim;
}
/* Returns the pairs in which stored rows of K are rotated. UNKNOWN: rows are not rotated, or not
 * known to be. */
static inline enum kvc_pairing kvc_rope_stored(const struct kvc_rope_facts *rope) {
    return kvc_pairing_turns(rope->pairing) && !rope->before ? rope->pairing : KVC_PAIRING_UNKNOWN;
}

struct kvc_rope {
    enum kvc_pairing pairing; /* halves or interleaved */
    size_t half;
    /* rotations by 0 to 15 positions, and by 16 times as many: [16][cosines, sines] */
    double *low, *middle;
    double *step;        /* rotation by 256 positions */
    double *high, *both; /* rotations by the last multiples of 256 and of 16 */
    int64_t high_of, both_of;
    float *cosine, *sine; /* of the last position: kvc_rope_turn() uses them */
};

/* The caller must have checked the angles by kvc_rope_angle_is_sane(). */
int kvc_rope_init(struct kvc_rope *r, const double *angle, size_t half, enum kvc_pairing pairing,
                  struct kvc_error *e);
void kvc_rope_free(struct kvc_rope *r);
int kvc_rope_angle_is_sane(double angle);
#define KVC_ROPE_POSITIONS (INT64_C(1) << 32) /* at larger positions the tables lose precision */

/* Sets cosine and sine of a position, which must not be negative. Ascending positions are fastest.
 */
void kvc_rope_at(struct kvc_rope *r, int64_t position);
/* Rotates the first channels of `heads` heads of `dim` channels by that position; after
 * kvc_rope_backwards(), by its negative. */
void kvc_rope_turn(struct kvc_rope *r, float *row, size_t heads, size_t dim);
void kvc_rope_backwards(struct kvc_rope *r);

#endif
