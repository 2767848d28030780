/* pipeline.h: running several stages over the blocks of a tensor, forwards and backwards. Not for which stages those are
 * (recipe.h). */
#ifndef KVC_PIPELINE_H
#define KVC_PIPELINE_H

#include "codecs/stage.h"

#define KVC_MAX_STAGES 16
#define KVC_MAX_STEPS (KVC_MAX_STAGES + 2) /* with `finite` and the default stage */

/* What one tensor goes through, first stage first when encoding. */
struct kvc_pipeline {
    unsigned n;
    struct {
        const struct kvc_stage *stage;
        struct kvc_stage_args args;
        unsigned item; /* which item of the recipe it came from; their number for what the recipe does not name */
    } step[KVC_MAX_STEPS];
};

/* "stage:args,stage:args" without selectors. -1 when `size` is too small. */
int kvc_pipeline_print(const struct kvc_pipeline *pipeline, char *text, size_t size);
/* 1 when every stage is lossless. */
int kvc_pipeline_lossless(const struct kvc_pipeline *pipeline);
/* The step of the first stage with any of these flags; pipeline->n when there is none. */
unsigned kvc_pipeline_first(const struct kvc_pipeline *pipeline, unsigned flags);
/* 0 when stages stand in an order that can be run: one terminal stage at the end, or one whose residual may be dropped; a
 * pair stage at most once, and no stage that looks before it. */
int kvc_pipeline_check(const struct kvc_pipeline *pipeline, struct kvc_error *e);
/* 1 when the stages can take a tensor of this shape; else 0 and the reason in *e. */
int kvc_pipeline_accepts(const struct kvc_pipeline *pipeline, const struct kvc_shape *shape, struct kvc_error *e);

/* Prints what the stages did to a tensor of this role (enum kvc_select), of its side sections, in the order of the stages:
 * "K before RoPE, a basis of its own". Prints "" where they code its values in no other coordinates. */
void kvc_pipeline_describe(const struct kvc_pipeline *pipeline, unsigned role, const struct kvc_section *side, size_t n,
                           char *text, size_t size);

/* --- encoding --- */

/* Encodes the blocks of one segment of one tensor. */
struct kvc_encoder {
    const struct kvc_pipeline *pipeline;
    const struct kvc_encoding *encoding; /* may be NULL when no stage looks */
    void *state[KVC_MAX_STEPS];
    struct kvc_sections side;    /* sealed by kvc_encoder_settle() of the last step that looks */
    struct kvc_sections dropped; /* of blocks that are only looked at */
    float *work[2];              /* binary32 matrices: of the block, of its partner */
    size_t room[2];
};

void kvc_encoder_init(struct kvc_encoder *x, const struct kvc_pipeline *pipeline, const struct kvc_encoding *encoding);
void kvc_encoder_free(struct kvc_encoder *x);
/* Begins a segment at step i, a step that looks: then every block goes through kvc_encoder_look(), then
 * kvc_encoder_settle(). Steps that look are begun in their order. `like` has the role, and the shape that comes there:
 * kvc_encoder_shape() makes a block what step i takes, its rows being scratch afterwards. */
int kvc_encoder_shape(struct kvc_encoder *x, unsigned i, struct kvc_block *block, struct kvc_error *e);
int kvc_encoder_begin(struct kvc_encoder *x, unsigned i, const struct kvc_block *like, struct kvc_error *e);
int kvc_encoder_look(struct kvc_encoder *x, unsigned i, struct kvc_block *block, struct kvc_error *e);
int kvc_encoder_settle(struct kvc_encoder *x, unsigned i, struct kvc_error *e);
/* Encodes one block. block->rows and, of a partner, its rows are scratch afterwards. */
int kvc_encoder_block(struct kvc_encoder *x, struct kvc_block *block, struct kvc_sections *out, struct kvc_error *e);

/* --- decoding --- */

/* The stages' sections of one record and of its segment's side data, each in the order of the stages. */
struct kvc_coded {
    const struct kvc_section *section, *side;
    size_t n, n_side;
};

/* Goes through the stages as decoding does, the last one first, each visited with its sections and with the block as it was when
 * it took it: block->handed is what it had handed on, block->stands the dtype in which that stands there (none of the last
 * stage), and at the end that of the first stage's matrix. Stops at what is not 0 and returns it. */
typedef int kvc_pipeline_visit(void *state, const struct kvc_stage *stage, const struct kvc_stage_args *args,
                               const struct kvc_stored *stored, struct kvc_block *block, struct kvc_error *e);
int kvc_pipeline_walk_back(const struct kvc_pipeline *pipeline, struct kvc_block *block, const struct kvc_coded *own,
                           const struct kvc_coded *first, kvc_pipeline_visit *visit, void *state, struct kvc_error *e);

/* Fills block->rows from a record. `first`: of the second tensor of a pair, the first one's record; else NULL. Refuses
 * sections that no stage claims. */
int kvc_pipeline_decode_record(const struct kvc_pipeline *pipeline, struct kvc_block *block, const struct kvc_coded *own,
                               const struct kvc_coded *first, struct kvc_error *e);

/* Both for pipelines in which no stage looks. `block->rows` is scratch after encoding. */
int kvc_pipeline_encode(const struct kvc_pipeline *pipeline, struct kvc_block *block, struct kvc_sections *out,
                        struct kvc_error *e);
int kvc_pipeline_decode(const struct kvc_pipeline *pipeline, struct kvc_block *block, const struct kvc_section *sections,
                        size_t n, struct kvc_error *e);

#endif
