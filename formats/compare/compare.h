/* compare.h: how far two caches are apart. Not for printing it (cli/diff). */
#ifndef KVC_COMPARE_H
#define KVC_COMPARE_H

#include "formats/cache/cache.h"
#include "formats/compare/error_sums.h"

/* Rows of two parts paired by position: the n-th row of a position with the n-th row of the same
 * position. */
struct kvc_run {
    uint64_t a, b, n; /* rows [a, a + n) of one part match rows [b, b + n) of the other */
};
struct kvc_span {
    int64_t first, last; /* positions, both inclusive */
};
struct kvc_matching {
    struct kvc_run *run; /* ascending */
    uint64_t n_runs, rows;
    struct kvc_span *only[2]; /* positions that only a, only b has */
    uint64_t n_only[2];
};
/* Matches the rows at positions first..last (inclusive). On failure *m is empty. */
int kvc_match_rows(const struct kvc_cells *a, const struct kvc_cells *b, int64_t first,
                   int64_t last, struct kvc_matching *m, struct kvc_error *e);
void kvc_matching_free(struct kvc_matching *m);

/* Where a comparison adds the errors of each channel and each row, beside those of heads; zeroed at
 * first. Tensors whose bytes are all equal add `values` alone. */
struct kvc_difference_detail {
    struct kvc_difference *channel; /* [values of a row], heads before channels; NULL: not wanted */
    struct kvc_difference *row;     /* [matched rows], in order; NULL: not wanted */
};

struct kvc_compare_options {
    /* Exact: pairs are equal when their encoded bytes are. A block of 32 values whose bytes differ
     * though its values are the same counts as one value that differs. Tensors of two dtypes are
     * compared by the bits of their values as float32. Not exact: finite pairs are equal when |a -
     * b| <= abs + rel * |b|, others when their float32 bits are.
     */
    int exact;
    double abs, rel;
    kvc_report_fn *report; /* may be NULL */
    void *state;
    /* get the errors of the tensor, whose rows and values they must have; may be NULL */
    struct kvc_error_sums *sums;
    const char *name[2];                 /* of the two caches' files, for messages; may be NULL */
    struct kvc_difference_detail detail; /* of kvc_compare_tensor() */
};

/* Compares matched rows of tensor ta of a and tb of b, whose rows must have equally many values, a
 * multiple of `heads` (which need not be how the tensors say rows are divided). Fills out[heads].
 * Memory: two blocks of rows. */
int kvc_compare_tensor(const struct kvc_cache *a, uint32_t ta, const struct kvc_cache *b,
                       uint32_t tb, const struct kvc_matching *rows, uint64_t heads,
                       const struct kvc_compare_options *o, struct kvc_difference *out,
                       struct kvc_error *e);

#endif
