/* select.h: the k-th smallest of many numbers, without sorting them all. Not for medians of few (median.h). */
#ifndef KVC_SELECT_H
#define KVC_SELECT_H

#include <stddef.h>

/* Returns the value that would be v[k] if v[n] were sorted, k < n. Afterwards v[0] to v[k] are at most this value, and v[k] to v[n - 1]
 * at least. No value is a NaN. */
float kvc_select(float *v, size_t n, size_t k);

#endif
