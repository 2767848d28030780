/* error_sums.h: sums of the errors of one tensor by row, by channel and by size, for pictures of
 * where two caches differ. Not for measures of heads (compare.h). */
#ifndef KVC_ERROR_SUMS_H
#define KVC_ERROR_SUMS_H

#include "codecs/error.h"
#include "formats/api/kvc_comparing.h"

/* Returns the octave of an error above 0. */
unsigned kvc_error_octave(double error);

/* Allocates sums of 0. kvc_error_sums_free() frees them. */
int kvc_error_sums_start(struct kvc_error_sums *s, uint64_t rows, uint64_t channels,
                         struct kvc_error *e);
/* Adds n values of a matched row, which begin at value `first` of the row. */
void kvc_error_sums_values(struct kvc_error_sums *s, uint64_t row, uint64_t first, const float *a,
                           const float *b, size_t n);

#endif
