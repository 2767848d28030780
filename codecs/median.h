/* median.h: the median of numbers. */
#ifndef KVC_MEDIAN_H
#define KVC_MEDIAN_H

#include <stdint.h>

/* Returns the median of n values, and sorts them; 0 when there are none. */
double kvc_median(double *v, uint64_t n);

#endif
