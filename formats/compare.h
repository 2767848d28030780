/* compare.h: how far two caches are apart. Not for printing it (cli/kvc-diff.c). */
#ifndef KVC_COMPARE_H
#define KVC_COMPARE_H

#include "formats/cache.h"

struct kvc_tolerance { double abs, rel; int exact; }; /* exact: same bits, dtype included; NaN equals the same NaN bits */

struct kvc_difference {
    uint64_t values, differ; /* compared; outside the tolerance */
    double max_abs;          /* over finite pairs */
    double rms, frobenius;   /* root mean square of a-b; ||a-b|| / ||a|| (0 when both are 0, inf when only a is) */
    double cosine;           /* of a and b as vectors; 1 when both are 0 */
    uint64_t nonfinite;      /* pairs where either is NaN or infinite and the bits differ */
    uint64_t at_position;    /* first value that differs: position, head, channel, both values */
    uint64_t at_head, at_channel;
    double at_a, at_b;
};

/* Called for each value outside the tolerance when reporting; return non-zero to stop reporting. */
typedef int kvc_report_fn(void *state, int64_t position, uint64_t head, uint64_t channel, double a, double b);

/* Compares rows [first, first + n) of tensor ta of a with rows [first_b, ...) of tb of b, which have equal heads and
 * dim: per-head differences into out[heads]. `report` may be NULL. */
int kvc_compare_tensor(const struct kvc_cache *a, uint32_t ta, uint64_t first_a, const struct kvc_cache *b, uint32_t tb,
                       uint64_t first_b, uint64_t n, const struct kvc_tolerance *tol, struct kvc_difference *out,
                       kvc_report_fn *report, void *state, struct kvc_error *e);

#endif
