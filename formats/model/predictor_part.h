/* predictor_part.h: a predictor of K or V of a layer, and what makes inputs of its rows. Not for
 * applying it (predictor.h). */
#ifndef KVC_PREDICTOR_PART_H
#define KVC_PREDICTOR_PART_H

#include "codecs/ahead.h"
#include "kernels/dot_matrix.h"

#include <stddef.h>
#include <stdint.h>

/* What makes inputs, which are small integers, of values: rint((x - mean) * gain), limited to -127
 * to 127. */
struct kvc_small {
    size_t width;             /* channels of a row */
    const float *mean, *gain; /* by channel; K before RoPE, in the cache's order */
};

struct kvc_predictor {
    /* outputs are channels of a row; inputs are those of all tensors */
    struct kvc_dot_matrix matrix;
    unsigned n; /* tensors */
    struct {
        uint32_t layer;
        int is_v;         /* 0: K */
        size_t at, width; /* place among the inputs, a multiple of KVC_DOT_STEP; channels */
    } input[KVC_AHEAD_MOST];
};

#endif
