/* value_sums.h: sums of the values of one tensor by channel and by size, for pictures of what a
 * file holds. Not for measures of heads (stats.h) and not for errors (error_sums.h). */
#ifndef KVC_VALUE_SUMS_H
#define KVC_VALUE_SUMS_H

#include "formats/cache/cache.h"
#include "formats/compare/error_sums.h"

struct kvc_value_sums {
    /* rows that were read, and values of a row: heads before channels */
    uint64_t rows, channels;
    /* of each channel: the sum of squares of finite values; owned */
    double *square;
    /* of each channel: the number of finite values; owned */
    uint64_t *finite;
    /* |value| by octaves as in error_sums.h; other: NaN and infinite */
    uint64_t octave[KVC_OCTAVES], zero, other;
};

/* Reads whole blocks of a tensor: all of them if it has `most_rows` rows or fewer, else blocks of
 * about so many rows in all, but no fewer than one, spread evenly. Values are those of the file:
 * block types are dequantised, and not rotated back. The result must be freed, after a failure too.
 */
int kvc_value_sums_take(const struct kvc_cache *c, uint32_t tensor, uint64_t most_rows,
                        struct kvc_value_sums *out, struct kvc_error *e);
void kvc_value_sums_free(struct kvc_value_sums *s);

/* Returns the root mean square of a channel; NaN if no value of it is finite. */
double kvc_value_sums_rms(const struct kvc_value_sums *s, uint64_t channel);

#endif
