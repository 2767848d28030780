/* pipeline.h: runs several stages over the blocks of a tensor, forwards and backwards. Not for
 * choosing the stages (recipe.h). */
#ifndef KVC_PIPELINE_H
#define KVC_PIPELINE_H

#include "codecs/stage.h"

/* The stages of one tensor, first stage first when encoding. */
struct kvc_pipeline {
    unsigned n;
    struct {
        const struct kvc_stage *stage;
        struct kvc_stage_args args;
        /* index of its item in the recipe; the number of items for stages that the recipe does not
         * name */
        unsigned item;
    } step[KVC_MAX_STEPS];
};

/* Prints "stage:args,stage:args" without selectors. Returns -1 when `size` is too small. */
int kvc_pipeline_print(const struct kvc_pipeline *pipeline, char *text, size_t size);
/* Returns 1 when two pipelines have the same stages with equal arguments, whatever items of a
 * recipe they come from. */
int kvc_pipeline_same(const struct kvc_pipeline *a, const struct kvc_pipeline *b);
/* Returns 1 when every stage is lossless. */
int kvc_pipeline_lossless(const struct kvc_pipeline *pipeline);
/* Returns the step of the first stage with any of these flags; pipeline->n when there is none. */
unsigned kvc_pipeline_first(const struct kvc_pipeline *pipeline, unsigned flags);
/* Returns 1 when a stage has any of these flags. */
static inline int kvc_pipeline_has(const struct kvc_pipeline *pipeline, unsigned flags) {
    return kvc_pipeline_first(pipeline, flags) < pipeline->n;
}
/* Returns what the stages need a profile for (enum kvc_profile_need bits), where the profile does,
 * or does not, predict. */
unsigned kvc_pipeline_profile_need(const struct kvc_pipeline *pipeline, int predicts);
/* Checks the order of the stages: the last stage, and no other, is terminal or drops its residual;
 * there is at most one pair stage, and no stage that looks before it. */
int kvc_pipeline_check(const struct kvc_pipeline *pipeline, struct kvc_error *e);
/* Returns 1 when the stages can take a tensor of this shape, else 0. */
int kvc_pipeline_accepts(const struct kvc_pipeline *pipeline, const struct kvc_shape *shape,
                         struct kvc_error *e);

/* Prints what the stages did to a tensor of this role (enum kvc_select), of its side sections, in
 * the order of the stages: "K before RoPE, a basis of its own". Prints "" where they code its
 * values in no other coordinates. */
void kvc_pipeline_describe(const struct kvc_pipeline *pipeline, unsigned role, int turned,
                           const struct kvc_section *side, size_t n, char *text, size_t size);

/* Returns 1 when blocks can be added to a segment that was encoded before: kvc_encoder_adopt() is
 * possible of all stages that look. */
int kvc_pipeline_adopts(const struct kvc_pipeline *pipeline);
/* Returns 1 when rows of a block that was encoded before can keep their codes in another block. */
int kvc_pipeline_keeps_codes(const struct kvc_pipeline *pipeline);

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

void kvc_encoder_init(struct kvc_encoder *x, const struct kvc_pipeline *pipeline,
                      const struct kvc_encoding *encoding);
void kvc_encoder_free(struct kvc_encoder *x);
/* Begins a segment at step i, a step that looks. Every block must then go through
 * kvc_encoder_look(), and after the last block kvc_encoder_settle() is called; steps that look take
 * their turns in order. `like` has the role and the shape that step i takes: kvc_encoder_shape()
 * makes a block that, and its rows scratch. */
int kvc_encoder_shape(struct kvc_encoder *x, unsigned i, struct kvc_block *block,
                      struct kvc_error *e);
int kvc_encoder_begin(struct kvc_encoder *x, unsigned i, const struct kvc_block *like,
                      struct kvc_error *e);
int kvc_encoder_look(struct kvc_encoder *x, unsigned i, struct kvc_block *block,
                     struct kvc_error *e);
