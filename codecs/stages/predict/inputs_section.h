/* inputs_section.h: the section INPUTS, which names the tensors that a segment is predicted from,
 * and predictions by it. Spec: cross.md. Shared by the stages that predict (cross.c, predict.c);
 * not for finding the tensors (formats/). */
#ifndef KVC_INPUTS_SECTION_H
#define KVC_INPUTS_SECTION_H

#include "codecs/ahead.h"
#include "codecs/args.h"
#include "codecs/block.h"

/* The state of a segment that is predicted. */
struct kvc_ahead_state {
    struct kvc_ahead_inputs inputs;
    const struct kvc_ahead *ahead;
};

/* Makes *state, to be freed by free(), of the tensors that a segment may be predicted from; leaves
 * it NULL where there are none. `every`: inputs of layers before the last multiple of it are not
 * used; 0: all are. */
int kvc_ahead_begin(const struct kvc_encoding *x, const struct kvc_block *like, uint32_t every,
                    void **state, struct kvc_error *e);
/* The `settle` of such stages: writes the section; nothing where the state is NULL. */
int kvc_ahead_settle(const struct kvc_stage_args *args, void *state, uint8_t stage,
                     struct kvc_sections *side, struct kvc_error *e);
/* Reads the section. Returns 1, 0 where there is none, or -1. */
int kvc_ahead_read(const struct kvc_stored *stored, struct kvc_ahead_inputs *to,
                   struct kvc_error *e);

/* Returns predictions of all values of a block, K before RoPE, which the caller frees, or NULL. */
float *kvc_ahead_predict(const struct kvc_ahead *ahead, const struct kvc_ahead_inputs *x,
                         const struct kvc_block *block, struct kvc_error *e);

#endif
