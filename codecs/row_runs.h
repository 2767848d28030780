/* row_runs.h: decodes a block through consecutive stages that rebuild each row alone (stage.h:
 * rows_begin), some rows at a time, so that these stay in the core's caches from the last of the
 * stages to the first. Not for stages that decode whole blocks, and not for the order of stages
 * (pipeline_decode.c). */
#ifndef KVC_ROW_RUNS_H
#define KVC_ROW_RUNS_H

#include "codecs/stage.h"

/* The stages, in the order in which they decode. All zero: none yet. */
struct kvc_row_runs {
    unsigned n;
    struct kvc_row_stage {
        const struct kvc_stage *stage;
        const struct kvc_stored *stored;
        void *state;
    } at[KVC_MAX_STEPS];
    /* where a call failed: the stage whose error it is; NULL: none's */
    const struct kvc_row_stage *failed;
};

/* Adds a stage, which takes the block as decode() would; `stored` stays as long as the runs. */
int kvc_row_runs_add(struct kvc_row_runs *r, const struct kvc_stage *stage,
                     const struct kvc_stage_args *args, const struct kvc_stored *stored,
                     const struct kvc_block *block, struct kvc_error *e);
/* Decodes the rows of a matrix of this shape into `to`, in the tensor's dtype `dtype` or in
 * binary32. `from`: what the first of the stages takes, which is scratch afterwards, and may be
 * `to`; NULL: it takes nothing. */
int kvc_row_runs_decode(struct kvc_row_runs *r, const struct kvc_shape *shape, float *from,
                        uint8_t *to, enum kvc_dtype dtype, struct kvc_error *e);
/* Decodes the rows of two matrices of as many heads and channels at once, where the first stage
 * takes nothing. */
int kvc_row_runs_decode_two(struct kvc_row_runs *const r[2], const struct kvc_shape *const shape[2],
                            uint8_t *const to[2], enum kvc_dtype dtype, struct kvc_error *e);
/* Ends the stages, and forgets them. Where `done`, refuses sections with more than the rows. */
int kvc_row_runs_end(struct kvc_row_runs *r, int done, struct kvc_error *e);

#endif