int kvc_encoder_settle(struct kvc_encoder *x, unsigned i, struct kvc_error *e);
/* Takes what step i, which looks and has begun, stored in the side sections of a segment that was
 * encoded before, in place of kvc_encoder_look() and kvc_encoder_settle(). Fails where the sections
 * are not those that the step makes. */
int kvc_encoder_adopt(struct kvc_encoder *x, unsigned i, const struct kvc_section *side, size_t n,
                      struct kvc_error *e);
/* Lets a block keep what steps make of it: copies its rows and those of its row numbers into room
 * of its own, and sets block->done to *done, whose list the caller may have put sections in. Then
 * no step runs twice over the block. It has no partner. To be freed by kvc_encoder_drop(). */
int kvc_encoder_keep(struct kvc_encoder *x, struct kvc_block *block, struct kvc_steps_done *done,
                     struct kvc_error *e);
void kvc_encoder_drop(struct kvc_block *block);
/* Encodes one block. block->rows, and those of its partner, are scratch afterwards. Of a block that
 * is kept, `out` must be given the sections of block->done->list. */
int kvc_encoder_block(struct kvc_encoder *x, struct kvc_block *block, struct kvc_sections *out,
                      struct kvc_error *e);

/* --- decoding --- */

/* The sections of one record and of its segment's side data, each in the order of the stages. */
struct kvc_coded {
    const struct kvc_section *section, *side;
    size_t n, n_side;
};

/* Visits the stages in decoding order, last first. On each call block->shape is the matrix that the
 * stage takes when encoding, block->handed the matrix that it hands on, and block->stands the dtype
 * of the matrix now in block->rows (unset for the last stage); after the last call block->stands is
 * the dtype of the first stage's matrix. Stops at a result other than 0, and returns it; of -1 the
 * error gets the stage's name and place. */
typedef int kvc_pipeline_visit(void *state, const struct kvc_stage *stage,
                               const struct kvc_stage_args *args, const struct kvc_stored *stored,
                               struct kvc_block *block, struct kvc_error *e);
int kvc_pipeline_walk_back(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                           const struct kvc_coded *own, const struct kvc_coded *first,
                           kvc_pipeline_visit *visit, void *state, struct kvc_error *e);

/* Returns the side sections of one step out of `side`, n of them in the order of the stages. */
struct kvc_stored kvc_pipeline_side(const struct kvc_section *side, size_t n, unsigned step);

/* Fills block->rows from a record. `first` is the first tensor's record when the block is of the
 * second tensor of a pair, else NULL. Refuses sections that no stage claims. */
int kvc_pipeline_decode_record(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                               const struct kvc_coded *own, const struct kvc_coded *first,
                               struct kvc_error *e);

/* Decodes a record by the last stage alone: *to gets the rows that kvc_pipeline_keeps_codes()
 * speaks of, which kvc_earlier_free() frees, after a failure as well. block->row lists all rows
 * that the first stage took, and afterwards those that the last one did. */
int kvc_pipeline_decode_last(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                             const struct kvc_coded *own, struct kvc_earlier_rows *to,
                             struct kvc_error *e);
void kvc_earlier_free(struct kvc_earlier_rows *rows);

/* Returns 1 where two blocks of a tensor are decoded faster at once, as kvc_pipeline_decode_two()
 * does, than one after the other. */
int kvc_pipeline_decodes_two(const struct kvc_pipeline *pipeline);
/* Fills block[i].rows from own[i], of two blocks of one tensor. Returns 0, or 1 where that must be
 * done by kvc_pipeline_decode_record() of each block: one is not coded, or is damaged. The rows are
 * then scratch. */
int kvc_pipeline_decode_two(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                            const struct kvc_coded *own);

/* Encode and decode a block by a pipeline in which no stage looks. block->rows is scratch after
 * encoding. */
int kvc_pipeline_encode(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                        struct kvc_sections *out, struct kvc_error *e);
int kvc_pipeline_decode(const struct kvc_pipeline *pipeline, struct kvc_block *block,
                        const struct kvc_section *sections, size_t n, struct kvc_error *e);

#endif
