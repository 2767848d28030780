/* median.h: the median of numbers. */
#ifndef KVC_MEDIAN_H
#define KVC_MEDIAN_H

#include <stdint.h>

/* The median of n values, which it orders; 0 when there are none. */
double kvc_median(double *v, uint64_t n);

#endif
