/* eigen.h: the strongest directions of many rows, from their Gram matrix; inverses; linear
 * equations. For encoders: by LAPACK, one thread, the same result whenever the same program runs on
 * the same machine. Not for decoding. */
#ifndef KVC_EIGEN_H
#define KVC_EIGEN_H

#include "codecs/error.h"

#include <stddef.h>

/* Adds the sum of x xT over n rows of dim values, `stride` apart, to gram[dim][dim]; the upper
 * triangle only. */
int kvc_gram_add(double *gram, const float *x, size_t n, size_t dim, size_t stride,
                 struct kvc_error *e);
/* Puts the eigenvectors of the `rank` largest eigenvalues, largest first, into to[rank][dim]: the
 * right factor of the best approximation of that rank (Eckart-Young). The component of largest size
 * of each is positive. Destroys `gram`. */
int kvc_gram_directions(float *to, double *gram, size_t dim, size_t rank, struct kvc_error *e);
/* Does the same, and puts the eigenvalues into value[rank]. */
int kvc_gram_eigen(float *to, double *value, double *gram, size_t dim, size_t rank,
                   struct kvc_error *e);
/* Puts `rank` orthonormal directions into to[rank][dim] that are about as good as the eigenvectors:
 * the Frobenius norm of what they leave of the rows is at most 1.01 times that which the
 * eigenvectors leave. The order is that of strength, and signs are as above. By subspace iteration
 * from a fixed start (Halko, Martinsson, Tropp, arXiv 0909.4061, algorithm 4.4), until a sweep
 * lowers the squared norm by less than 0.1 %. Needs no LAPACK. Directions that the rows do not have
 * are 0. */
int kvc_gram_subspace(float *to, const double *gram, size_t dim, size_t rank, struct kvc_error *e);
/* Does the same by `loops` sweeps of the power iteration of GEAR (arXiv 2403.05527, algorithm 2),
 * from a fixed start. */
int kvc_gram_power(float *to, const double *gram, size_t dim, size_t rank, unsigned loops,
                   struct kvc_error *e);

/* Solves a x = b for a symmetric positive definite a[n][n], of which the upper triangle counts, and
 * m right sides b[n][m]. x takes the place of b; a is destroyed. Returns -1 when a is not positive
 * definite. */
int kvc_solve_symmetric(double *a, size_t n, double *b, size_t m, struct kvc_error *e);
/* Does the first half of it, Cholesky's decomposition: puts U of a = U' U in the place of a, and y
 * of U' y = b in that of b. */
int kvc_factorise(double *a, size_t n, double *b, size_t m, struct kvc_error *e);
/* Does the second half, U x = y, from the last x to the first; x may be y. With unit[m], each x is
 * rounded to a multiple of its column's unit, from -127 to 127, before those above it are solved,
 * which so make up for the error: |U (x - exact)| stays small where a's columns are alike (the
 * nearest plane of Babai, Combinatorica 6, 1986; GPTQ, arXiv 2210.17323, does the same). */
int kvc_substitute(const double *u, size_t n, const double *y, double *x, size_t m,
                   const double *unit, struct kvc_error *e);

/* Inverts a[n][n] in place, by Gauss-Jordan elimination with pivots. Returns -1 when it is
 * singular. */
int kvc_invert(double *a, size_t n, struct kvc_error *e);

#endif
