/* block.h: one block of one tensor on its way through the stages: its matrix, what an encoder may
 * ask about the tensor, and its stored sections. Not for the stages (stage.h). */
#ifndef KVC_BLOCK_H
#define KVC_BLOCK_H

#include "codecs/error.h"
#include "codecs/sections.h"
#include "codecs/tensor.h"

#include <stddef.h>
#include <stdint.h>

/* Tensors that a stage of a recipe selects. */
enum kvc_select { KVC_SELECT_K = 1, KVC_SELECT_V = 2 };

/* What an encoder may ask about the tensor of a block. Rows are numbered in sorted order through
 * the whole tensor; channels of queries are those of K. */
struct kvc_encoding {
    uint64_t rows;           /* of the tensor */
    const int64_t *position; /* of each row, ascending */
    /* Reads rows [first, first + n) of the layer's K or V (enum kvc_select) as binary32. */
    int (*read)(const struct kvc_encoding *x, unsigned role, uint64_t first, uint64_t n, float *dst,
                struct kvc_error *e);
    struct kvc_shape key, value; /* heads and channels of the layer's K and V */
    /* Queries of the layer after RoPE: [n_queries][query_heads][key.dim]; n_queries is 0 where
     * there are none. */
    const float *query;
    const int64_t *query_position; /* ascending */
    uint64_t n_queries, query_heads;
    uint64_t first, segment_rows; /* of the segment that is encoded: its first row, and its rows */
    /* Pair stages only: the tensor whose blocks hold what both tensors share, 1 for the other
     * tensor, and 1 for the layer with the higher number. */
    uint32_t pair;
    int second, deeper;
    /* Results that K and V of a layer share: made once under the lock, freed by the owner of the
     * encoding. */
    struct kvc_shared *shared;
    /* earlier tensors that rows may be predicted from (ahead.h), or NULL */
    const struct kvc_ahead_source *ahead;
    /* hidden states and weights that rows may be rebuilt from (rebuild.h), or NULL */
    const struct kvc_rebuild_source *source;
    const struct kvc_rope_facts *rope; /* of the layer's K (rope.h); NULL: nothing is known */
    /* Queries of other texts, from a profile, at positions after the last row:
     * [profile_queries][query_heads of the profile][key.dim]. */
    const float *profile_query;
    uint64_t profile_queries, profile_query_heads;
    uint64_t window;   /* tokens of the sliding window; 0: none */
    const void *owner; /* of read() */
};

/* The steps of a pipeline that ran over a block already, so that a later look at it, or its
 * encoding, goes on from there. */
struct kvc_steps_done {
    /* number of them; the matrix of the block is the one that the next step takes */
    unsigned steps;
    uint8_t *rows[2];         /* room for the matrix in the tensor's dtype, and as binary32 */
    struct kvc_sections list; /* of these steps */
};

/* Rows of a block that was encoded before, as its last stage, a stage with a step, decodes them:
 * codes times the step, which the stage codes as the same codes again. */
struct kvc_earlier_rows {
    size_t n;
    /* number of each in the tensor as it was then, ascending; rows that have gone since before all
     * that are left */
    uint64_t *row, skip;
    float *values; /* [n][heads][dim] */
    int8_t *step;  /* classes of their steps, [n][heads]; NULL: no stage has set steps */
};

