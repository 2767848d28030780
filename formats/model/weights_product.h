/* weights_product.h: products of rows with matrices, above all those of a weights file, which are
 * converted piece by piece as they are needed: a whole model takes the memory of a few of its rows.
 * Not for K, V and queries of a layer as one thing (weights.h). */
#ifndef KVC_WEIGHTS_PRODUCT_H
#define KVC_WEIGHTS_PRODUCT_H

#include "formats/model/weights_tensors.h"

/* A matrix [out][in] of a weights file, or nothing where `in` is 0. */
struct kvc_weights_matrix {
    struct kvc_weights_tensor tensor;
    struct kvc_weights_order order; /* of output channels */
    size_t in, out;
};

/* Finds a matrix with `in` input and, but for 0, `out` output channels, whose order stays that of
 * the file. Returns 1 where there is one, 0 where not, -1 where it cannot be used. */
int kvc_weights_matrix(const struct kvc_weights *w, const struct kvc_weights_naming *naming,
                       enum kvc_weight which, uint32_t layer, size_t in, size_t out,
                       struct kvc_weights_matrix *m, struct kvc_error *e);

/* Set y[rows][out] to x[rows][in] times the matrix; and x[rows][in] to y[rows][out] times it, the
 * other way. By `threads` threads at most (0: one per core); results do not depend on them. */
int kvc_weights_multiply(float *y, const float *x, size_t rows, const struct kvc_weights_matrix *m,
                         unsigned threads, struct kvc_error *e);
int kvc_weights_multiply_back(float *x, const float *y, size_t rows,
                              const struct kvc_weights_matrix *m, unsigned threads,
                              struct kvc_error *e);
/* Converts row `row` of the matrix, of m->in values. */
int kvc_weights_row(float *to, const struct kvc_weights_matrix *m, uint64_t row,
                    struct kvc_error *e);

/* Sets y[rows][n] to a[rows][k] times b[k][n]; with `transposed` b is [n][k]. Rows of y are
 * y_stride floats apart, those of b b_stride. */
int kvc_multiply(float *y, size_t y_stride, const float *a, size_t rows, size_t k, const float *b,
                 size_t b_stride, size_t n, int transposed, struct kvc_error *e);
/* The same without strides, by `threads` threads at most (0: one per core). */
int kvc_multiply_wide(float *y, const float *a, size_t rows, size_t k, const float *b, size_t n,
                      int transposed, unsigned threads, struct kvc_error *e);

/* Sets to[columns][rows] to the transpose of from[rows][columns]. */
void kvc_transpose(float *to, const float *from, size_t rows, size_t columns);

#endif
