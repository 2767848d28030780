/* floats.h: a matrix in a tensor's dtype as binary32 and back, and arrays of binary16 with a common exponent, which is how
 * scales, factors and norms are stored. Not for block dtypes. */
#ifndef KVC_FLOATS_H
#define KVC_FLOATS_H

#include "codecs/stage.h"

#include <stddef.h>
#include <stdint.h>

/* 1 for f32, f16, bf16. */
int kvc_is_float(enum kvc_dtype dtype);
/* n values to binary32, exact, and back, rounded to nearest even. dst may be src only for f32. */
void kvc_to_floats(float *dst, const uint8_t *src, size_t n, enum kvc_dtype dtype);
void kvc_from_floats(uint8_t *dst, const float *src, size_t n, enum kvc_dtype dtype);

/* Bytes of n halves: an exponent (i16), then n binary16, each times 2^exponent. */
#define KVC_HALVES_BYTES(n) (2 + 2 * (size_t)(n))
/* Writes n finite values below 2^126 in size and replaces each by what it reads back as. */
void kvc_halves_write(uint8_t *bytes, float *values, size_t n);
/* Refuses exponents outside -126 .. 112 and halves that are not finite. */
int kvc_halves_read(float *values, const uint8_t *bytes, size_t n, struct kvc_error *e);

#endif