/* One block of one tensor. Marks are freed by the pipeline. */
struct kvc_block {
    struct kvc_shape shape; /* of the matrix in rows; shape.tokens is its number of rows */
    enum kvc_dtype own;     /* the tensor's dtype; shape.dtype is the same or binary32 */
    uint8_t *rows;          /* the matrix, row after row; writable scratch of the caller */
    /* Decoding, or NULL: where the rows belong. A stage may put them there instead of into `rows`,
     * and then sets `placed`. */
    const struct kvc_row_places *places;
    int placed;
    unsigned role; /* enum kvc_select, or 0 */
    /* Encoding, 1: a later stage takes what this stage hands on. Decoding, 1: rows holds what a
     * later stage made. 0: what a residual stage hands on is dropped, and rows holds nothing. */
    int residual;
    /* decoding: shape of the matrix that the stage handed on; `shape` is the one to decode */
    struct kvc_shape handed;
    enum kvc_dtype stands; /* decoding: dtype of the matrix in rows; set by the pipeline */
    /* decoding: that matrix is of a tensor of f32, a stage that works in binary32 made it, and what
     * follows does not: its NaNs are settled; likewise */
    int settles;
    uint8_t *salient; /* mark [row][head], 1: salient; NULL: no stage has marked tokens */
    /* number of each row in the tensor; NULL: encoding, all rows are there; decoding, no stage asks
     */
    uint64_t *row;
    /* for stages that rebuild: hidden states and weights, or NULL */
    const struct kvc_rebuild *rebuild;
    const struct kvc_ahead *ahead; /* for stages that predict, or NULL */
    /* decoding: of the tensor's rows from first_row on; NULL: no stage asks */
    const int64_t *position;
    uint64_t first_row;
    /* what a profile knows of the matrix (profile_part.h), or NULL */
    const struct kvc_profile_part *profile;
    /* How the engine rotated the tensor's rows (rope.h). The angles may be missing, with the
     * profile. NULL: it did not rotate them, as far as is known, or no stage asks. */
    const struct kvc_rope_facts *turn;
    int before_rope; /* 1: a stage has undone RoPE */
    /* mark [row][head]: class of the step, in half octaves; NULL: no stage has set steps */
    int8_t *step;
    /* encoding only */
    const struct kvc_encoding *encoding;
    struct kvc_block *partner;   /* pair stages: the other layer's block */
    struct kvc_steps_done *done; /* NULL: each look, and the encoding, runs all steps */
    /* rows that keep the codes that they had; NULL: none */
    const struct kvc_earlier_rows *earlier;
    /* 1: only the matrix and the marks that stages hand on are needed; they may leave out sections
     */
    int looked;
};

/* Return the number in the tensor, and the position, of row i of a block. */
static inline uint64_t kvc_block_row(const struct kvc_block *block, uint64_t i) {
    return block->row ? block->row[i] : i;
}
static inline int64_t kvc_block_position(const struct kvc_block *block, uint64_t i) {
    const uint64_t row = kvc_block_row(block, i);
    if (block->encoding) return block->encoding->position[row];
    return block->position ? block->position[row - block->first_row] : (int64_t)row;
}

/* Returns the place of row i of a block among the rows that keep their codes, or -1. */
static inline ptrdiff_t kvc_block_earlier(const struct kvc_block *block, uint64_t i) {
    const struct kvc_earlier_rows *x = block->earlier;
    const uint64_t row = kvc_block_row(block, i) + (x ? x->skip : 0);
    for (size_t k = 0; x && k < x->n && x->row[k] <= row; k++)
        if (x->row[k] == row) return (ptrdiff_t)k;
    return -1;
}

/* A stage's stored sections: of a block, of its segment, and of a pair's first tensor when the
 * block is the second's. */
struct kvc_stored {
    const struct kvc_section *section, *side, *first;
    size_t n, n_side, n_first;
};
/* Puts the rows where they belong when a stage's sections of a block are one RAW section of them,
 * and returns 1. Returns 0 when they are something else, and -1 when that section is damaged. */
int kvc_stored_raw(const struct kvc_stored *stored, struct kvc_block *block, struct kvc_error *e);
/* Return 0 where a stage has no sections of a block, or none of a segment, as it should. */
static inline int kvc_stored_none(const struct kvc_stored *stored, struct kvc_error *e) {
    return stored->n ? kvc_section_none_left(stored->section, stored->section + stored->n, e) : 0;
}
static inline int kvc_stored_no_side(const struct kvc_stored *stored, struct kvc_error *e) {
    return stored->n_side ? kvc_section_none_left(stored->side, stored->side + stored->n_side, e)
                          : 0;
}

#endif
