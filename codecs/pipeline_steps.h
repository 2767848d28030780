/* pipeline_steps.h: what encoding and decoding by a pipeline share. Matrices are in the tensor's
 * dtype, or in binary32 before and after stages that work on binary32; they are converted here. For
 * pipeline_encode.c and pipeline_decode.c. */
#ifndef KVC_PIPELINE_STEPS_H
#define KVC_PIPELINE_STEPS_H

#include "codecs/floats.h"
#include "codecs/pipeline.h"

static inline const struct kvc_stage *kvc_pipeline_stage(const struct kvc_pipeline *p, unsigned i) {
    return p->step[i].stage;
}

static inline size_t kvc_shape_values(const struct kvc_shape *s) {
    return (size_t)(s->tokens * s->heads * s->dim);
}

/* Returns the dtype in which a step takes its matrix, of a tensor of `dtype`. */
static inline enum kvc_dtype kvc_pipeline_dtype(const struct kvc_pipeline *p, unsigned i,
                                                enum kvc_dtype dtype) {
    return kvc_pipeline_stage(p, i)->flags & KVC_STAGE_FLOAT ? KVC_F32 : dtype;
}

/* Converts the matrix to another dtype; rows[] are the buffers for the tensor's dtype and for
 * binary32. One of f32 that settles is rounded like others, which changes its NaNs. */
static inline void kvc_block_convert(struct kvc_block *block, uint8_t *const rows[2],
                                     enum kvc_dtype own, enum kvc_dtype to) {
    if (block->shape.dtype == to && !block->settles) return;
    if (to == KVC_F32 && !block->settles)
        kvc_to_floats((float *)(void *)rows[1], rows[0], kvc_shape_values(&block->shape), own);
    else
        kvc_from_floats(rows[0], (const float *)(const void *)rows[1],
                        kvc_shape_values(&block->shape), own);
    block->shape.dtype = to;
    block->rows = rows[to == KVC_F32];
}

static inline int kvc_pipeline_wants_floats(const struct kvc_pipeline *p, enum kvc_dtype dtype) {
    return dtype != KVC_F32 && kvc_pipeline_first(p, KVC_STAGE_FLOAT) < p->n;
}

#endif
