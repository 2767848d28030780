/* eigen.h: the strongest directions of many rows, from their Gram matrix, and inverses. For encoders: by LAPACK, one
 * thread, the same result whenever the same program runs on the same machine. Not for decoding. */
#ifndef KVC_EIGEN_H
#define KVC_EIGEN_H

#include "codecs/error.h"

#include <stddef.h>

/* gram[dim][dim] += sum of x xT over n rows of dim values, `stride` apart; the upper triangle only. */
int kvc_gram_add(double *gram, const float *x, size_t n, size_t dim, size_t stride, struct kvc_error *e);
/* The `rank` eigenvectors of the greatest eigenvalues, greatest first, into to[rank][dim]: the right factor of the best
 * approximation of that rank (Eckart-Young). Each has its greatest component positive. `gram` is lost. */
int kvc_gram_directions(float *to, double *gram, size_t dim, size_t rank, struct kvc_error *e);
/* The same, with the eigenvalues in value[rank]. */
int kvc_gram_eigen(float *to, double *value, double *gram, size_t dim, size_t rank, struct kvc_error *e);
/* The same by `loops` sweeps of the power iteration of GEAR (arXiv 2403.05527, algorithm 2), from a fixed start. */
int kvc_gram_power(float *to, const double *gram, size_t dim, size_t rank, unsigned loops, struct kvc_error *e);

/* The inverse of a[n][n], in its place, by Gauss-Jordan elimination with pivots. -1 when it has none, with *e filled. */
int kvc_invert(double *a, size_t n, struct kvc_error *e);

#endif
