/* floats.h: matrices of a tensor's dtype as binary32 and back, and arrays of binary16 with a common
 * exponent, in which scales, factors and norms are stored (spec: floats.md). Not for block dtypes.
 */
#ifndef KVC_FLOATS_H
#define KVC_FLOATS_H

#include "codecs/dtype.h"
#include "codecs/sections.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* Returns 1 for f32, f16, bf16. */
int kvc_is_float(enum kvc_dtype dtype);
/* Convert n values to binary32, exactly, and back, rounded to nearest even; values beyond the range
 * of f16 become its maximum, and in all three a NaN the quiet one, 7e00, 7fc0, 7fc00000. dst may be
 * src only for f32. */
void kvc_to_floats(float *dst, const uint8_t *src, size_t n, enum kvc_dtype dtype);
void kvc_from_floats(uint8_t *dst, const float *src, size_t n, enum kvc_dtype dtype);

/* Returns 1 for a value that is finite and below 2^50 in size: ranges, squares and their sums stay
 * far from overflow. `finite` takes others out, so what encoders measure of a source has to leave
 * them out as well. */
static inline int kvc_is_tame(float x) {
    return fabsf(x) < 0x1p50f; /* false for NaN */
}

/* Returns 1 when all n values are tame. */
int kvc_all_finite(const float *x, size_t n);

/* Bytes of n stored halves at most. */
#define KVC_HALVES_BOUND(n) (9 + 2 * ((size_t)(n) + 32))
/* Writes n finite values below 2^126 in size, replaces each by the value that reading gives, and
 * moves *bytes past them. */
int kvc_halves_write(uint8_t **bytes, float *values, size_t n, struct kvc_error *e);
/* Replaces each value as kvc_halves_write() does, and writes nothing. */
int kvc_halves_round(float *values, size_t n, struct kvc_error *e);
/* Stored halves: lower bytes packed in 8 - zeros bits, codes of upper bytes in `width` bits,
 * escapes. */
struct kvc_halves {
    const uint8_t *lower, *codes, *escapes;
    size_t n_escapes;
    unsigned zeros, width, base;
    int rotated;
    float scale; /* of all numbers */
};
/* Opens n halves at *bytes, and moves *bytes past them. Refuses headers out of range and halves
 * that go beyond `end`. */
int kvc_halves_open(struct kvc_halves *h, const uint8_t **bytes, const uint8_t *end, size_t n,
                    struct kvc_error *e);
/* Reads n values at *bytes, and moves *bytes past them. Refuses what kvc_halves_open() refuses, and
 * halves that are not finite. */
int kvc_halves_read(float *values, const uint8_t **bytes, const uint8_t *end, size_t n,
                    struct kvc_error *e);
/* Add values as a section of stored halves, and read a section that has n of them and nothing else.
 */
int kvc_halves_add(struct kvc_sections *out, unsigned type, uint8_t stage, float *values, size_t n,
                   struct kvc_error *e);
int kvc_halves_take(float *values, const struct kvc_section *s, size_t n, struct kvc_error *e);

#endif
