/* error_sums.h: sums of the errors of one tensor by row, by channel and by size, for pictures of
 * where two caches differ. Not for measures of heads (compare.h). */
#ifndef KVC_ERROR_SUMS_H
#define KVC_ERROR_SUMS_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

/* Sums over finite pairs of values. */
struct kvc_error_sum {
    double dd, aa; /* of (a - b)^2 and of a^2 */
};
void kvc_error_sum_add(struct kvc_error_sum *total, const struct kvc_error_sum *part);
/* Returns sqrt(dd / aa): 0 if both are 0, infinite if only aa is 0. */
double kvc_error_relative(const struct kvc_error_sum *s);

/* Octaves of |a - b|: octave i has errors of 2^(i - KVC_ERROR_OCTAVE_0) to below twice this number.
 * The difference of any two finite values of float32 has an octave. */
#define KVC_ERROR_OCTAVES 279
#define KVC_ERROR_OCTAVE_0 149
/* Returns the octave of an error above 0. */
unsigned kvc_error_octave(double error);

/* The sums stay 0 for a tensor whose stored bytes are equal: its values are not looked at. */
struct kvc_error_sums {
    uint64_t rows, channels;       /* matched rows, and values of a row: heads before channels */
    struct kvc_error_sum *row;     /* for each matched row, in order */
    struct kvc_error_sum *channel; /* for each value of a row */
    uint64_t octave[KVC_ERROR_OCTAVES], zero, nonfinite;
};

/* Allocates sums of 0. kvc_error_sums_free() frees them, and may be called on a zeroed struct. */
int kvc_error_sums_start(struct kvc_error_sums *s, uint64_t rows, uint64_t channels,
                         struct kvc_error *e);
void kvc_error_sums_free(struct kvc_error_sums *s);
/* Adds n values of a matched row, which begin at value `first` of the row. */
void kvc_error_sums_values(struct kvc_error_sums *s, uint64_t row, uint64_t first, const float *a,
                           const float *b, size_t n);

#endif
